"""Families of the smoothed method: affine pieces, far pieces, few samples, and small integrals."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from random_models.references import (
    Ball,
    Cost,
    Pieces,
    affine,
    attained_by_moves,
    maximum,
    worst_case_at,
)
from random_models.smoothing import (
    Smoothing,
    least_over_price,
    least_over_threshold,
    smoothed_by_quadrature,
)
from random_models.trial import Answer, NoReferenceError, Trial, read_answer

RELATIVE = 2e-4
"""How far a smoothed value may be from the judge's, beside its standard error and gap; the solver's
own tolerance is 1e-4."""
ERRORS = 4.0
"""How many standard errors a sampled value may be off."""


def draw_box(rng: np.random.Generator, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """A support around samples: lower and upper bounds, and its name."""
    d = samples.shape[1]
    kind = str(rng.choice(["R^d", "R^d", "box", "nonnegative"]))
    if kind == "R^d":
        return np.full(d, -np.inf), np.full(d, np.inf), kind
    if kind == "nonnegative":
        return np.zeros(d), np.full(d, np.inf), kind
    low = samples.min(axis=0) - rng.uniform(0.05, 1.5, size=d)
    return low, samples.max(axis=0) + rng.uniform(0.05, 1.5, size=d), kind


def write_box(low: np.ndarray, high: np.ndarray, kind: str) -> Any:
    """The library's support."""
    if kind == "R^d":
        return wdro.supports.Everywhere()
    if kind == "nonnegative":
        return wdro.supports.Nonnegative()
    return wdro.supports.Box(low, high)


def ball_of(
    samples: np.ndarray, radius: float, low: np.ndarray, high: np.ndarray, cost: Cost | None = None
) -> Ball:
    """The judge's ball on a box with the squared cost, or with another."""
    d = samples.shape[1]
    rows, limits = [], []
    for i in range(d):
        unit = np.zeros(d)
        unit[i] = 1.0
        if np.isfinite(high[i]):
            rows.append(unit)
            limits.append(high[i])
        if np.isfinite(low[i]):
            rows.append(-unit)
            limits.append(-low[i])
    C = np.array(rows) if rows else None
    h = np.array(limits) if rows else None
    N = len(samples)
    if cost is None:
        cost = Cost(weights=np.ones(d), covariance=np.eye(d))
    return Ball(samples, np.full(N, 1.0 / N), cost, radius, C, h)


def read_smoothing(
    problem: Any, samples: np.ndarray, radius: float, low: np.ndarray, high: np.ndarray
) -> Smoothing | None:
    """The smoothing that the library says it used; None where sigma is no single number."""
    epsilon, sigma = problem.solution.epsilon, problem.solution.sigma
    if epsilon is None or sigma is None or (np.ndim(sigma) > 0 and np.ptp(sigma) > 1e-12):
        return None
    N = len(samples)
    return Smoothing(
        samples, np.full(N, 1.0 / N), radius, float(epsilon), float(np.ravel(sigma)[0]), low, high
    )


