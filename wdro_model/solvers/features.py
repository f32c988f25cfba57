"""Abilities and settings of solvers, as data: `solver.features` says what a solver can be given.

The planner asks for a feature and never for a class, so that a new solver needs no new branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import Any

from wdro_model.checks import number, refuse, whole_number


class Feature(Enum):
    """An ability of a solver, in words."""

    GRADIENTS = "minimises a smooth function by its gradients"
    FULL_GRADIENTS = "sees all samples in each gradient, so that any smooth risk will do"
    UNBOUNDED_SETS = "needs no bounded feasible set"
    COMPOSITE = "minimises a smooth function plus a small program"
    PROGRAMS = "solves convex programs over CVXPY constraints"
    COLUMNS = "solves convex programs over the vertices of oracle sets"
    INTEGERS = "branches on integer decisions and proves a bound"
    SAMPLE_GROUPS = "solves programs in which samples with the same largest piece are merged"


GRADIENT_FEATURES = frozenset({Feature.GRADIENTS, Feature.FULL_GRADIENTS})
"""The features of a deterministic first-order solver."""


def has_features(solver: Any, *needed: Feature) -> bool:
    """Whether a solver is given and has all of these features."""
    return solver is not None and solver.features.issuperset(needed)


def require(solver: Any, needed: Feature, message: str) -> None:
    """Raise a ValueError with this message if a solver is given that lacks a feature."""
    if solver is not None and needed not in solver.features:
        raise ValueError(message.format(solver=type(solver).__name__))


def check_positive_or_none(name: str, value: Any) -> None:
    """Refuse a setting that is neither None nor a positive number."""
    if value is not None:
        number(name, value, low=0, open=True)


def check_functions(name: str, value: Any) -> None:
    """Refuse a setting that is no sequence of functions."""
    if not isinstance(value, Sequence) or not all(callable(function) for function in value):
        raise refuse(name, "a list of functions of the state", value, f"write {name}=[function]")


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "gap": partial(number, low=0),
    "max_iterations": partial(whole_number, low=0),
    "node_limit": partial(whole_number, low=1),
    "samples": partial(whole_number, low=1),
    "batch_size": partial(whole_number, low=1),
    "dual_bound": check_positive_or_none,
    "time_limit": check_positive_or_none,
    "callbacks": check_functions,
}
"""Checks of the settings that solvers share, by name."""


def check_settings(solver: Any) -> None:
    """Refuse a solver, a dataclass, one of whose settings has a value that cannot be meant."""
    for field in fields(solver):
        if field.name in CHECKS:
            CHECKS[field.name](field.name, getattr(solver, field.name))
