"""Counterparts that see a sample through maxima of affine forms only.

    rest(v) + (1/N) sum over parts p, samples k of max_j ( a_pj(v) + s_pj <b_pj(v), xi_k> ),

v the decision and variables of the counterpart's own, a and b affine in v. Samples whose largest
form is the same add up to one, and a mean over samples never exceeds what it is the mean of: with
cells of samples in place of the samples, each at its mean and as heavy as it is large, this is a
lower bound, sharp at every v at which each cell agrees on its largest form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.clusters import Cluster, is_flat, largest
from wdro_model.objectives.exact.coordinate_lines import Lines
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array

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
