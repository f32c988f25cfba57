"""Modes at the far end of the support, which come up while the dual variable falls."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp

import wdro_model as wdro
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.integration.conditional.by_blocks import Conditional
from wdro_model.objectives.integration.conditional.loss import Marginal
from wdro_model.objectives.integration.conditional.modes import track, with_curvature
from wdro_model.objectives.integration.conditional.nodes import KnownModes
from wdro_model.objectives.integration.inner_integral import Slice

ARCS = 4
EPSILON, SIGMA, RADIUS = 0.5, 1.0, 1.0


def problem(seed: int) -> tuple[wdro.Problem, np.ndarray, np.ndarray]:
    """Times, alpha and beta of a few arcs, loaded up to twice their capacity."""
    rng = np.random.default_rng(seed)
    capacity = rng.uniform(0.6, 1.0, ARCS)
    x = cp.Variable(ARCS, nonneg=True)
    box = wdro.supports.Box
    time = wdro.UncertainParameter(
        ARCS, samples=rng.uniform(0.2, 0.6, (3, ARCS)), support=box(0, 2), name="time"
    )
    alpha = wdro.UncertainParameter(samples=rng.uniform(0.1, 0.3, 3), support=box(0, 1.5))
    beta = wdro.UncertainParameter(samples=rng.uniform(2.0, 3.5, 3), support=box(1, 7))
    loss = wdro.traffic.beckmann(x, capacity, time, alpha, beta)
    ball = wdro.WassersteinBall(RADIUS)
    built = wdro.Problem(cp.Minimize(loss), [x <= 2], ambiguity=ball)
    return built, capacity * rng.uniform(1.6, 2.0, ARCS), capacity


def log_mass(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """log(Phi(high) - Phi(low))."""
    swap = low > 0
    low, high = np.where(swap, -high, low), np.where(swap, -low, high)
    top, bottom = log_ndtr(high), log_ndtr(low)
    return top + np.log1p(-np.exp(bottom - top))


def panels(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of Gauss-Legendre rules on panels that shrink towards the upper end."""
    points, weights = np.polynomial.legendre.leggauss(12)
    ends = np.r_[
        np.linspace(low, (low + high) / 2, 6), high - (high - low) * 0.5 ** np.arange(2, 14)
    ]
    ends = np.r_[ends, high]
    middle, half = 0.5 * (ends[1:] + ends[:-1]), 0.5 * np.diff(ends)
    nodes = middle[:, None] + half[:, None] * points
    return nodes.ravel(), np.log(half[:, None] * weights).ravel()


def by_quadrature(rows: np.ndarray, x: np.ndarray, capacity: np.ndarray, dual: float) -> float:
    """mean_k phi_k: closed over the times, Gauss-Legendre panels over alpha and beta."""
    total = 0.0
    alphas, log_a = panels(0.0, 1.5)
    betas, log_b = panels(1.0, 7.0)
    load = x / capacity
    variance = 1 / (2 * dual / EPSILON + 1 / SIGMA**2)
    deviation = np.sqrt(variance)
    for row in rows:
        time, alpha, beta = row[:ARCS], row[ARCS], row[ARCS + 1]
        exponent = np.zeros((alphas.size, betas.size))
        for arc in range(ARCS):
            slope = x[arc] * (1 + alphas[:, None] / (betas + 1) * load[arc] ** betas)
            move = variance * slope / EPSILON
            exponent += slope * time[arc] / EPSILON + move**2 / (2 * variance)
            exponent += 0.5 * np.log(variance / SIGMA**2)
            low, high = (0.0 - time[arc] - move) / deviation, (2.0 - time[arc] - move) / deviation
            exponent += log_mass(low, high)
            exponent -= log_mass(np.array(-time[arc] / SIGMA), np.array((2 - time[arc]) / SIGMA))
        for here, value, ends, axis in (
            (alphas, alpha, (0.0, 1.5), (slice(None), None)),
            (betas, beta, (1.0, 7.0), (None, slice(None))),
        ):
            log_density = -((here - value) ** 2) * (1 / (2 * SIGMA**2) + dual / EPSILON)
            log_density -= np.log(SIGMA * np.sqrt(2 * np.pi))
            log_density -= log_mass(
                np.array((ends[0] - value) / SIGMA), np.array((ends[1] - value) / SIGMA)
            )
            exponent += log_density[axis]
        total += EPSILON * logsumexp(exponent + log_a[:, None] + log_b) / len(rows)
    return total


