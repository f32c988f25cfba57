"""The adversarial distribution of a decision: which world is it robust against?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wdro_model.errors import NoReformulationError, unknown_name
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.exact import counterpart
from wdro_model.objectives.exact.counterpart import unmoved
from wdro_model.solve.certify import worst_distribution
from wdro_model.solve.solution import Solution
from wdro_model.uncertainty.parameter import UncertainParameter


@dataclass(frozen=True)
class WorstCase:
    """A distribution of the ball under which the expected loss of a decision is largest."""

    scenarios: Mapping[UncertainParameter, np.ndarray]
    """Its K atoms, (K, *shape) for each parameter; all inside the supports."""
    weights: np.ndarray
    """Their probabilities, (K,)."""
    source: np.ndarray
    """The index of the sample that each atom was moved from, (K,)."""
    expected_loss: float
    """The least expected value of an objective that is maximised."""
    transport_cost: float
    """At most the radius, up to rounding."""
    dual: float
    """What one unit of radius costs; 0 where the radius does not bind."""
    penalty: float | None = None
    """Of the smoothed problem: epsilon times the divergence of the law from its reference. The
    smoothed value is expected_loss - penalty + dual (radius - transport_cost)."""

    def __str__(self) -> str:
        kind = "worst case" if self.penalty is None else "worst case of the smoothed problem"
        less = "" if self.penalty is None else f", entropic penalty {self.penalty:.6g}"
        return (
            f"{kind}: {len(self.weights)} scenarios, expected loss {self.expected_loss:.8g}, "
            f"transport cost {self.transport_cost:.6g}, dual {self.dual:.6g}{less}"
        )


def find_worst_case(
    model: Model, x: np.ndarray, solution: Solution | None, method: str | None
) -> WorstCase:
    """The distribution that goes with the last solve, or with the method that is asked for."""
    smoothed = solution is not None and solution.epsilon is not None
    wanted = method or ("smoothed" if smoothed else "exact")
    if wanted not in ("exact", "smoothed"):
        raise ValueError(unknown_name("method", wanted, ("exact", "smoothed")))
    if wanted == "exact":
        return worst_case(model, x)
    if solution is None or not smoothed:
        raise ValueError(
            "the worst case of the smoothed problem belongs to a smoothed solve; call "
            "problem.solve(method='smoothed') first, or ask for worst_case('exact')."
        )
    from wdro_model.evaluation.smoothed_worst_case import smoothed_worst_case

    assert isinstance(model, RobustModel)
    return smoothed_worst_case(model, solution)


def worst_case(model: Model, x: np.ndarray) -> WorstCase:
    """The extremal distribution of the exact problem at the flat decision x.

    Where the supremum is not attained (a norm cost on an unbounded support), a distribution whose
    expected loss is close to it. NoReformulationError where no exact counterpart is known.
    """
    if not isinstance(model, RobustModel) or not model.has_ball:
        raise NoReformulationError(
            "a worst case needs an uncertain parameter and an ambiguity set; pass "
            "ambiguity=WassersteinBall(radius=...) to the problem."
        )
    x = np.asarray(x, dtype=float)
    found = unmoved(model)
    if model.radius > 0:
        found = worst_distribution(model, x, counterpart(model))
    losses = model.loss.values(x, found.rows)
    costs = model.cost(model.rows[found.source], found.rows)
    return WorstCase(
        scenarios=model.joint.split(found.rows),
        weights=found.weights,
        source=found.source,
        expected_loss=float(found.weights @ losses),
        transport_cost=float(found.weights @ costs),
        dual=found.dual,
    )
