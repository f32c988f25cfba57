"""Directions: they reach the optimum, in as many iterations as they should."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solvers.problems import (
    ball,
    box,
    grid_traffic,
    optimum,
    quadratic,
    random_quadratic,
    simplex,
    tree_quadratic,
)
from wdro_model.sets import Oracle
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.directions import RULES, ActiveSet, Conjugate
from wdro_model.solvers.driver import Stop

DIRECTIONS = sorted(RULES)


def solve(objective, feasible, start, **options):
    return FrankWolfe(**options).run(objective, feasible, start, rng=np.random.default_rng(0))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("make", [simplex, box])
def test_gap_bounds_the_distance_to_the_optimum(direction, make):
    matrix, linear = random_quadratic(12, seed=3)
    feasible = make(12)
    best = optimum(matrix, linear, feasible)
    start = feasible.minimize(linear)
    for limit in (0, 1, 3, 10, 40):
        outcome = solve(
            quadratic(matrix, linear), feasible, start, direction=direction, max_iterations=limit
        )
        assert outcome.point.value - best <= outcome.gap + 1e-7
        assert outcome.lower_bound <= best + 1e-7


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    direction=st.sampled_from(DIRECTIONS),
    step=st.sampled_from(["line_search", "adaptive"]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_random_quadratics_reach_the_conic_optimum(n, seed, direction, step, scale):
    matrix, linear = random_quadratic(n, seed, scale)
    feasible = simplex(n)
    outcome = solve(
        quadratic(matrix, linear),
        feasible,
        feasible.minimize(linear),
        direction=direction,
        step=step,
        gap=1e-3,
        max_iterations=5000,
    )
    best = optimum(matrix, linear, feasible)
    error = 1e-6 * max(1.0, scale)
    room = 2e-3 * abs(outcome.point.value) + error
    assert best - error <= outcome.point.value <= best + room
    assert feasible.contains(outcome.x, tolerance=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_open_loop_steps_approach_the_optimum(seed):
    matrix, linear = random_quadratic(6, seed)
    feasible = simplex(6)
    outcome = solve(
        quadratic(matrix, linear),
        feasible,
        feasible.minimize(linear),
        direction="plain",
        step="open_loop",
        max_iterations=2000,
    )
    assert outcome.point.value <= optimum(matrix, linear, feasible) + 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("direction", ["blended_pairwise", "blended_conjugate", "blended_newton"])
def test_trees_are_certified_to_one_in_a_million(direction, seed):
    tree, matrix, start = tree_quadratic(seed)
    objective = quadratic(matrix, np.zeros(tree.dimension))
    outcome = solve(objective, tree, start, direction=direction, gap=1e-6, max_iterations=400)
    assert outcome.stop is Stop.GAP
    best = optimum(matrix, np.zeros(tree.dimension), tree)
    assert outcome.point.value == pytest.approx(best, rel=2e-6)


def test_positive_tree_costs_take_fewer_than_a_hundred_pairwise_iterations():
    rng = np.random.default_rng(0)
    tree, _, start = tree_quadratic(0)
    root = rng.uniform(0, 1, (80, 80))
    outcome = solve(
        quadratic(root @ root.T, np.zeros(80)),
        tree,
        start,
        direction="blended_pairwise",
        gap=1e-6,
        max_iterations=100,
    )
    assert outcome.stop is Stop.GAP
    assert len(outcome.active_set) < 20


def test_conjugate_weights_beat_pairwise_steps():
    tree, matrix, start = tree_quadratic(0)
    counts = [
        solve(quadratic(matrix, np.zeros(80)), tree, start, direction=name, gap=1e-6).iterations
        for name in ("blended_conjugate", "blended_pairwise")
    ]
    assert counts[0] <= 0.7 * counts[1]


def test_a_model_of_second_order_beats_conjugate_weights():
    tree, matrix, start = tree_quadratic(0)
    counts = [
        solve(quadratic(matrix, np.zeros(80)), tree, start, direction=name, gap=1e-8).iterations
        for name in ("blended_newton", "blended_conjugate")
    ]
    assert counts[0] <= 0.7 * counts[1]


@pytest.mark.parametrize("direction", ["conjugate", "biconjugate"])
def test_conjugate_flows_need_a_third_of_the_iterations(direction):
    flows, objective, start = grid_traffic()
    counts = {}
    for name in ("plain", direction):
        outcome = solve(objective, flows, start, direction=name, gap=1e-4, max_iterations=5000)
        assert outcome.stop is Stop.GAP
        counts[name] = outcome.iterations
    assert counts[direction] <= counts["plain"] / 3


def test_biconjugate_flows_agree_with_pairwise_ones():
    flows, objective, start = grid_traffic(seed=1)
    values = [
        solve(objective, flows, start, direction=name, gap=1e-5, max_iterations=5000).point.value
        for name in ("biconjugate", "blended_conjugate")
    ]
    assert values[0] == pytest.approx(values[1], rel=2e-5)


def test_conjugate_directions_cost_no_gradients():
    flows, objective, start = grid_traffic()
    outcome = solve(objective, flows, start, direction="biconjugate", gap=1e-4)
    assert objective.evaluations <= 4 * outcome.iterations
    assert outcome.oracle_calls == outcome.iterations + 1


def test_conjugate_memory_is_one_or_two():
    with pytest.raises(ValueError, match="memory must be 1 or 2 directions, got 3"):
        Conjugate(memory=3)


# ------------------------------------------------------------------ automatic choice
def test_auto_follows_the_set():
    solver = FrankWolfe()
    flows = simplex(3)
    assert solver.direction_name(flows) == "blended_newton"
    flows.preferred_direction = "biconjugate"
    assert solver.direction_name(flows) == "biconjugate"
    assert FrankWolfe(step="open_loop").direction_name(flows) == "plain"
    assert solver.direction_name(ball(3)) == "plain"
    assert FrankWolfe(direction="conjugate").direction_name(flows) == "conjugate"


def test_a_set_that_prefers_nonsense_is_named():
    flows = simplex(3)
    flows.preferred_direction = "biconjugated"
    with pytest.raises(ValueError, match="unknown preferred_direction 'biconjugated'"):
        FrankWolfe().direction_name(flows)


def test_a_round_set_is_solved_by_plain_steps():
    matrix, linear = np.eye(3), np.array([-4.0, 0.0, 0.0])
    outcome = solve(quadratic(matrix, linear), ball(3), np.zeros(3), gap=1e-6)
    assert outcome.stop is Stop.GAP
    np.testing.assert_allclose(outcome.x, [1, 0, 0], atol=1e-4)


# ------------------------------------------------------------------ active set
@pytest.mark.parametrize("direction", ["blended_pairwise", "blended_conjugate", "blended_newton"])
def test_a_long_run_keeps_the_point_and_its_weights_together(direction):
    tree, matrix, start = tree_quadratic(1)
    matrix = matrix + np.diag(np.random.default_rng(5).uniform(0, 10, 80))
    outcome = solve(
        quadratic(matrix, np.zeros(80)),
        tree,
        start,
        direction=direction,
        gap=0.0,
        max_iterations=1200,
    )
    active = outcome.active_set
    assert np.all(active.weights > 0)
    assert active.weights.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(active.x, outcome.x, atol=1e-12)
    assert len(np.unique(active.vertices, axis=0)) == len(active)
    assert all(np.array_equal(tree.round(v), v) for v in active.vertices)
    values = outcome.trace["value"]
    assert np.all(np.diff(values) <= 1e-9 * np.abs(values[:-1]))


def test_noisy_vertices_are_recognised():
    rng = np.random.default_rng(0)

    def lmo(direction):
        return np.eye(5)[np.argmin(direction)] * (1 + 1e-15 * rng.standard_normal())

    matrix, linear = random_quadratic(5, 0)
    noisy = Oracle(lmo, 5)
    outcome = solve(
        quadratic(matrix, 0.1 * linear), noisy, lmo(linear), direction="blended_pairwise", gap=1e-8
    )
    assert outcome.stop is Stop.GAP
    assert len(outcome.active_set) <= 5


@pytest.mark.parametrize("direction", ["blended_pairwise", "blended_conjugate", "blended_newton"])
def test_a_path_of_radii_starts_from_the_last_active_set(direction):
    tree, matrix, start = tree_quadratic(2)
    solver = FrankWolfe(direction=direction, gap=1e-5)

    def run(shift, start, active):
        objective = quadratic(matrix + shift * np.eye(80), np.zeros(80))
        rng = np.random.default_rng(0)
        return solver.run(objective, tree, start, rng=rng, active_set=active)

    first = run(0.10, start, None)
    vertices, weights = first.active_set.vertices.copy(), first.active_set.weights.copy()
    cold, warm = run(0.101, start, None), run(0.101, None, first.active_set)
    assert warm.iterations <= cold.iterations / 2
    assert warm.point.value == pytest.approx(cold.point.value, rel=2e-5)
    np.testing.assert_array_equal(vertices, first.active_set.vertices)
    np.testing.assert_array_equal(weights, first.active_set.weights)


def test_an_active_set_is_a_start_for_any_direction():
    matrix, linear = random_quadratic(5, 1)
    active = ActiveSet(np.eye(5)[:2], [0.25, 0.75])
    outcome = FrankWolfe(direction="plain", max_iterations=0).run(
        quadratic(matrix, linear), simplex(5), None, rng=np.random.default_rng(0), active_set=active
    )
    np.testing.assert_allclose(outcome.x, [0.25, 0.75, 0, 0, 0])
    assert outcome.active_set is None


def test_bad_active_sets_are_refused():
    with pytest.raises(ValueError, match=r"vertices \(k, n\) and weights \(k,\), got shapes"):
        ActiveSet(np.eye(3), np.ones(2) / 2)
    with pytest.raises(ValueError, match=r"sum to 1, got a sum of 1\.5"):
        ActiveSet(np.eye(3), np.ones(3) / 2)
    active = ActiveSet(np.eye(4), np.ones(4) / 4)
    with pytest.raises(ValueError, match=r"starting point must have shape \(3,\), got \(4,\)"):
        FrankWolfe().run(
            quadratic(np.eye(3), np.ones(3)),
            simplex(3),
            None,
            rng=np.random.default_rng(0),
            active_set=active,
        )
    assert repr(active) == "ActiveSet(4 vertices of dimension 4)"
