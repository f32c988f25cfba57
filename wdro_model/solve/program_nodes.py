"""Nodes of a branch and bound that are bounded by conic programs, over vertices of oracle sets.

The master program of a simplicial decomposition holds all that is continuous, and integers under
CVXPY constraints relaxed to the bounds of the node; oracle sets hold theirs by themselves. All
nodes share the vertices that were found. With the integers fixed, the same program gives the best
continuous part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError
from wdro_model.model import Model
from wdro_model.sets.feasible_set import FeasibleSet, checked_choice
from wdro_model.solve.over_columns import ColumnModel, mean_slope
from wdro_model.solvers import Simplicial, Stop
from wdro_model.solvers.branch_and_bound import Relaxed
from wdro_model.solvers.column_master import VertexColumns
from wdro_model.solvers.hull_nodes import SHARE, within
from wdro_model.solvers.objective import Array

NEAR = 25
"""Integer points near the relaxation are looked for at every so many nodes."""
EVALUATIONS = 30
"""Programs that are solved for exchanges from one decision."""
HEAVY = 3
"""Vertices of a set that are tried after a node, the heaviest first."""


class ProgramNodes:
    """Nodes of a model whose objective is a convex program."""

    def __init__(self, model: Model, built: ColumnModel, gap: float) -> None:
        self.model, self.built, self.gap = model, built, gap
        self.discrete = model.feasible.discrete
        master = built.master
        self._chosen = [bool(self.discrete[where].all()) for where in master.blocks]
        slope = mean_slope(model)
        self._slopes = [slope[where] for where in master.blocks]
        self.pool: list[VertexColumns | None] = [None] * len(built.sets)
        self._known: dict[bytes, tuple[float, Array]] = {}
        self._failures: set[bytes] = set()
        self._slopes_at: dict[bytes, tuple[Array, ...]] = {}
        self._loose = bool(self.discrete[master.others].any())
        """Are some integers under CVXPY constraints?"""

    # ------------------------------------------------------------------ bounds
    def relaxed(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        master, unit = self.built.master, self.built.unit
        slopes = self._slopes if memory is None else memory
        try:
            sets = [self._held(k, lower, upper) for k in range(len(self.built.sets))]
            start = [self._columns(k, sets[k], lower, upper, slopes[k]) for k in range(len(sets))]
            limit = None if seconds is None else max(seconds, 1e-3)
            run = Simplicial(gap=SHARE * self.gap, time_limit=limit).run(
                master,
                sets,
                start,
                lower=lower,
                upper=upper,
                enough=cutoff / unit,
                share=SHARE,
                progress=False,
            )
        except InfeasibleError:
            return None
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # the search keeps what it has
        for k, (known, begun) in enumerate(zip(run.columns, start)):
            fresh = np.arange(len(begun), len(known))
            if fresh.size:
                self._keep(k, known.some(fresh))
        return Relaxed(unit * run.lower_bound, run.x, run.slopes)

    def _held(self, k: int, lower: Array, upper: Array) -> FeasibleSet:
        where = self.built.master.blocks[k]
        if not self._chosen[k]:
            return self.built.sets[k]
        return within(self.built.sets[k], lower[where], upper[where])

    def _columns(
        self, k: int, held: FeasibleSet, lower: Array, upper: Array, slope: Array
    ) -> VertexColumns:
        """The vertices known of a set that the node has, or one of its own."""
        pool, where = self.pool[k], self.built.master.blocks[k]
        if pool is not None:
            inside = np.ones(len(pool), dtype=bool)
            if self._chosen[k]:
                points = pool.points
                inside = np.all(
                    (points >= lower[where] - 0.5) & (points <= upper[where] + 0.5), axis=1
                )
            if inside.any():
                return pool.some(np.flatnonzero(inside))
        if held.nonnegative_directions:
            slope = np.maximum(slope, 0.0)
        vertex = held.vertex(slope)
        vertex = checked_choice(held, vertex) if self._chosen[k] else vertex
        found = self.built.master.columns(k, vertex[None])
        self._keep(k, found)
        return found

    def _keep(self, k: int, found: VertexColumns) -> None:
        pool = self.pool[k]
        self.pool[k] = found if pool is None else pool.and_also(found)

    # ------------------------------------------------------------------ integer decisions
    def candidates(self, found: Relaxed, count: int, improved: bool) -> Iterator[Array]:
        """What the relaxation rounds to, vertices next to it, and at times the nearest point."""
        if improved or count & (count - 1) == 0:  # the first node, and at every doubling
            yield from self._exchanged(found.x)
        if improved:
            return
        yield from self._rounded(found.x)
        if self._loose and count % NEAR == 1:
            try:
                yield from self.model.feasible.oracle().discrete_near(found.x)
            except (ValueError, SolverError):  # no point near, or a set without bounds
                return

    def _rounded(self, x: Array) -> Iterator[Array]:
        """x with its integers rounded, the heaviest vertices of each set in their place."""
        whole = np.where(self.discrete, np.rint(x), x)
        near = [self._nearest(k, x) for k in range(len(self.built.sets))]
        for rank in range(max(map(len, near), default=1)):
            for where, points in zip(self.built.master.blocks, near):
                if points:
                    whole[where] = points[min(rank, len(points) - 1)]
            yield whole.copy()

    def _exchanged(self, x: Array) -> Iterator[Array]:
        """The best decision near x that exchanges within each oracle set lead to, set by set."""
        whole = min(self._rounded(x), key=lambda y: self.completed(y)[0])
        for k, where in enumerate(self.built.master.blocks):
            if not self._chosen[k]:
                continue
            part = _Part(self, whole, k)
            whole = part.put(self.built.sets[k].round(whole[where], part, [whole[where]]))
        yield whole

    def slope(self, x: Array, k: int) -> Array:
        """A subgradient of the value in the coordinates of a set, at integers that are known."""
        self.completed(x)
        found = self._slopes_at.get(self._key(x))
        return self._slopes[k] if found is None else found[k]

    def _nearest(self, k: int, x: Array) -> list[Array]:
        """Vertices that are known of a set, those next to x first."""
        pool, where = self.pool[k], self.built.master.blocks[k]
        if pool is None or not self._chosen[k]:
            return []
        far = np.abs(pool.points - x[where]).sum(axis=1)
        return [np.rint(pool.points[i]) for i in np.argsort(far, kind="stable")[:HEAVY]]

    def known(self) -> Iterator[Array]:
        if self.pool and all(pool is not None for pool in self.pool) and not self._loose:
            yield from self._rounded(np.zeros(self.discrete.size))

    def completed(self, x: Array) -> tuple[float, Array]:
        """The best decision with the integers of x, and its value; infinite if there is none."""
        key = self._key(x)
        if key not in self._known:
            self._known[key] = self._solved(key, np.where(self.discrete, np.rint(x), x))
        return self._known[key]

    def _key(self, x: Array) -> bytes:
        return np.rint(x[self.discrete]).tobytes()

    def _solved(self, key: bytes, x: Array) -> tuple[float, Array]:
        master, unit = self.built.master, self.built.unit
        lower = np.where(self.discrete, x, -np.inf)
        upper = np.where(self.discrete, x, np.inf)
        columns, sets = [], []
        for k, where in enumerate(master.blocks):
            point = master.columns(k, x[where][None])
            pool = self.pool[k]
            columns.append(point if self._chosen[k] or pool is None else pool)
            sets.append(_Point(x[where]) if self._chosen[k] else self.built.sets[k])
        try:
            run = Simplicial(gap=1e-2 * self.gap + 1e-9).run(
                master, sets, columns, lower=lower, upper=upper, progress=False
            )
        except InfeasibleError:
            return np.inf, x
        except SolverError:
            self._failures.add(key)
            return np.inf, x
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        self._slopes_at[key] = run.slopes
        return unit * run.value, np.where(self.discrete, x, run.x)

    def failed(self, x: Array) -> bool:
        """Did the solver give up on the integers of x?"""
        return self._key(x) in self._failures

    def has(self, x: Array) -> bool:
        """Are the parts of x in the oracle sets points of theirs?"""
        for chosen, choices, where in zip(self._chosen, self.built.sets, self.built.master.blocks):
            if not chosen:
                continue
            near = choices.discrete_near(x[where]) if choices.is_vertex(x[where]) else []
            if not any(np.array_equal(np.rint(v), np.rint(x[where])) for v in near):
                return False
        return True


class _Part:
    """The value as a function of one oracle set's coordinates, the others being as they are."""

    def __init__(self, nodes: ProgramNodes, x: Array, k: int) -> None:
        self.nodes, self.x, self.k = nodes, x, k
        self.most = EVALUATIONS

    def put(self, part: Array) -> Array:
        """The decision with this part."""
        whole = self.x.copy()
        whole[self.nodes.built.master.blocks[self.k]] = part
        return whole

    def __call__(self, part: Array) -> float:
        return self.nodes.completed(self.put(part))[0]

    def gradient(self, part: Array) -> Array:
        return self.nodes.slope(self.put(part), self.k)


class _Point(FeasibleSet):
    """A single point."""

    def __init__(self, x: Array) -> None:
        self.dimension, self._x = x.size, x

    def minimize(self, direction: Any, lower: Any = None, upper: Any = None) -> Array:
        return self._x.copy()

    def __repr__(self) -> str:
        return f"a point of {self.dimension} coordinates"
