"""Samples belong to the problem once declared, whatever becomes of the caller's arrays."""

import tracemalloc

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse

import wdro_model as wdro

pd = pytest.importorskip("pandas")
WAYS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "view": lambda a: np.repeat(a, 2, axis=0)[::2],
    "slice": lambda a: np.concatenate([a, a])[: len(a)],
    "read-only view": lambda a: np.lib.stride_tricks.as_strided(a.copy(), writeable=False),
    "float32": lambda a: a.astype(np.float32),
    "frame": lambda a: pd.DataFrame(a, columns=["a", "b", "c"][: a.shape[1]]),
    "numbered frame": pd.DataFrame,
    "one column": lambda a: pd.DataFrame(a[:, :1].repeat(3, axis=1)),
}


def owner(given):
    """The memory behind what is given."""
    if isinstance(given, pd.DataFrame):
        return given
    while given.base is not None:
        given = given.base
    return given


def spoil(given):
    if isinstance(given, pd.DataFrame):
        given.iloc[:, :] = given.to_numpy() + 100.0
        return
    memory = owner(given)
    memory.flags.writeable = True
    memory += 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["erm", "exact", "smoothed"])
def test_a_problem_keeps_its_samples(way, method):
    rng = np.random.default_rng(0)
    given = WAYS[way](rng.normal(size=(8, 3)))
    before = np.array(given, dtype=float)
    x = cp.Variable(3, nonneg=True)
    z = wdro.UncertainParameter(3, samples=given)
    problem = wdro.Problem(cp.Minimize(z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
    value = problem.solve(method)
    twin = problem.with_samples(given)
    at = {x: [0.2, 0.5, 0.3]}
    answers = [p.evaluate(decision=at).mean for p in (problem, twin)]
    worst = [p.robust_value(at) for p in (problem, twin)]
    spoil(given)
    np.testing.assert_array_equal(z.samples, before)
    np.testing.assert_array_equal(problem._model.joint.matrix, before)
    np.testing.assert_array_equal(twin._model.joint.matrix, before)
    assert [p.evaluate(decision=at).mean for p in (problem, twin)] == answers
    assert [p.robust_value(at) for p in (problem, twin)] == worst
    assert problem.solve(method) == pytest.approx(value, abs=1e-4)
    assert twin.solve(method) == pytest.approx(value, abs=1e-4)


def test_what_stands_beside_the_samples_is_kept_as_well():
    rng = np.random.default_rng(1)
    data, p = rng.uniform(1, 2, (6, 2)), np.full(6, 1 / 6)
    lower, upper, weights = np.zeros(2), np.full(2, 3.0), np.array([1.0, 4.0])
    matrix, limits = sparse.csr_array(np.vstack([np.eye(2), -np.eye(2)])), np.array([3.0, 3, 0, 0])
    covariance, test = np.diag([1.0, 4.0]), rng.uniform(1, 2, (9, 2))
    arrays = [data, p, lower, upper, weights, matrix.data, limits, covariance, test]

    def problems():
        x = cp.Variable(2, nonneg=True)
        for support in (wdro.supports.Box(lower, upper), wdro.supports.Polyhedron(matrix, limits)):
            z = wdro.UncertainParameter(2, samples=data, support=support, probabilities=p)
            for cost in (
                wdro.costs.Norm(1, weights),
                wdro.costs.SquaredEuclidean({z: weights}),
                wdro.costs.Mahalanobis(covariance),
            ):
                ball = wdro.WassersteinBall(0.05, cost)
                yield wdro.Problem(cp.Minimize(cp.maximum(z @ x, 1.2)), [cp.sum(x) == 1], ball)
        z = wdro.UncertainParameter(2, samples=data, bounds=[lower, upper])
        ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(1, weights))
        yield wdro.Problem(cp.Minimize(cp.maximum(z @ x, 1.2)), [cp.sum(x) == 1], ball)

    def answers(problem):
        at = {problem.variables()[0]: [0.3, 0.7]}
        twin = problem.with_samples(rows=range(5))
        return [p.robust_value(at) for p in (problem, twin)]

    made = list(problems())
    before = [answers(problem) for problem in made]
    reports = [wdro.compare(problem, ["erm"], test=test) for problem in made[:2]]
    mean = reports[0].methods[0].statistics("test").mean
    for array in arrays:
        array += 1.0
    assert [answers(problem) for problem in made] == before
    again = reports[0]._at_radii([0.05], progress=False)
    assert again.methods[0].statistics("test").mean == pytest.approx(mean)


def test_large_samples_are_copied_once_and_maps_and_frozen_arrays_never(tmp_path):
    data = np.ones((200_000, 5))
    tracemalloc.start()
    z = wdro.UncertainParameter(5, samples=data)
    wdro.Problem(cp.Minimize(z @ cp.Variable(5, nonneg=True)), [], wdro.WassersteinBall(0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.4 * data.nbytes
    data.flags.writeable = False
    assert np.shares_memory(wdro.UncertainParameter(5, samples=data).samples, data)
    assert np.shares_memory(wdro.UncertainParameter(5, samples=z.samples).samples, z.samples)
    mapped = np.memmap(tmp_path / "samples", dtype=float, mode="w+", shape=(10, 2))
    assert np.shares_memory(wdro.UncertainParameter(2, samples=mapped).samples, mapped)
