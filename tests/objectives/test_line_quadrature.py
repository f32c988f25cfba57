"""The one line quadrature: intervals with and without ends, against sums over fine grids."""

import numpy as np
import pytest
from scipy.special import logsumexp

from wdro_model.objectives.integration.lines import integrate_lines, lines_within_lines, whole_lines
from wdro_model.objectives.integration.low_rank.laws import gaussian_law, quadratic_law
from wdro_model.objectives.integration.normal import TiltedLaw, integrate_pieces, join_laws

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
FUNCTIONS = {
    "logistic": (lambda t: 40 * np.logaddexp(0, 0.3 * t - 1), "convex"),
    "kinks": (lambda t: 25 * np.maximum(0, 0.2 * t) + 10 * np.abs(0.1 * t + 0.37), "convex"),
    "saturating": (lambda t: -30 * np.logaddexp(0, 0.4 * t), "concave"),
    "waves": (lambda t: 20 * np.sin(0.9 * t) + 3 * t, "unknown"),
    "notch": (lambda t: 4 * t - 60 * np.exp(-0.5 * ((t - 3.3) / 0.07) ** 2), "unknown"),
    "steep fall": (lambda t: -500 * np.abs(t) + np.sqrt(1 + t**2), "unknown"),
}
INTERVALS = [(-np.inf, np.inf), (-1.3, np.inf), (-np.inf, 0.8), (-0.4, 11.0), (2.0, 2.5), (-40, 60)]


def reference(H, low, high):
    """log mass and mean by Gauss-Legendre panels no longer than 0.02."""
    edges = np.linspace(max(low, -45.0), min(high, 75.0), 6001)
    edges = np.unique(np.r_[edges, np.clip([0.0, -3.7], edges[0], edges[-1])])
    half = 0.5 * np.diff(edges)[:, None]
    t = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES
    logs = (H(t) - 0.5 * t**2 + np.log(half * WEIGHTS)).ravel()
    total = logsumexp(logs)
    return total - 0.5 * np.log(2 * np.pi), np.exp(logs - total) @ t.ravel()


@pytest.mark.parametrize(("low", "high"), INTERVALS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_mass_and_mean_on_any_interval(name, low, high):
    H, curvature = FUNCTIONS[name]
    ends = np.array([low]), np.array([high])
    law = integrate_lines(lambda owner, t: H(t), *ends, curvature=curvature)
    log_mass, mean = reference(H, low, high)
    assert law.log_mass[0] == pytest.approx(log_mass, abs=1e-9)
    assert law.mean(law.points[:, 0])[0] == pytest.approx(mean, abs=1e-8)
    assert law.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert law.points.min() >= low
    assert law.points.max() <= high


def test_intervals_of_all_kinds_are_integrated_together(rng):
    cuts = np.array([low for low, _ in INTERVALS]), np.array([high for _, high in INTERVALS])
    slopes = rng.normal(size=len(INTERVALS))

    def H(owner, t):
        return 30 * np.logaddexp(0, slopes[owner] * t)

    together = integrate_lines(H, *cuts, curvature="convex")
    for i, (low, high) in enumerate(INTERVALS):
        expected = reference(lambda t, i=i: 30 * np.logaddexp(0, slopes[i] * t), low, high)
        assert together.log_mass[i] == pytest.approx(expected[0], abs=1e-9)
        assert together.mean(together.points[:, 0])[i] == pytest.approx(expected[1], abs=1e-8)


def test_only_an_end_that_is_infinite_lets_a_function_diverge():
    low, high = np.array([-np.inf, -3.0, -np.inf]), np.array([np.inf, 4.0, 4.0])
    law = integrate_lines(lambda owner, t: 0.6 * np.maximum(t, 0) ** 2, low, high)
    assert np.isposinf(law.log_mass[0])
    for i in (1, 2):
        found = reference(lambda t: 0.6 * np.maximum(t, 0) ** 2, low[i], high[i])
        assert law.log_mass[i] == pytest.approx(found[0], abs=1e-9)


@pytest.mark.parametrize("bend", [-3.0, 0.4, 0.999, 1.7])
def test_quadratic_functions_agree_with_quadrature(bend):
    low, high = np.array([-0.7]), np.array([5.0])
    law = quadratic_law(np.array([0.3]), np.array([2.0]), np.array([bend]), low, high)
    log_mass, mean = reference(lambda t: 0.3 + 2 * t + 0.5 * bend * t**2, -0.7, 5.0)
    assert law.log_mass[0] == pytest.approx(log_mass, abs=1e-9)
    assert law.mean(law.points[:, 0])[0] == pytest.approx(mean, abs=1e-8)


def test_lines_within_lines_of_a_quadratic_are_its_gaussian(rng):
    c, b = rng.normal(size=3), rng.normal(size=(3, 2))
    A = rng.normal(size=(3, 2, 2))
    A = -np.einsum("kij,klj->kil", A, A)
    exact = gaussian_law(c, b, A)

    def inner(owner, s):
        constant = c[owner] + s * (b[owner, 0] + 0.5 * A[owner, 0, 0] * s)
        slope, bend = b[owner, 1] + A[owner, 0, 1] * s, A[owner, 1, 1]
        return quadratic_law(constant, slope, bend, *whole_lines(len(owner)))

    nested = lines_within_lines(inner, 3, "concave", 1e-10)
    np.testing.assert_allclose(nested.log_mass, exact.log_mass, atol=1e-9)
    for law in (nested, exact):
        square = np.einsum("mi,mj->mij", law.points, law.points)
        mean, second = law.mean(law.points), law.mean(square)
        precision = np.eye(2) - A
        covariance = np.linalg.inv(precision)
        expected = np.linalg.solve(precision, b[..., None])[..., 0]
        np.testing.assert_allclose(mean, expected, atol=1e-7)
        outer = np.einsum("ki,kj->kij", expected, expected)
        np.testing.assert_allclose(second, covariance + outer, atol=1e-7)


def test_parts_of_one_function_add_up(rng):
    a, b = rng.normal(size=(5, 3)), 3 * rng.normal(size=(5, 3))
    whole = integrate_pieces(a, b)

    def H(owner, t):
        return (a[owner] + b[owner] * t[:, None]).max(axis=1)

    cut, every = rng.normal(size=5), np.arange(5)
    left = integrate_lines(H, np.full(5, -np.inf), cut, curvature="convex")
    right = integrate_lines(H, cut, np.full(5, np.inf), curvature="convex")
    found = join_laws([(every, left), (every, right)], 5)
    np.testing.assert_allclose(found.log_mass, whole.log_mass, atol=1e-9)
    np.testing.assert_allclose(
        found.mean(found.points[:, 0]), whole.mean(whole.points[:, 0]), atol=1e-7
    )


def test_a_part_without_variance_counts_as_points():
    one = TiltedLaw(np.zeros(1), np.zeros(1, int), np.ones((1, 1)), np.ones(1), np.array([2.0]))
    other = TiltedLaw(np.zeros(1), np.zeros(1, int), np.zeros((1, 1)), np.ones(1))
    both = join_laws([(np.array([1]), one), (np.array([0]), other)], 2)
    assert both.variance is not None
    np.testing.assert_array_equal(both.mean(both.variance), [0.0, 2.0])
