"""The loop: statuses, limits, callbacks, interruption, trace, table."""

import numpy as np
import pytest

from tests.solvers.problems import Smooth, box, quadratic, random_quadratic, simplex
from wdro_model.sets import Oracle
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, OpenLoop, Stop
from wdro_model.solvers.directions import BlendedPairwise, Move, Plain
from wdro_model.solvers.driver import Limits, Rules, relative_gap, run
from wdro_model.solvers.gradients import Exact, Full, Momentum
from wdro_model.solvers.objective import Point
from wdro_model.solvers.steps import LineSearch

MATRIX, LINEAR = random_quadratic(8, seed=0)
LINEAR *= 0.1


def solve(objective=None, feasible=None, start=None, display=None, **options):
    feasible = feasible or simplex(8)
    start = np.eye(feasible.dimension)[0] if start is None else start
    return FrankWolfe(**options).run(
        objective or quadratic(MATRIX, LINEAR),
        feasible,
        start,
        rng=np.random.default_rng(0),
        **(display or {}),
    )


# ------------------------------------------------------------------ why a run ends
def test_gap_stop():
    outcome = solve(gap=1e-5)
    assert outcome.stop is Stop.GAP
    assert relative_gap(outcome.gap, outcome.point.value) <= 1e-5
    assert outcome.lower_bound <= outcome.point.value


@pytest.mark.parametrize("verbose", [False, True])
def test_time_limit_is_reported_silent_or_verbose(verbose, capsys):
    outcome = solve(time_limit=1e-9, gap=0.0, max_iterations=10**6, display={"verbose": verbose})
    assert outcome.stop is Stop.TIME
    assert outcome.iterations == 0
    assert ("stopped: time limit" in capsys.readouterr().out) == verbose


def test_iteration_limit():
    outcome = solve(max_iterations=3, gap=0.0, direction="plain")
    assert outcome.stop is Stop.ITERATIONS
    assert outcome.iterations == 3
    assert len(outcome.trace) == 4


def test_no_iterations_still_gives_a_certificate():
    outcome = solve(max_iterations=0, gap=0.0)
    assert outcome.stop is Stop.ITERATIONS
    np.testing.assert_array_equal(outcome.x, np.eye(8)[0])
    assert outcome.oracle_calls == 1
    assert outcome.lower_bound == pytest.approx(outcome.point.value - outcome.gap)


def test_an_optimal_value_of_zero():
    objective = quadratic(np.eye(8), np.zeros(8))
    outcome = solve(objective, feasible=box(8), start=np.ones(8), gap=1e-6)
    assert outcome.stop is Stop.GAP
    assert outcome.point.value == 0.0


def test_a_start_at_the_optimum_stops_at_once():
    objective = quadratic(np.zeros((8, 8)), np.arange(8.0))
    outcome = solve(objective, gap=0.0)
    assert (outcome.stop, outcome.iterations, outcome.point.value) == (Stop.GAP, 0, 0.0)


def test_a_run_that_cannot_improve_says_so():
    # the gradient promises descent that the values do not keep
    objective = Smooth(lambda x: (float(x @ np.arange(8)), -np.arange(8.0)))
    outcome = solve(objective)
    assert outcome.stop is Stop.STALLED
    assert outcome.iterations == 0


def test_a_failed_direction_is_retried_as_a_plain_step():
    class Uphill(Plain):
        """Proposes a direction of ascent."""

        needs_line_search = True

        def start(self, x, gradient_at):
            state = super().start(x, gradient_at)
            state.propose = lambda x, gradient, vertex, gap: Move(x - vertex)
            return state

    outcome = solve(direction=Uphill(), gap=1e-2, max_iterations=500)
    assert outcome.stop is Stop.GAP


