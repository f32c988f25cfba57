"""A problem judges its own decision, and cannot be changed behind its back."""

from __future__ import annotations

import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("ambiguity", wdro.WassersteinBall(5.0), "with_radius.*with_samples.*new Problem"),
        ("constraints", [], "new Problem"),
        ("objective", cp.Minimize(0), "new Problem"),
        ("assume_convex", True, "new Problem"),
    ],
)
def test_what_a_problem_is_built_from_is_read_only(portfolio, name, value, way_out):
    problem = portfolio[0]
    before = getattr(problem, name)
    with pytest.raises(AttributeError, match=f"{name} of a Problem is read-only: .*{way_out}"):
        setattr(problem, name, value)
    assert getattr(problem, name) is before
    with pytest.raises(AttributeError, match="append"):
        problem.constraints.append(True)


def fail(problem):
    x = problem.variables()[0]
    with pytest.raises(ValueError, match="empty"):
        wdro.Problem(problem.objective, [*problem.constraints, x >= 2]).solve()


OTHERS = {
    "with_radius": lambda p: p.with_radius(3.0).solve(),
    "with_samples": lambda p: p.with_samples(np.eye(4)).solve(),
    "select_radius": lambda p: wdro.select_radius(p, [0.5, 3.0], folds=2, progress=False),
    "path": lambda p: p.path([1.0, 3.0]),
    "compare": lambda p: wdro.compare(p, ("erm", "exact"), radii=[3.0]),
    "another problem": lambda p: wdro.Problem(p.objective, p.constraints).solve(),
    "a solve that fails": fail,
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_problem_judges_its_own_decision(portfolio, rng, name):
    problem, x, data = portfolio
    problem.solve()
    own, dual = x.value.copy(), problem.constraints[0].dual_value
    OTHERS[name](problem)
    held_out = rng.normal(size=(7, 4))
    np.testing.assert_allclose(problem.losses(held_out), -held_out @ own, atol=1e-12)
    assert problem.evaluate(held_out).mean == pytest.approx(-(held_out @ own).mean())
    risk = -(data @ own).mean() + 0.2 * np.linalg.norm(own)
    assert problem.robust_value() == pytest.approx(risk)
    assert problem.worst_case().expected_loss == pytest.approx(risk)
    assert problem.value == pytest.approx(risk)
    if name in ("path", "compare"):
        np.testing.assert_array_equal(x.value, own)
        assert problem.constraints[0].dual_value == dual


@pytest.mark.parametrize("name", ["path", "compare"])
def test_a_value_that_a_twin_left_is_not_taken_for_the_users(portfolio, name):
    problem, x, _ = portfolio
    value = problem.solve()
    problem.with_radius(3.0).solve()
    left = x.value.copy()
    OTHERS[name](problem)
    np.testing.assert_array_equal(x.value, left)
    assert problem.worst_case().expected_loss == pytest.approx(value)
    x.value = np.eye(4)[0]
    OTHERS[name](problem)
    assert problem.losses() == pytest.approx(-portfolio[2][:, 0])


def test_a_twin_that_is_not_solved_judges_the_variables(portfolio):
    problem, x, data = portfolio
    problem.solve()
    risk = -(data @ x.value).mean() + np.linalg.norm(x.value)
    assert problem.with_radius(1.0).robust_value() == pytest.approx(risk)


def test_values_that_are_set_by_hand_are_judged(portfolio):
    problem, x, data = portfolio
    x.value = np.full(4, 0.25)
    np.testing.assert_allclose(problem.losses(), -data.mean(axis=1))
    problem.solve()
    own = x.value.copy()
    x.value = np.full(4, 0.25)
    np.testing.assert_allclose(problem.losses(), -data.mean(axis=1))
    problem.with_radius(2.0).solve()
    np.testing.assert_allclose(problem.losses(), -data @ own)
    x.value = x.value
    x.value[:] = np.eye(4)[2]
    np.testing.assert_allclose(problem.losses(), -data[:, 2])
    cp.Problem(cp.Minimize(x[1]), [cp.sum(x) == 1, x[0] == 1]).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(problem.losses(), -data[:, 0], atol=1e-6)
    x.value = None
    np.testing.assert_allclose(problem.losses(), -data @ own)


def test_a_decision_can_be_given(portfolio):
    problem, x, data = portfolio
    problem.solve()
    other = problem.with_radius(2.0)
    other.solve()
    at = {x: np.eye(4)[1]}
    np.testing.assert_allclose(problem.losses(decision=at), -data[:, 1])
    np.testing.assert_allclose(
        problem.losses(decision=other.solution), -data @ other.solution.decision[x]
    )
    risk = -data[:, 1].mean() + 0.2
    assert problem.worst_case(decision=at).expected_loss == pytest.approx(risk)
    with pytest.raises(ValueError, match="decision has no value for the variable 'x'"):
        problem.losses(decision={})


def test_the_smoothed_adversary_is_that_of_the_solves_own_decision(portfolio):
    problem, x, data = portfolio
    problem.solve(method="smoothed")
    assert problem.worst_case().penalty is not None
    x.value = np.eye(4)[0]
    risk = -data[:, 0].mean() + 0.2
    assert problem.worst_case().expected_loss == pytest.approx(risk)
    with pytest.raises(ValueError, match="smoothed solve"):
        problem.worst_case("smoothed")


def test_own_decisions_survive_pickling(portfolio):
    problem, x, data = portfolio
    problem.solve()
    own = x.value.copy()
    problem.with_radius(3.0).solve()
    again = pickle.loads(pickle.dumps(problem))
    np.testing.assert_allclose(again.losses(), -data @ own)


def test_rounding_starts_from_the_own_decision_and_becomes_it(rng):
    data = rng.uniform(size=(5, 6))
    x = cp.Variable(6)
    cost = wdro.UncertainParameter(6, samples=data)
    graph = nx.complete_graph(4)
    tree = wdro.sets.SpanningTree(graph)
    problem = wdro.Problem(
        cp.Minimize(cost @ x), [wdro.In(x, tree)], ambiguity=wdro.WassersteinBall(1.0)
    )
    problem.solve(method="exact")
    expected = problem.round()
    vertex = expected.decision[x].copy()
    problem.solve(method="exact")
    problem.with_radius(50.0).solve()
    found = problem.round()
    assert found.fractional_value == pytest.approx(expected.fractional_value)
    np.testing.assert_array_equal(found.decision[x], vertex)
    problem.with_radius(50.0).solve()
    np.testing.assert_allclose(problem.losses(), data @ vertex)


def test_a_solve_that_fails_leaves_the_variables_alone(portfolio):
    _, x, data = portfolio
    returns = wdro.UncertainParameter(4, samples=data)
    unbounded = wdro.Problem(cp.Minimize(-returns @ x), [], wdro.WassersteinBall(0.0))
    x.value = np.full(4, 0.25)
    before = x.value
    with pytest.raises(ValueError, match="unbounded"):
        unbounded.solve()
    assert x.value is before


# ------------------------------------------------------------------ multipliers
def test_a_first_order_solve_leaves_no_multipliers(portfolio):
    problem, _, _ = portfolio
    budget = problem.constraints[0]
    problem.solve(method="smoothed")
    assert budget.dual_value is None
    problem.solve(method="exact")
    assert budget.dual_value is not None
    problem.solve(method="smoothed")
    assert budget.dual_value is None


def test_an_uncertain_parameter_takes_no_value():
    xi = wdro.UncertainParameter(2, name="xi", samples=np.ones((3, 2)))
    with pytest.raises(AttributeError, match=r"'xi' takes no value.*with_samples.*cp\.Parameter"):
        xi.value = np.zeros(2)
    assert xi.value is None
    xi.value = None
