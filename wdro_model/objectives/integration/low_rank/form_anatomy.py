"""A loss taken apart for integration in few dimensions: forms of the data and outer function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.loss.affine_pieces import pieces
from wdro_model.loss.polynomial import AffineForms, affine_forms, degree
from wdro_model.loss.stacked import Stacked
from wdro_model.loss.structure import convexity_in_data
from wdro_model.model import RobustModel
from wdro_model.objectives.integration.low_rank.projection import compact
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.supports import Everywhere

LARGEST_COUNT = 64
"""Scalar forms that are followed."""
LARGEST_RANK = 8
"""Beyond this rank, draws in all dimensions do as well; a quadratic h has no such limit."""
PIECES = 64


@dataclass(frozen=True)
class Anatomy:
    """A loss taken apart: forms of the data, outer function, and what is known of both."""

    forms: AffineForms
    inner: Stacked
    """u, of rows of the data."""
    outer: Stacked
    """h, of rows (u, frozen data that h contains)."""
    pieces: Stacked | None
    constants: Array
    """Coordinates of the frozen data that h contains."""
    keys: Array | None
    """Coordinates of the frozen data on which the slopes of the forms depend; None for none."""
    common_pieces: bool
    curvature: str
    quadratic: bool


def dissect(model: RobustModel) -> Anatomy | None:
    """The forms of a model's loss; None if there are none or too many."""
    joint, frozen = model.joint, model.cost.frozen
    held = tuple(p for p, where in joint.slices.items() if frozen[where].all())
    moving = tuple(p for p in joint.parameters if not any(p is q for q in held))
    forms = affine_forms(model.expression, moving)
    if forms is None or forms.count > LARGEST_COUNT:
        return None
    columns, stop = {}, 0
    seen = {p.id for p in forms.outer.parameters()}
    inside = [p for p in held if p.id in seen]
    for leaf in (*forms.placeholders, *inside):
        columns[leaf] = slice(stop, stop + leaf.size)
        stop += leaf.size
    common = all(degree(form.expression, joint.parameters) <= 1 for form in forms.forms)
    seen = {p.id for form in forms.forms for p in form.expression.parameters()}
    factors = [p for p in held if p.id in seen]
    layout = model.loss.layout
    found = pieces(forms.outer, forms.placeholders, PIECES)
    return Anatomy(
        forms=forms,
        inner=Stacked([form.expression for form in forms.forms], layout, joint.slices),
        outer=Stacked([forms.outer], layout, columns),
        pieces=None if found is None else Stacked(found, layout, columns),
        constants=coordinates(joint, inside),
        keys=None if common else coordinates(joint, factors),
        common_pieces=found is None or all(degree(p, columns) <= 1 for p in found),
        curvature=convexity_in_data(forms.outer, forms.placeholders),
        quadratic=degree(forms.outer, forms.placeholders) <= 2,
    )


def coordinates(joint: JointSamples, parameters: Iterable[Any]) -> Array:
    """The coordinates of some parameters."""
    slices = (joint.slices[p] for p in parameters)
    return np.concatenate([np.zeros(0, dtype=int), *(np.arange(s.start, s.stop) for s in slices)])


def generic_rank(model: RobustModel, anatomy: Anatomy) -> int:
    """The rank of the forms' slopes at decisions in general position."""
    free, rng, found = ~model.cost.frozen, np.random.default_rng(0), 0
    rows = model.joint.matrix[:: max(1, model.joint.size // 3)][:3]
    for _ in range(2):
        x = rng.uniform(0.5, 1.5, model.loss.dimension)
        with np.errstate(all="ignore"):
            slopes = anatomy.inner.jacobians(x, rows)[..., free]
        if not np.isfinite(slopes).all():
            return min(anatomy.forms.count, int(free.sum()))
        found = max(found, compact(slopes).shape[-1])
    return found


def low_rank_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.expression is None:
        return "the loss is a callable: how it sees the data is not known"
    if not model.cost.is_quadratic:
        return "the ground cost is not quadratic"
    if not everywhere(model):
        return "the support is not all of R^d"
    anatomy = dissect(model)
    if anatomy is None:
        return f"the loss does not see the data through at most {LARGEST_COUNT} affine forms"
    rank = generic_rank(model, anatomy)
    if rank > LARGEST_RANK and not anatomy.quadratic:
        return f"the loss sees the data in {rank} directions, more than {LARGEST_RANK}"
    return None


def drawn_refusal(model: RobustModel) -> str | None:
    """Why a model that the strategy does not refuse needs draws; None if it needs none."""
    anatomy = dissect(model)
    assert anatomy is not None
    rank = generic_rank(model, anatomy)
    return None if rank <= 2 or anatomy.quadratic else f"in {rank} directions it needs draws"


def everywhere(model: RobustModel) -> bool:
    """Can the data that moves at all go anywhere?"""
    frozen = model.cost.frozen
    for parameter, where in model.joint.slices.items():
        if isinstance(parameter.support, Everywhere) or frozen[where].all():
            continue
        box = parameter.support.bounds(parameter.shape)
        if box is None or not all(np.isinf(np.ravel(side)[~frozen[where]]).all() for side in box):
            return False
    return True
