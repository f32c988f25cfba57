"""Costs with weights: by coordinate or by parameter, of some parameters only, in other units."""

from __future__ import annotations

import copy
import math
import numbers
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter, chunks, read_only
from wdro_model.uncertainty.samples import in_order
from wdro_model.uncertainty.supports import first_index


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

    def of_displacements(self, delta: Array) -> Array:
        costs = self.finite_costs(delta)
        if self.holds_some:
            costs[np.any(delta[:, self.frozen] != 0, axis=1)] = np.inf
        return costs

    @abstractmethod
    def finite_costs(self, delta: Array) -> Array:
        """The cost (B,) of the moves (B, d) of coordinates that are not frozen."""

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

    @abstractmethod
    def with_weights(self, dimension: int, weights: Array | None) -> BoundCost:
        """The same formula with other weights."""

    @cached_property
    def holds_some(self) -> bool:
        """True if some coordinate is frozen."""
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


# ------------------------------------------------------------------ numbers as the user gives them
STANDARDIZE, OR_HOLD = "standardize", "standardize_or_hold"
SMALLEST_VARIANCE = 1e-300


def own_weights(weights: Any) -> Any:
    """A copy of the weights, so that later changes of the caller's arrays have no effect."""
    if isinstance(weights, Mapping):
        return {parameter: copy.deepcopy(value) for parameter, value in weights.items()}
    return copy.deepcopy(weights)


def resolve_weights(weights: Any, joint: JointSamples, power: int) -> np.ndarray | None:
    """The weights (d,) of the coordinates, read-only; None if all are 1.

    power: "standardize" gives one over the sample standard deviation to this power.
    """
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        resolved = _flat(weights, joint, power)
    else:
        for key in weights:
            if not isinstance(key, UncertainParameter) or key not in joint.slices:
                raise _unknown(key, joint)
        resolved = np.ones(joint.dimension)
        for parameter, value in weights.items():
            resolved[joint.slices[parameter]] = _block(value, parameter, joint, power)
    if not np.all(resolved > 0):
        i = int(np.argmin(resolved > 0))
        raise ValueError(
            f"weights of a cost must be positive, got {float(resolved[i])} for "
            f"{joint.coordinate(i)}; np.inf keeps a coordinate at its observed value."
        )
    return None if np.all(resolved == 1.0) else read_only(resolved)


def _flat(weights: Any, joint: JointSamples, power: int) -> np.ndarray:
    """Weights given for all coordinates at once."""
    if isinstance(weights, str):
        return _standardized(weights, joint, slice(0, joint.dimension), power)
    weights = in_order(weights, joint.labels, "weights of a cost")
    array = _numbers(weights)
    single = joint.parameters[0].shape if len(joint.parameters) == 1 else None
    if array.ndim == 0:
        return np.broadcast_to(array, (joint.dimension,))
    if array.shape == single or array.shape == (joint.dimension,):
        return array.reshape(-1)
    expected = f"({joint.dimension},)" + (f" or {single}" if single and len(single) > 1 else "")
    raise ValueError(
        f"weights of a cost have shape {array.shape}, expected a number or shape {expected}; "
        "use {parameter: weights} to weight parameters apart."
    )


def _block(value: Any, parameter: UncertainParameter, joint: JointSamples, power: int) -> Any:
    """Weights given for one parameter."""
    if isinstance(value, str):
        return _standardized(value, joint, joint.slices[parameter], power)
    value = in_order(value, parameter.columns, f"weights of {parameter.name()!r}")
    array = _numbers(value)
    if array.ndim == 0:
        return float(array)
    if array.shape == parameter.shape or array.shape == (math.prod(parameter.shape),):
        return array.reshape(-1)
    raise ValueError(
        f"weights of {parameter.name()!r} have shape {array.shape}, expected a number or shape "
        f"{parameter.shape}."
    )


