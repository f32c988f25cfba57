"""A loss as a sum of maxima of affine pieces, and counterparts that see no more than these.

    f(x, xi) = g(x) + sum_c max_j ( a_cj(x) + <b_cj(x), xi> )

where no coordinate that moves is seen by two of the clusters c. Terms that share coordinates
are multiplied out into one cluster; vectors of terms that see one coordinate each are kept as
vectors (`Lines`); a term that is affine in the data is shared out among all.
A parameter that is held fixed (infinite weight) may multiply others, as a label does: the samples
then fall into groups of equal labels, each with pieces of its own.

    rest(v) + (1/N) sum over parts p, samples k of max_j ( a_pj(v) + s_pj <b_pj(v), xi_k> ),

v the decision and variables of the counterpart's own, a and b affine in v. Samples whose largest
form is the same add up to one, and a mean over samples never exceeds what it is the mean of: with
cells of samples in place of the samples, each at its mean and as heavy as it is large, this is a
lower bound, sharp at every v at which each cell agrees on its largest form.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.loss.affine_pieces import pieces
from wdro_model.loss.expressions import as_scalar, substitute
from wdro_model.loss.polynomial import Degrees, additive_terms, entry
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.counterpart import Counterpart
from wdro_model.objectives.exact.pieces import (
    Cluster,
    Lines,
    Piece,
    find_lines,
    gather_lines,
    is_flat,
    largest,
    masked,
    pattern_of,
    piece_of,
    sum_of_pieces,
    total,
)
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

LIMIT = 64
"""At most so many pieces of one cluster are written out."""
LARGEST_SUM = 512
"""Sums are written out entry by entry up to this many."""
GROUPS = 32
"""At most so many different values of the parameters that are held fixed."""


Part = Cluster | Lines


class NotPiecewise(Exception):
    """Why a loss is not a sum of maxima of affine pieces."""


@dataclass(frozen=True, eq=False)
class Group:
    """The samples that share one set of pieces."""

    index: Array
    clusters: tuple[Cluster, ...]
    lines: tuple[Lines, ...]
    rest: tuple[Any, ...]
    """Terms without data."""
    held: tuple[Any, ...] = ()
    """Parameters whose value, shared by the samples, was put into the pieces."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The clusters and the lines: the loss is the sum of their maxima and of the rest."""
        return (*self.clusters, *self.lines)

    def rows(self, model: RobustModel) -> Array:
        """The samples of the group."""
        return model.rows if len(self.index) == len(model.rows) else model.rows[self.index]

    def shares(self, model: RobustModel) -> SampleShares:
        """What they count in averages over all samples."""
        return model.shares.subset(self.index)


def certain_part(model: RobustModel, groups: tuple[Group, ...]) -> Any:
    """The terms without data, averaged over the samples."""
    certain: Any = cp.Constant(0.0)
    for group in groups:
        for term in group.rest:
            certain = certain + group.shares(model).mass * term
    return certain


class PiecewiseCounterpart(Counterpart):
    """A counterpart that works on the pieces of the loss."""

    is_proven = True

    @abstractmethod
    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """The pieces, in clusters that the counterpart can take one by one; or why there are none.

        They are remembered, by `groups_of`.
        """

    def needs_pieces(self, model: RobustModel) -> str | None:
        found = self.pieces(model)
        return found if isinstance(found, str) else None

    def groups(self, model: RobustModel) -> tuple[Group, ...]:
        """The pieces of a model that has some."""
        found = self.pieces(model)
        assert not isinstance(found, str)
        return found


def decompose(
    model: RobustModel,
    couplings: Any | None = None,
    simplify: Callable[[Any], Any] = lambda expression: expression,
    vectors: bool = True,
) -> tuple[Group, ...]:
    """The groups of the samples with their clusters; NotPiecewise if there are none.

    couplings: a sparse matrix (rows, d); the coordinates of one row end in one cluster.
    simplify: applied to the expression before its pieces are sought.
    vectors: may terms along single coordinates stay vectors?
    """
    everything = np.arange(model.joint.size)
    try:
        found = _clusters(model, simplify(model.expression), couplings, vectors)
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
        found = _clusters(model, simplify(fixed), couplings, vectors)
        groups.append(Group(index, *found, tuple(held)))
    return tuple(groups)


