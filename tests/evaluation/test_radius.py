"""Choosing the radius on samples that were held out."""

from __future__ import annotations

import csv
import io
import os
import pickle
import signal
import threading
import time
import warnings
from concurrent.futures.process import BrokenProcessPool

import cvxpy as cp
import joblib
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from wdro_model.evaluation.attempts import Parcel, collect
from wdro_model.evaluation.cross_validation import Fold, as_folds, hold_out, k_fold
from wdro_model.evaluation.radius import choose, default_radii
from wdro_model.evaluation.statistics import conditional_value_at_risk
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.warm_highs import WarmHighs
from wdro_model.uncertainty import LazySamples

D, N = 4, 20
RADII = [0.0, 0.01, 0.1, 1.0]


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(0).normal(0.1, 0.5, size=(N, D))


def portfolio(data, cost=None, name="returns"):
    x = cp.Variable(data.shape[1], nonneg=True, name="x")
    returns = wdro.UncertainParameter(data.shape[1], name, samples=data)
    ball = wdro.WassersteinBall(0.04, cost)
    return wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)


def tree_problem():
    """An oracle set and a loss that is not known to be convex."""
    matrices = np.random.default_rng(1).uniform(0, 10, size=(9, 5, 5))
    x = cp.Variable(5)
    costs = wdro.UncertainParameter((5, 5), samples=matrices)
    tree = wdro.sets.SpanningTree(nx.cycle_graph(5))
    ball = wdro.WassersteinBall(1.0)
    return wdro.Problem(cp.Minimize(wdro.quadratic_form(x, costs)), [wdro.In(x, tree)], ball)


def robust_portfolio(data, radius):
    """The exact counterpart, written by hand: -mean @ x + sqrt(radius) |x|."""
    x = cp.Variable(data.shape[1], nonneg=True)
    loss = -data.mean(axis=0) @ x + np.sqrt(radius) * cp.norm(x)
    cp.Problem(cp.Minimize(loss), [cp.sum(x) == 1]).solve(solver=cp.CLARABEL)
    return x.value


# ------------------------------------------------------------------ what is computed
def test_scores_are_those_of_fits_written_by_hand(data):
    folds = k_fold(N, 4, seed=2)
    result = wdro.select_radius(portfolio(data), RADII, folds=4, seed=2)
    for j, fold in enumerate(folds):
        for k, radius in enumerate(RADII):
            x = robust_portfolio(data[fold.train], radius)
            assert result.scores[k, j] == pytest.approx(-(data[fold.test] @ x).mean(), abs=1e-5)
    assert result.scores.shape == (4, 4)
    assert result.complete
    np.testing.assert_allclose(result.mean, result.scores.mean(axis=1))
    np.testing.assert_allclose(
        result.standard_error, result.scores.std(axis=1, ddof=1) / np.sqrt(4)
    )
    assert result.radius == RADII[np.argmin(result.mean)]
    assert result.erm == result.mean[0]
    assert (result.statuses == "optimal").all()


def test_the_variables_end_at_the_decision_fitted_on_everything(data):
    problem = portfolio(data)
    problem.solve()
    before = problem.solution
    result = wdro.select_radius(problem, RADII, folds=4)
    (x,) = problem.variables()
    want = robust_portfolio(data, result.radius)
    np.testing.assert_allclose(x.value, want, atol=1e-5)
    np.testing.assert_allclose(result.solution.decision[x], want, atol=1e-5)
    assert result.problem.radius == result.radius
    assert result.problem.solution is result.solution
    assert (problem.radius, problem.solution) == (0.04, before)


def test_without_a_refit_nothing_of_the_user_changes(data):
    problem = portfolio(data)
    (x,) = problem.variables()
    result = wdro.select_radius(problem, RADII, folds=2, refit=False)
    assert x.value is None
    assert result.solution is None
    x.value = np.full(D, 0.25)
    wdro.select_radius(problem, RADII, folds=2, refit=False)
    np.testing.assert_array_equal(x.value, np.full(D, 0.25))


