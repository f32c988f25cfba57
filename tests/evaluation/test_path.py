"""Decisions along a path of radii."""

from __future__ import annotations

import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.solvers import Conic, FrankWolfe
from wdro_model.solvers.warm_highs import WarmHighs

RADII = [0.3, 0.0, 0.01, 0.1]


def test_each_radius_is_solved_as_on_its_own(portfolio, rng):
    problem, x, data = portfolio
    test = rng.normal(size=(60, 4))
    path = problem.path(RADII, method="exact", test=test)
    assert path.radii.tolist() == [0.0, 0.01, 0.1, 0.3]
    assert path.decisions.shape == (4, 4)
    for radius, value, decision, robust in zip(
        path.radii, path.values, path.decisions, path.robust_values
    ):
        alone = problem.with_radius(radius)
        alone.solve(method="exact")
        assert value == pytest.approx(alone.value, abs=1e-6)
        assert decision == pytest.approx(alone.solution.decision[x], abs=1e-3)
        formula = -data.mean(axis=0) @ decision + np.sqrt(radius) * np.linalg.norm(decision)
        assert robust == pytest.approx(formula, abs=1e-6)
    assert path.means("training") == pytest.approx(-path.decisions @ data.mean(axis=0))
    assert path.means("test") == pytest.approx(-path.decisions @ test.mean(axis=0))
    assert path.training[0].worst == pytest.approx(-(data @ path.decisions[0]).min())
    assert path.statuses == ("optimal",) * 4
    assert (path.seconds > 0).all()
    assert not path.interrupted


def test_radius_zero_is_erm_and_values_grow(portfolio):
    problem, _, data = portfolio
    path = problem.path(RADII, method="smoothed")
    assert path.values[0] == pytest.approx(-data.mean(axis=0).max(), abs=1e-6)
    assert (np.diff(path.values) > 0).all()
    assert (np.diff(path.robust_values) > 0).all()


def test_the_path_goes_on_from_one_radius_to_the_next(portfolio, monkeypatch):
    starts, solve = [], wdro.Problem.solve

    def spied(self, method="auto", **options):
        starts.append(options.get("start"))
        return solve(self, method, **options)

    monkeypatch.setattr(wdro.Problem, "solve", spied)
    path = portfolio[0].path([0.1, 0.2, 0.3], "exact", solver=FrankWolfe(gap=1e-7))
    assert starts == [None, *path.solutions[:2]]
    assert path.solutions[1].vertices.shape[1] == 4
    assert path.solutions[1].weights.sum() == pytest.approx(1.0)


def test_a_warm_path_takes_fewer_iterations_than_cold_solves():
    instance = wdro.datasets.quadratic_tree(10, 25, seed=0)
    x = cp.Variable(25, name="x")
    costs = wdro.UncertainParameter((25, 25), samples=instance.training.sample(5, seed=0))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, wdro.sets.SpanningTree(instance.graph))],
        ambiguity=wdro.WassersteinBall(4.0),
    )
    radii = np.geomspace(4.0, 40.0, 5)
    path = problem.path(radii, "exact")
    cold = []
    for radius in radii:
        alone = problem.with_radius(radius)
        alone.solve(method="exact")
        cold.append(alone.solution.iterations)
    assert sum(s.iterations for s in path.solutions) < sum(cold)


def test_the_path_prints_and_is_tabulated(portfolio, rng, tmp_path):
    path = portfolio[0].path([0.0, 0.1], "exact", test={"later": rng.normal(size=(9, 4))})
    lines = str(path).splitlines()
    assert lines[0].split()[:3] == ["radius", "value", "robust"]
    assert "later cvar95" in lines[0]
    assert lines[2].split()[0] == "0"
    assert lines[3].split()[-1] == "optimal"
    assert "<table" in path._repr_html_()
    path.to_csv(tmp_path / "path.csv")
    assert (tmp_path / "path.csv").read_text() == path.to_csv()
    pytest.importorskip("pandas")
    frame = path.to_frame(decisions=True)
    assert frame["value"].tolist() == path.values.tolist()
    assert frame[["x[0]", "x[1]", "x[2]", "x[3]"]].to_numpy() == pytest.approx(path.decisions)
    assert frame["later mean"].tolist() == path.means("later").tolist()
    with pytest.raises(
        KeyError, match=r"'test' is not in the path; it has \['training', 'later'\]"
    ):
        path.means("test")


