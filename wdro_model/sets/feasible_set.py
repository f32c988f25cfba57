"""What a feasible set is: a dimension, and a minimiser of every linear function over it."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Self

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.registry import refuse_signature
from wdro_model.sets.backends import (
    LinearOracle,
    Vector,
    backend_names,
    find_backend,
    reference_solver,
)
from wdro_model.sets.held import as_held, minimize_by_prices
from wdro_model.sets.vertices import Value, best_of, distance_to, is_binary, nearest_directions


class FeasibleSet(ABC):
    """A compact set of decisions x in R^n, known by its linear minimisation oracle.

    A subclass sets `dimension` and either writes `minimize`, or has named backends: it sets
    `default_backend`, ends its constructor with `self.use_backend(backend)`, and its module calls
    `register_backend`. Everything else is optional.

    Attributes
    ----------
    dimension
        n.
    bounds
        (lower (n,), upper (n,)) that every point satisfies, or None if none are known.
    nonnegative_directions
        The oracle is only valid for directions >= 0.
    is_polytope
        The (hull of the) set has finitely many vertices, and `minimize` returns one.
    is_bounded
        Linear functions have a minimum; else they are minimised near a point, `seen_from`.
    has_constraints
        `constraints(x)` gives the set in CVXPY.
    preferred_direction
        The Frank-Wolfe direction that suits the set best, by name; None to choose.
    own_direction
        A direction rule of the set's own, which goes first; None for no such.
    accuracy
        How far points of the set may lie outside it in each coordinate, by the tolerance of
        a solver; 0 where they are exact up to rounding.
    rounds
        A point can be rounded to a discrete one; None if the oracle's answers are to tell, by
        being 0/1 vectors.
    backend
        The name of the backend in use, None for a set with one way to be minimised.
    names
        What each coordinate stands for, where coordinates have labels.
    calls
        How often a solve has asked the oracle, by `vertex` or for a certificate.
    witness
        The last answer of `vertex`: a point that no minimum may exceed.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> class Choices(wdro.sets.FeasibleSet):
    ...     def __init__(self, n, k):
    ...         self.dimension, self.k = n, k
    ...     def minimize(self, direction):
    ...         vertex = np.zeros(self.dimension)
    ...         vertex[np.argsort(direction)[: self.k]] = 1.0
    ...         return vertex
    >>> print(wdro.sets.check(Choices(6, k=2)))
    Choices(dimension=6): passed (50 directions, 0 against its CVXPY form)
    """

    dimension: int
    default_backend: ClassVar[str | None] = None
    bounds: tuple[Vector, Vector] | None = None
    nonnegative_directions: bool = False
    is_polytope: bool = True
    is_bounded: bool = True
    has_constraints: bool = False
    preferred_direction: str | None = None
    own_direction: Any = None
    accuracy: float = 0.0
    rounds: bool | None = None
    backend: str | None = None
    names: Any = None
    calls: int = 0
    witness: Vector | None = None
    _oracle: LinearOracle

    @cached_property
    def coordinates(self) -> dict[Any, int]:
        """The coordinate of each name; of an edge without a direction, also from its other end."""
        return {name: i for i, name in enumerate(self.names or ())}

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        """A point of the set that minimises `<direction, x>`, as a fresh array (n,).

        Parameters
        ----------
        lower, upper
            Bounds (n,) that it meets as well, by `minimize_within`.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> wdro.sets.Simplex(3).minimize([2.0, 1.0, 3.0])
        array([0., 1., 0.])
        """
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        if not hasattr(self, "_oracle"):
            self.use_backend()
        return self._oracle(as_direction(direction, self.dimension))

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        """The same among the points within some bounds; an InfeasibleError if there is none.

        For sets of 0/1 points, where 1 in `lower` is mandatory and 0 in `upper` forbidden: by
        prices on `minimize`, for sets that know no better way.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> pairs = wdro.sets.Subsets(4, k=2)
        >>> pairs.minimize_within([1.0, 2.0, 3.0, 4.0], None, [0.0, 1.0, 1.0, 1.0])
        array([0., 1., 1., 0.])
        """
        held = as_held(lower, upper, self.dimension)
        return minimize_by_prices(self, as_direction(direction, self.dimension), *held)

    def minimize_with_slack(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> tuple[Vector, float]:
        """A point of the set, and by how much at most it costs more than the minimiser.

        The slack is 0 where the oracle is exact; one that knows a lower bound only returns the
        cost of its point less the bound.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> vertex, slack = wdro.sets.Simplex(3).minimize_with_slack([2.0, 1.0, 3.0])
        >>> vertex, slack
        (array([0., 1., 0.]), 0.0)
        """
        if lower is None and upper is None:
            return self.minimize(direction), 0.0
        return self.minimize_within(direction, lower, upper), 0.0

    def unguarded(self) -> FeasibleSet:
        """The set as one that does not look at its own answers; for `check`, which does."""
        return self

    def vertex(self, direction: ArrayLike) -> Vector:
        """The answer of `minimize`, counted in `calls`; kept as a witness against later ones."""
        self.calls += 1
        self.witness = checked_vertex(self, self.minimize(direction))
        return self.witness.copy()

    def minimize_relaxed(self, direction: ArrayLike) -> Vector:
        """A minimiser over a larger set that is easier, where there is one: without integrality."""
        return self.minimize(direction)

    def constraints(self, x: Any) -> list[Any]:
        """CVXPY constraints that say x (flattened in row-major order) is in the set's hull.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> x = cp.Variable(3)
        >>> simplex = wdro.sets.Simplex(3)
        >>> problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), simplex.constraints(x))
        >>> round(float(problem.solve()), 3)
        0.333
        """
        raise NotImplementedError(
            f"{self!r} is known by its oracle alone and has no CVXPY form: it cannot be "
            "intersected with other constraints or handed to a conic solver."
        )

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw a point of the set, by default with a bar for each coordinate.

        path: where to save the picture; ax: Matplotlib's axes to draw on. Returns the figure, which
        notebooks show, or `ax` where it is given.

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
        >>> figure = tree.plot(tree.minimize([1, 2, 3, 4]))     # or tree.plot(x, "tree.png")
        """
        from wdro_model.sets.set_pictures import draw_bars

        names = range(self.dimension) if self.names is None else self.names
        return draw_bars(names, as_direction(np.ravel(x), self.dimension, kind="x"), path, ax)

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        """Is x within `tolerance` of the convex hull of the set (in the largest coordinate)?

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(3))
        >>> tree.contains([2 / 3, 2 / 3, 2 / 3]), tree.contains([1.0, 1.0, 1.0])
        (True, False)
        """
        point = as_direction(x, self.dimension, kind="x")
        if self.bounds is not None and _outside(point, self.bounds, tolerance):
            return False
        nearest = cp.Variable(self.dimension)
        distance = cp.Minimize(cp.max(cp.abs(nearest - point)))
        problem = cp.Problem(distance, cvxpy_form(self, nearest))
        problem.solve(solver=reference_solver(problem))
        if problem.status not in cp.settings.SOLUTION_PRESENT:
            raise cp.error.SolverError(f"the distance to {self!r} was not found: {problem.status}.")
        return bool(problem.value <= tolerance)

    def round(
        self, x: ArrayLike, value: Value | None = None, candidates: Iterable[ArrayLike] = ()
    ) -> Vector:
        """A vertex in place of the point x of the hull, as a fresh array.

        The best of the given candidates (vertices of the set, such as those whose combination is
        x) and of the oracle's answers near x, judged by `value(vertex)`, by the distance to x
        without one; sets that know how to improve a vertex go on from there.

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(3))
        >>> tree.round([0.9, 0.9, 0.2])
        array([1., 1., 0.])
        """
        point = as_direction(x, self.dimension, kind="x")
        self.check_rounds()
        judge = distance_to(point) if value is None else value
        given = [self._discrete(vertex, f"candidate {k}") for k, vertex in enumerate(candidates)]
        best = best_of([*self._near(point), *given], judge)
        return best if value is None else self._improved(best, value)

    def check_rounds(self) -> None:
        """Raise a ValueError if points of the set are not to be rounded."""
        rounds = self.rounds
        if rounds is None:
            rounds = self._is_discrete(self.minimize(np.ones(self.dimension)))
        if not rounds:
            raise ValueError(
                f"{self!r} cannot be rounded to: its decisions are continuous, not choices such as "
                "trees and paths (vertices with entries 0 and 1); use the decision as it is."
            )

    def discrete_coordinates(self) -> np.ndarray:
        """Which coordinates `round` makes discrete, (n,); the others stay continuous."""
        return np.ones(self.dimension, dtype=bool)

    def discrete_near(self, x: ArrayLike) -> list[Vector]:
        """A few discrete points of the set near x."""
        return self._near(as_direction(x, self.dimension, kind="x"))

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Discrete points next to one, towards x first; none where a set knows nothing better."""
        return iter(())

    def is_vertex(self, x: ArrayLike) -> bool:
        """Is x discrete, one of the points that `round` chooses from?

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(3))
        >>> tree.is_vertex([1.0, 1.0, 0.0]), tree.is_vertex([0.9, 0.9, 0.2])
        (True, False)
        """
        return self._is_discrete(as_direction(x, self.dimension, kind="x"))

    def check_nonempty(self) -> None:  # noqa: B027
        """Raise an InfeasibleError if the set is empty; sets that cannot be need not look."""

    def check_bounded(self) -> None:  # noqa: B027
        """Raise an UnboundedError if the set is unbounded; sets that cannot be need not look."""

    def seen_from(self, x: Vector) -> None:  # noqa: B027
        """Where a solver stands: unbounded sets are minimised over near this point."""

    def reset(self) -> None:  # noqa: B027
        """Forget what earlier calls left behind, so that a run can be repeated exactly."""

    def is_current(self) -> bool:
        """Does the oracle still stand for the set (its parameters have the values used here)?"""
        return True

    def describe(self) -> str:
        """The set in one line, for `Problem.explain()`."""
        return repr(self)

    @classmethod
    def backends(cls) -> tuple[str, ...]:
        """The names that `backend=` accepts.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> wdro.sets.SpanningTree.backends()
        ('kruskal', 'numba', 'scipy', 'networkx', 'ortools', 'cvxpy'...)
        """
        return backend_names(cls)

    def with_backend(self, name: str) -> Self:
        """The same set, minimised by another backend.

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> tree = wdro.sets.SpanningTree(nx.complete_graph(4))
        >>> tree.backend, tree.with_backend("scipy").backend
        ('kruskal', 'scipy')
        """
        twin = copy.copy(self)
        twin.use_backend(name)
        return twin

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend, of the class's default for None.

        The last line of the constructor of a set with named backends.
        """
        name = self.default_backend if backend is None else backend
        if name is None:
            self._oracle = self._own_oracle()
        else:
            oracle = find_backend(type(self), name)(self)
            if not callable(oracle):
                raise ValueError(
                    f"the backend {name!r} of {type(self).__name__} is a factory: called with the "
                    f"set it must return a function direction -> vertex, it returned {oracle!r}."
                )
            self._oracle = oracle
        self.backend = name

    def _use(self, backend: str | None) -> None:
        self.use_backend(backend)

    def _near(self, x: Vector) -> list[Vector]:
        """Vertices near x."""
        directions = nearest_directions(x, self.nonnegative_directions)
        return [self._discrete(self.minimize(g), "the oracle's answer") for g in directions]

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is the point one of those that `round` chooses from?"""
        return is_binary(vertex)

    def _discrete(self, vertex: ArrayLike, what: str) -> Vector:
        """A vertex with its entries made whole; refused if it is none."""
        point = as_direction(vertex, self.dimension, kind=what)
        if not self._is_discrete(point):
            raise ValueError(
                f"{what} is not a discrete point of {self!r}, it is "
                f"{np.array2string(point, threshold=6, edgeitems=3, precision=4)}; rounding is for "
                "sets whose vertices are choices with entries 0 and 1."
            )
        return self._whole(point)

    def _whole(self, vertex: Vector) -> Vector:
        """A discrete point without a solver's rounding errors, as a fresh array."""
        return np.rint(vertex)

    def _improved(self, vertex: Vector, value: Value) -> Vector:
        """A vertex at least as good, by a search of the set's own."""
        return vertex

    def _own_oracle(self) -> LinearOracle:
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension})"


