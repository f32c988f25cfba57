"""The portfolio of Mohajerin Esfahani and Kuhn, as a user runs it."""

import csv
import json

import cvxpy as cp
import numpy as np
import pytest

import market
import trials
from reproduce_portfolio import main, places
from summary_tables import summary


def test_the_quick_run_writes_tables_and_pictures_and_goes_on(tmp_path, capsys):
    assert main(["--quick", "--output", str(tmp_path)]) == 0
    runs = (tmp_path / "runs.jsonl").read_text()
    assert len(runs.splitlines()) == 4
    with open(tmp_path / "rules.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["rule"] for row in rows] == list(trials.RULES)
    for row in rows:
        assert 0 <= float(row["reliability"]) <= 1
        assert float(row["risk"]) >= market.best()[0] - 1e-6
    with open(tmp_path / "radius.csv", encoding="utf-8") as file:
        along = list(csv.DictReader(file))
    promises = [float(row["promise"]) for row in along]
    assert promises == sorted(promises)  # a larger ball promises less
    for name in ("radius", "composition", "rules"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert "bootstrap" in capsys.readouterr().out
    main(["--quick", "--output", str(tmp_path)])
    assert (tmp_path / "runs.jsonl").read_text() == runs


def test_the_true_risk_is_that_of_many_draws():
    x = np.linspace(0.05, 0.15, 10)
    losses = -market.returns(np.random.default_rng(0), 400_000) @ x
    worst = np.sort(losses)[-80_000:]
    assert market.risk(x) == pytest.approx(losses.mean() + 10 * worst.mean(), abs=0.01)
    least, portfolio = market.best()
    assert market.risk(portfolio) == pytest.approx(least)
    others = np.random.default_rng(1).dirichlet(np.ones(10), 1000)
    assert market.risk(others).min() >= least


def test_the_robust_portfolio_is_that_of_the_paper():
    """Their program (27) with free returns, written by hand: |a_k x| in the largest entry."""
    data, radius = trials.sampled(0, 25, 0), 0.02
    x, robust = trials.problem(data)
    value = robust.with_radius(radius).solve()
    y, tau, price, s = cp.Variable(10), cp.Variable(), cp.Variable(), cp.Variable(25)
    pieces = ((-1.0, 10.0), (-1.0 - 10.0 / 0.2, 10.0 * (1 - 1 / 0.2)))
    constraints = [cp.sum(y) == 1, y >= 0]
    for a, b in pieces:
        constraints += [b * tau + a * (data @ y) <= s, abs(a) * cp.norm_inf(y) <= price]
    by_hand = cp.Problem(cp.Minimize(radius * price + cp.sum(s) / 25), constraints)
    assert value == pytest.approx(by_hand.solve(solver=cp.CLARABEL), abs=1e-6)
    np.testing.assert_allclose(x.value, y.value, atol=1e-4)


def test_a_large_ball_spreads_the_portfolio_evenly():
    x, robust = trials.problem(trials.sampled(0, 20, 1))
    robust.with_radius(5.0).solve()
    np.testing.assert_allclose(x.value, 0.1, atol=1e-5)


def test_runs_are_taken_in_turn_and_each_once():
    wanted = {"radius": {30: 4, 300: 2}, "rules": {30: 3}}
    listed = list(places(wanted))
    assert len(listed) == len(set(listed)) == 9
    assert set(listed[:3]) == {("radius", 30, 0), ("radius", 300, 0), ("rules", 30, 0)}


def test_reliability_counts_kept_promises():
    found = summary(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    assert found["reliability"] == 0.5
    assert json.dumps(found)
