"""Radii with a guarantee: each rule against its theorem, and what is said of them."""

from __future__ import annotations

import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from scipy.stats import chi2

import wdro_model as wdro
from wdro_model.evaluation.guarantee import (
    concentration_radius,
    cost_within,
    draw_resamples,
    mean_bound,
)
from wdro_model.evaluation.wasserstein_profile import limit_moments

GRID = [0.0, 0.001, 0.01, 0.1, 1.0]


def portfolio(data, radius=0.01, cost=None, **declared):
    x = cp.Variable(data.shape[1], nonneg=True, name="x")
    returns = wdro.UncertainParameter(data.shape[1], "returns", samples=data, **declared)
    ball = wdro.WassersteinBall(radius, cost)
    return wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)


def centre(data, constraints=lambda x: [], cost=None):
    """The mean of the data as a decision: the profile is known in closed form."""
    x = cp.Variable(data.shape[1], name="x")
    place = wdro.UncertainParameter(data.shape[1], "place", samples=data)
    ball = wdro.WassersteinBall(1.0, cost)
    return wdro.Problem(cp.Minimize(cp.sum_squares(x - place)), constraints(x), ball)


@pytest.fixture
def returns():
    return np.random.default_rng(0).normal(0.05, 0.3, size=(30, 3))


# ------------------------------------------------------------------ bootstrap
def test_bootstrap_takes_the_smallest_radius_whose_promises_are_kept(returns):
    found = wdro.radius_for(portfolio(returns), 0.8, radii=GRID, resamples=15, seed=3)
    table = found.resampling
    for b, fold in enumerate(draw_resamples(30, 15, 3)):
        train, rest = returns[fold.train], returns[fold.test]
        assert set(fold.train) | set(fold.test) == set(range(30))
        assert len(fold.train) == 30
        for k, radius in enumerate(GRID):
            x = cp.Variable(3, nonneg=True)
            promise = -train.mean(axis=0) @ x + np.sqrt(radius) * cp.norm(x)
            cp.Problem(cp.Minimize(promise), [cp.sum(x) == 1]).solve(solver=cp.CLARABEL)
            assert table.promised[k, b] == pytest.approx(promise.value, abs=1e-6)
            assert table.happened[k, b] == pytest.approx(-(rest @ x.value).mean(), abs=1e-4)
    assert np.array_equal(table.kept, table.promised >= table.happened)
    enough = table.kept.sum(axis=1) >= 12
    assert found.radius == GRID[int(np.argmax(enough))]
    assert f"in {table.kept[table.index].sum()} of 15 resamples" in found.guarantee
    assert "<- chosen" in str(table)


def test_bootstrap_is_the_same_in_two_processes_and_with_the_same_seed(returns):
    problem = portfolio(returns)
    once = wdro.radius_for(problem, radii=GRID, resamples=4, seed=1, progress=False)
    again = wdro.radius_for(problem, radii=GRID, resamples=4, seed=1, jobs=2, progress=False)
    other = wdro.radius_for(problem, radii=GRID, resamples=4, seed=2, progress=False)
    np.testing.assert_allclose(once.resampling.promised, again.resampling.promised)
    assert not np.allclose(once.resampling.promised, other.resampling.promised)


def test_more_confidence_needs_no_smaller_radius(returns):
    problem = portfolio(returns)
    found = [wdro.radius_for(problem, c, resamples=5).radius for c in (0.3, 0.6, 0.9)]
    assert found == sorted(found)


def test_bootstrap_leaves_variables_and_problem_alone(returns):
    problem = portfolio(returns)
    problem.solve()
    (x,), before = problem.variables(), problem.solution
    value = x.value.copy()
    found = wdro.radius_for(problem, radii=GRID, resamples=3, progress=False)
    assert np.array_equal(x.value, value)
    assert problem.solution is before
    assert problem.radius == 0.01
    assert found.problem.solution is None


