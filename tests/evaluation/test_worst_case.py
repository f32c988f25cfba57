"""The adversarial distribution of a decision: in the ball, inside the support, and the worst."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.objectives.test_exact_brute_force import CASES, built
from tests.references.exact_cases import case
from wdro_model.errors import NoReformulationError
from wdro_model.evaluation.worst_case import worst_case
from wdro_model.solve.true_risk import known_robust_value


@pytest.mark.parametrize(("loss", "cost", "support"), CASES)
def test_worst_case_is_in_the_ball_and_attains_the_value(loss, cost, support):
    some = built(loss, cost, support, seed=3)
    value = known_robust_value(some.model, some.flat)
    found = worst_case(some.model, some.flat)
    (atoms,) = found.scenarios.values()
    size = len(some.rows)
    assert np.all(found.weights > 0)
    np.testing.assert_allclose(
        np.bincount(found.source, found.weights), np.full(size, 1 / size), atol=1e-9
    )
    assert some.model.joint.contains(atoms).all()
    assert found.transport_cost <= some.model.radius * (1 + 1e-5)
    assert found.weights @ some.losses(atoms) == pytest.approx(value, rel=1e-4, abs=1e-4)
    assert found.expected_loss == pytest.approx(found.weights @ some.losses(atoms))


def test_radius_zero_leaves_the_samples_where_they_are():
    some = case("cvar", "squared", "plane", 0.0)
    found = worst_case(some.model, some.flat)
    np.testing.assert_array_equal(found.scenarios[some.model.joint.parameters[0]], some.rows)
    assert found.transport_cost == 0
    assert found.dual == 0


def test_a_radius_that_does_not_bind_moves_everything_to_the_worst_corner():
    some = case("affine", "squared", "box", 1e4)
    found = worst_case(some.model, some.flat)
    corner = np.where(some.x > 0, [1.5, 2.0], -1.5)
    np.testing.assert_allclose(next(iter(found.scenarios.values())), np.tile(corner, (6, 1)))
    assert found.dual == 0
    assert found.transport_cost < 1e4
    assert "expected loss" in str(found)


@pytest.mark.parametrize(
    ("loss", "cost", "support"),
    [("cvar", "squared", "plane"), ("square", "squared", "plane"), ("affine", "norm1", "plane")],
)
def test_dual_is_what_one_unit_of_radius_costs(loss, cost, support):
    some = case(loss, cost, support, 0.3)
    low, high = (
        known_robust_value(some.problem.with_radius(0.3 + step)._model, some.flat)
        for step in (-1e-4, 1e-4)
    )
    dual = worst_case(some.model, some.flat).dual
    assert dual == pytest.approx((high - low) / 2e-4, rel=1e-3)


def test_parameters_held_fixed_keep_their_values():
    rng = np.random.default_rng(0)
    z = wdro.UncertainParameter(2, name="z", samples=rng.normal(size=(8, 2)))
    y = wdro.UncertainParameter(name="y", samples=rng.choice([-1.0, 1.0], size=8))
    w = cp.Variable(2)
    ball = wdro.WassersteinBall(0.2, wdro.costs.Norm(2, weights={y: np.inf}))
    problem = wdro.Problem(cp.Minimize(cp.pos(1 - y * (w @ z))), [cp.abs(w) <= 1], ambiguity=ball)
    found = worst_case(problem._model, np.array([0.4, -0.7]))
    np.testing.assert_array_equal(found.scenarios[y], y.samples[found.source])
    assert found.transport_cost == pytest.approx(0.2)


def test_split_samples_are_few():
    """With a price of transport at a kink, samples split in two; elsewhere they stay whole."""
    some = case("absolute", "squared", "plane", 0.3, seed=4)
    found = worst_case(some.model, some.flat)
    assert len(found.weights) <= 2 * len(some.rows)
    assert np.bincount(found.source).max() <= 2


def test_without_a_ball_or_a_formula_the_message_says_so():
    x = cp.Variable(2)
    z = wdro.UncertainParameter(2, samples=np.ones((3, 2)))
    problem = wdro.Problem(cp.Minimize(x @ z), [cp.abs(x) <= 1])
    with pytest.raises(NoReformulationError, match="needs an uncertain parameter and an ambig"):
        worst_case(problem._model, np.ones(2))
    some = case("logistic", "squared", "plane", 0.1)
    with pytest.raises(NoReformulationError, match="no exact robust counterpart"):
        worst_case(some.model, some.flat)


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_an_unbounded_support_is_approached_where_the_supremum_is_not_attained(p):
    rng = np.random.default_rng(6)
    z = wdro.UncertainParameter(
        3, samples=rng.uniform(0, 1, (8, 3)), support=wdro.supports.Nonnegative()
    )
    x = cp.Variable(3, nonneg=True)
    problem = wdro.Problem(
        cp.Minimize(cp.pos(x @ z - 1) + cp.pos(0.2 - x @ z)),
        [cp.sum(x) == 1],
        ambiguity=wdro.WassersteinBall(0.3, wdro.costs.Norm(p)),
    )
    value = problem.solve(method="exact")
    found = worst_case(problem._model, x.value)
    assert found.expected_loss == pytest.approx(value, abs=2e-4)
    assert found.transport_cost <= 0.3 + 1e-6
    assert z.support.contains(found.scenarios[z]).all()


@pytest.mark.parametrize("cost", [wdro.costs.SquaredEuclidean, wdro.costs.Norm])
def test_labels_on_a_box_split_into_groups_and_attain_the_value(cost):
    rng = np.random.default_rng(7)
    box = wdro.supports.Box(-2, 2)
    z = wdro.UncertainParameter(2, samples=rng.uniform(-2, 2, size=(10, 2)), support=box)
    y = wdro.UncertainParameter(samples=rng.choice([-1.0, 1.0], size=10))
    w, b = cp.Variable(2), cp.Variable()
    ball = wdro.WassersteinBall(0.3, cost(weights={y: np.inf}))
    loss = cp.pos(1 - y * (w @ z + b))
    problem = wdro.Problem(cp.Minimize(loss), [cp.abs(w) <= 2, cp.abs(b) <= 2], ambiguity=ball)
    decision = problem._model.feasible.layout.join({w: np.array([0.8, -0.5]), b: 0.2})
    value = known_robust_value(problem._model, decision)
    found = worst_case(problem._model, decision)
    assert found.expected_loss == pytest.approx(value, rel=1e-5)
    assert found.transport_cost == pytest.approx(0.3, rel=1e-4)