def _standardized(word: str, joint: JointSamples, where: slice, power: int) -> np.ndarray:
    if word not in (STANDARDIZE, OR_HOLD):
        raise ValueError(
            f"unknown weights {word!r}; write {STANDARDIZE!r}, {OR_HOLD!r}, a number, an array or "
            "{parameter: weights}."
        )
    rows = joint.matrix[:, where]
    mean = joint.mean[where]
    squares = (
        joint.shares.subset(slice(start, start + len(block))).multiple((block - mean) ** 2)
        for start, block in chunks(rows)
    )
    variance = np.asarray(sum(square.sum(axis=0) for square in squares)) / joint.size
    # Rounding of the mean gives constant data a tiny variance: the range tells them apart.
    constant = (rows.max(axis=0) == rows.min(axis=0)) | (variance < SMALLEST_VARIANCE)
    held = constant if word == OR_HOLD else constant & _cannot_move(joint, where)
    refused = constant & ~held
    if refused.any() or (held.all() and joint.size == 1):
        i = where.start + (first_index(refused)[0] if refused.any() else 0)
        reason = "there is one sample" if joint.size == 1 else "all samples agree"
        raise ValueError(
            f"weights={word!r} needs data that varies, but {joint.coordinate(i)} does not "
            f"({reason}: {float(joint.matrix[0, i])!r}); give its weight as a number with "
            "{parameter: weights}, np.inf to keep it fixed"
            + ("." if joint.size == 1 else f"; weights={OR_HOLD!r} keeps all such entries fixed.")
        )
    return np.where(held, np.inf, np.where(held, 1.0, variance) ** (-power / 2))


def _cannot_move(joint: JointSamples, where: slice) -> np.ndarray:
    """The coordinates whose support is one point, as that of a road without a travel time."""
    if joint.width is None:
        return np.zeros(where.stop - where.start, dtype=bool)
    return joint.width[where] == 0.0


def _numbers(given: Any) -> np.ndarray:
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "fiu" or isinstance(given, bool):
            raise TypeError
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        shown = given if isinstance(given, numbers.Number | str) else type(given).__name__
        raise ValueError(f"weights of a cost must be positive numbers, got {shown!r}.") from None


def _unknown(key: Any, joint: JointSamples) -> ValueError:
    label = repr(key.name()) if isinstance(key, UncertainParameter) else repr(key)
    names = ", ".join(repr(parameter.name()) for parameter in joint.parameters)
    return ValueError(
        f"weights are given for {label}, which is not an uncertain parameter of the loss; the keys "
        f"must be the parameter objects {names}."
    )


def cost_on(
    cost: GroundCost, own: Sequence[UncertainParameter], every: Sequence[UncertainParameter]
) -> GroundCost:
    """The cost for an expression that contains some of the parameters of a problem.

    Exact where moves of the other parameters add to the cost, as in weighted norms and squares; a
    ValueError for costs that couple parameters.
    """
    ids = {p.id for p in own}
    others = [p for p in every if p.id not in ids]
    weights: Any = getattr(cost, "weights", None)
    if not others:
        return cost
    if not issubclass(getattr(cost, "bound", object), WeightedCost):
        names, absent = (", ".join(repr(p.name()) for p in some) for some in (own, others))
        raise ValueError(
            f"the cost {cost.describe()} may couple the parameters of the problem, of which an "
            f"expression contains {names} and not {absent}; use a cost that does not, such as "
            "SquaredEuclidean or Norm with weights, or give the constraint a ball of its own "
            "(ambiguity=)."
        )
    if isinstance(weights, Mapping):
        left_out = {p.id for p in others}
        known = {p: w for p, w in weights.items() if getattr(p, "id", None) not in left_out}
        return replace(cost, weights=known or None)  # type: ignore[type-var]
    return cost


# ------------------------------
# Any cost in other units: c'(delta') = c(u delta') / unit


def _inner_property(name: str) -> Any:
    """A property that forwards to the inner cost."""
    return property(attrgetter(f"inner.{name}"))


@dataclass(frozen=True, eq=False)
class RescaledCost(BoundCost):
    """A cost whose data is measured in units u, and which is itself measured in a unit.

    It is what the inner cost is, and knows what that knows: a move delta' is u delta', and a slope
    b' in the new data is b' / u in the old.

    Examples
    --------
    >>> metres = wdro.costs.BoundSquared(2)
    >>> kilometres = wdro.costs.RescaledCost(metres, units=np.full(2, 1000.0), unit=1e6)
    >>> kilometres.of_displacements(np.array([[3.0, 4.0]]))
    array([25.])
    """

    inner: BoundCost
    units: Array
    """u, (d,), positive."""
    unit: float

    dimension = _inner_property("dimension")
    is_quadratic = _inner_property("is_quadratic")
    is_norm = _inner_property("is_norm")
    is_conic = _inner_property("is_conic")
    has_smooth_dual_norm = _inner_property("has_smooth_dual_norm")
    is_separable = _inner_property("is_separable")
    order = _inner_property("order")
    exponent = _inner_property("exponent")
    may_forbid = _inner_property("may_forbid")
    frozen = _inner_property("frozen")
    couplings = _inner_property("couplings")

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
