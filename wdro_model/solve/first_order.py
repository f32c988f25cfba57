"""First-order solves without Monte Carlo error: Frank-Wolfe and simplicial decomposition."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cvxpy import settings

from wdro_model.model import Model
from wdro_model.model.feasible import meets
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.sets.deadlines import deadline
from wdro_model.sets.feasible_set import FeasibleSet, checked_vertex
from wdro_model.solve.certify import Solution, certified, evaluations, report
from wdro_model.solve.notes import hull_notes
from wdro_model.solve.options import FirstOrder, Options
from wdro_model.solve.plan import Plan, Written
from wdro_model.solve.true_risk import refuse_false_objective
from wdro_model.solve.units import in_units, loss_unit
from wdro_model.solvers import ActiveSet, FrankWolfe, Outcome, Simplicial, Stop
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
        if chosen.counterpart is not None and not chosen.counterpart.is_proven:
            refuse_false_objective(chosen.counterpart, objective, oracle)
            oracle.reset()
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
    somewhere = checked_vertex(oracle, oracle.minimize_relaxed(direction))
    start = oracle.vertex(objective.evaluate(somewhere).gradient)
    if not model.feasible.is_integer:
        oracle.witness = somewhere  # the answer to another question: a maximiser is found out
    return start


def user_start(model: Model, start: Any, name: str = "start") -> Array:
    """A decision of the user, {variable: value} or a solution, as a flat vector."""
    layout = model.feasible.layout
    values = start.everything if isinstance(start, Solution) else start
    if not hasattr(values, "items"):
        raise ValueError(
            f"{name} must be a dict {{variable: value}} or a solution, got {type(start).__name__}."
        )
    for variable in layout.own:
        if variable not in values:
            raise ValueError(f"{name} has no value for the variable {variable.name()!r}.")
        value = np.asarray(values[variable], dtype=float)
        if value.shape != variable.shape:
            raise ValueError(
                f"{name} for {variable.name()!r} must have shape {variable.shape}, "
                f"got {value.shape}."
            )
        if not np.isfinite(value).all():
            where = tuple(map(int, np.argwhere(~np.isfinite(value))[0]))
            raise ValueError(
                f"{name} for {variable.name()!r} must be finite, got {value[where]} at {where}."
            )
    return layout.join(values)


def refuse_outside(model: Model, x: Array, tolerance: float = 1e-5) -> None:
    """A start outside the feasible set would carry a certificate that is none."""
    lower, upper = model.feasible.bounds()
    outside = bool(np.any(x < lower - tolerance) or np.any(x > upper + tolerance))
    with model.feasible.layout.holding(x):
        outside = outside or not meets(model.feasible.constraints, tolerance)
    outside = outside or model.feasible.exceeds(x, tolerance)
    if outside:
        raise ValueError(
            "start lies outside the feasible set; give a point that meets the constraints, such as "
            "an earlier solution."
        )


def warm_active_set(model: Model, start: Any) -> ActiveSet | None:
    """The active set of a solution that is given as a start, if it has one that fits."""
    active = start.active_set if isinstance(start, Solution) else None
    fits = active is not None and active.dimension == model.feasible.layout.dimension
    return active if fits else None


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


def column_model(model: Model, written: Written, relax: bool) -> ColumnModel:
    """The master program of a model.

    relax: integers under CVXPY constraints are a set of vertices too, known by their oracle.
    """
    program, unit = program_and_unit(model, written)
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


def program_and_unit(model: Model, written: Written) -> tuple[Program, float]:
    """The program in its own units, and the unit of its value."""
    model = written.measured(model)
    own = in_units(model) if written.by_sample else None
    if own is not None and own.model is not model:
        found = written.program(own.model)
        assert found is not None
        return found, own.loss
    found = written.known if written.known is not None else written.program(model)
    assert found is not None
    unit = loss_unit(model)
    return found.over(unit), unit


def run_simplicial(model: Model, chosen: Plan, solver: Simplicial, options: Options) -> Solution:
    """A conic program over the vertices so far, until its gap is small."""
    with deadline(solver.time_limit):
        return _run(model, chosen, solver, options)


def _run(model: Model, chosen: Plan, solver: Simplicial, options: Options) -> Solution:
    began = time.perf_counter()
    assert chosen.written is not None
    asked = sum(s.calls for s, _ in model.feasible.oracle_blocks())
    built = column_model(model, chosen.written, relax=True)
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
