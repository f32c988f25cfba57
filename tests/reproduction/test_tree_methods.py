"""Decisions for trees, against the same models solved as `Problem`s."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.reproduction.tree_methods import METHODS
from wdro_model.reproduction.tree_trial import TreeSettings, quadratic_losses, run_tree, tree_model

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


@pytest.fixture(scope="module")
def problem(instance, training):
    x = cp.Variable(EDGES, name="x")
    costs = wdro.UncertainParameter((EDGES, EDGES), name="costs", samples=training[:])
    return wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, wdro.sets.SpanningTree(instance.graph))],
        ambiguity=wdro.WassersteinBall(SETTINGS.radius),
    )


@pytest.mark.parametrize("method", ["exact", "smoothed"])
def test_robust_decisions_are_those_of_the_problem(model, problem, method):
    options = {"epsilon": SETTINGS.epsilon} if method == "smoothed" else {}
    problem.solve(method, solver=wdro.solvers.FrankWolfe(gap=1e-7), **options)
    decision = METHODS[method](model)
    assert decision.status == problem.status == "optimal"
    assert decision.promise == pytest.approx(problem.value, rel=1e-6)
    assert decision.robust_value == pytest.approx(problem.solution.robust_value, rel=1e-5)
    np.testing.assert_allclose(decision.x, problem.variables()[0].value, atol=5e-3)


def test_erm_is_a_stationary_point_of_the_mean_loss(model, training):
    decision = model.erm()
    mean = training[:].mean(axis=0)
    assert decision.promise == pytest.approx(decision.x @ mean @ decision.x, rel=1e-9)
    gradient = (mean + mean.T) @ decision.x
    assert gradient @ (decision.x - model.tree.minimize(gradient)) <= 1e-6 * decision.promise


def test_sampled_goes_by_the_same_smoothed_objective(model, problem):
    decision = model.sampled()
    problem.solve("smoothed", epsilon=SETTINGS.epsilon)
    assert decision.smoothed_value >= problem.value * (1 - 1e-3)
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
    records = [run_tree(SETTINGS, EDGES, range(5), ("erm", "sampled")) for _ in range(2)]
    for record in records:
        for method in record["methods"].values():
            del method["seconds"]
    assert records[0] == records[1]
    losses = records[0]["methods"]["erm"]["losses"]
    assert set(losses) == {"training", *SETTINGS.shifts}
    assert len(losses["independent"]) == SETTINGS.tests


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
