"""A loss as a sum of maxima of affine pieces, for counterparts that see no more than these.

    f(x, xi) = g(x) + sum over c of max_j ( a_cj(x) + <b_cj(x), xi> )

No coordinate that moves is seen by two of the maxima c. Terms that share coordinates are multiplied
out into one maximum; vectors of terms that see one coordinate each stay vectors; a term that is
affine in the data is shared out among all. A parameter that is held fixed (infinite weight) may
multiply others, as a label does: the samples then fall into groups of equal labels, and each group
has pieces of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.loss.expressions import as_scalar, spread, substitute
from wdro_model.loss.polynomial import (
    Degrees,
    additive_terms,
    affine_parts,
    constant_part,
    dependence,
    select_entries,
    select_entry,
)
from wdro_model.loss.structure import entry_pieces, pieces
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import flat_slope
from wdro_model.objectives.exact.counterpart import Counterpart
from wdro_model.objectives.exact.maxima import (
    Maxima,
    Piece,
    largest,
    sum_expressions,
    sum_pieces,
    write_piece,
)
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Limits:
    """Sizes up to which a loss is taken apart; larger ones make larger programs."""

    pieces: int = 64
    """Pieces of one maximum."""
    entries: int = 512
    """Entries of a sum that are written out one by one."""
    groups: int = 32
    """Different values of the parameters that are held fixed."""
    shortest_vector: int = 2
    """Maxima of one coordinate each that stay a vector where they were written as one."""
    shortest_gathered: int = 8
    """Maxima of one coordinate each that become a vector where they were written one by one."""


LIMITS = Limits()
SHARED = -2
"""Marks a coordinate that several entries of a term see, or one entry beside other coordinates."""


class NotPiecewise(Exception):
    """The reason why a loss is not a sum of maxima of affine pieces."""


@dataclass(frozen=True, eq=False)
class Group:
    """The samples that share one set of pieces."""

    index: Array
    maxima: tuple[Maxima, ...]
    """The loss is the sum of these and of the terms without data."""
    rest: tuple[Any, ...]
    """Terms without data."""
    held: tuple[Any, ...] = ()
    """Parameters whose value, shared by the samples, was put into the pieces."""


def all_maxima(groups: Sequence[Group]) -> list[Maxima]:
    """The maxima of all groups."""
    return [maxima for group in groups for maxima in group.maxima]


def certain_part(model: RobustModel, groups: Sequence[Group]) -> Any:
    """The terms without data, averaged over the samples."""
    certain: Any = cp.Constant(0.0)
    for group in groups:
        for term in group.rest:
            certain = certain + model.shares.subset(group.index).mass * term
    return certain


class PiecewiseCounterpart(Counterpart):
    """A counterpart that works on the pieces of the loss."""

    is_proven = True

    @abstractmethod
    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """The pieces, in maxima that the counterpart can take one by one; or why there are none.

        They are remembered, by `groups_of`.
        """

    def needs_pieces(self, model: RobustModel) -> str | None:
        groups = self.pieces(model)
        return groups if isinstance(groups, str) else None

    def groups(self, model: RobustModel) -> tuple[Group, ...]:
        """The pieces of a model that has some."""
        groups = self.pieces(model)
        assert not isinstance(groups, str)
        return groups


def groups_of(
    model: RobustModel,
    name: str,
    couplings: Any | None = None,
    simplify: Callable[[Any], Any] = lambda expression: expression,
    vectors: bool = True,
) -> tuple[Group, ...] | str:
    """The result of `decompose`, remembered under a name; the reason as a sentence if it fails."""

    def compute() -> tuple[Group, ...] | str:
        try:
            return decompose(model, couplings, simplify, vectors)
        except NotPiecewise as reason:
            return f"{reason} ({model.structure.describe()})"

    return model.remember(f"pieces: {name}", compute)


def decompose(
    model: RobustModel,
    couplings: Any | None = None,
    simplify: Callable[[Any], Any] = lambda expression: expression,
    vectors: bool = True,
) -> tuple[Group, ...]:
    """The groups of the samples with their maxima; NotPiecewise if there are none.

    couplings: a sparse matrix (rows, d); the coordinates of one row end in one maximum.
    simplify: applied to the expression before its pieces are sought.
    vectors: may terms along single coordinates stay vectors?
    """

    def search(expression: Any) -> tuple[tuple[Maxima, ...], tuple[Any, ...]]:
        return _Decomposition(model, couplings, vectors).run(simplify(expression))

    try:
        return (Group(np.arange(model.size), *search(model.expression)),)
    except NotPiecewise as reason:
        held = [p for p, s in model.joint.slices.items() if model.cost.frozen[s].all()]
        if not held:
            raise
        coordinates = np.concatenate([np.r_[model.joint.slices[p]] for p in held])
        rows, owners = np.unique(model.rows[:, coordinates], axis=0, return_inverse=True)
        if len(rows) > LIMITS.groups:
            names = ", ".join(repr(p.name()) for p in held)
            raise NotPiecewise(
                f"{reason}; {names} is held fixed and takes {len(rows)} different values, more "
                f"than the {LIMITS.groups} that are written out"
            ) from None
    groups = []
    for k in range(len(rows)):
        index = np.flatnonzero(np.ravel(owners) == k)
        values = model.joint.split(model.rows[index[:1]])
        fixed = substitute(model.expression, {p: values[p][0] for p in held})
        maxima, rest = search(fixed)
        maxima = tuple(replace(some, index=index) for some in maxima)
        groups.append(Group(index, maxima, rest, tuple(held)))
    return tuple(groups)


def scalar_terms(term: Any, degrees: Degrees) -> Iterator[Any]:
    """Scalar expressions that add up to the entries of a term; affine parts stay whole."""
    if term.size == 1:
        yield as_scalar(term)
    elif degrees(term) <= 1 or term.size > LIMITS.entries:
        yield cp.sum(term)
    else:
        yield from (select_entry(term, i) for i in range(term.size))


class _Decomposition:
    """The search for the maxima of an expression."""

    def __init__(self, model: RobustModel, couplings: Any | None, vectors: bool) -> None:
        self.model, self.vectors = model, vectors
        self.parameters, self.dimension = model.joint.parameters, model.joint.dimension
        self.degrees = Degrees(self.parameters)
        self.free = ~np.asarray(model.cost.frozen)
        self.couplings = None if couplings is None else abs(sp.csr_array(couplings))
        self.component = np.arange(self.dimension)
        """A number for each coordinate, the same for coordinates that are coupled, (d,)."""
        if self.couplings is not None:
            graph = self.couplings.T @ self.couplings
            self.component = connected_components(graph, directed=False)[1]

    def run(self, expression: Any) -> tuple[tuple[Maxima, ...], tuple[Any, ...]]:
        """The maxima, and the terms without data."""
        terms, lines = additive_terms(expression, self.parameters), list[Maxima]()
        if self.vectors:
            lines, terms = self._take_lines(terms)
        certain: list[Any] = []
        affine: list[Any] = []
        sums: list[tuple[Piece, ...]] = []
        for term in (scalar for vector in terms for scalar in scalar_terms(vector, self.degrees)):
            if self.degrees(term) == 0:
                certain.append(term)
                continue
            expressions = pieces(term, self.parameters, LIMITS.pieces)
            if expressions is None:
                raise NotPiecewise("the loss is not a maximum of a few pieces affine in the data")
            if len(expressions) == 1:
                affine += expressions
            else:
                sums.append(tuple(write_piece(self.model, e) for e in expressions))
        clusters = self._clusters(sums)
        if affine:
            linear = write_piece(self.model, sum_expressions(affine))
            lines = [_tilted(line, linear) for line in lines]
            clusters = _shared_out(linear, clusters, lines)
        clusters, gathered = _gather(clusters) if self.vectors else (clusters, [])
        maxima = []
        for some, inside in clusters:
            moving = self._coupled(inside | np.any([p.seen for p in some], axis=0))
            if moving.any() or any(p.seen.any() for p in some):
                maxima.append(Maxima.of_pieces(some, moving))
            else:
                certain.append(largest([p.constant for p in some]))
        return (*maxima, *lines, *gathered), tuple(certain)

    def _coupled(self, seen: Array) -> Array:
        """Mask of the free coordinates among those seen, and of all that are coupled with them."""
        if self.couplings is None:
            return seen & self.free
        return np.isin(self.component, self.component[seen & self.free]) & self.free

    def _clusters(self, sums: list[tuple[Piece, ...]]) -> list[Cluster]:
        """Terms that share moving coordinates, directly or through couplings, multiplied out."""
        if not sums:
            return []
        patterns = np.array([self._coupled(np.any([p.seen for p in s], axis=0)) for s in sums])
        links = sp.csr_array(patterns.astype(float))
        _, labels = connected_components(links @ links.T, directed=False)
        clusters: list[Cluster] = []
        for label in dict.fromkeys(labels):
            members = np.flatnonzero(labels == label)
            count = prod(len(sums[m]) for m in members)
            if count > LIMITS.pieces:
                raise NotPiecewise(
                    f"{len(members)} terms of the loss share coordinates of the data and have "
                    f"{count} pieces together, more than the {LIMITS.pieces} that are written out"
                )
            choices = product(*(sums[m] for m in members))
            clusters.append(([sum_pieces(c) for c in choices], np.any(patterns[members], axis=0)))
        return clusters

    # ------------------------------------------------------------------ vectors
    def _take_lines(self, terms: list[Any]) -> tuple[list[Maxima], list[Any]]:
        """Maxima of one coordinate each among additive terms, and the terms that are left."""
        bent = [i for i, term in enumerate(terms) if self.degrees(term) > 1]
        if not any(terms[i].size >= LIMITS.shortest_vector for i in bent):
            return [], terms
        tied = ~self.free
        if self.couplings is not None:
            several = np.flatnonzero(np.diff(self.couplings.indptr) > 1)
            tied[self.couplings[several].indices] = True
        columns, d = self.model.joint.slices, self.dimension
        entries = np.array([_only_entries(dependence(terms[i], columns, d)) for i in bent])
        clean = ~tied & np.all(entries != SHARED, axis=0)
        taken: dict[int, list[Array]] = {}
        lines = []
        # Coordinates that the same terms see make one vector.
        signatures, owner = np.unique(entries[:, clean] >= 0, axis=1, return_inverse=True)
        for s, signature in enumerate(signatures.T):
            where = np.flatnonzero(clean)[np.ravel(owner) == s]
            if not signature.any() or len(where) < LIMITS.shortest_vector:
                continue
            members = np.flatnonzero(signature)
            parts = [select_entries(terms[bent[m]], entries[m, where]) for m in members]
            line = self._write_line(parts, where)
            if line is not None:
                lines.append(line)
                for m in members:
                    taken.setdefault(bent[m], []).append(entries[m, where])
        rest = [_without_entries(term, taken.get(i)) for i, term in enumerate(terms)]
        return lines, [term for term in rest if term is not None]

    def _write_line(self, parts: list[Any], where: Array) -> Maxima | None:
        """The sum of vectors of maxima that see the same coordinates in the same order."""
        choices = []
        for part in parts:
            signed = entry_pieces(part, self.degrees)
            if signed is None or signed[0] < 0:
                return None
            choices.append(signed[1])
        if prod(len(choice) for choice in choices) > LIMITS.pieces:
            return None
        sums = [sum(rest, first) for first, *rest in product(*choices)]
        # No two entries see one coordinate: the slopes of their sum are those of the entries.
        slopes = [affine_parts(cp.sum(piece), self.parameters).slopes for piece in sums]
        return Maxima.of_coordinates(
            [_as_constant(spread(constant_part(p, self.degrees), where.shape)) for p in sums],
            [_as_constant(flat_slope(self.model, slope)[where]) for slope in slopes],
            where,
        )


Cluster = tuple[Sequence[Piece], Array]
"""The pieces of one maximum, and a mask (d,) of the moving coordinates that are its own."""


def _shared_out(linear: Piece, clusters: list[Cluster], lines: list[Maxima]) -> list[Cluster]:
    """The clusters with their share of an affine part, and a cluster of what is left of it."""
    left, shared = np.ones(len(linear.seen), dtype=bool), list[Cluster]()
    for line in lines:
        left[line.coordinates] = False
    for some, inside in clusters:
        left &= ~inside
        share = linear.masked(inside, cp.Constant(0.0))
        shared.append(([sum_pieces((piece, share)) for piece in some], inside))
    return [*shared, ((linear.masked(left, linear.constant),), np.zeros_like(left))]


def _tilted(line: Maxima, linear: Piece) -> Maxima:
    """The line with its share of a part that is affine in all the data."""
    share = linear.slope[line.coordinates[:, 0]]
    return replace(line, directions=tuple(slope + share for slope in line.directions))


def _gather(clusters: list[Cluster]) -> tuple[list[Cluster], list[Maxima]]:
    """Many clusters of one coordinate, as a Python sum over products has them, as vectors."""
    single: dict[int, list[int]] = {}
    for k, (some, inside) in enumerate(clusters):
        seen = np.any([piece.seen for piece in some], axis=0)
        if inside.sum() == 1 and not np.any(seen & ~inside):
            single.setdefault(len(some), []).append(k)
    taken = [members for members in single.values() if len(members) >= LIMITS.shortest_gathered]
    vectors = []
    for members in taken:
        where = np.array([np.flatnonzero(clusters[k][1])[0] for k in members])
        columns = list(zip(*(clusters[k][0] for k in members)))
        constants = [_stacked([piece.constant for piece in column]) for column in columns]
        slopes = [
            _stacked([piece.scale * piece.direction[int(i)] for piece, i in zip(column, where)])
            for column in columns
        ]
        vectors.append(Maxima.of_coordinates(constants, slopes, where))
    used = {k for members in taken for k in members}
    return [cluster for k, cluster in enumerate(clusters) if k not in used], vectors


def _stacked(scalars: list[Any]) -> Any:
    """Some scalars as a vector, a constant where all of them are."""
    if any(e.variables() for e in scalars):
        return cp.hstack(scalars)
    return cp.Constant(np.array([float(e.value) for e in scalars]))


def _as_constant(e: Any) -> Any:
    """The expression as a constant, where it is one."""
    return e if e.variables() else cp.Constant(e.value)


def _only_entries(pattern: Any) -> Array:
    """For each coordinate the one entry that sees it, and it alone; -1 for none, SHARED else."""
    columns = sp.csc_array(pattern)
    seen_by = np.diff(columns.indptr)
    entries = np.where(seen_by > 1, SHARED, -1)
    once = np.flatnonzero(seen_by == 1)
    seeing = columns.indices[columns.indptr[once]]
    alone = np.diff(sp.csr_array(pattern).indptr)[seeing] == 1
    entries[once] = np.where(alone, seeing, SHARED)
    return entries


def _without_entries(term: Any, taken: list[Array] | None) -> Any | None:
    """The entries of a term that are not taken; None if all are."""
    if taken is None:
        return term
    left = np.setdiff1d(np.arange(term.size), np.concatenate(taken))
    return select_entries(term, left) if len(left) else None
