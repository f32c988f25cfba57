"""The same problem on other data, and in another process."""

from __future__ import annotations

import pickle
import tracemalloc

import cloudpickle
import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from cvxpy.lin_ops import lin_utils
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from wdro_model.solvers import FrankWolfe
from wdro_model.uncertainty import LazySamples

D, N = 3, 12


def draws(seed: int = 0, size: int = N, shape: tuple[int, ...] = (D,)) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.2, 0.5, size=(size, *shape))


def simplex(x):
    return [cp.sum(x) == 1]


def affine(data, cost=None):
    x = cp.Variable(D, nonneg=True)
    xi = wdro.UncertainParameter(D, "xi", samples=data)
    return wdro.Problem(cp.Minimize(-xi @ x), simplex(x), wdro.WassersteinBall(0.1, cost))


def standardized(data):
    return affine(data, wdro.costs.SquaredEuclidean(weights="standardize"))


def shortfall(data):
    x, level = cp.Variable(D, nonneg=True), cp.Variable(bounds=[-3, 3])
    xi = wdro.UncertainParameter(D, "xi", samples=data)
    loss = level + 4 * cp.pos(-xi @ x - level)
    return wdro.Problem(cp.Minimize(loss), simplex(x), wdro.WassersteinBall(0.05))


def tracking(data):
    x = cp.Variable(D, nonneg=True)
    xi = wdro.UncertainParameter(D, "xi", samples=data)
    return wdro.Problem(
        cp.Minimize(cp.square(xi @ x - 0.5)), simplex(x), wdro.WassersteinBall(0.05)
    )


def smooth(data):
    """No exact counterpart: the smoothed method, with draws."""
    x = cp.Variable(D, nonneg=True)
    support = wdro.supports.Box(-4, 4)
    xi = wdro.UncertainParameter(D, "xi", samples=np.clip(data, -4, 4), support=support)
    loss = cp.sum(cp.exp(cp.multiply(xi, x))) + cp.sum_squares(x)
    return wdro.Problem(cp.Minimize(loss), simplex(x), wdro.WassersteinBall(0.02))


def hand_written(data):
    x = cp.Variable(D, nonneg=True)
    xi = wdro.UncertainParameter(D, "xi", samples=data)

    def loss(at, scenarios):
        values = scenarios[xi] @ at[x]

        def pullback(weights):
            return {x: weights @ scenarios[xi], xi: weights[:, None] * at[x]}

        return values, pullback

    return wdro.Problem(
        wdro.CallableLoss(loss, [x], [xi], convex=True), simplex(x), wdro.WassersteinBall(0.02)
    )


def tree(data):
    graph = nx.cycle_graph(4)
    x = cp.Variable(4)
    matrices = 5 * np.eye(4) + 0.1 * np.array([np.resize(row, (4, 4)) for row in data])
    xi = wdro.UncertainParameter((4, 4), "xi", samples=matrices)
    return wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, xi)),
        [wdro.In(x, wdro.sets.SpanningTree(graph))],
        wdro.WassersteinBall(0.5),
    )


def two_parameters(data):
    x = cp.Variable(D, nonneg=True)
    price = wdro.UncertainParameter(D, "price", samples=data)
    demand = wdro.UncertainParameter((), "demand", samples=np.abs(data[:, 0]))
    loss = price @ x + 2 * demand * x[0]
    weights = {price: "standardize", demand: np.inf}
    cost = wdro.costs.SquaredEuclidean(weights=weights)
    return wdro.Problem(cp.Minimize(loss), simplex(x), wdro.WassersteinBall(0.1, cost))


KINDS = {
    "affine": (affine, {}),
    "affine, Frank-Wolfe": (affine, {"solver": FrankWolfe(gap=1e-6)}),
    "standardized": (standardized, {}),
    "maximum of pieces": (shortfall, {}),
    "maximum of pieces, ERM": (shortfall, {"method": "erm"}),
    "least squares": (tracking, {}),
    "smoothed": (smooth, {"solver": FrankWolfe(gap=1e-3), "seed": 3}),
    "callable": (hand_written, {"integration": "tilted", "seed": 1}),
    "tree": (tree, {}),
    "two parameters": (two_parameters, {}),
}
kinds = pytest.mark.parametrize(("make", "options"), KINDS.values(), ids=KINDS)


