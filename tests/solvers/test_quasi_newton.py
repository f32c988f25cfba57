"""The parts of blended Newton directions: secant pairs, and programs over the simplex."""

from __future__ import annotations

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

from tests.solvers.problems import simplex
from wdro_model.errors import ConvexityWarning
from wdro_model.loss import quadratic_form
from wdro_model.problem import Problem
from wdro_model.sets import In, SpanningTree
from wdro_model.solvers import FrankWolfe, Stop
from wdro_model.solvers.directions.blended import simplex_minimum
from wdro_model.solvers.directions.newton import SecantPairs
from wdro_model.solvers.objective import Point


def definite(size: int, seed: int, spread: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    return (basis * 10.0 ** rng.uniform(0, spread, size)) @ basis.T


def dense_bfgs(steps: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """The textbook recursion, from the multiple of the identity that the last pair gives."""
    matrix = changes[-1] @ changes[-1] / (steps[-1] @ changes[-1]) * np.eye(steps.shape[1])
    for s, y in zip(steps, changes):
        moved = matrix @ s
        matrix = matrix - np.outer(moved, moved) / (s @ moved) + np.outer(y, y) / (s @ y)
    return matrix


@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_compact_form_is_the_bfgs_recursion(count):
    rng = np.random.default_rng(count)
    hessian, steps = definite(8, count), rng.standard_normal((count, 8))
    steps *= 10.0 ** rng.uniform(-4, 0, count)[:, None]
    pairs = SecantPairs()
    for step in steps:
        pairs.add(step, hessian @ step)
    rows = rng.standard_normal((5, 8))
    wanted = rows @ dense_bfgs(steps, steps @ hessian) @ rows.T
    np.testing.assert_allclose(pairs.quadratic(rows), wanted, rtol=1e-9, atol=1e-9)


def test_a_survey_knows_the_hessian_on_the_span_of_its_steps():
    rng = np.random.default_rng(0)
    hessian, steps = definite(12, 1), rng.standard_normal((7, 12))
    steps[6] = steps[:6].sum(axis=0)  # one direction too many
    pairs = SecantPairs()
    pairs.survey(steps, steps @ hessian)
    wanted = steps @ hessian @ steps.T
    np.testing.assert_allclose(pairs.quadratic(steps), wanted, atol=1e-8 * wanted.max())


def test_steps_without_curvature_say_nothing():
    pairs = SecantPairs()
    pairs.add(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    pairs.add(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
    pairs.add(np.zeros(2), np.zeros(2))
    assert len(pairs) == 0


@pytest.mark.parametrize("seed", range(6))
def test_programs_over_the_simplex_agree_with_a_conic_solver(seed):
    rng = np.random.default_rng(seed)
    size, rank = 15, (15, 6)[seed % 2]
    root = rng.standard_normal((size, rank))
    matrix, linear = root @ root.T, rng.standard_normal(size)
    w = cp.Variable(size, nonneg=True)
    best = cp.Problem(
        cp.Minimize(0.5 * cp.sum_squares(root.T @ w) + linear @ w), [cp.sum(w) == 1]
    ).solve(solver=cp.CLARABEL)
    start = rng.dirichlet(np.ones(size)) if seed < 3 else np.eye(size)[seed]
    found = simplex_minimum(matrix, linear, start)
    assert np.all(found >= 0)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert 0.5 * found @ matrix @ found + linear @ found == pytest.approx(best, abs=1e-7)


class NarrowKinks:
    """Kinks that are smooth over a width of 1e-5 only, beside a curvature of order one."""

    size = 1

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(0)
        self.slopes = rng.standard_normal((3 * n, n))
        self.levels = self.slopes.mean(axis=1) + 0.02 * rng.standard_normal(3 * n)
        self.evaluations = 0

    def evaluate(self, x: np.ndarray, dual: float | None = None) -> Point:
        self.evaluations += 1
        apart = self.slopes @ x - self.levels
        root = np.sqrt(apart**2 + 1e-10)
        gradient = self.slopes.T @ (apart / root) / len(root) + 0.1 * x
        return Point(float(root.mean() + 0.05 * x @ x), gradient)


def test_narrow_kinks_are_solved_to_a_small_gap():
    objective = NarrowKinks(12)
    outcome = FrankWolfe(gap=1e-6, max_iterations=250).run(
        objective, simplex(12), np.eye(12)[0], rng=np.random.default_rng(0)
    )
    assert outcome.stop is Stop.GAP


@pytest.mark.parametrize("seed", [1, 4, 22])
def test_long_steps_do_not_leave_the_set(seed):
    # Concave along some lines: steps are hundreds of times the model's, and so were its errors.
    tree = SpanningTree(nx.complete_graph(14))
    rng = np.random.default_rng(seed)
    shape = (tree.dimension, tree.dimension)
    matrix = rng.random(shape) * (rng.random(shape) < 0.7)
    x, sums = cp.Variable(tree.dimension), []
    watched = FrankWolfe(gap=1e-6, callbacks=[lambda state: sums.append(state.x.sum())])
    problem = Problem(cp.Minimize(quadratic_form(x, matrix)), [In(x, tree)])
    with pytest.warns(ConvexityWarning):
        problem.solve(method="erm", solver=watched, progress=False)
    np.testing.assert_allclose(sums, 13.0, rtol=1e-11)
