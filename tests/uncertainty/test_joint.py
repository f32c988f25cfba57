"""JointSamples: several parameters as one vector, and scenarios of the user as rows."""

import pickle

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdro_model.uncertainty import JointSamples, LazySamples, UncertainParameter
from wdro_model.uncertainty.supports import Box, Nonnegative, Polyhedron

shapes = st.lists(st.sampled_from([(), (1,), (3,), (2, 2), (1, 3)]), min_size=1, max_size=4)


def declare(shapes, count=4, seed=0, **options):
    rng = np.random.default_rng(seed)
    return [
        UncertainParameter(shape, f"p{i}", samples=rng.random((count, *shape)), **options)
        for i, shape in enumerate(shapes)
    ]


@given(shapes, st.integers(1, 5))
def test_splitting_and_joining_are_inverse(shapes, rows):
    joint = JointSamples(declare(shapes))
    assert joint.dimension == sum(int(np.prod(s)) for s in shapes)
    points = np.random.default_rng(1).random((rows, joint.dimension))
    parts = joint.split(points)
    for parameter, block in parts.items():
        assert block.shape == (rows, *parameter.shape)
        assert np.shares_memory(block, points)
    np.testing.assert_array_equal(joint.join(parts), points)


@given(shapes)
def test_the_matrix_holds_the_samples_of_each_parameter(shapes):
    parameters = declare(shapes)
    joint = JointSamples(parameters)
    assert joint.matrix.shape == (joint.size, joint.dimension)
    assert not joint.matrix.flags.writeable
    for parameter, block in joint.split(joint.matrix).items():
        np.testing.assert_array_equal(block, parameter.samples)
    np.testing.assert_allclose(joint.mean, np.mean(np.array(joint.matrix), axis=0))


def test_one_parameter_is_not_copied():
    data = np.random.default_rng(0).random((5, 3, 3))
    data.flags.writeable = False
    joint = JointSamples([UncertainParameter((3, 3), samples=data)])
    assert np.shares_memory(joint.matrix, data)
    assert np.shares_memory(joint.join(data), data)


def test_coordinates_are_named_as_the_user_writes_them():
    a = UncertainParameter((2, 3), "costs", samples=np.zeros((1, 2, 3)))
    b = UncertainParameter((), "beta", samples=[0.0])
    joint = JointSamples([a, b])
    assert joint.coordinate(4) == "costs[1, 1]"
    assert joint.coordinate(6) == "beta"
    with pytest.raises(IndexError):
        joint.coordinate(7)


def test_bounds_follow_the_supports():
    a = UncertainParameter(2, samples=np.ones((1, 2)), support=Nonnegative())
    b = UncertainParameter((), samples=[0.0], support=Box(-1, 1))
    free = UncertainParameter((), samples=[0.0])
    coupled = UncertainParameter(2, samples=np.zeros((1, 2)), support=Polyhedron([[1, 1]], [1]))
    lower, upper = JointSamples([a, b]).bounds
    assert lower.tolist() == [0, 0, -1]
    assert upper.tolist() == [np.inf, np.inf, 1]
    assert JointSamples([a, coupled]).bounds is None
    assert not JointSamples([a, coupled]).everywhere
    assert not JointSamples([a]).everywhere
    assert JointSamples([free]).everywhere
    open_box = UncertainParameter((), samples=[0.0], support=Box(-np.inf, np.inf))
    assert JointSamples([free, open_box]).everywhere
    rows = np.array([[1, 1, 0.0], [1, 1, 2.0], [-1, 1, 0.0]])
    assert JointSamples([a, b]).contains(rows).tolist() == [True, False, False]


def test_scenarios_may_be_lists_frames_columns_or_lazy():
    (scalar,) = declare([()])
    assert JointSamples([scalar]).join([[1], [2]]).tolist() == [[1], [2]]
    (vector,) = declare([(3,)])
    joint = JointSamples([vector])
    data = np.arange(6.0).reshape(2, 3)
    for given_data in (data.tolist(), pd.DataFrame(data), {vector: data}, data.astype(np.float32)):
        np.testing.assert_array_equal(joint.join(given_data), data)
    np.testing.assert_array_equal(joint.join(LazySamples(lambda k: data[k], 2, (3,))), data)


def test_held_out_scenarios_may_leave_the_support():
    (positive,) = declare([(2,)], support=Nonnegative())
    assert JointSamples([positive]).join([[-1.0, 0.0]]).tolist() == [[-1.0, 0.0]]


def test_bad_scenarios_are_refused_by_name():
    a, b = declare([(2,), ()])
    (stranger,) = declare([(2,)])
    joint = JointSamples([a, b])
    for scenarios, message in [
        (np.zeros((4, 3)), r"given as \{parameter: array\} for 'p0', 'p1', got a ndarray"),
        ({a: np.zeros((4, 2))}, "scenarios are missing for 'p1'"),
        ({a: np.zeros((4, 2)), b: np.zeros(3)}, "same number of rows, got 'p0': 4, 'p1': 3"),
        ({a: np.zeros((4, 3)), b: np.zeros(4)}, r"scenarios of 'p0' must have shape \(N, 2\)"),
        ({a: np.full((1, 2), np.nan), b: [0]}, r"scenarios of 'p0' must be finite, got nan"),
        ({a: np.zeros((0, 2)), b: []}, "scenarios of 'p0' are empty"),
        ({a: [[0, 0]], b: [0], stranger: [[0, 0]]}, "given for 'p0', which is not an uncertain"),
        (
            {"q0": [[0, 0]], "p1": [0]},
            "given for 'q0', .*Did you mean 'p0'.*names 'p0', 'p1'",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            joint.join(scenarios)


def test_parameters_that_do_not_go_together_are_refused():
    (a,) = declare([(2,)])
    (longer,) = declare([()], count=5)
    for parameters, message in [
        ([], "at least one uncertain parameter"),
        ([a, UncertainParameter(2, "empty")], "'empty' has no samples; give them with"),
        ([a, longer], "share one sample axis, but 'p0' has 4 samples and 'p0' has 5"),
        ([a, a], "listed twice"),
        ([cp.Parameter(name="p")], "expected an UncertainParameter"),
    ]:
        with pytest.raises(ValueError, match=message):
            JointSamples(parameters)


def test_joint_samples_can_be_pickled():
    joint = JointSamples(declare([(2,), ()]))
    other = pickle.loads(pickle.dumps(joint))
    np.testing.assert_array_equal(other.matrix, joint.matrix)
    rows = other.join(other.split(np.array(joint.matrix)))
    np.testing.assert_array_equal(rows, joint.matrix)
