"""Pair ten people who work together, when how long a pair takes is known from ten weeks only.

python examples/matching.py [picture.png]

Twelve groups of people, the same law in training and test: what one matching chosen for the mean
and one chosen for the worst case in a ball take, on average over the groups.
"""

from __future__ import annotations

import sys

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro

PEOPLE = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jo"]
GROUPS = 12


def figures(losses: np.ndarray) -> tuple[float, float, float]:
    """Mean, standard deviation, and the mean of the worst 5%."""
    worst = np.sort(losses)[-len(losses) // 20 :]
    return losses.mean(), losses.std(), worst.mean()


def main(picture: str | None = None) -> None:
    everybody = nx.complete_graph(PEOPLE)
    nx.set_node_attributes(everybody, nx.circular_layout(everybody), "pos")
    pairs = wdro.sets.Matching(everybody, perfect=True, forbidden=[("Ada", "Ben")])
    found: dict[str, list[tuple[float, float, float]]] = {"erm": [], "exact": []}
    for group in range(GROUPS):
        rng = np.random.default_rng(group)
        usual, spread = rng.uniform(1, 3, pairs.dimension), rng.uniform(0, 1.5, pairs.dimension)

        def weeks(count: int, rng=rng, usual=usual, spread=spread) -> np.ndarray:
            return usual + spread * rng.standard_normal((count, pairs.dimension))

        x = cp.Variable(pairs.dimension, boolean=True, name="x")
        hours = wdro.UncertainParameter(pairs.dimension, name="hours", samples=weeks(10))
        cost = wdro.costs.SquaredEuclidean(weights="standardize")
        ball = wdro.WassersteinBall(4.0, cost)
        problem = wdro.Problem(cp.Minimize(hours @ x), [wdro.In(x, pairs)], ball)
        test = weeks(5000)
        for method, rows in found.items():
            problem.solve(method=method)
            rows.append(figures(problem.losses(test)))
    print("the last group:", ", ".join(f"{a} + {b}" for a, b in pairs.selected(x.value)), "\n")
    print(f"{'hours':8}{'mean':>8}{'spread':>8}{'worst 5%':>10}")
    for name, method in {"plain": "erm", "robust": "exact"}.items():
        mean, spread, worst = np.mean(found[method], axis=0)
        print(f"{name:8}{mean:8.2f}{spread:8.2f}{worst:10.2f}")
    if picture is not None:
        pairs.plot(x.value, picture)


if __name__ == "__main__":
    main(*sys.argv[1:2])
