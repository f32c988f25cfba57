"""The cost of moving some of the uncertain parameters, the others staying where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wdro_model.uncertainty.costs.ground_cost import GroundCost
from wdro_model.uncertainty.costs.weighted_cost import WeightedCost
from wdro_model.uncertainty.parameter import UncertainParameter


def cost_on(
    cost: GroundCost, own: Sequence[UncertainParameter], every: Sequence[UncertainParameter]
) -> GroundCost:
    """The cost for an expression that contains some of the parameters of a problem.

    Exact where moves of the other parameters add to the cost, as in weighted norms and squares; a
    ValueError for costs that couple parameters.
    """
    ids = {p.id for p in own}
    others = [p for p in every if p.id not in ids]
    weights: Any = getattr(cost, "weights", None)
    if not others:
        return cost
    if not issubclass(getattr(cost, "bound", object), WeightedCost):
        names, absent = (", ".join(repr(p.name()) for p in some) for some in (own, others))
        raise ValueError(
            f"the cost {cost.describe()} may couple the parameters of the problem, of which an "
            f"expression contains {names} and not {absent}; use a cost that does not, such as "
            "SquaredEuclidean or Norm with weights, or give the constraint a ball of its own "
            "(ambiguity=)."
        )
    if isinstance(weights, Mapping):
        left_out = {p.id for p in others}
        known = {p: w for p, w in weights.items() if getattr(p, "id", None) not in left_out}
        return replace(cost, weights=known or None)  # type: ignore[type-var]
    return cost
