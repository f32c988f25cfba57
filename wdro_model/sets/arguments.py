"""Arguments of sets that users give: directions, bounds, names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from numbers import Integral
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Side, Vector


def as_direction(direction: ArrayLike, dimension: int, kind: str = "direction") -> Vector:
    """A float64 array (n,) of finite numbers; the caller's own array if it is one."""
    given = np.asarray(direction)
    if given.dtype.kind not in "fiubO":
        hint = "take its real part" if given.dtype.kind == "c" else "convert it with float()"
        raise ValueError(f"{kind} must be real numbers, got dtype {given.dtype}; {hint}.")
    return checks.real_array(kind, given, (dimension,))


def as_flat(x: Any, dimension: int) -> Any:
    """A CVXPY expression as a vector (n,), in row-major order."""
    x = cp.Expression.cast_to_const(x)
    if x.size != dimension:
        raise ValueError(f"x must have {dimension} entries, got shape {x.shape}.")
    return x if x.ndim == 1 else cp.vec(x, order="C")


def as_interval(
    lower: Side,
    upper: Side,
    own: tuple[Vector, Vector],
    label: Callable[[int], str] = "coordinate {}".format,
    whole: bool = False,
) -> tuple[Vector, Vector]:
    """Bounds (n,) on the points of a set, together with the set's own bounds.

    label: the words for a coordinate in a message. whole: the points are integers, and so are the
    bounds that are returned. Bounds that cross are an InfeasibleError.
    """
    low, high = (
        side if given is None else checks.real_array(name, given, side.shape, finite=False)
        for name, given, side in (("lower", lower, own[0]), ("upper", upper, own[1]))
    )
    low, high = np.maximum(low, own[0]), np.minimum(high, own[1])
    if whole:
        low, high = np.ceil(low), np.floor(high)
    if np.any(low > high):
        index = int(np.argmax(low > high))
        raise InfeasibleError(
            f"no point lies between the bounds: {label(index)} must be at least {low[index]:g} and "
            f"at most {high[index]:g}."
        )
    return low, high


def as_bounds(bounds: Any, shape: tuple[int, ...], owner: str) -> tuple[Vector, Vector]:
    """Bounds (n,) from a pair of numbers or arrays that broadcast to a shape; crossed: refused."""
    try:
        lower, upper = (
            np.broadcast_to(np.asarray(side, dtype=np.float64), shape).flatten() for side in bounds
        )
    except (TypeError, ValueError):
        text = repr(bounds)
        raise ValueError(
            f"bounds of {owner} must be a pair (lower, upper) of numbers or arrays of shape "
            f"{shape}, got {text if len(text) <= 80 else text[:77] + '...'}."
        ) from None
    if not np.all(lower <= upper):
        index = int(np.argmin(lower <= upper))
        raise ValueError(
            f"bounds of {owner} are crossed: they must have lower <= upper, got {lower[index]:g} "
            f"and {upper[index]:g} at index {index}."
        )
    return lower, upper


def is_integer(n: Any) -> bool:
    """Is n a whole number, and not a boolean?"""
    return isinstance(n, Integral) and not isinstance(n, (bool, np.bool_))


def as_names(given: Any, what: str) -> tuple[Any, ...]:
    """Names from a list of them, or 0, ..., n - 1 from their number n."""
    if is_integer(given):
        return tuple(range(checks.whole_number(f"the number of {what}s", given, low=1)))
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


def as_shape(shape: Any, what: str) -> tuple[int, ...]:
    """(n,) from n, or a tuple of positive integers."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not sizes or not all(is_integer(n) and n >= 1 for n in sizes):
        raise checks.refuse(f"the shape of {what}", "a positive integer or a tuple of them", shape)
    return tuple(int(n) for n in sizes)
