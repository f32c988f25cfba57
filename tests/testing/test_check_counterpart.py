"""Counterparts that people add: `check_counterpart` names what is untrue of them."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.counterparts import Counterpart, Extremal, Point, Program
from wdro_model.objectives.exact.counterpart import COUNTERPARTS
from wdro_model.testing import check_counterpart

DATA = np.random.default_rng(0).normal(size=(20, 3))


class Shifted(Counterpart):
    """An affine loss with the root of the radius times the length of its slope, plus something."""

    formula = "mean + sqrt(radius) |B|"
    extra = 0.0

    def refusal(self, model):
        return None if model.affine_in_data else "the loss is not affine"

    def program(self, model):
        (x,) = model.feasible.layout.variables
        length = np.sqrt(model.radius) * cp.norm(x)
        return Program.if_convex(model.rows.mean(axis=0) @ x + length + self.extra)


def portfolio():
    x = cp.Variable(3, nonneg=True, name="x")
    z = wdro.UncertainParameter(3, samples=DATA, name="z")
    return wdro.Problem(cp.Minimize(z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.04))


def check(**body):
    check_counterpart(type("Mine", (Shifted,), body), portfolio())


def worst_case(weight=1 / 20, share=1.0, move=0.0):
    def extremal(self, model, x):
        size = len(model.rows)
        rows = model.rows + move + share * np.sqrt(model.radius) * x / np.linalg.norm(x)
        return Extremal(rows, np.full(size, weight), np.arange(size), 1.0)

    return extremal


class Smooth:
    """mean z'x + length |x|, with something wrong."""

    convex = True

    def __init__(self, model, wrong=None):
        self.model, self.wrong = model, wrong

    def evaluate(self, x, dual=None):
        mean, size = self.model.rows.mean(axis=0), np.linalg.norm(x)
        length = np.sqrt(self.model.radius)
        value, gradient = mean @ x + length * size, mean + length * x / size
        match self.wrong:
            case "sign":
                gradient = -gradient
            case "half":
                gradient = gradient / 2
            case "part":
                gradient = mean
            case "more":
                value += 0.5
            case "column":
                gradient = gradient[:, None]
            case "pair":
                return value, gradient
        return Point(value, gradient)


def smooth(make):
    return {"has_objective": lambda self, model: True, "objective": lambda self, model: make(model)}


def variable(model):
    return model.feasible.layout.variables[0]


def test_right_counterparts_pass(monkeypatch):
    check()
    check(extremal=worst_case())
    check(**smooth(Smooth))
    check(**smooth(Smooth), program=lambda self, model: None)
    monkeypatch.setattr(COUNTERPARTS, "_things", dict(COUNTERPARTS._things))
    wdro.register_counterpart("mine", Shifted)
    check_counterpart("mine", portfolio())


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"extra": -5.0}, ValueError, "gives the worst-case risk"),
        ({"extra": -0.02}, ValueError, "some distribution of the ball has the expected loss"),
        ({"value": lambda self, model, x: -77.0}, ValueError, "gives the worst-case risk -77, but"),
        (
            {"value": lambda self, model, x: np.nan},
            ValueError,
            "gives the worst-case risk nan, but",
        ),
        ({"value": lambda self, model, x: 7.0}, ValueError, "contradicts itself: .* but 7 by its"),
        ({"value": lambda self, model, x: None}, ValueError, "as None; its .* return one number"),
        (
            {"value": lambda self, model, x: np.ones(3)},
            ValueError,
            r"an array of shape \(3,\); its",
        ),
        ({"refusal": lambda self, model: "shy"}, ValueError, "does not apply to the problem: shy"),
        ({"refusal": lambda self, model: False}, TypeError, "Mine must return None where it appl"),
        ({"program": lambda self, model: cp.Constant(1)}, TypeError, "Mine must return Program"),
        ({"program": lambda self, m: Program(3.0)}, ValueError, r"one CVXPY number, got 3\.0"),
        ({"extremal": worst_case(weight=1.0)}, ValueError, "no distribution of the ball"),
        ({"extremal": worst_case(move=10.0)}, ValueError, "no distribution of the ball"),
        ({"extremal": worst_case(share=0.9)}, ValueError, "has the expected loss"),
        ({"extremal": lambda self, model, x: model.rows}, TypeError, "must return Extremal"),
        (smooth(lambda model: Smooth(model, "sign")), ValueError, "has a wrong gradient"),
        (smooth(lambda model: Smooth(model, "half")), ValueError, "has a wrong gradient"),
        (smooth(lambda model: Smooth(model, "part")), ValueError, "has a wrong gradient"),
        (smooth(lambda model: Smooth(model, "more")), ValueError, "contradicts itself"),
        (smooth(lambda model: Smooth(model, "column")), ValueError, r"shapes \(\) and \(3, 1\)"),
        (smooth(lambda model: Smooth(model, "pair")), TypeError, "must return Point"),
        (smooth(lambda model: None), TypeError, "lacks evaluate and convex"),
    ],
)
def test_what_is_untrue_is_named(body, kind, message):
    with pytest.raises(kind, match=message):
        check(**body)


