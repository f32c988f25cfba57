"""Parts that people add: errors that name them, and checks for their authors' tests."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.counterparts import Counterpart, Point, Program
from wdro_model.objectives.exact.counterpart import COUNTERPARTS
from wdro_model.solvers import FrankWolfe

DATA = np.random.default_rng(0).normal(size=(20, 3))


@pytest.fixture
def register(monkeypatch):
    """`register_counterpart`, undone after the test."""
    monkeypatch.setattr(COUNTERPARTS, "_things", dict(COUNTERPARTS._things))
    return wdro.register_counterpart


class Shifted(Counterpart):
    """An affine loss with the radius times the dual norm, plus something."""

    formula = "mean + radius |B|"
    extra = 0.0

    def refusal(self, model):
        return None if model.affine_in_data else "the loss is not affine"

    def program(self, model):
        mean = cp.sum(cp.multiply(model.rows.mean(axis=0), problem_variable(model)))
        return Program.if_convex(
            mean + np.sqrt(model.radius) * cp.norm(problem_variable(model)) + self.extra
        )

    def writes_samples(self, model):
        return False


def problem_variable(model):
    return model.feasible.layout.variables[0]


def portfolio(**options):
    x = cp.Variable(3, nonneg=True, name="x")
    z = wdro.UncertainParameter(3, samples=DATA, name="z")
    return wdro.Problem(cp.Minimize(z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.04), **options)


def test_a_right_formula_is_taken(register):
    expected = portfolio().solve(method="exact")
    register("mine", Shifted)
    problem = portfolio()
    assert problem.solve(method="exact") == pytest.approx(expected, rel=1e-6)
    assert "mean + radius |B|" in problem.explain(method="exact")
    assert problem.robust_value() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("answer", [False, "", 3])
def test_a_refusal_is_none_or_words(register, answer):
    register("mute", type("Mute", (Shifted,), {"refusal": lambda self, model: answer}))
    with pytest.raises(TypeError, match="refusal of the counterpart Mute must return None"):
        portfolio().solve(method="exact")


def test_a_program_is_a_program(register):
    register("bare", type("Bare", (Shifted,), {"program": lambda self, model: cp.Constant(1)}))
    with pytest.raises(TypeError, match="program of the counterpart Bare must return Program"):
        portfolio().solve(method="exact")


def test_programs_that_cannot_be_solved_are_named(register):
    t = cp.Variable(name="t")
    cases = [
        (lambda m: Program(cp.square(problem_variable(m))), ValueError, r"one CVXPY number, got"),
        (lambda m: Program(3.0), ValueError, r"one CVXPY number, got 3\.0"),
        (lambda m: Program(-cp.sum_squares(problem_variable(m))), ValueError, "concave"),
        (lambda m: Program(t, t >= 3), TypeError, r"one Inequality; write Program\("),
        (lambda m: Program(m.expression), ValueError, "the uncertain z in it; put in numbers"),
    ]
    for k, (program, kind, message) in enumerate(cases):
        body = {"program": lambda self, model, program=program: program(model)}
        register(f"wrong{k}", type("Wrong", (Shifted,), body))
        with pytest.raises(kind, match=f"program of the counterpart Wrong .*{message}"):
            portfolio().solve(method="exact")
    with pytest.raises(TypeError, match=r"got one Inequality; write \[constraint\]"):
        Program.if_convex(t, t >= 3)


def test_the_value_of_a_decision_is_what_a_solve_reports(register):
    """Where the program claims another value than `value`, the answer is called inaccurate."""
    register("other", type("Other", (Shifted,), {"value": lambda self, model, x: 7.0}))
    problem = portfolio()
    assert problem.solve(method="exact") == 7.0
    assert problem.status == "optimal_inaccurate"
    assert problem.solution.gap > 6.0


# ------------------------------------------------------------------ objectives of counterparts
class MeanAndLength:
    """mean z'x + length |x|."""

    convex = True

    def __init__(self, model):
        self.model = model

    def describe(self):
        return "mean + length |x|"

    def evaluate(self, x, dual=None):
        mean, size = self.model.rows.mean(axis=0), np.linalg.norm(x)
        length = self.model.cost.distance(self.model.radius)
        value, gradient = mean @ x + length * size, mean + length * x / size
        return Point(value, gradient)


class Smooth(Shifted):
    """A counterpart whose objective is a smooth function of the decision."""

    make = staticmethod(MeanAndLength)

    def has_objective(self, model):
        return True

    def objective(self, model):
        return self.make(model)