def groups_of(
    model: RobustModel,
    name: str,
    couplings: Any | None = None,
    simplify: Callable[[Any], Any] = lambda expression: expression,
    vectors: bool = True,
) -> tuple[Group, ...] | str:
    """What `decompose` finds, remembered under a name; the reason as a sentence if nothing."""

    def compute() -> tuple[Group, ...] | str:
        try:
            return decompose(model, couplings, simplify, vectors)
        except NotPiecewise as reason:
            return f"{reason} ({model.structure.describe()})"

    return model.remember(f"pieces: {name}", compute)


def _clusters(
    model: RobustModel, expression: Any, couplings: Any | None, vectors: bool
) -> tuple[tuple[Cluster, ...], tuple[Lines, ...], tuple[Any, ...]]:
    """The clusters, the lines and the terms without data of one expression."""
    parameters = model.joint.parameters
    degrees = Degrees(parameters)
    lines: tuple[Lines, ...] = ()
    terms = additive_terms(expression, parameters)
    if vectors:
        lines, terms = find_lines(model, terms, _tied(model, couplings), LIMIT)
    certain: list[Any] = []
    affine: list[Any] = []
    maxima: list[tuple[Piece, ...]] = []
    for term in (scalar for vector in terms for scalar in scalars(vector, degrees)):
        if degrees(term) == 0:
            certain.append(term)
            continue
        found = pieces(term, parameters, LIMIT)
        if found is None:
            raise NotPiecewise("the loss is not a maximum of a few pieces affine in the data")
        if len(found) == 1:
            affine.append(found[0])
        else:
            maxima.append(tuple(piece_of(model, piece) for piece in found))
    linear = piece_of(model, total(affine)) if affine else None
    lines = tuple(_tilted(line, linear) for line in lines)
    left = np.ones(model.joint.dimension)
    for line in lines:
        left[line.where] = 0.0
    clusters: list[Cluster] = []
    for members, coordinates in _components(model, maxima, couplings) if maxima else ():
        inside = np.zeros(model.joint.dimension)
        inside[coordinates] = 1.0
        left -= inside
        combined = _multiplied_out([maxima[m] for m in members])
        if linear is not None:
            combined = [sum_of_pieces((piece, masked(linear, inside))) for piece in combined]
        clusters.append(_cluster(model, tuple(combined), coordinates))
    if linear is not None:
        remainder = masked(linear, left, linear.constant)
        seen = pattern_of(model, (remainder,))
        clusters.append(_cluster(model, (remainder,), _tied_to(model, seen, couplings)))
    if vectors:
        clusters, gathered = gather_lines(model, clusters)
        lines += gathered
    return tuple(clusters), lines, tuple(certain)


def scalars(term: Any, degrees: Degrees) -> Iterator[Any]:
    """Scalar expressions that add up to the entries of a term; affine parts stay whole."""
    if term.size == 1:
        yield as_scalar(term)
    elif degrees(term) <= 1 or term.size > LARGEST_SUM:
        yield cp.sum(term)
    else:
        yield from (entry(term, i) for i in range(term.size))


def _tied(model: RobustModel, couplings: Any | None) -> Array:
    """Which coordinates are held fixed, or coupled with others."""
    tied = np.array(model.cost.frozen)
    if couplings is not None:
        matrix = sp.csr_array(couplings)
        several = np.flatnonzero(np.diff(matrix.indptr) > 1)
        tied[matrix[several].indices] = True
    return tied


def _tilted(line: Lines, linear: Piece | None) -> Lines:
    """The lines with their share of a part that is affine in all the data."""
    if linear is None:
        return line
    share = linear.slope[line.where]
    return Lines(line.constants, tuple(slope + share for slope in line.slopes), line.where)


