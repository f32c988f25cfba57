import pickle

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.sets import ConvexSet, Oracle, check
from wdro_model.sets.persistent import PersistentHighs
from wdro_model.solvers import FrankWolfe


def minimum(direction, constraints, variables):
    """The minimum that CVXPY finds."""
    flat = cp.hstack([cp.vec(variable, order="C") for variable in variables])
    problem = cp.Problem(cp.Minimize(direction @ flat), constraints)
    problem.solve(solver=cp.CLARABEL)
    assert problem.status == cp.OPTIMAL
    return problem.value


def agrees(constraints, variables, seed=0, trials=8, scale=1.0):
    """The set, after its minima were compared with CVXPY's and its points found feasible."""
    feasible = ConvexSet(constraints, variables)
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        direction = rng.standard_normal(feasible.dimension)
        point = feasible.minimize(scale * direction)
        expected = minimum(direction, constraints, variables)
        assert direction @ point == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert feasible.contains(point, tolerance=1e-5)
    return feasible


def simplex(n=4):
    x = cp.Variable(n, nonneg=True, name="x")
    return [cp.sum(x) == 1], x


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_linear_programs_have_the_minimum_that_cvxpy_finds(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 8), rng.integers(0, 6)
    x = cp.Variable(n, name="x")
    matrix = rng.integers(-2, 3, (m, n))
    inside = rng.uniform(-1, 1, n)
    constraints = [x >= -2, x <= 2]
    if m:
        constraints += [matrix @ x <= matrix @ inside + rng.uniform(0, 1, m)]
        constraints += [matrix[0] @ x == matrix[0] @ inside]
    feasible = agrees(constraints, [x], seed, trials=3)
    assert feasible.is_polytope
    feasible.check_nonempty()
    feasible.check_bounded()


