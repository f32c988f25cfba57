"""Exact counterparts where a careless formula goes wrong, against independent programs."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.pairwise import pairwise
from wdro_model.errors import NoReformulationError, UnboundedError

SIMPLEX = (np.array([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]), np.array([1.0, 0.0, 0.0]))
SHARES = np.array([[0.4, 0.5], [0.2, 0.7], [0.5, 0.5]])
PRECISION = np.array([[2.0, 0.9], [0.9, 1.0]])


def largest_first_coordinate(cost, radius, polyhedron):
    """The adversary's problem for the loss z_1: max mean (Z + V)_1 within budget and support."""
    moved = SHARES + (moves := cp.Variable((3, 2)))
    spent = {
        "squared": cp.sum_squares(moves) / 3,
        "mahalanobis": cp.sum_squares(moves @ np.linalg.cholesky(PRECISION)) / 3,
        "norm1": cp.sum(cp.abs(moves)) / 3,
    }[cost]
    inside = (
        [moved @ SIMPLEX[0].T <= np.tile(SIMPLEX[1], (3, 1))]
        if polyhedron
        else [moved >= 0, moved <= 1]
    )
    return cp.Problem(cp.Maximize(cp.sum(moved[:, 0]) / 3), [*inside, spent <= radius]).solve(
        solver=cp.CLARABEL
    )


@pytest.mark.parametrize(
    ("cost", "polyhedron", "radius"),
    pairwise(product(("squared", "mahalanobis", "norm1"), (True, False), (0.05, 0.3))),
)
def test_coordinates_that_the_loss_does_not_see_move_with_those_it_does(cost, polyhedron, radius):
    metric = {
        "squared": None,
        "mahalanobis": wdro.costs.Mahalanobis(precision=PRECISION),
        "norm1": wdro.costs.Norm(1),
    }[cost]
    support = wdro.supports.Polyhedron(*SIMPLEX) if polyhedron else wdro.supports.Box(0, 1)
    z = wdro.UncertainParameter(2, samples=SHARES, support=support)
    x = cp.Variable()
    problem = wdro.Problem(
        cp.Minimize(z[0] * x), [x >= 1, x <= 2], wdro.WassersteinBall(radius, metric)
    )
    expected = largest_first_coordinate(cost, radius, polyhedron)
    assert problem.solve(method="exact") == pytest.approx(expected, rel=1e-5)
    assert problem.robust_value() == pytest.approx(expected, rel=1e-5)
    assert problem.worst_case().expected_loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", [True, False])
def test_slopes_that_vanish_at_ordinary_decisions_are_not_zero(norm):
    data = np.random.default_rng(0).uniform(1, 2, size=(5, 2))
    z, x = wdro.UncertainParameter(2, samples=data), cp.Variable(nonneg=True)
    loss = cp.maximum(z[0] * cp.pos(x - 2), z[1] * x - 3) + cp.square(x - 5)
    ball = wdro.WassersteinBall(0.3, wdro.costs.Norm(2) if norm else None)
    problem = wdro.Problem(cp.Minimize(loss), [x <= 10], ball)
    price, steep = cp.Variable(nonneg=True), cp.pos(x - 2)
    first, second = data[:, 0] * steep, data[:, 1] * x - 3
    if norm:
        risk = cp.sum(cp.maximum(first, second)) / 5 + 0.3 * cp.maximum(steep, x)
    else:
        first = first + cp.quad_over_lin(steep, 4 * price)
        second = second + cp.quad_over_lin(x, 4 * price)
        risk = 0.3 * price + cp.sum(cp.maximum(first, second)) / 5
    expected = cp.Problem(cp.Minimize(risk + cp.square(x - 5)), [x <= 10]).solve(solver=cp.CLARABEL)
    assert problem.solve(method="exact") == pytest.approx(expected, rel=1e-6)
    assert problem.robust_value() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "cost",
    [
        wdro.costs.Norm(1),
        wdro.costs.Norm(2),
        wdro.costs.Norm(np.inf),
        wdro.costs.SquaredEuclidean(),
        wdro.costs.Mahalanobis(precision=[[1, 0.3], [0.3, 1]]),
    ],
)
def test_worst_case_on_a_box_with_a_side_of_width_zero(cost):
    """An intercept: a column of ones that the adversary may not touch."""
    data = np.array([[1.0, 0.5], [1.0, 2.0], [1.0, 1.5]])
    box = wdro.supports.Box([1, -3], [1, 4])
    z, x = wdro.UncertainParameter(2, samples=data, support=box), cp.Variable(2, nonneg=True)
    problem = wdro.Problem(
        cp.Minimize(cp.abs(z @ x - 2)), [cp.sum(x) == 1, x >= 0.3], wdro.WassersteinBall(0.5, cost)
    )
    value, found = problem.solve(method="exact"), problem.worst_case()
    assert found.expected_loss == pytest.approx(value, rel=1e-5)
    assert found.transport_cost <= 0.5 + 1e-6
    assert z.support.contains(found.scenarios[z]).all()


