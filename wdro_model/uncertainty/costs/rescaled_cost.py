"""Any cost in other units: c'(delta') = c(u delta') / unit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost


def _of_inner(name: str) -> Any:
    """What the inner cost says of itself, as a property."""
    return property(attrgetter(f"inner.{name}"))


@dataclass(frozen=True, eq=False)
class RescaledCost(BoundCost):
    """A cost whose data is measured in units u, and which is itself measured in a unit.

    It is what the inner cost is, and knows what that knows: a move delta' is u delta', and a slope
    b' in the new data is b' / u in the old.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> metres = wdro.costs.BoundSquared(2)
    >>> kilometres = wdro.costs.RescaledCost(metres, units=np.full(2, 1000.0), unit=1e6)
    >>> kilometres.of_displacements(np.array([[3.0, 4.0]]))
    array([25.])
    """

    inner: BoundCost
    units: Array
    """u, (d,), positive."""
    unit: float

    dimension = _of_inner("dimension")
    is_quadratic = _of_inner("is_quadratic")
    is_norm = _of_inner("is_norm")
    is_conic = _of_inner("is_conic")
    has_smooth_dual_norm = _of_inner("has_smooth_dual_norm")
    is_separable = _of_inner("is_separable")
    order = _of_inner("order")
    exponent = _of_inner("exponent")
    may_forbid = _of_inner("may_forbid")
    frozen = _of_inner("frozen")
    couplings = _of_inner("couplings")

    @property
    def largest_weight(self) -> float:
        """A bound: the largest unit squared, times that of the inner cost."""
        return self.inner.largest_weight * float(np.max(self.units)) ** 2 / self.unit

    def knows(self, operation: str) -> bool:
        return super().knows(operation) and self.inner.knows(operation)

    def __call__(self, origins: Array, points: Array) -> Array:
        return self.inner(origins * self.units, points * self.units) / self.unit

    def of_displacements(self, delta: Array) -> Array:
        return self.inner.of_displacements(delta * self.units) / self.unit

    def describe(self) -> str:
        return f"{self.inner.describe()}, in units of {self.unit:.3g}"

    def gradient(self, delta: Array) -> Array:
        return self.units * self.inner.gradient(delta * self.units) / self.unit

    @cached_property
    def coordinate_weights(self) -> Array:
        assert self.inner.order is not None
        return self.inner.coordinate_weights * self.units**self.inner.order / self.unit

    @cached_property
    def coordinate_scales(self) -> Array:
        return self.inner.coordinate_scales * self.units / self._length

    @cached_property
    def matrix(self) -> Array:
        return self.units[:, None] * self.inner.matrix * self.units / self.unit

    def dual_norm(self, slope: Any) -> Any:
        # Inside of the norm, so that the numbers of a program are all of one size.
        return self.inner.dual_norm(cp.multiply(self._length / self.units, slope))

    def dual_norms(self, slopes: Array) -> Array:
        return self.inner.dual_norms(slopes * (self._length / self.units))

    def combined(self, rates: list[Any]) -> Any:
        return self.inner.combined(rates)

    def whitened(self, slope: Any) -> Any:
        return self.inner.whitened(cp.multiply(self._length / self.units, slope))

    def whitened_numbers(self, slopes: Array) -> Array:
        return self.inner.whitened_numbers(slopes * (self._length / self.units))

    def steepest_move(self, slope: Array) -> Array:
        scale = self._length / self.units
        return scale * self.inner.steepest_move(slope * scale)

    def inverse_times(self, slopes: Array) -> Array:
        return self.unit * self.inner.inverse_times(slopes / self.units) / self.units

    def conjugate(self, slopes: Any, price: Any) -> tuple[Any | None, list[Any]]:
        return self.inner.conjugate(slopes @ sp.diags_array(1.0 / self.units), price / self.unit)

    def perspective(self, moves: Any, shares: Any) -> tuple[Any, list[Any]]:
        spent, constraints = self.inner.perspective(moves @ sp.diags_array(self.units), shares)
        return spent / self.unit, constraints

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return RescaledCost(self.inner, self.units * units, self.unit * unit)

    def restricted(self, where: Array) -> BoundCost:
        inner = self.inner.restricted(where)
        return self if inner is self.inner else RescaledCost(inner, self.units[where], self.unit)

    @cached_property
    def _length(self) -> float:
        """unit^(1/p): a length of 1 in the new units, in the old."""
        return self.inner.distance(self.unit)
