"""Solving a conic program in the units that its data, its loss and its answers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.methods import Writer
from wdro_model.model import Model
from wdro_model.objectives.programs import Program
from wdro_model.objectives.units import Scale, decision_units
from wdro_model.solvers.conic import Answer, Conic
from wdro_model.solvers.scaling import are_right, sizes_of, unusual, version

ROUNDS = 3
"""At most so many solves after the first answer."""
FAILURES = (SolverError, InfeasibleError, UnboundedError)


def solve_in_units(model: Model, write: Writer, solver: Conic, *, verbose: bool) -> Answer:
    """Solve, and again in better units while the answer asks for them; sets the variables.

    Most problems are of order one, and are solved once. Where the loss at ordinary decisions
    suggests other units of the variables, these are tried first.
    """
    run, variables = _Run(model, write, solver, verbose), model.feasible.layout.variables
    units, answer = run.first()
    for k in range(ROUNDS):
        if are_right(variables, units):
            break
        # An answer in wrong units may itself be wrong: the loss there is asked before its size.
        here, sizes = run.look(), sizes_of(variables)
        found = unusual({**sizes, **here.decision} if k == 0 else {**here.decision, **sizes})
        if found == units:
            continue
        try:
            units, answer = found, run.attempt(found, here.loss)
        except FAILURES:
            continue
    return answer


@dataclass(frozen=True)
class _Run:
    model: Model
    write: Writer
    solver: Conic
    verbose: bool

    def first(self) -> tuple[Mapping[Any, float], Answer]:
        """The first answer, and the units that led to it."""
        guess = decision_units(self.model)
        units = unusual(guess.decision)
        if units:
            try:
                return units, self.attempt(units, guess.loss)
            except FAILURES:
                pass  # the guess was no good: as the user wrote it
        try:
            return {}, self.attempt({}, guess.loss)
        except SolverError:
            if self.model.feasible.is_integer:
                raise
            here = self.somewhere()
            units = unusual(here.decision)
            if not units:
                raise
            return units, self.attempt(units, here.loss)

    def attempt(self, units: Mapping[Any, float], loss: float) -> Answer:
        """Solve in some units of the decision and the loss."""
        program = self.write(Scale(units, loss) if units else None)
        constraints = self.model.feasible.conic_constraints()
        done = version(program, constraints, {} if program.scale is None else units)
        self.solver.run(done.problem, verbose=self.verbose)
        done.save()
        return Answer.of(done.problem, program.unit)

    def look(self) -> Scale:
        """The units that the loss suggests at the variables' values."""
        layout = self.model.feasible.layout
        values = {v: v.value for v in layout.variables if v.value is not None}
        return decision_units(self.model, layout.join(values))

    def somewhere(self) -> Scale:
        """The units that the loss suggests at some feasible decision."""
        program = Program(cp.Constant(0.0))
        done = version(program, self.model.feasible.conic_constraints(), {})
        self.solver.run(done.problem)
        return self.look()
