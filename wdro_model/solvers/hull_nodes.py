"""Nodes of a branch and bound that are bounded by Frank-Wolfe over the hull of their vertices.

At 0/1 points x_i^2 = x_i, so that a quadratic objective may be exchanged for another one that is
the same there and larger in between: with H its Hessian and d such that H - 2 diag(d) is positive
semidefinite,

    f(x) + sum_i d_i (x_i - x_i^2)

is convex on the hull, whether f is convex or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.errors import InfeasibleError
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.product import ProductSet
from wdro_model.sets.within import Within
from wdro_model.solvers.branch_and_bound import Relaxed
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.frank_wolfe import FrankWolfe
from wdro_model.solvers.objective import Array, Point
from wdro_model.solvers.outcome import State

SHARE = 0.1
"""A node is split once its own gap is this share of what the incumbent leaves open."""
ITERATIONS = 300
"""Of Frank-Wolfe, for one node."""
TRIED = 5
"""Vertices of a node that are tried, the heaviest first."""
BEYOND = 1e-10
"""Relative rounding of an eigenvalue."""


class BinaryQuadratic:
    """1/2 x'Hx + <g, x> + constant, the same at 0/1 points as what it stands for."""

    convex = True

    def __init__(self, hessian: Array, slope: Array, constant: float) -> None:
        self.hessian, self.slope, self.constant = hessian, slope, constant

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        bent = self.hessian @ x
        value = 0.5 * float(x @ bent) + float(self.slope @ x) + self.constant
        return Point(value, bent + self.slope)

    def strengthened(self) -> BinaryQuadratic:
        """The largest convex one that differs by a multiple of sum_i x_i - x_i^2."""
        eigenvalues = np.linalg.eigvalsh(self.hessian)
        size = float(np.abs(eigenvalues).max(initial=0.0))
        return self.lifted(np.full(len(self.slope), 0.5 * (eigenvalues[0] - BEYOND * size)))

    def lifted(self, lift: Array) -> BinaryQuadratic:
        """With sum_i d_i (x_i - x_i^2) added."""
        return BinaryQuadratic(self.hessian - 2.0 * np.diag(lift), self.slope + lift, self.constant)

    def describe(self) -> str:
        return "a quadratic function with x_i^2 = x_i"


def as_quadratic(objective: Any, size: int) -> BinaryQuadratic | None:
    """An objective that is quadratic in x, by its gradients; None if it is not.

    The gradient of a quadratic function at the middle of two points is the mean of theirs.
    """
    rng = np.random.default_rng(0)

    def slope(x: Array) -> Array:
        return np.asarray(objective.evaluate(x).gradient, dtype=float)

    for _ in range(2):
        x, y = rng.uniform(0.1, 0.9, size=(2, size))
        ends = slope(x) + slope(y)
        scale = 1e-9 * max(float(np.abs(ends).max(initial=0.0)), 1e-300)
        if np.abs(2 * slope((x + y) / 2) - ends).max(initial=0.0) > scale:
            return None
    base = np.full(size, 0.5)
    here = objective.evaluate(base)
    origin = np.asarray(here.gradient, dtype=float)
    hessian = np.empty((size, size))
    for i in range(size):
        moved = base.copy()
        moved[i] += 0.5
        hessian[i] = 2.0 * (slope(moved) - origin)
    hessian = (hessian + hessian.T) / 2
    linear = origin - hessian @ base
    constant = here.value - 0.5 * float(base @ hessian @ base) - float(linear @ base)
    return BinaryQuadratic(hessian, linear, constant)


@dataclass
class HullNodes:
    """Nodes over the vertices of 0/1 sets, with a smooth objective that is convex."""

    feasible: FeasibleSet
    objective: Any
    """What is bounded: no larger than the value at 0/1 points."""
    judge: Callable[[Array], float]
    """The value of a 0/1 point; with its attribute `gradient`, as sets take it."""
    gap: float

    def __post_init__(self) -> None:
        self.discrete = np.ones(self.feasible.dimension, dtype=bool)
        self._known: dict[bytes, float] = {}
        self._rng = np.random.default_rng(0)
        self._vertices: list[Array] = []

    def relaxed(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        try:
            held = within(self.feasible, lower, upper)
            active = self._start(held, lower, upper, memory)
        except InfeasibleError:
            return None
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
        left = run.active_set or ActiveSet.at(run.x)
        heavy = np.argsort(-left.weights, kind="stable")[:TRIED]
        self._vertices = [left.vertices[k] for k in heavy]
        return Relaxed(max(run.lower_bound, enough.bound), run.x, left)

    def _start(
        self, held: FeasibleSet, lower: Array, upper: Array, memory: ActiveSet | None
    ) -> ActiveSet:
        """The vertices of the parent that the node has, or one of its own."""
        if memory is None:
            x = held.minimize(np.ones(held.dimension))
            return ActiveSet.at(held.minimize(self.objective.evaluate(x).gradient))
        inside = np.all((memory.vertices >= lower - 0.5) & (memory.vertices <= upper + 0.5), axis=1)
        mass = float(memory.weights[inside].sum())
        if mass <= 0:
            return ActiveSet.at(held.minimize(self.objective.evaluate(memory.x).gradient))
        return ActiveSet(memory.vertices[inside], memory.weights[inside] / mass)

    def candidates(self, found: Relaxed, count: int, improved: bool) -> Iterable[Array]:
        """Vertices of the node; at the first, and after a better one, also what is next to them."""
        if improved:
            best = min(self._vertices, key=self.value)
            return [self.feasible.round(best, _Judged(self.value, self.judge), [best])]
        if count == 1:
            judged = _Judged(self.value, self.judge)
            return [self.feasible.round(found.x, judged, self._vertices)]
        return [np.rint(v) for v in self._vertices]

    def completed(self, x: Array) -> tuple[float, Array]:
        return self.value(x), np.rint(x)

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


def within(feasible: FeasibleSet, lower: Array, upper: Array) -> FeasibleSet:
    """The set with some coordinates held, block by block for a product."""
    if isinstance(feasible, ProductSet):
        return ProductSet(
            [(within(block, lower[where], upper[where]), where) for block, where in feasible.blocks]
        )
    return Within(feasible, lower, upper)
