"""What an exact counterpart of a model offers, and the register of them.

A new one is a class with a formula, `refusal` and `program`; everything else has a default, slower
or less than what the built-in ones offer. `@register_counterpart("name")` adds it in front of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np

from wdro_model.errors import NoReformulationError
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.registry import Register, refuse_signature
from wdro_model.solvers.cone_solver import Conic
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


def unmoved(model: RobustModel) -> Extremal:
    """The empirical distribution itself."""
    size = len(model.rows)
    return Extremal(model.rows, np.full(size, 1.0 / size), np.arange(size), 0.0)


class Counterpart(ABC):
    """The worst-case risk over the ball by a formula, for the models that it applies to."""

    formula: ClassVar[str]
    """The worst-case risk, for people."""
    is_proven: ClassVar[bool] = False
    """Is it tested against brute force? What others say is held against what must be true."""

    @abstractmethod
    def refusal(self, model: RobustModel) -> str | None:
        """Why the counterpart does not apply, in words; None if it does."""

    @abstractmethod
    def program(self, model: RobustModel) -> Program | None:
        """The worst-case risk as a convex CVXPY program; None where CVXPY sees no convexity."""

    def writes_samples(self, model: RobustModel) -> bool:
        """Is every sample written into the program, rather than their mean?"""
        return True

    def has_objective(self, model: RobustModel) -> bool:
        """Is the worst-case risk a smooth function of the decision?"""
        return False

    def objective(self, model: RobustModel) -> Objective:
        """The worst-case risk as a smooth function of the flat decision, where it is one."""
        raise NotImplementedError(f"{type(self).__name__} is not smooth in the decision.")

    def value(self, model: RobustModel, x: Array) -> float:
        """The worst-case risk of one decision: its program with the decision held fixed."""
        program = self.program(model)
        if program is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no convex program here, and defines no value(model, x)."
            )
        fixed = [v == part for v, part in model.feasible.layout.split(x).items()]
        with model.feasible.layout.holding():
            problem = cp.Problem(cp.Minimize(program.expression), [*program.constraints, *fixed])
            Conic().run(problem)
        return float(problem.value)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        """A worst-case distribution of one decision."""
        raise NoReformulationError(
            f"the counterpart {type(self).__name__} gives the worst-case risk, not the "
            "distribution that attains it",
            "method='smoothed' and then worst_case()",
        )


REQUIRED = ("formula", "refusal", "program")


def check_counterpart(name: str, given: Any) -> Counterpart:
    """An instance of a counterpart, or its class."""
    unwritten = getattr(given, "__abstractmethods__", ())
    missing = [part for part in REQUIRED if not hasattr(given, part) or part in unwritten]
    if missing:
        raise ValueError(
            f"the counterpart {name!r} lacks {', '.join(missing)}; it needs formula (a string), "
            "refusal(model) -> reason or None, and program(model) -> Program or None."
        )
    if not issubclass(given if isinstance(given, type) else type(given), Counterpart):
        raise ValueError(
            f"the counterpart {name!r} must be a subclass of wdro_model.counterparts.Counterpart, "
            "which has defaults for all that it does not define."
        )
    if not isinstance(given.formula, str):
        raise ValueError(
            f"the formula of the counterpart {name!r} must be a string, got {given.formula!r}."
        )
    try:
        entry = given() if isinstance(given, type) else given
    except TypeError as error:
        raise ValueError(
            f"the counterpart {name!r} needs a constructor without arguments: {error}; or register "
            "an instance."
        ) from error
    for part in ("refusal", "program"):
        refuse_signature(f"{part} of the counterpart {name!r}", getattr(entry, part), "model")
    return entry


COUNTERPARTS: Register[Counterpart] = Register(
    "counterpart", "wdro_model.counterparts", check_counterpart
)


def register_counterpart(name: str, given: Any = None, *, replace: bool = False) -> Any:
    """Offer an exact counterpart: it is asked before those that are built in.

    As a decorator, `@register_counterpart("name")` above a subclass of `Counterpart`. An entry
    point in the group `wdro_model.counterparts` does the same from another package.
    """
    register = COUNTERPARTS.decorator(name, replace)
    return register if given is None else register(given)
