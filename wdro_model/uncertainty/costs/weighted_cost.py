"""Costs with one weight for each coordinate: what they share."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.uncertainty.costs.bound_cost import Array, BoundCost


@dataclass(frozen=True, eq=False)
class WeightedCost(BoundCost):
    """A cost of the weighted moves of the coordinates; an infinite weight holds one fixed."""

    dimension: int
    weights: Array | None = None
    """(d,), None for 1."""

    @cached_property
    def frozen(self) -> Array:
        if self.weights is None:
            return np.broadcast_to(False, (self.dimension,))
        return np.isinf(self.weights)

    @cached_property
    def coordinate_weights(self) -> Array:
        return np.ones(self.dimension) if self.weights is None else self.weights

    def whitened(self, slope: Any) -> Any:
        keep = np.flatnonzero(~self.frozen)
        if len(keep) < self.dimension:
            slope = slope[keep] if len(keep) else cp.Constant(np.zeros(1))
        if self.weights is None or not len(keep):
            return slope
        return cp.multiply(1.0 / self.coordinate_scales[keep], slope)

    def whitened_numbers(self, slopes: Array) -> Array:
        return slopes if self.weights is None else slopes / self.coordinate_scales

    def describe_weights(self) -> str:
        """The span of the weights, and how many coordinates are held."""
        if self.weights is None:
            return "weights 1"
        moving = self.weights[~self.frozen]
        if moving.size == 0:
            return "all coordinates held fixed"
        low, high = float(moving.min()), float(moving.max())
        span = f"weights {low:g}" if low == high else f"weights from {low:.3g} to {high:.3g}"
        held = self.dimension - moving.size
        return f"{span}, {held} coordinates held fixed" if held else span

    def restricted(self, where: Array) -> BoundCost:
        if np.array_equal(where, np.arange(self.dimension)):
            return self
        weights = None if self.weights is None else self.weights[where]
        return self.with_weights(len(where), weights)

    def with_weights(self, dimension: int, weights: Array | None) -> BoundCost:
        """The same formula with other weights."""
        raise NotImplementedError

    @cached_property
    def holds_some(self) -> bool:
        """Is some coordinate frozen?"""
        return self.weights is not None and bool(self.frozen.any())

    @cached_property
    def finite_weights(self) -> Array | None:
        """The weights with 0 for frozen coordinates, whose moves are priced apart."""
        if self.weights is None or not self.holds_some:
            return self.weights
        return np.where(self.frozen, 0.0, self.weights)

    @cached_property
    def stretching(self) -> Any:
        """The sparse diagonal matrix of the scales, 0 for frozen coordinates."""
        return sp.diags_array(np.where(self.frozen, 0.0, self.coordinate_scales))

    @cached_property
    def shrinking(self) -> Any:
        """The sparse diagonal matrix of one over the scales."""
        return sp.diags_array(1.0 / self.coordinate_scales)


def weighted_formula(formula: str, weights: Any) -> str:
    """A declared formula with the weights that were given."""
    if weights is None:
        return formula.format(w="")
    label = f", weights {weights}" if isinstance(weights, str | numbers.Real) else ", given weights"
    return formula.format(w="w * " if "||" in formula else "w_i ") + label
