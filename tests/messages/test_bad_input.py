"""Every mistake listed in the documentation gets a message that names it and the way out."""

from __future__ import annotations

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from cvxpy.error import ParameterError

import wdro_model as wdro

DATA = np.random.default_rng(0).normal(size=(12, 3))


def model(samples=DATA, radius=0.1, constraints=None, loss=None, **options):
    x = cp.Variable(3, name="x", nonneg=True)
    xi = wdro.UncertainParameter(3, name="xi", samples=samples)
    rows = [cp.sum(x) == 1] if constraints is None else constraints(x)
    expression = xi @ x if loss is None else loss(x, xi)
    ball = wdro.WassersteinBall(radius)
    return wdro.Problem(cp.Minimize(expression), rows, ambiguity=ball, **options)


# ------------------------------------------------------------------ data
def test_samples_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"'xi'.*\(N, 3\).*\(12, 4\)"):
        wdro.UncertainParameter(3, name="xi", samples=np.zeros((12, 4)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite(bad):
    samples = DATA.copy()
    samples[4, 1] = bad
    with pytest.raises(ValueError, match=r"'xi' must be finite.*\(4, 1\)"):
        wdro.UncertainParameter(3, name="xi", samples=samples)


def test_samples_outside_the_support():
    with pytest.raises(ValueError, match=r"'xi' lies outside its support.*Widen"):
        wdro.UncertainParameter(3, name="xi", samples=DATA, support=wdro.supports.Nonnegative())


def test_no_samples_at_all():
    with pytest.raises(ValueError, match=r"'xi'.*at least one"):
        wdro.UncertainParameter(3, name="xi", samples=np.zeros((0, 3)))


def test_parameter_without_samples():
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, name="xi")
    with pytest.raises(ValueError, match=r"'xi' has no samples.*samples="):
        wdro.Problem(cp.Minimize(xi @ x), [x == 1])


def test_parameters_with_different_numbers_of_samples():
    x = cp.Variable(3)
    a = wdro.UncertainParameter(3, name="a", samples=DATA)
    b = wdro.UncertainParameter(3, name="b", samples=DATA[:5])
    with pytest.raises(ValueError, match=r"12.*5|5.*12"):
        wdro.Problem(cp.Minimize((a + b) @ x), [x == 1])


# ------------------------------------------------------------------ ball
@pytest.mark.parametrize("radius", [-1.0, np.nan, np.inf, "0.1", None, True])
def test_bad_radius(radius):
    with pytest.raises(ValueError, match=r"radius.*nonnegative|radius.*number"):
        wdro.WassersteinBall(radius)


def test_ambiguity_that_is_a_number():
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=DATA)
    with pytest.raises(ValueError, match=r"0\.1.*WassersteinBall\(radius=\.\.\.\)"):
        wdro.Problem(cp.Minimize(xi @ x), [x == 1], ambiguity=0.1)


def test_robust_methods_need_a_ball():
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=DATA)
    problem = wdro.Problem(cp.Minimize(xi @ x), [x >= 0, x <= 1])
    for method in ("exact", "smoothed"):
        with pytest.raises(ValueError, match=r"ambiguity=WassersteinBall"):
            problem.solve(method=method)
    assert problem.solve() == pytest.approx(problem.solve(method="erm"))


# ------------------------------------------------------------------ feasible set
def test_empty_feasible_set_is_refused_when_declared():
    with pytest.raises(wdro.InfeasibleError, match=r"empty|no point"):
        model(constraints=lambda x: [cp.sum(x) == 1, x >= 2])


def test_unbounded_feasible_set_is_named_with_the_way_out():
    problem = model(constraints=lambda x: [x[0] <= 1])
    with pytest.raises(wdro.UnboundedError, match=r"unbounded.*x <= 10"):
        problem.solve(method="smoothed")


def test_unbounded_objective_is_not_called_infeasible():
    problem = model(samples=DATA - 10, constraints=lambda x: [x[0] <= 1])
    with pytest.raises(wdro.UnboundedError, match=r"unbounded below"):
        problem.solve(method="erm")