def test_coordinates_are_named_after_variables_and_edges():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")])
    x, y, t = cp.Variable(3, name="x"), cp.Variable((1, 2), name="y"), cp.Variable(name="t")
    z = wdro.UncertainParameter(3, samples=np.ones((4, 3)))
    problem = wdro.Problem(
        cp.Minimize(z @ x + cp.sum(y) + t),
        [wdro.In(x, wdro.sets.ShortestPath(graph, "a", "c")), cp.abs(y) <= 1, cp.abs(t) <= 1],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    path = problem.path([0.1])
    assert set(path.coordinates) == {
        *("x('a', 'b')", "x('b', 'c')", "x('a', 'c')", "y[0, 0]", "y[0, 1]", "t"),
    }
    joined = dict(zip(path.coordinates, path.decisions[0]))
    assert joined["x('a', 'c')"] == pytest.approx(1.0, abs=1e-4)
    assert joined["t"] == pytest.approx(-1.0, abs=1e-4)


# ------------------------------------------------------------------ what can go wrong
@pytest.mark.parametrize(
    ("radii", "message"),
    [
        ([], "got none"),
        ([0.1, -0.2], "got -0.2 at position 1"),
        ([np.nan], "got nan at position 0"),
        ([np.inf, 1], "got inf at position 0"),
        (["0.1"], "got '0.1' at position 0"),
        ("0.1", "got '0.1'; write radii="),
        (0.1, "got 0.1; write radii="),
        ([True], "got True at position 0"),
    ],
)
def test_bad_radii_are_refused_before_anything_is_solved(portfolio, monkeypatch, radii, message):
    monkeypatch.setattr(wdro.Problem, "solve", lambda *a, **k: pytest.fail("solved"))
    with pytest.raises(ValueError, match=f"radii must be a list of finite numbers >= 0, {message}"):
        portfolio[0].path(radii)


def test_a_radius_given_twice_is_solved_once(portfolio):
    assert portfolio[0].path(np.array([0.2, 0.1, 0.2])).radii.tolist() == [0.1, 0.2]


def test_other_mistakes_are_raised(portfolio):
    problem, x, data = portfolio
    with pytest.raises(TypeError, match="unknown option 'sed'"):
        problem.path([0.1], sed=1)
    with pytest.raises(ValueError, match="unknown method 'exat'"):
        problem.path([0.1], "exat")
    with pytest.raises(ValueError, match="scenarios of 'returns'"):
        problem.path([0.1], test=np.ones((3, 2)))
    z = wdro.UncertainParameter(4, samples=data)
    with pytest.raises(ValueError, match="has no ambiguity set"):
        wdro.Problem(cp.Minimize(-z @ x), [cp.sum(x) == 1]).path([0.1])


def interrupting(run):
    """A solver that is interrupted in its k-th run that takes a step."""
    runs = []

    def callback(state):
        runs.extend([None] * (state.iteration == 1))
        if len(runs) == run:
            raise KeyboardInterrupt

    return FrankWolfe(gap=1e-9, callbacks=[callback])


def test_an_interrupt_keeps_the_radii_that_are_finished(portfolio):
    path = portfolio[0].path([1.0, 2.0, 3.0, 4.0], "exact", solver=interrupting(3))
    assert path.radii.tolist() == [1.0, 2.0]
    assert path.statuses == ("optimal", "optimal")
    assert path.interrupted
    assert "interrupted from the keyboard at radius 3: 2 of 4 radii are finished" in str(path)


def test_an_interrupt_at_the_first_radius_returns_its_best_point(portfolio):
    path = portfolio[0].path([1.0, 2.0], "exact", solver=interrupting(1))
    assert path.radii.tolist() == [1.0]
    assert path.statuses == ("user_limit",)


def test_a_conic_solver_that_fails_leaves_a_gap(portfolio, monkeypatch):
    run, calls = Conic.run, []

    def unlucky(self, problem, **display):
        calls.append(problem)
        if len(calls) == 2:
            raise cp.error.SolverError("Solver failed.")
        run(self, problem, **display)

    monkeypatch.setattr(Conic, "run", unlucky)
    monkeypatch.setattr(Conic, "run_again", lambda *given, **more: None)
    monkeypatch.setattr(Conic, "warm", lambda *given: None)
    clarabel = Conic("CLARABEL")  # a solver that the user names has no substitute
    path = portfolio[0].path([0.1, 0.2, 0.3], "exact", solver=clarabel)
    assert path.statuses == ("optimal", "failed", "optimal")
    assert np.isnan(path.values).tolist() == [False, True, False]
    assert np.isnan(path.decisions[1]).all()
    assert str(path).endswith("radius 0.2: Solver failed.")
    calls[:] = [None]
    with pytest.raises(cp.error.SolverError):
        portfolio[0].path([0.1, 0.2], "exact", solver=clarabel)
    pytest.importorskip("matplotlib")
    path.plot()


def test_a_solved_problem_keeps_its_decision(portfolio):
    problem, x, _ = portfolio
    problem.path([0.1, 5.0])
    assert x.value == pytest.approx(np.full(4, 0.25), abs=0.1)
    problem.solve(method="erm")
    before, solution = x.value.copy(), problem.solution
    problem.path([0.1, 5.0])
    assert (x.value == before).all()
    assert problem.solution is solution


def test_one_warning_is_enough_for_a_path_of_stationary_points(recwarn):
    x = cp.Variable(3, nonneg=True, name="x")
    z = wdro.UncertainParameter((3, 3), samples=np.random.default_rng(0).normal(size=(4, 3, 3)))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, z)),
        [cp.sum(x) == 1],
        ambiguity=wdro.WassersteinBall(0.01),
    )
    path = problem.path([0.0, 0.001, 0.002], "exact")
    assert "stationary" in path.statuses
    assert len([w for w in recwarn if w.category is wdro.ConvexityWarning]) == 1


