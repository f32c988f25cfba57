"""cp.Maximize: the least expected value over the ball, in the sign of the user's objective."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro


@pytest.fixture
def data(rng):
    return rng.normal(0.1, 0.3, size=(15, 4))


def portfolio(data, maximise, radius=0.04):
    x = cp.Variable(4, nonneg=True, name="x")
    returns = wdro.UncertainParameter(4, name="returns", samples=data)
    objective = cp.Maximize(returns @ x) if maximise else cp.Minimize(-returns @ x)
    return wdro.Problem(objective, [cp.sum(x) == 1], wdro.WassersteinBall(radius)), x


def test_the_least_expected_value_is_maximised(data):
    problem, x = portfolio(data, True)
    value = problem.solve()
    direct = cp.Variable(4, nonneg=True)
    plain = cp.Problem(
        cp.Maximize(data.mean(axis=0) @ direct - 0.2 * cp.norm(direct)), [cp.sum(direct) == 1]
    )
    assert value == pytest.approx(plain.solve(solver=cp.CLARABEL), abs=1e-6)
    assert problem.value == problem.solution.value == value
    np.testing.assert_allclose(problem.losses(), data @ x.value)
    assert problem.robust_value() == pytest.approx(value, abs=1e-6)
    assert problem.worst_case().expected_loss == pytest.approx(value, abs=1e-6)
    assert problem.solution.empirical_value == pytest.approx((data @ x.value).mean())
    assert problem.solution.robust_value <= problem.solution.empirical_value
    assert "maximised" in problem.explain()


@pytest.mark.parametrize("method", ["erm", "exact", "smoothed"])
def test_every_method_is_minus_its_loss(data, method):
    (gain, x), (loss, y) = portfolio(data, True), portfolio(data, False)
    assert gain.solve(method) == pytest.approx(-loss.solve(method), abs=1e-9)
    np.testing.assert_allclose(x.value, y.value, atol=1e-9)


def test_the_proven_bound_is_an_upper_one(data):
    problem, _ = portfolio(data, True)
    problem.solve("exact", solver=wdro.solvers.FrankWolfe(gap=1e-6))
    found = problem.solution
    assert found.lower_bound is None
    assert found.value <= found.upper_bound <= found.value + found.gap + 1e-12
    best = portfolio(data, True)[0].solve("exact")
    assert best <= found.upper_bound + 1e-7
    assert found.as_loss().lower_bound == -found.upper_bound


def test_the_tail_of_a_reward_is_its_small_values(data, rng):
    problem, x = portfolio(data, True)
    problem.solve()
    held_out = rng.normal(size=(200, 4))
    rewards = np.sort(held_out @ x.value)
    found = problem.evaluate(held_out)
    assert found.mean == pytest.approx(rewards.mean())
    assert found.worst == pytest.approx(rewards[0])
    assert found.tail == pytest.approx(rewards[:10].mean())
    for level, quantile in found.quantiles.items():
        assert quantile == pytest.approx(np.quantile(rewards, level))


def test_reports_have_the_sign_of_the_objective(data, rng):
    held_out = rng.normal(size=(50, 4))
    reports = [
        wdro.compare(portfolio(data, maximise)[0], ("erm", "exact"), test=held_out)
        for maximise in (True, False)
    ]
    for gain, loss in zip(*(report.rows() for report in reports)):
        for name in ("promise", "mean", "median", "cvar95", "worst"):
            assert gain[name] == pytest.approx(-loss[name], abs=1e-7), name
        assert gain["q05"] == pytest.approx(-loss["q95"], abs=1e-7)
        for name in ("excess", "deviation"):
            assert gain[name] == pytest.approx(loss[name], abs=1e-7), name
        assert gain["kept"] == loss["kept"]
    for gain, loss in zip(*(report.advantage().rows() for report in reports)):
        assert gain["difference"] == pytest.approx(loss["difference"], abs=1e-7)
        assert gain["cvar95"] == pytest.approx(loss["cvar95"], abs=1e-7)
    assert "maximised" in str(reports[0])
    assert "maximised" not in str(reports[1])
    label = reports[0].plot().axes[0].get_xlabel()
    assert label.startswith("objective, maximised")


def test_a_path_of_rewards_falls_with_the_radius(data):
    problem, _ = portfolio(data, True)
    path = problem.path([0.01, 0.1, 1.0])
    assert np.all(np.diff(path.values) < 0)
    for radius, value, mean in zip(path.radii, path.values, path.means("training")):
        assert value == pytest.approx(portfolio(data, True, radius)[0].solve(), abs=1e-6)
        assert value <= mean


def test_the_same_radius_is_chosen(data):
    chosen = [
        wdro.select_radius(portfolio(data, maximise)[0], [0.0, 0.1, 1.0], folds=3, progress=False)
        for maximise in (True, False)
    ]
    np.testing.assert_allclose(chosen[0].scores, chosen[1].scores, atol=1e-6)
    assert chosen[0].radius == chosen[1].radius
    assert chosen[0].solution.value == pytest.approx(-chosen[1].solution.value, abs=1e-6)


def test_rewards_of_trees_are_rounded(rng):
    import networkx as nx

    tree = wdro.sets.SpanningTree(nx.complete_graph(4))
    samples = rng.uniform(size=(5, 6))
    x = cp.Variable(6)
    gain = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(cp.Maximize(gain @ x), [wdro.In(x, tree)], wdro.WassersteinBall(0.5))
    report = wdro.compare(problem, ("exact",), rounded=True)
    fractional, discrete = report["exact"], report["exact, rounded"]
    vertex = discrete.solution.decision[x]
    value = (samples @ vertex).mean() - np.sqrt(0.5) * np.linalg.norm(vertex)
    assert discrete.promise == pytest.approx(value)
    assert discrete.solution.value == pytest.approx(value)
    assert discrete.promise <= fractional.promise + 1e-6
    assert discrete.solution.upper_bound >= discrete.solution.value - 1e-6
    problem.solve("exact")
    assert problem.round().value == pytest.approx(-value)


def test_minus_a_loss_is_maximised_as_the_loss_is_minimised(data):
    x = cp.Variable(4, nonneg=True)
    xi = wdro.UncertainParameter(4, samples=data)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    loss = cp.maximum(0.1 - xi @ x, 0)
    minimised = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
    maximised = wdro.Problem(cp.Maximize(-loss), [cp.sum(x) == 1], ball)
    assert maximised.solve("exact") == pytest.approx(-minimised.solve("exact"), abs=1e-7)


def test_a_cvxpy_problem_is_maximised(data):
    x = cp.Variable(4, nonneg=True)
    xi = wdro.UncertainParameter(4, samples=data)
    problem = cp.Problem(cp.Maximize(xi @ x), [cp.sum(x) == 1])
    value = problem.solve(method="wdro", ambiguity=wdro.WassersteinBall(0.04))
    assert value == problem.value == pytest.approx(portfolio(data, True)[0].solve(), abs=1e-7)