@pytest.mark.parametrize("cost", [wdro.costs.Norm(1), wdro.costs.Norm(2), None])
def test_worst_case_on_a_simplex(cost):
    matrix = np.vstack([np.ones((1, 3)), -np.ones((1, 3)), -np.eye(3)])
    simplex = wdro.supports.Polyhedron(matrix, np.array([1.0, -1.0, 0.0, 0.0, 0.0]))
    rows = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.125, 0.125, 0.75]])
    z, y = wdro.UncertainParameter(3, samples=rows, support=simplex), cp.Variable(3, nonneg=True)
    problem = wdro.Problem(
        cp.Minimize(z @ y),
        [y[0] + 2 * y[1] + 3 * y[2] >= 2, y <= 1],
        wdro.WassersteinBall(0.05, cost),
    )
    value, found = problem.solve(method="exact"), problem.worst_case()
    assert found.expected_loss == pytest.approx(value, rel=1e-5)
    assert found.transport_cost <= 0.05 + 1e-6
    assert z.support.contains(found.scenarios[z]).all()


@pytest.mark.parametrize("radius", [1.0, 1e-3, 1e-5])
def test_worst_case_attains_small_margins_too(radius):
    """No sample is near the kink: a tiny share of one must go far."""
    z, x = wdro.UncertainParameter(samples=np.array([0.0, 0.1])), cp.Variable()
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(cp.pos(z - x)), [x == 1], ball)
    assert problem.solve(method="exact") == pytest.approx(radius)
    found = problem.worst_case()
    assert found.expected_loss == pytest.approx(radius, rel=1e-6)
    assert found.transport_cost <= radius * (1 + 1e-9)


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_worst_case_on_a_half_bounded_support_attains_the_margin(p):
    data = np.random.default_rng(6).uniform(0, 1, (8, 3))
    z = wdro.UncertainParameter(3, samples=data, support=wdro.supports.Nonnegative())
    x = cp.Variable(3, nonneg=True)
    loss = cp.pos(x @ z - 1) + cp.pos(0.2 - x @ z)
    ball = wdro.WassersteinBall(0.3, wdro.costs.Norm(p))
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
    value, found = problem.solve(method="exact"), problem.worst_case()
    assert found.expected_loss == pytest.approx(value, rel=1e-6)
    assert found.transport_cost <= 0.3 * (1 + 1e-6)
    np.testing.assert_allclose(np.bincount(found.source, found.weights), np.full(8, 1 / 8))


