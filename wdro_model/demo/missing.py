"""Quadratic trees whose data misses 30% of the interactions, each of them counted as 0."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.demo.story import (
    ROBUST_COLOUR,
    Contest,
    Judgement,
    Match,
    Story,
    clean,
    played,
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
"""The paper's."""


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


def instance(seed: int, *, nodes: int, edges: int, count: int, tests: int) -> Match:
    """One instance: a graph, its costs and its gaps."""
    tree = wdro.datasets.quadratic_tree(nodes, edges, seed=seed)
    first, *others = np.random.SeedSequence(seed).generate_state(1 + len(SHIFTS))
    both = decide(model(tree.graph, tree.training.sample(count, seed=int(first))))
    points = np.array([next(iter(p.solution.decision.values())) for p in both])
    judged = {}
    for entropy, (name, shift) in zip(others, SHIFTS.items()):
        unseen = tree.shifted(int(entropy), noise=0.3, **shift).lazy(tests, seed=int(entropy))
        blocks = (block[0] for block in unseen.batches(1, reuse=True))
        losses = np.array([np.einsum("ki,ki->k", points @ m, points) for m in blocks])
        judged[name] = [Judgement.of(p.value, own) for p, own in zip(both, losses.T)]
    covered = [float(x @ tree.training.mask @ x / x.sum() ** 2) for x in points]
    return Match(judged, RADIUS, covered)


def missing_story(*, quick: bool, jobs: int, seed: int) -> Story:
    """The story, with all shifts side by side."""
    size = {"nodes": 50, "edges": 331, "count": 100, "tests": 100}
    count = 10
    if quick:
        size, count = {"nodes": 10, "edges": 25, "count": 20, "tests": 50}, 4
    matches = played(partial(instance, **size), range(seed, seed + count), jobs, "missing data")
    contests = tuple(Contest.of(test, matches) for test in SHIFTS)
    seen = np.mean([match.drawn for match in matches], axis=0)
    return Story(
        name="missing data",
        title=TITLE,
        question=(
            f"A spanning tree on {size['nodes']} nodes and {size['edges']} edges pays for every "
            "pair of its edges. In the data, "
            f"{size['count']} noisy matrices of such costs, 30% of the pairs are missing, always "
            "the same ones, and count as 0. ERM takes what is missing for free. Four futures "
            "are shown, those where robustness loses too: only the pairs that were missing cost "
            "something (what was missing shows up); other costs and other gaps (all drawn anew); "
            "halfway to that; and the costs of the data with more noise. Decisions are mixtures of "
            "trees."
        ),
        code=source(model, decide),
        contests=contests,
        main=0,
        radius=(
            f"{RADIUS:g}, the radius of the paper. No cross-validation can choose it: what is held "
            "out misses the same pairs."
        ),
        remark=(
            f"Of the pairs that ERM pays for, {seen[0]:.0%} were seen in the data, of the robust "
            f"decision's {seen[1]:.0%}, of all pairs 70%. Where costs and gaps are all drawn anew, "
            "no decision can be better than another on average; where old costs survive, ERM has "
            "learned them and spreading out gives that up. The problem of ERM is not convex: its "
            f"decision is a stationary point. Seeds {seed} to {seed + count - 1}."
        ),
        picture=partial(draw_gains, contests),
        panels=2,
        caption="Gain over ERM in percent of its cost: dots are instances, bars are means.",
    )


def draw_gains(contests: tuple[Contest, ...], columns: int) -> Any:
    """Gains in the mean and in the tail on each test."""
    figure = new_figure(5.6 * columns, 3.6 * -(-2 // columns))
    panels = figure.subplots(-(-2 // columns), columns, squeeze=False, sharex=True).flatten()
    for axes, (what, title) in zip(panels, {"mean": "mean cost", "tail": "worst 5%"}.items()):
        axes.axvline(0.0, color=ERM_COLOUR, lw=2, zorder=1)
        for place, contest in enumerate(reversed(contests)):
            pairs = zip(contest.erm, contest.robust)
            shares = [100 * (1 - getattr(r, what) / getattr(e, what)) for e, r in pairs]
            axes.plot(shares, [place] * len(shares), "o", ms=5, alpha=0.5, color=ROBUST_COLOUR)
            gain = contest.gain(what)
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
        axes.set_yticks(range(len(contests)), [c.test for c in reversed(contests)])
        axes.set_ylim(-0.5, len(contests) - 0.3)
        axes.set_title(title)
        axes.set_xlabel("gain over ERM (%), ERM: blue line")
        axes.margins(x=0.12)
        clean(axes)
    return figure
