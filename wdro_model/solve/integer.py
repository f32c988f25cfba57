"""Integer decisions: a search along one parameter where that is enough, else branch and bound."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from cvxpy import settings

from wdro_model.errors import InfeasibleError
from wdro_model.loss.polynomial import degree
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.exact.at_choices import linear_risk, risk_at_choices
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.sets.feasible_set import FeasibleSet, checked_choice
from wdro_model.sets.product import ProductSet
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.false_objectives import refuse_false_objective
from wdro_model.solve.first_order import user_start
from wdro_model.solve.options import Options
from wdro_model.solve.over_columns import column_model
from wdro_model.solve.plan import Plan
from wdro_model.solve.program_nodes import ProgramNodes
from wdro_model.solve.same_choice import same_choice_note
from wdro_model.solvers import BranchAndBound, Stop
from wdro_model.solvers.branch_and_bound import NodeRelaxations, TreeSearch
from wdro_model.solvers.hull_nodes import HullNodes
from wdro_model.solvers.objective import Array
from wdro_model.solvers.outcome import tolerance
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk, ParametricSearch
from wdro_model.solvers.quadratic_nodes import QuadraticNodes, as_quadratic
from wdro_model.solvers.trace import Trace

LARGEST = 1500
"""Variables of which a Hessian is computed."""


def run_integer(model: Model, chosen: Plan, solver: BranchAndBound, options: Options) -> Solution:
    """The best integer decision that is found, with a lower bound on all of them."""
    began = time.perf_counter()
    oracle = model.feasible.oracle() if model.feasible.has_oracle else None
    asked = _calls(oracle)
    risk = choice_risk(model, chosen)
    if risk is not None and oracle is not None:
        found = _searched(oracle, risk, solver)
    else:
        found = _branched(model, chosen, solver, options, began)
    close = found.value - found.bound <= tolerance(solver.gap, found.value)
    robust = found.value if chosen.method == "exact" else None
    idle = same_choice_note(model, chosen.counterpart)
    return Solution(
        method=chosen.method,
        status=settings.OPTIMAL if close else settings.USER_LIMIT,
        value=found.value,
        decision=model.feasible.layout.split(found.x),
        solver=found.solver,
        seconds=time.perf_counter() - began,
        stop=found.stop.value,
        convex=True,
        iterations=found.nodes,
        oracle_calls=_calls(oracle) - asked,
        gap=max(0.0, found.value - found.bound),
        lower_bound=found.bound if np.isfinite(found.bound) else None,
        trace=found.trace,
        notes=() if idle is None else (f"{idle}.",),
        **evaluations(model, found.x, robust),
    )


@dataclass(frozen=True)
class Found:
    """An integer decision with its bound, and how it was found."""

    x: Array
    value: float
    bound: float
    stop: Stop
    nodes: int
    solver: str
    trace: Trace


def choice_risk(model: Model, chosen: Plan) -> ChoiceRisk | BottleneckRisk | None:
    """What is minimised, where it is concave at 0/1 points; None where it is not known to be."""
    if not model.feasible.is_binary or not model.feasible.has_oracle:
        return None
    if chosen.counterpart is None:
        return linear_risk(model)
    return risk_at_choices(model) if isinstance(model, RobustModel) else None


def _searched(
    oracle: FeasibleSet, risk: ChoiceRisk | BottleneckRisk, solver: BranchAndBound
) -> Found:
    if isinstance(risk, ChoiceRisk):
        found = ParametricSearch(oracle, risk).run(solver.time_limit)
    else:
        found = risk.search(oracle, solver.time_limit)
    name = f"search along one parameter, {found.calls} oracle calls"
    return Found(found.x, found.value, found.lower_bound, found.stop, found.calls, name, Trace())


def _branched(
    model: Model, chosen: Plan, solver: BranchAndBound, options: Options, began: float
) -> Found:
    starts = [] if options.start is None else [user_start(model, options.start)]
    try:
        nodes = nodes_of(model, chosen, solver)
        if solver.time_limit is not None and has_quick_choice(model, chosen):
            starts.append(_some_choice(model, chosen).x)  # not worse than with less time
    except OutOfTime:
        return _some_choice(model, chosen)
    lower, upper = model.feasible.bounds()
    search = TreeSearch(nodes, solver, began)
    found = search.run(
        lower, upper, starts=starts, verbose=options.verbose, progress=options.progress
    )
    if found is None:
        if search.open:
            raise ValueError(
                f"no integer decision was found in {search.count} nodes; give more time or nodes "
                "(BranchAndBound(time_limit=..., node_limit=...)), or solve(relax=True) and "
                "round()."
            )
        raise InfeasibleError(
            "the feasible set is empty: no integer decision meets all the constraints; relax or "
            "remove one of them."
        )
    name = f"branch and bound, {found.nodes} nodes"
    return Found(
        found.x, found.value, found.lower_bound, found.stop, found.nodes, name, found.trace
    )


def has_quick_choice(model: Model, chosen: Plan) -> bool:
    """Is there an objective whose slope an oracle can be asked for, at 0/1 decisions?"""
    known = chosen.objective is not None and model.feasible.has_oracle
    return known and model.feasible.is_binary


def _some_choice(model: Model, chosen: Plan) -> Found:
    """A vertex, where there is no time for more: the least for the slope in the middle."""
    if not has_quick_choice(model, chosen):
        raise OutOfTime
    assert chosen.objective is not None
    objective, oracle = chosen.objective(), model.feasible.oracle()
    middle = np.mean(np.clip(model.feasible.bounds(), -1.0, 1.0), axis=0)
    x = checked_choice(oracle, oracle.vertex(objective.evaluate(middle).gradient))
    value = float(objective.evaluate(x).value)
    return Found(x, value, -np.inf, Stop.TIME, 0, "branch and bound, 0 nodes", Trace())


def nodes_of(model: Model, chosen: Plan, solver: BranchAndBound) -> NodeRelaxations:
    """How nodes are bounded: a quadratic over the hull, a program, a smooth convex objective."""
    refuse_wide(model)
    binary, objective = model.feasible.is_binary, cast(Any, None)
    kinks = chosen.written is not None and _has_kinks(model, chosen)
    if chosen.written is not None and not model.feasible.has_oracle:
        return ProgramNodes(model, column_model(model, chosen.written, relax=False), solver.gap)
    oracle = model.feasible.oracle()
    if binary and chosen.objective is not None and not kinks:
        objective = chosen.objective()
        if chosen.counterpart is not None and not chosen.counterpart.is_proven:
            refuse_false_objective(chosen.counterpart, objective, oracle)
        quadratic = _quadratic(model, objective)
        if quadratic is not None:
            return QuadraticNodes(oracle, quadratic, solver.gap)
        if objective.convex and model.feasible.has_oracle_sets:
            return HullNodes(oracle, objective, _Judge(objective), solver.gap)
    if chosen.written is not None:
        built = column_model(model, chosen.written, relax=False)
        return ProgramNodes(model, built, solver.gap)
    if objective is not None and objective.convex:
        return HullNodes(oracle, objective, _Judge(objective), solver.gap)
    why = f"the objective ({chosen.formula}) is neither quadratic nor known to be convex"
    if not binary:
        why = "the objective has no convex CVXPY program, and some decisions are not 0 or 1"
    raise ValueError(
        f"no bounds are known for integer decisions here: {why}; solve(relax=True) minimises over "
        "the convex hull, and round() then finds an integer decision. If you know that the loss is "
        "convex, pass assume_convex=True to the problem."
    )


def refuse_wide(model: Model) -> None:
    """Integers of an oracle set that are not 0 and 1 cannot be held."""
    lower, upper = model.feasible.bounds()
    for member in model.feasible.memberships:
        where = model.feasible.layout.slices[member.variable]
        wide = bool(np.any(lower[where] < 0) or np.any(upper[where] > 1))
        if wide and bool(model.feasible.discrete[where].any()):
            raise ValueError(
                f"the integers {member.variable.name()!r} in {member.set.describe()} are not known "
                "to be 0 and 1, and an oracle cannot be branched on otherwise; declare the "
                "variable boolean=True or the set with bounds=(0, 1), or solve(relax=True) and "
                "round()."
            )


def _has_kinks(model: Model, chosen: Plan) -> bool:
    pieces = model.structure.pieces
    return chosen.counterpart is None and pieces is not None and len(pieces) > 1


def _quadratic(model: Model, objective: Any) -> Any | None:
    """The objective as a quadratic function of the decision, if it is one."""
    if model.expression is None or model.loss.dimension > LARGEST:
        return None
    if degree(model.expression, model.feasible.layout.variables) > 2:
        return None
    return as_quadratic(objective, model.loss.dimension)


class _Judge:
    """The value of a decision by a convex objective, with its gradient."""

    def __init__(self, objective: Any) -> None:
        self._objective = objective

    def gradient(self, x: Array) -> Array:
        return np.asarray(self._objective.evaluate(x).gradient)

    def __call__(self, x: Array) -> float:
        return float(self._objective.evaluate(x).value)


def _calls(oracle: FeasibleSet | None) -> int:
    """The calls of a set, and of the blocks of a product."""
    if oracle is None:
        return 0
    blocks = oracle.blocks if isinstance(oracle, ProductSet) else ()
    return oracle.calls + sum(_calls(block) for block, _ in blocks)
