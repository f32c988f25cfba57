"""Quadratic functions minimised over CVXPY constraints, and unbounded sets near a point.

    min over z in X of <g, z - x> + <z - x, B (z - x)> / 2,    B positive definite.

Without constraints this is a system of equations, with bounds alone a bounded least-squares kind of
problem, and otherwise a cone program that stays in Clarabel: only numbers change between calls.

Over an unbounded set linear functions have no minimum, and a Frank-Wolfe gap is infinite. Within a
distance of the point it is finite, and says that no decision within this distance is better by
more; for a convex objective a decision k times as far is better by k times as much at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.error import SolverError
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, solve
from scipy.optimize import minimize

from wdro_model.sets.backends import Answer, Side, Vector
from wdro_model.sets.cone_program import ConeProgram, canonicalise
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.feasible_set import BoundedSet, FeasibleSet, cvxpy_form

QuadraticMinimizer = Callable[[Vector, np.ndarray, Vector], Vector | None]
"""(g, B, x) -> the minimiser z; None where a solver does not find it."""
SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)


def quadratic_over(feasible: FeasibleSet) -> QuadraticMinimizer:
    """The minimiser of quadratic functions over a set that has a CVXPY form."""
    program = cone_program_of(feasible)
    if program.is_integer:
        raise ValueError(
            "some variables are integer, and quadratic models are minimised over continuous ones; "
            "use solver=FrankWolfe() for the convex hull of the integer points, or "
            "BranchAndBound() for one of them."
        )
    if not has_only_bounds(program):
        return ConicQuadratic(program)
    if np.isinf(program.lower).all() and np.isinf(program.upper).all():
        return newton_point
    return bounded_quadratic(program.lower, program.upper)


def cone_program_of(feasible: FeasibleSet) -> ConeProgram:
    """The set as a cone program."""
    if isinstance(feasible, ConvexSet):
        return feasible.program
    if not feasible.has_constraints:
        raise ValueError(
            f"{feasible!r} is known by its oracle alone and has no CVXPY form, over which a "
            "quadratic model could be minimised; use solver=FrankWolfe()."
        )
    x = cp.Variable(feasible.dimension)
    return canonicalise(cvxpy_form(feasible, x), [x])


def has_only_bounds(program: ConeProgram) -> bool:
    """Is every row a bound of one entry of the decision?"""
    single = bool(np.all(np.diff(program.A.indptr) == 1))
    return single and program.is_linear and program.decision.is_identity


def newton_point(gradient: Vector, curvature: np.ndarray, x: Vector) -> Vector | None:
    """x - B^-1 g."""
    try:
        return np.asarray(x - solve(curvature, gradient, assume_a="pos"))
    except LinAlgError:
        return None


def bounded_quadratic(lower: Vector, upper: Vector) -> QuadraticMinimizer:
    """The minimiser over a box, whose bounds may be infinite."""
    bounds = np.column_stack([lower, upper])

    def minimizer(gradient: Vector, curvature: np.ndarray, x: Vector) -> Vector | None:
        size = float(np.abs(gradient).max()) or 1.0

        def model(z: Vector) -> tuple[float, Vector]:
            step = z - x
            bent = curvature @ step
            return float(step @ (gradient + 0.5 * bent)) / size, (gradient + bent) / size

        options = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 500, "maxcor": 30}
        answer = minimize(model, x, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
        return np.asarray(answer.x)

    return minimizer


class ConicQuadratic:
    """The minimiser over cones, by one Clarabel object whose numbers change from call to call."""

    def __init__(self, program: ConeProgram, boxed: bool = False) -> None:
        """boxed: restrict the minimiser to points near x, in every entry."""
        self._program, self._boxed = program, boxed
        where = program.decision.selection
        image = program.decision.matrix
        used = np.flatnonzero(np.diff(sp.csc_array(image).indptr)) if where is None else where
        self._used = np.sort(used)
        self._image = np.asarray(image[:, self._used].todense())
        self._solver: Any = None

    def __call__(self, gradient: Vector, curvature: np.ndarray, x: Vector) -> Vector | None:
        return self.minimize(gradient, curvature, x, np.inf)

    def minimize(
        self, gradient: Vector, curvature: np.ndarray | None, x: Vector, reach: float
    ) -> Vector | None:
        """The minimiser within `reach` of x, where the program is boxed.

        The variable is the step from x: rounding of large constants would hide a short step.
        """
        decision, used = self._program.decision, self._used
        size = float(np.abs(gradient).max()) or 1.0
        bent = np.zeros((x.size, x.size)) if curvature is None else curvature / size
        cost = decision.cost(gradient / size)
        small = self._image.T @ bent @ self._image
        quadratic = _upper_triangle(0.5 * (small + small.T), used, cost.size)
        start = np.zeros(cost.size)
        start[used] = np.linalg.lstsq(self._image, x - decision.offset, rcond=None)[0]
        limits = self._program.b - self._program.A @ start
        if self._boxed:
            limits = np.concatenate([limits, np.full(2 * x.size, reach)])
        solution = self._solve(quadratic, cost, limits)
        return None if solution is None else decision.point(start + np.array(solution.x))

    def _solve(self, quadratic: Any, cost: Vector, limits: Vector) -> Any | None:
        if self._solver is not None:
            self._solver.update(P=quadratic, q=cost, b=limits)
            answer = self._solver.solve()
            if answer.status == clarabel.SolverStatus.Solved:
                return answer
        cones, rows = dims_to_solver_cones(self._program.dims), self._program.A
        if self._boxed:
            image = self._program.decision.matrix
            rows = sp.vstack([rows, image, -image])
            cones = [*cones, clarabel.NonnegativeConeT(2 * image.shape[0])]
        # Close to an optimum the gain of a move is as small as the regularisation, which stalls.
        for regularised in (True, False):
            settings = clarabel.DefaultSettings()
            settings.verbose, settings.max_threads = False, 1
            settings.presolve_enable = settings.chordal_decomposition_enable = False
            settings.static_regularization_enable = regularised
            self._solver = clarabel.DefaultSolver(
                quadratic, cost, sp.csc_array(rows), limits, cones, settings
            )
            answer = self._solver.solve()
            if answer.status in SOLVED:
                return answer
        return None


def _upper_triangle(small: np.ndarray, used: np.ndarray, size: int) -> sp.csc_array:
    """A symmetric matrix on some coordinates: its upper triangle, zeros of it kept."""
    row, column = np.triu_indices(used.size)
    entries = (small[row, column], (used[row], used[column]))
    return sp.csc_array(sp.coo_array(entries, shape=(size, size)))


# ------------------------------
# The part of an unbounded set near a point


class Nearby(BoundedSet):
    """The points of an unbounded set within a distance of a point that moves along.

    The distance is that of the largest entry: the size of the point, at least 1.
    """

    has_constraints = True
    is_bounded = False

    def __init__(self, whole: ConvexSet) -> None:
        self.whole, self.dimension = whole, whole.dimension
        self.bounds, self.accuracy = whole.bounds, whole.accuracy
        self.is_polytope = whole.is_polytope
        self.rounds = False
        program = whole.program
        self._linear = None if has_only_bounds(program) else ConicQuadratic(program, boxed=True)
        self._limits = (program.lower, program.upper)
        self.point = np.zeros(self.dimension)
        if self._linear is None:
            self.point = np.clip(self.point, *self._limits)

    @property
    def reach(self) -> float:
        """The distance within which linear functions are minimised."""
        return max(1.0, float(np.abs(self.point).max(initial=0.0)))

    def seen_from(self, x: Vector) -> None:
        self.point = np.array(x, dtype=float)

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        if lower is not None or upper is not None:
            return self.whole.minimize_with_slack(direction, lower, upper)
        if self._linear is None:
            step = self.reach * np.sign(direction)
            return np.clip(self.point - step, *self._limits), 0.0
        point = self._linear.minimize(direction, None, self.point, self.reach)
        if point is None:
            raise SolverError(
                f"no minimiser of a linear function was found near a point of {self.whole!r}; "
                "rescale the constraints so that their coefficients have similar sizes."
            )
        return point, 0.0

    def check_bounded(self) -> None:
        self.whole.check_bounded()

    def check_nonempty(self) -> None:
        self.whole.check_nonempty()

    def constraints(self, x: object) -> list[object]:
        return self.whole.constraints(x)

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        return self.whole.contains(x, tolerance)

    def is_current(self) -> bool:
        return self.whole.is_current()

    def reset(self) -> None:
        self.whole.reset()

    def describe(self) -> str:
        return f"{self.whole.describe()}, unbounded"

    def __repr__(self) -> str:
        return repr(self.whole)