SETS = {
    "second-order cone": lambda x, X, S: ([cp.norm(x) <= 2, cp.sum(x) == 1], [x]),
    "exponential cone": lambda x, X, S: ([cp.sum(cp.exp(x)) <= 5, x >= -3], [x]),
    "power cone": lambda x, X, S: ([cp.sum(cp.power(cp.abs(x), 3)) <= 2], [x]),
    "quadratic": lambda x, X, S: ([cp.sum_squares(x - 1) <= 4], [x]),
    "entropy": lambda x, X, S: ([cp.sum(cp.entr(x)) >= 0.3, cp.sum(x) == 1], [x]),
    "norm 1": lambda x, X, S: ([cp.norm(x, 1) <= 3], [x]),
    "maximum": lambda x, X, S: ([cp.max(x) - cp.min(x) <= 1, cp.abs(cp.sum(x)) <= 2], [x]),
    "positive semidefinite": lambda x, X, S: ([cp.trace(S) == 1], [S]),
    "largest eigenvalue": lambda x, X, S: ([cp.lambda_max(S) <= 2], [S]),
    "matrices": lambda x, X, S: ([cp.sum(X, axis=0) == 1, X >= 0, X[0, 1] <= 0.3], [X]),
    "several variables": lambda x, X, S: (
        [cp.sum(X) + cp.sum(x) <= 3, X >= -1, x >= cp.sum(X, axis=0)[0], cp.trace(S) <= 1],
        [X, S, x],
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_cones_and_matrices_have_the_minimum_that_cvxpy_finds(name):
    variables = cp.Variable(3), cp.Variable((2, 3)), cp.Variable((3, 3), PSD=True)
    agrees(*SETS[name](*variables))


def test_matrix_coordinates_are_in_row_major_order():
    X = cp.Variable((2, 3), name="X")
    values = np.arange(6.0).reshape(2, 3)
    y = cp.Variable()
    point = ConvexSet([values == X, y == 9], [X, y]).minimize(np.ones(7))
    np.testing.assert_allclose(point, [0, 1, 2, 3, 4, 5, 9])


@pytest.mark.parametrize(
    "attributes",
    [
        {"nonneg": True},
        {"nonpos": True},
        {"symmetric": True},
        {"PSD": True},
        {"NSD": True},
        {"diag": True},
        {"bounds": [-0.5, 0.25]},
        {"bounds": [np.arange(9.0).reshape(3, 3) / 9 - 0.6, None]},
    ],
    ids=str,
)
def test_attributes_of_variables_are_constraints(attributes):
    X = cp.Variable((3, 3), **attributes)
    feasible = agrees([cp.sum(cp.abs(X)) <= 2], [X])
    if attributes.get("symmetric") or attributes.get("PSD"):
        point = feasible.minimize(np.arange(9.0)).reshape(3, 3)
        np.testing.assert_allclose(point, point.T, atol=1e-9)


def test_attributes_alone_are_enough():
    x = cp.Variable(3, bounds=[np.array([0, -1, 2]), 3])
    feasible = ConvexSet([], x)
    np.testing.assert_array_equal(feasible.minimize([1, 1, -1]), [0, -1, 3])
    np.testing.assert_array_equal(feasible.bounds[0], [0, -1, 2])
    assert check(feasible).passed


def test_auxiliary_variables_are_projected_out():
    x, t = cp.Variable(3), cp.Variable(3)
    feasible = agrees([cp.abs(x) <= t, cp.sum(t) <= 1], [x])
    assert feasible.dimension == 3
    feasible.check_bounded()
    assert not feasible.contains([0.5, 0.5, 0.5])


def test_integer_sets_are_minimised_over_their_integer_points():
    x = cp.Variable(3, integer=True)
    constraints = [x >= 0, x <= 2.5, cp.sum(x) <= 4.2]
    feasible = ConvexSet(constraints, x)
    points = np.array(np.meshgrid(*[range(3)] * 3)).reshape(3, -1).T
    points = points[points.sum(axis=1) <= 4]
    rng = np.random.default_rng(0)
    for _ in range(20):
        direction = rng.standard_normal(3)
        vertex = feasible.minimize(direction)
        np.testing.assert_array_equal(vertex, np.rint(vertex))
        assert direction @ vertex == pytest.approx((points @ direction).min())
    assert feasible.is_polytope
    assert "convex hull" in feasible.describe()
    assert feasible.contains([1.5, 1, 1])


def test_boolean_knapsacks_are_minimised_exactly():
    z, y = cp.Variable(6, boolean=True), cp.Variable(nonneg=True)
    weights = np.array([3.0, 5, 7, 4, 6, 2])
    feasible = ConvexSet([weights @ z + y <= 12, y <= 3], [z, y])
    choices = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T
    rng = np.random.default_rng(1)
    for _ in range(10):
        direction = rng.standard_normal(7)
        room = 12 - choices @ weights
        best = choices @ direction[:6] + np.where(
            direction[6] < 0, direction[6] * np.clip(room, 0, 3), 0
        )
        expected = best[room >= 0].min()
        assert direction @ feasible.minimize(direction) == pytest.approx(expected)
    np.testing.assert_array_equal(feasible.bounds[1], [1, 1, 1, 1, 1, 1, 3])


def test_variables_may_be_boolean_in_part():
    x = cp.Variable(3, boolean=[(0,)])
    feasible = ConvexSet([x >= 0, x <= 1.5, cp.sum(x) <= 2.25], x)
    np.testing.assert_allclose(feasible.minimize([-1, -1.5, -1]), [0, 1.5, 0.75])
    assert feasible.contains([0, 1.5, 0.75])
    assert not feasible.contains([1.2, 0, 0])


def test_integers_under_cones_are_refused_with_the_way_out():
    x = cp.Variable(2, integer=True)
    with pytest.raises(ValueError, match=r"integer variables.*linear.*continuous relaxation"):
        ConvexSet([cp.norm(x) <= 2], x)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12, 1e-200, 1e200])
def test_the_size_of_the_direction_does_not_matter(scale):
    x = cp.Variable(4)
    agrees([cp.abs(x) <= 1, cp.sum(x) == 0.5], [x], scale=scale, trials=3)
    agrees([cp.norm(x) <= 1], [x], scale=scale, trials=3)


