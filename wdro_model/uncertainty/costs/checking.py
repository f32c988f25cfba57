"""The test of a ground cost: its values against its order, dual norm, gradient and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isfunction
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter


@dataclass(frozen=True)
class Tolerances:
    """Allowed differences between the answers of a cost, and where they are compared."""

    value: float = 1e-6
    """Relative difference of two values; smaller ones are rounding."""
    slope: float = 1e-3
    """Relative difference of a gradient and a difference quotient, whose own error is 1e-6."""
    move_count: int = 8
    """Random moves, and slopes, at which values are compared."""
    gradient_count: int = 2
    """Slopes at which the dual norm is differentiated."""
    most_differences: int = 200
    """Coordinates up to which differences give its derivative: two dual norms for each."""
    most_derivatives: int = 10_000
    """Coordinates up to which CVXPY gives its derivative, which is a sparse matrix."""


TOLERANCES = Tolerances()
PROPERTIES = ("dimension", *(n for n in dir(BoundCost) if not callable(getattr(BoundCost, n))))
"""Names of a bound cost that are values rather than methods."""


def check(cost: BoundCost | GroundCost, rows: Array | None = None, seed: int = 0) -> None:
    """Raise a ValueError if a ground cost contradicts itself at random moves.

    Tested are: costs are nonnegative, and zero for no move; with an order p, c(t delta) = |t|^p
    c(delta) at every point; `<b, delta> <= |b|_dual |delta|`, with equality for the steepest move
    and for the gradient of the dual norm in b (up to 10000 coordinates); the dual norm is the same
    in CVXPY and as numbers; the gradient agrees with differences; weights and matrix give the
    cost. Operations that the cost does not have are not tested.

    Parameters
    ----------
    cost
        A bound cost, or a ground cost, which is bound to the rows.
    rows
        Some samples (n, d), needed for a ground cost.

    Examples
    --------
    >>> from wdro_model.testing import check_cost
    >>> check_cost(wdro.costs.Norm(2), np.eye(3))                   # says nothing where all is well
    >>> class Halved(wdro.costs.BoundNorm):
    ...     def dual_norms(self, slopes):
    ...         return super().dual_norms(slopes) / 2
    >>> check_cost(Halved(3))
    Traceback (most recent call last):
        ...
    ValueError: the cost ||w * (xi - zeta)||_2, weights 1 contradicts itself: ...
    """
    if isinstance(cost, GroundCost):
        if rows is None:
            raise ValueError("check needs some samples (n, d) to bind a ground cost to: pass rows.")
        rows = np.asarray(rows, dtype=float)
        cost = cost.bound_to(JointSamples([UncertainParameter(rows.shape[1], samples=rows)]))
    for name in PROPERTIES:
        if isfunction(getattr(type(cost), name, None)):
            raise ValueError(
                f"{name} of the cost {cost.describe()} is a method, and must be a property: write "
                f"@property above def {name}(self)."
            )
    count = TOLERANCES.move_count
    rows = np.zeros((count, cost.dimension)) if rows is None else np.asarray(rows, dtype=float)
    failures = list(_failures(cost, rows[:count], np.random.default_rng(seed)))
    if failures:
        listed = "\n".join(f"  - {failure}" for failure in failures)
        raise ValueError(f"the cost {cost.describe()} contradicts itself:\n{listed}")


def _answer(cost: BoundCost, operation: str, shape: tuple[int, ...], *arguments: Any) -> Array:
    """The answer of an operation of the cost, checked to be an array of numbers of this shape."""
    whose = f"{operation} of the cost {cost.describe()}"
    try:
        answer = getattr(cost, operation)(*arguments)
        array = np.asarray(answer.value if operation == "dual_norm" else answer, dtype=float)
    except Exception as error:
        written = " (a CVXPY expression is asked for)" if operation == "dual_norm" else ""
        raise ValueError(
            f"{whose} fails at random moves{written}: {type(error).__name__}: {error}"
        ) from error
    if isinstance(answer, list | tuple):
        kind = type(answer).__name__
        raise ValueError(f"{whose} must return an array, got a {kind}; wrap it in np.array.")
    if array.shape != shape and not (shape == () and array.size == 1):
        raise ValueError(f"{whose} must give shape {shape} here, got {array.shape}.")
    return array.reshape(shape)


def _failures(cost: BoundCost, rows: Array, rng: np.random.Generator) -> Iterator[str]:
    """A sentence for each contradiction."""
    free = ~np.asarray(cost.frozen)
    if free.shape != (cost.dimension,):
        yield f"frozen has shape {free.shape}, expected ({cost.dimension},)"
        return
    size, shape = float(np.std(rows)) or 1.0, (len(rows),)
    delta = size * rng.normal(size=(len(rows), cost.dimension)) * free
    costs, still, twice, back = (
        _answer(cost, "__call__", shape, rows, rows + times * delta) for times in (1, 0, 2, -1)
    )
    if not np.all(costs >= 0):
        yield f"a move costs {costs.min():.6g}, which is negative or not a number"
    still = np.abs(still)
    if np.any(still > TOLERANCES.value * max(costs.max(initial=0.0), 1e-300)):
        yield f"a point that does not move costs {still.max():.6g}, not 0"
    order = cost.order
    if order is None or not free.any():
        return
    yield from _differ(f"twice a move over 2^{order:g}, its order,", twice / 2**order, costs)
    yield from _differ("the opposite move", back, costs)
    if cost.knows("of_displacements"):
        moved = _answer(cost, "of_displacements", shape, delta)
        yield from _differ("of_displacements", moved, costs)
    if cost.is_separable and cost.knows("coordinate_weights"):
        weights = np.where(free, cost.coordinate_weights, 0.0)
        yield from _differ("sum_i w_i |delta_i|^p", np.abs(delta) ** order @ weights, costs)
    if cost.is_quadratic and not cost.is_separable and cost.knows("matrix"):
        quadratic = np.einsum("bi,ij,bj->b", delta, cost.matrix, delta)
        yield from _differ("delta' P delta, P its matrix,", quadratic, costs)
    if cost.knows("gradient"):
        yield from _gradient(cost, delta, size * rng.normal(size=delta.shape) * free)
    if cost.knows("dual_norms"):
        yield from _duality(cost, rng.normal(size=delta.shape) * free, delta, costs ** (1 / order))
        yield from _attained(cost, rows[:1], rng)


def _gradient(cost: BoundCost, delta: Array, ways: Array) -> Iterator[str]:
    """Compare the gradient at moves delta with differences along `ways`."""
    ahead, back = (
        _answer(cost, "of_displacements", delta.shape[:1], delta + step * ways)
        for step in (1e-6, -1e-6)
    )
    slopes = _answer(cost, "gradient", delta.shape, delta)
    expected, claimed = (ahead - back) / 2e-6, np.sum(slopes * ways, axis=1)
    worst = int(np.argmax(np.abs(expected - claimed)))
    largest = max(1e-300, float(np.abs(expected).max()))
    if abs(expected[worst] - claimed[worst]) > TOLERANCES.slope * largest:
        yield (
            f"its gradient gives the slope {claimed[worst]:.6g} along a line, differences of its "
            f"values {expected[worst]:.6g}"
        )


def _duality(cost: BoundCost, slopes: Array, moves: Array, lengths: Array) -> Iterator[str]:
    """Check that no move gains more than the dual norm, and that a steepest move attains it."""
    if cost.knows("gradient"):
        # The gradient of a cost is a slope whose steepest move is the move itself.
        slopes = np.vstack([slopes, cost.gradient(moves)])
    written = []
    if cost.knows("dual_norm"):
        written = [_answer(cost, "dual_norm", (), cp.Constant(b)) for b in slopes]
    norms = _answer(cost, "dual_norms", slopes.shape[:1], slopes)
    excess = slopes @ moves.T - norms[:, None] * lengths * (1 + TOLERANCES.value)
    if excess.max() > TOLERANCES.value * norms.max():
        b, m = np.unravel_index(int(np.argmax(excess)), excess.shape)
        yield (
            f"a slope gains {float(slopes[b] @ moves[m]) / lengths[m]:.6g} along a move of length "
            f"1, more than its dual norm {norms[b]:.6g}"
        )
    if written:
        yield from _differ("the dual norm in CVXPY", np.array(written), norms, "as numbers")
    if cost.knows("steepest_move"):
        best = np.array([_answer(cost, "steepest_move", b.shape, b) for b in slopes])
        yield from _differ("<b, steepest move>", np.sum(best * slopes, axis=1), norms, "|b|_dual")
        costs = _answer(cost, "of_displacements", best.shape[:1], best)
        yield from _differ("a steepest move", costs, np.ones(len(best)), "1")


def _attained(cost: BoundCost, row: Array, rng: np.random.Generator) -> Iterator[str]:
    """Check that the gradient m of the dual norm at b has <b, m> = |b|_dual and length 1.

    The gradient of a dual norm that is too low is too short, and too long if it is too high.
    """
    assert cost.order is not None
    for _ in range(TOLERANCES.gradient_count):
        steepest = _steepest_by_gradient(cost, rng)
        if steepest is None:
            continue
        slope, move, norm = steepest
        gain = float(slope @ move) / max(norm, 1e-300)
        length = float(cost(row, row + move)[0]) ** (1.0 / cost.order)
        if abs(gain - 1) > TOLERANCES.slope or abs(length - 1) > TOLERANCES.slope:
            yield (
                f"the gradient of the dual norm is a move of length {length:.6g} that gains "
                f"{gain:.6g} times the dual norm, not 1 and 1: the dual norm is too "
                f"{'low' if length < gain else 'high'}, it is not that of this cost"
            )
            return


def _steepest_by_gradient(
    cost: BoundCost, rng: np.random.Generator
) -> tuple[Array, Array, float] | None:
    """(slope, gradient of the dual norm at it, dual norm) for a random slope; None if unknown.

    The gradient is computed by differences, and by CVXPY where there are many coordinates.
    """
    free = ~np.asarray(cost.frozen)
    if cost.dimension > TOLERANCES.most_differences:
        if not cost.knows("dual_norm") or cost.dimension > TOLERANCES.most_derivatives:
            return None
        slope = cp.Variable(cost.dimension)
        slope.value = rng.normal(size=cost.dimension) * free
        try:
            norm = cost.dual_norm(slope)
            gradient = norm.grad[slope].toarray()
        except Exception:  # atoms without derivatives raise errors of many types
            return None
        return slope.value, np.ravel(gradient) * free, float(norm.value)
    if not cost.knows("of_displacements"):
        return None
    scales = np.where(free & np.isfinite(cost.coordinate_scales), cost.coordinate_scales, 0.0)
    where = np.flatnonzero(scales > 0)
    steps = 1e-5 * np.diag(scales)[where]
    point, way = (scales * rng.normal(size=scales.shape) for _ in range(2))
    tried = np.vstack([point, point + 1e-6 * way, point - 1e-6 * way, point + steps, point - steps])
    norms = _answer(cost, "dual_norms", tried.shape[:1], tried)
    ahead, back = np.split(norms[3:], 2)
    move = np.zeros(cost.dimension)
    move[where] = (ahead - back) / (2e-5 * scales[where])
    along = (norms[1] - norms[2]) / 2e-6
    # At a kink differences of two sizes disagree.
    smooth = len(where) > 0 and abs(along - way @ move) <= TOLERANCES.slope * norms[0]
    return (point, move, float(norms[0])) if smooth else None


def _differ(name: str, claimed: Array, expected: Array, other: str = "the cost") -> Iterator[str]:
    """A sentence if the largest difference is more than rounding."""
    gaps = np.abs(claimed - expected)
    worst = int(np.argmax(gaps))
    if not gaps[worst] <= TOLERANCES.value * max(1e-300, float(np.abs(expected).max())):
        yield f"{name} is {claimed[worst]:.6g}, but {other} is {expected[worst]:.6g}"
