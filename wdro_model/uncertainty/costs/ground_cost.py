"""Ground costs c(xi, zeta), the cost of moving xi to zeta: as declared, and on given samples.

A bound cost states its kind (`is_norm`, `is_quadratic`, `is_separable`) and has operations: its
dual norm, the move that attains it, its gradient. The base class computes operations that follow
from others, and raises `UnknownToCost` for those that are missing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable as Function
from dataclasses import dataclass
from functools import cached_property
from inspect import isfunction
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.errors import UnknownToCost, blaming, function_name
from wdro_model.registry import refuse_signature
from wdro_model.uncertainty.costs.budgets import small_moves
from wdro_model.uncertainty.samples import one_if_equal

if TYPE_CHECKING:
    from wdro_model.uncertainty.joint import JointSamples

Array = np.ndarray


@dataclass(frozen=True)
class Tolerances:
    """Sizes up to which operations of a user's cost are computed from its values."""

    most_pairs: int = 500
    """Coordinates up to which a matrix is computed, from the cost of moves along all pairs."""
    most_unit_moves: int = 10_000
    """Coordinates up to which the cost of a unit move of each one is computed."""
    drawn_moves: int = 2000
    """Draws for the mean cost of a normal move, which err by a few percent."""
    move_entries: int = 2**20
    """Numbers in the moves whose cost is computed at once: 8 MiB."""


TOLERANCES = Tolerances()


