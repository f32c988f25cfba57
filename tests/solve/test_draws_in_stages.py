"""Losses of three forms and more: draws grow until the gap and the error on others are small."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import wdro_model as wdro


def three_forms(data, constraints, smooth=True):
    x = cp.Variable(6)
    xi = wdro.UncertainParameter(6, samples=data)
    forms = [xi[:2] @ x[:2], xi[2:4] @ x[2:4], xi[4:] @ x[4:]]
    loss = cp.log_sum_exp(cp.hstack([*forms, 0.0])) if smooth else cp.maximum(*forms, 0.0)
    ball = wdro.WassersteinBall(0.1)
    return wdro.Problem(cp.Minimize(loss + cp.sum_squares(x - 1)), constraints(x), ball)


def by_grid(data, x, epsilon, sigma, radius=0.1, points=24):
    """The smoothed risk at x by a product of Gauss-Hermite rules in the three forms."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    t = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.prod(np.meshgrid(weights, weights, weights, indexing="ij"), axis=0).ravel()
    mass = mass / mass.sum()
    sizes = np.linalg.norm(x.reshape(3, 2), axis=1)

    def risk(dual):
        v = 1 / (2 * dual / epsilon + 1 / sigma**2)
        still = 3 * np.log(v / sigma**2)
        total = 0.0
        for row in data:
            u = (row * x).reshape(3, 2).sum(axis=1) + np.sqrt(v) * sizes * t
            values = np.logaddexp(0.0, np.logaddexp.reduce(u, axis=1)) / epsilon
            top = values.max()
            total += top + np.log(mass @ np.exp(values - top)) + still
        return dual * radius + epsilon * total / len(data) + np.sum((x - 1) ** 2)

    return minimize_scalar(risk, bounds=(1e-3, 50), method="bounded", options={"xatol": 1e-10}).fun


def test_values_on_other_draws_are_within_gap_and_error(rng):
    problem = three_forms(rng.normal(size=(8, 6)), lambda x: [x >= -2, x <= 2], smooth=True)
    found = []
    for seed in range(3):
        problem.solve(method="smoothed", seed=seed)
        found.append(problem.solution)
    for one in found:
        for other in found:
            errors = one.diagnostics.standard_error + other.diagnostics.standard_error
            assert one.value - one.gap - 4 * errors <= other.value


@pytest.mark.parametrize("smooth", [True, False])
def test_three_forms_end_optimal(rng, smooth):
    data = rng.normal(size=(8, 6))
    problem = three_forms(data, lambda x: [x >= -2, x <= 2], smooth)
    problem.solve(method="smoothed")
    assert problem.status == "optimal"
    solution = problem.solution
    assert solution.relative_gap <= 1e-4
    assert solution.diagnostics.standard_error <= 1e-4 * abs(solution.value)


def test_the_value_at_one_point_is_that_of_a_grid(rng):
    data = rng.normal(size=(5, 6))
    problem = three_forms(data, lambda x: [x == np.full(6, 0.7)])
    value = problem.solve(method="smoothed", epsilon=0.02, sigma=0.12)
    assert problem.status == "optimal"
    wanted = by_grid(data, np.full(6, 0.7), 0.02, 0.12)
    error = problem.solution.diagnostics.standard_error
    assert value == pytest.approx(wanted, abs=3 * error)
    assert error <= 1e-4 * value
