"""Twenty towns connected by one tree of roads, from ten days of prices.

    python examples/towns.py

On average a road costs its length; 40% of the roads are hilly, with lognormal prices. ERM takes
the tree that was cheapest on the ten days, and so hilly roads that happened to be cheap. The robust
tree is an integer decision with a proof of optimality, its radius chosen on the ten days alone.
`wdro-model demo` tells the same of forty instances, with their errors.
"""

from __future__ import annotations

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro


def prices(lengths: np.ndarray, hilly: np.ndarray, days: int, seed: int) -> np.ndarray:
    """The price of every road on so many days, (days, roads)."""
    z = np.random.default_rng(seed).standard_normal((days, len(lengths)))
    return lengths * np.where(hilly, np.exp(z - 0.5), np.abs(1 + 0.1 * z))


def main() -> None:
    rng = np.random.default_rng(1)
    places, graph = rng.random((20, 2)), nx.complete_graph(20)
    lengths = np.array([np.linalg.norm(places[u] - places[v]) for u, v in graph.edges])
    hilly = rng.random(len(lengths)) < 0.4

    tree = wdro.sets.SpanningTree(graph)
    x = cp.Variable(tree.dimension, boolean=True, name="roads")
    costs = wdro.UncertainParameter(
        tree.dimension, name="prices", samples=prices(lengths, hilly, days=10, seed=2)
    )
    ball = wdro.WassersteinBall(1.0, wdro.costs.SquaredEuclidean(weights="standardize"))
    problem = wdro.Problem(cp.Minimize(costs @ x), [wdro.In(x, tree)], ambiguity=ball)

    chosen = wdro.select_radius(problem, metric="cvar")
    print(chosen, "\n")
    unseen = prices(lengths, hilly, days=5000, seed=3)
    print(wdro.compare(chosen.problem, methods=("erm", "exact"), test={"new days": unseen}))


if __name__ == "__main__":
    main()
