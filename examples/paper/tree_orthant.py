"""Trees with costs that stay nonnegative: what the support does to the smoothed method.

The reference Gaussian is restricted to the orthant, entry by entry. A draw then takes m^2 numbers,
and the closed form a truncated Gaussian for each of them: the methods of `wdro_model.Problem`.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp

from decisions import Decision, solved
from tree_trial import TreeSettings
from wdro_model.datasets import QuadraticTree
from wdro_model.loss import quadratic_form
from wdro_model.problem import Problem
from wdro_model.sets import In, SpanningTree
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe
from wdro_model.uncertainty import UncertainParameter, WassersteinBall
from wdro_model.uncertainty.supports import Nonnegative

GAP = 1e-3
"""Relative gap: truncated integrals in 100,000 dimensions cost a second each."""


def orthant_decisions(
    settings: TreeSettings, instance: QuadraticTree, samples: Any, seed: int, iterations: int
) -> list[Decision]:
    """The paper's algorithm, stopped after some iterations, and ours, both on the orthant."""
    tree = SpanningTree(instance.graph)
    x = cp.Variable(tree.dimension, name="x")
    costs = UncertainParameter(
        (tree.dimension, tree.dimension), "costs", samples=samples, support=Nonnegative()
    )
    problem = Problem(
        cp.Minimize(quadratic_form(x, costs)),
        [In(x, tree)],
        ambiguity=WassersteinBall(settings.radius),
    )
    paper = MomentumFrankWolfe(
        batch_size=settings.batch_size, samples=settings.draws, max_iterations=iterations
    )
    smoothed: dict[str, Any] = {"method": "smoothed", "epsilon": settings.epsilon, "seed": seed}
    return [
        solved("sampled, orthant", problem, solver=paper, **smoothed),
        solved("smoothed, orthant", problem, solver=FrankWolfe(gap=GAP), **smoothed),
    ]
