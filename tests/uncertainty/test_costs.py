"""Ground costs: formulas against loops, invariants, weights, and the refusals."""

import copy
import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wdro_model.uncertainty import JointSamples, UncertainParameter
from wdro_model.uncertainty.costs import (
    Callable,
    Mahalanobis,
    Norm,
    SquaredEuclidean,
    as_cost,
)
from wdro_model.uncertainty.supports import Box

D = 3
rows = hnp.arrays(float, (4, D), elements=st.floats(-1e3, 1e3))
weights = hnp.arrays(float, D, elements=st.floats(1e-3, 1e3))


def samples(count=6, d=D):
    return np.random.default_rng(0).normal(size=(count, d)) * np.arange(1, d + 1)


@pytest.fixture(scope="module")
def joint():
    return JointSamples([UncertainParameter(D, "xi", samples=samples())])


def manhattan(origins, points):
    return np.abs(origins - points).sum(axis=1)


COSTS = [
    SquaredEuclidean(),
    SquaredEuclidean(weights=[1.0, 2.0, 3.0]),
    SquaredEuclidean(weights="standardize"),
    Mahalanobis(covariance=np.array([[2, 1, 0], [1, 2, 0], [0, 0, 5]])),
    Norm(),
    Norm(1),
    Norm(math.inf),
    Norm(2.5, weights=[1.0, 2.0, 3.0]),
    Norm(2, weights="standardize"),
    Callable(manhattan),
]


@pytest.mark.parametrize("cost", COSTS, ids=lambda c: c.describe())
@settings(max_examples=25)
@given(a=rows, b=rows)
def test_costs_are_symmetric_nonnegative_and_zero_at_rest(joint, cost, a, b):
    bound = cost.bind(joint)
    there = bound(a, b)
    assert there.shape == (4,)
    assert np.all(there >= 0)
    np.testing.assert_allclose(there, bound(b, a), rtol=1e-12)
    np.testing.assert_array_equal(bound(a, a), 0.0)
    if cost.order is not None:
        np.testing.assert_allclose(
            bound.of_displacements(3 * (b - a)), 3**cost.order * there, rtol=1e-9, atol=1e-12
        )


@given(a=rows, b=rows, w=weights)
def test_formulas_agree_with_loops(joint, a, b, w):
    squared = SquaredEuclidean(weights=w).bind(joint)(a, b)
    norm = Norm(3, weights=w).bind(joint)(a, b)
    for k in range(4):
        assert squared[k] == pytest.approx(sum(w[i] * (a[k, i] - b[k, i]) ** 2 for i in range(D)))
        total = sum((w[i] * abs(a[k, i] - b[k, i])) ** 3 for i in range(D))
        assert norm[k] == pytest.approx(total ** (1 / 3), rel=1e-9, abs=1e-90)


@given(a=rows, w=weights, scale=st.floats(0.01, 100))
def test_scaling_the_weights_scales_the_cost(joint, a, w, scale):
    for make in (SquaredEuclidean, lambda weights: Norm(1, weights)):
        plain = make(weights=w).bind(joint).of_displacements(a)
        scaled = make(weights=scale * w).bind(joint).of_displacements(a)
        np.testing.assert_allclose(scaled, scale * plain, rtol=1e-9, atol=1e-290)


def test_mahalanobis_is_the_quadratic_form_of_the_precision(joint):
    covariance = np.array([[2, 1, 0], [1, 2, 0], [0, 0, 5.0]])
    delta = samples(4)
    expected = [d @ np.linalg.solve(covariance, d) for d in delta]
    for cost in (Mahalanobis(covariance), Mahalanobis(precision=np.linalg.inv(covariance))):
        np.testing.assert_allclose(cost.bind(joint).of_displacements(delta), expected)


def test_norms_of_huge_and_tiny_moves_do_not_leave_the_floating_range(joint):
    delta = np.array([[1e200, 0, 0], [1e-200, 0, 0], [0, 0, 0]])
    got = Norm(3).bind(joint).of_displacements(delta)
    np.testing.assert_allclose(got, [1e200, 1e-200, 0])


@pytest.mark.parametrize("make", [SquaredEuclidean, lambda weights: Norm(2, weights)])
def test_infinite_weights_forbid_moves_and_cost_nothing_at_rest(joint, make):
    bound = make(weights=[1.0, np.inf, 4.0]).bind(joint)
    assert bound.frozen.tolist() == [False, True, False]
    costs = bound.of_displacements(np.array([[0, 0, 1.0], [0, 1e-9, 0], [0, 0, 0]]))
    assert costs.tolist() == [4.0, np.inf, 0.0]
    assert "1 coordinates held fixed" in bound.describe()


def test_frozen_has_one_entry_per_coordinate_even_without_weights(joint):
    for cost in COSTS:
        assert cost.bind(joint).frozen.shape == (D,)
        assert not cost.bind(joint).frozen.any()


