"""Adaptive cells against scipy's quadrature, log-space cubature, closed forms and differences."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from scipy.integrate import dblquad, quad
from scipy.optimize import minimize_scalar

import wdro_model as wdro
from tests.references.cubature import Reference
from tests.references.fixed_decisions import random_problem
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream, cells, choose

TRIANGLE = wdro.supports.Polyhedron([[-1.0, 0.2], [0.1, -1.0], [1.0, 1.0]], [0.8, 0.9, 1.1])


def compiled(loss, *, cost=None, radius=0.1, variables=None):
    objective = loss if isinstance(loss, wdro.CallableLoss) else cp.Minimize(loss)
    found = list(variables or loss.variables())
    constraints = [c for v in found for c in (v >= -50, v <= 50)]
    return wdro.Problem(objective, constraints, wdro.WassersteinBall(radius, cost))._model


def by_cells(model, epsilon, sigma, tolerance=None):
    rule = STRATEGIES["cells"].build(model, Scales(epsilon, sigma, 1))
    rule.tolerance = tolerance or rule.tolerance
    return rule


def sliced(model, epsilon, sigma, x, tolerance=None):
    rule = by_cells(model, epsilon, sigma, tolerance)
    return rule.slice(np.asarray(x, dtype=float), np.arange(model.joint.size), Stream(0))


def power(exponent):
    return wdro.costs.Callable(lambda u, v: (np.abs(u - v) ** exponent).sum(axis=1))


# ------------------------------------------------------------------ one coordinate
LINE_COSTS = {
    "squared": (wdro.costs.SquaredEuclidean(), lambda m: m**2),
    "weighted": (wdro.costs.SquaredEuclidean(weights=3.0), lambda m: 3 * m**2),
    "norm": (wdro.costs.Norm(1), np.abs),
    "callable": (power(1.5), lambda m: np.abs(m) ** 1.5),
}
LINE_SUPPORTS = {
    "line": (None, -np.inf, np.inf),
    "half-line": (wdro.supports.Nonnegative(), 0.0, np.inf),
    "box": (wdro.supports.Box(-0.2, 0.7), -0.2, 0.7),
}


def plain_line(x, z):
    return np.maximum(x * z, np.maximum(-2 * x * z - 0.3, 0.4)) + np.logaddexp(0, 3 * (z - x))


def line_integral(x, row, cost, dual, epsilon, sigma, low, high):
    """phi and the mean cost by scipy, split at kinks and around the mode of a fine grid."""
    reach = 60 * sigma
    low, high = max(low, row - reach), min(high, row + reach)

    def g(z):
        tilt = (plain_line(x, z) - dual * cost(z - row)) / epsilon
        return tilt - 0.5 * ((z - row) / sigma) ** 2

    grid = np.linspace(low, high, 400_001)
    values = g(grid)
    top, mode = values.max(), grid[values.argmax()]
    live = grid[values > top - 45]
    low_live, high_live = max(low, live[0] - 1e-4), min(high, live[-1] + 1e-4)
    marks = [row, mode, 0.4 / x, -0.35 / x, -0.1 / x]
    marks += list(np.linspace(low_live, high_live, 25))
    ends = np.unique([m for m in [low_live, *marks, high_live] if low_live <= m <= high_live])

    def total(h):
        return sum(quad(h, a, b, epsabs=1e-13, limit=400)[0] for a, b in pairwise(ends))

    mass = total(lambda z: np.exp(g(z) - top))
    mean = total(lambda z: cost(z - row) * np.exp(g(z) - top)) / mass
    whole = (low, row, high)
    parts = [
        quad(lambda z: np.exp(-0.5 * ((z - row) / sigma) ** 2), a, b, epsabs=1e-14, limit=400)[0]
        for a, b in zip(
            np.maximum(whole[:-1], row - 9 * sigma), np.minimum(whole[1:], row + 9 * sigma)
        )
    ]
    return epsilon * (top + np.log(mass) - np.log(sum(parts))), mean


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize("support", LINE_SUPPORTS)
@pytest.mark.parametrize("cost", LINE_COSTS)
def test_lines_are_those_of_scipy(cost, support):
    given, plain = LINE_COSTS[cost]
    where, low, high = LINE_SUPPORTS[support]
    rows = np.array([[0.05], [0.4], [0.6]])
    z = wdro.UncertainParameter(1, samples=rows, support=where)
    x = cp.Variable(1)
    loss = cp.sum(cp.maximum(cp.multiply(x, z), -2 * cp.multiply(x, z) - 0.3, 0.4))
    loss += cp.sum(cp.logistic(3 * (z - x)))
    model = compiled(loss, cost=given)
    for epsilon, sigma, dual in ((0.3, 0.4, 0.8), (0.01, 0.4, 6.0), (0.002, 2.0, 9.0)):
        found = sliced(model, epsilon, sigma, [0.9]).evaluate(dual)
        wanted = [
            line_integral(0.9, row, plain, dual, epsilon, sigma, low, high) for row in rows[:, 0]
        ]
        value, mean = np.mean(wanted, axis=0)
        assert found.value == pytest.approx(value, abs=1e-7 * epsilon + 1e-11)
        assert -found.slope == pytest.approx(mean, rel=1e-5)


# ------------------------------------------------------------------ two coordinates
MATRIX = np.array([[2.0, 0.7], [0.7, 1.0]])
PLANE_COSTS = {
    "mahalanobis": (
        wdro.costs.Mahalanobis(np.linalg.inv(MATRIX)),
        lambda u, v: 2 * u * u + 1.4 * u * v + v * v,
    ),
    "norm 1": (wdro.costs.Norm(1), lambda u, v: abs(u) + abs(v)),
    "norm 2": (wdro.costs.Norm(2), np.hypot),
    "norm inf": (wdro.costs.Norm(np.inf, weights=[1.0, 2.0]), lambda u, v: max(abs(u), 2 * abs(v))),
    "callable": (power(1.5), lambda u, v: abs(u) ** 1.5 + abs(v) ** 1.5),
}
PLANE_SUPPORTS = {
    "plane": None,
    "half-plane": wdro.supports.Polyhedron([[1.0, 1.0]], [0.4]),
    "box": wdro.supports.Box([-0.5, -1.0], [0.5, 0.6]),
    "triangle": TRIANGLE,
}


def edges(support, u, reach):
    """The interval of the second coordinate at the first one, by the inequalities alone."""
    if isinstance(support, wdro.supports.Box):
        lower, upper = support.bounds((2,))
        matrix, limits = np.vstack([np.eye(2), -np.eye(2)]), np.concatenate([upper, -lower])
    elif support is None:
        matrix, limits = np.zeros((0, 2)), np.zeros(0)
    else:
        matrix, limits = support.A, support.b
    low, high = -reach, reach
    for (a, b), limit in zip(matrix, limits):
        if b > 0:
            high = min(high, (limit - a * u) / b)
        elif b < 0:
            low = max(low, (limit - a * u) / b)
        elif a * u > limit:
            return 0.0, 0.0
    return low, max(low, high)


@pytest.mark.parametrize("support", PLANE_SUPPORTS)
@pytest.mark.parametrize("cost", PLANE_COSTS)
def test_planes_are_those_of_scipy(cost, support):
    given, plain = PLANE_COSTS[cost]
    where, epsilon, sigma, dual, row = PLANE_SUPPORTS[support], 0.4, 0.5, 1.1, np.array([0.1, -0.2])
    z = wdro.UncertainParameter(2, samples=row[None], support=where)
    x, a = cp.Variable(2), np.array([0.8, -0.5])
    loss = cp.logistic(2 * (z @ x)) + cp.norm(z - np.array([0.3, 0.3]))
    model = compiled(loss, cost=given)
    found = sliced(model, epsilon, sigma, a).evaluate(dual)

    def tilt(u, v):
        f = np.logaddexp(0, 2 * (u * a[0] + v * a[1])) + np.hypot(u - 0.3, v - 0.3)
        return np.exp((f - dual * plain(u - row[0], v - row[1])) / epsilon) * gauss(u, v)

    def gauss(u, v):
        return np.exp(-0.5 * ((u - row[0]) ** 2 + (v - row[1]) ** 2) / sigma**2)

    def total(h):
        """Over strips between the places where edges and kinks meet."""
        marks = np.unique([-3.4, -1.0, -0.5, row[0], 0.3, 0.5, 1.0, 3.6])
        parts = []
        for lo, hi in pairwise(marks):
            for below, above in ((-3.7, row[1]), (row[1], 3.3)):
                parts.append(
                    dblquad(
                        lambda v, u: h(u, v),
                        lo,
                        hi,
                        lambda u, b=below: np.clip(edges(where, u, 4.0)[0], b, max(b, 3.3)),
                        lambda u, b=below, t=above: max(
                            np.clip(edges(where, u, 4.0)[0], b, max(b, 3.3)),
                            min(t, edges(where, u, 4.0)[1]),
                        ),
                        epsabs=1e-8,
                        epsrel=1e-7,
                    )[0]
                )
        return sum(parts)

    wanted = epsilon * np.log(total(tilt) / total(gauss))
    assert found.value == pytest.approx(wanted, abs=2e-6)


def test_a_maximum_on_a_triangle_has_the_mass_of_its_corners():
    # At a small temperature the value is that of the best vertex less a known power of epsilon.
    z = wdro.UncertainParameter(2, samples=[[0.1, 0.1]], support=TRIANGLE)
    x = cp.Variable(2)
    slope = np.array([1.0, 0.3])
    model = compiled(x @ z, cost=power(1.5))
    epsilon, sigma = 1e-5, 3.0
    found = sliced(model, epsilon, sigma, slope).evaluate(0.0)
    best = np.linalg.solve([[0.1, -1.0], [1.0, 1.0]], [0.9, 1.1])
    assert found.value == pytest.approx(slope @ best, abs=40 * epsilon)
    assert found.value < slope @ best


# ------------------------------------------------------------------ minimised over the dual
def solved(case, **options):
    problem = case.problem()
    problem.solve(method="smoothed", integration="cells", epsilon=case.epsilon, **options)
    return problem.solution


@pytest.mark.filterwarnings("ignore:the dual variable is 0")
@pytest.mark.parametrize("seed", [133, 4, 7, 11, 13, 27, 39, 42, 45, 53, 67, 70])
def test_fixed_decisions_have_the_value_of_cubature(seed):
    case = random_problem(seed)
    found = solved(case)
    wanted, _ = case.reference(found.epsilon, found.sigma).minimum()
    margin = abs(wanted - case.mean_loss())
    assert found.value == pytest.approx(wanted, abs=1e-5 * margin + 1e-7 * found.epsilon)
    assert found.status == "optimal"
    assert found.diagnostics is None


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_exponential_losses_on_boxes_have_all_their_modes(epsilon):
    # A convex loss on a box: the mass jumps from the sample to corners as the dual falls.
    rows = np.array([[0.3, -0.5], [-0.2, 0.1]])
    slope, radius, sigma = np.array([1.3, 0.9]), 0.4, 0.5
    z = wdro.UncertainParameter(2, samples=rows, support=wdro.supports.Box(-1.0, 1.0))
    x = cp.Variable(2)
    model = compiled(cp.exp(x @ z) + cp.exp(-2 * (x @ z)), cost=wdro.costs.Norm(1), radius=radius)
    inner = sliced(model, epsilon, sigma, slope)

    def at(log_dual):
        return float(np.exp(log_dual)) * radius + inner.evaluate(float(np.exp(log_dual))).value

    found = minimize_scalar(at, bounds=(-3, 4), method="bounded", options={"xatol": 1e-9}).fun
    side = np.linspace(-1, 1, 401)
    points = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    forms = points @ slope
    values = np.exp(forms) + np.exp(-2 * forms)

    def exact(log_dual):
        costs = np.abs(points[None] - rows[:, None]).sum(axis=2)
        return np.exp(log_dual) * radius + (values - np.exp(log_dual) * costs).max(axis=1).mean()

    bound = minimize_scalar(exact, bounds=(-3, 4), method="bounded", options={"xatol": 1e-9}).fun
    # Below the robust risk by a few epsilon log(1/epsilon), never above.
    assert bound - 30 * epsilon * np.log(1 / epsilon) - 2e-3 <= found <= bound + 2e-3


@pytest.mark.filterwarnings("ignore:the dual variable is 0")
@pytest.mark.parametrize("radius", [3.0, 1e4])
def test_radius_that_does_not_bind_on_a_box(radius):
    rows = np.array([[0.3, -0.5], [-0.2, 0.1], [0.9, 0.8]])
    z = wdro.UncertainParameter(2, samples=rows, support=wdro.supports.Box(-1.0, 1.0))
    x = cp.Variable(2)
    problem = wdro.Problem(
        cp.Minimize(cp.exp(z @ x) + cp.abs(z @ np.array([1.0, -1.0]))),
        [x >= 0.4, x <= 0.4],
        wdro.WassersteinBall(radius),
    )
    problem.solve(method="smoothed", integration="cells", epsilon=0.05)
    found = problem.solution

    def plain(points):
        return np.exp(0.4 * points.sum(axis=1)) + np.abs(points @ np.array([1.0, -1.0]))

    reference = Reference(
        plain, lambda m: (m**2).sum(1), rows, 0.05, float(found.sigma), radius, -1.0, 1.0
    )
    assert found.dual == 0
    assert found.value == pytest.approx(reference.at(0.0)[0], abs=1e-7)


def test_losses_with_many_modes():
    # A wave: eight modes of nearly the same height in the box, in each coordinate.
    rows = np.array([[0.11, 0.02], [-0.4, 0.3]])
    z = wdro.UncertainParameter(2, samples=rows, support=wdro.supports.Box(-1.0, 1.0), name="z")
    x = cp.Variable(2, name="x")

    def wave(point, scenarios):
        data, a = scenarios[z], point[x]
        phases = 9 * data + a
        weights = np.sin(phases).sum(axis=1)

        def pullback(shares):
            return {x: (shares[:, None] * np.cos(phases)).sum(axis=0)}

        return weights, pullback

    model = compiled(wdro.CallableLoss(wave, x, z), cost=wdro.costs.Norm(2), variables=[x])
    a, epsilon, sigma, dual = np.array([0.3, -1.0]), 0.02, 0.6, 0.7
    found = sliced(model, epsilon, sigma, a)
    reference = Reference(
        lambda p: np.sin(9 * p + a).sum(axis=1),
        lambda m: np.sqrt((m**2).sum(axis=1)),
        rows,
        epsilon,
        sigma,
        0.0,
        -1.0,
        1.0,
    )
    value, mean = reference.at(dual)
    assert found.evaluate(dual).value == pytest.approx(value, abs=1e-7 * epsilon + 1e-9)
    assert -found.evaluate(dual).slope == pytest.approx(mean, rel=1e-5)


def test_far_modes_are_found():
    # Flat around the sample, and steep from 50 deviations on: the mode lies 1000 away.
    z = wdro.UncertainParameter(1, samples=[[0.0]])
    x = cp.Variable(1)
    model = compiled(cp.sum(1000.0 * cp.multiply(x, cp.pos(z - 50.0))))
    found = sliced(model, 1.0, 1.0, [1.0]).evaluate(0.0)
    # log of the mass of N(0, 1) tilted by 1000 (z - 50) above 50, and of the rest below.
    assert found.value == pytest.approx(1000.0**2 / 2 - 50_000.0, rel=1e-12)


# ------------------------------------------------------------------ derivatives
@cache
def smooth_model(support):
    rows = np.array([[0.1, 0.2], [-0.3, 0.1], [0.2, -0.4]])
    z = wdro.UncertainParameter(2, samples=rows, support=support)
    x = cp.Variable(2)
    loss = cp.exp(x @ z) + cp.norm(z - x) + cp.pos(z[0] * x[1] - 0.2)
    return compiled(loss, cost=wdro.costs.Norm(2))


@pytest.mark.parametrize("support", [wdro.supports.Box(-1.0, 1.0), TRIANGLE])
def test_derivatives_are_those_of_differences(support):
    model, x, dual = smooth_model(support), np.array([0.4, -0.7]), 1.3
    inner = sliced(model, 0.05, 0.4, x)
    gradient, step = inner.gradient(dual), 1e-4
    for i, direction in enumerate(np.eye(2)):
        ahead, back = (
            sliced(model, 0.05, 0.4, x + s * step * direction, 1e-8).evaluate(dual).value
            for s in (1, -1)
        )
        assert gradient[i] == pytest.approx((ahead - back) / (2 * step), abs=2e-5)
    ahead, here, back = (inner.evaluate(dual + s * step) for s in (1, 0, -1))
    assert here.slope == pytest.approx((ahead.value - back.value) / (2 * step), rel=1e-5)
    assert here.curvature == pytest.approx((ahead.slope - back.slope) / (2 * step), rel=1e-3)


def test_cells_of_one_decision_serve_the_next():
    model = smooth_model(wdro.supports.Box(-1.0, 1.0))
    rule, samples = by_cells(model, 0.02, 0.4), np.arange(3)
    for step in np.linspace(0, 1, 12):
        x = np.array([0.4 - step, -0.7 + 2 * step])
        inner = rule.slice(x, samples, Stream(0))
        found, gradient = inner.evaluate(1.0 + step), inner.gradient(1.0 + step)
        fresh = sliced(model, 0.02, 0.4, x)
        assert found.value == pytest.approx(fresh.evaluate(1.0 + step).value, abs=1e-6 * 0.02)
        np.testing.assert_allclose(gradient, fresh.gradient(1.0 + step), atol=5e-5)


# ------------------------------------------------------------------ infinite, refused, honest
def test_where_the_loss_outgrows_the_cost():
    # x z^2 against l z^2: finite iff l/eps + 1/(2 sigma^2) > x/eps, and a Gaussian integral then.
    z = wdro.UncertainParameter(2, samples=[[0.0, 0.0]])
    x = cp.Variable(2, nonneg=True)
    model = compiled(cp.sum(cp.multiply(x, z**2)) + 0 * cp.norm(z))
    epsilon, sigma = 0.1, 0.5
    inner = sliced(model, epsilon, sigma, [1.0, 0.2])
    assert np.isposinf(inner.evaluate(0.79).value)
    assert np.isneginf(inner.evaluate(0.5).slope)
    with pytest.raises(FloatingPointError, match="infinite"):
        inner.gradient(0.5)
    for dual in (0.81, 1.0, 3.0):
        bend = 1 + 2 * sigma**2 * (dual - np.array([1.0, 0.2])) / epsilon
        wanted = -0.5 * epsilon * np.log(bend).sum()
        assert inner.evaluate(dual).value == pytest.approx(wanted, abs=1e-7)


def test_coordinates_that_stay_do_not_count():
    rng = np.random.default_rng(0)
    rows, labels = rng.uniform(-0.8, 0.8, (4, 2)), np.array([1.0, -1.0, 1.0, -1.0])
    z = wdro.UncertainParameter(2, samples=rows, support=wdro.supports.Box(-1.0, 1.0))
    y = wdro.UncertainParameter((), samples=labels)
    x = cp.Variable(2)
    cost = wdro.costs.SquaredEuclidean(weights={y: np.inf})
    model = compiled(cp.logistic(-y * (z @ x)), cost=cost)
    assert choose(model, None).name == "cells"
    found = sliced(model, 0.05, 0.5, [1.0, -2.0]).evaluate(0.4).value
    alone = []
    for row, label in zip(rows, labels):
        own = wdro.UncertainParameter(2, samples=row[None], support=wdro.supports.Box(-1.0, 1.0))
        other = compiled(cp.logistic(-label * (own @ x)))
        alone.append(sliced(other, 0.05, 0.5, [1.0, -2.0]).evaluate(0.4).value)
    assert found == pytest.approx(np.mean(alone), abs=1e-9)


def test_what_cells_refuse():
    def refusal(d=2, support=None, count=3):
        rows = np.full((count, d), 0.1) + 1e-3 * np.arange(count)[:, None]
        z = wdro.UncertainParameter(d, samples=rows, support=support)
        return STRATEGIES["cells"].refusal(compiled(cp.exp(z @ cp.Variable(d))))

    assert refusal() is None
    assert refusal(d=1, count=2000) is None
    assert "3 coordinates of the data move" in refusal(d=3)
    assert "400 samples are too many" in refusal(count=400)
    disc = wdro.supports.Where(lambda p: (p**2).sum(axis=1) <= 1)
    assert "known point by point" in refusal(support=disc)
    diagonal = wdro.supports.Polyhedron([[1.0, -1.0], [-1.0, 1.0]], [0.0, 0.0])
    assert "no interior" in refusal(support=diagonal)
    z = wdro.UncertainParameter(3, samples=np.zeros((2, 3)))
    wide = compiled(cp.exp(z @ cp.Variable(3)))
    with pytest.raises(ValueError, match="integration='cells' does not apply: 3 coordinates"):
        choose(wide, "cells")


def test_the_plane_of_the_data_is_taken_before_two_forms_and_mixtures():
    x = cp.Variable(2)

    def chosen(loss, count, cost=None):
        rows = np.linspace(-1, 1, 2 * count).reshape(count, 2)
        return choose(compiled(loss(wdro.UncertainParameter(2, samples=rows)), cost=cost), None)

    def one(z):
        return cp.logistic(z @ x)

    def two(z):
        return cp.logistic(z @ x) + cp.logistic(z[0] * x[1])

    assert chosen(one, 5).name == "low_rank"
    assert chosen(two, 5).name == "cells"
    assert chosen(two, 400).name == "low_rank"
    assert chosen(one, 5, wdro.costs.Norm(2)).name == "cells"
    assert chosen(one, 100, wdro.costs.Norm(2)).name == "norms"
    assert chosen(lambda z: z @ x, 5, wdro.costs.Norm(2)).name == "cells"


def test_too_few_cells_are_admitted(monkeypatch):
    monkeypatch.setitem(cells.MOST_CELLS, 2, 1)
    z = wdro.UncertainParameter(2, samples=[[0.1, 0.2]], support=wdro.supports.Box(-1.0, 1.0))
    x = cp.Variable(2)
    problem = wdro.Problem(
        cp.Minimize(cp.exp(x @ z) + cp.abs(z[0] - 2 * z[1])),
        [x >= 1, x <= 1],
        wdro.WassersteinBall(0.1),
    )
    problem.solve(method="smoothed", integration="cells", epsilon=1e-2)
    found = problem.solution
    assert found.diagnostics.standard_error > 1e-3 * abs(found.value)
    assert found.status == "optimal_inaccurate"


def test_losses_that_are_not_defined_are_refused():
    z = wdro.UncertainParameter(1, samples=[[0.5]])
    x = cp.Variable(1, nonneg=True)
    model = compiled(-cp.sum(cp.log(z + x)), cost=wdro.costs.Norm(1))
    with pytest.raises(FloatingPointError, match="not defined"):
        sliced(model, 0.5, 1.0, [0.2]).evaluate(0.1)
