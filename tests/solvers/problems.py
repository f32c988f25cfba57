"""Smooth objectives and sets with known answers."""

from dataclasses import dataclass
from itertools import pairwise

import cvxpy as cp
import networkx as nx
import numpy as np

from wdro_model.sets import Oracle, SpanningTree
from wdro_model.solvers.objective import Point


@dataclass
class Smooth:
    """An objective from a function x -> (value, gradient), which counts its evaluations."""

    function: object
    convex: bool = True
    evaluations: int = 0

    def evaluate(self, x, dual=None):
        self.evaluations += 1
        value, gradient = self.function(x)
        return Point(float(value), gradient)


def quadratic(matrix, linear):
    """x' Q x + c' x."""
    return Smooth(lambda x: (x @ matrix @ x + linear @ x, 2 * matrix @ x + linear))


def random_quadratic(n, seed, conditioning=1.0):
    """Q (positive semidefinite) and c."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((2 * n, n)) / np.sqrt(2 * n)
    return root.T @ root * conditioning, rng.standard_normal(n)


def simplex(n):
    def lmo(direction):
        return np.eye(n)[np.argmin(direction)]

    return Oracle(lmo, n, bounds=(0, 1), constraints=lambda x: [x >= 0, cp.sum(x) == 1])


def box(n):
    return Oracle(
        lambda direction: (direction < 0).astype(float),
        n,
        bounds=(0, 1),
        constraints=lambda x: [x >= 0, x <= 1],
    )


def ball(n):
    """The unit ball, which is no polytope."""
    oracle = Oracle(lambda direction: -direction / max(np.linalg.norm(direction), 1e-300), n)
    oracle.is_polytope = False
    return oracle


def tree_quadratic(seed, nodes=20, edges=80):
    """A spanning-tree polytope and a positive semidefinite quadratic with positive costs."""
    rng = np.random.default_rng(seed)
    tree = SpanningTree(nx.gnm_random_graph(nodes, edges, seed=1))
    root = rng.uniform(0, 1, (edges, edges))
    noise = rng.standard_normal((edges, edges))
    matrix = (root @ root.T + 0.2 * noise @ noise.T) / edges
    return tree, matrix, tree.minimize(rng.standard_normal(edges))


def optimum(matrix, linear, feasible):
    """min x' Q x + c' x over the set, by a conic solver."""
    x = cp.Variable(feasible.dimension)
    objective = cp.quad_form(x, cp.psd_wrap(matrix)) + linear @ x
    problem = cp.Problem(cp.Minimize(objective), feasible.constraints(x))
    return float(problem.solve(solver=cp.CLARABEL))


def grid_traffic(side=4, seed=0):
    """Flows on a grid with several trips, all-or-nothing oracle, and the Beckmann objective.

    Travel times t (1 + 0.15 (x/c)^4) on each arc; returns set, objective, start.
    """
    rng = np.random.default_rng(seed)
    graph = nx.grid_2d_graph(side, side).to_directed()
    arcs = {arc: index for index, arc in enumerate(graph.edges)}
    n = len(arcs)
    time, capacity = rng.uniform(1, 2, n), rng.uniform(1, 2, n)
    nodes = list(graph.nodes)
    trips = [
        (nodes[i], nodes[j], rng.uniform(0.5, 1.5))
        for i, j in (rng.choice(len(nodes), 2, replace=False) for _ in range(12))
    ]

    def all_or_nothing(weights):
        nx.set_edge_attributes(graph, {a: weights[i] for a, i in arcs.items()}, "weight")
        flow = np.zeros(n)
        for origin, target, demand in trips:
            path = nx.dijkstra_path(graph, origin, target)
            for arc in pairwise(path):
                flow[arcs[arc]] += demand
        return flow

    def beckmann(x):
        ratio = (x / capacity) ** 4
        return np.sum(time * x * (1 + 0.03 * ratio)), time * (1 + 0.15 * ratio)

    flows = Oracle(all_or_nothing, n, bounds=(0, np.inf), nonnegative_directions=True)
    return flows, Smooth(beckmann), all_or_nothing(time)
