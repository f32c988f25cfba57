"""Ratings that nobody gave: a matrix of small nuclear norm, fitted to the worst case of its data.

python examples/matrix_completion.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro

PEOPLE, FILMS, RANK = 16, 12, 1


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((PEOPLE, RANK)) @ rng.standard_normal((RANK, FILMS))
    seen = rng.random(truth.shape) < 0.6
    places = np.argwhere(seen)
    ratings = truth[seen] + 0.5 * rng.standard_normal(len(places))
    # A sample is one rating: which entry it is of, and its value; only the value may move.
    entries = np.zeros((len(places), PEOPLE, FILMS))
    entries[np.arange(len(places)), *places.T] = 1.0
    norm = np.linalg.norm(truth, "nuc")

    fitted = {}
    X = cp.Variable(truth.shape, name="X")
    print(f"{len(places)} of {truth.size} entries seen; mean squares of errors")
    print(f"{'nuclear norm':>14}{'rank':>6}{'data':>8}{'worst':>8}{'seen':>8}{'unseen':>8}")
    for share in (0.3, 0.6, 0.9, 1.2):
        entry = wdro.UncertainParameter(truth.shape, name="entry", samples=entries)
        rating = wdro.UncertainParameter(name="rating", samples=ratings)
        problem = wdro.Problem(
            cp.Minimize(cp.square(cp.sum(cp.multiply(entry, X)) - rating)),
            [wdro.In(X, wdro.sets.NuclearBall(truth.shape, radius=share * norm))],
            ambiguity=wdro.WassersteinBall(
                0.25, wdro.costs.SquaredEuclidean(weights={entry: np.inf, rating: 1.0})
            ),
        )
        worst = problem.solve()
        data = problem.solution.empirical_value
        error = (X.value - truth) ** 2
        fitted[share] = X.value
        rank = int(np.sum(np.linalg.svd(X.value, compute_uv=False) > 0.1))
        print(
            f"{share * norm:14.1f}{rank:6d}{data:8.3f}{worst:8.3f}"
            f"{error[seen].mean():8.3f}{error[~seen].mean():8.3f}"
        )
    if picture is not None:
        shown = np.full(truth.shape, np.nan)
        shown[seen] = ratings
        draw({"truth": truth, "what was seen": shown, "fitted": fitted[0.9]}, picture)


def draw(matrices: dict[str, np.ndarray], picture: str) -> None:
    """Matrices side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    for axes, (name, matrix) in zip(figure.subplots(1, 3), matrices.items()):
        shades = axes.imshow(matrix, cmap="RdBu", vmin=-3, vmax=3)
        axes.set(title=name, xlabel="films", xticks=[], yticks=[])
        axes.set_facecolor("#eeeeee")
    figure.axes[0].set_ylabel("people")
    figure.colorbar(shades, ax=figure.axes, label="rating", shrink=0.8)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
