"""Random smoothed models with a fixed decision, each with its value by independent quadrature.

`draw(seed)` is a model: a loss written twice (in CVXPY, and in NumPy with the lines of its kinks),
a cost, a support, a radius, perhaps epsilon and sigma. `solved` runs the library, `truth` computes

    min over l >= 0 of  l rho + eps mean_k log E exp((f(x, z) - l c(xi_k, z)) / eps)

at the epsilon and sigma which the library says are in force, and `verdict` compares.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from tests.references.simplex_mesh import (
    Block,
    Line,
    Minimum,
    Reference,
    Unresolved,
    minimise,
)

Array = np.ndarray
SHARE = 1e-4
"""Of the margin F - mean loss: how far a value may be off."""
ERRORS = 4.0
"""Standard errors that a sampled value may be off."""
CLAIMED = ("optimal", "stationary")
"""Statuses by which the library says that it is done."""


# ------------------------------------------------------------------ losses
@dataclass
class Term:
    """A loss: in CVXPY, in NumPy at the fixed decision, and where it has kinks."""

    name: str
    written: Callable[[Data, cp.Expression], cp.Expression]
    """From the data and the decision (a vector of as many entries as the data)."""
    at: Callable[[Array, Array], Array]
    """Losses (m,) of scenarios (m, d) at a decision (d,)."""
    lines: Callable[[Array], list[Line]] = lambda x: []
    """Kinks at a decision."""
    points: Callable[[Array], list[Array]] = lambda x: []
    growth: float = 1.0
    """Power of the data with which it grows; inf for exponentials."""
    separate: bool = False
    """Is it a sum over the coordinates? `at` then gives the part of one of them, too."""
    along: bool = False
    """Does it see <x, z> alone? `at` then gives it in the one coordinate <x, z> / |x|, too."""


@dataclass
class Data:
    """The uncertain data as the loss sees it: a vector, or two numbers."""

    parts: list[wdro.UncertainParameter]

    def entry(self, i: int) -> cp.Expression:
        if len(self.parts) > 1:
            return self.parts[i]
        only = self.parts[0]
        return only if only.ndim == 0 else only[i]

    def dot(self, x: cp.Expression) -> cp.Expression:
        """<x, z>, as one would write it."""
        only = self.parts[0]
        if len(self.parts) == 1 and only.ndim == 1:
            return only @ x
        return sum(self.entry(i) * x[i] for i in range(x.shape[0]))

    def minus(self, x: cp.Expression) -> cp.Expression:
        """z - x as a vector."""
        only = self.parts[0]
        if len(self.parts) == 1 and only.ndim == 1:
            return only - x
        return cp.hstack([self.entry(i) - x[i] for i in range(x.shape[0])])


def unit(d: int, i: int) -> Array:
    return np.eye(d)[i]


def one_term(rng: np.random.Generator, d: int, kind: str) -> Term:
    """A term with random numbers."""
    y = float(rng.normal())
    a = rng.normal(size=(4, d))
    b = rng.normal(size=4)
    weight = float(rng.choice([1.0, 0.5, 3.0]))
    if kind == "affine":
        return Term(
            "affine",
            lambda z, x: z.dot(x) + y * cp.sum(x),
            lambda z, x: z @ x + y * x.sum(),
            separate=True,
        )
    if kind == "cvar":
        tail = float(rng.choice([0.1, 0.25, 0.5]))
        return Term(
            f"cvar({tail})",
            lambda z, x: y + cp.pos(-z.dot(x) - y) / tail,
            lambda z, x: y + np.maximum(-(z @ x) - y, 0) / tail,
            lambda x: [(x, -y)],
            along=True,
        )
    if kind == "newsvendor":
        high = float(rng.choice([2.0, 5.0, 0.3]))

        def newsvendor(z: Data, x: cp.Expression) -> cp.Expression:
            if len(z.parts) > 1:
                return sum(
                    cp.maximum(x[i] - z.entry(i), high * (z.entry(i) - x[i])) for i in range(d)
                )
            return cp.sum(cp.maximum(-z.minus(x), high * z.minus(x)))

        return Term(
            f"newsvendor({high})",
            newsvendor,
            lambda z, x: np.maximum(x - z, high * (z - x)).sum(axis=1),
            lambda x: [(unit(d, i), float(x[i])) for i in range(d)],
            separate=True,
        )
    if kind == "abs":
        return Term(
            "abs",
            lambda z, x: weight * cp.abs(z.dot(x) - y),
            lambda z, x: weight * np.abs(z @ x - y),
            lambda x: [(x, y)],
            along=True,
        )
    if kind == "max_affine":
        k = int(rng.integers(2, 5))
        return Term(
            f"max of {k}",
            lambda z, x: cp.maximum(*(z.dot(cp.multiply(a[j], x)) + float(b[j]) for j in range(k))),
            lambda z, x: np.max([z @ (a[j] * x) + b[j] for j in range(k)], axis=0),
            lambda x: [((a[i] - a[j]) * x, b[j] - b[i]) for i, j in combinations(range(k), 2)],
        )
    if kind == "sum_squares":
        return Term(
            "sum_squares",
            lambda z, x: weight * cp.sum_squares(z.minus(x)),
            lambda z, x: weight * ((z - x) ** 2).sum(axis=1),
            growth=2,
            separate=True,
        )
    if kind == "quad_form":
        root = rng.normal(size=(d, d))
        p = root @ root.T + 0.1 * np.eye(d)
        return Term(
            "quad_form",
            lambda z, x: cp.quad_form(z.minus(x), p),
            lambda z, x: np.einsum("mi,ij,mj->m", z - x, p, z - x),
            growth=2,
        )
    if kind == "least_squares":
        return Term(
            "least squares",
            lambda z, x: cp.square(z.dot(x) - y),
            lambda z, x: (z @ x - y) ** 2,
            growth=2,
            along=True,
        )
    if kind == "logistic":
        return Term(
            "logistic",
            lambda z, x: cp.logistic(weight * z.dot(x)),
            lambda z, x: np.logaddexp(0, weight * (z @ x)),
            along=True,
        )
    if kind == "log_sum_exp":
        return Term(
            "log_sum_exp",
            lambda z, x: cp.log_sum_exp(
                cp.hstack([z.dot(cp.multiply(a[j], x)) + float(b[j]) for j in range(3)])
            ),
            lambda z, x: np.logaddexp.reduce([z @ (a[j] * x) + b[j] for j in range(3)]),
        )
    if kind == "exp":
        return Term(
            "exp utility",
            lambda z, x: cp.exp(-z.dot(x)),
            lambda z, x: np.exp(-(z @ x)),
            growth=np.inf,
            along=True,
        )
    if kind == "huber":
        m = float(rng.choice([0.2, 1.0]))
        return Term(
            f"huber({m})",
            lambda z, x: weight * cp.huber(z.dot(x) - y, m),
            lambda z, x: (
                weight
                * np.where(
                    np.abs(z @ x - y) <= m, (z @ x - y) ** 2, 2 * m * np.abs(z @ x - y) - m**2
                )
            ),
            lambda x: [(x, y + m), (x, y - m)],
            along=True,
        )
    if kind == "power":
        p = float(rng.choice([1.5, 2.0, 3.0]))
        return Term(
            f"pos^{p}",
            lambda z, x: cp.power(cp.pos(z.dot(x) - y), p),
            lambda z, x: np.maximum(z @ x - y, 0) ** p,
            lambda x: [(x, y)],
            growth=p,
            along=True,
        )
    if kind == "abs_power":
        return Term(
            "|.|^1.5",
            lambda z, x: cp.sum(cp.power(cp.abs(z.minus(x)), 1.5)),
            lambda z, x: (np.abs(z - x) ** 1.5).sum(axis=1),
            lambda x: [(unit(d, i), float(x[i])) for i in range(d)],
            growth=1.5,
            separate=True,
        )
    if kind == "norm2":
        return Term(
            "norm 2",
            lambda z, x: weight * cp.norm(z.minus(x), 2),
            lambda z, x: weight * np.linalg.norm(z - x, axis=1),
            points=lambda x: [x],
        )
    if kind == "norm1":
        return Term(
            "norm 1",
            lambda z, x: weight * cp.norm(z.minus(x), 1),
            lambda z, x: weight * np.abs(z - x).sum(axis=1),
            lambda x: [(unit(d, i), float(x[i])) for i in range(d)],
            separate=True,
        )
    if kind == "norm_inf":
        signs = [np.array([1.0, 1.0]), np.array([1.0, -1.0])] if d == 2 else []
        return Term(
            "norm inf",
            lambda z, x: weight * cp.norm(z.minus(x), "inf"),
            lambda z, x: weight * np.abs(z - x).max(axis=1),
            lambda x: (
                [(unit(d, i), float(x[i])) for i in range(d)] + [(s, float(s @ x)) for s in signs]
            ),
        )
    if kind == "product":  # price times quantity
        return Term(
            "product",
            lambda z, x: weight * z.entry(0) * z.entry(d - 1) * x[0] + z.entry(0),
            lambda z, x: weight * z[:, 0] * z[:, d - 1] * x[0] + z[:, 0],
            growth=2,
        )
    if kind == "quadratic_form":
        return Term(
            "quadratic_form",
            lambda z, x: (
                wdro.quadratic_form(x[:1], cp.reshape(z.entry(0), (1, 1), order="C"))
                + z.entry(d - 1)
            ),
            lambda z, x: x[0] ** 2 * z[:, 0] + z[:, d - 1],
        )
    if kind == "minus_abs":
        return Term(
            "-abs",
            lambda z, x: z.dot(x) - weight * cp.abs(z.entry(0) - y),
            lambda z, x: z @ x - weight * np.abs(z[:, 0] - y),
            lambda x: [(unit(d, 0), y)],
        )
    if kind == "minus_square":
        return Term(
            "-square",
            lambda z, x: z.dot(x) - weight * cp.square(z.entry(d - 1) - y),
            lambda z, x: z @ x - weight * (z[:, d - 1] - y) ** 2,
        )
    if kind == "minimum":
        return Term(
            "minimum",
            lambda z, x: z.dot(x) + cp.minimum(weight * z.entry(0), y),
            lambda z, x: z @ x + np.minimum(weight * z[:, 0], y),
            lambda x: [(unit(d, 0), y / weight)],
        )
    raise ValueError(kind)


KINDS = (
    "affine",
    "cvar",
    "newsvendor",
    "abs",
    "max_affine",
    "sum_squares",
    "quad_form",
    "least_squares",
    "logistic",
    "log_sum_exp",
    "exp",
    "huber",
    "power",
    "abs_power",
    "norm2",
    "norm1",
    "norm_inf",
    "product",
    "quadratic_form",
    "minus_abs",
    "minus_square",
    "minimum",
)


def added(terms: list[Term]) -> Term:
    """The sum of terms."""
    if len(terms) == 1:
        return terms[0]
    return Term(
        " + ".join(t.name for t in terms),
        lambda z, x: sum(t.written(z, x) for t in terms),
        lambda z, x: sum(t.at(z, x) for t in terms),
        lambda x: [line for t in terms for line in t.lines(x)],
        lambda x: [point for t in terms for point in t.points(x)],
        growth=max(t.growth for t in terms),
        separate=all(t.separate for t in terms),
        along=all(t.along for t in terms),
    )


# ------------------------------------------------------------------ costs
@dataclass
class Cost:
    """A ground cost: the library's, and as a function of moves with the normals of its kinks."""

    name: str
    given: object
    of: Callable[[Array], Array]
    kinks: list[Array] = field(default_factory=list)
    weights: Array | None = None
    """Of a cost that is a sum over the coordinates; None for other costs."""

    def part(self, i: int) -> Callable[[Array], Array]:
        """The cost of moves of one coordinate."""
        assert self.weights is not None
        w = float(self.weights[i])
        return lambda moves: w * self.of_one(moves)

    def of_one(self, moves: Array) -> Array:
        """|.|^p."""
        return np.abs(moves[:, 0]) ** self.power

    power: float = 2.0


