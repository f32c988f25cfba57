"""What the entries of the table ask of a model, each with the sentence for a model without it."""

from __future__ import annotations

from collections.abc import Callable

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.support import inequalities, moves_freely
from wdro_model.uncertainty.costs import BoundCost

Condition = Callable[[RobustModel], str | None]


def first_refusal(model: RobustModel, *conditions: Condition) -> str | None:
    """The first reason why an entry does not apply; None if there is none."""
    for condition in (needs_expression, *conditions):
        reason = condition(model)
        if reason is not None:
            return reason
    return None


def needs_expression(model: RobustModel) -> str | None:
    if model.expression is None:
        return "the loss is a callable, its dependence on the data is not known"
    return None


def needs_affine(model: RobustModel) -> str | None:
    if not model.affine_in_data:
        return f"the loss is not affine in the data ({model.structure.describe()})"
    return None


def needs_quadratic_cost(*operations: str) -> Condition:
    """A quadratic cost that knows some operations."""
    return _needs_cost("quadratic", lambda cost: cost.is_quadratic, operations)


def needs_norm_cost(*operations: str) -> Condition:
    """A norm that knows some operations."""
    return _needs_cost("a norm", lambda cost: cost.is_norm, operations)


def needs_homogeneous_cost(*operations: str) -> Condition:
    """A norm or a quadratic cost that knows some operations."""
    return _needs_cost(
        "a norm or quadratic", lambda cost: cost.is_norm or cost.is_quadratic, operations
    )


def _needs_cost(
    name: str, is_such: Callable[[BoundCost], bool], operations: tuple[str, ...]
) -> Condition:
    def refusal(model: RobustModel) -> str | None:
        if not is_such(model.cost):
            return f"the ground cost is not {name} ({model.cost.describe()})"
        missing = [operation for operation in operations if not model.cost.knows(operation)]
        if missing:
            names = ", ".join(missing)
            return f"the ground cost does not know its {names} ({model.cost.describe()})"
        return None

    return refusal


def needs_free_moves(model: RobustModel) -> str | None:
    if not moves_freely(model):
        supports = ", ".join(f"{p.name()} in {p.support!r}" for p in model.joint.parameters)
        return f"the support is not R^d ({supports})"
    return None


def needs_polyhedron(model: RobustModel) -> str | None:
    if inequalities(model) is None:
        supports = ", ".join(f"{p.name()} in {p.support!r}" for p in model.joint.parameters)
        return f"the support is not given by linear inequalities ({supports})"
    return None
