"""Exact solves at many samples: samples with the same largest piece are merged into their mean.

The risk is a mean of maxima of affine pieces of the samples (`SampleMaxima`). Merging samples
into their mean lowers a mean of maxima (Jensen), and changes nothing if they have the same largest
piece. So a conic program over cells of samples gives a lower bound, and its decision an upper one.
A Newton path leads near the optimum and gives the first cells; cells are then split, and the
program solved again, until the bounds meet.

The path minimises smoothed maxima of decreasing temperature. The pieces are affine in some numbers
w = (a_j, b_d) of each part, which are variables of a cone program beside the decision. With u_kj
the value of piece j at sample k and p_kj its softmax at the temperature m,

    F_m(w, t) = t + mean_k m log sum_j exp(u_kj / m),    rest <= t,

has gradients and Hessians that are sums over samples of products of their data: a matrix as wide as
w, whatever the number of samples. Each step minimises its quadratic model over the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.error import SolverError
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

from wdro_model.display.bars import progress_bar
from wdro_model.loss.expressions import is_ordinary, is_scalable
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.maxima import Maxima, SampleMaxima
from wdro_model.sets.cone_program import canonicalise
from wdro_model.sets.deadlines import check_deadline, seconds_left
from wdro_model.solve.certify import Clock, Solution, evaluations
from wdro_model.solve.conic import FAILURES, ZERO_SHARE, best_known_solution, run_conic
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.rescale import (
    Duals,
    Units,
    entrywise_units,
    rescale_model,
    rescale_program,
    save_duals,
    uncommon_units,
    units_at,
)
from wdro_model.solve.true_risk import true_objective
from wdro_model.solvers import Aggregation, Conic, Stop
from wdro_model.solvers.driver import relative_gap, tolerance
from wdro_model.solvers.objective import Array
from wdro_model.solvers.trace import Record, Trace


@dataclass(frozen=True)
class Tolerances:
    """Sizes of cells, temperatures of the path, and when its steps and the path end."""

    bound_error: float = 1e-6
    """Relative amount by which a lower bound may exceed the value of a decision."""
    single_samples: int = 100
    """Samples that are cells of their own at first, and ..."""
    singles_per_number: int = 4
    """... for each number that can be chosen; each program doubles them."""
    cooling: float = 4.0
    """Factor by which the temperature falls."""
    steps: int = 10
    """Newton steps at one temperature, at most."""
    near_change: float = 4.0
    """Temperatures within which of a change of its largest piece a sample is near it."""
    samples_near: float = 3.0
    """Samples near a change, per number that can be chosen, below which the path ends."""
    step_decrease: float = 1e-3
    """Decrease by a step, in temperatures, below which the next temperature follows."""
    last_decrease: float = 1e-2
    """The same at the last temperature, in shares of one sample per number that can be chosen."""
    coldest: float = 1e-10
    """Last temperature at the latest, as a share of the first."""
    flat_share: float = 1e-9
    """Samples whose largest piece has all but this share of the softmax add no curvature."""
    ridges: tuple[float, ...] = (1e-10, 1e-6, 1e-3)
    """Multiples of the mean curvature added to the Hessian, tried in turn."""


TOLERANCES = Tolerances()
SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)


def run_aggregation(
    model: RobustModel, chosen: Plan, solver: Aggregation, options: Options
) -> Solution:
    """Solve programs over finer and finer cells of samples, until the bounds meet."""
    clock, guess = Clock(), units_at(model)
    units = Units(uncommon_units(guess.decision), guess.loss)
    search = CellSearch.start(model, chosen, solver, options, clock, units)
    if search is None:
        return run_conic(model, chosen, Conic(), options)
    stop = Stop.ITERATIONS
    try:
        with clock.until_stopped():
            stop = search.run()
            if not search.is_ordinary():  # once more, in the units that the decision asks for
                units = search.better_units()
                other = CellSearch.start(model, chosen, solver, options, clock, units)
                search = other or search
                stop = search.run()
    except FAILURES:  # cells may be unbounded below where samples are not
        return run_conic(model, chosen, Conic(), options)
    best, stop = search.best, clock.stop or stop
    if best is None:
        return best_known_solution(model, chosen, Conic(), options, clock, search.reached)
    value = true_objective(model, chosen)(best.x)
    lower = search.unit * search.lower
    save_duals(best.duals)
    model.feasible.pass_on_multipliers()
    below = lower - value <= TOLERANCES.bound_error * abs(value)
    accurate = search.accurate and search.is_ordinary() and below
    solved = settings.OPTIMAL if accurate else settings.OPTIMAL_INACCURATE
    return Solution(
        method=chosen.method,
        status=solved if stop is Stop.GAP else settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(best.x),
        solver=solver.describe(),
        seconds=clock.seconds,
        stop=stop.value,
        convex=True,
        iterations=search.steps + len(search.trace.records),
        gap=value - min(value, lower),
        lower_bound=min(value, lower),
        trace=search.trace,
        **evaluations(model, best.x, value if chosen.method == "exact" else None),
    )


# ------------------------------------------------------------------ programs over cells
class Cells:
    """The samples of a part in cells: some alone, the others by their label."""

    def __init__(self, part: Maxima, rows: Array) -> None:
        self.part, self.rows = part, rows
        self.alone = np.zeros(part.sample_count(rows), dtype=bool)
        self.labels = np.zeros(part.sample_count(rows), dtype=np.int64)

    def split(self, values: Array) -> None:
        """Split cells whose samples differ in their largest piece."""
        keys = self.labels * len(values) + np.argmax(values, axis=0)
        self.labels = np.unique(keys, return_inverse=True)[1]

    def cell_means(self) -> tuple[Array, Array]:
        """The mean of the data of each cell (c, m), and the size of each cell (c,)."""
        together = ~self.alone
        count = int(self.labels.max(initial=0)) + 1
        sums, sizes = np.zeros((count, self.part.coordinates.size)), np.zeros(count)
        single = []
        for where, data in self.part.blocks(self.rows):
            merged, label = together[where], self.labels[where]
            single.append(data[~merged])
            some = np.flatnonzero(merged)
            ones = sp.csr_array(
                (np.ones(len(some)), (label[some], some)), shape=(count, len(label))
            )
            sums += ones @ data
            sizes += np.bincount(label[some], minlength=count)
        full = sizes > 0
        means = np.vstack([*single, sums[full] / sizes[full, None]])
        return means, np.concatenate([np.ones(int(self.alone.sum())), sizes[full]])


@dataclass(frozen=True)
class Bound:
    """The decision of a program over cells."""

    x: Array
    value: float
    """The objective at the decision and the program's own variables: an upper bound."""
    lower: float
    """The value of the program: no decision has a smaller one."""
    piece_values: list[Array]
    """Each piece at each sample, (J, n), for each part."""
    duals: Duals
    accurate: bool
    """Was the program solved to the tolerance of its solver?"""