# ------------------------------------------------------------------ callbacks
def test_callbacks_see_each_state_and_may_stop():
    states = []

    def watch(state):
        states.append(state)
        return state.iteration == 4

    outcome = solve(callbacks=[watch], gap=0.0, direction="plain")
    assert outcome.stop is Stop.CALLBACK
    assert [s.iteration for s in states] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(outcome.x, states[-1].x)
    for state in states:
        expected = state.gradient @ (state.x - state.vertex)
        assert state.gap == pytest.approx(expected)
        assert state.dual is None


def test_a_callback_may_answer_with_a_numpy_truth_value():
    outcome = solve(callbacks=[lambda state: np.True_], gap=0.0)
    assert (outcome.stop, outcome.iterations) == (Stop.CALLBACK, 0)


def test_answers_that_are_no_truth_values_do_not_stop():
    outcome = solve(callbacks=[lambda state: 1, lambda state: "stop"], gap=1e-3)
    assert outcome.stop is Stop.GAP


# ------------------------------------------------------------------ Ctrl-C
def interrupted_oracle(at):
    """A simplex whose oracle is interrupted at its call number `at`, counted from 0."""
    calls = []

    def lmo(direction):
        calls.append(0)
        if len(calls) > at:
            raise KeyboardInterrupt
        return np.eye(8)[np.argmin(direction)]

    return Oracle(lmo, 8)


@pytest.mark.parametrize("direction", ["plain", "biconjugate", "blended_pairwise"])
def test_ctrl_c_in_the_oracle_returns_the_last_certified_point(direction):
    # Two iterations, and one look whether the function maximises.
    outcome = solve(feasible=interrupted_oracle(4), direction=direction, gap=0.0)
    reference = solve(direction=direction, gap=0.0, max_iterations=2)
    assert outcome.stop is Stop.INTERRUPT
    assert outcome.iterations == 2
    np.testing.assert_array_equal(outcome.x, reference.x)
    assert outcome.gap == reference.gap
    assert outcome.active_set is None


def test_ctrl_c_in_the_first_oracle_call_returns_the_start():
    outcome = solve(feasible=interrupted_oracle(0))
    assert outcome.stop is Stop.INTERRUPT
    np.testing.assert_array_equal(outcome.x, np.eye(8)[0])
    assert outcome.gap == np.inf
    assert outcome.lower_bound == -np.inf
    assert outcome.point.value == pytest.approx(MATRIX[0, 0] + LINEAR[0])


@pytest.mark.parametrize("when", [2, 5, 9])
def test_ctrl_c_in_the_objective_returns_the_last_point(when):
    objective = quadratic(MATRIX, LINEAR)
    inner = objective.function

    def function(x):
        if objective.evaluations > when:
            raise KeyboardInterrupt
        return inner(x)

    objective.function = function
    outcome = solve(objective, gap=0.0, direction="plain")
    assert outcome.stop is Stop.INTERRUPT
    assert np.isfinite(outcome.point.value)


def test_ctrl_c_in_a_callback_returns_the_last_point():
    def callback(state):
        if state.iteration == 3:
            raise KeyboardInterrupt

    outcome = solve(callbacks=[callback], gap=0.0)
    assert (outcome.stop, outcome.iterations) == (Stop.INTERRUPT, 2)


def test_ctrl_c_before_anything_is_known_is_an_interrupt():
    def function(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(Smooth(function))


# ------------------------------------------------------------------ what goes in
def test_the_start_is_not_modified():
    start = np.full(8, 1 / 8)
    for direction in (
        "plain",
        "biconjugate",
        "blended_pairwise",
        "blended_conjugate",
        "blended_newton",
    ):
        outcome = solve(start=start, direction=direction, max_iterations=20)
        np.testing.assert_array_equal(start, np.full(8, 1 / 8))
        assert not np.shares_memory(outcome.x, start)


def test_an_integer_start_will_do():
    assert solve(start=np.eye(8, dtype=int)[0], gap=1e-3).stop is Stop.GAP


def test_a_start_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"starting point must have shape \(8,\), got \(3,\)"):
        solve(start=np.ones(3))
    with pytest.raises(ValueError, match="give start or active_set"):
        FrankWolfe().run(quadratic(MATRIX, LINEAR), simplex(8), None, rng=np.random.default_rng(0))


