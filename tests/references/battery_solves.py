"""Random smoothed models with a free decision, each with an independent search of the decision.

The loss is one of the battery's at u = M x + m, convex in u, and a price q'x; x lies in a box, a
simplex, a ball, or the hull of the trees or paths of a tiny graph, listed one by one. F(x) is by
quadrature, its gradient a difference quotient of the loss under the tilted densities, and SciPy's
SLSQP searches from several places.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import cvxpy as cp
import networkx as nx
import numpy as np
from scipy.optimize import LinearConstraint, NonlinearConstraint, minimize

import wdro_model as wdro
from tests.references.battery import (
    CLAIMED,
    ERRORS,
    MISLED,
    RIGHT,
    SHARE,
    SHORT,
    WRONG,
    Answer,
    Model,
    Term,
    added,
    answer_of,
    draw,
    one_term,
)
from tests.references.simplex_mesh import minimise

Array = np.ndarray
CONVEX = (
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
    "huber",
    "power",
    "abs_power",
    "norm2",
    "norm1",
    "norm_inf",
    "product",
    "exp",
)
STEP = 1e-7
"""Of the difference quotients of the loss in the decision."""


@dataclass(frozen=True)
class Region:
    """Where the decision lies: a box, a ball, or a hull of points."""

    name: str
    n: int
    vertices: Array | None = None
    """(k, n): the region is their hull."""
    radius: float | None = None
    """The region is a ball of this radius."""
    graph: nx.Graph | nx.DiGraph | None = None

    def constraints(self, x: cp.Variable) -> list:
        if self.name == "box":
            return [x >= 0, x <= 1]
        if self.name == "simplex":
            return [x >= 0, cp.sum(x) == 1]
        if self.name == "ball":
            return [cp.norm(x, 2) <= self.radius]
        if self.name == "tree":
            return [wdro.In(x, wdro.sets.SpanningTree(self.graph))]
        return [wdro.In(x, wdro.sets.ShortestPath(self.graph, 0, 3))]

    def least(self, slope: Array) -> float:
        """min <slope, s> over the region."""
        if self.radius is not None:
            return -self.radius * float(np.linalg.norm(slope))
        return float((self.vertices @ slope).min())

    @property
    def middle(self) -> Array:
        return np.zeros(self.n) if self.vertices is None else self.vertices.mean(axis=0)


def corners(n: int) -> Array:
    return np.stack(np.meshgrid(*[[0.0, 1.0]] * n), axis=-1).reshape(-1, n)


def a_region(rng: np.random.Generator) -> Region:
    kind = str(
        rng.choice(["box", "simplex", "ball", "tree", "path"], p=[0.3, 0.25, 0.2, 0.15, 0.1])
    )
    n = int(rng.integers(1, 4))
    if kind == "box":
        return Region(kind, n, corners(n))
    if kind == "simplex":
        n = max(n, 2)
        return Region(kind, n, np.eye(n))
    if kind == "ball":
        return Region(kind, n, radius=float(rng.choice([0.5, 1.0, 2.0])))
    if kind == "tree":
        graph = nx.cycle_graph(4) if rng.random() < 0.5 else nx.complete_graph(3)
        edges, nodes = list(graph.edges), graph.number_of_nodes()
        trees = [
            [e in chosen for e in edges]
            for chosen in combinations(edges, nodes - 1)
            if nx.is_tree(nx.Graph(chosen)) and len(set(sum(chosen, ()))) == nodes
        ]
        return Region(kind, len(edges), np.array(trees, dtype=float), graph=graph)
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
    edges = list(graph.edges)
    paths = [[e in set(pairwise(path)) for e in edges] for path in nx.all_simple_paths(graph, 0, 3)]
    return Region(kind, len(edges), np.array(paths, dtype=float), graph=graph)


@dataclass
class FreeModel:
    """A model whose decision enters by u = M x + m and at a price q."""

    base: Model
    region: Region
    matrix: Array
    shift: Array
    price: Array

    @property
    def seed(self) -> int:
        return self.base.seed

    @cached_property
    def name(self) -> str:
        return f"{self.base.name}; {self.region.name} n={self.region.n}"

    def problem(self) -> tuple[wdro.Problem, cp.Variable]:
        x = cp.Variable(self.region.n, name="x")
        u = self.matrix @ x + self.shift
        loss = self.base.term.written(self.base.data(), u) + self.price @ x
        ball = wdro.WassersteinBall(self.base.radius, self.base.cost.given)
        return wdro.Problem(cp.Minimize(loss), self.region.constraints(x), ambiguity=ball), x

    def at(self, x: Array) -> Model:
        """The model of the battery with this decision."""
        price, term = float(self.price @ x), self.base.term
        priced: Term = replace(term, at=lambda z, u: term.at(z, u) + price)
        return replace(self.base, term=priced, x=self.matrix @ x + self.shift)

    def margin_scale(self, x: Array, value: float) -> float:
        here = self.at(x)
        return abs(value - float(here.losses(here.samples).mean()))


def draw_free(seed: int) -> FreeModel:
    """The model of a seed; four of five have one uncertain number."""
    rng = np.random.default_rng([seed, 77])
    d = 2 if seed % 5 == 4 else 1
    base = draw(10_000 + seed, d)
    kinds = rng.choice(CONVEX, size=int(rng.choice([1, 2], p=[0.7, 0.3])), replace=False)
    term = added([one_term(rng, d, str(kind)) for kind in kinds])
    region = a_region(rng)
    matrix = np.round(rng.normal(size=(d, region.n)), 2)
    shift = np.round(0.3 * rng.normal(size=d), 2)
    price = np.round(0.3 * rng.normal(size=region.n), 2)
    epsilon = base.epsilon if base.epsilon is None else max(base.epsilon, 1e-3)
    base = replace(base, seed=seed, term=term, x=matrix @ region.middle + shift, epsilon=epsilon)
    model = FreeModel(base, region, matrix, shift, price)
    tried = [region.middle + 0.3 * rng.normal(size=region.n) for _ in range(5)]
    return draw_free(seed + 1000) if any(model.at(x).outgrows() for x in tried) else model


@dataclass(frozen=True)
class Placed:
    """F and its gradient at a decision, by quadrature."""

    value: float
    gradient: Array
    dual: float
    error: float


def place(model: FreeModel, x: Array, answer: Answer, dual: float, share: float = 1e-6) -> Placed:
    """F(x) = min over l, and its gradient by the envelope theorem."""
    here = model.at(x)
    scale = max(model.margin_scale(x, answer.value), 1e-9)
    within = float(np.clip(share * scale / answer.epsilon, 1e-11, 1e-4))
    reference = here.reference(answer.epsilon, answer.sigma, within)
    found = minimise(reference, dual, share * scale)
    reference(found.dual)
    mesh, slope = reference.meshes[0], np.zeros(len(x))
    for i in range(len(x)):
        sides = [model.at(x + h * np.eye(len(x))[i]) for h in (STEP, -STEP)]

        def rise(z: Array, sides: list[Model] = sides) -> Array:
            return (sides[0].losses(z) - sides[1].losses(z)) / (2 * STEP)

        slope[i] = mesh.tilted_mean(rise)
    return Placed(found.value, slope, found.dual, found.error + found.value - found.lower)


def search(model: FreeModel, answer: Answer, starts: list[Array]) -> tuple[float, Array]:
    """The least F(x) that SLSQP finds from several starts."""
    region, best = model.region, (np.inf, model.region.middle)
    dual = answer.dual if np.isfinite(answer.dual) else 1.0
    hull = region.vertices

    def decision(y: Array) -> Array:
        """A point of the region, also where SLSQP leaves it."""
        if hull is None:
            return y * min(1.0, region.radius / max(float(np.linalg.norm(y)), 1e-300))
        weights = np.clip(y, 0, None)
        return weights @ hull / weights.sum()

    def objective(y: Array) -> tuple[float, Array]:
        nonlocal best, dual
        x = decision(y)
        found = place(model, x, answer, dual)
        dual = found.dual
        if found.value < best[0]:
            best = found.value, x
        return found.value, found.gradient if hull is None else hull @ found.gradient

    for x in starts:
        if hull is None:
            y, limits = x, None
            rules = [NonlinearConstraint(lambda y: y @ y, -np.inf, region.radius**2)]
        else:
            y = np.linalg.lstsq(np.vstack([hull.T, np.ones(len(hull))]), np.append(x, 1), None)[0]
            y = np.clip(y, 0, None) / np.clip(y, 0, None).sum()
            limits = [(0, 1)] * len(hull)
            rules = [LinearConstraint(np.ones(len(hull)), 1, 1)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minimize(
                objective,
                y,
                jac=True,
                method="SLSQP",
                bounds=limits,
                constraints=rules,
                options={"maxiter": 60, "ftol": 1e-10},
            )
    return best


@dataclass
class Judged:
    """A solve, with F at its decision and the best that was found elsewhere."""

    model: FreeModel
    answer: Answer
    here: Placed
    """At the library's decision."""
    bound: float
    """A lower bound of min F by the gradient at that decision."""
    found: float
    """The least F that the search found; F at the decision where the bound made it needless."""
    tolerance: float

    def complaints(self) -> list[str]:
        """What the library says that is not so."""
        answer, out = self.answer, []
        slack = self.tolerance + ERRORS * answer.error
        if abs(answer.value - self.here.value) > slack:
            out.append(
                f"the value is off by {answer.value - self.here.value:+.3g} at its own decision"
            )
        if min(self.found, self.here.value) < answer.value - answer.gap - slack:
            out.append(f"{self.found:.9g} is below value - gap")
        return out

    @property
    def outcome(self) -> str:
        """A verdict of the battery."""
        if self.answer.status in CLAIMED:
            return WRONG if self.complaints() else RIGHT
        return MISLED if self.complaints() else SHORT

    def __str__(self) -> str:
        a = self.answer
        return (
            f"{self.model.name}\n  {a.integration}, {a.status}, {a.seconds:.2f} s: value "
            f"{a.value:.9g}, F there {self.here.value:.9g}, best found {self.found:.9g}, bound "
            f"{self.bound:.9g}, gap {a.gap:.2g}, standard error {a.error:.2g}, tolerance "
            f"{self.tolerance:.2g}, dual {a.dual:.5g}, true {self.here.dual:.5g}, epsilon "
            f"{a.epsilon:.3g}: {'; '.join(self.complaints()) or 'right'}"
        )


def judged(model: FreeModel, long: bool, limit: float = 30.0) -> Judged:
    """Solve, evaluate at the decision, and search; a short judgement searches only if it must."""
    problem, x = model.problem()
    options = {
        name: option
        for name, option in (("epsilon", model.base.epsilon), ("sigma", model.base.sigma))
        if option is not None
    }
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(method="smoothed", time_limit=limit, progress=False, **options)
    answer = answer_of(problem.solution, time.process_time() - began)
    decision = np.asarray(x.value, dtype=float)
    here = place(model, decision, answer, answer.dual, 1e-6)
    bound = here.value - float(here.gradient @ decision) + model.region.least(here.gradient)
    scale = model.margin_scale(decision, here.value)
    tolerance = SHARE * scale + 1e-9 * abs(here.value) + here.error
    found, slack = here.value, tolerance + ERRORS * answer.error
    if long or bound < answer.value - answer.gap - slack:
        starts = [decision, model.region.middle]
        if long and model.region.vertices is not None:
            starts += list(0.9 * model.region.vertices[:2] + 0.1 * model.region.middle)
        found = min(found, search(model, answer, starts)[0])
    return Judged(model, answer, here, bound, found, tolerance)
