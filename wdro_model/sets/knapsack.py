"""Subsets of items that fit into a knapsack: by dominance, OR-Tools or HiGHS."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from wdro_model import checks
from wdro_model.sets.arguments import as_flat, as_names
from wdro_model.sets.backends import (
    Answer,
    BoundedOracle,
    Integers,
    Vector,
    register_backend,
    rounding_slack,
    scaled_to_integers,
)
from wdro_model.sets.choices import ItemSet, Mask
from wdro_model.sets.cp_sat import CpSatOracle
from wdro_model.sets.hull import HullOracle
from wdro_model.uncertainty.samples import in_order


@dataclass(frozen=True)
class Tolerances:
    """Rounding errors that are forgiven, and the sizes up to which exact methods are tried."""

    capacity: float = 1e-12
    """Excess of sums of real weights over the capacity, relative to it: 0.1 + 0.2 fits in 0.3."""
    bound: float = 1e-11
    """Relative rounding of profits: bounds below the best profit by less are not cut off."""
    frontier: int = 500_000
    """Pairs on the frontier above which branch and bound takes over, to save memory."""
    hull_arcs: int = 20_000
    """Arcs of the network of loads up to which a knapsack has a CVXPY form."""
    whole_weight: int = 2**30
    """Largest weight for OR-Tools, which multiplies weights and profits in 62 bits."""


TOLERANCES = Tolerances()
KnapsackBackend = Literal["frontier", "ortools", "cpsat", "highs"]
"""The built-in backends; `register_backend` adds others."""


class Knapsack(ItemSet):
    """`{x in {0, 1}^n : <weights, x> <= capacity}`; items that cost nothing are left out.

    Backends: "frontier" (default: the loads and costs that no others beat, item by item, for real
    weights and costs), "ortools" and "cpsat" (whole weights; costs scaled to whole numbers, with
    the error in the slack), "highs" (branch and bound).

    Parameters
    ----------
    weights
        (n,), >= 0; a series or a dictionary is matched with the items.
    items
        Their names; 0, ..., n - 1 by default.

    Examples
    --------
    >>> bag = wdro.sets.Knapsack([3.0, 2.0, 2.0], capacity=4.0, items=["tent", "food", "rope"])
    >>> bag.selected(bag.minimize([-5.0, -3.0, -3.0]))              # minus what they are worth
    ['food', 'rope']
    """

    default_backend = "frontier"

    def __init__(
        self,
        weights: ArrayLike,
        capacity: float,
        items: Any = None,
        backend: KnapsackBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        labels = None if items is None else as_names(items, self.thing)
        self.weights = _as_weights(in_order(weights, labels, "the weights of a Knapsack"))
        self.capacity = checks.number("the capacity of a Knapsack", capacity, low=0)
        super().__init__(self.weights.size if items is None else items)
        if self.dimension != self.weights.size:
            raise ValueError(
                f"a Knapsack needs a weight for each item, got {self.weights.size} weights and "
                f"{self.dimension} items."
            )
        whole = bool(np.all(self.weights == np.floor(self.weights)))
        self.room = (
            np.floor(self.capacity) if whole else self.capacity * (1.0 + TOLERANCES.capacity)
        )
        self.bounds = (np.zeros(self.dimension), (self.weights <= self.room).astype(np.float64))
        self.has_constraints = self._loads() is not None
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: np.ndarray) -> bool:
        return bool(self.weights[chosen].sum() <= self.room * (1.0 + TOLERANCES.capacity))

    def describe(self) -> str:
        return (
            f"subsets of {self.dimension} items of weight at most {self.capacity:g}"
            f"{self._held_in_words}, minimised by {self.backend}"
        )

    def _loads(self) -> list[Vector] | None:
        """The loads that are reached before each item and after all; None if they are too many."""
        loads, count = [np.zeros(1)], 0
        for weight in self.weights:
            last = loads[-1]
            loads.append(
                np.unique(np.concatenate([last, last[last + weight <= self.room] + weight]))
            )
            count += 2 * last.size
            if count > TOLERANCES.hull_arcs:
                return None
        return loads

    def _hull(self, x: Any) -> list[Any]:
        """A unit of flow through the loads: at each item it is packed (x_i) or left.

        The network has no cycles and its paths are the packings, so that its flows are their
        convex combinations.
        """
        loads = self._loads()
        if loads is None:
            return super()._hull(x)
        first = np.cumsum([0, *(layer.size for layer in loads)])
        tails, heads, taken = [], [], []
        for i, weight in enumerate(self.weights):
            fits = np.flatnonzero(loads[i] + weight <= self.room)
            for states, load, which in ((np.arange(loads[i].size), 0.0, -1), (fits, weight, i)):
                tails.append(first[i] + states)
                heads.append(first[i + 1] + np.searchsorted(loads[i + 1], loads[i][states] + load))
                taken.append(np.full(states.size, which))
        tail, head, item = (np.concatenate(parts) for parts in (tails, heads, taken))
        arcs, inner = np.arange(tail.size), int(first[-2])
        ones = np.ones(arcs.size)
        shape = (int(first[-1]), arcs.size)
        leaves = sp.csr_array((ones, (tail, arcs)), shape=shape)
        arrives = sp.csr_array((ones, (head, arcs)), shape=shape)
        packs = item >= 0
        chosen = sp.csr_array(
            (ones[packs], (item[packs], arcs[packs])), shape=(self.dimension, arcs.size)
        )
        flow = cp.Variable(arcs.size, nonneg=True)
        return [
            (leaves - arrives)[:inner] @ flow == np.eye(1, inner).ravel(),
            as_flat(x, self.dimension) == chosen @ flow,
        ]

    def _capacity_row(self, x: Any) -> list[Any]:
        """<weights, x> <= capacity, in units of the largest weight, for 0 <= x <= 1."""
        unit = float(self.weights.max()) or 1.0
        return [x >= 0, x <= 1, (self.weights / unit) @ x <= self.capacity / unit]

    def __repr__(self) -> str:
        return f"Knapsack({self.dimension} items, capacity={self.capacity:g})"


def _as_weights(given: Any) -> Vector:
    """Weights (n,), finite and >= 0."""
    weights = checks.real_array("the weights of a Knapsack", given, hint="give a list of numbers")
    if weights.ndim != 1 or not weights.size:
        raise checks.refuse("the weights of a Knapsack", "a list of numbers", given)
    if np.any(weights < 0):
        index = int(np.argmax(weights < 0))
        raise ValueError(
            f"the weights of a Knapsack must be >= 0, got {weights[index]} at index {index}."
        )
    return weights.copy()


# ------------------------------------------------------------------ backends
class Packing(BoundedOracle):
    """Mandatory items are packed; the free ones that are worth it and fit are solved for."""

    def __init__(self, knapsack: Knapsack) -> None:
        self._set = knapsack

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        weights = self._set.weights
        room = self._set.room - float(weights @ lower)
        if room < -TOLERANCES.capacity * self._set.capacity:
            raise self._set.refusal(lower, upper)
        vertex = lower.copy()
        free = (direction < 0) & (weights <= room) & (upper > lower)
        vertex[free & (weights == 0)] = 1.0
        rest = np.flatnonzero(free & (weights > 0))
        if weights[rest].sum() <= room:
            vertex[rest] = 1.0
            return vertex, 0.0
        packing = self._packing(-direction[rest], weights[rest], room)
        if packing is None:
            return _highs(self._set).answer(direction, lower, upper)
        vertex[rest[packing[0]]] = 1.0
        return vertex, packing[1]

    @abstractmethod
    def _packing(self, profits: Vector, weights: Vector, room: float) -> tuple[Mask, float] | None:
        """The items to pack, of positive profits and weights, and the slack; None if too hard."""


class Frontier(Packing):
    """All pairs (load, profit) that no other beats, item by item, in the order of profit / weight.

    With U the fractional optimum, whose last item has the rate r = profit / weight, a packing that
    departs from it in item j has a profit of at most U - |profit_j - r weight_j|: where this does
    not reach a packing that is known, the item is settled. The others go through the frontier,
    where a pair is dropped if its profit with the fractional optimum of the items to come does not
    reach that packing.
    """

    def _packing(self, profits: Vector, weights: Vector, room: float) -> tuple[Mask, float] | None:
        order = np.argsort(-(profits / weights), kind="stable")
        profits, weights = profits[order], weights[order]
        known = _greedy(profits, weights, room)
        least = float(profits[known].sum())
        whole = int(np.searchsorted(np.cumsum(weights), room, side="right"))
        rate = profits[whole] / weights[whole]
        most = profits[:whole].sum() + (room - weights[:whole].sum()) * rate
        settled = most - np.abs(profits - rate * weights) < least * (1.0 - TOLERANCES.bound)
        inside = settled & (np.arange(order.size) < whole)
        left = np.flatnonzero(~settled)
        base = float(profits[inside].sum())
        rest = room - float(weights[inside].sum())
        best = np.empty(0, dtype=np.int64)
        if least < most:
            packing = frontier(profits[left], weights[left], rest, least - base)
            if packing is None:
                return None
            best = packing
        packed = known
        if best.size:
            packed = inside
            packed[left[best]] = True
        unsorted = np.zeros(order.size, dtype=bool)
        unsorted[order[packed]] = True
        return unsorted, 0.0


def frontier(
    profits: Vector, weights: Vector, room: float, least: float
) -> NDArray[np.int64] | None:
    """The packing of most profit, more than `least`; given by falling profit / weight.

    No item if there is no such packing; None if the frontier grows large.
    """
    n = profits.size
    ends, sums = (np.concatenate([[0.0], np.cumsum(part)]) for part in (weights, profits))
    rates = np.append(profits / weights, 0.0)
    margin = TOLERANCES.bound * float(sums[-1])
    best, end = least, (-1, -1)  # the last item of the best packing, and its place
    loads, values = np.zeros(1), np.zeros(1)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for i in range(n):
        fits = np.flatnonzero(loads + weights[i] <= room)
        places = np.concatenate([np.arange(loads.size), fits])
        taken = np.arange(places.size) >= loads.size
        loads, values = loads[places] + weights[i] * taken, values[places] + profits[i] * taken
        # By load, the better first; a pair stays if it is better than all lighter ones.
        order = np.lexsort((-values, loads))
        ahead = np.maximum.accumulate(values[order])
        order = order[np.concatenate([[True], ahead[1:] > ahead[:-1]])]
        reach = ends[i + 1] + (room - loads[order])
        last = np.minimum(np.searchsorted(ends, reach, side="right") - 1, n)
        bound = values[order] + sums[last] - sums[i + 1] + (reach - ends[last]) * rates[last]
        order = order[bound > best - margin]
        if not order.size:
            break
        if order.size > TOLERANCES.frontier:
            return None
        loads, values = loads[order], values[order]
        steps.append((places[order], taken[order]))
        top = int(np.argmax(values))
        if values[top] > best:
            best, end = float(values[top]), (i, top)
            if best >= bound.max():
                break
    packed, place = [], end[1]
    for i in range(end[0], -1, -1):
        places, taken = steps[i]
        if taken[place]:
            packed.append(i)
        place = int(places[place])
    return np.array(packed, dtype=np.int64)


def _greedy(profits: Vector, weights: Vector, room: float) -> Mask:
    """Every item that still fits, in turn."""
    packed = np.zeros(profits.size, dtype=bool)
    for i, weight in enumerate(weights.tolist()):
        if weight <= room:
            packed[i] = True
            room -= weight
    return packed


class OrToolsPacking(Packing):
    """OR-Tools' knapsack solver, for whole weights and profits."""

    def __init__(self, knapsack: Knapsack) -> None:
        super().__init__(knapsack)
        self._unit = _whole_weights(knapsack)[1]

    def _packing(self, profits: Vector, weights: Vector, room: float) -> tuple[Mask, float]:
        from ortools.algorithms.python import knapsack_solver

        loads = np.rint(weights / self._unit).astype(np.int64)
        most = min(int(room / self._unit * (1 + 1e-12)), int(loads.sum()))
        integers, unit = scaled_to_integers(profits, max(2, 2**61 // (profits.size * max(most, 1))))
        kinds = knapsack_solver.SolverType
        solver = knapsack_solver.KnapsackSolver(
            kinds.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "knapsack"
        )
        solver.init(integers.tolist(), [loads.tolist()], [most])
        solver.solve()
        packed = np.array([solver.best_solution_contains(i) for i in range(profits.size)])
        return packed, rounding_slack(profits, integers, unit)


def _whole_weights(knapsack: Knapsack) -> tuple[Integers, float]:
    """The weights as integers and their unit; a ValueError where they are not whole."""
    integers, unit = scaled_to_integers(knapsack.weights, TOLERANCES.whole_weight)
    if rounding_slack(knapsack.weights, integers, unit) > 0:
        raise ValueError(
            "OR-Tools takes knapsacks with whole weights, up to a common factor and 2**30; got "
            f"weights such as {knapsack.weights[int(np.argmax(knapsack.weights))]!r}. Use "
            "backend='frontier'."
        )
    return integers, unit


def _by_cp_sat(knapsack: Knapsack) -> CpSatOracle:
    from ortools.sat.python import cp_model

    weights, unit = _whole_weights(knapsack)
    most = min(int(knapsack.room / unit * (1 + 1e-12)), int(weights.sum()))
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in weights]
    model.add(cp_model.LinearExpr.weighted_sum(x, weights.tolist()) <= most)
    return CpSatOracle(knapsack, model, x)


def _highs(knapsack: Knapsack) -> HullOracle:
    return HullOracle(knapsack, knapsack._capacity_row)


register_backend(Knapsack, "frontier", Frontier)
register_backend(Knapsack, "ortools", OrToolsPacking)
register_backend(Knapsack, "cpsat", _by_cp_sat)
register_backend(Knapsack, "highs", _highs)
