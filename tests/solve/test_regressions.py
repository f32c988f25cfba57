"""Cases in which an answer once looked right and was not."""

from __future__ import annotations

import copy
import pickle
import warnings

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream
from wdro_model.solve.notes import sampling_notes
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe
from wdro_model.solvers.objective import Diagnostics


def newsvendor(demand, radius=4.0):
    order = cp.Variable(3, nonneg=True, name="order")
    d = wdro.UncertainParameter(3, name="demand", samples=demand, support=wdro.supports.Box(0, 50))
    loss = cp.sum(order - d) + 4 * cp.sum(cp.pos(d - order))
    ball = wdro.WassersteinBall(radius)
    return wdro.Problem(cp.Minimize(loss), [order <= 40], ambiguity=ball), order


def newsvendor_by_quadrature(order, dual, demand, radius, epsilon, sigma):
    """F(order, dual) for the separable newsvendor, each coordinate on a fine grid."""
    z = np.linspace(0, 50, 40_001)
    total = 0.0
    for i in range(3):
        h = (order[i] - z) + 4 * np.maximum(z - order[i], 0)
        square = (z - demand[:, i : i + 1]) ** 2
        reference = -square / (2 * sigma**2)
        exponent = (h - dual * square) / epsilon + reference
        top = exponent.max(axis=1, keepdims=True)
        total += np.mean(
            top[:, 0]
            + np.log(np.exp(exponent - top).sum(axis=1))
            - np.log(np.exp(reference).sum(axis=1))
        )
    return dual * radius + epsilon * total


def test_value_is_that_of_quadrature_and_its_bound_is_below_the_optimum(rng):
    demand = rng.gamma(4.0, 2.5, size=(40, 3))
    problem, order = newsvendor(demand)
    values = []
    for integration, start in ((None, None), (None, 20.0), ("tilted", None)):
        given = None if start is None else {order: np.full(3, start)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wdro.SamplingWarning)
            problem.solve(
                method="smoothed", integration=integration, start=given, time_limit=8, epsilon=0.02
            )
        s = problem.solution
        truth = newsvendor_by_quadrature(order.value, s.dual, demand, 4.0, s.epsilon, s.sigma)
        assert s.value == pytest.approx(truth, abs=5 * (s.standard_error or 0.0) + 1e-4)
        values.append(s)
    best = min(s.value for s in values)
    assert values[0].status == values[1].status == "optimal"
    assert values[0].value == pytest.approx(values[1].value, rel=2e-4)
    assert values[0].value == pytest.approx(values[2].value, rel=1e-3)
    for s in values:
        assert s.lower_bound is None or s.lower_bound <= best + 1e-3


def test_a_thousand_modes_are_in_the_value_or_in_its_standard_error(rng):
    """Ten products of two modes each, forced through draws around a few of a thousand modes."""
    d, count = 10, 8
    demand = rng.gamma(4.0, 2.5, size=(count, d))
    x = cp.Variable(d, nonneg=True, name="x")
    xi = wdro.UncertainParameter(d, name="xi", samples=demand)
    loss = cp.sum(cp.maximum(2 * (x - xi), 5 * (xi - x)))
    problem = wdro.Problem(cp.Minimize(loss), [x <= 40], wdro.WassersteinBall(4.0))
    solver = FrankWolfe(max_iterations=4)
    problem.solve(method="smoothed", integration="tilted", epsilon=1.0, solver=solver)
    s, at = problem.solution, problem._decision()
    rule = STRATEGIES["separable"].build(problem._model, Scales(1.0, s.sigma, 1))
    truth = 4.0 * s.dual + rule.slice(at, np.arange(count), Stream(0)).evaluate(s.dual).value
    assert abs(s.value - truth) < 3 * s.standard_error
    assert s.standard_error < 2e-3 * (s.value - s.empirical_value)
    assert s.status != "optimal"


