"""Argument checks: each returns the checked value or raises a ValueError.

Every message has the form "NAME must be KIND, got VALUE; HINT." The function is the kind of the
argument (`number`, `whole_number`, `flag`, `choice`, `real_array`); the hint says what to do:

    checks.number("quantile", quantile, low=0, high=1, open=True, hint="0.5 is the median")
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import numpy as np

from wdro_model.errors import unknown_name


def shown(value: Any) -> str:
    """The value for a message; an integer of hundreds of digits by its number of digits."""
    if isinstance(value, int) and abs(value) > 10**300:
        return f"an integer of {int(math.log10(abs(value))) + 1} digits"
    return repr(value)


def refuse(name: str, kind: str, value: Any, hint: str = "") -> ValueError:
    """The error "NAME must be KIND, got VALUE; HINT." for the caller to raise."""
    return ValueError(f"{name} must be {kind}, got {shown(value)}{hint and '; ' + hint}.")


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open: bool = False,
    hint: str = "",
) -> float:
    """A finite number in [low, high], or in (low, high) if `open`; booleans are refused."""
    if isinstance(value, Real) and not isinstance(value, (bool, np.bool_)):
        try:
            amount = float(value)
        except OverflowError:  # an integer that is too large for a float
            amount = math.inf
        inside = low < amount < high if open else low <= amount <= high
        if inside and math.isfinite(amount):
            return amount
    raise refuse(name, _number_kind(low, high, open), value, hint)


def _number_kind(low: float, high: float, open: bool) -> str:
    """The words for a finite number in an interval: "a positive finite number"."""
    if math.isfinite(high):
        bounds = f"between {low:g} and {high:g}" if open else f"from {low:g} to {high:g}"
        return f"a number {bounds}" if math.isfinite(low) else f"a finite number <= {high:g}"
    if low == 0:
        return "a positive finite number" if open else "a nonnegative finite number"
    if math.isfinite(low):
        return f"a finite number {'>' if open else '>='} {low:g}"
    return "a finite number"


def whole_number(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, hint: str = ""
) -> int:
    """An integer in [low, high]; booleans are refused."""
    good = isinstance(value, Integral) and not isinstance(value, (bool, np.bool_))
    if good and low <= int(value) <= high:
        return int(value)
    if math.isfinite(high):
        kind = f"an integer from {low:g} to {high:g}"
    else:
        kind = f"an integer of at least {low:g}" if math.isfinite(low) else "an integer"
    raise refuse(name, kind, value, hint)


def flag(name: str, value: Any, hint: str = "") -> bool:
    """True or False; other values are refused, also 0, 1 and None."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refuse(name, "True or False", value, hint)


def choice(what: str, value: Any, options: Collection[str]) -> str:
    """One of the names in `options`; the message suggests the nearest one."""
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(unknown_name(what, value, options))


def real_array(
    name: str,
    value: Any,
    shape: tuple[int, ...] | None = None,
    *,
    finite: bool = True,
    hint: str = "",
) -> np.ndarray:
    """A float64 array without NaN, and without infinity if `finite`; of this shape if given."""
    try:
        raw = np.asarray(value)
        entries = raw.flat if raw.dtype == object else ()
        if raw.dtype.kind in "US" or any(isinstance(entry, str | bytes) for entry in entries):
            raise TypeError("text is no number, even if it looks like one")
        array = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise refuse(name, "an array of numbers", value, hint) from None
    if shape is not None and array.shape != shape:
        tail = hint and "; " + hint
        raise ValueError(f"{name} must have shape {shape}, got shape {array.shape}{tail}.")
    wrong = ~np.isfinite(array) if finite else np.isnan(array)
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        position = f" at index {index[0] if len(index) == 1 else index}" if index else ""
        kind = "finite" if finite else "numbers"
        raise ValueError(
            f"{name} must be {kind}, got {array[index]}{position}{hint and '; ' + hint}."
        )
    return array
