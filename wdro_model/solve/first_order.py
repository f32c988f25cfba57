"""First-order solves without Monte Carlo error: gradients, a composite model, or columns.

- A smooth objective is minimised by gradients and the oracle of the feasible set.
- A smooth mean loss plus a program without samples is smooth over the pairs (x, t) with g(x) <= t:

      min over x in X of  mean_k f(x, xi_k) + g(x),

  so that many samples cost a gradient, not a cone each.
- A convex program over sets that are known by their oracles is solved over their vertices so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.model import Model, RobustModel
from wdro_model.model.feasible import near_if_unbounded
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.deadlines import deadline
from wdro_model.sets.feasible_set import FeasibleSet, checked_vertex
from wdro_model.sets.quadratic_program import quadratic_over
from wdro_model.solve.certify import Clock, Solution, evaluations, report
from wdro_model.solve.notes import hull_notes
from wdro_model.solve.options import (
    FirstOrder,
    Options,
    refuse_outside,
    user_start,
    warm_active_set,
)
from wdro_model.solve.plan import Plan
from wdro_model.solve.rescale import RescaledModel, loss_unit, rescale_model
from wdro_model.solve.true_risk import robust_value
from wdro_model.solvers import FrankWolfe, Outcome, QuasiNewton, Simplicial, Stop
from wdro_model.solvers.features import Feature
from wdro_model.solvers.objective import Array, Point, certificate
from wdro_model.solvers.simplicial import ColumnMaster, first_columns


# ------------------------------------------------------------------ smooth objectives
def run_first_order(model: Model, chosen: Plan, solver: FirstOrder, options: Options) -> Solution:
    """Minimise a smooth objective by gradients."""
    clock, oracle = Clock(solver.time_limit), model.feasible.oracle()
    calls_before = oracle.calls
    objective, outcome = minimise_objective(model, chosen, solver, options, clock)
    point, gap = outcome.point, outcome.gap
    if Feature.FULL_GRADIENTS not in solver.features:
        point = objective.evaluate(outcome.x, None)
        gap = certificate(oracle, outcome.x, point.gradient).gap
    return report(
        model,
        chosen,
        solver,
        outcome,
        point,
        gap,
        clock,
        convex=objective.convex,
        calls_before=calls_before,
        notes=tuple(hull_notes(model, outcome.x)),
    )


def minimise_objective(
    model: Model, chosen: Plan, solver: FirstOrder, options: Options, clock: Clock
) -> tuple[Any, Outcome]:
    """The objective of a plan, and the run that minimised it."""
    assert chosen.objective is not None
    objective: Any = chosen.objective()
    rng = np.random.default_rng(options.seed)
    with deadline(clock.seconds_left):
        oracle = reset_oracle(model, solver)
        start = first_point(model, objective, options, rng)
    shown: dict[str, Any] = display(options, chosen)
    if isinstance(solver, FrankWolfe):
        shown["active_set"] = warm_active_set(model, options.start)
    outcome = clock.limited(solver).run(objective, oracle, start, rng=rng, **shown)
    return objective, with_thresholds(objective, outcome)


def with_thresholds(objective: Any, outcome: Outcome) -> Outcome:
    """The outcome with thresholds at their best, where the objective has minimised them out."""
    settled = getattr(objective, "settled", None)
    return outcome if settled is None else replace(outcome, x=settled(outcome.x))


def reset_oracle(model: Model, solver: FirstOrder) -> FeasibleSet:
    """The oracle of the feasible set, with no memory of earlier solves.

    An UnboundedError where the set is not bounded, and the solver needs that.
    """
    oracle = model.feasible.oracle()
    if Feature.UNBOUNDED_SETS not in solver.features:
        oracle.check_bounded()
    oracle.reset()
    return oracle


def first_point(model: Model, objective: Any, options: Options, rng: np.random.Generator) -> Array:
    """The user's start, else a random vertex, improved by an oracle call given an objective."""
    oracle = model.feasible.oracle()
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        return start
    direction = rng.standard_normal(oracle.dimension)
    direction = np.abs(direction) if oracle.nonnegative_directions else direction
    if objective is None:
        return oracle.vertex(direction)
    oracle.calls += 1
    vertex = checked_vertex(oracle, oracle.minimize_relaxed(direction))
    start = oracle.vertex(objective.evaluate(vertex).gradient)
    if not model.feasible.is_integer:
        oracle.witness = vertex  # a point of the set: no exact oracle may answer with a worse one
    return start


def display(options: Options, chosen: Plan) -> dict[str, Any]:
    """The arguments of a run that say what it prints."""
    return {"verbose": options.verbose, "progress": options.progress, "title": chosen.method}


# ------------------------------------------------------------------ smooth loss plus a program
class LiftedMean:
    """mean_k f(x, xi_k) + t, a function of (x, t)."""

    convex = True

    def __init__(self, model: RobustModel) -> None:
        self._mean = Empirical(model)

    def evaluate(self, pair: Array, dual: float | None = None) -> Point:
        mean = self._mean.evaluate(pair[:-1])
        return Point(mean.value + float(pair[-1]), np.append(mean.gradient, 1.0))

    def describe(self) -> str:
        return f"{self._mean.describe()}, and what the ball adds"


