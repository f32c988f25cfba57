"""What is expected at another radius, from the solves before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.solve.experience import MOST_CHANGE, MOST_KNOWN, Experience


def chain(radii: list[float], duals: list[float] | None = None) -> Experience:
    """The experience of solves at these radii, one after the other."""
    found = Experience()
    for k, radius in enumerate(radii):
        dual = None if duals is None else duals[k]
        found = Experience(radius, dual, None, None, found.shortened())
    return found


@settings(max_examples=60, deadline=None)
@given(
    first=st.floats(0.01, 100.0),
    gaps=st.lists(st.floats(0.5, 1.9), min_size=3, max_size=3),
    order=st.sampled_from([1.0, 2.0]),
    down=st.booleans(),
    curve=st.tuples(*[st.floats(-3, 3)] * 3),
)
def test_a_polynomial_of_the_distance_is_continued(first, gaps, order, down, curve):
    distances = first * np.cumsum([1.0, *gaps])
    radii = (distances[::-1] if down else distances) ** order
    known = chain(list(radii[:3])).going_on(radii[3], order)
    assert [solve.radius for solve, _ in known] == list(radii[2::-1])
    unit = distances.max()

    def at(radius: float) -> float:
        return float(np.polyval(curve, radius ** (1 / order) / unit))

    expected = sum(weight * at(solve.radius) for solve, weight in known)
    size = sum(abs(weight) for _, weight in known)
    assert expected == pytest.approx(at(radii[3]), abs=1e-8 * size)


@pytest.mark.parametrize(
    ("radii", "next_", "count"),
    [
        ([1.0], 2.0, 1),
        ([1.0, 2.0], 3.0, 2),
        ([1.0, 2.0], 1.5, 1),  # turns back
        ([1.0, 2.0], 60.0, 1),  # too far
        ([2.0, 1.0, 2.0], 3.0, 2),  # turned back once
        ([1.0, 1.0], 2.0, 1),
        ([2.0, 2.0, 1.0], 0.5, 2),
        ([1.0, 1.01, 2.0], 2.5, 2),  # two that are too near to each other
        ([1.0, 2.0, 2.0], 3.0, 1),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 6.0, MOST_KNOWN),
        ([1.0, 2.0], 2.0, 1),  # the same radius again
    ],
)
def test_solves_that_do_not_lead_on_are_left_out(radii, next_, count):
    known = chain(radii).going_on(next_, 2.0)
    assert len(known) == count
    assert sum(weight for _, weight in known) == pytest.approx(1.0)


def test_nothing_is_expected_of_nothing():
    assert Experience().expected_dual(1.0, 2.0) is None
    assert chain([1.0]).expected_dual(2.0, 2.0) is None


@pytest.mark.parametrize("order", [1.0, 2.0])
def test_the_dual_is_the_slope_of_a_risk_that_is_a_polynomial_of_the_distance(order):
    risk = np.polynomial.Polynomial([3.0, 2.0, -0.1, 0.02])

    def dual(radius: float) -> float:
        distance = radius ** (1 / order)
        return float(risk.deriv()(distance)) / (order * distance ** (order - 1))

    radii = [1.0, 2.0, 3.0, 4.5]
    known = chain(radii[:3], [dual(radius) for radius in radii[:3]])
    assert known.expected_dual(radii[3], order) == pytest.approx(dual(radii[3]))
    last = chain([1.0], [3.0]).expected_dual(4.0, order)  # the slope in the distance stays
    assert last == pytest.approx(3.0 / 4.0 ** (1 - 1 / order))


def test_a_wild_guess_at_the_dual_stays_near_the_last():
    known = chain([1.0, 2.0, 3.0], [1.0, 5.0, 1.0])
    expected = known.expected_dual(6.0, 1.0)
    assert expected == pytest.approx(1 / MOST_CHANGE)
