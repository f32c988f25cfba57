"""What costs know of themselves, against what follows from their values alone."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import wdro_model as wdro
from tests.uncertainty.costs.group_norm import GroupNorm
from wdro_model.errors import UnknownToCost
from wdro_model.testing import check_cost as check
from wdro_model.uncertainty import JointSamples, UncertainParameter
from wdro_model.uncertainty.costs import RescaledCost
from wdro_model.uncertainty.costs.budgets import shorten_to_budget, small_moves

D = 4
JOINT = JointSamples([UncertainParameter(D, samples=np.random.default_rng(0).normal(size=(5, D)))])
PRECISION = np.diag([1.0, 2.0, 3.0, 0.5]) + 0.2
COSTS = {
    "squared": wdro.costs.SquaredEuclidean(),
    "weighted": wdro.costs.SquaredEuclidean(weights=[1.0, 2.0, 0.5, 3.0]),
    "held": wdro.costs.SquaredEuclidean(weights=[1.0, np.inf, 0.5, 3.0]),
    "mahalanobis": wdro.costs.Mahalanobis(precision=PRECISION),
    "l1": wdro.costs.Norm(1, weights=[1.0, 2.0, 0.5, 3.0]),
    "l2": wdro.costs.Norm(2),
    "linf": wdro.costs.Norm(math.inf, weights=[1.0, 2.0, 0.5, np.inf]),
    "l3": wdro.costs.Norm(3, weights=[1.0, 2.0, 0.5, 3.0]),
    "group": GroupNorm(),
}
BOUND = {name: cost.bind(JOINT) for name, cost in COSTS.items()}
BOUND["group in units"] = RescaledCost(BOUND["group"], np.array([2.0, 0.5, 3.0, 1.0]), 7.0)
every_cost = pytest.mark.parametrize("cost", BOUND.values(), ids=BOUND)
vectors = hnp.arrays(
    float, D, elements=st.floats(-100, 100).filter(lambda v: v == 0 or abs(v) > 1e-3)
)


def length(cost, delta):
    return float(cost.of_displacements(delta[None])[0]) ** (1 / cost.order)


@every_cost
@settings(max_examples=40, deadline=None)
@given(slope=vectors, delta=vectors)
def test_no_move_of_length_one_gains_more_than_the_dual_norm(cost, slope, delta):
    delta = np.where(cost.frozen, 0.0, delta)
    bound = float(cost.dual_norms(slope)) * length(cost, delta)
    assert slope @ delta <= bound * (1 + 1e-9) + 1e-9


@every_cost
@settings(max_examples=40, deadline=None)
@given(slope=vectors)
def test_the_steepest_move_attains_the_dual_norm(cost, slope):
    move, size = cost.steepest_move(slope), float(cost.dual_norms(slope))
    assert slope @ move == pytest.approx(size, rel=1e-9, abs=1e-9)
    assert not move[cost.frozen].any()
    assert length(cost, move) == pytest.approx(1.0 if size > 0 else 0.0, rel=1e-9)


@every_cost
@settings(max_examples=15, deadline=None)
@given(slope=vectors)
def test_cvxpy_and_numbers_agree(cost, slope):
    written = float(cost.dual_norm(cp.Constant(slope)).value)
    assert written == pytest.approx(float(cost.dual_norms(slope)), rel=1e-7, abs=1e-9)


@every_cost
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_gradients_are_those_of_differences(cost, seed):
    rng = np.random.default_rng(seed)
    delta, way = (np.where(cost.frozen, 0.0, rng.normal(size=D))[None] for _ in range(2))
    h = 1e-6
    slope = (
        (cost.of_displacements(delta + h * way) - cost.of_displacements(delta - h * way)) / 2 / h
    )
    # Differences across a kink say nothing.
    near_kink = np.abs(delta[0]).min() < 1e-4 or np.ptp(np.sort(np.abs(delta[0]))[-2:]) < 1e-4
    if not near_kink:
        np.testing.assert_allclose((cost.gradient(delta) * way).sum(axis=1), slope, atol=1e-4)


@every_cost
@settings(max_examples=25, deadline=None)
@given(
    delta=vectors,
    slope=vectors,
    units=hnp.arrays(float, D, elements=st.floats(0.01, 100)),
    unit=st.floats(0.01, 100),
)
def test_other_units_are_the_same_cost(cost, delta, slope, units, unit):
    other = cost.rescaled(units, unit)
    delta = np.where(cost.frozen, 0.0, delta)
    there, here = other.of_displacements(delta[None]), cost.of_displacements((units * delta)[None])
    np.testing.assert_allclose(there, here / unit, rtol=1e-9)
    # <b, u delta'> is the same number, and a length of 1 is unit^(1/p) in the old one.
    size = float(cost.dual_norms(slope)) * unit ** (1 / cost.order)
    assert float(other.dual_norms(units * slope)) == pytest.approx(size, rel=1e-9)
    assert (other.is_norm, other.is_quadratic) == (cost.is_norm, cost.is_quadratic)
    assert (other.is_separable, other.order) == (cost.is_separable, cost.order)
    np.testing.assert_array_equal(other.frozen, cost.frozen)


@every_cost
def test_costs_do_not_contradict_themselves(cost):
    check(cost, np.random.default_rng(1).normal(size=(6, D)))
    scaled = cost.rescaled(np.array([1.0, 20.0, 0.3, 4.0]), 3.0)
    check(scaled, np.random.default_rng(1).normal(size=(6, D)))


@pytest.mark.parametrize(
    "name", ["squared", "weighted", "held", "mahalanobis", "l1", "group", "group in units"]
)
def test_moves_of_the_default_sigma_cost_half_the_radius(name):
    radius, cost = 0.7, BOUND[name]
    sigma = np.broadcast_to(cost.default_sigma(radius, JOINT), (D,))
    moves = np.random.default_rng(5).normal(size=(20000, D)) * np.where(cost.frozen, 0.0, sigma)
    mean = cost.of_displacements(moves).mean()
    assert mean == pytest.approx(radius / 2, rel=0.03)


@every_cost
@settings(max_examples=25, deadline=None)
@given(delta=vectors, radius=st.floats(0.01, 10))
def test_shortened_moves_cost_the_radius(cost, delta, radius):
    delta = np.where(cost.frozen, 0.0, delta)[None]
    origins = np.zeros((1, D))
    moved = shorten_to_budget(cost, origins, delta, radius)
    before, after = (float(cost(origins, rows)[0]) for rows in (delta, moved))
    assert after == pytest.approx(min(before, radius), rel=1e-9)


@pytest.mark.parametrize("name", ["weighted", "held", "l1"])
def test_separable_costs_add_up_over_their_coordinates(name):
    cost = BOUND[name]
    assert cost.is_separable
    delta = np.where(cost.frozen, 0.0, np.random.default_rng(2).normal(size=(6, D)))
    weights = np.where(cost.frozen, 0.0, cost.coordinate_weights)
    np.testing.assert_allclose(
        cost.of_displacements(delta), (np.abs(delta) ** cost.order) @ weights
    )
    assert not BOUND["mahalanobis"].is_separable
    assert not BOUND["l2"].is_separable


@every_cost
def test_a_unit_move_has_the_length_of_its_coordinate(cost):
    for i in np.flatnonzero(~cost.frozen):
        assert cost.coordinate_scales[i] == pytest.approx(length(cost, np.eye(D)[i]))
    assert np.isinf(cost.coordinate_scales[cost.frozen]).all()


def test_restricted_costs_are_those_of_moves_of_these_coordinates_alone():
    where = np.array([0, 2])
    part = np.random.default_rng(0).normal(size=(5, 2))
    full = np.zeros((5, D))
    full[:, where] = part
    for name in ("squared", "weighted", "held", "mahalanobis", "l1", "l2", "linf", "l3"):
        cost = BOUND[name]
        np.testing.assert_allclose(
            cost.restricted(where).of_displacements(part), cost.of_displacements(full)
        )
    assert BOUND["group"].restricted(np.arange(D)) is BOUND["group"]
    with pytest.raises(UnknownToCost, match="does not know its restricted"):
        BOUND["group"].restricted(where)


def test_a_diagonal_mahalanobis_cost_is_the_weighted_squared_one():
    weights = np.array([0.5, 2.0, 7.0])
    data = np.random.default_rng(0).uniform(1.0, 3.0, size=(8, 3))
    values = []
    for cost in (
        wdro.costs.SquaredEuclidean(weights=weights),
        wdro.costs.Mahalanobis(precision=np.diag(weights)),
    ):
        xi = wdro.UncertainParameter(3, samples=data)
        x = cp.Variable(3)
        loss = cp.sum(cp.maximum(xi - x, 0.5 * (x - xi)))
        problem = wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 5], wdro.WassersteinBall(0.4, cost))
        problem.solve(method="exact")
        values.append((problem.value, problem.solution.robust_value))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5)


def test_moves_of_a_function_are_shortened_by_its_values():
    def steep(origins, points):
        size = np.linalg.norm(points - origins, axis=1)
        return size + size**3

    cost = wdro.costs.Callable(steep).bind(JOINT)
    points = JOINT.matrix + np.random.default_rng(3).normal(size=JOINT.matrix.shape)
    weights = np.array([0.5, 0.2, 0.1, 0.1, 0.1])
    for some in (None, weights):
        moved = shorten_to_budget(cost, JOINT.matrix, points, 0.3, some)
        spent = np.average(steep(JOINT.matrix, moved), weights=some)
        assert spent == pytest.approx(0.3, rel=1e-9)
    assert shorten_to_budget(cost, JOINT.matrix, points, 1e6) is points


def test_the_law_of_small_moves_of_a_function_is_measured():
    cost = wdro.costs.Callable(lambda a, b: 5.0 * np.linalg.norm(b - a, axis=1) ** 1.5).bind(JOINT)
    np.testing.assert_allclose(small_moves(cost, JOINT), (1.5, 5.0), rtol=1e-6)
    forbidden = wdro.costs.Callable(
        lambda a, b: np.where(np.any(a != b, axis=1), np.inf, 0.0)
    ).bind(JOINT)
    with pytest.raises(UnknownToCost, match="does not know its small_moves: pass sigma="):
        forbidden.default_sigma(1.0, JOINT)
