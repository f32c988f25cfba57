"""What each sample counts: averages over the samples, of numbers and of CVXPY expressions.

The reference distribution is sum_k p_k delta_{xi_k}. Whatever averages over samples asks these
shares for it; where all p_k are 1/N they give plain means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np

CLOSE = 1e-8
"""How far the sum of probabilities may be from one."""


@dataclass(frozen=True, eq=False)
class SampleShares:
    """The shares of n samples in an average: 1/N of each, or their probabilities.

    Those of all samples add up to one, those of a part of them to its probability.
    """

    count: int
    """n."""
    divisor: int
    """N."""
    probabilities: np.ndarray | None = None
    """(n,); None where all shares are 1/N."""

    @classmethod
    def of(cls, size: int, probabilities: np.ndarray | None = None) -> SampleShares:
        """Those of all samples."""
        return cls(size, size, probabilities)

    @cached_property
    def array(self) -> np.ndarray:
        """The shares, (n,)."""
        if self.probabilities is not None:
            return self.probabilities
        return np.full(self.count, 1.0 / self.divisor)

    @property
    def mass(self) -> float:
        """Their sum."""
        return self.count / self.divisor if self.probabilities is None else float(self.array.sum())

    @property
    def square(self) -> float:
        """sum_k p_k^2, by which variances of independent terms add up to that of their average."""
        if self.probabilities is None:
            return self.count / self.divisor**2
        return float(self.probabilities @ self.probabilities)

    @property
    def effective_size(self) -> float:
        """The number of equal shares of the same sum of squares: N where all are equal."""
        return float(self.divisor) if self.probabilities is None else 1.0 / self.square

    def total(self, values: np.ndarray) -> Any:
        """sum_k p_k values_k over the first axis of values (n, ...): their average."""
        if self.probabilities is None:
            return values.sum(axis=0) / self.divisor
        return np.tensordot(self.probabilities, values, axes=1)

    def error(self, variances: np.ndarray) -> float:
        """The standard error of an average of independent terms with these variances (n,)."""
        if self.probabilities is None:
            return float(np.sqrt(float(variances.sum())) / self.divisor)
        return float(np.sqrt(self.probabilities**2 @ variances))

    def times(self, values: np.ndarray) -> np.ndarray:
        """p_k values_k for values (n, ...)."""
        if self.probabilities is None:
            return values / self.divisor
        return values * self.probabilities.reshape(-1, *([1] * (np.ndim(values) - 1)))

    def multiple(self, values: np.ndarray) -> np.ndarray:
        """N p_k values_k for values (n, ...): themselves where all shares are 1/N."""
        return values if self.probabilities is None else self.divisor * self.times(values)

    def expression(self, values: Any) -> Any:
        """sum_k p_k values_k of a CVXPY vector (n,), or of one number that all samples share."""
        if values.size != self.count:
            return self.mass * cp.sum(values)
        if self.probabilities is None:
            return cp.sum(values) / self.divisor
        return self.probabilities @ (values if values.ndim == 1 else cp.vec(values, order="C"))

    def repeated(self, times: int) -> SampleShares:
        """Those of values of which each sample has several, one after the other."""
        whole = None if self.probabilities is None else np.repeat(self.probabilities, times)
        return SampleShares(self.count * times, self.divisor, whole)

    def alone(self) -> SampleShares:
        """Those of the same samples in averages over them alone: they add up to one."""
        if self.probabilities is None:
            return SampleShares.of(self.count)
        return SampleShares.of(self.count, self.probabilities / self.probabilities.sum())

    def some(self, index: Any) -> SampleShares:
        """Those of some of the samples, as they are."""
        if self.probabilities is not None:
            part = self.probabilities[index]
            return SampleShares(len(part), self.divisor, part)
        count = len(range(self.count)[index] if isinstance(index, slice) else index)
        return SampleShares(count, self.divisor)


def as_probabilities(given: Any, size: int, what: str) -> np.ndarray:
    """Probabilities (size,) that add up to one, from what a user gives; read-only."""
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must be real numbers, got {given!r}.") from error
    if array.shape == (size, 1):
        array = array[:, 0]
    if array.shape != (size,):
        raise ValueError(
            f"{what} must be one number for each of the {size} samples, shape ({size},), got shape "
            f"{array.shape}."
        )
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        k = int(np.argmax(wrong))
        raise ValueError(
            f"{what} must be finite and at least 0, got {float(array[k])} for sample {k}; leave "
            "that sample out, or give it 0."
        )
    total = float(array.sum())
    if abs(total - 1.0) > CLOSE:
        way_out = "p / p.sum() does" if total > 0 else "some sample must have a positive one"
        raise ValueError(f"{what} must add up to 1, got a sum of {total:.10g}; {way_out}.")
    array /= total
    array.flags.writeable = False
    return array


def unless_equal(probabilities: np.ndarray | None) -> np.ndarray | None:
    """None for probabilities that are all the same: averages are then plain means."""
    if probabilities is None or np.ptp(probabilities) <= 1e-13 * probabilities.max():
        return None
    return probabilities
