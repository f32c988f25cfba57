"""The best 0/1 point of a set with some coordinates fixed, by prices on these coordinates.

1 in `lower` is mandatory, 0 in `upper` forbidden. Over 0/1 points and with M > 2 sum_i |g_i|,

    g_i + M where forbidden,   g_i - M where mandatory,

a minimiser breaks as few of these as it can: none, if there is such a point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.sets.vertices import is_binary

if TYPE_CHECKING:
    from wdro_model.sets.feasible_set import FeasibleSet


def as_held(
    lower: ArrayLike | None, upper: ArrayLike | None, dimension: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which coordinates are forbidden and which mandatory, (n,) each, from bounds on a choice."""
    low = np.zeros(dimension) if lower is None else np.asarray(lower, dtype=float)
    high = np.ones(dimension) if upper is None else np.asarray(upper, dtype=float)
    for name, side in (("lower", low), ("upper", high)):
        if side.shape != (dimension,):
            raise ValueError(f"{name} must have shape ({dimension},), got {side.shape}.")
        if np.isnan(side).any():
            raise ValueError(f"{name} is not a number at index {int(np.isnan(side).argmax())}.")
    forbidden, mandatory = high < 1.0, low > 0.0
    if np.any(low > high) or np.any(high < 0.0) or np.any(low > 1.0):
        at = int(np.flatnonzero((low > high) | (high < 0.0) | (low > 1.0))[0])
        raise InfeasibleError(
            f"no choice lies between the bounds {low[at]:g} and {high[at]:g} of coordinate {at}."
        )
    if np.any(forbidden & mandatory):
        at = int(np.flatnonzero(forbidden & mandatory)[0])
        raise InfeasibleError(f"coordinate {at} is both forbidden and mandatory.")
    return forbidden, mandatory


def minimize_by_prices(
    choices: FeasibleSet, direction: Vector, forbidden: np.ndarray, mandatory: np.ndarray
) -> Vector:
    """A 0/1 point of the set that minimises <direction, x> with some coordinates held."""
    free = getattr(choices, "free_minimum", choices.minimize)
    vertex = free(priced(choices, direction, forbidden, mandatory))
    check_held(choices, vertex, forbidden, mandatory)
    return vertex


def priced(
    choices: FeasibleSet, direction: Vector, forbidden: np.ndarray, mandatory: np.ndarray
) -> Vector:
    """The direction with a price on what is forbidden, and a reward for what is mandatory."""
    if choices.nonnegative_directions and mandatory.any():
        raise ValueError(
            f"{choices!r} takes nonnegative directions only, so it cannot be made to choose a "
            "coordinate; hold coordinates at 0, or write minimize_within(direction, lower, upper)."
        )
    price = 4.0 * float(np.abs(direction).sum()) or 1.0
    return direction + price * forbidden - price * mandatory


def check_held(
    choices: FeasibleSet, vertex: Vector, forbidden: np.ndarray, mandatory: np.ndarray
) -> None:
    """Raise an InfeasibleError if a minimiser under prices breaks what is held."""
    if not is_binary(vertex):
        raise ValueError(
            f"coordinates of {choices!r} cannot be held: its points are not choices with entries 0 "
            "and 1."
        )
    broken = (forbidden & (vertex > 0.5)) | (mandatory & (vertex < 0.5))
    if broken.any():
        raise InfeasibleError(
            f"{choices!r} has no point with {int(mandatory.sum())} mandatory and "
            f"{int(forbidden.sum())} forbidden coordinates as asked (coordinate "
            f"{int(np.flatnonzero(broken)[0])} stands in the way)."
        )


Mask = np.ndarray


class HeldOracle(ABC):
    """The oracle of a backend: one method, for any coordinates (n,) forbidden and mandatory."""

    @abstractmethod
    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        """A choice, and by how much at most it costs more than the best one."""

    def __call__(self, direction: Vector) -> Vector:
        nothing = np.zeros(direction.size, dtype=bool)
        return self.answer(direction, nothing, nothing)[0]


def nothing_left(choices: object, forbidden: Mask, mandatory: Mask) -> InfeasibleError:
    """The error where no choice is left."""
    return InfeasibleError(
        f"{choices!r} has no point with {int(mandatory.sum())} mandatory and "
        f"{int(forbidden.sum())} forbidden coordinates as asked."
    )
