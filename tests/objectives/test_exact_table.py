"""The table of exact counterparts: which one is found, and what is refused."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.exact_cases import case
from wdro_model.errors import NoReformulationError
from wdro_model.solve.true_risk import known_robust_value

SOME = [
    ("affine", "squared", "box"),
    ("cvar", "squared", "plane"),
    ("cvar", "norm1", "box"),
    ("separate", "norm2", "plane"),
    ("square", "weighted", "plane"),
    ("logistic", "norminf", "plane"),
]


@pytest.mark.parametrize(("loss", "cost", "support"), SOME)
def test_radius_zero_is_erm(loss, cost, support):
    some = case(loss, cost, support, 0.0)
    assert some.problem.solve(method="exact") == pytest.approx(
        some.problem.solve(method="erm"), rel=1e-7, abs=1e-7
    )


@pytest.mark.parametrize(("loss", "cost", "support"), SOME)
def test_exact_solution_is_no_worse_than_random_decisions(loss, cost, support):
    some = case(loss, cost, support, 0.2)
    optimum = some.problem.solve(method="exact")
    assert some.problem.solution.robust_value == pytest.approx(optimum, rel=1e-6, abs=1e-6)
    rng = np.random.default_rng(5)
    for _ in range(20):
        x = rng.uniform(-2, 2, size=3)
        assert known_robust_value(some.model, x) >= optimum - 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_labels_that_multiply_the_data_are_held_fixed(seed):
    """Hinge and logistic margins with labels of infinite weight: mean f + radius |x|_dual."""
    rng = np.random.default_rng(seed)
    data, labels = rng.normal(size=(30, 3)), rng.choice([-1.0, 1.0], size=30)
    w, b = cp.Variable(3), cp.Variable()
    z = wdro.UncertainParameter(3, samples=data)
    y = wdro.UncertainParameter(samples=labels)
    margin = y * (w @ z + b)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(np.inf, weights={y: np.inf}))
    bounds = [cp.abs(w) <= 5, cp.abs(b) <= 5]
    for loss, vector in [
        (cp.pos(1 - margin), cp.pos(1 - cp.multiply(labels, data @ w + b))),
        (cp.logistic(-margin), cp.logistic(-cp.multiply(labels, data @ w + b))),
    ]:
        by_hand = cp.Problem(cp.Minimize(cp.mean(vector) + 0.1 * cp.norm(w, 1)), bounds)
        by_hand.solve(solver=cp.CLARABEL)
        problem = wdro.Problem(cp.Minimize(loss), bounds, ambiguity=ball)
        assert problem.solve(method="exact") == pytest.approx(by_hand.value, rel=1e-6)


def test_labels_folded_into_the_data_need_no_weight():
    rng = np.random.default_rng(0)
    folded = rng.normal(size=(20, 3))
    w = cp.Variable(3)
    z = wdro.UncertainParameter(3, samples=folded)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(cp.logistic(-(w @ z))), [cp.abs(w) <= 3], ambiguity=ball)
    by_hand = cp.Problem(
        cp.Minimize(cp.mean(cp.logistic(-folded @ w)) + 0.05 * cp.norm(w, 2)), [cp.abs(w) <= 3]
    )
    by_hand.solve(solver=cp.CLARABEL)
    assert problem.solve(method="exact") == pytest.approx(by_hand.value, rel=1e-6)


def test_many_separate_terms_are_not_multiplied_out():
    """2^20 products of pieces, but twenty terms that see one coordinate each."""
    rng = np.random.default_rng(1)
    data = rng.uniform(0, 10, size=(40, 20))
    x = cp.Variable(20, nonneg=True)
    z = wdro.UncertainParameter(20, samples=data, support=wdro.supports.Nonnegative())
    loss = cp.sum(cp.maximum(x - z, 3 * (z - x)))
    problem = wdro.Problem(cp.Minimize(loss), [x <= 20], ambiguity=wdro.WassersteinBall(4.0))
    value = problem.solve(method="exact")
    assert known_robust_value(problem._model, x.value) == pytest.approx(value, rel=1e-6)


def test_certain_parameters_and_regularisers_take_part():
    some_weight = cp.Parameter(nonneg=True, value=2.0)
    rng = np.random.default_rng(2)
    data = rng.normal(size=(12, 3))
    x = cp.Variable(3)
    z = wdro.UncertainParameter(3, samples=data)
    loss = some_weight * cp.pos(x @ z - 1) + some_weight * cp.sum_squares(x)
    ball = wdro.WassersteinBall(0.3, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(loss), [x >= 0.1, x <= 1], ambiguity=ball)
    for value in (2.0, 0.5):
        some_weight.value = value
        by_hand = cp.mean(cp.pos(data @ x - 1)) + 0.3 * cp.norm(x, "inf") + cp.sum_squares(x)
        expected = cp.Problem(cp.Minimize(value * by_hand), [x >= 0.1, x <= 1]).solve()
        assert problem.solve(method="exact") == pytest.approx(expected, rel=1e-5)


def test_integer_decisions_go_to_a_mixed_integer_solver():
    rng = np.random.default_rng(3)
    data = rng.uniform(0, 5, size=(20, 1))
    x = cp.Variable(integer=True)
    z = wdro.UncertainParameter(1, samples=data, support=wdro.supports.Box(0, 5))
    loss = cp.maximum(x - z[0], 4 * (z[0] - x))
    ball = wdro.WassersteinBall(0.3, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 5], ambiguity=ball)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = problem.solve(method="exact")
    choices = [known_robust_value(problem._model, np.array([float(k)])) for k in range(6)]
    assert value == pytest.approx(min(choices), rel=1e-6)
    assert float(x.value) == pytest.approx(int(np.argmin(choices)))


def test_integer_decisions_with_cones_need_no_solver_for_them(monkeypatch):
    monkeypatch.setattr("wdro_model.solvers.cone_solver.MIXED_INTEGER", ("HIGHS",))
    z = wdro.UncertainParameter(2, samples=np.random.default_rng(0).normal(size=(5, 2)))
    x = cp.Variable(2, boolean=True)
    problem = wdro.Problem(
        cp.Minimize(cp.pos(x @ z)), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.1)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = problem.solve(method="exact")
        assert problem.status == "optimal"
        with pytest.raises(ValueError, match=r"mixed-integer .* Norm\(1\)"):
            problem.solve(method="exact", solver=wdro.solvers.Conic())
    choices = [problem.robust_value({x: row}) for row in np.eye(2)]
    assert value == pytest.approx(min(choices), rel=1e-5)


def test_entries_are_named_in_the_explanation():
    for which, words in [
        (("cvar", "squared", "plane"), r"|b_j|^2 / (4 l)"),
        (("logistic", "norm1", "plane"), "Lipschitz"),
        (("square", "squared", "plane"), "sqrt(mean_k u_k^2)"),
        (("cvar", "norm1", "box"), "over the box"),
        (("cvar", "norm2", "box"), "support {C xi <= h}"),
    ]:
        assert words in case(*which, 0.1).problem.explain("exact")


@pytest.mark.parametrize(
    ("loss", "cost", "support", "message"),
    [
        ("square", "norm1", "plane", "not a maximum of a few pieces .* degree 2"),
        ("logistic", "squared", "plane", "not the square of one affine form"),
        ("logistic", "norm1", "box", r"support is not R\^d"),
        ("square", "squared", "box", r"support is not R\^d"),
    ],
)
def test_refusals_name_what_was_found_and_what_applies(loss, cost, support, message):
    with pytest.raises(NoReformulationError, match=message) as caught:
        case(loss, cost, support, 0.1).problem.solve(method="exact")
    assert "method='smoothed'" in str(caught.value)


def test_too_many_products_are_refused_with_their_number():
    rng = np.random.default_rng(0)
    z = wdro.UncertainParameter(3, samples=rng.normal(size=(5, 3)))
    x = cp.Variable((7, 3))
    loss = cp.sum(cp.abs(x @ z))
    problem = wdro.Problem(cp.Minimize(loss), [x >= 1, x <= 2], ambiguity=wdro.WassersteinBall(0.1))
    with pytest.raises(NoReformulationError, match=r"7 terms .* 128 pieces"):
        problem.solve(method="exact")


def test_a_support_known_by_a_predicate_is_refused():
    inside = wdro.supports.Where(lambda points: np.abs(points).sum(axis=1) <= 10)
    z = wdro.UncertainParameter(2, samples=np.zeros((3, 2)), support=inside)
    x = cp.Variable(2)
    problem = wdro.Problem(
        cp.Minimize(cp.pos(x @ z)), [cp.abs(x) <= 1], ambiguity=wdro.WassersteinBall(0.1)
    )
    with pytest.raises(NoReformulationError, match="not given by linear inequalities"):
        problem.solve(method="exact")


def test_an_oracle_set_without_a_conic_form_is_solved_by_its_vertices():
    box = wdro.sets.Oracle(lambda direction: np.where(direction > 0, 0.0, 1.0), dimension=2)
    z = wdro.UncertainParameter(2, samples=np.random.default_rng(0).normal(1, 1, size=(5, 2)))
    x = cp.Variable(2)
    loss, ball = cp.maximum(1 - x @ z, 2 * (x @ z - 1)), wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, box)], ambiguity=ball)
    value = problem.solve(method="exact")
    same = wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 1], ambiguity=ball)
    assert value == pytest.approx(same.solve(method="exact"), rel=1e-4)
    assert "simplicial" in problem.solution.solver
    with pytest.raises(NoReformulationError, match="not smooth and needs a conic solver"):
        problem.solve(method="exact", solver=wdro.solvers.Conic())


def test_frank_wolfe_on_a_euclidean_norm_cost_agrees_with_the_conic_solver():
    some = case("affine", "norm2", "plane", 0.3)
    conic = some.problem.solve(method="exact")
    first_order = some.problem.solve(method="exact", solver=wdro.solvers.FrankWolfe(gap=1e-6))
    assert first_order == pytest.approx(conic, rel=1e-4, abs=1e-4)


def test_affine_loss_on_a_box_conic_and_frank_wolfe_agree():
    some = case("affine", "weighted", "box", 1.0)
    conic = some.problem.solve(method="exact", solver=wdro.solvers.Conic())
    first_order = some.problem.solve(method="exact", solver=wdro.solvers.FrankWolfe(gap=1e-6))
    assert first_order == pytest.approx(conic, rel=1e-4, abs=1e-4)


def test_variables_keep_their_values_when_a_decision_is_evaluated():
    some = case("cvar", "norm2", "box", 0.2)
    known_robust_value(some.model, some.flat)
    assert all(v.value is None for v in some.problem.variables())