@pytest.mark.parametrize("seed", range(2))
def test_values_along_falling_duals_are_those_of_quadrature(seed: int) -> None:
    built, x, capacity = problem(seed)
    model = built._model
    rule = Choice("conditional", "").build(model, Scales(EPSILON, SIGMA, 10))
    inner = rule.slice(x, np.arange(3), Stream(0))
    values = []
    for dual in np.geomspace(4.0, 0.2, 9):
        values.append(by_quadrature(model.rows, x, capacity, float(dual)))
        error = abs(inner.evaluate(float(dual)).value - values[-1])
        assert error <= 2e-4 * EPSILON + 1e-6 * abs(values[-1]), dual
    assert values[-1] > 1.2 * values[0]  # the far mode has taken over


def test_the_search_for_the_dual_does_not_lose_a_mode_that_vanishes_in_between() -> None:
    built, x, capacity = problem(0)
    model = built._model
    rule = Choice("conditional", "").build(model, Scales(EPSILON, SIGMA, 10))
    inner = rule.slice(x, np.arange(3), Stream(0))
    for dual in (0.2, 4.0, 0.2, 0.8, 0.2):
        expected = by_quadrature(model.rows, x, capacity, dual)
        assert abs(inner.evaluate(dual).value - expected) <= 2e-4 * EPSILON + 1e-6 * abs(
            expected
        ), dual


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("first", "then"), [(4.0, 0.2), (0.2, 4.0), (0.8, 0.2)])
def test_modes_of_another_temperature_lead_to_the_same_integrals(
    seed: int, first: float, then: float
) -> None:
    """A far mode that is not known at the end of one solve is found by the next."""
    built, x, capacity = problem(seed)
    model = built._model
    earlier = Choice("conditional", "").build(model, Scales(3 * EPSILON, 0.7, 10))
    elsewhere = 0.8 * x
    earlier.slice(elsewhere, np.arange(3), Stream(0)).evaluate(first)
    known = earlier.findings()
    assert known is not None
    rule = Choice("conditional", "").build(model, Scales(EPSILON, SIGMA, 10))
    rule.use_findings(known, first)
    inner = rule.slice(x, np.arange(3), Stream(0))
    assert inner.guess == first
    for dual in (first, then):
        expected = by_quadrature(model.rows, x, capacity, dual)
        error = abs(inner.evaluate(dual).value - expected)
        assert error <= 2e-4 * EPSILON + 1e-6 * abs(expected), dual


def tracked_modes(dual: float) -> tuple[Conditional, KnownModes]:
    """The strategy after an evaluation, and the modes that it found."""
    built, x, _ = problem(0)
    rule = Conditional(built._model, Scales(EPSILON, SIGMA, 10))
    rule.refresh(x, dual)
    rule.slice(x, np.arange(3), Stream(0))
    return rule, rule.findings()


@pytest.mark.parametrize("then", [8.0, 12.0, 30.0])
def test_modes_are_expected_farther_away_where_the_dual_is_less(then: float) -> None:
    """Nearer to those of the other dual, and where a bound holds one it stays."""
    rule, known = tracked_modes(16.0)
    frame = rule.split.frame
    guess, truth = known.for_dual(then, frame), tracked_modes(then)[1]
    assert guess.dual == then
    unmoved, expected, found = (k.modes.moves for k in (known, guess, truth))
    assert np.linalg.norm(expected - found) < 0.4 * np.linalg.norm(unmoved - found)
    far = known.for_dual(0.1, frame)
    lower, upper = frame.bounds(far.modes.owners)
    assert np.all((far.modes.moves >= lower) & (far.modes.moves <= upper))
    held = far.modes.moves == upper
    assert held.any()
    np.testing.assert_array_equal(far.for_dual(50.0, frame).modes.moves[held], upper[held])


