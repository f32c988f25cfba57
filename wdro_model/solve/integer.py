"""Integer decisions: a parametric search where it is enough, else branch and bound.

The master program of a simplicial decomposition holds all that is continuous, and integers under
CVXPY constraints relaxed to the bounds of the node; oracle sets hold theirs by themselves. All
nodes share the vertices that were generated. With the integers fixed, the same program gives the
best continuous part.

At 0/1 points x_i^2 = x_i. Where the loss is affine in the data the adversary adds phi(<w, x>) to
the mean loss of a choice x, or to x' M x a multiple of <1, x>. If <w, x> is the same for all of
them (equal weights, and trees, assignments, perfect matchings or k-subsets) the robust choice is
that of ERM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError
from wdro_model.loss.polynomial import degree
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.exact.affine import linear_risk, risk_at_choices
from wdro_model.objectives.exact.counterpart import Counterpart
from wdro_model.objectives.exact.quadratic_form import QuadraticFormLoss
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.sets.feasible_set import FeasibleSet, checked_choice
from wdro_model.sets.product import ProductSet
from wdro_model.solve.certify import Clock, Solution, evaluations
from wdro_model.solve.first_order import ColumnModel, column_model, mean_slope
from wdro_model.solve.options import Options, user_start
from wdro_model.solve.plan import Plan
from wdro_model.solvers import BranchAndBound, Simplicial, Stop
from wdro_model.solvers.branch_and_bound import (
    IntegerOutcome,
    NodeRelaxations,
    Relaxed,
    TreeSearch,
)
from wdro_model.solvers.driver import tolerance
from wdro_model.solvers.objective import Array
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk, ParametricSearch
from wdro_model.solvers.relaxations import (
    SHARE,
    HullNodes,
    QuadraticNodes,
    as_quadratic,
    hold_coordinates,
)
from wdro_model.solvers.simplicial import VertexColumns
from wdro_model.solvers.trace import Trace

PROJECTION_PERIOD = 25
"""Nodes between two searches for integer points near a relaxation."""
ROUNDED_VERTICES = 3
"""Vertices of a set that are tried after a node, the nearest first."""
EQUAL_SPREADS = 1e-9
"""Relative difference below which two values of <w, x> count as equal."""
MAX_HESSIAN = 1500
"""Variables of a decision up to which a Hessian is computed."""
SAME_CHOICE = (
    "the adversary adds the same to every integer decision (they all have the same number of "
    "ones): the robust choice is ERM's. weights='standardize' on the cost, or weights of your own, "
    "make a difference; so does a mixture of choices, over the convex hull"
)


def run_integer(model: Model, chosen: Plan, solver: BranchAndBound, options: Options) -> Solution:
    """The best integer decision that is found, with a lower bound on all of them."""
    clock = Clock(solver.time_limit)
    oracle = model.feasible.oracle() if model.feasible.has_oracle else None
    calls_before, risk = _calls(oracle), choice_risk(model, chosen)
    if risk is not None and oracle is not None:
        if isinstance(risk, ChoiceRisk):
            search = ParametricSearch(oracle, risk).run(solver.time_limit)
        else:
            search = risk.search(oracle, solver.time_limit)
        outcome = IntegerOutcome(
            search.x, search.value, search.lower_bound, search.stop, search.calls, Trace()
        )
        name = f"search along one parameter, {search.calls} oracle calls"
    else:
        outcome = _branch(model, chosen, solver, options, clock)
        name = f"branch and bound, {outcome.nodes} nodes"
    x, value, bound = outcome.x, outcome.value, outcome.lower_bound
    close = value - bound <= tolerance(solver.gap, value)
    same = same_choice_note(model, chosen.counterpart)
    return Solution(
        method=chosen.method,
        status=settings.OPTIMAL if close else settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(x),
        solver=name,
        seconds=clock.seconds,
        stop=outcome.stop.value,
        convex=True,
        iterations=outcome.nodes,
        oracle_calls=_calls(oracle) - calls_before,
        gap=outcome.gap,
        lower_bound=bound if np.isfinite(bound) else None,
        trace=outcome.trace,
        notes=() if same is None else (f"{same}.",),
        **evaluations(model, x, value if chosen.method == "exact" else None),
    )


def _branch(
    model: Model, chosen: Plan, solver: BranchAndBound, options: Options, clock: Clock
) -> IntegerOutcome:
    """Branch and bound from the user's start; a vertex where there is no time for it."""
    starts = [] if options.start is None else [user_start(model, options.start)]
    try:
        nodes = choose_nodes(model, chosen, solver)
        if solver.time_limit is not None and has_quick_choice(model, chosen):
            # With this start, a longer limit never gives a worse decision.
            starts.append(_quick_choice(model, chosen).x)
    except OutOfTime:
        return _quick_choice(model, chosen)
    search = TreeSearch(nodes, solver, clock.began)
    outcome = search.run(
        *model.feasible.bounds(), starts=starts, verbose=options.verbose, progress=options.progress
    )
    if outcome is not None:
        return outcome
    if search.open:
        raise ValueError(
            f"no integer decision was found in {search.count} nodes; give more time or nodes "
            "(BranchAndBound(time_limit=..., node_limit=...)), or solve(relax=True) and round()."
        )
    raise InfeasibleError(
        "the feasible set is empty: no integer decision meets all the constraints; relax or "
        "remove one of them."
    )


