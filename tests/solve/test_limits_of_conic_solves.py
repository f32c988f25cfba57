"""Time limits and Ctrl-C in conic solves: a feasible decision comes back, with an honest value."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.solvers import cone_solver, patience
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.patience import Watch, run_interruptible


def absolute_regression(size=40, width=3, cost=None, constraints=lambda x: [cp.sum(x) == 1]):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((size, width))
    targets = features @ np.arange(1.0, width + 1) + rng.standard_normal(size)
    x = cp.Variable(width)
    xi = wdro.UncertainParameter(width, samples=features)
    y = wdro.UncertainParameter(samples=targets)
    ball = wdro.WassersteinBall(0.1, cost or wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(cp.abs(y - xi @ x)), constraints(x), ball)
    return problem, x, features, targets


def by_hand(x, features, targets):
    """Mean loss plus radius times the norm of its slope (-x, 1)."""
    return np.abs(targets - features @ x).mean() + 0.1 * np.sqrt(1 + x @ x)


@pytest.mark.parametrize("method", ["exact", "erm"])
def test_without_time_some_feasible_decision_comes_back(method):
    problem, x, features, targets = absolute_regression()
    value = problem.solve(method, time_limit=1e-9)
    assert problem.status == "user_limit"
    assert problem.solution.stop == "time limit"
    assert x.value.sum() == pytest.approx(1)
    assert np.array_equal(x.value, problem.solution.decision[x])
    mean = np.abs(targets - features @ x.value).mean()
    true = by_hand(x.value, features, targets) if method == "exact" else mean
    assert value == pytest.approx(true, rel=1e-9)
    assert problem.solution.gap is None
    assert "nearest to zero" in problem.solution.notes[0]


def test_without_time_a_start_comes_back():
    problem, x, features, targets = absolute_regression()
    value = problem.solve(time_limit=1e-9, start={x: [0.0, 0.0, 1.0]})
    assert x.value == pytest.approx([0.0, 0.0, 1.0])
    assert value == pytest.approx(by_hand(x.value, features, targets))
    assert "the start" in problem.solution.notes[0]


def test_without_time_no_integer_decision_is_an_error_with_a_way_out():
    z = cp.Variable(3, integer=True)
    xi = wdro.UncertainParameter(3, samples=np.random.default_rng(0).standard_normal((5, 3)))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    whole = wdro.Problem(cp.Minimize(cp.abs(xi @ z - 1)), [z >= 0, cp.sum(z) == 2], ball)
    z.value = np.array([1.0, 1.0, 0.0])
    with pytest.raises(TimeoutError, match="longer time_limit"):
        whole.solve(solver="HIGHS", time_limit=1e-9)
    assert np.array_equal(z.value, [1.0, 1.0, 0.0])
    assert whole.solution is None


def test_the_point_that_a_solver_reached_comes_back(monkeypatch):
    """A solver that is stopped in the middle: its point is moved into the feasible set."""
    problem, x, features, targets = absolute_regression()
    original = Conic.run

    def run(self, inner, **shown):
        original(self, inner, **shown)
        for variable in inner.variables():
            variable.save_value(variable.value + 0.01)
        inner._status = "user_limit"
        raise OutOfTime

    monkeypatch.setattr(Conic, "run", run)
    value = problem.solve()
    assert problem.status == "user_limit"
    assert x.value.sum() == pytest.approx(1)
    assert value == pytest.approx(by_hand(x.value, features, targets))
    assert "reached" in problem.solution.notes[0]


def test_a_value_that_takes_too_long_is_nan_with_a_note():
    """On a polyhedron the worst-case risk of a decision is a conic program itself."""
    rng = np.random.default_rng(0)
    data = rng.uniform(0.2, 0.8, (30, 2))
    x = cp.Variable(2)
    support = wdro.supports.Polyhedron([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [2.0, 0.0, 0.0])
    xi = wdro.UncertainParameter(2, samples=data, support=support)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(cp.abs(xi @ x - 1)), [cp.norm(x) <= 2], ball)
    value = problem.solve(time_limit=1e-9)
    if np.isnan(value):
        assert "want of time" in problem.solution.notes[-1]
    else:
        assert value == pytest.approx(problem.robust_value())
    assert problem.status == "user_limit"


def test_a_solve_after_one_without_time_is_as_good_as_new():
    problem, other = absolute_regression()[0], absolute_regression()[0]
    problem.solve(time_limit=1e-9)
    assert problem.solve() == pytest.approx(other.solve(), rel=1e-9)
    assert problem.status == "optimal"
    assert "note" not in str(problem.solution)


def test_smoothed_without_time_says_so():
    problem, x, _, _ = absolute_regression()
    value = problem.solve("smoothed", time_limit=1e-9)
    assert problem.status == "user_limit"
    assert np.isnan(value)
    assert np.isfinite(x.value).all()
    assert any("epsilon" in note for note in problem.solution.notes)


# ------------------------------------------------------------------ calls that take long
def test_a_call_that_does_not_end_is_left_behind(monkeypatch):
    monkeypatch.setattr(patience, "GRACE", 0.01)
    with pytest.raises(OutOfTime), deadline(0.01):
        run_interruptible(lambda: time.sleep(1.0), Watch())


def test_a_call_that_is_asked_to_end_gives_what_it_has():
    watch = Watch()

    def work():
        while not watch.stop:
            time.sleep(0.001)
        return "so far"

    with deadline(0.01):
        assert run_interruptible(work, watch) == "so far"


def test_an_error_of_a_call_is_raised_where_it_is_waited_for():
    with pytest.raises(ZeroDivisionError):
        run_interruptible(lambda: 1 / 0, Watch())


def test_a_bar_shows_the_gap_of_a_long_call(monkeypatch):
    lines = []

    class Bar:
        n = 0

        def __init__(self, title, unit):
            lines.append(title)

        def set_postfix_str(self, text, refresh):
            lines.append(text)

        def update(self, steps):
            self.n += steps
            lines.append(steps)

        def close(self):
            lines.append("closed")

    monkeypatch.setattr(patience, "SHOWN", 0.0)
    monkeypatch.setattr(patience, "TICK", 0.01)
    monkeypatch.setattr(patience, "progress_bar", Bar)
    watch = Watch("exact", show=True, iterations=7, gap=1e-3)
    run_interruptible(lambda: time.sleep(0.1), watch)
    assert lines[:3] == ["exact", "gap 1.0e-03", 7]
    assert lines[-1] == "closed"


CHILD = """
import os, signal, sys, threading, time
import cvxpy as cp, numpy as np
import wdro_model as wdro