class In:
    """The constraint x in set, for the constraint list of a problem.

    `variable` may have any shape with as many entries as the set has dimensions; the set sees it
    flattened in row-major order.

    Examples
    --------
    >>> import cvxpy as cp, networkx as nx, wdro_model as wdro
    >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
    >>> x = cp.Variable(tree.dimension)
    >>> length = wdro.UncertainParameter(4, samples=[[1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]])
    >>> problem = wdro.Problem(cp.Minimize(length @ x), [wdro.In(x, tree)])
    >>> print(f"{problem.solve():.2f}")
    6.00
    """

    __slots__ = ("set", "variable")

    def __init__(self, x: Any, set: FeasibleSet) -> None:
        if not isinstance(x, cp.Variable):
            raise ValueError(
                f"In(x, set) takes a cp.Variable first, got {_named(x)}; for an expression, give "
                "the set a variable of its own, z = cp.Variable(set.dimension), and write "
                "[In(z, set), expression == z] (flattened; the set needs a CVXPY form)."
            )
        if not isinstance(set, FeasibleSet):
            raise ValueError(
                f"In(x, set) takes a feasible set second, got {type(set).__name__}; "
                "wrap a function direction -> vertex as Oracle(function, dimension)."
            )
        refuse_incomplete(set)
        if x.size != set.dimension:
            raise ValueError(
                f"variable {x.name()!r} has shape {x.shape}, so {x.size} entries, but {set!r} has "
                f"dimension {set.dimension}; declare it as cp.Variable({set.dimension})."
            )
        if x.is_complex():
            raise ValueError(f"variable {x.name()!r} is complex; feasible sets are real.")
        self.variable = x
        self.set = set

    def constraints(self) -> list[Any]:
        """The set's CVXPY form, written on the variable."""
        return cvxpy_form(self.set, self.variable)

    def __repr__(self) -> str:
        return f"In({self.variable.name()}, {self.set!r})"


