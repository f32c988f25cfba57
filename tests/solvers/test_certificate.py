"""Certificates over oracles that are not exact, against the hull of all points of a small set."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.sets import Oracle, OracleError, ProductSet, check
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe
from wdro_model.solvers.objective import certificate

ITEMS = 7


class Knapsack:
    """Choices of items whose weights fit, minimised greedily and so not exactly."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = rng.integers(2, 10, ITEMS)
        self.room = int(self.weights.sum()) // 2
        every = np.array(list(product([0.0, 1.0], repeat=ITEMS)))
        self.points = every[every @ self.weights <= self.room]
        self.values = rng.uniform(1, 2, size=(5, ITEMS)) * self.weights

    def greedy(self, direction):
        return self.filled(direction)[0]

    def with_bound(self, direction):
        """The greedy choice, and the linear relaxation's minimum below it."""
        return self.filled(direction)

    def filled(self, direction):
        vertex, left, bound, fits = np.zeros(ITEMS), self.room, 0.0, True
        for item in np.argsort(direction / self.weights):
            if direction[item] >= 0:
                break
            if fits:
                bound += direction[item] * min(1.0, left / self.weights[item])
            if self.weights[item] <= left:
                vertex[item], left = 1.0, left - self.weights[item]
            else:
                fits = False
        return vertex, bound

    def problem(self, lmo, radius=0.5):
        x = cp.Variable(ITEMS, name="x")
        worth = wdro.UncertainParameter(ITEMS, name="worth", samples=self.values)
        return wdro.Problem(
            cp.Minimize(-worth @ x),
            [wdro.In(x, Oracle(lmo, ITEMS, name="knapsack"))],
            ambiguity=wdro.WassersteinBall(radius),
        )

    def least(self, radius=0.5):
        """The robust optimum over the hull of all choices."""
        share = cp.Variable(len(self.points), nonneg=True)
        x = self.points.T @ share
        risk = -self.values.mean(axis=0) @ x + np.sqrt(radius) * cp.norm(x)
        problem = cp.Problem(cp.Minimize(risk), [cp.sum(share) == 1])
        return problem.solve(solver=cp.CLARABEL)


def outcomes(lmo_name):
    """For several knapsacks: the solution or the error, and the true minimum."""
    for seed in range(12):
        knapsack = Knapsack(seed)
        problem = knapsack.problem(getattr(knapsack, lmo_name))
        try:
            problem.solve(method="exact", solver=FrankWolfe(max_iterations=100))
        except wdro.InexactOracleError as error:
            yield None, str(error), knapsack.least()
        else:
            yield problem.solution, "", knapsack.least()


def test_an_oracle_that_is_beaten_by_its_own_points_gets_no_certificate():
    found = list(outcomes("greedy"))
    messages = [message for solution, message, _ in found if solution is None]
    assert messages
    for message in messages:
        assert "the oracle of Oracle(knapsack, dimension=7) is not exact" in message
        assert "(vertex, bound)" in message
        assert "an exact oracle" in message
    for solution, _, _ in found:
        assert solution is None or solution.lower_bound <= solution.value


def test_an_oracle_that_returns_a_bound_gets_one_that_holds():
    found = list(outcomes("with_bound"))
    assert all(solution is not None for solution, _, _ in found)
    for solution, _, least in found:
        assert solution.lower_bound <= least + 1e-6
        assert least <= solution.value + 1e-6
        assert solution.value - solution.gap <= least + 1e-6
    assert any(solution.status == "user_limit" for solution, _, _ in found)
    assert any(solution.gap > 0.01 for solution, _, _ in found)


def test_the_bound_survives_a_product_of_sets():
    knapsack = Knapsack(0)
    one = Oracle(knapsack.with_bound, ITEMS)
    exact = Oracle(lambda g: np.eye(3)[np.argmin(g)], 3)
    both = ProductSet([exact, one])
    rng = np.random.default_rng(1)
    for _ in range(20):
        direction = rng.standard_normal(3 + ITEMS)
        vertex, slack = both.minimize_with_slack(direction)
        least = direction[:3].min() + (knapsack.points @ direction[3:]).min()
        assert direction @ vertex - slack <= least + 1e-12
        assert slack == pytest.approx(one.minimize_with_slack(direction[3:])[1])
        x = np.concatenate([np.full(3, 1 / 3), knapsack.points.mean(axis=0)])
        assert certificate(both, x, direction).gap >= direction @ x - least - 1e-12


def test_the_error_names_the_block_and_its_backend():
    simplex = Oracle(lambda g: np.eye(3)[np.argmin(g)], 3, name="simplex")
    worst = Oracle(lambda g: np.eye(3)[np.argmax(g)], 3, name="upside down")
    worst.backend = "sloppy"
    x = np.full(6, 1 / 3)
    with pytest.raises(
        wdro.InexactOracleError, match=r"oracle of Oracle\(upside down.* with backend 'sloppy'"
    ):
        certificate(ProductSet([simplex, worst]), x, np.arange(6.0))