class Bracketed:
    """The judge of a smoothed maximum of affine pieces, with one threshold at most.

    F at the answer's decision lies between two numbers that are computed here, and below the exact
    worst case; and no decision that is tried has a smaller F than the answer's, up to its gap.
    """

    def __init__(
        self, pieces: Pieces, ball: Ball, own: int, tried: list[np.ndarray], sign: float = 1.0
    ) -> None:
        self.pieces, self.ball, self.own, self.tried = pieces, ball, own, tried
        self.sign = sign

    def bracket(self, smoothing: Smoothing, x: np.ndarray) -> tuple[float, float]:
        """Bounds of F at a decision, minimised over its threshold."""
        if self.pieces.A.shape[1] == self.own:
            return smoothing.least_bracket(*self.pieces.at(x))
        spread = self.threshold_range(x)
        sides = []
        for side in (0, 1):

            def value(t: float, side: int = side) -> float:
                a, b = self.pieces.at(np.append(x, t))
                first = max(float(np.linalg.norm(b, axis=1).max()), 1e-9)
                first /= np.sqrt(smoothing.radius)
                return least_over_price(lambda price: smoothing.bracket(a, b, price)[side], first)

            sides.append(least_over_threshold(value, *spread))
        return sides[0], sides[1]

    def threshold_range(self, x: np.ndarray) -> tuple[float, float]:
        """Numbers between which the best threshold lies."""
        _, y = worst_case_at(self.pieces, self.ball, x)
        centre = y[-1]
        _, b = self.pieces.at(y)
        wide = 3 * np.linalg.norm(b, axis=1).max() * np.sqrt(self.ball.radius) + 1.0
        wide += float(np.abs(self.ball.samples).max())
        return centre - wide, centre + wide

    def judge(self, answer: Answer) -> list[str]:
        """Hold a value between the bounds, below the worst case, and below other decisions'."""
        value, x = self.sign * answer.value, answer.decision
        if not np.isfinite(value):
            return [f"value {value}"] if answer.is_optimal else []
        if x is None:
            return ["no decision"]
        exact, y = worst_case_at(self.pieces, self.ball, x)
        empirical = float(self.ball.probabilities @ self.pieces.values(y, self.ball.samples))
        scale = max(1e-3, abs(exact), abs(exact - empirical))
        allowed = RELATIVE * scale + ERRORS * (answer.standard_error or 0.0)
        wrong = []
        if value > exact + allowed:
            moved = attained_by_moves(self.pieces, self.ball, y)
            if abs(moved - exact) < 1e-4 * scale:
                wrong.append(f"value {value:.8g} is above the worst case {exact:.8g} of its x")
            else:
                raise NoReferenceError(f"worst case {exact:.8g}, by moves {moved:.8g}")
        smoothing = answer.more.get("smoothing")
        if smoothing is None or not answer.is_optimal:
            return wrong
        low, high = self.bracket(smoothing, x)
        if low > high + 1e-7 * scale:
            raise NoReferenceError(f"bracket {low:.8g} {high:.8g}")
        if not low - allowed <= value <= high + allowed:
            error = answer.standard_error or 0.0
            wrong.append(
                f"value {value:.8g} +- {error:.1g}, F is in [{low:.8g}, {high:.8g}], "
                f"worst case {exact:.8g}"
            )
        gap = max(answer.gap or 0.0, 0.0)
        for other in self.tried:
            _, best = self.bracket(smoothing, other)
            if best < value - gap - allowed:
                wrong.append(f"value {value:.8g}, gap {gap:.2g}, but F is {best:.8g} at {other}")
                break
        robust = answer.more.get("robust")
        if robust is not None and abs(self.sign * robust - exact) > 1e-4 * scale:
            wrong.append(f"robust_value {self.sign * robust:.8g}, worst case of x {exact:.8g}")
        return wrong


def simplex_points(rng: np.random.Generator, n: int, count: int) -> list[np.ndarray]:
    """Points of the simplex: its centre and random ones."""
    return [np.full(n, 1.0 / n), *rng.dirichlet(np.full(n, 0.7), size=count)]


def scalar_product(d: int, factor: float = 1.0) -> Pieces:
    """The loss <z, x>, times a factor."""
    return affine(0.0, np.zeros(d), np.zeros(d), factor * np.eye(d))


def solve_smoothed(
    problem: Any,
    x: Any,
    samples: np.ndarray,
    radius: float,
    low: np.ndarray,
    high: np.ndarray,
    **options: Any,
) -> Any:
    """The function that solves by the smoothed method and reads the smoothing with the answer."""

    def solve(limit: float) -> Answer:
        problem.solve(method="smoothed", time_limit=limit, **options)
        solution = problem.solution
        robust = None if solution.robust_value_is_bound else solution.robust_value
        return read_answer(
            problem,
            x.value,
            smoothing=read_smoothing(problem, samples, radius, low, high),
            robust=robust,
        )

    return solve


def draw_data(rng: np.random.Generator, N: int, d: int, scale: float) -> np.ndarray:
    """Samples around a random centre."""
    return scale * (rng.normal(size=(N, d)) * rng.choice([0.1, 0.5, 1.0]) + rng.normal(size=d))


def draw_smoothed(rng: np.random.Generator) -> Trial:
    """Maxima of affine pieces with the squared cost in 1 to 10 dimensions; or a small integral."""
    if rng.random() < 0.35:
        return draw_integral(rng)
    d, N = int(rng.integers(1, 11)), int(rng.integers(1, 15))
    scale = 1.0 if rng.random() < 0.6 else float(10.0 ** rng.uniform(-2, 2))
    samples = draw_data(rng, N, d, scale)
    low, high, support = draw_box(rng, samples)
    if support == "nonnegative":
        samples = np.abs(samples)
    radius = float(scale**2 * 10.0 ** rng.uniform(-3, 1))
    x = cp.Variable(d, nonneg=True, name="x")
    z = wdro.UncertainParameter(d, name="z", samples=samples, support=write_box(low, high, support))
    kind = str(rng.choice(["affine", "maximum", "absolute", "cvar"]))
    pieces, own, sign = scalar_product(d), d, 1.0
    shift = float(scale * rng.normal())
    level = float(rng.choice([0.3, 0.6, 0.9]))
    if kind == "affine":
        loss = z @ x
    elif kind == "maximum":
        slope = rng.normal(size=d)
        other = affine(shift, np.zeros(d), slope, np.zeros((d, d)))
        pieces = maximum(pieces, other)
        loss = cp.maximum(z @ x, z @ slope + shift)
    elif kind == "absolute":
        plus = affine(-shift, np.zeros(d), np.zeros(d), np.eye(d))
        pieces = maximum(plus, affine(shift, np.zeros(d), np.zeros(d), -np.eye(d)))
        loss = cp.abs(z @ x - shift)
    else:
        pieces = pieces.extended(1).tail(d, level)
        loss = wdro.cvar(z @ x, level)
    goal: Any = cp.Minimize(loss)
    if kind in ("affine", "cvar") and rng.random() < 0.3:
        goal, sign = cp.Maximize(-loss), -1.0
    ball = wdro.WassersteinBall(radius)
    problem = wdro.Problem(goal, [cp.sum(x) == 1], ball)
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["integration"] = "tilted"
    if rng.random() < 0.3:
        options["sigma"] = float(np.sqrt(radius / (2 * d)) * rng.uniform(0.2, 1.0))
    judge = Bracketed(
        pieces, ball_of(samples, radius, low, high), own, simplex_points(rng, d, 4), sign
    )
    text = f"smoothed {kind}, d={d} N={N} {support} radius {radius:.3g} scale {scale:.2g} {options}"
    solve = solve_smoothed(problem, x, samples, radius, low, high, **options)
    return Trial(text, solve, judge.judge)


