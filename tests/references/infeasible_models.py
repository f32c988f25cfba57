"""Random models with one uncertain constraint, feasible or infeasible by a known margin.

The least risk of the constraint over the certain ones is a dual program written by hand, which
always has a solution. The limit stands above or below it by the margin.
"""

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from tests.model.test_random_risks import World

COSTS = (1, 2, np.inf, "squared")
SUPPORTS = ("everywhere", "box", "polyhedron", "nonnegative")


@dataclass
class Drawn:
    """A model, and what is known of it."""

    problem: Any
    x: Any
    feasible: bool
    value: float | None
    """Its optimal value, by the program by hand; None where it is infeasible."""
    risk_of: Any
    """The worst-case risk of a decision minus the limit."""


def draw_model(seed):
    rng = np.random.default_rng([27, seed])
    d, n, size = (int(rng.integers(1, k)) for k in (4, 4, 8))
    n += 1
    data = rng.normal(0, 1, size=(size, d)).round(2)
    A, h, support = _support(rng, rng.choice(SUPPORTS), data)
    if support.__class__.__name__ == "Nonnegative":
        data = np.abs(data)
    cost = COSTS[int(rng.integers(4))]
    w = World(rng, data, np.full(size, 1 / size), cost, np.ones(d), np.eye(d), A, h)
    radius = float(rng.choice([1e-5, 1e-3, 0.01, 0.1, 1.0]))
    radius = (
        max(radius, 1e-3) if cost == "squared" else radius
    )  # as far as the program by hand goes
    x = cp.Variable(n, name="x")
    xi = wdro.UncertainParameter(d, "xi", samples=data, support=support)
    a, c, B, e = rng.normal(), rng.normal(size=n), rng.normal(size=(d, n)), rng.normal(size=d)
    pieces = [(a + c @ x, B @ x + e)]
    loss = pieces[0][0] + xi @ pieces[0][1]
    if rng.random() < 0.4:
        other = (float(rng.normal()) + 0 * cp.sum(x), -(B @ x))
        pieces.append(other)
        loss = cp.maximum(loss, other[0] + xi @ other[1])
    level = float(rng.choice([0.5, 0.8, 0.9, 0.95]))
    kind = int(rng.integers(3))
    certain = [[cp.sum(x) == 1, x >= 0], [x >= -1, x <= 2], [cp.norm(x, 1) <= 3]][rng.integers(3)]
    risk, rows = w.worst_mean(pieces if kind == 1 else tail_pieces(pieces, level, d), radius)
    least = solve_by_hand(cp.Minimize(risk), [*certain, *rows])
    feasible = bool(rng.random() < 0.5)
    margin = float(rng.choice([0.01, 0.1, 1.0])) * max(1.0, abs(least))
    limit = least + margin if feasible else least - margin
    bound = [
        wdro.cvar(loss, level) <= limit,
        wdro.expectation(loss) <= limit,
        wdro.probability(loss <= limit) >= level,
    ][kind]
    q = rng.normal(size=n)
    objective, by_hand, more = q @ x, q @ x, []
    if rng.random() < 0.6:
        b = rng.normal(size=(d, n)) if rng.random() < 0.5 else np.zeros((d, n))
        objective = objective + xi @ (b @ x + 1)
        added, more = w.worst_mean([(0 * cp.sum(x), b @ x + 1)], radius)
        by_hand = by_hand + added
    ball = wdro.WassersteinBall(radius, w.cost())
    problem = wdro.Problem(cp.Minimize(objective), [*certain, bound], ball)
    value = None
    if feasible:
        value = solve_by_hand(cp.Minimize(by_hand), [*certain, *rows, risk <= limit, *more])

    def risk_of(decision):
        held = {id(x): cp.Constant(decision)}
        fixed = [r.tree_copy(held) for r in rows]
        return solve_by_hand(cp.Minimize(risk.tree_copy(held)), fixed) - limit

    return Drawn(problem, x, feasible, value, risk_of)


def tail_pieces(pieces, level, d):
    """The pieces of a CVaR, t + (piece - t)^+ / (1 - level)."""
    t = cp.Variable()
    tail = [(t + (a - t) / (1 - level), b / (1 - level)) for a, b in pieces]
    return [(t, np.zeros(d)), *tail]


def _support(rng, name, data):
    d = data.shape[1]
    if name == "box":
        lower, upper = data.min(axis=0) - 0.1, data.max(axis=0) + rng.uniform(0, 1, d)
        rows = np.vstack([np.eye(d), -np.eye(d)])
        return rows, np.concatenate([upper, -lower]), wdro.supports.Box(lower, upper)
    if name == "polyhedron":
        rows = rng.normal(size=(2, d)).round(2)
        right = (data @ rows.T).max(axis=0) + 0.2
        return rows, right, wdro.supports.Polyhedron(rows, right)
    if name == "nonnegative":
        return -np.eye(d), np.zeros(d), wdro.supports.Nonnegative()
    return np.zeros((1, d)), np.ones(1), wdro.supports.Everywhere()


def solve_by_hand(objective, constraints):
    """The value of a program, by Clarabel through CVXPY alone."""
    problem = cp.Problem(objective, constraints)
    value = problem.solve(solver=cp.CLARABEL)
    assert problem.status == "optimal", problem.status
    return value
