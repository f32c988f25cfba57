"""A maximum of affine pieces, or a sum of such maxima, in the form the counterparts work on.

    f(x, xi) = g(x) + sum_c max_j ( a_cj(x) + <b_cj(x), xi> )

where no coordinate that moves is seen by two of the clusters c. Terms that share coordinates
are multiplied out into one cluster; a term that is affine in the data is shared out among all.
A parameter that is held fixed (infinite weight) may multiply others, as a label does: the samples
then fall into groups of equal labels, each with pieces of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.loss.affine import affine_parts
from wdro_model.loss.factored import factored
from wdro_model.loss.piecewise import pieces
from wdro_model.loss.polynomial import Degrees
from wdro_model.loss.substitution import substitute
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.exact.terms import additive_terms

LIMIT = 64
"""At most so many pieces of one cluster are written out."""
GROUPS = 32
"""At most so many different values of the parameters that are held fixed."""


class NotPiecewise(Exception):
    """Why a loss is not a sum of maxima of affine pieces."""


@dataclass(frozen=True, eq=False)
class Piece:
    """a(x) + <b(x), xi>."""

    constant: Any
    """a(x), a CVXPY expression of shape ()."""
    direction: Any
    """b(x) but for its scale, a CVXPY expression of shape (d,)."""
    scale: float = 1.0
    """b(x) = scale * direction: pieces along one line share the very same direction."""
    memory: dict[str, Any] = field(default_factory=dict, repr=False)
    """The coordinates that the piece sees, once they were asked for."""

    @cached_property
    def slope(self) -> Any:
        """b(x), a CVXPY expression of shape (d,)."""
        return self.direction if self.scale == 1.0 else self.scale * self.direction


@dataclass(frozen=True, eq=False)
class Cluster:
    """A maximum of affine pieces."""

    pieces: tuple[Piece, ...]
    seen: Array
    """Coordinates with a slope that is not zero, as indices."""
    moving: Array
    """Coordinates that the worst case moves, as indices; those of no other cluster."""


@dataclass(frozen=True, eq=False)
class Group:
    """The samples that share one set of pieces."""

    index: Array
    clusters: tuple[Cluster, ...]
    rest: tuple[Any, ...]
    """Terms without data."""
    held: tuple[Any, ...] = ()
    """Parameters whose value, shared by the samples, was put into the pieces."""


@dataclass(frozen=True, eq=False)
class NumericCluster:
    """The pieces of a cluster at one decision."""

    constants: Array
    """(J,)."""
    slopes: Array
    """(J, d)."""
    moving: Array

    def values(self, rows: Array) -> Array:
        """Each piece at each sample, (n, J)."""
        return self.constants + rows @ self.slopes.T

    @cached_property
    def moving_slopes(self) -> Array:
        """The slopes with zeros for coordinates that do not move."""
        out = np.zeros_like(self.slopes)
        out[:, self.moving] = self.slopes[:, self.moving]
        return out


def decompose(
    model: Model,
    couplings: Any | None = None,
    simplify: Callable[[Any], Any] = lambda expression: expression,
) -> tuple[Group, ...]:
    """The groups of the samples with their clusters; NotPiecewise if there are none.

    couplings: a sparse matrix (rows, d); the coordinates of one row end in one cluster.
    simplify: applied to the expression before its pieces are sought.
    """
    assert model.joint is not None
    assert model.cost is not None
    everything = np.arange(model.joint.size)
    try:
        found = _clusters(model, simplify(model.expression), couplings)
        return (Group(everything, *found),)
    except NotPiecewise as reason:
        held = [p for p, s in model.joint.slices.items() if model.cost.frozen[s].all()]
        if not held:
            raise
        coordinates = np.concatenate([np.r_[model.joint.slices[p]] for p in held])
        rows, owners = np.unique(model.joint.matrix[:, coordinates], axis=0, return_inverse=True)
        if len(rows) > GROUPS:
            names = ", ".join(repr(p.name()) for p in held)
            raise NotPiecewise(
                f"{reason}; {names} is held fixed and takes {len(rows)} different values, more "
                f"than the {GROUPS} that are written out"
            ) from None
    groups = []
    for g in range(len(rows)):
        index = np.flatnonzero(np.ravel(owners) == g)
        full = model.joint.split(model.joint.matrix[index[:1]])
        fixed = substitute(model.expression, {p: full[p][0] for p in held})
        found = _clusters(model, simplify(fixed), couplings)
        groups.append(Group(index, *found, tuple(held)))
    return tuple(groups)


def groups_of(
    model: Model,
    name: str,
    couplings: Any | None = None,
    simplify: Callable[[Any], Any] = lambda expression: expression,
) -> tuple[Group, ...] | str:
    """What `decompose` finds, remembered under a name; the reason as a sentence if nothing."""

    def compute() -> tuple[Group, ...] | str:
        try:
            return decompose(model, couplings, simplify)
        except NotPiecewise as reason:
            assert model.structure is not None
            return f"{reason} ({model.structure.describe()})"

    return model.remember(f"pieces: {name}", compute)


def numeric(model: Model, cluster: Cluster, x: Array) -> NumericCluster:
    """The pieces of a cluster at the decision x."""
    found = [evaluate_piece(model, piece, x) for piece in cluster.pieces]
    constants, slopes = zip(*found)
    return NumericCluster(np.array(constants), np.array(slopes), cluster.moving)


def constant_cluster(cluster: NumericCluster, seen: Array) -> Cluster:
    """A cluster of numbers in the form of one of expressions."""
    made = tuple(
        Piece(cp.Constant(a), cp.Constant(b)) for a, b in zip(cluster.constants, cluster.slopes)
    )
    return Cluster(made, seen, cluster.moving)


def _clusters(
    model: Model, expression: Any, couplings: Any | None
) -> tuple[tuple[Cluster, ...], tuple[Any, ...]]:
    """The clusters and the terms without data of one expression."""
    assert model.joint is not None
    parameters = model.joint.parameters
    degrees = Degrees(parameters)
    certain: list[Any] = []
    affine: list[tuple[Any, ...]] = []
    maxima: list[tuple[Any, ...]] = []
    for term in additive_terms(expression, degrees):
        if degrees(term) == 0:
            certain.append(term)
            continue
        found = pieces(term, parameters, LIMIT)
        if found is None:
            raise NotPiecewise("the loss is not a maximum of a few pieces affine in the data")
        (affine if len(found) == 1 else maxima).append(found)
    shared = _total([term[0] for term in affine])
    linear = None if shared is None else _piece(model, shared)
    if not maxima:
        if linear is None:
            return (), tuple(certain)
        return (_cluster(model, (linear,), None),), tuple(certain)
    found_pieces = [tuple(_piece(model, p) for p in term) for term in maxima]
    clusters: list[Cluster] = []
    left = np.ones(model.joint.dimension)
    for members, coordinates in _components(model, found_pieces, couplings):
        count = prod(len(found_pieces[m]) for m in members)
        if count > LIMIT:
            raise NotPiecewise(
                f"{len(members)} terms of the loss share coordinates of the data and have {count} "
                f"pieces together, more than the {LIMIT} that are written out"
            )
        inside = np.zeros(model.joint.dimension)
        inside[coordinates] = 1.0
        left -= inside
        combined = [_sum(choice) for choice in product(*(found_pieces[m] for m in members))]
        if linear is not None:
            part = Piece(cp.Constant(0.0), cp.multiply(inside, linear.slope))
            combined = [_sum((piece, part)) for piece in combined]
        clusters.append(_cluster(model, tuple(combined), coordinates))
    if linear is not None:
        remainder = Piece(linear.constant, cp.multiply(left, linear.slope))
        clusters.append(_cluster(model, (remainder,), None))
    return tuple(clusters), tuple(certain)


def _components(
    model: Model, terms: list[tuple[Piece, ...]], couplings: Any | None
) -> list[tuple[list[int], Array]]:
    """Terms that share coordinates, directly or through a coupling, with the moving ones."""
    assert model.cost is not None
    patterns = np.array([_pattern(model, term) & ~model.cost.frozen for term in terms])
    if len(terms) == 1 and couplings is None:
        return [([0], np.flatnonzero(patterns[0]))]
    links = sp.csr_array(patterns.astype(float))
    if couplings is not None:
        links = sp.vstack([links, abs(sp.csr_array(couplings))], format="csr")
    graph = sp.block_array([[None, links], [links.T, None]], format="csr")
    _, labels = connected_components(graph, directed=False)
    found = []
    for label in dict.fromkeys(labels[: len(terms)]):
        members = [int(m) for m in np.flatnonzero(labels[: len(terms)] == label)]
        coordinates = np.flatnonzero((labels[links.shape[0] :] == label) & ~model.cost.frozen)
        found.append((members, coordinates))
    return found


def _cluster(model: Model, found: tuple[Piece, ...], moving: Array | None) -> Cluster:
    assert model.cost is not None
    seen = _pattern(model, found)
    if moving is None:
        moving = np.flatnonzero(seen & ~model.cost.frozen)
    return Cluster(found, np.flatnonzero(seen), moving)


def _pattern(model: Model, found: tuple[Piece, ...]) -> Array:
    """Which slopes are not identically zero in x: those that are not at two generic decisions."""
    points = np.random.default_rng(0).uniform(0.5, 1.5, size=(2, model.loss.dimension))
    for piece in found:
        if "pattern" not in piece.memory:
            slopes = [evaluate_piece(model, piece, x)[1] != 0 for x in points]
            piece.memory["pattern"] = slopes[0] | slopes[1]
    return np.any([piece.memory["pattern"] for piece in found], axis=0)


def _piece(model: Model, expression: Any) -> Piece:
    assert model.joint is not None
    parts = affine_parts(expression, model.joint.parameters)
    flat = [cp.vec(parts.slopes[p], order="C") for p in model.joint.parameters]
    scale, direction = factored(cp.hstack(flat) if len(flat) > 1 else flat[0])
    return Piece(parts.constant, direction, scale)


def as_piece(model: Model, expression: Any) -> tuple[Piece, Array]:
    """A scalar expression that is affine in the data, and the coordinates that it sees."""
    piece = _piece(model, expression)
    return piece, np.flatnonzero(_pattern(model, (piece,)))


def _sum(some: tuple[Piece, ...]) -> Piece:
    if len(some) == 1:
        return some[0]
    constant, direction = _total([p.constant for p in some]), some[0].direction
    if all(p.direction is direction for p in some):
        return Piece(constant, direction, sum(p.scale for p in some))
    return Piece(constant, _total([p.slope for p in some]))


def _total(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0]) if terms else None


def evaluate_piece(model: Model, piece: Piece, x: Array) -> tuple[float, Array]:
    """a(x) and b(x), (d,); the variables keep the values they have."""
    assert model.joint is not None
    with model.feasible.layout.holding(x):
        slope = np.asarray(piece.slope.value, dtype=float)
        return float(piece.constant.value), np.broadcast_to(slope, (model.joint.dimension,))