@pytest.mark.parametrize("first", [0.1, -1e-13, 1 + 1e-13])
def test_iterates_respect_the_bounds_exactly(first):
    """The start as well, which rounding may have left."""
    points = []
    solve(
        quadratic(MATRIX, LINEAR),
        feasible=box(8),
        start=np.append(first, np.full(7, 0.1)),
        callbacks=[lambda state: points.append(state.x) and None],
        gap=1e-9,
    )
    assert len(points) > 3
    assert all(np.all((x >= 0) & (x <= 1)) for x in points)


def test_a_gradient_that_is_not_finite_is_refused_with_iteration_and_coordinate():
    def function(x):
        gradient = np.arange(8.0)[::-1].copy()
        if x[0] < 1:
            gradient[5] = np.nan
        return float(x @ np.arange(8.0)[::-1]), gradient

    message = "gradient of the objective in coordinate 5 is nan at iteration 1"
    with pytest.raises(FloatingPointError, match=message):
        solve(Smooth(function), direction="plain", step="open_loop")


def test_a_value_that_is_not_finite_is_refused():
    with pytest.raises(FloatingPointError, match="the objective is inf at iteration 0"):
        solve(Smooth(lambda x: (np.inf, np.ones(8))))


def test_rules_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"BlendedPairwise\(\) needs a step rule that looks along"):
        Rules(BlendedPairwise(), OpenLoop(), Full(), Exact())
    with pytest.raises(ValueError, match=r"needs full gradients, got Momentum\(batch_size=10\)"):
        Rules(Plain(), LineSearch(), Momentum(), Exact())


# ------------------------------------------------------------------ the dual variable
class Saddle:
    """F(x, l) = |x - a|^2 + (l - 2 - x_0)^2, minimised over x in the simplex and l in [0, 5]."""

    convex = True
    size = 4
    target = np.array([0.7, 0.2, 0.1])

    def evaluate(self, x, dual=None):
        difference = x - self.target
        off = dual - 2.0 - x[0]
        gradient = 2 * difference
        gradient[0] -= 2 * off
        return Point(float(difference @ difference + off**2), gradient, dual, 2 * off)


def test_vertex_steps_move_decision_and_dual_together():
    outcome = FrankWolfe(direction="plain", gap=0.0, max_iterations=3000).run(
        Saddle(), simplex(3), np.eye(3)[1], rng=np.random.default_rng(0), dual_bound=5.0
    )
    assert outcome.trace["dual"][0] == 2.5
    assert np.all((outcome.trace["dual"] >= 0) & (outcome.trace["dual"] <= 5))
    assert outcome.point.value <= outcome.gap + 1e-12
    assert outcome.gap < 2e-2
    np.testing.assert_allclose(outcome.x, Saddle.target, atol=2e-2)
    assert outcome.dual == pytest.approx(2.7, abs=2e-2)
    assert np.all(np.diff(outcome.trace["value"]) <= 1e-12)


def test_the_dual_has_its_share_of_the_gap():
    outcome = FrankWolfe(max_iterations=0).run(
        Saddle(), simplex(3), np.eye(3)[0], rng=np.random.default_rng(0), dual_bound=5.0
    )
    # dual 2.5, derivative 2 (2.5 - 3) = -1: towards 5, (5 - 2.5) * 1; x as computed by hand:
    # gradient 2 (0.3, -0.2, -0.1) + (1, 0, 0), so <g, x - v> = 1.6 - (-0.4)
    assert outcome.gap == pytest.approx(2.5 + 2.0)


