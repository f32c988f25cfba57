"""Integer decisions: a parametric search where it is enough, else branch and bound.

The master program of a simplicial decomposition holds all that is continuous, and integers under
CVXPY constraints relaxed to the bounds of the node; oracle sets hold theirs by themselves. All
nodes share the vertices that were found. With the integers fixed, the same program gives the best
continuous part.

At 0/1 points x_i^2 = x_i. Where the loss is affine in the data the adversary adds phi(<w, x>) to
the mean loss of a choice x, or to x' M x a multiple of <1, x>. If <w, x> is the same for all of
them (equal weights, and trees, assignments, perfect matchings or k-subsets) the robust choice is
that of ERM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
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
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.first_order import ColumnModel, column_model, mean_slope
from wdro_model.solve.options import Options, user_start
from wdro_model.solve.plan import Plan, has_kinks
from wdro_model.solvers import BranchAndBound, Simplicial, Stop
from wdro_model.solvers.branch_and_bound import NodeRelaxations, Relaxed, TreeSearch
from wdro_model.solvers.driver import tolerance
from wdro_model.solvers.objective import Array
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk, ParametricSearch
from wdro_model.solvers.relaxations import SHARE, HullNodes, QuadraticNodes, as_quadratic, within
from wdro_model.solvers.simplicial import VertexColumns
from wdro_model.solvers.trace import Trace

NEAR = 25
"""Integer points near the relaxation are looked for at every so many nodes."""
EVALUATIONS = 30
"""Programs that are solved for exchanges from one decision."""
HEAVY = 3
"""Vertices of a set that are tried after a node, the heaviest first."""


class ProgramNodes:
    """Nodes of a model whose objective is a convex program."""

    def __init__(self, model: Model, built: ColumnModel, gap: float) -> None:
        self.model, self.built, self.gap = model, built, gap
        self.discrete = model.feasible.discrete
        master = built.master
        self._chosen = [bool(self.discrete[where].all()) for where in master.blocks]
        slope = mean_slope(model)
        self._slopes = [slope[where] for where in master.blocks]
        self.pool: list[VertexColumns | None] = [None] * len(built.sets)
        self._known: dict[bytes, tuple[float, Array]] = {}
        self._failures: set[bytes] = set()
        self._slopes_at: dict[bytes, tuple[Array, ...]] = {}
        self._loose = bool(self.discrete[master.others].any())
        """Are some integers under CVXPY constraints?"""

    # ------------------------------------------------------------------ bounds
    def relaxed(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        master, unit = self.built.master, self.built.unit
        slopes = self._slopes if memory is None else memory
        try:
            sets = [self._held(k, lower, upper) for k in range(len(self.built.sets))]
            start = [self._columns(k, sets[k], lower, upper, slopes[k]) for k in range(len(sets))]
            limit = None if seconds is None else max(seconds, 1e-3)
            run = Simplicial(gap=SHARE * self.gap, time_limit=limit).run(
                master,
                sets,
                start,
                lower=lower,
                upper=upper,
                enough=cutoff / unit,
                share=SHARE,
                progress=False,
            )
        except InfeasibleError:
            return None
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt  # the search keeps what it has
        for k, (known, begun) in enumerate(zip(run.columns, start)):
            fresh = np.arange(len(begun), len(known))
            if fresh.size:
                self._keep(k, known.some(fresh))
        return Relaxed(unit * run.lower_bound, run.x, run.slopes)

    def _held(self, k: int, lower: Array, upper: Array) -> FeasibleSet:
        where = self.built.master.blocks[k]
        if not self._chosen[k]:
            return self.built.sets[k]
        return within(self.built.sets[k], lower[where], upper[where])

    def _columns(
        self, k: int, held: FeasibleSet, lower: Array, upper: Array, slope: Array
    ) -> VertexColumns:
        """The vertices known of a set that the node has, or one of its own."""
        pool, where = self.pool[k], self.built.master.blocks[k]
        if pool is not None:
            inside = np.ones(len(pool), dtype=bool)
            if self._chosen[k]:
                points = pool.points
                inside = np.all(
                    (points >= lower[where] - 0.5) & (points <= upper[where] + 0.5), axis=1
                )
            if inside.any():
                return pool.some(np.flatnonzero(inside))
        if held.nonnegative_directions:
            slope = np.maximum(slope, 0.0)
        vertex = held.vertex(slope)
        vertex = checked_choice(held, vertex) if self._chosen[k] else vertex
        found = self.built.master.columns(k, vertex[None])
        self._keep(k, found)
        return found

    def _keep(self, k: int, found: VertexColumns) -> None:
        pool = self.pool[k]
        self.pool[k] = found if pool is None else pool.and_also(found)

    # ------------------------------------------------------------------ integer decisions
    def candidates(self, found: Relaxed, count: int, improved: bool) -> Iterator[Array]:
        """What the relaxation rounds to, vertices next to it, and at times the nearest point."""
        if improved or count & (count - 1) == 0:  # the first node, and at every doubling
            yield from self._exchanged(found.x)
        if improved:
            return
        yield from self._rounded(found.x)
        if self._loose and count % NEAR == 1:
            try:
                yield from self.model.feasible.oracle().discrete_near(found.x)
            except (ValueError, SolverError):  # no point near, or a set without bounds
                return

    def _rounded(self, x: Array) -> Iterator[Array]:
        """x with its integers rounded, the heaviest vertices of each set in their place."""
        whole = np.where(self.discrete, np.rint(x), x)
        near = [self._nearest(k, x) for k in range(len(self.built.sets))]
        for rank in range(max(map(len, near), default=1)):
            for where, points in zip(self.built.master.blocks, near):
                if points:
                    whole[where] = points[min(rank, len(points) - 1)]
            yield whole.copy()

    def _exchanged(self, x: Array) -> Iterator[Array]:
        """The best decision near x that exchanges within each oracle set lead to, set by set."""
        whole = min(self._rounded(x), key=lambda y: self.completed(y)[0])
        for k, where in enumerate(self.built.master.blocks):
            if not self._chosen[k]:
                continue
            part = _Part(self, whole, k)
            whole = part.put(self.built.sets[k].round(whole[where], part, [whole[where]]))
        yield whole

    def slope(self, x: Array, k: int) -> Array:
        """A subgradient of the value in the coordinates of a set, at integers that are known."""
        self.completed(x)
        found = self._slopes_at.get(self._key(x))
        return self._slopes[k] if found is None else found[k]

    def _nearest(self, k: int, x: Array) -> list[Array]:
        """Vertices that are known of a set, those next to x first."""
        pool, where = self.pool[k], self.built.master.blocks[k]
        if pool is None or not self._chosen[k]:
            return []
        far = np.abs(pool.points - x[where]).sum(axis=1)
        return [np.rint(pool.points[i]) for i in np.argsort(far, kind="stable")[:HEAVY]]

    def known(self) -> Iterator[Array]:
        if self.pool and all(pool is not None for pool in self.pool) and not self._loose:
            yield from self._rounded(np.zeros(self.discrete.size))

    def completed(self, x: Array) -> tuple[float, Array]:
        """The best decision with the integers of x, and its value; infinite if there is none."""
        key = self._key(x)
        if key not in self._known:
            self._known[key] = self._solved(key, np.where(self.discrete, np.rint(x), x))
        return self._known[key]

    def _key(self, x: Array) -> bytes:
        return np.rint(x[self.discrete]).tobytes()

    def _solved(self, key: bytes, x: Array) -> tuple[float, Array]:
        master, unit = self.built.master, self.built.unit
        lower = np.where(self.discrete, x, -np.inf)
        upper = np.where(self.discrete, x, np.inf)
        columns, sets = [], []
        for k, where in enumerate(master.blocks):
            point = master.columns(k, x[where][None])
            pool = self.pool[k]
            columns.append(point if self._chosen[k] or pool is None else pool)
            sets.append(_Point(x[where]) if self._chosen[k] else self.built.sets[k])
        try:
            run = Simplicial(gap=1e-2 * self.gap + 1e-9).run(
                master, sets, columns, lower=lower, upper=upper, progress=False
            )
        except InfeasibleError:
            return np.inf, x
        except SolverError:
            self._failures.add(key)
            return np.inf, x
        if run.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        self._slopes_at[key] = run.slopes
        return unit * run.value, np.where(self.discrete, x, run.x)

    def failed(self, x: Array) -> bool:
        """Did the solver give up on the integers of x?"""
        return self._key(x) in self._failures

    def has(self, x: Array) -> bool:
        """Are the parts of x in the oracle sets points of theirs?"""
        for chosen, choices, where in zip(self._chosen, self.built.sets, self.built.master.blocks):
            if not chosen:
                continue
            near = choices.discrete_near(x[where]) if choices.is_vertex(x[where]) else []
            if not any(np.array_equal(np.rint(v), np.rint(x[where])) for v in near):
                return False
        return True


class _Part:
    """The value as a function of one oracle set's coordinates, the others being as they are."""

    def __init__(self, nodes: ProgramNodes, x: Array, k: int) -> None:
        self.nodes, self.x, self.k = nodes, x, k
        self.most = EVALUATIONS

    def put(self, part: Array) -> Array:
        """The decision with this part."""
        whole = self.x.copy()
        whole[self.nodes.built.master.blocks[self.k]] = part
        return whole

    def __call__(self, part: Array) -> float:
        return self.nodes.completed(self.put(part))[0]

    def gradient(self, part: Array) -> Array:
        return self.nodes.slope(self.put(part), self.k)