def test_points_are_within_the_declared_bounds_exactly():
    x = cp.Variable(3, nonneg=True)
    feasible = ConvexSet([cp.sum(x) == 1, cp.norm(x) <= 0.8, x <= 0.7], x)
    lower, upper = feasible.bounds
    np.testing.assert_array_equal(lower, np.zeros(3))
    np.testing.assert_array_equal(upper, np.full(3, 0.7))
    for direction in np.random.default_rng(0).standard_normal((20, 3)):
        point = feasible.minimize(direction)
        assert np.all(point >= 0)
        assert np.all(point <= 0.7)


def test_a_fresh_array_is_returned_and_the_direction_kept():
    constraints, x = simplex()
    feasible = ConvexSet(constraints, x)
    direction = np.array([3.0, 1, 2, 4])
    first = feasible.minimize(direction)
    kept = first.copy()
    feasible.minimize(-direction)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(direction, [3, 1, 2, 4])


def test_the_user_s_variables_and_values_are_left_alone():
    constraints, x = simplex()
    x.value = np.full(4, 0.25)
    feasible = ConvexSet(constraints, x)
    feasible.minimize([1, 2, 3, 4])
    feasible.contains(np.full(4, 0.25))
    np.testing.assert_array_equal(x.value, np.full(4, 0.25))


def test_after_a_reset_a_run_is_repeated_exactly():
    rng = np.random.default_rng(0)
    x = cp.Variable(12, bounds=[0, 1])
    matrix = rng.integers(0, 2, (5, 12))
    feasible = ConvexSet([matrix @ x <= 2], x)
    directions = rng.integers(-1, 2, (30, 12))  # ties: the vertex depends on the basis
    runs = []
    for _ in range(2):
        feasible.reset()
        runs.append([feasible.minimize(direction) for direction in directions])
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize(
    ("constraints", "coordinate"),
    [
        (lambda x: [x >= 0], r"x\[\d\] can go to \+infinity; add bounds such as x <= 10"),
        (lambda x: [x <= 0], r"x\[\d\] can go to -infinity; add bounds such as x >= -10"),
        (lambda x: [cp.sum(x) == 1], r"x\[\d\] can go to"),
        (lambda x: [x[0] <= 1, x[0] >= 0, x[1] == 2], r"x\[2\] can go to"),
        (lambda x: [cp.norm(x) <= x[0] + 1], r"x\[0\] can go to \+infinity"),
        (lambda x: [cp.norm(x[:2]) <= 1], r"x\[2\] can go to"),
        (lambda x: [], r"x\[\d\] can go to"),
    ],
)
def test_unbounded_sets_name_the_coordinate_and_the_way_out(constraints, coordinate):
    x = cp.Variable(3, name="x")
    feasible = ConvexSet(constraints(x), x)
    feasible.check_nonempty()
    with pytest.raises(UnboundedError, match=coordinate):
        feasible.check_bounded()


def test_an_unbounded_integer_set_is_found():
    x = cp.Variable(2, integer=True, name="x")
    with pytest.raises(UnboundedError, match=r"x\[0\] can go to -infinity; add bounds"):
        ConvexSet([cp.sum(x) >= 1], x).check_bounded()


@pytest.fixture
def branchings(monkeypatch):
    """A list with an entry for each program with integers that HiGHS is given."""
    solved = []
    minimize = PersistentHighs.minimize

    def counted(self, cost):
        if self._integer is not None:
            solved.append(cost)
        return minimize(self, cost)

    monkeypatch.setattr(PersistentHighs, "minimize", counted)
    return solved


def test_whether_integers_are_bounded_is_a_linear_program(branchings):
    y = cp.Variable(5, integer=True, name="y")
    bounded = ConvexSet([y >= 0, cp.sum(y) <= 7.5], y)
    bounded.check_bounded()
    assert branchings == []
    with pytest.raises(UnboundedError, match=r"y\[\d\] can go to \+infinity"):
        ConvexSet([y >= 0, y[0] <= 2], y).check_bounded()
    assert branchings == []
    half = bounded.minimize_relaxed([-1, 0, 0, 0, 0])
    np.testing.assert_allclose(half, [7.5, 0, 0, 0, 0])
    np.testing.assert_allclose(bounded.minimize([-1, 0, 0, 0, 0])[0], 7)
    assert len(branchings) == 1


