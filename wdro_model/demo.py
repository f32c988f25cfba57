"""The demo: quadratic spanning trees under uncertain costs, four decisions compared.

A random graph with 50 nodes and 331 edges; a decision is a point of the spanning-tree polytope, its
loss x' Xi x for a random 331 x 331 matrix Xi of interaction costs. The decisions are taken from 100
matrices and judged on those, and on matrices from a shifted distribution.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import cvxpy as cp

import wdro_model as wdro


def demo(*, quick: bool = False, output: Path | str = ".", seed: int = 0) -> None:
    """Print a comparison, and write histograms of the losses to a folder."""
    nodes, edges, count, tests, steps = (10, 25, 30, 100, 100) if quick else (50, 331, 100, 500, 50)
    instance = wdro.datasets.quadratic_tree(nodes, edges, seed=seed)
    tree = wdro.sets.SpanningTree(instance.graph)
    x = cp.Variable(tree.dimension, name="x")
    costs = wdro.UncertainParameter(
        (edges, edges),
        name="costs",
        samples=instance.training.sample(count, seed=1),
        support=wdro.supports.Nonnegative(),
    )
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(radius=10.0),
    )
    paper = {
        "method": "smoothed",
        "epsilon": 1e-4,
        "solver": wdro.solvers.MomentumFrankWolfe(batch_size=10, samples=10, max_iterations=steps),
    }
    print(problem.explain(method="smoothed"), "\n")

    shifted = instance.shifted(seed=2)
    with warnings.catch_warnings():
        # ERM is not convex here, and the paper's estimator has few effective draws: the statuses
        # and the notes below say so.
        warnings.simplefilter("ignore", wdro.ConvexityWarning)
        warnings.simplefilter("ignore", wdro.SamplingWarning)
        report = wdro.compare(
            problem,
            methods={
                "erm": {},
                "exact": {},
                "smoothed": {"solver": wdro.solvers.FrankWolfe(gap=1e-3)},
                "sampled": paper,
            },
            test={"shifted": shifted.lazy(tests, seed=3)},
        )
    print(report, "\n")
    print(f"sampled: the paper's algorithm, stopped after {steps} of 5000 iterations.")
    for note in report["sampled"].solution.notes:
        print("sampled:", note)

    try:
        figure = report.plot()
    except ImportError as error:
        print(f"\nNo histograms of the losses: {error}")
        return
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "quadratic_tree.png"
    figure.savefig(picture, dpi=150)
    print(f"\nHistograms of the losses: {picture}")