def test_weights_per_parameter():
    a = UncertainParameter((2, 2), "a", samples=np.random.default_rng(0).random((5, 2, 2)))
    b = UncertainParameter((), "b", samples=np.arange(5.0))
    label = UncertainParameter((), "label", samples=np.ones(5))
    joint = JointSamples([a, b, label])
    cost = SquaredEuclidean(weights={b: "standardize", label: np.inf})
    np.testing.assert_allclose(cost.bind(joint).weights, [1, 1, 1, 1, 0.5, np.inf])
    cost = SquaredEuclidean(weights={a: [[1, 2], [3, 4]], b: 9})
    assert cost.bind(joint).weights.tolist() == [1, 2, 3, 4, 9, 1]
    assert SquaredEuclidean(weights=1.0).bind(joint).weights is None
    assert SquaredEuclidean(weights=2).bind(joint).weights.tolist() == [2.0] * 6
    single = JointSamples([a])
    for given_weights in (np.arange(1.0, 5).reshape(2, 2), np.arange(1.0, 5)):
        assert SquaredEuclidean(given_weights).bind(single).weights.tolist() == [1, 2, 3, 4]


def test_standardizing_makes_the_cost_free_of_units(joint):
    scale = np.array([1e-3, 1.0, 1e4])
    scaled = JointSamples([UncertainParameter(D, samples=samples() * scale)])
    delta = np.random.default_rng(1).normal(size=(5, D))
    for make in (SquaredEuclidean, lambda weights: Norm(2, weights)):
        plain = make(weights="standardize").bind(joint).of_displacements(delta)
        again = make(weights="standardize").bind(scaled).of_displacements(delta * scale)
        np.testing.assert_allclose(again, plain)
    variance = samples().var(axis=0)
    np.testing.assert_allclose(SquaredEuclidean("standardize").bind(joint).weights, 1 / variance)
    np.testing.assert_allclose(Norm(2, "standardize").bind(joint).weights, variance**-0.5)


def test_bad_weights_are_refused(joint):
    stranger = UncertainParameter(D, "stranger", samples=samples())
    (xi,) = joint.parameters
    for bad, message in [
        (0.0, r"weights of a cost must be positive, got 0.0 for xi\[0\]; np.inf keeps"),
        ([1, -2, 3], r"must be positive, got -2.0 for xi\[1\]"),
        ([1, np.nan, 3], r"must be positive, got nan for xi\[1\]"),
        ([1, 2], r"weights of a cost have shape \(2,\), expected a number or shape \(3,\)"),
        ({xi: [1, 2]}, r"weights of 'xi' have shape \(2,\), expected .* \(3,\)"),
        ({stranger: 2.0}, "given for 'stranger', which is not an uncertain parameter of the loss"),
        ({"xi": 2.0}, "given for 'xi', .* must be the parameter objects 'xi'"),
        ("standardise", "unknown weights 'standardise'; write 'standardize'"),
        (True, "must be positive numbers, got True"),
        ([1j, 1, 1], "must be positive numbers, got 'list'"),
        (object(), "must be positive numbers"),
    ]:
        for cost in (SquaredEuclidean(weights=bad), Norm(weights=bad)):
            with pytest.raises(ValueError, match=message):
                cost.bind(joint)


def test_constant_data_cannot_be_standardized():
    data = samples()
    data[:, 1] = 0.1
    joint = JointSamples([UncertainParameter(D, "xi", samples=data)])
    with pytest.raises(ValueError, match=r"xi\[1\] does not \(all samples agree: 0.1\).*np.inf"):
        SquaredEuclidean("standardize").bind(joint)
    single = JointSamples([UncertainParameter(D, "xi", samples=data[:1])])
    with pytest.raises(ValueError, match=r"xi\[0\] does not \(there is one sample"):
        Norm(weights="standardize").bind(single)


