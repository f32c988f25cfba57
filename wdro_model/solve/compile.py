"""Compile: a program that is solved again while it stands for its model, and the reason if not.

The radius and the values of certain parameters change between solves, and both are parameters of
the compiled program. Its units were right for the numbers of its first solve, and are good for
others of the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from wdro_model.loss.batched import Layout
from wdro_model.loss.expressions import is_ordinary
from wdro_model.model import Model
from wdro_model.model.compiled import values_of
from wdro_model.solve.parametrize import ProgramData
from wdro_model.solve.rescale import RescaledProgram, Units
from wdro_model.solvers.warm_highs import WarmHighs


class Compilation(StrEnum):
    """Whether a program was compiled for a solve, and why."""

    FIRST = "compiled: the first solve"
    AGAIN = "kept from an earlier solve"
    ON_OTHER_DATA = "kept from an earlier solve on other data"
    WITH_DATA = "compiled: on other data, which is a parameter of the program from now on"
    OTHER_FORM = (
        "compiled: the program of other data has another form, or is not affine in the data"
    )
    OTHER_SIZE = "compiled: another number of samples"
    OTHER_UNITS = "compiled: the answer of the kept program asked for other units"
    ZERO_RADIUS = "compiled: a radius of 0 is another problem"
    FIXED_RADIUS = "compiled: the radius is a number in the program"
    OTHER_ORDER = "compiled: the radius is of another order, and so are the units"
    INLINED = "compiled: a changed parameter stands beside uncertain ones in a term"
    OTHER_ROWS = "compiled: with the changed parameters, rows are of another order"


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A compiled program and the numbers it was compiled for."""

    plan: Any
    program: RescaledProgram
    layout: Layout
    """Of the decision."""
    units: Units
    radius: float
    takes_any_radius: bool
    """Is the radius a parameter of the program, or not in it at all?"""
    inlined: tuple[bytes, ...]
    """The values of certain parameters that may be in it as numbers."""
    certain: tuple[bytes, ...]
    """The values of certain parameters for which its rows were found to be of order one."""
    data: ProgramData | None = None
    """The data, where it is a parameter of the program."""

    @cached_property
    def plan_again(self) -> Any:
        """The plan of another solve."""
        return replace(self.plan, compiled=self, compilation=Compilation.AGAIN)

    @cached_property
    def warm_solver(self) -> WarmHighs | None:
        """The solver that holds the linear program, from the second solve on; None for others."""
        shared = self.program if self.data is None else self.data.parametric.program
        return shared.warm_solver(self.plan.solver, self.layout.variables)

    def stale_reason(self, model: Model) -> Compilation | None:
        """Why the program does not stand for the model; None if it does."""
        robust, radius = self.plan.key[0] != "erm", model.radius
        if robust and (self.radius == 0) != (radius == 0):
            return Compilation.ZERO_RADIUS
        if not self.takes_any_radius and radius != self.radius:
            return Compilation.FIXED_RADIUS
        if robust and self.radius > 0 and not is_ordinary(math.sqrt(radius / self.radius)):
            return Compilation.OTHER_ORDER
        if self.inlined != model.inlined_parameter_values():
            return Compilation.INLINED
        if self.certain != certain_values(model) and not self._has_ordinary_rows():
            return Compilation.OTHER_ROWS
        return None

    def _has_ordinary_rows(self) -> bool:
        return all(row.is_ordinary() for row in self.program.rows)


def certain_values(model: Model) -> tuple[bytes, ...]:
    """The values of all certain parameters of the constraints."""
    return values_of(model.feasible.parameters)