def test_metrics_by_name_and_of_ones_own(data):
    problem, folds = portfolio(data), k_fold(N, 2, seed=0)
    held_out = [-data[f.test] @ robust_portfolio(data[f.train], 0.1) for f in folds]
    tail = wdro.select_radius(problem, [0.1], folds=2, metric="cvar")
    assert tail.scores[0] == pytest.approx(
        [conditional_value_at_risk(losses, 0.95) for losses in held_out], abs=1e-5
    )
    worst = wdro.select_radius(problem, [0.1], folds=2, metric=np.max)
    assert worst.scores[0] == pytest.approx([losses.max() for losses in held_out], abs=1e-5)
    assert worst.metric == "max"


def test_one_fold_is_a_hold_out_with_the_error_of_its_losses(data):
    result = wdro.select_radius(portfolio(data), [0.1], folds=1, holdout=0.25, seed=3)
    (fold,) = hold_out(N, 0.25, seed=3)
    assert len(fold.test) == 5
    losses = -data[fold.test] @ robust_portfolio(data[fold.train], 0.1)
    assert result.scores[0, 0] == pytest.approx(losses.mean(), abs=1e-5)
    assert result.standard_error[0] == pytest.approx(losses.std(ddof=1) / np.sqrt(5), abs=1e-5)


def test_external_scenarios_judge_fits_on_all_samples(data, rng):
    problem = portfolio(data)
    (returns,) = problem.uncertain_parameters()
    test = rng.normal(size=(50, D))
    want = -(test @ robust_portfolio(data, 0.1)).mean()
    lazy = LazySamples(lambda k: test[k], 50, (D,))
    for scenarios in (test, {returns: test}, lazy, test.tolist()):
        result = wdro.select_radius(problem, [0.1], test=scenarios)
        assert result.scores.shape == (1, 1)
        assert result.scores[0, 0] == pytest.approx(want, abs=1e-5)


def test_weights_and_several_parameters_are_refitted_in_each_fold(data):
    """A standardized cost sees the training samples of the fold and nothing else."""
    x = cp.Variable(D, nonneg=True)
    a = wdro.UncertainParameter(2, "a", samples=data[:, :2])
    b = wdro.UncertainParameter(2, "b", samples=data[:, 2:])
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(
        cp.Minimize(-a @ x[:2] - b @ x[2:]), [cp.sum(x) == 1], wdro.WassersteinBall(1.0, cost)
    )
    result = wdro.select_radius(problem, [0.2], folds=3, seed=1)
    for j, fold in enumerate(k_fold(N, 3, seed=1)):
        train = data[fold.train]
        y = cp.Variable(D, nonneg=True)
        loss = -train.mean(axis=0) @ y
        loss += np.sqrt(0.2) * cp.norm(cp.multiply(train.std(axis=0), y))
        cp.Problem(cp.Minimize(loss), [cp.sum(y) == 1]).solve(solver=cp.CLARABEL)
        want = -(data[fold.test] @ y.value).mean()
        assert result.scores[0, j] == pytest.approx(want, abs=1e-5)


def test_each_solve_starts_from_the_one_before(data):
    starts = []

    class Noting(FrankWolfe):
        def run(self, objective, feasible, start, **more):
            starts.append(more.get("active_set"))
            return super().run(objective, feasible, start, **more)

    wdro.select_radius(portfolio(data), [0.1, 0.2, 0.4], folds=2, solver=Noting(), refit=False)
    assert [active is None for active in starts] == [True, False, False] * 2


def test_a_loss_that_is_not_convex_is_said_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = wdro.select_radius(tree_problem(), [0.0, 1.0], folds=3)
    convexity = [w for w in caught if issubclass(w.category, wdro.ConvexityWarning)]
    assert len(convexity) <= 1
    assert len(caught) == len(convexity)
    assert np.isfinite(result.scores).all()


def test_the_same_seed_gives_the_same_and_touches_no_global_state(data):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = wdro.select_radius(portfolio(data), RADII, folds=3, seed=7)
    second = wdro.select_radius(portfolio(data), RADII, folds=3, seed=7)
    other = wdro.select_radius(portfolio(data), RADII, folds=3, seed=8)
    np.testing.assert_array_equal(first.scores, second.scores)
    assert (first.scores != other.scores).any()
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


