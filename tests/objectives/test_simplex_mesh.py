"""The quadrature of the battery, against formulas and SciPy's."""

import numpy as np
import pytest
from scipy.integrate import dblquad, quad
from scipy.stats import norm

from tests.references.battery import draw
from tests.references.simplex_mesh import Block, Reference, minimise

EVERYWHERE = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])


def squares(moves):
    return (moves**2).sum(axis=1)


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 1.0])
def test_affine_losses_have_a_closed_form(epsilon):
    slope, sigma, dual = np.array([1.0, -2.0]), np.array([0.3, 0.7]), 1.7
    samples = np.array([[0.2, 1.0], [-3.0, 0.5]])
    block = Block(lambda z: z @ slope, squares, samples, sigma, *EVERYWHERE)
    v = 1 / (2 * dual / epsilon + 1 / sigma**2)
    log = (v * slope**2 / (2 * epsilon**2) + 0.5 * np.log(v / sigma**2)).sum()
    expected = dual * 0.1 + (samples @ slope).mean() + epsilon * log
    found = Reference([block], 0.1, epsilon, tolerance=1e-9)(dual)
    assert found.value == pytest.approx(expected, abs=1e-8)
    mean = (v + (v * slope / epsilon) ** 2).sum()
    assert found.slope == pytest.approx(0.1 - mean, rel=1e-7)


def test_kinks_and_corners_in_the_plane():
    """max(z1 + z2, 0.3) on a triangle, maximum norm, against nested adaptive quadrature."""
    sigma, epsilon, dual, xi = 0.6, 0.2, 0.8, np.array([0.3, 0.4])
    halves = (
        (np.array([-1.0, 0.0]), 0.0),
        (np.array([0.0, -1.0]), 0.0),
        (np.array([1.0, 1.0]), 1.5),
    )
    block = Block(
        lambda z: np.maximum(z.sum(axis=1), 0.3),
        lambda m: np.abs(m).max(axis=1),
        xi[None],
        np.full(2, sigma),
        np.zeros(2),
        np.full(2, 1.5),
        halves,
        ((np.ones(2), 0.3),),
        (np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.ones(2), np.array([1.0, -1.0])),
    )

    def density(b, a, tilt):
        move = np.array([a, b]) - xi
        g = (max(a + b, 0.3) - dual * np.abs(move).max()) / epsilon if tilt else 0.0
        return np.exp(g - 0.5 * (move @ move) / sigma**2)

    above, below = (
        dblquad(density, 0, 1.5, 0, lambda a: 1.5 - a, args=(tilt,), epsabs=1e-9, epsrel=1e-7)[0]
        for tilt in (True, False)
    )
    expected = dual * 0.05 + epsilon * np.log(above / below)
    found = Reference([block], 0.05, epsilon, tolerance=1e-8)(dual)
    assert found.value == pytest.approx(expected, abs=1e-6)


def test_a_narrow_mode_far_from_the_sample_is_found():
    """A box whose far end holds all of the mass, at a temperature of 1e-4."""
    sigma, epsilon, dual = 0.5, 1e-4, 0.2
    block = Block(
        lambda z: np.maximum(0.0, 2.0 * (z[:, 0] - 2.0)),
        squares,
        np.zeros((1, 1)),
        np.array([sigma]),
        np.array([-1.0]),
        np.array([4.0]),
        lines=((np.ones(1), 2.0),),
    )

    def tilted(t):
        g = (max(0.0, 2 * (t - 2)) - dual * t * t) / epsilon - 0.5 * (t / sigma) ** 2
        return np.exp(g - (4 - 16 * dual) / epsilon)

    mass = norm.cdf(4 / sigma) - norm.cdf(-1 / sigma)
    integral = quad(tilted, 3.99, 4)[0] / (mass * sigma * np.sqrt(2 * np.pi))
    expected = 4 - 16 * dual + epsilon * np.log(integral)
    found = Reference([block], 0.0, epsilon, tolerance=1e-8)(dual)
    assert found.value == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("start", [None, 0.0, 1e-6, 1e6])
def test_the_least_dual_is_found_from_anywhere(start):
    block = Block(
        lambda z: z[:, 0], squares, np.zeros((1, 1)), np.ones(1), *(b[:1] for b in EVERYWHERE)
    )
    epsilon, radius = 0.05, 0.4
    found = minimise(Reference([block], radius, epsilon, tolerance=1e-9), start, 1e-10)
    duals = np.linspace(0.2, 2, 20001)
    v = 1 / (2 * duals / epsilon + 1)
    values = duals * radius + epsilon * (v / (2 * epsilon**2) + 0.5 * np.log(v))
    assert found.value == pytest.approx(values.min(), abs=1e-8)
    assert found.lower <= found.value <= found.lower + 1e-10


@pytest.mark.parametrize("seed", [3, 30, 41, 42])
def test_coordinates_apart_give_what_they_give_together(seed):
    """A loss and a cost that are sums over the coordinates, in the plane and one by one."""
    model = draw(seed)
    together = model.reference(0.1, 0.3, 1e-8)
    apart = model.reference(0.1, 0.3, 1e-8, by_coordinate=True)
    assert model.term.separate
    for dual in (0.5, 5.0):
        if np.isfinite(together(dual).value):
            assert apart(dual).value == pytest.approx(together(dual).value, abs=1e-7)
