"""The true objective of a decision, whatever a solver says of it."""

from __future__ import annotations

from collections.abc import Callable

from wdro_model.model import Model, RobustModel
from wdro_model.objectives.empirical import Empirical
from wdro_model.solve.plan import Plan
from wdro_model.solve.true_risk import robust_value
from wdro_model.solvers.objective import Array

Judge = Callable[[Array], float]
"""The true objective of a decision."""


def judge_of(model: Model, chosen: Plan) -> Judge:
    """The mean loss of a decision, or its worst-case risk."""
    found = chosen.counterpart
    if found is not None and isinstance(model, RobustModel):
        return lambda x: robust_value(model, x, found)
    return lambda x: Empirical(model).evaluate(x).value
