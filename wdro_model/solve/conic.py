"""Convex programs by conic solvers: rescale, parametrize, compile, solve, and check the answer.

Most problems are of order one, and are solved once, as they were written. If numbers of an answer
are far from order one, the program is solved again in the units that the answer suggests. The best
decision of all attempts is returned. The program is kept for the next solve if its first units were
right. `run_conic` is the stage "conic"; `solve_program` is its core, which other stages call too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.errors import InaccurateError, InfeasibleError, UnboundedError
from wdro_model.loss.expressions import ORDINARY, is_ordinary
from wdro_model.model import Model, RobustModel
from wdro_model.model.compiled import values_of
from wdro_model.model.feasible import meets
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact import Counterpart
from wdro_model.sets.deadlines import OutOfTime, check_deadline, more_time
from wdro_model.solve.certify import Clock, Solution, evaluations
from wdro_model.solve.compile import (
    Compilation,
    CompiledProgram,
    ParametricProgram,
    ProgramData,
    parametrize,
)
from wdro_model.solve.constraints import least_excess
from wdro_model.solve.options import Options, refuse_outside, user_start
from wdro_model.solve.plan import Plan
from wdro_model.solve.rescale import (
    Duals,
    RescaledProgram,
    Units,
    has_large_numbers,
    loss_unit,
    probes,
    rescale_model,
    rescale_program,
    save_duals,
    uncommon_units,
    units_at,
)
from wdro_model.solve.true_risk import robust_value, true_objective
from wdro_model.solvers import Stop
from wdro_model.solvers.cone_solver import (
    ACCURATE,
    BROKEN_CONSTRAINT,
    OTHER_SOLVERS,
    Conic,
    ConicAnswer,
    largest_constant,
    relative_violation,
)
from wdro_model.solvers.objective import Array

FAILURES = (SolverError, InfeasibleError, UnboundedError)
SOLVED = (settings.OPTIMAL, settings.OPTIMAL_INACCURATE)
MAX_RESOLVES = 3
"""Solves in other units after the first answer; more have not helped any model."""
ZERO_SHARE = 1e-7
"""Share of a unit below which a number is what a solver leaves of zero."""
VALUE_ERROR = 1e-5
"""Relative difference between the values of a solver and of its decision above which an answer is
called inaccurate."""
HULL_TOLERANCE = 1e-4
"""Distance in each coordinate from the mixtures of a set's points at which a decision is one."""
PROJECTION_SECONDS = 0.3
"""Seconds for the way into the feasible set once the time is over."""
FEASIBILITY_TOLERANCE = 1e-6
"""Largest violation of a constraint at a decision that is called feasible."""
UNITS_ADVICE = (
    "measure the data, the loss and the decision in units in which they are of order one, or use "
    "another solver."
)
NO_ANSWER = (
    "no solve ended with a decision that meets the constraints, and none proved that there is no "
    f"such decision; {UNITS_ADVICE}"
)
NO_GAP = "how far its value is from the optimum is not known."
REACHED = f"the conic solver was stopped: the decision is the point that it had reached; {NO_GAP}"
START = f"the conic solver was stopped: the decision is the start; {NO_GAP}"
NEAREST_TO_ZERO = (
    "the time was over before the conic solver had a point: the decision is the feasible one "
    f"nearest to zero; {NO_GAP}"
)
NO_VALUE = "its value was not computed for want of time."


