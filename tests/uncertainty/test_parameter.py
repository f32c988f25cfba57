"""UncertainParameter: what it accepts, what it refuses, and what CVXPY is told."""

import copy
import pickle
import tracemalloc

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Box, Everywhere, Nonnegative, Polyhedron, Where


@pytest.fixture
def data():
    return np.random.default_rng(0).random((5, 3))


def test_samples_are_a_copy_and_the_array_stays_writeable_for_its_owner(data):
    parameter = UncertainParameter(3, samples=data)
    assert not np.shares_memory(parameter.samples, data)
    assert data.flags.writeable
    assert not parameter.samples.flags.writeable
    with pytest.raises(ValueError):
        parameter.samples[0, 0] = 1.0


def test_a_read_only_array_is_accepted(data):
    data.flags.writeable = False
    assert np.shares_memory(UncertainParameter(3, samples=data).samples, data)


@given(
    hnp.arrays(
        st.sampled_from([np.int8, np.int64, np.uint16, np.float32, np.float64, np.bool_]),
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
        elements=st.integers(0, 1),
    )
)
def test_every_real_dtype_is_read_as_the_same_numbers(array):
    parameter = UncertainParameter(array.shape[1:], samples=array)
    assert parameter.samples.dtype == np.float64
    np.testing.assert_array_equal(parameter.samples, array)
    assert parameter.count == len(array)


def test_other_byte_orders_and_memory_layouts_are_converted(data):
    for array in (data.astype(">f8"), np.asfortranarray(data), data[::2], data[:, ::-1]):
        parameter = UncertainParameter(3, samples=array)
        np.testing.assert_array_equal(parameter.samples, array)
        assert parameter.samples.flags.c_contiguous
        assert parameter.samples.dtype == np.float64


def test_lists_and_pandas_objects_are_accepted(data):
    for given_data in (data.tolist(), pd.DataFrame(data), [tuple(row) for row in data]):
        np.testing.assert_array_equal(UncertainParameter(3, samples=given_data).samples, data)
    series = pd.Series([1.0, 2.0])
    assert UncertainParameter(samples=series).samples.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("shape", "given_shape"), [((), (4, 1)), ((1,), (4,)), (1, (4,))])
def test_a_column_and_a_flat_vector_are_the_same_scalar_data(shape, given_shape):
    samples = np.arange(4.0).reshape(given_shape)
    parameter = UncertainParameter(shape, samples=samples)
    assert parameter.samples.shape == (4, *parameter.shape)
    assert parameter.samples.ravel().tolist() == [0, 1, 2, 3]


def test_one_sample_is_enough():
    assert UncertainParameter(2, samples=[[1.0, 2.0]]).count == 1


def test_without_samples_it_can_still_be_declared():
    parameter = UncertainParameter((2, 2), "cost")
    assert parameter.samples is None
    assert parameter.count == 0
    assert "no samples" in repr(parameter)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((0, 3)), r"samples of 'xi' are empty \(shape \(0, 3\)\)"),
        (np.zeros((3, 5)), r"'xi' must have shape \(N, 3\).*got \(3, 5\).*sample axis comes first"),
        (np.zeros(3), r"must have shape \(N, 3\).*got \(3,\); for a single scenario"),
        (np.zeros((5, 3, 1)), r"must have shape \(N, 3\).*got \(5, 3, 1\)"),
        (1.0, r"must have shape \(N, 3\).*got \(\)"),
        ([[0, 1, 2], [0, np.nan, 2]], r"must be finite, got nan at index \(1, 1\); drop or impute"),
        ([[0, 1, -np.inf]], r"must be finite, got -inf at index \(0, 2\)"),
        (np.zeros((2, 3)) + 1j, r"must be real numbers.*complex128; take .real"),
        ([[1.0, None, 2.0]], r"'xi' must be real numbers.*object, for example None"),
        ([["a", "b", "c"]], r"must be real numbers.*dtype <U1; convert"),
        ([[1.0, 2.0], [1.0]], r"samples of 'xi' do not form a regular array"),
        (np.ma.masked_equal([[0.0, 1.0, 2.0]], 1.0), r"'xi' have masked entries; drop or impute"),
        (np.zeros((2, 3), dtype="datetime64[s]"), r"must be real numbers.*datetime64"),
    ],
)
def test_bad_samples_are_refused_by_name(samples, message):
    with pytest.raises(ValueError, match=message):
        UncertainParameter(3, "xi", samples=samples)


