"""Connect twenty towns by roads, some of which run through hills: ten days of data, one tree.

python examples/connect_towns.py [picture.png]

In the hills a road may come to a quarter of its usual price or to four times of it; elsewhere
prices hardly vary. Twenty maps, the same law in training and test: the tree that is cheapest on
average over the data, and the robust one, its radius chosen by cross-validation on the tail.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro

TOWNS, DAYS, MAPS = 20, 10, 20
RADII = (0.0, 1.0, 3.0, 10.0, 30.0)
BLUE, ORANGE = "#0072b2", "#d55e00"


@dataclass(frozen=True)
class Map:
    """Towns, the roads that could be built, and the trees that were chosen for them."""

    place: np.ndarray
    tree: wdro.sets.SpanningTree
    hilly: np.ndarray
    chosen: dict[str, np.ndarray]
    losses: dict[str, np.ndarray]
    radius: float


def tail(losses: np.ndarray) -> float:
    """The mean of the worst 5%."""
    return float(np.sort(losses)[-len(losses) // 20 :].mean())


def solved(seed: int) -> Map:
    rng = np.random.default_rng(seed)
    place = rng.uniform(0, 10, (TOWNS, 2))
    distance = np.linalg.norm(place[:, None] - place, axis=2)
    graph = nx.Graph()
    for town in range(TOWNS):  # the five nearest, and one way through all of them
        graph.add_edges_from((town, int(other)) for other in np.argsort(distance[town])[1:6])
    nx.add_path(graph, np.argsort(place[:, 0]).tolist())

    tree = wdro.sets.SpanningTree(graph)
    length = np.array([distance[u, v] for u, v in tree.edges])
    hilly = rng.random(tree.dimension) < 0.4

    def days(count: int) -> np.ndarray:
        spread = np.where(hilly, 0.9, 0.1)
        return length * rng.lognormal(-(spread**2) / 2, spread, (count, tree.dimension))

    x = cp.Variable(tree.dimension, boolean=True, name="x")
    price = wdro.UncertainParameter(tree.dimension, name="price", samples=days(DAYS))
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(
        cp.Minimize(price @ x), [wdro.In(x, tree)], wdro.WassersteinBall(1.0, cost)
    )
    best = wdro.select_radius(problem, RADII, metric="cvar", seed=seed, progress=False)
    chosen, losses, test = {}, {}, days(5000)
    for name, radius in {"plain": 0.0, "robust": best.radius}.items():
        twin = problem.with_radius(radius)
        twin.solve()
        chosen[name], losses[name] = x.value, twin.losses(test)
    return Map(place, tree, hilly, chosen, losses, best.radius)


def main(picture: str | None = None) -> None:
    maps = [solved(seed) for seed in range(MAPS)]
    print(f"{'price':8}{'mean':>8}{'worst 5%':>10}{'hilly roads':>13}")
    for name in ("plain", "robust"):
        mean = np.mean([found.losses[name].mean() for found in maps])
        worst = np.mean([tail(found.losses[name]) for found in maps])
        hills = np.mean([found.hilly @ found.chosen[name] for found in maps])
        print(f"{name:8}{mean:8.2f}{worst:10.2f}{hills:13.1f}")
    better = sum(tail(found.losses["robust"]) < tail(found.losses["plain"]) for found in maps)
    same = sum(np.array_equal(*found.chosen.values()) for found in maps)
    print(
        f"the robust tree has the better tail on {better} maps of {MAPS}, and is the same on {same}"
    )
    if picture is not None:
        draw(maps[0], picture)


def draw(found: Map, picture: str) -> None:
    """Both trees on the map, and what they cost on days to come."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.2), layout="constrained")
    panels = figure.subplot_mosaic("ab;cc", height_ratios=(3, 1.4))
    place = found.place
    for key, (name, colour) in zip("ab", {"plain": BLUE, "robust": ORANGE}.items()):
        axes = panels[key]
        for k, (u, v) in enumerate(found.tree.edges):
            ends = list(zip(place[u], place[v]))
            style = (0, (1.2, 1.2)) if found.hilly[k] else "-"
            axes.plot(*ends, color="#d0d0d0", lw=0.8, ls=style, zorder=1)
            if found.chosen[name][k] > 0.5:
                axes.plot(*ends, color=colour, lw=2.6, ls=style, zorder=2)
        axes.scatter(*place.T, s=30, fc="w", ec="#333333", zorder=3)
        axes.set_title(
            {"plain": "the cheapest tree on ten days", "robust": "the robust tree"}[name]
        )
        axes.axis("off")
        losses = found.losses[name]
        panels["c"].hist(losses, bins=np.linspace(20, 80, 121), color=colour, alpha=0.6)
        panels["c"].axvline(tail(losses), color=colour, lw=2)
        panels["c"].annotate(
            f" worst 5%: {tail(losses):.0f}",
            (tail(losses), 0.8),
            color=colour,
            xycoords=("data", "axes fraction"),
        )
    panels["c"].set(xlabel="price on 5000 days to come (dashed roads run through hills)", yticks=[])
    panels["c"].spines[["top", "left", "right"]].set_visible(False)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:2])
