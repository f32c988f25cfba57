"""Quadratic trees whose data misses 30% of the interactions; each of them counts as 0."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.demo.story import (
    ROBUST_COLOUR,
    Comparison,
    Instance,
    Judgement,
    Story,
    hide_frame,
    numbers,
    run_instances,
    source,
)
from wdro_model.display.figures import ERM_COLOUR, new_figure

TITLE = "The paper's trees, when what was missing shows up"
SHIFTS: dict[str, dict[str, Any]] = {
    "what was missing shows up": {"base_shift": 0.0, "mask_shift": 0.0, "complement": True},
    "all drawn anew": {"base_shift": 1.0, "mask_shift": 1.0},
    "half of it drawn anew": {"base_shift": 0.5, "mask_shift": 0.5},
    "same costs, more noise": {"base_shift": 0.0, "mask_shift": 0.0},
}
RADIUS = 10.0
"""The radius of the paper."""


def model(graph: Any, matrices: Any) -> wdro.Problem:
    tree = wdro.sets.SpanningTree(graph)
    x = cp.Variable(tree.dimension)
    costs = wdro.UncertainParameter((tree.dimension, tree.dimension), samples=matrices)
    return wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(RADIUS),
    )


def decide(problem: wdro.Problem) -> tuple[Any, Any]:
    robust = problem.with_radius(RADIUS)
    solver = wdro.solvers.FrankWolfe(gap=1e-3)
    problem.solve(method="erm", solver=solver, progress=False)
    robust.solve(method="exact", solver=solver, progress=False)
    return problem, robust


def run_instance(seed: int, *, nodes: int, edges: int, count: int, tests: int) -> Instance:
    """A graph with its costs and gaps drawn by the seed, the two decisions, and their costs."""
    tree = wdro.datasets.quadratic_tree(nodes, edges, seed=seed)
    first, *others = np.random.SeedSequence(seed).generate_state(1 + len(SHIFTS))
    both = decide(model(tree.graph, tree.training.sample(count, seed=int(first))))
    points = np.array([next(iter(p.solution.decision.values())) for p in both])
    judged = {}
    for entropy, (name, shift) in zip(others, SHIFTS.items()):
        unseen = tree.shifted(int(entropy), noise=0.3, **shift).lazy(tests, seed=int(entropy))
        blocks = (block[0] for block in unseen.batches(1, reuse=True))
        losses = np.array([np.einsum("ki,ki->k", points @ m, points) for m in blocks])
        judged[name] = [Judgement.from_losses(p.value, own) for p, own in zip(both, losses.T)]
    covered = [float(x @ tree.training.mask @ x / x.sum() ** 2) for x in points]
    return Instance(judged, RADIUS, covered)


def missing_story(*, quick: bool, jobs: int, seed: int) -> Story:
    """The story, with all shifts."""
    size = {"nodes": 50, "edges": 331, "count": 100, "tests": 100}
    count = 10
    if quick:
        size, count = {"nodes": 10, "edges": 25, "count": 20, "tests": 50}, 4
    instances = run_instances(
        partial(run_instance, **size), range(seed, seed + count), jobs, "missing data"
    )
    comparisons = tuple(Comparison.on_test(test, instances) for test in SHIFTS)
    seen = np.mean([instance.details for instance in instances], axis=0)
    return Story(
        name="missing data",
        title=TITLE,
        question=(
            f"A spanning tree on {size['nodes']} nodes and {size['edges']} edges pays for every "
            "pair of its edges. In the data, "
            f"{size['count']} noisy matrices of such costs, the same 30% of the pairs are always "
            "missing and count as 0. ERM takes missing pairs for free. There are four tests, "
            "including those where robustness loses: only the pairs that were missing cost "
            "something (what was missing shows up); new costs and new gaps (all drawn anew); "
            "halfway to that; and the costs of the data with more noise. Decisions are mixtures of "
            "trees."
        ),
        code=source(model, decide),
        comparisons=comparisons,
        main=0,
        radius=(
            f"{RADIUS:g}, the radius of the paper. Cross-validation cannot help here: the held-out "
            "data lacks the same pairs."
        ),
        remark=(
            f"The data has 70% of all pairs, {seen[0]:.0%} of the pairs that ERM pays for, and "
            f"{seen[1]:.0%} of those of the robust decision. Where costs and gaps are all drawn "
            "anew, no decision can be better than another on average. Where the old costs persist, "
            "ERM has already learned them, and diversifying throws that away. The problem of ERM "
            f"is not convex: its decision is a stationary point. Seeds {seed} to "
            f"{seed + count - 1}."
        ),
        picture=partial(draw_gains, comparisons),
        panels=2,
        caption="Gain over ERM in percent of its cost: dots are instances, bars are means.",
    )


def draw_gains(comparisons: tuple[Comparison, ...], columns: int) -> Any:
    """Gains in the mean and in the tail on each test."""
    figure = new_figure(5.6 * columns, 3.6 * -(-2 // columns))
    panels = figure.subplots(-(-2 // columns), columns, squeeze=False, sharex=True).flatten()
    for axes, (what, title) in zip(panels, {"mean": "mean cost", "tail": "worst 5%"}.items()):
        axes.axvline(0.0, color=ERM_COLOUR, lw=2, zorder=1)
        for place, comparison in enumerate(reversed(comparisons)):
            ratios = numbers(comparison.robust, what) / numbers(comparison.erm, what)
            shares = 100 * (1 - ratios)
            axes.plot(shares, [place] * len(shares), "o", ms=5, alpha=0.5, color=ROBUST_COLOUR)
            gain = comparison.gain(what)
            axes.plot(
                [100 * gain.share] * 2, [place - 0.28, place + 0.28], color=ROBUST_COLOUR, lw=3
            )
            axes.annotate(
                f"{100 * gain.share:+.1f}%",
                (100 * gain.share, place + 0.31),
                ha="center",
                va="bottom",
                color=ROBUST_COLOUR,
                weight="bold",
                bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85},
            )
        axes.set_yticks(range(len(comparisons)), [c.test for c in reversed(comparisons)])
        axes.set_ylim(-0.5, len(comparisons) - 0.3)
        axes.set_title(title)
        axes.set_xlabel("gain over ERM (%), ERM: blue line")
        axes.margins(x=0.12)
        hide_frame(axes)
    return figure
