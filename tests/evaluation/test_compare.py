"""Decisions side by side."""

from __future__ import annotations

import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.evaluation.statistics import LossStatistics, conditional_value_at_risk
from wdro_model.solvers import FrankWolfe


def test_report_has_promise_and_what_happened(portfolio, rng):
    problem, _, _ = portfolio
    test = rng.normal(0.1, 0.5, size=(200, 4))
    report = wdro.compare(problem, methods=("erm", "exact"), test=test)
    assert report.scenario_sets == ("training", "test")
    erm, exact = report["erm"], report["exact"]
    decision = np.concatenate([v.ravel() for v in erm.solution.decision.values()])
    assert erm.losses["test"] == pytest.approx(-test @ decision)
    assert erm.statistics("training").mean == pytest.approx(erm.solution.value)
    assert exact.statistics("training").mean <= exact.solution.value
    text = str(report)
    for word in ("erm", "exact", "training", "test", "promise", "cvar95", "optimal"):
        assert word in text


def test_methods_with_options_and_named_scenarios(portfolio, rng):
    problem, _, _ = portfolio
    methods = {
        "robust": {"method": "exact", "solver": FrankWolfe(gap=1e-6)},
        "plain": {"method": "erm"},
    }
    near, far = rng.normal(size=(20, 4)), rng.normal(size=(30, 4))
    report = wdro.compare(problem, methods=methods, test={"near": near, "far": far})
    assert report.scenario_sets == ("training", "near", "far")
    assert report["robust"].solution.method == "exact"
    assert report["plain"].losses["far"].shape == (30,)


def test_lazy_scenarios_are_judged_batch_by_batch():
    import cvxpy as cp

    instance = wdro.datasets.quadratic_tree(6, 10, seed=0)
    tree = wdro.sets.SpanningTree(instance.graph)
    x = cp.Variable(10)
    costs = wdro.UncertainParameter((10, 10), samples=instance.training.sample(5, seed=0))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(4.0),
    )
    problem.solve()
    lazy = instance.training.lazy(50, seed=1)
    assert problem.losses(lazy) == pytest.approx(problem.losses(np.asarray(lazy)))


def test_unknown_method_in_a_report(portfolio):
    problem, _, _ = portfolio
    report = wdro.compare(problem, methods=("erm",))
    with pytest.raises(KeyError, match=r"'exact' is not in the report.*erm"):
        report["exact"]


def test_no_method_at_all(portfolio):
    with pytest.raises(ValueError, match="at least one method"):
        wdro.compare(portfolio[0], methods=())


def test_frame_has_a_row_for_each_method_and_set(portfolio):
    pytest.importorskip("pandas")
    frame = wdro.compare(portfolio[0], methods=("erm", "exact")).to_frame()
    assert list(frame["method"]) == ["erm", "exact"]
    assert (frame["cvar95"] >= frame["mean"]).all()


def test_picture_has_a_panel_for_each_set(portfolio, tmp_path, rng):
    report = wdro.compare(portfolio[0], methods=("erm", "exact"), test=rng.normal(size=(50, 4)))
    figure = report.plot(tmp_path / "losses.png")
    assert (tmp_path / "losses.png").stat().st_size > 10_000
    assert len(figure.axes) == 2


@pytest.mark.parametrize("level", [0.0, 0.5, 0.9, 0.95])
def test_cvar_is_the_minimum_of_rockafellar_and_uryasev(level, rng):
    losses = rng.normal(size=37)
    candidates = [t + np.maximum(losses - t, 0).mean() / (1 - level) for t in losses]
    assert conditional_value_at_risk(losses, level) == pytest.approx(min(candidates))


def test_statistics_of_one_loss():
    s = LossStatistics.of(np.array([3.0]))
    assert (s.mean, s.deviation, s.tail, s.worst) == (3.0, 0.0, 3.0, 3.0)