def draw_far(rng: np.random.Generator) -> Trial:
    """A steep piece far from the samples, with the decision fixed or free."""
    d, N = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    samples = 0.3 + 0.1 * rng.normal(size=(N, d))
    support = str(rng.choice(["R^d", "nonnegative"]))
    low = np.full(d, -np.inf if support == "R^d" else 0.0)
    high = np.full(d, np.inf)
    samples = np.abs(samples)
    radius = float(10.0 ** rng.uniform(-1.5, 0.5))
    slope, far = float(10.0 ** rng.uniform(0.7, 2)), float(10.0 ** rng.uniform(0, 1))
    unit = np.zeros(d)
    unit[0] = 1.0
    steep = affine(-slope * far, np.zeros(d), slope * unit, np.zeros((d, d)))
    pieces = maximum(scalar_product(d), steep)
    x = cp.Variable(d, nonneg=True, name="x")
    z = wdro.UncertainParameter(d, name="z", samples=samples, support=write_box(low, high, support))
    fixed = bool(rng.random() < 0.5)
    rows = [x == 0.5] if fixed else [cp.sum(x) == 1]
    loss = cp.maximum(z @ x, slope * (z[0] - far))
    problem = wdro.Problem(cp.Minimize(loss), rows, wdro.WassersteinBall(radius))
    options = {"integration": "tilted"} if rng.random() < 0.4 else {}
    tried = [] if fixed else simplex_points(rng, d, 3)
    judge = Bracketed(pieces, ball_of(samples, radius, low, high), d, tried)
    text = f"far piece {slope:.3g}*(z0 - {far:.3g}), d={d} N={N} {support} radius {radius:.3g} "
    text += ("x fixed " if fixed else "x free ") + str(options)
    return Trial(
        text, solve_smoothed(problem, x, samples, radius, low, high, **options), judge.judge
    )


def draw_few(rng: np.random.Generator) -> Trial:
    """CVaR of one or two samples, smoothed."""
    d, N = int(rng.integers(1, 11)), int(rng.integers(1, 3))
    samples = 0.5 + rng.choice([0.0, 0.3, 1.0]) * rng.normal(size=(N, d))
    low, high, support = draw_box(rng, samples)
    if support == "nonnegative":
        samples = np.abs(samples)
    radius = float(10.0 ** rng.uniform(-2, 0.5))
    level = float(rng.choice([0.5, 0.8, 0.95]))
    x = cp.Variable(d, nonneg=True, name="x")
    z = wdro.UncertainParameter(d, name="z", samples=samples, support=write_box(low, high, support))
    fixed = bool(rng.random() < 0.5)
    rows = [x == 1] if fixed else [cp.sum(x) == 1]
    loss: Any = wdro.cvar(z @ x, level)
    pieces = scalar_product(d).extended(1).tail(d, level)
    kind = "cvar"
    if rng.random() < 0.3:
        slope, shift = rng.normal(size=d), float(rng.normal())
        other = affine(shift, np.zeros(d), slope, np.zeros((d, d)))
        pieces = maximum(scalar_product(d), other).extended(1).tail(d, level)
        loss, kind = wdro.cvar(cp.maximum(z @ x, z @ slope + shift), level), "cvar of maximum"
    if rng.random() < 0.3:
        loss = loss + z @ x
        pieces = pieces + scalar_product(d).extended(1)
        kind += " + mean"
    problem = wdro.Problem(cp.Minimize(loss), rows, wdro.WassersteinBall(radius))
    tried = [] if fixed else simplex_points(rng, d, 2)
    judge = Bracketed(pieces, ball_of(samples, radius, low, high), d, tried)
    text = f"smoothed {kind} {level}, N={N} d={d} {support} radius {radius:.3g} "
    text += "x fixed" if fixed else "x free"
    return Trial(text, solve_smoothed(problem, x, samples, radius, low, high), judge.judge)


