"""Towns connected by one tree of roads from ten days of prices; nothing is shifted at test."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.compat import networkx as nx
from wdro_model.demo.story import (
    ERM_COLOUR,
    ROBUST_COLOUR,
    Comparison,
    Instance,
    Judgement,
    Story,
    draw_pairs,
    numbers,
    run_instances,
    source,
)
from wdro_model.display.figures import new_figure

TITLE = "One road network from ten days of prices"
TEST = "new days, no shift"
HILLY, SPREAD = 0.4, 1.0
"""The share of hilly roads, and the standard deviation of the logarithm of their cost."""


@dataclass(frozen=True)
class Towns:
    """Towns in the unit square, and the distribution of the costs of all roads between them.

    On average every road costs its length: give or take 10% if it is flat, lognormal if hilly.
    """

    places: np.ndarray
    graph: Any
    lengths: np.ndarray
    hilly: np.ndarray

    @classmethod
    def random(cls, count: int, rng: np.random.Generator) -> Towns:
        places, graph = rng.random((count, 2)), nx.complete_graph(count)
        ends = np.array(graph.edges)
        lengths = np.linalg.norm(places[ends[:, 0]] - places[ends[:, 1]], axis=1)
        return cls(places, graph, lengths, rng.random(len(ends)) < HILLY)

    def days(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Costs of all roads on `count` days, (count, roads)."""
        z = rng.standard_normal((count, len(self.lengths)))
        factors = np.where(self.hilly, np.exp(SPREAD * z - SPREAD**2 / 2), np.abs(1 + 0.1 * z))
        return self.lengths * factors


def model(graph: Any, days: np.ndarray) -> wdro.Problem:
    tree = wdro.sets.SpanningTree(graph)
    x = cp.Variable(tree.dimension, boolean=True)  # one tree, proven optimal
    costs = wdro.UncertainParameter(tree.dimension, samples=days)
    ball = wdro.WassersteinBall(1.0, wdro.costs.SquaredEuclidean(weights="standardize"))
    return wdro.Problem(cp.Minimize(costs @ x), [wdro.In(x, tree)], ambiguity=ball)


def decide(problem: wdro.Problem) -> tuple[Any, Any]:
    problem.solve(method="erm")
    chosen = wdro.select_radius(problem, metric="cvar", folds=5, progress=False)
    return problem, chosen.problem


def run_instance(seed: int, *, towns: int, days: int, tests: int) -> Instance:
    """Towns and days detail by the seed, the two decisions, and their costs on new days."""
    rng = np.random.default_rng(seed)
    land = Towns.random(towns, rng)
    seen, unseen = land.days(days, rng), land.days(tests, rng)
    erm, robust = decide(model(land.graph, seen))
    judged = [Judgement.from_losses(p.value, p.losses(unseen)) for p in (erm, robust)]
    trees = [next(iter(p.solution.decision.values())) > 0.5 for p in (erm, robust)]
    gap = max(p.solution.relative_gap or 0.0 for p in (erm, robust))
    return Instance({TEST: judged}, robust.radius, (land, *trees, gap))


def towns_story(*, quick: bool, jobs: int, seed: int) -> Story:
    """The story, from enough instances for small errors."""
    size: dict[str, int] = {"towns": 20, "days": 10, "tests": 2000}
    count = 40
    if quick:
        size, count = {"towns": 8, "days": 10, "tests": 300}, 4
    instances = run_instances(
        partial(run_instance, **size), range(seed, seed + count), jobs, "towns"
    )
    comparison = Comparison.on_test(TEST, instances)
    radii = np.array([instance.radius for instance in instances])
    details = [instance.details for instance in instances]
    hills = [np.mean([np.sum(detail[0].hilly & detail[k]) for detail in details]) for k in (1, 2)]
    gap = max(detail[3] for detail in details)
    return Story(
        name="towns",
        title=TITLE,
        question=(
            f"{size['towns']} towns are to be connected by one tree of roads. The data has prices "
            f"of {size['days']} days for each of the {len(details[0][0].lengths)} "
            "possible roads. On average a road costs its length; 40% of the roads are hilly, with "
            "lognormal prices. ERM takes the tree that was cheapest on those days, with hilly "
            "roads that happened to be cheap."
        ),
        code=source(model, decide),
        comparisons=(comparison,),
        main=0,
        radius=(
            "Chosen by cross-validation on the ten days alone: five folds, scored by the mean of "
            f"the worst 5%. Over the instances, radii from {radii.min():.3g} to "
            f"{radii.max():.3g} were chosen (median {np.median(radii):.3g}; 0 is ERM), in units of "
            "each road's own variance."
        ),
        remark=(
            f"Of its {size['towns'] - 1} roads, ERM's tree has {hills[0]:.1f} hilly ones on "
            f"average, the robust tree {hills[1]:.1f}. Every tree is an integer decision with a "
            f"proof of optimality: the largest remaining gap is {gap:.1%}. The test days have the "
            f"same distribution as the training days. Seeds {seed} to {seed + count - 1}."
        ),
        picture=partial(draw_towns, instances[median_instance(comparison)], comparison),
        panels=3,
        caption=(
            "The two trees of the instance with the median gain (dashed: hilly), and the worst 5% "
            f"of all {count} instances."
        ),
    )


def median_instance(comparison: Comparison) -> int:
    """The position of the instance with the median gain in the worst 5%."""
    shares = numbers(comparison.robust, "tail") / numbers(comparison.erm, "tail")
    return int(np.argsort(shares, kind="stable")[len(shares) // 2])


def draw_towns(instance: Instance, comparison: Comparison, columns: int) -> Any:
    """Maps of the two trees of one instance, and the tails of all."""
    land, erm, robust, _ = instance.details
    rows = -(-3 // columns)
    figure = new_figure(4.2 * columns, 3.9 * rows)
    maps = figure.subplots(rows, columns, squeeze=False).flatten()
    judged = instance.tests[TEST]
    for axes, tree, result, name, colour in zip(
        maps, (erm, robust), judged, ("ERM", "robust"), (ERM_COLOUR, ROBUST_COLOUR)
    ):
        for (u, v), used, hilly in zip(land.graph.edges, tree, land.hilly):
            if used:
                line, width = ((0, (2, 1.2)), 0.8) if hilly else ("-", 2.4)
                axes.plot(*land.places[[u, v]].T, color=colour, lw=width, zorder=1)
                axes.plot(*land.places[[u, v]].T, color=colour, lw=2.4, ls=line, zorder=2)
        axes.plot(*land.places.T, "o", ms=7, color="white", mec="#262626", zorder=3)
        axes.set_title(f"{name}: {np.sum(land.hilly & tree)} hilly roads", color=colour)
        axes.set_xlabel(
            f"promised {result.promise:.2f}, mean {result.mean:.2f}, worst 5% {result.tail:.2f}"
        )
        axes.set(xticks=[], yticks=[], aspect="equal", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
        axes.spines[:].set_color("#dddddd")
    draw_pairs(maps[2], comparison, "tail", "worst 5% of costs")
    maps[2].set_title("each line: one instance")
    return figure