def test_a_matrix_that_is_definite_on_the_samples_may_leave_the_cone():
    """PSD=True makes ERM convex, not the robust problem."""
    matrices = np.array([[[0.1, 0], [0, 0.1]], [[0.2, 0], [0, 0.1]]])
    xi, x = wdro.UncertainParameter((2, 2), samples=matrices, PSD=True), cp.Variable(2)
    loss = wdro.quadratic_form(x, xi) - 3 * cp.trace(xi)
    problem = wdro.Problem(cp.Minimize(loss), [x >= -1, x <= 2], wdro.WassersteinBall(1.0))
    with pytest.warns(wdro.ConvexityWarning):
        problem.solve(method="exact", seed=1)
    assert problem.status == "stationary"
    assert problem.solution.lower_bound is None
    problem.solve(method="erm")
    assert problem.status == "optimal"


def test_multiples_of_a_quadratic_form_keep_their_certificate(rng):
    matrices = rng.normal(size=(6, 3, 3))
    xi, x = wdro.UncertainParameter((3, 3), samples=matrices), cp.Variable(3, nonneg=True)
    ball = wdro.WassersteinBall(30.0)
    loss = wdro.quadratic_form(x, xi)
    single = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
    double = wdro.Problem(cp.Minimize(2 * loss + cp.sum(x)), [cp.sum(x) == 1], ball)
    for method in ("exact", "smoothed"):
        value = single.solve(method)
        assert single.status == "optimal"
        if method == "exact":
            assert double.solve(method) == pytest.approx(2 * value + 1, rel=1e-6)
        else:
            double.solve(method)
        assert double.status == "optimal"


@pytest.mark.parametrize(
    ("norm", "support", "radius"),
    pairwise(
        product(
            (1, 2, None),
            (wdro.supports.Everywhere(), wdro.supports.Nonnegative()),
            (1e10, 1e20),
        )
    ),
)
def test_huge_radii_leave_the_lipschitz_constant(norm, support, radius):
    cost, expected = norm and wdro.costs.Norm(norm), 0.5 if norm == 1 else 0.5**0.5
    data = np.random.default_rng(5).uniform(0, 1, size=(6, 2))
    z, x = wdro.UncertainParameter(2, samples=data, support=support), cp.Variable(2, nonneg=True)
    loss = cp.maximum(z @ x, 1 - z @ x)
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(radius, cost))
    distance = radius if cost is not None else radius**0.5
    assert problem.solve(method="exact") / distance == pytest.approx(expected, rel=1e-4)


def test_radius_zero_is_erm_for_losses_without_a_formula():
    data = np.random.default_rng(5).uniform(0, 1, size=(6, 2))
    z, x = wdro.UncertainParameter(2, samples=data), cp.Variable(2, nonneg=True)
    problem = wdro.Problem(cp.Minimize(cp.exp(z @ x)), [cp.sum(x) == 1], wdro.WassersteinBall(0.0))
    assert problem.solve(method="exact") == pytest.approx(problem.solve(method="erm"), rel=1e-9)


OUTGROWING = {
    "square": lambda z, x: cp.square(z @ x),
    "squares": lambda z, x: cp.sum_squares(z - x),
    "product": lambda z, x: z[0] * z[1] * x[0],
    "nested norm": lambda z, x: cp.norm(cp.hstack([cp.square(z[0]), z[1]])) + x[0],
}


@pytest.mark.filterwarnings("ignore::wdro_model.errors.ConvexityWarning")
@pytest.mark.parametrize(
    ("loss", "cost", "support"),
    pairwise(
        product(
            OUTGROWING,
            (wdro.costs.Norm(1), wdro.costs.Norm(2)),
            (None, wdro.supports.Nonnegative()),
        )
    ),
)
def test_a_loss_that_outgrows_a_norm_is_refused(loss, cost, support):
    """Nearly all mass stays, a share delta goes as far as radius / delta: the mean has no bound."""
    data = np.random.default_rng(5).uniform(0, 1, size=(6, 2))
    z = wdro.UncertainParameter(2, samples=data, support=support, name="demand")
    x = cp.Variable(2, nonneg=True)
    ball = wdro.WassersteinBall(0.1, cost)
    problem = wdro.Problem(cp.Minimize(OUTGROWING[loss](z, x)), [cp.sum(x) == 1], ball)
    for method in ("auto", "smoothed"):
        with pytest.raises(UnboundedError, match=r"faster than the cost.*'demand'.*Box\(lower"):
            problem.solve(method=method)


