"""Nodes of a branch and bound that are bounded by Frank-Wolfe over the hull of their vertices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from wdro_model.errors import InfeasibleError
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.product import ProductSet
from wdro_model.sets.within import Within
from wdro_model.solvers.branch_and_bound import Relaxed
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.frank_wolfe import FrankWolfe
from wdro_model.solvers.objective import Array
from wdro_model.solvers.outcome import State, Stop

SHARE = 0.1
"""A node is split once its own gap is this share of what the incumbent leaves open."""
ITERATIONS = 300
"""Of Frank-Wolfe, for one node."""
STARTS, SEARCHED = 3, 50
"""Vertices of the first node from which exchanges begin; and one at every so many nodes, and at
every doubling of their number."""
TRIED = 5
"""Vertices of a node that are tried, the heaviest first."""


class HullNodes:
    """Nodes over the vertices of 0/1 sets, with a smooth objective that is convex."""

    def __init__(self, feasible: FeasibleSet, objective: Any, judge: Any, gap: float) -> None:
        """objective: what is bounded, no larger than the judge's value at 0/1 points.

        judge: a function of a 0/1 point, with a `gradient`, as sets take it.
        """
        self.feasible, self.objective, self.judge, self.gap = feasible, objective, judge, gap
        self.discrete = np.ones(self.feasible.dimension, dtype=bool)
        self._known: dict[bytes, float] = {}
        self._rng = np.random.default_rng(0)
        self._vertices: list[Array] = []
        self._first: list[Array] = []
        """The vertex that the first node began with."""

    def relaxed(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        try:
            held = within(self.feasible, lower, upper)
            active = self._start(held, lower, upper, memory)
        except InfeasibleError:
            return None
        self._vertices = self._vertices or [active.vertex(0).copy()]
        self._first = self._first or self._vertices[:1]
        enough = Enough(cutoff)
        solver = FrankWolfe(
            gap=SHARE * self.gap,
            max_iterations=ITERATIONS,
            direction="blended_conjugate",
            time_limit=None if seconds is None else max(seconds, 1e-3),
            callbacks=(enough,),
        )
        run = solver.run(
            self.objective, held, None, rng=self._rng, active_set=active, progress=False
        )
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # the search keeps what it has
        left = run.active_set or ActiveSet.at(run.x)
        heavy = np.argsort(-left.weights, kind="stable")[:TRIED]
        self._vertices = [left.vertex(int(k)) for k in heavy]
        return Relaxed(max(run.lower_bound, enough.bound), run.x, left)

    def _start(
        self, held: FeasibleSet, lower: Array, upper: Array, memory: ActiveSet | None
    ) -> ActiveSet:
        """The vertices of the parent that the node has, or one of its own."""
        if memory is None:
            x = held.minimize(np.ones(held.dimension))
            return ActiveSet.at(held.minimize(self.objective.evaluate(x).gradient))
        inside = inside_of(memory, lower, upper)
        mass = float(memory.weights[inside].sum())
        if mass <= 0:
            return ActiveSet.at(held.minimize(self.objective.evaluate(memory.x).gradient))
        return memory.some(inside, memory.weights[inside] / mass)

    def candidates(self, found: Relaxed, count: int, improved: bool) -> Iterable[Array]:
        """Vertices of the node; at the first, and after a better one, also what is next to them."""
        judged = _Judged(self.value, self.judge)
        if count == 1 and not improved:
            near = self.feasible.round(found.x, judged, self._vertices)
            return [near, *(self.feasible.round(v, judged, [v]) for v in self._vertices[:STARTS])]
        if improved or count % SEARCHED == 0 or count & (count - 1) == 0:
            best = min(self._vertices, key=self.value)
            return [self.feasible.round(best, judged, [best])]
        return [np.rint(v) for v in self._vertices]

    def known(self) -> list[Array]:
        return [np.rint(v) for v in (*self._first, *self._vertices)]

    def completed(self, x: Array) -> tuple[float, Array]:
        return self.value(x), np.rint(x)

    def failed(self, x: Array) -> bool:
        return False

    def has(self, x: Array) -> bool:
        """Is the nearest vertex the point itself?"""
        if self.feasible.is_vertex(x):
            near: Iterator[Array] = iter(self.feasible.discrete_near(x))
            return any(bool(np.array_equal(np.rint(v), np.rint(x))) for v in near)
        return False

    def value(self, x: Array) -> float:
        """The judge's value of a vertex, computed once."""
        whole = np.rint(x)
        key = whole.astype(np.int8).tobytes()
        if key not in self._known:
            self._known[key] = float(self.judge(whole))
        return self._known[key]


class _Judged:
    """A value that is looked up, with the gradient of the function behind it."""

    def __init__(self, value: Callable[[Array], float], judge: Any) -> None:
        self._value = value
        self.most = getattr(judge, "most", None)
        if getattr(judge, "gradient", None) is not None:
            self.gradient = judge.gradient

    def __call__(self, x: Array) -> float:
        return self._value(x)


class Enough:
    """Ends the run of a node that is closed, or known well enough to be split."""

    def __init__(self, cutoff: float) -> None:
        self.cutoff, self.bound = cutoff, -np.inf

    def __call__(self, state: State) -> bool:
        self.bound = max(self.bound, state.value - state.gap)
        if self.bound >= self.cutoff:
            return True
        return np.isfinite(self.cutoff) and state.gap <= SHARE * (self.cutoff - self.bound)


def inside_of(known: ActiveSet, lower: Array, upper: Array) -> Array:
    """Which 0/1 vertices have the ones that are mandatory and none that is forbidden."""
    mandatory, forbidden = (lower > 0.5).astype(float), (upper < 0.5).astype(float)
    has, hits = known.matrix @ mandatory, known.matrix @ forbidden
    return np.flatnonzero((has >= mandatory.sum() - 0.5) & (hits <= 0.5))


def within(feasible: FeasibleSet, lower: Array, upper: Array) -> FeasibleSet:
    """The set with some coordinates held, block by block for a product."""
    if isinstance(feasible, ProductSet):
        return ProductSet(
            [(within(block, lower[where], upper[where]), where) for block, where in feasible.blocks]
        )
    return Within(feasible, lower, upper)
