"""Exact solves at many samples: samples with the same largest piece are merged into their mean.

A Newton path leads near the optimum; then conic programs over cells of samples, `SampleMaxima`,
each a lower bound, until one is sharp at its own decision.
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
from wdro_model.solve.conic import FAILURES, TOLERANCES, best_known_solution, run_conic
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.rescale import (
    Duals,
    RescaledModel,
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

BOUND_ERROR = 1e-6
"""How far a lower bound may be above the value of a decision, relative to it."""
SINGLE_SAMPLES, SINGLE_SAMPLES_PER_NUMBER = 100, 4
"""Samples that stand alone at first: a constant, and for each number that can be chosen."""


class Cells:
    """The samples of a part in cells: some alone, the others by their label."""

    def __init__(self, part: Maxima, rows: Array) -> None:
        self.part, self.rows = part, rows
        self.alone = np.zeros(part.sample_count(rows), dtype=bool)
        self.labels = np.zeros(part.sample_count(rows), dtype=np.int64)

    def split(self, forms: Array) -> None:
        """Split cells whose samples differ in their largest form."""
        active = np.argmax(forms, axis=0)
        keys = self.labels * len(forms) + active
        used = np.zeros(int(keys.max(initial=0)) + 1, dtype=bool)
        used[keys] = True
        self.labels = (np.cumsum(used) - 1)[keys]

    def cell_means(self) -> tuple[Array, Array]:
        """The mean of the data of each cell (c, m), and the size of each cell (c,)."""
        together = ~self.alone
        count = int(self.labels.max(initial=0)) + 1
        sums, sizes = np.zeros((count, self.part.coordinates.size)), np.zeros(count)
        single = []
        for where, data in self.part.blocks(self.rows):
            kept, label = together[where], self.labels[where]
            single.append(data[~kept])
            some = np.flatnonzero(kept)
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
    forms: list[Array]
    duals: Duals
    is_sure: bool
    """Was the program solved to the tolerance of its solver?"""


def run_aggregation(
    model: RobustModel, chosen: Plan, solver: Aggregation, options: Options
) -> Solution:
    """Lower bounds by cells of samples, until one is sharp."""
    clock = Clock()
    search = _search_in_units(model, chosen, solver, options, clock)
    if search is None:
        return run_conic(model, chosen, Conic(), options)
    stop = Stop.ITERATIONS
    try:
        with clock.until_stopped():
            stop = search.run()
            if not search.is_ordinary():  # once more, in the units that the decision asks for
                units = search.better_units()
                search = _search_in_units(model, chosen, solver, options, clock, units) or search
                stop = search.run()
    except FAILURES:  # cells may be unbounded below where samples are not
        return run_conic(model, chosen, Conic(), options)
    best, stop = search.best, clock.stop or stop
    if best is None:
        return best_known_solution(model, chosen, Conic(), options, clock, search.reached)
    value = true_objective(model, chosen)(best.x)
    lower = search.unit * search.lower
    bound = min(value, lower)
    save_duals(best.duals)
    model.feasible.pass_on_multipliers()
    is_sure = search.is_sure and search.is_ordinary() and lower - value <= BOUND_ERROR * abs(value)
    solved = settings.OPTIMAL if is_sure else settings.OPTIMAL_INACCURATE
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
        gap=value - bound,
        lower_bound=bound,
        trace=search.trace,
        **evaluations(model, best.x, value if chosen.method == "exact" else None),
    )


def _search_in_units(
    model: RobustModel,
    chosen: Plan,
    solver: Aggregation,
    options: Options,
    clock: Clock,
    units: Units | None = None,
) -> _Search | None:
    """The search in some units, by default those that losses at ordinary decisions ask for."""
    assert chosen.maxima is not None
    if units is None:
        guess = units_at(model)
        units = Units(uncommon_units(guess.decision), guess.loss)
    rescaled = rescale_model(model, units if units.decision else None)
    maxima = chosen.maxima(rescaled.model)
    if maxima is None:
        return None
    return _Search(rescaled, units, maxima, solver, options, chosen.method, clock)


class _Search:
    def __init__(
        self,
        rescaled: RescaledModel[RobustModel],
        units: Units,
        maxima: SampleMaxima,
        solver: Aggregation,
        options: Options,
        title: str,
        clock: Clock,
    ) -> None:
        self.model, self.unit, self.units = rescaled.model, rescaled.loss, units
        constraints = self.model.feasible.conic_constraints()
        # The set with its rows of order one, and variables for multiples of the units.
        self.set = rescale_program(Program(cp.Constant(0.0)), constraints, units.decision)
        self.maxima = maxima.on({id(v): twin for v, twin in self.set.twins.items()})
        self.solver, self.options = solver, options
        self.title, self.clock = title, clock
        self.cells = [Cells(part, self.model.rows) for part in self.maxima.parts]
        self.best: Bound | None = None
        self.lower, self.steps, self.trace = -np.inf, 0, Trace()
        self.is_sure = True
        """Were all programs solved to the tolerance of their solver?"""
        self.reached: Array | None = None
        """A decision of the Newton path."""

    def run(self) -> Stop:
        forms = self._forms_near_optimum()
        free = min(self.maxima.width, self.model.feasible.layout.dimension)
        alone = SINGLE_SAMPLES + SINGLE_SAMPLES_PER_NUMBER * free
        show = self.options.progress and not self.options.verbose
        bar = progress_bar(self.title, unit="program", show=show, delay=3.0)
        try:
            for _ in range(self.solver.max_iterations):
                check_deadline()
                self._refine(forms, alone)
                alone *= 2
                bound = self._solve_cells()
                forms = bound.forms
                self.lower = max(self.lower, bound.lower)
                self.is_sure &= bound.is_sure
                if self.best is None or bound.value < self.best.value:
                    self.best = bound
                gap = max(self.best.value - self.lower, 0.0)
                self._record(gap, bar)
                if gap <= tolerance(self.solver.gap, self.best.value):
                    return Stop.GAP
        finally:
            bar.close()
        return Stop.ITERATIONS

    def _forms_near_optimum(self) -> list[Array]:
        """The forms of all samples near the optimum, by the path; at zero if it fails."""
        layout, rows = self.model.feasible.layout, [row.solved for row in self.set.rows]
        variables = [self.set.twins.get(v, v) for v in layout.variables]
        path, end = NewtonPath(self.model.rows, self.maxima, rows, variables), None
        if path.is_possible:
            try:
                end = path.run()
            finally:
                if (x := path.decision()) is not None:
                    self.reached = x * entrywise_units(self.model, self.units.decision)
        if end is None:
            return [np.zeros((len(c.part.constants), len(c.alone))) for c in self.cells]
        self.steps = end.steps
        return end.forms

    def _largest_entries(self) -> dict[Any, float]:
        """The largest entry of each variable at the best decision."""
        assert self.best is not None
        slices = self.model.feasible.layout.slices.items()
        return {v: float(np.abs(self.best.x[w]).max(initial=0.0)) for v, w in slices}

    def is_ordinary(self) -> bool:
        """Is the best decision of order one in its units?"""
        units = self.units.decision
        sizes = [size / units.get(v, 1.0) for v, size in self._largest_entries().items()]
        return all(is_ordinary(size) for size in sizes if size > TOLERANCES.zero)

    def better_units(self) -> Units:
        """The units that the best decision asks for."""
        largest = self._largest_entries().items()
        sizes = {v: size for v, size in largest if size > 0 and is_scalable(v)}
        return Units(uncommon_units(sizes), self.unit)

    def _refine(self, forms: list[Array], count: int) -> None:
        """Split the cells, and take the samples next to a change of piece out of them."""
        distances = []
        for cells, u in zip(self.cells, forms):
            cells.split(u)
            distances.append(np.where(cells.alone, np.inf, margins(u)))
        every = np.concatenate(distances)
        some = (
            np.argpartition(every, count)[:count] if count < every.size else np.arange(every.size)
        )
        chosen = np.zeros(every.size, dtype=bool)
        chosen[some] = np.isfinite(every[some])
        ends = np.cumsum([len(d) for d in distances])[:-1]
        for cells, part in zip(self.cells, np.split(chosen, ends)):
            cells.alone |= part

    def _solve_cells(self) -> Bound:
        """The program over the cells as they are, and its decision."""
        rows = self.model.rows
        program = self.maxima.program(rows, [cells.cell_means() for cells in self.cells])
        if program is None:
            raise SolverError("the objective is not convex by CVXPY's rules; use solver=Conic().")
        problem = cp.Problem(
            cp.Minimize(program.expression),
            [*(row.solved for row in self.set.rows), *program.constraints],
        )
        done = replace(self.set, problem=problem)
        show = {"verbose": self.options.verbose, "progress": self.options.progress}
        Conic().run(done.problem, title=self.title, **show)
        duals, layout = done.invert(self.unit), self.model.feasible.layout
        x = layout.join({v: v.value for v in layout.variables if v.value is not None})
        forms = [
            part.forms(np.asarray(part.numbers().value, dtype=float), rows)
            for part in self.maxima.parts
        ]
        value = float(self.maxima.rest.value)
        value += sum(float(u.max(axis=0).sum()) for u in forms) / len(rows)
        is_sure = done.problem.status == settings.OPTIMAL
        return Bound(x, value, float(done.problem.value), forms, duals, is_sure)

    def _record(self, gap: float, bar: Any) -> None:
        assert self.best is not None
        count, value = len(self.trace.records) + 1, self.best.value
        self.trace.records.append(Record(count, self.clock.seconds, value, gap, np.nan, np.nan, 0))
        if not bar.disable:
            bar.set_postfix_str(f"gap {relative_gap(gap, value):.1e}", refresh=False)
            bar.update()


# ------------------------------------------------------------------ the Newton path
COOLING = 4.0
"""The temperature falls by this factor."""
STEPS = 10
"""Newton steps at one temperature, at most."""
NEAR, FEW = 4.0, 3.0
"""Samples within so many temperatures of a change of piece are near it; the path ends when they are
fewer than so many times the numbers that can be chosen."""
ROUGH, SHARP = 1e-3, 1e-2
"""Of the temperature, what a step falls by when it is time for the next; at the end, of what one
sample near a change of piece counts, for each number that can be chosen."""
COLDEST = 1e-10
"""Of the first temperature."""
SURE = 1e-9
"""Samples whose largest form has all but this share of the softmax do not bend the objective."""
RIDGES = (1e-10, 1e-6, 1e-3)
"""Added to the Hessian, relative to its trace."""
SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)


@dataclass(frozen=True)
class PathEnd:
    """Where the path ended."""

    decision: Array
    """The flat decision, feasible up to the tolerance of the solver."""
    forms: list[Array]
    """Each form at each sample, (J, n), for each part."""
    steps: int


class NewtonPath:
    """The path for some maxima over a convex set.

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
        own: list[Any] = [w == part.numbers() for w, part in zip(lifted, maxima.parts)]
        below: Any = maxima.rest <= level
        self._program = canonicalise(
            [*constraints, *maxima.constraints, below, *own], [*variables, level, *lifted]
        )
        size = sum(variable.size for variable in variables)
        self.free = min(size, maxima.width)
        """The numbers that can be chosen."""
        where = self._program.decision.selection
        self.is_possible = where is not None
        if where is None:  # some variable is no part of the solver's vector, as symmetric ones
            return
        self._decision, self._level = where[:size], int(where[size])
        ends = size + 1 + np.cumsum([0, *widths])
        self._own = [where[a:b] for a, b in pairwise(ends.tolist())]
        self._all = np.concatenate(self._own)
        self._solver: Any = None
        self.y = np.zeros(self._program.A.shape[1])

    def run(self) -> PathEnd | None:
        """Follow the path; None where a step fails before the first temperature is done."""
        rest = np.zeros(self.y.size)
        rest[self._level] = 1.0
        start = self._step(rest, np.eye(self._all.size))
        if start is None:
            return None
        self.y = start
        forms = self._forms(self.y)
        first = warmth = max(float(np.mean([_spread(u) for u in forms])), 1e-12)
        steps, last = 0, False
        while True:
            enough = SHARP * self.free / len(self.rows) if last else ROUGH
            for _ in range(STEPS):
                check_deadline()
                found = self._newton(forms, warmth)
                if found is None:
                    return None if warmth == first else self._end(forms, steps)
                self.y, forms, fall = found
                steps += 1
                if fall <= enough * warmth:
                    break
            if last:
                return self._end(forms, steps)
            near = sum(int((margins(u) < NEAR * warmth).sum()) for u in forms)
            last = near < FEW * self.free or warmth < COLDEST * first
            warmth /= 1.0 if last else COOLING

    def decision(self) -> Array | None:
        """The flat decision where the path is; None before its start."""
        return self.y[self._decision] if self.y.any() else None

    def _end(self, forms: list[Array], steps: int) -> PathEnd:
        return PathEnd(self.y[self._decision], forms, steps)

    def _forms(self, y: Array) -> list[Array]:
        return [p.forms(y[w], self.rows) for p, w in zip(self.maxima.parts, self._own)]

    def _newton(self, forms: list[Array], warmth: float) -> tuple[Array, list[Array], float] | None:
        """The point after a step, its forms, and what the quadratic model falls by in it."""
        gradient, size = np.zeros(self.y.size), len(self.rows)
        gradient[self._level] = 1.0
        blocks = []
        for part, w, u in zip(self.maxima.parts, self._own, forms):
            slope, bend = derivatives(part, self.rows, u, warmth)
            gradient[w] += slope / size
            blocks.append(bend / size)
        hessian = np.asarray(sp.block_diag(blocks).todense())
        mean = float(np.trace(hessian)) / len(hessian)
        for ridge in RIDGES:
            reached = self._step(gradient, hessian + ridge * mean * np.eye(len(hessian)))
            if reached is None:
                continue
            move = reached - self.y
            fall = -float(gradient @ move)
            there = self._forms(reached)
            share = self._share(forms, there, float(move[self._level]), fall, warmth)
            mixed = [(1.0 - share) * a + share * b for a, b in zip(forms, there)]
            return self.y + share * move, mixed, max(fall, 0.0)
        return None

    def _share(
        self, here: list[Array], there: list[Array], rise: float, fall: float, warmth: float
    ) -> float:
        """How much of a step is taken: half of it, and half again, until the objective falls."""
        size, share = len(self.rows), 1.0
        before = sum(softened(u, warmth) for u in here) / size
        rounding = 1e-14 * (abs(before) + abs(rise))
        while share > 1e-6:
            mixed = (softened((1.0 - share) * a + share * b, warmth) for a, b in zip(here, there))
            if sum(mixed) / size + share * rise <= before - 1e-4 * share * fall + rounding:
                break
            share /= 2.0
        return share

    def _step(self, gradient: Array, curvature: Array) -> Array | None:
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
        found = self._solver.solve()
        return self.y + np.array(found.x) if found.status in SOLVED else None