def over_vertices():
    x, z = cp.Variable(3, name="x"), wdro.UncertainParameter(3, samples=DATA, name="z")
    simplex = wdro.sets.Oracle(lambda d: np.eye(3)[np.argmin(d)], 3, bounds=(0, 1))
    return wdro.Problem(cp.Minimize(z @ x), [wdro.In(x, simplex)], wdro.WassersteinBall(0.04))


def test_a_right_objective_is_taken(register):
    expected = portfolio().solve(method="exact")
    register("smooth", Smooth)
    assert over_vertices().solve(method="exact") == pytest.approx(expected, rel=1e-5)
    register("bare", type("Bare", (Smooth,), {"program": lambda self, model: None}))
    problem = over_vertices()
    assert problem.solve(method="exact") == pytest.approx(expected, rel=1e-5)
    assert problem.robust_value() == pytest.approx(expected, rel=1e-5)


class OneArgument(MeanAndLength):
    def evaluate(self, x):
        return super().evaluate(x)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda model: None, TypeError, "the NoneType that it returned lacks evaluate and convex"),
        (lambda model: np.linalg, TypeError, "lacks evaluate and convex"),
        (OneArgument, ValueError, r"must take \(x, dual\)"),
    ],
)
def test_what_an_objective_needs_is_said(register, make, kind, message):
    register("lacking", type("Lacking", (Smooth,), {"make": staticmethod(make)}))
    with pytest.raises(kind, match=f"objective of the counterpart Lacking .*{message}"):
        over_vertices().solve(method="exact")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"formula": 3}, "must be a string, got 3"),
        ({"refusal": lambda self: None}, r"refusal of the counterpart 'wrong' must take \(model\)"),
        ({"__init__": lambda self, a: None}, "needs a constructor without arguments"),
    ],
)
def test_counterparts_are_checked_when_they_are_registered(register, body, message):
    with pytest.raises(ValueError, match=message):
        register("wrong", type("Wrong", (Shifted,), body))


def test_the_latest_counterpart_is_asked_first(register):
    register("first", type("First", (Shifted,), {"formula": "the first"}))
    register("second", type("Second", (Shifted,), {"formula": "the second"}))
    assert "the second" in portfolio().explain(method="exact")


@pytest.mark.parametrize("forgotten", [wdro.register_counterpart, wdro.solvers.register_step])
def test_a_forgotten_name_is_said(forgotten):
    with pytest.raises(ValueError, match="is registered under a name: write @register"):
        forgotten(Shifted)


# ------------------------------------------------------------------ sets
class Bad(wdro.sets.FeasibleSet):
    def __init__(self, answer):
        self.dimension, self.answer = 3, answer

    def minimize(self, direction):
        return self.answer(direction)

    def __repr__(self):
        return "Bad"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda d: np.full(3, np.nan), "oracle of Bad returned numbers that are not finite"),
        (lambda d: np.zeros(4), r"oracle of Bad returned an array of shape \(4,\)"),
        (lambda d: np.ones(3) * 1j, "oracle of Bad returned .* complex"),
    ],
)
def test_answers_of_a_set_are_checked_in_a_solve(answer, message):
    x, z = cp.Variable(3), wdro.UncertainParameter(3, samples=DATA)
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - z)), [wdro.In(x, Bad(answer))])
    with pytest.raises(ValueError, match=message):
        problem.solve()


class Corner(wdro.sets.FeasibleSet):
    """The unit simplex, by its oracle."""

    dimension = 3

    def minimize(self, direction):
        return np.eye(3)[np.argmin(direction)]


def projected(feasible, *constraints):
    x, z = cp.Variable(3), wdro.UncertainParameter(3, samples=DATA)
    cut = [x[0] <= 0.5] if constraints else []
    return wdro.Problem(cp.Minimize(cp.sum_squares(x - z)), [wdro.In(x, feasible), *cut])


def forgetful(direction):
    return np.ones(3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"bounds": [(0, 1)] * 3},
            r"bounds of the set Mine must be .*shape \(3,\), got \[\(0, 1\)",
        ),
        ({"bounds": (np.zeros(2), np.ones(2))}, "bounds of the set Mine must be a pair"),
        ({"bounds": 1.0}, "bounds of the set Mine must be a pair"),
        ({"bounds": (np.ones(3), np.zeros(3))}, "bounds of the set Mine are crossed"),
        ({"dimension": "3"}, "dimension of the set Mine must be a positive integer, got '3'"),
        ({"dimension": 3.0}, r"must be a positive integer, got 3\.0"),
        ({"dimension": (3,)}, r"must be a positive integer, got \(3,\)"),
        ({"minimize": forgetful}, r"minimize of the set Mine must take \(direction\)"),
        ({"has_constraints": True}, r"has_constraints = True and lacks constraints\(x\)"),
    ],
)
@pytest.mark.parametrize("use", [projected, wdro.sets.check])
def test_a_set_in_another_form_than_asked_is_named(body, message, use):
    mine = type("Mine", (Corner,), body)()
    with pytest.raises(ValueError, match=message):
        use(mine)


