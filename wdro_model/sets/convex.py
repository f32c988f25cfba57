"""The set that a list of CVXPY constraints describes, with an oracle that is compiled once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.sets.arguments import as_direction, as_flat
from wdro_model.sets.backends import Answer, LinearOracle, Side, Vector, reference_solver
from wdro_model.sets.cone_program import ConeProgram, canonicalise, twin_of
from wdro_model.sets.deadlines import Unproven
from wdro_model.sets.feasible_set import FeasibleSet, is_near
from wdro_model.sets.persistent import (
    Empty,
    PersistentSolver,
    Unbounded,
    linear_oracle,
    persistent_solver,
)
from wdro_model.sets.rounding import is_whole

LARGEST_NEIGHBOURHOOD = 50
"""Neighbours of an integer point that are looked for, of each kind."""
UNRESTRICTED = 1e6
"""Bound that stands for no bound on a coordinate's change, relative to the largest coordinate."""


class ConvexSet(FeasibleSet):
    """{x : constraints}, x being the variables' values in turn, each in row-major order.

    Linear constraints are minimised over by HiGHS (a vertex), cones by Clarabel (a point to 1e-8),
    linear constraints with integer variables by HiGHS' branch and bound: the set is then the convex
    hull of its integer points. Variables of the constraints that are not in `variables` are
    auxiliary: the set is the projection on `variables`.

    Parameters of the constraints keep the value they have now; `is_current()` tells whether a value
    has changed since.

    Examples
    --------
    >>> x = cp.Variable(2)
    >>> polytope = wdro.sets.ConvexSet([x >= 0, x[0] + 2 * x[1] <= 4], x)
    >>> polytope.minimize([-1.0, -1.0])
    array([4., 0.])
    """

    has_constraints = True
    accuracy = 1e-5

    def __init__(self, constraints: Iterable[Any], variables: Any) -> None:
        self.variables = _as_variables(variables)
        self.dimension = sum(variable.size for variable in self.variables)
        self._constraints = _as_constraints(constraints)
        self._parameters = {
            parameter: np.array(parameter.value)
            for parameter in _parameters(self._constraints, self.variables)
        }
        self._program = canonicalise(self._constraints, self.variables)
        self.is_polytope = self._program.is_linear
        self.rounds = self._program.is_integer
        lower, upper = self._program.decision.interval(self._program.lower, self._program.upper)
        if np.any(np.isfinite(lower)) or np.any(np.isfinite(upper)):
            self.bounds = (lower, upper)
        self.use_backend()

    @property
    def program(self) -> ConeProgram:
        """The constraints as a cone program."""
        return self._program

    def constraints(self, x: Any = None) -> list[Any]:
        """The user's constraints; for an x other than the set's variables, a copy of them on x."""
        if x is None or self._owns(x):
            return list(self._constraints)
        return self._constraints_on(x, relaxed=False)

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        """Does x satisfy the constraints up to a move of `tolerance`? Integrality is left aside."""
        point = as_direction(x, self.dimension, kind="x")
        return is_near(self, point, tolerance, lambda y: self._constraints_on(y, relaxed=True))

    def check_nonempty(self) -> None:
        """Raise InfeasibleError if no point satisfies the constraints."""
        self.minimize(np.zeros(self.dimension))

    def check_bounded(self) -> None:
        """Raise UnboundedError if the set is unbounded.

        A closed convex set that is unbounded contains a half-line; its slope is not orthogonal to a
        random direction g, almost surely, so that minimising g or -g shows it. Integer points are
        as unbounded as the relaxation, if there are any.
        """
        direction = np.random.default_rng(0).standard_normal(self.dimension)
        self.minimize_relaxed(direction)
        self.minimize_relaxed(-direction)

    def minimize_with_slack(
        self, direction: ArrayLike, lower: Side = None, upper: Side = None
    ) -> Answer:
        """A minimiser and its slack, or the best integer point when the time of a solve ends."""
        try:
            return super().minimize_with_slack(direction, lower, upper)
        except Unproven as left:
            return left.point, left.slack

    def minimize_relaxed(self, direction: ArrayLike) -> Vector:
        """A minimiser without integrality: a linear program in place of branch and bound."""
        if not self._program.is_integer:
            return self.minimize(direction)
        continuous = np.zeros_like(self._program.integer)
        return self._minimizer(replace(self._program, integer=continuous))[1](
            as_direction(direction, self.dimension)
        )

    def is_current(self) -> bool:
        """Do the parameters of the constraints still have the values used here?"""
        return all(
            parameter.value is not None and np.array_equal(parameter.value, value)
            for parameter, value in self._parameters.items()
        )

    def reset(self) -> None:
        """Forget the basis of the last call."""
        self._solver.reset()

    def describe(self) -> str:
        """The cones, and the solver they are given to."""
        program = self._program
        if program.is_integer:
            kind, solver = "linear constraints and integers (their convex hull)", "HiGHS"
        elif program.is_linear:
            kind, solver = "linear constraints", "HiGHS"
        else:
            kind, solver = "convex cones", "Clarabel"
        names = ", ".join(f"{v.name()} {v.shape}" for v in self.variables)
        return f"{kind} on {names}, minimised by {solver}"

    def __repr__(self) -> str:
        names = ", ".join(variable.name() for variable in self.variables)
        return f"ConvexSet({len(self._constraints)} constraints on {names})"

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_solver": None}

    def _own_oracle(self) -> LinearOracle:
        self._solver, minimize = self._minimizer(self._program)
        return minimize

    def _minimizer(self, program: ConeProgram) -> tuple[PersistentSolver, LinearOracle]:
        """A solver that stays alive, and the oracle that asks it."""
        solver = persistent_solver(program)
        oracle = linear_oracle(program, solver)

        def minimize(direction: Vector) -> Vector:
            try:
                return oracle(direction)
            except Empty:
                raise InfeasibleError(self._empty_message()) from None
            except Unbounded as error:
                raise UnboundedError(self._unbounded_message(error.ray)) from None

        return solver, minimize

    def discrete_coordinates(self) -> np.ndarray:
        """A mask (n,) of the entries of x that belong to integer or boolean variables."""
        return np.concatenate([integer_entries(variable) for variable in self.variables])

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The nearest points in which an integer entry differs, or one is up and another down.

        Entries in which x is farthest from the vertex come first, and move towards x;
        `LARGEST_NEIGHBOURHOOD` of a kind are looked for.
        """
        nearest, whole = NearestPoint(self), np.flatnonzero(self.discrete_coordinates())
        apart = x - vertex
        order = whole[np.argsort(-np.abs(apart[whole]), kind="stable")]
        signs = {k: (1.0, -1.0) if apart[k] == 0 else (float(np.sign(apart[k])),) for k in order}
        ups, downs = ([k for k in order if way in signs[k]] for way in (1.0, -1.0))
        single = ({k: way} for k in order for way in signs[k])
        pairs = ({i: 1.0, j: -1.0} for i in ups for j in downs if i != j)
        for moves in chain(
            islice(single, LARGEST_NEIGHBOURHOOD), islice(pairs, LARGEST_NEIGHBOURHOOD)
        ):
            other = nearest.after_moves(vertex, moves)
            if other is not None:
                yield self.without_errors(other)

    def discrete_near(self, x: ArrayLike) -> list[Vector]:
        """The nearest points of the set itself, with integers, in the sum of absolute changes.

        Where some coordinates are continuous, these and the others also count alone.
        """
        point = as_direction(x, self.dimension, kind="x")
        whole, nearest = self.discrete_coordinates(), NearestPoint(self)
        every = np.ones(whole.size, dtype=bool)
        near = [
            nearest(point, counted)
            for counted in ([every] if whole.all() else [every, whole, ~whole])
        ]
        return [self.discrete(other, "the solver's answer") for other in near]

    def is_vertex(self, x: ArrayLike) -> bool:
        """Are the entries of integer variables integers?"""
        return is_whole(as_direction(x, self.dimension, kind="x")[self.discrete_coordinates()])

    def _owns(self, x: Any) -> bool:
        given = tuple(x) if isinstance(x, (list, tuple)) else (x,)
        return [id(v) for v in given] == [id(v) for v in self.variables]

    def _constraints_on(self, x: Any, relaxed: bool) -> list[Any]:
        """The constraints on fresh twins of all variables, tied to x."""
        twins: dict[int, Any] = {}
        own = [*self.variables, *(v for c in self._constraints for v in c.variables())]
        for variable in own:
            twins.setdefault(id(variable), twin_of(variable, relaxed))
        copies = [constraint.tree_copy(twins) for constraint in self._constraints]
        if relaxed:
            copies += [c for v in own for c in _unit_bounds(v, twins[id(v)])]
        flat = cp.hstack([cp.vec(twins[id(v)], order="C") for v in self.variables])
        return [as_flat(x, self.dimension) == flat, *copies]

    def _empty_message(self) -> str:
        listed = "; ".join(str(constraint) for constraint in self._constraints[:5])
        more = "; ..." if len(self._constraints) > 5 else ""
        return (
            f"the feasible set is empty: no value of {self._names()} satisfies all of its "
            f"{len(self._constraints)} constraints ({listed}{more}); relax or drop one of them."
        )

    def _unbounded_message(self, ray: Vector | None) -> str:
        moving = None if ray is None else self._program.decision.ray(ray)
        if moving is None or not np.any(moving):
            return (
                f"the feasible set is unbounded: a linear function of {self._names()} decreases "
                f"without end over it; add bounds such as {self.variables[0].name()} <= 10."
            )
        index = int(np.argmax(np.abs(moving)))
        variable, entry = self._coordinate(index)
        sign, bound = ("+", "<= 10") if moving[index] > 0 else ("-", ">= -10")
        return (
            f"the feasible set is unbounded: {entry} can go to {sign}infinity; "
            f"add bounds such as {variable.name()} {bound}."
        )

    def _coordinate(self, index: int) -> tuple[Any, str]:
        """The variable that holds a coordinate of x, and the entry's name."""
        for variable in self.variables:
            if index < variable.size:
                break
            index -= variable.size
        where = ", ".join(str(int(i)) for i in np.unravel_index(index, variable.shape))
        return variable, f"{variable.name()}[{where}]" if where else variable.name()

    def _names(self) -> str:
        return ", ".join(repr(variable.name()) for variable in self.variables)