def sum_of_powers(p: float) -> Callable[[Array, Array], Array]:
    """A callable cost: sum_i |xi_i - zeta_i|^p."""

    def cost(origins: Array, points: Array) -> Array:
        return (np.abs(points - origins) ** p).sum(axis=1)

    return cost


COSTS = {
    "squared": 0.26,
    "weighted": 0.1,
    "mahalanobis": 0.1,
    "norm1": 0.14,
    "norm2": 0.14,
    "norminf": 0.12,
    "wnorm": 0.04,
    "1.5": 0.06,
    "4": 0.04,
}
"""Costs, and how often they are drawn."""


def one_cost(rng: np.random.Generator, d: int, kind: str) -> Cost:
    w = np.round(np.exp(rng.normal(scale=0.7, size=d)), 3)
    axes, ones = list(np.eye(d)), np.ones(d)
    corners = [np.array([1.0, 1.0]), np.array([1.0, -1.0])] if d == 2 else []
    if kind == "squared":
        given = None if rng.random() < 0.5 else wdro.costs.SquaredEuclidean()
        return Cost("squared", given, lambda m: (m**2).sum(axis=1), [], ones)
    if kind == "weighted":
        given = wdro.costs.SquaredEuclidean(weights=w)
        return Cost("weighted squared", given, lambda m: (m**2) @ w, [], w)
    if kind == "mahalanobis":
        root = rng.normal(size=(d, d))
        p = root @ root.T + 0.3 * np.eye(d)
        given = wdro.costs.Mahalanobis(precision=p)
        return Cost("Mahalanobis", given, lambda m: np.einsum("mi,ij,mj->m", m, p, m))
    if kind == "norm1":
        given = wdro.costs.Norm(1)
        return Cost("Norm(1)", given, lambda m: np.abs(m).sum(axis=1), axes, ones, 1.0)
    if kind == "norm2":
        return Cost("Norm(2)", wdro.costs.Norm(2), lambda m: np.linalg.norm(m, axis=1), axes)
    if kind == "norminf":
        given = wdro.costs.Norm(np.inf)
        return Cost("Norm(inf)", given, lambda m: np.abs(m).max(axis=1), axes + corners)
    if kind == "wnorm":
        given = wdro.costs.Norm(1, weights=w)
        return Cost("weighted Norm(1)", given, lambda m: np.abs(m) @ w, axes, w, 1.0)
    power = float(kind)
    given = sum_of_powers(power)
    return Cost(
        f"callable |.|^{kind}", given, lambda m: (np.abs(m) ** power).sum(axis=1), axes, ones, power
    )


