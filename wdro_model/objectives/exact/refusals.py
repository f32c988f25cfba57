"""What the entries of the table ask of a model, each with the sentence for a model without it."""

from __future__ import annotations

from collections.abc import Callable

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.support import inequalities, moves_freely

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


def needs_cost(*kinds: str) -> Condition:
    def refusal(model: RobustModel) -> str | None:
        if model.cost.kind not in kinds:
            return f"the ground cost is not {KINDS[kinds[0]]} ({model.cost.describe()})"
        return None

    return refusal


KINDS = {"squared": "quadratic", "norm": "a norm"}


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
