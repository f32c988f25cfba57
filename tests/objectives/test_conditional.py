"""Conditional integration against brute-force grids, tilted draws and finite differences."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.quadrature import brute_force
from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.integration import Scales
from wdro_model.objectives.integration.conditional.by_blocks import (
    Conditional,
    conditional_refusal,
)
from wdro_model.objectives.integration.conditional.loss import affine_block
from wdro_model.objectives.integration.conditional.nodes import FINE
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.objectives.integration.tilted import Tilted
from wdro_model.uncertainty.costs import Norm, SquaredEuclidean
from wdro_model.uncertainty.supports import Box, Nonnegative, Where

pytestmark = pytest.mark.filterwarnings("error")


def traffic(
    links=1, count=3, *, time_support=None, cost=None, radius=0.05, seed=0, atom=False, room=0.8
):
    """Beckmann's loss: affine in the free-flow times, given alpha and beta.

    atom: written by the atom of the library instead of CVXPY's own.
    """
    rng = np.random.default_rng(seed)
    time = wdro.UncertainParameter(
        links,
        samples=rng.uniform(0.5, 1.5, (count, links)),
        support=Box(0.3, 1.8) if time_support is None else time_support,
        name="time",
    )
    alpha = wdro.UncertainParameter(
        (), samples=rng.uniform(0.2, 0.5, count), support=Box(0.05, 0.8), name="alpha"
    )
    beta = wdro.UncertainParameter(
        (), samples=rng.uniform(1.5, 2.5, count), support=Box(1.0, 3.0), name="beta"
    )
    x = cp.Variable(links, name="x")
    capacity = np.full(links, room)
    delay = alpha * cp.multiply(x, cp.power(x / capacity, beta)) / (beta + 1)
    loss = wdro.traffic.beckmann(x, capacity, time, alpha, beta) if atom else time @ (x + delay)
    ball = wdro.WassersteinBall(radius, cost)
    return wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 3], ball)._model


def conditional(model, epsilon, sigma) -> Conditional:
    return Conditional(model, Scales(epsilon, sigma, 20))


def everything(model):
    return np.arange(model.joint.size)


def at_point(rule, model, x, dual, seed=0):
    rule.refresh(x, dual)
    return rule.slice(x, everything(model), Stream(seed))


def bounds(model):
    return {"lower": model.joint.bounds[0], "upper": model.joint.bounds[1]}


@pytest.mark.parametrize(("dual", "atom"), [(0.2, False), (2.0, True), (30.0, False)])
@pytest.mark.parametrize("epsilon", [0.5, 0.05])
def test_traffic_loss_agrees_with_a_grid_over_all_the_data(dual, epsilon, atom):
    model = traffic(atom=atom)
    x, sigma = np.array([0.9]), 0.25
    truth = brute_force(
        lambda z: model.loss.values(x, z),
        model.cost,
        model.joint.matrix,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=1.6,
        size=150,
        **bounds(model),
    )
    rule = conditional(model, epsilon, sigma)
    point = at_point(rule, model, x, dual).evaluate(dual)
    assert rule.exact
    assert point.value == pytest.approx(truth[0], rel=2e-4)
    assert point.slope == pytest.approx(truth[1], rel=2e-3)


def test_unbounded_times_agree_with_a_grid_and_give_a_curvature():
    model = traffic(time_support=Box(-np.inf, np.inf), count=2)
    x, sigma, epsilon, dual = np.array([1.2]), 0.2, 0.2, 3.0
    truth = brute_force(
        lambda z: model.loss.values(x, z),
        model.cost,
        model.joint.matrix,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=1.8,
        size=150,
        **bounds(model),
    )
    inner = at_point(conditional(model, epsilon, sigma), model, x, dual)
    assert inner.evaluate(dual).value == pytest.approx(truth[0], rel=1e-4)
    h = 1e-4
    slope = (inner.evaluate(dual + h).value - inner.evaluate(dual - h).value) / (2 * h)
    curvature = (inner.evaluate(dual + h).slope - inner.evaluate(dual - h).slope) / (2 * h)
    assert inner.evaluate(dual).slope == pytest.approx(slope, rel=1e-6)
    assert inner.evaluate(dual).curvature == pytest.approx(curvature, rel=1e-5)


@pytest.mark.parametrize("support", [None, Box(-np.inf, np.inf), Nonnegative()])
def test_derivatives_agree_with_central_differences(support):
    model = traffic(links=4, time_support=support)
    rule = conditional(model, 0.1, 0.2)
    x, dual, h = np.array([0.5, 1.5, 2.0, 0.9]), 1.5, 1e-5
    inner = at_point(rule, model, x, dual)

    def value(point, at):
        return rule.slice(point, everything(model), Stream(0)).evaluate(at).value

    numeric = [(value(x + h * e, dual) - value(x - h * e, dual)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(inner.gradient(dual), numeric, rtol=1e-6, atol=1e-7)
    slope = (inner.evaluate(dual + h).value - inner.evaluate(dual - h).value) / (2 * h)
    assert inner.evaluate(dual).slope == pytest.approx(slope, rel=1e-6)


def test_many_links_agree_with_tilted_draws():
    model = traffic(links=30, count=4)
    x, dual, epsilon, sigma = np.full(30, 1.1), 2.0, 0.1, 0.1
    inner = at_point(conditional(model, epsilon, sigma), model, x, dual)
    draws = Tilted(model, Scales(epsilon, sigma, 4000))
    sampled = at_point(draws, model, x, dual)
    error = sampled.diagnostics(dual).standard_error
    assert inner.evaluate(dual).value == pytest.approx(
        sampled.evaluate(dual).value, abs=5 * error + 1e-4
    )
    np.testing.assert_allclose(inner.gradient(dual), sampled.gradient(dual), rtol=0.01)


def test_tilted_draws_settle_at_the_same_dual_variable():
    """In many dimensions fixed draws do not tell the dual; moving the proposals along does."""
    model = traffic(links=60, count=6, radius=0.2)
    x, epsilon, sigma = np.full(60, 0.9), 0.05, 0.05
    inner = conditional(model, epsilon, sigma).slice(x, everything(model), Stream(0))
    exact = minimise_dual(inner.evaluate, model.radius, 1.0)
    rule = Tilted(model, Scales(epsilon, sigma, 200))
    for guess in (None, 0.1 * exact.dual, 20 * exact.dual):
        assert rule.settle_dual(x, guess) == pytest.approx(exact.dual, rel=0.03)
    sampled = rule.slice(x, everything(model), Stream(0))
    found = minimise_dual(sampled.evaluate, model.radius, exact.dual)
    assert found.dual == pytest.approx(exact.dual, rel=0.03)
    assert found.value == pytest.approx(exact.value, rel=1e-4)
    assert sampled.diagnostics(found.dual).effective_size > 100


def test_the_grid_follows_when_decision_and_dual_move_far():
    model = traffic(links=3)
    x, y = np.array([0.2, 0.1, 0.3]), np.array([2.5, 1.5, 2.0])
    rule, fresh = (conditional(model, 0.05, 0.2) for _ in range(2))
    at_point(rule, model, x, 0.01)
    for _ in range(3):
        moved = rule.slice(y, everything(model), Stream(0))
        dual = minimise_dual(moved.evaluate, model.radius, 1.0).dual
        moved.gradient(dual)
    truth = at_point(fresh, model, y, dual)
    assert moved.evaluate(dual).value == pytest.approx(truth.evaluate(dual).value, rel=1e-5)
    np.testing.assert_allclose(moved.gradient(dual), truth.gradient(dual), rtol=1e-3)


def test_a_finer_grid_changes_nothing():
    model = traffic(links=5)
    x, dual = np.full(5, 1.6), 1.0
    usual = at_point(conditional(model, 0.05, 0.3), model, x, dual)
    finer = replace(FINE, step=0.3, extent=7.5, reach=7.8)
    fine = at_point(Conditional(model, Scales(0.05, 0.3, 20), finer), model, x, dual)
    assert usual.evaluate(dual).value == pytest.approx(fine.evaluate(dual).value, rel=1e-7)
    np.testing.assert_allclose(usual.gradient(dual), fine.gradient(dual), rtol=1e-5)


def test_two_far_modes_of_the_rest_are_covered():
    """f = t (x + (s - 1/2)^2 * 4): convex in s on [0, 1], a mode at each end."""
    time = wdro.UncertainParameter((), samples=[1.0, 1.2], support=Box(0.2, 2.0), name="t")
    state = wdro.UncertainParameter((), samples=[0.52, 0.45], support=Box(0.0, 1.0), name="s")
    x = cp.Variable()
    loss = time * (x + 4 * cp.square(state - 0.5))
    model = wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 3], wdro.WassersteinBall(0.1))._model
    point, dual, epsilon, sigma = np.array([0.5]), 0.3, 0.05, 0.4
    truth = brute_force(
        lambda z: model.loss.values(point, z),
        model.cost,
        model.joint.matrix,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=2.0,
        size=1500,
        **bounds(model),
    )
    inner = at_point(conditional(model, epsilon, sigma), model, point, dual).evaluate(dual)
    assert inner.value == pytest.approx(truth[0], rel=1e-4)
    assert inner.slope == pytest.approx(truth[1], rel=1e-3)


def test_the_atom_and_ordinary_atoms_are_integrated_alike():
    x, dual = np.array([0.5, 1.5, 2.0, 0.0]), 1.5
    found = [
        at_point(conditional(model, 0.1, 0.2), model, x, dual)
        for model in (traffic(links=4), traffic(links=4, atom=True))
    ]
    points = [inner.evaluate(dual) for inner in found]
    assert points[0].value == pytest.approx(points[1].value, rel=1e-12)
    assert points[0].slope == pytest.approx(points[1].slope, rel=1e-10)
    np.testing.assert_allclose(*(inner.gradient(dual) for inner in found), rtol=1e-9)


# ------------------------------------------------------------------ modes far from the sample
def steep(count=2, radius=0.02):
    """f = t x (1 + exp(6 s) / 40), s in [0, 1]: more than the cost can hold at the edge s = 1."""
    time = wdro.UncertainParameter(
        (), samples=np.linspace(1.0, 1.2, count), support=Box(0.2, 2.0), name="t"
    )
    state = wdro.UncertainParameter(
        (), samples=np.linspace(0.1, 0.35, count), support=Box(0.0, 1.0), name="s"
    )
    x = cp.Variable(name="x")
    loss = time * (x + x * cp.exp(6 * state) / 40)
    return wdro.Problem(cp.Minimize(loss), [x >= 0.1, x <= 3], wdro.WassersteinBall(radius))._model


def by_panels(model, x, dual, epsilon, sigma, panels, nodes=6):
    """mean_k phi_k and its slope, by Gauss-Legendre panels over the box; panels: per coordinate."""
    t, w = np.polynomial.legendre.leggauss(nodes)
    axes, weights = [], []
    for low, high, count in zip(*model.joint.bounds, panels):
        half = (high - low) / (2 * count)
        middles = low + half * (2 * np.arange(count) + 1)
        axes.append((middles[:, None] + half * t).ravel())
        weights.append(np.tile(half * w, count))
    points = np.stack([m.ravel() for m in np.meshgrid(*axes, indexing="ij")], axis=1)
    volume = reduce(np.multiply.outer, weights).ravel()
    losses, values, slopes = model.loss.values(x, points), [], []
    for row in model.joint.matrix:
        reference = volume * np.exp(-0.5 * (((points - row) / sigma) ** 2).sum(axis=1))
        costs = ((points - row) ** 2).sum(axis=1)
        exponent = (losses - dual * costs) / epsilon
        tilted = reference * np.exp(exponent - exponent.max())
        mass = tilted.sum() / reference.sum()
        values.append(epsilon * (exponent.max() + np.log(mass)))
        slopes.append(-(tilted @ costs) / tilted.sum())
    return np.mean(values), np.mean(slopes)


def steep_truth(model, x, dual, epsilon, sigma):
    return by_panels(model, x, dual, epsilon, sigma, (25, 250))


def test_nodes_follow_the_dual_through_far_modes():
    """One rule, dual variables down and up again: modes at the edge come, win, lose and go."""
    model = steep()
    x, epsilon, sigma = np.array([0.7]), 0.05, 0.3
    rule = conditional(model, epsilon, sigma)
    rule.refresh(x, 50.0)
    for dual in (50.0, 12.0, 9.0, 7.5, 6.0, 2.0, 7.0, 8.5, 11.0, 40.0):
        truth = steep_truth(model, x, dual, epsilon, sigma)
        point = rule.slice(x, everything(model), Stream(0)).evaluate(dual)
        assert point.value == pytest.approx(truth[0], abs=5e-3 * epsilon), dual
        assert point.slope == pytest.approx(truth[1], rel=5e-3), dual


def test_nodes_follow_the_decision_through_far_modes():
    model = steep()
    dual, epsilon, sigma = 7.0, 0.05, 0.3
    rule = conditional(model, epsilon, sigma)
    rule.refresh(np.array([0.3]), dual)
    for value in (0.3, 0.5, 0.65, 0.7, 0.75, 1.5, 0.72, 0.4):
        x = np.array([value])
        truth = steep_truth(model, x, dual, epsilon, sigma)
        inner = rule.slice(x, everything(model), Stream(0))
        assert inner.evaluate(dual).value == pytest.approx(truth[0], abs=5e-3 * epsilon), value
        h = 1e-4
        ends = [steep_truth(model, x + s * h, dual, epsilon, sigma)[0] for s in (1, -1)]
        assert inner.gradient(dual)[0] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-3)


def test_a_minimum_where_a_sample_is_torn_between_two_modes():
    """The cost of the worst case jumps with the dual variable: the radius falls into the jump."""
    model = steep(radius=0.2)
    x, epsilon, sigma = np.array([0.7]), 0.02, 0.3
    rule = conditional(model, epsilon, sigma)
    inner = rule.slice(x, everything(model), Stream(0))
    found = minimise_dual(inner.evaluate, model.radius, inner.guess)
    duals = found.dual * np.linspace(0.94, 1.06, 13)
    values = [d * model.radius + steep_truth(model, x, d, epsilon, sigma)[0] for d in duals]
    assert found.value == pytest.approx(min(values), rel=1e-4)
    assert abs(int(np.argmin(values)) - 6) <= 1
    # Started near by, in small steps, it is found again.
    again = minimise_dual(inner.evaluate, model.radius, 1.02 * found.dual)
    assert again.dual == pytest.approx(found.dual, rel=1e-5)


def test_heavy_congestion_agrees_with_quadrature():
    """Flows of several capacities: the mode at the largest exponent takes part of the mass."""
    model = traffic(atom=True, room=0.25, count=2)
    x, sigma, epsilon = np.array([1.1]), 0.25, 0.5
    rule = conditional(model, epsilon, sigma)
    for dual in (20.0, 8.0, 4.0, 12.0):
        truth = by_panels(model, x, dual, epsilon, sigma, (8, 8, 20), 5)
        point = rule.slice(x, everything(model), Stream(0)).evaluate(dual)
        assert point.value == pytest.approx(truth[0], abs=5e-3 * epsilon), dual
        assert point.slope == pytest.approx(truth[1], rel=5e-3), dual


def test_a_loss_that_outgrows_the_cost_is_infinite():
    time = wdro.UncertainParameter((), samples=[1.0, 1.2], support=Box(0.2, 2.0), name="t")
    state = wdro.UncertainParameter((), samples=[0.5, 0.4], name="s")
    x = cp.Variable()
    loss = time * x * cp.exp(state)
    problem = wdro.Problem(cp.Minimize(loss), [x >= 1, x <= 2], wdro.WassersteinBall(0.1))
    rule = conditional(problem._model, 0.1, 0.2)
    inner = rule.slice(np.array([1.0]), np.arange(2), Stream(0))
    assert inner.evaluate(1.0).value == np.inf
    with pytest.raises(FloatingPointError, match="outgrows the cost"):
        inner.gradient(1.0)
    with pytest.raises(wdro.UnboundedError):
        problem.solve(method="smoothed", integration="conditional", epsilon=0.1)


# ------------------------------------------------------------------ fewer nodes, many scales
def test_fewer_nodes_come_close():
    model = traffic(links=5)
    x, dual, epsilon = np.full(5, 1.6), 1.0, 0.05
    rule = conditional(model, epsilon, 0.3)
    easier = rule.surrogate()
    assert easier is rule.surrogate()
    fine, coarse = (at_point(r, model, x, dual) for r in (rule, easier))
    assert coarse.evaluate(dual).value == pytest.approx(
        fine.evaluate(dual).value, abs=0.1 * epsilon
    )
    np.testing.assert_allclose(coarse.gradient(dual), fine.gradient(dual), rtol=5e-3)


def test_the_dual_of_fewer_nodes_is_taken_over():
    model = traffic(links=3)
    rule = conditional(model, 0.05, 0.2)
    easier, x = rule.surrogate(), np.array([0.5, 1.5, 1.0])
    first = easier.slice(x, everything(model), Stream(0))
    dual = minimise_dual(first.evaluate, model.radius, first.guess).dual
    first.gradient(dual)
    assert rule.slice(x, everything(model), Stream(0)).guess == dual


@pytest.mark.parametrize("support", [Box(0.3, 1.8), Box(-np.inf, np.inf), Nonnegative()])
@pytest.mark.parametrize("scales", [2, 20])
def test_deviations_of_any_kind_agree_with_quadrature_per_coordinate(support, scales):
    """With alpha and beta frozen the loss is affine in all that moves."""
    links, rng = 20, np.random.default_rng(5)
    parameters = {p.name(): p for p in traffic(links, time_support=support).joint.parameters}
    time, alpha, beta = (parameters[name] for name in ("time", "alpha", "beta"))
    y = cp.Variable(links, name="y")
    loss = wdro.traffic.beckmann(y, np.full(links, 0.8), time, alpha, beta)
    cost = SquaredEuclidean(weights={alpha: np.inf, beta: np.inf})
    ball = wdro.WassersteinBall(0.05, cost)
    model = wdro.Problem(cp.Minimize(loss), [y >= 0, y <= 3], ball)._model
    sigma = np.append(np.resize(rng.uniform(0.1, 0.5, scales), links), [0.2, 0.2])
    x, dual = rng.uniform(0.2, 1.5, links), 1.2
    rule = conditional(model, 0.1, sigma)
    assert len(rule.split.block.levels) == scales
    inner = at_point(rule, model, x, dual)
    rows = model.joint.matrix.copy()
    values, pullback = model.loss(x, rows)
    slopes = pullback.in_data(np.ones(len(rows)), (time,))
    gains, moves = by_coordinates(model.joint, slopes, sigma, dual, 0.1)
    assert inner.evaluate(dual).value == pytest.approx(np.mean(values + gains), rel=1e-9)
    rows[:, model.joint.slices[time]] += moves
    gradient = model.loss(x, rows)[1](np.full(len(rows), 1 / len(rows)))
    np.testing.assert_allclose(inner.gradient(dual), gradient, rtol=1e-7)


def by_coordinates(joint, slopes, sigma, dual, epsilon):
    """eps log E exp((b y - l y^2)/eps) summed, and the tilted means of y; a quadrature each."""
    totals, means = np.zeros(len(slopes)), np.zeros(slopes.shape)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    for k, i in np.ndindex(slopes.shape):
        low, high = (side[i] - joint.matrix[k, i] for side in joint.bounds)
        low, high = max(low, -6.0), min(high, 6.0)
        y = (low + high) / 2 + (high - low) / 2 * nodes
        reference = weights * np.exp(-0.5 * (y / sigma[i]) ** 2)
        exponent = (slopes[k, i] * y - dual * y**2) / epsilon
        tilted = reference * np.exp(exponent - exponent.max())
        totals[k] += epsilon * (exponent.max() + np.log(tilted.sum() / reference.sum()))
        means[k, i] = (tilted @ y) / tilted.sum()
    return totals, means


def test_the_smoothed_optimum_is_that_of_a_grid_of_decisions():
    model = steep(count=4, radius=0.05)
    x = model.feasible.layout.variables[0]
    loss = model.expression + 2 * cp.inv_pos(x)
    problem = wdro.Problem(cp.Minimize(loss), [x >= 0.1, x <= 3], model.ambiguity)
    value = problem.solve(method="smoothed", epsilon=0.05, sigma=0.3)
    rule = conditional(problem._model, 0.05, 0.3)

    def objective(point):
        rule.refresh(np.array([point]), 5.0)
        inner = rule.slice(np.array([point]), np.arange(4), Stream(0))
        return minimise_dual(inner.evaluate, 0.05, 5.0).value

    decisions = np.linspace(0.8, 1.25, 16) * float(x.value)
    assert value == pytest.approx(min(objective(d) for d in decisions), rel=1e-3)


def test_a_batch_is_the_mean_of_its_samples():
    model = traffic(links=3, count=5)
    rule = conditional(model, 0.1, 0.2)
    x, dual = np.array([0.5, 1.5, 2.0]), 1.5
    rule.refresh(x, dual)
    single = [rule.slice(x, np.array([k]), Stream(0)).evaluate(dual).value for k in range(5)]
    batch = rule.slice(x, np.array([3, 0]), Stream(0)).evaluate(dual).value
    assert batch == pytest.approx(np.mean([single[3], single[0]]), rel=1e-12)


def test_chunks_and_slopes_that_are_not_kept_change_nothing(monkeypatch):
    model = traffic(links=3, count=5)
    x, dual = np.array([0.5, 1.5, 2.0]), 1.5
    whole = at_point(conditional(model, 0.1, 0.2), model, x, dual)
    folder = "wdro_model.objectives.integration.conditional"
    monkeypatch.setattr(f"{folder}.loss.CHUNK_ENTRIES", 3000)
    for module in ("slice", "modes"):
        monkeypatch.setattr(f"{folder}.{module}.KEPT_SLOPES", 0)
    parts = at_point(conditional(model, 0.1, 0.2), model, x, dual)
    assert parts.evaluate(dual).value == pytest.approx(whole.evaluate(dual).value, rel=1e-12)
    np.testing.assert_allclose(parts.gradient(dual), whole.gradient(dual), rtol=1e-10)


def test_the_dual_needs_no_further_evaluation_of_the_loss(monkeypatch):
    model = traffic(links=3)
    rule = conditional(model, 0.1, 0.2)
    inner = at_point(rule, model, np.array([0.5, 0.7, 0.6]), 2.0)

    def refuse(*_):
        raise AssertionError("the loss was evaluated")

    monkeypatch.setattr(type(rule.loss), "__call__", refuse)
    assert inner.evaluate(1.0).value > inner.evaluate(2.0).value > inner.evaluate(4.0).value


def test_one_sample_without_refresh_adapts_itself():
    model = traffic(links=2, count=1)
    rule = conditional(model, 0.05, 0.1)
    inner = rule.slice(np.array([1.0, 1.5]), np.array([0]), Stream(0))
    minimum = minimise_dual(inner.evaluate, model.radius, 1.0)
    assert np.isfinite(minimum.value)
    assert inner.uncovered(minimum.dual) == 0.0


def test_tiny_epsilon_stays_finite():
    model = traffic(links=3)
    inner = at_point(conditional(model, 1e-8, 0.2), model, np.array([0.5, 1.5, 2.0]), 1.0)
    assert np.isfinite(inner.evaluate(1.0).value)
    assert np.isfinite(inner.gradient(1.0)).all()
    # The worst case over the support with transport cost is the limit.
    assert inner.evaluate(1.0).value == pytest.approx(
        at_point(conditional(model, 1e-5, 0.2), model, np.array([0.5, 1.5, 2.0]), 1.0)
        .evaluate(1.0)
        .value,
        rel=1e-3,
    )


def test_frozen_parameters_keep_their_value():
    model = traffic(links=2)
    names = {p.name(): p for p in model.joint.parameters}
    weights = {names["beta"]: np.inf, names["time"]: 2.0}
    frozen = traffic_with_weights(weights, names)
    rule = conditional(frozen, 0.1, 0.2)
    assert rule.split.frame.dimension == 1
    x, dual = np.array([0.9, 1.4]), 1.2
    inner = at_point(rule, frozen, x, dual)
    sampled = at_point(Tilted(frozen, Scales(0.1, 0.2, 20_000)), frozen, x, dual)
    assert inner.evaluate(dual).value == pytest.approx(sampled.evaluate(dual).value, rel=1e-3)
    both = traffic_with_weights({names["beta"]: np.inf, names["alpha"]: np.inf}, names)
    rule = conditional(both, 0.1, 0.2)
    assert rule.split.frame.dimension == 0
    inner = at_point(rule, both, x, dual)
    sampled = at_point(Tilted(both, Scales(0.1, 0.2, 20)), both, x, dual)
    assert inner.evaluate(dual).value == pytest.approx(sampled.evaluate(dual).value, rel=1e-9)


def traffic_with_weights(weights, names):
    x = cp.Variable(2, name="x")
    time, alpha, beta = names["time"], names["alpha"], names["beta"]
    delay = alpha * cp.multiply(x, cp.power(x / 0.8, beta)) / (beta + 1)
    ball = wdro.WassersteinBall(0.05, SquaredEuclidean(weights=weights))
    return wdro.Problem(cp.Minimize(time @ (x + delay)), [x >= 0, x <= 3], ball)._model


def test_the_largest_affine_block_is_chosen():
    model = traffic(links=5)
    chosen = affine_block(model.expression, model.joint.parameters)
    assert [p.name() for p in chosen] == ["time"]
    assert "exact over time (5 coordinates), quadrature over the other 2" in (
        conditional(model, 0.1, 0.2).describe()
    )


def test_refusals_name_the_reason():
    assert conditional_refusal(traffic()) is None
    assert "squared distance" in (conditional_refusal(traffic(cost=Norm(2))) or "")
    xi = wdro.UncertainParameter(2, samples=np.ones((3, 2)), name="xi")
    other = wdro.UncertainParameter(
        2,
        samples=np.ones((3, 2)),
        support=Where(lambda z: z.sum(axis=-1) > 0),
        name="eta",
    )
    x = cp.Variable(2)
    box = [x >= 0, x <= 1]

    def refusal(loss):
        ball = wdro.WassersteinBall(0.1)
        return conditional_refusal(wdro.Problem(cp.Minimize(loss), box, ball)._model)

    assert "all the data" in (refusal(x @ xi) or "")
    assert "no uncertain parameter" in (refusal(cp.logistic(x @ xi)) or "")
    assert "'eta'" in (refusal(x @ xi + cp.logistic(x @ other)) or "")
