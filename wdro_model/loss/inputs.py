"""Checks of what a loss is called with: a point, scenarios, weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def batch_size(scenarios: Mapping[Any, Any]) -> int:
    """The common number of rows B of the scenarios; 1 if there are none."""
    sizes = {p: np.shape(rows)[0] if np.ndim(rows) else 0 for p, rows in scenarios.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{p.name()!r}: {n}" for p, n in sizes.items())
        raise ValueError(f"all parameters share the batch axis, got numbers of rows {listed}.")
    return next(iter(sizes.values()), 1)


def entry(given: Mapping[Any, Any], leaf: Any, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """The value given for a variable or a parameter, as an array of the shape it must have."""
    if leaf not in given:
        raise ValueError(f"no value given for the {kind} {leaf.name()!r}, of shape {leaf.shape}.")
    value = np.asarray(given[leaf], dtype=float)
    if value.shape != shape:
        raise ValueError(f"{kind} {leaf.name()!r} needs shape {shape}, got {value.shape}.")
    return value


def as_weights(weights: Any, size: int) -> np.ndarray:
    """The weights as an array (B,), or an error that names both sizes."""
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (size,):
        raise ValueError(f"weights must have shape ({size},), got {weights.shape}.")
    return weights
