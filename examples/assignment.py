"""Who does which job, when durations are uncertain: one assignment, robust against its data.

python examples/assignment.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro

PEOPLE = ["Ada", "Ben", "Cleo", "Dan", "Eve"]
JOBS = ["dig", "build", "paint", "plant", "clean", "cook"]


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(3)
    shape = (len(PEOPLE), len(JOBS))
    usual, spread = rng.uniform(4, 6, shape), rng.uniform(0.1, 2.5, shape)

    def days(count: int) -> np.ndarray:
        return usual + spread * rng.standard_normal((count, *shape))

    jobs = wdro.sets.Assignment(
        PEOPLE, JOBS, forbidden=[("Ada", "dig")], mandatory=[("Eve", "cook")]
    )
    x = cp.Variable(shape, name="x")
    hours = wdro.UncertainParameter(shape, name="hours", samples=days(12))
    problem = wdro.Problem(
        cp.Minimize(cp.sum(cp.multiply(hours, x))),
        [wdro.In(x, jobs)],
        ambiguity=wdro.WassersteinBall(20.0, wdro.costs.SquaredEuclidean(weights="standardize")),
    )
    test = days(5000)
    print(f"{'person':8}{'plain':>8}{'robust':>8}")
    chosen, cost = {}, {}
    for method in ("erm", "exact"):
        problem.solve(method=method)
        problem.round()
        chosen[method] = dict(jobs.selected(x.value.ravel()))
        cost[method] = np.sum(test * x.value, axis=(1, 2))
    for person in PEOPLE:
        print(f"{person:8}{chosen['erm'][person]:>8}{chosen['exact'][person]:>8}")
    for name, figure in {
        "mean": np.mean,
        "spread": np.std,
        "worst 5%": lambda total: np.sort(total)[-len(total) // 20 :].mean(),
    }.items():
        print(f"{name:8}{figure(cost['erm']):8.2f}{figure(cost['exact']):8.2f}")
    if picture is not None:
        draw(spread, chosen, picture)


def draw(spread: np.ndarray, chosen: dict[str, dict[str, str]], picture: str) -> None:
    """Who does what, on how much the hours vary."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    shades = axes.imshow(spread, cmap="Greys", vmin=0, vmax=4)
    figure.colorbar(shades, label="deviation of the hours")
    for method, size, colour, label in (
        ("erm", 26, "#0072b2", "plain"),
        ("exact", 14, "#d55e00", "robust"),
    ):
        places = [(JOBS.index(chosen[method][person]), k) for k, person in enumerate(PEOPLE)]
        axes.plot(*zip(*places), "o", ms=size, mew=3, mfc="none", mec=colour, label=label)
    axes.set_xticks(range(len(JOBS)), JOBS)
    axes.set_yticks(range(len(PEOPLE)), PEOPLE)
    axes.legend(
        ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.16), frameon=False, markerscale=0.5
    )
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