# --- small integrals -----------------------------------------------------------------------------


def draw_integral(rng: np.random.Generator) -> Trial:
    """Any loss of one or two numbers, any norm, against quadrature at the answer's decision."""
    d = int(rng.integers(1, 3))
    N = int(rng.integers(1, 6)) if d == 1 else int(rng.integers(1, 3))
    samples = draw_data(rng, N, d, 1.0)
    low, high, support = draw_box(rng, samples)
    if support == "nonnegative":
        samples = np.abs(samples)
    kinds = ["logistic", "huber", "maximum", "absolute of a sum"]
    if support == "box":
        kinds += ["square", "exponential", "product"]
    kind = str(rng.choice(kinds))
    x = cp.Variable(d, nonneg=True, name="x")
    z = wdro.UncertainParameter(d, name="z", samples=samples, support=write_box(low, high, support))
    slope, shift = rng.normal(size=d), float(rng.normal())
    loss, at = {
        "logistic": (cp.logistic(z @ x - shift), lambda z, x: np.logaddexp(0, z @ x - shift)),
        "huber": (
            cp.huber(z @ x - shift, 0.5),
            lambda z, x: np.where(
                np.abs(z @ x - shift) <= 0.5,
                (z @ x - shift) ** 2,
                np.abs(z @ x - shift) - 0.25,
            ),
        ),
        "maximum": (
            cp.maximum(z @ x, z @ slope + shift, 0),
            lambda z, x: np.maximum(np.maximum(z @ x, z @ slope + shift), 0),
        ),
        "absolute of a sum": (
            cp.sum(cp.abs(z - x)),
            lambda z, x: np.sum(np.abs(z - x), axis=1),
        ),
        "square": (cp.square(z @ x - shift), lambda z, x: (z @ x - shift) ** 2),
        "exponential": (cp.exp(z @ x), lambda z, x: np.exp(z @ x)),
        "product": (
            cp.square(z[0]) * x[0] + z @ x,
            lambda z, x: z[:, 0] ** 2 * x[0] + z @ x,
        ),
    }[kind]
    cost: Any = wdro.costs.SquaredEuclidean()
    name = "squared"
    if rng.random() < 0.5:
        p = [1, 2, np.inf][int(rng.integers(3))]
        cost, name = wdro.costs.Norm(p), f"Norm({p})"
    radius = float(10.0 ** rng.uniform(-2, 0.3))
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(radius, cost))
    options: dict[str, Any] = {"integration": "tilted"} if rng.random() < 0.2 else {}

    def distance(xi: np.ndarray, points: np.ndarray) -> np.ndarray:
        if name == "squared":
            return np.sum((points - xi) ** 2, axis=1)
        return np.linalg.norm(points - xi, p, axis=1)

    def judge(answer: Answer) -> list[str]:
        if not answer.is_optimal:
            return []
        smoothing = answer.more["smoothing"]
        if smoothing is None:
            raise NoReferenceError("sigma is no single number")
        u = answer.decision
        spread = np.abs(np.vstack([samples, np.where(np.isfinite(low), low, 0.0)])).max() + 4
        steepest = {
            "maximum": max(1.0, float(np.linalg.norm(slope))),
            "square": 2 * (spread + abs(shift)),
            "exponential": float(np.exp(spread)),
            "product": 2 * spread + 1,
        }.get(kind, 2.0)
        first = steepest / (np.sqrt(radius) if name == "squared" else 1.0)

        def value(v: np.ndarray) -> float:
            return smoothed_by_quadrature(
                lambda points: at(points, v), distance, smoothing, steepest, first
            )

        own = value(u)
        scale = max(1e-2, abs(own), float(np.abs(at(samples, u)).max()))
        allowed = RELATIVE * scale + ERRORS * (answer.standard_error or 0.0)
        wrong = []
        if abs(answer.value - own) > allowed:
            wrong.append(f"value {answer.value:.8g}, by quadrature {own:.8g}")
        gap = max(answer.gap or 0.0, 0.0)
        others = [] if d == 1 else [np.array([0.2, 0.8]), np.array([0.7, 0.3])]
        for other in others:
            best = value(other)
            if best < answer.value - gap - allowed:
                wrong.append(f"value {answer.value:.8g}, gap {gap:.2g}, {best:.8g} at {other}")
        return wrong

    text = f"integral of {kind}, d={d} N={N} {support} {name} radius {radius:.3g} {options}"
    solve = solve_smoothed(problem, x, samples, radius, low, high, **options)
    return Trial(text, solve, judge)