# ------------------------------------------------------------------ the rule
def test_rules():
    mean, error = np.array([3.0, 1.0, 1.2, 1.4, 2.0]), np.full(5, 0.5)
    counts = np.full(5, 4)
    assert choose("min", mean, error, counts) == 1
    assert choose("one_standard_error", mean, error, counts) == 3
    assert choose("one_standard_error", mean, np.zeros(5), counts) == 1
    # A radius that failed on a fold cannot win, unless all did.
    assert choose("min", mean, error, np.array([4, 3, 4, 4, 4])) == 2
    assert choose("min", mean, error, np.full(5, 1)) == 1
    # Two that are equal: the smaller ball.
    assert choose("min", np.zeros(3), np.zeros(3), np.full(3, 2)) == 0


# ------------------------------------------------------------------ folds
@given(size=st.integers(2, 60), seed=st.integers(0, 5), data=st.data())
@settings(deadline=None, max_examples=40)
def test_folds_share_out_the_samples(size, seed, data):
    count = data.draw(st.integers(2, size))
    folds = k_fold(size, count, seed)
    tests = np.concatenate([fold.test for fold in folds])
    assert sorted(tests) == list(range(size))
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    for fold in folds:
        assert sorted([*fold.train, *fold.test]) == list(range(size))


@pytest.mark.parametrize(("size", "share", "count"), [(10, 0.3, 3), (2, 0.01, 1), (3, 0.99, 2)])
def test_hold_out_leaves_both_sides_something(size, share, count):
    (fold,) = hold_out(size, share)
    assert len(fold.test) == count
    assert sorted([*fold.train, *fold.test]) == list(range(size))


def test_splits_in_the_style_of_scikit_learn(data):
    class Halves:
        def split(self, X, y=None, groups=None):
            assert X.shape[0] == N
            yield np.arange(10), np.arange(10, N)
            yield np.arange(10, N), np.arange(10)

    pairs = list(Halves().split(np.zeros((N, 1))))
    masks = [(np.arange(N) < 10, np.arange(N) >= 10), (range(10, N), slice(0, 10))]
    problem = portfolio(data)
    want = wdro.select_radius(problem, RADII, folds=Halves()).scores
    for folds in (pairs, masks, [Fold(*pair) for pair in pairs], iter(pairs)):
        np.testing.assert_array_equal(wdro.select_radius(problem, RADII, folds=folds).scores, want)
    x = robust_portfolio(data[:10], 0.1)
    assert want[2, 0] == pytest.approx(-(data[10:] @ x).mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("folds", "more", "message"),
    [
        (21, {}, r"folds=21 needs at least 21 samples, there are 20; use folds=20 \(leave one out"),
        (0, {}, "folds must be a positive integer.*got 0"),
        (-3, {}, "got -3"),
        (2.5, {}, "got 2.5"),
        (True, {}, "got True"),
        ("five", {}, "got 'five'"),
        (None, {}, "got None"),
        ([], {}, "folds is empty"),
        ([1, 2], {}, r"fold 0 must be a pair of indices \(train, test\), got 1"),
        ([([0], [1], [2])], {}, "fold 0 must be a pair"),
        ([([0], [20])], {}, "test samples of fold 0 must lie between 0 and 19, got 20"),
        ([([0, 1], [])], {}, "test samples of fold 0 are empty"),
        ([([0], [1]), ([0, 3, 5], [5, 6])], {}, "fold 1 fits and judges on the same sample 5"),
        (5, {"holdout": 0.3}, "holdout=0.3 goes with folds=1, got folds=5"),
        (1, {"holdout": 1.5}, "holdout must be a number between 0 and 1, got 1.5"),
    ],
)
def test_bad_folds(folds, more, message):
    with pytest.raises(ValueError, match=message):
        as_folds(folds, N, **more)


def test_one_sample_cannot_be_split(data):
    problem = portfolio(data[:1])
    with pytest.raises(ValueError, match="needs at least 5 samples, there are 1; give test="):
        wdro.select_radius(problem, RADII)
    with pytest.raises(ValueError, match="a hold-out needs at least 2 samples, there is 1"):
        wdro.select_radius(problem, RADII, folds=1, holdout=0.3)
    assert wdro.select_radius(problem, RADII, test=data).complete


