"""The dual variable, minimised exactly: against scalar solvers and formulas."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

from wdro_model.objectives.dual import DualPoint, minimise_dual
from wdro_model.objectives.integration.conditional.slice import CostForecast
from wdro_model.uncertainty.samples import SampleShares


class SoftMaximum:
    """phi(l) = eps mean_k log mean_s exp((f_ks - l c_ks) / eps), as sampled objectives have it."""

    def __init__(self, losses, costs, epsilon, curvature=True):
        self.losses, self.costs, self.epsilon = losses, costs, epsilon
        self.curvature = curvature
        self.count = 0

    def __call__(self, dual):
        self.count += 1
        scores = (self.losses - dual * self.costs) / self.epsilon
        value = self.epsilon * (logsumexp(scores, axis=1) - np.log(scores.shape[1])).mean()
        weights = softmax(scores, axis=1)
        mean = (weights * self.costs).sum(axis=1)
        spread = (weights * (self.costs - mean[:, None]) ** 2).sum(axis=1).mean() / self.epsilon
        return DualPoint(value, -mean.mean(), spread if self.curvature else np.nan)


def random_soft_maximum(seed, epsilon=0.1, scale=1.0, curvature=True):
    rng = np.random.default_rng(seed)
    costs = rng.exponential(size=(6, 40))
    losses = np.sqrt(costs) * rng.standard_normal((6, 40)) + rng.standard_normal((6, 1))
    return SoftMaximum(scale * losses, costs, scale * epsilon, curvature)


def reference(phi, radius):
    """The root of phi'(l) + radius by bisection on [0, inf)."""
    if phi(0.0).slope + radius >= 0:
        return 0.0
    high = 1e-12
    while phi(high).slope + radius < 0:
        high *= 4
    return brentq(lambda dual: phi(dual).slope + radius, 0.0, high, xtol=1e-14 * high, rtol=1e-13)


@settings(max_examples=80, deadline=None)
@example(50678, 0.01, 1e-6, 0.65625, False, 0.001)  # equal costs over a decade of prices
@given(
    seed=st.integers(0, 10**6),
    epsilon=st.sampled_from([1e-2, 0.1, 1.0]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    share=st.floats(0.05, 0.95),
    curvature=st.booleans(),
    start=st.sampled_from([None, 1e-9, 1e-3, 1e3, 1e9]),
)
def test_random_soft_maxima(seed, epsilon, scale, share, curvature, start):
    phi = random_soft_maximum(seed, epsilon, scale, curvature)
    least, most = phi.costs.min(axis=1).mean(), -phi(0.0).slope
    radius = least + share * (1.5 * most - least)
    expected = reference(phi, radius)
    found = minimise_dual(phi, radius, start)
    best = expected * radius + phi(expected).value
    assert found.value <= best + 1e-10 * scale
    assert found.at_floor == (expected == 0.0)
    assert not found.at_bound
    if expected > 0:
        assert -phi(found.dual).slope == pytest.approx(radius, rel=1e-5)


@pytest.mark.parametrize("curvature", [True, False])
@pytest.mark.parametrize("slope", [1e-12, 1e-3, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("radius", [1e-10, 1.0, 1e8])
def test_squared_cost_formula_at_all_scales(slope, radius, curvature):
    # phi(l) = B^2 / (4 (l + h)) with h = 1e-3 B / (2 sqrt(radius)), finite at 0 as a smoothed
    # objective is: the minimum is 0.999 B / (2 sqrt(radius))
    unit = slope / (2 * np.sqrt(radius))
    shift = 1e-3 * unit

    def phi(dual):
        at = dual + shift
        second = slope**2 / (2 * at**3) if curvature else np.nan
        return DualPoint(slope**2 / (4 * at), -(slope**2) / (4 * at**2), second)

    found = minimise_dual(phi, radius)
    assert found.dual == pytest.approx(0.999 * unit, rel=1e-5)
    assert found.value == pytest.approx(slope * np.sqrt(radius) - shift * radius, rel=1e-9)
    assert not found.at_floor
    assert not found.at_bound


@pytest.mark.parametrize("curvature", [1e-3, np.nan])
@pytest.mark.parametrize("start", [None, 1e-6, 1e6])
def test_a_radius_that_does_not_bind(curvature, start):
    # C(l) = 2 exp(-l) <= 2 < radius
    def phi(dual):
        second = 2 * np.exp(-dual) if np.isfinite(curvature) else np.nan
        return DualPoint(2 * np.exp(-dual), -2 * np.exp(-dual), second)

    found = minimise_dual(phi, radius=3.0, start=start)
    assert found.at_floor
    assert found.dual == 0.0
    assert found.value == pytest.approx(2.0)


@pytest.mark.parametrize("curvature", [True, False])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_radius_that_just_does_not_bind_is_seen_at_once(scale, curvature):
    """The cost is all but flat from a small start down to zero: no crawling along it."""
    phi = random_soft_maximum(0, 0.01, scale, curvature)
    found = minimise_dual(phi, 1.04 * -phi(0.0).slope, start=1e-9)
    assert found.at_floor
    assert phi.count <= 10


def test_a_radius_that_only_just_binds():
    def phi(dual):
        return DualPoint(2 * np.exp(-dual), -2 * np.exp(-dual), 2 * np.exp(-dual))

    radius = 2 * np.exp(-1e-6)
    found = minimise_dual(phi, radius)
    assert found.dual == pytest.approx(1e-6, rel=1e-2)
    assert found.value <= 1e-6 * radius + phi(1e-6).value + 1e-14


@pytest.mark.parametrize("curvature", [True, False])
def test_the_bound_is_respected(curvature):
    phi = random_soft_maximum(0, curvature=curvature)
    radius = 0.5 * -phi(0.0).slope
    free = minimise_dual(phi, radius).dual
    found = minimise_dual(phi, radius, bound=0.3 * free)
    assert found.at_bound
    assert found.dual == pytest.approx(0.3 * free)
    assert found.value == pytest.approx(found.dual * radius + phi(found.dual).value)
    loose = minimise_dual(phi, radius, bound=10 * free)
    assert not loose.at_bound
    assert loose.dual == pytest.approx(free, rel=1e-5)


def test_a_dual_without_minimum_ends_at_the_ceiling():
    # every draw costs more than the radius: the value falls without end
    found = minimise_dual(lambda dual: DualPoint(-2.0 * dual, -2.0, 0.0), radius=1.0)
    assert found.at_bound
    assert np.isfinite(found.dual)


def test_piecewise_linear_duals():
    # phi = max(1 - 3 l, 0.2 - l): slopes -3, -1; with radius 2 the minimum is the kink l = 0.4
    def phi(dual):
        first = 1 - 3 * dual >= 0.2 - dual
        return DualPoint(max(1 - 3 * dual, 0.2 - dual), -3.0 if first else -1.0, 0.0)

    found = minimise_dual(phi, radius=2.0)
    assert found.dual == pytest.approx(0.4, rel=1e-8)
    assert found.value == pytest.approx(0.6, abs=1e-7)


def test_a_good_start_saves_evaluations():
    phi = random_soft_maximum(4)
    radius = 0.5 * -phi(0.0).slope
    cold = minimise_dual(phi, radius)
    phi.count = 0
    warm = minimise_dual(phi, radius, start=cold.dual * 1.01)
    assert phi.count <= 5
    assert warm.value == pytest.approx(cold.value, rel=1e-12)
    phi.count = 0
    minimise_dual(phi, radius, start=cold.dual)
    assert phi.count == 1


@pytest.mark.parametrize("start", [0.0, -1.0, np.nan, np.inf])
def test_a_useless_start_is_ignored(start):
    phi = random_soft_maximum(5)
    radius = 0.5 * -phi(0.0).slope
    expected = minimise_dual(phi, radius)
    assert minimise_dual(phi, radius, start=start).value == pytest.approx(expected.value)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8, 200])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(5))
