"""What one looks at in a sample of losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

TAIL = 0.95
"""CVaR is the mean of the worst 5% of the losses."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that are shown."""


@dataclass(frozen=True)
class LossStatistics:
    """Mean, spread, quantiles and tail of a sample of losses; prints as a small table.

    Of an objective that is maximised, of its values: the worst are then the smallest.
    """

    count: int
    mean: float
    standard_error: float
    """Of the mean: deviation / sqrt(count); NaN for a single loss."""
    deviation: float
    """With the divisor count - 1; 0 for a single loss."""
    quantiles: Mapping[float, float]
    """By their level; linear between the ordered losses, as NumPy and pandas do it."""
    tail: float
    """CVaR at 95%: the mean of the worst 5% of the losses."""
    tail_error: float
    """Its standard error; NaN for a single loss."""
    worst: float

    @classmethod
    def of(cls, losses: Any, maximise: bool = False) -> LossStatistics:
        """The statistics of a sample of losses, (count,); maximise: large ones are good."""
        losses = np.asarray(losses, dtype=float)
        if losses.ndim != 1 or not losses.size:
            raise ValueError(
                f"statistics need a vector of at least one loss, got shape {losses.shape}."
            )
        if maximise:
            turned = cls.of(-losses)
            return replace(
                turned,
                mean=-turned.mean,
                quantiles=dict(zip(LEVELS, (-turned.quantiles[q] for q in reversed(LEVELS)))),
                tail=-turned.tail,
                worst=-turned.worst,
            )
        return cls(
            losses.size,
            float(losses.mean()),
            standard_error(losses),
            float(losses.std(ddof=1)) if losses.size > 1 else 0.0,
            dict(zip(LEVELS, map(float, np.quantile(losses, LEVELS)))),
            conditional_value_at_risk(losses, TAIL),
            tail_error(losses, TAIL),
            float(losses.max()),
        )

    @property
    def median(self) -> float:
        return self.quantiles[0.5]

    def row(self) -> dict[str, float]:
        """The statistics under the names of the columns of a report."""
        return {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "deviation": self.deviation,
            "q05": self.quantiles[0.05],
            "q25": self.quantiles[0.25],
            "median": self.quantiles[0.5],
            "q75": self.quantiles[0.75],
            "q95": self.quantiles[0.95],
            "cvar95": self.tail,
            "worst": self.worst,
        }

    def __str__(self) -> str:
        spread = ", ".join(f"{level:.0%} {q:.6g}" for level, q in self.quantiles.items())
        rows = [
            ("scenarios", str(self.count)),
            ("mean", f"{self.mean:.6g} (standard error {self.standard_error:.2g})"),
            ("deviation", f"{self.deviation:.6g}"),
            ("quantiles", spread),
            ("CVaR 95%", f"{self.tail:.6g} (standard error {self.tail_error:.2g})"),
            ("worst", f"{self.worst:.6g}"),
        ]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)


def standard_error(losses: np.ndarray) -> float:
    """Standard error of the mean of independent losses; NaN for a single one."""
    if losses.size < 2:
        return float("nan")
    return float(losses.std(ddof=1) / np.sqrt(losses.size))


def conditional_value_at_risk(losses: np.ndarray, level: float) -> float:
    """Mean of the worst (1 - level) share of the losses, a fraction of a sample counted as such."""
    ordered = np.sort(losses)[::-1]
    share = (1.0 - level) * ordered.size
    whole = int(np.floor(share))
    total = ordered[:whole].sum() + (share - whole) * ordered[min(whole, ordered.size - 1)]
    return float(total / share)


def tail_error(losses: np.ndarray, level: float) -> float:
    """Standard error of the CVaR of independent losses, from its influence function.

    CVaR is the mean of t + (loss - t)_+ / (1 - level) at the quantile t, which to first order may
    be taken as known. NaN for a single loss. With fewer than 1 / (1 - level) losses the tail is a
    part of one loss, and the error is too small.
    """
    quantile = float(np.quantile(losses, level))
    return standard_error(np.maximum(losses - quantile, 0.0) / (1.0 - level))