def test_a_run_branches_in_no_random_direction(branchings):
    y = cp.Variable(4, boolean=True, name="y")
    z = wdro.UncertainParameter(4, samples=np.random.default_rng(0).uniform(size=(5, 4)))
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(cp.multiply(z, y))), [cp.sum(y) == 2])
    problem.solve(solver=FrankWolfe())
    # The first, random direction is minimised over the relaxation.
    assert len(branchings) == problem.solution.oracle_calls - 1


def test_an_unbounded_set_can_still_be_minimised_where_it_is_bounded():
    x = cp.Variable(2, name="x")
    feasible = ConvexSet([x >= 1], x)
    with pytest.raises(UnboundedError):
        feasible.minimize([-1, 1])
    np.testing.assert_array_equal(feasible.minimize([1, 1]), [1, 1])
    with pytest.raises(UnboundedError):
        feasible.minimize([1, -1])


@pytest.mark.parametrize(
    "constraints",
    [
        lambda x: [x >= 1, x <= 0],
        lambda x: [cp.sum(x) >= 4, x <= 1],
        lambda x: [cp.norm(x) <= 1, x >= 2],
        lambda x: [cp.sum(x) == 1, cp.sum(x) == 2],
        lambda x: [0 * cp.sum(x) >= 1],
        lambda x: [cp.sum(x) >= 4, cp.sum(x) <= 3],
    ],
)
def test_empty_sets_say_so(constraints):
    x = cp.Variable(3, name="x")
    feasible = ConvexSet(constraints(x), x)
    with pytest.raises(InfeasibleError, match="empty: no value of 'x' satisfies"):
        feasible.check_nonempty()
    with pytest.raises(InfeasibleError, match="relax or drop"):
        feasible.minimize(np.ones(3))


def test_an_empty_integer_set_says_so():
    x = cp.Variable(integer=True, name="x")
    with pytest.raises(InfeasibleError, match="empty"):
        ConvexSet([x >= 0.2, x <= 0.8], x).check_nonempty()


def test_true_is_no_constraint_and_false_is_none_that_holds():
    x = cp.Variable(2, bounds=[0, 1])
    np.testing.assert_array_equal(ConvexSet([True, np.True_, x <= 1], x).minimize([1, 1]), [0, 0])
    with pytest.raises(InfeasibleError, match="constraint 1 is False"):
        ConvexSet([x >= 0, False], x)


def test_a_constraint_listed_twice_counts_once():
    constraints, x = simplex()
    feasible = ConvexSet(constraints * 3, x)
    assert len(feasible.constraints()) == 1
    assert check(feasible).passed


def test_the_user_s_own_constraints_are_handed_back():
    constraints, x = simplex()
    feasible = ConvexSet(constraints, x)
    for same in (x, [x], (x,)):
        assert feasible.constraints(same)[0] is constraints[0]


def test_the_constraints_can_be_put_on_another_expression():
    X = cp.Variable((2, 2), symmetric=True, name="X")
    feasible = ConvexSet([cp.norm(X, "fro") <= 1], X)
    y = cp.Variable(4)
    first, second = cp.Variable(4), cp.Variable((2, 2))
    problem = cp.Problem(
        cp.Minimize(cp.sum(first) - cp.sum(second) + y[1] - 2 * y[2]),
        [*feasible.constraints(first), *feasible.constraints(second), *feasible.constraints(y)],
    )
    problem.solve()
    # Over symmetric matrices of norm 1: sum(X) is least at -2, and X_01 - 2 X_10 at -1/sqrt 2.
    assert problem.value == pytest.approx(-2 - 2 - 1 / np.sqrt(2), abs=1e-6)
    assert X.value is None