@kinds
def test_rows_are_the_problem_declared_on_them(make, options):
    data, rows = draws(), np.array([7, 2, 2, 9, 4, 11])
    part, alone = make(data).with_samples(rows=rows), make(data[rows])
    assert part.solve(**options) == alone.solve(**options)
    for mine, theirs in zip(part.variables(), alone.variables()):
        np.testing.assert_array_equal(mine.value, theirs.value)
    np.testing.assert_array_equal(part.losses(), alone.losses())
    assert part.robust_value() == alone.robust_value()


@kinds
def test_a_copy_in_another_process_solves_the_same(make, options, monkeypatch):
    problem = make(draws())
    sent = cloudpickle.dumps(problem.with_samples(rows=range(8)))
    want = problem.with_samples(rows=range(8)).solve(**options)
    # A fresh process counts CVXPY's ids from the beginning.
    monkeypatch.setattr(lin_utils, "ID_COUNTER", lin_utils.Counter())
    assert pickle.loads(sent).solve(**options) == want


def test_ids_that_arrive_are_not_given_again(monkeypatch):
    """A clash gives wrong values without a word: an auxiliary variable is taken for a decision."""
    variable_ids = []
    for gap in range(30, 42):
        monkeypatch.setattr(lin_utils, "ID_COUNTER", counter := lin_utils.Counter())
        counter.count = 1000
        x, level = cp.Variable(D, nonneg=True), cp.Variable(bounds=[-3, 3])
        counter.count += gap
        y = cp.Variable(D, nonneg=True)
        xi = wdro.UncertainParameter(D, samples=draws())
        loss = level + 4 * cp.pos(-xi @ y - level) + cp.norm(y - x, 1)
        problem = wdro.Problem(
            cp.Minimize(loss), [*simplex(y), x >= 0.1, x <= 1], wdro.WassersteinBall(0.05)
        )
        sent, want = pickle.dumps(problem), problem.solve()
        counter.count = 1000
        twin = pickle.loads(sent)
        assert twin.solve() == pytest.approx(want, abs=1e-7)
        variable_ids.append(cp.Variable().id)
    assert min(variable_ids) > 1030


def test_a_pickled_problem_holds_its_data_once():
    data = draws(shape=(40, 40))
    x = cp.Variable(40, nonneg=True)
    xi = wdro.UncertainParameter((40, 40), samples=data)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, xi)), simplex(x), wdro.WassersteinBall(1.0)
    )
    assert len(pickle.dumps(problem)) < 1.2 * data.nbytes
    assert len(pickle.dumps(problem.with_samples(rows=[0, 1]))) < 1.2 * data.nbytes


def test_new_samples_by_parameter_as_an_array_or_lazily():
    problem, fresh = affine(draws()), draws(seed=5, size=7)
    want = affine(fresh).solve()
    (xi,) = problem.uncertain_parameters()
    lazy = LazySamples(lambda k: fresh[k], 7, (D,))
    for samples in ({xi: fresh}, fresh, fresh.tolist(), lazy):
        assert problem.with_samples(samples).solve() == want


def test_the_original_keeps_its_data_and_its_solution():
    data = draws()
    problem = affine(data)
    value, losses = problem.solve(), problem.losses()
    part = problem.with_samples(rows=[0, 1])
    assert part.solution is None
    part.solve()
    assert problem.value == value
    assert problem.uncertain_parameters()[0].samples.shape == (N, D)
    assert problem.solve() == value
    np.testing.assert_array_equal(problem.losses(), losses)


def test_variables_and_oracle_are_shared():
    problem = tree(draws())
    part = problem.with_samples(rows=[0, 3])
    assert part.variables()[0] is problem.variables()[0]
    assert part._model.feasible.oracle() is problem._model.feasible.oracle()
    assert part._model.loss.loss is problem._model.loss.loss