def test_on_a_box_the_same_loss_has_an_answer():
    data = np.random.default_rng(5).uniform(0, 1, size=(6, 1))
    z = wdro.UncertainParameter(1, samples=data, support=wdro.supports.Box(0.0, 1.0))
    x = cp.Variable(1)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(z) + x[0]), [x == 0], ball)
    problem.solve(method="smoothed")
    # The chord of a convex loss: every unit of cost to the upper end of the box pays 1 + z.
    order = np.sort(data[:, 0])[::-1]
    left, worst = 0.1 * 6, float((order**2).sum())
    for value in order:
        share = min(1.0, left / (1 - value))
        worst, left = worst + share * (1 - value**2), left - share * (1 - value)
    assert (data**2).mean() < problem.value <= worst / 6 + 1e-3


def test_a_quotient_that_sees_the_data_is_no_square():
    data = np.random.default_rng(5).uniform(0, 1, size=(6, 2))
    z, x = wdro.UncertainParameter(2, samples=data), cp.Variable(2)
    loss = cp.quad_over_lin(x, 1 + cp.square(z[0]))
    problem = wdro.Problem(cp.Minimize(loss), [x >= 0.5, x <= 1], wdro.WassersteinBall(0.1))
    problem.solve()
    # Increasing in x: both entries at 0.5, and the adversary lowers z[0]^2 to 0 at best.
    assert x.value == pytest.approx([0.5, 0.5], abs=1e-3)
    mean = 0.5 / (1 + data[:, 0] ** 2)
    assert mean.mean() < problem.value <= 0.5


def test_a_concave_regulariser_is_named_as_what_it_is():
    z = wdro.UncertainParameter(2, samples=np.random.default_rng(0).normal(size=(6, 2)))
    x = cp.Variable(2, nonneg=True)
    loss = cp.pos(z @ x) - cp.sum_squares(x)
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
    with pytest.raises(NoReformulationError, match="the loss itself is not"):
        problem.solve(method="exact")


def test_decisions_to_judge_are_called_by_their_name(portfolio):
    problem, x, _ = portfolio
    with pytest.raises(ValueError, match=r"decision for 'x' must be finite, got nan at \(0,\)"):
        problem.robust_value({x: [np.nan, 0.5, 0.5, 0.0]})
    with pytest.raises(ValueError, match="decision must be a dict"):
        problem.evaluate(decision=np.ones(4))
    with pytest.raises(ValueError, match=r"decision for 'x' must have shape \(4,\), got \(3,\)"):
        problem.robust_value({x: np.ones(3)})


def test_solver_names_in_small_letters(portfolio):
    problem, _, _ = portfolio
    assert problem.solve(solver="clarabel") == pytest.approx(problem.solve(solver="CLARABEL"))
    with pytest.raises(ValueError, match=r"installed: .*CLARABEL.*got 'CLARABELL'"):
        problem.solve(solver="CLARABELL")


@pytest.mark.parametrize("limit", [-1, 0, "3", np.nan, True])
def test_time_limits_are_checked_for_every_solver(portfolio, limit):
    problem, _, _ = portfolio
    with pytest.raises(ValueError, match="time_limit must be a positive number of seconds"):
        problem.solve(time_limit=limit)