rng = np.random.default_rng(0)
features = rng.standard_normal((10_000, 100))
targets = features.sum(axis=1) + rng.standard_normal(10_000)
x = cp.Variable(100)
x.value = np.ones(100)
xi, y = wdro.UncertainParameter(100, samples=features), wdro.UncertainParameter(samples=targets)
ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
problem = wdro.Problem(cp.Minimize(cp.abs(y - xi @ x)), [], ball)

def interrupt():
    time.sleep({after})
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    problem.solve(solver="CLARABEL")
    print("came back", problem.status, problem.solution.stop, np.isfinite(problem.value))
except KeyboardInterrupt:
    print("interrupted", problem.status, np.array_equal(x.value, np.ones(100)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
@pytest.mark.parametrize("after", [0.3, 3.0])
def test_control_c_ends_a_conic_solve(after):
    """In compilation or in the solver: either a point comes back, or nothing is changed."""
    script = textwrap.dedent(CHILD).replace("{after}", str(after))
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    lines = found.stdout.strip().splitlines()
    assert lines, found.stderr
    assert lines[-1] in (
        "interrupted None True",
        "came back user_limit interrupted from the keyboard True",
    ), found.stdout + found.stderr
    assert found.returncode in (0, -signal.SIGINT)


# ------------------------------------------------------------------ programs in their own process
def over_a_polyhedron(size, width, seed=0):
    """One program of about 4 size width^2 numbers: a CVaR and a limit on another one."""
    rng = np.random.default_rng(seed)
    sides = np.vstack([np.eye(width), -np.eye(width), rng.uniform(0, 1, (width, width))])
    limits = np.r_[np.ones(width), np.zeros(width), width * np.ones(width)]
    support = wdro.supports.Polyhedron(sides, limits)
    xi = wdro.UncertainParameter(width, samples=rng.uniform(0, 1, (size, width)), support=support)
    x = cp.Variable(width, nonneg=True)
    ball = wdro.WassersteinBall(0.02, wdro.costs.Norm(2))
    loss = wdro.cvar(-xi @ x, 0.8)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball), x


def test_a_large_program_keeps_its_limit():
    """Its compilation and one iteration of its solver take seconds in C, which hears of nothing."""
    problem, x = over_a_polyhedron(1500, 30)
    began = time.monotonic()
    problem.solve(time_limit=1.0, progress=False)
    assert time.monotonic() - began < 3.0
    assert problem.status == "user_limit"
    assert x.value.sum() == pytest.approx(1, abs=1e-6)


def test_a_program_in_its_own_process_has_the_same_answer(monkeypatch):
    plain, x = over_a_polyhedron(20, 3)
    expected, decision = plain.solve(), x.value
    monkeypatch.setattr(cone_solver, "LARGE", 0)
    apart, x = over_a_polyhedron(20, 3)
    for _ in range(2):
        assert apart.solve(time_limit=60) == pytest.approx(expected, rel=1e-6)
        assert apart.status == "optimal"
        assert x.value == pytest.approx(decision, abs=1e-4)
    other = plain.with_radius(0.3).solve()
    assert apart.with_radius(0.3).solve(time_limit=60) == pytest.approx(other, rel=1e-5)
    assert apart.with_radius(0.3).solve() == pytest.approx(other, rel=1e-5)


def test_errors_come_out_of_their_own_process(monkeypatch):
    monkeypatch.setattr(cone_solver, "LARGE", 0)
    xi = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    x = cp.Variable(2)
    ball = wdro.WassersteinBall(0.1)
    with pytest.raises(wdro.UnboundedError, match="unbounded below"):
        wdro.Problem(cp.Minimize(xi @ x), [x <= 1], ball).solve(time_limit=30)
    with pytest.raises(cp.error.SolverError, match="ended without an answer"), deadline(30):
        run_interruptible(lambda: os.kill(os.getpid(), signal.SIGKILL), Watch(), is_large=True)


def test_a_process_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(patience, "GRACE", 0.01)
    before = multiprocessing.active_children()
    with pytest.raises(OutOfTime), deadline(0.1):
        run_interruptible(lambda: time.sleep(60), Watch(), is_large=True)
    assert multiprocessing.active_children() == before


def test_a_loss_that_outgrows_the_cost_is_refused_at_once():
    """Features and labels move: their product grows faster than a distance, but for x = 0."""
    rng = np.random.default_rng(0)
    features = wdro.UncertainParameter(3, samples=rng.standard_normal((30, 3)))
    label = wdro.UncertainParameter(samples=np.sign(rng.standard_normal(30)))
    x = cp.Variable(3)
    hinge = cp.pos(1 - label * (features @ x))
    for constraints in ([cp.norm(x) <= 5], [x >= -1, x <= 1], []):
        problem = wdro.Problem(
            cp.Minimize(hinge), constraints, wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
        )
        began = time.monotonic()
        with pytest.raises(wdro.UnboundedError, match="grows faster than the cost"):
            problem.solve(time_limit=2.0, progress=False)
        assert time.monotonic() - began < 3.0


def test_nested_integrals_keep_the_limit():
    """Two forms of the data, each integral within another: the kernels look at the clock."""
    rng = np.random.default_rng(0)
    features = wdro.UncertainParameter(
        3, samples=rng.standard_normal((40, 3)), support=wdro.supports.Everywhere()
    )
    label = wdro.UncertainParameter(samples=np.sign(rng.standard_normal(40)))
    x = cp.Variable(3)
    loss = cp.logistic(-features @ x) + cp.abs(label - features[0] * 0.3)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(loss), [cp.norm(x) <= 5], ball)
    began = time.monotonic()
    problem.solve("smoothed", time_limit=1.0, progress=False)
    assert time.monotonic() - began < 3.0
