"""Relaxations for branch and bound: the hull by Frank-Wolfe, quadratics over 0/1 points.

Since x_i^2 = x_i there, f may be exchanged for f + sum_i d_i (x_i - x_i^2), whose Hessian
H - 2 diag(d) must be positive semidefinite. The least eigenvalue of H gives one such d. The best
one, by the bound over the hull, maximises the concave function

    min over x in the hull of f(x) + sum_i d_i (x_i - x_i^2)

over a semidefinite set: each relaxation that is solved is a cut, and the best d for the cuts so far
is found by Newton's method on a logarithmic barrier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.errors import InfeasibleError
from wdro_model.sets.choices import Within
from wdro_model.sets.deadlines import check_deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.product import ProductSet
from wdro_model.solvers.branch_and_bound import NodeRelaxations, Relaxed
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.driver import State, Stop
from wdro_model.solvers.frank_wolfe import FrankWolfe
from wdro_model.solvers.objective import Array, Point

SHARE = 0.1
"""A node is split once its own gap is this share of what the incumbent leaves open."""


@dataclass(frozen=True)
class Tolerances:
    """Effort for one node, and for the lift of a quadratic function."""

    iterations: int = 300
    """Iterations of Frank-Wolfe for a node."""
    exchange_starts: int = 3
    """Vertices of the first node from which exchanges begin."""
    exchange_period: int = 50
    """Nodes between two exchanges from the best vertex; also at each doubling of their number."""
    tried_vertices: int = 5
    """Vertices of a node that are tried, the heaviest first."""
    eigenvalue_rounding: float = 1e-10
    """Relative rounding of an eigenvalue."""
    lift_rounds: int = 8
    """Cuts for a better convex objective."""
    worthwhile_gain: float = 0.05
    """A round that closes less than this share of the gap is the last."""
    hessian_grace: float = 0.5
    """Seconds by which the Hessian may be late: without it there is no bound."""
    barrier_steps: int = 30
    """Newton steps for one barrier."""
    barrier_shrink: float = 0.1
    """Factor from one barrier to the next."""
    barrier_end: float = 1e-4
    """Share of the gap at which the last barrier is reached."""


LIMITS = Tolerances()


class HullNodes(NodeRelaxations):
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

    def relax(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        try:
            subset = hold_coordinates(self.feasible, lower, upper)
            active = self._start(subset, lower, upper, memory)
        except InfeasibleError:
            return None
        self._vertices = self._vertices or [active.vertex(0).copy()]
        self._first = self._first or self._vertices[:1]
        enough = Enough(cutoff)
        solver = FrankWolfe(
            gap=SHARE * self.gap,
            max_iterations=LIMITS.iterations,
            direction="blended_conjugate",
            time_limit=None if seconds is None else max(seconds, 1e-3),
            callbacks=(enough,),
        )
        run = solver.run(
            self.objective, subset, None, rng=self._rng, active_set=active, progress=False
        )
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # the tree search returns its best decision
        left = run.active_set or ActiveSet.at(run.x)
        heavy = np.argsort(-left.weights, kind="stable")[: LIMITS.tried_vertices]
        self._vertices = [left.vertex(int(k)) for k in heavy]
        return Relaxed(max(run.lower_bound, enough.bound), run.x, left)

    def _start(
        self, subset: FeasibleSet, lower: Array, upper: Array, memory: ActiveSet | None
    ) -> ActiveSet:
        """The vertices of the parent that the node has, or one of its own."""
        if memory is None:
            x = subset.minimize(np.ones(subset.dimension))
            return ActiveSet.at(subset.minimize(self.objective.evaluate(x).gradient))
        # The 0/1 vertices that have the ones that are mandatory and none that is forbidden.
        mandatory, forbidden = (lower > 0.5).astype(float), (upper < 0.5).astype(float)
        has, hits = memory.matrix @ mandatory, memory.matrix @ forbidden
        inside = np.flatnonzero((has >= mandatory.sum() - 0.5) & (hits <= 0.5))
        mass = float(memory.weights[inside].sum())
        if mass <= 0:
            return ActiveSet.at(subset.minimize(self.objective.evaluate(memory.x).gradient))
        return memory.select(inside, memory.weights[inside] / mass)

    def candidates(self, node: Relaxed, count: int, improved: bool) -> Iterable[Array]:
        """Vertices of the node; at the first, and after a better one, also what is next to them."""
        judged = _Judged(self.value, self.judge)
        if count == 1 and not improved:
            near = self.feasible.round(node.x, judged, self._vertices)
            first = self._vertices[: LIMITS.exchange_starts]
            return [near, *(self.feasible.round(v, judged, [v]) for v in first)]
        if improved or count % LIMITS.exchange_period == 0 or count & (count - 1) == 0:
            best = min(self._vertices, key=self.value)
            return [self.feasible.round(best, judged, [best])]
        return [np.rint(v) for v in self._vertices]

    def known_choices(self) -> list[Array]:
        return [np.rint(v) for v in (*self._first, *self._vertices)]

    def complete(self, x: Array) -> tuple[float, Array]:
        return self.value(x), np.rint(x)

    def contains(self, x: Array) -> bool:
        """Whether the nearest vertex is the point itself."""
        if not self.feasible.is_vertex(x):
            return False
        near = self.feasible.discrete_near(x)
        return any(np.array_equal(np.rint(v), np.rint(x)) for v in near)

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
    """A callback that ends the run of a node once it can be closed, or is ready to be split."""

    def __init__(self, cutoff: float) -> None:
        self.cutoff, self.bound = cutoff, -np.inf

    def __call__(self, state: State) -> bool:
        self.bound = max(self.bound, state.value - state.gap)
        if self.bound >= self.cutoff:
            return True
        return np.isfinite(self.cutoff) and state.gap <= SHARE * (self.cutoff - self.bound)


def hold_coordinates(feasible: FeasibleSet, lower: Array, upper: Array) -> FeasibleSet:
    """The set with some coordinates held, block by block for a product."""
    if isinstance(feasible, ProductSet):
        return ProductSet(
            [(hold_coordinates(part, lower[at], upper[at]), at) for part, at in feasible.blocks]
        )
    return Within(feasible, lower, upper)


# ------------------------------
# Nodes of a branch and bound with a quadratic objective over 0/1 points


class BinaryQuadratic:
    """The function 1/2 x'Hx + <g, x> + constant."""

    convex = True

    def __init__(self, hessian: Array, slope: Array, constant: float) -> None:
        self.hessian, self.slope, self.constant = hessian, slope, constant

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        bent = self.hessian @ x
        value = 0.5 * float(x @ bent) + float(self.slope @ x) + self.constant
        return Point(value, bent + self.slope)

    def gradient(self, x: Array) -> Array:
        """Hx + g."""
        return self.hessian @ x + self.slope

    def __call__(self, x: Array) -> float:
        return self.evaluate(x).value

    def lifted(self, lift: Array) -> BinaryQuadratic:
        """The function with sum_i d_i (x_i - x_i^2) added, the same at 0/1 points."""
        return BinaryQuadratic(self.hessian - 2.0 * np.diag(lift), self.slope + lift, self.constant)

    def least_lift(self) -> Array:
        """Half the least eigenvalue, for all coordinates: what is left is just convex."""
        eigenvalues = np.linalg.eigvalsh(self.hessian)
        size = float(np.abs(eigenvalues).max(initial=0.0))
        return np.full(len(self.slope), 0.5 * (eigenvalues[0] - LIMITS.eigenvalue_rounding * size))

    def describe(self) -> str:
        return "a quadratic function with x_i^2 = x_i"


