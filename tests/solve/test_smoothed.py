"""The smoothed method as a whole: certified, whatever the start, the seed or the dual rule."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe


def logistic(rng, radius=0.1, count=60, d=6, **options):
    truth = rng.normal(size=d)
    features = rng.normal(size=(count, d))
    labels = np.sign(features @ truth + 0.5 * rng.normal(size=count))
    theta = cp.Variable(d, name="theta")
    xi = wdro.UncertainParameter(d, name="xi", samples=features * labels[:, None])
    return wdro.Problem(
        cp.Minimize(cp.logistic(-xi @ theta)),
        [cp.norm1(theta) <= 3],
        ambiguity=wdro.WassersteinBall(radius, **options),
    )


def cvar(rng, radius=0.01):
    x, tau = cp.Variable(4, nonneg=True, name="x"), cp.Variable(name="tau")
    returns = wdro.UncertainParameter(4, name="r", samples=rng.normal(0.1, 0.4, size=(30, 4)))
    return wdro.Problem(
        cp.Minimize(tau + cp.pos(-returns @ x - tau) / 0.2),
        [cp.sum(x) == 1, tau >= -3, tau <= 3],
        ambiguity=wdro.WassersteinBall(radius),
    )


def chosen(problem):
    """The integration strategy that explain() names."""
    lines = problem.explain(method="smoothed").splitlines()
    (line,) = [line for line in lines if line.startswith("integration")]
    return line.split()[1]


# ------------------------------------------------------------------ the strategy follows the loss
def test_strategy_follows_the_structure(rng):
    x = cp.Variable(3, nonneg=True, name="x")
    data = rng.uniform(0.2, 0.8, size=(10, 3))
    free = wdro.UncertainParameter(3, name="free", samples=data)
    boxed = wdro.UncertainParameter(3, name="boxed", samples=data, support=wdro.supports.Box(0, 1))
    power = wdro.UncertainParameter(
        name="power", samples=rng.uniform(1, 2, size=10), support=wdro.supports.Box(0.5, 3)
    )
    ball = wdro.WassersteinBall(0.01)
    losses = {
        "closed_form": free @ x,
        "low_rank": cp.exp(free @ x),
        "conditional": boxed @ cp.power(x, power),
        "tilted": cp.exp(boxed @ x),
    }
    for name, loss in losses.items():
        problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball, assume_convex=True)
        assert chosen(problem) == name
    for p, name in ((1, "separable"), (2, "norms"), ("inf", "tilted"), (3, "tilted")):
        norm = wdro.WassersteinBall(0.01, wdro.costs.Norm(p))
        assert chosen(wdro.Problem(cp.Minimize(free @ x), [cp.sum(x) == 1], norm)) == name


def test_strategy_that_does_not_apply_is_refused_with_those_that_do(rng):
    problem = logistic(rng)
    with pytest.raises(ValueError, match=r"'closed_form' does not apply.*affine.*'low_rank'"):
        problem.solve(method="smoothed", integration="closed_form")


# ------------------------------------------------------------------ one optimum
@pytest.mark.parametrize("build", [logistic, cvar])
def test_default_solve_is_certified(build, rng):
    problem = build(rng)
    problem.solve(method="smoothed")
    solution = problem.solution
    assert solution.status == "optimal"
    assert solution.relative_gap <= 1e-4
    assert solution.lower_bound <= solution.value
    assert solution.diagnostics is None
    assert solution.dual > 0


def test_strategies_agree_on_the_optimum(rng):
    problem = logistic(rng)
    values = {}
    for name in ("low_rank", "tilted"):
        problem.solve(method="smoothed", integration=name, epsilon=0.02)
        assert problem.status == "optimal"
        values[name] = problem.value
    assert values["tilted"] == pytest.approx(values["low_rank"], rel=3e-4)


def test_starting_points_and_seeds_change_nothing(rng):
    problem = logistic(rng)
    (theta,) = problem.variables()
    values = []
    for start in (None, np.zeros(6), np.array([3.0, 0, 0, 0, 0, 0])):
        given = None if start is None else {theta: start}
        for seed in (0, 5):
            problem.solve(method="smoothed", seed=seed, start=given)
            values.append(problem.value)
    assert np.ptp(values) <= 2e-4 * abs(values[0])
    for seed in (1, 2):
        problem.solve(method="smoothed", integration="tilted", seed=seed)
        assert problem.value == pytest.approx(values[0], rel=3e-4)


def test_batch_sizes_lead_to_the_same_optimum(rng):
    problem = logistic(rng)
    problem.solve(method="smoothed")
    best = problem.value
    for batch, tolerance in ((10, 0.03), (60, 1e-3)):
        solver = MomentumFrankWolfe(batch_size=batch, max_iterations=400)
        problem.solve(method="smoothed", solver=solver, integration="low_rank", dual="exact")
        assert problem.value == pytest.approx(best, rel=tolerance)
        assert problem.value >= best * (1 - 2e-4)


def test_exact_and_vertex_dual_reach_the_same_optimum(rng):
    problem = logistic(rng)
    problem.solve(method="smoothed")
    best = problem.value
    solver = FrankWolfe(gap=2e-3, max_iterations=4000, dual_bound=2.0)
    problem.solve(method="smoothed", dual="vertex", solver=solver)
    assert problem.value == pytest.approx(best, rel=2e-3)


def test_gap_is_the_frank_wolfe_gap_at_the_decision(rng):
    problem = logistic(rng)
    problem.solve(method="smoothed", epsilon=0.05, solver=FrankWolfe(max_iterations=3))
    solution, model = problem.solution, problem._model
    from wdro_model.objectives.integration import STRATEGIES, Scales, Stream

    rule = STRATEGIES["low_rank"].build(model, Scales(0.05, solution.sigma, 1))
    x = np.concatenate([v.ravel() for v in solution.decision.values()])
    gradient = rule.slice(x, np.arange(60), Stream(0)).gradient(solution.dual)
    vertex = model.feasible.oracle().minimize(gradient)
    assert solution.gap == pytest.approx(gradient @ (x - vertex), rel=1e-3)
    assert solution.status == "user_limit"


# ------------------------------------------------------------------ limits
def test_smoothed_value_tends_to_the_exact_one(rng):
    """Along epsilon -> 0 at the exact counterpart's own decision problem."""
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.normal(size=(20, 3)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.2))
    exact = problem.solve(method="exact")
    erm = problem.solve(method="erm")
    gaps = []
    for epsilon in (1e-2, 1e-3, 1e-4):
        problem.solve(method="smoothed", epsilon=epsilon)
        gaps.append(exact - problem.value)
        assert problem.solution.robust_value == pytest.approx(exact, rel=1e-2)
    assert 0 < gaps[2] < gaps[1] < gaps[0]
    assert gaps[2] < 0.02 * (exact - erm)


