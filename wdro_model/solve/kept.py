"""A program that is solved again: whether what was compiled still stands for the model, or why not.

What changes between solves are the radius and the values of certain parameters, and both are
parameters of the compiled program. Its units were right for the numbers of its first solve, and
are good for others of the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from wdro_model.loss.expressions import is_ordinary
from wdro_model.model import Model
from wdro_model.model.feasible import parameters_of
from wdro_model.model.kept_programs import values_of
from wdro_model.solve.units import Rescaled, Scale
from wdro_model.uncertainty.parameter import UncertainParameter

FIRST = "compiled: the first solve"
AGAIN = "kept from an earlier solve"


@dataclass(frozen=True, eq=False)
class Kept:
    """A compiled program and the numbers it was compiled for."""

    plan: Any
    done: Rescaled
    scale: Scale
    linear: bool
    """Is it a linear program, which a simplex method solves from its last basis?"""
    radius: float
    any_radius: bool
    """Is the radius a parameter of the program, or not in it at all?"""
    worked_in: tuple[bytes, ...]
    """The values of certain parameters that may be in it as numbers."""
    certain: tuple[bytes, ...]
    """Those of the certain parameters for which its rows were found to be of order one."""

    def trouble(self, model: Model) -> str | None:
        """Why the program does not stand for the model; None if it does."""
        robust = self.plan.key[0] != "erm"
        if robust and (self.radius == 0) != (model.radius == 0):
            return "compiled: a radius of 0 is another problem"
        if not self.any_radius and model.radius != self.radius:
            return "compiled: the radius is a number in the program"
        if robust and self.radius > 0 and not is_ordinary(math.sqrt(model.radius / self.radius)):
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
    certain = [p for c in model.feasible.declared for p in parameters_of(c)]
    return values_of([p for p in certain if not isinstance(p, UncertainParameter)])
