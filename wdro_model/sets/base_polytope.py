"""The base polytope of a submodular function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import blaming
from wdro_model.sets.arguments import as_names, bounds_refused
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat

WRITTEN = 10
"""Functions of at most so many items have a CVXPY form: a constraint for each subset."""
TRIED = 50
"""Random pairs of subsets for which submodularity is tried at declaration."""
ROUNDING = 1e-9


class BasePolytope(FeasibleSet):
    """{x : x(S) <= f(S) for every subset S, x(N) = f(N)}, minimised by the greedy algorithm.

    Parameters
    ----------
    f
        A submodular function of a set of items, f(A) + f(B) >= f(A | B) + f(A & B), with
        f(empty set) = 0; tried on random subsets at declaration.
    items
        Their names, or their number n.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> permutations = wdro.sets.BasePolytope(lambda chosen: sum(range(4 - len(chosen), 4)), 3)
    >>> permutations.minimize([0.1, 0.3, 0.2])
    array([3., 1., 2.])
    """

    def __init__(self, f: Callable[[frozenset[Any]], float], items: Any) -> None:
        self.items = self.names = as_names(items, "item")
        self.dimension = len(self.items)
        if not callable(f):
            raise ValueError(f"f must be a function of a set of items, got {f!r}.")
        self.f = f
        self._check_submodular()
        everything = list(range(self.dimension))
        total = self._value(everything)
        upper = np.array([self._value([i]) for i in everything])
        without = [self._value(everything[:i] + everything[i + 1 :]) for i in everything]
        self.bounds = (np.minimum(total - np.array(without), upper), upper)
        self.has_constraints = self.dimension <= WRITTEN

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        order = np.argsort(as_direction(direction, self.dimension), kind="stable").tolist()
        values = [self._value(order[:k]) for k in range(1, self.dimension + 1)]
        vertex = np.empty(self.dimension)
        vertex[order] = np.diff([0.0, *values])
        return vertex

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        raise bounds_refused(self)

    def constraints(self, x: Any) -> list[Any]:
        """A constraint for each subset, for at most 10 items."""
        if not self.has_constraints:
            return super().constraints(x)
        flat, n = as_flat(x, self.dimension), self.dimension
        subsets = [list(s) for k in range(1, n) for s in combinations(range(n), k)]
        written = [cp.sum(flat) == self._value(list(range(n)))]
        if subsets:
            rows = np.zeros((len(subsets), n))
            for row, subset in zip(rows, subsets):
                row[subset] = 1.0
            written.append(rows @ flat <= np.array([self._value(s) for s in subsets]))
        return written

    def describe(self) -> str:
        return f"the base polytope of a submodular function of {self.dimension} items"

    def __repr__(self) -> str:
        return f"BasePolytope({self.dimension} items)"

    def _value(self, positions: list[int]) -> float:
        with blaming("the function f of a BasePolytope"):
            value = float(self.f(frozenset(self.items[i] for i in positions)))
        if not np.isfinite(value):
            raise ValueError(f"f must be finite, got {value} for {self._named(positions)}.")
        return value

    def _check_submodular(self) -> None:
        """f(S + i) - f(S) >= f(S + i + j) - f(S + j), for random S, i and j."""
        nothing = self._value([])
        if nothing != 0:
            raise ValueError(
                f"f of the empty set must be 0, got {nothing:g}; subtract it, "
                "lambda S: f(S) - f(frozenset())."
            )
        rng = np.random.default_rng(0)
        for _ in range(TRIED if self.dimension > 1 else 0):
            i, j, *others = rng.permutation(self.dimension).tolist()
            base = [k for k in others if rng.random() < 0.5]
            corners = (base, [*base, i], [*base, j], [*base, i, j])
            values = [self._value(s) for s in corners]
            gain, later = values[1] - values[0], values[3] - values[2]
            if later > gain + ROUNDING * max(map(abs, values)):
                raise ValueError(
                    f"f is not submodular: {self.items[i]!r} adds {gain:g} to {self._named(base)} "
                    f"and {later:g} to {self._named([*base, j])}; what an item adds must not grow."
                )

    def _named(self, positions: list[int]) -> str:
        return "{" + ", ".join(repr(self.items[i]) for i in sorted(positions)) + "}"
