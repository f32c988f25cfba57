"""A vertex is returned again without a solve only if it is still optimal."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

from wdro_model.sets import ConvexSet


@pytest.mark.parametrize("seed", range(6))
def test_drifting_directions_get_optimal_vertices(seed):
    """Slow drifts repeat vertices, jumps leave them: every answer is compared with scipy's."""
    rng = np.random.default_rng(seed)
    n, m = 12, 5
    A, E = rng.normal(size=(m, n)), rng.normal(size=(2, n))
    inside = rng.uniform(0.2, 0.8, n)
    limit, equal = A @ inside + 0.3, E @ inside
    x = cp.Variable(n)
    feasible = ConvexSet([A @ x <= limit, E @ x == equal, x >= 0, x <= 1], [x])
    direction = rng.normal(size=n)
    for step in range(200):
        scale = 1.0 if step % 40 == 0 else 0.02
        direction = direction + scale * rng.normal(size=n)
        vertex = feasible.minimize(direction)
        best = linprog(direction, A, limit, E, equal, bounds=(0, 1)).fun
        assert direction @ vertex == pytest.approx(best, abs=1e-7)
        assert feasible.contains(vertex) if step % 50 == 0 else True


def test_repeated_vertex_is_a_fresh_array():
    x = cp.Variable(3, nonneg=True)
    feasible = ConvexSet([cp.sum(x) == 1], [x])
    direction = np.array([1.0, 2.0, 3.0])
    vertices = [feasible.minimize(direction) for _ in range(5)]
    vertices[3][:] = 7.0
    assert feasible.minimize(direction) == pytest.approx([1, 0, 0])
    assert vertices[4] == pytest.approx([1, 0, 0])
