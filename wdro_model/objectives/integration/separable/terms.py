"""A loss as a sum of terms in separate coordinates of the data, and the values of its terms.

    f(x, xi) = A(x, xi) + sum_j T_j(x, xi),   A affine in the data.

Terms that share a coordinate belong together: the connected components of terms and coordinates
are the groups. A group of one coordinate is integrated along a line; what moves together is left
to low-rank integration, all other coordinates being held.

A term sees one moving coordinate, so that one scenario serves all lines at once: line i reads its
coordinate, whatever the others hold. Points of many lines are therefore packed into few rows; where
terms see data that never moves, a row serves points of one sample only.

Piecewise affine terms are slopes between kinks. Each one is plus or minus a maximum of lines; the
kinks of a sum are those of its terms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.loss.batched import Layout, Stacked
from wdro_model.loss.polynomial import Degrees, additive_terms, dependence, select_entries
from wdro_model.loss.structure import convexity_in_data, entry_pieces
from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.integration.frame import box_of
from wdro_model.objectives.integration.low_rank.forms import low_rank_refusal
from wdro_model.objectives.integration.normal import envelope
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
    """True if the slopes of the affine part are the same for all samples."""
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
    """True if some term sees data that never moves, and so differs from sample to sample."""
    joint: tuple[RobustModel, ...]
    """For each group of several coordinates, the affine part and its terms, the rest held."""
    one_term: bool
    """True if no line has more than one term."""
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
    """Reason why the strategy does not apply to a model; None if it does."""
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
    return low_rank_refusal(part)


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
            blocks.append(
                _block(select_entries(expression, alone), position[first[alone]], degrees)
            )
        fixed = np.flatnonzero(first < 0)
        if len(fixed):
            still.append(cp.sum(select_entries(expression, fixed)))
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
            parts.append(cp.sum(select_entries(expression, entries)))
    weights = np.where(inside, model.cost.coordinate_weights, np.inf)
    cost = BoundSquared(len(inside), weights)
    return replace(model, expression=sum(parts[1:], parts[0]), cost=cost, memory=Memory())


def free_coordinates(model: RobustModel) -> Array:
    """True for the coordinates that move: not frozen, and not pinned by a box of width 0."""
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
    signed = entry_pieces(expression, degrees)
    sign, pieces = (1, []) if signed is None else signed
    return Block(
        expression,
        line,
        convexity_in_data(expression, degrees.parameters),
        degrees(expression) <= 2,
        sign,
        tuple(pieces),
    )


def _kinds(blocks: list[Block], count: int) -> Array:
    """The kind of each line: piecewise or quadratic if all its terms are, else smooth, (D,)."""
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


# ------------------------------
# The terms of a loss along separate lines at one decision: their values, and their kinks


BLOCK_ENTRIES = 2**18
"""Entries of packed rows that exist at once."""


class Packing:
    """The terms of a loss at one decision.

    data: the samples (N, d); points are given by sample, line and value of the coordinate.
    """

    def __init__(self, separation: Separation, data: Array, x: Array) -> None:
        self._parts, self._data, self._x = separation, data, x

    def values(self, sample: Array, line: Array, z: Array) -> Array:
        """The sum of the terms of each line at its points, (M,)."""
        out = np.empty(len(z))
        for some in self._blocks(len(z)):
            rows, place = self._packed(sample[some], line[some], z[some])
            terms = self._parts.terms(self._x, rows)
            out[some] = self._by_line(terms)[place, line[some]]
        return out

    def gradient(self, sample: Array, line: Array, z: Array, weights: Array) -> Array:
        """The gradient in x of the weighted sum over the points."""
        gradient = np.zeros(self._parts.terms.layout.dimension)
        for some in self._blocks(len(z)):
            rows, place = self._packed(sample[some], line[some], z[some])
            shares = np.zeros((len(rows), len(self._parts.coordinates)))
            shares[place, line[some]] = weights[some]
            self._parts.terms(self._x, rows)
            gradient += self._parts.terms.in_decision(shares[:, self._parts.line])
        return gradient

    def _by_line(self, terms: Array) -> Array:
        """Sums over the terms of each line, (B, D)."""
        lines = self._parts.line
        if self._parts.one_term:
            total = np.zeros((len(terms), len(self._parts.coordinates)))
            total[:, lines] = terms
            return total
        shape = (len(lines), len(self._parts.coordinates))
        return terms @ sp.csr_array((np.ones(len(lines)), (np.arange(len(lines)), lines)), shape)

    def _blocks(self, count: int) -> list[slice]:
        """The points in parts whose rows fit into the processor's cache.

        Points come sample by sample, so that a part has about as many of each line.
        """
        width = self._data.shape[1] / max(1, len(self._parts.coordinates))
        step = max(1, int(BLOCK_ENTRIES / width))
        return [slice(start, start + step) for start in range(0, count, step)]

    def _packed(self, sample: Array, line: Array, z: Array) -> tuple[Array, Array]:
        """Scenarios (B, d) that hold the points, and the row of each point."""
        if self._parts.held:
            _, group = np.unique(sample, return_inverse=True)
            within = _rank(group * (1 + int(line.max())) + line)
            heights = np.zeros(int(group.max()) + 1, dtype=int)
            np.maximum.at(heights, group, within + 1)
            place = (np.cumsum(heights) - heights)[group] + within
            rows = np.repeat(self._data[np.unique(sample)], heights, axis=0)
        else:
            place = _rank(line)
            rows = np.repeat(self._data[:1], int(place.max()) + 1, axis=0)
        rows[place, self._parts.coordinates[line]] = z
        return rows, place


def _rank(keys: Array) -> Array:
    """0, 1, 2, ... for the occurrences of each key, in order."""
    small = keys.max(initial=0) < 2**15  # sorted by counting
    order = np.argsort(keys.astype(np.int16) if small else keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(keys)])
    rank = np.empty(len(keys), dtype=int)
    rank[order] = np.arange(len(keys)) - np.repeat(starts, counts)
    return rank


# ------------------------------------------------------------------ kinks
@dataclass(frozen=True)
class Segments:
    """Functions of y with slope b_q and value a_q + b_q y between kinks q - 1 and q.

    All arrays are (K, D, ...), K = 1 where the functions are the same for all samples.
    """

    kinks: Array
    """(K, D, Q), increasing; +inf where a function has fewer of them."""
    intercepts: Array
    """a, (K, D, Q + 1)."""
    slopes: Array
    """b, (K, D, Q + 1)."""


class Pieces:
    """The lines of the piecewise affine terms of a loss.

    lines: which lines of the separation are wanted, (D',).
    """

    def __init__(self, separation: Separation, lines: Array, layout: Layout) -> None:
        self._coordinates = separation.coordinates[lines]
        position = np.full(len(separation.coordinates), -1)
        position[lines] = np.arange(len(lines))
        expressions: list[Any] = []
        owner, sign, place, start = [], [], [], 0
        most = max([1, *(len(block.pieces) for block in separation.blocks)])
        for block in separation.blocks:
            wanted = np.flatnonzero(position[block.line] >= 0)
            count = len(block.line)
            if block.pieces:
                # Where a term has fewer pieces than others, its first one is repeated.
                which = np.r_[np.arange(len(block.pieces)), np.zeros(most, dtype=int)][:most]
                place.append(start + which * count + wanted[:, None])
                owner.append(position[block.line[wanted]])
                sign.append(np.full(len(wanted), float(block.sign)))
                expressions.extend(block.pieces)
                start += count * len(block.pieces)
        self._stacked = Stacked(expressions, layout, separation.affine.columns)
        self._owner = np.concatenate([np.zeros(0, dtype=int), *owner])
        self._sign = np.concatenate([np.zeros(0), *sign])
        self._place = np.concatenate([np.zeros((0, most), dtype=int), *place])
        self._table = _by_owner(self._owner, len(lines))
        """The terms of each line (D', R), -1 beyond the last."""

    def segments(self, x: Array, rows: Array, reach: Array) -> Segments:
        """The functions at x of y = zeta - row, for each of the rows (K, d) of held data.

        reach: a length (d,) on the scale of the data, over which slopes are taken.
        """
        values = self._stacked(x, rows)
        moved = self._stacked(x, rows + reach)
        length = reach[self._coordinates[self._owner]]
        a = values[:, self._place]
        b = (moved[:, self._place] - a) / length[:, None]
        size, _, most = a.shape
        low, high = (
            side.reshape(a.shape) for side in envelope(a.reshape(-1, most), b.reshape(-1, most))
        )
        kinks = np.where((low < high) & np.isfinite(high), high, np.inf)
        table = self._table
        gathered = np.where((table >= 0)[:, :, None], kinks[:, table], np.inf)
        ordered = np.sort(gathered.reshape(size, len(table), table.shape[1] * most), axis=2)
        used = np.isfinite(ordered).any(axis=(0, 1)) if ordered.size else np.zeros(0, dtype=bool)
        ordered = ordered[:, :, : int(used.sum())]
        inside = interval_points(ordered)
        intercepts, slopes = np.zeros(inside.shape), np.zeros(inside.shape)
        for column in table.T:
            some = np.flatnonzero(column >= 0)
            term = column[some]
            here = a[:, term, None] + b[:, term, None] * inside[:, some, :, None]
            best = here.argmax(axis=3)[..., None]
            sign = self._sign[term][:, None]
            for total, lines in ((intercepts, a), (slopes, b)):
                chosen = np.take_along_axis(lines[:, term, None], best, axis=3)[..., 0]
                total[:, some] += sign * chosen
        return Segments(ordered, intercepts, slopes)


def _by_owner(owner: Array, size: int) -> Array:
    """For each owner the entries that belong to it, in a table filled with -1."""
    counts = np.bincount(owner, minlength=size)
    table = np.full((size, int(counts.max(initial=0))), -1)
    order = np.argsort(owner, kind="stable")
    first = np.cumsum(counts) - counts
    table[owner[order], np.arange(len(owner)) - first[owner[order]]] = order
    return table


def interval_points(kinks: Array) -> Array:
    """A point of each interval between kinks (K, D, Q): (K, D, Q + 1).

    Beyond its last kink a function is on its last interval.
    """
    count = kinks.shape[2]
    if not count:
        return np.zeros((*kinks.shape[:2], 1))
    last = np.where(np.isfinite(kinks), kinks, -np.inf).max(axis=2, keepdims=True)
    last = np.where(np.isfinite(last), last, 0.0)
    step = 1.0 + np.abs(last)
    filled = np.where(np.isfinite(kinks), kinks, last + step * np.arange(1, count + 1))
    outside = (filled[:, :, :1] - step, filled, filled[:, :, -1:] + step)
    ends = np.concatenate(outside, axis=2)
    return 0.5 * (ends[:, :, :-1] + ends[:, :, 1:])
