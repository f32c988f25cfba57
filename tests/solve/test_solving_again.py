"""Another radius, another parameter: the compiled program is solved again, and is the same."""

import pickle
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import wdro_model as wdro
from wdro_model.solve.compile import Compilation

RNG = np.random.default_rng(7)
DATA = RNG.normal(0.3, 1.0, size=(12, 3))
KINDS = (
    "affine",
    "affine on a box",
    "cvar norm",
    "cvar squared",
    "newsvendor",
    "least squares",
    "polyhedron",
    "hinge",
    "logistic",
)


def problem(kind: str, radius, level: cp.Parameter | float = 1.0, data=DATA) -> wdro.Problem:
    """A small model; `level` is a certain number of a term without data and of a constraint."""
    x = cp.Variable(3)
    norm, squared = wdro.costs.Norm(1), wdro.costs.SquaredEuclidean()
    box = wdro.supports.Box(-6.0, 6.0)
    rows = np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3))])
    polyhedron = wdro.supports.Polyhedron(rows, np.full(7, 6.0))
    support = {"affine on a box": box, "newsvendor": box, "polyhedron": polyhedron}.get(kind)
    xi = wdro.UncertainParameter(3, samples=data, support=support)
    t = cp.Variable()
    losses = {
        "affine": (-xi @ x, squared),
        "affine on a box": (-xi @ x, squared),
        "cvar norm": (t + cp.pos(-xi @ x - t) / 0.2, norm),
        "cvar squared": (t + cp.pos(-xi @ x - t) / 0.2, squared),
        "newsvendor": (cp.sum(cp.pos(xi - x)) + 0.3 * cp.sum(cp.pos(x - xi)), squared),
        "least squares": (cp.square(xi @ x - 1.0), squared),
        "polyhedron": (cp.maximum(xi @ x, -2 * xi @ x), norm),
        "hinge": (cp.pos(1 - xi @ x), norm),
        "logistic": (cp.logistic(-xi @ x), wdro.costs.Norm(2)),
    }
    loss, cost = losses[kind]
    return wdro.Problem(
        cp.Minimize(loss + 0.1 * level * cp.sum_squares(x)),
        [cp.sum(x) == 1, x <= 2.0 * level, x >= -1.5],
        ambiguity=wdro.WassersteinBall(radius, cost),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_another_radius_gives_what_a_new_problem_gives(kind: str) -> None:
    first = problem(kind, 0.2)
    first.solve(method="exact")
    assert first.solution.compilation != Compilation.AGAIN
    for radius in (0.05, 0.7, 0.2, 0.011):
        again = first.with_radius(radius)
        again.solve(method="exact")
        new = problem(kind, radius)
        new.solve(method="exact")
        assert again.value == pytest.approx(new.value, rel=2e-6, abs=1e-7)
        assert again.solution.compilation == Compilation.AGAIN
        assert again.status == "optimal"
        mine = again.robust_value()
        assert mine == pytest.approx(again.value, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["erm", "exact"])
def test_another_parameter_gives_what_a_new_problem_gives(kind: str, method: str) -> None:
    level = cp.Parameter(nonneg=True, value=0.5)
    first = problem(kind, 0.2, level)
    first.solve(method=method)
    for value in (0.9, 0.3, 0.5):
        level.value = value
        first.solve(method=method)
        new = problem(kind, 0.2, value)
        new.solve(method=method)
        assert first.value == pytest.approx(new.value, rel=2e-6, abs=1e-7)
        assert first.solution.compilation == Compilation.AGAIN


def test_a_parameter_beside_the_data_compiles_again_and_says_so() -> None:
    price = cp.Parameter(nonneg=True, value=1.0, name="price")
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=DATA, support=wdro.supports.Box(-6, 6))
    ball = wdro.WassersteinBall(0.2)

    def stated(number):
        loss = cp.sum(number * cp.pos(xi - x)) + 0.3 * cp.sum(cp.pos(x - xi))
        return wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 3], ambiguity=ball)

    first = stated(price)
    first.solve()
    price.value = 2.5
    first.solve()
    assert "beside uncertain ones" in first.solution.compilation
    new = stated(2.5)
    new.solve()
    assert first.value == pytest.approx(new.value, rel=1e-6)
    first.solve()
    assert first.solution.compilation == Compilation.AGAIN
    price.value = 1.7  # what changed once is a parameter from then on
    first.solve()
    assert first.solution.compilation == Compilation.AGAIN
    assert first.value == pytest.approx(stated(1.7).solve(), rel=1e-6)


def test_twins_in_turn_do_not_mix_their_radii() -> None:
    first = problem("cvar squared", 0.2)
    one, two = first.with_radius(0.05), first.with_radius(0.9)
    values = [p.solve() for p in (one, two, one, two, first)]
    assert values[0] == pytest.approx(values[2], rel=1e-7)
    assert values[1] == pytest.approx(values[3], rel=1e-7)
    assert values[0] < values[4] < values[1]


def test_the_radius_as_a_parameter() -> None:
    radius = cp.Parameter(nonneg=True, name="how far")
    asked = problem("cvar norm", radius)
    with pytest.raises(ValueError, match="'how far', which has no value"):
        asked.solve()
    for value in (0.3, 0.1, 0.0, 0.1):
        radius.value = value
        asked.solve()
        assert asked.value == pytest.approx(problem("cvar norm", value).solve(), rel=1e-6)
        assert asked.radius == value
    assert "W_c <= 0.1" in asked.explain()


