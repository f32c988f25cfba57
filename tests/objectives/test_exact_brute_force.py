"""Exact counterparts against brute force: the adversary's moves by search, and a linear program."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from tests.references.exact_cases import case
from tests.references.inner_maximum import steepest_rate, worst_risk
from tests.references.pairwise import pairwise
from tests.references.transport import grid, largest_expectation
from wdro_model.objectives import exact
from wdro_model.solve.true_risk import known_robust_value

QUADRATIC = ("squared", "weighted", "mahalanobis")
NORMS = ("norm1", "norm2", "norminf", "weighted2")
PIECEWISE = ("affine", "cvar", "separate", "absolute", "certain piece", "products")
CROSSED = [
    *((loss, cost, "plane") for loss in (*PIECEWISE, "square") for cost in QUADRATIC),
    *((loss, cost, "plane") for loss in (*PIECEWISE, "logistic", "huber") for cost in NORMS),
    *(
        (loss, cost, support)
        for loss in PIECEWISE
        for cost in ("squared", "mahalanobis", "norm1", "norm2", "norminf", "weighted1")
        for support in ("box", "triangle")
    ),
]
KIND = {**dict.fromkeys(QUADRATIC, "quadratic"), **dict.fromkeys((*NORMS, "weighted1"), "norm")}
# With the kind of cost on each support, every counterpart meets every loss.
CASES = [
    (loss, cost, support)
    for loss, cost, support, _ in pairwise(
        (loss, cost, support, f"{KIND[cost]}, {support}") for loss, cost, support in CROSSED
    )
]
RADIUS = {"squared": 0.3, "weighted": 0.3, "mahalanobis": 0.3}


def built(loss, cost, support, seed=1):
    return case(loss, cost, support, RADIUS.get(cost, 0.4), seed)


@pytest.mark.parametrize(("loss", "cost", "support"), CASES)
def test_value_is_that_of_a_search_over_moves_and_prices(loss, cost, support):
    """At random decisions and data, to 1e-6 of the loss."""
    some = built(loss, cost, support, seed=11)
    value = known_robust_value(some.model, some.flat)
    if support == "plane" and cost not in QUADRATIC:
        searched = some.losses(some.rows).mean() + some.model.radius * steepest_rate(some)
    else:
        searched = worst_risk(some, support, bracket=(1e-3, 1e3))
    assert value == pytest.approx(searched, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("loss", "cost", "support"), CASES[::3])
def test_value_is_that_of_natures_linear_program(loss, cost, support):
    some = built(loss, cost, support)
    value = known_robust_value(some.model, some.flat)
    norm_on_plane = support == "plane" and cost not in QUADRATIC
    points = grid(some.rows, far=400.0 if norm_on_plane else None)
    losses = np.broadcast_to(some.losses(points), (len(some.rows), len(points)))
    bound = largest_expectation(losses, some.allowed_costs(points), some.model.radius)
    mean = some.losses(some.rows).mean()
    assert bound <= value + 1e-7
    assert value - bound <= 0.03 * (value - mean) + 1e-7


@pytest.mark.parametrize(("loss", "cost", "support"), CASES)
def test_program_at_a_fixed_decision_gives_the_value(loss, cost, support):
    some = built(loss, cost, support, seed=2)
    program = exact.counterpart(some.model).program(some.model)
    fixed = [
        v == (some.t if v.shape == () else some.x) for v in some.model.feasible.layout.variables
    ]
    problem = cp.Problem(cp.Minimize(program.expression), [*program.constraints, *fixed])
    problem.solve(solver=cp.CLARABEL)
    value = known_robust_value(some.model, some.flat)
    assert problem.value == pytest.approx(value, rel=1e-5, abs=1e-5)
