"""Truncated normal mass and moments, in the middle and in the tails."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.objectives.integration.normal import truncated_normal


def reference(a: float, b: float) -> tuple[float, mpmath.mpf, mpmath.mpf]:
    """log mass, mean and second moment with 60 digits."""
    with mpmath.workdps(60):
        low = mpmath.mpf(a) if np.isfinite(a) else -mpmath.inf
        high = mpmath.mpf(b) if np.isfinite(b) else mpmath.inf

        def density(t):
            return mpmath.npdf(t) if mpmath.isfinite(t) else mpmath.mpf(0)

        def moment(t):
            return t * density(t) if mpmath.isfinite(t) else mpmath.mpf(0)

        mass = (
            mpmath.ncdf(-low) - mpmath.ncdf(-high)
            if low > 0
            else mpmath.ncdf(high) - mpmath.ncdf(low)
        )
        mean = (density(low) - density(high)) / mass
        square = 1 + (moment(low) - moment(high)) / mass
        return float(mpmath.log(mass)), mean, square


CASES = [
    (-1, 1),
    (-0.3, 0.3),
    (-np.inf, 2.0),
    (-2.0, np.inf),
    (-np.inf, -10.0),
    (10.0, np.inf),
    (-40.0, -39.0),
    (39.999999, 40.0),
    (3.0, 3.0 + 1e-6),
    (100.0, 101.0),
    (-1e4, -1e4 + 1),
    (1e3, 1e3 + 1e-9),
    (-30.0, 30.0),
    (-1e-8, 1e-8),
    (-np.inf, -5e6),
    (1e7, np.inf),
    (-2e6, -1e6),
    (-7.0, -5.5),
    (5.2, 9.0),
    (-5.0, 8.0),
]


@pytest.mark.parametrize(("a", "b"), CASES)
def test_mass_and_moments_against_sixty_digits(a, b):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = truncated_normal(np.array([a]), np.array([b]))
        mixed = truncated_normal(np.array([a, -1.0, 0.5]), np.array([b, 1.0, np.inf]))
    log_mass, mean, square = reference(a, b)
    for result in (alone, mixed):
        assert result.log_mass[0] == pytest.approx(log_mass, rel=1e-12, abs=1e-14)
        end = mpmath.mpf(a if result.from_lower[0] else b)
        with mpmath.workdps(60):
            depth, depth_square = abs(mean - end), square - 2 * end * mean + end**2
        assert result.depth[0] == pytest.approx(float(depth), rel=1e-9)
        assert result.depth_square[0] == pytest.approx(float(depth_square), rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.floats(-50, 50), st.floats(1e-7, 30))
def test_moments_lie_where_they_must(a, width):
    b = a + width
    t = truncated_normal(np.array([a]), np.array([b]))
    assert np.isfinite(t.log_mass[0])
    assert t.log_mass[0] <= 1e-12
    assert 0 < t.depth[0] <= width * (1 + 1e-12)
    assert t.depth[0] ** 2 <= t.depth_square[0] * (1 + 1e-9)
    assert t.depth_square[0] <= width * t.depth[0] * (1 + 1e-9)