def as_quadratic(objective: Any, size: int) -> BinaryQuadratic | None:
    """An objective that is quadratic in x, by its gradients; None if it is not.

    The gradient of a quadratic function at the middle of two points is the mean of theirs.
    """
    rng = np.random.default_rng(0)

    def slope(x: Array) -> Array:
        check_deadline(LIMITS.hessian_grace)
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


class QuadraticNodes(HullNodes):
    """Nodes whose objective is made as large as it can be between 0/1 points."""

    def __init__(self, feasible: FeasibleSet, quadratic: BinaryQuadratic, gap: float) -> None:
        self.quadratic = quadratic
        self._lift = quadratic.least_lift()
        self._early: list[Array] = []
        strong = quadratic.lifted(self._lift)
        super().__init__(feasible, strong, strong, gap)

    def relax(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        began = time.perf_counter()
        node = super().relax(lower, upper, memory, cutoff, seconds)
        if memory is not None or node is None:
            return node
        self._early = [self.feasible.round(node.x, self.judge, self._vertices)]
        best, cuts = self.value(self._early[0]), [node.x]
        for _ in range(LIMITS.lift_rounds):
            left = best - node.bound
            used = time.perf_counter() - began
            if left <= self.gap * abs(best) or (seconds is not None and 2 * used > seconds):
                break
            lift = best_lift(self.quadratic, self._lift, cuts, left)
            before, self.objective = self.objective, self.quadratic.lifted(lift)
            again = super().relax(lower, upper, node.memory, cutoff, seconds)
            assert again is not None
            cuts.append(again.x)
            gained = again.bound - node.bound
            if gained > 0:
                node, self._lift = again, lift
            else:
                self.objective = before
            if gained < LIMITS.worthwhile_gain * left and len(cuts) > 2:
                break
        return node

    def candidates(self, node: Relaxed, count: int, improved: bool) -> Iterable[Array]:
        known, self._early = self._early, []
        return [*known, *super().candidates(node, count, improved)]

    def known_choices(self) -> list[Array]:
        return [*self._early, *super().known_choices()]


def best_lift(quadratic: BinaryQuadratic, start: Array, cuts: list[Array], gap: float) -> Array:
    """The d that maximises the least of f(x) + sum_i d_i (x_i - x_i^2) over some points x.

    By Newton's method on t / mu + log det (H/2 - diag(d)) + sum_k log(f_k + <w_k, d> - t), with
    d within reach of the start: few points say little of some coordinates.
    """
    weights = np.array([x - x * x for x in cuts])
    values = np.array([quadratic.evaluate(x).value for x in cuts])
    half = 0.5 * quadratic.hessian
    scale = max(float(np.abs(half).max()), 1e-300)
    reach = float(np.linalg.norm(half - np.diag(np.diag(half)), axis=1).max()) + 1e-3 * scale
    floor = start - reach
    d = start - 1e-3 * scale
    t = float((values + weights @ d).min()) - gap
    mu = gap
    while True:
        for _ in range(LIMITS.barrier_steps):
            inverse = np.linalg.inv(half - np.diag(d))
            slack = values + weights @ d - t
            slope = np.append(
                weights.T @ (1.0 / slack) - np.diag(inverse) + 1.0 / (d - floor),
                1.0 / mu - (1.0 / slack).sum(),
            )
            joint = np.column_stack([weights, -np.ones(len(slack))]) / slack[:, None]
            curvature = joint.T @ joint
            curvature[:-1, :-1] += inverse * inverse.T + np.diag((d - floor) ** -2)
            step = np.linalg.solve(curvature, slope)
            decrement = float(slope @ step)
            room = np.concatenate([slack, d - floor])
            change = np.concatenate([weights @ step[:-1] - step[-1], step[:-1]])
            length = _longest(half, d, step[:-1], room, change)
            d, t = d + length * step[:-1], t + length * float(step[-1])
            if decrement <= 1e-2:
                break
        if mu * (len(d) + len(slack)) <= LIMITS.barrier_end * gap or mu <= LIMITS.barrier_end * gap:
            return d
        mu *= LIMITS.barrier_shrink


def _longest(half: Array, d: Array, move: Array, slack: Array, change: Array) -> float:
    """A step that keeps the matrix positive definite and the slacks positive."""
    falling = change < 0
    length = 1.0
    if falling.any():
        length = min(length, 0.9 * float((slack[falling] / -change[falling]).min()))
    while length > 1e-12:
        try:
            np.linalg.cholesky(half - np.diag(d + length * move))
            return length
        except np.linalg.LinAlgError:
            length *= 0.7
    return 0.0
