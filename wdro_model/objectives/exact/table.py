"""The table: which exact counterpart applies to a model."""

from __future__ import annotations

import numpy as np

from wdro_model.errors import NoReformulationError
from wdro_model.model import Model
from wdro_model.objectives.exact.affine import AffineLoss
from wdro_model.objectives.exact.base import Entry
from wdro_model.objectives.exact.least_squares import LeastSquaresLoss
from wdro_model.objectives.exact.lipschitz import LipschitzLoss
from wdro_model.objectives.exact.max_affine import MaxAffineLoss
from wdro_model.objectives.exact.polyhedral import PolyhedralLoss
from wdro_model.objectives.exact.quadratic_form import QuadraticFormLoss

ENTRIES: tuple[Entry, ...] = (
    QuadraticFormLoss(),
    AffineLoss(),
    LipschitzLoss(),
    LeastSquaresLoss(),
    MaxAffineLoss(),
    PolyhedralLoss(),
)
"""The cheapest counterparts first."""


def find_entry(model: Model) -> Entry:
    """The first entry that applies; a NoReformulationError that says what was found if none."""
    reasons: list[str] = []
    for entry in ENTRIES:
        reason = entry.refusal(model)
        if reason is None:
            return entry
        if reason not in reasons:
            reasons.append(reason)
    raise NoReformulationError(
        f"no exact robust counterpart is known for this model: {'; '.join(reasons)}. "
        "What applies: method='smoothed' (any differentiable loss) or method='erm'."
    )


def has_entry(model: Model) -> bool:
    """Does some entry apply?"""
    return any(entry.refusal(model) is None for entry in ENTRIES)


def robust_value(model: Model, x: np.ndarray) -> float | None:
    """The worst-case risk of a decision over the ball; None where no formula is known."""
    for entry in ENTRIES:
        if entry.refusal(model) is None:
            return entry.value(model, x)
    return None
