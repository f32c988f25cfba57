"""Abilities of solvers, as data: `solver.features` says what a solver can be given.

The planner asks for a feature and never for a class, so that a new solver needs no new branch.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


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
