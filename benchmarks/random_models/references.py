"""Worst cases over Wasserstein balls, written out from the literature.

A loss is a maximum of pieces a_j(y) + <b_j(y), z>, affine in the decision y and in the data z. With
samples xi_k of probability p_k, a support {z: C z <= h} and a radius r,

    W(y) = min_{l >= 0}  l r + sum_k p_k max_j sup_{C z <= h}  a_j + <b_j, z> - l c(xi_k, z)

(Mohajerin Esfahani and Kuhn 2018, theorem 4.2 for norms; the same with a quadratic conjugate for
squared costs). `least_worst_case` minimises it over y by one conic program. `attained_by_moves` is
the other side: it moves mass from samples to pieces (theorem 4.4), and is at most W(y).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from random_models.trial import NoReferenceError

Constraints = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Pieces:
    """max_j  a0_j + <A_j, y> + <b0_j + B_j y, z>, with J pieces, n decisions, d data."""

    a0: np.ndarray
    A: np.ndarray
    b0: np.ndarray
    B: np.ndarray

    @property
    def count(self) -> int:
        return len(self.a0)

    def __add__(self, other: Pieces) -> Pieces:
        """The sum, whose pieces are the sums of one piece of each."""
        first = np.repeat(np.arange(self.count), other.count)
        second = np.tile(np.arange(other.count), self.count)
        return Pieces(
            *(
                getattr(self, name)[first] + getattr(other, name)[second]
                for name in ("a0", "A", "b0", "B")
            )
        )

    def __mul__(self, factor: float) -> Pieces:
        """The multiple by a nonnegative number."""
        assert factor >= 0
        return Pieces(factor * self.a0, factor * self.A, factor * self.b0, factor * self.B)

    def extended(self, count: int) -> Pieces:
        """The same function of a decision with `count` more numbers, that it does not see."""
        J, d = self.b0.shape
        return Pieces(
            self.a0,
            np.hstack([self.A, np.zeros((J, count))]),
            self.b0,
            np.concatenate([self.B, np.zeros((J, d, count))], axis=2),
        )

    def tail(self, position: int, level: float) -> Pieces:
        """t + (f - t)_+ / (1 - level), where t is the decision's number at `position`."""
        n, d = self.A.shape[1], self.b0.shape[1]
        share = 1.0 / (1.0 - level)
        A = share * self.A.copy()
        A[:, position] += 1.0 - share
        rest = np.zeros((1, n))
        rest[0, position] = 1.0
        return Pieces(
            np.append(share * self.a0, 0.0),
            np.vstack([A, rest]),
            np.vstack([share * self.b0, np.zeros((1, d))]),
            np.concatenate([share * self.B, np.zeros((1, d, n))]),
        )

    def at(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers a_j (J,) and the slopes b_j (J, d) at a decision."""
        return self.a0 + self.A @ y, self.b0 + self.B @ y

    def values(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The loss at each row of `z`."""
        a, b = self.at(y)
        return np.max(a + z @ b.T, axis=1)


def affine(a0: float, A: np.ndarray, b0: np.ndarray, B: np.ndarray) -> Pieces:
    """One piece."""
    return Pieces(np.array([a0]), np.array([A]), np.array([b0]), np.array([B]))


def maximum(*parts: Pieces) -> Pieces:
    """The maximum of all pieces of all parts."""
    return Pieces(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("a0", "A", "b0", "B"))
    )


@dataclass(frozen=True)
class Cost:
    """||w * (xi - z)||_p, or (xi - z)' S^-1 (xi - z) where `covariance` S is given."""

    p: float | None = None
    weights: np.ndarray | None = None
    covariance: np.ndarray | None = None

    @property
    def is_norm(self) -> bool:
        return self.covariance is None

    @property
    def dual_p(self) -> float:
        return {1: np.inf, 2: 2, np.inf: 1}[self.p]

    def root(self) -> np.ndarray:
        """The matrix L with S = L L'."""
        return np.linalg.cholesky(self.covariance)

    def dual_norm(self, b: np.ndarray) -> float:
        """The largest gain of a slope for a move of cost one."""
        if self.is_norm:
            return float(np.linalg.norm(b / self.weights, self.dual_p))
        return float(np.linalg.norm(self.root().T @ b))

    def distance(self, z: np.ndarray, xi: np.ndarray) -> np.ndarray:
        """The cost of moving rows of `xi` to rows of `z`."""
        move = z - xi
        if self.is_norm:
            return np.linalg.norm(self.weights * move, self.p, axis=-1)
        return np.sum((move @ np.linalg.inv(self.root()).T) ** 2, axis=-1)


