"""What one looks at in a sample of losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TAIL = 0.95


@dataclass(frozen=True)
class LossStatistics:
    """Mean, spread and tail of a sample of losses."""

    mean: float
    deviation: float
    median: float
    tail: float
    """CVaR at 95%: the mean of the worst 5% of the losses."""
    worst: float

    @classmethod
    def of(cls, losses: np.ndarray) -> LossStatistics:
        """The statistics of a sample of losses."""
        return cls(
            float(losses.mean()),
            float(losses.std(ddof=1)) if losses.size > 1 else 0.0,
            float(np.median(losses)),
            conditional_value_at_risk(losses, TAIL),
            float(losses.max()),
        )


def conditional_value_at_risk(losses: np.ndarray, level: float) -> float:
    """Mean of the worst (1 - level) share of the losses, a fraction of a sample counted as such."""
    ordered = np.sort(losses)[::-1]
    share = (1.0 - level) * ordered.size
    whole = int(np.floor(share))
    total = ordered[:whole].sum() + (share - whole) * ordered[min(whole, ordered.size - 1)]
    return float(total / share)
