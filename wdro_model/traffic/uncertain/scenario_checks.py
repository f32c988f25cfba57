"""The checks of scenarios: numbers, ranges, counts and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

Range = tuple[float, float]


def as_amount(given: Any, name: str, positive: bool = False) -> float:
    number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    if not number or not np.isfinite(given) or given < 0 or (positive and given == 0):
        sign = "> 0" if positive else ">= 0"
        raise ValueError(f"{name} must be a finite number {sign}, got {given!r}.")
    return float(given)


def as_range(given: Any, name: str) -> Range:
    try:
        low, high = (as_amount(end, name) for end in given)
    except TypeError:
        raise ValueError(f"{name} must be two numbers (low, high), got {given!r}.") from None
    if low > high:
        raise ValueError(f"{name} must be (low, high) with low <= high, got {given!r}.")
    return low, high


def check_within(name: str, inner: Range, outer: Range) -> None:
    if inner[0] < outer[0] or inner[1] > outer[1]:
        raise ValueError(
            f"{name} would be drawn from [{inner[0]:g}, {inner[1]:g}], which leaves its range "
            f"[{outer[0]:g}, {outer[1]:g}]; shift less, or give wider ranges=TrafficRanges(...) to "
            "training and shifted scenarios alike."
        )


def check_count(count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(f"count must be an integer of at least 1, got {count!r}.")


def as_seed(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
        raise ValueError(f"seed must be a nonnegative integer or None, got {given!r}.")
    return int(given)