def test_infeasible_unbounded_and_bad_radius_are_three_messages():
    messages = set()
    for build in (
        lambda: model(constraints=lambda x: [cp.sum(x) == 1, x >= 2]),
        lambda: model(constraints=lambda x: [x[0] <= 1]).solve(method="smoothed"),
        lambda: model(radius=-1),
    ):
        with pytest.raises(ValueError) as caught:
            build()
        messages.add(str(caught.value))
    assert len(messages) == 3


def test_disconnected_graph():
    with pytest.raises(ValueError, match=r"not connected|disconnected"):
        wdro.sets.SpanningTree(nx.Graph([(0, 1), (2, 3)]))


def test_unreachable_target():
    graph = nx.DiGraph([("a", "b"), ("c", "b")])
    with pytest.raises(ValueError, match=r"'a'.*'c'"):
        wdro.sets.ShortestPath(graph, "a", "c")


def test_membership_of_a_variable_of_the_wrong_size():
    tree = wdro.sets.SpanningTree(nx.complete_graph(4))
    with pytest.raises(ValueError, match=r"5.*6|6.*5"):
        wdro.In(cp.Variable(5, name="x"), tree)


def test_oracle_set_cannot_be_intersected():
    items = wdro.sets.Oracle(lambda g: np.eye(3)[np.argmin(g)], dimension=3, name="pick one")
    x = cp.Variable(3, name="x")
    xi = wdro.UncertainParameter(3, samples=DATA)
    with pytest.raises(ValueError, match=r"pick one.*oracle.*cannot be intersected"):
        wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, items), x[0] <= 0.5])


def test_boolean_variable_in_a_set_of_other_numbers():
    halves = wdro.sets.Oracle(lambda g: np.where(g > 0, 0.0, 0.5), 3, name="halves")
    twos = wdro.sets.Oracle(lambda g: np.where(g > 1, 0.0, 2.0), 3, name="twos", integral=True)
    xi = wdro.UncertainParameter(3, samples=DATA)
    x = cp.Variable(3, name="x", boolean=True)
    with pytest.raises(ValueError, match=r"'x' is declared boolean.*twos.*other entries than 0"):
        wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, twos)])
    y = cp.Variable(3, name="y", integer=True)
    free = wdro.sets.Oracle(halves.minimize, 3, name="free", integral=False)
    with pytest.raises(ValueError, match=r"'y' is declared integer.*free.*Leave the attribute out"):
        wdro.Problem(cp.Minimize(xi @ y), [wdro.In(y, free)])
    problem = wdro.Problem(cp.Minimize(cp.square(xi @ y)), [wdro.In(y, twos)])
    with pytest.raises(ValueError, match=r"'y'.*not known to be 0 and 1.*boolean=True.*relax"):
        problem.solve(method="erm")


def test_uncertain_constraint():
    x = cp.Variable(3, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=DATA)
    asked = r"'xi' is in the constraint.*expectation\(g\).*cvar\(g, 0.9\).*probability\(g <= 0\)"
    with pytest.raises(ValueError, match=asked):
        wdro.Problem(cp.Minimize(cp.sum(x)), [xi @ x >= 1])


def test_thing_that_is_no_constraint():
    with pytest.raises(ValueError, match=r"constraint must be.*'x <= 1'"):
        model(constraints=lambda x: ["x <= 1"])


def test_constraint_that_is_not_in_a_list():
    with pytest.raises(ValueError, match=r"must be a list"):
        model(constraints=lambda x: cp.sum(x) == 1)


# ------------------------------------------------------------------ loss
def test_atom_without_a_rule():
    with pytest.raises(wdro.MissingRuleError, match=r"lambda_max.*rule"):
        model(loss=lambda x, xi: cp.lambda_max(cp.diag(cp.multiply(x, xi))))


