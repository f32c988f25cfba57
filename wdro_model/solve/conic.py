"""Conic programs: solved in the units that data, loss and answers ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.loss.expressions import is_ordinary
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.objectives.exact import Counterpart
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.kept import AGAIN, Kept, certain_values
from wdro_model.solve.options import Options
from wdro_model.solve.own_units import in_units
from wdro_model.solve.plan import Plan, Written
from wdro_model.solve.true_risk import refuse_disagreement, refuse_false_value, robust_value
from wdro_model.solve.units import (
    Multipliers,
    Rescaled,
    Scale,
    decision_units,
    loss_unit,
    probes,
    rescaled,
    sizes_of,
    unusual,
)
from wdro_model.solvers.cone_solver import Conic, ConicAnswer
from wdro_model.solvers.objective import Array

FAILURES = (SolverError, InfeasibleError, UnboundedError)
ROUNDS = 3
"""At most so many solves after the first answer."""
NOISE = 1e-7
"""Values below this share of their unit are what a solver leaves of zero."""
HONEST = 1e-5
"""How far the value of a solver may be from that of its decision, relative to both."""
OTHER_UNITS = "compiled: the answer of the kept program asked for other units"
Judge = Callable[[Array], float]
"""The true objective of a decision."""


def run_conic(model: Model, chosen: Plan, solver: Conic, options: Options) -> Solution:
    """Hand the convex program to a conic solver."""
    began = time.perf_counter()
    best = conic_attempt(model, chosen, solver, verbose=options.verbose)
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
        **evaluations(model, x, answer.value if chosen.method == "exact" else None),
    )


def conic_attempt(model: Model, chosen: Plan, solver: Conic, *, verbose: bool = False) -> Attempt:
    """What the solver says, and the decision; the variables and multipliers are set to it."""
    written = chosen.written
    assert written is not None
    run = _Run(written.measured(model), written, solver, verbose)
    best = None if chosen.kept is None or verbose else run.again(chosen.kept)
    if best is not None:
        return _taken(model, best)
    compilation = OTHER_UNITS if chosen.kept is not None else chosen.compilation
    try:
        best = _best_attempt(run, judge_of(model, chosen))
    except SolverError as error:
        if not model.feasible.is_integer:
            raise
        raise ValueError(
            "no installed solver takes this mixed-integer program (installed: "
            f"{', '.join(cp.installed_solvers())}); {over_the_hull(chosen)} minimises over "
            "the convex hull of the integer points, and round() then finds an integer decision; "
            "without solver= there is branch and bound. Or install a solver for mixed-integer "
            "cones (pip install pyscipopt), or keep the program linear (a cost such as Norm(1))."
        ) from error
    if best.is_ordinary:
        run.keep(model, chosen, best)
    return _taken(model, replace(best, compilation=compilation))


def _taken(model: Model, best: Attempt) -> Attempt:
    """The variables and multipliers set to an answer."""
    for variable, value in model.feasible.layout.split(best.decision).items():
        variable.save_value(np.array(value))
    best.multipliers.save()
    model.feasible.pass_on_multipliers()
    return best


def over_the_hull(chosen: Plan) -> str:
    """The call that solves a mixed-integer model by Frank-Wolfe."""
    method = chosen.method if chosen.objective is not None else "smoothed"
    return f"solve(method={method!r}, solver=wdro_model.solvers.FrankWolfe())"


def judge_of(model: Model, chosen: Plan) -> Judge:
    """The true objective of a decision: the mean loss, or its worst-case risk."""
    found = chosen.counterpart
    if found is not None and isinstance(model, RobustModel):
        return lambda x: robust_value(model, x, found)
    return lambda x: Empirical(model).evaluate(x).value


def _best_attempt(run: _Run, judge: Judge) -> Attempt:
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
    if len(attempts) == 1 and not attempts[0].unsure:
        return replace(attempts[0], is_ordinary=True)
    return run.best(attempts, judge)


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
    is_ordinary: bool = False
    """Were its units right at once?"""
    compilation: str = AGAIN


@dataclass(frozen=True)
class _Run:
    model: Model
    written: Written
    solver: Conic
    verbose: bool

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
        self.solver.run(done.problem, verbose=self.verbose)
        multipliers = done.multipliers(scale.loss)
        answer = ConicAnswer.of(done.problem, scale.loss)
        unsure = bool(scale.decision) or not is_ordinary(scale.loss)
        unsure = unsure or (isinstance(self.model, RobustModel) and not probes(self.model))
        return Attempt(scale, answer, self._decision(), multipliers, unsure, done)

    def again(self, kept: Kept) -> Attempt | None:
        """The kept program with its parameters as they are; None where the answer is no good."""
        self.model.parametric()
        done, unit = kept.done, kept.scale.loss
        try:
            answer = self.solver.run_again(done.problem, linear=kept.linear, unit=unit)
        except FAILURES:
            return None
        sizes = sizes_of(self.model.feasible.layout.variables).values()
        if answer is None or not all(is_ordinary(size) for size in sizes if size > NOISE):
            return None
        multipliers = done.multipliers(unit)
        return Attempt(kept.scale, answer, self._decision(), multipliers, False, done)

    def keep(self, model: Model, chosen: Plan, best: Attempt) -> None:
        """Keep the program for the next solve, where CVXPY would not compile it again."""
        problem, budget = best.done.problem, model.programs.budget
        if not chosen.key or not problem.is_dpp():
            return
        held = {p.id for p in problem.parameters()}
        linear = Program(problem.objective.expr, tuple(problem.constraints))
        entry = Kept(
            chosen,
            best.done,
            best.scale,
            linear.is_piecewise_linear(()) and not problem.is_mixed_integer(),
            model.radius,
            not self.written.robust or bool(held & {budget.radius.id, budget.root.id}),
            model.worked_in(),
            certain_values(model),
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

        by_loss: an answer in wrong units may itself be wrong, and the loss there is asked first for
            what changes it; later the sizes of the variables.
        """
        sizes = sizes_of(self.model.feasible.layout.variables)
        used = {v: last.scale.decision.get(v, 1.0) for v in sizes}
        guessed = decision_units(self.model).decision
        unseen = [v for v in sizes if v not in guessed] if by_loss else []
        plain = all(is_ordinary(size / used[v]) for v, size in sizes.items() if size > 0)
        if plain and not unseen:
            return None
        here = decision_units(self.model, last.decision)
        told = {v: here.decision.get(v, used[v]) for v in sizes}
        # What a solver leaves of zero is no size; zero is right if the loss asks for no other unit.
        known = {v: s if s > NOISE * used[v] else max(s, told[v]) for v, s in sizes.items()}
        # A variable that the loss did not see at ordinary decisions may be seen here.
        known |= {v: max(known[v], told[v]) for v in unseen}
        if all(is_ordinary(size / used[v]) for v, size in known.items()):
            return None
        return Scale(unusual({**known, **here.decision} if by_loss else known), here.loss)

    def best(self, attempts: list[Attempt], judge: Judge) -> Attempt:
        """The attempt with the best decision, its value checked against that of the decision."""
        judged = [_judged(attempt, judge) for attempt in attempts]
        feasible = [self._violation(attempt.decision) for attempt in attempts]
        least = max(1e-6, 10 * min(feasible))
        order = sorted(range(len(attempts)), key=lambda i: (feasible[i] > least, judged[i]))
        chosen, value = attempts[order[0]], judged[order[0]]
        claimed = chosen.answer.value
        if abs(value - claimed) <= HONEST * (abs(value) + abs(claimed)):
            return chosen
        unsure = replace(chosen.answer, value=value, status=settings.OPTIMAL_INACCURATE)
        return replace(chosen, answer=unsure)

    def somewhere(self) -> Scale | None:
        """The units that the loss suggests at some feasible decision."""
        done = rescaled(Program(cp.Constant(0.0)), self.model.feasible.conic_constraints(), {})
        try:
            self.solver.run(done.problem)
        except FAILURES:
            return None
        here = decision_units(self.model, self._decision())
        return Scale(unusual(here.decision), here.loss)

    def _decision(self) -> Array:
        layout = self.model.feasible.layout
        return layout.join({v: v.value for v in layout.variables if v.value is not None})

    def _violation(self, x: Array) -> float:
        """The largest violation of a constraint, relative to the size of the decision."""
        size = max(1.0, float(abs(x).max(initial=0.0)))
        with self.model.feasible.layout.holding(x):
            found = [
                float(abs(c.violation()).max())
                for c in self.model.feasible.constraints
                if not isinstance(c, bool)
            ]
        return max(found, default=0.0) / size


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
