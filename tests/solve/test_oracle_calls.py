"""Every call of an oracle during a solve is reported."""

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro

TREE = wdro.sets.SpanningTree(nx.complete_graph(6))
MATRICES = np.random.default_rng(0).normal(size=(8, 15, 15))


class Counting:
    """An oracle that counts for itself."""

    def __init__(self):
        self.calls = 0

    def __call__(self, direction):
        self.calls += 1
        return TREE.minimize(direction)


@pytest.mark.filterwarnings("ignore::wdro_model.ConvexityWarning")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("erm", {}),
        ("exact", {}),
        ("smoothed", {}),
        ("smoothed", {"integration": "tilted"}),
        (
            "smoothed",
            {"solver": wdro.solvers.MomentumFrankWolfe(batch_size=4, samples=2, max_iterations=20)},
        ),
    ],
)
def test_oracle_calls_are_all_that_were_made(method, options):
    lmo = Counting()
    trees = wdro.sets.Oracle(lmo, 15, bounds=(0, 1))
    x = cp.Variable(15)
    costs = wdro.UncertainParameter((15, 15), samples=MATRICES)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)), [wdro.In(x, trees)], wdro.WassersteinBall(4.0)
    )
    before = lmo.calls
    problem.solve(method=method, **options)
    assert problem.solution.oracle_calls == lmo.calls - before
