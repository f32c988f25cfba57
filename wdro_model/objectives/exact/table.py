"""The table: which exact counterpart applies to a model."""

from __future__ import annotations

from wdro_model.errors import NoReformulationError
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.affine import AffineLoss
from wdro_model.objectives.exact.box import BoxLoss
from wdro_model.objectives.exact.counterpart import COUNTERPARTS, Counterpart, register_counterpart
from wdro_model.objectives.exact.least_squares import LeastSquaresLoss
from wdro_model.objectives.exact.lipschitz import LipschitzLoss
from wdro_model.objectives.exact.max_affine import MaxAffineLoss
from wdro_model.objectives.exact.polyhedral import PolyhedralLoss
from wdro_model.objectives.exact.quadratic_form import QuadraticFormLoss

BUILT_IN: dict[str, Counterpart] = {
    "quadratic_form": QuadraticFormLoss(),
    "affine": AffineLoss(),
    "lipschitz": LipschitzLoss(),
    "least_squares": LeastSquaresLoss(),
    "max_affine": MaxAffineLoss(),
    "box": BoxLoss(),
    "polyhedral": PolyhedralLoss(),
}
"""The cheapest counterparts first."""

for _name, _counterpart in BUILT_IN.items():
    register_counterpart(_name, _counterpart)


def counterparts() -> tuple[Counterpart, ...]:
    """All of them in the order in which they are asked: those that were added come first."""
    added = [name for name in COUNTERPARTS.names() if name not in BUILT_IN]
    return tuple(COUNTERPARTS[name] for name in (*added, *BUILT_IN))


def counterpart(model: RobustModel) -> Counterpart:
    """The first that applies; a NoReformulationError that says what was found if none does."""
    reasons: list[str] = []
    for entry in counterparts():
        reason = entry.refusal(model)
        if reason is None:
            return entry
        if reason not in reasons:
            reasons.append(reason)
    raise NoReformulationError(
        f"no exact robust counterpart is known for this model: {'; '.join(reasons)}",
        "method='smoothed' (any differentiable loss) or method='erm'",
    )


def has_counterpart(model: RobustModel) -> bool:
    """Does one of them apply?"""
    return any(entry.refusal(model) is None for entry in counterparts())
