"""Feasible sets: a dimension, and a minimiser of every linear function over the set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.errors import InfeasibleError
from wdro_model.registry import refuse_signature
from wdro_model.sets.arguments import as_bounds, as_direction, as_interval, is_integer
from wdro_model.sets.backends import Answer, Backends, BoundedOracle, Side, Vector, reference_solver
from wdro_model.sets.rounding import Rounding, is_binary


class FeasibleSet(Backends, Rounding):
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
    form_is_hull
        `constraints(x)` gives the convex hull of the set, and no more.
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

    bounds: tuple[Vector, Vector] | None = None
    nonnegative_directions: bool = False
    is_polytope: bool = True
    is_bounded: bool = True
    has_constraints: bool = False
    preferred_direction: str | None = None
    form_is_hull: bool = True
    own_direction: Any = None
    accuracy: float = 0.0
    names: Any = None
    calls: int = 0
    witness: Vector | None = None

    @cached_property
    def coordinates(self) -> dict[Any, int]:
        """The coordinate of each name; of an edge without a direction, also from its other end."""
        return {name: i for i, name in enumerate(self.names or ())}

    def minimize(self, direction: ArrayLike, lower: Side = None, upper: Side = None) -> Vector:
        """A point of the set that minimises `<direction, x>`, as a fresh array (n,).

        Parameters
        ----------
        lower, upper
            Bounds (n,) that the point meets as well, by `minimize_within`.

        Examples
        --------
        >>> wdro.sets.Simplex(3).minimize([2.0, 1.0, 3.0])
        array([0., 1., 0.])
        """
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        if not hasattr(self, "_oracle"):
            self.use_backend()
        return self._oracle(as_direction(direction, self.dimension))

    def minimize_within(self, direction: ArrayLike, lower: Side, upper: Side) -> Vector:
        """The best of the points within some bounds; an InfeasibleError if there is none.

        For sets of 0/1 points, where 1 in `lower` is mandatory and 0 in `upper` forbidden: by
        prices on `minimize`, for sets that know no better way.

        Examples
        --------
        >>> pairs = wdro.sets.Subsets(4, k=2)
        >>> pairs.minimize_within([1.0, 2.0, 3.0, 4.0], None, [0.0, 1.0, 1.0, 1.0])
        array([0., 1., 1., 0.])
        """
        unit = (np.zeros(self.dimension), np.ones(self.dimension))
        held = as_interval(lower, upper, unit, whole=True)
        prices = with_prices(self, as_direction(direction, self.dimension), *held)
        vertex = self.minimize(prices)
        check_held(self, vertex, *held)
        return vertex

    def minimize_with_slack(
        self, direction: ArrayLike, lower: Side = None, upper: Side = None
    ) -> Answer:
        """A point of the set, and by how much at most it costs more than the minimiser.

        The slack is 0 where the oracle is exact; one that knows a lower bound only returns the
        cost of its point less the bound.

        Examples
        --------
        >>> vertex, slack = wdro.sets.Simplex(3).minimize_with_slack([2.0, 1.0, 3.0])
        >>> vertex, slack
        (array([0., 1., 0.]), 0.0)
        """
        if lower is None and upper is None:
            return self.minimize(direction), 0.0
        return self.minimize_within(direction, lower, upper), 0.0

    def minimize_relaxed(self, direction: ArrayLike) -> Vector:
        """A minimiser over a larger set that is easier, where there is one: without integrality."""
        return self.minimize(direction)

    def vertex(self, direction: ArrayLike) -> Vector:
        """The answer of `minimize`, counted in `calls`; kept as a witness against later ones."""
        self.calls += 1
        self.witness = checked_vertex(self, self.minimize(direction))
        return self.witness.copy()

    def constraints(self, x: Any) -> list[Any]:
        """CVXPY constraints that say x (flattened in row-major order) is in the set's hull.

        Examples
        --------
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

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        """Is x within `tolerance` of the convex hull of the set (in the largest coordinate)?

        Examples
        --------
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(3))
        >>> tree.contains([2 / 3, 2 / 3, 2 / 3]), tree.contains([1.0, 1.0, 1.0])
        (True, False)
        """
        point = as_direction(x, self.dimension, kind="x")
        if self.bounds is not None:
            lower, upper = self.bounds
            if np.any(point < lower - tolerance) or np.any(point > upper + tolerance):
                return False
        return is_near(self, point, tolerance, lambda y: cvxpy_form(self, y))

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw a point of the set, by default with a bar for each coordinate.

        path: where to save the picture; ax: Matplotlib's axes to draw on. Returns the figure, which
        notebooks show, or `ax` where it is given.

        Examples
        --------
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
        >>> figure = tree.plot(tree.minimize([1, 2, 3, 4]))     # or tree.plot(x, "tree.png")
        """
        from wdro_model.sets.set_pictures import draw_bars

        names = range(self.dimension) if self.names is None else self.names
        return draw_bars(names, as_direction(np.ravel(x), self.dimension, kind="x"), path, ax)

    def check_nonempty(self) -> None:
        """Raise an InfeasibleError if the set is empty; sets that cannot be need not look."""

    def check_bounded(self) -> None:
        """Raise an UnboundedError if the set is unbounded; sets that cannot be need not look."""

    def seen_from(self, x: Vector) -> None:
        """Tell the set where a solver stands: unbounded sets are minimised over near this point."""

    def reset(self) -> None:
        """Forget what earlier calls left behind, so that a run can be repeated exactly."""
        oracle = getattr(self, "_oracle", None)
        if isinstance(oracle, BoundedOracle):
            oracle.reset()

    def is_current(self) -> bool:
        """Does the oracle still stand for the set (its parameters have the values used here)?"""
        return True

    def describe(self) -> str:
        """The set in one line, for `Problem.explain()`."""
        return repr(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension})"


class BoundedSet(FeasibleSet):
    """A set of the library, which keeps to bounds by itself: all that it writes is `answer`."""

    @abstractmethod
    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """A minimiser between bounds, if there are any, and its slack."""

    def minimize(self, direction: ArrayLike, lower: Side = None, upper: Side = None) -> Vector:
        return self.answer(as_direction(direction, self.dimension), lower, upper)[0]

    def minimize_within(self, direction: ArrayLike, lower: Side, upper: Side) -> Vector:
        return self.minimize(direction, lower, upper)

    def minimize_with_slack(
        self, direction: ArrayLike, lower: Side = None, upper: Side = None
    ) -> Answer:
        return self.answer(as_direction(direction, self.dimension), lower, upper)

    def interval(self, lower: Side, upper: Side, whole: bool = False) -> tuple[Vector, Vector]:
        """The set's own bounds (n,), narrowed by others."""
        assert self.bounds is not None
        if lower is None and upper is None:
            return self.bounds
        return as_interval(lower, upper, self.bounds, self.coordinate_label, whole)

    def coordinate_label(self, index: int) -> str:
        """The words for a coordinate in a message."""
        return f"coordinate {index}"

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where held coordinates leave no point."""
        return no_point_left(self, lower, upper)

    def refuse_bounds(self, lower: Side, upper: Side) -> None:
        """Raise a ValueError where a set that takes no bounds is given some."""
        if lower is None and upper is None:
            return
        way_out = (
            "write the bounds as constraints beside it, [In(x, set), x >= lower]"
            if self.has_constraints
            else "it has no CVXPY form either, so that bounds cannot be written beside it"
        )
        raise ValueError(f"{self!r} is not minimised within bounds; {way_out}.")


# ------------------------------------------------------------------ coordinates held by prices
class NonnegativeDirectionsError(ValueError):
    """A coordinate is mandatory in a set that takes nonnegative directions only."""


def with_prices(choices: FeasibleSet, direction: Vector, lower: Vector, upper: Vector) -> Vector:
    """The direction with a price on what is forbidden, and a reward for what is mandatory.

    1 in `lower` is mandatory, 0 in `upper` forbidden. Over 0/1 points and with M > 2 sum_i |g_i|,

        g_i + M where forbidden,   g_i - M where mandatory,

    a minimiser breaks as few of these as it can: none, if there is such a point.
    """
    if choices.nonnegative_directions and lower.any():
        raise NonnegativeDirectionsError(
            f"{choices!r} takes nonnegative directions only, so it cannot be made to choose a "
            "coordinate; hold coordinates at 0, or write minimize_within(direction, lower, upper)."
        )
    price = 4.0 * float(np.abs(direction).sum()) or 1.0
    return direction + price * (1.0 - upper) - price * lower


def check_held(choices: FeasibleSet, vertex: Vector, lower: Vector, upper: Vector) -> None:
    """Raise an InfeasibleError if a minimiser under prices breaks what is held."""
    if not is_binary(vertex):
        raise ValueError(
            f"coordinates of {choices!r} cannot be held: its points are not choices with entries 0 "
            "and 1."
        )
    if np.any(np.rint(vertex) < lower) or np.any(np.rint(vertex) > upper):
        raise no_point_left(choices, lower, upper)


def no_point_left(choices: object, lower: Vector, upper: Vector) -> InfeasibleError:
    """The error where held coordinates leave no point."""
    return InfeasibleError(
        f"{choices!r} has no point with {int(lower.sum())} mandatory and "
        f"{int((1.0 - upper).sum())} forbidden coordinates as asked."
    )


# ------------------------------------------------------------------ the constraint x in set
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
            given = f"the expression {x}" if isinstance(x, cp.Expression) else type(x).__name__
            raise ValueError(
                f"In(x, set) takes a cp.Variable first, got {given}; for an expression, give "
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


# ------------------------------------------------------------------ checks of answers
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
    if kind.__module__.startswith("wdro_model."):
        return
    owner = f"the set {kind.__name__}"
    if not is_integer(set.dimension) or set.dimension < 1:
        raise checks.refuse(f"dimension of {owner}", "a positive integer", set.dimension)
    for method in ("minimize", "minimize_with_slack"):
        refuse_signature(f"{method} of {owner}", getattr(set, method), "direction")
    if set.has_constraints and kind.constraints is FeasibleSet.constraints:
        raise ValueError(
            f"{owner} says has_constraints = True and lacks constraints(x), a list of CVXPY "
            "constraints."
        )
    if set.bounds is not None:
        as_bounds(set.bounds, (set.dimension,), owner)


def _brief(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_near(
    set: FeasibleSet, point: Vector, tolerance: float, constraints: Callable[[Any], list[Any]]
) -> bool:
    """Are the constraints met after a move of at most `tolerance` in each coordinate?"""
    nearest = cp.Variable(set.dimension)
    distance = cp.Minimize(cp.max(cp.abs(nearest - point)))
    problem = cp.Problem(distance, constraints(nearest))
    problem.solve(solver=reference_solver(problem))
    if problem.status not in cp.settings.SOLUTION_PRESENT:
        raise cp.error.SolverError(f"the distance to {set!r} was not found: {problem.status}.")
    return bool(problem.value <= tolerance)


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