def test_path_of_radii_costs_little_more_than_one_solve():
    """Counted in iterations: 20 radii, each from the last one's active set."""
    instance = wdro.datasets.quadratic_tree(20, 80, seed=0)
    tree = wdro.sets.SpanningTree(instance.graph)
    x = cp.Variable(80, name="x")
    costs = wdro.UncertainParameter((80, 80), samples=instance.training.sample(30, seed=1))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(10.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(method="smoothed")
        cold, total, last = problem.solution.iterations, 0, None
        for radius in np.geomspace(1, 10, 20):
            step = problem.with_radius(radius)
            step.solve(method="smoothed", start=last)
            last = step.solution
            total += last.iterations
    assert last.value == pytest.approx(problem.value, rel=2e-4)
    assert total < 5 * cold


def test_smoothed_tree_is_proved_convex_and_optimal():
    instance = wdro.datasets.quadratic_tree(8, 20, seed=0)
    tree = wdro.sets.SpanningTree(instance.graph)
    x = cp.Variable(20, name="x")
    costs = wdro.UncertainParameter((20, 20), samples=instance.training.sample(20, seed=1))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(4.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem.solve(method="smoothed")
    assert problem.status == "optimal"
    best, bound = problem.value, problem.solution.lower_bound
    rng = np.random.default_rng(0)
    for seed in range(5):
        vertex = tree.minimize(rng.normal(size=20))
        problem.solve(method="smoothed", start={x: vertex}, seed=seed)
        assert problem.value == pytest.approx(best, rel=2e-4)
        assert problem.value >= bound


def test_unreliable_draws_are_not_called_optimal(rng):
    problem = logistic(rng, d=20)
    with pytest.warns(wdro.SamplingWarning, match="effective sample size"):
        problem.solve(method="smoothed", integration="gaussian")
    assert problem.status in ("optimal_inaccurate", "user_limit")


def test_label_with_infinite_weight_keeps_its_value(rng):
    features, labels = rng.normal(size=(40, 3)), rng.choice([-1.0, 1.0], size=40)
    theta = cp.Variable(3, name="theta")
    u = wdro.UncertainParameter(3, name="u", samples=features)
    y = wdro.UncertainParameter(name="y", samples=labels)
    cost = wdro.costs.SquaredEuclidean(weights={u: 1.0, y: np.inf})
    labelled = wdro.Problem(
        cp.Minimize(cp.logistic(-y * (u @ theta))),
        [cp.norm1(theta) <= 2],
        ambiguity=wdro.WassersteinBall(0.1, cost),
    )
    signed = wdro.UncertainParameter(3, name="signed", samples=features * labels[:, None])
    plain = wdro.Problem(
        cp.Minimize(cp.logistic(-signed @ theta)),
        [cp.norm1(theta) <= 2],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    assert labelled.solve(method="smoothed") == pytest.approx(
        plain.solve(method="smoothed"), rel=3e-4
    )


@pytest.mark.parametrize("seed", [3, 7, 11])
def test_a_value_of_zero_is_no_obstacle(seed):
    """A constant moves the value to zero; the gap then refers to what the ball adds to the mean."""
    data = np.random.default_rng(seed).normal(0.04, 0.2, size=(20, 6))
    x, constant = cp.Variable(6, nonneg=True), cp.Parameter(value=0.0)
    returns = wdro.UncertainParameter(6, samples=data)
    loss = -returns @ x + 4 * cp.square(returns @ x) + constant
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.01))
    constant.value = -problem.solve(method="smoothed")
    assert problem.solve(method="smoothed") == pytest.approx(0.0, abs=1e-6)
    assert problem.status == "optimal"
    ball_adds = problem.solution.dual * 0.01
    assert problem.solution.gap <= 1e-4 * max(problem.solution.epsilon, ball_adds)
