"""Conic programs: solved, certified, and salvaged where the solver was stopped."""

from __future__ import annotations

import time
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
from wdro_model.model.feasible import meets
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact import Counterpart
from wdro_model.sets.deadlines import OutOfTime, check_deadline, more_time
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.compiled_programs import (
    AGAIN,
    FIRST,
    ON_OTHER_DATA,
    OTHER_FORM,
    OTHER_SIZE,
    WITH_DATA,
    Filling,
    Kept,
    OpenProgram,
    certain_values,
    opened,
)
from wdro_model.solve.constraint_programs import least_excess
from wdro_model.solve.first_order import refuse_outside, user_start
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan, Written
from wdro_model.solve.true_risk import (
    Judge,
    judge_of,
    refuse_disagreement,
    refuse_false_value,
    robust_value,
)
from wdro_model.solve.units import (
    Multipliers,
    Rescaled,
    Scale,
    decision_units,
    has_large_numbers,
    in_units,
    loss_unit,
    probes,
    rescaled,
    unusual,
)
from wdro_model.solvers import Stop
from wdro_model.solvers.cone_solver import (
    ACCURATE,
    BROKEN,
    OTHER_SOLVERS,
    Conic,
    ConicAnswer,
    largest_constant,
    relative_violation,
)
from wdro_model.solvers.objective import Array
from wdro_model.solvers.warm_highs import WarmHighs

ROOM = 0.3
"""Seconds for the way into the feasible set."""
NEAR = 1e-6
"""Points that are closer to holding all constraints are feasible."""
NO_GAP = "how far its value is from the optimum is not known."
REACHED = f"the conic solver was stopped: the decision is the point that it had reached; {NO_GAP}"
GIVEN = f"the conic solver was stopped: the decision is the start; {NO_GAP}"
SOME = (
    "the time was over before the conic solver had a point: the decision is the feasible one "
    f"nearest to zero; {NO_GAP}"
)
NO_VALUE = "its value was not computed for want of time."


def unfinished(
    model: Model,
    chosen: Plan,
    solver: Conic,
    options: Options,
    error: OutOfTime | KeyboardInterrupt,
    reached: Array | None,
    began: float,
) -> Solution:
    """The best feasible decision that is known; the error itself where there is none."""
    found = [(value_of(model, chosen, x), x, why) for x, why in known(model, options, reached)]
    if not found and isinstance(error, OutOfTime) and not model.feasible.is_integer:
        some = nearest_feasible(model, np.zeros(model.feasible.layout.dimension))
        found = [] if some is None else [(value_of(model, chosen, some), some, SOME)]
    if not found:
        raise error
    value, x, why = min(found, key=lambda one: (np.isnan(one[0]), one[0]))
    stop = Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT
    is_robust = chosen.method == "exact" and np.isfinite(value)
    return Solution(
        method=chosen.method,
        status=settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(x),
        solver=solver.describe(),
        seconds=time.perf_counter() - began,
        stop=stop.value,
        convex=True,
        notes=(why,) if np.isfinite(value) else (why, NO_VALUE),
        **evaluations(model, x, value if is_robust else None, late=True),
    )


def known(model: Model, options: Options, reached: Array | None) -> list[tuple[Array, str]]:
    """Feasible decisions, and where they come from."""
    found = []
    if reached is not None and np.isfinite(reached).all():
        integer = model.feasible.is_integer
        x = inside(model, reached) if integer else nearest_feasible(model, reached)
        if x is not None:
            found.append((x, REACHED))
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        found.append((start, GIVEN))
    return found


def inside(model: Model, x: Array) -> Array | None:
    """x with its integers rounded, if that meets all constraints."""
    whole = np.where(model.feasible.discrete, np.rint(x), x)
    lower, upper = model.feasible.bounds()
    if np.any(whole < lower - NEAR) or np.any(whole > upper + NEAR):
        return None
    with model.feasible.layout.holding(whole):
        return whole if meets(model.feasible.conic_constraints(), NEAR) else None