@pytest.mark.parametrize("seed", range(6))
def test_tilted_draws_reach_the_optimum_of_the_closed_form(seed):
    rng = np.random.default_rng(seed)
    x = cp.Variable(5, nonneg=True, name="x")
    xi = wdro.UncertainParameter(5, name="xi", samples=rng.normal(0.1, 0.4, size=(20, 5)))
    radius = float(10 ** rng.uniform(-3, 0))
    problem = wdro.Problem(cp.Minimize(-xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(radius))
    problem.solve(method="smoothed")
    best, epsilon = problem.value, problem.solution.epsilon
    problem.solve(method="smoothed", integration="tilted", epsilon=epsilon)
    scale = abs(best) + np.sqrt(radius)
    assert problem.value == pytest.approx(best, abs=2e-3 * scale)
    bound = problem.solution.lower_bound
    assert bound is None or bound <= best + 1e-3 * scale


def test_mahalanobis_cost_with_a_sigma_for_each_coordinate(rng):
    root = rng.normal(size=(3, 3))
    cost = wdro.costs.Mahalanobis(precision=root @ root.T + np.eye(3))
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.normal(size=(6, 3)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1, cost))
    model, at = problem._model, np.array([0.2, 0.5, 0.3])
    scales = Scales(0.05, np.array([0.1, 0.3, 0.2]), 1)
    one, two = (
        STRATEGIES[name].build(model, scales).slice(at, np.arange(6), Stream(0))
        for name in ("closed_form", "low_rank")
    )
    for dual in (0.1, 1.0):
        assert one.evaluate(dual).value == pytest.approx(two.evaluate(dual).value, rel=1e-10)
        assert one.evaluate(dual).slope == pytest.approx(two.evaluate(dual).slope, rel=1e-9)
        assert one.gradient(dual) == pytest.approx(two.gradient(dual), rel=1e-8)


@pytest.mark.parametrize(
    "cost",
    [
        wdro.costs.SquaredEuclidean(),
        wdro.costs.SquaredEuclidean(weights=4.0),
        wdro.costs.Norm(1),
        wdro.costs.Norm(2),
        wdro.costs.Norm(np.inf),
        lambda a, b: ((a - b) ** 2).sum(axis=1),
        lambda a, b: 3 * np.abs(a - b).sum(axis=1),
    ],
    ids=["squared", "weighted", "one", "two", "infinity", "own square", "own norm"],
)
def test_reference_moves_cost_half_the_radius(cost, rng):
    from wdro_model.objectives.scales import default_sigma

    xi = wdro.UncertainParameter(8, name="xi", samples=rng.normal(size=(50, 8)))
    x = cp.Variable(8, nonneg=True)
    ball = wdro.WassersteinBall(0.3, cost)
    model = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], ball)._model
    sigma = default_sigma(model.cost, 0.3, model.joint)
    origin = np.zeros((20_000, 8))
    moved = sigma * rng.standard_normal((20_000, 8))
    assert model.cost(origin, moved).mean() == pytest.approx(0.15, rel=0.35)


def test_cost_that_forbids_moves(rng):
    def upwards_only(origins, points):
        cost = ((origins - points) ** 2).sum(axis=1)
        return np.where((points < origins).any(axis=1), np.inf, cost)

    x = cp.Variable(2, nonneg=True, name="x")
    xi = wdro.UncertainParameter(2, name="xi", samples=rng.normal(1, 0.1, size=(8, 2)))
    ball = wdro.WassersteinBall(0.05, upwards_only)
    problem = wdro.Problem(cp.Minimize(-xi @ x), [cp.sum(x) == 1], ball)
    solver = MomentumFrankWolfe(batch_size=4, samples=60, max_iterations=20, dual_bound=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = problem.solve(method="smoothed", epsilon=0.05, sigma=0.1, solver=solver)
    assert np.isfinite(value)


def test_constant_constraints_beside_an_oracle_set(rng):
    tree = wdro.sets.SpanningTree(nx.complete_graph(3))
    y = cp.Variable(3, name="y")
    xi = wdro.UncertainParameter(3, samples=rng.uniform(1, 2, size=(5, 3)))
    limit = cp.Parameter(value=2.0)
    for bad in (False, cp.Constant(3.0) <= limit):
        with pytest.raises(wdro.InfeasibleError, match="no variable and does not hold"):
            wdro.Problem(cp.Minimize(xi @ y), [wdro.In(y, tree), bad])
    assert wdro.Problem(cp.Minimize(xi @ y), [wdro.In(y, tree), True]).solve(method="erm") > 0


def test_nothing_may_move_is_erm(portfolio):
    problem, _, _ = portfolio
    (returns,) = problem.uncertain_parameters()
    cost = wdro.costs.SquaredEuclidean(weights={returns: np.inf})
    frozen = wdro.Problem(problem.objective, problem.constraints, wdro.WassersteinBall(1.0, cost))
    for method in ("auto", "exact", "smoothed"):
        assert frozen.solve(method=method) == pytest.approx(problem.solve(method="erm"), abs=1e-8)


def test_smoothing_option_with_an_open_method_asks_for_smoothing(portfolio):
    problem, _, _ = portfolio
    problem.solve(epsilon=0.01)
    assert problem.solution.method == "smoothed"
    assert "smoothed" in problem.explain(integration="tilted")
    assert "CLARABEL" in problem.explain(solver="CLARABEL")


def test_cvxpy_problem_keeps_value_and_status(rng):
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(20, 3)))
    plain = cp.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1])
    value = plain.solve(method="wdro", ambiguity=wdro.WassersteinBall(0.1))
    assert plain.value == value
    assert plain.status == "optimal"