@dataclass(frozen=True)
class Attempt:
    """An answer, the units that led to it, and how far it can be relied on."""

    units: Units
    answer: ConicAnswer
    decision: Array
    duals: Duals
    program: RescaledProgram
    """The program that was solved."""
    violation: float = 0.0
    """The largest violation of a constraint, relative to the data of its rows; infinite where the
    solver ended before it had an answer."""
    unsure: bool = False
    """Are numbers far from order one, or not known?"""
    compilation: Compilation | None = None
    """Whether the program was compiled for it, where that is known."""
    data: ProgramData | None = None
    """The data, where it is a parameter of the program."""
    notes: tuple[str, ...] = ()
    """Notes on the solver for the user."""
    gap: float | None = None
    """Difference between the value of the solver and that of its decision, if it was evaluated."""

    def with_value(self, value: float) -> Attempt:
        """The attempt with the true value of its decision; inaccurate if the solver's differs."""
        answer, unit = self.answer, self.units.loss
        difference = abs(value - answer.value)
        slack = max(VALUE_ERROR * (abs(value) + abs(answer.value)), ZERO_SHARE * unit)
        status = answer.status if difference <= slack else settings.OPTIMAL_INACCURATE
        gap = difference if difference > ZERO_SHARE * max(abs(value), unit) else None
        return replace(self, answer=replace(answer, value=value, status=status), gap=gap)


def run_conic(model: Model, chosen: Plan, solver: Conic, options: Options) -> Solution:
    """Solve the convex program of a plan by a conic solver, and report the solution."""
    clock, reached = Clock(), list[Array]()
    shown = {"verbose": options.verbose, "progress": options.progress}
    with clock.until_stopped():
        attempt = solve_program(model, chosen, solver, reached=reached, **shown)
    if clock.stop is not None:
        last = reached[-1] if reached else None
        return best_known_solution(model, chosen, solver, options, clock, last)
    attempt = _evaluate(model, chosen, attempt)
    refuse_outside_hull(model, attempt.decision)
    answer, x = attempt.answer, attempt.decision
    return Solution(
        method=chosen.method,
        status=answer.status,
        value=answer.value,
        decision=model.feasible.layout.split(x),
        solver=f"conic solver {answer.solver}",
        seconds=clock.seconds,
        stop="the conic solver finished",
        convex=True,
        iterations=answer.iterations,
        compilation=attempt.compilation,
        notes=attempt.notes,
        gap=attempt.gap,
        **evaluations(model, x, answer.value if chosen.method == "exact" else None),
    )


def refuse_outside_hull(model: Model, x: Array) -> None:
    """Raise a ValueError if a decision meets the CVXPY form of a set but is outside its hull."""
    for member in model.feasible.memberships:
        own = x[model.feasible.layout.slices[member.variable]]
        if not (member.set.form_is_hull or member.set.contains(own, HULL_TOLERANCE)):
            raise ValueError(
                f"the best flow is no mixture of {member.set.describe()}: the loss falls along "
                "cycles beside the paths; use backend='highs', which knows the simple paths, or "
                "sets.Flow if flows may go round cycles."
            )


def _evaluate(model: Model, chosen: Plan, attempt: Attempt) -> Attempt:
    """The attempt with the worst-case risk of its decision as its value.

    Where this risk takes another program, that is solved only if some numbers are far from order
    one: then the auxiliary variables of the first program may be far from their best values.
    """
    counterpart = chosen.counterpart
    if counterpart is None or not isinstance(model, RobustModel):
        return attempt
    has_formula = type(counterpart).value is not Counterpart.value
    if attempt.answer.solver == cp.HIGHS or not (has_formula or has_large_numbers(model)):
        return attempt
    with suppress(*FAILURES, OutOfTime, ArithmeticError):
        return attempt.with_value(robust_value(model, attempt.decision, counterpart))
    return attempt


def solve_program(
    model: Model,
    chosen: Plan,
    solver: Conic,
    *,
    verbose: bool = False,
    progress: bool = False,
    reached: list[Array] | None = None,
) -> Attempt:
    """Solve the program of a plan; set variables and dual variables to the best answer.

    reached: a list to which the point of a solver that was stopped is appended.
    """
    shown = {"verbose": verbose, "progress": progress, "title": chosen.method}
    run = ConicRun(model, chosen, solver, shown, [] if reached is None else reached)
    attempt = run.solve_compiled()
    if attempt is None:
        check_deadline()
        attempt = run.solve_anew()
    for variable, value in model.feasible.layout.split(attempt.decision).items():
        variable.save_value(np.array(value))
    save_duals(attempt.duals)
    model.feasible.pass_on_multipliers()
    return attempt


