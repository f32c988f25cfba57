"""Decisions side by side."""

from __future__ import annotations

import csv

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.solvers import Conic, FrankWolfe, MomentumFrankWolfe


@pytest.fixture
def logistic(rng):
    """A loss without an exact counterpart under a squared cost."""
    w = cp.Variable(2, name="w")
    z = wdro.UncertainParameter(2, name="z", samples=rng.normal(0.5, 1.0, size=(12, 2)))
    return wdro.Problem(
        cp.Minimize(cp.logistic(-z @ w)), [cp.norm(w) <= 1], ambiguity=wdro.WassersteinBall(0.1)
    )


@pytest.fixture
def tree(rng):
    """A quadratic tree problem with a fractional robust decision."""
    instance = wdro.datasets.quadratic_tree(6, 10, seed=0)
    x = cp.Variable(10, name="x")
    costs = wdro.UncertainParameter(
        (10, 10), name="costs", samples=instance.training.sample(5, seed=0)
    )
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, wdro.sets.SpanningTree(instance.graph))],
        ambiguity=wdro.WassersteinBall(4.0),
    )
    return problem, instance


# ------------------------------------------------------------------ what is in the report
def test_report_has_promise_and_what_happened(portfolio, rng):
    problem, x, data = portfolio
    test = rng.normal(0.1, 0.5, size=(200, 4))
    report = wdro.compare(problem, methods=("erm", "exact"), test=test)
    assert report.scenario_sets == ("training", "test")
    erm, exact = report["erm"], report["exact"]
    assert erm.losses["test"] == pytest.approx(-test @ erm.solution.decision[x])
    assert exact.losses["training"] == pytest.approx(-data @ exact.solution.decision[x])
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


def test_lazy_scenarios_are_judged_batch_by_batch(tree):
    problem, instance = tree
    problem.solve()
    lazy = instance.training.lazy(50, seed=1)
    assert problem.losses(lazy) == pytest.approx(problem.losses(np.asarray(lazy)))


def test_radii_are_problems_of_their_own(portfolio):
    problem, x, _ = portfolio
    report = wdro.compare(problem, methods=("erm", "exact"), radii=[1.0, 0.01, 0.1])
    assert [judged.name for judged in report.methods] == [
        "erm",
        "exact, radius 0.01",
        "exact, radius 0.1",
        "exact, radius 1",
    ]
    assert [judged.radius for judged in report.methods] == [0, 0.01, 0.1, 1]
    for radius in (0.01, 0.1, 1):
        alone = problem.with_radius(radius)
        alone.solve(method="exact")
        found = report[f"exact, radius {radius:g}"].solution
        assert found.value == pytest.approx(alone.value, abs=1e-6)
        assert found.decision[x] == pytest.approx(alone.solution.decision[x], abs=1e-4)


def test_radii_that_look_alike_get_labels_of_their_own(portfolio):
    report = wdro.compare(portfolio[0], methods="exact", radii=[0.1, 0.1000001, 0.2])
    assert len({judged.name for judged in report.methods}) == 3


# ------------------------------------------------------------------ refusals
def test_a_method_that_does_not_apply_stays_in_the_report(logistic):
    report = wdro.compare(logistic, methods=("erm", "exact", "smoothed"))
    assert [judged.name for judged in report.methods] == ["erm", "smoothed"]
    (refused,) = report.refused
    assert refused.name == "exact"
    assert "no exact robust counterpart is known" in refused.message
    assert [row["method"] for row in report.rows()] == ["erm", "exact", "smoothed"]
    assert report.rows()[1]["status"] == "refused"
    assert report.rows()[1]["mean"] is None
    lines = str(report).splitlines()
    assert lines[-1].startswith("exact (refused): no exact robust counterpart is known")
    assert lines[3].split() == ["exact", *["-"] * 10, "refused", "-"]
    with pytest.raises(KeyError, match=r"'exact' gave no decision \(refused\): no exact robust"):
        report["exact"]


def test_refusals_do_not_depend_on_their_place(logistic):
    report = wdro.compare(logistic, methods=("exact", "erm"))
    assert report.scenario_sets == ("training",)
    assert len(report.methods) == 1


def test_if_no_method_applies_the_reasons_are_raised(logistic):
    methods = {"exact": {}, "conic": {"method": "smoothed", "solver": Conic()}}
    with pytest.raises(wdro.NoReformulationError, match="no exact robust counterpart") as caught:
        wdro.compare(logistic, methods=methods)
    assert "the smoothed objective has no conic form" in caught.value.__notes__[0]


def test_a_solver_that_fails_does_not_lose_the_others(portfolio, monkeypatch):
    run = Conic.run

    def unlucky(self, problem, **display):
        if self.solver == "SCS":
            raise cp.error.SolverError("Solver 'SCS' failed.\nTry another solver.")
        run(self, problem, **display)

    monkeypatch.setattr(Conic, "run", unlucky)
    methods = {"erm": {}, "unlucky": {"method": "exact", "solver": "SCS"}}
    report = wdro.compare(portfolio[0], methods=methods)
    (failed,) = report.refused
    assert (failed.name, failed.status) == ("unlucky", "failed")
    assert failed.message == "Solver 'SCS' failed. Try another solver."
    assert report["erm"].solution.status == "optimal"


