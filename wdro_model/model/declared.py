"""What a problem is built from, checked where it is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss import BatchedLoss, CallableLoss
from wdro_model.sets import In
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.parameter import UncertainParameter


def compiled_loss(objective: Any) -> BatchedLoss | CallableLoss:
    """The loss of an objective, lowered to NumPy."""
    if isinstance(objective, CallableLoss):
        return objective
    if isinstance(objective, cp.Maximize):
        raise ValueError(
            "a wdro Problem minimises a loss; write cp.Minimize(-reward) instead of "
            "cp.Maximize(reward)."
        )
    if not isinstance(objective, cp.Minimize):
        raise ValueError(
            f"the objective must be cp.Minimize(loss) or a CallableLoss, got "
            f"{type(objective).__name__}; wrap the expression in cp.Minimize(...)."
        )
    return BatchedLoss(objective.expr)


def check_constraints(constraints: Sequence[Any] | None) -> list[Any]:
    """A list of CVXPY constraints and memberships."""
    if constraints is None:
        return []
    if isinstance(constraints, (In, cp.constraints.constraint.Constraint)):
        raise ValueError("constraints must be a list; write [constraint].")
    constraints = list(constraints)
    for constraint in constraints:
        known = (In, cp.constraints.constraint.Constraint, bool, np.bool_)
        if not isinstance(constraint, known):
            raise ValueError(
                f"a constraint must be a CVXPY constraint or In(x, set), got "
                f"{type(constraint).__name__}: {constraint!r}."
            )
    return constraints


def check_ambiguity(ambiguity: Any) -> WassersteinBall | None:
    """None or a ball."""
    if ambiguity is None or isinstance(ambiguity, WassersteinBall):
        return ambiguity
    raise ValueError(
        f"ambiguity must be a WassersteinBall, got {ambiguity!r}; "
        "write ambiguity=WassersteinBall(radius=...)."
    )


def refuse_uncertain_constraints(constraints: Sequence[Any]) -> None:
    """Uncertainty is allowed in the loss only."""
    for constraint in constraints:
        if isinstance(constraint, (In, bool, np.bool_)):
            continue
        for parameter in constraint.parameters():
            if isinstance(parameter, UncertainParameter):
                raise ValueError(
                    f"the uncertain parameter {parameter.name()!r} is in the constraint "
                    f"{constraint}; only the loss may be uncertain: move it there as a penalty."
                )


def all_variables(in_loss: Sequence[cp.Variable], constraints: Sequence[Any]) -> list[cp.Variable]:
    """The variables of the loss and of the constraints, each once."""
    found: dict[cp.Variable, None] = dict.fromkeys(in_loss)
    for constraint in constraints:
        if isinstance(constraint, In):
            found[constraint.variable] = None
        elif not isinstance(constraint, (bool, np.bool_)):
            found.update(dict.fromkeys(constraint.variables()))
    if not found:
        raise ValueError("the problem has no decision variable.")
    return list(found)