def has_quick_choice(model: Model, chosen: Plan) -> bool:
    """Is there an oracle of 0/1 decisions, and an objective with gradients for it?"""
    known = chosen.objective is not None and model.feasible.has_oracle
    return known and model.feasible.is_binary


def _quick_choice(model: Model, chosen: Plan) -> IntegerOutcome:
    """The vertex for the gradient at the middle of the bounds; an OutOfTime if there is none."""
    if not has_quick_choice(model, chosen):
        raise OutOfTime
    assert chosen.objective is not None
    objective, oracle = chosen.objective(), model.feasible.oracle()
    middle = np.mean(np.clip(model.feasible.bounds(), -1.0, 1.0), axis=0)
    x = checked_choice(oracle, oracle.vertex(objective.evaluate(middle).gradient))
    return IntegerOutcome(x, float(objective.evaluate(x).value), -np.inf, Stop.TIME, 0, Trace())


def _calls(oracle: FeasibleSet | None) -> int:
    """The calls of a set, and of the blocks of a product."""
    if oracle is None:
        return 0
    blocks = oracle.blocks if isinstance(oracle, ProductSet) else ()
    return oracle.calls + sum(_calls(block) for block, _ in blocks)


# ------------------------------------------------------------------ nodes of branch and bound
def choose_nodes(model: Model, chosen: Plan, solver: BranchAndBound) -> NodeRelaxations:
    """The bounds of nodes: by a quadratic over the hull, a program, or a smooth convex objective.

    A ValueError where none of them is known.
    """
    refuse_wide(model)
    binary, objective = model.feasible.is_binary, cast(Any, None)
    kinks = chosen.has_program and chosen.has_kinks(model)
    if model.feasible.has_oracle and binary and chosen.objective is not None and not kinks:
        objective, oracle = chosen.objective(), model.feasible.oracle()
        quadratic = _quadratic(model, objective)
        if quadratic is not None:
            return QuadraticNodes(oracle, quadratic, solver.gap)
        if objective.convex and (model.feasible.has_oracle_sets or not chosen.has_program):
            return HullNodes(oracle, objective, _ConvexValue(objective), solver.gap)
    if chosen.has_program:
        return ProgramNodes(model, column_model(model, chosen, relax=False), solver.gap)
    why = f"the objective ({chosen.formula}) is neither quadratic nor known to be convex"
    if not binary:
        why = "the objective has no convex CVXPY program, and some decisions are not 0 or 1"
    raise ValueError(
        f"no bounds are known for integer decisions here: {why}; solve(relax=True) minimises over "
        "the convex hull, and round() then finds an integer decision. If you know that the loss is "
        "convex, pass assume_convex=True to the problem."
    )


def refuse_wide(model: Model) -> None:
    """Raise a ValueError for integers of an oracle set that are not known to be 0 and 1."""
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


def _quadratic(model: Model, objective: Any) -> Any | None:
    """The objective as a quadratic function of the decision, if it is one."""
    if model.expression is None or model.loss.dimension > MAX_HESSIAN:
        return None
    if degree(model.expression, model.feasible.layout.variables) > 2:
        return None
    return as_quadratic(objective, model.loss.dimension)


class _ConvexValue:
    """The value of a decision by a convex objective, with its gradient."""

    def __init__(self, objective: Any) -> None:
        self._objective = objective

    def gradient(self, x: Array) -> Array:
        return np.asarray(self._objective.evaluate(x).gradient)

    def __call__(self, x: Array) -> float:
        return float(self._objective.evaluate(x).value)


