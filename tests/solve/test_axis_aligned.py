"""A polyhedron whose inequalities see one entry each is the box that it is."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import wdro_model as wdro


@pytest.mark.parametrize("wrap", [np.array, sp.csr_array])
def test_bounds_are_the_tightest_of_the_rows(wrap):
    rows = np.array([[2.0, 0, 0], [0, -1, 0], [4, 0, 0], [0, -2, 0], [0, 0, 3]])
    support = wdro.supports.Polyhedron(wrap(rows), [2.0, 1.0, 2.0, 4.0, 3.0])
    lower, upper = support.bounds((3,))
    np.testing.assert_array_equal(lower, [-np.inf, -1.0, -np.inf])
    np.testing.assert_array_equal(upper, [0.5, np.inf, 1.0])
    points = np.random.default_rng(0).normal(size=(200, 3))
    box = wdro.supports.Box(lower, upper)
    np.testing.assert_array_equal(support.contains(points), box.contains(points))


@pytest.mark.parametrize("rows", [[[1.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]])
def test_other_polyhedra_have_no_box(rows):
    assert wdro.supports.Polyhedron(rows, np.ones(len(rows))).bounds((2,)) is None


def smoothed_value(support, shift, limit=None):
    x = cp.Variable()
    z = wdro.UncertainParameter(samples=np.array([0.6]), support=support)
    problem = wdro.Problem(cp.Minimize(cp.pos(z - shift) + x), [x == 0], wdro.WassersteinBall(0.1))
    value = problem.solve(method="smoothed", epsilon=0.3, time_limit=limit)
    return value, problem.status


@pytest.mark.parametrize("shift", [0.3, 0.9, 10.0])
def test_an_interval_written_as_inequalities(shift):
    """With a shift of 10 the loss is zero: a gap relative to that would never be small."""
    interval = wdro.supports.Polyhedron([[1.0], [-1.0]], [1.0, 0.0])
    value, status = smoothed_value(interval, shift)
    assert status == "optimal"
    assert value == pytest.approx(smoothed_value(wdro.supports.Box(0, 1), shift)[0], abs=1e-9)


@pytest.mark.filterwarnings("ignore::wdro_model.SamplingWarning")
def test_a_sampled_loss_that_is_next_to_nothing_ends():
    """Its draws cannot be told from zero, relative to a value of zero."""
    x = cp.Variable(2)
    triangle = wdro.supports.Polyhedron(np.vstack([-np.eye(2), np.ones((1, 2))]), [0.0, 0.0, 2.0])
    z = wdro.UncertainParameter(2, samples=np.array([[0.5, 0.5]]), support=triangle)
    loss = cp.pos(cp.sum(z) - 1.9999) + cp.sum(x)
    problem = wdro.Problem(cp.Minimize(loss), [x == 0], wdro.WassersteinBall(0.01))
    assert problem.solve(method="smoothed", epsilon=0.3) == pytest.approx(0.0, abs=1e-4)
