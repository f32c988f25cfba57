"""Exact solves at many samples: those that agree on their largest piece are one.

A Newton path leads near the optimum; then conic programs over cells of samples, `SampleMaxima`,
each a lower bound, until one is sharp at its own decision.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.display.bars import progress_bar
from wdro_model.loss.expressions import is_ordinary, is_scalable
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.decomposition import MaximaPart, SampleMaxima
from wdro_model.sets.deadlines import OutOfTime, check_deadline
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.conic import FAILURES, NOISE, run_conic, unfinished
from wdro_model.solve.newton_path import NewtonPath, margins
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.true_risk import judge_of
from wdro_model.solve.units import (
    Multipliers,
    Scale,
    Units,
    decision_units,
    in_units,
    rescaled,
    unusual,
)
from wdro_model.solvers import Aggregation, Conic, Stop
from wdro_model.solvers.driver import relative_gap, tolerance
from wdro_model.solvers.objective import Array
from wdro_model.solvers.trace import Record, Trace

HONEST = 1e-6
"""How far a lower bound may be above the value of a decision, relative to it."""
ALONE, MORE = 100, 4
"""Samples that stand alone at first: so many, and so many for each number that can be chosen."""


class Cells:
    """The samples of a part in cells: some alone, the others with those of one label."""

    def __init__(self, part: MaximaPart, rows: Array) -> None:
        self.part, self.rows = part, rows
        self.alone = np.zeros(part.count(rows), dtype=bool)
        self.labels = np.zeros(part.count(rows), dtype=np.int64)

    def split(self, forms: Array) -> None:
        """Cells that do not agree on their largest form are split by it."""
        active = np.argmax(forms, axis=0)
        keys = self.labels * len(forms) + active
        used = np.zeros(int(keys.max(initial=0)) + 1, dtype=bool)
        used[keys] = True
        self.labels = (np.cumsum(used) - 1)[keys]

    def gathered(self) -> tuple[Array, Array]:
        """The mean of the data of each cell (c, m), and its size (c,)."""
        together = ~self.alone
        count = int(self.labels.max(initial=0)) + 1
        sums, sizes = np.zeros((count, len(self.part.seen))), np.zeros(count)
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
    multipliers: Multipliers
    is_sure: bool
    """Was the program solved to the tolerance of its solver?"""


def run_aggregation(
    model: RobustModel, chosen: Plan, solver: Aggregation, options: Options
) -> Solution:
    """Lower bounds by cells of samples, until one is sharp."""
    began = time.perf_counter()
    search = _search(model, chosen, solver, options, began)
    if search is None:
        return run_conic(model, chosen, Conic(), options)
    try:
        stop = search.run()
        if not search.is_ordinary():  # once more, in the units that the decision asks for
            search = _search(model, chosen, solver, options, began, search.better()) or search
            stop = search.run()
    except FAILURES:  # cells may be unbounded below where samples are not
        return run_conic(model, chosen, Conic(), options)
    except (OutOfTime, KeyboardInterrupt) as error:
        stop = Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT
        if search.best is None:
            return unfinished(model, chosen, Conic(), options, error, search.reached, began)
    best = search.best
    assert best is not None
    value = judge_of(model, chosen)(best.x)
    lower = search.unit * search.lower
    bound = min(value, lower)
    best.multipliers.save()
    model.feasible.pass_on_multipliers()
    is_sure = search.is_sure and search.is_ordinary() and lower - value <= HONEST * abs(value)
    solved = settings.OPTIMAL if is_sure else settings.OPTIMAL_INACCURATE
    return Solution(
        method=chosen.method,
        status=solved if stop is Stop.GAP else settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(best.x),
        solver=solver.describe(),
        seconds=time.perf_counter() - began,
        stop=stop.value,
        convex=True,
        iterations=search.steps + len(search.trace.records),
        gap=value - bound,
        lower_bound=bound,
        trace=search.trace,
        **evaluations(model, best.x, value if chosen.method == "exact" else None),
    )


def _search(
    model: RobustModel,
    chosen: Plan,
    solver: Aggregation,
    options: Options,
    began: float,
    scale: Scale | None = None,
) -> _Search | None:
    """The search in some units, by default those that losses at ordinary decisions ask for."""
    assert chosen.maxima is not None
    if scale is None:
        guess = decision_units(model)
        scale = Scale(unusual(guess.decision), guess.loss)
    units = in_units(model, scale if scale.decision else None)
    maxima = chosen.maxima(units.model)
    if maxima is None:
        return None
    return _Search(units, scale, maxima, solver, options, chosen.method, began)


class _Search:
    def __init__(
        self,
        units: Units[RobustModel],
        scale: Scale,
        maxima: SampleMaxima,
        solver: Aggregation,
        options: Options,
        title: str,
        began: float,
    ) -> None:
        self.model, self.unit, self.scale = units.model, units.loss, scale
        constraints = units.model.feasible.conic_constraints()
        # The set with its rows of order one, and variables for multiples of the units.
        self.set = rescaled(Program(cp.Constant(0.0)), constraints, scale.decision)
        self.maxima = maxima.on({id(v): twin for v, twin in self.set.twins.items()})
        self.solver, self.options = solver, options
        self.title, self.began = title, began
        self.cells = [Cells(part, units.model.rows) for part in self.maxima.parts]
        self.best: Bound | None = None
        self.lower, self.steps, self.trace = -np.inf, 0, Trace()
        self.is_sure = True
        """Were all programs solved to the tolerance of their solver?"""
        self.reached: Array | None = None
        """A decision of the Newton path."""

    def run(self) -> Stop:
        forms = self._near()
        alone = ALONE + MORE * min(self.maxima.width, self.model.feasible.layout.dimension)
        show = self.options.progress and not self.options.verbose
        bar = progress_bar(self.title, unit="program", show=show, delay=3.0)
        try:
            for _ in range(self.solver.max_iterations):
                check_deadline()
                self._refine(forms, alone)
                alone *= 2
                found = self._solved()
                forms = found.forms
                self.lower = max(self.lower, found.lower)
                self.is_sure &= found.is_sure
                if self.best is None or found.value < self.best.value:
                    self.best = found
                gap = max(self.best.value - self.lower, 0.0)
                self._note(gap, bar)
                if gap <= tolerance(self.solver.gap, self.best.value):
                    return Stop.GAP
        finally:
            bar.close()
        return Stop.ITERATIONS

    def _near(self) -> list[Array]:
        """The forms of all samples near the optimum, by the path; at zero if it fails."""
        layout, rows = self.model.feasible.layout, [row.solved for row in self.set.rows]
        variables = [self.set.twins.get(v, v) for v in layout.variables]
        path, found = NewtonPath(self.model.rows, self.maxima, rows, variables), None
        if path.is_possible:
            try:
                found = path.run()
            finally:
                if (x := path.decision()) is not None:
                    self.reached = x * self._sizes()
        if found is None:
            return [np.zeros((len(c.part.constants), len(c.alone))) for c in self.cells]
        self.steps = found.steps
        return found.forms

    def _sizes(self) -> Array:
        """The unit of each entry of the flat decision."""
        slices = self.model.feasible.layout.slices.items()
        sizes = np.ones(self.model.feasible.layout.dimension)
        for variable, where in slices:
            sizes[where] = self.scale.decision.get(variable, 1.0)
        return sizes

    def _largest(self) -> dict[Any, float]:
        """The largest entry of each variable at the best decision."""
        assert self.best is not None
        slices = self.model.feasible.layout.slices.items()
        return {v: float(np.abs(self.best.x[w]).max(initial=0.0)) for v, w in slices}

    def is_ordinary(self) -> bool:
        """Is the best decision of order one in its units?"""
        units = self.scale.decision
        sizes = [size / units.get(v, 1.0) for v, size in self._largest().items()]
        return all(is_ordinary(size) for size in sizes if size > NOISE)

    def better(self) -> Scale:
        """The units that the best decision asks for."""
        sizes = {v: size for v, size in self._largest().items() if size > 0 and is_scalable(v)}
        return Scale(unusual(sizes), self.unit)

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

    def _solved(self) -> Bound:
        rows = self.model.rows
        program = self.maxima.program(rows, [cells.gathered() for cells in self.cells])
        if program is None:
            raise SolverError("the objective is not convex by CVXPY's rules; use solver=Conic().")
        problem = cp.Problem(
            cp.Minimize(program.expression),
            [*(row.solved for row in self.set.rows), *program.constraints],
        )
        done = replace(self.set, problem=problem)
        show = {"verbose": self.options.verbose, "progress": self.options.progress}
        Conic().run(done.problem, title=self.title, **show)
        multipliers, layout = done.multipliers(self.unit), self.model.feasible.layout
        x = layout.join({v: v.value for v in layout.variables if v.value is not None})
        forms = [
            part.forms(np.asarray(part.numbers().value, dtype=float), rows)
            for part in self.maxima.parts
        ]
        value = float(self.maxima.rest.value)
        value += sum(float(u.max(axis=0).sum()) for u in forms) / len(rows)
        is_sure = done.problem.status == settings.OPTIMAL
        return Bound(x, value, float(done.problem.value), forms, multipliers, is_sure)

    def _note(self, gap: float, bar: Any) -> None:
        assert self.best is not None
        count, value = len(self.trace.records) + 1, self.best.value
        seconds = time.perf_counter() - self.began
        self.trace.records.append(Record(count, seconds, value, gap, np.nan, np.nan, 0))
        if not bar.disable:
            bar.set_postfix_str(f"gap {relative_gap(gap, value):.1e}", refresh=False)
            bar.update()
