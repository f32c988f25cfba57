"""Solving a conic program in the units that its data, its loss and its answers ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.loss.magnitudes import is_ordinary
from wdro_model.methods import Writer
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.programs import Program
from wdro_model.objectives.units import Scale, decision_units, probes
from wdro_model.solvers.conic import Answer, Conic
from wdro_model.solvers.scaling import Answers, sizes_of, unusual, version

FAILURES = (SolverError, InfeasibleError, UnboundedError)
ROUNDS = 3
"""At most so many solves after the first answer."""
NOISE = 1e-7
"""Values below this share of their unit are what a solver leaves of zero."""
HONEST = 1e-5
"""How far the value of a solver may be from that of its decision, relative to both."""
Judge = Callable[[Array], float]
"""The true objective of a decision."""


def solve_in_units(
    model: Model, write: Writer, solver: Conic, judge: Judge, *, verbose: bool
) -> Answer:
    """Solve, and again in better units while the answer asks for them; sets the variables.

    Most problems are of order one, and are solved once. Where the loss at ordinary decisions
    suggests other units of the variables, these are tried first. Of several answers the one whose
    decision is the best is kept.
    """
    run = _Run(model, write, solver, verbose)
    attempts = [run.first()]
    for k in range(ROUNDS):
        scale = run.better(attempts[-1], by_loss=k == 0)
        if scale is None:
            break
        if scale.decision == attempts[-1].units:
            continue
        try:
            attempts.append(run.attempt(scale))
        except FAILURES:
            continue
    ordinary = len(attempts) == 1 and not attempts[0].unsure
    best = attempts[0] if ordinary else run.best(attempts, judge)
    for variable, value in model.feasible.layout.split(best.decision).items():
        variable.save_value(np.array(value))
    best.multipliers.save()
    return best.answer


@dataclass(frozen=True)
class _Attempt:
    """An answer and the units that led to it."""

    units: Mapping[Any, float]
    answer: Answer
    decision: Array
    multipliers: Answers
    unsure: bool
    """Are numbers far from order one, or not known?"""


@dataclass(frozen=True)
class _Run:
    model: Model
    write: Writer
    solver: Conic
    verbose: bool

    def first(self) -> _Attempt:
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

    def attempt(self, scale: Scale) -> _Attempt:
        """Solve in some units of the decision and the loss."""
        program = self.write(scale if scale.decision else None)
        constraints = self.model.feasible.conic_constraints()
        done = version(program, constraints, {} if program.scale is None else scale.decision)
        self.solver.run(done.problem, verbose=self.verbose)
        multipliers = done.answers()
        answer = Answer.of(done.problem, program.unit)
        unsure = program.scale is not None or not is_ordinary(program.unit)
        unsure = unsure or (self.model.joint is not None and not probes(self.model))
        return _Attempt(done.units, answer, self._decision(), multipliers, unsure)

    def better(self, last: _Attempt, by_loss: bool) -> Scale | None:
        """The units for another solve; None where those of the last one were right.

        by_loss: an answer in wrong units may itself be wrong, and the loss there is asked first for
            what changes it; later the sizes of the variables.
        """
        sizes = sizes_of(self.model.feasible.layout.variables)
        used = {v: last.units.get(v, 1.0) for v in sizes}
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

    def best(self, attempts: list[_Attempt], judge: Judge) -> _Attempt:
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
        program = Program(cp.Constant(0.0))
        done = version(program, self.model.feasible.conic_constraints(), {})
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


def _judged(attempt: _Attempt, judge: Judge) -> float:
    """The true objective of an attempt; what its solver says where that cannot be computed."""
    try:
        return judge(attempt.decision)
    except SolverError:
        return attempt.answer.value