@dataclass(frozen=True)
class ConicRun:
    """One conic solve: a search for units in which the numbers of the answer are of order one."""

    user_model: Model
    plan: Plan
    solver: Conic
    shown: Mapping[str, Any]
    """Arguments of the solver that say what it prints."""
    reached: list[Array]
    """Points of solvers that were stopped."""

    @cached_property
    def model(self) -> Model:
        """The model whose numbers give the units: without its ball for the mean loss."""
        return self.plan.counted(self.user_model)

    @cached_property
    def objective(self) -> Any:
        """The true objective of a decision."""
        return true_objective(self.user_model, self.plan)

    # -------------------------------------------------------------- compiled before
    def solve_compiled(self) -> Attempt | None:
        """The answer of the kept program; None if there is none, it fails or needs other units."""
        compiled = self.plan.compiled
        if compiled is None or self.shown["verbose"]:
            return None
        self.model.memory.radius.load(self.model.radius)
        try:
            if compiled.data is not None:
                compiled.data.load()
            if compiled.warm_solver is not None:
                attempt = self._solve_from_last_basis(compiled)
            else:
                attempt = self._solve_again(compiled.program, compiled.units)
        except (OutOfTime, KeyboardInterrupt):  # a thread left behind may still use it
            self.model.memory.programs.drop(self.plan.key)
            self.model.memory.forms.drop(self.form_key)
            raise
        if attempt is None:
            return None
        sizes = self._sizes(attempt.decision).values()
        good = all(is_ordinary(size) or size <= ZERO_SHARE for size in sizes)
        return attempt if good or self.better_units(attempt, by_loss=False) is None else None

    def _solve_from_last_basis(self, compiled: CompiledProgram) -> Attempt | None:
        """The kept linear program by the simplex method; its solver has checked its rows."""
        warm, program, unit = compiled.warm_solver, compiled.program, compiled.units.loss
        assert warm is not None
        vertex = warm.run()
        if vertex is None:
            return None
        values = [[warm.places.multiplier(r.solved, vertex.multipliers)] for r in program.rows]
        answer = ConicAnswer(unit * vertex.value, settings.OPTIMAL, cp.HIGHS, vertex.iterations)
        duals, x = program.duals(unit, values), warm.places.decision(vertex.x)
        return Attempt(compiled.units, answer, x, duals, program, compilation=Compilation.AGAIN)

    def _solve_again(self, program: RescaledProgram, units: Units) -> Attempt | None:
        """A compiled program with its parameters as they are; None if it fails."""
        answer = None
        with suppress(*FAILURES):
            answer = self.solver.run_again(program.problem, units.loss)
        if answer is None:
            return None
        duals, again = program.invert(units.loss), Compilation.AGAIN
        return Attempt(units, answer, self._decision(), duals, program, compilation=again)

    # -------------------------------------------------------------- compiled now
    def solve_anew(self) -> Attempt:
        """The best answer in several units, kept for the next solve if its units were right."""
        forms, reason = self.model.memory.forms, self.plan.compilation
        is_first = reason is Compilation.FIRST
        if is_first and self.form_key in forms:
            reason = Compilation.OTHER_FORM
        elif is_first and any(key[:-1] == self.plan.key for key in forms):
            reason = Compilation.OTHER_SIZE
        try:
            best = self.best_attempt(keep=True)
        except SolverError as error:
            if self.model.feasible.is_integer:
                raise ValueError(_no_mixed_integer_solver(self.plan)) from error
            best = self._solve_by_others(error)
        if is_first and best.compilation is not None:
            reason = best.compilation
        elif best.compilation is Compilation.ON_OTHER_DATA:
            reason = Compilation.AGAIN  # with other values of parameters beside the data
        elif self.plan.compiled is not None:
            reason = Compilation.OTHER_UNITS
        return replace(best, compilation=reason)

    def best_attempt(self, keep: bool = False) -> Attempt:
        """Solve, and again in better units while the answer asks for them.

        keep: keep the program for the next solve if its first units were right.
        """
        attempts = [self.first_attempt()]
        for k in range(MAX_RESOLVES):
            units = self.better_units(attempts[-1], by_loss=k == 0)
            if units is None:
                break
            if units.decision == attempts[-1].units.decision:
                continue
            try:
                attempts.append(self.attempt(units))
            except FAILURES:
                continue
            except (OutOfTime, KeyboardInterrupt):  # the attempts so far have an answer
                break
        answers = [attempt for attempt in attempts if attempt.violation <= BROKEN_CONSTRAINT]
        if not answers:
            raise InaccurateError(NO_ANSWER)
        if len(attempts) > 1 or attempts[0].unsure:
            return self._best_of(answers)
        if keep:
            self._keep(attempts[0])
        return attempts[0]

    def first_attempt(self) -> Attempt:
        """Solve in guessed units, else in the user's, else in the units of some feasible point."""
        guess = units_at(self.model)
        if uncommon := uncommon_units(guess.decision):
            with suppress(*FAILURES):  # the guess failed: next, the user's own units
                return self.attempt(Units(uncommon, guess.loss))
        try:
            return self.attempt(Units({}, guess.loss))
        except FAILURES as error:
            units, is_integer = None, self.model.feasible.is_integer
            if not is_integer or isinstance(error, InfeasibleError):
                units = self._units_at_some_point()
            failure = error
            if units is not None and isinstance(error, InfeasibleError):
                failure = SolverError(
                    "the solver found no decision, though some meet all the constraints: its "
                    f"numbers are of too many sizes; {UNITS_ADVICE}"
                )
            if units is not None and units.decision and not is_integer:
                with suppress(*FAILURES):
                    return self.attempt(units)
            raise failure from None

    def attempt(self, units: Units) -> Attempt:
        """Solve in some units of the decision and the loss."""
        written, units = self._program(units)
        constraints = self.model.feasible.conic_constraints()
        program = rescale_program(written, constraints, units.decision)
        unsure = bool(units.decision) or not is_ordinary(units.loss)
        unsure = unsure or (isinstance(self.model, RobustModel) and not probes(self.model))
        if not unsure and not self.shown["verbose"]:
            attempt = self._solve_on_other_data(program, units)
            if attempt is not None:
                return attempt
        check_deadline()
        try:
            self.solver.run(program.problem, **self.shown)
        except (OutOfTime, KeyboardInterrupt):
            if program.problem.status in settings.SOLUTION_PRESENT:
                program.invert(units.loss)
                self.reached.append(self._decision())
            raise
        duals = program.invert(units.loss)
        answer = ConicAnswer.read(program.problem, units.loss)
        violation = self._violation(constraints)
        if answer.status not in SOLVED and not self.solver.options:
            violation = np.inf  # out of iterations, and no limit was set
        elif violation > ACCURATE and answer.status == settings.OPTIMAL:
            answer = replace(answer, status=settings.OPTIMAL_INACCURATE)
        return Attempt(units, answer, self._decision(), duals, program, violation, unsure)

    def _program(self, units: Units) -> tuple[Program, Units]:
        """The program in some units of the decision, and the units that it is in."""
        if units.decision:
            rescaled = rescale_model(self.model, units)
            if (program := self.plan.program(rescaled.model)) is not None:
                return program, Units(units.decision, rescaled.loss)
        own = rescale_model(self.model) if self.plan.by_sample else None
        if own is not None and own.model is not self.model:
            program, unit = self.plan.program(own.model), own.loss
        else:
            # A factor that goes past a parameter ends inside norms and cones: there, numbers.
            unit = loss_unit(self.model)
            program = self.plan.program(self.model.parametric() if unit == 1.0 else self.model)
            program = None if program is None else program.over(unit)
        if program is None:
            raise SolverError(
                "the objective is convex for single samples by CVXPY's rules, and not for all of "
                "them together; use solver=FrankWolfe()."
            )
        return program, Units({}, unit)

    def _units_at_some_point(self) -> Units | None:
        """The units that the loss suggests at some feasible decision; None where none is found.

        An InfeasibleError where there is no such decision.
        """
        constraints = self.model.feasible.conic_constraints()
        program = rescale_program(Program(cp.Constant(0.0)), constraints, {})
        try:
            self.solver.run(program.problem)
        except InfeasibleError:
            raise
        except FAILURES:
            return None
        here = units_at(self.model, self._decision())
        return Units(uncommon_units(here.decision), here.loss)

    def _solve_by_others(self, failure: SolverError) -> Attempt:
        """The answer of another installed solver, after the usual one has failed.

        An InfeasibleError if a program of the constraints alone shows that no decision meets them.
        """
        certain = [*self.model.feasible.constraints, *self.model.feasible.set_forms()]
        self._units_at_some_point()  # an InfeasibleError if the set is empty
        for constraint in self.model.feasible.uncertain:
            least = least_excess(constraint, certain)
            largest = max(row.unit for row in constraint.written_rows())
            if least is not None and least > ACCURATE * largest:
                name = constraint.name
                raise InfeasibleError(f"the constraint {name} cannot be met.") from None
        usual = self.solver.solver is None and not self.solver.options
        for other in OTHER_SOLVERS if usual else ():
            with suppress(*FAILURES):
                best = replace(self, solver=other).best_attempt()
                name = best.answer.solver
                note = f"CLARABEL gave no answer, and the program was solved by {name}."
                return replace(best, notes=(note,))
        if isinstance(failure, InaccurateError) or not usual:
            raise failure
        raise SolverError(f"{NO_ANSWER} ({failure})") from None

    # -------------------------------------------------------------- programs of other data
    @property
    def form_key(self) -> tuple[Any, ...]:
        """The key of programs of one form: the same request, and as many samples."""
        return (*self.plan.key, self.model.size)

    def _solve_on_other_data(self, program: RescaledProgram, units: Units) -> Attempt | None:
        """The answer of a program that was compiled for other data; None if there is none."""
        form = self.model.memory.forms.find(self.form_key)
        if form is None:
            return None
        compilation, data = Compilation.ON_OTHER_DATA, None
        if isinstance(form, ParametricProgram):
            data, form = form.data_of(program), form.written
        if data is None:
            compilation = Compilation.WITH_DATA
            data = parametrize(program, form, self.model.user_leaves())
        if data is None:
            return None
        data.load()
        attempt = self._solve_again(data.program, units)
        return None if attempt is None else replace(attempt, compilation=compilation, data=data)

    def _keep(self, best: Attempt) -> None:
        """Keep the program for the next solve, if CVXPY would not compile it again."""
        model, data = self.user_model, best.data
        if not self.plan.key or not (data is not None or best.program.problem.is_dpp()):
            return
        model.memory.forms.keep(self.form_key, best.program if data is None else data.parametric)
        held = {p.id for p in best.program.problem.parameters()}
        held |= {twin.id for _, twin in (() if data is None else data.twins)}
        compiled = CompiledProgram(
            self.plan,
            best.program,
            model.feasible.layout,
            best.units,
            model.radius,
            self.plan.counterpart is None or not held.isdisjoint(model.memory.radius.ids),
            model.inlined_parameter_values(),
            values_of(model.feasible.parameters),
            data,
        )
        model.memory.programs.keep(self.plan.key, compiled)

    # -------------------------------------------------------------- judging answers
    def better_units(self, last: Attempt, by_loss: bool) -> Units | None:
        """The units for another solve; None if those of the last attempt were right.

        The unit of a variable is its size at the last decision. A small value may be a zero up to
        the solver's tolerance; its unit is then taken from the slope of the loss at zero.

        by_loss: prefer the units that the loss suggests to the sizes of the variables, since an
            answer in wrong units may itself be wrong.
        """
        sizes = self._sizes(last.decision)
        used = {v: last.units.decision.get(v, 1.0) for v in sizes}
        probed = units_at(self.model).decision
        unprobed = [v for v in sizes if v not in probed] if by_loss else []
        if not unprobed and all(is_ordinary(s / used[v]) for v, s in sizes.items() if s > 0):
            return None
        small = {v for v, size in sizes.items() if size < used[v] / ORDINARY}
        here = units_at(self.model, self._with_zeros(last.decision, small))
        by_slope = {v: here.decision.get(v, used[v]) for v in sizes}
        known = {v: max(size, by_slope[v]) if v in small else size for v, size in sizes.items()}
        # A variable that the loss did not see at ordinary decisions may be seen here.
        known |= {v: max(known[v], by_slope[v]) for v in unprobed}
        if all(is_ordinary(size / used[v]) for v, size in known.items()):
            return None
        known |= here.decision if by_loss else {}
        return Units(uncommon_units(known), here.loss)

    def _sizes(self, x: Array) -> dict[Any, float]:
        """The largest entries of the variables that can be measured in other units."""
        places = self.model.feasible.scalable.items()
        sizes = {v: float(np.abs(x[where]).max(initial=0.0)) for v, where in places}
        return {v: size if size < np.inf else 0.0 for v, size in sizes.items()}

    def _with_zeros(self, x: Array, small: set[Any]) -> Array:
        """The decision with small variables set to zero, if it is as good and as feasible."""
        at_zero = x.copy()
        for variable in small:
            at_zero[self.model.feasible.layout.slices[variable]] = 0.0
        violations = []
        for point in (at_zero, x):
            with self.model.feasible.layout.holding(point):
                violations.append(self._violation(self.model.feasible.constraints))
        if small and violations[0] <= violations[1]:
            with suppress(*FAILURES):
                return at_zero if self.objective(at_zero) <= self.objective(x) else x
        return x

    def _best_of(self, attempts: list[Attempt]) -> Attempt:
        """The attempt with the best decision, its value checked against that of the decision."""

        def value(attempt: Attempt) -> float:
            try:
                return self.objective(attempt.decision)
            except SolverError:  # the value cannot be computed: that of the solver
                return attempt.answer.value

        # Decisions that meet the constraints come first, then smaller values.
        allowed = max(1e-6, 10 * min(attempt.violation for attempt in attempts))
        ranks = [(a.violation > allowed, value(a)) for a in attempts]
        first = min(range(len(attempts)), key=ranks.__getitem__)
        checked = attempts[first].with_value(ranks[first][1])
        same = checked.answer.status == attempts[first].answer.status
        return attempts[first] if same else checked

    def _decision(self) -> Array:
        layout = self.model.feasible.layout
        return layout.join({v: v.value for v in layout.variables if v.value is not None})

    def _violation(self, constraints: Sequence[Any]) -> float:
        """The largest violation of constraints by the variables, relative to the data."""
        return relative_violation(constraints, lambda: self._data_size)

    @cached_property
    def _data_size(self) -> float:
        """The largest size of a variable that the constraints, its bounds or the loss suggest."""
        feasible = self.model.feasible
        bounds = [abs(b[np.isfinite(b)]).max(initial=1.0) for b in feasible.bounds()]
        constant = largest_constant([*feasible.constraints, *feasible.set_forms()])
        return max(*bounds, constant, *units_at(self.model).decision.values())


