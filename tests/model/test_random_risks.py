"""Random models with risks and uncertain constraints, against dual programs written by hand.

The programs by hand are in units of one; the library solves the same model in other units.
"""

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.brute_force import cvar

LEVELS = (0.1, 0.5, 0.8, 0.95)
DUAL = {1: "inf", 2: 2, np.inf: 1}


@dataclass
class World:
    """Data, its cost and its support A xi <= h, in units of one."""

    rng: Any
    data: Any
    shares: Any
    name: str
    weights: Any
    root: Any
    A: Any
    h: Any

    def cost(self):
        if self.name == "squared":
            return wdro.costs.SquaredEuclidean(weights=self.weights)
        if self.name == "mahalanobis":
            return wdro.costs.Mahalanobis(covariance=self.root @ self.root.T)
        return wdro.costs.Norm(self.name, weights=self.weights)

    def radius_in(self, unit, radius):
        return radius * (unit**2 if self.name in ("squared", "mahalanobis") else unit)

    def costs_of(self, moves):
        free = np.isfinite(self.weights)
        assert np.all(np.abs(moves[:, ~free]) < 1e-12)
        if self.name == "squared":
            return np.square(moves[:, free]) @ self.weights[free]
        if self.name == "mahalanobis":
            return np.sum(np.linalg.solve(self.root, moves.T) ** 2, axis=0)
        return np.linalg.norm(moves[:, free] * self.weights[free], self.name, axis=1)

    def worst_mean(self, pieces, radius):
        """sup E max_j a_j + <b_j, xi> over the ball: an expression and its constraints."""
        free = np.flatnonzero(np.isfinite(self.weights))
        price, s, rows = cp.Variable(nonneg=True), cp.Variable(len(self.data)), []
        for a, b in pieces:
            for k, xi in enumerate(self.data):
                g = cp.Variable(len(self.h), nonneg=True)
                left = b - self.A.T @ g
                value = a + xi @ b + g @ (self.h - self.A @ xi)
                if self.name in ("squared", "mahalanobis"):
                    squared = self.name == "squared"
                    w = 1 / np.sqrt(self.weights[free])
                    v = cp.multiply(left[free], w) if squared else self.root.T @ left
                    value = value + cp.quad_over_lin(v, 4 * price)
                else:
                    v = cp.multiply(left[free], 1 / self.weights[free])
                    rows.append(cp.norm(v, DUAL[self.name]) <= price)
                rows.append(s[k] >= value)
        return price * radius + self.shares @ s, rows