def test_modes_that_newton_steps_fail_get_a_curvature_that_fits() -> None:
    """One that is far too flat would send every step too far, at every dual again."""
    rule, known = tracked_modes(16.0)
    modes, target = known.modes, Marginal(rule.split, known.x, 12.0)
    stale = replace(modes, scales=np.full(modes.scales.shape, 3.5))
    heights, gradients = target(stale.owners, stale.moves)
    found = track(target, replace(stale, heights=heights), gradients)
    expected = with_curvature(target, found)
    np.testing.assert_allclose(found.scales, expected.scales, rtol=1e-6)
    assert found.scales.max() < 2.0


def torn() -> Slice:
    """Integrals of samples that change over to far modes while the dual falls from 4 to 3."""
    rng = np.random.default_rng(0)
    x, wide = cp.Variable(ARCS, nonneg=True), wdro.supports.Box(-50, 50)
    time = wdro.UncertainParameter(ARCS, samples=rng.uniform(0.2, 0.6, (3, ARCS)), support=wide)
    alpha = wdro.UncertainParameter(
        samples=rng.uniform(0.1, 0.3, 3), support=wdro.supports.Box(0, 1.5)
    )
    beta = wdro.UncertainParameter(samples=[2.0, 2.5, 3.5], support=wdro.supports.Box(1, 7))
    loss = wdro.traffic.beckmann(x, np.full(ARCS, 0.8), time, alpha, beta)
    built = wdro.Problem(cp.Minimize(loss), [x <= 2], ambiguity=wdro.WassersteinBall(RADIUS))
    rule = Choice("conditional", "").build(built._model, Scales(0.05, SIGMA, 10))
    return rule.slice(np.full(ARCS, 1.4), np.arange(3), Stream(0))


@pytest.mark.parametrize("dual", [8.0, 4.0, 3.0, 2.0])
@pytest.mark.parametrize("change", [0.97, 0.99, 1.01, 1.03])
def test_costs_at_other_duals_are_expected_by_the_modes(dual: float, change: float) -> None:
    """Also at 3.1, where a sample changes over to its far mode and the cost falls by a third."""
    inner = torn()
    expected = inner.evaluate(dual).expected_costs()
    assert expected(dual) == pytest.approx(-inner.evaluate(dual).slope, rel=1e-12)
    assert expected(change * dual) == pytest.approx(-inner.evaluate(change * dual).slope, rel=5e-3)


def test_modes_of_other_samples_are_not_taken_over() -> None:
    (built, x, _), (other, _, _) = problem(0), problem(1)
    rules = [
        Choice("conditional", "").build(p._model, Scales(EPSILON, SIGMA, 10))
        for p in (built, other)
    ]
    rules[0].slice(x, np.arange(3), Stream(0)).evaluate(1.0)
    rules[1].use_findings(rules[0].findings(), 123.0)
    assert rules[1].slice(x, np.arange(3), Stream(0)).guess != 123.0


def test_a_mode_that_overtakes_while_the_dual_falls_is_found() -> None:
    """Sioux Falls with five samples, one of which is torn: values are those of fresh searches."""
    scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
    flows = wdro.sets.TrafficFlows(scenarios.network, backend="scipy")
    x = cp.Variable(flows.dimension)
    parameters = scenarios.parameters(5, seed=0)
    loss = wdro.traffic.beckmann(x, scenarios.network.capacity, *parameters) / 1e5
    ball = wdro.WassersteinBall(2.0, wdro.costs.SquaredEuclidean("standardize"))
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)], ambiguity=ball)
    problem.solve(method="smoothed", solver=wdro.solvers.FrankWolfe(gap=1e-4))
    solution = problem.solution
    scales = Scales(solution.epsilon, solution.sigma, 10)
    duals = solution.dual * np.array([3.0, 1.5, 1.1, 1.0, 0.97])
    rule = Choice("conditional", "").build(problem._model, scales)
    falling = rule.slice(x.value, np.arange(5), Stream(0))
    followed = [falling.evaluate(float(dual)).value for dual in duals]
    searched = []
    for dual in duals:
        rule = Choice("conditional", "").build(problem._model, scales)
        rule.refresh(x.value, float(dual))
        searched.append(rule.slice(x.value, np.arange(5), Stream(0)).evaluate(float(dual)).value)
    np.testing.assert_allclose(followed, searched, atol=0.01 * solution.epsilon)
    assert abs(2.0 * solution.dual + searched[3] - problem.value) <= 0.1 * solution.epsilon
