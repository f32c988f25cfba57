"""Decisions for a quadratic tree: ERM, exact, smoothed, and the paper's algorithm.

All is the library's but the draws of the paper's algorithm: a draw is m^2 numbers, 1.5 million for
the complete graph, and an iteration takes 100 of them. Only what the loss sees of them is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from decisions import OWN_ESTIMATE, Decision, solved
from tree_estimator import TreeGaussian, calibrated_dual_bound
from wdro_model.model import RobustModel
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.problem import Problem
from wdro_model.sets import SpanningTree
from wdro_model.solve.options import Options
from wdro_model.solve.scales import prepare
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe
from wdro_model.solvers.driver import Stop, relative_gap
from wdro_model.solvers.objective import Array, certificate

CALIBRATION, REPORT = 1, 2
"""Streams of random numbers beside those of the iterations."""


@dataclass(frozen=True)
class TreeModel:
    """A robust quadratic tree problem, ready to be solved by each method."""

    problem: Problem
    tree: SpanningTree
    matrices: Array
    """xi_k + xi_k', (N, m, m), in single precision."""
    epsilon: float
    draws: int
    batch_size: int
    iterations: int
    gap: float
    seed: int

    @property
    def edges(self) -> int:
        return self.tree.dimension

    @property
    def nodes(self) -> int:
        return 1 + int(max(self.tree.tails.max(), self.tree.heads.max()))

    @property
    def sigma(self) -> float:
        """sigma^2 = radius / (2 d): half of the radius is the mean cost of a draw."""
        return float(self._objective.sigma)

    # -------------------------------------------------------------- methods
    def erm(self) -> Decision:
        """The mean loss; a stationary point, as the matrices are not semidefinite."""
        return self._solved("erm", self.problem, method="erm")

    def exact(self, radius: float | None = None) -> Decision:
        """x' (mean + sqrt(radius) I) x, the worst case over the ball, or over another one."""
        if radius is None:
            return self._solved("exact", self.problem, method="exact")
        other = self.problem.with_radius(radius)
        return self._solved(f"exact, radius {radius:g}", other, method="exact")

    def smoothed(self) -> Decision:
        """The smoothed objective in closed form, with a certified gap."""
        return self._solved("smoothed", self.problem, method="smoothed", epsilon=self.epsilon)

    def sampled(self) -> Decision:
        """The paper's Algorithm 2 with its estimator, lambda_max by its Algorithm 3."""
        began = time.perf_counter()
        rule = TreeGaussian(self.matrices, epsilon=self.epsilon, sigma=self.sigma, draws=self.draws)
        objective = Smoothed(
            rule,
            size=len(self.matrices),
            radius=self._objective.radius,
            epsilon=self.epsilon,
            sigma=self.sigma,
            convex=False,
            stream=Stream(self.seed, REPORT),
        )
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
        start = self.tree.minimize(rng.standard_normal(self.edges))
        outcome = solver.run(objective, self.tree, start, rng=rng, dual_bound=bound, progress=False)
        if outcome.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # half a run is no result
        seconds = time.perf_counter() - began
        judged = objective.evaluate(outcome.x, outcome.dual)
        assert judged.diagnostics is not None
        point = self._objective.evaluate(outcome.x)
        gap = certificate(self.tree, outcome.x, point.gradient).gap
        last = [record.value for record in outcome.trace.records[-OWN_ESTIMATE:]]
        return self._measured(
            Decision(
                "sampled",
                outcome.x,
                promise=float(np.mean(last)),
                status="user_limit",
                seconds=seconds,
                relative_gap=relative_gap(max(gap, 0.0), point.value),
                iterations=outcome.iterations,
                dual=outcome.dual,
                dual_bound=bound,
                draws=self.draws,
                effective_draws=judged.diagnostics.effective_size,
            )
        )

    # -------------------------------------------------------------- parts
    def _solved(self, name: str, problem: Problem, **arguments: object) -> Decision:
        solver = FrankWolfe(gap=self.gap, max_iterations=self.iterations)
        return self._measured(solved(name, problem, solver=solver, seed=self.seed, **arguments))

    def _measured(self, decision: Decision) -> Decision:
        """With its smoothed objective, its worst case over the ball, and its length."""
        (x,) = self.problem.variables()
        return replace(
            decision,
            smoothed_value=self._objective.evaluate(decision.x).value,
            robust_value=self.problem.robust_value({x: decision.x}),
            squared_length=float(decision.x @ decision.x),
        )

    @cached_property
    def _objective(self) -> Smoothed:
        """The smoothed objective in closed form, its dual minimised out."""
        options = Options(epsilon=self.epsilon, seed=self.seed)
        model = self.problem._model
        assert isinstance(model, RobustModel)
        return prepare(model, FrankWolfe(), options).objective(self.draws, REPORT)


METHODS: dict[str, Callable[[TreeModel], Decision]] = {
    "erm": TreeModel.erm,
    "exact": TreeModel.exact,
    "smoothed": TreeModel.smoothed,
    "sampled": TreeModel.sampled,
}
"""By the names under which they are reported: "sampled" is the paper's, "smoothed" ours."""
