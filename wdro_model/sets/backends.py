"""Named implementations of an oracle, and whole costs for solvers that take integers.

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

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata
from typing import Any, ClassVar, Self

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdro_model.compat import bounds_as_rows
from wdro_model.errors import unknown_name
from wdro_model.registry import loaded

Vector = NDArray[np.float64]
LinearOracle = Callable[[Vector], Vector]
Answer = tuple[Vector, float]
"""A vertex, and its slack: by how much at most it costs more than the minimiser."""
Side = ArrayLike | None
"""Lower or upper bounds (n,) that a minimiser is to meet; None for none."""

ENTRY_POINT_GROUP = "wdro_model.backends"


class BoundedOracle(ABC):
    """An oracle that keeps to bounds by itself and knows how exact its answers are."""

    @abstractmethod
    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> tuple[Vector, float]:
        """A point between the bounds, and by how much at most it costs more than the best one."""

    def reset(self) -> None:  # noqa: B027
        """Forget what earlier calls left behind, such as rows or a basis."""


Factory = Callable[[Any], LinearOracle | BoundedOracle]
_registered: dict[type, dict[str, Factory]] = {}


def register_backend(
    set_class: type, name: str, factory: Factory, *, replace: bool = False
) -> None:
    """Offer `factory` as the backend `name` of `set_class` (and of its subclasses).

    factory(set) -> oracle, with oracle(direction) -> vertex: a minimiser of `<direction, x>` over
    the set. A name that is taken is refused unless `replace` is true.

    Examples
    --------
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
    packaged = {}
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        owner, _, name = entry.name.partition(".")
        if name and owner in {ancestor.__name__ for ancestor in set_class.__mro__}:
            packaged[name] = entry
    return packaged


def reference_solver(problem: Any) -> Any:
    """CVXPY's solver for a check: accurate on every cone, where its default may not be."""
    return bounds_as_rows(problem, cp.HIGHS if problem.is_mixed_integer() else cp.CLARABEL)


class Backends:
    """The part of a set that chooses among named backends.

    A set with backends names one as `default_backend` and ends its constructor with
    `self.use_backend(backend)`; one without writes `_own_oracle`, or its minimiser itself.
    """

    default_backend: ClassVar[str | None] = None
    backend: str | None = None
    _oracle: Any

    @classmethod
    def backends(cls) -> tuple[str, ...]:
        """The names that `backend=` accepts.

        Examples
        --------
        >>> wdro.sets.SpanningTree.backends()
        ('kruskal', 'numba', 'scipy', 'networkx', 'ortools', 'cvxpy'...)
        """
        return backend_names(cls)

    def with_backend(self, name: str) -> Self:
        """The same set, minimised by another backend.

        Examples
        --------
        >>> tree = wdro.sets.SpanningTree(nx.complete_graph(4))
        >>> tree.backend, tree.with_backend("scipy").backend
        ('kruskal', 'scipy')
        """
        twin = copy.copy(self)
        twin.use_backend(name)
        return twin

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend, of the class's default for None."""
        name = self.default_backend if backend is None else backend
        if name is None:
            self._oracle = self._own_oracle()
        else:
            oracle = find_backend(type(self), name)(self)
            if not callable(oracle) and not isinstance(oracle, BoundedOracle):
                raise ValueError(
                    f"the backend {name!r} of {type(self).__name__} is a factory: called with the "
                    f"set it must return a function direction -> vertex, it returned {oracle!r}."
                )
            self._oracle = oracle
        self.backend = name

    def _own_oracle(self) -> LinearOracle | BoundedOracle:
        """The oracle of a set that has no named backends."""
        raise NotImplementedError(
            f"{type(self).__name__} defines neither minimize(direction) nor a default_backend."
        )

    def __getstate__(self) -> dict[str, Any]:
        # Solver objects and closures stay in their process: the oracle is rebuilt on arrival.
        return {key: None if key == "_oracle" else value for key, value in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_oracle" in state:
            self.use_backend(self.backend)

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin


Integers = NDArray[np.int64]
LARGEST = 2**62
"""Largest whole cost: beyond it, differences of costs would leave 64 bits."""
SMALLEST_EXPONENT = -1074
"""Exponent of the smallest positive number."""


def scaled_to_integers(costs: ArrayLike, limit: int) -> tuple[Integers, float]:
    """Whole numbers k of size at most `limit`, and a unit u > 0 with costs = u k up to rounding.

    The unit is as small as the limit allows, times the greatest common divisor of the integers:
    costs that are whole multiples of one number, within the limit, are represented exactly, and by
    small integers. It is a power of two times an integer, so that scaling itself rounds nothing.
    """
    given = np.asarray(costs, dtype=np.float64)
    largest = float(np.abs(given).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(given.shape, dtype=np.int64), 1.0
    exponent = int(np.frexp(largest)[1]) - (int(limit).bit_length() - 1)
    exponent = max(exponent, SMALLEST_EXPONENT)
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


class OrToolsFlow:
    """OR-Tools' minimum cost flow on the arcs of a graph, in integers.

    Attributes
    ----------
    largest_cost: the largest cost of an arc: it is multiplied by the nodes in 64 bits.
    """

    def __init__(self, nodes: int, tails: Integers, heads: Integers, instead: str) -> None:
        """instead: the backend to use where costs would keep fewer than 20 bits; refused there."""
        from ortools.graph.python import min_cost_flow

        self._solver = min_cost_flow.SimpleMinCostFlow
        self._ends = tails.astype(np.int32), heads.astype(np.int32)
        self._nodes = np.arange(nodes, dtype=np.int32)
        self.largest_cost = min(2**44, 2**60 // (nodes + 1) ** 2)
        if self.largest_cost < 2**20:
            raise ValueError(
                f"backend 'ortools' rounds costs to integers and would keep fewer than 20 bits on "
                f"{nodes} nodes; use backend={instead!r}."
            )

    def solve(self, costs: Integers, capacity: Integers, supply: Integers) -> Vector | None:
        """A cheapest flow between 0 and capacities, None if there is no flow."""
        solver = self._solver()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(*self._ends, capacity, costs)
        solver.set_nodes_supplies(self._nodes, supply)
        status = solver.solve()
        if status == solver.INFEASIBLE:
            return None
        if status != solver.OPTIMAL:
            raise cp.error.SolverError(f"OR-Tools stopped with status {status} on the flow.")
        return solver.flows(arcs).astype(np.float64)