def test_flat_rows_of_a_matrix_are_refused_with_the_reshape_to_use():
    with pytest.raises(ValueError, match=r"got \(5, 6\).*array.reshape\(-1, 2, 3\)"):
        UncertainParameter((2, 3), "xi", samples=np.zeros((5, 6)))


def test_a_nan_beyond_the_first_chunk_is_found_at_its_index():
    samples = np.zeros((30, 200, 200))
    samples[27, 3, 4] = np.nan
    with pytest.raises(ValueError, match=r"got nan at index \(27, 3, 4\)"):
        UncertainParameter((200, 200), samples=samples)


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (Nonnegative(), r"sample 2 of 'xi' lies outside its support: entry \[1\] is -0.5, below"),
        (Box(-1, [1, 1, 0.5]), r"sample 1 of 'xi'.*entry \[2\] is 1.0, above its upper bound 0.5"),
        (Polyhedron([[0, -1, 0]], [0.25]), r"sample 2 of 'xi'.*row 0 of A z <= b .* by 0.25"),
        (Where(lambda z: z[:, 1] >= 0), r"sample 2 of 'xi'.*the predicate <lambda> rejects it"),
    ],
)
def test_samples_outside_the_support_are_refused_by_index(support, message):
    samples = [[0, 0, 0], [0, 0, 1], [0, -0.5, 0]]
    with pytest.raises(ValueError, match=message):
        UncertainParameter(3, "xi", samples=samples, support=support)


def test_a_scalar_outside_its_support_is_named_without_an_entry():
    with pytest.raises(ValueError, match=r"sample 1 .*: it is -1.0, below its lower bound 0.0"):
        UncertainParameter(samples=[1, -1], support=Nonnegative())


def test_rounding_at_the_bound_is_forgiven():
    assert UncertainParameter(samples=[-1e-12, 1e6 * (1 + 1e-12)], support=Box(0, 1e6)).count == 2


@pytest.mark.parametrize(
    ("support", "nonneg", "nonpos"),
    [
        (Nonnegative(), True, False),
        (Box(0.5, 2), True, False),
        (Box(-1, 0), False, True),
        (Box([0, -1], 1), False, False),
        (Everywhere(), False, False),
        (None, False, False),
    ],
)
def test_cvxpy_knows_the_sign_of_the_support(support, nonneg, nonpos):
    parameter = UncertainParameter(2, support=support)
    assert parameter.is_nonneg() == nonneg
    assert parameter.is_nonpos() == nonpos


def test_a_convex_loss_weighted_by_a_nonnegative_parameter_is_dcp():
    x = cp.Variable(2)
    assert (UncertainParameter(2, support=Nonnegative()) @ (x + x**4)).is_convex()
    assert not (UncertainParameter(2) @ (x + x**4)).is_convex()


@pytest.mark.parametrize(
    ("attributes", "lower", "upper"),
    [
        ({"nonneg": True}, 0, np.inf),
        ({"pos": True}, 0, np.inf),
        ({"nonpos": True}, -np.inf, 0),
        ({"neg": True}, -np.inf, 0),
        ({"bounds": [-1, 2]}, -1, 2),
        ({"bounds": [None, 2]}, -np.inf, 2),
        ({"nonneg": True, "support": Box(-3, 5)}, 0, 5),
    ],
)
def test_a_declared_sign_restricts_the_support(attributes, lower, upper):
    parameter = UncertainParameter(2, **attributes)
    low, high = parameter.support.bounds((2,))
    assert low.tolist() == [lower] * 2
    assert high.tolist() == [upper] * 2


def test_a_declared_sign_also_restricts_coupled_supports():
    half = Polyhedron([[1.0, 1.0]], [1.0])
    points = np.array([[0.2, 0.2], [-0.5, 0.2], [0.9, 0.9]])
    for support in (half, Where(half.contains)):
        parameter = UncertainParameter(2, nonneg=True, support=support)
        assert parameter.support.contains(points).tolist() == [True, False, False]
        assert parameter.is_nonneg()


def test_nonneg_gives_the_nonnegative_support():
    assert UncertainParameter(2, nonneg=True).support == Nonnegative()


