"""Steps: where they land on a line, and what they cost."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from tests.solvers.problems import quadratic, random_quadratic, simplex, tree_quadratic
from wdro_model.solvers import Adaptive, FrankWolfe, LineSearch, OpenLoop
from wdro_model.solvers.objective import Line, Point
from wdro_model.solvers.steps import STEPS, register_step


class Counted:
    """A function of one variable as a line, which counts its evaluations."""

    def __init__(self, phi, derivative, longest=1.0):
        self.count = 0

        def evaluate(s):
            self.count += 1
            return Point(phi(s), np.array([derivative(s)]))

        self.line = Line(evaluate, evaluate(0.0), np.ones(1), longest)
        self.count = 0


def parabola(centre, curvature, longest=1.0):
    return Counted(
        lambda s: 0.5 * curvature * (s - centre) ** 2, lambda s: curvature * (s - centre), longest
    )


@pytest.mark.parametrize("rule", [LineSearch(), Adaptive()])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_parabola_takes_two_evaluations(rule, scale):
    case = parabola(0.3, scale)
    assert rule.start()(0, case.line) == pytest.approx(0.3, rel=1e-2)
    assert case.count <= 2


@pytest.mark.parametrize(("rule", "count"), [(LineSearch(), 1), (Adaptive(), 2)])
def test_the_second_line_of_the_same_curvature_is_cheaper(rule, count):
    state = rule.start()
    state(0, parabola(0.3, 2.0).line)
    case = parabola(0.01, 2.0)
    assert state(1, case.line) == pytest.approx(0.01, rel=1e-6)
    assert case.count == count


@pytest.mark.parametrize("rule", [LineSearch(), Adaptive()])
def test_a_minimum_beyond_the_end_gives_the_longest_step(rule):
    case = parabola(3.0, 1.0, longest=0.7)
    assert rule.start()(0, case.line) == 0.7
    assert case.line.point(0.7) is not None


@pytest.mark.parametrize("rule", [LineSearch(), Adaptive()])
def test_a_line_that_climbs_gives_no_step(rule):
    assert rule.start()(0, parabola(-0.1, 1.0).line) == 0.0


@pytest.mark.parametrize("rule", [LineSearch(), Adaptive()])
def test_concave_lines_go_to_the_end(rule):
    case = Counted(lambda s: -s - s**2, lambda s: -1 - 2 * s)
    assert rule.start()(0, case.line) == 1.0


@pytest.mark.parametrize("rule", [LineSearch(), Adaptive()])
def test_the_end_of_the_domain_is_not_crossed(rule):
    def phi(s):
        return -np.log(0.5 - s) - 4 * s if s < 0.5 else np.inf

    def derivative(s):
        return 1 / (0.5 - s) - 4 if s < 0.5 else np.nan

    step = rule.start()(0, Counted(phi, derivative).line)
    assert 0 < step < 0.5
    assert phi(step) < phi(0.0)


@settings(max_examples=60, deadline=None)
@given(
    power=st.floats(1.5, 9.0),
    centre=st.floats(1e-4, 0.999),
    tilt=st.floats(0.0, 10.0),
    scale=st.sampled_from([1e-8, 1.0, 1e8]),
    guess=st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
)
def test_line_search_finds_the_minimum_of_convex_lines(power, centre, tilt, scale, guess):
    def phi(s):
        return scale * (abs(s - centre) ** power + tilt * (s - centre) ** 2)

    def derivative(s):
        bend = power * abs(s - centre) ** (power - 1) * np.sign(s - centre)
        return scale * (bend + 2 * tilt * (s - centre))

    case = Counted(phi, derivative)
    state = LineSearch(tolerance=1e-3, evaluations=60).start()
    state.curvature = guess * scale
    step = state(0, case.line)
    assert case.line.point(step) is not None
    assert phi(step) < phi(0.0)
    best = minimize_scalar(phi, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
    assert phi(step) - best.fun <= 2e-3 * abs(derivative(0.0))


def test_a_bump_is_not_taken_for_a_minimum():
    # falls until 0.1, climbs until 0.7, then falls again, but not below where it began
    derivative = np.polynomial.Polynomial([-0.07, 0.8, -1.0])
    phi = derivative.integ()
    assert derivative(0.9) < 0 < phi(0.9)
    step = LineSearch().start()(0, Counted(phi, derivative, longest=0.9).line)
    assert step == pytest.approx(0.1, abs=1e-2)


@pytest.mark.parametrize("step", ["line_search", "adaptive"])
def test_an_iteration_costs_about_two_gradients(step):
    tree, matrix, start = tree_quadratic(0)
    objective = quadratic(matrix, np.zeros(80))
    solver = FrankWolfe(direction="blended_pairwise", step=step, gap=1e-5)
    outcome = solver.run(objective, tree, start, rng=np.random.default_rng(0))
    assert objective.evaluations <= 2.2 * outcome.iterations + 3


def test_no_point_is_evaluated_twice_in_a_row():
    seen = []
    matrix, linear = random_quadratic(6, 0)
    objective = quadratic(matrix, linear)
    inner = objective.function
    objective.function = lambda x: (seen.append(x.copy()), inner(x))[1]
    FrankWolfe(direction="plain", max_iterations=30).run(
        objective, simplex(6), np.eye(6)[0], rng=np.random.default_rng(0)
    )
    assert all(not np.array_equal(a, b) for a, b in pairwise(seen))


@pytest.mark.parametrize("step", ["line_search", "adaptive"])
def test_values_never_rise(step):
    matrix, linear = random_quadratic(15, 2)
    outcome = FrankWolfe(direction="plain", step=step, gap=0, max_iterations=300).run(
        quadratic(matrix, linear), simplex(15), np.eye(15)[0], rng=np.random.default_rng(0)
    )
    values = outcome.trace["value"]
    assert np.all(np.diff(values) <= 1e-12 * np.abs(values[1:]))


def test_open_loop_numbers():
    line = parabola(0.5, 1.0).line
    assert OpenLoop(offset=7)(0, line) == pytest.approx(2 / 7)
    assert OpenLoop(offset=7)(13, line) == pytest.approx(0.1)
    assert OpenLoop()(0, line) == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OpenLoop(offset=0), "offset must be a positive finite number, got 0"),
        (lambda: LineSearch(tolerance=1.0), r"tolerance must be in \[0, 1\), got 1\.0"),
        (lambda: LineSearch(evaluations=1), "evaluations must be at least 2, got 1"),
        (lambda: Adaptive(growth=1.0), r"growth > 1 and decay in \(0, 1\], got growth=1\.0"),
        (lambda: FrankWolfe(step="linesearch"), "unknown step 'linesearch'.*'line_search'"),
        (lambda: FrankWolfe(step=0.1), "step must be a name or a rule object, got float"),
        (lambda: FrankWolfe(direction=3), "direction must be a name or a rule object, got 3"),
        (lambda: FrankWolfe(direction="pairwise"), "unknown direction 'pairwise'"),
        (
            lambda: FrankWolfe(direction="biconjugate", step="open_loop"),
            "direction='biconjugate' needs a step rule that looks along the line",
        ),
        (lambda: FrankWolfe(callbacks=print), r"callbacks must be a list .* callbacks=\[function"),
    ],
)
def test_bad_rules_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_adaptive_step_ends_on_a_line_that_is_steep_first_and_flat_then():
    """Trials near the minimum see hardly more curvature than the estimate that led there."""
    case = Counted(lambda s: 5 * (1 - s) ** 10 + s**2, lambda s: -50 * (1 - s) ** 9 + 2 * s)
    step = Adaptive().start()(0, case.line)
    assert 0.0 < step < 1.0
    assert case.line.at(step).value < 0.1 * case.line.start.value
    assert case.count < 20


@pytest.fixture
def steps(monkeypatch):
    """The register, as it was after the test."""
    monkeypatch.setattr(STEPS, "_things", dict(STEPS._things))
    return STEPS


def test_a_step_rule_needs_one_method(steps):
    """A rule that is nothing but its formula; what it does not say has a default."""

    @register_step("harmonic")
    @dataclass(frozen=True)
    class Harmonic:
        offset: float = 7.0

        def __call__(self, t, _line):
            return 2.0 / (t + self.offset)

    objective, start = quadratic(*random_quadratic(6, seed=0)), np.eye(6)[0]
    runs = [
        FrankWolfe(step=step, gap=1e-3, max_iterations=5000).run(
            objective, simplex(6), start, rng=np.random.default_rng(0), progress=False
        )
        for step in ("harmonic", Harmonic(), OpenLoop(offset=7.0))
    ]
    assert runs[0].gap <= 1e-3 * abs(runs[0].point.value)
    for run in runs[1:]:
        np.testing.assert_array_equal(run.x, runs[0].x)


def test_a_function_is_a_step_rule(steps):
    register_step("constant", lambda t, line: 0.5)
    assert FrankWolfe(step="constant").direction_name(simplex(3)) == "plain"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (3.0, "must be a name or a rule object, got float; .* define __call__"),
        (lambda t: 0.1, r"must take \(t, line\)"),
        (type("Needy", (), {"__init__": lambda self, a: None}), "needs defaults for all its fie"),
    ],
)
def test_a_step_rule_is_checked_when_it_is_registered(steps, rule, message):
    with pytest.raises(ValueError, match=message):
        register_step("wrong", rule)
    assert "wrong" not in steps


def test_a_name_is_taken_once(steps):
    with pytest.raises(ValueError, match="already; choose another name or pass replace=True"):
        register_step("open_loop", OpenLoop())


def test_a_step_that_is_no_number_names_its_rule():
    solver = FrankWolfe(step=lambda t, line: None)
    with pytest.raises(ValueError, match="answered None; it must return a number"):
        solver.run(
            quadratic(*random_quadratic(3, seed=0)),
            simplex(3),
            np.eye(3)[0],
            rng=np.random.default_rng(0),
            progress=False,
        )


def test_where_values_are_noisy_slopes_decide():
    """A parabola next to its minimum, where values are a little higher but at the start."""

    def along(s):
        far = s - 5e-7
        return Point(far**2 + 100.0 + 1e-5 * (s > 0), np.array([2 * far]))

    def search(noise):
        line = Line(along, along(0.0), np.ones(1), 1.0, noise=noise)
        return LineSearch().start()(0, line), len(line._samples)

    blind, many = search(0.0)
    seeing, few = search(1e-6)
    assert blind == 0.0
    assert seeing == pytest.approx(5e-7, rel=0.01)
    assert few < many


@pytest.mark.parametrize("best", [0.02, 0.4, 1.0, 3.0])
def test_a_start_that_was_valued_too_low_is_left_all_the_same(best):
    """A convex function that falls beyond the start and lies above it: the start is at fault."""

    def along(s):
        far = s - best
        return Point(far**2 + 100.0 + 50.0 * (s > 0), np.array([2 * far]))

    line = Line(along, along(0.0), np.ones(1), 1.0, noise=1e-9)
    found = LineSearch().start()(0, line)
    assert found == pytest.approx(min(best, 1.0), rel=0.1)
    assert len(line._samples) < 12