@dataclass(eq=False)
class CellSearch:
    """The best decision and the best lower bound of programs over finer and finer cells."""

    model: RobustModel
    """The model in some units."""
    unit: float
    """The unit of the loss."""
    units: Units
    maxima: SampleMaxima
    solver: Aggregation
    options: Options
    title: str
    clock: Clock
    best: Bound | None = None
    lower: float = -np.inf
    steps: int = 0
    accurate: bool = True
    """Were all programs solved to the tolerance of their solver?"""
    reached: Array | None = None
    """The decision where the Newton path has ended."""

    @classmethod
    def start(
        cls,
        model: RobustModel,
        chosen: Plan,
        solver: Aggregation,
        options: Options,
        clock: Clock,
        units: Units,
    ) -> CellSearch | None:
        """A search in some units; None where the risk has no such maxima in them."""
        assert chosen.maxima is not None
        rescaled = rescale_model(model, units if units.decision else None)
        maxima = chosen.maxima(rescaled.model)
        if maxima is None:
            return None
        return cls(
            rescaled.model, rescaled.loss, units, maxima, solver, options, chosen.method, clock
        )

    def __post_init__(self) -> None:
        constraints = self.model.feasible.conic_constraints()
        # The set with its rows of order one, and variables for multiples of the units.
        self.set = rescale_program(Program(cp.Constant(0.0)), constraints, self.units.decision)
        self.maxima = self.maxima.with_variables(
            {id(v): twin for v, twin in self.set.twins.items()}
        )
        self.cells = [Cells(part, self.model.rows) for part in self.maxima.parts]
        self.trace = Trace()

    def run(self) -> Stop:
        """Solve programs over finer and finer cells until the gap is small."""
        piece_values = self._values_near_optimum()
        free = min(self.maxima.width, self.model.feasible.layout.dimension)
        alone = TOLERANCES.single_samples + TOLERANCES.singles_per_number * free
        show = self.options.progress and not self.options.verbose
        bar = progress_bar(self.title, unit="program", show=show, delay=3.0)
        try:
            for count in range(1, self.solver.max_iterations + 1):
                check_deadline()
                self._refine(piece_values, alone)
                alone *= 2
                bound = self._solve_cells()
                piece_values = bound.piece_values
                self.lower = max(self.lower, bound.lower)
                self.accurate &= bound.accurate
                if self.best is None or bound.value < self.best.value:
                    self.best = bound
                value = self.best.value
                gap = max(value - self.lower, 0.0)
                seconds = self.clock.seconds
                self.trace.records.append(Record(count, seconds, value, gap, np.nan, np.nan, 0))
                if not bar.disable:
                    bar.set_postfix_str(f"gap {relative_gap(gap, value):.1e}", refresh=False)
                    bar.update()
                if gap <= tolerance(self.solver.gap, value):
                    return Stop.GAP
        finally:
            bar.close()
        return Stop.ITERATIONS

    def _values_near_optimum(self) -> list[Array]:
        """The pieces at all samples near the optimum, by the path; zeros if that fails."""
        variables = [self.set.twins.get(v, v) for v in self.model.feasible.layout.variables]
        rows = [row.solved for row in self.set.rows]
        path, done = NewtonPath(self.model.rows, self.maxima, rows, variables), False
        if path.is_possible:
            try:
                done = path.run()
            finally:
                if path.y.any():
                    x, units = path.y[path.decision], self.units.decision
                    self.reached = x * entrywise_units(self.model, units)
        if not done:
            return [np.zeros((len(c.part.constants), len(c.alone))) for c in self.cells]
        self.steps = path.steps
        return path.piece_values

    def _refine(self, piece_values: list[Array], count: int) -> None:
        """Split the cells, and make the samples next to a change of piece cells of their own."""
        distances = []
        for cells, values in zip(self.cells, piece_values):
            cells.split(values)
            distances.append(np.where(cells.alone, np.inf, margins(values)))
        every = np.concatenate(distances)
        nearest = np.argpartition(every, min(count, every.size - 1))[:count]
        chosen = np.zeros(every.size, dtype=bool)
        chosen[nearest] = np.isfinite(every[nearest])
        ends = np.cumsum([len(d) for d in distances])[:-1]
        for cells, part in zip(self.cells, np.split(chosen, ends)):
            cells.alone |= part

    def _solve_cells(self) -> Bound:
        """The program over the cells as they are, and its decision."""
        rows, layout = self.model.rows, self.model.feasible.layout
        program = self.maxima.program(rows, [cells.cell_means() for cells in self.cells])
        if program is None:
            raise SolverError("the objective is not convex by CVXPY's rules; use solver=Conic().")
        objective = cp.Minimize(program.expression)
        problem = cp.Problem(
            objective, [*(row.solved for row in self.set.rows), *program.constraints]
        )
        show = {"verbose": self.options.verbose, "progress": self.options.progress}
        Conic().run(problem, title=self.title, **show)
        duals = replace(self.set, problem=problem).invert(self.unit)
        x = layout.join({v: v.value for v in layout.variables if v.value is not None})
        piece_values = [
            part.forms(np.asarray(part.numbers().value, dtype=float), rows)
            for part in self.maxima.parts
        ]
        value = float(self.maxima.rest.value)
        value += sum(float(u.max(axis=0).sum()) for u in piece_values) / len(rows)
        accurate = problem.status == settings.OPTIMAL
        return Bound(x, value, float(problem.value), piece_values, duals, accurate)

    # -------------------------------------------------------------- units
    def _largest_entries(self) -> dict[Any, float]:
        """The largest entry of each variable at the best decision."""
        assert self.best is not None
        slices = self.model.feasible.layout.slices.items()
        return {v: float(np.abs(self.best.x[w]).max(initial=0.0)) for v, w in slices}

    def is_ordinary(self) -> bool:
        """Is the best decision of order one in its units?"""
        units = self.units.decision
        sizes = [size / units.get(v, 1.0) for v, size in self._largest_entries().items()]
        return all(is_ordinary(size) for size in sizes if size > ZERO_SHARE)

    def better_units(self) -> Units:
        """The units that the best decision asks for."""
        largest = self._largest_entries().items()
        sizes = {v: size for v, size in largest if size > 0 and is_scalable(v)}
        return Units(uncommon_units(sizes), self.unit)