def _no_mixed_integer_solver(chosen: Plan) -> str:
    """The message where no installed solver takes a mixed-integer program."""
    method = chosen.method if chosen.objective is not None else "smoothed"
    hull_call = f"solve(method={method!r}, solver=wdro_model.solvers.FrankWolfe())"
    return (
        "no installed solver takes this mixed-integer program (installed: "
        f"{', '.join(cp.installed_solvers())}); {hull_call} minimises over "
        "the convex hull of the integer points, and round() then finds an integer decision; "
        "without solver= there is branch and bound. Or install a solver for mixed-integer "
        "cones (pip install pyscipopt), or keep the program linear (a cost such as Norm(1))."
    )


# ------------------------------------------------------------------ without an answer
def best_known_solution(
    model: Model, chosen: Plan, solver: Any, options: Options, clock: Clock, reached: Array | None
) -> Solution:
    """The best feasible decision that is known; the error of the clock where there is none.

    reached: the point at which a solver was stopped.
    """
    assert clock.error is not None
    assert clock.stop is not None
    decisions = feasible_decisions(model, options, reached)
    if not decisions and clock.stop is Stop.TIME and not model.feasible.is_integer:
        nearest = nearest_feasible(model, np.zeros(model.feasible.layout.dimension))
        decisions = [] if nearest is None else [(nearest, NEAREST_TO_ZERO)]
    if not decisions:
        raise clock.error
    valued = [(_value_in_time(model, chosen, x), x, why) for x, why in decisions]
    value, x, why = min(valued, key=lambda one: (np.isnan(one[0]), one[0]))
    is_robust = chosen.method == "exact" and np.isfinite(value)
    return Solution(
        method=chosen.method,
        status=settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(x),
        solver=solver.describe(),
        seconds=clock.seconds,
        stop=clock.stop.value,
        convex=True,
        notes=(why,) if np.isfinite(value) else (why, NO_VALUE),
        **evaluations(model, x, value if is_robust else None, late=True),
    )


