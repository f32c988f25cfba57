"""Exact robust counterparts: a table keyed by the loss's structure, the cost and the support.

An entry says whether it applies to a model, and gives the worst-case risk as a CVXPY program, as a
smooth objective for Frank-Wolfe where it is one, and as a number with its worst-case distribution
at a fixed decision. Adding one is a file with a class, and `register_counterpart`.

| entry                 | loss in the data                | cost            | support   |
|-----------------------|---------------------------------|-----------------|-----------|
| QuadraticFormLoss     | x' Xi x                         | squared         | R^d       |
| AffineLoss            | affine                          | quadratic       | R^d, box  |
| LipschitzLoss         | maxima, logistic, huber         | norm            | R^d       |
| LeastSquaresLoss      | the square of an affine form    | quadratic       | R^d       |
| MaxAffineEverywhere   | sums of maxima of affine pieces | quadratic       | R^d       |
| MaxAffineOnBox        | the same                        | separable       | box       |
| MaxAffineOnPolyhedron | the same                        | norm, quadratic | C xi <= h |
"""

from __future__ import annotations

from wdro_model.errors import NoReformulationError
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.affine_loss import AffineLoss, QuadraticFormLoss
from wdro_model.objectives.exact.counterpart import (
    COUNTERPARTS,
    Counterpart,
    Extremal,
    register_counterpart,
)
from wdro_model.objectives.exact.least_squares_loss import LeastSquaresLoss
from wdro_model.objectives.exact.lipschitz_loss import LipschitzLoss
from wdro_model.objectives.exact.max_affine_everywhere import MaxAffineEverywhere
from wdro_model.objectives.exact.max_affine_on_box import MaxAffineOnBox
from wdro_model.objectives.exact.max_affine_on_polyhedron import MaxAffineOnPolyhedron

__all__ = [
    "Counterpart",
    "Extremal",
    "Program",
    "counterpart",
    "counterparts",
    "has_counterpart",
    "register_counterpart",
]

BUILT_IN: dict[str, Counterpart] = {
    "quadratic_form": QuadraticFormLoss(),
    "affine": AffineLoss(),
    "lipschitz": LipschitzLoss(),
    "least_squares": LeastSquaresLoss(),
    "max_affine": MaxAffineEverywhere(),
    "box": MaxAffineOnBox(),
    "polyhedral": MaxAffineOnPolyhedron(),
}
"""The cheapest counterparts first."""

for _name, _counterpart in BUILT_IN.items():
    register_counterpart(_name, _counterpart)


def counterparts() -> tuple[Counterpart, ...]:
    """All of them in the order in which they are asked: those added last come first."""
    added = [name for name in COUNTERPARTS.names() if name not in BUILT_IN]
    return (*(COUNTERPARTS[name] for name in reversed(added)), *BUILT_IN.values())


def counterpart(model: RobustModel) -> Counterpart:
    """The first that applies; a NoReformulationError that says what was found if none does."""
    reasons: list[str] = []
    for entry in counterparts():
        reason = refusal_of(entry, model)
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
    return any(refusal_of(entry, model) is None for entry in counterparts())


def refusal_of(entry: Counterpart, model: RobustModel) -> str | None:
    """Why a counterpart does not apply, in words; None if it does."""
    reason = entry.refusal(model)
    if reason is None or (isinstance(reason, str) and reason):
        return reason
    raise TypeError(
        f"refusal of the counterpart {type(entry).__name__} must return None where it applies, and "
        f"the reason in words where it does not; it returned {reason!r}."
    )


def program_of(model: RobustModel) -> Program | None:
    """The program of the counterpart that applies."""
    entry = counterpart(model)
    found = entry.program(model)
    if found is None or isinstance(found, Program):
        return found
    raise TypeError(
        f"program of the counterpart {type(entry).__name__} must return Program.if_convex(...) or "
        f"None, got {type(found).__name__}."
    )