@pytest.mark.parametrize(
    ("attribute", "good", "bad"),
    [
        ("symmetric", np.ones((2, 2)), [[0, 1], [2, 0]]),
        ("PSD", [[1, 1], [1, 1]], [[1, 2], [2, 1]]),
        ("PSD", np.eye(2), [[1, 0.5], [0, 1]]),
        ("NSD", -np.eye(2), np.eye(2)),
        ("diag", np.eye(2), np.ones((2, 2))),
        ("pos", np.ones((2, 2)), np.eye(2)),
        ("neg", -np.ones((2, 2)), -np.eye(2)),
    ],
)
def test_samples_must_have_the_attributes_that_are_declared(attribute, good, bad):
    parameter = UncertainParameter((2, 2), samples=[good, good], **{attribute: True})
    assert parameter.attributes[attribute]
    with pytest.raises(ValueError, match=rf"sample 1 of 'xi' contradicts {attribute}=True"):
        UncertainParameter((2, 2), "xi", samples=[good, bad], **{attribute: True})


def test_samples_must_respect_a_sparsity_pattern():
    pattern = [(0, 1), (1, 0)]
    UncertainParameter((2, 2), samples=[[[0, 1], [2, 0]]], sparsity=pattern)
    with pytest.raises(ValueError, match=r"sample 0 .* contradicts sparsity"):
        UncertainParameter((2, 2), samples=[np.eye(2)], sparsity=pattern)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": 0}, "must be an integer of at least 1, got 0; a shape is a positive integer"),
        ({"shape": (2, 0)}, "shape of .* must be an integer of at least 1, got 0"),
        ({"shape": 2.5}, "shape of .* got 2.5"),
        ({"shape": "ab"}, "shape of .* got 'ab'"),
        ({"name": 3}, "must be a string, got 3"),
        ({"value": 1.0}, "takes no value: give the observed data as samples="),
        ({"support": "box"}, r"support of .*expected one of wdro_model.supports.*got 'box'"),
        ({"support": Box(2, 1)}, r"support of .*the box is empty: its lower bound 2.0 exceeds"),
        ({"shape": 3, "support": Box([0, 0], 1)}, r"lower bound of shape \(2,\) does not fit"),
        ({"boolean": True}, "cannot be boolean: the data is moved continuously"),
        ({"integer": True}, "cannot be integer"),
        ({"complex": True}, "cannot be complex"),
        ({"support": Box(-2, -1), "nonneg": True}, "the box is empty"),
    ],
)
def test_bad_declarations_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        UncertainParameter(**arguments)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_keep_data_support_and_signs(duplicate, data):
    original = UncertainParameter(3, "xi", samples=data, support=Box(0, 1))
    other = duplicate(duplicate(original))
    assert other is not original
    np.testing.assert_array_equal(other.samples, data)
    assert not other.samples.flags.writeable
    assert other.is_nonneg()
    assert other.name() == "xi"
    assert repr(other.support) == "Box(lower=0.0, upper=1.0)"


def test_deep_copies_of_copies_are_different_parameters(data):
    original = UncertainParameter(3, samples=data)
    first = copy.deepcopy(original)
    assert len({original.id, first.id, copy.deepcopy(first).id}) == 3


def test_a_copied_expression_still_knows_its_data(data):
    x = cp.Variable(3)
    loss = copy.deepcopy(UncertainParameter(3, samples=data) @ x)
    (found,) = loss.parameters()
    assert isinstance(found, UncertainParameter)
    np.testing.assert_array_equal(found.samples, data)


def test_solving_without_robustness_names_the_parameter(data):
    x = cp.Variable(3)
    returns = UncertainParameter(3, "returns", samples=data)
    with pytest.raises(cp.error.ParameterError):
        cp.Problem(cp.Minimize(returns @ x), [x >= 0]).solve()


def test_checking_large_data_takes_no_copy_of_it():
    samples = np.ones((40, 200, 200))
    samples.flags.writeable = False  # what nobody writes into is not copied
    tracemalloc.start()
    UncertainParameter((200, 200), samples=samples, support=Box(0, 2), symmetric=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < samples.nbytes / 1.2
    tracemalloc.start()
    UncertainParameter((200, 200), samples=samples, support=Nonnegative())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < samples.nbytes / 8