def nearest_feasible(model: Model, x: Array) -> Array | None:
    """The point of the feasible set that is nearest to x; None where it is not found in time.

    Constraints with samples of their own are programs as large as the one that took too long.
    """
    if (within := inside(model, x)) is not None or model.feasible.uncertain:
        return within
    layout = model.feasible.layout
    with model.feasible.holding():
        parts = layout.split(x)
        distance = cp.sum([cp.sum_squares(v - parts[v]) for v in layout.variables])
        problem = cp.Problem(cp.Minimize(distance), model.feasible.conic_constraints())
        try:
            with more_time(ROOM):
                found = Conic(cp.CLARABEL).run_again(problem)
        except (SolverError, OutOfTime):
            return None
        if found is None:
            return None
        return layout.join({v: v.value for v in layout.variables})


def value_of(model: Model, chosen: Plan, x: Array) -> float:
    """The objective of the method at x; NaN where that takes too long."""
    try:
        return judge_of(model, chosen)(x)
    except (OutOfTime, SolverError):
        return np.nan


# ------------------------------
# Conic programs: solved in the units that data, loss and answers ask for


FAILURES = (SolverError, InfeasibleError, UnboundedError)
ROUNDS = 3
"""At most so many solves after the first answer."""
NOISE = 1e-7
"""Values below this share of their unit are what a solver leaves of zero."""
HONEST = 1e-5
"""How far the value of a solver may be from that of its decision, relative to both."""
SOLVED = (settings.OPTIMAL, settings.OPTIMAL_INACCURATE)
NO_ANSWER = (
    "no solve ended with a decision that meets the constraints, and none proved that there is no "
    "such decision; measure the data, the loss and the decision in units in which they are of "
    "order one, or use another solver."
)
OTHER_UNITS = "compiled: the answer of the kept program asked for other units"


def run_conic(model: Model, chosen: Plan, solver: Conic, options: Options) -> Solution:
    """Hand the convex program to a conic solver."""
    began = time.perf_counter()
    reached: list[Array] = []
    shown = {"verbose": options.verbose, "progress": options.progress}
    try:
        best = conic_attempt(model, chosen, solver, reached=reached, **shown)
    except (OutOfTime, KeyboardInterrupt) as error:
        last = reached[-1] if reached else None
        return unfinished(model, chosen, solver, options, error, last, began)
    best = _evaluated_attempt(model, chosen, best)
    answer, x = best.answer, best.decision
    if chosen.counterpart is not None and not chosen.counterpart.is_proven:
        assert isinstance(model, RobustModel)
        refuse_false_value(model, x, answer.value, chosen.counterpart)
        if type(chosen.counterpart).value is not Counterpart.value:
            value = robust_value(model, x, chosen.counterpart)
            refuse_disagreement(model, x, answer.value, value, chosen.counterpart)
    return Solution(
        method=chosen.method,
        status=answer.status,
        value=answer.value,
        decision=model.feasible.layout.split(x),
        solver=f"conic solver {answer.solver}",
        seconds=time.perf_counter() - began,
        stop="the conic solver finished",
        convex=True,
        iterations=answer.iterations,
        compilation=best.compilation,
        notes=best.notes,
        gap=best.gap,
        **evaluations(model, x, answer.value if chosen.method == "exact" else None),
    )


def _evaluated_attempt(model: Model, chosen: Plan, best: Attempt) -> Attempt:
    """The attempt with the worst-case risk of its decision as its value, and their difference.

    Where that is a program of its own, it is solved if numbers are not all of order one: then the
    program of the solve may have stopped far from the best values of its own variables.
    """
    counterpart = chosen.counterpart
    if counterpart is None or not isinstance(model, RobustModel) or best.answer.solver == cp.HIGHS:
        return best
    has_formula = type(counterpart).value is not Counterpart.value
    if not counterpart.is_proven or not (has_formula or has_large_numbers(model)):
        return best
    try:
        return _honest_attempt(best, robust_value(model, best.decision, counterpart))
    except (*FAILURES, OutOfTime, ArithmeticError):
        return best


def _honest_attempt(attempt: Attempt, value: float) -> Attempt:
    """The attempt with the true value of its decision; inaccurate where its solver's is another."""
    answer = attempt.answer
    difference = abs(value - answer.value)
    slack = max(HONEST * (abs(value) + abs(answer.value)), NOISE * attempt.scale.loss)
    status = answer.status if difference <= slack else settings.OPTIMAL_INACCURATE
    gap = difference if difference > NOISE * max(abs(value), attempt.scale.loss) else None
    return replace(attempt, answer=replace(answer, value=value, status=status), gap=gap)


