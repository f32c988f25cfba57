"""Matroids: k-subsets, partitions, independence tests, bases of a submodular function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model import checks
from wdro_model.errors import blaming
from wdro_model.sets.arguments import as_flat, as_names, is_integer
from wdro_model.sets.backends import Answer, Side, Vector
from wdro_model.sets.choices import ItemSet, Mask
from wdro_model.sets.feasible_set import BoundedSet


class Subsets(ItemSet):
    """The subsets of k items (at most k with `at_most`); their hull is the hypersimplex.

    Parameters
    ----------
    items
        Names, or their number n.

    Examples
    --------
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
        self.k = checks.whole_number("the size k of Subsets", k, low=1)
        if self.k > self.dimension:
            raise ValueError(
                f"Subsets of k = {self.k} items need as many, got {self.dimension} items."
            )
        self.at_most = bool(at_most)
        self.use_backend()
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: Mask) -> bool:
        size = int(np.count_nonzero(chosen))
        return size <= self.k if self.at_most else size == self.k

    def describe(self) -> str:
        size = f"at most {self.k}" if self.at_most else str(self.k)
        return f"subsets of {size} of {self.dimension} items{self._held_in_words}"

    def _hull(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        size = cp.sum(flat)
        return [flat >= 0, flat <= 1, size <= self.k if self.at_most else size == self.k]

    def best(self, direction: Vector, lower: Vector, upper: Vector) -> Vector:
        """The k cheapest items."""
        free = np.flatnonzero(upper > lower)
        if self.at_most:
            free = free[direction[free] < 0]
        left = self.k - int(np.count_nonzero(lower))
        if left < 0 or (left > free.size and not self.at_most):
            raise self.refusal(lower, upper)
        if 0 < left < free.size:
            free = free[np.argpartition(direction[free], left - 1)[:left]]
        vertex = lower.copy()
        if left:
            vertex[free] = 1.0
        return vertex

    def __repr__(self) -> str:
        return f"Subsets({self.dimension} items, k={self.k}, at_most={self.at_most})"


# ------------------------------
# Partition matroids: so many items of each group


class Partition(ItemSet):
    """At most `capacities` items of each group; exactly so many with `bases`.

    Parameters
    ----------
    groups
        Lists of names, each name in one of them; or a dict of such lists by the group's name.
    capacities
        A number for all groups, a list, or a dict with the keys of `groups`.

    Examples
    --------
    >>> courses = {"soup": ["leek", "bean"], "main": ["fish", "rice"]}
    >>> menu = wdro.sets.Partition(courses, 1, bases=True)
    >>> menu.selected(menu.minimize([2.0, 1.0, 4.0, 3.0]))
    ['bean', 'rice']
    """

    has_constraints = True

    def __init__(
        self,
        groups: Any,
        capacities: Any,
        bases: bool = False,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        keys, lists = _as_groups(groups)
        super().__init__([item for members in lists for item in members])
        self.groups = keys
        self.group_of = np.repeat(np.arange(len(keys)), [len(members) for members in lists])
        self.capacities = _as_capacities(capacities, keys)
        self.bases = bool(bases)
        sizes = np.bincount(self.group_of, minlength=len(keys))
        if self.bases and np.any(self.capacities > sizes):
            at = int(np.flatnonzero(self.capacities > sizes)[0])
            raise ValueError(
                f"the group {keys[at]!r} has {sizes[at]} items and {self.capacities[at]} are asked "
                "for; lower its capacity, or leave out bases=True."
            )
        self.use_backend()
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: Mask) -> bool:
        counts = np.bincount(self.group_of[chosen], minlength=len(self.groups))
        return bool(np.all(counts == self.capacities if self.bases else counts <= self.capacities))

    def describe(self) -> str:
        return (
            f"{'exactly' if self.bases else 'at most'} so many items of each of "
            f"{len(self.groups)} groups, {self.dimension} items in all{self._held_in_words}"
        )

    def _hull(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        rows = (self.group_of == np.arange(len(self.groups))[:, None]).astype(np.float64)
        counts = rows @ flat
        limit = counts == self.capacities if self.bases else counts <= self.capacities
        return [flat >= 0, flat <= 1, limit]

    def best(self, direction: Vector, lower: Vector, upper: Vector) -> Vector:
        """The cheapest items of each group."""
        group_of = self.group_of
        count = len(self.groups)
        left = self.capacities - np.bincount(group_of[lower > 0], minlength=count)
        free = upper > lower
        if not self.bases:
            free &= direction < 0
        short = self.bases and np.any(np.bincount(group_of[free], minlength=count) < left)
        if np.any(left < 0) or short:
            raise self.refusal(lower, upper)
        order = np.flatnonzero(free)
        order = order[np.argsort(direction[order], kind="stable")]
        order = order[np.argsort(group_of[order], kind="stable")]
        groups = group_of[order]
        first = np.searchsorted(groups, np.arange(count))
        place = np.arange(order.size) - first[groups]  # of an item within its group, by cost
        vertex = lower.copy()
        vertex[order[place < left[groups]]] = 1.0
        return vertex

    def __repr__(self) -> str:
        return f"Partition({self.dimension} items in {len(self.groups)} groups)"


def _as_groups(groups: Any) -> tuple[tuple[Any, ...], list[list[Any]]]:
    """The groups' names and their members."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise ValueError(f"groups are given as lists of items, or a dict of such, got {groups!r}.")
    pairs = list(groups.items()) if isinstance(groups, Mapping) else list(enumerate(groups))
    for key, members in pairs:
        if isinstance(members, str) or not isinstance(members, Iterable):
            raise ValueError(f"the group {key!r} must be a list of items, got {members!r}.")
    return tuple(key for key, _ in pairs), [list(members) for _, members in pairs]


def _as_capacities(capacities: Any, keys: tuple[Any, ...]) -> np.ndarray:
    if is_integer(capacities):
        capacities = [capacities] * len(keys)
    if isinstance(capacities, Mapping):
        if set(capacities) != set(keys):
            raise ValueError(
                f"capacities must have the keys of the groups, {list(keys)}, got "
                f"{list(capacities)}."
            )
        capacities = [capacities[key] for key in keys]
    if not isinstance(capacities, Iterable) or len(list(capacities)) != len(keys):
        raise ValueError(
            f"capacities must be a number or one for each of {len(keys)} groups, got "
            f"{capacities!r}."
        )
    named = zip(keys, capacities)
    return np.array(
        [checks.whole_number(f"the capacity of group {key!r}", c, low=0) for key, c in named]
    )


# ------------------------------
# Matroids known by a function that tells whether a subset is independent


LARGEST_WRITTEN = 10
"""Items up to which there is a CVXPY form: it has a constraint for each subset."""
ORDERS = 8
"""Random orders in which the axioms of a matroid are tried at declaration."""
PAIRS = 50
"""Random pairs of subsets for which submodularity is tried at declaration."""
ROUNDING = 1e-9
"""Error of a sum of values of f, relative to them, that does not count against submodularity."""


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
        self.has_constraints = self.dimension <= LARGEST_WRITTEN
        self.use_backend()
        self.hold(forbidden, mandatory)

    def is_member(self, chosen: Mask) -> bool:
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
            f"{self._held_in_words}, minimised greedily"
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
                    f"not a matroid: {_braced(self.items, basis)} is independent and its part "
                    f"{_braced(self.items, part)} is not."
                )
            some = rng.permutation(self.dimension)[: rng.integers(1, self.dimension + 1)]
            bases = [self.extended([], rng.permutation(some).tolist()) for _ in range(2)]
            if len(bases[0]) != len(bases[1]):
                sizes = {len(basis): basis for basis in bases}
                break
        if len(sizes) > 1:
            small, large = (_braced(self.items, sizes[k]) for k in (min(sizes), max(sizes)))
            raise ValueError(
                f"not a matroid: {small} cannot be extended by an item of the larger independent "
                f"set {large}, so that greedy answers would be wrong."
            )
        return next(iter(sizes))

    def _hull(self, x: Any) -> list[Any]:
        """x(S) <= rank(S) for every subset S: Edmonds' matroid polytope."""
        if not self.has_constraints:
            return super()._hull(x)
        flat, n = as_flat(x, self.dimension), self.dimension
        subsets = [list(s) for k in range(1, n + 1) for s in combinations(range(n), k)]
        rows = np.array([self.indicator(s) for s in subsets])
        ranks = np.array([len(self.extended([], s)) for s in subsets])
        written = [flat >= 0, rows @ flat <= ranks]
        return [*written, cp.sum(flat) == self.rank] if self.bases else written

    def best(self, direction: Vector, lower: Vector, upper: Vector) -> Vector:
        """The cheapest items first, each if it leaves the set independent."""
        start = np.flatnonzero(lower).tolist()
        order = np.argsort(direction, kind="stable")
        free = upper > lower
        if not self.bases:
            free &= direction < 0
        if start and not self._holds(start):
            raise self.refusal(lower, upper)
        chosen = self.extended(start, order[free[order]].tolist())
        if self.bases and len(chosen) < self.rank:
            raise self.refusal(lower, upper)
        return self.indicator(chosen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dimension} items, rank={self.rank})"


def _braced(items: tuple[Any, ...], positions: list[int]) -> str:
    """A subset as a message shows it."""
    return "{" + ", ".join(repr(items[i]) for i in sorted(positions)) + "}"


# ------------------------------
# The base polytope of a submodular function


class BasePolytope(BoundedSet):
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
        self.has_constraints = self.dimension <= LARGEST_WRITTEN

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        self.refuse_bounds(lower, upper)
        order = np.argsort(direction, kind="stable").tolist()
        values = [self._value(order[:k]) for k in range(1, self.dimension + 1)]
        vertex = np.empty(self.dimension)
        vertex[order] = np.diff([0.0, *values])
        return vertex, 0.0

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
            raise ValueError(f"f must be finite, got {value} for {_braced(self.items, positions)}.")
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
        for _ in range(PAIRS if self.dimension > 1 else 0):
            i, j, *others = rng.permutation(self.dimension).tolist()
            base = [k for k in others if rng.random() < 0.5]
            corners = (base, [*base, i], [*base, j], [*base, i, j])
            values = [self._value(s) for s in corners]
            gain, later = values[1] - values[0], values[3] - values[2]
            if later > gain + ROUNDING * max(map(abs, values)):
                small, large = (_braced(self.items, subset) for subset in (base, [*base, j]))
                raise ValueError(
                    f"f is not submodular: {self.items[i]!r} adds {gain:g} to {small} and "
                    f"{later:g} to {large}; what an item adds must not grow."
                )