def world(seed):
    rng = np.random.default_rng(seed)
    d, size = 2, 1 if seed % 4 == 0 else int(rng.integers(2, 7))
    data = rng.uniform(0.3, 1.5, size=(size, d))
    name = [1, 2, np.inf, "squared", "mahalanobis"][seed % 5]
    weights = rng.uniform(0.5, 2, d)
    if seed % 3 == 0:
        weights[0] = np.inf
    root = np.linalg.cholesky(np.eye(d) + 0.5)
    if name == "mahalanobis":
        weights = np.ones(d)
    shares = rng.dirichlet(np.ones(size)) if seed % 2 else np.full(size, 1 / size)
    A = [np.zeros((1, d)), -np.eye(d), rng.normal(size=(3, d))][(seed // 2) % 3]
    h = np.maximum((data @ A.T).max(axis=0), 0) if len(A) == d else (data @ A.T).max(axis=0) + 0.2
    return World(rng, data, shares, name, weights, root, A, h)


def support_in(unit, w):
    if not w.A.any():
        return wdro.supports.Everywhere()
    if len(w.h) == 2:
        return wdro.supports.Nonnegative()
    return wdro.supports.Polyhedron(w.A, unit * w.h)


def some_loss(rng, x, xi, unit):
    """A loss in some unit, and its pieces (a, b) in units of one."""
    B, e, c = rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=2)
    first, second = (c @ x, B @ x + e), (0.3 + 0 * cp.sum(x), -x)
    written = [unit * a + xi @ b for a, b in (first, second)]
    kind = rng.integers(3)
    if kind == 0:
        return written[0], [first]
    if kind == 1:
        return cp.maximum(*written), [first, second]
    return cp.pos(written[0]), [first, (0 * cp.sum(x), np.zeros(2))]


def tail_pieces(pieces, level):
    t = cp.Variable()
    tail = [(t + (a - t) / (1 - level), b / (1 - level)) for a, b in pieces]
    return [(t, np.zeros(2)), *tail]


@pytest.mark.parametrize("unit", [1e-4, 1e4])
@pytest.mark.parametrize("seed", range(6))
def test_models_in_any_unit_are_the_program_by_hand(seed, unit):
    w = world(seed)
    rng, x = w.rng, cp.Variable(2, nonneg=True, name="x")
    xi = wdro.UncertainParameter(
        2, "xi", samples=unit * w.data, support=support_in(unit, w), probabilities=w.shares
    )
    radius, level, base = float(rng.choice([0.01, 0.1])), float(rng.choice(LEVELS)), [x <= 2]
    ball = wdro.WassersteinBall(w.radius_in(unit, radius), w.cost())
    q = rng.normal(size=2)
    if seed % 3 == 0:
        objective, program, rows = unit * (q @ x + cp.sum_squares(x)), q @ x + cp.sum_squares(x), []
    else:
        (f, fs), (g, gs) = (some_loss(rng, x, xi, unit) for _ in range(2))
        objective = f + 2 * wdro.cvar(g, level) + unit * q @ x
        both = [(a + 2 * b, c + 2 * e) for a, c in fs for b, e in tail_pieces(gs, level)]
        program, rows = w.worst_mean(both, radius)
        program = program + q @ x
    loss, pieces = some_loss(rng, x, xi, unit)
    risk, more = w.worst_mean(pieces if seed % 3 == 1 else tail_pieces(pieces, level), radius)
    least = cp.Problem(cp.Minimize(risk), [*base, *more]).solve(solver=cp.CLARABEL)
    free = cp.Problem(cp.Minimize(program), [*base, *rows])
    free.solve(solver=cp.CLARABEL)
    limit = least + 0.5 * max(risk_at(risk, more, x, x.value) - least, 0.05)
    by_hand = cp.Problem(cp.Minimize(program), [*base, *rows, risk <= limit, *more])
    value = by_hand.solve(solver=cp.CLARABEL)
    bound = [
        wdro.cvar(loss, level) <= unit * limit,
        wdro.expectation(loss) <= unit * limit,
        wdro.probability(loss <= unit * limit) >= level,
    ][seed % 3]
    problem = wdro.Problem(cp.Minimize(objective), [*base, bound], ball)
    assert problem.solve() / unit == pytest.approx(value, rel=2e-6, abs=2e-6)
    assert problem.status == "optimal"
    multiplier = float(by_hand.constraints[len(base) + len(rows)].dual_value)
    assert abs(float(bound.dual_value)) == pytest.approx(multiplier, rel=1e-3, abs=1e-3)
    decision = x.value
    found = problem.worst_case(bound)
    atoms = found.scenarios[xi] / unit
    assert np.bincount(found.source, found.weights) == pytest.approx(w.shares, abs=1e-7)
    assert np.max(atoms @ w.A.T - w.h) < 1e-7
    assert found.weights @ w.costs_of(atoms - w.data[found.source]) <= radius * (1 + 1e-6)
    x.value = decision
    losses = np.max([np.ravel(as_number(a)) + atoms @ as_number(b) for a, b in pieces], axis=0)
    under = found.weights @ losses if seed % 3 == 1 else cvar(losses, level, found.weights)
    assert under - limit == pytest.approx(found.expected_loss / unit, abs=2e-6)
    assert under == pytest.approx(risk_at(risk, more, x, decision), abs=2e-5)


def as_number(expression):
    return expression.value if isinstance(expression, cp.Expression) else expression


def risk_at(risk, rows, x, decision):
    """The worst case of a decision, by the program with it held fixed."""
    held = {id(x): cp.Constant(decision)}
    problem = cp.Problem(cp.Minimize(risk.tree_copy(held)), [r.tree_copy(held) for r in rows])
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("unit", [1e-5, 1e5])
def test_certain_objectives_in_any_unit_beside_uncertain_constraints(unit):
    rng = np.random.default_rng(0)
    data, q = rng.normal(1, 0.3, size=(8, 3)), np.array([1.0, 2.0, 1.5])
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, "xi", samples=data)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    enough = wdro.expectation(1 - xi @ x) <= 0
    problem = wdro.Problem(cp.Minimize(unit * cp.sum_squares(x - q / 9)), [enough], ball)
    covered = 1 - data.mean(axis=0) @ x + 0.05 * cp.norm(x) <= 0
    by_hand = cp.Problem(cp.Minimize(cp.sum_squares(x - q / 9)), [covered])
    assert problem.solve() == pytest.approx(unit * by_hand.solve(solver=cp.CLARABEL), rel=1e-6)
    assert float(enough.dual_value) == pytest.approx(unit * float(covered.dual_value), rel=1e-4)


