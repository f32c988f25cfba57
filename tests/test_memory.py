"""Large data is not copied: a solve needs less than the user's own array."""

from __future__ import annotations

import tracemalloc
import warnings

import cvxpy as cp
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
        tracemalloc.start()
        x = cp.Variable(m)
        costs = wdro.UncertainParameter((m, m), samples=samples, support=support)
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