# ------------------------------------------------------------------ the grid
def test_default_radii_span_sampling_error_and_spread(data):
    result = wdro.select_radius(portfolio(data), refit=False)
    total_variance = data.var(axis=0).sum()
    assert result.radii[0] == 0
    assert result.radii[1] == pytest.approx(0.01 * total_variance / N)
    assert result.radii[-1] == pytest.approx(total_variance)
    assert len(result.radii) == 11
    ratios = result.radii[2:] / result.radii[1:-1]
    np.testing.assert_allclose(ratios, ratios[0])


def test_default_radii_for_other_costs(data):
    def grid(cost):
        model = portfolio(data, cost)._model
        return default_radii(model.joint, model.cost, model.ambiguity.cost.order)

    deviations = data - data.mean(axis=0)
    by_norm = grid(wdro.costs.Norm(1))
    assert by_norm[-1] == pytest.approx(np.abs(deviations).sum(axis=1).mean())
    assert by_norm[1] == pytest.approx(0.01 * by_norm[-1] / np.sqrt(N))
    held = grid(wdro.costs.SquaredEuclidean(weights=[1.0, np.inf, 2.0, np.inf]))
    assert held[-1] == pytest.approx(data[:, 0].var() + 2 * data[:, 2].var())
    own = grid(lambda a, b: np.abs(a - b).max(axis=1))
    assert own[-1] == pytest.approx(np.abs(deviations).max(axis=1).mean())
    standardized = grid(wdro.costs.SquaredEuclidean(weights="standardize"))
    assert standardized[-1] == pytest.approx(D)


def test_data_without_a_scale(data):
    with pytest.raises(ValueError, match=r"no scale.*all samples are the same.*radii=\[\.\.\.\]"):
        wdro.select_radius(portfolio(np.repeat(data[:1], 6, axis=0)))
    held = wdro.costs.SquaredEuclidean(weights=np.inf)
    with pytest.raises(ValueError, match="held fixed, so that the radius changes nothing"):
        wdro.select_radius(portfolio(data, held))
    with pytest.raises(ValueError, match="carrying the samples to their mean costs inf"):
        wdro.select_radius(portfolio(data, lambda a, b: np.where((a == b).all(axis=1), 0, np.inf)))


# ------------------------------------------------------------------ trouble
def test_a_fold_that_cannot_be_fitted_is_left_out(data):
    data[1:, 0] = 0.5  # constant wherever sample 0 is held out
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    with pytest.warns(UserWarning, match="4 solves of 12 failed.*needs data that varies"):
        result = wdro.select_radius(portfolio(data, cost), RADII, folds=3)
    (broken,) = np.flatnonzero(np.isnan(result.scores).all(axis=0))
    assert (result.statuses[:, broken] == "failed").all()
    assert result.counts.tolist() == [2, 2, 2, 2]
    assert result.complete
    assert "needs data that varies" in result.messages[0]
    assert "2 optimal, 1 failed" in str(result)
    assert "note: a solve failed: ValueError" in str(result)
    assert result.solution is not None


def test_a_radius_that_fails_is_not_chosen(data):
    calls = []

    def flaky(state):
        calls.append(state)
        if len(calls) == 1:
            raise cp.SolverError("no luck today")

    solver = FrankWolfe(callbacks=[flaky])
    with pytest.warns(UserWarning, match="1 solves of 6 failed.*SolverError: no luck today"):
        result = wdro.select_radius(portfolio(data), [0.1, 0.2], folds=3, solver=solver)
    assert result.statuses[0, 0] == "failed"
    assert np.isnan(result.scores[0, 0])
    assert np.isfinite(result.scores).sum() == 5
    assert result.radius == 0.2


def test_all_solves_failing_is_an_error(data):
    def never(state):
        raise cp.SolverError("never")

    solver = FrankWolfe(callbacks=[never])
    with pytest.raises(RuntimeError, match=r"all 6 solves failed\. SolverError: never"):
        wdro.select_radius(portfolio(data), [0.1, 0.2], folds=3, solver=solver)