def test_no_radius_that_is_large_enough_is_an_error(returns):
    with pytest.raises(
        ValueError, match=r"no radius keeps its promise .* largest radius tried 1e-09"
    ):
        wdro.radius_for(portfolio(returns), 0.99, radii=[0.0, 1e-9], resamples=10)


def test_bootstrap_of_a_reward(returns):
    x = cp.Variable(3, nonneg=True)
    gain = wdro.UncertainParameter(3, samples=returns)
    ball = wdro.WassersteinBall(0.01)
    reward = wdro.Problem(cp.Maximize(gain @ x), [cp.sum(x) == 1], ball)
    found = wdro.radius_for(reward, radii=GRID, resamples=10)
    same = wdro.radius_for(portfolio(returns), radii=GRID, resamples=10)
    assert found.radius == same.radius
    value = found.problem.solve()
    assert found.problem.solution.bound == value
    assert f"the expected value is at least {value:.6g}" in str(found.problem.solution)


# ------------------------------------------------------------------ profile
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_profile_of_a_mean_is_a_chi_square(confidence):
    data = np.random.default_rng(1).normal(size=(40, 3)) @ np.diag([1.0, 2.0, 5.0])
    covariance = np.cov(data, rowvar=False)
    found = wdro.radius_for(
        centre(data, cost=wdro.costs.Mahalanobis(covariance=covariance)), confidence, "profile"
    )
    assert found.radius == pytest.approx(chi2.ppf(confidence, 3) / 40, rel=0.02)
    line = wdro.radius_for(centre(data[:, :1]), confidence, "profile")
    assert line.radius == pytest.approx(chi2.ppf(confidence, 1) * covariance[0, 0] / 40, rel=0.02)


def test_profile_covers_the_best_decision_as_often_as_it_says():
    """R_N(x*) is the squared distance of the means, for the squared distance as loss."""
    rng, deviation, covered = np.random.default_rng(2), np.array([0.5, 1.0, 2.0]), []
    for _ in range(70):
        data = rng.normal(0.0, deviation, size=(60, 3))
        found = wdro.radius_for(centre(data), 0.8, "profile")
        covered.append((data.mean(axis=0) ** 2).sum() <= found.radius)
    assert abs(np.mean(covered) - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 70)


def test_active_constraints_take_their_directions_away():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(200, 4))
    data = (data - data.mean(axis=0)) @ np.linalg.inv(
        np.linalg.cholesky(np.cov(data, rowvar=False)).T
    )  # of mean 0 and covariance 1
    plane = wdro.radius_for(centre(data, lambda x: [cp.sum(x) == 1]), 0.9, "profile")
    assert plane.radius == pytest.approx(chi2.ppf(0.9, 3) / 200, rel=0.02)
    assert "1 active constraint" in plane.notes[1]
    corner = wdro.radius_for(
        centre(data, lambda x: [x[0] >= 1, 2 * x[1] <= -3, x[2] <= 5]), 0.9, "profile"
    )
    assert corner.radius == pytest.approx(chi2.ppf(0.9, 2) / 200, rel=0.02)
    loose = wdro.radius_for(centre(data, lambda x: [cp.sum_squares(x) <= 9]), 0.9, "profile")
    assert loose.radius == pytest.approx(chi2.ppf(0.9, 4) / 200, rel=0.02)


def regression(rng, size, weights=np.inf):
    slope = np.array([1.0, -0.5])
    features = rng.normal(size=(size, 2)) * [1.0, 2.0]
    labels = features @ slope + rng.normal(size=size) * 0.5
    x = cp.Variable(2, name="x")
    a = wdro.UncertainParameter(2, "a", samples=features)
    b = wdro.UncertainParameter(name="b", samples=labels)
    cost = wdro.costs.SquaredEuclidean(weights={a: 1.0, b: weights})
    loss = cp.square(b - a @ x)
    problem = wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(0.1, cost))
    return problem, features, labels, slope


