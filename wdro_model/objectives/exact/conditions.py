"""What counterparts ask of a model, each with the sentence for a model without it.

A condition looks at the loss, at the cost, or at the support of the joint data, which is kept as
linear inequalities where it is a polyhedron.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.model import RobustModel
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.supports import Everywhere, Polyhedron

Condition = Callable[[RobustModel], str | None]
Inequalities = tuple[Any, Array]
"""C (m, d) sparse and h (m,), for {C xi <= h}."""


def first_refusal(model: RobustModel, *conditions: Condition) -> str | None:
    """The first reason why a counterpart does not apply; None if there is none."""
    for condition in (needs_expression, *conditions):
        reason = condition(model)
        if reason is not None:
            return reason
    return None


# ------------------------------------------------------------------ the loss
def needs_expression(model: RobustModel) -> str | None:
    if model.expression is None:
        return "the loss is a callable, its dependence on the data is not known"
    return None


def needs_affine(model: RobustModel) -> str | None:
    if not model.affine_in_data:
        return f"the loss is not affine in the data ({model.structure.describe()})"
    return None


# ------------------------------------------------------------------ the cost
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


def needs_separable_cost(model: RobustModel) -> str | None:
    if not model.cost.is_separable or not model.cost.knows("coordinate_weights"):
        return f"the ground cost couples the coordinates of a box ({model.cost.describe()})"
    return None


def needs_conic_cost(model: RobustModel) -> str | None:
    parts = model.cost.is_separable or bool(model.cost.frozen.any())
    if parts and not model.cost.knows("restricted"):
        return f"the ground cost does not know its restricted ({model.cost.describe()})"
    if not model.cost.is_conic:
        return (
            "a bounded support needs a ground cost whose conjugate is known, such as a norm with "
            f"p = 1, 2 or inf ({model.cost.describe()})"
        )
    return None


# ------------------------------------------------------------------ the support
def needs_free_moves(model: RobustModel) -> str | None:
    return None if moves_freely(model) else f"the support is not R^d ({_supports(model)})"


def needs_box(model: RobustModel) -> str | None:
    if model.joint.bounds is None:
        return f"the support is not a box ({_supports(model)})"
    return None


def needs_polyhedron(model: RobustModel) -> str | None:
    if inequalities(model) is None:
        return f"the support is not given by linear inequalities ({_supports(model)})"
    return None


def _supports(model: RobustModel) -> str:
    return ", ".join(f"{p.name()} in {p.support!r}" for p in model.joint.parameters)


def moves_freely(model: RobustModel) -> bool:
    """Is the support R^d in all coordinates that may move?"""
    if all(isinstance(p.support, Everywhere) for p in model.joint.parameters):
        return True
    found = inequalities(model)
    return found is not None and len(found[1]) == 0


def inequalities(model: RobustModel) -> Inequalities | None:
    """C and h with the support {C xi <= h}; None if it is not polyhedral.

    Rows that see only coordinates held fixed are left out: the samples meet them already.
    """
    return model.remember("inequalities of the support", lambda: _inequalities(model))


def polyhedron(model: RobustModel) -> Inequalities:
    """The same for a model of which it is known that its support is polyhedral."""
    found = inequalities(model)
    assert found is not None
    return found


def _inequalities(model: RobustModel) -> Inequalities | None:
    blocks, limits = [], []
    for parameter in model.joint.parameters:
        found = _of_support(parameter.support, parameter.shape)
        if found is None:
            if model.cost.frozen[model.joint.slices[parameter]].all():
                found = sp.csr_array((0, parameter.size)), np.zeros(0)
            else:
                return None
        blocks.append(found[0])
        limits.append(found[1])
    matrix = sp.csr_array(sp.block_diag(blocks, format="csr"))
    acts = np.asarray(abs(matrix[:, np.flatnonzero(~model.cost.frozen)]).sum(axis=1)).ravel() > 0
    return matrix[np.flatnonzero(acts)], np.concatenate(limits)[acts]


def _of_support(support: Any, shape: tuple[int, ...]) -> Inequalities | None:
    size = int(np.prod(shape))
    if isinstance(support, Polyhedron):
        rows = sp.csr_array(support.A)
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        scale = 1.0 / np.where(lengths > 0, lengths, 1.0)  # rows of length one, in any unit
        return sp.csr_array(sp.diags_array(scale) @ rows), scale * np.asarray(support.b)
    box = support.bounds(shape)
    if box is None:
        return None
    lower, upper = (np.ravel(side) for side in box)
    identity = sp.eye_array(size, format="csr")
    below, above = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    rows = sp.vstack([-identity[below], identity[above]], format="csr")
    return rows, np.concatenate([-lower[below], upper[above]])