def test_the_residual_bounds_what_is_left(seed, start, rounds):
    phi = random_soft_maximum(seed)
    least, most = phi.costs.min(axis=1).mean(), -phi(0.0).slope
    radius = least + 0.4 * (most - least)
    expected = reference(phi, radius)
    best = expected * radius + phi(expected).value
    found = minimise_dual(phi, radius, start, rounds=rounds)
    assert found.value == pytest.approx(found.dual * radius + phi(found.dual).value, rel=1e-12)
    assert found.value - best <= found.residual + 1e-12
    assert rounds < 200 or found.residual <= 1e-8


def test_a_density_without_end_is_no_root():
    """Below l = 3 the function is infinite; a coarse tolerance does not stop there."""

    def phi(dual):
        if dual <= 3:
            return DualPoint(np.inf, -np.inf, np.nan)
        return DualPoint(1 / (dual - 3), -1 / (dual - 3) ** 2, np.nan)

    found = minimise_dual(phi, 0.25, 1.0, tolerance=1e-3)
    assert found.dual == pytest.approx(5.0, rel=1e-2)


@pytest.mark.parametrize("start", [None, 0.5, 4.0, 100.0])
def test_a_minimum_where_the_function_becomes_infinite(start):
    """A tail so thin that the function rises from the first dual at which it is finite."""
    edge = 4.5162

    def phi(dual: float) -> DualPoint:
        if dual <= edge:
            return DualPoint(np.inf, -np.inf, np.nan)
        return DualPoint(-1e-3 * dual, -1e-3, 0.0)

    found = minimise_dual(phi, 0.1, start)
    assert found.value == pytest.approx((0.1 - 1e-3) * edge, rel=1e-6)
    assert 0 <= found.residual <= 1e-6