@pytest.mark.filterwarnings("ignore::wdro_model.SamplingWarning")
@pytest.mark.parametrize("method", ["erm", "smoothed"])
def test_a_stochastic_run_sees_it_too(method):
    calls = []

    def tired(direction):
        """Upside down every third time."""
        calls.append(1)
        return np.eye(4)[np.argmin(direction) if len(calls) % 3 else np.argmax(direction)]

    x = cp.Variable(4, name="x")
    z = wdro.UncertainParameter(4, samples=np.random.default_rng(0).uniform(size=(6, 4)))
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(x - z)),
        [wdro.In(x, Oracle(tired, 4))],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    solver = MomentumFrankWolfe(batch_size=2, max_iterations=20)
    with pytest.raises(wdro.InexactOracleError, match="tired"):
        problem.solve(method=method, solver=solver, epsilon=0.1 if method == "smoothed" else None)


def test_rounding_errors_are_no_reason_for_an_error():
    noise = np.random.default_rng(0)

    def nearly(direction):
        return np.eye(4)[np.argmin(direction)] + 1e-9 * noise.standard_normal(4)

    x = cp.Variable(4, name="x")
    problem = wdro.Problem(cp.Minimize(cp.sum(x)), [wdro.In(x, Oracle(nearly, 4))])
    problem.solve()
    assert problem.status == "optimal"
    assert problem.solution.lower_bound <= problem.value


def test_a_bound_that_makes_no_sense_names_the_function():
    for bound in (2.0, np.nan, np.inf):
        oracle = Oracle(lambda g, b=bound: (np.eye(2)[0], b), 2, name="hopeful")
        with pytest.raises(ValueError, match=r"'hopeful' returned the bound .* of cost 1"):
            oracle.minimize([1.0, 3.0])
    unknown = Oracle(lambda g: (np.eye(2)[0], -np.inf), 2)
    assert unknown.minimize_with_slack([1.0, 3.0])[1] == np.inf


def test_a_pair_of_numbers_is_a_vertex():
    oracle = Oracle(lambda g: (1, 0), 2)
    assert oracle.minimize_with_slack([1.0, 3.0])[1] == 0.0
    assert oracle.minimize([1.0, 3.0]).tolist() == [1.0, 0.0]


def test_check_takes_bounds_at_their_word_and_finds_false_ones():
    knapsack = Knapsack(0)
    assert check(Oracle(knapsack.with_bound, ITEMS), directions=200).passed
    with pytest.raises(OracleError, match="not optimal: its vertex costs"):
        check(Oracle(knapsack.greedy, ITEMS), directions=200)

    def boastful(direction):
        vertex, bound = knapsack.filled(direction)
        return vertex, 0.999 * direction @ vertex + 0.001 * bound

    with pytest.raises(OracleError, match="not optimal: its bound is"):
        check(Oracle(boastful, ITEMS), directions=200)
    form = Oracle(
        knapsack.with_bound,
        ITEMS,
        constraints=lambda x: [x >= 0, x <= 1, x @ knapsack.weights <= knapsack.room],
    )
    assert check(form).compared == 5


def test_matrices_go_in_and_out_of_an_oracle_of_their_shape():
    seen = []

    def assignment(direction):
        from scipy.optimize import linear_sum_assignment

        seen.append(direction.shape)
        vertex = np.zeros((3, 3))
        vertex[linear_sum_assignment(direction)] = 1.0
        return vertex

    doubly = Oracle(
        assignment,
        (3, 3),
        constraints=lambda x: [x >= 0, cp.sum(x, axis=0) == 1, cp.sum(x, axis=1) == 1],
        bounds=(0, np.ones((3, 3))),
        integral=True,
    )
    assert doubly.dimension == 9
    assert repr(doubly) == "Oracle(assignment, shape=(3, 3))"
    assert check(doubly).compared == 5
    assert set(seen) == {(3, 3)}
    x = cp.Variable((3, 3), name="x")
    costs = np.random.default_rng(0).uniform(size=(4, 3, 3))
    z = wdro.UncertainParameter((3, 3), samples=costs)
    problem = wdro.Problem(
        cp.Minimize(cp.sum(cp.multiply(z, x))),
        [wdro.In(x, doubly)],
        ambiguity=wdro.WassersteinBall(0.01),
    )
    problem.solve()
    problem.round()
    assert x.value.sum(axis=0).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match=r"must return an array of shape \(3, 3\), got shape"):
        Oracle(lambda g: g.ravel(), (3, 3)).minimize(np.ones(9))
    with pytest.raises(ValueError, match=r"positive integer .*, got \(2, 0\)"):
        Oracle(assignment, (2, 0))
    with pytest.raises(ValueError, match="takes a shape or a dimension, got neither"):
        Oracle(assignment)


def test_integral_says_whether_points_are_rounded():
    def corners(direction):
        return np.where(direction < 0, 3.0, -2.0)

    x = [0.3, 2.9]
    with pytest.raises(ValueError, match="cannot be rounded to"):
        Oracle(corners, 2).round(x)
    assert Oracle(corners, 2, integral=True).round(x, lambda v: abs(v - x).sum()).tolist() in [
        [-2, 3],
        [3, 3],
    ]
    with pytest.raises(ValueError, match="cannot be rounded to"):
        Oracle(lambda g: (g < 0) * 1.0, 2, integral=False).round(x)
