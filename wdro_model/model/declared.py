"""What a problem is built from, checked where it is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.transforms.partial_optimize import PartialProblem

from wdro_model.loss import BatchedLoss, CallableLoss
from wdro_model.loss.atoms.cvxpy_classes import NEGATE, SUM_LARGEST
from wdro_model.loss.atoms.facts import brief
from wdro_model.loss.atoms.risk import Probability
from wdro_model.model.functionals import WAY_OUT, Tails, lowered, subexpressions
from wdro_model.sets import In
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.parameter import UncertainParameter


def compiled_loss(objective: Any) -> tuple[BatchedLoss | CallableLoss, Tails | None]:
    """The loss of an objective, lowered to NumPy: minus the one that is maximised.

    And how it is judged, where it has CVaRs.
    """
    if isinstance(objective, CallableLoss):
        return objective, None
    if not isinstance(objective, (cp.Minimize, cp.Maximize)):
        raise ValueError(
            f"the objective must be cp.Minimize(loss), cp.Maximize(reward) or a CallableLoss, got "
            f"{type(objective).__name__}; wrap the expression in cp.Minimize(...)."
        )
    refuse_partial(objective.args, "the loss")
    refuse_nan(objective, "the loss")
    refuse_vector_cvar(objective.expr)
    loss = objective.expr if isinstance(objective, cp.Minimize) else _minus(objective)
    found = lowered(loss, "the objective")
    for measure in found.measures:
        if measure.ambiguity is not None:
            raise ValueError(
                f"{brief(measure)} has a ball of its own in the objective, whose terms share that "
                f"of the problem; leave ambiguity= out, or {WAY_OUT.format(measure=measure)}."
            )
    return BatchedLoss(found.expression), found.tails


def _minus(objective: cp.Maximize) -> Any:
    """The loss of a reward; cp.Maximize(-loss) has it as it was written."""
    reward = objective.expr
    return reward.args[0] if isinstance(reward, NEGATE) else -reward


def refuse_vector_cvar(expression: Any) -> None:
    """CVXPY's CVaR of the entries of a vector is no CVaR of the loss over the data."""
    for atom in subexpressions([expression]):
        if not isinstance(atom, SUM_LARGEST) or atom.args[0].size > 1:
            continue
        if any(isinstance(p, UncertainParameter) for p in atom.parameters()):
            raise ValueError(
                "cp.cvar and cp.sum_largest look at the entries of one vector, not at the "
                f"distribution of the data, and {atom.args[0]} has one entry; for the CVaR of a "
                "loss at level 0.95 write wdro_model.cvar(loss, 0.95)."
            )


def refuse_partial(parts: Sequence[Any], what: str) -> None:
    """The minimum over some of the variables, as CVXPY's partial_optimize has it, is no atom."""
    if any(isinstance(e, PartialProblem) for e in subexpressions(parts)):
        raise ValueError(
            f"{what} has the value of a partial_optimize in it, whose inner variables may depend on"
            " the data or not: to decide them here and now, write the inner objective and "
            "constraints into the problem itself; to decide them once the data is known, write the "
            "inner minimum as a maximum of affine pieces (its dual vertices), or as a CallableLoss."
        )


def refuse_nan(expression: Any, what: str) -> None:
    """A constant that is not a number is an error where it is declared."""
    for constant in expression.constants():
        values = constant.value.data if sp.issparse(constant.value) else constant.value
        if np.isnan(values).any():
            raise ValueError(
                f"{what} has a constant with the value nan: {brief(expression)}; drop or impute it."
            )


def check_constraints(constraints: Sequence[Any] | None) -> list[Any]:
    """A list of CVXPY constraints and memberships."""
    if constraints is None:
        return []
    if isinstance(constraints, (In, cp.constraints.constraint.Constraint)):
        raise ValueError("constraints must be a list; write [constraint].")
    if isinstance(constraints, WassersteinBall):
        raise ValueError(
            f"constraints must be a list, got {constraints!r}; pass the ball as ambiguity=: "
            "Problem(objective, [], ball) or Problem(objective, ambiguity=ball)."
        )
    constraints = list(constraints)
    for constraint in constraints:
        known = (In, cp.constraints.constraint.Constraint, bool, np.bool_)
        if not isinstance(constraint, known):
            likely = "; write it >= 0.9" if isinstance(constraint, Probability) else ""
            raise ValueError(
                f"a constraint must be a CVXPY constraint or In(x, set), got "
                f"{type(constraint).__name__}: {constraint!r}{likely}."
            )
        if isinstance(constraint, cp.constraints.constraint.Constraint):
            refuse_partial(constraint.args, "a constraint")
            refuse_nan(constraint, "a constraint")
    return constraints


def check_ambiguity(ambiguity: Any) -> WassersteinBall | None:
    """None or a ball."""
    if ambiguity is None or isinstance(ambiguity, WassersteinBall):
        return ambiguity
    raise ValueError(
        f"ambiguity must be a WassersteinBall, got {ambiguity!r}; "
        "write ambiguity=WassersteinBall(radius=...)."
    )


def check_assumption(assume_convex: Any) -> bool:
    """True or False."""
    if isinstance(assume_convex, (bool, np.bool_)):
        return bool(assume_convex)
    raise ValueError(
        f"assume_convex must be True or False, got {assume_convex!r}; True is your word that the "
        "loss is convex in the decision."
    )


def refuse_uncertain_constraints(constraints: Sequence[Any]) -> None:
    """Outside of the loss, uncertainty is allowed inside risk measures only."""
    for constraint in constraints:
        if isinstance(constraint, (In, bool, np.bool_)):
            continue
        for parameter in constraint.parameters():
            if isinstance(parameter, UncertainParameter):
                raise ValueError(
                    f"the uncertain parameter {parameter.name()!r} is in the constraint "
                    f"{constraint}, which is to hold for what distribution of it? Bound its "
                    "expectation (wdro_model.expectation(g) <= 0), the mean of its worst share "
                    "(wdro_model.cvar(g, 0.9) <= 0), or ask that it holds with a probability "
                    "(wdro_model.probability(g <= 0) >= 0.9)."
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


class ReadOnly:
    """An attribute that is fixed once the problem is compiled; kept under its name with a `_`."""

    def __init__(self, way_out: str) -> None:
        self.way_out = way_out

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, problem: Any, owner: type | None = None) -> Any:
        return self if problem is None else getattr(problem, f"_{self.name}")

    def __set__(self, problem: Any, value: Any) -> None:
        raise AttributeError(f"{self.name} of a Problem is read-only: {self.way_out}.")
