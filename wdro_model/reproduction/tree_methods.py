"""Decisions for a quadratic tree: ERM, exact, smoothed in closed form, and the paper's algorithm.

On R^(m x m) all but the last depend on the samples through their mean alone, and all need nothing
but products of matrices with x. These are the objectives that `wdro_model.Problem` builds for the
same model, without arrays of the size of the data (m^2 = 1.5 million for the complete graph).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse.linalg import eigsh

from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.integration.base import Stream
from wdro_model.objectives.integration.closed_form import isotropic
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.reproduction.decisions import OWN_ESTIMATE, Decision
from wdro_model.reproduction.tree_estimator import (
    TreeClosedForm,
    TreeGaussian,
    calibrated_dual_bound,
)
from wdro_model.sets import SpanningTree
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe
from wdro_model.solvers.objective import Array, Point
from wdro_model.solvers.outcome import Outcome, Stop, relative_gap

CALIBRATION, REPORT = 1, 2
"""Streams of random numbers beside those of the iterations."""


class ShiftedForm:
    """x' (mean + shift I) x as an objective: ERM for shift = 0, exact for shift = sqrt(radius)."""

    def __init__(self, matrix: Array, shift: float, convex: bool) -> None:
        self.matrix, self.shift, self.convex = matrix, shift, convex

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        product = self.matrix @ x + 2.0 * self.shift * x
        return Point(0.5 * float(product @ x), product)

    def describe(self) -> str:
        return f"x' (mean + {self.shift:g} I) x"


