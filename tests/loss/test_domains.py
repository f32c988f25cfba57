"""Losses with a domain: refused where the support reaches beyond it, right where it does not.

What should happen is worked out here without the library: the least value that the argument of the
atom takes over the support by a linear program, the atom at that value by NumPy, and the worst case
of a decision by a grid over a box.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

import wdro_model as wdro


@dataclass(frozen=True)
class Case:
    """An atom of an argument v that must be nonnegative, written for CVXPY and for NumPy."""

    write: Callable[[Any], Any]
    value: Callable[[Any], Any]
    start: float = 0.0
    """Where the domain starts."""


CASES = {
    "sqrt": Case(cp.sqrt, np.sqrt),
    "log": Case(cp.log, np.log),
    "log1p": Case(cp.log1p, np.log1p, -1.0),
    "inv_pos": Case(cp.inv_pos, lambda v: 1 / v),
    "power -2": Case(lambda v: cp.power(v, -2), lambda v: v**-2.0),
    "power 1.5": Case(lambda v: cp.power(v, 1.5), lambda v: v**1.5),
    "entr": Case(cp.entr, lambda v: np.where(v > 0, -v * np.log(np.where(v > 0, v, 1)), 0 * v)),
    "quotient": Case(lambda v: 1 / v, lambda v: 1 / v),
    "quad_over_lin": Case(lambda v: cp.quad_over_lin(np.array([1.0, 2.0]), v), lambda v: 5 / v),
    "kl_div": Case(lambda v: cp.kl_div(1.0, v), lambda v: -np.log(v) - 1 + v),
    "rel_entr": Case(lambda v: cp.rel_entr(2.0, v), lambda v: 2 * np.log(2 / v)),
    "geo_mean": Case(lambda v: cp.geo_mean(cp.hstack([v, 4.0])), lambda v: 2 * np.sqrt(v)),
}
COEFFICIENTS = {"entry": np.array([1.0, 0.0]), "difference": np.array([1.0, -0.5])}
"""The argument is a product of these with the data, plus a constant."""
SAMPLES = np.random.default_rng(3).uniform(1.0, 2.0, size=(4, 2))
SUPPORTS: dict[str, Any] = {
    "everywhere": None,
    "nonnegative": wdro.supports.Nonnegative(),
    "box inside": wdro.supports.Box(0.9, 2.5),
    "box across": wdro.supports.Box([-1.5, 0.5], 2.5),
    "half-space": wdro.supports.Polyhedron([[-1.0, 0.5]], [-0.25 / 2]),
    "triangle": wdro.supports.Polyhedron([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]], [-0.5, -0.5, 5.0]),
}


def least_argument(support: Any, along: np.ndarray) -> float:
    """The least value of along @ z over a support."""
    if support is None:
        return -np.inf
    box = support.bounds((2,))
    if box is not None:
        sides, rows = list(zip(*box)), {}
    else:
        sides, rows = [(None, None)] * 2, {"A_ub": support.A, "b_ub": support.b}
    found = linprog(along, bounds=sides, **rows)
    return -np.inf if found.status == 3 else round(float(found.fun), 12)


def should_refuse(case: Case, sign: float, least: float) -> bool:
    """Does the support leave the domain, or is the loss infinite at an edge that it reaches?"""
    if least < case.start:
        return True
    with np.errstate(all="ignore"):
        return least == case.start and sign * float(case.value(np.float64(least))) == np.inf


def worst_case(case: Case, along: np.ndarray, sign: float, radius: float, power: int) -> float:
    """sup E sign * atom over the ball, on the box inside: by a grid."""
    side = np.linspace(0.9, 2.5, 97)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    losses = sign * case.value(grid @ along)
    costs = (np.abs(grid[None] - SAMPLES[:, None]) ** power).sum(axis=2)
    if radius == 0:
        return float(np.mean(sign * case.value(SAMPLES @ along)))

    def dual(multiplier: float) -> float:
        return multiplier * radius + float((losses - multiplier * costs).max(axis=1).mean())

    low, high = 0.0, 1e4
    for _ in range(120):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if dual(a) < dual(b) else (a, high)
    return dual((low + high) / 2)


def models() -> list[Any]:
    """Every atom with every support, its sign, argument and cost in turn."""
    found = []
    for name in CASES:
        for support in SUPPORTS:
            for sign in (1.0, -1.0):
                k = len(found) + len(found) // 12
                argument = list(COEFFICIENTS)[k % 2]
                found.append((name, support, sign, argument, 1 + k // 2 % 2))
    return found


@pytest.mark.parametrize(("name", "where", "sign", "argument", "power"), models())
def test_refused_exactly_where_the_domain_is_left(
    name: str, where: str, sign: float, argument: str, power: int
) -> None:
    case, support, along = CASES[name], SUPPORTS[where], COEFFICIENTS[argument]
    x = cp.Variable(2, nonneg=True)
    z = wdro.UncertainParameter(2, "z", samples=SAMPLES, support=support)
    atom = case.write(along @ z)
    cost = wdro.costs.Norm(1) if power == 1 else wdro.costs.SquaredEuclidean()
    problem = wdro.Problem(
        cp.Minimize(sign * atom * x[0] + 3 * x[1]),
        [x[0] == 1],
        wdro.WassersteinBall(0.02, cost),
        assume_convex=True,
    )
    if should_refuse(case, sign, least_argument(support, along)):
        with pytest.raises(wdro.UnboundedError, match="Box"):
            problem.solve(progress=False)
        return
    if where != "box inside":
        return  # solved elsewhere; here it is enough that nothing is in the way
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = problem.solve(progress=False, time_limit=20)
    truth = worst_case(case, along, sign, 0.02, power)
    mean = worst_case(case, along, sign, 0.0, power)
    assert mean - 1e-6 <= value <= truth + 1e-3 * (1 + abs(truth))
    if problem.solution.method == "exact":
        assert value == pytest.approx(truth, abs=2e-3 * (1 + abs(truth)))
    else:
        assert value >= mean + 0.5 * (truth - mean) - 1e-6


# ------------------------------------------------------------------ around it
def solved(loss: Callable[[Any, Any], Any], support: Any = None, **how: Any) -> Any:
    """A problem over the simplex, solved: loss(x, z), z of two entries with the samples above."""
    x = cp.Variable(2, nonneg=how.pop("nonneg", True))
    z = wdro.UncertainParameter(2, "z", samples=SAMPLES, support=support)
    cost = how.pop("cost", lambda z: wdro.costs.SquaredEuclidean())(z)
    ball = wdro.WassersteinBall(how.pop("radius", 1e-3), cost)
    constraints = [cp.sum(x) == 1, cp.abs(x) <= 3]
    problem = wdro.Problem(cp.Minimize(loss(x, z)), constraints, ball, assume_convex=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(progress=False, time_limit=20, **how)
    return problem


@pytest.mark.parametrize("nonneg", [True, False])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, z: cp.sqrt(z[0]) * x[0] + z @ x,
        lambda x, z: cp.log(z[0]) * x[0],
        lambda x, z: cp.sum(x / z),
        lambda x, z: cp.exp(-cp.sqrt(z[0])) * x[0] + x[1],
        lambda x, z: wdro.cvar(x[0] * cp.inv_pos(z[1]) + x[1], 0.5),
        lambda x, z: cp.sqrt(1 - cp.square(z[0]) / 9) * x[0] + x[1],
        lambda x, z: cp.log(3 + cp.minimum(z[0], z[1])) * x[0],
        lambda x, z: cp.quad_over_lin(x - z, z[0]),
    ],
)
def test_infinite_on_the_whole_space_is_refused(loss: Any, nonneg: bool) -> None:
    with pytest.raises(wdro.UnboundedError, match=r"in the atom .* of .*'z'.*Box\(lower"):
        solved(loss, nonneg=nonneg)


def test_radius_zero_and_erm_look_at_the_samples_alone() -> None:
    for how in ({"radius": 0.0}, {"method": "erm"}):
        problem = solved(lambda x, z: cp.sum(x / z), **how)
        assert problem.value == pytest.approx(np.min(np.mean(1 / SAMPLES, axis=0)), rel=1e-5)


def test_frozen_coordinates_are_judged_at_their_samples() -> None:
    def frozen(z: Any) -> Any:
        return wdro.costs.SquaredEuclidean(weights=np.array([np.inf, 1.0]))

    problem = solved(lambda x, z: x[0] / z[0] + x[1] * z[1], cost=frozen)
    assert problem.status == "optimal"
    with pytest.raises(wdro.UnboundedError, match="must have one sign"):
        solved(lambda x, z: x[0] / z[1] + x[1] * z[0], cost=frozen)


def test_an_argument_that_depends_on_the_decision_is_judged_there() -> None:
    inside = solved(lambda x, z: -cp.log(x @ z), wdro.supports.Box(0.5, 3.0))
    assert inside.status == "optimal"
    with pytest.raises(wdro.UnboundedError, match="constrain the decision"):
        solved(lambda x, z: -cp.log(x @ z), wdro.supports.Nonnegative())


@pytest.mark.parametrize(
    ("loss", "support"),
    [
        (lambda x, z: cp.log(1 + cp.square(z[0])) * x[0] + x[1], wdro.supports.Box(-3, 3)),
        (lambda x, z: x[0] / (1 + cp.exp(-z[0])) + x[1], wdro.supports.Box(-3, 3)),
        (lambda x, z: cp.sqrt(z[0] ** 2 - z[0] + 1) * x[0] + x[1], wdro.supports.Box(-3, 3)),
        (lambda x, z: x[0] / (z[0] - 5) + x[1], wdro.supports.Box(-3, 3)),
        (lambda x, z: x[0] * cp.power(z[0], 3) + x[1], wdro.supports.Box(-3, 3)),
        (lambda x, z: cp.sum(cp.log(z)) * x[0] + x[1], wdro.supports.Box([0.1, 1], [2, np.inf])),
        (lambda x, z: cp.sqrt(1 + 0 * x[0]) * z[0], None),
    ],
)
def test_arguments_that_stay_inside_are_solved(loss: Any, support: Any) -> None:
    assert solved(loss, support).status in ("optimal", "user_limit", "stationary")


def test_a_twin_with_a_radius_is_judged_too() -> None:
    x = cp.Variable(2, nonneg=True)
    z = wdro.UncertainParameter(2, "z", samples=SAMPLES)
    ball = wdro.WassersteinBall(0.0)
    problem = wdro.Problem(cp.Minimize(cp.sum(x / z)), [cp.sum(x) == 1], ball)
    problem.solve()
    with pytest.raises(wdro.UnboundedError, match="Box"):
        problem.with_radius(0.1).solve()


@pytest.mark.parametrize("exponent", [1.5, 0.5])
def test_powers_of_absolute_values_are_defined_everywhere(exponent):
    z = wdro.UncertainParameter(samples=[-1.0, 0.5, 2.0], support=wdro.supports.Box(-3.0, 3.0))
    x = cp.Variable()
    loss = cp.power(cp.abs(z), exponent) + cp.square(x)
    problem = wdro.Problem(cp.Minimize(loss), ambiguity=wdro.WassersteinBall(0.1))
    problem.solve(method="smoothed")
    assert problem.status == "optimal"
    assert problem.value >= np.mean([1.0, 0.5**exponent, 2.0**exponent]) - 1e-3
