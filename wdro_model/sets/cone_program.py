"""A list of CVXPY constraints, canonicalised once: {y : A y + s = b, s in K, lower <= y <= upper}.

The decision x is an affine image of the solver's vector y. CVXPY gives it through the objective:
with the parametrised objective <g, x> the cost vector is c(g) = M'g and the constant <g, x0>, so

    x = M y + x0.

Attributes of variables (nonneg, symmetric, PSD, diag, bounds) and auxiliary variables are all in
M, x0 and K, and need no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.reductions.eval_params import EvalParams
from numpy.typing import NDArray

from wdro_model.compat import bounds_as_rows
from wdro_model.sets.backends import Vector


@dataclass(frozen=True)
class AffineMap:
    """x = M y + x0, from the solver's vector y (k,) to the decision x (n,).

    matrix: M (n, k); transposed: M'; offset: x0 (n,); selection: the index of each x_i in y when x
    is a part of y; is_identity: x is y itself.
    """

    matrix: sp.csr_array
    transposed: sp.csr_array
    offset: Vector
    selection: NDArray[np.intp] | None
    is_identity: bool

    @classmethod
    def build(cls, matrix: sp.csr_array, offset: Vector) -> AffineMap:
        """The map, with the fast path found where there is one."""
        is_selection = (
            matrix.nnz == matrix.shape[0]
            and np.array_equal(matrix.indptr, np.arange(matrix.shape[0] + 1))
            and bool(np.all(matrix.data == 1.0))
            and np.unique(matrix.indices).size == matrix.nnz
            and not offset.any()
        )
        selection = matrix.indices.astype(np.intp) if is_selection else None
        is_identity = (
            selection is not None
            and matrix.shape[0] == matrix.shape[1]
            and np.array_equal(selection, np.arange(selection.size))
        )
        return cls(matrix, matrix.T.tocsr(), offset, selection, is_identity)

    def cost(self, direction: Vector) -> Vector:
        """M' g: the cost vector on y whose value is <g, x> up to a constant."""
        if self.is_identity:
            return direction
        if self.selection is None:
            return np.asarray(self.transposed @ direction)
        cost = np.zeros(self.matrix.shape[1])
        cost[self.selection] = direction
        return cost

    def point(self, y: Vector) -> Vector:
        """The decision that the solver's vector stands for."""
        if self.is_identity:
            return y
        if self.selection is None:
            return np.asarray(self.matrix @ y + self.offset)
        return y[self.selection]

    def ray(self, y: Vector) -> Vector:
        """The direction in which the decision moves along a ray of the solver's vector."""
        return np.asarray(self.matrix @ y)

    def interval(self, lower: Vector, upper: Vector) -> tuple[Vector, Vector]:
        """Bounds of x that follow from bounds of y, by interval arithmetic."""
        positive, negative = self.matrix.maximum(0), self.matrix.minimum(0)
        return (
            _products(positive, lower) + _products(negative, upper) + self.offset,
            _products(positive, upper) + _products(negative, lower) + self.offset,
        )


@dataclass(frozen=True)
class ConeProgram:
    """The constraints in the solver's vector y (k,).

    A (rows, k), b (rows,): A y + s = b with s in the cones of `dims` (CVXPY's ConeDims: equalities
    first, then inequalities A y <= b, then the other cones); lower, upper (k,); integer (k,) mask;
    decision: the map from y to x.
    """

    A: sp.csr_array
    b: Vector
    dims: Any
    lower: Vector
    upper: Vector
    integer: NDArray[np.bool_]
    decision: AffineMap

    @property
    def is_linear(self) -> bool:
        """Are there only equalities and inequalities?"""
        return self.A.shape[0] == self.dims.zero + self.dims.nonneg

    @property
    def is_integer(self) -> bool:
        """Must some coordinates be integers?"""
        return bool(self.integer.any())


def canonicalise(constraints: Sequence[Any], variables: Sequence[Any]) -> ConeProgram:
    """The cone program of convex constraints, at the current values of their parameters.

    Raises ValueError for integer variables under constraints that are not linear.
    """
    every = [*variables, *(v for constraint in constraints for v in constraint.variables())]
    fixed = {id(v): with_fixed_bounds(v) for v in every if v.parameters()}
    constraints = [constraint.tree_copy(fixed) for constraint in constraints]
    evaluated, _ = EvalParams().apply(cp.Problem(cp.Minimize(0), constraints))
    flat = cp.hstack([cp.vec(fixed.get(id(v), v), order="C") for v in variables])
    direction = cp.Parameter(flat.size, value=np.zeros(flat.size))
    problem = cp.Problem(cp.Minimize(direction @ flat), evaluated.constraints)
    return _from_data(_problem_data(problem), direction)


