"""Subsets of items that fit into a knapsack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from wdro_model.sets.arguments import as_names, as_positive
from wdro_model.sets.backends import Vector, register_backend
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.items import ItemSet
from wdro_model.sets.knapsack_backends import (
    CpSatPacking,
    Frontier,
    HighsPacking,
    OrToolsPacking,
)
from wdro_model.uncertainty.data_frames import in_order

ARCS = 20_000
"""Knapsacks whose network of loads has at most so many arcs have a CVXPY form."""
ROUNDING = 1e-12
"""How far sums of real weights may exceed the capacity, relative to it: 0.1 + 0.2 fits in 0.3."""

KnapsackBackend = Literal["frontier", "ortools", "cpsat", "highs"]
"""Those that are built in; `register_backend` adds others."""


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
    >>> import wdro_model as wdro
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
        self.capacity = as_positive(capacity, "the capacity of a Knapsack", or_zero=True)
        super().__init__(self.weights.size if items is None else items)
        if self.dimension != self.weights.size:
            raise ValueError(
                f"a Knapsack needs a weight for each item, got {self.weights.size} weights and "
                f"{self.dimension} items."
            )
        whole = bool(np.all(self.weights == np.floor(self.weights)))
        self.room = np.floor(self.capacity) if whole else self.capacity * (1.0 + ROUNDING)
        self.bounds = (np.zeros(self.dimension), (self.weights <= self.room).astype(np.float64))
        self.has_constraints = self._loads() is not None
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: np.ndarray) -> bool:
        return bool(self.weights[chosen].sum() <= self.room * (1.0 + ROUNDING))

    def describe(self) -> str:
        return (
            f"subsets of {self.dimension} items of weight at most {self.capacity:g}"
            f"{self._held_words()}, minimised by {self.backend}"
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
            if count > ARCS:
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

    def __repr__(self) -> str:
        return f"Knapsack({self.dimension} items, capacity={self.capacity:g})"


def _as_weights(weights: ArrayLike) -> Vector:
    try:
        given = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"the weights of a Knapsack must be a list of numbers, got {weights!r}."
        ) from None
    if given.ndim != 1 or not given.size:
        raise ValueError(
            f"the weights of a Knapsack must be a list of numbers, got shape {given.shape}."
        )
    wrong = ~(np.isfinite(given) & (given >= 0))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"the weights of a Knapsack must be finite and >= 0, got {given[at]} at index {at}."
        )
    return given


register_backend(Knapsack, "frontier", Frontier)
register_backend(Knapsack, "ortools", OrToolsPacking)
register_backend(Knapsack, "cpsat", CpSatPacking)
register_backend(Knapsack, "highs", HighsPacking)
