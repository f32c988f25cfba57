"""Random reports against NumPy: every column of the table, and of the advantage over ERM."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro

REPORTS = 100
IN_ONE_TEST = 10
"""Reports of one test."""


def cvar(losses, shares, level=0.95):
    """The least of t + E (loss - t)_+ / (1 - level), at some loss (Rockafellar and Uryasev)."""
    return min(t + shares @ np.maximum(losses - t, 0) / (1 - level) for t in losses)


def quantile(losses, shares, level):
    if shares.max() - shares.min() < 1e-12:
        return np.quantile(losses, level)
    order = np.argsort(losses)
    reached = np.cumsum(shares[order])
    return losses[order][min(np.searchsorted(reached, level - 1e-12), len(losses) - 1)]


def random_report(seed):
    """A report, its decision variable, and samples and probabilities by the name of the set."""
    rng = np.random.default_rng(seed)
    size, dimension = int(rng.choice([1, 2, 5, 30])), int(rng.integers(1, 4))
    samples, test = rng.normal(size=(size, dimension)), rng.normal(size=(rng.choice([1, 3, 40]), 3))
    test = test[:, :dimension]
    given = rng.dirichlet(np.ones(size)) if seed % 3 == 0 else None
    if seed % 6 == 0 and size > 2:
        given[0] = 0.0
        given /= given.sum()
    x = cp.Variable(dimension, nonneg=True)
    z = wdro.UncertainParameter(dimension, samples=samples, probabilities=given)
    maximise, risky = seed % 2 == 1, seed % 4 >= 2
    gain = z @ x
    extra = wdro.cvar(-gain if maximise else gain, 0.8) if risky else 0.0
    aim = cp.Maximize(gain - extra) if maximise else cp.Minimize(gain + extra)
    ball = wdro.WassersteinBall(float(rng.choice([0.01, 1.0])))
    problem = wdro.Problem(aim, [cp.sum(x) == 1], ball)
    report = wdro.compare(problem, ("erm", "exact"), test=test, progress=False)
    shares = np.full(size, 1 / size) if given is None else given
    sets = {"training": (samples[shares > 0], shares[shares > 0])}
    sets["test"] = test, np.full(len(test), 1 / len(test))
    return report, x, sets, maximise, risky


@pytest.mark.parametrize("first", range(0, REPORTS, IN_ONE_TEST))
def test_reports_are_what_numpy_makes_of_the_losses(first):
    for seed in range(first, first + IN_ONE_TEST):
        report, x, sets, maximise, risky = random_report(seed)
        sign = -1.0 if maximise else 1.0
        rows = {(row["method"], row["scenarios"]): row for row in report.rows()}
        losses = {}

        def check(row, name, value, seed=seed):
            same = np.isclose(row[name], value, rtol=1e-6, atol=1e-7, equal_nan=True)
            assert same, (
                f"{seed}: {row['method']} on {row['scenarios']}: {name} {row[name]} {value}"
            )

        for (method, name), row in rows.items():
            points, shares = sets[name]
            plain = sign * (points @ report[method].solution.decision[x])
            found = losses[method, name] = 2 * plain if risky else plain
            mean, equal = shares @ found, np.ptp(shares) < 1e-12
            risk = sign * (shares @ plain + cvar(plain, shares, 0.8) if risky else mean)
            spread = np.sqrt(shares @ (found - mean) ** 2)
            if equal and len(found) > 1:
                spread = found.std(ddof=1)
            check(row, "mean", sign * mean)
            if equal and len(found) > 1:
                check(row, "standard_error", spread / np.sqrt(len(found)))
            slack = 1e-6 * (abs(row["promise"]) + found.std())
            assert row["kept"] == (row["excess"] <= slack)
            check(row, "deviation", spread)
            check(row, "worst", sign * found.max())
            check(row, "cvar95", sign * cvar(found, shares))
            for column, level in (("q05", 0.05), ("median", 0.5), ("q95", 0.95)):
                turned = 1 - level if maximise else level
                check(row, column, sign * quantile(found, shares, turned))
            check(row, "excess", sign * (risk - row["promise"]))
            if risky:
                check(row, "risk", risk)
        for row in report.advantage().rows():
            base, own = (losses[method, row["scenarios"]] for method in ("erm", "exact"))
            shares = sets[row["scenarios"]][1]
            gained = base - own
            mean, square = shares @ gained, shares @ shares
            check(row, "difference", mean)
            check(row, "cvar95", cvar(base, shares) - cvar(own, shares))
            check(row, "better", shares @ (gained > 1e-7 * np.abs(base).max()))
            if len(gained) > 1:
                variance = shares @ (gained - mean) ** 2 / (1 - square)
                check(row, "standard_error", np.sqrt(variance * square))


@pytest.mark.parametrize("maximise", [False, True])
def test_a_page_with_a_slider_shows_decisions_and_losses_of_risks(maximise):
    import json
    import re

    samples = np.random.default_rng(0).normal(0.1, 0.3, size=(12, 3))
    x = cp.Variable(3, nonneg=True, name="x")
    z = wdro.UncertainParameter(3, samples=samples)
    loss = wdro.cvar(-z @ x, 0.9)
    aim = cp.Maximize(z @ x - loss) if maximise else cp.Minimize(loss + 0.5 * wdro.cvar(z @ x, 0.8))
    problem = wdro.Problem(aim, [cp.sum(x) == 1], wdro.WassersteinBall(0.05))
    report = wdro.compare(problem, ("erm", "exact"), test=samples[:3], radii=[0.01, 0.1])
    page = report.to_html()
    data = json.loads(re.search(r'id="explored">(.*?)</script>', page, flags=re.S)[1])
    assert data["coordinates"] == ["x[0]", "x[1]", "x[2]"]
    for shown in data["methods"]:
        assert np.sum(shown["decision"], axis=1) == pytest.approx(1.0, abs=1e-5)
    judged = report["exact, radius 0.1"]
    [moved] = [m["worst"][-1] for m in data["methods"] if m["name"] == "exact"]
    for index, _, before, _, _ in moved["samples"]:
        assert before == pytest.approx(judged.losses["training"][int(index)], abs=1e-6)
    assert "range" in problem.path([0.01, 0.1]).to_html()