class ProgramNodes(NodeRelaxations):
    """Nodes of a model whose objective is a convex program."""

    def __init__(self, model: Model, columns: ColumnModel, gap: float) -> None:
        self.model, self.gap = model, gap
        self.master, self.sets, self.unit = columns.master, columns.sets, columns.unit
        self.discrete = model.feasible.discrete
        self.blocks = list(zip(self.sets, self.master.blocks))
        self._is_choice = [bool(self.discrete[where].all()) for where in self.master.blocks]
        """Which sets hold integers."""
        slope = mean_slope(model)
        self._slopes = [slope[where] for where in self.master.blocks]
        self.pool: list[VertexColumns | None] = [None] * len(self.sets)
        """The vertices of each set that were generated."""
        self._completions: dict[bytes, tuple[float, Array]] = {}
        self._failures: set[bytes] = set()
        self._has_loose_integers = bool(self.discrete[self.master.others].any())
        """Are some integers under CVXPY constraints?"""

    # ------------------------------------------------------------------ bounds
    def relax(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        """Bound a node by simplicial decomposition; None where it is empty."""
        slopes = self._slopes if memory is None else memory
        limit = None if seconds is None else max(seconds, 1e-3)
        try:
            sets = [
                hold_coordinates(each, lower[where], upper[where]) if choice else each
                for (each, where), choice in zip(self.blocks, self._is_choice)
            ]
            start = [
                self._first_columns(k, sets[k], lower, upper, slopes[k]) for k in range(len(sets))
            ]
            run = Simplicial(gap=SHARE * self.gap, time_limit=limit).run(
                self.master,
                sets,
                start,
                lower=lower,
                upper=upper,
                enough=cutoff / self.unit,
                share=SHARE,
                progress=False,
            )
        except InfeasibleError:
            return None
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # the tree search returns its best decision
        for k, (columns, begun) in enumerate(zip(run.columns, start)):
            fresh = np.arange(len(begun), len(columns))
            if fresh.size:
                self._add_to_pool(k, columns.subset(fresh))
        return Relaxed(self.unit * run.lower_bound, run.x, run.slopes)

    def _first_columns(
        self, k: int, held: FeasibleSet, lower: Array, upper: Array, slope: Array
    ) -> VertexColumns:
        """The vertices of the pool that the node has, or a vertex of its own."""
        pool, where, choice = self.pool[k], self.master.blocks[k], self._is_choice[k]
        if pool is not None:
            inside = np.ones(len(pool), dtype=bool)
            if choice:
                above = pool.points >= lower[where] - 0.5
                inside = np.all(above & (pool.points <= upper[where] + 0.5), axis=1)
            if inside.any():
                return pool.subset(np.flatnonzero(inside))
        vertex = held.vertex(np.maximum(slope, 0.0) if held.nonnegative_directions else slope)
        vertex = checked_choice(held, vertex) if choice else vertex
        columns = self.master.columns(k, vertex[None])
        self._add_to_pool(k, columns)
        return columns

    def _add_to_pool(self, k: int, columns: VertexColumns) -> None:
        pool = self.pool[k]
        self.pool[k] = columns if pool is None else pool.join(columns)

    # ------------------------------------------------------------------ integer decisions
    def candidates(self, node: Relaxed, count: int, improved: bool) -> Iterator[Array]:
        """Roundings of the relaxation, and at times the integer point that is nearest to it."""
        if improved:
            return
        yield from self._roundings(node.x)
        if self._has_loose_integers and count % PROJECTION_PERIOD == 1:
            try:
                yield from self.model.feasible.oracle().discrete_near(node.x)
            except (ValueError, SolverError):  # no point near, or a set without bounds
                return

    def _roundings(self, x: Array) -> Iterator[Array]:
        """x with its integers rounded, and the nearest known vertices in place of its parts."""
        rounded = np.where(self.discrete, np.rint(x), x)
        nearest: list[Array] = []
        for k, where in enumerate(self.master.blocks):
            pool, points = self.pool[k], np.zeros((0, len(where)))
            if pool is not None and self._is_choice[k]:
                distance = np.abs(pool.points - x[where]).sum(axis=1)
                order = np.argsort(distance, kind="stable")[:ROUNDED_VERTICES]
                points = np.rint(pool.points[order])
            nearest.append(points)
        for rank in range(max(map(len, nearest), default=1)):
            for where, points in zip(self.master.blocks, nearest):
                if len(points):
                    rounded[where] = points[min(rank, len(points) - 1)]
            yield rounded.copy()

    def known_choices(self) -> Iterator[Array]:
        """Integer decisions made of known vertices, for use after an interrupt."""
        known = bool(self.pool) and all(pool is not None for pool in self.pool)
        if known and not self._has_loose_integers:
            yield from self._roundings(np.zeros(self.discrete.size))

    def complete(self, x: Array) -> tuple[float, Array]:
        """The best decision with the integers of x, and its value; infinite if there is none."""
        key = self._key(x)
        if key not in self._completions:
            self._completions[key] = self._solve_with_integers(
                key, np.where(self.discrete, np.rint(x), x)
            )
        return self._completions[key]

    def _key(self, x: Array) -> bytes:
        return np.rint(x[self.discrete]).tobytes()

    def _solve_with_integers(self, key: bytes, x: Array) -> tuple[float, Array]:
        lower = np.where(self.discrete, x, -np.inf)
        upper = np.where(self.discrete, x, np.inf)
        columns: list[VertexColumns] = []
        sets: list[FeasibleSet] = []
        for k, (each, where) in enumerate(self.blocks):
            pool, fixed = self.pool[k], self._is_choice[k]
            point = self.master.columns(k, x[where][None])
            columns.append(point if fixed or pool is None else pool)
            sets.append(_Point(x[where]) if fixed else each)
        try:
            run = Simplicial(gap=1e-2 * self.gap + 1e-9).run(
                self.master, sets, columns, lower=lower, upper=upper, progress=False
            )
        except InfeasibleError:
            return np.inf, x
        except SolverError:
            self._failures.add(key)
            return np.inf, x
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        return self.unit * run.value, np.where(self.discrete, x, run.x)

    def has_failed(self, x: Array) -> bool:
        """Did the solver give up on the integers of x?"""
        return self._key(x) in self._failures

    def contains(self, x: Array) -> bool:
        """Are the parts of x in the oracle sets points of theirs?"""
        for (each, where), choice in zip(self.blocks, self._is_choice):
            if not choice:
                continue
            near = each.discrete_near(x[where]) if each.is_vertex(x[where]) else []
            if not any(np.array_equal(np.rint(v), np.rint(x[where])) for v in near):
                return False
        return True


class _Point(FeasibleSet):
    """A single point."""

    def __init__(self, x: Array) -> None:
        self.dimension, self._x = x.size, x

    def minimize(self, direction: Any, lower: Any = None, upper: Any = None) -> Array:
        return self._x.copy()

    def __repr__(self) -> str:
        return f"a point of {self.dimension} coordinates"


# ------------------------------------------------------------------ the risk of 0/1 choices
def choice_risk(model: Model, chosen: Plan) -> ChoiceRisk | BottleneckRisk | None:
    """The risk as a concave function at 0/1 points; None where it is not known to be one."""
    if not model.feasible.is_binary or not model.feasible.has_oracle:
        return None
    if chosen.counterpart is None:
        return linear_risk(model)
    return risk_at_choices(model) if isinstance(model, RobustModel) else None


def same_choice_note(model: Model, counterpart: Counterpart | None) -> str | None:
    """Why the radius cannot change an integer decision; None where it can, or is not known.

    Two calls of the oracle tell, and only equal weights are asked about.
    """
    if counterpart is None or not isinstance(model, RobustModel) or not chooses(model):
        return None
    if model.feasible.uncertain:  # the radius counts in constraints too
        return None
    spread = np.ones(model.loss.dimension)
    if not isinstance(counterpart, QuadraticFormLoss):
        risk = risk_at_choices(model)
        if not isinstance(risk, ChoiceRisk):
            return None
        spread = risk.spread
    if np.ptp(spread) > EQUAL_SPREADS * abs(spread[0]):
        return None
    oracle = model.feasible.oracle()
    if spread.any():
        if oracle.nonnegative_directions:
            return None
        least, most = (spread @ oracle.minimize(sign * spread) for sign in (1.0, -1.0))
        if abs(most - least) > EQUAL_SPREADS * max(abs(most), abs(least)):
            return None
    return SAME_CHOICE


def chooses(model: Model) -> bool:
    """Are all decisions choices of 0 and 1, as declared or as vertices of their sets?"""
    if model.feasible.is_binary:
        return True
    sets, (lower, upper) = [s for s, _ in model.feasible.oracle_blocks()], model.feasible.bounds()
    covered = sum(s.dimension for s in sets) == model.feasible.layout.dimension
    discrete = covered and all(s.rounds for s in sets)
    return discrete and bool(np.all(lower >= 0)) and bool(np.all(upper <= 1))