def run_composite(
    model: RobustModel, chosen: Plan, solver: QuasiNewton, options: Options
) -> Solution:
    """Quasi-Newton steps on the mean loss over the epigraph of what the ball adds."""
    clock, calls_before = Clock(solver.time_limit), model.feasible.oracle().calls
    assert chosen.remainder is not None
    assert chosen.counterpart is not None
    rest, level = chosen.remainder(), cp.Variable(name="what the ball adds")
    below: Any = rest.expression <= level
    constraints = [*model.feasible.conic_constraints(), *rest.constraints, below]
    pairs = ConvexSet(constraints, [*model.feasible.layout.variables, level])
    near = np.zeros(pairs.dimension)
    if options.start is not None:
        near[:-1] = user_start(model, options.start)
        refuse_outside(model, near[:-1])
    start = quadratic_over(pairs)(np.zeros(pairs.dimension), np.eye(pairs.dimension), near)
    if start is None:
        raise SolverError("no point of the feasible set was found; use solver=Conic().")
    rng, shown = np.random.default_rng(options.seed), display(options, chosen)
    limited = clock.limited(solver)
    outcome = limited.run(LiftedMean(model), near_if_unbounded(pairs), start, rng=rng, **shown)
    x = outcome.x[:-1]
    point = Point(robust_value(model, x, chosen.counterpart), outcome.point.gradient[:-1])
    outcome = replace(outcome, x=x, point=point, lower_bound=-np.inf)
    return report(
        model,
        chosen,
        solver,
        outcome,
        point,
        outcome.gap,
        clock,
        convex=True,
        calls_before=calls_before,
    )


# ------------------------------------------------------------------ programs over vertices
@dataclass(frozen=True)
class ColumnModel:
    """The program of a model over the vertices of its oracle sets."""

    master: ColumnMaster
    sets: tuple[FeasibleSet, ...]
    unit: float
    """The unit of the objective of the master."""


def column_model(model: Model, chosen: Plan, relax: bool) -> ColumnModel:
    """The master program of a model.

    relax: integers under CVXPY constraints are a set of vertices too, known by their oracle.
    """
    program, unit = program_and_unit(model, chosen)
    feasible = model.feasible
    blocks, constraints = feasible.oracle_blocks(), feasible.other_constraints()
    members = {m.variable for m in feasible.memberships}
    others = [w for v, w in feasible.layout.slices.items() if v not in members]
    if relax and any(feasible.discrete[where].any() for where in others):
        oracle = feasible.oracle()
        oracle.check_bounded()
        blocks, constraints = [(oracle, np.arange(feasible.layout.dimension))], []
    master = ColumnMaster(
        program.expression,
        [*program.constraints, *(c for c in constraints if hasattr(c, "args"))],
        feasible.layout.variables,
        [where for _, where in blocks],
    )
    return ColumnModel(master, tuple(block for block, _ in blocks), unit)


def program_and_unit(model: Model, chosen: Plan) -> tuple[Program, float]:
    """The program in its own units, and the unit of its value."""
    model = chosen.counted(model)
    rescaled = rescale_model(model) if chosen.by_sample else RescaledModel.unchanged(model)
    program = chosen.program(rescaled.model)
    assert program is not None
    if rescaled.model is not model:
        return program, rescaled.loss
    unit = loss_unit(model)
    return program.over(unit), unit


def run_simplicial(model: Model, chosen: Plan, solver: Simplicial, options: Options) -> Solution:
    """Solve a conic program over the vertices so far, until its gap is small."""
    clock, sets = Clock(), [s for s, _ in model.feasible.oracle_blocks()]
    calls_before = sum(s.calls for s in sets)
    with deadline(solver.time_limit):
        columns = column_model(model, chosen, relax=True)
        slope = mean_slope(model)
        slopes = [slope[where] for where in columns.master.blocks]
        start = first_columns(columns.master, columns.sets, slopes)
        shown = display(options, chosen)
        run = solver.run(columns.master, columns.sets, start, **shown)
        value, bound = columns.unit * run.value, columns.unit * run.lower_bound
        return Solution(
            method=chosen.method,
            status=settings.OPTIMAL if run.stop is Stop.GAP else settings.USER_LIMIT,
            value=value,
            decision=model.feasible.layout.split(run.x),
            solver=solver.describe(),
            seconds=clock.seconds,
            stop=run.stop.value,
            convex=True,
            iterations=run.iterations,
            oracle_calls=sum(s.calls for s in sets) - calls_before,
            gap=max(0.0, value - bound),
            lower_bound=bound,
            trace=run.trace,
            notes=tuple(hull_notes(model, run.x)),
            **evaluations(model, run.x, value if chosen.method == "exact" else None),
        )


def mean_slope(model: Model) -> Array:
    """The gradient of the mean loss at zero, else at another point where it is finite."""
    for level in (0.0, 0.5, 1.0):
        slope = Empirical(model).evaluate(np.full(model.loss.dimension, level)).gradient
        if np.isfinite(slope).all():
            return slope
    return np.ones(model.loss.dimension)