@dataclass(frozen=True)
class TreeModel:
    """A robust quadratic tree problem, ready to be solved by each method."""

    tree: SpanningTree
    matrices: Array
    """xi_k + xi_k', (N, m, m), in single precision."""
    matrix: Array
    """mean_k xi_k + xi_k', (m, m)."""
    radius: float
    epsilon: float
    draws: int
    batch_size: int
    iterations: int
    gap: float
    seed: int

    @property
    def edges(self) -> int:
        return len(self.matrix)

    @property
    def nodes(self) -> int:
        return 1 + int(max(self.tree.tails.max(), self.tree.heads.max()))

    @property
    def sigma(self) -> float:
        """sigma^2 = radius / (2 d): half of the radius is the mean cost of a draw."""
        return float(np.sqrt(self.radius / 2.0)) / self.edges

    # -------------------------------------------------------------- methods
    def erm(self) -> Decision:
        """The mean loss; a stationary point, as the matrices are not semidefinite."""
        return self._by_frank_wolfe("erm", ShiftedForm(self.matrix, 0.0, self._smallest >= 0))

    def exact(self, radius: float | None = None) -> Decision:
        """x' (mean + sqrt(radius) I) x, the worst case over the ball, or over another one."""
        name = "exact" if radius is None else f"exact, radius {radius:g}"
        shift = float(np.sqrt(self.radius if radius is None else radius))
        return self._by_frank_wolfe(
            name, ShiftedForm(self.matrix, shift, self._smallest >= -2.0 * shift)
        )

    def smoothed(self) -> Decision:
        """The smoothed objective in closed form, with a certified gap."""
        return self._by_frank_wolfe("smoothed", self._smoothed_objective)

    def sampled(self) -> Decision:
        """The paper's Algorithm 2 with its estimator, lambda_max by its Algorithm 3."""
        began = time.perf_counter()
        rule = TreeGaussian(self.matrices, epsilon=self.epsilon, sigma=self.sigma, draws=self.draws)
        objective = self._objective(rule, Stream(self.seed, REPORT))
        bound = calibrated_dual_bound(
            self.edges,
            self.nodes,
            len(self.matrices),
            sigma=self.sigma,
            draws=self.draws,
            rng=Stream(self.seed, CALIBRATION).generator(0),
        )
        solver = MomentumFrankWolfe(
            batch_size=self.batch_size, samples=self.draws, max_iterations=self.iterations
        )
        rng = np.random.default_rng(self.seed)
        outcome = solver.run(
            objective, self.tree, self._start(rng), rng=rng, dual_bound=bound, progress=False
        )
        seconds = time.perf_counter() - began
        judged = objective.evaluate(outcome.x, outcome.dual)
        assert judged.diagnostics is not None
        last = [record.value for record in outcome.trace.records[-OWN_ESTIMATE:]]
        return self._decision(
            "sampled",
            outcome,
            promise=float(np.mean(last)),
            relative_gap=self._smoothed_gap(outcome.x),
            status="user_limit",
            seconds=seconds,
            dual_bound=bound,
            effective_draws=judged.diagnostics.effective_size,
            draws=self.draws,
        )

    # -------------------------------------------------------------- parts
    def _by_frank_wolfe(self, name: str, objective: Any) -> Decision:
        began = time.perf_counter()
        rng = np.random.default_rng(self.seed)
        solver = FrankWolfe(gap=self.gap, max_iterations=self.iterations)
        start = self.tree.minimize(objective.evaluate(self._start(rng)).gradient)
        outcome = solver.run(objective, self.tree, start, rng=rng, progress=False)
        close = outcome.gap <= self.gap * abs(outcome.point.value)
        solved = "optimal" if objective.convex else "stationary"
        return self._decision(
            name,
            outcome,
            promise=outcome.point.value,
            relative_gap=relative_gap(max(outcome.gap, 0.0), outcome.point.value),
            status=solved if close else "user_limit",
            seconds=time.perf_counter() - began,
        )

    def _decision(self, name: str, outcome: Outcome, **details: Any) -> Decision:
        if outcome.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # half a run is no result
        x = outcome.x
        square, mean = float(x @ x), 0.5 * float(x @ (self.matrix @ x))
        return Decision(
            name,
            x,
            iterations=outcome.iterations,
            dual=outcome.dual if outcome.point.dual is None else outcome.point.dual,
            smoothed_value=self._smoothed_objective.evaluate(x).value,
            robust_value=mean + float(np.sqrt(self.radius)) * square,
            squared_length=square,
            **details,
        )

    def _start(self, rng: np.random.Generator) -> Array:
        """A random tree."""
        return self.tree.minimize(rng.standard_normal(self.edges))

    def _smoothed_gap(self, x: Array) -> float:
        """The relative Frank-Wolfe gap of the smoothed objective, its dual minimised out."""
        point = self._smoothed_objective.evaluate(x)
        gap = float(point.gradient @ (x - self.tree.minimize(point.gradient)))
        return relative_gap(max(gap, 0.0), point.value)

    def _objective(self, rule: Any, stream: Stream, convex: bool = False) -> Smoothed:
        return Smoothed(
            rule,
            size=len(self.matrices),
            radius=self.radius,
            epsilon=self.epsilon,
            sigma=self.sigma,
            convex=convex,
            stream=stream,
        )

    @cached_property
    def _smoothed_objective(self) -> Smoothed:
        rule = TreeClosedForm(self.matrix, epsilon=self.epsilon, sigma=self.sigma)
        return self._objective(rule, Stream(self.seed, REPORT), self._smoothed_is_convex())

    @cached_property
    def _smallest(self) -> float:
        """The smallest eigenvalue of mean + mean'."""
        if self.edges < 20:
            return float(np.linalg.eigvalsh(self.matrix)[0])
        start = np.random.default_rng(0).standard_normal(self.edges)
        values = eigsh(self.matrix, k=1, which="SA", return_eigenvectors=False, v0=start)
        return float(values[0])

    def _smoothed_is_convex(self) -> bool:
        """Is the curvature of the margin, least where |x|^2 is, enough for the whole set?

        On the tree polytope the entries of x sum to nodes - 1, so |x|^2 >= (nodes - 1)^2 / edges.
        """
        square, spread = (self.nodes - 1) ** 2 / self.edges, self.sigma**2
        best = minimise_dual(
            lambda dual: isotropic(dual, spread * square**2, spread, self.edges**2, self.epsilon),
            self.radius,
        )
        tilt = spread * square / (self.epsilon + 2.0 * best.dual * spread)
        return self._smallest + 2.0 * tilt >= 0


METHODS: dict[str, Callable[[TreeModel], Decision]] = {
    "erm": TreeModel.erm,
    "exact": TreeModel.exact,
    "smoothed": TreeModel.smoothed,
    "sampled": TreeModel.sampled,
}
"""By the names under which they are reported: "sampled" is the paper's, "smoothed" ours."""
