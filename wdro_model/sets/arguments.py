"""What the declaration of a set is given: counts, names, numbers, bounds; refused where wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector


def is_integer(n: Any) -> bool:
    """Is n a whole number, and not a boolean?"""
    return isinstance(n, (int, np.integer)) and not isinstance(n, (bool, np.bool_))


def as_count(n: Any, what: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if not is_integer(n) or int(n) < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, got {n!r}.")
    return int(n)


def as_names(given: Any, what: str) -> tuple[Any, ...]:
    """Names from a list of them, or 0, ..., n - 1 from their number n."""
    if is_integer(given):
        return tuple(range(as_count(given, f"the number of {what}s")))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"{what}s are given as a number or a list of names, got {given!r}.")
    names = tuple(item.item() if isinstance(item, np.generic) else item for item in given)
    if not names:
        raise ValueError(f"a set of choices needs at least one {what}, got none.")
    seen: set[Any] = set()
    for name in names:
        if not isinstance(name, Hashable):
            raise ValueError(f"{what}s need names that can be looked up, got {name!r}.")
        if name in seen:
            raise ValueError(f"every {what} needs a name of its own, got {name!r} twice.")
        seen.add(name)
    return names


def as_positive(number: Any, what: str, or_zero: bool = False) -> float:
    """A finite number that is positive, or not negative."""
    try:
        value = float(number)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, got {number!r}.") from None
    if not np.isfinite(value) or value < 0 or (value == 0 and not or_zero):
        kind = "a finite number >= 0" if or_zero else "a positive finite number"
        raise ValueError(f"{what} must be {kind}, got {number!r}.")
    return value


def as_shape(shape: Any, what: str) -> tuple[int, ...]:
    """(n,) from n, or a tuple of counts."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not sizes or not all(is_integer(n) and n >= 1 for n in sizes):
        raise ValueError(
            f"the shape of {what} must be a positive integer or a tuple of them, got {shape!r}."
        )
    return tuple(int(n) for n in sizes)


def as_interval(
    lower: ArrayLike | None, upper: ArrayLike | None, own: tuple[Vector, Vector]
) -> tuple[Vector, Vector]:
    """Bounds on the points of a continuous set, (n,) each, together with the set's own."""
    sides = []
    for name, given, known in (("lower", lower, own[0]), ("upper", upper, own[1])):
        side = known if given is None else np.asarray(given, dtype=np.float64)
        if side.shape != known.shape:
            raise ValueError(f"{name} must have shape {known.shape}, got {side.shape}.")
        if np.isnan(side).any():
            raise ValueError(f"{name} is not a number at index {int(np.isnan(side).argmax())}.")
        sides.append(side)
    low, high = np.maximum(sides[0], own[0]), np.minimum(sides[1], own[1])
    if np.any(low > high):
        at = int(np.flatnonzero(low > high)[0])
        raise InfeasibleError(
            f"no point lies between the bounds: at least {low[at]:g} and at most {high[at]:g} in "
            f"coordinate {at}."
        )
    return low, high


def bounds_refused(feasible: Any) -> ValueError:
    """The error of a continuous set that takes no bounds."""
    way_out = (
        "write the bounds as constraints beside it, [In(x, set), x >= lower]"
        if feasible.has_constraints
        else "it has no CVXPY form either, so that bounds cannot be written beside it"
    )
    return ValueError(f"{feasible!r} is not minimised within bounds; {way_out}.")
