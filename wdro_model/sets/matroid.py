"""Matroids known by a function that tells whether a subset is independent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import blaming
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.held_oracle import HeldOracle, Mask, nothing_left
from wdro_model.sets.items import ItemSet

WRITTEN = 10
"""Matroids on at most so many items have a CVXPY form: a constraint for each subset."""
ORDERS = 8
"""Random orders in which the axioms are tried at declaration."""


class Matroid(ItemSet):
    """The independent sets of a matroid, or its bases; minimised by the greedy algorithm.

    Parameters
    ----------
    items
        Names, or their number n.
    independent
        A function of a set of names; at its declaration the matroid is tried in a few
        random orders, and refused where the greedy answers differ in size or a subset of an
        independent set is not independent.
    bases
        Only the independent sets of full size.

    Examples
    --------
    >>> import networkx as nx, wdro_model as wdro
    >>> edges = [("a", "b"), ("b", "c"), ("a", "c")]
    >>> def is_forest(chosen):
    ...     return not chosen or nx.is_forest(nx.Graph(chosen))
    >>> forests = wdro.sets.Matroid(edges, is_forest)
    >>> forests.selected(forests.minimize([-1.0, -2.0, -3.0]))
    [('b', 'c'), ('a', 'c')]
    """

    def __init__(
        self,
        items: Any,
        independent: Callable[[frozenset[Any]], bool],
        bases: bool = False,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(items)
        if not callable(independent):
            raise ValueError(
                f"independent must be a function of a set of {self.thing}s, got {independent!r}."
            )
        self.independent = independent
        self.bases = bool(bases)
        if not self._holds([]):
            raise ValueError("not a matroid: the empty set must be independent.")
        self.rank = self._checked_rank()
        self.has_constraints = self.dimension <= WRITTEN
        self.use_backend()
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: np.ndarray) -> bool:
        positions = np.flatnonzero(chosen).tolist()
        if self.bases and len(positions) != self.rank:
            return False
        return self._holds(positions)

    def extended(self, start: list[int], order: Iterable[int]) -> list[int]:
        """An independent set with, in turn, every item that leaves it independent."""
        chosen = list(start)
        for item in order:
            if self._holds([*chosen, item]):
                chosen.append(item)
        return chosen

    def describe(self) -> str:
        kind = "bases" if self.bases else "independent sets"
        return (
            f"{kind} of a matroid of rank {self.rank} on {self.dimension} items"
            f"{self._held_words()}, minimised greedily"
        )

    def _holds(self, positions: Iterable[int]) -> bool:
        with blaming("the function `independent` of a Matroid"):
            return bool(self.independent(frozenset(self.items[i] for i in positions)))

    def _checked_rank(self) -> int:
        """The size of a maximal independent set, the same for random orders; refused if not."""
        rng, sizes = np.random.default_rng(0), {}
        for _ in range(ORDERS):
            basis = self.extended([], rng.permutation(self.dimension).tolist())
            sizes[len(basis)] = basis
            part = [item for item in basis if rng.random() < 0.5]
            if not self._holds(part):
                raise ValueError(
                    f"not a matroid: {self._named(basis)} is independent and its part "
                    f"{self._named(part)} is not."
                )
            some = rng.permutation(self.dimension)[: rng.integers(1, self.dimension + 1)]
            found = [self.extended([], rng.permutation(some).tolist()) for _ in range(2)]
            if len(found[0]) != len(found[1]):
                sizes = {len(basis): basis for basis in found}
                break
        if len(sizes) > 1:
            small, large = (sizes[size] for size in (min(sizes), max(sizes)))
            raise ValueError(
                f"not a matroid: {self._named(small)} cannot be extended by an item of the larger "
                f"independent set {self._named(large)}, so that greedy answers would be wrong."
            )
        return next(iter(sizes))

    def _named(self, positions: list[int]) -> str:
        return "{" + ", ".join(repr(self.items[i]) for i in sorted(positions)) + "}"

    def _hull(self, x: Any) -> list[Any]:
        """x(S) <= rank(S) for every subset S: Edmonds' matroid polytope."""
        if not self.has_constraints:
            return super()._hull(x)
        flat, n = as_flat(x, self.dimension), self.dimension
        subsets = [list(s) for k in range(1, n + 1) for s in combinations(range(n), k)]
        rows = np.array([self._indicator(s) for s in subsets])
        ranks = np.array([len(self.extended([], s)) for s in subsets])
        written = [flat >= 0, rows @ flat <= ranks]
        return [*written, cp.sum(flat) == self.rank] if self.bases else written

    def _own_oracle(self) -> LinearOracle:
        return _Greedy(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dimension} items, rank={self.rank})"


class _Greedy(HeldOracle):
    """The cheapest items first, each if it leaves the set independent."""

    def __init__(self, matroid: Matroid) -> None:
        self._matroid = matroid

    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        matroid = self._matroid
        start = np.flatnonzero(mandatory).tolist()
        order = np.argsort(direction, kind="stable")
        free = ~forbidden & ~mandatory
        if not matroid.bases:
            free &= direction < 0
        if start and not matroid._holds(start):
            raise nothing_left(matroid, forbidden, mandatory)
        chosen = matroid.extended(start, order[free[order]].tolist())
        if matroid.bases and len(chosen) < matroid.rank:
            raise nothing_left(matroid, forbidden, mandatory)
        return matroid._indicator(chosen), 0.0
