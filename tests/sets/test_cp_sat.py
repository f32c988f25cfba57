import pickle
from itertools import product

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.sets.fuzzing import agrees, agrees_when_held, travels
from wdro_model.errors import InfeasibleError
from wdro_model.sets import CpSat, check

cp_model = pytest.importorskip("ortools.sat.python.cp_model")


def shifts():
    """Four people, two or three of them at work, the second never without the first."""
    model = cp_model.CpModel()
    x = [model.new_bool_var(f"person {i}") for i in range(4)]
    model.add_linear_constraint(sum(x), 2, 3)
    model.add_implication(x[1], x[0])
    points = [p for p in product([0.0, 1.0], repeat=4) if 2 <= sum(p) <= 3 and p[0] >= p[1]]
    return model, x, np.array(points)


def amounts():
    """Whole numbers of any sign, with an auxiliary variable that is no coordinate."""
    model = cp_model.CpModel()
    a, b = model.new_int_var(-3, 4, "a"), model.new_int_var(0, 5, "b")
    half = model.new_int_var(0, 10, "half")
    model.add(a + b == 2 * half)
    points = [(a, b) for a in range(-3, 5) for b in range(6) if (a + b) % 2 == 0 and a + b >= 0]
    return model, [a, b], np.array(points, dtype=float)


@pytest.mark.parametrize("build", [shifts, amounts])
def test_the_best_of_all_solutions_is_found(build):
    model, variables, points = build()
    before = str(model.proto)
    oracle = CpSat(model, variables)
    agrees(points, oracle, rounds=1)
    assert check(oracle, directions=10).passed
    assert str(model.proto) == before
    np.testing.assert_array_equal(oracle.bounds[1] >= points.max(axis=0), True)


def test_bounds_hold_coordinates():
    model, variables, points = shifts()
    agrees_when_held(points, CpSat(model, variables), trials=15)
    model, variables, points = amounts()
    oracle = CpSat(model, variables)
    assert oracle.minimize([1.0, 1.0], lower=[-1.0, 2.0]).tolist() in ([-1.0, 3.0], [0.0, 2.0])
    assert oracle.minimize([-1.0, 0.0], upper=[2.5, 5.0])[0] == 2.0
    with pytest.raises(InfeasibleError, match="no solution within the bounds"):
        oracle.minimize([1.0, 1.0], lower=[1.0, 0.0], upper=[1.0, 0.0])


def test_a_later_change_of_the_model_and_its_objective_do_not_matter():
    model, variables, points = shifts()
    model.maximize(sum(variables))
    oracle = CpSat(model, variables)
    model.add(variables[0] == 0)
    agrees(points, oracle, rounds=1)
    assert model.has_objective()


def test_it_travels_and_rounds():
    model, variables, points = shifts()
    oracle = CpSat(model, variables, time_limit=10.0)
    travels(oracle)
    assert pickle.loads(pickle.dumps(oracle)).time_limit == 10.0
    rounded = oracle.round(points.mean(axis=0))
    assert any(np.array_equal(rounded, row) for row in points)


def test_variables_have_names():
    model, variables, _ = shifts()
    assert CpSat(model, variables).names == tuple(f"person {i}" for i in range(4))
    oracle = CpSat(model, dict(zip("abcd", variables)))
    vertex = oracle.minimize([1.0, 2.0, 3.0, 4.0])
    assert oracle.selected(vertex) == ["a", "b"]
    assert oracle.values(vertex) == {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}
    assert "4 variables of a CP-SAT model" in oracle.describe()


def test_an_answer_at_the_time_limit_has_a_bound():
    """A hard packing with no time to prove anything: the bound stays below the minimum."""
    rng = np.random.default_rng(0)
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(60)]
    for _ in range(30):
        model.add(sum(int(w) * v for w, v in zip(rng.integers(1, 1000, 60), x)) <= 9000)
    hurried, patient = CpSat(model, x, time_limit=0.02), CpSat(model, x, time_limit=0.5)
    costs = -rng.uniform(1, 2, 60)
    try:
        vertex, slack = hurried.minimize_with_slack(costs)
    except cp.error.SolverError as error:
        assert "more time" in str(error)  # noqa: PT017
        return
    better, less = patient.minimize_with_slack(costs)
    assert slack > 0
    assert costs @ vertex - slack <= costs @ better + 1e-9
    assert costs @ better - less <= costs @ vertex + 1e-9


def test_a_robust_choice_of_shifts():
    model, variables, points = shifts()
    rng = np.random.default_rng(0)
    x = cp.Variable(4)
    wage = wdro.UncertainParameter(4, samples=rng.uniform(1, 2, size=(8, 4)))
    problem = wdro.Problem(
        cp.Minimize(wage @ x),
        [wdro.In(x, CpSat(model, variables))],
        ambiguity=wdro.WassersteinBall(0.01),
    )
    problem.solve()
    problem.round()
    assert any(np.allclose(x.value, row) for row in points)


def test_what_makes_no_sense_is_refused():
    model, variables, _ = shifts()
    other = cp_model.CpModel()
    stranger = [other.new_int_var(0, 7, f"y{i}") for i in range(9)]
    wide = other.new_int_var(-(2**60), 2**60, "wide")
    wrong = {
        "cp_model.CpModel first, got list": lambda: CpSat([], variables),
        "a list or a dict of the model's variables, got 3": lambda: CpSat(model, 3),
        "at least one variable": lambda: CpSat(model, []),
        "for an expression, add a variable": lambda: CpSat(model, [variables[0] + 1]),
        "takes variables of its model": lambda: CpSat(model, [variables[0].negated()]),
        "a variable of another model": lambda: CpSat(model, stranger[:2]),
        "give them smaller domains": lambda: CpSat(other, [wide]),
        "time_limit must be a positive": lambda: CpSat(model, variables, time_limit=0),
        "workers must be an integer": lambda: CpSat(model, variables, workers=0),
    }
    for message, make in wrong.items():
        with pytest.raises(ValueError, match=message):
            make()
    model.add(sum(variables) >= 4)
    with pytest.raises(InfeasibleError, match="has no solution"):
        CpSat(model, variables).check_nonempty()