# ------------------------------------------------------------------ supports
@dataclass
class Support:
    name: str
    given: list[object]
    """One for each parameter; None for R^d."""
    lower: Array
    upper: Array
    halves: list[Line] = field(default_factory=list)


def box(lower: Array, upper: Array, parts: int, name: str = "box") -> Support:
    """Bounds, for one parameter or one for each coordinate."""
    if parts > 1:
        given: list[object] = [wdro.supports.Box(low, high) for low, high in zip(lower, upper)]
    else:
        given = [wdro.supports.Box(lower, upper)]
    return Support(name, given, lower, upper)


def polyhedron(name: str, matrix: Array, bound: Array, lower: Array, upper: Array) -> Support:
    halves = [(row, float(b)) for row, b in zip(matrix, bound)]
    return Support(name, [wdro.supports.Polyhedron(matrix, bound)], lower, upper, halves)


def one_support(
    rng: np.random.Generator, samples: Array, parts: int, anywhere: bool = False
) -> Support:
    """A support that holds the samples."""
    d = samples.shape[1]
    low, high = samples.min(axis=0), samples.max(axis=0)
    room = (np.ptp(samples) + 0.5) * 10 ** rng.uniform(-1.5, 0.7, size=2)
    kind = rng.choice(["R", "half", "box", "polyhedron"], p=[0.38, 0.14, 0.3, 0.18])
    if kind == "polyhedron" and (d != 2 or parts > 1):
        kind = "box"
    everywhere = np.full((2, d), np.inf) * np.array([[-1.0], [1.0]])
    if kind == "R" or anywhere:
        return Support("R^d", [None] * parts, *everywhere)
    if kind == "half":
        if rng.random() < 0.5:
            return box(low - room[0] * rng.integers(0, 2), everywhere[1], parts, "half-line")
        return box(everywhere[0], high + room[0], parts, "half-line")
    lower, upper = low - room[0], high + room[1]
    if kind == "box":
        return box(lower, upper, parts)
    if rng.random() < 0.5:
        top = float((samples - lower).sum(axis=1).max() + room[1])
        matrix = np.array([[-1.0, 0], [0, -1.0], [1, 1]])
        bound = np.array([*-lower, lower.sum() + top])
        return polyhedron("triangle", matrix, bound, lower, lower + top)
    a = rng.normal(size=2)
    matrix = np.array([[-1.0, 0], [0, -1.0], [1, 0], [0, 1], a])
    bound = np.array([*-lower, *upper, (samples @ a).max() + 0.2 * room[1]])
    return polyhedron("cut box", matrix, bound, lower, upper)