@pytest.mark.parametrize("error", [ValueError, KeyError, ZeroDivisionError])
def test_errors_in_code_of_the_user_are_raised(error):
    def faulty(direction):
        if direction.min() < -0.5:
            raise error("a mistake in the oracle")
        return np.eye(3)[np.argmin(direction)]

    x = cp.Variable(3, name="x")
    z = wdro.UncertainParameter(3, samples=np.full((4, 3), -2.0))
    problem = wdro.Problem(
        cp.Minimize(z @ x),
        [wdro.In(x, wdro.sets.Oracle(faulty, 3))],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    with pytest.raises(error, match="a mistake in the oracle"):
        wdro.compare(problem, methods=("erm", "exact"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": ("erm", "exakt")}, ValueError, "unknown method 'exakt'. Did you mean 'exact'"),
        ({"methods": ()}, ValueError, "at least one method"),
        ({"sead": 3}, TypeError, "unknown option 'sead'. Did you mean 'seed'"),
        ({"epsilon": -1.0}, ValueError, "epsilon must be a positive finite number"),
        ({"solver": "GUROBY"}, ValueError, "solver must be FrankWolfe"),
        ({"test": np.ones((5, 3))}, ValueError, "scenarios of 'returns'"),
        ({"test": {"training": np.ones((5, 4))}}, ValueError, "called 'training'"),
        ({"radii": [0.1, -1]}, ValueError, "finite numbers >= 0, got -1 at position 1"),
        ({"radii": []}, ValueError, "finite numbers >= 0, got none"),
        ({"radii": 0.1}, ValueError, r"got 0.1; write radii=\[0.01"),
        ({"rounded": True}, ValueError, "its decisions are continuous"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_solved(
    portfolio, monkeypatch, arguments, error, message
):
    monkeypatch.setattr(wdro.Problem, "solve", lambda *a, **k: pytest.fail("solved"))
    with pytest.raises(error, match=message):
        wdro.compare(portfolio[0], **arguments)


def test_unknown_method_in_a_report(portfolio):
    problem, _, _ = portfolio
    report = wdro.compare(problem, methods=("erm",))
    with pytest.raises(KeyError, match=r"'exact' is not in the report.*erm"):
        report["exact"]


# ------------------------------------------------------------------ starts, interrupts, state
def starts_of(monkeypatch):
    """The starts that solves are given, by method."""
    seen, solve = [], wdro.Problem.solve

    def spied(self, method="auto", **options):
        seen.append((method, self.radius, options.get("start")))
        return solve(self, method, **options)

    monkeypatch.setattr(wdro.Problem, "solve", spied)
    return seen


def test_a_method_goes_on_from_radius_to_radius_and_starts_afresh(portfolio, monkeypatch):
    seen = starts_of(monkeypatch)
    wdro.compare(portfolio[0], ("erm", "exact"), radii=[0.1, 0.2], solver=FrankWolfe())
    assert [(name, radius, start is None) for name, radius, start in seen] == [
        ("erm", 0.04, True),
        ("exact", 0.1, True),
        ("exact", 0.2, False),
    ]


def test_warm_starts_pass_the_decision_on_but_not_to_the_stochastic_method(portfolio, monkeypatch):
    seen = starts_of(monkeypatch)
    paper = {"method": "smoothed", "solver": MomentumFrankWolfe(max_iterations=5)}
    with pytest.warns(wdro.SamplingWarning):
        report = wdro.compare(portfolio[0], {"erm": {}, "exact": {}, "paper": paper}, warm=True)
    assert [start for _, _, start in seen] == [None, report["erm"].solution, None]


def interrupting(run):
    """A solver that is interrupted from the keyboard in the k-th run that takes a step."""
    runs = []

    def callback(state):
        runs.extend([None] * (state.iteration == 1))
        if len(runs) == run:
            raise KeyboardInterrupt

    return FrankWolfe(gap=1e-9, callbacks=[callback])


def test_an_interrupt_keeps_what_is_finished(portfolio):
    report = wdro.compare(
        portfolio[0], ("exact", "erm"), radii=[1.0, 2.0, 3.0], solver=interrupting(2)
    )
    assert [(judged.name, judged.solution.status) for judged in report.methods] == [
        ("exact, radius 1", "optimal"),
        ("exact, radius 2", "user_limit"),
    ]
    assert [refused.row() for refused in report.refused] == [
        {"method": "exact, radius 3", "radius": 3.0, "status": "not run"},
        {"method": "erm", "radius": 0.0, "status": "not run"},
    ]
    assert "erm (not run): the comparison was interrupted" in str(report)


def test_an_interrupt_of_a_conic_solver_keeps_what_is_finished(portfolio, monkeypatch):
    run, calls = Conic.run, []

    def interrupted(self, problem, **display):
        calls.append(problem)
        if len(calls) == 2:
            raise KeyboardInterrupt
        run(self, problem, **display)

    monkeypatch.setattr(Conic, "run", interrupted)
    monkeypatch.setattr(Conic, "run_again", lambda *given, **more: None)
    monkeypatch.setattr(Conic, "warm", lambda *given: None)
    report = wdro.compare(portfolio[0], ("erm", "exact", "auto"))
    assert [judged.name for judged in report.methods] == ["erm"]
    assert [refused.name for refused in report.refused] == ["exact", "auto"]
    calls[:] = [None]
    with pytest.raises(KeyboardInterrupt):
        wdro.compare(portfolio[0], ("erm", "exact"))


def test_a_solved_problem_keeps_its_decision(portfolio):
    problem, x, _ = portfolio
    problem.solve(method="erm")
    before, solution = x.value.copy(), problem.solution
    wdro.compare(problem, methods=("exact", "smoothed"))
    assert (x.value == before).all()
    assert problem.solution is solution
    assert problem.value == solution.value


def test_a_problem_without_a_decision_is_left_at_the_last(portfolio):
    problem, x, _ = portfolio
    report = wdro.compare(problem, methods=("erm", "exact"))
    assert problem.solution is report["exact"].solution
    assert x.value == pytest.approx(report["exact"].solution.decision[x])


# ------------------------------------------------------------------ ways out
def test_advantage_is_of_paired_losses(portfolio, rng):
    test = rng.normal(size=(300, 4))
    report = wdro.compare(portfolio[0], methods=("erm", "exact"), test=test)
    difference = report["erm"].losses["test"] - report["exact"].losses["test"]
    for name, other, sign in (("exact", "erm", 1.0), ("erm", "exact", -1.0)):
        paired = report.advantage(over=other)[name, "test"]
        assert paired.losses == pytest.approx(sign * difference)
    assert "over 'exact'" in str(report.advantage(over="exact"))
    assert "positive: better" in str(report.advantage(over="exact"))


def test_equal_decisions_have_no_advantage(portfolio):
    report = wdro.compare(portfolio[0], {"one": {"method": "erm"}, "two": {"method": "erm"}})
    assert report.advantage("one").rows()[0]["better"] == 0.0
    with pytest.raises(KeyError, match="'erm' is not in the report"):
        report.advantage()
    with pytest.raises(KeyError, match=r"\('one', 'training'\) is not compared with 'one'"):
        report.advantage("one")["one", "training"]


def test_an_advantage_needs_two_decisions(portfolio):
    with pytest.raises(ValueError, match="no decision but that of 'erm'"):
        wdro.compare(portfolio[0], methods="erm").advantage()


def test_frame_has_a_row_for_each_method_and_set(portfolio):
    pytest.importorskip("pandas")
    report = wdro.compare(portfolio[0], methods=("erm", "exact"))
    frame = report.to_frame()
    assert list(frame["method"]) == ["erm", "exact"]
    assert (frame["cvar95"] >= frame["mean"]).all()
    assert list(frame.columns) == [column.key for column in report.columns]


def test_the_file_has_all_digits(portfolio, tmp_path):
    report = wdro.compare(portfolio[0], {"erm, with a comma": {"method": "erm"}, "exact": {}})
    report.to_csv(tmp_path / "report.csv")
    with open(tmp_path / "report.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["method"] for row in read] == ["erm, with a comma", "exact"]
    assert [float(row["mean"]) for row in read] == [row["mean"] for row in report.rows()]
    assert report.to_csv() == (tmp_path / "report.csv").read_text()
    pandas = pytest.importorskip("pandas")
    assert pandas.read_csv(tmp_path / "report.csv")["q95"].tolist() == [
        row["q95"] for row in report.rows()
    ]


# ------------------------------------------------------------------ rounding
def test_rounded_decisions_stand_beside_the_fractional_ones(tree):
    problem, instance = tree
    test = instance.shifted(seed=2).sample(20, seed=3)
    report = wdro.compare(
        problem, methods=("exact",), test=test, rounded=True, solver=FrankWolfe(gap=1e-6)
    )
    fractional, rounded = report.methods
    assert [fractional.name, rounded.name] == ["exact", "exact, rounded"]
    (vertex,) = rounded.solution.decision.values()
    assert sorted(set(vertex)) == [0, 1]
    mean = np.asarray(problem.uncertain_parameters()[0].samples).mean(axis=0)
    robust = vertex @ mean @ vertex + np.sqrt(4.0) * vertex @ vertex
    assert rounded.promise == pytest.approx(robust)
    assert rounded.losses["test"] == pytest.approx(np.einsum("i,kij,j->k", vertex, test, vertex))
    assert rounded.row("test")["status"] == "rounded"
    assert fractional.solution.value <= rounded.solution.value + 1e-9


def test_a_deterministic_problem_is_compared_by_its_one_loss():
    x = cp.Variable(2, name="x")
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - 1)), [x <= 0.5])
    report = wdro.compare(problem, methods=("erm", "exact"))
    assert report["erm"].losses["training"] == pytest.approx([0.5], abs=1e-5)
    assert "needs an uncertain parameter" in report.refused[0].message