# ------------------------------------------------------------------ linear programs
def linear_portfolio():
    """CVaR of a portfolio with an l1 cost, which is a linear program."""
    rng = np.random.default_rng(5)
    x, t = cp.Variable(4, nonneg=True), cp.Variable()
    xi = wdro.UncertainParameter(4, samples=rng.normal(0.1, 0.3, size=(25, 4)))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    loss = t + cp.pos(-xi @ x - t) / 0.2
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ambiguity=ball)


LINEAR_RADII = [0.01, 0.02, 0.05, 0.1, 0.2]


def test_a_linear_path_interrupted_in_its_solver_keeps_what_is_finished(monkeypatch):
    problem, run, count = linear_portfolio(), WarmHighs.run, []

    def interrupted(self):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return run(self)

    monkeypatch.setattr(WarmHighs, "run", interrupted)
    path = problem.path(LINEAR_RADII)
    assert path.interrupted
    assert path.radii.tolist() == LINEAR_RADII[:3]  # the first was compiled, two went on from it
    assert "interrupted from the keyboard at radius 0.1: 3 of 5 radii are finished" in str(path)
    monkeypatch.undo()
    again = problem.path(LINEAR_RADII)
    fresh = [linear_portfolio().with_radius(radius).solve() for radius in LINEAR_RADII]
    assert again.values == pytest.approx(fresh, rel=1e-6)
    assert not again.interrupted


def test_a_path_that_never_began_raises_the_interrupt(monkeypatch):
    def interrupted(self, *given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(Conic, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        linear_portfolio().path(LINEAR_RADII)


def test_statistics_of_a_path_are_those_of_its_losses_whenever_they_are_asked_for():
    """Also after a certain number of the loss has changed, and from a pickled path."""
    fee = cp.Parameter(value=0.5)
    x = cp.Variable(2, nonneg=True)
    price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0], [3.0, 0.5]])
    ball = wdro.WassersteinBall(0.5, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(price @ x + fee * cp.sum(x)), [cp.sum(x) == 1], ball)
    path = problem.path([0.1, 0.2], test=[[4.0, 4.0], [2.0, 2.0]])
    expected = [problem.losses(decision=s.decision) for s in path.solutions]
    fee.value = 100.0
    stored = pickle.loads(pickle.dumps(path))
    for found in (path, stored):
        assert found.means("training") == pytest.approx([losses.mean() for losses in expected])
        assert found.means("test") == pytest.approx([3.5, 3.5])
        first = found.methods[0]
        assert first.statistics("training").median == pytest.approx(np.median(expected[0]))
        assert list(first.losses) == ["training", "test"]