# ------------------------------------------------------------------ models
@dataclass
class Model:
    """A random model with a fixed decision."""

    seed: int
    term: Term
    cost: Cost
    support: Support
    samples: Array
    x: Array
    radius: float
    epsilon: float | None
    sigma: float | Array | None
    parts: int
    pinned: str

    @property
    def name(self) -> str:
        d = self.samples.shape[1]
        text = f"{self.seed}: {self.term.name}; {self.cost.name}; {self.support.name}"
        text += f"; d={d} N={len(self.samples)} rho={self.radius:.2g}"
        if self.epsilon is not None:
            text += f" eps={self.epsilon:.2g}"
        if self.sigma is not None:
            text += f" sigma={np.max(self.sigma):.2g}"
        return text + (" two parameters" if self.parts > 1 else "")

    def losses(self, rows: Array) -> Array:
        return np.asarray(self.term.at(rows, self.x), dtype=float)

    def data(self) -> Data:
        d, given = self.samples.shape[1], self.support.given
        if self.parts > 1:
            return Data(
                [
                    wdro.UncertainParameter(
                        name=f"p{i}", samples=self.samples[:, i], support=given[i]
                    )
                    for i in range(d)
                ]
            )
        return Data([wdro.UncertainParameter(d, name="z", samples=self.samples, support=given[0])])

    def problem(self) -> wdro.Problem:
        x = cp.Variable(len(self.x), name="x")
        loss = self.term.written(self.data(), x)
        pins = {"equal": [x == self.x], "bounds": [x >= self.x, x <= self.x]}[self.pinned]
        ball = wdro.WassersteinBall(self.radius, self.cost.given)
        return wdro.Problem(cp.Minimize(loss), pins, ambiguity=ball)

    def reference(
        self,
        epsilon: float,
        sigma: float | Array,
        tolerance: float,
        by_coordinate: bool = False,
    ) -> Reference:
        """F of the dual variable, by quadrature."""
        d, support, x = self.samples.shape[1], self.support, self.x
        spread = np.broadcast_to(np.asarray(sigma, dtype=float), (d,)).copy()
        lines = [(np.asarray(a, dtype=float), float(b)) for a, b in self.term.lines(x)]
        points = tuple(np.asarray(p, dtype=float) for p in self.term.points(x))
        if d <= 2 and not by_coordinate:
            block = Block(
                self.losses,
                self.cost.of,
                self.samples,
                spread,
                support.lower,
                support.upper,
                tuple(support.halves),
                tuple(line for line in lines if np.any(line[0] != 0)),
                tuple(self.cost.kinks),
                points,
            )
            return Reference([block], self.radius, epsilon, tolerance=tolerance)
        if self.term.separate:
            blocks = [
                Block(
                    partial(self._part, i),
                    self.cost.part(i),
                    self.samples[:, [i]],
                    spread[[i]],
                    support.lower[[i]],
                    support.upper[[i]],
                    lines=tuple((a[[i]], b) for a, b in lines if a[i] != 0),
                )
                for i in range(d)
            ]
            return Reference(blocks, self.radius, epsilon, tolerance=tolerance)
        # <x, z> / |x| alone on R^d, isotropic: the other directions are Gaussian integrals.
        size, var = float(np.linalg.norm(x)), float(spread[0] ** 2)
        assert self.term.along
        assert np.ptp(spread) == 0
        line = Block(
            lambda t: np.asarray(self.term.at(t, np.array([size])), dtype=float),
            lambda m: m[:, 0] ** 2,
            (self.samples @ x / size)[:, None],
            spread[:1],
            np.array([-np.inf]),
            np.array([np.inf]),
            lines=tuple((np.ones(1), b / size * float(np.sign(a @ x))) for a, b in lines),
        )

        def others(dual: float) -> tuple[float, float, float]:
            rate = 2 * var / epsilon
            q = rate / (1 + rate * dual)
            return tuple((d - 1) / 2 * np.array([-np.log1p(rate * dual), -q, q**2]))

        return Reference([line], self.radius, epsilon, tolerance=tolerance, extra=others)

    def _part(self, i: int, rows: Array) -> Array:
        return np.asarray(self.term.at(rows, self.x[[i]]), dtype=float)

    def outgrows(self) -> bool:
        """Does the loss grow faster than the cost along a ray of the support?"""
        d, support = self.samples.shape[1], self.support
        rng = np.random.default_rng(self.seed)
        ways = rng.normal(size=(200, d))
        ways = np.concatenate([ways, np.abs(ways), -np.abs(ways), np.eye(d), -np.eye(d)])
        ratios = []
        for step in (1e5, 1e6):
            rows = self.samples[0] + step * ways
            inside = np.all((rows >= support.lower) & (rows <= support.upper), axis=1)
            for a, b in support.halves:
                inside &= rows @ a <= b
            with np.errstate(over="ignore"):
                ratios.append(self.losses(rows) / self.cost.of(step * ways))
        near, far = ratios
        grows = np.isposinf(far) | ((far > 0) & (far > 1.5 * np.abs(near)))
        return bool(np.any(inside & grows))