@dataclass(frozen=True)
class Ball:
    """All distributions on {C z <= h} within `radius` of the samples."""

    samples: np.ndarray
    probabilities: np.ndarray
    cost: Cost
    radius: float
    C: np.ndarray | None = None
    h: np.ndarray | None = None

    def contains(self, z: np.ndarray, tolerance: float = 1e-7) -> bool:
        """Do all rows lie in the support?"""
        return self.C is None or bool(np.all(z @ self.C.T <= self.h + tolerance))


def worst_case_rows(f: Pieces, y: Any, ball: Ball) -> tuple[Any, list[Any]]:
    """An expression whose least value is W(y), and the constraints that go with it."""
    N, d = ball.samples.shape
    # For squared costs the price is measured in 1 / sqrt(radius), which keeps small balls in units
    # of order one: with l = m / sqrt(r), the conjugate |b|^2 / 4l is sqrt(r) times |b|^2 / 4m.
    unit = ball.radius if ball.cost.is_norm else float(np.sqrt(ball.radius))
    price, s = cp.Variable(nonneg=True), cp.Variable(N)
    rows: list[Any] = []
    for j in range(f.count):
        a = f.a0[j] + f.A[j] @ y
        b = f.b0[j] + f.B[j] @ y
        reached = a + ball.samples @ b
        if ball.radius == 0:
            rows.append(s >= reached)
            continue
        if ball.C is None:
            slopes = cp.reshape(b, (1, d), order="C")
        else:
            multipliers = cp.Variable((N, len(ball.h)), nonneg=True)
            slack = np.maximum(ball.h - ball.samples @ ball.C.T, 0.0)
            reached = reached + cp.sum(cp.multiply(multipliers, slack), axis=1)
            slopes = np.ones((N, 1)) @ cp.reshape(b, (1, d), order="C") - multipliers @ ball.C
        if ball.cost.is_norm:
            scaled = slopes @ np.diag(1.0 / ball.cost.weights)
            rows += [cp.norm(scaled, ball.cost.dual_p, axis=1) <= price, s >= reached]
        else:
            gain = cp.Variable(slopes.shape[0])
            side = cp.reshape(price - gain, (slopes.shape[0], 1), order="C")
            sides = cp.hstack([slopes @ ball.cost.root(), side])
            rows += [cp.norm(sides, 2, axis=1) <= price + gain]
            rows += [s >= reached + unit * (gain if ball.C is not None else gain[0])]
    return price * unit + ball.probabilities @ s, rows


@dataclass(frozen=True)
class Bound:
    """W of `pieces` is at most `limit`."""

    pieces: Pieces
    limit: float


def solve_program(program: Any, solver: str = "CLARABEL") -> str:
    """Solve one of the judge's own programs; the status."""
    try:
        program.solve(solver=solver)
    except (cp.error.SolverError, ValueError) as error:
        raise NoReferenceError(str(error)) from error
    return str(program.status)


def least_worst_case(
    f: Pieces,
    ball: Ball,
    constraints: Constraints,
    bounds: Sequence[Bound] = (),
    own: int | None = None,
    fixed: np.ndarray | None = None,
) -> tuple[float, np.ndarray] | None:
    """The least W(y), with its decision; None if there is no feasible one.

    `constraints` see the first `own` numbers of y, all by default; the others are thresholds.
    `fixed` holds the first ones at given values.
    """
    n = f.A.shape[1]
    own = n if own is None else own
    y = cp.Variable(n)
    objective, rows = worst_case_rows(f, y, ball)
    rows += constraints(y[:own])
    for bound in bounds:
        expression, more = worst_case_rows(bound.pieces, y, ball)
        rows += [*more, expression <= bound.limit]
    if fixed is not None:
        rows = [*rows, y[:own] == fixed]
    program = cp.Problem(cp.Minimize(objective), rows)
    status = solve_program(program)
    if status in ("infeasible", "infeasible_inaccurate"):
        return None
    if status != "optimal":
        raise NoReferenceError(f"the judge's own program is {status}")
    return float(program.value), np.array(y.value)


