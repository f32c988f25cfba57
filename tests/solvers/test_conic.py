"""Programs that leave the library are solved as they were written."""

import cvxpy as cp
import numpy as np
import pytest

from wdro_model import Problem, UncertainParameter, WassersteinBall
from wdro_model.errors import InaccurateError
from wdro_model.sets import ConvexSet, check
from wdro_model.solvers import Conic, FrankWolfe
from wdro_model.uncertainty.costs import Norm

ZEROS = np.array([[1.2, 0.0, -0.7], [0.4, 1.1, 0.3], [0.0, -0.8, 0.9]])
"""A matrix with zeros: an unbounded variable times zero has no bounds in interval arithmetic."""


def products(integer, rng):
    """A loss z'Ax over a cube, and its robust value by enumeration of the cube's corners."""
    samples = rng.standard_normal((8, 3)) + 1
    x, z = cp.Variable(3, integer=integer), UncertainParameter(3, samples=samples)
    ball = WassersteinBall(0.1, Norm(1))
    problem = Problem(cp.Minimize(z @ (ZEROS @ x)), [x >= -2, x <= 2], ball)
    grid = np.arange(-2, 3)
    points = np.array(np.meshgrid(grid, grid, grid)).reshape(3, -1).T
    slopes = points @ ZEROS.T
    values = slopes @ samples.mean(axis=0) + 0.1 * np.abs(slopes).max(axis=1)
    return problem, values.min()


@pytest.mark.parametrize("name", ["HIGHS", "SCIPY"])
def test_linear_solvers_find_the_value_that_cones_find(name, rng):
    problem, best_integer = products(False, rng)
    problem.solve(solver=Conic("CLARABEL"))
    expected = problem.value
    problem.solve(solver=Conic(name))
    assert problem.value == pytest.approx(expected, rel=1e-6)
    assert problem.value <= best_integer + 1e-9
    assert problem.solution.solver == f"conic solver {name}"


def test_integer_programs_find_the_best_of_all_points(rng):
    problem, expected = products(True, rng)
    problem.solve()
    assert problem.value == pytest.approx(expected, rel=1e-9)
    assert expected < -0.1


def test_oracles_reach_every_vertex_of_scaled_rows(rng):
    weights = np.array([1.0, 2.0, 0.5])
    x = cp.Variable(3)
    constraint = cp.abs(cp.multiply(weights, ZEROS @ x)) <= 1
    oracle = ConvexSet([constraint], x)
    for direction in rng.standard_normal((10, 3)):
        # The image u = W A x is the cube: min c'x = -|(W A)^-T c|_1.
        expected = -np.abs(np.linalg.solve((weights[:, None] * ZEROS).T, direction)).sum()
        assert direction @ oracle.minimize(direction) == pytest.approx(expected, rel=1e-8)


def test_frank_wolfe_over_scaled_rows_is_the_conic_answer(rng):
    weights = np.array([1.0, 2.0, 0.5])
    z = UncertainParameter(3, samples=rng.standard_normal((20, 3)) + 0.5)
    x = cp.Variable(3)
    constraints = [cp.abs(cp.multiply(weights, ZEROS @ x)) <= 1]
    problem = Problem(cp.Minimize(cp.logistic(-z @ x)), constraints)
    problem.solve(method="erm", solver=Conic("CLARABEL"))
    expected = problem.value
    problem.solve(method="erm", solver=FrankWolfe())
    assert problem.value == pytest.approx(expected, rel=1e-4)


def test_integer_sets_with_scaled_rows_are_checked_and_rounded_rightly():
    x = cp.Variable(3, integer=True)
    oracle = ConvexSet([cp.abs(2 * (ZEROS @ x)) <= 5, x >= -3, x <= 3], x)
    check(oracle)
    assert np.array_equal(oracle.round([1.0, 1.0, 1.0]), [1.0, 1.0, 1.0])


def test_quadratic_objectives_go_to_the_quadratic_form_of_a_solver():
    x = cp.Variable(3)
    constraints = [cp.abs(2 * (ZEROS @ x)) <= 1]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), constraints)
    expected = problem.solve(solver=cp.CLARABEL)
    Conic("HIGHS").run(problem)
    assert problem.value == pytest.approx(expected, rel=1e-5)
    assert expected > 0.1


def test_perspectives_are_solved_too():
    x, s = cp.Variable(), cp.Variable(nonneg=True)
    objective = cp.Minimize(cp.perspective(cp.abs(x - 1), s))
    problem = cp.Problem(objective, [x >= 4, s >= 1, s <= 3])
    Conic("HIGHS").run(problem)
    assert problem.value == pytest.approx(1.0, abs=1e-8)


def answering(monkeypatch, change):
    """Let the solver's primal answers be changed, whatever its status."""
    unpack = cp.Problem.unpack_results

    def changed(problem, *given):
        unpack(problem, *given)
        for variable in problem.variables():
            variable.save_value(change(variable.value))

    monkeypatch.setattr(cp.Problem, "unpack_results", changed)


@pytest.mark.parametrize(
    ("constraints", "named"),
    [
        (lambda x: [cp.sum(x) == 1, x >= 0], "sum"),
        (lambda x: [cp.norm(x) <= 1], "norm"),
        (lambda x: [1e6 * cp.sum(x) == 1e6, x >= -1, x <= 1], "sum"),
    ],
)
def test_points_that_break_a_constraint_are_not_optimal(constraints, named, monkeypatch):
    x = cp.Variable(3, name="x")
    problem = cp.Problem(cp.Minimize(x @ [1.0, 2.0, 3.0]), constraints(x))
    Conic().run(problem)
    answering(monkeypatch, lambda value: 1.01 * value - 0.01)
    with pytest.raises(InaccurateError, match=rf"(?si)CLARABEL called.*{named}.*units"):
        Conic().run(problem)


def test_points_that_break_an_attribute_are_not_optimal(monkeypatch):
    x = cp.Variable(3, nonneg=True, name="x")
    problem = cp.Problem(cp.Minimize(cp.sum(x)), [])
    answering(monkeypatch, lambda value: value - 0.01)
    with pytest.raises(InaccurateError, match=r"attribute of the variable 'x' by 1\.0e-02"):
        Conic("HIGHS").run(problem)


def test_rounding_of_large_terms_is_no_violation(monkeypatch):
    x = cp.Variable(2)
    constraints = [1e6 * x[0] - 1e6 * x[1] == 0, x[0] == 1]
    problem = cp.Problem(cp.Minimize(cp.sum(x)), constraints)
    answering(monkeypatch, lambda value: value + np.array([0.0, 1e-8]))
    Conic().run(problem)
    assert problem.constraints[0].violation() > 1e-3


@pytest.mark.parametrize(
    ("status", "open_question"),
    [
        ("infeasible_inaccurate", "any point meets all the constraints"),
        ("unbounded_inaccurate", "the objective is bounded"),
        ("infeasible_or_unbounded", "empty or the objective unbounded"),
    ],
)
def test_what_a_solver_leaves_open_is_not_decided_for_it(status, open_question, monkeypatch):
    x = cp.Variable()
    problem = cp.Problem(cp.Minimize(x), [x >= 0])
    monkeypatch.setattr(cp.Problem, "solve", lambda *_, **__: None)
    monkeypatch.setattr(cp.Problem, "status", status)
    with pytest.raises(cp.error.SolverError, match=rf"could not tell.*{open_question}.*order 1"):
        Conic().run(problem)