def feasible_decisions(
    model: Model, options: Options, reached: Array | None
) -> list[tuple[Array, str]]:
    """Feasible decisions that are known, each with a note on where it comes from."""
    decisions = []
    if reached is not None and np.isfinite(reached).all():
        integer = model.feasible.is_integer
        x = _rounded(model, reached) if integer else nearest_feasible(model, reached)
        decisions += [] if x is None else [(x, REACHED)]
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        decisions.append((start, START))
    return decisions


def nearest_feasible(model: Model, x: Array) -> Array | None:
    """The point of the feasible set that is nearest to x; None where it is not found in time.

    Constraints with samples of their own are programs as large as the one that took too long.
    """
    if (rounded := _rounded(model, x)) is not None or model.feasible.uncertain:
        return rounded
    layout = model.feasible.layout
    with model.feasible.holding():
        parts = layout.split(x)
        distance = cp.sum([cp.sum_squares(v - parts[v]) for v in layout.variables])
        problem = cp.Problem(cp.Minimize(distance), model.feasible.conic_constraints())
        try:
            with more_time(PROJECTION_SECONDS):
                answer = Conic(cp.CLARABEL).run_again(problem)
        except (SolverError, OutOfTime):
            return None
        return None if answer is None else layout.join({v: v.value for v in layout.variables})


def _rounded(model: Model, x: Array) -> Array | None:
    """x with its integers rounded, if that meets all constraints."""
    rounded = np.where(model.feasible.discrete, np.rint(x), x)
    lower, upper = model.feasible.bounds()
    slack = FEASIBILITY_TOLERANCE
    if np.any(rounded < lower - slack) or np.any(rounded > upper + slack):
        return None
    with model.feasible.layout.holding(rounded):
        return rounded if meets(model.feasible.conic_constraints(), slack) else None


def _value_in_time(model: Model, chosen: Plan, x: Array) -> float:
    """The objective of the method at x; NaN where that takes too long."""
    try:
        return true_objective(model, chosen)(x)
    except (OutOfTime, SolverError):
        return np.nan