def no_constraints(_: Any) -> list[Any]:
    """No constraints."""
    return []


def worst_case_at(f: Pieces, ball: Ball, x: np.ndarray) -> tuple[float, np.ndarray]:
    """W at a decision, minimised over the thresholds that follow it in y."""
    found = least_worst_case(f, ball, no_constraints, own=len(x), fixed=np.asarray(x, dtype=float))
    if found is None:
        raise NoReferenceError("the worst case at a decision came out infeasible")
    return found


def attained_by_moves(f: Pieces, ball: Ball, y: np.ndarray) -> float:
    """The largest mean loss by moves of mass to pieces: at most W(y), by another program."""
    a, b = f.at(y)
    N, d = ball.samples.shape
    if ball.radius == 0:
        return float(ball.probabilities @ f.values(y, ball.samples))
    unit = ball.radius if ball.cost.is_norm else float(np.sqrt(ball.radius))
    total, spent, mass, rows = 0.0, 0.0, 0.0, []
    for j in range(f.count):
        share, moved = cp.Variable(N, nonneg=True), cp.Variable((N, d))
        placed = cp.multiply(cp.reshape(share, (N, 1), order="C") @ np.ones((1, d)), ball.samples)
        placed = placed + unit * moved
        total = total + a[j] * cp.sum(share) + cp.sum(placed @ b[j])
        mass = mass + share
        if ball.C is not None:
            limit = cp.reshape(share, (N, 1), order="C") @ ball.h.reshape(1, -1)
            rows.append(placed @ ball.C.T <= limit)
        if ball.cost.is_norm:
            spent = spent + cp.sum(cp.norm(moved @ np.diag(ball.cost.weights), ball.cost.p, axis=1))
        else:
            paid = cp.Variable(N)
            scaled = 2 * moved @ np.linalg.inv(ball.cost.root()).T
            side = cp.reshape(share - paid, (N, 1), order="C")
            rows.append(cp.norm(cp.hstack([scaled, side]), 2, axis=1) <= share + paid)
            spent = spent + cp.sum(paid)
    rows += [mass == ball.probabilities, spent <= 1.0]
    program = cp.Problem(cp.Maximize(total), rows)
    status = solve_program(program)
    if status != "optimal":
        raise NoReferenceError(f"the program of moves is {status}")
    return float(program.value)


def confirmed_worst_case(f: Pieces, ball: Ball, x: np.ndarray, tolerance: float) -> float:
    """W at a decision, by both programs, which must agree."""
    value, y = worst_case_at(f, ball, x)
    moved = attained_by_moves(f, ball, y)
    if abs(value - moved) > tolerance:
        raise NoReferenceError(f"W is {value:.9g} by duality and {moved:.9g} by moves")
    return value


def transport_cost(
    cost: Cost,
    samples: np.ndarray,
    probabilities: np.ndarray,
    scenarios: np.ndarray,
    weights: np.ndarray,
) -> float:
    """The optimal transport cost between two discrete distributions, by a linear program."""
    from scipy.optimize import linprog

    N, K = len(samples), len(scenarios)
    prices = cost.distance(scenarios[None, :, :], samples[:, None, :])
    rows = np.zeros((N + K, N * K))
    for i in range(N):
        rows[i, i * K : (i + 1) * K] = 1
    for k in range(K):
        rows[N + k, k::K] = 1
    right = np.concatenate([probabilities, weights * probabilities.sum() / weights.sum()])
    found = linprog(prices.ravel(), A_eq=rows[:-1], b_eq=right[:-1], method="highs")
    if found.status != 0:
        raise NoReferenceError(f"the transport program: {found.message}")
    return float(found.fun)


def with_radius(ball: Ball, radius: float) -> Ball:
    """Copy a ball with another radius."""
    return replace(ball, radius=radius)
