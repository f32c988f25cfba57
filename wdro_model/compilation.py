"""From what the user declared to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cvxpy.error import ParameterError

from wdro_model.feasible import Feasible, parameters_of
from wdro_model.loss import BatchedLoss, CallableLoss, analyse
from wdro_model.loss.flat_vectors import FlatLoss
from wdro_model.model import Model
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.validation import all_variables, refuse_uncertain_constraints


def compiled(
    loss: BatchedLoss | CallableLoss,
    constraints: Sequence[Any],
    ball: WassersteinBall | None,
    assume_convex: bool,
) -> Model:
    """Loss, structure, joint samples, bound cost and feasible set of a problem."""
    uncertain = tuple(loss.parameters)
    refuse_uncertain_constraints(constraints)
    for parameter in uncertain:
        if parameter.samples is None:
            raise ValueError(
                f"the uncertain parameter {parameter.name()!r} has no samples; declare it as "
                f"UncertainParameter({parameter.shape}, samples=array of shape (N, ...))."
            )
    expression = getattr(loss, "expression", None)
    feasible = Feasible(constraints, all_variables(loss.variables, constraints))
    joint = JointSamples(uncertain) if uncertain else None
    return Model(
        expression=expression,
        loss=FlatLoss(loss, feasible.layout, joint),
        structure=None if expression is None else analyse(expression, uncertain),
        joint=joint,
        ambiguity=ball,
        cost=ball.cost.bind(joint) if ball is not None and joint is not None else None,
        feasible=feasible,
        assume_convex=assume_convex,
    )


def refuse_missing_values(model: Model) -> None:
    """Certain parameters must have a value before anything is solved."""
    parameters = [] if model.expression is None else model.expression.parameters()
    for constraint in model.feasible.constraints:
        parameters = [*parameters, *parameters_of(constraint)]
    for parameter in parameters:
        if not isinstance(parameter, UncertainParameter) and parameter.value is None:
            raise ParameterError(
                f"the parameter {parameter.name()!r} has no value; set its .value, or declare "
                "it as an UncertainParameter with samples."
            )


def refuse_empty_set(model: Model) -> None:
    """An empty feasible set is an error here rather than in the middle of a solve."""
    feasible = model.feasible
    certain = [p for c in feasible.constraints for p in parameters_of(c)]
    if not feasible.constraints or feasible.is_integer or any(p.value is None for p in certain):
        return
    feasible.check_nonempty()