def test_views_of_views_and_radii():
    data = draws()
    part = affine(data).with_samples(rows=[5, 6, 7, 8]).with_samples(rows=[False, True, True, True])
    assert part.with_radius(0.3).solve() == affine(data[6:9]).with_radius(0.3).solve()
    again = part.with_samples(data[:2]).with_samples(rows=[1])
    assert again.solve() == affine(data[1:2]).solve()


@given(rows=st.lists(st.integers(0, N - 1), min_size=1, max_size=20))
@settings(deadline=None, max_examples=25)
def test_losses_and_means_of_any_rows(rows):
    data = draws()
    problem = two_parameters(data)
    part = problem.with_samples(rows=rows) if len(set(rows)) > 1 else problem
    chosen = rows if len(set(rows)) > 1 else range(N)
    joint = part._model.joint
    want = np.column_stack([data, np.abs(data[:, 0])])[list(chosen)]
    np.testing.assert_array_equal(joint.matrix, want)
    np.testing.assert_allclose(joint.mean, want.mean(axis=0))
    np.testing.assert_array_equal(np.concatenate(list(joint.blocks(3))), want)


def test_weights_are_read_off_the_new_samples():
    data = draws()
    part = standardized(data).with_samples(rows=range(5))
    np.testing.assert_allclose(part._model.cost.weights, 1 / data[:5].var(axis=0))


def test_data_is_not_copied_where_the_mean_is_enough():
    data = draws(size=60, shape=(200, 200))
    x = cp.Variable(200, nonneg=True)
    xi = wdro.UncertainParameter((200, 200), samples=data)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, xi)),
        simplex(x),
        wdro.WassersteinBall(4.0),
        assume_convex=True,
    )
    part = problem.with_samples(rows=np.arange(0, 60, 2))
    part.solve(method="exact", solver=FrankWolfe(max_iterations=3))
    tracemalloc.start()
    part = problem.with_samples(rows=np.arange(1, 60, 2))
    part.solve(method="exact", solver=FrankWolfe(max_iterations=3))
    part.losses({xi: data[:1]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.7 * data[1::2].nbytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either samples or rows=, got neither"),
        ({"samples": [[0, 0, 0]], "rows": [0]}, "either samples or rows=, got both"),
        ({"rows": []}, "rows are empty; keep at least one of the 12 samples"),
        ({"rows": [0, 12]}, "between 0 and 11, got 12"),
        ({"rows": [-1]}, "between 0 and 11, got -1"),
        ({"rows": [0.5]}, "a list of integers, or 12 booleans"),
        ({"rows": [True, False]}, "a list of integers, or 12 booleans"),
        ({"rows": 3}, r"got shape \(\)"),
        ({"samples": np.zeros((4, 2))}, r"samples of 'xi' must have shape \(N, 3\)"),
        ({"samples": np.full((4, 3), np.nan)}, "must be finite"),
    ],
)
def test_bad_data(arguments, message):
    with pytest.raises(ValueError, match=message):
        affine(draws()).with_samples(**arguments)


def test_new_samples_are_checked_against_the_support():
    x = cp.Variable(D, nonneg=True)
    xi = wdro.UncertainParameter(D, "xi", samples=np.ones((2, D)), support=wdro.supports.Box(0, 2))
    problem = wdro.Problem(cp.Minimize(xi @ x), simplex(x), wdro.WassersteinBall(1.0))
    with pytest.raises(ValueError, match="sample 0 of 'xi' lies outside its support"):
        problem.with_samples([[3.0, 0.0, 0.0]])
    problem = two_parameters(draws())
    price, demand = problem.uncertain_parameters()
    with pytest.raises(ValueError, match="same number of rows, got 'price': 4, 'demand': 3"):
        problem.with_samples({price: draws(size=4), demand: [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="scenarios are missing for 'demand'"):
        problem.with_samples({price: draws()})


def test_no_uncertain_parameter():
    x = cp.Variable(D, nonneg=True)
    with pytest.raises(
        ValueError, match="no uncertain parameter, there are no samples to exchange"
    ):
        wdro.Problem(cp.Minimize(cp.sum(x)), simplex(x)).with_samples(rows=[0])