def with_fixed_bounds(variable: Any) -> Any:
    """A twin of the variable whose parametrised bounds are replaced by their current values."""
    bounds = [bound.value for bound in map(cp.Expression.cast_to_const, variable.bounds)]
    return twin_of(variable, bounds=bounds)


def twin_of(variable: Any, relaxed: bool = False, **changes: Any) -> Any:
    """A fresh variable with the same shape and attributes, without integrality if `relaxed`."""
    kept = {k: v for k, v in variable.attributes.items() if v is not None and v is not False}
    for kind in ("integer", "boolean") if relaxed else ():
        kept.pop(kind, None)
    return cp.Variable(variable.shape, name=variable.name(), **(kept | changes))


def _problem_data(problem: Any) -> dict[str, Any]:
    """CVXPY's arrays for HiGHS where it accepts the constraints, for Clarabel otherwise."""
    options = {"use_quad_obj": False}
    try:
        solver = bounds_as_rows(problem, cp.HIGHS)
        return problem.get_problem_data(solver, solver_opts=options)[0]
    except cp.error.SolverError:
        if problem.is_mixed_integer():
            raise ValueError(
                "integer variables are only supported under linear constraints, and some "
                "constraints here need a cone (a norm, a square, an exponential...); drop "
                "integer/boolean to work on the continuous relaxation, or write the set as an "
                "Oracle with your own solver."
            ) from None
    return problem.get_problem_data(cp.CLARABEL, solver_opts=options)[0]


def _from_data(data: dict[str, Any], direction: Any) -> ConeProgram:
    program = data["param_prob"]
    size = program.x.size
    column = program.param_id_to_col[direction.id]
    # Rows of q are the entries of y, then the constant; columns are the entries of the parameter.
    image = sp.csc_array(program.q)[:, column : column + direction.size]
    matrix = sp.csr_array(image[:size].T)
    matrix.eliminate_zeros()
    offset = image[[size]].toarray().ravel()

    integer = np.zeros(size, dtype=bool)
    integer[[*data.get("bool_vars_idx", ()), *data.get("int_vars_idx", ())]] = True
    lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
    boolean = list(data.get("bool_vars_idx", ()))
    lower[boolean], upper[boolean] = 0.0, 1.0

    A = sp.csr_array((0, size)) if data["A"] is None else sp.csr_array(data["A"])
    A.eliminate_zeros()
    b = np.asarray(data["b"], dtype=np.float64).reshape(-1)[: A.shape[0]]
    lower, upper = _with_singleton_rows(A, b, data["dims"], lower, upper)
    # Branch and bound relies on it: HiGHS may call 2.5 optimal for an integer under x <= 2.5.
    lower[integer] = np.ceil(lower[integer] - 1e-9) + 0.0
    upper[integer] = np.floor(upper[integer] + 1e-9)
    return ConeProgram(
        A, b, data["dims"], lower, upper, integer, AffineMap.build(matrix, np.asarray(offset))
    )


def _with_singleton_rows(
    A: sp.csr_array, b: Vector, dims: Any, lower: Vector, upper: Vector
) -> tuple[Vector, Vector]:
    """Bounds tightened by the rows a y_j = b and a y_j <= b."""
    lower, upper = lower.copy(), upper.copy()
    rows = np.flatnonzero(np.diff(A.indptr) == 1)
    rows = rows[rows < dims.zero + dims.nonneg]
    entries = A.indptr[rows]
    column, slope = A.indices[entries], A.data[entries]
    value = b[rows] / slope + 0.0  # not -0.0
    equality = rows < dims.zero
    at_most, at_least = equality | (slope > 0), equality | (slope < 0)
    np.minimum.at(upper, column[at_most], value[at_most])
    np.maximum.at(lower, column[at_least], value[at_least])
    return lower, upper


def _products(matrix: sp.csr_array, values: Vector) -> Vector:
    """matrix @ values with 0 * inf = 0: only stored entries count."""
    terms = sp.csr_array(matrix)
    terms.eliminate_zeros()
    if not terms.nnz:
        return np.zeros(matrix.shape[0])
    rows = np.repeat(np.arange(terms.shape[0]), np.diff(terms.indptr))
    products: Vector = terms.data * values[terms.indices]
    sums = np.bincount(rows, products, minlength=terms.shape[0])
    return np.asarray(sums, dtype=np.float64)
