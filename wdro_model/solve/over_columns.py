"""Exact programs over sets that are known by their oracles: simplicial decomposition of a model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from cvxpy import settings

from wdro_model.model import Model
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.sets.deadlines import deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.notes import hull_notes
from wdro_model.solve.options import Options
from wdro_model.solve.own_units import in_units
from wdro_model.solve.plan import Plan, Written
from wdro_model.solve.units import loss_unit
from wdro_model.solvers import Simplicial, Stop
from wdro_model.solvers.column_master import ColumnMaster
from wdro_model.solvers.objective import Array
from wdro_model.solvers.simplicial import first_columns

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
