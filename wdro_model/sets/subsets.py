"""Subsets of k items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.sets.arguments import as_count
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.held_oracle import HeldOracle, Mask, nothing_left
from wdro_model.sets.items import ItemSet


class Subsets(ItemSet):
    """The subsets of k items (at most k with `at_most`); their hull is the hypersimplex.

    Parameters
    ----------
    items
        Names, or their number n.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> teams = wdro.sets.Subsets(["Ann", "Bob", "Cid", "Dee"], k=2, mandatory=["Dee"])
    >>> teams.selected(teams.minimize([1.0, 2.0, 3.0, 9.0]))
    ['Ann', 'Dee']
    """

    has_constraints = True

    def __init__(
        self,
        items: Any,
        k: int,
        at_most: bool = False,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(items)
        self.k = as_count(k, "the size k of Subsets")
        if self.k > self.dimension:
            raise ValueError(
                f"Subsets of k = {self.k} items need as many, got {self.dimension} items."
            )
        self.at_most = bool(at_most)
        self.use_backend()
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: np.ndarray) -> bool:
        size = int(np.count_nonzero(chosen))
        return size <= self.k if self.at_most else size == self.k

    def describe(self) -> str:
        size = f"at most {self.k}" if self.at_most else str(self.k)
        return f"subsets of {size} of {self.dimension} items{self._held_words()}"

    def _hull(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        size = cp.sum(flat)
        return [flat >= 0, flat <= 1, size <= self.k if self.at_most else size == self.k]

    def _own_oracle(self) -> LinearOracle:
        return _Cheapest(self)

    def __repr__(self) -> str:
        return f"Subsets({self.dimension} items, k={self.k}, at_most={self.at_most})"


class _Cheapest(HeldOracle):
    """The k cheapest items."""

    def __init__(self, subsets: Subsets) -> None:
        self._set = subsets

    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        free = np.flatnonzero(~forbidden & ~mandatory)
        if self._set.at_most:
            free = free[direction[free] < 0]
        left = self._set.k - int(np.count_nonzero(mandatory))
        if left < 0 or (left > free.size and not self._set.at_most):
            raise nothing_left(self._set, forbidden, mandatory)
        if 0 < left < free.size:
            free = free[np.argpartition(direction[free], left - 1)[:left]]
        vertex = mandatory.astype(np.float64)
        if left:
            vertex[free] = 1.0
        return vertex, 0.0