# ------------------------------------------------------------------ the Newton path
class NewtonPath:
    """Newton steps on smoothed maxima of decreasing temperature, over a convex set.

    variables: the decision; its flat vector has their values in turn, each in row-major order.
    """

    def __init__(
        self,
        rows: Array,
        maxima: SampleMaxima,
        constraints: Sequence[Any],
        variables: Sequence[cp.Variable],
    ) -> None:
        self.rows, self.maxima = rows, maxima
        level = cp.Variable(name="terms without samples")
        widths = [part.width for part in maxima.parts]
        lifted = [cp.Variable(width) for width in widths]
        numbers: list[Any] = [w == part.numbers() for w, part in zip(lifted, maxima.parts)]
        below: Any = maxima.rest <= level
        self._program = canonicalise(
            [*constraints, *maxima.constraints, below, *numbers], [*variables, level, *lifted]
        )
        size = sum(variable.size for variable in variables)
        self.free = min(size, maxima.width)
        """The numbers that can be chosen."""
        self.piece_values: list[Array] = []
        """Each piece at each sample, (J, n), for each part."""
        self.steps = 0
        where = self._program.decision.selection
        self.is_possible = where is not None
        """False where a variable, as a symmetric one, is no part of the solver's vector."""
        if where is None:
            return
        self.decision, self._level = where[:size], int(where[size])
        ends = size + 1 + np.cumsum([0, *widths])
        self._numbers = [where[a:b] for a, b in pairwise(ends.tolist())]
        self._all = np.concatenate(self._numbers)
        self._solver: Any = None
        self.y = np.zeros(self._program.A.shape[1])
        """The solver's vector; it holds the decision, t and w."""

    def run(self) -> bool:
        """Follow the path; False where a step fails before the first temperature is done."""
        rest = np.zeros(self.y.size)
        rest[self._level] = 1.0
        start = self._minimise_model(rest, np.eye(self._all.size))
        if start is None:
            return False
        self.y, self.piece_values = start, self._values_at(start)
        spreads = [margins(u)[np.isfinite(margins(u))] for u in self.piece_values]
        means = [float(spread.mean()) if spread.size else 0.0 for spread in spreads]
        first = temperature = max(float(np.mean(means)), 1e-12)
        last = False
        while True:
            enough = TOLERANCES.step_decrease
            if last:
                enough = TOLERANCES.last_decrease * self.free / len(self.rows)
            for _ in range(TOLERANCES.steps):
                check_deadline()
                decrease = self._newton_step(temperature)
                if decrease is None:
                    return temperature < first
                if decrease <= enough * temperature:
                    break
            if last:
                return True
            # Smoothing matters only for samples near a change of piece: the path ends at a few.
            width = TOLERANCES.near_change * temperature
            near = sum(int((margins(u) < width).sum()) for u in self.piece_values)
            last = near < TOLERANCES.samples_near * self.free
            last = last or temperature < TOLERANCES.coldest * first
            temperature /= 1.0 if last else TOLERANCES.cooling

    def _values_at(self, y: Array) -> list[Array]:
        return [p.forms(y[w], self.rows) for p, w in zip(self.maxima.parts, self._numbers)]

    def _newton_step(self, temperature: float) -> float | None:
        """Take a step; return the decrease of its quadratic model, None if no step is found."""
        gradient, size = np.zeros(self.y.size), len(self.rows)
        gradient[self._level] = 1.0
        blocks = []
        for part, w, u in zip(self.maxima.parts, self._numbers, self.piece_values):
            slope, curvature = derivatives(part, self.rows, u, temperature)
            gradient[w] += slope / size
            blocks.append(curvature / size)
        hessian = np.asarray(sp.block_diag(blocks).todense())
        mean = float(np.trace(hessian)) / len(hessian)
        for ridge in TOLERANCES.ridges:
            end = self._minimise_model(gradient, hessian + ridge * mean * np.eye(len(hessian)))
            if end is None:
                continue
            move = end - self.y
            decrease, values = -float(gradient @ move), self._values_at(end)
            length = self._step_length(values, float(move[self._level]), decrease, temperature)
            pairs = zip(self.piece_values, values)
            self.piece_values = [(1.0 - length) * a + length * b for a, b in pairs]
            self.y, self.steps = self.y + length * move, self.steps + 1
            return max(decrease, 0.0)
        return None

    def _step_length(
        self, end: list[Array], rise: float, decrease: float, temperature: float
    ) -> float:
        """The share of a step that is taken: halved until the objective falls.

        end: the pieces at the end of the step; rise: the change of t.
        """
        size, length = len(self.rows), 1.0
        before = sum(softmax_sum(u, temperature) for u in self.piece_values) / size
        rounding = 1e-14 * (abs(before) + abs(rise))
        while length > 1e-6:
            mixed = ((1.0 - length) * a + length * b for a, b in zip(self.piece_values, end))
            value = sum(softmax_sum(u, temperature) for u in mixed) / size + length * rise
            if value <= before - 1e-4 * length * decrease + rounding:
                break
            length /= 2.0
        return length

    def _minimise_model(self, gradient: Array, curvature: Array) -> Array | None:
        """The minimiser of the quadratic model over the set; None if it is not found."""
        size = float(np.abs(gradient).max()) or 1.0
        row, column = np.triu_indices(self._all.size)
        a, b = self._all[row], self._all[column]
        entries = (curvature[row, column] / size, (np.minimum(a, b), np.maximum(a, b)))
        quadratic = sp.csc_array(sp.coo_array(entries, shape=(self.y.size,) * 2))
        limits = self._program.b - self._program.A @ self.y
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.presolve_enable = settings.chordal_decomposition_enable = False
        if (left := seconds_left()) is not None:
            settings.time_limit = max(left, 0.05)
        if self._solver is None:
            cones = dims_to_solver_cones(self._program.dims)
            rows = sp.csc_array(self._program.A)
            self._solver = clarabel.DefaultSolver(
                quadratic, gradient / size, rows, limits, cones, settings
            )
        else:
            self._solver.update(P=quadratic, q=gradient / size, b=limits, settings=settings)
        answer = self._solver.solve()
        return self.y + np.array(answer.x) if answer.status in SOLVED else None


