"""A program that is solved again: whether what was compiled still stands for the model, or why not.

What changes between solves are the radius and the values of certain parameters, and both are
parameters of the compiled program. Its units were right for the numbers of its first solve, and
are good for others of the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from wdro_model.loss.batched import Layout
from wdro_model.loss.expressions import is_ordinary
from wdro_model.model import Model
from wdro_model.model.kept_programs import values_of
from wdro_model.solve.other_data import Filling, is_linear
from wdro_model.solve.units import Rescaled, Scale
from wdro_model.solvers.warm_highs import WarmHighs

FIRST = "compiled: the first solve"
AGAIN = "kept from an earlier solve"
ON_OTHER_DATA = "kept from an earlier solve on other data"
WITH_DATA = "compiled: on other data, which is a parameter of the program from now on"
OTHER_FORM = "compiled: the program of other data has another form, or is not affine in the data"
OTHER_SIZE = "compiled: another number of samples"


@dataclass(frozen=True, eq=False)
class Kept:
    """A compiled program and the numbers it was compiled for."""

    plan: Any
    done: Rescaled
    layout: Layout
    """Of the decision."""
    scale: Scale
    radius: float
    any_radius: bool
    """Is the radius a parameter of the program, or not in it at all?"""
    worked_in: tuple[bytes, ...]
    """The values of certain parameters that may be in it as numbers."""
    certain: tuple[bytes, ...]
    """Those of the certain parameters for which its rows were found to be of order one."""
    filling: Filling | None = None
    """The data, where it is a parameter of the program."""

    @cached_property
    def again(self) -> Any:
        """The plan of another solve."""
        return replace(self.plan, kept=self, compilation=AGAIN)

    @cached_property
    def warm(self) -> WarmHighs | None:
        """The solver that has the linear program, from the second solve on; None for others."""
        solver, variables = self.plan.solver, self.layout.variables
        if self.filling is not None:
            return self.filling.program.warm(solver, variables)
        return solver.warm(self.done.problem, variables) if is_linear(self.done.problem) else None

    def trouble(self, model: Model) -> str | None:
        """Why the program does not stand for the model; None if it does."""
        robust, radius = self.plan.key[0] != "erm", model.radius
        if robust and (self.radius == 0) != (radius == 0):
            return "compiled: a radius of 0 is another problem"
        if not self.any_radius and radius != self.radius:
            return "compiled: the radius is a number in the program"
        if robust and self.radius > 0 and not is_ordinary(math.sqrt(radius / self.radius)):
            return "compiled: the radius is of another order, and so are the units"
        if self.worked_in != model.worked_in():
            return "compiled: a changed parameter stands beside uncertain ones in a term"
        if self.certain != certain_values(model) and not self._has_ordinary_rows():
            return "compiled: with the changed parameters, rows are of another order"
        return None

    def _has_ordinary_rows(self) -> bool:
        return all(row.is_ordinary() for row in self.done.rows)


def certain_values(model: Model) -> tuple[bytes, ...]:
    """The values of all certain parameters of the constraints."""
    return values_of(model.feasible.parameters)
