"""Samples on disk and on the workers of a cluster: the same answers as from memory."""

from __future__ import annotations

import os
import signal

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

RNG = np.random.default_rng(11)
ROWS = RNG.normal(0.2, 1.0, size=(3000, 3))


@pytest.fixture(scope="module")
def cluster():
    quiet = {"dashboard_address": None, "silence_logs": 50}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, **quiet
        ) as made,
        distributed.Client(made) as client,
    ):
        yield client


def logistic(samples, **more):
    w = cp.Variable(3)
    z = wdro.UncertainParameter(3, samples=samples)
    ball = wdro.WassersteinBall(0.05)
    problem = wdro.Problem(cp.Minimize(cp.logistic(-z @ w)), [cp.abs(w) <= 2], ball)
    problem.solve(method="smoothed", epsilon=0.002, sigma=0.1, **more)
    return problem


def test_a_memory_map_is_read_where_it_lies(tmp_path):
    stored = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=ROWS.shape)
    stored[:] = ROWS
    here, there = logistic(ROWS), logistic(stored)
    assert there.value == here.value
    assert np.shares_memory(there.uncertain_parameters()[0].samples, stored)


def test_a_dask_array_without_a_client_is_kept_on_disk():
    here, there = logistic(ROWS), logistic(da.from_array(ROWS, chunks=(700, 2)))
    assert there.value == here.value
    kept = there.uncertain_parameters()[0].samples
    while kept is not None and not isinstance(kept, np.memmap):
        kept = kept.base
    assert isinstance(kept, np.memmap)
    assert not os.path.exists(kept.filename)


def test_a_cluster_has_the_value_of_one_machine(cluster):
    here = logistic(ROWS)
    there = logistic(da.from_array(ROWS, chunks=(500, 3)))
    assert "blocks on the workers" in there.solution.integration
    assert there.status == here.status == "optimal"
    assert there.value == pytest.approx(here.value, rel=1e-10)
    assert there.solution.dual == pytest.approx(here.solution.dual, rel=1e-6)


def test_other_strategies_on_a_cluster(cluster):
    """Closed form, and terms of single coordinates on a box; two parameters side by side."""
    chunks = da.from_array(ROWS, chunks=(800, 3))
    for samples in (ROWS, chunks):
        x = cp.Variable(3, nonneg=True)
        z = wdro.UncertainParameter(3, samples=samples)
        affine = wdro.Problem(cp.Minimize(-z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
        first = affine.solve(method="smoothed", epsilon=0.002, sigma=0.1)
        y = cp.Variable(3)
        box = wdro.supports.Box(-6, 6)
        u = wdro.UncertainParameter(2, samples=samples[:, :2], support=box)
        v = wdro.UncertainParameter(samples=samples[:, 2], support=box)
        loss = cp.sum(cp.pos(u - y[:2])) + cp.pos(v - y[2]) + 0.3 * cp.sum(y)
        terms = wdro.Problem(cp.Minimize(loss), [cp.abs(y) <= 4], wdro.WassersteinBall(0.1))
        second = terms.solve(method="smoothed", epsilon=0.002, sigma=0.1)
        if samples is ROWS:
            known = first, second
    assert (first, second) == pytest.approx(known, rel=1e-7)


def test_a_worker_that_dies_costs_its_blocks_only(cluster):
    here = logistic(ROWS)
    killed = []

    def kill(state):
        if state.iteration == 1 and not killed:
            killed.extend(cluster.run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    solver = wdro.solvers.FrankWolfe(callbacks=[kill])
    there = logistic(da.from_array(ROWS, chunks=(500, 3)), solver=solver)
    assert killed
    assert there.value == pytest.approx(logistic(ROWS, solver=wdro.solvers.FrankWolfe()).value)
    assert there.value == pytest.approx(here.value, rel=1e-4)


def test_bad_entries_in_a_dask_array_are_found():
    rows = ROWS.copy()
    rows[2100, 1] = np.nan
    with pytest.raises(ValueError, match=r"must be finite, got nan at index \(2100, 1\)"):
        wdro.UncertainParameter(3, samples=da.from_array(rows, chunks=(700, 3)))


def test_a_dask_array_of_unknown_length_says_what_to_do():
    rows = da.from_array(ROWS, chunks=(700, 3))
    with pytest.raises(ValueError, match=r"compute_chunk_sizes\(\)"):
        wdro.UncertainParameter(3, samples=rows[rows[:, 0] > 0])


def weighted(samples, p, **more):
    w = cp.Variable(3)
    z = wdro.UncertainParameter(3, samples=samples, probabilities=p)
    ball = wdro.WassersteinBall(0.05)
    problem = wdro.Problem(cp.Minimize(cp.logistic(-z @ w)), [cp.abs(w) <= 2], ball)
    problem.solve(method="smoothed", epsilon=0.002, sigma=0.1, **more)
    return problem


def test_probabilities_go_to_the_workers(cluster):
    """The blocks of a worker may come from all over the samples: their probabilities too."""
    p = np.linspace(1.0, 5.0, len(ROWS)) ** 2
    p /= p.sum()
    here = weighted(ROWS, p)
    there = weighted(da.from_array(ROWS, chunks=(500, 3)), p)
    assert "blocks on the workers" in there.solution.integration
    assert there.value == pytest.approx(here.value, rel=1e-10)
    assert here.value != pytest.approx(logistic(ROWS).value, rel=1e-4)


def test_batches_of_weighted_samples_on_a_cluster(cluster):
    p = np.linspace(1.0, 5.0, len(ROWS)) ** 2
    p /= p.sum()
    solver = wdro.solvers.MomentumFrankWolfe(batch_size=200, max_iterations=20)
    options = {"solver": solver, "integration": "low_rank", "dual": "exact"}
    here = weighted(ROWS, p, **options)
    there = weighted(da.from_array(ROWS, chunks=(500, 3)), p, **options)
    assert there.value == pytest.approx(here.value, rel=1e-8)