def checked_vertex(set: FeasibleSet, answer: Any) -> Vector:
    """The answer of an oracle, if it is a point of R^n; the error names the set."""
    vertex = np.asarray(answer)
    if vertex.shape == (set.dimension,) and vertex.dtype.kind in "fiub":
        if np.isfinite(vertex).all():
            return vertex
        what = "numbers that are not finite"
    else:
        what = f"an array of shape {vertex.shape} and kind {vertex.dtype}"
    backend = "" if set.backend is None else f" with backend {set.backend!r}"
    raise ValueError(
        f"the oracle of {set!r}{backend} returned {what}; minimize(direction) must return a point "
        f"of the set, an array of {set.dimension} finite numbers."
    )


def checked_choice(set: FeasibleSet, answer: Any) -> Vector:
    """The answer of an oracle of choices, its entries made 0 and 1; refused if it is no choice."""
    vertex = checked_vertex(set, answer)
    if not is_binary(vertex):
        worst = float(vertex[int(np.argmax(np.abs(vertex - np.clip(np.rint(vertex), 0, 1))))])
        raise ValueError(
            f"the oracle of {set!r} returned an entry {worst:g}: a boolean variable needs a set "
            "whose points have entries 0 and 1; declare the variable without boolean=True, or "
            "solve(relax=True)."
        )
    return np.rint(vertex)


