"""Simplicial decomposition: a convex master program over the vertices found so far.

A program of CVXPY is canonicalised once, min c'y over A y + s = b, s in K, and x = M y + x0. Where
a variable lies in a set that is known by its oracle alone, it is replaced by sum_k a_k v_k over the
points v_k known so far, a >= 0 and sum a = 1. With the multipliers z of the rows, the others being
dual feasible,

    c + A'z in the coordinates of x      is a subgradient g of the value in x,
    -b'z + sum over sets of min_v <g, v>  is a lower bound over the whole sets.

Minimise over the hull of the vertices so far by a conic program, ask each oracle at the slope that
its multipliers give, add the vertex, until the gap between the program's value and its lower bound
is small. The objective need not be smooth: CVaR, newsvendors, norms.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.error import SolverError
from cvxpy.reductions.eval_params import EvalParams
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.sets.cone_program import twin_of, with_fixed_bounds
from wdro_model.sets.deadlines import OutOfTime, deadline, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.cone_solver import EMPTY_SET, UNBOUNDED_OBJECTIVE
from wdro_model.solvers.driver import Stop, tolerance
from wdro_model.solvers.features import Feature, check_settings
from wdro_model.solvers.objective import Array, certificate
from wdro_model.solvers.trace import Display, Record, Trace

SOLVED = ("Solved", "AlmostSolved")
LEAST_SECONDS = 0.05
"""Seconds that a program gets at least, also when the time is over."""


@dataclass(frozen=True)
class VertexColumns:
    """Points of one set, (k, n), and what each of them adds to the rows of the program."""

    points: Array
    products: sp.csc_array
    """A v for each point v, (rows, k)."""
    costs: Array
    """<c, v>, (k,)."""

    def __len__(self) -> int:
        return len(self.points)

    def subset(self, which: Array) -> VertexColumns:
        """The columns with these indices."""
        return VertexColumns(self.points[which], self.products[:, which], self.costs[which])

    def join(self, other: VertexColumns) -> VertexColumns:
        """The columns followed by those of `other`."""
        return VertexColumns(
            np.vstack([self.points, other.points]),
            sp.hstack([self.products, other.products], format="csc"),
            np.concatenate([self.costs, other.costs]),
        )


@dataclass(frozen=True)
class MasterAnswer:
    """The best point of a master program, with slopes and a lower bound from its multipliers."""

    x: Array
    """The flat decision, (n,)."""
    value: float
    weights: tuple[Array, ...]
    """The weights of the columns, for each set."""
    slopes: tuple[Array, ...]
    """A subgradient in the coordinates of each set."""
    dual_value: float
    """A lower bound once min_v <slope, v> is added for each set."""


class ColumnMaster:
    """A convex program over CVXPY constraints and over the hulls of columns.

    expression, constraints: a program that is convex by CVXPY's rules; integer variables are
        relaxed.
    variables: the decision variables; the flat decision has their values in turn.
    blocks: the coordinates of the flat decision that lie in the hull of columns, for each set; all
        of a variable's or none.
    """

    def __init__(
        self,
        expression: Any,
        constraints: Sequence[Any],
        variables: Sequence[cp.Variable],
        blocks: Sequence[Array],
    ) -> None:
        starts = np.cumsum([0, *(v.size for v in variables)])
        taken = np.isin(starts[:-1], np.concatenate([*blocks, []]))
        by_columns = [v for v, one in zip(variables, taken) if one]
        twins = _twins(expression, constraints, variables, by_columns)
        problem = cp.Problem(
            cp.Minimize(expression.tree_copy(twins)),
            [c if isinstance(c, bool) else c.tree_copy(twins) for c in constraints],
        )
        problem, _ = EvalParams().apply(problem)
        flat = cp.hstack([cp.vec(twins.get(id(v), v), order="C") for v in variables])
        direction = cp.Parameter(flat.size, value=np.zeros(flat.size))
        problem = cp.Problem(
            cp.Minimize(problem.objective.expr + direction @ flat), problem.constraints
        )
        data = problem.get_problem_data(cp.CLARABEL, solver_opts={"use_quad_obj": False})[0]
        self._read(data, direction)
        self._cones = dims_to_solver_cones(data["dims"])
        self._split(blocks, int(starts[-1]))

    def _read(self, data: Mapping[str, Any], direction: Any) -> None:
        """Read the cost c, the rows A and b, and the map x = M y + x0 from CVXPY's arrays."""
        written = data["param_prob"]
        size, column = written.x.size, written.param_id_to_col[direction.id]
        q = sp.csc_array(written.q)
        image = q[:, column : column + direction.size]
        self._matrix = sp.csr_array(image[:size].T)
        self._offset = image[[size]].toarray().ravel()
        constant = q[:, [q.shape[1] - 1]].toarray().ravel()
        self._cost, self._constant = constant[:size], float(constant[size])
        rows = sp.csc_array((0, size)) if data["A"] is None else sp.csc_array(data["A"])
        self._rows, self._right = rows, np.asarray(data["b"], dtype=float).ravel()

    def _split(self, blocks: Sequence[Array], size: int) -> None:
        """Note which coordinates of x and of y belong to each set, and those that are left."""
        self.blocks = [np.asarray(where, dtype=np.int64) for where in blocks]
        self._own, taken = [], np.zeros(self._cost.size, dtype=bool)
        for where in self.blocks:
            part = self._matrix[where].tocoo()
            own = np.empty(where.size, dtype=np.int64)
            own[part.row] = part.col
            self._own.append(own)
            taken[own] = True
        self._rest = np.flatnonzero(~taken)
        self._rest_rows = self._rows[:, self._rest]
        self._own_rows = [self._rows[:, own] for own in self._own]
        self.others = np.setdiff1d(np.arange(size), np.concatenate([*self.blocks, []]))
        self._others_matrix = self._matrix[self.others][:, self._rest]

    def columns(self, block: int, points: Array) -> VertexColumns:
        """Points (k, n) of one of the sets, as columns."""
        rows = self._own_rows[block]
        products = sp.csc_array(rows @ sp.csc_array(points.T))
        return VertexColumns(points, products, points @ self._cost[self._own[block]])

    def solve(
        self,
        columns: Sequence[VertexColumns],
        lower: Array | None = None,
        upper: Array | None = None,
    ) -> MasterAnswer:
        """The minimum over the hulls of the columns.

        lower, upper: bounds on the flat decision, used only for coordinates outside all blocks.
        """
        beyond, right = self._bounds(lower, upper)
        program = self._with_columns(columns, beyond, right)
        answer = clarabel.DefaultSolver(*program, _settings()).solve()
        self._check(str(answer.status))
        rows = self._right.size
        y, z = np.array(answer.x), np.array(answer.z)
        extra = z[rows : rows + right.size]
        # -b'z is a lower bound, less what the multipliers miss of dual feasibility.
        residual = self._cost[self._rest] + self._rest_rows.T @ z[:rows] + beyond.T @ extra
        dual = self._constant - float(self._right @ z[:rows]) - float(right @ extra)
        dual -= abs(float(residual @ y[: self._rest.size]))
        return self._answer(y, z[:rows], columns, dual)

    def _with_columns(
        self, columns: Sequence[VertexColumns], beyond: sp.csc_array, right: Array
    ) -> tuple[Any, ...]:
        """P, q, A, b and cones of the program in y and the weights of the columns."""
        size, count = self._rest.size, [len(c) for c in columns]
        many, blocks = sum(count), len(columns)
        body = sp.hstack([self._rest_rows, *(c.products for c in columns)], format="csc")
        positive = sp.hstack([sp.csc_array((many, size)), -sp.eye_array(many)], format="csc")
        where = np.repeat(np.arange(blocks), count), size + np.arange(many)
        sums = sp.csc_array((np.ones(many), where), shape=(blocks, size + many))
        wide = sp.hstack([beyond, sp.csc_array((right.size, many))], format="csc")
        matrix = sp.csc_matrix(sp.vstack([body, wide, positive, sums]))
        sides = np.concatenate([self._right, right, np.zeros(many), np.ones(blocks)])
        cost = np.concatenate([self._cost[self._rest], *(c.costs for c in columns)])
        cones = list(self._cones)
        if right.size + many:
            cones.append(clarabel.NonnegativeConeT(right.size + many))
        if blocks:
            cones.append(clarabel.ZeroConeT(blocks))
        return sp.csc_matrix((cost.size, cost.size)), cost, matrix, sides, cones

    def _answer(
        self, y: Array, z: Array, columns: Sequence[VertexColumns], dual: float
    ) -> MasterAnswer:
        size = self._rest.size
        x = np.empty(self._matrix.shape[0])
        x[self.others] = self._others_matrix @ y[:size] + self._offset[self.others]
        value = self._constant + float(self._cost[self._rest] @ y[:size])
        start, weights, slopes = size, [], []
        for block, known in enumerate(columns):
            share = np.maximum(y[start : start + len(known)], 0.0)
            share /= share.sum()
            x[self.blocks[block]] = share @ known.points
            value += float(known.costs @ share)
            slopes.append(self._cost[self._own[block]] + self._own_rows[block].T @ z)
            weights.append(share)
            start += len(known)
        return MasterAnswer(x, value, tuple(weights), tuple(slopes), dual)

    def _bounds(self, lower: Array | None, upper: Array | None) -> tuple[sp.csc_array, Array]:
        """The bounds that are finite, as rows B y <= r."""
        matrix, offset = self._others_matrix, self._offset[self.others]
        rows, right = [sp.csr_array((0, self._rest.size))], [np.zeros(0)]
        for side, sign in ((lower, -1.0), (upper, 1.0)):
            if side is not None:
                some = np.flatnonzero(np.isfinite(side[self.others]))
                rows.append(sign * matrix[some])
                right.append(sign * (side[self.others][some] - offset[some]))
        return sp.csc_array(sp.vstack(rows)), np.concatenate(right)

    def _check(self, status: str) -> None:
        if status in SOLVED:
            return
        if status == "MaxTime":
            raise OutOfTime
        if "PrimalInfeasible" in status:
            raise InfeasibleError(EMPTY_SET)
        if "DualInfeasible" in status:
            raise UnboundedError(UNBOUNDED_OBJECTIVE)
        raise SolverError(f"Clarabel stopped with status {status} on the master program.")


