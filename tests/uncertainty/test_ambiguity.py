"""WassersteinBall: the radius in both conventions, and the refusal of those that are none."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdro_model.uncertainty import WassersteinBall
from wdro_model.uncertainty.costs import Callable, Mahalanobis, Norm, SquaredEuclidean


@pytest.mark.parametrize(
    "radius", [0, 1, 0.5, np.float32(0.5), np.int64(2), np.array(0.25), Fraction(1, 4)]
)
def test_every_kind_of_number_is_a_radius(radius):
    ball = WassersteinBall(radius)
    assert type(ball.radius) is float
    assert ball.radius == float(radius)
    assert isinstance(ball.cost, SquaredEuclidean)


@pytest.mark.parametrize(
    "radius",
    [-1, -1e-300, np.nan, np.inf, "1", None, True, np.True_, 1j, np.array([1.0]), np.array(-1.0)],
)
def test_what_is_not_a_radius_is_refused(radius):
    message = r"radius of a Wasserstein ball must be a nonnegative finite number, got"
    for make in (WassersteinBall, lambda r: WassersteinBall.order(2, r)):
        with pytest.raises(ValueError, match=message):
            make(radius)


def test_a_negative_radius_is_told_what_zero_means():
    with pytest.raises(ValueError, match="got -1; radius 0 is the observed distribution itself"):
        WassersteinBall(-1)


@given(st.floats(0, 1e6), st.sampled_from([1, 2, 1.0, 2.0]))
def test_the_distance_of_an_order_is_the_radius_given(radius, p):
    ball = WassersteinBall.order(p, radius)
    assert ball.radius == pytest.approx(radius**p)
    assert ball.distance == pytest.approx(radius)
    assert ball.cost.order == p


def test_orders_go_with_their_costs():
    assert isinstance(WassersteinBall.order(1, 1.0).cost, Norm)
    assert isinstance(WassersteinBall.order(2, 1.0).cost, SquaredEuclidean)
    assert WassersteinBall.order(2, 3.0, Mahalanobis(np.eye(2))).radius == 9.0
    cubic = Callable(lambda a, b: np.abs(a - b).sum(axis=1) ** 3, order=3)
    assert WassersteinBall.order(3, 2.0, cubic).radius == 8.0
    assert WassersteinBall.order(3, 2.0, cubic).distance == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1.0, SquaredEuclidean()), "SquaredEuclidean is a cost of order 2.0, not 1"),
        ((2, 1.0, Norm()), "Norm is a cost of order 1.0, not 2: order 1 goes with Norm"),
        ((2, 1.0, lambda a, b: 0), "Callable is a cost of order None, not 2"),
        ((3, 1.0), "no default cost of order 3: give"),
        ((0.5, 1.0), "order p of a Wasserstein ball must be a finite number >= 1, got 0.5"),
        (("2", 1.0), "got '2'"),
        ((np.nan, 1.0), "got nan"),
        ((True, 1.0), "got True"),
        ((2, 1e200), r"radius 1e\+200 to the power 2 is not a finite number"),
    ],
)
def test_bad_orders_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        WassersteinBall.order(*arguments)


def test_a_bad_cost_is_refused():
    with pytest.raises(ValueError, match=r"unknown cost .euclidean.. Known: .*'norm', 'squared'"):
        WassersteinBall(1.0, "euclidean")


def test_both_numbers_are_printed():
    text = WassersteinBall(0.04).describe()
    assert "W_c <= 0.04" in text
    assert "2-Wasserstein distance <= 0.2" in text
    unknown = WassersteinBall(1.0, lambda a, b: np.zeros(len(a)))
    assert unknown.distance is None
    assert "distance" not in unknown.describe()


def test_balls_are_values():
    ball = WassersteinBall(0.5, Norm(1))
    for other in (copy.deepcopy(ball), pickle.loads(pickle.dumps(ball))):
        assert other.radius == 0.5
        assert other.cost.p == 1
    with pytest.raises(AttributeError):
        ball.radius = 1.0
