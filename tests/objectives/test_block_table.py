"""Tables of the loss over two coordinates of the data, beside the loss evaluated at every node."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval
from wdro_model.objectives.integration.conditional.integral import Sight
from wdro_model.objectives.integration.conditional.table import (
    TableLoss,
    Tables,
    chebyshev,
    derivatives,
    extremal_points,
    transform,
)

import wdro_model as wdro
from wdro_model.objectives.integration import Scales
from wdro_model.objectives.integration.conditional.by_blocks import Conditional
from wdro_model.objectives.integration.conditional.loss import LossAtNodes
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.uncertainty.supports import Box

ARCS, SAMPLES = 4, 6


def bpr(x, time, alpha, beta):
    return wdro.traffic.beckmann(x, np.full(ARCS, 0.8), time, alpha, beta)


def exponential(x, time, alpha, beta):
    return time @ x * cp.exp(0.3 * alpha - 0.2 * beta) + cp.square(beta) * cp.sum(x)


def logistic(x, time, alpha, beta):
    return cp.logistic(alpha + 0.5 * beta) * (time @ x) + cp.sum(cp.multiply(x, time)) * beta


def product_of_both(x, time, alpha, beta):
    return alpha * beta * (time @ cp.square(x)) - alpha * cp.sum(x)


LOSSES = {"bpr": bpr, "exp": exponential, "logistic": logistic, "product": product_of_both}


def rule_of(loss, seed, *, tight=False, ends=((0.05, 1.4), (0.8, 5.0)), epsilon=0.1, **scales):
    """Conditional integration of a loss; tight: bounds of the times close to the samples."""
    rng = np.random.default_rng(seed)
    times = rng.uniform(0.5, 1.5, (SAMPLES, ARCS))
    room = rng.uniform(0.02, 0.1) if tight else 40.0
    time = wdro.UncertainParameter(
        ARCS, samples=times, support=Box(times.min() - room, times.max() + room)
    )
    alpha = wdro.UncertainParameter(
        (), samples=rng.uniform(0.1, 0.6, SAMPLES), support=Box(*ends[0])
    )
    beta = wdro.UncertainParameter(
        (), samples=rng.uniform(1.0, 4.0, SAMPLES), support=Box(*ends[1])
    )
    x = cp.Variable(ARCS, nonneg=True)
    expression = (
        LOSSES[loss](x, time, alpha, beta) if isinstance(loss, str) else loss(x, time, alpha, beta)
    )
    ball = wdro.WassersteinBall(0.05)
    model = wdro.Problem(cp.Minimize(expression), [x <= 2], ball, assume_convex=True)._model
    return Conditional(model, Scales(epsilon, scales.get("sigma", 0.2), 20)), rng


def nodes(rule, rng, size):
    """Samples, some of them twice, and moves inside the support."""
    owners = np.sort(rng.integers(SAMPLES, size=SAMPLES + 2))
    lower, upper = rule.frame.bounds(owners)
    lower, upper = np.maximum(lower, -3.0), np.minimum(upper, 3.0)
    share = rng.uniform(size=(len(owners), size, rule.frame.dimension))
    return owners, lower[:, None] + share * (upper - lower)[:, None]


def pair(rule, x, owners, moves):
    """The loss read off a table, and evaluated."""
    table = rule._tables.at(x)
    assert table is not None
    assert table.covers(owners, moves)
    return TableLoss(table, owners, moves), LossAtNodes(rule, x, owners, moves)


@settings(max_examples=60, deadline=None)
@given(
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 10**6),
    tight=st.booleans(),
    size=st.sampled_from([1, 7]),
    dual=st.floats(0.05, 50.0),
)
def test_a_table_says_what_the_loss_says_at_every_node(loss, seed, tight, size, dual):
    rule, rng = rule_of(loss, seed, tight=tight)
    x, y = rng.uniform(0.1, 1.5, (2, ARCS))
    owners, moves = nodes(rule, rng, size)
    read, truth = pair(rule, x, owners, moves)
    np.testing.assert_allclose(read.values, truth.values, rtol=0, atol=1e-9)
    np.testing.assert_allclose(read.slopes.squares, truth.slopes.squares, rtol=0, atol=1e-9)
    inner, other = (rule.block.integrate(found.slopes, dual) for found in (read, truth))
    assert (other.near is not None) <= (inner.near is not None)
    np.testing.assert_allclose(inner.log_value, other.log_value, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(inner.cost, other.cost, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(read.outward(inner), truth.outward(other), rtol=1e-7, atol=1e-7)
    weights = rng.uniform(size=moves.shape[:2])
    for at in (x, y):  # the adversary replies to x, also where gradients are taken elsewhere
        np.testing.assert_allclose(
            read.gradient(at, inner, weights), truth.gradient(at, other, weights), rtol=1e-8
        )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), log_factor=st.floats(-12, 0), reach=st.floats(0.0, 0.9))
def test_no_bound_that_a_node_sees_is_missed(seed, log_factor, reach):
    rule, rng = rule_of("bpr", seed, tight=True)
    owners, moves = nodes(rule, rng, 9)
    read, truth = pair(rule, rng.uniform(0.1, 1.5, ARCS), owners, moves)
    sight = Sight(1.0, np.full(ARCS, np.exp(log_factor)), np.full(ARCS, reach))
    found, wanted = (set(zip(*loss.slopes.near(sight))) for loss in (read, truth))
    assert wanted <= found


def test_one_coordinate_beside_the_affine_block():
    rng = np.random.default_rng(3)
    times = rng.uniform(0.5, 1.5, (SAMPLES, ARCS))
    time = wdro.UncertainParameter(ARCS, samples=times, support=Box(0.0, 3.0))
    beta = wdro.UncertainParameter((), samples=rng.uniform(1, 4, SAMPLES), support=Box(0.8, 5.0))
    x = cp.Variable(ARCS, nonneg=True)
    ball = wdro.WassersteinBall(0.05)
    model = wdro.Problem(cp.Minimize(bpr(x, time, 0.3, beta)), [x <= 2], ball)._model
    rule = Conditional(model, Scales(0.1, 0.2, 20)).surrogate()
    assert rule.frame.dimension == 1
    at, (owners, moves) = rng.uniform(0.1, 1.5, ARCS), nodes(rule, rng, 5)
    read, truth = pair(rule, at, owners, moves)
    inner, other = (rule.block.integrate(found.slopes, 2.0) for found in (read, truth))
    np.testing.assert_allclose(read.values, truth.values, atol=1e-9)
    np.testing.assert_allclose(read.outward(inner), truth.outward(other), rtol=0, atol=1e-7)
    weights = rng.uniform(size=moves.shape[:2])
    np.testing.assert_allclose(
        read.gradient(at, inner, weights), truth.gradient(at, other, weights), rtol=1e-8
    )


def test_nodes_beyond_a_table_are_evaluated():
    rule, rng = rule_of("exp", 1, ends=((-np.inf, np.inf), (-np.inf, np.inf)))
    x = rng.uniform(0.1, 1.5, ARCS)
    owners, moves = np.arange(3), np.full((3, 1, 2), 0.1)
    assert isinstance(rule.looked(x, owners, moves), TableLoss)
    far = rule.looked(x, owners, moves + 20.0)
    assert isinstance(far, LossAtNodes)
    assert far.values[0, 0] == pytest.approx(
        rule.loss.values(x, rule.frame.rows(owners[:1], moves[0] + 20.0))[0]
    )


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda x, t, a, b: (t @ x) * cp.abs(b - 2.0) + a, "a kink"),
        (lambda x, t, a, b: (t @ x) * cp.exp(cp.square(40 * b - 80)) + a, "too steep"),
        (lambda x, t, a, b: (t @ x) * cp.log(b - 0.8) + a, "no value at the end of the support"),
    ],
)
def test_what_polynomials_do_not_resolve_has_no_table(loss, why):
    rule, rng = rule_of(loss, 2)
    assert rule._tables.at(rng.uniform(0.1, 1.5, ARCS)) is None, why


def test_where_there_is_no_table_it_is_not_tried_again_and_again():
    rule, rng = rule_of(lambda x, t, a, b: (t @ x) * cp.exp(cp.square(40 * b - 80)) + a, 2)
    calls = []
    for at in rng.uniform(0.1, 1.5, (6, ARCS)):
        assert rule._tables.at(at) is None
        calls.append(rule.loss.calls)
    assert calls[0] < calls[1] < calls[2] == calls[-1]


def test_a_loss_that_only_looks_like_a_polynomial_at_the_points_is_found_out():
    # T_64 is 1 at every point of the first table, which takes it for a constant.
    def wave(x, time, alpha, beta):
        return (time @ x) * (1.0 + 0.5 * steep_wave(beta)) + alpha

    def steep_wave(beta):
        u = (2 * beta - 5.8) / 4.2
        for _ in range(6):
            u = 2 * cp.square(u) - 1
        return u

    rule, rng = rule_of(wave, 4)
    assert rule._tables.at(rng.uniform(0.1, 1.5, ARCS)) is None


def test_samples_with_labels_of_their_own_have_no_common_table():
    # One sample differs, and it is none of those at which a table is compared with the loss.
    rng, labels = np.random.default_rng(0), np.where(np.arange(40) == 1, 2.0, 1.0)
    time = wdro.UncertainParameter(2, samples=rng.uniform(1, 2, (40, 2)), support=Box(0, 3))
    beta = wdro.UncertainParameter(2, samples=rng.uniform(1, 2, (40, 2)), support=Box(0.5, 3))
    label = wdro.UncertainParameter((), samples=labels)
    x = cp.Variable(2, nonneg=True)
    loss = (time @ x) * cp.exp(0.1 * cp.sum(beta) * label)
    cost = wdro.costs.SquaredEuclidean(weights={time: 1.0, beta: 1.0, label: np.inf})
    model = wdro.Problem(cp.Minimize(loss), [x <= 2], wdro.WassersteinBall(0.05, cost))._model
    rule = Conditional(model, Scales(0.1, 0.2, 20))
    assert rule._tables.at(np.ones(2)) is None
    assert np.isfinite(rule.slice(np.ones(2), np.arange(40), Stream(0)).evaluate(5.0).value)


@pytest.mark.parametrize("size", [1, 2, 5, 33])
def test_interpolation_at_extremal_points(size):
    rng = np.random.default_rng(size)
    wanted, u = rng.normal(size=size), rng.uniform(-1, 1, 7)
    values = chebval(extremal_points(size), wanted)
    np.testing.assert_allclose(transform(size) @ values, wanted, atol=1e-12)
    basis = chebyshev(u, size)
    np.testing.assert_allclose(
        wanted @ basis, np.polynomial.chebyshev.chebval(u, wanted), atol=1e-12
    )
    slopes = np.polynomial.chebyshev.chebval(u, np.polynomial.chebyshev.chebder(wanted))
    np.testing.assert_allclose(wanted @ derivatives(u, basis), slopes, atol=1e-10 * size**2)


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("tight", [False, True])
def test_cells_read_the_same_off_a_table(loss, tight, monkeypatch):
    """All samples are left to cells: values, costs and gradients, with bounds near and far."""

    def found():
        rule, rng = rule_of(loss, 5, tight=tight)
        x = rng.uniform(0.1, 1.5, ARCS)
        rule.refresh(x, 2.0)
        rule.unresolved[:] = True
        inner = rule.slice(x, np.arange(SAMPLES), Stream(0))
        return inner.evaluate(2.0), inner.gradient(2.0), rule._tables.at(x)

    point, gradient, table = found()
    assert table is not None
    monkeypatch.setattr(Tables, "at", lambda self, x: None)
    truth, wanted, _ = found()
    assert point.value == pytest.approx(truth.value, rel=1e-8)
    assert point.slope == pytest.approx(truth.slope, rel=1e-7)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-7)
