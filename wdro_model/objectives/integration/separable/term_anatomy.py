"""A loss taken apart into terms that see separate coordinates of the data.

    f(x, xi) = A(x, xi) + sum_j T_j(x, xi),   A affine in the data.

Terms that share a coordinate belong together: the connected components of terms and coordinates
are the groups. A group of one coordinate is integrated along a line; what moves together is left
to low-rank integration, all other coordinates being held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.loss.affine_pieces import entry_pieces
from wdro_model.loss.dependence import dependence, selected
from wdro_model.loss.polynomial import Degrees, additive_terms
from wdro_model.loss.stacked import Stacked
from wdro_model.loss.structure import convexity_in_data
from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.integration.importance.frame import box_of
from wdro_model.objectives.integration.low_rank.form_anatomy import (
    drawn_refusal,
    low_rank_refusal,
)
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundSquared

LARGEST = 20_000
"""Coordinates of the data up to which a loss is taken apart."""

PIECEWISE, QUADRATIC, SMOOTH = "piecewise", "quadratic", "smooth"


@dataclass(frozen=True)
class Block:
    """Terms that are the entries of one expression, each seeing one moving coordinate."""

    expression: Any
    """A vector."""
    line: Array
    """The line of each entry."""
    curvature: str
    """In the data: "convex", "concave", "affine" or "unknown"."""
    quadratic: bool
    sign: int
    pieces: tuple[Any, ...]
    """Vectors, affine in the data, whose maximum is sign * expression; none if not known."""


@dataclass(frozen=True)
class Separation:
    """A loss as an affine part, terms along lines, terms that never move, and joint groups."""

    affine: Stacked
    common: bool
    """Are the slopes of the affine part the same for all samples?"""
    coordinates: Array
    """The coordinate of the data that each line moves, (D,); terms may see it or not."""
    blocks: tuple[Block, ...]
    terms: Stacked
    """The entries of all blocks, in order."""
    line: Array
    """The line of each term, (m,)."""
    still: Stacked
    """The sum of the terms that see no moving coordinate."""
    held: bool
    """Does some term see data that never moves, so that it differs from sample to sample?"""
    joint: tuple[RobustModel, ...]
    """For each group of several coordinates, the affine part and its terms, the rest held."""
    one_term: bool
    """Does no line have more than one term?"""
    kinds: Array
    """How each line is integrated, (D,)."""
    curvatures: Array
    """Of all terms on each line together, (D,)."""


@dataclass(frozen=True)
class _Grouping:
    """The terms of a loss and the groups of coordinates that they see."""

    affine: Any
    expressions: list[Any]
    sees: list[Any]
    """For each expression, which moving coordinates each of its entries sees."""
    held: bool
    label: Array
    """The group of each coordinate, (d,); -1 for those that do not move."""
    nonlinear: Array
    """Groups that some term sees."""

    def size(self, group: int) -> int:
        return int((self.label == group).sum())


def separable_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.expression is None:
        return "the loss is a callable: how it sees the data is not known"
    quadratic = model.cost.is_quadratic
    if not (model.cost.is_separable and (quadratic or model.cost.is_norm)):
        return "the ground cost is not a weighted sum of squared or of absolute moves"
    if model.affine_in_data and quadratic:
        return "the loss is affine in the data"
    if model.joint.dimension > LARGEST:
        return f"the data has more than {LARGEST} coordinates"
    for parameter, where in model.joint.slices.items():
        if parameter.support.bounds(parameter.shape) is None and not model.cost.frozen[where].all():
            return f"the support of {parameter.name()!r} has no coordinate structure"
    grouping = _grouped(model)
    lower, upper = box_of(model.joint)
    bounded = np.isfinite(lower) | np.isfinite(upper)
    if quadratic and len(grouping.nonlinear) == 1 and not bounded[grouping.label >= 0].any():
        return "all terms see the same coordinates"
    for group in grouping.nonlinear:
        coordinates = np.flatnonzero(grouping.label == group)
        if len(coordinates) > 1:
            reason = _joint_refusal(model, grouping, group, bool(bounded[coordinates].any()))
            if reason is not None:
                first, second = (model.joint.coordinate(int(i)) for i in coordinates[:2])
                count = f"{len(coordinates)} coordinates ({first}, {second}, ...)"
                return f"the loss does not split: its terms see {count} together, and {reason}"
    return None


def _joint_refusal(
    model: RobustModel, grouping: _Grouping, group: int, bounded: bool
) -> str | None:
    """Why a group of several coordinates cannot be integrated by quadrature."""
    if not model.cost.is_quadratic:
        return "the ground cost is not a squared distance"
    if bounded:
        return "these have a bounded support"
    part = _joint_model(model, grouping, group)
    return low_rank_refusal(part) or drawn_refusal(part)


def separate(model: RobustModel) -> Separation:
    """The parts of a loss that the strategy does not refuse."""
    columns, layout = model.joint.slices, model.loss.layout
    grouping = _grouped(model)
    several = [g for g in grouping.nonlinear if grouping.size(g) > 1]
    in_line = (grouping.label >= 0) & ~np.isin(grouping.label, several)
    coordinates = np.flatnonzero(in_line)
    position = np.full(model.joint.dimension, -1)
    position[coordinates] = np.arange(len(coordinates))
    degrees = Degrees(_moving(model))
    blocks, still = [], []
    for expression, sees in zip(grouping.expressions, grouping.sees):
        first = _first_coordinate(sees)
        alone = np.flatnonzero((first >= 0) & in_line[first])
        if len(alone):
            blocks.append(_block(selected(expression, alone), position[first[alone]], degrees))
        fixed = np.flatnonzero(first < 0)
        if len(fixed):
            still.append(cp.sum(selected(expression, fixed)))
    line = np.concatenate([np.zeros(0, dtype=int), *(block.line for block in blocks)])
    return Separation(
        affine=Stacked([grouping.affine], layout, columns),
        common=Degrees(model.joint.parameters)(grouping.affine) <= 1,
        coordinates=coordinates,
        blocks=tuple(blocks),
        terms=Stacked([block.expression for block in blocks], layout, columns),
        line=line,
        still=Stacked([sum(still[1:], still[0])] if still else [], layout, columns),
        held=grouping.held,
        joint=tuple(_joint_model(model, grouping, g) for g in several),
        one_term=len(np.unique(line)) == len(line),
        kinds=_kinds(blocks, len(coordinates)),
        curvatures=_curvatures(blocks, len(coordinates)),
    )


def _grouped(model: RobustModel) -> _Grouping:
    joint = model.joint
    columns, moving, free = joint.slices, _moving(model), free_coordinates(model)
    degrees = Degrees(moving)
    affine: list[Any] = []
    nonlinear: list[Any] = []
    for term in additive_terms(model.expression, moving):
        (affine if degrees(term) <= 1 else nonlinear).append(term)
    patterns = [dependence(term, columns, joint.dimension) for term in nonlinear]
    sees = [sp.csr_array(p @ sp.diags_array(free.astype(float))) for p in patterns]
    for pattern in sees:
        pattern.eliminate_zeros()
    held = any(p.nnz > s.nnz for p, s in zip(patterns, sees))
    count = sum(pattern.shape[0] for pattern in sees)
    graph = sp.vstack(sees) if sees else sp.csr_array((0, joint.dimension))
    whole = sp.block_array([[None, graph], [graph.T, None]]) if count else graph
    # Without terms, each coordinate is a group of its own.
    labels = connected_components(whole, directed=False)[1] if count else np.arange(joint.dimension)
    label = np.where(free, labels[count:], -1)
    seen = np.asarray(graph.sum(axis=0)).ravel() > 0
    return _Grouping(
        affine=sum((cp.sum(term) for term in affine), cp.Constant(0.0)),
        expressions=nonlinear,
        sees=sees,
        held=held,
        label=label,
        nonlinear=np.unique(label[seen & free]),
    )


def _joint_model(model: RobustModel, grouping: _Grouping, group: int) -> RobustModel:
    """The terms of a group with the affine part, every other coordinate being held."""
    inside = grouping.label == group
    parts = [grouping.affine]
    for expression, sees in zip(grouping.expressions, grouping.sees):
        entries = np.flatnonzero(sees @ inside.astype(float) > 0)
        if len(entries):
            parts.append(cp.sum(selected(expression, entries)))
    weights = np.where(inside, model.cost.coordinate_weights, np.inf)
    cost = BoundSquared(len(inside), weights)
    return replace(model, expression=sum(parts[1:], parts[0]), cost=cost, memory=Memory())


def free_coordinates(model: RobustModel) -> Array:
    """Which coordinates move: not frozen, and not pinned by a box of width 0."""
    lower, upper = box_of(model.joint)
    return ~np.asarray(model.cost.frozen) & (lower < upper)


def _moving(model: RobustModel) -> tuple[Any, ...]:
    """The parameters of which some coordinate moves."""
    free = free_coordinates(model)
    return tuple(p for p, where in model.joint.slices.items() if free[where].any())


def _first_coordinate(sees: Any) -> Array:
    """The first coordinate that each row of a pattern sees; -1 for none."""
    counts = np.diff(sees.indptr)
    first = np.full(len(counts), -1)
    first[counts > 0] = sees.indices[sees.indptr[:-1][counts > 0]]
    return first


def _block(expression: Any, line: Array, degrees: Degrees) -> Block:
    found = entry_pieces(expression, degrees)
    sign, pieces = (1, []) if found is None else found
    return Block(
        expression,
        line,
        convexity_in_data(expression, degrees.parameters),
        degrees(expression) <= 2,
        sign,
        tuple(pieces),
    )


def _kinds(blocks: list[Block], count: int) -> Array:
    """A line is of the first kind that all its terms are of."""
    bent, curved = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    for block in blocks:
        bent[block.line] |= not block.pieces
        curved[block.line] |= not block.quadratic
    return np.where(~bent, PIECEWISE, np.where(~curved, QUADRATIC, SMOOTH))


def _curvatures(blocks: list[Block], count: int) -> Array:
    """ "convex", "concave" or "unknown" for the sum of the terms on each line."""
    convex, concave = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
    for block in blocks:
        convex[block.line] &= block.curvature in ("convex", "affine")
        concave[block.line] &= block.curvature in ("concave", "affine")
    return np.where(convex, "convex", np.where(concave, "concave", "unknown"))
