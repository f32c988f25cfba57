"""Quadratic spanning tree instances: the graph, the law of the costs, and reproducibility."""

import pickle
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.datasets import QuadraticTree, TreeCosts, quadratic_tree
from wdro_model.uncertainty import JointSamples, UncertainParameter, scenario_batches
from wdro_model.uncertainty.supports import Nonnegative


@pytest.fixture(scope="module")
def instance():
    return quadratic_tree(nodes=12, edges=30, seed=0)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(2, 14), st.integers(0, 10_000))
def test_the_graph_is_connected_with_the_sizes_asked_for(data, nodes, seed):
    edges = data.draw(st.integers(nodes - 1, nodes * (nodes - 1) // 2))
    instance = quadratic_tree(nodes, edges, seed)
    assert isinstance(instance, QuadraticTree)
    assert nx.is_connected(instance.graph)
    assert instance.graph.number_of_nodes() == nodes
    assert instance.graph.number_of_edges() == edges
    assert list(instance.graph.nodes) == list(range(nodes))
    assert instance.training.base.shape == (edges, edges)


def test_a_sparse_graph_falls_back_to_a_tree_with_edges_added():
    graph = quadratic_tree(nodes=60, edges=59, seed=1).graph
    assert nx.is_tree(graph)
    assert nx.is_connected(quadratic_tree(nodes=60, edges=65, seed=1).graph)


def test_scenarios_have_norm_one_and_the_mask_of_the_instance(instance):
    scenarios = instance.training.sample(20, seed=3)
    assert scenarios.shape == (20, 30, 30)
    np.testing.assert_allclose(np.linalg.norm(scenarios, axis=(1, 2)), 1.0)
    assert np.all(scenarios >= 0)
    assert np.all(scenarios[:, ~instance.training.mask] == 0)
    parameter = UncertainParameter((30, 30), samples=scenarios, support=Nonnegative())
    np.testing.assert_array_equal(parameter.samples, scenarios)


def test_the_law_is_that_of_the_paper():
    instance = quadratic_tree(nodes=30, edges=150, seed=5)
    training = instance.training
    assert training.mask.mean() == pytest.approx(0.7, abs=0.02)
    assert training.base.min() >= 0
    assert training.base.max() <= 1
    assert training.base.mean() == pytest.approx(0.5, abs=0.02)
    signed = TreeCosts(training.base, training.mask, 0.1, nonnegative=False)
    scenarios = signed.sample(60, seed=0)
    assert (scenarios < 0).any()
    # Before normalising, |A|_F^2 is about the sum of M (mu^2 + 0.01).
    size = np.sqrt(np.sum(training.mask * (training.base**2 + 0.01)))
    entries = (scenarios * size - training.base)[:, training.mask]
    assert entries.std() == pytest.approx(0.1, rel=0.03)
    assert abs(entries.mean()) < 0.005


def test_clipping_is_the_only_difference_of_nonnegative_costs(instance):
    base, mask = instance.training.base, instance.training.mask
    signed = TreeCosts(base, mask, 0.1, nonnegative=False).sample(5, seed=2)
    clipped = np.maximum(signed, 0)
    clipped /= np.linalg.norm(clipped, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(TreeCosts(base, mask, 0.1).sample(5, seed=2), clipped, rtol=1e-12)


def test_the_nominal_cost_is_the_scenario_without_noise(instance):
    expected = instance.training.mask * instance.training.base
    np.testing.assert_allclose(instance.nominal, expected / np.linalg.norm(expected))
    still = TreeCosts(instance.training.base, instance.training.mask, noise=0.0)
    np.testing.assert_allclose(still.sample(2, seed=0)[1], instance.nominal)


def test_the_same_seed_gives_the_same_instance():
    first, again, other = (quadratic_tree(10, 20, seed=s) for s in (7, 7, 8))
    assert list(first.graph.edges) == list(again.graph.edges)
    np.testing.assert_array_equal(first.training.base, again.training.base)
    np.testing.assert_array_equal(first.training.sample(3, 1), again.training.sample(3, 1))
    np.testing.assert_array_equal(first.shifted(2).base, again.shifted(2).base)
    assert not np.array_equal(first.training.base, other.training.base)
    assert not np.array_equal(first.training.sample(3, 1), first.training.sample(3, 2))


def test_without_a_seed_draws_differ(instance):
    assert not np.array_equal(instance.training.sample(1), instance.training.sample(1))
    lazy = instance.training.lazy(2)
    np.testing.assert_array_equal(lazy[0], lazy[0])
    assert not np.array_equal(lazy[0], lazy[1])


def test_lazy_scenarios_are_the_eager_ones_bit_for_bit(instance):
    eager = instance.training.sample(25, seed=11)
    lazy = instance.training.lazy(25, seed=11)
    assert len(lazy) == 25
    np.testing.assert_array_equal(np.asarray(lazy), eager)
    np.testing.assert_array_equal(lazy[17], eager[17])
    np.testing.assert_array_equal(lazy[10:20], eager[10:20])
    np.testing.assert_array_equal(np.concatenate(list(lazy.batches(7))), eager)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(lazy))[5], eager[5])
    np.testing.assert_array_equal(instance.training.sample(3, seed=11), eager[:3])


def test_lazy_evaluation_holds_less_than_two_batches():
    training = quadratic_tree(nodes=30, edges=200, seed=0).training
    joint = JointSamples([UncertainParameter((200, 200), samples=training.sample(1, 0))])
    lazy = training.lazy(60, seed=1)
    tracemalloc.start()
    means = [block.mean() for block in scenario_batches(joint, lazy, 20, reuse=True)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(means) == 3
    assert peak < 2 * 20 * 200 * 200 * 8


def test_the_shift_moves_base_mask_and_noise_as_asked(instance):
    training = instance.training
    same = instance.shifted(seed=1, noise=0.1, base_shift=0, mask_shift=0)
    np.testing.assert_array_equal(same.sample(2, 0), training.sample(2, 0))
    shifted = instance.shifted(seed=1)
    assert shifted.noise == 0.3 > training.noise
    assert not np.array_equal(shifted.base, training.base)
    assert not np.array_equal(shifted.mask, training.mask)
    fresh = instance.shifted(seed=1, base_shift=1, mask_shift=1)
    assert abs(np.corrcoef(fresh.base.ravel(), training.base.ravel())[0, 1]) < 0.1
    assert abs(np.corrcoef(fresh.mask.ravel(), training.mask.ravel())[0, 1]) < 0.1
    assert np.all((fresh.base >= 0) & (fresh.base <= 1))
    half = np.corrcoef(shifted.mask.ravel(), training.mask.ravel())[0, 1]
    assert 0.3 < half < 0.7


def test_the_complement_costs_something_where_nothing_was_seen(instance):
    training = instance.training
    other = instance.shifted(noise=0.3, base_shift=0, mask_shift=0, complement=True)
    np.testing.assert_array_equal(other.mask, ~training.mask)
    np.testing.assert_array_equal(other.base, training.base)
    assert np.all(other.sample(5, seed=0)[:, training.mask] == 0)
    # Entries that are drawn anew are so whatever the others are.
    fresh = (instance.shifted(4, mask_shift=1, complement=c).mask for c in (False, True))
    np.testing.assert_array_equal(*fresh)


def test_nothing_global_moves():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    quadratic_tree(20, 25, seed=0).training.sample(2, seed=0)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i: quadratic_tree(5, 3), "5 nodes has between 4 and 10 edges, got edges=3"),
        (lambda i: quadratic_tree(5, 11), "between 4 and 10 edges, got edges=11"),
        (lambda i: quadratic_tree(1, 0), "nodes must be an integer of at least 2, got 1"),
        (lambda i: quadratic_tree(5.0, 6), r"nodes must be an integer of at least 2, got 5\.0"),
        (lambda i: quadratic_tree(5, 6, seed=-1), "seed must be an integer"),
        (lambda i: quadratic_tree(5, 6, seed=1.5), "seed must be an integer"),
        (
            lambda i: quadratic_tree(5, 6, noise=-1),
            "noise must be a nonnegative finite number, got",
        ),
        (lambda i: quadratic_tree(5, 6, noise=np.inf), "noise must be a nonnegative"),
        (lambda i: i.shifted(base_shift=1.5), r"base_shift must be a number from 0 to 1, got 1\.5"),
        (lambda i: i.shifted(mask_shift=-0.1), "mask_shift must be a number from 0 to 1"),
        (
            lambda i: i.training.sample(0),
            "count of scenarios must be an integer of at least",
        ),
        (lambda i: TreeCosts(np.ones((2, 3)), np.ones((2, 3))), "must be square matrices"),
        (lambda i: TreeCosts(np.ones((2, 2)), np.zeros((2, 2))), "every cost is masked or zero"),
    ],
)
def test_bad_requests_are_refused(instance, make, message):
    with pytest.raises(ValueError, match=message):
        make(instance)