SEPARATE = ("affine", "newsvendor", "sum_squares", "abs_power", "norm1")
ALONG = ("cvar", "abs", "least_squares", "logistic", "huber", "power")


def draw(seed: int, dimension: int | None = None) -> Model:
    """The model of a seed; beyond two coordinates, one whose integral falls apart."""
    rng = np.random.default_rng([seed, 20])
    d = int(rng.choice([1, 2])) if dimension is None else dimension
    size = int(rng.integers(1, 9))
    units = 10 ** rng.choice([0.0, 0.0, 0.0, -1.0, 1.0])
    samples = units * (
        rng.normal(scale=rng.choice([0.2, 1.0]), size=(size, d)) + rng.normal(size=d)
    )
    x = np.round(rng.normal(size=d) + 0.3, 2)
    x[np.abs(x) < 0.1] = 0.5
    count = int(rng.choice([1, 2], p=[0.75, 0.25]))
    known, costs, parts = KINDS, dict(COSTS), 1
    if d > 2:
        known = SEPARATE if rng.random() < 0.6 else ALONG
        separable = ("squared", "weighted", "norm1", "wnorm", "1.5", "4")
        kept = separable if known is SEPARATE else ("squared",)
        costs = {name: share for name, share in COSTS.items() if name in kept}
    kinds = [str(k) for k in rng.choice(known, size=count, replace=False)]
    term = added([one_term(rng, d, kind) for kind in kinds])
    if d == 2 and rng.random() < 0.2:
        parts = 2
    shares = np.array(list(costs.values()))
    cost = one_cost(rng, d, str(rng.choice(list(costs), p=shares / shares.sum())))
    support = one_support(rng, samples, parts, anywhere=d > 2 and known is ALONG)
    if support.name in ("R^d", "half-line") and np.isinf(term.growth):
        support = box(samples.min(axis=0) - 1.5, samples.max(axis=0) + 1.0, parts)
    exponent = rng.uniform(-2, 0.5) if rng.random() < 0.7 else rng.uniform(-4, 4)
    move = units * 10 ** (exponent / 2)  # a distance
    radius = float(cost.of(np.full((1, d), move / np.sqrt(d)))[0])
    radius = float(f"{min(max(radius, 1e-4), 1e4):.3g}")
    epsilon = sigma = None
    if rng.random() < 0.45:
        moves = rng.normal(size=(64, d)) * move
        rows = np.clip(samples[rng.integers(size, size=64)] + moves, support.lower, support.upper)
        values = term.at(rows, x) - term.at(samples, x).mean()
        gain = float(np.sqrt(np.mean(np.square(values)))) or 1.0
        epsilon = float(f"{gain * 10 ** rng.uniform(-5, 0):.3g}")
    if rng.random() < 0.35:
        sigma = float(f"{move / np.sqrt(2 * d) * 10 ** rng.uniform(-1, 0.3):.3g}")
        if d == 2 and rng.random() < 0.3:
            sigma = sigma * np.array([1.0, 0.5])
    pinned = str(rng.choice(["equal", "bounds"]))
    return Model(seed, term, cost, support, samples, x, radius, epsilon, sigma, parts, pinned)