@pytest.mark.parametrize("start", [1.2, 1.269, 1.3, 2.0])
@pytest.mark.parametrize("width", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("power", [0.5, 2.0])
def test_costs_that_jump_do_not_send_the_search_to_and_fro(start, width, power):
    """Flat on both sides of a steep fall, as where a sample moves to the edge of its support."""
    at, high, low, radius = 1.27, 6.1, 4.05, 4.1156
    calls = []

    def phi(dual):
        calls.append(dual)
        share = expit(-(dual - at) / width)
        cost = (low + (high - low) * share) * (at / dual) ** power
        fall = (high - low) * share * (1 - share) / width * (at / dual) ** power
        return DualPoint(0.0, -cost, fall + power * cost / dual)

    found = minimise_dual(phi, radius, start)
    assert len(calls) < 36  # a bisection of the digits takes as many
    root = brentq(lambda dual: phi(dual).slope + radius, 1.0, 2.0, xtol=1e-14, rtol=1e-14)
    assert found.dual == pytest.approx(root, rel=2e-9)


class TornSamples:
    """phi of samples with two modes each, whose costs are gamma laws; and what is expected of it.

    misleading: a factor on the dual at which costs are expected.
    """

    def __init__(self, seed, epsilon, misleading=1.0):
        rng = np.random.default_rng(seed)
        size = 12
        self.epsilon, self.misleading = epsilon, misleading
        far = rng.uniform(20, 40, size)
        self.heights = np.stack([np.zeros(size), rng.uniform(0.8, 1.4, size) * far / epsilon], 1)
        self.means = np.stack([rng.uniform(5, 50, size), far], axis=1)
        self.shapes = np.stack([rng.uniform(1, 20, size), rng.uniform(2e3, 9e3, size)], axis=1)
        self.calls = []

    def laws(self, dual):
        """Log masses and mean costs of the modes; those at dual 0 are given."""
        growth = 1 + dual / self.epsilon * self.means / self.shapes
        return self.heights - self.shapes * np.log(growth), self.means / growth

    def cost(self, dual):
        logs, means = self.laws(dual)
        return (softmax(logs, axis=1) * means).sum(axis=1).mean()

    def __call__(self, dual):
        self.calls.append(dual)
        logs, means = self.laws(dual)
        value = self.epsilon * logsumexp(logs, axis=1).mean()
        step = 1e-6 * dual
        curvature = (self.cost(dual - step) - self.cost(dual + step)) / (2 * step)
        shares = SampleShares.full(len(means))

        def expected():
            samples = np.repeat(np.arange(len(means)), 2)
            variances = means**2 / self.shapes
            laws = (part.ravel() for part in (logs, means, variances))
            return CostForecast(self.misleading * dual, self.epsilon, shares, samples, *laws)

        return DualPoint(value, -self.cost(dual), max(curvature, 1e-300), expected)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    epsilon=st.sampled_from([0.05, 0.1]),
    root=st.floats(0.9, 1.3),
    start=st.floats(0.8, 1.5),
)
def test_costs_of_torn_samples_are_expected(seed, epsilon, root, start):
    """Gamma laws are what the model takes: the first step arrives, wherever samples jump."""
    phi = TornSamples(seed, epsilon)
    radius = phi.cost(root)
    found = minimise_dual(phi, radius, start)
    assert phi.cost(found.dual) == pytest.approx(radius, rel=1e-7)
    assert len(phi.calls) <= 5
    assert phi(start).expected_costs()(root) == pytest.approx(radius, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    root=st.floats(0.9, 1.3),
    start=st.sampled_from([1e-3, 0.8, 1.0, 1.5, 1e3]),
    misleading=st.sampled_from([0.5, 0.9, 0.99, 1.01, 1.1, 2.0]),
)
def test_costs_that_are_expected_wrongly_do_not_mislead_the_search(seed, root, start, misleading):
    phi = TornSamples(seed, 0.1, misleading)
    radius = phi.cost(root)
    found = minimise_dual(phi, radius, start)
    assert phi.cost(found.dual) == pytest.approx(radius, rel=1e-6)
    assert len(phi.calls) < 90


@pytest.mark.parametrize("seed", range(3, 7))
@pytest.mark.parametrize(("start", "error", "change"), [(1.3, 1.004, 1.01), (1.0, 0.996, 0.99)])
def test_integrals_that_change_with_the_dual_do_not_trap_the_search(seed, start, error, change):
    """What was seen on other nodes is left where the nodes of today expect the contrary.

    The first look expects too much or too little, so that the second is not at the root; from the
    third on costs are others, and the root lies beyond the second look.
    """
    phi, calls = TornSamples(seed, 0.1), []
    radius = phi.cost(1.1)

    def shifting(dual):
        calls.append(dual)
        point = phi(dual)
        now = change if len(calls) > 2 else 1.0
        told, costs = error if len(calls) == 1 else now, point.expected_costs()
        return DualPoint(
            point.value, now * point.slope, point.curvature, lambda: lambda at: told * costs(at)
        )

    found = minimise_dual(shifting, radius, start)
    assert change * phi.cost(found.dual) == pytest.approx(radius, rel=1e-8)
    assert 3 < len(calls) < 10