def profile(features, labels, x):
    """R_N(x) with fixed labels: sup over l of -mean sup_delta l'h(xi + delta) - |delta|^2.

    h = -2 (y - x'a) a, so that l'h is the quadratic form 2 (x'a - y) (l'a).
    """
    identity = np.eye(2)

    def negative_dual(price):
        form = np.outer(x, price) + np.outer(price, x)  # 2 (x'a)(l'a) = a' form a
        if np.linalg.eigvalsh(form)[-1] >= 1 - 1e-9:
            return 1e6
        slopes = 2 * features @ form - 2 * np.outer(labels, price)
        start = np.einsum("ki,ij,kj->k", features, form, features) - 2 * labels * (features @ price)
        gains = np.einsum("ki,ij,kj->k", slopes, np.linalg.inv(identity - form), slopes) / 4
        return float(np.mean(start + gains))

    exactly = {"xatol": 1e-9, "fatol": 1e-13}
    found = minimize(negative_dual, np.zeros(2), method="Nelder-Mead", options=exactly)
    return -found.fun


def test_the_limit_moments_of_a_regression_is_that_of_its_profile():
    problem, features, labels, slope = regression(np.random.default_rng(4), 4000)
    slopes, _, bend = limit_moments(problem._model, slope, np.eye(2))
    by_hand = -2 * (labels - features @ slope)[:, None] * features
    np.testing.assert_allclose(slopes, by_hand, atol=1e-6)
    mean = by_hand.mean(axis=0)
    exact = profile(features, labels, slope)
    assert exact == pytest.approx(mean @ np.linalg.solve(bend, mean), rel=0.05)


def test_profile_of_a_regression_covers_its_coefficients():
    rng, covered = np.random.default_rng(5), []
    for _ in range(60):
        problem, features, labels, slope = regression(rng, 150)
        found = wdro.radius_for(problem, 0.8, "profile")
        covered.append(profile(features, labels, slope) <= found.radius)
    assert abs(np.mean(covered) - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 60)


def test_a_weight_on_the_labels_makes_moves_cheaper():
    rng = np.random.default_rng(6)
    fixed = wdro.radius_for(regression(rng, 100)[0], 0.9, "profile").radius
    rng = np.random.default_rng(6)
    free = wdro.radius_for(regression(rng, 100, weights=1.0)[0], 0.9, "profile").radius
    assert free < fixed


def test_profile_says_that_it_is_not_about_the_promise():
    data = np.random.default_rng(7).normal(size=(50, 2))
    found = wdro.radius_for(centre(data), 0.9, "profile")
    found.problem.solve()
    assert found.problem.solution.bound is None
    assert found.problem.solution.confidence is None
    assert "nothing is said of the expected loss" in str(found.problem.solution)


def kinked(data):
    problem = portfolio(data)
    (x,), (r,) = problem.variables(), problem.uncertain_parameters()
    return wdro.Problem(cp.Minimize(cp.pos(-r @ x)), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))


def over_an_oracle(data):
    x = cp.Variable(3)
    r = wdro.UncertainParameter(3, samples=data)
    tree = wdro.sets.SpanningTree(nx.complete_graph(3))
    return wdro.Problem(
        cp.Minimize(cp.sum_squares(x - r)), [wdro.In(x, tree)], wdro.WassersteinBall(0.1)
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda data: portfolio(data), "a vertex of the feasible set"),
        (lambda data: centre(data, cost=wdro.costs.Norm(2)), "for quadratic costs"),
        (kinked, "has kinks"),
        (
            lambda data: portfolio(data, support=wdro.supports.Box(-9, 9)),
            r"lets the data move freely.*Box",
        ),
        (
            lambda data: centre(data, lambda x: [cp.norm(x) <= 0.01]),
            "active and curved",
        ),
        (over_an_oracle, "auxiliary variables"),
    ],
)
def test_profile_refuses_what_its_theorem_does_not_cover(returns, build, message):
    with pytest.raises(ValueError, match=message) as caught:
        wdro.radius_for(build(returns), 0.9, "profile")
    assert "rule='bootstrap'" in str(caught.value)


