"""Random losses affine in a, given b, with and without kinks in b, against quadrature by hand.

f = sum_i s_i(b) a_i + c(b). The integral over a is that of (truncated) normals, coordinate by
coordinate; the one over b is taken on dense Gauss-Legendre panels between all kinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, logsumexp

import wdro_model as wdro
from wdro_model.objectives.integration import Scales, Stream
from wdro_model.objectives.integration.conditional.by_blocks import Conditional
from wdro_model.objectives.integration.conditional.loss import may_have_kinks
from wdro_model.uncertainty.supports import Box

pytestmark = pytest.mark.filterwarnings("error")

ALLOWED = 1e-4
"""Of the margin: what robustness adds to the mean loss."""


# ------------------------------------------------------------------ random functions of b
@dataclass(frozen=True)
class Term:
    """A function of u = <direction, b>, as an expression and as numbers, and its kinks in u."""

    direction: np.ndarray
    kind: str
    place: float
    scale: float

    @property
    def kinks(self) -> list[float]:
        if self.kind == "maximum":
            return [self.place - 0.1, self.place + 0.2]
        return [self.place] if self.kind in ("abs", "pos") else []

    def expression(self, b):
        u = self.direction[0] * b if b.ndim == 0 else self.direction @ b
        move = self.scale * (u - self.place)
        if self.kind == "maximum":
            steep = 2 * self.scale * (u - self.place - 0.2) + 0.3 * self.scale
            return cp.maximum(0.0, self.scale * (u - self.place + 0.1), steep)
        return {
            "abs": cp.abs,
            "pos": cp.pos,
            "exp": cp.exp,
            "square": cp.square,
            "logistic": lambda v: cp.logistic(4 * v),
        }[self.kind](move)

    def __call__(self, b: np.ndarray) -> np.ndarray:
        u = b @ self.direction
        move = self.scale * (u - self.place)
        if self.kind == "maximum":
            steep = 2 * self.scale * (u - self.place - 0.2) + 0.3 * self.scale
            return np.maximum(0.0, np.maximum(self.scale * (u - self.place + 0.1), steep))
        return {
            "abs": np.abs,
            "pos": lambda v: np.maximum(v, 0.0),
            "exp": np.exp,
            "square": np.square,
            "logistic": lambda v: np.logaddexp(0.0, 4 * v),
        }[self.kind](move)


SMOOTH, KINKED = ("exp", "square", "logistic"), ("abs", "pos", "maximum")


@dataclass(frozen=True)
class Case:
    """A random problem at a fixed decision."""

    offsets: np.ndarray
    factors: np.ndarray
    terms: list[Term]
    """Those of the slopes, and the last one of the constant."""
    weight: float
    a: np.ndarray
    b: np.ndarray
    box_a: tuple[float, float]
    box_b: tuple[float, float]
    epsilon: float
    sigma: float
    radius: float = 1.0
    dual: float = 1.0

    def problem(self) -> wdro.Problem:
        width = self.a.shape[1]
        a = wdro.UncertainParameter(width, samples=self.a, support=Box(*self.box_a), name="a")
        shape, rows = ((), self.b[:, 0]) if self.b.shape[1] == 1 else (self.b.shape[1], self.b)
        b = wdro.UncertainParameter(shape, samples=rows, support=Box(*self.box_b), name="b")
        x = cp.Variable(name="x")
        slopes = cp.hstack(
            [
                o + f * t.expression(b)
                for o, f, t in zip(self.offsets, self.factors, self.terms[:-1])
            ]
        )
        loss = x * (a @ slopes) + self.weight * self.terms[-1].expression(b)
        return wdro.Problem(cp.Minimize(loss), [x == 1], wdro.WassersteinBall(self.radius))

    def solve(self) -> tuple[float, str]:
        problem = self.problem()
        value = problem.solve(
            method="smoothed", integration="conditional", epsilon=self.epsilon, sigma=self.sigma
        )
        return value, problem.status

    def parts(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes (M, r) and constants (M,) at points b (M, q)."""
        slopes = [o + f * t(b) for o, f, t in zip(self.offsets, self.factors, self.terms[:-1])]
        return np.stack(slopes, axis=1), self.weight * self.terms[-1](b)

    def mean(self) -> float:
        slopes, constants = self.parts(self.b)
        return float(np.mean((slopes * self.a).sum(axis=1) + constants))

    def curve(self) -> Callable[[float], float]:
        """The dual variable -> mean_k phi_k."""
        points, log_weights = self.nodes()
        slopes, constants = self.parts(points)
        square = [((points - row) ** 2).sum(axis=1) for row in self.b]
        reference = [logsumexp(log_weights - s / 2 / self.sigma**2) for s in square]

        def phi(dual: float) -> float:
            logs = [
                logsumexp(log_weights + self.exponent(k, square[k], slopes, constants, dual))
                for k in range(len(self.b))
            ]
            return self.epsilon * float(np.mean(logs) - np.mean(reference))

        return phi

    def truth(self) -> float:
        """min over l of l * radius + mean_k phi_k, near the dual that the radius was made for."""
        phi = self.curve()

        def objective(log_dual: float) -> float:
            return np.exp(log_dual) * self.radius + phi(np.exp(log_dual))

        bounds = np.log(self.dual) + np.array([-1.0, 1.0])
        found = minimize_scalar(objective, bounds=bounds, method="bounded", options={"xatol": 1e-6})
        assert bounds[0] + 0.1 < found.x < bounds[1] - 0.1
        return float(found.fun)

    def at_dual(self, dual: float) -> Case:
        """The same with the radius whose dual variable this is."""
        phi, h = self.curve(), 1e-4 * dual
        return replace(self, dual=dual, radius=(phi(dual - h) - phi(dual + h)) / (2 * h))

    def exponent(self, k, square, slopes, constants, dual) -> np.ndarray:
        """log of the integral over a at points b, without the mass of the reference of b."""
        total = constants / self.epsilon - square * (dual / self.epsilon + 0.5 / self.sigma**2)
        variance = 1.0 / (1.0 / self.sigma**2 + 2 * dual / self.epsilon)
        for i, slope in enumerate(slopes.T):
            start = self.a[k, i]
            low, high = self.box_a[0] - start, self.box_a[1] - start
            mean = variance * slope / self.epsilon
            total = total + slope * start / self.epsilon + 0.5 * mean**2 / variance
            total = total + 0.5 * np.log(variance / self.sigma**2)
            if np.isfinite(low) or np.isfinite(high):
                deviation = np.sqrt(variance)
                total = total + log_mass((low - mean) / deviation, (high - mean) / deviation)
                total = total - log_mass(low / self.sigma, high / self.sigma)
        return total

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.box_b
        count = 40 if np.isfinite(low) else 80
        if not np.isfinite(low):
            reach = 12.0 if self.b.shape[1] == 1 else 4.0
            low, high = self.b.min() - reach, self.b.max() + reach
        kinks = [(t.direction, u) for t in self.terms for u in t.kinks]
        if self.b.shape[1] == 1:
            ends = [u / d[0] for d, u in kinks]
            points, weights = panels(low, high, np.array(ends), 300, 12)
            return points[:, None], np.log(weights)
        corners = [(u - d[1] * side) / d[0] for d, u in kinks for side in (low, high) if d[0]]
        corners += [
            np.linalg.solve(np.stack([d, e]), [u, v])[0]
            for (d, u), (e, v) in combinations(kinks, 2)
            if abs(np.linalg.det(np.stack([d, e]))) > 1e-9
        ]
        outer, outer_weights = panels(low, high, np.array(corners), count, 8)
        points, weights = [], []
        for first, weight in zip(outer, outer_weights):
            ends = np.array([(u - d[0] * first) / d[1] for d, u in kinks if d[1]])
            second, inner = panels(low, high, ends, count, 8)
            points.append(np.column_stack([np.full(len(second), first), second]))
            weights.append(weight * inner)
        return np.concatenate(points), np.log(np.concatenate(weights))