def test_bounds_may_be_two_numbers():
    mine = type("Mine", (Corner,), {"bounds": (0, 1)})()
    expected = projected(wdro.sets.Simplex(3)).solve()
    assert projected(mine).solve() == pytest.approx(expected, rel=1e-6)
    assert wdro.sets.check(mine).passed


@pytest.mark.parametrize("answer", [None, "one"])
def test_constraints_that_are_no_list_are_named(answer):
    def constraints(self, x):
        return None if answer is None else x >= 0

    body = {"has_constraints": True, "constraints": constraints}
    mine = type("Mine", (Corner,), body)()
    for use in (lambda: projected(mine, "cut").solve(), lambda: wdro.sets.check(mine)):
        with pytest.raises(ValueError, match=r"constraints\(x\) of Mine.* must return a list"):
            use()


def test_constraints_that_are_not_declared_are_found():
    mine = type("Mine", (Corner,), {"constraints": lambda self, x: [x >= 0, cp.sum(x) == 1]})()
    with pytest.raises(ValueError, match="give the set has_constraints = True beside"):
        projected(mine, "cut").solve()


def test_a_slack_without_its_vertex_is_named():
    body = {"minimize_with_slack": lambda self, direction: self.minimize(direction)}
    mine = type("Mine", (Corner,), body)()
    for use in (lambda: projected(mine).solve(), lambda: wdro.sets.check(mine)):
        with pytest.raises(ValueError, match=r"must return a pair \(vertex, slack\), got array"):
            use()


def test_a_default_backend_that_is_not_registered_is_named():
    class Unregistered(wdro.sets.FeasibleSet):
        dimension, default_backend = 3, "nump"

    with pytest.raises(ValueError, match="default_backend of Unregistered is 'nump', which is not"):
        projected(Unregistered()).solve()


def test_an_oracle_that_maximises_is_no_optimum():
    x, z = cp.Variable(3), wdro.UncertainParameter(3, samples=DATA)
    worst = wdro.sets.Oracle(lambda direction: np.eye(3)[np.argmax(direction)], 3)
    problem = wdro.Problem(cp.Minimize(z @ x), [wdro.In(x, worst)])
    with pytest.raises(wdro.InexactOracleError, match="is not exact"):
        problem.solve(seed=1)


def test_a_backend_that_is_no_factory_is_named():
    wdro.sets.register_backend(Bad, "no_factory", lambda given: None)
    with pytest.raises(ValueError, match="'no_factory' of Bad is a factory"):
        Bad(np.zeros).use_backend("no_factory")


# ------------------------------------------------------------------ steps and limits
def test_a_class_is_a_step_rule_by_its_defaults():
    assert FrankWolfe(step=wdro.solvers.OpenLoop).step == wdro.solvers.OpenLoop()


def test_a_negative_step_is_no_answer():
    x, z = cp.Variable(3, nonneg=True), wdro.UncertainParameter(3, samples=DATA)
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - z)), [cp.sum(x) == 1])
    with pytest.raises(ValueError, match=r"the step rule back answered -1\.0"):
        problem.solve(solver=FrankWolfe(step=back))


def back(t, line):
    return -1.0


@pytest.mark.parametrize("cost", [wdro.costs.Norm(1), wdro.costs.Norm("inf")])
@pytest.mark.filterwarnings("ignore::wdro_model.SamplingWarning")
def test_a_time_limit_does_not_change_the_method(cost):
    """The exact counterpart is not smooth, and the set has no conic form: by its vertices."""
    x, z = cp.Variable(3), wdro.UncertainParameter(3, samples=DATA)
    simplex = wdro.sets.Oracle(lambda d: np.eye(3)[np.argmin(d)], 3, bounds=(0, 1))
    problem = wdro.Problem(
        cp.Minimize(z @ x), [wdro.In(x, simplex)], wdro.WassersteinBall(0.1, cost)
    )
    value = problem.solve()
    assert problem.solution.method == "exact"
    assert problem.solve(time_limit=2.0) == pytest.approx(value)
    assert problem.solution.method == "exact"