def test_scales_do_not_depend_on_earlier_seeds(rng):
    data = rng.normal(size=(30, 4))

    def fresh():
        theta = cp.Variable(4, name="theta")
        xi = wdro.UncertainParameter(4, name="xi", samples=data)
        return wdro.Problem(
            cp.Minimize(cp.logistic(-xi @ theta)),
            [cp.norm1(theta) <= 2],
            ambiguity=wdro.WassersteinBall(0.1),
        )

    one, two = fresh(), fresh()
    one.solve(method="smoothed", seed=3)
    two.solve(method="smoothed", seed=0)
    two.solve(method="smoothed", seed=3)
    assert one.solution.epsilon == two.solution.epsilon
    assert one.value == pytest.approx(two.value, rel=1e-12)


def test_result_that_is_neither_convex_nor_reliable_is_not_optimal(rng):
    x = cp.Variable(3, nonneg=True, name="x")
    M = wdro.UncertainParameter((3, 3), name="M", samples=rng.normal(size=(10, 3, 3)))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, M)), [cp.sum(x) == 1], wdro.WassersteinBall(1e-3)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(
            method="smoothed", integration="gaussian", solver=FrankWolfe(samples=5), epsilon=1e-7
        )
    assert not problem.status.startswith("optimal")


def test_start_outside_the_feasible_set_is_refused(portfolio):
    problem, x, _ = portfolio
    with pytest.raises(ValueError, match="outside the feasible set"):
        problem.solve(method="smoothed", start={x: np.array([5.0, 0, 0, 0])})
    assert problem.robust_value({x: np.array([5.0, 0, 0, 0])}) is not None


def test_constraints_may_come_from_a_generator(portfolio):
    problem, x, _ = portfolio
    again = wdro.Problem(problem.objective, (c for c in problem.constraints), problem.ambiguity)
    again.solve()
    assert x.value.sum() == pytest.approx(1.0, abs=1e-6)


def test_solved_problems_can_be_copied_and_solutions_pickled(portfolio):
    problem, _, _ = portfolio
    problem.solve(method="smoothed")
    twin = pickle.loads(pickle.dumps(problem.solution))
    assert twin.value == problem.value
    copy.deepcopy(problem)


def test_failed_solve_leaves_no_old_result(rng):
    total = cp.Parameter(value=1.0, name="total")
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(10, 3)))
    ball = wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == total], ball)
    problem.solve()
    total.value = -1.0
    with pytest.raises(wdro.InfeasibleError):
        problem.solve()
    assert problem.value is None
    assert problem.status is None


