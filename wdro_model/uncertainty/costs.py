"""Ground costs c(xi, zeta): what it costs nature to move an observation xi to zeta.

A cost is declared before the parameters are known (`SquaredEuclidean(weights="standardize")`) and
bound to the joint samples when the problem is compiled, which resolves and checks its weights.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.uncertainty.bound_cost import BoundCost, Function, function_name
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.weights import resolve_weights


class GroundCost(ABC):
    """A transport cost, not yet tied to parameters."""

    order: float | None
    """p if c behaves like a distance to the power p; None if unknown."""

    @abstractmethod
    def bind(self, joint: JointSamples) -> BoundCost:
        """The cost on the coordinates of these samples; ValueError if it does not fit them."""

    @abstractmethod
    def describe(self) -> str:
        """The formula."""


@dataclass(frozen=True, eq=False)
class SquaredEuclidean(GroundCost):
    """c = sum_i w_i (xi_i - zeta_i)^2, the cost of the 2-Wasserstein distance squared.

    weights: None (1), a positive number, an array of the parameter's shape or of length d, a dict
        {parameter: number or array}, or "standardize" (one over the sample variance). The weight
        np.inf keeps a coordinate at its observed value.
    """

    weights: Any = None
    order = 2.0

    def bind(self, joint: JointSamples) -> BoundCost:
        return BoundCost(
            "squared", joint.dimension, weights=resolve_weights(self.weights, joint, power=2)
        )

    def describe(self) -> str:
        return _weighted("sum_i {w}(xi_i - zeta_i)^2", self.weights)


@dataclass(frozen=True, eq=False)
class Mahalanobis(GroundCost):
    """c = (xi - zeta)' P (xi - zeta) for a positive definite P, the inverse of a covariance.

    Give exactly one of covariance and precision, of shape (d, d), d counting all coordinates.
    """

    covariance: Any = None
    precision: Any = None
    order = 2.0

    def __post_init__(self) -> None:
        if (self.covariance is None) == (self.precision is None):
            raise ValueError(
                "Mahalanobis needs exactly one of covariance= and precision=, got "
                + ("neither." if self.covariance is None else "both.")
            )
        name = "precision" if self.covariance is None else "covariance"
        object.__setattr__(self, name, _positive_definite(getattr(self, name), name))

    def bind(self, joint: JointSamples) -> BoundCost:
        matrix = self.precision if self.covariance is None else _inverse(self.covariance)
        if len(matrix) != joint.dimension:
            raise ValueError(
                f"Mahalanobis has a matrix of shape {matrix.shape} but the uncertain parameters "
                f"have {joint.dimension} coordinates together; give one row per coordinate of "
                f"{', '.join(repr(p.name()) for p in joint.parameters)}."
            )
        return BoundCost("mahalanobis", joint.dimension, matrix=matrix)

    def describe(self) -> str:
        return "(xi - zeta)' P (xi - zeta)"


@dataclass(frozen=True, eq=False)
class Norm(GroundCost):
    """c = || w * (xi - zeta) ||_p, the cost of the 1-Wasserstein distance.

    p: in [1, inf]; "inf" as in CVXPY for np.inf.
    weights: as for `SquaredEuclidean`, "standardize" being one over the sample standard deviation.
    """

    p: float | str = 2
    weights: Any = None
    order = 1.0

    def __post_init__(self) -> None:
        p: Any = np.inf if isinstance(self.p, str) and self.p.lower() == "inf" else self.p
        if not _is_number(p) or not p >= 1 or (np.isinf(as_float(p)) and p != np.inf):
            raise ValueError(f"p of a Norm cost must be a number in [1, inf], got {shown(self.p)}.")
        object.__setattr__(self, "p", as_float(p))

    def bind(self, joint: JointSamples) -> BoundCost:
        return BoundCost(
            "norm",
            joint.dimension,
            weights=resolve_weights(self.weights, joint, power=1),
            p=float(self.p),
        )

    def describe(self) -> str:
        return _weighted(f"||{{w}}(xi - zeta)||_{float(self.p):g}", self.weights)


@dataclass(frozen=True, eq=False)
class Callable(GroundCost):
    """A cost of the user's own: function(origins (B, d), points (B, d)) -> costs (B,).

    The rows are the parameters flattened row-major, side by side in the order of the loss. Costs
    are nonnegative (np.inf forbids a move) and zero for a point that does not move.
    order: p if the cost is a distance to the power p, for `WassersteinBall.order`.
    """

    function: Function
    order: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"a cost function must be callable, got {self.function!r}.")

    def bind(self, joint: JointSamples) -> BoundCost:
        bound = BoundCost("callable", joint.dimension, function=self.function)
        rows = joint.matrix[:8]
        still = bound(rows, rows)
        if np.any(np.abs(still) > 1e-9):
            worst = int(np.argmax(np.abs(still)))
            raise ValueError(
                f"cost {function_name(self.function)} must be zero for a point that does not move, "
                f"got {float(still[worst])!r} at sample {worst}; subtract it or correct the cost."
            )
        return bound

    def describe(self) -> str:
        return f"{function_name(self.function)}(xi, zeta)"


def as_cost(given: Any) -> GroundCost:
    """A ground cost from what the user wrote: a cost, a plain callable, or None for the default."""
    if given is None:
        return SquaredEuclidean()
    if isinstance(given, GroundCost):
        return given
    if isinstance(given, type) and issubclass(given, GroundCost):
        raise ValueError(f"cost is the class {given.__name__}; write {given.__name__}().")
    if callable(given):
        return Callable(given)
    raise ValueError(
        f"cost must be one of wdro_model.costs (SquaredEuclidean, Mahalanobis, Norm) or a function "
        f"of (origins, points), got {given!r}."
    )


def _positive_definite(given: Any, name: str) -> np.ndarray:
    try:
        matrix = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} of Mahalanobis must be a real matrix, got {given!r}.") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} of Mahalanobis must be square, got shape {matrix.shape}.")
    if not np.all(np.isfinite(matrix)):
        raise ValueError(f"{name} of Mahalanobis must be finite.")
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > 1e-9 * float(np.abs(matrix).max()):
        raise ValueError(
            f"{name} of Mahalanobis must be symmetric, it differs from its transpose by {gap:.3g}; "
            "pass (M + M.T) / 2."
        )
    matrix = (matrix + matrix.T) / 2
    smallest = np.linalg.eigvalsh(matrix)[0]
    # A price beside a volume: definiteness is judged in units in which the diagonal is one.
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    definite = bool(np.all(scale > 0))
    if not definite or np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] <= 1e-14:
        raise ValueError(
            f"{name} of Mahalanobis must be positive definite, its smallest eigenvalue is "
            f"{smallest:.3g}; add a multiple of the identity."
        )
    matrix.flags.writeable = False
    return matrix


def _inverse(covariance: np.ndarray) -> np.ndarray:
    inverse = np.linalg.inv(covariance)
    return (inverse + inverse.T) / 2


def _weighted(formula: str, weights: Any) -> str:
    if weights is None:
        return formula.format(w="")
    label = f", weights {weights}" if isinstance(weights, str | numbers.Real) else ", given weights"
    return formula.format(w="w * " if "||" in formula else "w_i ") + label


def as_float(number: Any) -> float:
    """A number as a float, infinite where it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return np.inf if number > 0 else -np.inf


def shown(given: Any) -> str:
    """What the user gave, for a message; an integer of hundreds of digits by its size."""
    if isinstance(given, int) and abs(given) > 10**300:
        return f"an integer of {len(str(abs(given)))} digits"
    return repr(given)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
