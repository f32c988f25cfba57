"""First-order solves without Monte Carlo error: Frank-Wolfe and simplicial decomposition."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cvxpy import settings

from wdro_model.model import Model
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.sets.deadlines import deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.certify import Solution, certified, evaluations, report
from wdro_model.solve.notes import hull_notes
from wdro_model.solve.options import FirstOrder, Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.rescale import RescaledModel, loss_unit, rescale_model
from wdro_model.solve.start import first_point, warm_active_set
from wdro_model.solvers import FrankWolfe, Outcome, Simplicial, Stop
from wdro_model.solvers.features import Feature
from wdro_model.solvers.objective import Array
from wdro_model.solvers.simplicial import ColumnMaster, first_columns


def run_first_order(model: Model, chosen: Plan, solver: FirstOrder, options: Options) -> Solution:
    """Frank-Wolfe on an objective without Monte Carlo error."""
    began, asked = time.perf_counter(), model.feasible.oracle().calls
    objective, outcome = first_order_outcome(model, chosen, solver, options)
    point, gap = outcome.point, outcome.gap
    if Feature.FULL_GRADIENTS not in solver.features:
        point, gap = certified(objective, model.feasible.oracle(), outcome.x, None)
    return report(
        model,
        chosen,
        solver,
        outcome,
        point,
        gap,
        convex=objective.convex,
        began=began,
        same_objective=True,
        asked=asked,
        notes=tuple(hull_notes(model, outcome.x)),
    )


def first_order_outcome(
    model: Model, chosen: Plan, solver: FirstOrder, options: Options
) -> tuple[Any, Outcome]:
    """The objective of a plan, and the run that minimised it."""
    assert chosen.objective is not None
    began = time.perf_counter()
    objective: Any = chosen.objective()
    rng = np.random.default_rng(options.seed)
    with deadline(solver.time_limit):
        oracle = reset_oracle(model, solver)
        start = first_point(model, objective, options, rng)
    if solver.time_limit is not None:  # what came before counts
        left = solver.time_limit - (time.perf_counter() - began)
        solver = replace(solver, time_limit=max(left, 1e-9))
    shown: dict[str, Any] = display(options, chosen)
    if isinstance(solver, FrankWolfe):
        shown["active_set"] = warm_active_set(model, options.start)
    outcome = solver.run(objective, oracle, start, rng=rng, **shown)
    return objective, with_thresholds(objective, outcome)


# ------------------------------------------------------------------ parts
def with_thresholds(objective: Any, outcome: Outcome) -> Outcome:
    """The outcome with thresholds at their best, where the objective has minimised them out."""
    settled = getattr(objective, "settled", None)
    return outcome if settled is None else replace(outcome, x=settled(outcome.x))


def reset_oracle(model: Model, solver: FirstOrder) -> FeasibleSet:
    """The oracle of the feasible set, with no memory of earlier solves.

    An UnboundedError where the set is not bounded, and the solver asks for that.
    """
    oracle = model.feasible.oracle()
    if Feature.UNBOUNDED_SETS not in solver.features:
        oracle.check_bounded()
    oracle.reset()
    return oracle


def display(options: Options, chosen: Plan) -> dict[str, Any]:
    """How a run shows itself."""
    return {"verbose": options.verbose, "progress": options.progress, "title": chosen.method}


# ------------------------------
# Exact programs over sets that are known by their oracles: simplicial decomposition of a model


FINISHED = "the gap is under the tolerance"


@dataclass(frozen=True)
class ColumnModel:
    """The program of a model over the vertices of its oracle sets."""

    master: ColumnMaster
    sets: tuple[FeasibleSet, ...]
    unit: float
    """What the objective of the master is measured in."""


def column_model(model: Model, chosen: Plan, relax: bool) -> ColumnModel:
    """The master program of a model.

    relax: integers under CVXPY constraints are a set of vertices too, known by their oracle.
    """
    program, unit = program_and_unit(model, chosen)
    feasible = model.feasible
    blocks, constraints = feasible.oracle_blocks(), feasible.other_constraints()
    members = {m.variable for m in feasible.memberships}
    whole = relax and any(
        feasible.discrete[where].any()
        for v, where in feasible.layout.slices.items()
        if v not in members
    )
    if whole:
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
    """A conic program over the vertices so far, until its gap is small."""
    with deadline(solver.time_limit):
        return _run(model, chosen, solver, options)


def _run(model: Model, chosen: Plan, solver: Simplicial, options: Options) -> Solution:
    began = time.perf_counter()
    asked = sum(s.calls for s, _ in model.feasible.oracle_blocks())
    built = column_model(model, chosen, relax=True)
    slope = mean_slope(model)
    start = first_columns(built.master, built.sets, [slope[w] for w in built.master.blocks])
    run = solver.run(
        built.master,
        built.sets,
        start,
        verbose=options.verbose,
        progress=options.progress,
        title=chosen.method,
    )
    value, bound = built.unit * run.value, built.unit * run.lower_bound
    solved = run.stop is Stop.GAP
    return Solution(
        method=chosen.method,
        status=settings.OPTIMAL if solved else settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(run.x),
        solver=solver.describe(),
        seconds=time.perf_counter() - began,
        stop=run.stop.value,
        convex=True,
        iterations=run.iterations,
        oracle_calls=sum(s.calls for s, _ in model.feasible.oracle_blocks()) - asked,
        gap=max(0.0, value - bound),
        lower_bound=bound,
        trace=run.trace,
        notes=tuple(hull_notes(model, run.x)),
        **evaluations(model, run.x, value if chosen.method == "exact" else None),
    )


def mean_slope(model: Model) -> Array:
    """The gradient of the mean loss at zero, or at a point where it has one."""
    for level in (0.0, 0.5, 1.0):
        found = Empirical(model).evaluate(np.full(model.loss.dimension, level)).gradient
        if np.isfinite(found).all():
            return found
    return np.ones(model.loss.dimension)
