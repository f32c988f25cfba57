"""Norm costs need no draws: smoothed values, duals and gradients against cubature in log space."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from scipy.stats import norm

import wdro_model as wdro
from tests.references.fixed_decisions import FixedDecision
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream, choose

pytestmark = pytest.mark.filterwarnings("ignore::wdro_model.errors.SamplingWarning")

NORMS = {
    1: lambda moves: np.abs(moves).sum(1),
    2: lambda moves: np.sqrt((moves**2).sum(1)),
    np.inf: lambda moves: np.abs(moves).max(1),
}


def terms(rng: np.random.Generator, d: int) -> dict:
    """Losses in CVXPY and in numpy, with what they grow like along the data."""
    a, b = rng.standard_normal(d), rng.standard_normal(d)
    s = float(np.exp(rng.uniform(-1, 1)))
    return {
        "affine": (lambda x, z: z @ x + x @ a, lambda x, z: z @ x + x @ a),
        "newsvendor": (
            lambda x, z: x @ a + cp.sum(cp.maximum(s * (z - x), 0.3 * (x - z))),
            lambda x, z: x @ a + np.maximum(s * (z - x), 0.3 * (x - z)).sum(1),
        ),
        "distances": (
            lambda x, z: cp.sum(cp.abs(z - x)) + cp.sum(cp.pos(z)) + z @ b,
            lambda x, z: (np.abs(z - x) + np.maximum(z, 0)).sum(1) + z @ b,
        ),
        "smooth": (
            lambda x, z: cp.sum(cp.logistic(s * z - x)) + z @ x,
            lambda x, z: np.logaddexp(0, s * z - x).sum(1) + z @ x,
        ),
        "squares": (
            lambda x, z: s * cp.sum_squares(z - x),
            lambda x, z: s * ((z - x) ** 2).sum(1),
        ),
        "hinge": (
            lambda x, z: cp.pos(1 - s * (z @ x)),
            lambda x, z: np.maximum(0, 1 - s * (z @ x)),
        ),
        "pieces": (
            lambda x, z: cp.maximum(z @ x, s * (z @ x) - 0.3, -0.4 * (z @ x)),
            lambda x, z: np.max([z @ x, s * (z @ x) - 0.3, -0.4 * (z @ x)], axis=0),
        ),
        "logistic": (
            lambda x, z: cp.logistic(s * (z @ x)),
            lambda x, z: np.logaddexp(0, s * (z @ x)),
        ),
    }


def fixed(
    seed: int, loss: str, p: float, boxed: bool, weighted: bool = False, d: int | None = None
) -> FixedDecision:
    """A random problem with one feasible decision."""
    rng = np.random.default_rng(seed)
    drawn, count = int(rng.integers(1, 3)), int(rng.integers(1, 5))
    d = d or drawn
    count = min(count, 2) if d == 2 else count
    expression, plain = terms(rng, d)[loss]
    samples = rng.uniform(-0.9, 0.9, (count, d)) if boxed else rng.standard_normal((count, d))
    if boxed:
        samples[0, 0] = 1.0  # on the border
    weights = np.exp(rng.uniform(-1, 1, d)) if weighted else np.ones(d)
    decision = rng.standard_normal(d)
    return FixedDecision(
        expression,
        lambda z: plain(decision, z),
        wdro.costs.Norm(p, weights=weights if weighted else None),
        lambda moves: NORMS[p](weights * moves),
        samples,
        decision,
        float(10 ** rng.uniform(-1.5, 0.3)),
        float(10 ** rng.uniform(-2.3, -0.7)),
        None,
        1.0 if boxed else np.inf,
    )


def check(case: FixedDecision, strategy: str) -> None:
    problem, sigma = case.problem(), 0.4 * case.radius
    options = {"integration": strategy, "sigma": sigma}
    problem.solve(method="smoothed", epsilon=case.epsilon, progress=False, **options)
    found = problem.solution
    assert found.diagnostics is None
    assert problem.status == "optimal"
    value, dual = case.reference(found.epsilon, sigma).minimum()
    margin = abs(value - case.mean_loss())
    assert found.value == pytest.approx(value, abs=1e-4 * margin)
    if dual > 0:
        assert found.dual == pytest.approx(dual, rel=1e-3)


@pytest.mark.parametrize(
    ("seed", "loss", "boxed"),
    [
        (0, "affine", False),
        (1, "affine", True),
        (2, "newsvendor", False),
        (0, "newsvendor", True),
        (1, "distances", False),
        (2, "distances", True),
        (0, "smooth", False),
        (2, "smooth", True),
    ],
)
def test_the_sum_of_distances_is_integrated_coordinate_by_coordinate(seed, loss, boxed):
    check(fixed(seed, loss, 1, boxed, weighted=seed == 2), "separable")


@pytest.mark.parametrize("seed", [3, 4])
def test_squares_on_a_box_with_the_sum_of_distances(seed):
    check(fixed(seed, "squares", 1, boxed=True), "separable")


@pytest.mark.parametrize("p", [2, np.inf])
def test_any_norm_of_one_moving_coordinate_is_a_distance(p):
    check(fixed(5, "newsvendor", p, boxed=False, d=1), "separable")


def test_a_small_temperature_keeps_the_sum_of_distances_exact():
    """As epsilon falls, F approaches the worst-case risk mean + radius * |B|_inf."""
    rng = np.random.default_rng(0)
    data, decision = rng.standard_normal((4, 2)), np.array([0.8, -1.3])
    x = cp.Variable(2)
    z = wdro.UncertainParameter(2, samples=data)
    problem = wdro.Problem(
        cp.Minimize(z @ x), [x == decision], wdro.WassersteinBall(0.2, wdro.costs.Norm(1))
    )
    problem.solve(method="smoothed", epsilon=1e-6, sigma=0.5, progress=False)
    assert problem.value == pytest.approx(data.mean(0) @ decision + 0.2 * 1.3, abs=1e-4)


@pytest.mark.parametrize(
    ("seed", "loss", "boxed"),
    [
        (0, "affine", False),
        (3, "affine", True),
        (3, "newsvendor", False),
        (0, "newsvendor", True),
        (0, "distances", False),
        (3, "distances", True),
    ],
)
def test_terms_with_the_euclidean_norm(seed, loss, boxed):
    check(fixed(seed, loss, 2, boxed, weighted=seed == 0, d=2), "norms")


@pytest.mark.parametrize("loss", ["hinge", "pieces", "logistic"])
def test_losses_through_one_form_with_the_euclidean_norm(loss):
    check(fixed(8, loss, 2, boxed=False, weighted=True, d=2), "norms")


@pytest.mark.parametrize(
    ("loss", "p", "boxed"),
    [
        ("affine", 1, True),
        ("affine", np.inf, False),
        ("hinge", 1, False),
        ("hinge", np.inf, True),
        ("pieces", 1, True),
        ("pieces", np.inf, False),
        ("newsvendor", 1, False),
        ("newsvendor", np.inf, True),
    ],
)
def test_norms_that_are_not_round_are_integrated_over_the_plane(loss, p, boxed):
    check(fixed(8, loss, p, boxed, weighted=True, d=2), "cells")


TEN = {
    "cvar": (
        lambda x, z: 0.1 + cp.pos(-z @ x - 0.1) / 0.2,
        lambda x, z: 0.1 + np.maximum(-z @ x - 0.1, 0) / 0.2,
    ),
    "pieces": (
        lambda x, z: cp.maximum(-z @ x, 0.2 - 2 * (z @ x), 0.5 * (z @ x) - 0.1),
        lambda x, z: np.max([-z @ x, 0.2 - 2 * (z @ x), 0.5 * (z @ x) - 0.1], axis=0),
    ),
    "newsvendor": (
        lambda x, z: cp.sum(cp.maximum(z - x, 0.4 * (x - z))),
        lambda x, z: np.maximum(z - x, 0.4 * (x - z)).sum(1),
    ),
}


@pytest.mark.parametrize(
    ("loss", "boxed", "p"),
    [
        (name, boxed, p)
        for name, boxed, p in product(TEN, (False, True), (1, 2))
        if name == "newsvendor" or (p == 2 and not boxed)
    ],
)
def test_ten_coordinates_agree_with_long_plain_monte_carlo(loss, boxed, p):
    rng = np.random.default_rng(7)
    d, size, epsilon, sigma, dual = 10, 3, 0.6, 0.3, 0.8
    data, decision = rng.uniform(-0.6, 0.6, (size, d)), rng.dirichlet(np.ones(d))
    decision[3] = 0.0
    expression, plain = TEN[loss]
    x = cp.Variable(d)
    support = wdro.supports.Box(-0.8, 0.8) if boxed else None
    z = wdro.UncertainParameter(d, samples=data, support=support)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(p))
    model = wdro.Problem(cp.Minimize(expression(x, z)), [x >= 0, x <= 1], ball)._model
    rule = choose(model, None).build(model, Scales(epsilon, sigma, 1))
    assert rule.exact
    point = rule.slice(decision, np.arange(size), Stream(0)).evaluate(dual)
    values, costs, variance = [], [], 0.0
    for row in data:
        moves = sigma * rng.standard_normal((1_000_000, d))
        if boxed:
            low, high = norm.cdf((-0.8 - row) / sigma), norm.cdf((0.8 - row) / sigma)
            moves = sigma * norm.ppf(low + (high - low) * rng.uniform(size=moves.shape))
        lengths = NORMS[p](moves)
        weights = np.exp((plain(decision, row + moves) - dual * lengths) / epsilon)
        values.append(epsilon * np.log(weights.mean()))
        costs.append(weights @ lengths / weights.sum())
        variance += (epsilon * weights.std() / weights.mean()) ** 2 / len(weights)
    error = np.sqrt(variance) / size
    assert error < 2e-3
    assert point.value == pytest.approx(np.mean(values), abs=4 * error)
    assert -point.slope == pytest.approx(np.mean(costs), rel=1e-2)


@pytest.mark.parametrize("boxed", [False, True])
def test_a_small_temperature_approaches_the_exact_worst_case(boxed):
    rng = np.random.default_rng(1)
    data, decision = rng.uniform(-0.5, 0.5, (4, 3)), np.array([0.8, -1.3, 0.4])
    x = cp.Variable(3)
    support = wdro.supports.Box(-1.0, 1.0) if boxed else None
    z = wdro.UncertainParameter(3, samples=data, support=support)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(z @ x), [x == decision], ball)
    problem.solve(method="exact", progress=False)
    exact = problem.value
    problem.solve(method="smoothed", epsilon=1e-6, sigma=0.05, progress=False)
    assert problem.value == pytest.approx(exact, abs=1e-3 * (exact - data.mean(0) @ decision))


SLOPES = [
    ("newsvendor", 1, False),
    ("smooth", 1, True),
    ("squares", 1, True),
    ("affine", 2, True),
    ("affine", np.inf, False),
    ("affine", np.inf, True),
    ("pieces", 2, False),
    ("logistic", 2, False),
    ("distances", 2, True),
    ("pieces", 1, False),
    ("hinge", np.inf, False),
    ("newsvendor", 2, False),
    ("newsvendor", 2, True),
    ("newsvendor", np.inf, False),
    ("newsvendor", np.inf, True),
    ("pieces", 2, True),
    ("hinge", 2, True),
    ("pieces", np.inf, True),
    ("hinge", np.inf, True),
]


@pytest.mark.parametrize(
    ("loss", "p", "boxed", "dual"),
    [*((*case, (3.0, 0.3)[i % 2]) for i, case in enumerate(SLOPES)), ("pieces", 2, False, 0.3)],
)
def test_slopes_in_the_decision_and_the_dual_are_those_of_differences(loss, p, boxed, dual):
    case = fixed(3, loss, p, boxed, weighted=True, d=2)
    model = case.problem()._model
    rule = choose(model, None).build(model, Scales(0.2, np.array([0.3, 0.5]), 1))
    samples = np.arange(len(case.samples))
    x, step = case.decision, 1e-5
    same_cells = 1e-6  # adaptive cells are cut elsewhere for decisions that differ by more

    def at(decision, price):
        return rule.slice(decision, samples, Stream(0)).evaluate(price)

    point, gradient = at(x, dual), rule.slice(x, samples, Stream(0)).gradient(dual)
    ahead, back = at(x, dual + step), at(x, dual - step)
    assert point.slope == pytest.approx((ahead.value - back.value) / (2 * step), rel=1e-5)
    if np.isfinite(point.curvature):
        assert point.curvature == pytest.approx((ahead.slope - back.slope) / (2 * step), rel=1e-2)
    for i, way in enumerate(np.eye(len(x))):
        rise = at(x + same_cells * way, dual).value - at(x - same_cells * way, dual).value
        assert gradient[i] == pytest.approx(rise / (2 * same_cells), rel=1e-5, abs=1e-6)


def test_what_the_mixtures_refuse_and_why():
    rng = np.random.default_rng(0)
    z = wdro.UncertainParameter(3, samples=rng.uniform(size=(4, 3)))
    x = cp.Variable(3)
    refusal = STRATEGIES["norms"].refusal

    def model(loss, p):
        ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(p))
        return wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 1], ball)._model

    assert refusal(model(z @ x, 2)) is None
    assert refusal(model(cp.pos(z @ x), 2)) is None
    for p in (1, 3, np.inf):
        assert "not a Euclidean norm" in refusal(model(z @ x, p))
    assert "not affine" in refusal(model(cp.log_sum_exp(cp.multiply(z, 1 + x)), 2))


def test_integrals_do_not_depend_on_the_decisions_before():
    """Narrow peaks of far moves come up and vanish as the decision moves: none is missed."""
    rng = np.random.default_rng(0)
    d, size, epsilon = 10, 8, 3e-4
    data = 0.3 * np.clip(rng.standard_normal((size, d)), -2, 2) + 0.2
    x = cp.Variable(d)
    z = wdro.UncertainParameter(d, samples=data)
    loss = cp.maximum(-z @ x, 0.2 - 2 * (z @ x), 0.5 * (z @ x) - 0.1)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    model = wdro.Problem(cp.Minimize(loss), [x >= 0, cp.sum(x) == 1], ball)._model
    scales, samples = Scales(epsilon, 0.02, 1), np.arange(size)
    used = choose(model, None).build(model, scales)
    first, last = rng.dirichlet(np.ones(d), 2)
    for share in np.linspace(0, 1, 9):
        decision = first + share * (last - first)
        for dual in (0.4, 0.7):
            fresh = choose(model, None).build(model, scales)
            found, again = (
                r.slice(decision, samples, Stream(0)).evaluate(dual) for r in (used, fresh)
            )
            assert found.value == pytest.approx(again.value, abs=1e-5 * epsilon)
            assert found.slope == pytest.approx(again.slope, rel=1e-4)