def conic_attempt(
    model: Model,
    chosen: Plan,
    solver: Conic,
    *,
    verbose: bool = False,
    progress: bool = False,
    reached: list[Array] | None = None,
) -> Attempt:
    """What the solver says, and the decision; the variables and multipliers are set to it.

    reached: gets the point of a solver that was stopped.
    """
    written = chosen.written
    assert written is not None
    judge = judge_of(model, chosen)
    shown = {"verbose": verbose, "progress": progress, "title": chosen.method}
    points: list[Array] = [] if reached is None else reached
    run = _Run(written.measured(model), written, solver, shown, points, chosen.key, judge)
    try:
        best = None if chosen.kept is None or verbose else run.again(chosen.kept)
    except (OutOfTime, KeyboardInterrupt):  # a call that was left behind may still use it
        model.programs.kept.pop(chosen.key, None)
        model.memory.forms.kept.pop(run.form_key, None)
        raise
    if best is not None:
        best.multipliers.save()
        model.feasible.pass_on_multipliers()
        return best
    check_deadline()
    compilation = OTHER_UNITS if chosen.kept is not None else run.reason(chosen.compilation)
    try:
        best = _best_attempt(run)
    except SolverError as error:
        if model.feasible.is_integer:
            raise ValueError(_no_mixed_integer_solver(chosen)) from error
        best = _other_solvers_attempt(run, error)
    if best.is_ordinary:
        run.keep(model, chosen, best)
    for variable, value in model.feasible.layout.split(best.decision).items():
        variable.save_value(np.array(value))
    best.multipliers.save()
    model.feasible.pass_on_multipliers()
    if chosen.compilation == FIRST and best.compilation:
        compilation = best.compilation  # the first on this data
    elif best.compilation == ON_OTHER_DATA:
        compilation = AGAIN  # with other values of parameters that stand beside the data
    return replace(best, compilation=compilation)


def _other_solvers_attempt(run: _Run, failure: SolverError) -> Attempt:
    """The answer of another installed solver, where the usual one has none.

    Raises InfeasibleError where a program of its own shows that no decision meets the constraints.
    """
    certain = [*run.model.feasible.constraints, *run.model.feasible.set_forms()]
    run.somewhere()
    for constraint in run.model.feasible.uncertain:
        least = least_excess(constraint, certain)
        if least is not None and least > ACCURATE * max(row.unit for row in constraint.written()):
            raise InfeasibleError(f"the constraint {constraint.name} cannot be met.") from None
    usual = run.solver.solver is None and not run.solver.options
    for other in OTHER_SOLVERS if usual else ():
        with suppress(*FAILURES):
            best = _best_attempt(replace(run, solver=other))
            note = f"CLARABEL gave no answer, and the program was solved by {best.answer.solver}."
            return replace(best, is_ordinary=False, notes=(note,))
    if isinstance(failure, InaccurateError) or not usual:
        raise failure
    raise SolverError(f"{NO_ANSWER} ({failure})") from None


def _no_mixed_integer_solver(chosen: Plan) -> str:
    """What is told where no installed solver takes a mixed-integer program."""
    return (
        "no installed solver takes this mixed-integer program (installed: "
        f"{', '.join(cp.installed_solvers())}); {over_the_hull(chosen)} minimises over "
        "the convex hull of the integer points, and round() then finds an integer decision; "
        "without solver= there is branch and bound. Or install a solver for mixed-integer "
        "cones (pip install pyscipopt), or keep the program linear (a cost such as Norm(1))."
    )


def over_the_hull(chosen: Plan) -> str:
    """The call that solves a mixed-integer model by Frank-Wolfe."""
    method = chosen.method if chosen.objective is not None else "smoothed"
    return f"solve(method={method!r}, solver=wdro_model.solvers.FrankWolfe())"


def _best_attempt(run: _Run) -> Attempt:
    """Solve, and again in better units while the answer asks for them.

    Most problems are of order one, and are solved once. Where the loss at ordinary decisions
    suggests other units of the variables, these are tried first. Of several answers the one whose
    decision is the best is kept.
    """
    attempts = [run.first()]
    for k in range(ROUNDS):
        scale = run.better(attempts[-1], by_loss=k == 0)
        if scale is None:
            break
        if scale.decision == attempts[-1].scale.decision:
            continue
        try:
            attempts.append(run.attempt(scale))
        except FAILURES:
            continue
        except (OutOfTime, KeyboardInterrupt):  # there is an answer, if not in the best units
            break
    answers = [attempt for attempt in attempts if attempt.violation <= BROKEN]
    if not answers:
        raise InaccurateError(NO_ANSWER)
    if len(attempts) == 1 and not attempts[0].unsure:
        return replace(answers[0], is_ordinary=True)
    return run.best(answers)


