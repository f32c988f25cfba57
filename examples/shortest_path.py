"""A shortest path whose travel times are uncertain: one model, four oracles by name.

python examples/shortest_path.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro


def main(picture: str | None = None) -> None:
    graph = nx.grid_2d_graph(6, 6, create_using=nx.DiGraph)
    arcs = graph.number_of_edges()
    rng = np.random.default_rng(0)
    times = rng.gamma(4.0, rng.uniform(0.2, 0.6, arcs), size=(20, arcs))

    for backend in wdro.sets.ShortestPath.backends():
        path = wdro.sets.ShortestPath(graph, source=(0, 0), target=(5, 5), backend=backend)
        x = cp.Variable(path.dimension, name="x")
        time = wdro.UncertainParameter(
            arcs, name="time", samples=times, support=wdro.supports.Nonnegative()
        )
        problem = wdro.Problem(
            cp.Minimize(time @ x),
            [wdro.In(x, path)],
            ambiguity=wdro.WassersteinBall(radius=0.5),
        )
        plain = problem.solve(method="erm")
        robust = problem.solve(method="exact")
        used = int(np.sum(x.value > 1e-6))
        print(f"{backend:10s} mean time {plain:.4f}, worst case {robust:.4f} over {used} arcs")
    if picture is not None:
        path.plot(x.value, picture)


if __name__ == "__main__":
    main(*sys.argv[1:2])