@pytest.mark.parametrize("cost", [wdro.costs.Norm(2), wdro.costs.SquaredEuclidean()])
def test_the_worst_case_of_one_sample_attains_its_cvar(cost):
    x = cp.Variable(2, nonneg=True, name="x")
    xi = wdro.UncertainParameter(2, samples=[[1.0, 0.5]], support=wdro.supports.Nonnegative())
    more = np.array([0.3, 1.0])
    loss = cp.maximum(xi @ x, 1.2 - xi @ (x + more))
    ball = wdro.WassersteinBall(0.05, cost)
    problem = wdro.Problem(cp.Minimize(wdro.cvar(loss, 0.8)), [cp.sum(x) == 1], ball)
    value = problem.solve()
    found = problem.worst_case()
    atoms = found.scenarios[xi]
    losses = np.maximum(atoms @ x.value, 1.2 - atoms @ (x.value + more))
    assert cvar(losses, 0.8, found.weights) == pytest.approx(value, rel=2e-6)


def test_the_worst_case_of_next_to_nothing_on_a_polyhedron():
    """Losses of the size of rounding, and pieces that are far below them."""
    rng = np.random.default_rng(143)
    data, rows = rng.normal(0.5, 0.5, size=(4, 3)), rng.normal(size=(4, 3))
    support = wdro.supports.Polyhedron(rows, (data @ rows.T).max(axis=0) + 0.2)
    x, t = cp.Variable(3, name="x"), cp.Variable(name="t")
    xi = wdro.UncertainParameter(3, samples=data, support=support)
    cost = wdro.costs.Norm(1, weights=[1.0, np.inf, 2.0])
    loss = cp.maximum(xi @ x, -t)
    problem = wdro.Problem(cp.Minimize(loss), [x >= 0, t <= 9], wdro.WassersteinBall(0.05, cost))
    tiny = np.array([0.0, 3e-11, 0.0])
    for depth in (0.0, 1e-9, 1.0):
        found = problem.robust_value({x: tiny, t: depth})
        assert found == pytest.approx(np.maximum(data @ tiny, -depth).mean(), abs=1e-9)


def test_zero_in_large_units_is_an_optimal_value():
    rng = np.random.default_rng(316)
    data = 1e4 * rng.uniform(0.3, 1.5, size=(1, 2))
    x = cp.Variable(2, nonneg=True, name="x")
    xi = wdro.UncertainParameter(2, samples=data, support=wdro.supports.Nonnegative())
    ball = wdro.WassersteinBall(3e7, wdro.costs.Mahalanobis(covariance=np.eye(2) + 0.5))
    bound = wdro.probability(xi @ x <= 1e4) >= 0.95
    problem = wdro.Problem(cp.Minimize(xi @ x + 5e3 * cp.sum(x)), [cp.sum(x) <= 3, bound], ball)
    assert problem.solve() == pytest.approx(0, abs=1e-2)
    assert problem.status == "optimal"


def test_small_squared_radii_are_as_accurate_as_large_ones():
    """A price of the radius in the thousands must not loosen the constraint that it is in."""
    rng = np.random.default_rng(0)
    data = rng.standard_t(5, size=(40, 4)) * 0.1 + np.linspace(0.02, 0.08, 4)
    found = []
    for unit in (1.0, 100.0):
        x = cp.Variable(4, nonneg=True, name="x")
        returns = wdro.UncertainParameter(4, "returns", samples=unit * data)
        loose = wdro.cvar(-returns @ x, 0.8) <= 0.06 * unit
        tight = wdro.probability(returns @ x >= -0.1 * unit) >= 0.9
        ball = wdro.WassersteinBall(1e-5 * unit**2)
        problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, loose, tight], ball)
        found.append(problem.solve() / unit)
        assert float(loose.dual_value) == pytest.approx(0, abs=1e-4)
        assert float(tight.dual_value) == pytest.approx(0.11553, rel=1e-3)
    assert found[0] == pytest.approx(found[1], rel=1e-6)