def test_a_refit_that_fails_keeps_the_scores(data):
    calls = []

    def fails_late(state):
        if state.iteration == 0:
            calls.append(state)
        if len(calls) == 3:
            raise cp.SolverError("out of luck")

    solver = FrankWolfe(callbacks=[fails_late])
    with pytest.warns(UserWarning, match="solve on all samples failed.*out of luck"):
        result = wdro.select_radius(portfolio(data), [0.1], folds=2, solver=solver)
    assert np.isfinite(result.scores).all()
    assert result.solution is None
    assert "call result.problem.solve()" in result.notes[-1]


def test_metrics_that_are_no_numbers(data):
    problem = portfolio(data)
    with pytest.raises(TypeError, match=r"<lambda> must return one number.*shape \(2,\)"):
        wdro.select_radius(problem, RADII, metric=lambda losses: losses[:2])
    with pytest.raises(TypeError, match=r"must return one number.*NoneType"):
        wdro.select_radius(problem, RADII, metric=lambda losses: None)
    with pytest.raises(RuntimeError, match="the metric nothing is nan"):
        wdro.select_radius(problem, RADII, metric=nothing)


def nothing(losses):
    return np.nan


# ------------------------------------------------------------------ interrupts
def interrupting(after: int):
    """A metric that the user interrupts at one of its calls."""
    calls = []

    def metric(losses):
        calls.append(losses)
        if len(calls) == after:
            raise KeyboardInterrupt
        return losses.mean()

    return metric


def test_an_interrupt_keeps_the_folds_that_finished(data):
    problem = portfolio(data)
    whole = wdro.select_radius(problem, RADII, folds=4, refit=False)
    (x,) = problem.variables()
    x.value = np.full(D, 0.25)
    result = wdro.select_radius(problem, RADII, folds=4, metric=interrupting(after=11))
    assert not result.complete
    np.testing.assert_array_equal(result.scores[:, :2], whole.scores[:, :2])
    assert np.isnan(result.scores[:, 2:]).all()
    assert (result.statuses[:, 2:] == "not run").all()
    assert result.radius == RADII[np.argmin(whole.scores[:, :2].mean(axis=1))]
    assert result.solution is None
    assert "interrupted from the keyboard: 2 of 4 folds have scores" in str(result)
    np.testing.assert_array_equal(x.value, np.full(D, 0.25))
    with pytest.raises(KeyboardInterrupt):  # no fold has finished
        wdro.select_radius(problem, RADII, metric=interrupting(after=3))


def test_an_interrupted_solver_ends_the_run(data):
    """Frank-Wolfe answers Ctrl-C with its best point; the folds after it must not go on."""
    solves = []

    def callback(state):
        if state.iteration == 0:
            solves.append(state)
        if len(solves) == 4:
            raise KeyboardInterrupt

    solver = FrankWolfe(callbacks=[callback])
    result = wdro.select_radius(portfolio(data), [0.1, 0.2], folds=3, solver=solver)
    assert not result.complete
    assert np.isfinite(result.scores).all(axis=0).tolist() == [True, False, False]
    assert len(solves) == 4


def test_a_worker_that_ends_keeps_the_other_folds():
    def task(index):
        if index == 2:
            raise BrokenProcessPool("A worker process ended.\nThe exit codes are ...")
        return index

    found = collect(task, 4, {}, jobs=1, progress=False, title="")
    assert found.results == {0: 0, 1: 1}
    assert found.interruption == "a worker process ended (A worker process ended.)"


# ------------------------------------------------------------------ in parallel
def call_with_a_lambda():
    """A loss that only cloudpickle can send."""
    rng = np.random.default_rng(2)
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(8, 3)))
    loss = wdro.CallableLoss(
        lambda at, seen: (
            seen[xi] @ at[x],
            lambda w: {x: w @ seen[xi], xi: w[:, None] * at[x]},
        ),
        [x],
        [xi],
        convex=True,
    )
    return wdro.Problem(loss, [cp.sum(x) == 1], wdro.WassersteinBall(0.1))


PARALLEL = {
    "conic": (
        lambda: portfolio(np.random.default_rng(0).normal(0.1, 0.5, size=(N, D))),
        {"metric": "cvar"},
    ),
    "oracle": (tree_problem, {}),
    "sampled": (
        call_with_a_lambda,
        {
            "integration": "tilted",
            "metric": lambda losses: losses.max(),
            "solver": FrankWolfe(gap=0.05, samples=10),
        },
    ),
}


