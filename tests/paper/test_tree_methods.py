"""Decisions for trees, against their formulas and a quadratic program."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import wdro_model as wdro
from tree_methods import METHODS
from tree_trial import TreeSettings, quadratic_losses, run_tree, tree_model

SETTINGS = TreeSettings(nodes=9, count=12, tests=8, iterations=2000, gap=1e-7)
EDGES = 20


@pytest.fixture(scope="module")
def instance():
    return wdro.datasets.quadratic_tree(SETTINGS.nodes, EDGES, seed=4)


@pytest.fixture(scope="module")
def training(instance):
    return instance.training.lazy(SETTINGS.count, seed=5)


@pytest.fixture(scope="module")
def model(instance, training):
    return tree_model(SETTINGS, instance, training, seed=6)


def smoothed_value(x, mean):
    """F(x) = mean loss + min over l of l rho + the margin, a Gaussian integral in m^2 numbers."""
    variance, d = SETTINGS.radius / (2 * EDGES**2), EDGES**2

    def above_the_mean(dual):
        shrunk = 1 + 2 * dual * variance / SETTINGS.epsilon
        tilted = variance * (x @ x) ** 2 / (2 * SETTINGS.epsilon**2 * shrunk)
        return dual * SETTINGS.radius + SETTINGS.epsilon * (tilted - d / 2 * np.log(shrunk))

    options = {"xatol": 1e-12}
    found = minimize_scalar(above_the_mean, bounds=(0, 50), method="bounded", options=options)
    return x @ mean @ x + min(found.fun, above_the_mean(0.0))


def least(objective, tree):
    """The minimum of a convex function over the tree polytope, all constraints written out."""
    x = cp.Variable(EDGES)
    problem = cp.Problem(cp.Minimize(objective(x)), tree.constraints(x))
    problem.solve(solver="CLARABEL")
    return problem.value, x.value


def test_exact_is_the_quadratic_program_over_all_trees(model, training):
    mean = training[:].mean(axis=0)
    matrix = (mean + mean.T) / 2 + np.sqrt(SETTINGS.radius) * np.eye(EDGES)
    value, x = least(lambda x: cp.quad_form(x, cp.psd_wrap(matrix)), model.tree)
    decision = model.exact()
    assert decision.status == "optimal"
    assert decision.promise == pytest.approx(value, rel=1e-6)
    assert decision.robust_value == pytest.approx(decision.x @ matrix @ decision.x, rel=1e-9)
    np.testing.assert_allclose(decision.x, x, atol=5e-3)


def test_smoothed_is_a_minimum_of_the_smoothed_risk(model, training):
    mean = training[:].mean(axis=0)
    decision = model.smoothed()
    assert decision.status == "optimal"
    assert decision.promise == pytest.approx(smoothed_value(decision.x, mean), rel=1e-7)
    # Of all points around it on the way to random trees, none is better than by the gap.
    rng = np.random.default_rng(0)
    for _ in range(30):
        vertex = model.tree.minimize(rng.standard_normal(EDGES))
        for step in (1e-3, 1e-2, 0.1, 1.0):
            other = smoothed_value((1 - step) * decision.x + step * vertex, mean)
            assert other >= decision.promise * (1 - 2 * SETTINGS.gap)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_measured_of_a_decision(model, training, method):
    decision, mean = METHODS[method](model), training[:].mean(axis=0)
    x, square = decision.x, decision.x @ decision.x
    assert decision.squared_length == pytest.approx(square)
    risk = x @ mean @ x + np.sqrt(SETTINGS.radius) * square
    assert decision.robust_value == pytest.approx(risk, rel=1e-9)
    assert decision.smoothed_value == pytest.approx(smoothed_value(x, mean), rel=1e-7)


def test_erm_is_a_stationary_point_of_the_mean_loss(model, training):
    decision = model.erm()
    mean = training[:].mean(axis=0)
    assert decision.promise == pytest.approx(decision.x @ mean @ decision.x, rel=1e-9)
    gradient = (mean + mean.T) @ decision.x
    assert gradient @ (decision.x - model.tree.minimize(gradient)) <= 1e-6 * decision.promise


def test_sampled_goes_by_the_same_smoothed_objective(model):
    decision = model.sampled()
    assert decision.smoothed_value >= model.smoothed().promise * (1 - 1e-3)
    assert 1.0 <= decision.effective_draws <= SETTINGS.draws
    assert 0.0 <= decision.dual <= decision.dual_bound


def test_exact_for_other_radii_moves_from_erm_to_short_decisions(model):
    lengths = [model.exact(radius).squared_length for radius in (1e-6, 1e-2, 10.0)]
    assert lengths[0] > lengths[1] > lengths[2]
    assert model.exact(10.0).promise == pytest.approx(model.exact().promise, rel=1e-9)


def test_losses_are_quadratic_forms(training):
    points = np.random.default_rng(0).random((3, EDGES))
    expected = np.einsum("ki,nij,kj->kn", points, training[:], points)
    np.testing.assert_allclose(quadratic_losses(points, training), expected, rtol=1e-12)


def test_an_instance_is_the_same_twice():
    records = [run_tree(SETTINGS, EDGES, range(6), ("erm", "sampled")) for _ in range(2)]
    for record in records:
        for method in record["methods"].values():
            del method["seconds"]
    assert records[0] == records[1]
    losses = records[0]["methods"]["erm"]["losses"]
    assert set(losses) == {"training", *SETTINGS.shifts}
    assert len(losses["independent"]) == SETTINGS.tests


def test_every_test_set_has_a_seed():
    with pytest.raises(ValueError, match="3 test sets need a seed each, got 2; give 6 seeds"):
        run_tree(SETTINGS, EDGES, range(5), ("erm",))


def test_no_decision_is_better_on_average_under_an_independent_shift(instance):
    tree = wdro.sets.SpanningTree(instance.graph)
    random = np.random.default_rng(0).standard_normal((50, EDGES))
    vertices = np.array([tree.minimize(direction) for direction in random])
    points = np.stack([vertices[0], vertices.mean(axis=0)])  # as different as they can be
    gains = []
    for seed in range(400):
        shifted = instance.shifted(seed, noise=0.3, base_shift=1.0, mask_shift=1.0)
        tree_loss, spread_loss = quadratic_losses(points, shifted.lazy(1, seed))
        gains.append(float(tree_loss[0] - spread_loss[0]))
    assert abs(np.mean(gains)) < 4 * np.std(gains) / np.sqrt(len(gains))
