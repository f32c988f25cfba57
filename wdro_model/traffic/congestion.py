"""Congestion: the travel times of arcs, their integrals, and equivalent capacities."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wdro_model.traffic.network import Network

Array = np.ndarray
ROUNDING = 1e-6
"""Negative flows down to this fraction of the largest flow are rounding, and read as zero."""


def as_flow(given: Any, network: Network, one: bool = False) -> Array:
    """Flows (..., A) on the arcs, finite, with rounding below zero removed; (A,) if `one`."""
    flow = np.asarray(given, dtype=np.float64)
    if flow.ndim < 1 or flow.shape[-1] != network.n_arcs or (one and flow.ndim != 1):
        raise ValueError(
            f"a flow on {network!r} must have shape ({network.n_arcs},), one entry per arc, got "
            f"{flow.shape}."
        )
    least = -ROUNDING * max(1.0, float(np.max(np.abs(flow), initial=0.0)))
    wrong = ~(np.isfinite(flow) & (flow >= least))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        tail, head = network.arcs[at[-1]]
        raise ValueError(
            f"flows must be finite and nonnegative, got {float(flow[at])!r} on arc {at[-1]} "
            f"({tail!r} -> {head!r})."
        )
    return np.maximum(flow, 0.0)


def travel_times(network: Network, x: Array) -> Array:
    """t0 (1 + b (x/c)^power) without the fixed cost."""
    return network.free_flow_time * (1.0 + network.b * (x / network.capacity) ** network.power)


def integrals(network: Network, x: Array) -> Array:
    """The integrals of the travel times from 0 to x: t0 x (1 + b/(power + 1) (x/c)^power)."""
    share = network.b / (network.power + 1.0)
    return network.free_flow_time * x * (1.0 + share * (x / network.capacity) ** network.power)


def normalized_capacity(network: Network, alpha: float) -> Array:
    """(alpha/b)^(1/power) c where an arc congests, c elsewhere; by logarithms."""
    if not (isinstance(alpha, numbers.Real) and 0 < alpha < np.inf):
        raise ValueError(f"alpha must be a positive finite number, got {alpha!r}.")
    b, power, capacity = network.b, network.power, network.capacity.copy()
    changed = (b > 0) & (power > 0) & (b != alpha)
    b, power = b[changed], power[changed]
    with np.errstate(over="ignore", under="ignore"):
        capacity[changed] = np.exp(np.log(capacity[changed]) + (np.log(alpha) - np.log(b)) / power)
    lost = ~(np.isfinite(capacity) & (capacity > 0))
    if lost.any():
        a = int(np.argmax(lost))
        tail, head = network.arcs[a]
        raise ValueError(
            f"arc {a} ({tail!r} -> {head!r}) with b = {network.b[a]:g} and power "
            f"{network.power[a]:g} has no capacity that floating point can hold for alpha = "
            f"{alpha:g}; choose an alpha near its b, or set its b to 0."
        )
    return capacity
