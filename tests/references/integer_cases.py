"""Small integer problems with all their decisions: trees, paths, assignments, subsets, knapsacks.

`choices(kind, rng)` gives a set and all its points; a case has the worst-case risk of every one of
them, by formulas that are written out here.
"""

from itertools import combinations, permutations, product

import cvxpy as cp
import networkx as nx
import numpy as np
from scipy.optimize import linear_sum_assignment, minimize_scalar

import wdro_model as wdro
from tests.references.enumeration import all_paths, all_trees

KINDS = ("tree", "path", "undirected path", "assignment", "subset", "knapsack")
LOSSES = ("affine", "coupled", "quadratic", "cvar")
COSTS = ("squared", "standardized", "norm 2", "norm 1")
LEVEL = 0.7
"""Of the CVaR."""


def choices(kind, rng):
    """A set, and all its points, one a row."""
    seed = int(rng.integers(1000))
    if kind == "tree":
        graph = nx.gnm_random_graph(5, 8, seed=seed)
        while not nx.is_connected(graph):
            seed += 1
            graph = nx.gnm_random_graph(5, 8, seed=seed)
        return wdro.sets.SpanningTree(graph), all_trees(graph)
    if kind == "path":
        graph = nx.DiGraph([(i, j) for i in range(5) for j in range(i + 1, 5)])
        return wdro.sets.ShortestPath(graph, 0, 4), all_paths(graph, 0, 4)
    if kind == "undirected path":
        graph = nx.complete_graph(5)
        graph.remove_edge(0, 4)
        return wdro.sets.ShortestPath(graph, 0, 4), all_paths(graph, 0, 4)
    if kind == "assignment":
        points = np.array([np.eye(3)[list(p)].ravel() for p in permutations(range(3))])

        def assign(cost):
            rows, columns = linear_sum_assignment(cost)
            found = np.zeros((3, 3))
            found[rows, columns] = 1.0
            return found

        return wdro.sets.Oracle(assign, (3, 3), integral=True, bounds=(0, 1)), points
    if kind == "subset":
        points = np.array([np.isin(np.arange(8), c) for c in combinations(range(8), 3)], float)
    else:
        weights = rng.integers(1, 6, 8)
        points = np.array(list(product([0.0, 1.0], repeat=8)))
        heavy = points @ weights
        points = points[(heavy <= weights.sum() // 2) & (heavy >= weights.sum() // 4)]

    def cheapest(cost):
        return points[int(np.argmin(points @ cost))]

    return wdro.sets.Oracle(cheapest, 8, integral=True, bounds=(0, 1)), points


def cost_of(name):
    return {
        "squared": wdro.costs.SquaredEuclidean(),
        "standardized": wdro.costs.SquaredEuclidean(weights="standardize"),
        "norm 2": wdro.costs.Norm(2),
        "norm 1": wdro.costs.Norm(1),
    }[name]


def dual_norm(name, slopes, samples):
    """|b|_dual of each row."""
    if name == "standardized":
        return np.sqrt((slopes**2 * samples.var(axis=0)).sum(axis=1))
    return np.linalg.norm(slopes, ord=np.inf if name == "norm 1" else 2, axis=1)


class Case:
    """One problem, and the risks of all its decisions."""

    def __init__(self, kind, loss, cost, seed):
        rng = np.random.default_rng(seed)
        self.set, self.points = choices(kind, rng)
        size = self.points.shape[1]
        self.samples = rng.uniform(0.2, 1.0, (12, size)) * rng.uniform(0.3, 2.0, size)
        self.radius = float(rng.choice([0.05, 0.3]))
        self.cost = cost
        # Paths with cycles take losses that increase in every edge.
        self.mixing = np.abs(rng.normal(size=(size, size))) / size
        self.x = cp.Variable(self.set.dimension, boolean=True, name="x")
        ball = wdro.WassersteinBall(self.radius, cost_of(cost))
        xi = wdro.UncertainParameter(size, samples=self.samples, name="xi")
        expression, self.risks = getattr(self, loss)(xi)
        self.problem = wdro.Problem(cp.Minimize(expression), [wdro.In(self.x, self.set)], ball)

    def factor(self):
        return self.radius if self.cost.startswith("norm") else np.sqrt(self.radius)

    def affine(self, xi):
        norms = dual_norm(self.cost, self.points, self.samples)
        return xi @ self.x, self.points @ self.samples.mean(axis=0) + self.factor() * norms

    def coupled(self, xi):
        slopes = self.points @ self.mixing.T
        norms = dual_norm(self.cost, slopes, self.samples)
        risks = slopes @ self.samples.mean(axis=0) + self.factor() * norms
        return xi @ (self.mixing @ self.x), risks

    def quadratic(self, xi):
        """A certain quadratic term that is not convex, beside an affine one."""
        size = self.points.shape[1]
        square = 0.1 * (self.mixing + self.mixing.T) - 0.05 * np.eye(size)
        y = xi @ (self.mixing @ self.x)
        slopes = self.points @ self.mixing.T
        norms = dual_norm(self.cost, slopes, self.samples)
        bent = np.einsum("ki,ij,kj->k", self.points, square, self.points)
        risks = slopes @ self.samples.mean(axis=0) + self.factor() * norms + bent
        lift = np.linalg.eigvalsh(square)[0]
        convex = cp.quad_form(self.x, cp.psd_wrap(square - lift * np.eye(size)))
        return y + convex + lift * cp.sum(self.x), risks

    def cvar(self, xi):
        t = cp.Variable(name="t")
        expression = t + cp.pos(xi @ self.x - t) / (1 - LEVEL)
        norms = dual_norm(self.cost, self.points, self.samples)
        losses = self.points @ self.samples.T
        return expression, np.array([self.worst_cvar(u, b) for u, b in zip(losses, norms)])

    def worst_cvar(self, losses, norm):
        """min over t of t + sup E (u - t)^+ / (1 - level): both pieces of slope 0 and b."""
        rate = 1 / (1 - LEVEL)
        if self.cost.startswith("norm"):
            worst = sorted(losses)[int(np.floor(LEVEL * len(losses))) :]
            kept = min(t + np.maximum(losses - t, 0).mean() * rate for t in [*losses, *worst])
            return kept + self.radius * rate * norm

        def at(price):
            lifted = losses * rate + (rate * norm) ** 2 / (4 * price)
            # t + mean max(0, lifted - rate t): piecewise linear in t, least at a kink.
            kinks = lifted / rate
            return price * self.radius + min(
                t + np.maximum(lifted - rate * t, 0).mean() for t in kinks
            )

        centre = rate * norm / (2 * np.sqrt(self.radius))
        found = minimize_scalar(
            lambda s: at(centre * np.exp(s)), bounds=(-3, 3), options={"xatol": 1e-10}
        )
        return float(found.fun)


def cases(count, seed=0):
    """As many cases, all combinations in turn."""
    every = list(product(KINDS, LOSSES, COSTS))
    order = np.random.default_rng(seed).permutation(len(every))
    for k in range(count):
        kind, loss, cost = every[order[k % len(every)]]
        yield kind, loss, cost, 100 * seed + k