def test_bare_expression_as_objective():
    x = cp.Variable(3)
    with pytest.raises(ValueError, match=r"cp\.Minimize"):
        wdro.Problem(cp.sum(x), [x <= 1])


def test_certain_parameter_without_value():
    p = cp.Parameter(name="fee")
    problem = model(loss=lambda x, xi: xi @ x + p * cp.sum(x))
    with pytest.raises(ParameterError, match=r"'fee' has no value"):
        problem.solve()


def test_certain_parameter_in_a_constraint_without_value():
    cap = cp.Parameter(name="cap")
    problem = model(constraints=lambda x: [cp.sum(x) == 1, x <= cap])
    with pytest.raises(ParameterError, match=r"'cap' has no value"):
        problem.solve()
    cap.value = 0.5
    first = problem.solve(method="erm")
    cap.value = 1.0
    assert problem.solve(method="erm") < first


# ------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilom": 0.1}, r"'epsilom'.*Did you mean 'epsilon'"),
        ({"method": "smooth"}, r"'smooth'.*Did you mean 'smoothed'"),
        ({"method": "smoothed", "integration": "gausian"}, r"Did you mean 'gaussian'"),
        ({"method": "smoothed", "dual": "vertx"}, r"Did you mean 'vertex'"),
        ({"method": "smoothed", "epsilon": -1.0}, r"epsilon must be a positive"),
        ({"method": "smoothed", "sigma": 0.0}, r"sigma must be a positive"),
        ({"seed": 1.5}, r"seed must be an integer"),
        ({"solver": "FRANK"}, r"FrankWolfe.*'FRANK'"),
        ({"time_limit": -1.0, "method": "smoothed"}, r"time_limit must be a positive"),
        ({"start": [1, 2]}, r"start must be a dict"),
    ],
)
def test_misspelt_or_impossible_option(arguments, message):
    solver = {"solver": wdro.solvers.FrankWolfe()} if "start" in arguments else {}
    with pytest.raises((ValueError, TypeError), match=message):
        model().solve(**solver, **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, r"batch_size.*at least 1, got 0"),
        ({"samples": 2.5}, r"samples.*integer.*2\.5"),
        ({"dual_bound": -1}, r"dual_bound.*positive.*-1"),
        ({"max_iterations": -1}, r"max_iterations.*at least 0"),
    ],
)
def test_solver_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        wdro.solvers.MomentumFrankWolfe(**settings)


def test_batch_larger_than_the_data():
    solver = wdro.solvers.MomentumFrankWolfe(batch_size=50, max_iterations=2)
    with pytest.raises(ValueError, match=r"batch_size=50.*12 samples"):
        model().solve(method="smoothed", solver=solver)


def test_direction_that_does_not_exist():
    with pytest.raises(ValueError, match=r"'pairwise'.*'blended_pairwise'"):
        wdro.solvers.FrankWolfe(direction="pairwise")


def test_losses_before_a_solve():
    with pytest.raises(ValueError, match=r"'x' has no value yet.*solve\(\)"):
        model().losses()


def test_scenarios_of_the_wrong_shape():
    problem = model()
    problem.solve()
    with pytest.raises(ValueError, match=r"'xi'.*\(3, 2\)"):
        problem.losses(np.zeros((3, 2)))


def test_exact_without_a_formula_names_what_was_found():
    problem = model(loss=lambda x, xi: cp.exp(xi @ x))
    with pytest.raises(wdro.NoReformulationError, match=r"not affine in the data.*smoothed"):
        problem.solve(method="exact")


def test_conic_solver_for_the_smoothed_objective():
    with pytest.raises(ValueError, match=r"no conic form.*FrankWolfe"):
        model().solve(method="smoothed", solver=wdro.solvers.Conic())


def test_a_misspelt_argument_of_solve_is_named_whatever_it_is():
    x = cp.Variable(2, nonneg=True)
    problem = wdro.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) == 1])
    with pytest.raises(TypeError, match=r"unknown option 'metod'\. Did you mean 'method'"):
        problem.solve(metod="erm")