def margins(values: Array) -> Array:
    """The distance of the second largest piece from the largest, for each sample (n,)."""
    if len(values) == 1:
        return np.full(values.shape[1], np.inf)
    if len(values) == 2:
        return np.abs(values[0] - values[1])
    two = np.partition(values, -2, axis=0)[-2:]
    return two[1] - two[0]


def softmax_sum(values: Array, temperature: float) -> float:
    """sum_k m log sum_j exp(u_kj / m)."""
    top = values.max(axis=0)
    others = np.exp((values - top) / temperature).sum(axis=0)
    return float(top.sum() + temperature * np.log(others).sum())


def derivatives(
    part: Maxima, rows: Array, values: Array, temperature: float
) -> tuple[Array, Array]:
    """The gradient (w,) and the Hessian (w, w) of `softmax_sum` in the numbers of a part.

    With p the softmax, q_d = sum over the pieces along d of p s, and v_d the same of p s^2,

        d/da_j = sum p_j,   d/db_d = sum q_d xi,
        H(a_j, a_i) = sum p_j [j = i] - p_j p_i,   H(a_j, b_d) = sum p_j (s_j [d(j) = d] - q_d) xi,
        H(b_d, b_e) = sum (v_d [d = e] - q_d q_e) xi xi',    each over the temperature.
    """
    many, lines, wide = len(part.constants), len(part.directions), part.coordinates.size
    along = np.zeros((many, lines))
    along[np.arange(many), part.owners] = part.scales
    gradient, hessian = np.zeros(part.width), np.zeros((part.width, part.width))
    a, b = slice(0, many), slice(many, part.width)
    for where, data in part.blocks(rows):
        u = values[:, where]
        p = np.exp((u - u.max(axis=0)) / temperature)
        p /= p.sum(axis=0)
        gradient[a] += p.sum(axis=1)
        gradient[b] += (along.T @ p @ data).ravel()
        curved = np.flatnonzero(p.max(axis=0) < 1.0 - TOLERANCES.flat_share)
        p, data = p[:, curved], data[curved]
        q, v = along.T @ p, (along**2).T @ p
        hessian[a, a] += np.diag(p.sum(axis=1)) - p @ p.T
        for d in range(lines):
            own = slice(many + d * wide, many + (d + 1) * wide)
            hessian[a, own] += (p * (along[:, [d]] - q[d])) @ data
            for e in range(d, lines):
                weights = (v[d] if d == e else 0.0) - q[d] * q[e]
                other = slice(many + e * wide, many + (e + 1) * wide)
                hessian[own, other] += data.T @ (weights[:, None] * data)
    upper = np.triu(hessian)
    return gradient, (upper + np.triu(upper, 1).T) / temperature
