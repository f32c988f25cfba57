"""What is given wrongly is refused where it is given, and errors of users' functions are named."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from cvxpy.error import SolverError

import wdro_model as wdro

HUGE = 10**400


@pytest.fixture
def xi():
    return wdro.UncertainParameter(2, name="xi", samples=np.eye(2) + 1)


@pytest.fixture
def x():
    return cp.Variable(2, name="x")


def problem_of(objective, x, **more):
    return wdro.Problem(objective, [x >= 0, x <= 1], wdro.WassersteinBall(0.1), **more)


# ------------------------------------------------------------------ declared wrongly
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wdro.supports.Box("1", "2"), "lower bound of a Box must be .*'1'"),
        (lambda: wdro.supports.Box(0, ["1", 2]), "upper bound of a Box must be"),
        (lambda: wdro.supports.Box(0, [None, "2"]), "upper bound of a Box must be"),
        (lambda: wdro.supports.Polyhedron([["1"]], [1]), "A of a Polyhedron must be"),
        (lambda: wdro.sets.Oracle(abs, True), "shape of oracle 'abs' must be .* positive integer"),
        (lambda: wdro.CallableLoss(abs, cp.Variable()), r"'abs' needs parameters=\[\.\.\.\].*\[\]"),
        (
            lambda: wdro.CallableLoss(abs, 3, []),
            "variables of .*'abs' must be a list, got 3",
        ),
        (
            lambda: wdro.CallableLoss(abs, cp.Variable(), [], convex="yes"),
            "convex .* got 'yes'",
        ),
        (lambda: wdro.WassersteinBall(HUGE), "radius .* finite number.*401 digits"),
        (lambda: wdro.WassersteinBall.order(2, HUGE), "radius .* finite number.*401 digits"),
        (
            lambda: wdro.WassersteinBall.order(HUGE, 1.0),
            "order p .* number >= 1, got an integer of 401 digits",
        ),
        (lambda: wdro.costs.Norm(HUGE), "number >= 1, got an integer of 401"),
        (lambda: wdro.solvers.Conic(3), "takes the name of a solver, got 3; installed: .*CLARABEL"),
        (lambda: wdro.solvers.Conic("SCS", 3), "options of Conic must be a dict, got 3"),
        (lambda: wdro.costs.Norm("max"), "number >= 1, got 'max'"),
    ],
)
def test_values_of_the_wrong_kind(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("sample", "'samples'"), ("nonnegative", "'nonneg'"), ("suport", "'support'")],
)
def test_a_misspelt_argument_of_a_parameter_gets_the_nearest_name(name, hint):
    with pytest.raises(
        TypeError, match=rf"'load'.*unknown argument '{name}'\. Did you mean {hint}"
    ):
        wdro.UncertainParameter(2, "load", **{name: np.ones((3, 2))})


def test_directions_are_real():
    box = wdro.sets.Oracle(lambda g: -np.sign(g), 2)
    with pytest.raises(ValueError, match=r"direction must be real.*complex128; take its real part"):
        box.minimize(np.array([1 + 1j, 2]))
    with pytest.raises(ValueError, match=r"direction must be real.*float\(\)"):
        box.minimize(["1", "2"])


def test_assume_convex_is_a_bool(x, xi):
    with pytest.raises(ValueError, match="assume_convex must be True or False, got 'yes'"):
        problem_of(cp.Minimize(xi @ x), x, assume_convex="yes")


def test_comparisons_of_something_else(x, xi):
    with pytest.raises(TypeError, match="compare needs a wdro Problem first, got int"):
        wdro.compare(3, ("erm",))
    with pytest.raises(ValueError, match=r"methods must be a list of method names.*got 3"):
        wdro.compare(problem_of(cp.Minimize(xi @ x), x), 3)


def test_one_fold_asks_for_its_share(x, xi):
    with pytest.raises(ValueError, match=r"folds=1 leaves nothing.*holdout=0\.3.*folds=5"):
        wdro.select_radius(problem_of(cp.Minimize(xi @ x), x), [0.1], folds=1)


@pytest.mark.parametrize("value", [np.nan, np.array([1.0, np.nan])])
def test_nan_is_found_where_it_is_declared(x, xi, value):
    for constraint in (x <= value, cp.multiply(value, x) >= -1):
        with pytest.raises(ValueError, match="a constraint has a constant with the value nan"):
            wdro.Problem(cp.Minimize(xi @ x), [x >= 0, constraint])
    with pytest.raises(ValueError, match=r"the loss has a constant with the value nan: .*xi @ x"):
        problem_of(cp.Minimize(xi @ x + cp.sum(cp.multiply(value, x))), x)


def test_nan_is_found_in_sparse_matrices(x, xi):
    matrix = sp.csr_array(np.array([[0.0, np.nan], [1.0, 0.0]]))
    with pytest.raises(ValueError, match="a constraint has a constant with the value nan"):
        wdro.Problem(cp.Minimize(xi @ x), [x >= 0, matrix @ x <= 1])


def test_infinite_bounds_say_nothing(x, xi):
    problem = wdro.Problem(cp.Minimize(xi @ x), [x >= 0, x <= np.inf, cp.sum(x) >= 1])
    assert problem.solve() == pytest.approx(1.5, rel=1e-6)


def test_a_directory_is_no_tntp_file(tmp_path):
    (tmp_path / "Town_net.tntp").write_text("")
    with pytest.raises(IsADirectoryError, match=r"is a directory, not a TNTP.*Town_net\.tntp"):
        wdro.traffic.read_tntp(tmp_path, tmp_path)


def test_a_solver_that_cannot_be_loaded(x, xi, monkeypatch):
    def get_problem_data(*_, **__):
        raise ImportError("undefined symbol")

    monkeypatch.setattr(cp.Problem, "get_problem_data", get_problem_data)
    with pytest.raises(SolverError, match=r"SCS is installed but cannot be loaded.*CLARABEL"):
        problem_of(cp.Minimize(xi @ x), x).solve(solver=wdro.solvers.Conic("SCS"))


# ------------------------------------------------------------------ other ways to write it
def test_the_largest_norm_has_cvxpys_name(x, xi):
    assert wdro.costs.Norm("inf").p == np.inf
    problems = [
        wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1, x >= 0], wdro.WassersteinBall(0.5, cost))
        for cost in (wdro.costs.Norm("inf"), wdro.costs.Norm(np.inf))
    ]
    # The dual norm of the decision is its sum: 1.5 + 0.5.
    assert [p.solve() for p in problems] == pytest.approx([2.0, 2.0], rel=1e-6)


def test_a_cvar_of_one_entry_is_refused_with_the_way_out(x, xi):
    loss = xi @ x
    with pytest.raises(ValueError, match=r"one vector, not at the distribution.*wdro_model\.cvar"):
        problem_of(cp.Minimize(cp.cvar(cp.hstack([loss]), 0.5)), x)
    offered = wdro.Problem(cp.Minimize(wdro.cvar(loss, 0.5)), [cp.sum(x) == 1, x >= 0])
    # Two samples: the CVaR at one half is the larger of x @ (2, 1) and x @ (1, 2).
    assert offered.solve() == pytest.approx(1.5, rel=1e-6)


def test_membership_of_an_expression_names_a_way_that_works(x, xi):
    box = wdro.sets.Oracle(
        lambda g: -np.sign(g), 2, constraints=lambda z: [cp.abs(z) <= 1], name="box"
    )
    with pytest.raises(ValueError, match=r"got the expression .*\[In\(z, set\), expression == z\]"):
        wdro.In(2 * x, box)
    z = cp.Variable(2)
    problem = wdro.Problem(cp.Minimize(xi @ x), [wdro.In(z, box), 2 * x == z])
    assert problem.solve() == pytest.approx(-1.5, rel=1e-6)


# ------------------------------------------------------------------ errors of the user's functions
def broken(*_):
    raise KeyError("my own mistake")


def half_broken(_, scenarios):
    return np.zeros(len(next(iter(scenarios.values())))), broken


CASES = {
    "the oracle 'broken'": lambda x, xi: wdro.Problem(
        cp.Minimize(xi @ x), [wdro.In(x, wdro.sets.Oracle(broken, 2))]
    ).solve(),
    "the callback broken": lambda x, xi: problem_of(
        cp.Minimize(cp.sum_squares(4 * x - xi)), x
    ).solve("erm", solver=wdro.solvers.FrankWolfe(callbacks=[broken])),
    "the cost broken": lambda x, xi: wdro.Problem(
        cp.Minimize(xi @ x), [x >= 0, x <= 1], wdro.WassersteinBall(1.0, broken)
    ).solve(),
    "the loss 'broken'": lambda x, xi: problem_of(wdro.CallableLoss(broken, x, xi), x).solve("erm"),
    "the pullback of the loss 'half_broken'": lambda x, xi: problem_of(
        wdro.CallableLoss(half_broken, x, xi), x
    ).solve("erm"),
    "the metric broken": lambda x, xi: wdro.select_radius(
        problem_of(cp.Minimize(xi @ x), x), [0.1], folds=2, metric=broken, progress=False
    ),
    "the predicate broken of Where": lambda x, xi: wdro.UncertainParameter(
        2, samples=np.ones((3, 2)), support=wdro.supports.Where(broken)
    ),
}


@pytest.mark.parametrize("whose", CASES)
def test_errors_of_a_users_function_say_whose_they_are(x, xi, whose):
    with pytest.raises(KeyError, match="my own mistake") as caught:
        CASES[whose](x, xi)
    assert caught.value.__notes__ == [f"(raised by {whose}, which wdro_model called)"]


def test_a_failed_fold_says_whose_error_it_was(x, xi):
    problem = problem_of(cp.Minimize(cp.sum_squares(4 * x - xi)), x)
    # A gap of zero: the start alone does not end the run before the callback is asked.
    solver = wdro.solvers.FrankWolfe(callbacks=[broken], gap=0.0)
    with pytest.raises(RuntimeError, match=r"my own mistake.*raised by the callback broken"):
        wdro.select_radius(problem, [0.1], folds=2, solver=solver, progress=False)
