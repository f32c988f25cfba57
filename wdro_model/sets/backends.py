"""The named implementations of an oracle: built in, registered, or shipped by a package.

A backend is a *factory*: called once with the set, it returns the oracle
`direction (n,) -> vertex (n,)` that the set then calls at each step. Another package offers one by
an entry point in the group `wdro_model.backends`, named after the set's class:

    [project.entry-points."wdro_model.backends"]
    "SpanningTree.mine" = "my_package.trees:factory"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from wdro_model.bounds_as_rows import bounds_as_rows
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
