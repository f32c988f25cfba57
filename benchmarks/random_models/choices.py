"""Integer decisions over oracles, against the enumeration of all of them."""

from __future__ import annotations

import itertools
from typing import Any

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro
from random_models.drawing import write_cost
from random_models.references import Cost
from random_models.trial import Answer, NoReferenceError, Trial, read_answer

RELATIVE = 1e-5


def edge_vectors(graph: Any, chosen: list[list[Any]]) -> np.ndarray:
    """One 0/1 vector for each list of edges, coordinates in the order of `graph.edges`."""
    edges = list(graph.edges)
    place = {edge: k for k, edge in enumerate(edges)}
    if not graph.is_directed():
        place |= {(v, u): k for (u, v), k in list(place.items())}
    points = np.zeros((len(chosen), len(edges)))
    for row, one in zip(points, chosen):
        row[[place[edge] for edge in one]] = 1.0
    return points


def draw_set(rng: np.random.Generator) -> tuple[Any, np.ndarray, str]:
    """A library set, all its points, and its name."""
    kind = str(
        rng.choice(
            ["path", "directed path", "tree", "assignment", "knapsack", "subsets", "matching"]
        )
    )
    number = int(rng.integers(1 << 30))
    if kind == "path":
        graph = nx.grid_2d_graph(3, int(rng.integers(2, 4)))
        target = max(graph.nodes)
        paths = [list(nx.utils.pairwise(p)) for p in nx.all_simple_paths(graph, (0, 0), target)]
        return wdro.sets.ShortestPath(graph, (0, 0), target), edge_vectors(graph, paths), kind
    if kind == "directed path":
        graph = nx.DiGraph()
        for u, v in itertools.combinations(range(6), 2):
            if v == u + 1 or rng.random() < 0.5:
                graph.add_edge(u, v)
        paths = [list(nx.utils.pairwise(p)) for p in nx.all_simple_paths(graph, 0, 5)]
        return wdro.sets.ShortestPath(graph, 0, 5), edge_vectors(graph, paths), kind
    if kind == "tree":
        graph = nx.connected_watts_strogatz_graph(5, 2, 0.5, seed=number)
        extra = nx.gnm_random_graph(5, 7, seed=number)
        graph.add_edges_from(extra.edges)
        edges, points = list(graph.edges), []
        for chosen in itertools.combinations(edges, 4):
            part = nx.Graph(list(chosen))
            if len(part) == 5 and nx.is_connected(part):
                points.append(list(chosen))
        return wdro.sets.SpanningTree(graph), edge_vectors(graph, points), kind
    if kind == "assignment":
        rows = int(rng.integers(2, 5))
        columns = rows + int(rng.integers(0, 2))
        points = []
        for columns_of in itertools.permutations(range(columns), rows):
            table = np.zeros((rows, columns))
            table[range(rows), columns_of] = 1.0
            points.append(table.ravel())
        chosen = (
            wdro.sets.Assignment(rows, columns) if columns > rows else wdro.sets.Assignment(rows)
        )
        return chosen, np.array(points), kind
    if kind == "matching":
        graph = nx.gnm_random_graph(6, 9, seed=number)
        graph.add_edges_from([(0, 1), (2, 3), (4, 5)])
        points = [
            list(chosen)
            for chosen in itertools.combinations(list(graph.edges), 3)
            if len({v for edge in chosen for v in edge}) == 6
        ]
        return wdro.sets.Matching(graph, perfect=True), edge_vectors(graph, points), kind
    items = int(rng.integers(3, 9))
    cube = np.array(list(itertools.product([0.0, 1.0], repeat=items)))
    if kind == "subsets":
        k, at_most = int(rng.integers(1, items)), bool(rng.random() < 0.3)
        count = cube.sum(axis=1)
        points = cube[count <= k] if at_most else cube[count == k]
        return wdro.sets.Subsets(items, k, at_most=at_most), points, kind
    weights = rng.integers(1, 10, size=items).astype(float)
    capacity = float(np.floor(weights.sum() * rng.uniform(0.3, 0.8)))
    capacity = max(capacity, weights.min())
    points = cube[cube @ weights <= capacity]
    return wdro.sets.Knapsack(weights, capacity), points, kind