def test_entries_that_cannot_move_are_held_when_others_are_standardized():
    """A support of one point says that the entry is certain; else the user has to."""
    data = samples()
    data[:, 1] = 0.1
    low, high = np.array([-99.0, 0.1, -99.0]), np.array([99.0, 0.1, 99.0])
    joint = JointSamples([UncertainParameter(D, "xi", samples=data, support=Box(low, high))])
    variance = data.var(axis=0)
    expected = [1 / variance[0], np.inf, 1 / variance[2]]
    bound = SquaredEuclidean("standardize").bind(joint)
    np.testing.assert_allclose(bound.weights, expected)
    assert "1 coordinates held fixed" in bound.describe()
    free = JointSamples([UncertainParameter(D, "xi", samples=data)])
    with pytest.raises(ValueError, match="weights='standardize_or_hold' keeps all such entries"):
        SquaredEuclidean("standardize").bind(free)
    np.testing.assert_allclose(SquaredEuclidean("standardize_or_hold").bind(free).weights, expected)
    (xi,) = free.parameters
    held = Norm(2, {xi: "standardize_or_hold"}).bind(free)
    np.testing.assert_allclose(held.weights, np.sqrt(expected))
    single = JointSamples([UncertainParameter(D, "xi", samples=data[:1])])
    with pytest.raises(ValueError, match="there is one sample"):
        SquaredEuclidean("standardize_or_hold").bind(single)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mahalanobis(), "exactly one of covariance= and precision=, got neither"),
        (lambda: Mahalanobis(np.eye(2), np.eye(2)), "got both"),
        (lambda: Mahalanobis(np.ones((2, 3))), r"covariance .* must be square, got shape \(2, 3\)"),
        (lambda: Mahalanobis([[1, 2], [0, 1]]), "must be symmetric, it differs .* by 2"),
        (lambda: Mahalanobis(precision=np.ones((2, 2))), "precision .* must be positive definite"),
        (lambda: Mahalanobis(-np.eye(2)), "smallest eigenvalue is -1"),
        (lambda: Mahalanobis([[np.nan]]), "must be finite"),
        (lambda: Mahalanobis("identity"), "must be an array of numbers, got 'identity'"),
        (lambda: Norm(0.5), "p of a Norm cost must be a finite number >= 1, got 0.5; or inf"),
        (lambda: Norm("two"), "got 'two'"),
        (lambda: Norm(math.nan), "got nan"),
        (lambda: Callable(3), "must be callable, got 3"),
        (lambda: as_cost("sqared"), "unknown cost 'sqared'. Did you mean 'squared'?"),
        (lambda: as_cost(3), "cost must be one of wdro_model.costs.*got 3"),
        (lambda: as_cost(Norm), r"cost is the class Norm; write Norm\(\)"),
    ],
)
def test_bad_costs_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_matrix_of_the_wrong_size_is_refused(joint):
    with pytest.raises(ValueError, match=r"shape \(2, 2\) but .* have 3 coordinates"):
        Mahalanobis(np.eye(2)).bind(joint)


def test_functions_of_the_user_are_checked(joint):
    for function, message in [
        (
            lambda a, b: np.zeros((len(a), 2)),
            r"must return 6 numbers.* shape \(6, 2\)",
        ),
        (lambda a, b: np.ones(len(a)), "must be zero for a point that does not move, got 1.0"),
        (lambda a, b: np.full(len(a), np.nan), "must be nonnegative, got nan in row 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Callable(function).bind(joint)
    signed = Callable(lambda a, b: (b - a).sum(axis=1)).bind(joint)
    with pytest.raises(ValueError, match=r"must be nonnegative, got -3\.0 in row 1"):
        signed(np.zeros((2, D)), np.array([[1.0, 1, 1], [-1, -1, -1]]))
    with pytest.raises(ValueError, match="depends on the points"):
        Callable(manhattan).bind(joint).of_displacements(np.zeros((1, D)))


def test_plain_functions_and_nothing_are_costs():
    assert isinstance(as_cost(manhattan), Callable)
    assert isinstance(as_cost(None), SquaredEuclidean)
    norm = Norm(1)
    assert as_cost(norm) is norm


def test_descriptions_say_what_was_resolved(joint):
    assert SquaredEuclidean().bind(joint).describe() == "sum_i w_i (xi_i - zeta_i)^2, weights 1"
    assert "weights from 1 to 3" in SquaredEuclidean([1, 2, 3]).bind(joint).describe()
    assert Norm(1).bind(joint).describe() == "||w * (xi - zeta)||_1, weights 1"
    assert (
        "eigenvalues of P from 0.5 to 2" in Mahalanobis(np.diag([2, 1, 0.5])).bind(joint).describe()
    )
    assert Callable(manhattan).bind(joint).describe() == "manhattan(xi, zeta)"
    assert "held fixed" in SquaredEuclidean(np.inf).bind(joint).describe()
    assert SquaredEuclidean("standardize").describe().endswith("weights standardize")


@pytest.mark.parametrize("cost", COSTS, ids=lambda c: c.describe())
def test_costs_can_be_copied_and_pickled(joint, cost):
    delta = samples(4)
    for other in (copy.deepcopy(cost), pickle.loads(pickle.dumps(cost))):
        bound = pickle.loads(pickle.dumps(other.bind(joint)))
        np.testing.assert_array_equal(bound(0 * delta, delta), cost.bind(joint)(0 * delta, delta))


@pytest.mark.parametrize("given_weights", [None, 2.0])
def test_squared_costs_need_no_second_copy_of_the_displacements(given_weights):
    d = 50_000
    parameter = UncertainParameter(d, samples=np.zeros((1, d)))
    bound = SquaredEuclidean(given_weights).bind(JointSamples([parameter]))
    delta = np.ones((20, d))
    bound.of_displacements(delta[:1])
    tracemalloc.start()
    bound.of_displacements(delta)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < delta.nbytes / 20
