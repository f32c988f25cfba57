"""Choosing the radius on a Dask cluster, with two processes on this machine."""

from __future__ import annotations

import os

import cvxpy as cp
import joblib
import numpy as np
import pytest

import wdro_model as wdro

distributed = pytest.importorskip("distributed")

RADII = [0.0, 0.01, 0.1]


@pytest.fixture(scope="module")
def cluster():
    """Two workers, each a process with one thread."""
    quiet = {"dashboard_address": None, "silence_logs": 50}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, **quiet
        ) as made,
        distributed.Client(made) as client,
    ):
        yield client


@pytest.fixture
def problem():
    data = np.random.default_rng(0).normal(0.1, 0.4, size=(20, 4))
    x = cp.Variable(4, nonneg=True)
    level = cp.Variable(bounds=[-2, 2])
    returns = wdro.UncertainParameter(4, samples=data)
    loss = level + 5 * cp.pos(-returns @ x - level)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.01))


def test_a_cluster_gives_the_same_to_the_last_bit(cluster, problem):
    here = wdro.select_radius(problem, RADII, folds=4)
    with joblib.parallel_config(backend="dask"):
        there = wdro.select_radius(problem, RADII, folds=4)
        pids = wdro.select_radius(problem, [0.1], folds=4, metric=process, refit=False)
    np.testing.assert_array_equal(there.scores, here.scores)
    assert there.radius == here.radius
    assert there.solution.value == here.solution.value
    assert os.getpid() not in pids.scores
    assert len(np.unique(pids.scores)) <= 2


def test_one_job_runs_here_whatever_is_configured(cluster, problem):
    with joblib.parallel_config(backend="dask"):
        pids = wdro.select_radius(problem, [0.1], folds=2, metric=process, jobs=1, refit=False)
    assert (pids.scores == os.getpid()).all()


def test_a_worker_that_dies_does_not_lose_the_run(cluster, problem, tmp_path):
    """The first process that judges a decision is gone; Dask starts it and its fold again."""
    here = wdro.select_radius(problem, RADII, folds=4, refit=False)
    marker = str(tmp_path / "someone died")

    def deadly(losses):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return float(np.mean(losses))
        os._exit(1)

    with joblib.parallel_config(backend="dask"):
        there = wdro.select_radius(problem, RADII, folds=4, metric=deadly, refit=False)
    assert os.path.exists(marker)
    assert there.complete
    np.testing.assert_array_equal(there.scores, here.scores)


def process(losses):
    """A metric that tells where it was computed."""
    return os.getpid()
