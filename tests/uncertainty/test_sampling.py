"""Gaussian draws on the support: the right law, also far in the tails, and always inside."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wdro_model.uncertainty import GaussianSampler, JointSamples, UncertainParameter
from wdro_model.uncertainty.sampling import Truncation, inverse_cdf
from wdro_model.uncertainty.supports import Box, Nonnegative, Polyhedron, Where

pytestmark = pytest.mark.filterwarnings("error")
B = 20_000


def sampler(d, support=None, frozen=None):
    start = np.full((1, d), 0.5) if support is None else _some_point(d, support)
    return GaussianSampler(
        JointSamples([UncertainParameter(d, "xi", samples=start, support=support)]), frozen
    )


def _some_point(d, support):
    box = support.bounds((d,))
    return np.zeros((1, d)) if box is None else np.clip(np.zeros((1, d)), *box)


def quadrature_cdf(center, sigma, lower, upper):
    """Cdf of the truncated Gaussian on a grid around its mode, from densities in logarithms."""
    mode = float(np.clip(center, lower, upper))
    distance = abs(mode - center) / sigma
    reach = sigma * (40 / max(distance, 1.0) if distance > 1 else 9.0)
    grid = np.linspace(max(lower, mode - reach), min(upper, mode + reach), 400_001)
    log_density = -0.5 * ((grid - mode) * (grid + mode - 2 * center)) / sigma**2
    density = np.exp(log_density - log_density.max())
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return grid, mass / mass[-1]


TRUNCATIONS = [
    (0.0, 1.0, 0.0, np.inf),
    (0.3, 0.5, 0.0, 1.0),
    (2.0, 1.0, -np.inf, 1.0),
    (-1.0, 2.0, 0.0, 3.0),
    (0.0, 1.0, -1.0, 8.0),
    (5.0, 1.0, 0.0, np.inf),
]
TAILS = [
    (-10.0, 1.0, 0.0, np.inf),
    (-40.0, 1.0, 0.0, np.inf),
    (40.0, 1.0, -np.inf, 0.0),
    (40.0, 1.0, 0.0, 0.01),
    (10.0, 1.0, 0.0, 1.0),
    (0.0, 1.0, 1.0, 1.0 + 1e-6),
    (0.0, 1.0, -1e-6, 2e-6),
    (30.0, 1.0, 0.0, 1e-6),
    (-3e4, 1.0, 0.0, np.inf),
    (0.0, 1e-3, 3.0, 5.0),
]


@pytest.mark.parametrize(("center", "sigma", "lower", "upper"), TRUNCATIONS)
def test_draws_follow_the_truncated_normal_of_scipy(center, sigma, lower, upper):
    draws = sampler(4, Box(lower, upper)).draw(
        np.full((B, 4), center), sigma, np.random.default_rng(1)
    )
    law = stats.truncnorm((lower - center) / sigma, (upper - center) / sigma, center, sigma)
    assert stats.kstest(draws.ravel(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("center", "sigma", "lower", "upper"), TRUNCATIONS + TAILS)
def test_draws_follow_the_density_by_quadrature(center, sigma, lower, upper):
    draws = sampler(2, Box(lower, upper)).draw(
        np.full((B, 2), center), sigma, np.random.default_rng(2)
    )
    grid, cdf = quadrature_cdf(center, sigma, lower, upper)
    assert draws.min() >= lower
    assert draws.max() <= upper
    assert stats.kstest(draws.ravel(), lambda z: np.interp(z, grid, cdf)).pvalue > 1e-3
    middle = (grid[1:] + grid[:-1]) / 2
    mean = np.sum(np.diff(cdf) * (middle - grid[0]))
    deviation = np.sqrt(np.sum(np.diff(cdf) * (middle - grid[0] - mean) ** 2))
    assert abs((draws - grid[0]).mean() - mean) < 5 * deviation / np.sqrt(draws.size)
    assert (draws - grid[0]).std() == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(("center", "sigma", "lower", "upper"), TRUNCATIONS + TAILS)
def test_quantiles_are_those_of_the_density(center, sigma, lower, upper):
    u = np.linspace(0.001, 0.999, 999)
    law = Truncation(np.full(u.size, center), sigma, lower, upper)
    points = np.sort(inverse_cdf(law, u))
    grid, cdf = quadrature_cdf(center, sigma, lower, upper)
    np.testing.assert_allclose(np.interp(points, grid, cdf), u, atol=2e-4)


number = st.floats(-1e3, 1e3)


@settings(max_examples=100)
@given(
    center=st.one_of(number, st.floats(-1e12, 1e12)),
    lower=st.one_of(number, st.just(-np.inf)),
    width=st.one_of(st.floats(0, 10), st.just(1e-6), st.just(0.0), st.just(np.inf)),
    sigma=st.floats(1e-8, 1e4),
    seed=st.integers(0, 2**32 - 1),
)
def test_points_are_always_inside_the_box(center, lower, width, sigma, seed):
    upper = lower + width if np.isfinite(lower) else 3.0
    points = sampler(3, Box(lower, upper)).draw(
        np.full((5, 3), center), sigma, np.random.default_rng(seed)
    )
    assert np.all(np.isfinite(points))
    assert np.all(points >= lower)
    assert np.all(points <= upper)


def test_extremes_neither_warn_nor_leave_the_box():
    u = np.array([0.0, 1e-300, 0.5, 1 - 2**-53])
    for center, sigma, lower, upper in [
        (-1e300, 1e-300, 0.0, 1.0),
        (1e300, 1.0, -np.inf, 0.0),
        (0.0, 1e-12, 1.0, np.inf),
        (0.0, 1.0, -50.0, np.inf),
        (0.0, 1.0, 2.0, 2.0),
        (1e9, 1e-3, 0.0, 1.0),
    ]:
        points = inverse_cdf(Truncation(np.full(4, center), sigma, lower, upper), u)
        assert np.all(np.isfinite(points))
        assert np.all((points >= lower) & (points <= upper))


def test_without_bounds_it_is_the_plain_gaussian():
    centers = np.random.default_rng(5).normal(size=(7, 3))
    for sigma in (0.3, np.array([0.1, 1.0, 10.0])):
        points = sampler(3).draw(centers, sigma, np.random.default_rng(9))
        noise = np.random.default_rng(9).standard_normal((7, 3))
        np.testing.assert_array_equal(points, centers + sigma * noise)


def test_coordinates_have_their_own_bounds_and_deviations():
    lower, upper = np.array([0.0, -np.inf, -0.1, 4.0]), np.array([np.inf, 0.5, 0.1, 5.0])
    sigma, center = np.array([1.0, 0.2, 3.0, 0.5]), np.array([0.1, 0.6, 0.0, 3.0])
    draws = sampler(4, Box(lower, upper)).draw(
        np.broadcast_to(center, (B, 4)), sigma, np.random.default_rng(3)
    )
    for i in range(4):
        law = stats.truncnorm(
            (lower[i] - center[i]) / sigma[i],
            (upper[i] - center[i]) / sigma[i],
            center[i],
            sigma[i],
        )
        assert stats.kstest(draws[:, i], law.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.05


def test_the_same_generator_gives_the_same_points_and_nothing_global_moves():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    centers = np.zeros((50, 2))
    for support in (Nonnegative(), Box(0, 1e-3), Where(lambda z: z.sum(axis=1) >= 0)):
        draw = sampler(2, support).draw
        first = draw(centers, 1.0, np.random.default_rng(4))
        np.testing.assert_array_equal(first, draw(centers, 1.0, np.random.default_rng(4)))
        assert not np.array_equal(first, draw(centers, 1.0, np.random.default_rng(5)))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_centers_are_not_changed():
    centers = np.full((10, 2), -1.0)
    centers.flags.writeable = False
    sampler(2, Nonnegative()).draw(centers, 1.0, np.random.default_rng(0))
    assert np.all(centers == -1.0)


def test_frozen_coordinates_stay_where_they_are():
    frozen = np.array([True, False, False])
    centers = np.random.default_rng(0).normal(size=(100, 3))
    for support in (None, Nonnegative(), Where(lambda z: z[:, 1] >= 0)):
        points = sampler(3, support, frozen).draw(centers, 1.0, np.random.default_rng(1))
        np.testing.assert_array_equal(points[:, 0], centers[:, 0])
        assert np.all(points[:, 1:] != centers[:, 1:])
        if support is not None:
            assert points[:, 1].min() >= 0


def test_a_deviation_of_zero_is_fine_where_nothing_moves():
    frozen = np.array([True, False])
    points = sampler(2, None, frozen).draw(
        np.ones((3, 2)), np.array([0.0, 1.0]), np.random.default_rng(0)
    )
    assert np.all(points[:, 0] == 1.0)


def test_a_coupled_support_is_drawn_by_rejection():
    simplex = Polyhedron(np.vstack([-np.eye(2), np.ones((1, 2))]), [0, 0, 1])
    disc = Where(lambda z: (z**2).sum(axis=1) <= 1)
    for support in (simplex, disc):
        draws = sampler(2, support).draw(np.zeros((B, 2)), 1.0, np.random.default_rng(6))
        assert support.contains(draws).all()
        plain = np.random.default_rng(7).standard_normal((30 * B, 2))
        plain = plain[support.contains(plain)]
        assert stats.ks_2samp(draws[:, 0], plain[:, 0]).pvalue > 1e-3
        assert stats.ks_2samp(draws.sum(axis=1), plain.sum(axis=1)).pvalue > 1e-3


def test_a_coupled_block_beside_a_box():
    a = UncertainParameter(2, "a", samples=[[0.0, 0.0]], support=Polyhedron([[1, 1]], [0]))
    b = UncertainParameter((), "b", samples=[0.0], support=Nonnegative())
    joint = JointSamples([a, b])
    draws = GaussianSampler(joint).draw(
        np.zeros((5000, 3)), [1.0, 2.0, 0.5], np.random.default_rng(8)
    )
    assert joint.contains(draws).all()
    assert stats.kstest(draws[:, 2], stats.halfnorm(0, 0.5).cdf).pvalue > 1e-3
    total = draws[:, 0] + draws[:, 1]
    assert stats.kstest(-total, stats.halfnorm(0, np.sqrt(5)).cdf).pvalue > 1e-3


def test_low_acceptance_still_succeeds():
    rare = Where(lambda z: z[:, 0] >= 2.3)
    parameter = UncertainParameter(1, samples=[[3.0]], support=rare)
    draws = GaussianSampler(JointSamples([parameter])).draw(
        np.zeros((300, 1)), 1.0, np.random.default_rng(0)
    )
    assert draws.min() >= 2.3


def test_a_support_that_is_never_hit_is_given_up_with_its_rate():
    far = UncertainParameter(
        2, "demand", samples=[[9.0, 9.0]], support=Where(lambda z: z[:, 0] > 8)
    )
    with pytest.raises(
        ValueError,
        match=r"no draw of 'demand' fell into its support Where\(<lambda>\) for 3 of 3 points "
        r"after \d+ tries \(acceptance rate 0\); use a smaller sigma",
    ):
        GaussianSampler(JointSamples([far])).draw(np.zeros((3, 2)), 0.1, np.random.default_rng(0))


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0], [1.0, 2.0, 3.0]])
def test_bad_deviations_are_refused(sigma):
    with pytest.raises(ValueError, match=r"sigma must be"):
        sampler(2).draw(np.zeros((1, 2)), sigma, np.random.default_rng(0))
