"""Large data is not copied: a solve needs less than the user's own array."""

from __future__ import annotations

import tracemalloc
import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.integration import closed_form
from wdro_model.solvers import FrankWolfe


@pytest.mark.parametrize("support", [wdro.supports.Everywhere(), wdro.supports.Nonnegative()])
@pytest.mark.parametrize("method", ["erm", "exact", "smoothed"])
def test_no_array_of_the_size_of_the_samples_is_created(method, support, monkeypatch):
    monkeypatch.setattr(closed_form, "CHUNK_ENTRIES", 2**14)
    monkeypatch.setattr(closed_form, "SURROGATE_ENTRIES", 2**18)
    count, m = 60, 150
    instance = wdro.datasets.quadratic_tree(30, m, seed=0)
    samples = instance.training.sample(count, seed=1)
    tree = wdro.sets.SpanningTree(instance.graph)
    arguments = {"method": method, "solver": FrankWolfe(gap=0.5, max_iterations=3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = cp.Variable(m)
        costs = wdro.UncertainParameter((m, m), samples=samples, support=support)  # its copy
        tracemalloc.start()
        problem = wdro.Problem(
            cp.Minimize(wdro.quadratic_form(x, costs)),
            [wdro.In(x, tree)],
            ambiguity=wdro.WassersteinBall(10.0),
        )
        problem.solve(**arguments)
        problem.losses()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 0.9 * samples.nbytes, (
        f"{peak / 1e6:.1f} MB for data of {samples.nbytes / 1e6:.1f} MB"
    )


@pytest.mark.parametrize("labels_apart", [False, True])
def test_many_samples_are_integrated_in_blocks(labels_apart):
    """Tables in one form: neither the points of all samples nor their interpolation exist."""
    size, features = 60_000, 20
    rng = np.random.default_rng(0)
    data, labels = rng.standard_normal((size, features)), rng.choice([-1.0, 1.0], size)
    data += 0.3 * labels[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracemalloc.start()
        w = cp.Variable(features)
        rows = wdro.UncertainParameter(features, samples=data)
        label = wdro.UncertainParameter(samples=labels) if labels_apart else None
        weights = {rows: 1.0, label: np.inf} if labels_apart else None
        margin = rows @ w if label is None else label * (rows @ w)
        problem = wdro.Problem(
            cp.Minimize(cp.logistic(-margin)),
            [w >= -5, w <= 5],
            wdro.WassersteinBall(0.01, wdro.costs.SquaredEuclidean(weights=weights)),
        )
        problem.solve(method="smoothed", solver=FrankWolfe(gap=1e-3))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert problem.status == "optimal"
    assert peak < 80e6, f"{peak / 1e6:.0f} MB for data of {data.nbytes / 1e6:.0f} MB"