def test_parameters_keep_the_value_they_had():
    cap, slope = cp.Parameter(nonneg=True, name="cap"), cp.Parameter(2, value=[1, 1])
    x = cp.Variable(2, nonneg=True)
    with pytest.raises(cp.error.ParameterError, match=r"parameter 'cap' .* has no value"):
        ConvexSet([slope @ x <= cap], x)
    cap.value = 2.0
    feasible = ConvexSet([slope @ x <= cap * cap], x)  # not DPP: parameters are constants here
    np.testing.assert_allclose(feasible.minimize([-2, -1]), [4, 0])
    assert feasible.is_current()
    cap.value = 3.0
    assert not feasible.is_current()
    np.testing.assert_allclose(feasible.minimize([-2, -1]), [4, 0])
    cap.value = 2.0
    assert feasible.is_current()
    slope.value = np.array([1, 2])
    assert not feasible.is_current()


def test_bounds_may_be_parameters():
    cap = cp.Parameter(3, value=np.array([1.0, 2, 3]), name="cap")
    x = cp.Variable(3, bounds=[0, cap])
    feasible = ConvexSet([cp.sum(x) <= 4], x)
    np.testing.assert_allclose(feasible.minimize([-1, -3, -2]), [0, 2, 2])
    np.testing.assert_array_equal(feasible.bounds[1], [1, 2, 3])
    cap.value = np.ones(3)
    assert not feasible.is_current()


def test_constraints_that_are_not_convex_are_named():
    x = cp.Variable(2, name="x")
    with pytest.raises(ValueError, match=r"constraint 1 is not convex .*1\.0 <= "):
        ConvexSet([x >= 0, cp.norm(x) >= 1], x)
    with pytest.raises(ValueError, match="constraint 0 is not convex"):
        ConvexSet([cp.square(x) == 1], x)


def test_arguments_of_the_wrong_kind_are_refused():
    x = cp.Variable(2, name="x")
    with pytest.raises(ValueError, match="at least one"):
        ConvexSet([x >= 0], [])
    with pytest.raises(ValueError, match=r"cp\.Variable objects, got .* at position 1"):
        ConvexSet([x >= 0], [x, 2 * x])
    with pytest.raises(ValueError, match="each variable must be given once, got x, x"):
        ConvexSet([x >= 0], [x, x])
    with pytest.raises(
        ValueError, match=r"constraint 1 must be a CVXPY constraint .*, got Variable"
    ):
        ConvexSet([x >= 0, x], x)
    with pytest.raises(ValueError, match="'z' is complex"):
        ConvexSet([], cp.Variable(2, complex=True, name="z"))
    with pytest.raises(ValueError, match="one way to be minimised"):
        ConvexSet([x >= 0], x).with_backend("highs")


@pytest.mark.parametrize("cone", [lambda x: cp.sum(x) <= 1, lambda x: cp.norm(x) <= 1])
def test_it_can_be_sent_to_another_process(cone):
    x = cp.Variable(3, nonneg=True)
    feasible = ConvexSet([cone(x)], x)
    twin = pickle.loads(pickle.dumps(feasible))
    direction = np.array([1.0, -2, -1])
    np.testing.assert_allclose(twin.minimize(direction), feasible.minimize(direction), atol=1e-7)


@pytest.mark.parametrize(
    "constraint",
    [lambda x: cp.sum(x) <= 1, lambda x: cp.norm(x - 0.1) <= 1],
    ids=["linear", "cone"],
)
def test_check_passes(constraint):
    x = cp.Variable(4, nonneg=True)
    feasible = ConvexSet([constraint(x)], x)
    assert check(feasible).passed
    assert check(Oracle(feasible.minimize, 4, constraints=feasible.constraints)).passed


def test_warm_starts_give_the_same_minima_as_cold_ones():
    rng = np.random.default_rng(5)
    x = cp.Variable(30, bounds=[0, 1])
    matrix = rng.standard_normal((12, 30))
    constraints = [matrix @ x <= matrix @ rng.uniform(0, 1, 30) + 0.1]
    warm = ConvexSet(constraints, x)
    for direction in rng.standard_normal((20, 30)):
        cold = ConvexSet(constraints, x)
        expected = direction @ cold.minimize(direction)
        assert direction @ warm.minimize(direction) == pytest.approx(expected)