@pytest.mark.parametrize(("make", "options"), PARALLEL.values(), ids=PARALLEL)
@pytest.mark.filterwarnings("ignore::wdro_model.ConvexityWarning")
def test_processes_and_threads_give_the_same_to_the_last_bit(make, options):
    radii, problem = [0.0, 0.3], make()
    options = {"folds": 2, "refit": False, **options}
    here = wdro.select_radius(problem, radii, **options)
    elsewhere = wdro.select_radius(problem, radii, jobs=2, **options)
    np.testing.assert_array_equal(elsewhere.scores, here.scores)
    np.testing.assert_array_equal(elsewhere.errors, here.errors)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        threads = wdro.select_radius(problem, radii, **options)
    np.testing.assert_array_equal(threads.scores, here.scores)
    assert all(variable.value is None for variable in problem.variables())


def test_what_cannot_be_sent_is_named(data):
    lock = threading.Lock()

    def metric(losses):
        with lock:
            return losses.mean()

    problem = portfolio(data)
    with pytest.raises(TypeError, match=r"the metric metric cannot be sent.*lock.*use jobs=1"):
        wdro.select_radius(problem, RADII, jobs=2, metric=metric)
    assert wdro.select_radius(problem, RADII, jobs=1, metric=metric).complete
    solver = FrankWolfe(callbacks=[lambda state: lock.locked()])
    with pytest.raises(TypeError, match=r"the argument solver=FrankWolfe.*cannot be sent"):
        wdro.select_radius(problem, RADII, jobs=2, solver=solver)

    def vertex(direction):
        with lock:
            return np.eye(D)[np.argmin(direction)]

    x = cp.Variable(D)
    xi = wdro.UncertainParameter(D, samples=data)
    items = wdro.sets.Oracle(vertex, D)
    problem = wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, items)], wdro.WassersteinBall(0.1))
    with pytest.raises(TypeError, match=r"the set Oracle.*cannot be sent"):
        wdro.select_radius(problem, RADII, jobs=2)


def test_parcels_share_the_data_and_copy_the_rest():
    samples = np.zeros((200, 200))
    work = np.zeros((200, 200))
    problem = portfolio(samples)
    samples = problem.uncertain_parameters()[0].samples  # the parameter's own copy
    parcel = Parcel.pack((problem, work))
    twin, own_work = parcel.open()
    own = problem.uncertain_parameters()[0].samples
    assert np.shares_memory(twin.uncertain_parameters()[0].samples, own)
    assert np.shares_memory(twin._model.joint.matrix, own)
    assert not np.shares_memory(own_work, work)
    assert own_work.flags.writeable
    assert twin.variables()[0] is not problem.variables()[0]
    assert len(parcel.code) < 1.2 * work.nbytes