def test_radii_that_are_no_numbers_are_refused() -> None:
    xi = wdro.UncertainParameter(3, samples=DATA)
    with pytest.raises(ValueError, match="one certain number, got the parameter"):
        wdro.WassersteinBall(cp.Parameter(2))
    with pytest.raises(ValueError, match="one certain number, got the uncertain parameter"):
        wdro.WassersteinBall(xi)
    with pytest.raises(ValueError, match="transport cost itself"):
        wdro.WassersteinBall.order(2, cp.Parameter())
    negative = cp.Parameter(value=-1.0)
    with pytest.raises(ValueError, match="nonnegative finite number, got -1"):
        problem("affine", negative).solve()


def test_a_radius_of_another_order_is_compiled_in_its_own_units() -> None:
    first = problem("affine", 0.2)
    first.solve()
    far = first.with_radius(1e9)
    far.solve()
    assert "another order" in far.solution.compilation
    assert far.value == pytest.approx(problem("affine", 1e9).solve(), rel=1e-6)


def test_multipliers_are_those_of_a_new_solve() -> None:
    def stated(radius):
        x = cp.Variable(3, nonneg=True)
        xi = wdro.UncertainParameter(3, samples=DATA)
        budget = cp.sum(x) == 1
        return budget, wdro.Problem(
            cp.Minimize(-xi @ x), [budget], ambiguity=wdro.WassersteinBall(radius)
        )

    budget, first = stated(0.2)
    first.solve()
    first.with_radius(0.5).solve()
    other, new = stated(0.5)
    new.solve()
    assert budget.dual_value == pytest.approx(other.dual_value, rel=1e-5)


def test_a_solved_problem_is_pickled_and_solved_again() -> None:
    first = problem("cvar norm", 0.2)
    first.solve()
    first.with_radius(0.3).solve()
    copy = pickle.loads(pickle.dumps(first))
    assert copy.solve() == pytest.approx(first.solve(), rel=1e-7)


def test_a_path_compiles_once() -> None:
    first = problem("cvar norm", 0.2)
    path = first.path([0.05, 0.1, 0.2, 0.4])
    said = [solution.compilation for solution in path.solutions]
    assert said[0] != Compilation.AGAIN
    assert said[1:] == [Compilation.AGAIN] * 3


@pytest.mark.parametrize("sense", [cp.Minimize, cp.Maximize])
def test_the_mean_loss_is_that_of_the_solve_whenever_it_is_asked_for(sense):
    """Also after another solve, after a change of a parameter, and from a copy in a file."""
    data = np.random.default_rng(0).uniform(1.0, 3.0, (7, 2))
    fee, x = cp.Parameter(value=0.5), cp.Variable(2, nonneg=True)
    price = wdro.UncertainParameter(2, samples=data)
    ball = wdro.WassersteinBall(0.5, wdro.costs.Norm(1))
    for objective in (price @ x, price @ x + fee * cp.sum(x)):
        problem = wdro.Problem(sense(objective), [cp.sum(x) == 1], ball)
        problem.solve("exact")
        first, expected = problem.solution, float(problem.losses().mean())
        again = problem.with_radius(0.01)
        again.solve("exact")
        copies = [first, pickle.loads(pickle.dumps(first)), replace(first, notes=("a note",))]
        fee.value = 100.0
        for solution in copies:
            assert solution.empirical_value == pytest.approx(expected, rel=1e-9)
        assert f"{expected:.8g}" in str(first)
        fee.value = 0.5


def test_the_bound_on_the_worst_case_is_that_of_the_solve_whenever_it_is_asked_for():
    """Also after the parameter that is the radius, or one of the loss, has another value."""
    data = np.random.default_rng(0).uniform(0.5, 1.5, (6, 2))
    x, shift = cp.Variable(2, nonneg=True), cp.Parameter(value=0.0)
    xi = wdro.UncertainParameter(2, samples=data, support=wdro.supports.Box(0.0, 3.0))
    curved = cp.sum(cp.power(cp.multiply(xi, x) + 1.0, 3))
    radius = cp.Parameter(nonneg=True, value=0.1)
    found = {}
    for name, loss, size in (
        ("numbers", curved, 0.1),
        ("a parameter as radius", curved, radius),
        ("a parameter in the loss", curved + shift * cp.sum(x), 0.1),
    ):
        ball = wdro.WassersteinBall(size)
        problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball, assume_convex=True)
        problem.solve("smoothed", epsilon=0.05)
        found[name] = problem.solution
        assert problem.solution.robust_value_is_bound
    radius.value, shift.value = 2.0, 100.0
    stored = pickle.loads(pickle.dumps(found["numbers"]))
    values = [solution.robust_value for solution in (*found.values(), stored)]
    assert values == pytest.approx([values[0]] * 4, rel=1e-4)
    assert values[0] >= found["numbers"].value
    assert values[0] == pytest.approx(worst_on_a_mesh(data, found["numbers"].decision[x]), rel=1e-3)


def worst_on_a_mesh(data: np.ndarray, x: np.ndarray) -> float:
    """min over l of 0.1 l + mean_k max_z f(x, z) - l |z - xi_k|^2, z on a mesh of the box."""
    line = np.linspace(0.0, 3.0, 301)
    mesh = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    losses = ((mesh * x + 1.0) ** 3).sum(axis=1)
    costs = ((mesh - data[:, None]) ** 2).sum(axis=2)

    def dual(price: float) -> float:
        return float(0.1 * price + (losses - price * costs).max(axis=1).mean())

    return float(minimize_scalar(dual, bounds=(0.1, 100.0), method="bounded").fun)
