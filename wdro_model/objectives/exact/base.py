"""What an entry of the table of exact counterparts offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wdro_model.model import Model
from wdro_model.objectives.programs import Program
from wdro_model.solvers.objective import Array, Objective


@dataclass(frozen=True)
class Extremal:
    """A distribution of the ball that attains the worst-case risk of a decision."""

    rows: Array
    """Atoms, (K, d)."""
    weights: Array
    """Their probabilities, (K,)."""
    source: Array
    """The sample that each atom was moved from, (K,)."""
    dual: float
    """The multiplier of the transport budget; 0 where the radius does not bind."""


class Entry(Protocol):
    """One exact counterpart."""

    @property
    def formula(self) -> str:
        """The worst-case risk, for people."""
        ...

    def refusal(self, model: Model) -> str | None:
        """Why the entry does not apply; None if it does."""
        ...

    def program(self, model: Model) -> Program | None:
        """The worst-case risk as a convex CVXPY program; None where CVXPY sees no convexity."""
        ...

    def writes_samples(self, model: Model) -> bool:
        """Is every sample written into the program, rather than their mean?"""
        ...

    def has_objective(self, model: Model) -> bool:
        """Is the worst-case risk a smooth function of the decision?"""
        ...

    def objective(self, model: Model) -> Objective | None:
        """The worst-case risk as a smooth function of the flat decision; None where it is not."""
        ...

    def value(self, model: Model, x: Array) -> float:
        """The worst-case risk of one decision."""
        ...

    def extremal(self, model: Model, x: Array) -> Extremal:
        """A worst-case distribution of one decision."""
        ...


class WrittenOut:
    """An entry whose program holds every sample, and which is not smooth in the decision."""

    def writes_samples(self, model: Model) -> bool:
        return True

    def has_objective(self, model: Model) -> bool:
        return False

    def objective(self, model: Model) -> None:
        return None


def unmoved(model: Model) -> Extremal:
    """The empirical distribution itself."""
    size = len(model.rows)
    return Extremal(model.rows, np.full(size, 1.0 / size), np.arange(size), 0.0)