def margins(forms: Array) -> Array:
    """How far the second largest form is below the largest, for each sample (n,)."""
    if len(forms) == 1:
        return np.full(forms.shape[1], np.inf)
    if len(forms) == 2:
        return np.abs(forms[0] - forms[1])
    two = np.partition(forms, -2, axis=0)[-2:]
    return two[1] - two[0]


def softened(forms: Array, warmth: float) -> float:
    """sum_k m log sum_j exp(u_kj / m)."""
    top = forms.max(axis=0)
    others = np.exp((forms - top) / warmth).sum(axis=0)
    return float(top.sum() + warmth * np.log(others).sum())


def derivatives(part: Maxima, rows: Array, forms: Array, warmth: float) -> tuple[Array, Array]:
    """The gradient (w,) and the Hessian (w, w) of `softened` in the numbers of a part.

    With p the softmax, q_d = sum over the forms along d of p s, and v_d the same of p s^2,

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
        u = forms[:, where]
        p = np.exp((u - u.max(axis=0)) / warmth)
        p /= p.sum(axis=0)
        gradient[a] += p.sum(axis=1)
        gradient[b] += (along.T @ p @ data).ravel()
        bent = np.flatnonzero(p.max(axis=0) < 1.0 - SURE)
        p, data = p[:, bent], data[bent]
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
    return gradient, (upper + np.triu(upper, 1).T) / warmth


def _spread(forms: Array) -> float:
    """The typical distance to a change of piece."""
    found = margins(forms)
    return float(found[np.isfinite(found)].mean()) if np.isfinite(found).any() else 0.0
