"""Lazy scenarios read like an array, in little memory."""

import tracemalloc

import numpy as np
import pytest

from wdro_model.uncertainty import JointSamples, LazySamples, UncertainParameter, scenario_batches


def square(k):
    return np.array([k, k * k], dtype=float)


@pytest.fixture
def lazy():
    return LazySamples(square, 7, (2,))


def test_every_way_of_reading_agrees(lazy):
    eager = np.array([square(k) for k in range(7)])
    assert len(lazy) == 7
    assert lazy.shape == eager.shape
    assert lazy.ndim == 2
    np.testing.assert_array_equal(np.asarray(lazy), eager)
    np.testing.assert_array_equal(np.array(list(lazy)), eager)
    np.testing.assert_array_equal(np.concatenate(list(lazy.batches(3))), eager)
    copies = [block.copy() for block in lazy.batches(3, reuse=True)]
    np.testing.assert_array_equal(np.concatenate(copies), eager)
    for index in (0, -1, np.int64(3), slice(2, 5), slice(None, None, -2), slice(9, 12), [4, 0, -1]):
        np.testing.assert_array_equal(lazy[index], eager[index])
    chosen = eager[:, 0] > 3
    np.testing.assert_array_equal(lazy[chosen], eager[chosen])
    assert np.asarray(lazy, dtype=np.float32).dtype == np.float32


def test_blocks_may_be_kept_unless_memory_is_reused(lazy):
    first, second, *_ = lazy.batches(2)
    assert not np.shares_memory(first, second)
    first, second, *_ = lazy.batches(2, reuse=True)
    assert np.shares_memory(first, second)


def test_misuse_is_refused(lazy):
    with pytest.raises(IndexError, match="scenario 7 of 7"):
        lazy[7]
    with pytest.raises(ValueError, match="size of a batch must be an integer of at least 1, got 0"):
        list(lazy.batches(0))
    with pytest.raises(ValueError, match="count of scenarios must be an integer of at least"):
        LazySamples(square, 0, (2,))
    with pytest.raises(ValueError, match=r"scenario 0 was generated with shape \(2,\), expected"):
        LazySamples(square, 3, (3,))[0]
    with pytest.raises(ValueError, match="allow a copy"):
        np.asarray(lazy, copy=False)


def test_lazy_samples_can_be_the_training_data(lazy):
    assert UncertainParameter(2, samples=lazy).samples[3].tolist() == [3, 9]


def test_row_blocks_are_those_of_the_joined_scenarios(lazy):
    vector = UncertainParameter(2, "v", samples=np.zeros((1, 2)))
    scalar = UncertainParameter((), "s", samples=[0.0])
    one, two = JointSamples([vector]), JointSamples([scalar, vector])
    column = np.arange(7.0)
    for joint, scenarios in [
        (one, np.asarray(lazy)),
        (one, lazy),
        (one, {vector: lazy}),
        (two, {vector: np.asarray(lazy), scalar: column}),
        (two, {vector: lazy, scalar: column[:, None]}),
    ]:
        blocks = list(scenario_batches(joint, scenarios, 3))
        assert [len(block) for block in blocks] == [3, 3, 1]
        np.testing.assert_array_equal(np.concatenate(blocks), joint.join(scenarios))


def test_bad_scenarios_are_refused_before_the_first_block(lazy):
    vector = UncertainParameter(2, "v", samples=np.zeros((1, 2)))
    scalar = UncertainParameter((), "s", samples=[0.0])
    joint = JointSamples([vector, scalar])
    with pytest.raises(ValueError, match="same number of rows, got 'v': 7, 's': 3"):
        scenario_batches(joint, {vector: lazy, scalar: [0, 0, 0]}, 2)
    with pytest.raises(ValueError, match="missing for 's'"):
        scenario_batches(joint, {vector: lazy}, 2)
    with pytest.raises(ValueError, match="size of a batch"):
        scenario_batches(joint, {vector: lazy, scalar: np.zeros(7)}, -1)


def test_memory_holds_a_block_at_a_time():
    lazy = LazySamples(lambda k: np.full((100, 100), float(k)), 60, (100, 100))
    joint = JointSamples([UncertainParameter((100, 100), samples=np.zeros((1, 100, 100)))])
    block = 10 * 100 * 100 * 8
    for reuse, blocks in ((False, 3.0), (True, 2.0)):
        tracemalloc.start()
        total = sum(float(b[0, 0]) for b in scenario_batches(joint, lazy, 10, reuse=reuse))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == sum(range(0, 60, 10))
        assert peak < blocks * block
