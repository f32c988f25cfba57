"""Quadratic costs as second-order cones, in coordinates where they are the plain square."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np


def quadratic_conjugate(plain: Any, price: Any) -> tuple[Any, list[Any]]:
    """|u|^2 / (4 l) for each row u of `plain` (n, d), l the price."""
    count = plain.shape[0]
    bonus = cp.Variable(count, nonneg=True)
    stretched = price * np.ones(count)
    cone = cp.hstack([plain, cp.reshape(stretched - bonus, (count, 1), order="C")])
    # |u|^2 <= 4 l s as a second-order cone.
    return bonus, [cp.SOC(stretched + bonus, cone, axis=1)]


def quadratic_perspective(plain: Any, shares: Any) -> tuple[Any, list[Any]]:
    """sum_k |v_k|^2 / q_k for rows v_k of `plain` (n, d) and shares q (n,)."""
    count = plain.shape[0]
    price = cp.Variable(count, nonneg=True)
    cone = cp.hstack([2 * plain, cp.reshape(shares - price, (count, 1), order="C")])
    return cp.sum(price), [cp.SOC(shares + price, cone, axis=1)]
