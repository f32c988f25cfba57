"""A ground cost as the user declares it: c(xi, zeta), what it costs to move xi to zeta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wdro_model.uncertainty.costs.bound_cost import BoundCost
from wdro_model.uncertainty.costs.cost_checks import MOVES, check

if TYPE_CHECKING:
    from wdro_model.uncertainty.joint import JointSamples


class GroundCost(ABC):
    """A transport cost, not yet tied to parameters."""

    order: float | None
    """p if c behaves like a distance to the power p; None if unknown."""
    bound: ClassVar[type[BoundCost]]
    """The class of what `bind` gives, where the cost's mathematics is."""

    @abstractmethod
    def bind(self, joint: JointSamples) -> BoundCost:
        """The cost on the coordinates of these samples; ValueError if it does not fit them."""

    def bound_to(self, joint: JointSamples) -> BoundCost:
        """The bound cost, once it has been seen not to contradict itself."""
        bound = self.bind(joint)
        # A subclass may change what was proven of its parent: each class speaks for itself.
        if not vars(type(bound)).get("is_proven", False):
            check(bound, joint.matrix[:MOVES])
        return bound

    @abstractmethod
    def describe(self) -> str:
        """The formula."""


def as_float(number: Any) -> float:
    """A number as a float, infinite where it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return np.inf if number > 0 else -np.inf


def shown(given: Any) -> str:
    """What the user gave, for a message; an integer of hundreds of digits by its size."""
    if isinstance(given, int) and abs(given) > 10**300:
        return f"an integer of {len(str(abs(given)))} digits"
    return repr(given)
