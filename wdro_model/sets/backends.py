"""Named implementations of an oracle, and real costs for backends that take integers.

A backend is a *factory*: called once with the set, it returns the oracle
`direction (n,) -> vertex (n,)` that the set then calls at each step. Another package offers one by
an entry point in the group `wdro_model.backends`, named after the set's class:

    [project.entry-points."wdro_model.backends"]
    "SpanningTree.mine" = "my_package.trees:factory"

With k = rint(c / u) for a unit u, a minimiser of <k, x> is one of <c, x> up to

    sum_i |c_i - u k_i| (upper_i - lower_i),

as c - u k moves the costs of any two points between the bounds apart by no more.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdro_model.compat import bounds_as_rows
from wdro_model.errors import unknown_name
from wdro_model.registry import loaded

Vector = NDArray[np.float64]
LinearOracle = Callable[[Vector], Vector]
Factory = Callable[[Any], LinearOracle]

ENTRY_POINT_GROUP = "wdro_model.backends"

_registered: dict[type, dict[str, Factory]] = {}


def register_backend(
    set_class: type, name: str, factory: Factory, *, replace: bool = False
) -> None:
    """Offer `factory` as the backend `name` of `set_class` (and of its subclasses).

    factory(set) -> oracle, with oracle(direction) -> vertex: a minimiser of `<direction, x>` over
    the set. A name that is taken is refused unless `replace` is true.

    Examples
    --------
    >>> import networkx as nx, numpy as np, wdro_model as wdro
    >>> def by_hand(tree):                          # called once, with the set
    ...     def minimize(direction):
    ...         graph, vertex = nx.Graph(), np.zeros(tree.dimension)
    ...         for i in np.argsort(direction, kind="stable"):
    ...             u, v = tree.edges[i]
    ...             if u not in graph or v not in graph or not nx.has_path(graph, u, v):
    ...                 graph.add_edge(u, v)
    ...                 vertex[i] = 1.0
    ...         return vertex
    ...     return minimize
    >>> wdro.sets.register_backend(wdro.sets.SpanningTree, "by_hand", by_hand)
    >>> tree = wdro.sets.SpanningTree(nx.complete_graph(4), backend="by_hand")
    >>> tree.minimize([1.0, 2.0, 3.0, 1.5, 4.0, 5.0])
    array([1., 0., 1., 1., 0., 0.])
    """
    if not isinstance(set_class, type):
        raise ValueError(
            f"register_backend takes the class of a set, got {set_class!r}; "
            "write register_backend(SpanningTree, 'mine', factory)."
        )
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a backend must be a non-empty string, got {name!r}.")
    if not callable(factory):
        raise ValueError(
            f"the factory of backend {name!r} must be callable, got {factory!r}; "
            "it takes the set and returns a function direction -> vertex."
        )
    known = _registered.setdefault(set_class, {})
    if name in known and not replace:
        raise ValueError(
            f"{set_class.__name__} already has a backend {name!r}; "
            "choose another name or pass replace=True."
        )
    known[name] = factory


def backend_names(set_class: type) -> tuple[str, ...]:
    """The names that `set_class` answers to: registered ones first, then those of packages."""
    names = dict.fromkeys(
        name for ancestor in set_class.__mro__ for name in _registered.get(ancestor, ())
    )
    names.update(dict.fromkeys(_packaged(set_class)))
    return tuple(names)


def find_backend(set_class: type, name: object) -> Factory:
    """The factory called `name`; a package that offers it is imported now, not before."""
    for ancestor in set_class.__mro__:
        factory = _registered.get(ancestor, {}).get(name)  # type: ignore[call-overload]
        if factory is not None:
            return factory
    entry = _packaged(set_class).get(str(name))
    if entry is None:
        raise ValueError(_unknown(set_class, name))
    factory = loaded(entry, "backend")
    if name not in _registered.get(set_class, {}):  # the module may have done it by itself
        register_backend(set_class, str(name), factory)
    return factory


def _unknown(set_class: type, name: object) -> str:
    known = backend_names(set_class)
    if known:
        return unknown_name(f"backend of {set_class.__name__}", name, known)
    if name == getattr(set_class, "default_backend", None):
        return (
            f"default_backend of {set_class.__name__} is {name!r}, which is not registered; call "
            f"register_backend({set_class.__name__}, {name!r}, factory) below the class."
        )
    return (
        f"{set_class.__name__} has no backend {name!r}: it has one way to be minimised; "
        f"register_backend({set_class.__name__}, {name!r}, factory) would add this one."
    )


def _packaged(set_class: type) -> dict[str, metadata.EntryPoint]:
    """Entry points for `set_class`, by the name of the backend; nothing is imported."""
    found = {}
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        owner, _, name = entry.name.partition(".")
        if name and owner in {ancestor.__name__ for ancestor in set_class.__mro__}:
            found[name] = entry
    return found


def reference_solver(problem: Any) -> Any:
    """CVXPY's solver for a check: accurate on every cone, where its default may not be."""
    return bounds_as_rows(problem, cp.HIGHS if problem.is_mixed_integer() else cp.CLARABEL)


Integers = NDArray[np.int64]
LARGEST = 2**62
"""Integers beyond this are not written: their differences would leave 64 bits."""
_SMALLEST = -1074
"""The exponent of the smallest positive number."""


def scaled_to_integers(costs: ArrayLike, limit: int) -> tuple[Integers, float]:
    """Whole numbers k of size at most `limit`, and a unit u > 0 with costs = u k up to rounding.

    The unit is as small as the limit allows, times the greatest common divisor of the integers:
    costs that are whole multiples of one number, within the limit, are represented exactly, and by
    small integers. It is a power of two times an integer, so that scaling itself rounds nothing.
    """
    given = np.asarray(costs, dtype=np.float64)
    if not 2 <= limit <= LARGEST:
        raise ValueError(f"the limit of scaled costs must lie between 2 and 2**62, got {limit!r}.")
    if not np.isfinite(given).all():
        at = int(np.flatnonzero(~np.isfinite(given))[0])
        raise ValueError(f"costs must be finite to be scaled, got {given.flat[at]} at index {at}.")
    largest = float(np.abs(given).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(given.shape, dtype=np.int64), 1.0
    exponent = max(int(np.frexp(largest)[1]) - (int(limit).bit_length() - 1), _SMALLEST)
    integers = np.rint(np.ldexp(given, -exponent)).astype(np.int64)
    divisor = int(np.gcd.reduce(integers, axis=None))
    if divisor > 1:
        integers //= divisor
    return integers, float(np.ldexp(float(max(divisor, 1)), exponent))


def rounding_slack(
    costs: ArrayLike, integers: Integers, unit: float, width: ArrayLike = 1.0
) -> float:
    """By how much at most a minimiser of <integers, x> costs more than one of <costs, x>.

    width: upper less lower bounds of the points, 1 for choices.
    """
    error = np.abs(np.asarray(costs, dtype=np.float64) - unit * integers.astype(np.float64))
    return float(np.sum(error * width))
