"""Projected quasi-Newton steps: against conic solvers, scipy and random quadratic programs."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import wdro_model as wdro
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.quadratic_program import quadratic_over
from wdro_model.solvers import FrankWolfe, QuasiNewton

RNG = np.random.default_rng(3)
POINTS = RNG.normal(size=(40, 4)) + 0.4

SETS = {
    "none": lambda x: [],
    "nonnegative": lambda x: [x >= 0],
    "box": lambda x: [x >= -0.1, x <= 0.3],
    "ball": lambda x: [cp.norm(x, 2) <= 5.0],
    "small ball": lambda x: [cp.norm(x, 2) <= 0.4],
    "half-space": lambda x: [cp.sum(x) >= 3.0],
    "plane": lambda x: [cp.sum(x) == 1.0],
    "simplex": lambda x: [cp.sum(x) == 1.0, x >= 0],
    "cone": lambda x: [cp.norm(x[:3], 2) <= x[3]],
}


def problem(kind: str, radius: float = 0.05) -> tuple[cp.Variable, wdro.Problem]:
    x = cp.Variable(4)
    xi = wdro.UncertainParameter(4, samples=POINTS)
    loss = cp.logistic(-xi @ x) + 0.05 * cp.sum_squares(x)
    return x, wdro.Problem(cp.Minimize(loss), SETS[kind](x), ambiguity=wdro.WassersteinBall(radius))


@pytest.mark.parametrize("kind", SETS)
def test_erm_meets_the_conic_solver(kind: str) -> None:
    x, stated = problem(kind)
    stated.solve(method="erm", solver=QuasiNewton(gap=1e-9))
    mine = np.array(x.value)
    assert stated.status == "optimal"
    twin, other = problem(kind)
    other.solve(method="erm", solver=wdro.solvers.Conic())
    assert stated.value == pytest.approx(other.value, abs=2e-8)
    assert mine == pytest.approx(twin.value, abs=2e-3)
    far = max(1.0, float(np.abs(mine - twin.value).max() / max(1.0, np.abs(mine).max())))
    assert stated.value - other.value <= stated.solution.gap * far + 1e-8


@pytest.mark.parametrize("kind", SETS)
def test_the_smoothed_minimum_is_one(kind: str) -> None:
    """No feasible decision that a long search finds is better by more than the gap."""
    x, stated = problem(kind)
    stated.solve(method="smoothed", solver=QuasiNewton(gap=1e-6), epsilon=0.005, sigma=0.1)
    assert stated.status == "optimal"
    best, at = stated.value, np.array(x.value)
    again = []
    for move in np.random.default_rng(0).normal(size=(6, 4)):
        goal = cp.Variable(4)
        held = cp.Problem(cp.Minimize(cp.sum_squares(goal - at - 0.05 * move)), SETS[kind](goal))
        held.solve(solver="CLARABEL")
        stated.solve(
            method="smoothed",
            solver=QuasiNewton(gap=1e-6, max_iterations=0),
            epsilon=0.005,
            sigma=0.1,
            start={x: goal.value},
        )
        again.append(stated.value)
    assert min(again) >= best - 1e-6 * abs(best)


def test_without_constraints_scipy_finds_the_same() -> None:
    x, stated = problem("none", radius=0.2)
    stated.solve(method="erm", solver=QuasiNewton(gap=1e-10))

    def mean_loss(w):
        return np.logaddexp(0, -POINTS @ w).mean() + 0.05 * w @ w

    found = minimize(mean_loss, np.zeros(4), method="BFGS", options={"gtol": 1e-10})
    assert x.value == pytest.approx(found.x, abs=1e-5)
    assert stated.value == pytest.approx(found.fun, abs=1e-10)


def test_the_gap_of_an_unbounded_set_is_that_of_what_is_near() -> None:
    x, stated = problem("none")
    stated.solve(method="erm", solver=QuasiNewton(gap=1e-3, max_iterations=1))
    w = x.value
    margin = POINTS @ w
    slope = -(POINTS / (1 + np.exp(margin))[:, None]).mean(axis=0) + 0.1 * w
    reach = max(1.0, np.abs(w).max())
    assert stated.solution.gap == pytest.approx(reach * np.abs(slope).sum(), rel=1e-9)
    assert "unbounded" in stated.solution.solver


def test_auto_takes_it_for_balls_and_without_constraints_only() -> None:
    for kind, expected in (("none", True), ("ball", True), ("cone", True), ("simplex", False)):
        _, stated = problem(kind)
        stated.solve(method="smoothed")
        assert stated.solution.solver.startswith("projected quasi-Newton") is expected
        assert stated.status == "optimal"


def test_a_ball_that_is_a_set() -> None:
    x = cp.Variable(4)
    xi = wdro.UncertainParameter(4, samples=POINTS)
    stated = wdro.Problem(
        cp.Minimize(cp.logistic(-xi @ x)),
        [wdro.In(x, wdro.sets.Ball(4, 2, radius=2.0))],
        ambiguity=wdro.WassersteinBall(0.05),
    )
    stated.solve(method="smoothed")
    value = stated.value
    assert stated.solution.solver.startswith("projected quasi-Newton")
    stated.solve(method="smoothed", solver=FrankWolfe(gap=1e-4))
    assert value == pytest.approx(stated.value, rel=2e-4)


def test_frank_wolfe_still_refuses_an_unbounded_set() -> None:
    _, stated = problem("none")
    with pytest.raises(wdro.errors.UnboundedError, match="unbounded"):
        stated.solve(method="smoothed", solver=FrankWolfe())


def test_a_set_without_a_cvxpy_form_is_refused() -> None:
    x = cp.Variable(4)
    xi = wdro.UncertainParameter(4, samples=POINTS)
    corner = wdro.sets.Oracle(lambda g: np.where(g > 0, 0.0, 1.0), 4)
    stated = wdro.Problem(
        cp.Minimize(cp.logistic(-xi @ x)),
        [wdro.In(x, corner)],
        ambiguity=wdro.WassersteinBall(0.05),
    )
    with pytest.raises(ValueError, match=r"no CVXPY form.*use solver=FrankWolfe"):
        stated.solve(method="smoothed", solver=QuasiNewton())


def test_an_objective_that_falls_without_end_says_so() -> None:
    x = cp.Variable(4)
    xi = wdro.UncertainParameter(4, samples=POINTS)
    stated = wdro.Problem(cp.Minimize(-xi @ x), [], ambiguity=wdro.WassersteinBall(0.05))
    with pytest.raises(wdro.errors.UnboundedError, match=r"falls without end.*bound the variables"):
        stated.solve(method="erm", solver=QuasiNewton())


def test_integers_are_left_to_others() -> None:
    x = cp.Variable(4, boolean=True)
    xi = wdro.UncertainParameter(4, samples=POINTS)
    stated = wdro.Problem(cp.Minimize(cp.logistic(-xi @ x)), [], wdro.WassersteinBall(0.05))
    with pytest.raises(ValueError, match=r"some variables are integer.*BranchAndBound"):
        stated.solve(method="smoothed", solver=QuasiNewton())


def test_vertex_steps_of_the_dual_are_refused() -> None:
    _, stated = problem("ball")
    with pytest.raises(ValueError, match="dual='exact'"):
        stated.solve(method="smoothed", solver=QuasiNewton(), dual="vertex")


@pytest.mark.parametrize(
    ("field", "value"), [("gap", -1.0), ("max_iterations", 1.5), ("samples", 0), ("time_limit", 0)]
)
def test_bad_settings_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        QuasiNewton(**{field: value})


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(SETS)), st.integers(0, 10**6))
def test_quadratic_programs_meet_cvxpy(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    curvature = root @ root.T + 0.1 * np.eye(4)
    x = cp.Variable(4)
    start = cp.Problem(cp.Minimize(cp.sum_squares(x - rng.normal(size=4))), SETS[kind](x))
    start.solve(solver="CLARABEL")
    point, gradient = np.array(x.value), rng.normal(size=4) * 10 ** rng.uniform(-3, 3)
    minimizer = quadratic_over(ConvexSet(SETS[kind](x), [x]))
    for _ in range(2):  # the second call updates the numbers of the first
        found = minimizer(gradient, curvature, point)
        step = x - point
        unit = abs(gradient).max()
        model = gradient / unit @ step + 0.5 * cp.quad_form(step, cp.psd_wrap(curvature / unit))
        truth = cp.Problem(cp.Minimize(model), SETS[kind](x))
        truth.solve(solver="CLARABEL")
        d = found - point
        mine = (gradient @ d + 0.5 * d @ curvature @ d) / unit
        assert mine == pytest.approx(truth.value, rel=1e-4, abs=1e-6)
        assert all(float(np.max(c.violation())) <= 1e-6 for c in _at(SETS[kind], found))
        gradient, curvature = -gradient, curvature + np.eye(4)


def _at(constraints, value):
    x = cp.Variable(4, value=value)
    return constraints(x)