def test_ctrl_c_while_processes_run_keeps_what_came_back(data, tmp_path):
    """The first process of the third fold sends the signal, and does not end by itself."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread")
    user = os.getpid()

    def metric(losses):
        time.sleep(0.1)
        while True:
            count = len(os.listdir(tmp_path))
            try:
                os.close(os.open(tmp_path / str(count), os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                continue
        if count >= 4:
            time.sleep(0.5)  # for the results of two folds to arrive
            os.kill(user, signal.SIGINT) if count == 4 else None
            time.sleep(60)
        return losses.mean()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = wdro.select_radius(portfolio(data), [0.1, 0.2], folds=5, jobs=2, metric=metric)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not result.complete
    assert np.isfinite(result.scores).all(axis=0).sum() in (1, 2)
    assert "interrupted from the keyboard" in result.notes[0]


# ------------------------------------------------------------------ what is shown
def test_table_frame_and_notes(data):
    result = wdro.select_radius(portfolio(data), [0.0, 1e-6], folds=3, rule="one_standard_error")
    text = str(result)
    for word in ("radius", "standard error", "optimal", "<- chosen", "mean over 3 folds"):
        assert word in text
    assert "the largest radius was chosen: the best one may be larger still" in text
    frame = result.to_frame()
    assert list(frame["radius"]) == [0.0, 1e-6]
    assert list(frame["chosen"]) == [False, True]
    np.testing.assert_allclose(frame[["fold 0", "fold 1", "fold 2"]].mean(axis=1), frame["mean"])
    assert "<table" in result._repr_html_()
    heading, *lines = csv.reader(io.StringIO(result.to_csv()))
    assert heading == list(frame.columns)
    assert [float(line[1]) for line in lines] == list(frame["mean"])
    assert result.seconds >= result.fold_seconds.sum()
    twin = pickle.loads(pickle.dumps(result))
    assert (twin.radius, str(twin)) == (result.radius, text)


@pytest.mark.parametrize("radii", [[0.0, 0.001, 0.1], [0.001, 0.1], [0.0], [0.5], [0.0, 0.5], None])
@pytest.mark.parametrize("folds", [1, 3])
def test_picture(data, radii, folds, tmp_path):
    holdout = 0.3 if folds == 1 else None
    result = wdro.select_radius(portfolio(data), radii, folds=folds, holdout=holdout, refit=False)
    figure = result.plot(tmp_path / "radius.png")
    assert (tmp_path / "radius.png").stat().st_size > 10_000
    (axes,) = figure.axes
    figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert ("0" in labels) == (result.radii[0] == 0)
    names = axes.get_legend_handles_labels()[1]
    assert f"chosen: {result.radius:.3g}" in names
    assert ("ERM (radius 0)" in names) == (result.radii[0] == 0)


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"radii": [0.1, -1.0]}, "radii must be a list of finite numbers >= 0, got -1.0"),
        ({"radii": [0.1, float("nan")]}, "got nan"),
        ({"radii": [0.1, float("inf")]}, "got inf"),
        ({"radii": ["a"]}, "got 'a'"),
        ({"radii": []}, "got none"),
        ({"radii": 0.1}, r"got 0.1; write radii=\[0.01, 0.1, 1.0\]"),
        ({"radii": [0.1, 0.1]}, "the radius 0.1 is listed twice"),
        ({"radii": [1.0, 0.5]}, r"radii must increase, got 0.5 after 1.*write sorted\(radii\)"),
        ({"metric": "cvr"}, "unknown metric 'cvr'. Did you mean 'cvar'"),
        ({"metric": None}, "unknown metric None.*A function of the losses will do"),
        ({"rule": "one_standard_eror"}, "unknown rule.*Did you mean 'one_standard_error'"),
        ({"jobs": 0}, "jobs must be a nonzero integer.*got 0; -1 is one for each core"),
        ({"jobs": 1.5}, "got 1.5"),
        ({"jobs": True}, "got True"),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"seed": None}, "seed must be an integer"),
        ({"method": "exakt"}, "unknown method 'exakt'. Did you mean 'exact'"),
        ({"method": "erm"}, "method='erm' does not see the radius"),
        ({"epsilon": -1.0}, "epsilon must be a positive"),
        ({"solver": "nothing"}, "solver must be FrankWolfe"),
        ({"test": np.zeros((3, 2))}, r"test scenarios of 'returns' must have shape \(N, 4\)"),
        ({"test": np.full((3, 4), np.nan)}, "test scenarios of 'returns' must be finite"),
        ({"test": {"Return": np.zeros((3, 4))}}, "Did you mean 'returns'.*or their names"),
        ({"test": LazySamples(lambda k: np.zeros(2), 3, (2,))}, r"shape \(n, \*\(4,\)\)"),
        ({"test": np.zeros((3, 4)), "holdout": 0.3}, "test= takes the place of a hold-out"),
        (
            {"folds": 1, "holdout": 0.3, "metric": np.max, "rule": "one_standard_error"},
            "one fold has none for the metric 'max'",
        ),
    ],
)
def test_bad_input(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        wdro.select_radius(portfolio(data), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": "mean"}, "unknown argument 'metrics'. Did you mean 'metric'"),
        ({"start": None}, "select_radius sets start= itself"),
        ({"epsilonn": 1.0}, "Did you mean 'epsilon'"),
    ],
)
def test_misspelt_arguments(data, arguments, message):
    with pytest.raises(TypeError, match=message):
        wdro.select_radius(portfolio(data), **arguments)


def test_problems_without_a_radius(data):
    x = cp.Variable(D, nonneg=True)
    certain = wdro.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) == 1])
    with pytest.raises(ValueError, match="no radius to choose: the loss has no uncertain param"):
        wdro.select_radius(certain)
    xi = wdro.UncertainParameter(D, samples=data)
    with pytest.raises(ValueError, match="no radius to choose: the problem has no ambiguity set"):
        wdro.select_radius(wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1]))
    with pytest.raises(TypeError, match="needs a wdro Problem, got Problem"):
        wdro.select_radius(cp.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) == 1]))


# ------------------------------------------------------------------ what it is for
def test_a_chosen_radius_beats_erm_out_of_sample():
    """Quadratic utility of Gaussian returns with few samples, judged by its exact expectation.

    E (r @ x - t)^2 = (mu @ x - t)^2 + x' S x has its minimum over sum(x) = 1 in closed form; ERM
    fits ten weights to twenty samples.
    """
    assets, target, gains, losses_of_erm = 10, 0.2, [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mu, volatility = rng.uniform(0.05, 0.15, assets), rng.uniform(0.1, 0.3, assets)
        factors = rng.normal(0.0, 0.5, size=(assets, 2))
        covariance = factors @ factors.T + np.eye(assets)
        scale = volatility / np.sqrt(np.diag(covariance))
        covariance *= np.outer(scale, scale)
        samples = rng.multivariate_normal(mu, covariance, size=20)
        x = cp.Variable(assets, bounds=[-3, 3])
        returns = wdro.UncertainParameter(assets, samples=samples)
        problem = wdro.Problem(
            cp.Minimize(cp.square(returns @ x - target)),
            [cp.sum(x) == 1],
            wdro.WassersteinBall(0.01),
        )

        def risk(weights, mu=mu, covariance=covariance):
            return (mu @ weights - target) ** 2 + weights @ covariance @ weights

        wdro.select_radius(problem, [0.0, 0.01, 0.03, 0.1], folds=3, seed=seed)
        chosen = risk(x.value)
        problem.solve(method="erm")
        second = covariance + np.outer(mu, mu)
        kkt = np.block([[second, np.ones((assets, 1))], [np.ones((1, assets)), np.zeros((1, 1))]])
        best = np.linalg.solve(kkt, np.append(target * mu, 1.0))[:assets]
        assert risk(best) <= min(chosen, risk(x.value)) + 1e-9
        gains.append(risk(x.value) - chosen)
        losses_of_erm.append(risk(x.value) - risk(best))
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert np.mean(gains) > 3 * error
    assert np.mean(gains) > 0.3 * np.mean(losses_of_erm)


def test_an_interrupt_in_a_solve_keeps_the_folds_that_finished(monkeypatch):
    """Ctrl-C while a kept program is solved again, in the middle of the third fold."""
    rng = np.random.default_rng(0)
    x, t = cp.Variable(3, nonneg=True), cp.Variable()
    xi = wdro.UncertainParameter(3, samples=rng.normal(0.1, 0.3, size=(20, 3)))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    loss = t + cp.pos(-xi @ x - t) / 0.2
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ambiguity=ball)
    radii, run, count = [0.01, 0.05, 0.1], WarmHighs.run, []
    known = wdro.select_radius(problem, radii, folds=4, progress=False)

    def interrupted(self):
        count.append(1)
        if len(count) == 6:
            raise KeyboardInterrupt
        return run(self)

    monkeypatch.setattr(WarmHighs, "run", interrupted)
    found = wdro.select_radius(problem, radii, folds=4, progress=False)
    assert not found.complete
    assert np.isfinite(found.scores).all(axis=0).tolist() == [True, True, False, False]
    assert found.scores[:, :2] == pytest.approx(known.scores[:, :2], rel=1e-5)
    assert found.problem.status is None
    monkeypatch.undo()
    again = wdro.select_radius(problem, radii, folds=4, progress=False)
    assert again.scores == pytest.approx(known.scores, rel=1e-5)