def log_mass(low, high) -> np.ndarray:
    """log of the standard normal mass of [low, high]."""
    low, high = np.broadcast_arrays(low, high)
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    below = log_ndtr(low)
    with np.errstate(divide="ignore"):
        return log_ndtr(high) + np.log1p(-np.exp(np.minimum(below - log_ndtr(high), -1e-300)))


def panels(low, high, kinks, count, nodes) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes on panels of [low, high] that end at the kinks, finer at both ends."""
    inside = kinks[(kinks > low) & (kinks < high)] if len(kinks) else np.zeros(0)
    ends = np.linspace(low, high, count + 1)
    finer = (ends[1] - low) * 2.0 ** -np.arange(1, 9)
    ends = np.unique(np.concatenate([ends, inside, low + finer, high - finer]))
    t, w = np.polynomial.legendre.leggauss(nodes)
    half, middle = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
    return (middle[:, None] + half[:, None] * t).ravel(), (half[:, None] * w).ravel()


def random_case(seed: int, *, width: int, states: int = 1, kinked: bool = True) -> Case:
    """Supports, scales and functions at random; the same for the same arguments."""
    rng = np.random.default_rng([seed, width, states, kinked])
    count = int(rng.integers(1, 5 if states == 1 else 3))
    bounded = rng.random() < 0.8
    kinds = KINKED if kinked else SMOOTH if bounded else ("logistic",)
    terms = []
    for _ in range(width + 1):
        direction = np.ones(1) if states == 1 else rng.choice([-1.0, 0.5, 1.0], 2)
        if states == 2 and rng.random() < 0.4:
            direction = np.eye(2)[rng.integers(2)]
        scale = rng.uniform(0.5, 3.0) * rng.choice([-1.0, 1.0])
        terms.append(Term(direction, str(rng.choice(kinds)), rng.uniform(-0.7, 0.7), scale))
    free = rng.random() < 0.5
    epsilon = float(rng.choice([0.02, 0.05, 0.2]))
    dual = float(np.exp(rng.uniform(np.log(0.1), np.log(2.0))))
    # On the line a product of both parameters must not outgrow the cost.
    calm = 1.0 if bounded else 0.05
    dual = dual if bounded else max(dual, 1.0)
    # Moves of the reference cost less than half of what the adversary may spend.
    case = Case(
        offsets=rng.uniform(-1, 1, width),
        factors=calm * rng.uniform(-1, 1, width),
        terms=terms,
        weight=rng.uniform(-1, 1),
        a=rng.uniform(-1, 1, (count, width)),
        b=rng.uniform(-0.9, 0.9, (count, states)),
        box_a=(-np.inf, np.inf) if free else (-1.2, 1.5),
        box_b=(-1.0, 1.0) if bounded else (-np.inf, np.inf),
        epsilon=epsilon,
        sigma=0.4,
    )
    while (case := case.at_dual(dual)).radius < 2 * (width + states) * case.sigma**2:
        case = replace(case, sigma=0.7 * case.sigma)
        if case.sigma < np.sqrt(epsilon / (2 * dual)) / 2:
            return random_case(seed + 1000, width=width, states=states, kinked=kinked)
    return case


def check(case: Case) -> None:
    value, status = case.solve()
    truth = case.truth()
    assert abs(value - truth) <= ALLOWED * (truth - case.mean())
    assert status == "optimal"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("kinked", [True, False])
def test_one_state(seed, width, kinked):
    check(random_case(seed, width=width, kinked=kinked))


@pytest.mark.parametrize(("seed", "width"), [(0, 1), (1, 1), (2, 1), (0, 2), (0, 5)])
def test_two_states_with_kinks(seed, width):
    check(random_case(seed, width=width, states=2))


@pytest.mark.parametrize(
    ("seed", "width"), [(0, 1), (103, 1), (0, 2), (113, 2), (0, 5), (1, 5), (2, 5)]
)
def test_two_states_without_kinks(seed, width):
    """Among them densities that no grid around a mode resolves: 103 and 113."""
    check(random_case(seed, width=width, states=2, kinked=False))


@pytest.mark.parametrize(
    ("seed", "states", "kinked"), [(2, 1, True), (5, 1, False), (2, 2, True), (103, 2, False)]
)
def test_derivatives_are_those_of_the_values(seed, states, kinked):
    case = random_case(seed, width=1, states=states, kinked=kinked)
    model = case.problem()._model
    rule = Conditional(model, Scales(case.epsilon, case.sigma, 20))
    samples, dual, h = np.arange(len(case.a)), case.dual, 1e-4

    def at(x: float):
        return rule.slice(np.array([x]), samples, Stream(0))

    inner = at(1.0)
    ends = [inner.evaluate(dual * (1 + side * h)).value for side in (1, -1)]
    margin = case.truth() - case.mean()
    assert inner.evaluate(dual).value == pytest.approx(
        case.curve()(dual), abs=0.1 * ALLOWED * margin
    )
    assert inner.evaluate(dual).slope == pytest.approx(
        (ends[0] - ends[1]) / (2 * h * dual), rel=1e-4
    )
    ends = [at(1.0 + side * h).evaluate(dual).value for side in (1, -1)]
    assert inner.gradient(dual)[0] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4)


def test_kinks_are_told_from_the_atoms():
    b, x = wdro.UncertainParameter(2, samples=np.ones((1, 2)), name="b"), cp.Variable(2)
    smooth = [b @ x, cp.exp(b[0]) + x[0], cp.square(b[0] * x[0]), cp.abs(x[0]) * b[0]]
    smooth += [cp.sum(cp.power(x, b)), cp.logistic(b @ x), cp.sum_squares(b - x)]
    kinked = [cp.abs(b[0]), cp.exp(cp.pos(b @ x)), cp.norm(b), cp.max(b), cp.norm1(b - x)]
    assert not any(may_have_kinks(e, [b]) for e in smooth)
    assert all(may_have_kinks(e, [b]) for e in kinked)
