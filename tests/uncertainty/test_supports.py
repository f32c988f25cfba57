"""Supports: membership, bounds, and the refusal of those that do not fit or are empty."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from wdro_model.uncertainty.supports import Box, Everywhere, Nonnegative, Polyhedron, Where

entries = st.floats(-10, 10)


@given(hnp.arrays(float, (6, 2, 3), elements=entries), hnp.arrays(float, (2, 3), elements=entries))
def test_a_box_contains_what_its_bounds_say(points, lower):
    upper = lower + 5.0
    expected = [bool(np.all((z >= lower - 1e-7) & (z <= upper + 1e-7))) for z in points]
    strict = [bool(np.all((z >= lower) & (z <= upper))) for z in points]
    inside = Box(lower, upper).contains(points).tolist()
    assert all(not s or i for s, i in zip(strict, inside))
    assert all(not i or e for i, e in zip(inside, expected))


def test_a_polyhedron_equals_the_box_it_writes_out():
    points = np.random.default_rng(0).uniform(-1, 2, (200, 2, 2))
    rows = np.vstack([np.eye(4), -np.eye(4)])
    limits = np.concatenate([np.ones(4), np.zeros(4)])
    expected = Box(0, 1).contains(points)
    assert 0 < expected.sum() < 200
    for matrix in (rows, sparse.csr_matrix(rows)):
        polyhedron = Polyhedron(matrix, limits)
        polyhedron.validate((2, 2))
        np.testing.assert_array_equal(polyhedron.contains(points), expected)


def test_the_polyhedron_reads_a_matrix_row_by_row():
    only_first_row = Polyhedron([[1, 1, 0, 0]], [0])
    points = np.array([[[-1, 0], [9, 9]], [[1, 1], [-9, -9]]], dtype=float)
    assert only_first_row.contains(points).tolist() == [True, False]


def test_scalars_are_points_of_shape_nothing():
    points = np.array([-1.0, 0.0, 3.0])
    assert Nonnegative().contains(points).tolist() == [False, True, True]
    assert Box(0, 1).contains(points).tolist() == [False, True, False]
    assert Box([0], [1]).bounds(())[1].shape == ()
    assert Polyhedron([[1]], [0]).contains(points).tolist() == [True, True, False]
    assert Everywhere().contains(points).all()


def test_bounds_have_the_shape_of_the_parameter_and_cannot_be_written():
    lower, upper = Box([0, -np.inf, 1], 2).bounds((2, 3))
    assert lower.tolist() == [[0, -np.inf, 1]] * 2
    assert upper.tolist() == [[2, 2, 2]] * 2
    assert not lower.flags.writeable
    for support, shape in ((Polyhedron([[1.0, 1.0]], [0.0]), (2,)), (Where(lambda z: z > 0), ())):
        assert support.bounds(shape) is None
    assert not Polyhedron([[1.0]], [0.0]).bounds(())[1].flags.writeable


def test_a_box_keeps_its_own_copy_of_the_bounds():
    lower = np.zeros(2)
    box = Box(lower, 1)
    lower[0] = 5.0
    assert box.bounds((2,))[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(np.nan, 1), "lower bound of a Box must be numbers, got nan; -inf"),
        (
            lambda: Box(np.inf, np.inf),
            "must be another number than inf, got inf; -inf",
        ),
        (
            lambda: Box(0, -np.inf),
            "must be another number than -inf, got -inf; inf",
        ),
        (lambda: Box("a", 1), "lower bound of a Box must be an array of numbers, got 'a'"),
        (lambda: Box([0, 2], 1).validate((2,)), r"lower bound 2.0 exceeds .* 1.0 at entry \[1\]"),
        (lambda: Box(0, [1, 2, 3]).validate((2,)), r"upper bound of shape \(3,\) does not fit"),
        (lambda: Polyhedron([1, 2], [3]), r"needs A of shape \(k, d\).*got shapes \(2,\) and"),
        (lambda: Polyhedron([[1, 2]], [3, 4]), r"got shapes \(1, 2\) and \(2,\)"),
        (
            lambda: Polyhedron([[1]], [np.inf]),
            "b of a Polyhedron must be finite, .*; drop the rows without a bound",
        ),
        (lambda: Polyhedron([[1, 2]], [3]).validate((3,)), "2 columns in A but .* has 3 entries"),
        (lambda: Polyhedron([[1], [-1]], [0, -1]).validate(()), "the polyhedron is empty.*2 ineq"),
        (lambda: Where(3), "needs a callable"),
        (lambda: Where(lambda z: z > 0).contains(np.ones((4, 2))), r"4 booleans.*shape \(4, 2\)"),
        (lambda: Where(lambda z: z[:, 0]).contains(np.ones((4, 2))), "4 booleans.*float64"),
    ],
)
def test_bad_supports_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_predicate_cannot_change_the_points_it_judges():
    def greedy(points):
        points[:] = 0.0
        return np.ones(len(points), dtype=bool)

    with pytest.raises(ValueError, match="read-only"):
        Where(greedy).contains(np.ones((2, 2)))


def test_printed_forms_can_be_read():
    assert repr(Box(0, 1)) == "Box(lower=0.0, upper=1.0)"
    assert repr(Box([0, 1], np.inf)) == "Box(lower=[0.0, 1.0], upper=inf)"
    assert repr(Box(np.zeros(9), 1)) == "Box(lower=array of shape (9,), upper=1.0)"
    assert repr(Nonnegative()) == "Nonnegative()"
    assert repr(Polyhedron(np.eye(2), [1, 1])) == "Polyhedron(2 inequalities on 2 entries)"


@pytest.mark.parametrize(
    "support", [Everywhere(), Nonnegative(), Box([0, 1], 2), Polyhedron([[1, 1]], [1])]
)
def test_supports_can_be_copied_and_pickled(support):
    points = np.random.default_rng(0).normal(size=(50, 2))
    for other in (copy.deepcopy(support), pickle.loads(pickle.dumps(support))):
        np.testing.assert_array_equal(other.contains(points), support.contains(points))


@pytest.mark.parametrize(
    "support",
    [
        Everywhere(),
        Nonnegative(),
        Box(-1, 2),
        Polyhedron([[1, 1]], [1]),
        Where(lambda z: z.sum(axis=1) <= 1),
    ],
)
def test_a_restriction_is_the_intersection(support):
    points = np.random.default_rng(1).normal(size=(300, 2))
    lower, upper = np.array([-0.5, -np.inf]), np.array([1.0, 0.7])
    both = support.contains(points) & np.all((points >= lower) & (points <= upper), axis=1)
    np.testing.assert_array_equal(support.restrict(lower, upper).contains(points), both)
