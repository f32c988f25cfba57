"""Real costs for solvers that take whole numbers: scaled, and the error that this makes.

With k = rint(c / u) for a unit u, a minimiser of <k, x> is one of <c, x> up to

    sum_i |c_i - u k_i| (upper_i - lower_i),

as c - u k moves the costs of any two points between the bounds apart by no more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]
LARGEST = 2**62
"""Integers beyond this are not written: their differences would leave 64 bits."""
_SMALLEST = -1074
"""The exponent of the smallest positive number."""


def scaled_to_integers(costs: ArrayLike, limit: int) -> tuple[Integers, float]:
    """Whole numbers k of size at most `limit`, and a unit u > 0 with costs = u k up to rounding.

    The unit is as small as the limit allows, times the greatest common divisor of the integers:
    costs that are whole multiples of one number, within the limit, are represented exactly, and by
    small integers. It is a power of two times an integer, so that scaling itself rounds nothing.
    """
    given = np.asarray(costs, dtype=np.float64)
    if not 2 <= limit <= LARGEST:
        raise ValueError(f"the limit of scaled costs must lie between 2 and 2**62, got {limit!r}.")
    if not np.isfinite(given).all():
        at = int(np.flatnonzero(~np.isfinite(given))[0])
        raise ValueError(f"costs must be finite to be scaled, got {given.flat[at]} at index {at}.")
    largest = float(np.abs(given).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(given.shape, dtype=np.int64), 1.0
    exponent = max(int(np.frexp(largest)[1]) - (int(limit).bit_length() - 1), _SMALLEST)
    integers = np.rint(np.ldexp(given, -exponent)).astype(np.int64)
    divisor = int(np.gcd.reduce(integers, axis=None))
    if divisor > 1:
        integers //= divisor
    return integers, float(np.ldexp(float(max(divisor, 1)), exponent))


def rounding_slack(
    costs: ArrayLike, integers: Integers, unit: float, width: ArrayLike = 1.0
) -> float:
    """By how much at most a minimiser of <integers, x> costs more than one of <costs, x>.

    width: upper less lower bounds of the points, 1 for choices.
    """
    error = np.abs(np.asarray(costs, dtype=np.float64) - unit * integers.astype(np.float64))
    return float(np.sum(error * width))