class BoundCost(ABC):
    """A ground cost on the d coordinates of joint samples.

    A subclass needs `dimension`, `describe` and either `of_displacements` or, where the cost
    depends on the points themselves, `__call__`. All else is optional: `is_norm` and `dual_norm`
    give exact counterparts on R^d, `steepest_move` their worst cases, `gradient` lower bounds by
    ascent. `costs.operations` lists the operations of a class.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class BoundLargest(wdro.costs.BoundCost):
    ...     dimension: int
    ...     is_norm = True
    ...     def describe(self):
    ...         return "max_i |xi_i - zeta_i|"
    ...     def of_displacements(self, delta):
    ...         return np.abs(delta).max(axis=1)
    ...     def dual_norm(self, slope):
    ...         return cp.norm1(slope)
    >>> cost = BoundLargest(3)
    >>> cost(np.zeros((1, 3)), np.array([[1.0, -2.0, 0.5]]))
    array([2.])
    >>> cost.knows("dual_norm"), cost.knows("steepest_move")
    (True, False)
    """

    dimension: int
    """d."""

    # ------------------------------------------------------------------ kinds of costs
    is_quadratic: bool = False
    """True if c = delta' P delta."""
    is_norm: bool = False
    """True if c is a norm of the move: of order 1, homogeneous, the same everywhere."""
    is_conic: bool = False
    """True if `conjugate` and `perspective` are known, which bounded supports need."""
    has_smooth_dual_norm: bool = False
    """True if the dual norm has a gradient at every slope but 0."""

    @property
    def is_separable(self) -> bool:
        """True if c is a sum of costs of the coordinates, each with its weight."""
        return False

    @property
    def order(self) -> float | None:
        """p with c(t delta) = t^p c(delta) for t > 0; None where there is no such p."""
        return 1.0 if self.is_norm else 2.0 if self.is_quadratic else None

    @property
    def exponent(self) -> float | None:
        """p with c = (sum_i |s_i delta_i|^p)^(1/p), s the coordinate scales, for such a norm."""
        return None

    @cached_property
    def frozen(self) -> Array:
        """The mask (d,) of coordinates that keep their observed value."""
        return np.broadcast_to(False, (self.dimension,))

    def knows(self, operation: str) -> bool:
        """True if the cost has the operation, or operations from which it is computed."""
        if class_knows(type(self), operation):
            return True
        is_derived = operation in ("matrix", "inverse_times")
        return is_derived and (class_knows(type(self), "matrix") or self._has_a_matrix)

    # ------------------------------------------------------------------ its values
    def __call__(self, origins: Array, points: Array) -> Array:
        """c(origin, point) row by row: (B, d), (B, d) -> (B,)."""
        return self.of_displacements(points - origins)

    def of_displacements(self, delta: Array) -> Array:
        """The cost (B,) of moving by each row of delta (B, d)."""
        self._unknown(
            "of_displacements", "it depends on the points, price them with cost(origins, points)."
        )

    @abstractmethod
    def describe(self) -> str:
        """The formula, with the weights that were resolved."""

    def gradient(self, delta: Array) -> Array:
        """A (sub)gradient of the cost in the move, row by row: (B, d) -> (B, d)."""
        self._unknown("gradient")

    # ------------------------------------------------------------------ its weights
    @property
    def coordinate_weights(self) -> Array:
        """w (d,) with c = sum_i w_i |delta_i|^p, p the order, if c is separable; inf if frozen."""
        self._unknown("coordinate_weights", "it couples the coordinates.")

    @cached_property
    def coordinate_scales(self) -> Array:
        """The length c(e_i)^(1/p) of a unit move of each coordinate, (d,); infinite if frozen."""
        if self.order is None or self.dimension > TOLERANCES.most_unit_moves:
            self._unknown("coordinate_scales")
        step = max(1, TOLERANCES.move_entries // max(1, self.dimension))
        blocks = (
            np.eye(min(step, self.dimension - k), self.dimension, k)
            for k in range(0, self.dimension, step)
        )
        lengths = np.concatenate([self.of_displacements(block) for block in blocks])
        return np.where(self.frozen, np.inf, lengths ** (1.0 / self.order))

    @property
    def matrix(self) -> Array:
        """P (d, d) of a quadratic cost; by default computed from moves of two coordinates."""
        if not self._has_a_matrix:
            self._unknown("matrix")
        return self._by_pairs

    @property
    def _has_a_matrix(self) -> bool:
        """True for a quadratic cost of few coordinates, all of which move."""
        known = self.is_quadratic and class_knows(type(self), "of_displacements")
        return known and self.dimension <= TOLERANCES.most_pairs and not np.any(self.frozen)

    @cached_property
    def _by_pairs(self) -> Array:
        """P, from c(e_i + e_j) = P_ii + 2 P_ij + P_jj."""
        units = np.eye(self.dimension)
        alone = self.of_displacements(units)
        both = np.array([self.of_displacements(units + unit) for unit in units])
        matrix = (both - alone - alone[:, None]) / 2
        return (matrix + matrix.T) / 2

    @cached_property
    def couplings(self) -> Any | None:
        """A sparse matrix (rows, d): the nonzeros of a row are coupled; None if there are none."""
        if self.is_separable:
            return None
        return sp.csr_array((~np.asarray(self.frozen)).astype(float)[None])

    # ------------------------------------------------------------------ its dual norm
    def dual_norm(self, slope: Any) -> Any:
        """The largest `<slope, delta>` over moves of length c^(1/p) <= 1, as a CVXPY expression.

        Coordinates that are frozen do not count.
        """
        self._unknown("dual_norm")

    def dual_norms(self, slopes: Array) -> Array:
        """The dual norm of each row of slopes (..., d), as numbers."""
        if not self.knows("dual_norm"):
            self._unknown("dual_norms")
        flat = np.reshape(slopes, (-1, self.dimension))
        numbers = [float(self.dual_norm(cp.Constant(slope)).value) for slope in flat]
        return np.reshape(numbers, np.shape(slopes)[:-1])

    def combined(self, rates: list[Any]) -> Any:
        """The dual norm of a slope from those of its parts on disjoint coordinates (CVXPY)."""
        self._unknown("combined")

    def whitened(self, slope: Any) -> Any:
        """A slope (d,) in coordinates in which the dual norm is a plain one (CVXPY)."""
        self._unknown("whitened")

    def steepest_move(self, slope: Array) -> Array:
        """delta (d,) of length 1 with `<slope, delta>` = |slope|_dual; 0 if the dual norm is 0."""
        self._unknown("steepest_move")

    def inverse_times(self, slopes: Array) -> Array:
        """P^-1 times each row of slopes (..., d), of a quadratic cost."""
        if not self.knows("inverse_times"):
            self._unknown("inverse_times")
        flat = np.reshape(slopes, (-1, self.dimension))
        return np.linalg.solve(self.matrix, flat.T).T.reshape(np.shape(slopes))

    # ------------------------------------------------------------------ in convex programs
    def conjugate(self, slopes: Any, price: Any) -> tuple[Any | None, list[Any]]:
        """`sup_delta <u, delta> - price c(delta)` for each row u of slopes (n, d), CVXPY.

        (values (n,) or None for zeros, constraints under which they are finite).
        """
        self._unknown("conjugate")

    def perspective(self, moves: Any, shares: Any) -> tuple[Any, list[Any]]:
        """sum_k q_k c(v_k / q_k) for rows v_k of moves (n, d) and shares q (n,), CVXPY."""
        self._unknown("perspective")

    # ------------------------------------------------------------------ in integrals
    def rounded(self, moves: Array, rounding: Array) -> tuple[Array, Array]:
        """A smooth approximation of the cost (B,) and its gradient (B, d).

        Kinks are rounded off over the lengths `rounding`.
        """
        self._unknown("rounded")

    def quadratic_model(self, moves: Array, variance: Array) -> Array:
        """q (B, d) with c ~ sum_i q_i delta_i^2 near the moves (B, d), within this variance."""
        self._unknown("quadratic_model")

    # ------------------------------------------------------------------ radii and scales
    def distance(self, radius: float) -> float:
        """The radius as a length, radius^(1/p)."""
        if self.order is None:
            self._unknown("distance", "it has no order.")
        return radius if self.order == 1.0 else float(radius ** (1.0 / self.order))

    def default_sigma(self, radius: float, joint: JointSamples) -> float | Array:
        """Standard deviations of normal moves that cost radius / 2 on average."""
        free = ~np.asarray(self.frozen)
        if self.order is None:
            order, scale = small_moves(self, joint)
            return float((radius / (2 * scale)) ** (1 / order) / np.sqrt(max(1, free.sum())))
        lengths = np.where(free, self.coordinate_scales, 1.0)
        count = max(
            100, min(TOLERANCES.drawn_moves, TOLERANCES.move_entries // max(1, self.dimension))
        )
        moves = np.random.default_rng(0).standard_normal((count, self.dimension)) / lengths
        mean = float(self.of_displacements(np.where(free, moves, 0.0)).mean())
        if not 0 < mean < math.inf:
            self._unknown("default_sigma", "pass sigma=...")
        return one_if_equal((radius / (2 * mean)) ** (1.0 / self.order) / lengths)

    # ------------------------------------------------------------------ in other coordinates
    def rescaled(self, units: Array, unit: float) -> BoundCost:
        """c' with c(u delta') = unit c'(delta'): data in units u (d,), the cost in `unit`."""
        return RescaledCost(self, np.asarray(units, dtype=float), float(unit))

    def restricted(self, where: Array) -> BoundCost:
        """The cost of moves of the coordinates with these indices; the others stay fixed."""
        if np.array_equal(where, np.arange(self.dimension)):
            return self
        self._unknown("restricted")

    def _unknown(self, operation: str, way_out: str | None = None) -> NoReturn:
        kind = "method" if isfunction(getattr(BoundCost, operation)) else "property"
        raise UnknownToCost(
            f"the cost {self.describe()} does not know its {operation}: "
            + (way_out or f"give {type(self).__name__} the {kind} {operation}.")
        )


def class_knows(bound: type, operation: str) -> bool:
    """True if a class of costs has the operation, or operations from which it is computed."""
    if getattr(bound, operation) is not getattr(BoundCost, operation):
        return True
    return operation == "dual_norms" and class_knows(bound, "dual_norm")


class GroundCost(ABC):
    """A transport cost, not yet tied to parameters.

    Examples
    --------
    >>> cost = wdro.costs.SquaredEuclidean(weights="standardize")
    >>> isinstance(cost, wdro.costs.GroundCost)
    True
    >>> print(cost.describe())
    sum_i w_i (xi_i - zeta_i)^2, weights standardize
    """

    order: float | None
    """p if c is a distance to the power p; None if unknown."""
    bound: ClassVar[type[BoundCost]]
    """The class of the bound cost that `bind` returns."""

    @abstractmethod
    def bind(self, joint: JointSamples) -> BoundCost:
        """The cost on the coordinates of these samples; ValueError if it does not fit them."""

    def bound_to(self, joint: JointSamples) -> BoundCost:
        """The bound cost, whose dimension, order and shape of values are checked."""
        name = type(self).__name__
        try:
            bound = self.bind(joint)
        except TypeError:
            refuse_signature(f"bind of the cost {name}", self.bind, "joint")
            raise
        if not isinstance(bound, BoundCost) or getattr(bound, "dimension", None) != joint.dimension:
            raise ValueError(
                f"bind of the cost {name} must return a BoundCost with dimension="
                f"{joint.dimension}, the coordinates of all uncertain parameters together "
                f"({', '.join(p.name() for p in joint.parameters)}); it returned "
                f"{type(bound).__name__} with dimension={getattr(bound, 'dimension', None)}."
            )
        rows = next(iter(joint.blocks(2)))  # without a copy of all rows
        costs = np.asarray(bound(rows, rows))
        if costs.shape != (len(rows),) or costs.dtype.kind not in "fiu":
            raise ValueError(
                f"the cost {bound.describe()} must give an array of numbers of shape "
                f"({len(rows)},) for moves of shape {rows.shape}, got {costs.dtype} of shape "
                f"{costs.shape}; wdro_model.testing.check_cost tests all that it says of itself."
            )
        if bound.order is not None and self.order not in (None, bound.order):
            raise ValueError(
                f"the cost {name} is declared of order {self.order!r}, but what it binds has order "
                f"{bound.order!r}; both are p for a distance to the power p, or None."
            )
        return bound

    @abstractmethod
    def describe(self) -> str:
        """The formula."""


# ------------------------------------------------------------------ c'(delta') = c(u delta') / unit
def _inner_property(name: str) -> Any:
    """A property that forwards to the inner cost."""
    return property(attrgetter(f"inner.{name}"))


@dataclass(frozen=True, eq=False)
class RescaledCost(BoundCost):
    """A cost of data in units u, measured in a unit of its own.

    It has the kind and the operations of the inner cost. A move delta' is u delta' for the inner
    cost, and a slope b' is b' / u.

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
    frozen = _inner_property("frozen")
    couplings = _inner_property("couplings")

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
        # The factor is inside the norm, so that all numbers of a program have one size.
        return self.inner.dual_norm(cp.multiply(self._length / self.units, slope))

    def dual_norms(self, slopes: Array) -> Array:
        return self.inner.dual_norms(slopes * (self._length / self.units))

    def combined(self, rates: list[Any]) -> Any:
        return self.inner.combined(rates)

    def whitened(self, slope: Any) -> Any:
        return self.inner.whitened(cp.multiply(self._length / self.units, slope))

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
        """unit^(1/p), the length 1 of this cost in the lengths of the inner cost."""
        return self.inner.distance(self.unit)


# ------------------------------------------------------------------ a function of the user
Pairs = Function[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class BoundUserCost(BoundCost):
    """The cost function(origins (B, d), points (B, d)) -> costs (B,), checked at each call.

    Examples
    --------
    >>> cost = wdro.costs.BoundUserCost(2, lambda a, b: np.abs(b - a).max(axis=1))
    >>> cost(np.zeros((1, 2)), np.array([[3.0, -4.0]]))
    array([4.])
    """

    dimension: int
    function: Pairs

    def __call__(self, origins: Array, points: Array) -> Array:
        with blaming(f"the cost {function_name(self.function)}"):
            returned = self.function(origins, points)
        costs = np.asarray(returned, dtype=np.float64)
        if costs.shape != (len(points),):
            raise ValueError(
                f"cost {function_name(self.function)} must return {len(points)} numbers, shape "
                f"({len(points)},), for points of shape {points.shape}; it returned shape "
                f"{costs.shape}."
            )
        if not np.all(costs >= 0):
            row = int(np.argmin(costs >= 0))
            raise ValueError(
                f"cost {function_name(self.function)} must be nonnegative, got "
                f"{float(costs[row])} in row {row}; a transport cost is zero at rest and positive "
                "otherwise."
            )
        return costs

    def describe(self) -> str:
        return f"{function_name(self.function)}(xi, zeta)"


@dataclass(frozen=True, eq=False)
class Callable(GroundCost):
    """A cost given as a function(origins (B, d), points (B, d)) -> costs (B,).

    The rows are the parameters flattened row-major, side by side in the order of the loss. Costs
    are nonnegative (np.inf forbids a move) and zero for a point that does not move.

    Parameters
    ----------
    order
        p if the cost is a distance to the power p, for `WassersteinBall.order`.

    Examples
    --------
    >>> def cube(origins, points):
    ...     return np.linalg.norm(points - origins, axis=1) ** 3
    >>> ball = wdro.WassersteinBall.order(3, 0.5, wdro.costs.Callable(cube, order=3))
    >>> ball.radius
    0.125
    """

    function: Pairs
    order: float | None = None
    bound = BoundUserCost

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"a cost function must be callable, got {self.function!r}.")

    def bind(self, joint: JointSamples) -> BoundUserCost:
        bound = BoundUserCost(joint.dimension, self.function)
        rows = joint.matrix[:8]
        still = bound(rows, rows)
        if np.any(np.abs(still) > 1e-9):
            worst = int(np.argmax(np.abs(still)))
            raise ValueError(
                f"cost {function_name(self.function)} must be zero for a point that does not move, "
                f"got {float(still[worst])!r} at sample {worst}; subtract it or correct the cost."
            )
        return bound

    def describe(self) -> str:
        return f"{function_name(self.function)}(xi, zeta)"