# ------------------------------------------------------------------ the library, and the truth
@dataclass
class Answer:
    """What the library said."""

    status: str
    value: float
    gap: float
    error: float
    """Standard error; 0 for strategies without draws."""
    dual: float
    epsilon: float
    sigma: float | Array
    integration: str
    seconds: float
    """Of the processor."""


def solved(model: Model, limit: float = 30.0) -> Answer:
    """The library's answer."""
    problem = model.problem()
    options = {
        name: option
        for name, option in (("epsilon", model.epsilon), ("sigma", model.sigma))
        if option is not None
    }
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(method="smoothed", time_limit=limit, progress=False, **options)
    return answer_of(problem.solution, time.process_time() - began)


def answer_of(found: wdro.Solution, seconds: float) -> Answer:
    """What a solution says."""
    return Answer(
        found.status,
        found.value,
        found.gap if found.gap is not None else 0.0,
        found.standard_error or 0.0,
        found.dual if found.dual is not None else np.nan,
        found.epsilon,
        found.sigma,
        re.split("[:,(]", str(found.integration))[0].strip(),
        seconds,
    )


@dataclass(frozen=True)
class Truth:
    """The value by quadrature, and how far the library's may be from it."""

    minimum: Minimum
    margin: float
    """F - mean loss."""
    tolerance: float