def _multiplied_out(terms: list[tuple[Piece, ...]]) -> list[Piece]:
    """The pieces of a sum of maxima: one for each choice of a piece in every term."""
    count = prod(len(term) for term in terms)
    if count > LIMIT:
        raise NotPiecewise(
            f"{len(terms)} terms of the loss share coordinates of the data and have {count} "
            f"pieces together, more than the {LIMIT} that are written out"
        )
    return [sum_of_pieces(choice) for choice in product(*terms)]


def _components(
    model: RobustModel, terms: list[tuple[Piece, ...]], couplings: Any | None
) -> list[tuple[list[int], Array]]:
    """Terms that share coordinates, directly or through a coupling, with the moving ones."""
    patterns = np.array([pattern_of(model, term) & ~model.cost.frozen for term in terms])
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


def _cluster(model: RobustModel, found: tuple[Piece, ...], moving: Array) -> Cluster:
    return Cluster(found, np.flatnonzero(pattern_of(model, found)), moving)


def _tied_to(model: RobustModel, seen: Array, couplings: Any | None) -> Array:
    """The coordinates that move where some are seen: those, and all that are coupled with them."""
    free = ~np.asarray(model.cost.frozen)
    if couplings is None:
        return np.flatnonzero(seen & free)
    links = abs(sp.csr_array(couplings))
    _, labels = connected_components(links.T @ links, directed=False)
    return np.flatnonzero(np.isin(labels, labels[seen & free]) & free)


# ------------------------------
# Counterparts that see a sample through maxima of affine forms only


MOST_LINES = 150
"""More terms along coordinates of their own are left as the vectors that they are."""
BLOCK = 2**22
"""Numbers of data that are looked at together."""


