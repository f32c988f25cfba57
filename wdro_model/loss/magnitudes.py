"""What is of order one, and units for what is not."""

from __future__ import annotations

from typing import Any

import numpy as np

ORDINARY = 1e3
"""Numbers within this factor of one are left in their units."""
SCALABLE = {"nonneg", "nonpos", "pos", "neg", "bounds", "symmetric", "diag", "PSD", "NSD"}
"""Attributes of a variable that mean the same in another unit."""


def is_ordinary(number: float) -> bool:
    """Is the number of order one?"""
    return 1.0 / ORDINARY <= number <= ORDINARY


def power_of_two(number: float) -> float:
    """The nearest power of two: nothing is rounded by it. 1 for what is no positive number."""
    if not (np.isfinite(number) and number > 0):
        return 1.0
    return float(2.0 ** np.clip(np.round(np.log2(number)), -1000, 1000))


def declared(variable: Any) -> dict[str, Any]:
    """The attributes that a variable was declared with."""
    return {k: v for k, v in variable.attributes.items() if v is not None and v is not False}


def is_scalable(variable: Any) -> bool:
    """Can the variable be measured in another unit?"""
    return set(declared(variable)) <= SCALABLE