def draw_integers(rng: np.random.Generator) -> Trial:
    """One choice, by enumeration of all; or a mixture of choices, by a program of its shares."""
    chosen, points, where = draw_set(rng)
    m = points.shape[1]
    N = int(rng.integers(1, 12))
    samples = rng.uniform(0.2, 2.0, size=m) * np.exp(0.4 * rng.normal(size=(N, m)))
    if where in ("knapsack", "subsets", "directed path"):
        samples = samples * rng.choice([-1.0, 1.0], p=[0.8, 0.2], size=m)
    scale = 1.0 if rng.random() < 0.5 else float(10.0 ** rng.uniform(-3, 3))
    weights = rng.uniform(0.2, 4.0, size=m) if rng.random() < 0.7 else np.ones(m)
    if rng.random() < 0.5:
        p = [1, 2, np.inf][int(rng.integers(3))]
        cost, name = Cost(p=p, weights=weights), f"Norm({p})"
    else:
        cost, name = Cost(weights=weights, covariance=np.diag(1 / weights)), "squared"
    radius = float(10.0 ** rng.uniform(-3, 1))
    steep = radius if cost.is_norm else float(np.sqrt(radius))
    kind = str(rng.choice(["affine", "affine", "affine", "cvar", "absolute"]))
    level = float(rng.choice([0.3, 0.5, 0.8]))
    target = float(np.mean(samples @ points.T))
    certain = rng.normal(size=m) if rng.random() < 0.3 else np.zeros(m)
    if kind == "cvar":
        steep /= (1 - level) if cost.is_norm else np.sqrt(1 - level)
    relaxed = bool(rng.random() < 0.3) and len(points) <= 150

    def risk(x: np.ndarray) -> float:
        inside = samples @ x
        if kind == "cvar":
            ordered = np.sort(inside)[::-1]
            count = (1 - level) * N
            whole = int(np.floor(count + 1e-9))
            total = ordered[:whole].sum()
            if whole < N:
                total += (count - whole) * ordered[whole]
            mean = total / count
        elif kind == "absolute":
            mean = np.mean(np.abs(inside - target))
        else:
            mean = np.mean(inside)
        return float(certain @ x + mean + steep * cost.dual_norm(x))

    def optimum() -> float:
        if not relaxed:
            return min(risk(point) for point in points)
        share, t = cp.Variable(len(points), nonneg=True), cp.Variable()
        x = points.T @ share
        inside = samples @ x
        if kind == "cvar":
            mean = t + cp.sum(cp.pos(inside - t)) / ((1 - level) * N)
        elif kind == "absolute":
            mean = cp.sum(cp.abs(inside - target)) / N
        else:
            mean = cp.sum(inside) / N
        if cost.is_norm:
            length = cp.norm(cp.multiply(1 / weights, x), cost.dual_p)
        else:
            length = cp.norm(cp.multiply(1 / np.sqrt(weights), x), 2)
        program = cp.Problem(cp.Minimize(certain @ x + mean + steep * length), [cp.sum(share) == 1])
        program.solve(solver="CLARABEL")
        if program.status != "optimal":
            raise NoReferenceError(str(program.status))
        return float(program.value)

    x = cp.Variable(m, boolean=not relaxed, name="x")
    z = wdro.UncertainParameter(m, name="z", samples=scale * samples)
    loss = {
        "affine": lambda: z @ x,
        "cvar": lambda: wdro.cvar(z @ x, level),
        "absolute": lambda: cp.abs(z @ x - scale * target),
    }[kind]()
    if certain.any():
        loss = loss + (scale * certain) @ x
    told = radius * (scale if cost.is_norm else scale**2)
    ball = wdro.WassersteinBall(told, write_cost(cost))
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, chosen)], ball)

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        return read_answer(problem, x.value)

    def judge(answer: Answer) -> list[str]:
        best, value = optimum(), answer.value / scale
        size = max(1.0, abs(best))
        gap = 0.0 if answer.gap is None else max(answer.gap, 0.0) / scale
        wrong = []
        if value < best - RELATIVE * size:
            wrong.append(f"value {value:.8g} is below the optimum {best:.8g}")
        if answer.is_optimal and value > best + gap + RELATIVE * size:
            wrong.append(f"value {value:.8g} is above the optimum {best:.8g}, gap {gap:.2g}")
        if answer.is_optimal and gap > 2e-3 * size:
            wrong.append(f"optimal with a gap of {gap:.3g}")
        if answer.lower_bound is not None:
            bound = answer.lower_bound / scale
            if bound > best + RELATIVE * size:
                wrong.append(f"bound {bound:.8g} is above the optimum {best:.8g}")
        if answer.decision is not None:
            own = risk(answer.decision)
            if abs(own - value) > RELATIVE * size:
                wrong.append(f"value {value:.8g}, of its decision {own:.8g}")
            if not relaxed:
                far = np.abs(points - answer.decision).max(axis=1).min()
                if far > 1e-6:
                    wrong.append(f"the decision is no point of the set, {far:.2g} from one")
        return wrong

    text = f"{kind} over {where} ({len(points)} points, m={m}), N={N}, {name} radius {radius:.3g}"
    text += f", units {scale:.2g}" + (", hull" if relaxed else "")
    return Trial(text, solve, judge)