@dataclass(frozen=True)
class Attempt:
    """An answer and the units that led to it."""

    scale: Scale
    answer: ConicAnswer
    decision: Array
    multipliers: Multipliers
    unsure: bool
    """Are numbers far from order one, or not known?"""
    done: Rescaled
    """The program that was solved."""
    violation: float = 0.0
    """The largest one of a constraint, relative to the data of its rows; infinite where the solver
    ended before it had an answer."""
    is_ordinary: bool = False
    """Were its units right at once?"""
    compilation: str = ""
    """Whether the program was compiled for it, and why, where that is known."""
    filling: Filling | None = None
    """The data, where it is a parameter of the program."""
    notes: tuple[str, ...] = ()
    """What the user should know about the solver."""
    gap: float | None = None
    """How far the value of the solver was from that of its decision, where that was evaluated."""


@dataclass(frozen=True)
class _Run:
    model: Model
    written: Written
    solver: Conic
    shown: Mapping[str, Any]
    """How the solver shows itself."""
    reached: list[Array]
    """Points of solvers that were stopped."""
    key: tuple[Any, ...]
    judge: Judge

    def first(self) -> Attempt:
        """The first answer: in units that are guessed, as written, or in those of some point."""
        guess = decision_units(self.model)
        units = unusual(guess.decision)
        if units:
            with suppress(*FAILURES):  # a guess that is no good: as the user wrote it
                return self.attempt(Scale(units, guess.loss))
        try:
            return self.attempt(Scale({}, guess.loss))
        except FAILURES as error:
            scale, is_integer = None, self.model.feasible.is_integer
            if not is_integer or isinstance(error, InfeasibleError):
                scale = self.somewhere()
            failure = error if scale is None else _of_a_set_with_points(error)
            if scale is None or is_integer or not scale.decision:
                raise failure from None
            try:
                return self.attempt(scale)
            except FAILURES:
                raise failure from None

    def attempt(self, scale: Scale) -> Attempt:
        """Solve in some units of the decision and the loss."""
        program, scale = self.program(scale)
        done = rescaled(program, self.model.feasible.conic_constraints(), scale.decision)
        unsure = bool(scale.decision) or not is_ordinary(scale.loss)
        unsure = unsure or (isinstance(self.model, RobustModel) and not probes(self.model))
        found = None if unsure or self.shown["verbose"] else self.on_other_data(done, scale)
        if found is not None:
            return found
        check_deadline()
        try:
            self.solver.run(done.problem, **self.shown)
        except (OutOfTime, KeyboardInterrupt):
            if done.problem.status in settings.SOLUTION_PRESENT:
                done.multipliers(scale.loss)
                self.reached.append(self._decision())
            raise
        multipliers = done.multipliers(scale.loss)
        answer = ConicAnswer.of(done.problem, scale.loss)
        x = self._decision()
        violation = self._violation(self.model.feasible.conic_constraints())
        if answer.status not in SOLVED and not self.solver.options:
            violation = np.inf  # out of iterations, and no limit was set
        elif violation > ACCURATE and answer.status == settings.OPTIMAL:
            answer = replace(answer, status=settings.OPTIMAL_INACCURATE)
        return Attempt(scale, answer, x, multipliers, unsure, done, violation)

    def on_other_data(self, done: Rescaled, scale: Scale) -> Attempt | None:
        """The answer of a program that was compiled for other data; None if there is none."""
        form = self.model.memory.forms.find(self.form_key)
        if form is None:
            return None
        compilation, is_open = ON_OTHER_DATA, isinstance(form, OpenProgram)
        filling = form.filling(done) if is_open else None
        if filling is None:
            compilation = WITH_DATA
            filling = opened(done, form.written if is_open else form, self.model.user_leaves())
        if filling is None:
            return None
        filling.fill()
        found = self.afresh(filling.done, scale)
        return None if found is None else replace(found, compilation=compilation, filling=filling)

    def reason(self, known: str) -> str:
        """Why a program is compiled: the first on this data may not be the first."""
        forms = self.model.memory.forms
        if known != FIRST or not any(key[:-1] == self.key for key in forms.kept):
            return known
        return OTHER_FORM if self.form_key in forms.kept else OTHER_SIZE

    @property
    def form_key(self) -> tuple[Any, ...]:
        """Programs for the same request, and as many samples, may have one form."""
        return (*self.key, self.model.size)

    def again(self, kept: Kept) -> Attempt | None:
        """The kept program with its parameters as they are; None where the answer is no good."""
        self.model.programs.budget.set(self.model.radius)
        if kept.filling is not None:
            kept.filling.fill()
        if kept.warm is not None:
            found = self.from_last_basis(kept, kept.warm)
        else:
            found = self.afresh(kept.done, kept.scale)
        if found is None:
            return None
        if all(is_ordinary(size) or size <= NOISE for size in self.sizes(found.decision).values()):
            return found
        return found if self.better(found, by_loss=False) is None else None

    def from_last_basis(self, kept: Kept, warm: WarmHighs) -> Attempt | None:
        """The kept linear program by the simplex method; its solver has checked its rows."""
        found = warm.run()
        if found is None:
            return None
        unit, places = kept.scale.loss, warm.places
        duals = [places.multiplier(row.solved, found.multipliers) for row in kept.done.rows]
        multipliers = tuple(
            (row.original, [None if dual is None else unit * row.factor * dual])
            for row, dual in zip(kept.done.rows, duals)
        )
        answer = ConicAnswer(unit * found.value, settings.OPTIMAL, cp.HIGHS, found.iterations)
        x = places.decision(found.x)
        return Attempt(
            kept.scale, answer, x, Multipliers(multipliers), False, kept.done, compilation=AGAIN
        )

    def afresh(self, done: Rescaled, scale: Scale) -> Attempt | None:
        """A program that is compiled, with its parameters as they are; None if it fails."""
        try:
            answer = self.solver.run_again(done.problem, scale.loss)
        except FAILURES:
            return None
        if answer is None:
            return None
        multipliers = done.multipliers(scale.loss)
        return Attempt(scale, answer, self._decision(), multipliers, False, done, compilation=AGAIN)

    def keep(self, model: Model, chosen: Plan, best: Attempt) -> None:
        """Keep the program for the next solve, where CVXPY would not compile it again."""
        problem, budget, filling = best.done.problem, model.programs.budget, best.filling
        if not chosen.key or not (filling is not None or problem.is_dpp()):
            return
        model.memory.forms.keep(self.form_key, best.done if filling is None else filling.program)
        held = {p.id for p in problem.parameters()}
        held |= {twin.id for _, twin in (() if filling is None else filling.twins)}
        entry = Kept(
            chosen,
            best.done,
            model.feasible.layout,
            best.scale,
            model.radius,
            not self.written.robust or bool(held & {budget.radius.id, budget.root.id}),
            model.worked_in(),
            certain_values(model),
            filling,
        )
        model.programs.keep(chosen.key, entry)

    def program(self, scale: Scale) -> tuple[Program, Scale]:
        """The program in some units of the decision, and the units that it is in."""
        if scale.decision:
            units = in_units(self.model, scale)
            found = self.written.program(units.model)
            if found is not None:
                return found, Scale(scale.decision, units.loss)
        own = in_units(self.model) if self.written.by_sample else None
        changed = own is not None and own.model is not self.model
        unit = loss_unit(self.model)
        # A factor that goes past a parameter ends inside norms and cones: there, numbers.
        plain = unit == 1.0 and not changed
        found = self.written.known if plain else None
        if found is None:
            other = own.model if own is not None and changed else self.model
            found = self.written.program(other.parametric() if plain else other)
        if found is None:
            raise SolverError(
                "the objective is convex for single samples by CVXPY's rules, and not for all of "
                "them together; use solver=FrankWolfe()."
            )
        if own is not None and changed:
            return found, Scale({}, own.loss)
        return found.over(unit), Scale({}, unit)

    def better(self, last: Attempt, by_loss: bool) -> Scale | None:
        """The units for another solve; None where those of the last one were right.

        A small value may be what a solver leaves of zero, in which there is no unit to be read: the
        loss at zero itself tells one, or none where zero is a solution in all units.

        by_loss: an answer in wrong units may itself be wrong, and the loss there is asked first for
            what changes it; later the sizes of the variables.
        """
        sizes = self.sizes(last.decision)
        used = {v: last.scale.decision.get(v, 1.0) for v in sizes}
        guessed = decision_units(self.model).decision
        unseen = [v for v in sizes if v not in guessed] if by_loss else []
        plain = all(is_ordinary(size / used[v]) for v, size in sizes.items() if size > 0)
        if plain and not unseen:
            return None
        small = {v for v, size in sizes.items() if size < used[v] / ORDINARY}
        here = decision_units(self.model, self.settled(last.decision, small))
        told = {v: here.decision.get(v, used[v]) for v in sizes}
        known = {v: max(size, told[v]) if v in small else size for v, size in sizes.items()}
        # A variable that the loss did not see at ordinary decisions may be seen here.
        known |= {v: max(known[v], told[v]) for v in unseen}
        if all(is_ordinary(size / used[v]) for v, size in known.items()):
            return None
        return Scale(unusual({**known, **here.decision} if by_loss else known), here.loss)

    def sizes(self, x: Array) -> dict[Any, float]:
        """The largest entries of those variables that can be measured in other units."""
        size, places = np.abs(x), self.model.feasible.scalable.items()
        found = {v: float(size[where].max(initial=0.0)) for v, where in places}
        return {v: largest if largest < np.inf else 0.0 for v, largest in found.items()}

    def settled(self, x: Array, small: set[Any]) -> Array:
        """The decision with small values replaced by zero, where that is as good."""
        at_zero = x.copy()
        for variable in small:
            at_zero[self.model.feasible.layout.slices[variable]] = 0.0
        violations = []
        for point in (at_zero, x):
            with self.model.feasible.layout.holding(point):
                violations.append(self._violation(self.model.feasible.constraints))
        if not small or violations[0] > violations[1]:
            return x
        try:
            return at_zero if self.judge(at_zero) <= self.judge(x) else x
        except FAILURES:
            return x

    def best(self, attempts: list[Attempt]) -> Attempt:
        """The attempt with the best decision, its value checked against that of the decision."""
        judged = [_judged(attempt, self.judge) for attempt in attempts]
        feasible = [attempt.violation for attempt in attempts]
        least = max(1e-6, 10 * min(feasible))
        order = sorted(range(len(attempts)), key=lambda i: (feasible[i] > least, judged[i]))
        chosen, value = attempts[order[0]], judged[order[0]]
        honest = _honest_attempt(chosen, value)
        return chosen if honest.answer.status == chosen.answer.status else honest

    def somewhere(self) -> Scale | None:
        """The units that the loss suggests at some feasible decision.

        None where none is found, and an InfeasibleError where there is none.
        """
        done = rescaled(Program(cp.Constant(0.0)), self.model.feasible.conic_constraints(), {})
        try:
            self.solver.run(done.problem)
        except InfeasibleError:
            raise
        except FAILURES:
            return None
        here = decision_units(self.model, self._decision())
        return Scale(unusual(here.decision), here.loss)

    def _decision(self) -> Array:
        layout = self.model.feasible.layout
        return layout.join({v: v.value for v in layout.variables if v.value is not None})

    def _violation(self, constraints: Sequence[Any]) -> float:
        """The largest violation of constraints by the variables, relative to the data."""
        return relative_violation(constraints, lambda: self.size_of_data)

    @cached_property
    def size_of_data(self) -> float:
        """The largest size of a variable that the constraints, its bounds or the loss suggest."""
        feasible = self.model.feasible
        bounds = [abs(b[np.isfinite(b)]).max(initial=1.0) for b in feasible.bounds()]
        constant = largest_constant([*feasible.constraints, *feasible.set_forms()])
        return max(*bounds, constant, *decision_units(self.model).decision.values())


def _of_a_set_with_points(error: Exception) -> Exception:
    """What a failure means where the constraints alone have been met."""
    if not isinstance(error, InfeasibleError):
        return error
    return SolverError(
        "the solver found no decision, though some meet all the constraints: its numbers are of "
        "too many sizes; measure the data, the loss and the decision in units in which they are "
        "of order one, or use another solver."
    )


def _judged(attempt: Attempt, judge: Judge) -> float:
    """The true objective of an attempt; what its solver says where that cannot be computed."""
    try:
        return judge(attempt.decision)
    except SolverError:
        return attempt.answer.value