class Priced(wdro.costs.BoundCost):
    """A norm to some power that knows its prices alone."""

    def __init__(self, dimension, norm, power):
        self.dimension, self.norm, self.power = dimension, norm, power

    order = property(lambda self: float(self.power))

    def describe(self):
        return f"|delta|_{self.norm}^{self.power}"

    def of_displacements(self, delta):
        return np.linalg.norm(delta, ord=self.norm, axis=1) ** self.power

    def dual_norm(self, slope):
        return cp.norm(slope, {1: "inf", 2: 2, np.inf: 1}[self.norm])


class Power(wdro.costs.GroundCost):
    bound = Priced

    def __init__(self, norm, power):
        self.norm, self.power, self.order = norm, power, float(power)

    def bind(self, joint):
        return Priced(joint.dimension, self.norm, self.power)

    def describe(self):
        return "a norm to some power"


class ByDualNorm(Shifted):
    formula, share = "mean + length |B|", 1.0

    def program(self, model):
        x = variable(model)
        length = self.share * model.cost.distance(model.radius)
        return Program.if_convex(model.rows.mean(axis=0) @ x + length * model.cost.dual_norm(x))


class FourthPower(Shifted):
    """(mean r^4)^(1/4) + length |x|, to the fourth: a residual to the power of the cost."""

    formula, share = "((mean r^4)^(1/4) + length |x|)^4", 1.0

    def refusal(self, model):
        return None

    def program(self, model):
        x = variable(model)
        mean = cp.pnorm(model.rows @ x - 1, 4) / len(model.rows) ** 0.25
        length = self.share * model.cost.distance(model.radius)
        return Program.if_convex(cp.power(mean + length * cp.norm(x), 4))


def refuse_two_percent_less(right, problem):
    check_counterpart(right, problem)
    with pytest.raises(ValueError, match="the counterpart Low gives the worst-case risk"):
        check_counterpart(type("Low", (right,), {"share": 0.98}), problem)


@pytest.mark.parametrize("norm", [1, 2, np.inf])
@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("support", [None, wdro.supports.Box(-50, 50)])
def test_a_low_risk_is_found_with_a_cost_that_only_has_prices(norm, power, support):
    x = cp.Variable(3, nonneg=True, name="x")
    z = wdro.UncertainParameter(3, samples=DATA, name="z", support=support)
    ball = wdro.WassersteinBall(0.04, Power(norm, power))
    refuse_two_percent_less(ByDualNorm, wdro.Problem(cp.Minimize(z @ x), [cp.sum(x) == 1], ball))


def test_a_low_risk_of_a_curved_loss_is_found_with_a_cost_that_only_has_prices():
    x = cp.Variable(3, name="x")
    z = wdro.UncertainParameter(3, samples=DATA, name="z")
    ball = wdro.WassersteinBall(0.01, Power(2, 4))
    loss = cp.Minimize(cp.power(z @ x - 1, 4))
    refuse_two_percent_less(FourthPower, wdro.Problem(loss, [cp.sum(x) == 2], ball))