def truth(model: Model, answer: Answer) -> Truth:
    """The value at the epsilon and sigma of an answer; `Unresolved` if the mesh cannot tell."""
    mean = float(model.losses(model.samples).mean())
    start = answer.dual if np.isfinite(answer.dual) and answer.dual < 1e15 else None
    margin = abs(answer.value - mean)
    for tighten in (1.0, 1e-2, 1e-4):
        aim = 1e-5 * max(margin, 1e-12)
        within = float(np.clip(aim / answer.epsilon, 1e-11, 1e-4)) * tighten
        reference = model.reference(answer.epsilon, answer.sigma, within)
        found = minimise(reference, start, aim)
        margin = abs(found.value - mean)
        tolerance = SHARE * margin + 1e-9 * (abs(found.value) + abs(mean)) + 1e-12
        if found.error + found.value - found.lower <= 0.2 * tolerance:
            return Truth(found, margin, tolerance)
        start = found.dual
    raise Unresolved(f"error {found.error:.2g} of a margin {margin:.2g}")


RIGHT = "right"
WRONG = "wrong, called optimal"
SHORT = "not optimal, honest"
"""Not called optimal, and within the gap and the standard error that are reported."""
MISLED = "not optimal, off"
"""Not called optimal, but further off than reported."""


def verdict(answer: Answer, true: Truth) -> str:
    """Is what the library says true?"""
    off = answer.value - true.minimum.value
    slack = true.tolerance + ERRORS * answer.error
    within = -slack <= off <= max(answer.gap, 0.0) + slack
    if answer.status in CLAIMED:
        return RIGHT if within else WRONG
    return SHORT if within else MISLED


def described(model: Model, answer: Answer, true: Truth) -> str:
    """All that one needs to see in a failure."""
    off = answer.value - true.minimum.value
    return (
        f"{model.name}\n  {answer.integration}, {answer.status}, {answer.seconds:.2f} s: value "
        f"{answer.value:.9g}, truth {true.minimum.value:.9g} (off {off:+.3g}, "
        f"{off / max(true.margin, 1e-300):+.2%} of the margin {true.margin:.4g}), gap "
        f"{answer.gap:.2g}, standard error {answer.error:.2g}, dual {answer.dual:.6g}, true "
        f"{true.minimum.dual:.6g}, epsilon {answer.epsilon:.4g}, sigma {np.max(answer.sigma):.4g}"
    )