@pytest.mark.parametrize("seed", [0, 12, 13])
def test_risk_on_a_polyhedron_with_many_pieces(seed):
    """64 pieces on a random polyhedron: the risk at the decision that was just found."""
    rng = np.random.default_rng(seed)
    data, rows, root = (rng.normal(size=(k, 5)) for k in (4, 2, 5))
    support = wdro.supports.Polyhedron(rows, (data @ rows.T).max(axis=0) + 0.5)
    x, t, z = (
        cp.Variable(5),
        cp.Variable(),
        wdro.UncertainParameter(5, samples=data, support=support),
    )
    loss = t + 3 * cp.pos(-z @ x - t) + cp.sum(cp.pos(cp.multiply(x, z) - 1))
    cost = wdro.costs.Mahalanobis(precision=root @ root.T + 0.2 * np.eye(5))
    constraints = [cp.abs(x) <= 2, cp.abs(t) <= 2]
    problem = wdro.Problem(cp.Minimize(loss), constraints, wdro.WassersteinBall(0.02, cost))
    value = problem.solve(method="exact")
    assert problem.robust_value() == pytest.approx(value, rel=1e-5)
    assert problem.worst_case().expected_loss == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("cost", [None, wdro.costs.Norm(1), wdro.costs.Norm(2)])
@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1e3])
def test_risk_of_small_and_large_decisions(cost, scale):
    """A homogeneous loss has a homogeneous risk."""
    data = np.random.default_rng(0).normal(1, 1, size=(8, 3))
    support = wdro.supports.Polyhedron(np.ones((1, 3)), np.array([8.0]))
    x, t, z = (
        cp.Variable(3),
        cp.Variable(),
        wdro.UncertainParameter(3, samples=data, support=support),
    )
    problem = wdro.Problem(
        cp.Minimize(t + 5 * cp.pos(-z @ x - t)), [], wdro.WassersteinBall(0.1, cost)
    )

    def risk(s):
        return problem.robust_value({x: s * np.array([0.2, 0.3, 0.5]), t: np.array(0.3 * s)}) / s

    assert risk(scale) == pytest.approx(risk(1.0), rel=1e-6)


@pytest.mark.parametrize("seed", [49, 90, 153])
def test_worst_case_stays_in_a_box_at_tiny_radii(seed):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(6, 2))
    radius, weight = 10 ** rng.uniform(-10, -5), 10 ** rng.uniform(-4, 0)
    box = wdro.supports.Box(data.min(axis=0) - 1, data.max(axis=0) + 1)
    x, z = cp.Variable(2), wdro.UncertainParameter(2, samples=data, support=box)
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(2, weights=weight))
    problem = wdro.Problem(cp.Minimize(cp.maximum(-z @ x, -0.2 * (z @ x) - 0.1)), [], ball)
    x.value = np.array([-0.4, -2.0])
    found = problem.worst_case("exact")
    assert box.contains(found.scenarios[z]).all()
    assert found.transport_cost <= radius * (1 + 1e-6)


@pytest.mark.parametrize("factor", [1.0, 1e-4, 1e-6])
def test_worst_case_of_small_losses(factor):
    data = np.random.default_rng(0).normal(1, 1, size=(8, 3))
    x, t = cp.Variable(3, nonneg=True), cp.Variable()
    z = wdro.UncertainParameter(3, samples=data, support=wdro.supports.Box(-6, 6))
    loss = factor * (t + 5 * cp.pos(-z @ x - t))
    problem = wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(5, wdro.costs.Norm(2)))
    x.value, t.value = np.array([0.2, 0.3, 0.5]), 0.3
    found = problem.worst_case("exact")
    assert found.expected_loss == pytest.approx(problem.robust_value(), rel=1e-6)


def test_covariances_in_mixed_units_are_definite():
    """A price around 1e-3 beside a volume around 1e4."""
    cost = wdro.costs.Mahalanobis(covariance=np.diag([1e-6, 1e8]))
    z, x = wdro.UncertainParameter(2, samples=np.ones((3, 2))), cp.Variable(2, nonneg=True)
    problem = wdro.Problem(cp.Minimize(z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(1.0, cost))
    assert problem.solve(method="exact") == pytest.approx(1.001, rel=1e-6)
    with pytest.raises(ValueError, match="positive definite"):
        wdro.costs.Mahalanobis(covariance=np.ones((2, 2)))