class _Point(FeasibleSet):
    """A single point."""

    def __init__(self, x: Array) -> None:
        self.dimension, self._x = x.size, x

    def minimize(self, direction: Any, lower: Any = None, upper: Any = None) -> Array:
        return self._x.copy()

    def __repr__(self) -> str:
        return f"a point of {self.dimension} coordinates"


# ------------------------------
# Whether robustness can change an integer decision at all


SAME = 1e-9
IDLE = (
    "the adversary adds the same to every integer decision (they all have the same number of "
    "ones): the robust choice is ERM's. weights='standardize' on the cost, or weights of your own, "
    "make a difference; so does a mixture of choices, over the convex hull"
)


def same_choice_note(model: Model, found: Counterpart | None) -> str | None:
    """Why the radius cannot change an integer decision; None where it can, or is not known.

    Two calls of the oracle tell, and only equal weights are asked about.
    """
    if found is None or not isinstance(model, RobustModel) or not chooses(model):
        return None
    if model.feasible.uncertain:  # the radius counts in constraints too
        return None
    spread = _spread(model, found)
    if spread is None or np.ptp(spread) > SAME * abs(spread[0]):
        return None
    return IDLE if _is_constant(model.feasible.oracle(), spread) else None


def chooses(model: Model) -> bool:
    """Are all decisions choices of 0 and 1, as declared or as vertices of their sets?"""
    if model.feasible.is_binary:
        return True
    sets, (lower, upper) = [s for s, _ in model.feasible.oracle_blocks()], model.feasible.bounds()
    covered = sum(s.dimension for s in sets) == model.feasible.layout.dimension
    return (
        covered
        and all(s.rounds for s in sets)
        and bool(np.all(lower >= 0))
        and bool(np.all(upper <= 1))
    )