def refuse_incomplete(set: FeasibleSet) -> None:
    """A ValueError that names what the class of a set lacks, or has in another form than asked."""
    kind, lacks = type(set), []
    if not hasattr(set, "dimension"):
        lacks.append("dimension (the number of entries of its points)")
    has_backend = kind.default_backend is not None or hasattr(set, "_oracle")
    if kind.minimize is FeasibleSet.minimize and not has_backend:
        lacks.append("minimize(direction) -> vertex (or a default_backend)")
    if lacks:
        raise ValueError(f"the set {kind.__name__} lacks {' and '.join(lacks)}.")
    if not kind.__module__.startswith("wdro_model."):
        _refuse_forms(set, kind.__name__)


def _refuse_forms(set: FeasibleSet, name: str) -> None:
    n = set.dimension
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"dimension of the set {name} must be a positive integer, got {n!r}.")
    for method in ("minimize", "minimize_with_slack"):
        refuse_signature(f"{method} of the set {name}", getattr(set, method), "direction")
    if set.has_constraints and type(set).constraints is FeasibleSet.constraints:
        raise ValueError(
            f"the set {name} says has_constraints = True and lacks constraints(x), a list of CVXPY "
            "constraints."
        )
    if set.bounds is None:
        return
    try:
        lower, upper = (np.broadcast_to(np.asarray(b, dtype=float), (n,)) for b in set.bounds)
    except (TypeError, ValueError):
        raise ValueError(
            f"bounds of the set {name} must be None or a pair (lower, upper) of arrays of shape "
            f"({n},), got {_brief(set.bounds)}."
        ) from None
    if not np.all(lower <= upper):
        raise ValueError(
            f"bounds of the set {name} are crossed: its lower bounds are not all <= the upper "
            f"ones, got {_brief(set.bounds)}."
        )