# ------------------------------------------------------------------ infinite objectives
@pytest.mark.parametrize("options", [{}, {"integration": "tilted"}, {"integration": "gaussian"}])
@pytest.mark.parametrize("name", ["exponential", "fourth power", "sum", "callable"])
def test_loss_that_outgrows_the_cost_is_refused_before_the_run(name, options, rng):
    x = cp.Variable(3, nonneg=True, name="x")
    z = wdro.UncertainParameter(3, name="z", samples=rng.normal(size=(20, 3)))

    def growing(point, scenarios):
        value = np.exp(scenarios[z] @ point[x])

        def pullback(w):
            return {x: (w * value) @ scenarios[z], z: np.outer(w * value, point[x])}

        return value, pullback

    loss = {
        "exponential": cp.Minimize(cp.exp(z @ x)),
        "fourth power": cp.Minimize(cp.power(z @ x, 4)),
        "sum": cp.Minimize(cp.sum(cp.exp(cp.multiply(z, x)))),
        "callable": wdro.CallableLoss(growing, x, z, convex=True),
    }[name]
    problem = wdro.Problem(loss, [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
    with pytest.raises(ValueError, match=r"grows faster than the cost.*Box\(lower, upper\)"):
        problem.solve(method="smoothed", **options)


def test_logarithm_asks_for_a_support_on_which_it_is_defined(rng):
    x = cp.Variable(3, nonneg=True, name="x")
    samples = 1 + 0.1 * rng.uniform(size=(10, 3))
    r = wdro.UncertainParameter(3, name="r", samples=samples)
    ball = wdro.WassersteinBall(0.01)
    problem = wdro.Problem(cp.Minimize(-cp.log(r @ x)), [cp.sum(x) == 1], ball)
    with pytest.raises(ValueError, match="support on which the loss is defined"):
        problem.solve(method="smoothed")


def test_losses_that_grow_like_the_cost_are_not_refused(rng):
    """Least squares has a finite F for large multipliers, by forms and by draws alike."""
    data = rng.normal(size=(30, 4))
    theta = cp.Variable(3, name="theta")
    z = wdro.UncertainParameter(4, name="z", samples=data)
    problem = wdro.Problem(
        cp.Minimize(cp.square(z[:3] @ theta - z[3])),
        [cp.norm1(theta) <= 2],
        wdro.WassersteinBall(0.1),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_forms = problem.solve(method="smoothed")
        assert problem.solve(method="smoothed", integration="tilted") == pytest.approx(
            by_forms, rel=3e-4
        )
    assert problem.status == "optimal"


# ------------------------------------------------------------------ what a result says of itself
def test_error_of_lone_draws_is_not_known(rng):
    x = cp.Variable(20, nonneg=True, name="x")
    xi = wdro.UncertainParameter(20, name="xi", samples=rng.normal(size=(10, 20)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
    with pytest.warns(wdro.SamplingWarning, match="standard error is not known"):
        problem.solve(
            method="smoothed",
            integration="gaussian",
            epsilon=1e-6,
            solver=FrankWolfe(samples=5, max_iterations=30),
        )
    assert problem.solution.standard_error == np.inf
    assert problem.status != "optimal"
    assert problem.solution.lower_bound is None


def test_small_sigma_is_named(rng):
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.normal(size=(10, 3)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(1.0))
    with pytest.warns(wdro.SamplingWarning, match="sigma is too small for the radius") as caught:
        problem.solve(method="smoothed", sigma=1e-3, epsilon=0.1)
    assert problem.solution.dual == 0
    assert not any("does not bind" in str(one.message) for one in caught)
    default = wdro.Problem(problem.objective, problem.constraints, problem.ambiguity)
    default.solve(method="smoothed")
    assert f"{default.solution.sigma:.3g}" in str(caught[0].message)


def test_fractional_values_of_integer_variables_are_noted(rng):
    x = cp.Variable(4, boolean=True, name="x")
    xi = wdro.UncertainParameter(4, name="xi", samples=rng.normal(1, 0.5, size=(20, 4)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 2], wdro.WassersteinBall(2.0))
    problem.solve(method="smoothed")
    value = problem.solution.decision[x]
    assert np.abs(value - np.round(value)).max() > 1e-3
    assert any("fractional" in note and "'x'" in note for note in problem.solution.notes)
    assert "convex hull" in str(problem.solution)


def test_reason_for_the_end_does_not_contradict_the_status(rng):
    x = cp.Variable(5, nonneg=True, name="x")
    xi = wdro.UncertainParameter(5, name="xi", samples=rng.normal(size=(10, 5)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(1.0))
    for samples in (5, 20, 100):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(
                method="smoothed", integration="gaussian", solver=FrankWolfe(samples=samples)
            )
        if problem.status != "optimal":
            assert problem.solution.stop != "the gap is under the tolerance"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": "a"}, "sigma must be a positive number"),
        ({"sigma": [1.0, -1.0]}, "sigma must be a positive number"),
        ({"epsilon": "a"}, "epsilon must be a positive finite number"),
        ({"verbose": "yes"}, "verbose must be True or False"),
        ({"progress": 2}, "progress must be True or False"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(options, message, portfolio):
    problem, _, _ = portfolio
    with pytest.raises(ValueError, match=message):
        problem.solve(method="smoothed", **options)


def test_callable_without_data_gradients_asks_for_epsilon(rng):
    x = cp.Variable(2, nonneg=True, name="x")
    xi = wdro.UncertainParameter(2, name="xi", samples=rng.normal(size=(10, 2)))

    def loss(point, scenarios):
        return scenarios[xi] @ point[x], lambda weights: {x: weights @ scenarios[xi]}

    problem = wdro.Problem(
        wdro.CallableLoss(loss, x, xi, convex=True), [cp.sum(x) == 1], wdro.WassersteinBall(0.1)
    )
    with pytest.raises(ValueError, match="pass epsilon="):
        problem.solve(method="smoothed", integration="gaussian")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(method="smoothed", integration="gaussian", epsilon=0.1)
    assert problem.value is not None


def test_modes_that_draws_miss_are_said_and_in_the_standard_error():
    found = Diagnostics(100, 90.0, 80.0, 0.3, 0.0).worse_by(0.0, missed=0.4)
    assert found.standard_error == pytest.approx(0.5)
    (note,) = sampling_notes(found, radius=1.0)
    assert "the draws miss modes of the tilted density" in note
    assert "higher by about 0.4" in note
