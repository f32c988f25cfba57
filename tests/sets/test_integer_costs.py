from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.sets.backends import rounding_slack, scaled_to_integers

real = st.floats(-1e300, 1e300)


@settings(max_examples=200, deadline=None)
@given(st.lists(real, min_size=1, max_size=8), st.integers(2, 2**62))
def test_integers_stay_within_the_limit_and_near_the_costs(costs, limit):
    integers, unit = scaled_to_integers(costs, limit)
    assert integers.dtype == np.int64
    assert max(abs(int(k)) for k in integers) <= limit
    assert unit > 0
    for cost, k in zip(costs, integers.tolist()):
        error = abs(Fraction(cost) - Fraction(unit) * k)
        assert error <= 2 * Fraction(max(map(abs, costs))) / limit


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=8),
    st.sampled_from([1.0, 0.25, 3.0, 1e12, 0.1, 1e-30]),
)
def test_multiples_of_one_number_are_exact_where_they_can_be(numbers, step):
    costs = np.array(numbers) * step
    integers, unit = scaled_to_integers(costs, 2**60)
    if step in (1.0, 0.25, 3.0, 1e12):
        assert rounding_slack(costs, integers, unit) == 0.0
        np.testing.assert_array_equal(integers * unit, costs)
        assert np.abs(integers).max() <= np.abs(numbers).max()
    else:
        assert rounding_slack(costs, integers, unit) <= 1e-15 * np.abs(costs).sum()


def test_zero_costs_and_the_smallest_numbers():
    integers, unit = scaled_to_integers(np.zeros(3), 10)
    assert not integers.any()
    assert unit == 1.0
    integers, unit = scaled_to_integers([5e-324, -1e-323], 2**40)
    assert integers.tolist() == [1, -2]
    assert unit == 5e-324


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.integers(2, 1000))
def test_the_slack_covers_what_the_rounding_costs(costs, limit):
    costs = np.array(costs)
    points = np.array(np.meshgrid(*[[0.0, 1.0]] * costs.size)).reshape(costs.size, -1).T
    points = points[points.sum(axis=1) == 2]
    integers, unit = scaled_to_integers(costs, limit)
    excess = costs @ points[np.argmin(points @ integers)] - (points @ costs).min()
    slack = rounding_slack(costs, integers, unit)
    assert excess <= slack + 1e-9 * np.abs(costs).sum()