class NearestPoint:
    """The program min sum_i |v_i - x_i| over the points v of a set, integers included.

    It is compiled once for many points x.
    """

    def __init__(self, feasible: FeasibleSet) -> None:
        n = feasible.dimension
        self._set = feasible
        self._point, self._x = cp.Variable(n), cp.Parameter(n)
        self._weights = cp.Parameter(n, nonneg=True)
        self._least, self._most = cp.Parameter(n), cp.Parameter(n)
        change = cp.Variable(n)
        self._problem = cp.Problem(
            cp.Minimize(self._weights @ cp.abs(change)),
            [
                change == self._point - self._x,
                change >= self._least,
                change <= self._most,
                *feasible.constraints(self._point),
            ],
        )

    def __call__(self, x: Vector, counted: np.ndarray) -> Vector:
        """The nearest point in the coordinates that count."""
        point = self._solve(x, counted.astype(float), {})
        if point is None:
            raise cp.error.SolverError(
                f"no point of {self._set!r} was found: {self._problem.status}."
            )
        return point

    def after_moves(self, x: Vector, moves: Mapping[int, float]) -> Vector | None:
        """The nearest point to x with some coordinates at least 1 up or down; None without any.

        moves: +1 or -1 for each such coordinate.
        """
        return self._solve(x, np.ones(x.size), moves)

    def _solve(self, x: Vector, weights: Vector, moves: Mapping[int, float]) -> Vector | None:
        most = np.full(x.size, UNRESTRICTED * max(1.0, float(np.abs(x).max())))
        least = -most
        for index, way in moves.items():
            (least if way > 0 else most)[index] = way
        self._x.value, self._weights.value = x, weights
        self._least.value, self._most.value = least, most
        self._problem.solve(solver=reference_solver(self._problem))
        value = self._point.value
        return None if value is None else np.array(value)


