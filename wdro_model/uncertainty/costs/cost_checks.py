"""A test of a bound cost: does it contradict itself, as far as one sees from outside?

A false claim, such as a dual norm that is too small, would end as a false certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.uncertainty.costs.bound_cost import Array, BoundCost

MOVES = 8
CLOSE, SLOPE = 1e-6, 1e-3
"""Relative errors: of values, and of gradients against differences."""


def check(cost: BoundCost, rows: Array | None = None, seed: int = 0) -> None:
    """Raise a ValueError if what a bound cost says of itself does not hold at random moves.

    Costs are not negative and zero at rest; with an order they grow by its power, the same in every
    place and in both directions; <b, delta> <= |b|_dual |delta|, which the steepest move attains;
    the dual norm is the same in CVXPY and as numbers; the gradient is that of differences; weights
    and matrix give the cost. What the cost does not know is not tested. rows: some samples (n, d).
    """
    rows = np.zeros((MOVES, cost.dimension)) if rows is None else rows
    failures = list(_failures(cost, np.asarray(rows, dtype=float)[:MOVES], seed))
    if failures:
        listed = "\n".join(f"  - {failure}" for failure in failures)
        raise ValueError(f"the cost {cost.describe()} contradicts itself:\n{listed}")


def _failures(cost: BoundCost, rows: Array, seed: int) -> Iterator[str]:
    rng, free = np.random.default_rng(seed), ~np.asarray(cost.frozen)
    if free.shape != (cost.dimension,):
        yield f"frozen has shape {free.shape}, expected ({cost.dimension},)"
        return
    size = float(np.std(rows)) or 1.0
    delta = size * rng.normal(size=(len(rows), cost.dimension)) * free
    costs = np.asarray(cost(rows, rows + delta), dtype=float)
    if costs.shape != (len(rows),):
        yield f"costs of {len(rows)} moves have shape {costs.shape}, expected ({len(rows)},)"
        return
    if not np.all(costs >= 0):
        yield f"a move costs {costs.min():.6g}, which is negative or not a number"
    still = np.abs(cost(rows, rows))
    if np.any(still > CLOSE * max(costs.max(initial=0.0), 1e-300)) and np.any(still > 0):
        yield f"a point that does not move costs {still.max():.6g}, not 0"
    if cost.order is None or not free.any():
        return
    yield from _homogeneity(cost, rows, delta, costs)
    if cost.is_separable and cost.knows("coordinate_weights"):
        weights = np.where(free, cost.coordinate_weights, 0.0)
        yield from _differ("sum_i w_i |delta_i|^p", np.abs(delta) ** cost.order @ weights, costs)
    if cost.is_quadratic and not cost.is_separable and cost.knows("matrix"):
        quadratic = np.einsum("bi,ij,bj->b", delta, cost.matrix, delta)
        yield from _differ("delta' P delta, P its matrix,", quadratic, costs)
    if cost.knows("gradient"):
        yield from _gradient(cost, delta, size * rng.normal(size=delta.shape) * free)
    if cost.knows("dual_norms"):
        yield from _duality(cost, rng.normal(size=delta.shape) * free, delta, costs)


def _homogeneity(cost: BoundCost, rows: Array, delta: Array, costs: Array) -> Iterator[str]:
    assert cost.order is not None
    twice = cost(rows, rows + 2 * delta)
    yield from _differ(
        f"twice a move over 2^{cost.order:g}, its order,", twice / 2**cost.order, costs
    )
    yield from _differ("the opposite move", cost(rows, rows - delta), costs)
    if cost.knows("of_displacements"):
        yield from _differ("of_displacements", cost.of_displacements(delta), costs)


def _gradient(cost: BoundCost, delta: Array, ways: Array) -> Iterator[str]:
    ahead, back = (cost.of_displacements(delta + step * ways) for step in (1e-6, -1e-6))
    expected, found = (ahead - back) / 2e-6, np.sum(cost.gradient(delta) * ways, axis=1)
    worst = int(np.argmax(np.abs(expected - found)))
    if abs(expected[worst] - found[worst]) > SLOPE * max(1e-300, float(np.abs(expected).max())):
        yield (
            f"its gradient gives the slope {found[worst]:.6g} along a line, differences of its "
            f"values {expected[worst]:.6g}"
        )


def _duality(cost: BoundCost, slopes: Array, delta: Array, costs: Array) -> Iterator[str]:
    assert cost.order is not None
    norms = np.asarray(cost.dual_norms(slopes))
    moves, lengths = delta, costs ** (1.0 / cost.order)
    if cost.knows("gradient"):
        # The gradient of a cost is a slope whose steepest move is the move itself.
        slopes = np.vstack([slopes, cost.gradient(delta)])
        norms = np.asarray(cost.dual_norms(slopes))
    excess = slopes @ moves.T - norms[:, None] * lengths * (1 + CLOSE)
    if excess.max() > CLOSE * norms.max():
        b, m = np.unravel_index(int(np.argmax(excess)), excess.shape)
        yield (
            f"a slope gains {float(slopes[b] @ moves[m]) / lengths[m]:.6g} along a move of length "
            f"1, more than its dual norm {norms[b]:.6g}"
        )
    if cost.knows("dual_norm"):
        written = np.array([_number(cost.dual_norm(cp.Constant(b))) for b in slopes])
        yield from _differ("the dual norm in CVXPY", written, norms, "as numbers")
    if cost.knows("steepest_move"):
        best = np.array([cost.steepest_move(b) for b in slopes])
        yield from _differ("<b, steepest move>", np.sum(best * slopes, axis=1), norms, "|b|_dual")
        yield from _differ("a steepest move", cost.of_displacements(best), np.ones(len(best)), "1")


def _number(expression: Any) -> float:
    return float(np.reshape(expression.value, ()))


def _differ(name: str, found: Array, expected: Array, other: str = "the cost") -> Iterator[str]:
    gaps = np.abs(found - expected)
    worst = int(np.argmax(gaps))
    if not gaps[worst] <= CLOSE * max(1e-300, float(np.abs(expected).max())):
        yield f"{name} is {found[worst]:.6g}, but {other} is {expected[worst]:.6g}"
