"""Solves in units of their own: the answer of plain units, wherever those are right."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.solve import conic as rescaling
from wdro_model.solvers import Conic

pytestmark = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
RETURNS = np.random.default_rng(0).normal(0.05, 0.2, size=(20, 5))


@pytest.fixture
def attempts(monkeypatch):
    """The attempts that a solve makes."""
    made, plain = [], rescaling.ConicRun.attempt

    def attempt(self, scale):
        made.append(scale)
        return plain(self, scale)

    monkeypatch.setattr(rescaling.ConicRun, "attempt", attempt)
    return made


@pytest.mark.parametrize("factor", [1e-6, 1e4, 1e6])
@pytest.mark.parametrize("support", [None, wdro.supports.Box([-5] * 3, [np.inf] * 3)])
@pytest.mark.parametrize(
    "cost",
    [
        wdro.costs.SquaredEuclidean(),
        wdro.costs.Norm(1),
        wdro.costs.Norm(2),
        wdro.costs.Mahalanobis(precision=np.eye(3) + 0.3),
    ],
)
def test_a_multiple_of_the_loss_has_the_multiple_of_the_value(cost, support, factor):
    """Data of order one, losses in millions: multipliers and prices have the size of the loss."""
    data = np.random.default_rng(0).normal(1, 1, size=(8, 3))

    def value(v):
        x, t = cp.Variable(3, nonneg=True), cp.Variable()
        z = wdro.UncertainParameter(3, samples=data, support=support)
        loss = v * (t + 5 * cp.pos(-z @ x - t))
        constraints = [cp.sum(x) == 1, cp.abs(t) <= 5]
        problem = wdro.Problem(cp.Minimize(loss), constraints, wdro.WassersteinBall(0.1, cost))
        found = problem.solve(method="exact")
        assert problem.robust_value() == pytest.approx(found, rel=1e-5)
        return found / v

    assert value(factor) == pytest.approx(value(1.0), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("unit", "factor"), [(1, 1), (1.5e-3, 1), (1.5e-3, 250), (1, 3e5)])
def test_boxes_of_data_that_is_held_fixed_do_not_count(unit, factor):
    data = np.random.default_rng(1).uniform(0.3, 3.0, size=(5, 2))
    x = cp.Variable(2, bounds=[-2 * unit, 2 * unit])
    a = wdro.UncertainParameter(samples=data[:, 0])
    b = wdro.UncertainParameter(samples=data[:, 1], support=wdro.supports.Box(0.3, 3.2))
    y = x / unit

    def loss(first, second):
        return factor * (first * (4 - 0.07 * y[1]) + second * (1.8 * y[0] + y[1]) - 0.7 * y[0])

    cost = wdro.costs.SquaredEuclidean(weights={a: 4.5e-3, b: np.inf})
    problem = wdro.Problem(cp.Minimize(loss(a, b)), [], wdro.WassersteinBall(7.8e-4, cost))
    margin = factor * np.sqrt(7.8e-4 / 4.5e-3) * (4 - 0.07 * y[1])
    expected = cp.Problem(cp.Minimize((loss(*data.mean(axis=0)) + margin) / factor)).solve()
    assert problem.solve(method="exact") / factor == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("size", "unit"), [(1, 1), (1e5, 1e5), (1e6, 1)])
def test_semidefinite_variables_are_measured_too(size, unit):
    def value(n, u):
        matrix, x = cp.Variable((2, 2), PSD=True), cp.Variable(2)
        z = wdro.UncertainParameter(2, samples=u * RETURNS[:, :2])
        constraints = [cp.trace(matrix) == n, x == cp.diag(matrix), x[0] >= 0.2 * n]
        ball = wdro.WassersteinBall((0.1 * u) ** 2)
        loss = -z @ x + u * matrix[0, 1]
        return wdro.Problem(cp.Minimize(loss), constraints, ball).solve(method="exact") / (n * u)

    assert value(size, unit) == pytest.approx(value(1, 1), rel=1e-5)


@pytest.mark.parametrize("least", [0.0, 5.6e-17, 1e-12, 1e-9])
def test_right_hand_sides_that_are_next_to_nothing(least):
    z, x = wdro.UncertainParameter(5, samples=RETURNS), cp.Variable(5)
    constraints = [cp.sum(x) == 1, x >= least]
    problem = wdro.Problem(cp.Minimize(-z @ x), constraints, wdro.WassersteinBall(0.01))
    by_hand = cp.Minimize(-RETURNS.mean(axis=0) @ x + 0.1 * cp.norm(x))
    expected = cp.Problem(by_hand, constraints).solve(solver=cp.CLARABEL)
    assert problem.solve(method="exact") == pytest.approx(expected, rel=1e-7)
    assert problem.status == "optimal"


def test_large_constants_alone_make_no_set_empty():
    x = cp.Variable(2)
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - 1e6)), [x <= 5e5])
    assert problem.solve() == pytest.approx(5e11, rel=1e-6)
    y, z = cp.Variable(5, nonneg=True), wdro.UncertainParameter(5, samples=1e-6 * RETURNS)
    constraints = [cp.sum(y) == 1e6, y <= 1e6]
    tiny = wdro.Problem(cp.Minimize(-z @ y), constraints, wdro.WassersteinBall(1e-14))
    w = cp.Variable(5, nonneg=True)
    by_hand = cp.Minimize(-RETURNS.mean(axis=0) @ w + 0.1 * cp.norm(w))
    expected = cp.Problem(by_hand, [cp.sum(w) == 1, w <= 1]).solve(solver=cp.CLARABEL)
    assert tiny.solve(method="exact") == pytest.approx(expected, rel=1e-5)


def test_ordinary_problems_are_solved_once(attempts):
    z, x = wdro.UncertainParameter(5, samples=RETURNS), cp.Variable(5, nonneg=True)
    loss = cp.maximum(-z @ x, -0.5 * (z @ x))
    wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.01)).solve("exact")
    assert len(attempts) == 1


def test_zero_is_not_chased(attempts):
    """The optimum is w = 0: what the solver leaves of it is no unit."""
    rng = np.random.default_rng(0)
    z = wdro.UncertainParameter(4, samples=rng.normal(size=(50, 4)))
    y = wdro.UncertainParameter(samples=rng.normal(size=50))
    w = cp.Variable(4)
    ball = wdro.WassersteinBall(2.0, wdro.costs.Norm(2, weights={z: 1.0, y: np.inf}))
    problem = wdro.Problem(cp.Minimize(cp.abs(y - w @ z)), [], ball)
    value = problem.solve(method="exact")
    assert value == pytest.approx(np.abs(y.samples).mean(), rel=1e-6)
    assert len(attempts) == 1


def test_the_best_answer_is_kept_and_judged(monkeypatch):
    """Of two attempts the second claims less than its decision is worth."""
    data, plain, made = 1e6 * np.abs(RETURNS), rescaling.ConicRun.attempt, []

    def attempt(self, scale):
        found = plain(self, scale)
        if made:
            found = rescaling.replace(
                found,
                decision=found.decision * 0 + found.decision.mean(),
                answer=rescaling.replace(found.answer, value=-1e9),
            )
        made.append(found)
        return found

    better = rescaling.ConicRun.better_units
    monkeypatch.setattr(rescaling.ConicRun, "attempt", attempt)
    monkeypatch.setattr(
        rescaling.ConicRun,
        "better_units",
        lambda self, last, by_loss: (
            rescaling.Units({x: 4096.0}, 1.0) if len(made) == 1 else better(self, last, by_loss)
        ),
    )
    z, x = wdro.UncertainParameter(5, samples=data), cp.Variable(5, nonneg=True)
    problem = wdro.Problem(
        cp.Minimize(z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(1e8, wdro.costs.Norm(1))
    )
    value = problem.solve(method="exact")
    assert len(made) > 1
    assert value == pytest.approx(made[0].answer.value)
    assert value == pytest.approx(problem.robust_value(), rel=1e-6)


@pytest.mark.parametrize("total", [1.0, 1e5])
@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_multipliers_are_in_the_users_units(total, unit):
    """The loss is homogeneous: the multiplier of the budget is the value for one unit of it."""
    z, x = wdro.UncertainParameter(5, samples=unit * RETURNS), cp.Variable(5, nonneg=True)
    budget = cp.sum(x) == total
    ball = wdro.WassersteinBall(0.01 * unit**2)
    problem = wdro.Problem(cp.Minimize(cp.pos(-z @ x)), [budget], ball)
    value = problem.solve(method="exact")
    assert abs(float(budget.dual_value)) == pytest.approx(value / total, rel=1e-4)


@pytest.mark.parametrize(
    ("unit", "bound", "radius", "cost"),
    [
        (1e-6, 1e3, 1e4, wdro.costs.Norm(1)),
        (1e-6, 1e3, 1e8, wdro.costs.SquaredEuclidean()),
        (1.0, 1e9, 1e12, wdro.costs.Norm(1)),
    ],
)
def test_far_bounds_within_reach_of_the_radius_count(unit, bound, radius, cost):
    box = wdro.supports.Box(0, bound)
    z = wdro.UncertainParameter(samples=unit * np.array([1.0, 2.0, 3.0]), support=box)
    x = cp.Variable()
    loss = cp.maximum(z, 0.5 * z) + x
    problem = wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 1], wdro.WassersteinBall(radius, cost))
    assert problem.solve(method="exact") == pytest.approx(bound, rel=1e-6)
    assert problem.robust_value({x: 0.0}) == pytest.approx(bound, rel=1e-6)
    assert box.contains(problem.worst_case().scenarios[z]).all()


def test_a_loss_that_a_parameter_switches_off():
    """Nothing is left to measure: the value is that of the decision, not what a solver leaves."""
    switch = cp.Parameter(nonneg=True, value=1.0)
    data = np.random.default_rng(3).normal(size=(3, 5)) * 1e5
    z, x = wdro.UncertainParameter(5, samples=data), cp.Variable(5)
    loss = switch * cp.abs(z @ x) + switch * cp.pos(z[0])
    problem = wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 5e-6], wdro.WassersteinBall(1e-6))
    assert problem.solve(method="exact") > 0
    switch.value = 0.0
    assert problem.solve(method="exact") == pytest.approx(0.0, abs=1e-6)
    assert problem.robust_value() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("data", "factor", "decision"),
    [(1e6, 1e5, 1e6), (1e3, 1e3, 1.0), (1e8, 1e5, 1.0), (1e6, 1.0, 1.0), (1e-6, 1e-3, 1.0)],
)
def test_large_numbers_in_front_of_an_absolute_value(data, factor, decision, rng):
    samples = data * (1 + 0.3 * rng.standard_normal((9, 1)))
    x, z = cp.Variable(nonneg=True), wdro.UncertainParameter(1, samples=samples)
    loss = factor * (z[0] + 0.2 * data * cp.abs(x / decision - 0.3))
    ball = wdro.WassersteinBall(0.01 * data, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(loss), [x <= 10 * decision], ball)
    problem.solve(method="exact")
    # The data's share is its mean and the radius; the decision's is zero at 0.3.
    assert problem.value == pytest.approx(factor * (samples.mean() + 0.01 * data), rel=1e-6)
    assert x.value == pytest.approx(0.3 * decision, rel=1e-5)
    assert problem.status == "optimal"


def test_a_set_with_points_is_never_called_empty(monkeypatch):
    """Whatever a solver says of the program, the constraints alone decide."""
    solve = rescaling.Conic.run

    def run(self, problem, **options):
        if not problem.objective.expr.is_constant():
            raise wdro.InfeasibleError("the feasible set is empty")
        solve(self, problem, **options)

    monkeypatch.setattr(rescaling.Conic, "run", run)
    x, z = cp.Variable(5, nonneg=True), wdro.UncertainParameter(5, samples=RETURNS)
    ball = wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(-z @ x), [cp.sum(x) == 1], ball)
    with pytest.raises(cp.error.SolverError, match=r"though some meet all.*order one"):
        problem.solve(method="exact")
    monkeypatch.setattr(rescaling.Conic, "run", solve)
    x = cp.Variable(5, nonneg=True)
    with pytest.raises(wdro.InfeasibleError, match="empty"):
        wdro.Problem(cp.Minimize(-z @ x), [cp.sum(x) == 1, x <= 0.1], ball).solve(method="exact")


@pytest.mark.parametrize(("unit", "factor"), [(1e8, 1e-3), (1e10, 1e-3), (1e10, 1.0)])
@pytest.mark.parametrize("seed", [0, 2, 3, 6])
def test_data_and_constraints_in_billions_have_the_answer_of_plain_units(seed, unit, factor):
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-1.5, 1.5, 2)
    data = sizes * (1 + 0.3 * rng.standard_normal((6, 2)))
    x, z = cp.Variable(2, nonneg=True), wdro.UncertainParameter(2, samples=unit * data)
    constraints = [(unit * sizes) @ x == unit * sizes.mean()]
    ball = wdro.WassersteinBall(0.2 * unit**2)
    problem = wdro.Problem(cp.Minimize(factor * (z @ x)), constraints, ball)
    problem.solve(method="exact")
    # Squared cost, affine loss: mean + sqrt(radius) |x|.
    y = cp.Variable(2, nonneg=True)
    robust = data.mean(axis=0) @ y + np.sqrt(0.2) * cp.norm(y)
    plain = cp.Problem(cp.Minimize(robust), [sizes @ y == sizes.mean()])
    plain.solve(solver=cp.CLARABEL)
    assert problem.value / (factor * unit) == pytest.approx(plain.value, rel=1e-6)


@pytest.mark.parametrize("radius", [1e-12, 1.0, 1e8, 1e14])
@pytest.mark.parametrize("kind", ["columns", "branch and bound", "conic", "mixed-integer conic"])
def test_the_mean_loss_does_not_depend_on_the_radius(kind, radius):
    """ERM has no ball: its units are those of data and loss, however far the adversary may go."""
    data = np.random.default_rng(0).normal(2, 1, size=(8, 6))
    x = cp.Variable(6, boolean=kind in ("branch and bound", "mixed-integer conic"))
    z = wdro.UncertainParameter(6, samples=data)
    three = [x >= 0, x <= 1, cp.sum(x) == 3]
    feasible = three if "conic" in kind else [wdro.In(x, wdro.sets.Subsets(6, 3))]
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(cp.abs(z @ x - 5)), feasible, ball)
    problem.solve(method="erm")
    plain = cp.Problem(cp.Minimize(cp.sum(cp.abs(data @ x - 5)) / 8), three)
    best = plain.solve(solver=cp.HIGHS)
    assert problem.value == pytest.approx(best, rel=2e-4)
    assert problem.solution.empirical_value == pytest.approx(problem.value, rel=1e-6)


ZEROS = {
    "affine": lambda z, w: (z @ w, wdro.costs.SquaredEuclidean()),
    "hinge": lambda z, w: (cp.pos(z @ w), wdro.costs.Norm(2)),
    "absolute": lambda z, w: (cp.abs(z @ w), wdro.costs.Norm(1)),
    "squares": lambda z, w: (cp.square(z @ w), wdro.costs.SquaredEuclidean()),
}


@pytest.mark.parametrize("name", ZEROS)
def test_an_optimum_at_zero_is_found_once(name: str, monkeypatch) -> None:
    """What a solver leaves of zero is no unit: zero is a solution in all of them."""
    solved, run = [], Conic.run
    monkeypatch.setattr(Conic, "run", lambda *a, **k: (solved.append(1), run(*a, **k))[1])
    w = cp.Variable(4)
    z = wdro.UncertainParameter(4, samples=np.random.default_rng(0).normal(0.05, 1.0, (40, 4)))
    loss, cost = ZEROS[name](z, w)
    ball = wdro.WassersteinBall(0.5, cost)
    problem = wdro.Problem(cp.Minimize(loss), [cp.norm(w, 2) <= 1], ambiguity=ball)
    problem.solve(method="exact")
    assert len(solved) == 1
    assert problem.status == "optimal"
    assert problem.value == pytest.approx(0.0, abs=1e-6)
    problem.with_radius(0.6).solve(method="exact")
    assert len(solved) == 1


@pytest.mark.parametrize("unit", [1e-4, 1e-7, 1e-10])
def test_a_small_optimum_is_no_zero(unit: float) -> None:
    """Labels in another unit: the same regression, and the same decision in that unit."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=40)

    def fitted(scale: float) -> np.ndarray:
        w = cp.Variable(3)
        features = wdro.UncertainParameter(3, samples=x)
        label = wdro.UncertainParameter(samples=scale * y)
        cost = wdro.costs.SquaredEuclidean(weights={features: 1.0, label: np.inf})
        loss = cp.square(label - features @ w)
        wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(0.01, cost)).solve(method="exact")
        return w.value / scale

    assert fitted(unit) == pytest.approx(fitted(1.0), rel=1e-3)