# ------------------------------------------------------------------ rate
def transport(cost, masses, atoms, samples):
    """W_c between samples and a discrete law, as a linear program."""
    prices = np.array([cost(np.repeat(s[None], len(atoms), 0), atoms) for s in samples])
    n, m = prices.shape
    rows = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    found = linprog(
        prices.ravel(), A_eq=np.vstack(rows), b_eq=np.r_[np.full(n, 1 / n), masses], method="highs"
    )
    return found.fun


COSTS = {
    "norm 1": wdro.costs.Norm(1),
    "norm inf": wdro.costs.Norm(np.inf, weights=[1.0, 3.0]),
    "squared": wdro.costs.SquaredEuclidean(weights=[2.0, 0.5]),
    "Mahalanobis": wdro.costs.Mahalanobis(precision=[[2.0, -1.0], [-1.0, 1.0]]),
}


@pytest.mark.parametrize("name", COSTS)
def test_the_law_is_in_the_ball_of_a_rate(name):
    rng = np.random.default_rng(8)
    atoms = np.array([[i / 3, j / 3] for i in range(4) for j in range(4)])
    masses = np.full(16, 1 / 16)
    bound = COSTS[name].bound_to(centre(atoms)._model.joint)
    radius = concentration_radius(bound, np.ones(2), 20, 0.8)
    distances = [transport(bound, masses, atoms, atoms[rng.integers(0, 16, 20)]) for _ in range(30)]
    assert np.mean(np.array(distances) <= radius) >= 0.8
    assert np.mean(distances) <= mean_bound(bound, np.ones(2), 20)
    found = wdro.radius_for(
        portfolio(atoms[:10], cost=COSTS[name]), 0.8, "rate", support=wdro.supports.Box(0, 1)
    )
    assert found.radius == concentration_radius(bound, np.ones(2), 10, 0.8)