# ------------------------------------------------------------------ trace and table
def test_trace_columns():
    outcome = solve(gap=1e-4)
    columns = outcome.trace.columns()
    assert list(columns) == ["iteration", "time", "value", "gap", "dual", "step", "oracle_calls"]
    assert {len(column) for column in columns.values()} == {len(outcome.trace)}
    np.testing.assert_array_equal(columns["iteration"], np.arange(outcome.iterations + 1))
    np.testing.assert_array_equal(columns["oracle_calls"], columns["iteration"] + 1)
    assert np.all(np.diff(columns["time"]) >= 0)
    assert columns["value"][-1] == outcome.point.value
    assert columns["gap"][-1] == outcome.gap
    assert np.all(columns["step"][:-1] > 0)
    assert np.isnan(columns["step"][-1])
    assert np.isnan(columns["dual"]).all()


def test_an_unknown_column_is_named():
    with pytest.raises(KeyError, match=r"unknown column 'gaps'.*Did you mean 'gap'"):
        solve(gap=1e-1).trace["gaps"]


def test_verbose_table(capsys):
    outcome = solve(direction="plain", gap=0.0, max_iterations=12, display={"verbose": True})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["iteration", "value", "gap", "dual", "step", "seconds"]
    assert [int(line.split()[0]) for line in lines[1:-1]] == [0, 1, 2, 5, 10, 12]
    assert float(lines[1].split()[1]) == pytest.approx(outcome.trace["value"][0], rel=1e-6)
    assert lines[-1] == "stopped: iteration limit"


def test_a_silent_run_prints_nothing(capfd):
    solve(gap=1e-4)
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------ the driver by itself
def test_run_takes_rules_and_limits():
    rules = Rules(Plain(), LineSearch(), Full(), Exact())
    outcome = run(
        quadratic(MATRIX, LINEAR),
        simplex(8),
        np.eye(8)[0],
        rules,
        Limits(iterations=500, gap=1e-2),
        rng=np.random.default_rng(0),
    )
    assert outcome.stop is Stop.GAP


def test_relative_gap_of_a_value_of_zero():
    assert relative_gap(1e-3, -2.0) == pytest.approx(5e-4)
    assert relative_gap(1e-13, 0.0) == pytest.approx(0.1)


@pytest.mark.parametrize("solver", [FrankWolfe, MomentumFrankWolfe])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iterations": -1}, "max_iterations must be an integer of at least 0, got -1"),
        ({"max_iterations": True}, "max_iterations must be an integer"),
        ({"gap": -1e-3}, r"gap must be a nonnegative finite number, got -0\.001"),
        ({"gap": np.nan}, "gap must be a nonnegative finite number, got nan"),
        ({"time_limit": 0}, "time_limit must be a positive finite number, got 0"),
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options_are_named(solver, options, message):
    with pytest.raises(ValueError, match=message):
        solver(**options)


@pytest.mark.parametrize(
    "direction", ["biconjugate", "blended_pairwise", "blended_conjugate", "blended_newton"]
)
def test_other_directions_move_the_dual_as_well(direction):
    outcome = FrankWolfe(direction=direction, gap=0.0, max_iterations=500).run(
        Saddle(), simplex(3), np.eye(3)[1], rng=np.random.default_rng(0), dual_bound=5.0
    )
    assert outcome.point.value <= outcome.gap + 1e-12
    assert outcome.dual == pytest.approx(2.0 + outcome.x[0], abs=0.1)


@pytest.mark.parametrize(
    "direction", ["plain", "biconjugate", "blended_conjugate", "blended_newton"]
)
def test_a_loss_that_is_not_convex_ends_at_a_stationary_point(direction):
    matrix = MATRIX - 2 * np.eye(8)
    outcome = solve(quadratic(matrix, LINEAR), direction=direction, gap=1e-6)
    assert outcome.stop is Stop.GAP
    assert np.all(np.diff(outcome.trace["value"]) <= 1e-12)
