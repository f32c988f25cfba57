"""What every support answers, and the supports that bound each entry on its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdro_model.uncertainty.data_frames import labels_of, reordered

Shape = tuple[int, ...]
Array = np.ndarray
TOLERANCE = 1e-9


class Support(ABC):
    """A closed set of scenarios of a given shape; immutable, and usable for several parameters.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> box = wdro.supports.Box(0, [1.0, 2.0])
    >>> isinstance(box, wdro.supports.Support)
    True
    >>> box.contains(np.array([[0.5, 1.5], [1.5, 1.5]]))
    array([ True, False])
    """

    @abstractmethod
    def contains(self, points: Array) -> Array:
        """Which of the points `(B, *shape)` lie in the support, as booleans (B,)."""

    @abstractmethod
    def bounds(self, shape: Shape) -> tuple[Array, Array] | None:
        """Lower and upper bound of each entry, or None if the support is not a box."""

    @abstractmethod
    def validate(self, shape: Shape) -> None:
        """Raise ValueError if the support does not fit the shape or is empty."""

    @abstractmethod
    def restrict(self, lower: Any, upper: Any) -> Support:
        """The part of the support whose entries also lie between `lower` and `upper`."""

    def in_order(self, labels: Sequence[Any] | None) -> Support:
        """The support of entries with these labels, where it was given with labels of its own."""
        return self

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
    if isinstance(given, Mapping):
        given = list(given.values())
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


# ------------------------------------------------------------------ entry by entry
class _Coordinatewise(Support):
    """A support that bounds each entry on its own."""

    @abstractmethod
    def bounds(self, shape: Shape) -> tuple[Array, Array]:
        """Lower and upper bound of each entry, as read-only arrays of that shape."""

    def contains(self, points: Array) -> Array:
        lower, upper = (slack(side, sign) for side, sign in zip(self._sides(), (-1.0, 1.0)))
        entries = tuple(range(1, np.ndim(points)))
        inside = np.ones(len(points), dtype=bool)
        if np.any(lower > -np.inf):
            inside &= np.all(points >= lower, axis=entries)
        if np.any(upper < np.inf):
            inside &= np.all(points <= upper, axis=entries)
        return inside

    def why_outside(self, point: Array) -> str:
        lower, upper = self.bounds(np.shape(point))
        for word, bound, wrong in (
            ("below its lower bound", lower, point < slack(lower, -1.0)),
            ("above its upper bound", upper, point > slack(upper, 1.0)),
        ):
            if np.any(wrong):
                at = first_index(wrong)
                entry = f"entry {list(at)}" if at else "it"
                return f"{entry} is {float(point[at])!r}, {word} {float(bound[at])!r}"
        return super().why_outside(point)

    def restrict(self, lower: Any, upper: Any) -> Support:
        own_lower, own_upper = self._sides()
        return Box(np.maximum(own_lower, lower), np.minimum(own_upper, upper))

    def scaled(self, factor: float) -> Support:
        lower, upper = self._sides()
        return Box(lower * factor, upper * factor)

    @abstractmethod
    def _sides(self) -> tuple[Array, Array]:
        """The bounds as declared, not yet broadcast to a shape."""


@dataclass(frozen=True)
class Everywhere(_Coordinatewise):
    """The whole space R^d.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.UncertainParameter(2, samples=[[0.2, 0.4]]).support
    Everywhere()
    """

    def bounds(self, shape: Shape) -> tuple[Array, Array]:
        return np.broadcast_to(-np.inf, shape), np.broadcast_to(np.inf, shape)

    def validate(self, shape: Shape) -> None:
        """Fits every shape."""

    def restrict(self, lower: Any, upper: Any) -> Support:
        if np.all(np.equal(lower, 0.0)) and np.all(np.equal(upper, np.inf)):
            return Nonnegative()
        return Box(lower, upper)

    def scaled(self, factor: float) -> Everywhere:
        return self

    def _sides(self) -> tuple[Array, Array]:
        return np.array(-np.inf), np.array(np.inf)


@dataclass(frozen=True)
class Nonnegative(_Coordinatewise):
    """The nonnegative orthant: every entry is at least zero.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> demand = wdro.UncertainParameter(samples=[7.0, 9.0], support=wdro.supports.Nonnegative())
    >>> demand.is_nonneg()
    True
    """

    def bounds(self, shape: Shape) -> tuple[Array, Array]:
        return np.broadcast_to(0.0, shape), np.broadcast_to(np.inf, shape)

    def validate(self, shape: Shape) -> None:
        """Fits every shape."""

    def scaled(self, factor: float) -> Nonnegative:
        return self

    def _sides(self) -> tuple[Array, Array]:
        return np.array(0.0), np.array(np.inf)


@dataclass(frozen=True, eq=False)
class Box(_Coordinatewise):
    """Entries between bounds: {z : lower <= z <= upper}.

    Parameters
    ----------
    lower, upper
        Numbers, arrays that broadcast to the parameter's shape, or series and dictionaries with the
        labels of its columns; infinite values leave that side of an entry open.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> share = wdro.UncertainParameter(2, samples=[[0.2, 0.4]], support=wdro.supports.Box(0, 1))
    >>> share.is_nonneg()
    True
    >>> wdro.UncertainParameter(2, "share", samples=[[0.2, 1.4]], support=wdro.supports.Box(0, 1))
    Traceback (most recent call last):
        ...
    ValueError: ...
    """

    lower: Any = -np.inf
    upper: Any = np.inf
    _labels: Any = field(default=(), init=False, repr=False)
    """The labels that each side was given with; None for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_labels", (labels_of(self.lower), labels_of(self.upper)))
        object.__setattr__(self, "lower", _bound(self.lower, "lower", forbidden=np.inf))
        object.__setattr__(self, "upper", _bound(self.upper, "upper", forbidden=-np.inf))

    def in_order(self, labels: Sequence[Any] | None) -> Support:
        if self._labels == (None, None):
            return self
        lower, upper = self._labels
        return Box(
            reordered(self.lower, lower, labels, "lower bounds"),
            reordered(self.upper, upper, labels, "upper bounds"),
        )

    def bounds(self, shape: Shape) -> tuple[Array, Array]:
        return _fit(self.lower, "lower", shape), _fit(self.upper, "upper", shape)

    def validate(self, shape: Shape) -> None:
        lower, upper = self.bounds(shape)
        if np.any(lower > upper):
            at = first_index(lower > upper)
            where = f" at entry {list(at)}" if at else ""
            raise ValueError(
                f"the box is empty: its lower bound {float(lower[at])!r} exceeds its upper bound "
                f"{float(upper[at])!r}{where}; exchange or correct the bounds."
            )

    def _sides(self) -> tuple[Array, Array]:
        return self.lower, self.upper

    def __repr__(self) -> str:
        return f"Box(lower={_brief(self.lower)}, upper={_brief(self.upper)})"


def _bound(given: Any, side: str, forbidden: float) -> Array:
    array = numbers(given, side)
    if np.any(np.isnan(array)) or np.any(array == forbidden):
        value = np.nan if np.any(np.isnan(array)) else forbidden
        raise ValueError(
            f"{side} bound of a Box cannot be {value}; use {-forbidden} for an entry without "
            f"a {side} bound."
        )
    return array


def _fit(bound: Array, side: str, shape: Shape) -> Array:
    """The bound as a read-only array of the parameter's shape."""
    try:
        return np.broadcast_to(bound.reshape(()) if bound.size == 1 else bound, shape)
    except ValueError:
        raise ValueError(
            f"{side} bound of shape {bound.shape} does not fit a parameter of shape {shape}; give "
            "a number or an array that broadcasts to it."
        ) from None


def _brief(array: Array) -> str:
    if array.ndim == 0:
        return repr(float(array))
    return repr(array.tolist()) if array.size <= 6 else f"array of shape {array.shape}"
