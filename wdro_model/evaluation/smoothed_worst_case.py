"""The adversary of the smoothed problem: draws of the samples' tilted laws, with weights.

At a decision x and a dual variable l nature moves sample k to the law with density proportional to

    exp((f(x, zeta) - l c(xi_k, zeta)) / eps)    against the reference N(xi_k, sigma^2),

and the smoothed value is its expected loss less eps times its divergence from the reference (plus
what is left of the budget, at the price l). Draws are shortened by the little that Monte Carlo
puts them over the budget, so that their law is in the ball: its expected loss is a lower bound on
the worst-case risk.
"""

from __future__ import annotations

import numpy as np

from wdro_model.evaluation.worst_case import WorstCase
from wdro_model.model import RobustModel
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream
from wdro_model.solve.solution import Solution
from wdro_model.solvers.objective import Array

MOST_DRAWS = 100
"""Draws for each sample."""
ENTRIES = 2**24
"""Numbers of all draws together, where one draw per sample is fewer."""
STAGE = 2**20
"""The stream of random numbers, which no solve uses."""


def smoothed_worst_case(model: RobustModel, solution: Solution, seed: int = 0) -> WorstCase:
    """Draws from the worst law of a smoothed solution."""
    assert solution.epsilon is not None
    assert solution.sigma is not None
    x = model.feasible.layout.join(solution.decision)
    draws = int(np.clip(ENTRIES // max(1, model.rows.size), 1, MOST_DRAWS))
    name = "tilted" if STRATEGIES["tilted"].refusal(model) is None else "gaussian"
    rule = STRATEGIES[name].build(model, Scales(solution.epsilon, solution.sigma, draws))
    dual = float(solution.dual or 0.0)
    rule.refresh(x, dual)
    samples, stream = np.arange(model.joint.size), Stream(seed, STAGE)
    found = rule.slice(x, samples, stream)
    weights, log_mean = found.weights(dual)
    penalty = float(
        np.mean(np.sum(weights * (found.losses - dual * found.costs), axis=1))
        - solution.epsilon * log_mean.mean()
    )
    rows = np.array(rule.draw(samples, stream).rows)
    source = np.repeat(samples, draws)
    flat = np.ravel(weights) / len(samples)
    rows = within_budget(model, rows, source, flat)
    return WorstCase(
        scenarios=model.joint.split(rows),
        weights=flat,
        source=source,
        expected_loss=float(flat @ model.loss.values(x, rows)),
        transport_cost=float(flat @ model.cost(model.rows[source], rows)),
        dual=dual,
        penalty=penalty,
    )


def within_budget(model: RobustModel, rows: Array, source: Array, weights: Array) -> Array:
    """The draws, each moved back towards its sample by one factor where they cost too much.

    Supports known by a predicate alone may not hold what lies between: there nothing is moved.
    """
    origins = model.rows[source]
    shorter = model.cost.within_budget(origins, rows, model.radius, weights)
    return shorter if model.joint.contains(shorter).all() else rows
