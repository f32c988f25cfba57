"""A round trip through nine towns, some roads of which jam: ten days of data, one robust tour.

python examples/tour.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(5)
    towns = rng.uniform(0, 10, (9, 2))
    roads = nx.complete_graph(len(towns))
    nx.set_node_attributes(roads, dict(enumerate(towns)), "pos")
    tour = wdro.sets.Tour(roads)
    length = np.array([np.linalg.norm(towns[a] - towns[b]) for a, b in tour.edges])
    jam = np.where(rng.random(tour.dimension) < 0.3, 0.9, 0.05)  # roads that jam, and others

    def days(count: int) -> np.ndarray:
        return length * (1 + jam * (rng.exponential(size=(count, tour.dimension)) - 0.3))

    x = cp.Variable(tour.dimension, boolean=True, name="x")
    time = wdro.UncertainParameter(tour.dimension, name="time", samples=days(10))
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(
        cp.Minimize(time @ x), [wdro.In(x, tour)], wdro.WassersteinBall(2.0, cost)
    )
    test = days(5000)
    print(f"{'':8}{'promised':>10}{'mean':>8}{'worst 5%':>10}  roads")
    for name, method in {"plain": "erm", "robust": "exact"}.items():
        problem.solve(method=method)
        losses = np.sort(problem.losses(test))
        tail = losses[-len(losses) // 20 :].mean()
        roads_taken = " ".join(f"{a}-{b}" for a, b in tour.selected(x.value))
        print(f"{name:8}{problem.value:10.2f}{losses.mean():8.2f}{tail:10.2f}  {roads_taken}")
    if picture is not None:
        tour.plot(x.value, picture)
        print(f"the robust tour is drawn in {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
