"""What a user may ask of a solve, beside the method and the solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.errors import unknown_name
from wdro_model.objectives.integration import STRATEGIES
from wdro_model.solvers.frank_wolfe import check_positive

DUALS = ("exact", "vertex")


@dataclass(frozen=True)
class Options:
    """Checked options of one solve."""

    epsilon: float | None = None
    sigma: Any = None
    integration: str | None = None
    dual: str | None = None
    seed: int = 0
    start: Any = None
    verbose: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)
        if self.sigma is not None:
            check_sigma(self.sigma)
        for name in ("verbose", "progress"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.integration is not None and self.integration not in STRATEGIES:
            raise ValueError(unknown_name("integration", self.integration, STRATEGIES))
        if self.dual is not None and self.dual not in DUALS:
            raise ValueError(unknown_name("dual", self.dual, DUALS))
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)):
            raise ValueError(f"seed must be an integer, got {self.seed!r}.")
        if not 0 <= int(self.seed) < 2**63:
            raise ValueError(f"seed must be between 0 and 2**63 - 1, got {self.seed}.")


def check_sigma(value: Any) -> None:
    """Refuse what is not a positive number or an array of them."""
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(
            "sigma must be a positive number, or an array of one for each coordinate of the data, "
            f"got {value!r}."
        )