def _settings() -> Any:
    """Settings of Clarabel: one thread, every row kept, and no longer than the solve may take."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.presolve_enable = False
    settings.chordal_decomposition_enable = False
    left = seconds_left()
    if left is not None:
        settings.time_limit = max(left, LEAST_SECONDS)
    return settings


def _twins(
    expression: Any, constraints: Sequence[Any], variables: Sequence[Any], by_columns: Sequence[Any]
) -> dict[int, Any]:
    """Replacements: plain variables for those given by columns, continuous ones for integers."""
    owners = [expression, *(c for c in constraints if not isinstance(c, bool))]
    every = {id(v): v for v in [*variables, *(v for o in owners for v in o.variables())]}
    plain = {id(v) for v in by_columns}
    twins: dict[int, Any] = {}
    for key, v in every.items():
        if key in plain:
            twins[key] = cp.Variable(v.shape, name=v.name())
        elif v.parameters():
            twins[key] = with_fixed_bounds(v)
        elif v.attributes.get("boolean") or v.attributes.get("integer"):
            twins[key] = twin_of(v, relaxed=True)
    return twins


# ------------------------------
# Simplicial decomposition: a convex program over sets that are known by their oracles alone


SAME_VERTEX = 1e-9
"""Vertices whose coordinates differ by less are one."""
ROUNDING = 1e-6
"""Slopes below zero by at most this share of the largest count as zero."""


@dataclass(frozen=True)
class SimplicialOutcome:
    """The last point of a run."""

    x: Array
    value: float
    lower_bound: float
    stop: Stop
    iterations: int
    oracle_calls: int
    trace: Trace
    columns: tuple[VertexColumns, ...]
    """All vertices that are known, for each set."""
    slopes: tuple[Array, ...]

    @property
    def gap(self) -> float:
        return max(0.0, self.value - self.lower_bound)


@dataclass(frozen=True)
class Simplicial:
    """A conic program over the vertices so far, and one more vertex for each of its answers.

    Examples
    --------
    >>> import cvxpy as cp, networkx as nx, wdro_model as wdro
    >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
    >>> x = cp.Variable(4)
    >>> cost = wdro.UncertainParameter(4, samples=[[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 1.0, 4.0]])
    >>> ball = wdro.WassersteinBall(0.5, wdro.costs.Norm(1))
    >>> loss = cp.maximum(cost @ x, 6.5)
    >>> problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, tree)], ambiguity=ball)
    >>> round(problem.solve(method="exact", solver=wdro.solvers.Simplicial()), 3)
    6.958
    """

    gap: float = 1e-4
    """Stop when value - lower bound is at most this fraction of |value|."""
    max_iterations: int = 1000
    time_limit: float | None = None
    """Seconds."""

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.COLUMNS})
    stage: ClassVar[str | None] = "simplicial"

    def __post_init__(self) -> None:
        check_settings(self)

    def describe(self, feasible: FeasibleSet | None = None) -> str:
        return f"simplicial decomposition, conic programs over vertices, relative gap {self.gap:g}"

    def run(
        self,
        master: ColumnMaster,
        sets: Sequence[FeasibleSet],
        columns: Sequence[VertexColumns],
        *,
        lower: Array | None = None,
        upper: Array | None = None,
        enough: float = np.inf,
        share: float = 0.0,
        verbose: bool = False,
        progress: bool = True,
        title: str = "simplicial",
    ) -> SimplicialOutcome:
        """Minimise from some columns of each set, within bounds on the other coordinates.

        Parameters
        ----------
        enough, share
            Stop also once the lower bound is at least `enough`, or the gap is at most
            share * (enough - lower bound).
        """
        began, trace, bound, calls = time.perf_counter(), Trace(), -np.inf, 0
        known, outcome = list(columns), None
        limit = self.time_limit
        with Display(verbose, progress, self.max_iterations, title) as display, deadline(limit):
            try:
                for t in range(self.max_iterations + 1):
                    left = seconds_left()
                    here = master.solve(known, lower, upper)
                    asked = zip(sets, master.blocks, here.slopes)
                    answers = [ask_vertex(one, here.x[where], slope) for one, where, slope in asked]
                    calls += len(sets)
                    bound = max(bound, here.dual_value + sum(least for _, least in answers))
                    fresh = [
                        bool(np.abs(columns.points - vertex).max(axis=1).min() > SAME_VERTEX)
                        for (vertex, _), columns in zip(answers, known)
                    ]
                    gap, open_gap = here.value - bound, enough - bound
                    settled = np.isfinite(enough) and gap <= share * open_gap
                    stop = None
                    if open_gap <= 0 or settled or gap <= tolerance(self.gap, here.value):
                        stop = Stop.GAP
                    elif not any(fresh):
                        stop = Stop.STALLED
                    elif left is not None and left <= 0:
                        stop = Stop.TIME
                    elif t == self.max_iterations:
                        stop = Stop.ITERATIONS
                    seconds = time.perf_counter() - began
                    record = Record(t, seconds, here.value, max(0.0, gap), np.nan, np.nan, calls)
                    trace.records.append(record)
                    display.show(record, last=stop is not None)
                    outcome = SimplicialOutcome(
                        here.x,
                        here.value,
                        min(bound, here.value),
                        stop or Stop.INTERRUPT,
                        t,
                        calls,
                        trace,
                        tuple(known),
                        here.slopes,
                    )
                    if stop is not None:
                        break
                    for k, ((vertex, _), new) in enumerate(zip(answers, fresh)):
                        if new:
                            known[k] = known[k].join(master.columns(k, vertex[None]))
            except (KeyboardInterrupt, OutOfTime) as error:
                if outcome is None:
                    raise
                if isinstance(error, OutOfTime):
                    outcome = replace(outcome, stop=Stop.TIME)
            assert outcome is not None
            display.end(outcome.stop.value)
        return outcome


def ask_vertex(feasible: FeasibleSet, x: Array, slope: Array) -> tuple[Array, float]:
    """The oracle's vertex for a slope at x, and a lower bound on <slope, .> over the set."""
    asked = slope
    if feasible.nonnegative_directions:
        rounding = slope > -ROUNDING * np.abs(slope).max(initial=0.0)
        asked = np.where(rounding, np.maximum(slope, 0.0), slope)
    certified = certificate(feasible, x, asked)
    # Rounded slopes are larger: vertices within [0, 1] cost at most this much more.
    rounded = float((asked - slope).sum())
    return certified.vertex, float(asked @ certified.vertex) - certified.slack - rounded


def first_columns(
    master: ColumnMaster, sets: Sequence[FeasibleSet], directions: Sequence[Array]
) -> list[VertexColumns]:
    """Columns of one vertex of each set."""
    columns = []
    for k, (feasible, direction) in enumerate(zip(sets, directions)):
        if feasible.nonnegative_directions:
            direction = np.abs(direction)
        columns.append(master.columns(k, feasible.vertex(direction)[None]))
    return columns
