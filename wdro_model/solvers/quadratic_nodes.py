"""Nodes of a branch and bound with a quadratic objective over 0/1 points.

Since x_i^2 = x_i there, f may be exchanged for f + sum_i d_i (x_i - x_i^2), whose Hessian
H - 2 diag(d) must be positive semidefinite. The least eigenvalue of H gives one such d. The best
one, by the bound over the hull, maximises the concave function

    min over x in the hull of f(x) + sum_i d_i (x_i - x_i^2)

over a semidefinite set: each relaxation that is solved is a cut, and the best d for the cuts so far
is found by Newton's method on a logarithmic barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from wdro_model.sets.deadlines import check_deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.branch_and_bound import Relaxed
from wdro_model.solvers.hull_nodes import HullNodes
from wdro_model.solvers.objective import Array, Point

BEYOND = 1e-10
"""Relative rounding of an eigenvalue."""
ROUNDS = 8
"""Cuts for a better convex objective."""
WORTH = 0.05
"""A round that closes less than this share of the gap is the last."""
LATE = 0.5
"""Seconds by which the Hessian may be late: without it there is no bound."""
NEWTON, SHRINK, CLOSE = 30, 0.1, 1e-4
"""Steps for one barrier, the next barrier, and the last one, of the gap that is left."""


class BinaryQuadratic:
    """1/2 x'Hx + <g, x> + constant."""

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
        """With sum_i d_i (x_i - x_i^2) added: the same at 0/1 points."""
        return BinaryQuadratic(self.hessian - 2.0 * np.diag(lift), self.slope + lift, self.constant)

    def least_lift(self) -> Array:
        """Half the least eigenvalue, for all coordinates: what is left is just convex."""
        eigenvalues = np.linalg.eigvalsh(self.hessian)
        size = float(np.abs(eigenvalues).max(initial=0.0))
        return np.full(len(self.slope), 0.5 * (eigenvalues[0] - BEYOND * size))

    def describe(self) -> str:
        return "a quadratic function with x_i^2 = x_i"


def as_quadratic(objective: Any, size: int) -> BinaryQuadratic | None:
    """An objective that is quadratic in x, by its gradients; None if it is not.

    The gradient of a quadratic function at the middle of two points is the mean of theirs.
    """
    rng = np.random.default_rng(0)

    def slope(x: Array) -> Array:
        check_deadline(LATE)
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

    def relaxed(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        began = time.perf_counter()
        found = super().relaxed(lower, upper, memory, cutoff, seconds)
        if memory is not None or found is None:
            return found
        best = self._best_value(found)
        cuts = [found.x]
        for _ in range(ROUNDS):
            left = best - found.bound
            used = time.perf_counter() - began
            if left <= self.gap * abs(best) or (seconds is not None and 2 * used > seconds):
                break
            lift = best_lift(self.quadratic, self._lift, cuts, left)
            kept, self.objective = self.objective, self.quadratic.lifted(lift)
            again = super().relaxed(lower, upper, found.memory, cutoff, seconds)
            assert again is not None
            cuts.append(again.x)
            gained = again.bound - found.bound
            if gained > 0:
                found, self._lift = again, lift
            else:
                self.objective = kept
            if gained < WORTH * left and len(cuts) > 2:
                break
        return found

    def candidates(self, found: Relaxed, count: int, improved: bool) -> Iterable[Array]:
        known, self._early = self._early, []
        return [*known, *super().candidates(found, count, improved)]

    def known(self) -> list[Array]:
        return [*self._early, *super().known()]

    def _best_value(self, found: Relaxed) -> float:
        """The value of a 0/1 point near the relaxation, which is kept as a candidate."""
        self._early = [self.feasible.round(found.x, self.judge, self._vertices)]
        return self.value(self._early[0])


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
        for _ in range(NEWTON):
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
        if mu * (len(d) + len(slack)) <= CLOSE * gap or mu <= CLOSE * gap:
            return d
        mu *= SHRINK


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