def _brief(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def cvxpy_form(set: FeasibleSet, x: Any) -> list[Any]:
    """The answer of `constraints(x)`, if it is a list of constraints; the error names the set."""
    answer: Any = set.constraints(x)
    if isinstance(answer, list | tuple):
        return list(answer)
    raise ValueError(
        f"constraints(x) of {set!r} must return a list of CVXPY constraints, got "
        f"{type(answer).__name__}; write return [...]."
    )


def forgets_its_constraints(set: FeasibleSet) -> bool:
    """Has it `constraints` of its own, with `has_constraints` left at the default, False?"""
    written = type(set).constraints is not FeasibleSet.constraints
    said = "has_constraints" in vars(set) or any(
        "has_constraints" in vars(kind) for kind in type(set).__mro__ if kind is not FeasibleSet
    )
    return written and not said


def vertex_with_slack(set: FeasibleSet, direction: Vector) -> tuple[Vector, float]:
    """The answer of `minimize_with_slack`, if it is a point and a number."""
    vertex, slack = as_pair(set, set.minimize_with_slack(direction))
    return checked_vertex(set, vertex), slack


def as_pair(set: FeasibleSet, answer: Any) -> tuple[Any, float]:
    """A vertex and its slack; the error names the set that returned something else."""
    if isinstance(answer, tuple) and len(answer) == 2 and np.ndim(answer[1]) == 0:
        return answer[0], float(answer[1])
    raise ValueError(
        f"minimize_with_slack(direction) of {set!r} must return a pair (vertex, slack), got "
        f"{_brief(answer)}; the slack of an exact oracle is 0."
    )


def _named(x: Any) -> str:
    """What was given in place of a variable, for a message."""
    return f"the expression {x}" if isinstance(x, cp.Expression) else type(x).__name__


def as_direction(direction: ArrayLike, dimension: int, kind: str = "direction") -> Vector:
    """The direction as a float64 array (n,), finite; the caller's own array if it is one."""
    given = np.asarray(direction)
    if given.dtype.kind not in "fiubO":
        hint = "take its real part" if given.dtype.kind == "c" else "convert it with float()"
        raise ValueError(f"{kind} must be real numbers, got dtype {given.dtype}; {hint}.")
    vector = np.asarray(given, dtype=np.float64)
    if vector.shape != (dimension,):
        raise ValueError(f"{kind} must have shape ({dimension},), got {vector.shape}.")
    if not np.isfinite(vector).all():
        index = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise ValueError(f"{kind} must be finite, got {vector[index]} at index {index}.")
    return vector


def as_flat(x: Any, dimension: int) -> Any:
    """A CVXPY expression as a vector (n,), in row-major order."""
    x = cp.Expression.cast_to_const(x)
    if x.size != dimension:
        raise ValueError(f"x must have {dimension} entries, got shape {x.shape}.")
    return x if x.ndim == 1 else cp.vec(x, order="C")


def _outside(point: Vector, bounds: tuple[Vector, Vector], tolerance: float) -> bool:
    lower, upper = bounds
    return bool(np.any(point < lower - tolerance) or np.any(point > upper + tolerance))
