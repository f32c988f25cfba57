"""Whether robustness can change an integer decision at all.

At 0/1 points x_i^2 = x_i. Where the loss is affine in the data the adversary adds phi(<w, x>) to
the mean loss of a choice x, or to x' M x a multiple of <1, x>. If <w, x> is the same for all of
them (equal weights, and trees, assignments, perfect matchings or k-subsets) the robust choice is
that of ERM.
"""

from __future__ import annotations

import numpy as np

from wdro_model.model import Model, RobustModel
from wdro_model.objectives.exact.affine_loss import QuadraticFormLoss
from wdro_model.objectives.exact.at_choices import risk_at_choices
from wdro_model.objectives.exact.counterpart import Counterpart
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.objective import Array
from wdro_model.solvers.parametric import ChoiceRisk

SAME = 1e-9
IDLE = (
    "the adversary adds the same to every integer decision (they all have the same number of "
    "ones): the robust choice is ERM's. weights='standardize' on the cost, or weights of your own, "
    "make a difference; so does a mixture of choices, over the convex hull"
)


def same_choice_note(model: Model, found: Counterpart | None) -> str | None:
    """Why the radius cannot change an integer decision; None where it can, or is not known.

    Two calls of the oracle tell, and only equal weights are asked about.
    """
    if found is None or not isinstance(model, RobustModel) or not chooses(model):
        return None
    if model.feasible.uncertain:  # the radius counts in constraints too
        return None
    spread = _spread(model, found)
    if spread is None or np.ptp(spread) > SAME * abs(spread[0]):
        return None
    return IDLE if _is_constant(model.feasible.oracle(), spread) else None


def chooses(model: Model) -> bool:
    """Are all decisions choices of 0 and 1, as declared or as vertices of their sets?"""
    if model.feasible.is_binary:
        return True
    sets, (lower, upper) = [s for s, _ in model.feasible.oracle_blocks()], model.feasible.bounds()
    covered = sum(s.dimension for s in sets) == model.feasible.layout.dimension
    return (
        covered
        and all(s.rounds for s in sets)
        and bool(np.all(lower >= 0))
        and bool(np.all(upper <= 1))
    )


def _spread(model: RobustModel, found: Counterpart) -> Array | None:
    """w, where the adversary adds a function of <w, x>."""
    if isinstance(found, QuadraticFormLoss):
        return np.ones(model.loss.dimension)
    risk = risk_at_choices(model)
    return risk.spread if isinstance(risk, ChoiceRisk) else None


def _is_constant(oracle: FeasibleSet, weights: Array) -> bool:
    """Is <w, x> the same at all points of the set?"""
    if not weights.any():
        return True
    if oracle.nonnegative_directions:
        return False
    least, most = (weights @ oracle.minimize(sign * weights) for sign in (1.0, -1.0))
    return bool(abs(most - least) <= SAME * max(abs(most), abs(least)))
