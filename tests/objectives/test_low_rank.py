"""Losses that see the data through a few affine forms, against integrals in all dimensions."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from wdro_model import Problem, UncertainParameter
from wdro_model.loss import CallableLoss
from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.integration.closed_form import ClosedForm
from wdro_model.objectives.integration.inner_integral import Scales, Stream
from wdro_model.objectives.integration.lines import integrate_lines, whole_lines
from wdro_model.objectives.integration.low_rank.slice import LowRank, low_rank_refusal
from wdro_model.objectives.integration.tilted import Tilted
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.costs import Mahalanobis, Norm, SquaredEuclidean
from wdro_model.uncertainty.supports import Nonnegative

STREAM = Stream(3)
w = cp.Variable(2, name="w")
tau = cp.Variable(name="tau")


def model_of(loss, cost=None):
    return Problem(cp.Minimize(loss), [], WassersteinBall(0.1, cost))._model


def strategy(loss, epsilon, sigma, cost=None, draws=100):
    model = model_of(loss, cost)
    assert low_rank_refusal(model) is None
    return model, LowRank(model, Scales(epsilon, sigma, draws))


def panels(breaks, nodes=24):
    """Gauss-Legendre nodes and weights between consecutive breaks (m, n + 1)."""
    t, weight = np.polynomial.legendre.leggauss(nodes)
    low, high = breaks[..., :-1, None], breaks[..., 1:, None]
    points = 0.5 * (low + high) + 0.5 * (high - low) * t
    weights = 0.5 * (high - low) * weight
    return points.reshape(*breaks.shape[:-1], -1), weights.reshape(*breaks.shape[:-1], -1)


def brute_force(f, gradient, center, dual, epsilon, sigma, matrix, crossings, reach):
    """phi, d phi/dl and d phi/dx of one sample in the plane, panels split where f has a kink."""
    first, outer = panels(np.linspace(center[0] - reach, center[0] + reach, 41))
    ends = np.linspace(center[1] - reach, center[1] + reach, 31)
    cuts = (
        np.clip(np.stack([c(first) for c in crossings], 1), ends[0], ends[-1])
        if (crossings)
        else np.zeros((len(first), 0))
    )
    breaks = np.sort(np.concatenate([np.tile(ends, (len(first), 1)), cuts], axis=1), axis=1)
    second, inner = panels(breaks)
    zeta = np.stack([np.broadcast_to(first[:, None], second.shape), second], axis=-1)
    move = zeta - center
    cost = np.einsum("abi,ij,abj->ab", move, matrix, move)
    scale = np.broadcast_to(sigma, 2)
    reference = -0.5 * ((move / scale) ** 2).sum(-1) - np.log(2 * np.pi * scale.prod())
    logs = (f(zeta) - dual * cost) / epsilon + reference
    with np.errstate(divide="ignore"):
        logs = logs + np.log(outer[:, None] * inner)
    total = logsumexp(logs)
    density = np.exp(logs - total)
    return (
        epsilon * total,
        -(density * cost).sum(),
        (density[..., None] * gradient(zeta)).sum((0, 1)),
    )


def plane_case(name, data):
    """Loss, f, its gradient in the flat decision, and where f has kinks, for x = (w[, tau])."""
    s = w @ data

    def margin(x, z):
        return z @ x[:2]

    def kink(level):
        return lambda x: lambda first: (level(x) - x[0] * first) / x[1]

    cases = {
        "logistic": (
            cp.logistic(-s),
            lambda x, z: np.logaddexp(0, -margin(x, z)),
            lambda x, z: -z / (1 + np.exp(margin(x, z)))[..., None],
            [],
        ),
        "hinge": (
            cp.pos(1 - s),
            lambda x, z: np.maximum(1 - margin(x, z), 0),
            lambda x, z: -z * (margin(x, z) < 1)[..., None],
            [kink(lambda x: 1.0)],
        ),
        "least squares": (
            cp.square(0.5 - s),
            lambda x, z: (0.5 - margin(x, z)) ** 2,
            lambda x, z: -2 * z * (0.5 - margin(x, z))[..., None],
            [],
        ),
        "cvar": (
            tau + cp.pos(-s - tau) / 0.05,
            lambda x, z: x[2] + np.maximum(-margin(x, z) - x[2], 0) / 0.05,
            lambda x, z: np.concatenate(
                [
                    -z * (margin(x, z) < -x[2])[..., None] / 0.05,
                    (1 - (margin(x, z) < -x[2]) / 0.05)[..., None],
                ],
                axis=-1,
            ),
            [kink(lambda x: -x[2])],
        ),
        "absolute deviation": (
            cp.abs(0.3 - s),
            lambda x, z: np.abs(0.3 - margin(x, z)),
            lambda x, z: z * np.sign(margin(x, z) - 0.3)[..., None],
            [kink(lambda x: 0.3)],
        ),
        "huber": (
            cp.huber(0.3 - s, 0.4),
            lambda x, z: np.where(
                np.abs(0.3 - margin(x, z)) < 0.4,
                (0.3 - margin(x, z)) ** 2,
                0.8 * np.abs(0.3 - margin(x, z)) - 0.16,
            ),
            lambda x, z: z * 2 * np.clip(margin(x, z) - 0.3, -0.4, 0.4)[..., None],
            [kink(lambda x: 0.7), kink(lambda x: -0.1)],
        ),
        "decaying hinge": (
            cp.exp(0.5 * -cp.pos(s)),
            lambda x, z: np.exp(-0.5 * np.maximum(margin(x, z), 0)),
            lambda x, z: (
                -0.5
                * z
                * (np.exp(-0.5 * np.maximum(margin(x, z), 0)) * (margin(x, z) > 0))[..., None]
            ),
            [kink(lambda x: 0.0)],
        ),
    }
    return cases[name]


CASES = (
    "logistic",
    "hinge",
    "least squares",
    "cvar",
    "absolute deviation",
    "huber",
    "decaying hinge",
)
COSTS = {
    "plain": (None, np.eye(2), 0.5),
    "weights": (SquaredEuclidean(weights=[0.6, 1.7]), np.diag([0.6, 1.7]), 0.5),
    "sigmas": (None, np.eye(2), np.array([0.6, 0.4])),
    "mahalanobis": (
        Mahalanobis(precision=[[1.0, 0.4], [0.4, 0.8]]),
        np.array([[1.0, 0.4], [0.4, 0.8]]),
        np.array([0.6, 0.4]),
    ),
}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", CASES)
def test_the_plane_agrees_with_brute_force(name, cost) -> None:
    samples = np.array([[0.4, -0.3], [-1.0, 0.8], [0.1, 0.9]])
    data = UncertainParameter(2, samples=samples)
    loss, f, gradient, kinks = plane_case(name, data)
    ground, matrix, sigma = COSTS[cost]
    epsilon, dual = (0.5, 3.0) if name == "cvar" else (0.2, 1.5)
    if name == "cvar":
        sigma = np.multiply(sigma, 0.5)
    model, rule = strategy(loss, epsilon, sigma, ground)
    x = model.loss.layout.join({w: np.array([0.7, -0.5]), tau: 0.2})
    known = np.array([0.7, -0.5, 0.2])
    found = [
        brute_force(
            lambda z: f(known, z),
            lambda z: gradient(known, z),
            row,
            dual,
            epsilon,
            sigma,
            matrix,
            [k(known) for k in kinks],
            9.0,
        )
        for row in samples
    ]
    value, slope, grad = (np.mean([part[i] for part in found], axis=0) for i in range(3))
    expected = model.loss.layout.join({w: grad[:2], tau: grad[2] if len(grad) > 2 else 0.0})
    there = rule.slice(x, np.arange(3), STREAM)
    point = there.evaluate(dual)
    assert rule.exact
    assert there.diagnostics(dual) is None
    assert point.value == pytest.approx(value, abs=1e-8)
    assert point.slope == pytest.approx(slope, abs=1e-8)
    np.testing.assert_allclose(there.gradient(dual), expected, atol=1e-8)


def forms_in_the_plane(name, data, v):
    """Losses of rank two: loss, f, gradient in (w, v), and where f has kinks."""
    s, r = w @ data, v @ data

    def split(x, z):
        return z @ x[:2], z @ x[2:]

    def along(z, a, b):
        return np.concatenate([z * a[..., None], z * b[..., None]], axis=-1)

    def line(normal, level):
        return lambda first: (level - normal[0] * first) / normal[1]

    def sigmoid(t):
        return 1 / (1 + np.exp(-t))

    def largest(x, z):
        return np.stack([*split(x, z), np.full(z.shape[:-1], 0.1)]).argmax(axis=0)

    def steep(x, z):
        a, b = split(x, z)
        return np.maximum(a, b) ** 2 * 0.2 + 3 * np.maximum(a, b)

    def steep_gradient(x, z):
        a, b = split(x, z)
        slope = 0.4 * np.maximum(a, b) + 3
        return along(z, slope * (a > b), slope * (a <= b))

    return {
        "two logistic": (
            cp.logistic(s) + 0.5 * cp.logistic(-2 * r),
            lambda x, z: (
                np.logaddexp(0, split(x, z)[0]) + 0.5 * np.logaddexp(0, -2 * split(x, z)[1])
            ),
            lambda x, z: along(z, sigmoid(split(x, z)[0]), -sigmoid(-2 * split(x, z)[1])),
            lambda x: [],
        ),
        "three pieces": (
            cp.maximum(s, r, 0.1),
            lambda x, z: np.maximum(np.maximum(*split(x, z)), 0.1),
            lambda x, z: along(z, 1.0 * (largest(x, z) == 0), 1.0 * (largest(x, z) == 1)),
            lambda x: [line(x[:2] - x[2:], 0.0), line(x[:2], 0.1), line(x[2:], 0.1)],
        ),
        "kinks inside a square": (
            cp.square(cp.maximum(s, r)) * 0.2 + 3 * cp.maximum(s, r),
            steep,
            steep_gradient,
            lambda x: [line(x[:2] - x[2:], 0.0)],
        ),
    }[name]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", ["two logistic", "three pieces", "kinks inside a square"])
def test_two_directions_agree_with_brute_force(name, cost) -> None:
    samples = np.array([[0.4, -0.3], [-1.0, 0.8]])
    data, v = UncertainParameter(2, samples=samples), cp.Variable(2)
    loss, f, gradient, kinks = forms_in_the_plane(name, data, v)
    ground, matrix, sigma = COSTS[cost]
    epsilon, dual = 0.2, 1.5
    model, rule = strategy(loss, epsilon, sigma, ground)
    known = np.array([0.7, -0.5, -0.4, 0.6])
    x = model.loss.layout.join({w: known[:2], v: known[2:]})
    found = [
        brute_force(
            lambda z: f(known, z),
            lambda z: gradient(known, z),
            row,
            dual,
            epsilon,
            sigma,
            matrix,
            kinks(known),
            9.0,
        )
        for row in samples
    ]
    value, slope, grad = (np.mean([part[i] for part in found], axis=0) for i in range(3))
    there = rule.slice(x, np.arange(2), STREAM)
    assert rule.exact
    assert there.evaluate(dual).value == pytest.approx(value, abs=1e-8)
    assert there.evaluate(dual).slope == pytest.approx(slope, abs=1e-7)
    expected = model.loss.layout.join({w: grad[:2], v: grad[2:]})
    np.testing.assert_allclose(there.gradient(dual), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "weights", "mahalanobis", "frozen"])
def test_affine_losses_agree_with_the_closed_form(kind) -> None:
    rng = np.random.default_rng(1)
    data = UncertainParameter(5, samples=rng.normal(size=(7, 5)))
    x = cp.Variable(5)
    factor = rng.normal(size=(5, 5))
    cost = {
        "plain": None,
        "weights": SquaredEuclidean(weights=[1.0, 2.0, 0.5, 1.5, 3.0]),
        "mahalanobis": Mahalanobis(precision=factor @ factor.T + np.eye(5)),
        "frozen": SquaredEuclidean(weights=[1.0, np.inf, 0.5, np.inf, 3.0]),
    }[kind]
    model, rule = strategy(x @ data + cp.sum_squares(x), 0.01, 0.3, cost)
    other = ClosedForm(model, Scales(0.01, 0.3))
    point = rng.normal(size=5)
    some = np.array([1, 4, 5])
    for samples in (np.arange(7), some):
        a, b = rule.slice(point, samples, STREAM), other.slice(point, samples, STREAM)
        for dual in (0.0, 0.3, 20.0):
            for part in ("value", "slope"):
                assert getattr(a.evaluate(dual), part) == pytest.approx(
                    getattr(b.evaluate(dual), part), rel=1e-10, abs=1e-10
                )
            np.testing.assert_allclose(a.gradient(dual), b.gradient(dual), atol=1e-9)


def importance_sampling(f, center, x, dual, epsilon, sigma, rng, draws=100_000):
    """phi and its standard error, draws around the best affine approximation of the loss."""
    v = 1 / (2 * dual / epsilon + 1 / sigma**2)
    move = np.zeros(len(center))
    for _ in range(50):
        move = v * f(center[None] + move, True)[0] / epsilon
    z = move + np.sqrt(v) * 1.1 * rng.standard_normal((draws, len(center)))
    proposal = -0.5 * ((z - move) ** 2).sum(1) / (1.21 * v) - 0.5 * len(center) * np.log(1.21 * v)
    target = (f(center + z, False) - dual * (z**2).sum(1)) / epsilon
    target -= 0.5 * (z**2).sum(1) / sigma**2 + len(center) * np.log(sigma)
    log = target - proposal
    weights = np.exp(log - log.max())
    value = epsilon * (log.max() + np.log(weights.mean()))
    return value, epsilon * weights.std() / weights.mean() / np.sqrt(draws)


@pytest.mark.parametrize("name", ["logistic", "cvar"])
def test_fifty_dimensions_agree_with_importance_sampling(name) -> None:
    rng = np.random.default_rng(0)
    d = 50
    samples = rng.normal(size=(2, d))
    b = rng.normal(size=d) / np.sqrt(d)
    x, data = cp.Variable(d), UncertainParameter(d, samples=samples)
    if name == "logistic":
        loss = cp.logistic(-(x @ data))
        epsilon, sigma, dual = 0.02, 0.2, 0.5

        def f(z, slope):
            s = z @ b
            return -b / (1 + np.exp(s))[:, None] if slope else np.logaddexp(0, -s)

    else:
        loss = tau + cp.pos(-(x @ data) - tau) / 0.05
        epsilon, sigma, dual = 2.0, 0.2, 5.0

        def f(z, slope):
            s = z @ b
            return -20 * b * (s < -0.1)[:, None] if slope else 0.1 + 20 * np.maximum(-s - 0.1, 0)

    model, rule = strategy(loss, epsilon, sigma)
    point = model.loss.layout.join({x: b, tau: 0.1})
    for k in range(2):
        value = rule.slice(point, np.array([k]), STREAM).evaluate(dual).value
        runs = [importance_sampling(f, samples[k], b, dual, epsilon, sigma, rng) for _ in range(1)]
        assert value == pytest.approx(runs[0][0], abs=6 * runs[0][1] + 1e-6)


def two_pieces(smooth):
    """A maximum of two steep pieces, and the same inside a nonlinear function."""
    data = UncertainParameter(2, samples=np.column_stack([np.linspace(-0.4, 0.4, 9), np.ones(9)]))
    steep = cp.maximum(3 * data[0] * w[0], -4 * data[0] * w[0] + 0.3)
    if not smooth:
        return data, steep, lambda u: np.maximum(3 * u, -4 * u + 0.3)
    return (
        data,
        cp.square(cp.pos(steep)) * 0.1 + steep,
        lambda u: (
            0.1 * np.maximum(np.maximum(3 * u, -4 * u + 0.3), 0) ** 2
            + np.maximum(3 * u, -4 * u + 0.3)
        ),
    )


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("epsilon", [0.3, 0.02, 1e-3])
def test_two_far_modes_are_both_seen(smooth, epsilon) -> None:
    data, loss, f = two_pieces(smooth)
    sigma, dual = 0.5, 2.5
    _, rule = strategy(loss, epsilon, sigma)
    there = rule.slice(np.array([1.0, 0.0]), np.arange(9), STREAM)
    # The second coordinate is integrated by hand; the first one on a fine grid.
    grid, weights = panels(np.unique(np.concatenate([np.linspace(-8, 8, 4001), [0.3 / 7]])), 6)
    move = grid[None] - data.samples[:, :1]
    logs = (f(grid) - dual * move**2) / epsilon - 0.5 * move**2 / sigma**2
    logs = logs + np.log(weights) - 0.5 * np.log(2 * np.pi * sigma**2)
    expected = epsilon * (logsumexp(logs, axis=1) - 0.5 * np.log(1 + 2 * dual * sigma**2 / epsilon))
    assert there.evaluate(dual).value == pytest.approx(expected.mean(), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("name", ["cvar", "logistic", "least squares", "huber"])
def test_small_temperatures_approach_the_worst_case(name, epsilon) -> None:
    samples = np.array([[0.4, -0.3], [-1.0, 0.8]])
    data = UncertainParameter(2, samples=samples)
    loss, f, _, _ = plane_case(name, data)
    model, rule = strategy(loss, epsilon, 0.5)
    known = np.array([0.7, -0.5, 0.2])
    x = model.loss.layout.join({w: known[:2], tau: known[2]})
    dual = 20.0 if name == "cvar" else 1.5
    there = rule.slice(x, np.arange(2), STREAM)
    point = there.evaluate(dual)
    # The worst scenario lies along w.
    r = np.linspace(-12, 12, 2_000_001)
    worst = [
        (f(known, row + r[:, None] * known[:2]) - dual * r**2 * (known[:2] @ known[:2])).max()
        for row in samples
    ]
    assert np.isfinite([point.value, point.slope]).all()
    assert np.isfinite(there.gradient(dual)).all()
    assert point.value == pytest.approx(np.mean(worst), abs=20 * epsilon * (1 - np.log(epsilon)))


def central(function, x, step):
    moves = step * np.eye(len(x))
    return np.array([(function(x + m) - function(x - m)) / (2 * step) for m in moves])


def several_forms(name):
    rng = np.random.default_rng(4)
    data = UncertainParameter(4, samples=rng.normal(size=(5, 4)))
    other = UncertainParameter(3, samples=rng.normal(size=(5, 3)))
    label = UncertainParameter(samples=np.array([1.0, -1.0, 1.0, -1.0, 0.0]))
    x, y = cp.Variable(4), cp.Variable(3)
    hold = SquaredEuclidean(weights={label: np.inf})
    A = rng.normal(size=(2, 4))
    return {
        "two forms": (cp.logistic(x @ data) + 0.3 * cp.huber(x[::-1] @ data - 0.2), None),
        "two forms, one direction": (0.4 * (x @ data) + cp.pos(-2 * (x @ data) - 0.3), None),
        "two parameters": (cp.logistic(x @ data - y @ other), None),
        "pieces in the plane": (
            cp.maximum(x @ data, y @ other - 0.1, 0.2 - 0.5 * (x @ data)) + 0.1 * cp.sum(y),
            None,
        ),
        "sum of hinges": (cp.pos(1 - x @ data) + cp.pos(y @ other), None),
        "vector form": (0.3 * cp.norm1(A @ data - x[:2]), None),
        "product of two forms": (0.1 * (x @ data) * (y @ other), None),
        "label": (cp.logistic(-label * (x @ data + y[0])), hold),
        "label outside": (cp.exp(label) * cp.logistic(x @ data + label * y[0]), hold),
        "label and hinge": (cp.pos(1 - label * (x @ data + y[0])), hold),
        "label and square": (cp.square(label - x @ data), hold),
        "label and weights": (
            cp.logistic(-label * (x @ data)) + cp.pos(label * (y @ other)),
            SquaredEuclidean(weights={label: np.inf, data: np.array([1.0, 2.0, 0.5, 0.7])}),
        ),
        "no moving data": (
            cp.logistic(label * x[0]),
            SquaredEuclidean(weights={label: np.inf}),
        ),
    }[name]


FORMS = (
    "two forms",
    "two forms, one direction",
    "two parameters",
    "pieces in the plane",
    "sum of hinges",
    "vector form",
    "product of two forms",
    "label",
    "label outside",
    "label and hinge",
    "label and square",
    "label and weights",
    "no moving data",
)


@pytest.mark.parametrize("name", FORMS)
def test_several_forms_agree_with_draws_and_differences(name) -> None:
    loss, cost = several_forms(name)
    epsilon, sigma, dual = 0.3, 0.4, 0.8
    model, rule = strategy(loss, epsilon, sigma, cost)
    assert rule.exact
    rng = np.random.default_rng(7)
    x = rng.normal(size=model.loss.dimension) * 0.6
    samples = np.arange(5)
    there = rule.slice(x, samples, STREAM)
    point = there.evaluate(dual)

    def value(x, dual):
        return rule.slice(x, samples, STREAM).evaluate(dual).value

    # Values: draws from the reference.
    draws = 200_000
    noise = sigma * rng.standard_normal((draws, model.joint.dimension))
    noise[:, model.cost.frozen] = 0.0
    means, errors = [], []
    for row in model.joint.matrix:
        rows = row + noise
        exponent = (model.loss.values(x, rows) - dual * model.cost(row[None], rows)) / epsilon
        weights = np.exp(exponent - exponent.max())
        means.append(epsilon * (exponent.max() + np.log(weights.mean())))
        errors.append(epsilon * weights.std() / weights.mean() / np.sqrt(draws))
    assert point.value == pytest.approx(np.mean(means), abs=6 * np.mean(errors) + 1e-12)
    # Derivatives: central differences.
    step = 1e-4
    slope = (value(x, dual + step) - value(x, dual - step)) / (2 * step)
    assert point.slope == pytest.approx(slope, abs=1e-6)
    np.testing.assert_allclose(
        there.gradient(dual), central(lambda z: value(z, dual), x, 1e-4), atol=2e-6
    )


def many_forms(name, m=4):
    rng = np.random.default_rng(5)
    data = UncertainParameter(6, samples=rng.normal(size=(3, 6)))
    X = cp.Variable((m, 6))
    return {
        "log-sum-exp": cp.log_sum_exp(X @ data),
        "maximum": cp.max(X @ data),
        "sum of logistic": cp.sum(cp.logistic(X @ data)),
    }[name]


@pytest.mark.parametrize("name", ["log-sum-exp", "maximum", "sum of logistic"])
def test_four_directions_are_drawn_around_the_modes(name) -> None:
    epsilon, sigma, dual = 0.1, 0.3, 1.5
    model = model_of(many_forms(name))
    assert "4 directions" in low_rank_refusal(model)
    rule = Tilted(model, Scales(epsilon, sigma, 2000))
    rng = np.random.default_rng(8)
    x = rng.normal(size=24) * 0.7
    rule.refresh(x, dual)
    there = rule.slice(x, np.arange(3), STREAM)
    point, about = there.evaluate(dual), there.diagnostics(dual)
    assert about.smallest_effective_size > 0.3 * about.draws
    draws = 2_000_000
    v = 1 / (2 * dual / epsilon + 1 / sigma**2)
    noise = np.sqrt(v) * rng.standard_normal((draws, 6))
    values, errors = [], []
    for row in model.joint.matrix:
        exponent = model.loss.values(x, row + noise) / epsilon
        weights = np.exp(exponent - exponent.max())
        values.append(
            epsilon * (exponent.max() + np.log(weights.mean()) + 3 * np.log(v / sigma**2))
        )
        errors.append(epsilon * weights.std() / weights.mean() / np.sqrt(draws))
    tolerance = 6 * np.hypot(np.mean(errors), about.standard_error)
    assert point.value == pytest.approx(np.mean(values), abs=tolerance)
    slope = (there.evaluate(dual + 1e-3).value - there.evaluate(dual - 1e-3).value) / 2e-3
    assert point.slope == pytest.approx(slope, rel=0.01)

    def value(x):
        return rule.slice(x, np.arange(3), STREAM).evaluate(dual).value

    gradient = there.gradient(dual)
    difference = central(value, x, 1e-3)
    assert np.abs(gradient - difference).max() < 0.03 * np.abs(gradient).max()


def test_quadratic_losses_are_exact_in_any_rank() -> None:
    rng = np.random.default_rng(5)
    data = UncertainParameter(12, samples=rng.normal(size=(3, 12)))
    x = cp.Variable(12)
    _, rule = strategy(cp.sum_squares(x - data), 0.2, 0.3)
    assert rule.exact
    point = rng.normal(size=12)
    dual, epsilon = 1.7, 0.2
    there = rule.slice(point, np.arange(3), STREAM)
    # Coordinate by coordinate: E exp(((x - xi - z)^2 - l z^2)/eps), z ~ N(0, sigma^2).
    gap = point - data.samples
    precision = 1 / 0.09 + 2 * (dual - 1) / epsilon
    logs = gap**2 / epsilon + 0.5 * (2 * gap / epsilon) ** 2 / precision
    logs -= 0.5 * np.log(0.09 * precision)
    assert there.evaluate(dual).value == pytest.approx(epsilon * logs.sum(axis=1).mean(), rel=1e-12)
    moved = gap + 2 * gap / epsilon / precision
    np.testing.assert_allclose(there.gradient(dual), 2 * moved.mean(axis=0), rtol=1e-10)


@pytest.mark.parametrize("power", ["square", "squared hinge", "exponential"])
def test_a_loss_that_outgrows_the_cost_is_infinite(power) -> None:
    data = UncertainParameter(2, samples=np.array([[0.4, -0.3], [-1.0, 0.8]]))
    s = w @ data
    loss = {
        "square": cp.square(1 - s),
        "squared hinge": cp.square(cp.pos(1 - s)),
        "exponential": cp.exp(s),
    }[power]
    _, rule = strategy(loss, 0.1, 1.0)
    there = rule.slice(np.array([1.0, 1.0]), np.arange(2), STREAM)
    point = there.evaluate(0.5)
    assert point.value == np.inf
    assert point.slope == -np.inf
    if power != "exponential":
        found = minimise_dual(there.evaluate, 0.1)
        assert np.isfinite(found.value)
        assert found.dual > 1.9
        assert np.isfinite(there.gradient(found.dual)).all()


def test_one_sample_and_duplicates_and_a_zero_decision() -> None:
    one = UncertainParameter(2, samples=[[0.4, -0.3]])
    twice = UncertainParameter(2, samples=[[0.4, -0.3], [0.4, -0.3]])
    values = []
    for data in (one, twice):
        _, rule = strategy(cp.logistic(w @ data), 0.1, 0.3)
        values.append(
            rule.slice(np.array([0.3, 1.0]), np.arange(data.count), STREAM).evaluate(1.0).value
        )
        still = rule.slice(np.zeros(2), np.arange(data.count), STREAM)
        # At w = 0 nothing moves the loss: log 2 less what the cost takes.
        expected = np.log(2) - 0.1 * np.log(1 + 2 * 0.09 / 0.1)
        assert still.evaluate(1.0).value == pytest.approx(expected, rel=1e-12)
        assert np.isfinite(still.gradient(1.0)).all()
    assert values[0] == pytest.approx(values[1], rel=1e-13)


def test_subsets_average_to_the_whole() -> None:
    loss, cost = several_forms("label and weights")
    model, rule = strategy(loss, 0.3, 0.4, cost)
    x = np.random.default_rng(0).normal(size=model.loss.dimension)
    whole = rule.slice(x, np.arange(5), STREAM)
    parts = [rule.slice(x, np.array([k]), STREAM) for k in range(5)]
    assert whole.evaluate(0.7).value == pytest.approx(
        np.mean([p.evaluate(0.7).value for p in parts])
    )
    np.testing.assert_allclose(
        whole.gradient(0.7), np.mean([p.gradient(0.7) for p in parts], axis=0), atol=1e-9
    )


@pytest.mark.parametrize("name", ["label", "two parameters", "label and weights"])
def test_many_samples_are_taken_in_chunks(monkeypatch, name) -> None:
    loss, cost = several_forms(name)
    model, rule = strategy(loss, 0.3, 0.4, cost)
    x = np.random.default_rng(0).normal(size=model.loss.dimension)
    whole = rule.slice(x, np.arange(5), STREAM)
    expected, gradient = whole.evaluate(0.7), whole.gradient(0.7)
    monkeypatch.setattr("wdro_model.objectives.integration.low_rank.slice.LINE_CHUNK", 2)
    monkeypatch.setattr("wdro_model.objectives.integration.low_rank.slice.PLANE_CHUNK", 2)
    _, rule = strategy(loss, 0.3, 0.4, cost)
    parts = rule.slice(x, np.arange(5), STREAM)
    assert parts.evaluate(0.7).value == pytest.approx(expected.value, rel=1e-12)
    assert parts.evaluate(0.7).slope == pytest.approx(expected.slope, rel=1e-10)
    np.testing.assert_allclose(parts.gradient(0.7), gradient, atol=1e-12)


@pytest.mark.parametrize("name", ["label", "two parameters"])
def test_a_batch_may_repeat_samples_in_any_order(name) -> None:
    loss, cost = several_forms(name)
    model, rule = strategy(loss, 0.3, 0.4, cost)
    x = np.random.default_rng(0).normal(size=model.loss.dimension)
    batch = [4, 1, 1, 3, 0]
    whole = rule.slice(x, np.array(batch), STREAM)
    parts = [rule.slice(x, np.array([k]), STREAM) for k in batch]
    assert whole.evaluate(0.7).value == pytest.approx(
        np.mean([p.evaluate(0.7).value for p in parts])
    )
    np.testing.assert_allclose(
        whole.gradient(0.7), np.mean([p.gradient(0.7) for p in parts], axis=0), atol=1e-9
    )


def test_what_is_refused_and_why() -> None:
    data = UncertainParameter(2, samples=np.ones((3, 2)))
    box = UncertainParameter(2, samples=np.ones((3, 2)), support=Nonnegative())
    wide = UncertainParameter(100, samples=np.ones((3, 100)))
    ten = UncertainParameter(10, samples=np.ones((3, 10)))
    x = cp.Variable(100)
    assert low_rank_refusal(model_of(cp.logistic(w @ data))) is None
    assert "support" in low_rank_refusal(model_of(cp.logistic(w @ box)))
    assert "quadratic" in low_rank_refusal(model_of(cp.logistic(w @ data), Norm(2)))
    assert "64 affine forms" in low_rank_refusal(model_of(cp.norm1(x - wide)))
    assert "10 directions" in low_rank_refusal(model_of(cp.norm1(x[:10] - ten)))
    callable_loss = CallableLoss(
        lambda x, s: (np.zeros(3), lambda weights: {w: np.zeros(2)}), [w], [data]
    )
    ball = WassersteinBall(0.1)
    assert "callable" in low_rank_refusal(Problem(callable_loss, [], ball)._model)
    # A support that holds a parameter which never moves is no obstacle.
    held = SquaredEuclidean(weights={box: np.inf})
    assert low_rank_refusal(model_of(cp.logistic(w @ data - cp.sum(box)), held)) is None


# ------------------------------------------------------------------ integrals along a line
@settings(max_examples=40, deadline=None)
@given(
    a=st.lists(st.floats(-3, 3), min_size=1, max_size=4),
    b=st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    scale=st.sampled_from([1.0, 10.0, 1e3, 1e5]),
)
def test_panels_agree_with_pieces_in_closed_form(a, b, scale) -> None:
    from wdro_model.objectives.integration.normal import integrate_pieces

    a, b = scale * np.array(a), np.sqrt(scale) * np.array(b[: len(a)])
    exact = integrate_pieces(a[None], b[None])
    found = integrate_lines(
        lambda owner, t: (a + b * t[:, None]).max(axis=1),
        *whole_lines(1),
        curvature="convex",
        tolerance=1e-11,
    )
    noise = 1e-9 + 1e-14 * (scale + np.abs(b).max() ** 2)
    assert found.log_mass[0] == pytest.approx(exact.log_mass[0], abs=noise)
    assert (found.weights * found.points[:, 0]).sum() == pytest.approx(
        (exact.weights * exact.points[:, 0]).sum(), abs=1e-6 * (1 + np.abs(b).max())
    )


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
def test_oscillating_functions_along_a_line(scale) -> None:
    def H(t):
        return scale * np.sin(2 * t / np.sqrt(scale)) - 0.1 * scale * np.abs(t / np.sqrt(scale))

    found = integrate_lines(lambda owner, t: H(t), *whole_lines(1))
    grid, weights = panels(np.linspace(-200, 200, 8001), 8)
    expected = logsumexp(H(grid) - 0.5 * grid**2 + np.log(weights)) - 0.5 * np.log(2 * np.pi)
    assert found.log_mass[0] == pytest.approx(expected, rel=1e-9)
