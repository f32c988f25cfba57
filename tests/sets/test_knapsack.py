import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sets.fuzzing import (
    agrees,
    all_choices,
    is_hull,
)
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Knapsack, knapsack

BACKENDS = Knapsack.backends()
REAL = ("frontier", "highs")
CASES = {
    "whole": ([3, 4, 5, 6, 7, 2], 12),
    "with a weight of zero": ([0, 4, 5, 0, 3], 8),
    "halves": ([0.5, 1.5, 2.0, 2.5, 1.0], 4.0),
    "all fit": ([1, 2, 3], 10),
    "some never fit": ([1, 20, 3, 30], 4),
    "equal": ([2] * 6, 7),
    "large numbers": ([2**20 + 1, 2**21 + 3, 2**22 + 5, 2**20 + 7, 2**21 + 9], 2**22 + 2**20),
    "one item": ([3], 3),
}


def packings(weights, capacity):
    weights = np.array(weights, dtype=float)
    return all_choices(weights.size, lambda row: weights @ row <= capacity + 1e-9)


@pytest.mark.parametrize("backend", REAL)
def test_real_weights_that_add_up_to_the_capacity_fit(backend):
    rng = np.random.default_rng(0)
    oracle = Knapsack([0.1, 0.2, 0.3], 0.3, backend=backend)
    np.testing.assert_array_equal(oracle.minimize([-1.0, -1.0, -1.9]), [1, 1, 0])
    for _ in range(5):
        weights = rng.uniform(0.1, 1, 8)
        capacity = weights.sum() / 2
        agrees(packings(weights, capacity), Knapsack(weights, capacity, backend=backend), rounds=1)
    is_hull(packings(weights, capacity), oracle := Knapsack(weights, capacity))
    assert oracle.has_constraints


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_backends_agree(data):
    n = data.draw(st.integers(1, 9))
    weights = data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    capacity = data.draw(st.integers(0, 30))
    costs = data.draw(st.lists(st.integers(-9, 3), min_size=n, max_size=n))
    oracle = Knapsack(weights, capacity)
    least = (packings(weights, capacity) @ costs).min()
    for name in BACKENDS:
        assert costs @ oracle.with_backend(name).minimize(costs) == least, name


def test_larger_knapsacks_are_solved_exactly():
    rng = np.random.default_rng(1)
    for n in (30, 60):
        weights = rng.integers(1, 1000, n)
        oracle = Knapsack(weights, int(weights.sum() // 3))
        assert not oracle.has_constraints
        for costs in (-rng.uniform(0, 1, n), -(weights + rng.uniform(0, 50, n))):
            found = [costs @ oracle.with_backend(name).minimize(costs) for name in BACKENDS]
            np.testing.assert_allclose(found, found[0], rtol=1e-9)


def test_a_frontier_that_grows_too_large_is_left_to_branch_and_bound(monkeypatch):
    rng = np.random.default_rng(2)
    weights, costs = rng.uniform(1, 2, 12), -rng.uniform(1, 2, 12)
    oracle = Knapsack(weights, 9.0)
    vertex = oracle.minimize(costs)
    monkeypatch.setattr(knapsack, "TOLERANCES", knapsack.Tolerances(frontier=2))
    np.testing.assert_array_equal(oracle.minimize(costs), vertex)


def test_items_have_names():
    oracle = Knapsack([2, 3, 4], 6, items=["tent", "stove", "rope"], mandatory=["stove"])
    assert oracle.selected(oracle.minimize([-1.0, 5.0, -9.0])) == ["tent", "stove"]
    assert "3 items of weight at most 6 (1 mandatory)" in oracle.describe()


@pytest.mark.parametrize("backend", BACKENDS)
def test_mandatory_items_that_do_not_fit_are_infeasible(backend):
    with pytest.raises(InfeasibleError, match="2 mandatory"):
        Knapsack([3, 4, 5], 8, backend=backend, mandatory=[1, 2])
