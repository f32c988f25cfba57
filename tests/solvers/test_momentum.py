"""The momentum method: its schedules, its batches, its reproducibility."""

import numpy as np
import pytest

from tests.solvers.problems import simplex
from wdro_model.solvers import MomentumFrankWolfe, Stop
from wdro_model.solvers.gradients import Momentum
from wdro_model.solvers.objective import Point


class Samples:
    """mean_k |x - a_k|^2 with a dual variable that wants to be 1."""

    convex = True

    def __init__(self, size=20, n=5, seed=0):
        self.centres = np.random.default_rng(seed).dirichlet(np.ones(n), size)
        self.size = size
        self.batches = []
        self.gradients = []

    def evaluate(self, x, dual=None):
        return self._mean(x, dual, np.arange(self.size))

    def estimate(self, x, dual, batch, rng):
        self.batches.append(batch.copy())
        point = self._mean(x, dual, batch)
        self.gradients.append(point.gradient)
        return point

    def _mean(self, x, dual, batch):
        difference = x - self.centres[batch]
        value = (difference**2).sum(axis=1).mean()
        if dual is None:
            return Point(value, 2 * difference.mean(axis=0))
        return Point(value + (dual - 1) ** 2, 2 * difference.mean(axis=0), dual, 2 * (dual - 1))


def solve(objective, seed=0, dual_bound=None, start=None, **options):
    start = np.eye(5)[0] if start is None else start
    return MomentumFrankWolfe(**options).run(
        objective, simplex(5), start, rng=np.random.default_rng(seed), dual_bound=dual_bound
    )


def test_momentum_schedule():
    weight = Momentum().weight
    assert weight(0) == 1.0
    assert weight(1) == pytest.approx(4 / 9 ** (2 / 3))
    assert weight(1) == pytest.approx(0.9244, abs=1e-4)
    assert weight(19) == pytest.approx(4 / 9)


def test_step_schedule():
    outcome = solve(Samples(), max_iterations=13)
    np.testing.assert_allclose(outcome.trace["step"][[0, 1]], [2 / 7, 1 / 4])
    np.testing.assert_allclose(outcome.trace["step"][:-1], 2 / (np.arange(13) + 7))


def test_batches_are_drawn_without_replacement():
    objective = Samples()
    solve(objective, batch_size=10, max_iterations=50)
    assert all(len(np.unique(batch)) == 10 for batch in objective.batches)
    assert len({tuple(batch) for batch in objective.batches}) > 40
    assert set(np.concatenate(objective.batches)) == set(range(20))


def test_gradients_follow_the_recursion():
    objective, states = Samples(), []
    solve(objective, max_iterations=6, callbacks=[lambda state: states.append(state) and None])
    expected = objective.gradients[0]
    for t, state in enumerate(states):
        if t:
            weight = 4 / (t + 8) ** (2 / 3)
            expected = weight * objective.gradients[t] + (1 - weight) * expected
        np.testing.assert_allclose(state.gradient, expected, rtol=1e-14)


def test_the_dual_starts_in_the_middle_and_steps_to_the_ends():
    outcome = solve(Samples(), dual_bound=4.0, max_iterations=1)
    # dual 2, derivative 2 > 0: towards 0 by 2/7
    np.testing.assert_allclose(outcome.trace["dual"], [2.0, 2.0 * (1 - 2 / 7)])


def test_many_iterations_come_close():
    objective = Samples()
    outcome = solve(objective, dual_bound=4.0, max_iterations=3000)
    best = objective.evaluate(objective.centres.mean(axis=0), 1.0).value
    assert outcome.stop is Stop.ITERATIONS
    assert objective.evaluate(outcome.x, outcome.dual).value <= best + 1e-2
    assert outcome.lower_bound == -np.inf


def test_the_same_seed_gives_the_same_run():
    runs = [solve(Samples(), seed=seed, max_iterations=40) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(runs[0].x, runs[1].x)
    np.testing.assert_array_equal(runs[0].trace["value"], runs[1].trace["value"])
    assert not np.array_equal(runs[0].x, runs[2].x)


def test_the_start_is_not_modified():
    start = np.full(5, 0.2)
    solve(Samples(), start=start, max_iterations=5)
    np.testing.assert_array_equal(start, np.full(5, 0.2))


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size=21 is larger than the 20 samples"):
        solve(Samples(), batch_size=21)


def test_all_iterations_are_run_whatever_the_gap():
    assert solve(Samples(), gap=0.5, max_iterations=30).iterations == 30