@dataclass(frozen=True, eq=False)
class MaximaPart:
    """sum over some samples of max_j a_j + s_j <b_d(j), xi_k>, in the coordinates that it sees."""

    index: Array | None
    """The samples; None for all."""
    seen: Array
    """Coordinates of the data, (m,)."""
    constants: tuple[Any, ...]
    """a_j, CVXPY expressions of shape ()."""
    directions: tuple[Any, ...]
    """The different b, CVXPY expressions of shape (m,)."""
    owners: Array
    """d(j), the direction of each form, (J,)."""
    scales: Array
    """s_j, (J,)."""

    @property
    def is_affine(self) -> bool:
        """Are its forms affine in the variables?"""
        return all(e.is_affine() for e in (*self.constants, *self.directions))

    @property
    def width(self) -> int:
        """The numbers that its forms consist of: a_j, then the directions."""
        return len(self.constants) + len(self.directions) * len(self.seen)

    def numbers(self) -> Any:
        """These as one CVXPY vector, (width,)."""
        parts = [cp.hstack(self.constants), *self.directions]
        return cp.hstack(parts) if len(parts) > 1 else parts[0]

    def count(self, rows: Array) -> int:
        """How many samples there are."""
        return len(rows) if self.index is None else len(self.index)

    def blocks(self, rows: Array) -> Any:
        """(where, data (n, m)) for some of the samples after others."""
        count, everything = self.count(rows), len(self.seen) == rows.shape[1]
        step = max(1, BLOCK // max(1, len(self.seen)))
        for start in range(0, count, step):
            check_deadline()
            where = slice(start, min(start + step, count))
            data = rows[where] if self.index is None else rows[self.index[where]]
            yield where, data if everything else data[:, self.seen]

    def forms(self, numbers: Array, rows: Array) -> Array:
        """Each form at each sample, (J, n), for given numbers (width,)."""
        many = len(self.constants)
        directions = numbers[many:].reshape(len(self.directions), -1)
        found = np.empty((many, self.count(rows)))
        for where, data in self.blocks(rows):
            lines = [data @ direction for direction in directions]
            for j, (owner, scale) in enumerate(zip(self.owners.tolist(), self.scales.tolist())):
                np.multiply(lines[owner], scale, out=found[j, where])
        found += numbers[:many, None]
        return found

    def largest_sum(self, data: Array, weights: Array) -> Any:
        """sum_c w_c max_j a_j + s_j <b_j, data_c> as a CVXPY expression."""
        lines = [data @ direction for direction in self.directions]
        values = [
            a + s * lines[d] for a, s, d in zip(self.constants, self.scales, self.owners.tolist())
        ]
        return weights @ largest(values)


@dataclass(frozen=True, eq=False)
class SampleMaxima:
    """A counterpart in this form."""

    rest: Any
    """Terms without samples, a CVXPY expression."""
    constraints: tuple[Any, ...]
    """On the variables of its own."""
    parts: tuple[MaximaPart, ...]

    @property
    def width(self) -> int:
        """The numbers that its forms consist of."""
        return sum(part.width for part in self.parts)

    def program(self, rows: Array, cells: Sequence[tuple[Array, Array]]) -> Program | None:
        """The lower bound with cells for samples: (means (c, m), sizes (c,)) for each part."""
        total = self.rest
        for part, (means, sizes) in zip(self.parts, cells):
            total = total + part.largest_sum(means, sizes / len(rows))
        return Program.if_convex(total, self.constraints)

    def on(self, twins: Mapping[int, Any]) -> SampleMaxima:
        """The same with other variables, given by the ids of those that they stand for."""
        if not twins:
            return self
        parts = [
            replace(
                part,
                constants=tuple(a.tree_copy(twins) for a in part.constants),
                directions=tuple(b.tree_copy(twins) for b in part.directions),
            )
            for part in self.parts
        ]
        constraints = tuple(c.tree_copy(twins) for c in self.constraints)
        return SampleMaxima(self.rest.tree_copy(twins), constraints, tuple(parts))

    @classmethod
    def if_affine(
        cls, rest: Any, constraints: tuple[Any, ...], parts: Sequence[MaximaPart]
    ) -> SampleMaxima | None:
        """The form, or None where it is none."""
        written = Program.if_convex(rest, constraints)
        good = written is not None and parts and all(part.is_affine for part in parts)
        return cls(rest, constraints, tuple(parts)) if good else None


def has_many_lines(groups: Sequence[Group]) -> bool:
    """Are there too many terms along coordinates of their own to take them one by one?"""
    return sum(len(lines.where) for group in groups for lines in group.lines) > MOST_LINES


def part_of_cluster(
    model: RobustModel, index: Array, cluster: Cluster, bonuses: Sequence[Any]
) -> MaximaPart:
    """A cluster of pieces, each with something added."""
    directions: dict[int, Any] = {}
    owners, scales = [], []
    for piece in cluster.pieces:
        flat = is_flat(piece)
        if not flat:
            directions.setdefault(id(piece.direction), piece.direction[cluster.seen])
        owners.append(None if flat else list(directions).index(id(piece.direction)))
        scales.append(0.0 if flat else piece.scale)
    kept = list(directions.values()) or [cp.Constant(np.zeros(len(cluster.seen)))]
    constants = tuple(piece.constant + bonus for piece, bonus in zip(cluster.pieces, bonuses))
    return MaximaPart(
        _some(model, index),
        cluster.seen,
        constants,
        tuple(kept),
        np.array([0 if owner is None else owner for owner in owners]),
        np.array(scales),
    )


def parts_of_lines(
    model: RobustModel, index: Array, lines: Lines, bonuses: Sequence[Any]
) -> list[MaximaPart]:
    """Lines, one by one: each sees one coordinate."""
    pieces = len(lines.constants)
    return [
        MaximaPart(
            _some(model, index),
            lines.where[[i]],
            tuple(a[i] + b[i] for a, b in zip(lines.constants, bonuses)),
            tuple(slope[[i]] for slope in lines.slopes),
            np.arange(pieces),
            np.ones(pieces),
        )
        for i in range(len(lines.where))
    ]


def _some(model: RobustModel, index: Array) -> Array | None:
    return None if len(index) == len(model.rows) else index