def _spread(model: RobustModel, found: Counterpart) -> Array | None:
    """w, where the adversary adds a function of <w, x>."""
    if isinstance(found, QuadraticFormLoss):
        return np.ones(model.loss.dimension)
    risk = risk_at_choices(model)
    return risk.spread if isinstance(risk, ChoiceRisk) else None


def _is_constant(oracle: FeasibleSet, weights: Array) -> bool:
    """Is <w, x> the same at all points of the set?"""
    if not weights.any():
        return True
    if oracle.nonnegative_directions:
        return False
    least, most = (weights @ oracle.minimize(sign * weights) for sign in (1.0, -1.0))
    return bool(abs(most - least) <= SAME * max(abs(most), abs(least)))


# ------------------------------
# Integer decisions: a search along one parameter where that is enough, else branch and bound


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
    kinks = chosen.has_program and has_kinks(model, chosen)
    if chosen.has_program and not model.feasible.has_oracle:
        return ProgramNodes(model, column_model(model, chosen, relax=False), solver.gap)
    oracle = model.feasible.oracle()
    if binary and chosen.objective is not None and not kinks:
        objective = chosen.objective()
        quadratic = _quadratic(model, objective)
        if quadratic is not None:
            return QuadraticNodes(oracle, quadratic, solver.gap)
        if objective.convex and model.feasible.has_oracle_sets:
            return HullNodes(oracle, objective, _Judge(objective), solver.gap)
    if chosen.has_program:
        built = column_model(model, chosen, relax=False)
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
