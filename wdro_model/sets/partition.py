"""Partition matroids: so many items of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wdro_model.sets.arguments import as_count, is_integer
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.held_oracle import HeldOracle, Mask, nothing_left
from wdro_model.sets.items import ItemSet


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
    >>> import wdro_model as wdro
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

    def is_member(self, chosen: np.ndarray) -> bool:
        counts = np.bincount(self.group_of[chosen], minlength=len(self.groups))
        return bool(np.all(counts == self.capacities if self.bases else counts <= self.capacities))

    def describe(self) -> str:
        return (
            f"{'exactly' if self.bases else 'at most'} so many items of each of "
            f"{len(self.groups)} groups, {self.dimension} items in all{self._held_words()}"
        )

    def _hull(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        rows = (self.group_of == np.arange(len(self.groups))[:, None]).astype(np.float64)
        counts = rows @ flat
        limit = counts == self.capacities if self.bases else counts <= self.capacities
        return [flat >= 0, flat <= 1, limit]

    def _own_oracle(self) -> LinearOracle:
        return _CheapestOfGroups(self)

    def __repr__(self) -> str:
        return f"Partition({self.dimension} items in {len(self.groups)} groups)"


class _CheapestOfGroups(HeldOracle):
    """The cheapest items of each group."""

    def __init__(self, partition: Partition) -> None:
        self._set = partition

    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        partition, group_of = self._set, self._set.group_of
        count = len(partition.groups)
        left = partition.capacities - np.bincount(group_of[mandatory], minlength=count)
        free = ~forbidden & ~mandatory
        if not partition.bases:
            free &= direction < 0
        short = partition.bases and np.any(np.bincount(group_of[free], minlength=count) < left)
        if np.any(left < 0) or short:
            raise nothing_left(partition, forbidden, mandatory)
        order = np.flatnonzero(free)
        order = order[np.argsort(direction[order], kind="stable")]
        order = order[np.argsort(group_of[order], kind="stable")]
        groups = group_of[order]
        first = np.searchsorted(groups, np.arange(count))
        place = np.arange(order.size) - first[groups]  # of an item within its group, by cost
        vertex = mandatory.astype(np.float64)
        vertex[order[place < left[groups]]] = 1.0
        return vertex, 0.0


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
    return np.array([as_count(c, f"the capacity of group {key!r}", 0) for key, c in named])