def _as_variables(variables: Any) -> tuple[Any, ...]:
    given = (variables,) if isinstance(variables, cp.Expression) else tuple(variables)
    if not given:
        raise ValueError("a ConvexSet needs at least one cp.Variable, got none.")
    for position, variable in enumerate(given):
        if not isinstance(variable, cp.Variable):
            raise ValueError(
                f"variables must be cp.Variable objects, got {type(variable).__name__} at position "
                f"{position}."
            )
        if variable.is_complex():
            raise ValueError(f"variable {variable.name()!r} is complex; feasible sets are real.")
    names = [variable.name() for variable in given]
    if len({id(variable) for variable in given}) < len(given):
        raise ValueError(f"each variable must be given once, got {', '.join(names)}.")
    return given


def _as_constraints(constraints: Iterable[Any]) -> list[Any]:
    """Convex CVXPY constraints, each once; True is dropped and False refused."""
    if isinstance(constraints, (cp.Constraint, bool, np.bool_)):
        constraints = [constraints]
    kept: dict[int, Any] = {}
    for position, constraint in enumerate(constraints):
        if isinstance(constraint, (bool, np.bool_)):
            if not constraint:
                raise InfeasibleError(
                    f"the feasible set is empty: constraint {position} is False, whatever the "
                    "decision; it compares constants only."
                )
            continue
        if not isinstance(constraint, cp.Constraint):
            raise ValueError(
                f"constraint {position} must be a CVXPY constraint such as x >= 0, got "
                f"{type(constraint).__name__}."
            )
        if not constraint.is_dcp():
            raise ValueError(
                f"constraint {position} is not convex by CVXPY's rules: {constraint}; rewrite it "
                "(an equality must be affine, f(x) <= g(x) needs f convex and g concave)."
            )
        kept.setdefault(id(constraint), constraint)
    return list(kept.values())


