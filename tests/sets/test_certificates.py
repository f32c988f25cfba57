"""Answers of solvers are held against their constraints and a dual bound."""

from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

from wdro_model.errors import InaccurateError
from wdro_model.sets import ConvexSet
from wdro_model.sets.persistent import LinearCertificate


class Lying:
    """A solver of which some answers are replaced; all else is asked of the real one."""

    def __init__(self, real, **answers):
        self._real, self._answers = real, answers

    def __getattr__(self, name):
        if name in self._answers:
            return lambda *arguments: self._answers[name](self._real, *arguments)
        return getattr(self._real, name)


def lying_highs(feasible, column, duals=lambda rows: rows):
    """The set's HiGHS, with other column values and row duals."""
    feasible.minimize(np.ones(feasible.dimension))
    feasible.reset()

    def answer(real):
        told = real.getSolution()
        return SimpleNamespace(
            col_value=column(np.array(told.col_value)), row_dual=duals(np.array(told.row_dual))
        )

    solver = feasible._solver
    solver._highs = Lying(solver._highs, getSolution=answer)
    return feasible


def simplex(**attributes):
    x = cp.Variable(3, name="x", **attributes)
    return ConvexSet([cp.sum(x) == 1, x[0] + 2 * x[1] <= 1.5, x >= 0, x <= 1], x)


@pytest.mark.parametrize("attributes", [{}, {"integer": True}])
@pytest.mark.parametrize("move", [0.01, -1.0, 1e4])
def test_a_point_outside_the_set_is_no_answer(attributes, move):
    shift = np.rint(move) or 1.0 if attributes else move
    feasible = lying_highs(simplex(**attributes), lambda y: y + shift)
    with pytest.raises(InaccurateError, match=r"HiGHS.*violates a constraint by.*rescale"):
        feasible.minimize([1.0, 2.0, -1.0])


@pytest.mark.parametrize("attributes", [{}, {"integer": True}])
def test_a_point_of_the_set_that_is_not_the_best_is_no_answer(attributes):
    feasible = lying_highs(simplex(**attributes), lambda y: np.array([1.0, 0.0, 0.0]))
    with pytest.raises(InaccurateError, match=r"HiGHS.*cost 1 .*dual bound is -1;.*rescale"):
        feasible.minimize([1.0, 0.5, -1.0])


def test_a_point_between_the_integers_is_no_answer():
    feasible = lying_highs(simplex(integer=True), lambda y: np.full(3, 1 / 3))
    with pytest.raises(InaccurateError, match=r"away from the integers.*rescale"):
        feasible.minimize([1.0, 0.5, -1.0])


@pytest.mark.parametrize("wrong", ["x", "obj_val_dual"])
def test_cones_are_checked_too(wrong, monkeypatch):
    x = cp.Variable(3)
    feasible = ConvexSet([cp.norm(x) <= 1, cp.sum(x) == 0.5], x)
    feasible.minimize([1.0, 0.0, -1.0])
    solver, real_new = feasible._solver, feasible._solver._new

    def answer(real):
        told = real.solve()
        parts = {name: getattr(told, name) for name in ("status", "x", "s", "obj_val_dual")}
        parts[wrong] = np.array(parts[wrong]) - 0.01
        return SimpleNamespace(**parts)

    solver._solver = Lying(solver._solver, solve=answer)
    assert feasible.contains(feasible.minimize([1.0, 0.0, -1.0]))  # a fresh solver is asked
    monkeypatch.setattr(solver, "_new", lambda *given: Lying(real_new(*given), solve=answer))
    with pytest.raises(InaccurateError, match=r"Clarabel.*rescale"):
        feasible.minimize([1.0, 0.0, -1.0])


def test_true_answers_pass_at_every_scale(rng):
    for _ in range(40):
        n, rows = rng.integers(2, 6), rng.integers(1, 5)
        units = 10.0 ** rng.uniform(-5, 5, n)
        matrix = rng.standard_normal((rows, n)) * 10.0 ** rng.uniform(-3, 3, (rows, 1)) / units
        inside = rng.uniform(0, 1, n) * units
        x = cp.Variable(n)
        bounds = [x >= 0, x <= units]
        feasible = ConvexSet([matrix @ x <= matrix @ inside, *bounds], x)
        for direction in rng.standard_normal((3, n)) / units:
            found = feasible.minimize(direction)
            scaled = linprog(direction * units, matrix * units, matrix @ inside, bounds=(0, 1))
            assert direction @ found <= scaled.fun + 1e-4


@pytest.mark.parametrize("sparse", [False, True])
def test_half_lines_are_checked_by_the_slopes_along_them(sparse):
    matrix, infinity = np.array([[1.0, 1.0]]), np.full(2, np.inf)
    rows = sp.csr_array(matrix) if sparse else matrix
    certificate = LinearCertificate(rows, np.array([1.0]), 1, np.zeros(2), infinity)
    certificate.check_duals(np.array([1.0, 2.0]), np.array([1.0, 0.0]), np.array([1.0]))
    with pytest.raises(InaccurateError, match="dual bound"):
        certificate.check_duals(np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.array([1.0]))
    with pytest.raises(InaccurateError, match="dual bound"):
        certificate.check_duals(np.array([1.0, 2.0]), np.array([1.0, 0.0]), np.array([2.5]))
