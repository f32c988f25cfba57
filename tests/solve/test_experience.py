"""What is expected at another radius, from the solves before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.solve.certify import MOST_CHANGE, MOST_KNOWN, Experience


def chain(distances: list[float], steepness: list[float] | None = None) -> Experience:
    """The experience of solves at these distances, one after the other; they know their own."""
    found = Experience()
    for k, distance in enumerate(distances):
        slope = None if steepness is None else steepness[k]
        found = Experience(distance, slope, None, distance, found.shortened())
    return found


@settings(max_examples=60, deadline=None)
@given(
    first=st.floats(0.01, 100.0),
    gaps=st.lists(st.floats(0.5, 1.9), min_size=3, max_size=3),
    down=st.booleans(),
    curve=st.tuples(*[st.floats(-3, 3)] * 3),
)
def test_a_polynomial_of_the_distance_is_continued(first, gaps, down, curve):
    distances = first * np.cumsum([1.0, *gaps])
    distances = distances[::-1] if down else distances
    known = chain(list(distances[:3])).going_on(distances[3], "directions")
    assert [distance for distance, _ in known] == list(distances[2::-1])

    def at(distance: float) -> float:
        return float(np.polyval(curve, distance / distances.max()))

    expected = sum(weight * at(distance) for distance, weight in known)
    size = sum(abs(weight) for _, weight in known)
    assert expected == pytest.approx(at(distances[3]), abs=1e-8 * size)


@pytest.mark.parametrize(
    ("distances", "next_", "count"),
    [
        ([1.0], 2.0, 1),
        ([1.0, 2.0], 3.0, 2),
        ([0.0, 2.0], 3.0, 2),  # from ERM
        ([1.0, 2.0], 1.5, 1),  # turns back
        ([1.0, 2.0], 7.0, 1),  # too far
        ([2.0, 1.0, 2.0], 3.0, 2),  # turned back once
        ([1.0, 1.0], 2.0, 1),
        ([2.0, 2.0, 1.0], 0.5, 2),
        ([1.0, 1.01, 2.0], 2.5, 2),  # two that are too near to each other
        ([1.0, 2.0, 2.0], 3.0, 1),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 6.0, MOST_KNOWN),
        ([1.0, 2.0], 2.0, 1),  # the same radius again
    ],
)
def test_solves_that_do_not_lead_on_are_left_out(distances, next_, count):
    known = chain(distances).going_on(next_, "directions")
    assert len(known) == count
    assert sum(weight for _, weight in known) == pytest.approx(1.0)


def test_nothing_is_expected_of_nothing():
    assert Experience().expected_steepness(1.0) is None
    assert chain([1.0]).expected_steepness(2.0) is None


def test_the_steepness_goes_on_as_it_did():
    slope = np.polynomial.Polynomial([2.0, -0.2, 0.06])
    distances = [1.0, 2.0, 3.0, 4.5]
    known = chain(distances[:3], [float(slope(d)) for d in distances[:3]])
    assert known.expected_steepness(4.5) == pytest.approx(slope(4.5))
    assert chain([1.0], [3.0]).expected_steepness(4.0) == 3.0
    unknown = Experience(2.0, 3.0, before=Experience(1.0, None, directions="known"))
    assert unknown.expected_steepness(3.0) == 3.0  # ERM has none


def test_a_wild_guess_stays_near_the_last():
    known = chain([1.0, 2.0, 3.0], [1.0, 5.0, 1.0])
    assert known.expected_steepness(6.0) == pytest.approx(1 / MOST_CHANGE)