def _parameters(constraints: list[Any], variables: tuple[Any, ...]) -> list[Any]:
    """The parameters of the set, each with a value."""
    owners = [*constraints, *variables, *(v for c in constraints for v in c.variables())]
    parameters = {id(p): p for owner in owners for p in owner.parameters()}
    for parameter in parameters.values():
        if parameter.value is None:
            raise cp.error.ParameterError(
                f"parameter {parameter.name()!r} of the constraints has no value; "
                f"set {parameter.name()}.value before the set is built."
            )
    return list(parameters.values())


def _entries(variable: Any, kind: str) -> np.ndarray:
    """A mask of the "boolean" or "integer" entries of the variable, in its shape."""
    mask = np.zeros(variable.shape, dtype=bool)
    if variable.attributes[kind]:
        where = getattr(variable, f"{kind}_idx")
        mask[tuple(map(np.asarray, where)) if variable.ndim else ()] = True
    return mask


def integer_entries(variable: Any) -> np.ndarray:
    """A mask of the variable's whole entries, flattened in row-major order."""
    return (_entries(variable, "boolean") | _entries(variable, "integer")).ravel()


def boolean_entries(variable: Any) -> np.ndarray:
    """A mask of the variable's boolean entries, flattened in row-major order."""
    return _entries(variable, "boolean").ravel()


def _unit_bounds(variable: Any, twin: Any) -> list[Any]:
    """0 <= twin <= 1 for the entries of the variable that are boolean."""
    if not variable.attributes["boolean"]:
        return []
    mask = _entries(variable, "boolean").astype(float)
    return [cp.multiply(mask, twin) >= 0, cp.multiply(mask, twin) <= 1]
