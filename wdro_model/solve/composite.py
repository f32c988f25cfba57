"""A smooth mean loss and what the ball adds to it, a program without samples.

    min over x in X of  mean_k f(x, xi_k) + g(x)

is smooth over the pairs (x, t) with g(x) <= t: many samples cost a gradient, not a cone each.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.model import RobustModel
from wdro_model.model.feasible import near_if_unbounded
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.quadratic_program import quadratic_over
from wdro_model.solve.certify import Solution, report
from wdro_model.solve.first_order import display, refuse_outside, user_start
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.true_risk import robust_value
from wdro_model.solvers import QuasiNewton
from wdro_model.solvers.objective import Array, Point


class Lifted:
    """mean_k f(x, xi_k) + t, a function of (x, t)."""

    convex = True

    def __init__(self, model: RobustModel) -> None:
        self._mean = Empirical(model)

    def evaluate(self, pair: Array, dual: float | None = None) -> Point:
        here = self._mean.evaluate(pair[:-1])
        return Point(here.value + float(pair[-1]), np.append(here.gradient, 1.0))

    def describe(self) -> str:
        return f"{self._mean.describe()}, and what the ball adds"


def run_composite(
    model: RobustModel, chosen: Plan, solver: QuasiNewton, options: Options
) -> Solution:
    """Quasi-Newton steps on the mean loss over an epigraph of the rest."""
    began, asked = time.perf_counter(), model.feasible.oracle().calls
    assert chosen.remainder is not None
    assert chosen.counterpart is not None
    whole = epigraph(model, chosen.remainder())
    start = quadratic_over(whole)(
        np.zeros(whole.dimension), np.eye(whole.dimension), _from(model, options)
    )
    if start is None:
        raise cp.error.SolverError("no point of the feasible set was found; use solver=Conic().")
    rng = np.random.default_rng(options.seed)
    left = solver
    if solver.time_limit is not None:
        left = replace(
            solver, time_limit=max(1e-9, solver.time_limit - (time.perf_counter() - began))
        )
    found = left.run(
        Lifted(model), near_if_unbounded(whole), start, rng=rng, **display(options, chosen)
    )
    x = found.x[:-1]
    value = robust_value(model, x, chosen.counterpart)
    point = Point(value, found.point.gradient[:-1])
    return report(
        model,
        chosen,
        solver,
        replace(found, x=x, point=point, lower_bound=-np.inf),
        point,
        found.gap,
        convex=True,
        began=began,
        same_objective=True,
        asked=asked,
    )


def epigraph(model: RobustModel, rest: Program) -> ConvexSet:
    """The pairs (x, t) with x feasible and g(x) <= t."""
    level = cp.Variable(name="what the ball adds")
    below: Any = rest.expression <= level
    constraints = [*model.feasible.conic_constraints(), *rest.constraints, below]
    return ConvexSet(constraints, [*model.feasible.layout.variables, level])


def _from(model: RobustModel, options: Options) -> Array:
    """The user's start, else 0; the nearest feasible pair is where the run begins."""
    if options.start is None:
        return np.zeros(model.feasible.layout.dimension + 1)
    start = user_start(model, options.start)
    refuse_outside(model, start)
    return np.append(start, 0.0)