@given(seed=st.integers(0, 10**6), levels=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_transport_costs_no_more_than_matching_cell_by_cell(seed, levels):
    """The inequality behind the rate: W_c <= c_k + sum_j (c_{j-1} - c_j) TV_j, by hand."""
    rng = np.random.default_rng(seed)
    atoms, samples = rng.random((12, 2)), rng.random((8, 2))
    masses = rng.dirichlet(np.ones(12))
    cost = COSTS["squared"].bound_to(centre(atoms)._model.joint)
    cells, width = np.ones(2, dtype=int), np.ones(2)
    prices, variations = [cost_within(cost, width)], []
    for _ in range(levels):
        side = int(np.argmax(np.array([np.sqrt(2.0), np.sqrt(0.5)]) / cells))
        cells[side] *= 2
        prices.append(cost_within(cost, 1 / cells))

        def places(points):
            at = np.minimum((points * cells).astype(int), cells - 1)
            return at[:, 0] * cells[1] + at[:, 1]

        total = np.bincount(places(atoms), masses, minlength=cells.prod())
        total -= np.bincount(places(samples), np.full(8, 1 / 8), minlength=cells.prod())
        variations.append(np.abs(total).sum() / 2)
    bound = prices[-1] + sum((prices[j] - prices[j + 1]) * variations[j] for j in range(levels))
    assert transport(cost, masses, atoms, samples) <= bound + 1e-9


def test_on_a_line_the_rate_is_that_of_the_distribution_function():
    """W_1 is the area between distribution functions: the worst law and its own coverage."""
    data = np.linspace(0, 4, 50)[:, None]
    found = wdro.radius_for(
        portfolio(data, cost=wdro.costs.Norm(1)), 0.9, "rate", support=wdro.supports.Box(0, 4)
    )
    assert found.radius == pytest.approx(4 * np.sqrt(np.log(20) / 100))
    squared = wdro.radius_for(portfolio(data), 0.9, "rate", support=wdro.supports.Box(0, 4))
    assert squared.radius == pytest.approx(16 * np.sqrt(np.log(20) / 100))
    rng, kept = np.random.default_rng(9), []
    for _ in range(300):  # half of the mass at either end is the hardest law
        share = (rng.random(50) < 0.5).mean()
        kept.append(4 * abs(share - 0.5) <= found.radius)
    assert np.mean(kept) >= 0.9


def test_a_rate_falls_with_samples_and_less_so_in_more_dimensions():
    def radius(dimension, size):
        joint = centre(np.zeros((1, dimension)))._model.joint
        cost = wdro.costs.Norm(np.inf).bound_to(joint)
        return concentration_radius(cost, np.ones(dimension), size, 0.9)

    for dimension, rate in ((1, 0.5), (4, 0.25), (8, 0.125)):
        measured = -np.log(radius(dimension, 2**40) / radius(dimension, 2**32)) / np.log(2**8)
        assert measured == pytest.approx(rate, abs=0.02)
    assert radius(3, 1) <= 1.0  # the whole box
    assert radius(3, 10**6) < radius(6, 10**6) < radius(12, 10**6)


def test_the_declared_support_is_the_box(returns):
    data = np.clip(returns, -1, 1)
    declared = wdro.radius_for(portfolio(data, support=wdro.supports.Box(-1, 1)), 0.9, rule="rate")
    told = wdro.radius_for(portfolio(data), 0.9, "rate", support=wdro.supports.Box(-1, 1))
    assert declared.radius == told.radius
    declared.problem.solve()
    solution = declared.problem.solution
    assert solution.bound == solution.robust_value
    assert solution.confidence == 0.9
    assert "with probability at least 0.9 the expected loss is at most" in str(solution)


@pytest.mark.parametrize(
    ("build", "support", "message"),
    [
        (lambda d: portfolio(d), None, "has no bounds in some direction"),
        (lambda d: portfolio(d), wdro.supports.Box(0, 1), r"returns\[.*widen the box"),
        (lambda d: portfolio(d), wdro.supports.Nonnegative(), "has no bounds"),
        (lambda d: portfolio(d), 3.0, "must be a support such as"),
        (
            lambda d: portfolio(d, cost=wdro.costs.SquaredEuclidean(weights=[1, np.inf, 1])),
            wdro.supports.Box(-9, 9),
            r"the weight of 'returns\[1\]' is infinite",
        ),
        (
            lambda d: portfolio(d, cost=lambda a, b: np.abs(b - a).sum(axis=1) ** 3),
            wdro.supports.Box(-9, 9),
            "a norm of the move or its square",
        ),
    ],
)
def test_rate_refuses_what_its_theorem_does_not_cover(returns, build, support, message):
    with pytest.raises(ValueError, match=message):
        wdro.radius_for(build(returns), 0.9, "rate", support=support)


def test_a_box_is_needed_for_every_parameter():
    problem = regression(np.random.default_rng(0), 20, weights=1.0)[0]
    a, b = problem.uncertain_parameters()
    box = wdro.supports.Box(-20, 20)
    with pytest.raises(ValueError, match=r"support= has none for '[ab]'; give .* for all of"):
        wdro.radius_for(problem, 0.9, "rate", support={a: box})
    both = wdro.radius_for(problem, 0.9, "rate", support={a: box, b: box})
    assert both.radius == wdro.radius_for(problem, 0.9, "rate", support=box).radius


# ------------------------------------------------------------------ what is given
@pytest.mark.parametrize("confidence", [0, 1, -0.1, 2, np.nan, True, None, "high"])
def test_a_confidence_is_between_0_and_1(returns, confidence):
    with pytest.raises(ValueError, match="confidence must be a number between 0 and 1, got"):
        wdro.radius_for(portfolio(returns), confidence)


def test_mistakes_are_told_with_the_way_out(returns):
    problem = portfolio(returns)
    with pytest.raises(ValueError, match=r"for 90 percent write 0\.9"):
        wdro.radius_for(problem, 90)
    with pytest.raises(ValueError, match="which is a rule; write"):
        wdro.radius_for(problem, "rate")
    with pytest.raises(ValueError, match="Did you mean 'bootstrap'"):
        wdro.radius_for(problem, 0.9, "bootstrp")
    with pytest.raises(TypeError, match="Did you mean 'resamples'"):
        wdro.radius_for(problem, 0.9, resample=3)
    with pytest.raises(TypeError, match="support= goes with rule='rate'"):
        wdro.radius_for(problem, 0.9, support=wdro.supports.Box(-1, 1))
    with pytest.raises(TypeError, match="radii= goes with rule='bootstrap'"):
        wdro.radius_for(problem, 0.9, "rate", radii=[0.1])
    with pytest.raises(TypeError, match="solves nothing"):
        wdro.radius_for(problem, 0.9, "rate", method="exact")
    with pytest.raises(ValueError, match="does not see the radius"):
        wdro.radius_for(problem, 0.9, method="erm")
    with pytest.raises(ValueError, match="resamples must be an integer of at least 1, got 0"):
        wdro.radius_for(problem, 0.9, resamples=0)
    with pytest.raises(ValueError, match="at least 5 samples, got 2"):
        wdro.radius_for(portfolio(returns[:2]), 0.9)
    with pytest.raises(TypeError, match="radius_for needs a wdro Problem, got int"):
        wdro.radius_for(3, 0.9)


# ------------------------------------------------------------------ what becomes of it
@pytest.fixture
def found(returns):
    return wdro.radius_for(portfolio(returns), 0.9, radii=GRID, resamples=5, progress=False)


def test_a_radius_is_a_number_and_a_ball(found):
    assert float(found) == found.radius == found.problem.radius
    ball = wdro.WassersteinBall(found)
    assert ball.radius == found.radius
    assert (ball.confidence, ball.assurance.rule) == (0.9, "bootstrap")
    assert "confidence 0.9 by rule 'bootstrap'" in ball.describe()
    assert found.problem.with_radius(found).ambiguity.confidence == 0.9
    for text in (str(found), found._repr_html_(), found.resampling._repr_html_()):
        assert "0.9" in text
    assert "\n" not in repr(found)


def test_a_radius_keeps_the_cost_that_it_was_found_for(returns):
    l1 = wdro.radius_for(
        portfolio(returns, cost=wdro.costs.Norm(1)), radii=GRID, resamples=3, progress=False
    )
    assert wdro.WassersteinBall(l1).cost.p == 1
    assert wdro.WassersteinBall(l1, wdro.costs.Norm(1)).confidence == 0.9
    with pytest.raises(ValueError, match=r"was found for the cost .*_1 and means nothing in"):
        wdro.WassersteinBall(l1, wdro.costs.SquaredEuclidean())


def test_another_radius_or_other_samples_have_no_confidence(found, returns):
    problem = found.problem
    assert problem.ambiguity.confidence == 0.9
    assert problem.with_radius(found.radius).ambiguity.confidence is None
    assert problem.with_samples(rows=[0, 1, 2]).ambiguity.confidence is None
    other = problem.with_samples(returns + 1)
    other.solve()
    assert other.ambiguity.confidence is None
    assert other.solution.assurance is None
    assert pickle.loads(pickle.dumps(problem)).ambiguity.confidence == 0.9


def test_a_report_says_with_what_probability_its_promise_holds(found, returns):
    report = wdro.compare(found.problem, ("erm", "exact"), test=returns)
    promise = report["exact"].promise
    text = f"exact: with probability about 0.9 the expected loss is at most {promise:.6g}"
    assert text in str(report)
    assert text in report.to_html()
    assert "erm: nothing is known with confidence 0.9 of this decision's expected loss" in str(
        report
    )
    plain = wdro.compare(found.problem.with_radius(0.1), ("erm", "exact"), test=returns)
    assert "probability" not in str(plain)
    assert plain["exact"].solution.bound is None
    assert "probability" not in str(plain["exact"].solution)


def test_a_rate_bounds_the_risk_of_every_decision(returns):
    data = np.clip(returns, -1, 1)
    problem = portfolio(data, support=wdro.supports.Box(-1, 1))
    found = wdro.radius_for(problem, 0.9, "rate")
    report = wdro.compare(found.problem, ("erm", "exact"))
    for judged in report.methods:
        bound = judged.solution.robust_value
        assert bound >= judged.losses["training"].mean()
        assert f"{judged.name}: with probability at least 0.9 the expected loss is at most " in str(
            report
        )
        assert judged.solution.bound == bound


# ------------------------------------------------------------------ risks and uncertain constraints
def risky(size=20, other=20, cost=None, loss=None):
    rng = np.random.default_rng(7)
    x = cp.Variable(3, nonneg=True, name="x")
    gain = wdro.UncertainParameter(3, "gain", samples=rng.normal(0.1, 0.2, size=(size, 3)))
    load = wdro.UncertainParameter(3, "load", samples=rng.uniform(0, 1, size=(other, 3)))
    objective = wdro.cvar(-gain @ x, 0.8) if loss is None else loss(gain, x)
    return wdro.Problem(
        cp.Minimize(objective),
        [cp.sum(x) == 1, wdro.expectation(load @ x) <= 0.9],
        wdro.WassersteinBall(0.01, cost or wdro.costs.Norm(2)),
    )


def test_a_confidence_speaks_of_the_risk_that_is_minimised():
    problem = risky()
    found = wdro.radius_for(problem, 0.5, resamples=3, radii=[0.0, 0.01, 0.3], progress=False)
    found.problem.solve()
    assert "promise was at least the risk on" in found.assurance.guarantee
    assert "the risk is at most" in str(found.problem.solution)
    assert "expected loss" not in str(found) + str(found.problem.solution)
    assert any("nothing is said of uncertain constraints" in note for note in found.notes)
    rate = wdro.radius_for(problem, 0.5, "rate", support=wdro.supports.Box(-2, 2))
    assert "the risk of every decision" in rate.assurance.guarantee
    assert any("uncertain constraints" in note for note in rate.notes)


def test_constraints_on_the_law_of_the_objective_are_covered_by_a_rate():
    x = cp.Variable(2, nonneg=True, name="x")
    gain = wdro.UncertainParameter(2, samples=np.random.default_rng(0).uniform(size=(20, 2)))
    box, ball = wdro.supports.Box(0, 1), wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    for more, said in (({}, False), ({"ambiguity": ball}, True)):
        bound = wdro.expectation(gain @ x, **more) <= 5
        problem = wdro.Problem(cp.Minimize(-gain @ x), [cp.sum(x) == 1, bound], ball)
        notes = wdro.radius_for(problem, 0.5, "rate", support=box).notes
        assert any("uncertain constraints" in note for note in notes) == said


def test_a_profile_refuses_uncertain_constraints():
    problem = risky(
        cost=wdro.costs.SquaredEuclidean(), loss=lambda gain, x: cp.square(gain @ x - 1)
    )
    with pytest.raises(ValueError, match=r"load @ x.* is uncertain"):
        wdro.radius_for(problem, 0.9, "profile")


def test_rows_of_samples_that_are_not_paired_are_refused():
    problem = risky(size=20, other=30)
    for use in (
        lambda: problem.with_samples(rows=[0, 1]),
        lambda: wdro.select_radius(problem, radii=[0, 0.1], progress=False),
        lambda: wdro.radius_for(problem, resamples=2, progress=False),
    ):
        with pytest.raises(ValueError, match=r"objective has 20 samples and .* has 30"):
            use()
    certain = wdro.Problem(cp.Minimize(0), problem.constraints, problem.ambiguity)
    assert certain.with_samples(rows=[0, 1]).solve() == 0
