"""What every support answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray
TOLERANCE = 1e-9


class Support(ABC):
    """A closed set of scenarios of a given shape; immutable, and usable for several parameters."""

    @abstractmethod
    def contains(self, points: Array) -> Array:
        """Which of the points (B, *shape) lie in the support, as booleans (B,)."""

    @abstractmethod
    def bounds(self, shape: Shape) -> tuple[Array, Array] | None:
        """Lower and upper bound of each entry, or None if the support is not a box."""

    @abstractmethod
    def validate(self, shape: Shape) -> None:
        """Raise ValueError if the support does not fit the shape or is empty."""

    @abstractmethod
    def restrict(self, lower: Any, upper: Any) -> Support:
        """The part of the support whose entries also lie between `lower` and `upper`."""

    def scaled(self, factor: float) -> Support | None:
        """The support times factor > 0; None where it is not known how."""
        return None

    def is_nonnegative(self, shape: Shape) -> bool:
        """Is every entry known to be nonnegative? (A question about declared bounds alone.)"""
        box = self.bounds(shape)
        return box is not None and bool(np.all(box[0] >= 0))

    def is_nonpositive(self, shape: Shape) -> bool:
        """Is every entry known to be nonpositive?"""
        box = self.bounds(shape)
        return box is not None and bool(np.all(box[1] <= 0))

    def why_outside(self, point: Array) -> str:
        """What keeps this one point (of the parameter's shape) out, for a message."""
        return f"it is outside {self!r}"


def first_index(mask: Array) -> tuple[int, ...]:
    """The index of the first True entry; () for a zero-dimensional mask."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), np.shape(mask)))


def slack(bound: Array, sign: float) -> Array:
    """The bound moved outwards by the tolerance; infinite bounds stay."""
    return bound + sign * TOLERANCE * np.maximum(1.0, np.abs(bound))


def numbers(given: Any, label: str) -> Array:
    """A read-only float copy of what the user gave as bound data."""
    raw = np.asarray(given)
    words = raw.dtype.kind in "US" or (
        raw.dtype == object and any(isinstance(entry, str | bytes) for entry in raw.flat)
    )
    try:
        if words:
            raise TypeError("text is no number, even if it looks like one")
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{label} of a support must be real numbers, got {given!r}; convert text with float()."
        ) from error
    array.flags.writeable = False
    return array
