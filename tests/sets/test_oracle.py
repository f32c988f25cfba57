import pickle

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.sets import ConvexSet, Oracle, ProductSet, check


def simplex(direction):
    """The vertex of the simplex with the least cost."""
    return np.eye(direction.size)[np.argmin(direction)]


def simplex_constraints(x):
    return [x >= 0, cp.sum(x) == 1]


def test_a_bare_function_is_a_set():
    oracle = Oracle(simplex, 4)
    np.testing.assert_array_equal(oracle.minimize([3, 1, 2, 4]), [0, 1, 0, 0])
    assert repr(oracle) == "Oracle(simplex, dimension=4)"
    assert not oracle.has_constraints
    with pytest.raises(NotImplementedError, match="no CVXPY form"):
        oracle.constraints(cp.Variable(4))


def test_a_function_with_a_cvxpy_form_is_compared_with_it():
    oracle = Oracle(simplex, 4, constraints=simplex_constraints, bounds=(0, 1))
    assert check(oracle).compared == 5
    assert oracle.contains([0.25] * 4)
    assert not oracle.contains([0.5] * 4)


def test_the_function_may_reuse_its_buffer_and_change_its_input():
    buffer = np.zeros(3)

    def careless(direction):
        index = np.argmin(direction)
        direction[:] = 0
        buffer[:] = 0
        buffer[index] = 1
        return buffer

    assert check(Oracle(careless, 3)).passed


def test_lists_are_accepted_as_answers():
    np.testing.assert_array_equal(Oracle(lambda g: [1, 0], 2).minimize([1, 1]), [1.0, 0.0])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones(3), r"'broken' must return an array of shape \(2,\), got shape \(3,\)"),
        (np.ones((2, 1)), r"got shape \(2, 1\)"),
        ([0.0, np.nan], "'broken' must return finite numbers, got nan at index 1"),
        (None, "'broken' must return"),
        ("ab", "'broken' must return an array of 2 numbers, got str"),
        ([0.0, 1.5], r"'broken' returned 1.5 at index 1, outside its declared bounds \[0, 1\]"),
    ],
)
def test_answers_that_make_no_sense_name_the_function(answer, message):
    with pytest.raises(ValueError, match=message):
        Oracle(lambda g: answer, 2, bounds=(0, 1), name="broken").minimize([1, 1])


def test_rounding_errors_beyond_the_bounds_are_clipped():
    oracle = Oracle(lambda g: [-1e-9, 1 + 1e-9], 2, bounds=(0, 1))
    np.testing.assert_array_equal(oracle.minimize([1, 1]), [0, 1])


def test_negative_directions_are_refused_where_declared():
    oracle = Oracle(simplex, 3, nonnegative_directions=True)
    with pytest.raises(ValueError, match="nonnegative directions, got -1 at index 2"):
        oracle.minimize([1, 2, -1])
    np.testing.assert_array_equal(oracle.minimize([1, 2, -1e-18]), [0, 0, 1])
    assert check(oracle).passed


def test_declarations_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="function direction -> vertex first, got list"):
        Oracle([1, 2], 2)
    with pytest.raises(ValueError, match=r"positive integer .*, got 0"):
        Oracle(simplex, 0)
    with pytest.raises(ValueError, match=r"positive integer .*, got 2\.0"):
        Oracle(simplex, 2.0)
    with pytest.raises(ValueError, match="function x -> list of CVXPY constraints, got list"):
        Oracle(simplex, 2, constraints=[])
    with pytest.raises(ValueError, match="lower <= upper, got 1 and 0 at index 0"):
        Oracle(simplex, 2, bounds=(1, 0))
    with pytest.raises(ValueError, match=r"pair \(lower, upper\)"):
        Oracle(simplex, 2, bounds=([0, 0, 0], 1))


def test_an_oracle_can_be_sent_to_another_process():
    twin = pickle.loads(pickle.dumps(Oracle(simplex, 3)))
    np.testing.assert_array_equal(twin.minimize([2, 1, 3]), [0, 1, 0])


def blocks():
    x = cp.Variable(2, bounds=[0, 1])
    return Oracle(simplex, 3, constraints=simplex_constraints), ConvexSet([cp.sum(x) >= 1], x)


def test_a_product_minimises_each_block_on_its_own_coordinates():
    first, second = blocks()
    both = ProductSet([(first, [4, 0, 2]), (second, slice(1, 4, 2))])
    direction = np.array([1.0, -1.0, 2.0, 3.0, 0.5])
    vertex = both.minimize(direction)
    np.testing.assert_array_equal(vertex[[4, 0, 2]], first.minimize(direction[[4, 0, 2]]))
    np.testing.assert_allclose(vertex[[1, 3]], [1, 0], atol=1e-9)
    assert check(both, directions=20).compared == 5
    lower, upper = both.bounds
    np.testing.assert_array_equal(lower, [-np.inf, 0, -np.inf, 0, -np.inf])
    np.testing.assert_array_equal(upper, [np.inf, 1, np.inf, 1, np.inf])


def test_a_product_of_bare_sets_takes_consecutive_coordinates():
    first, second = blocks()
    both = ProductSet([first, second])
    assert both.dimension == 5
    assert [where for _, where in both.blocks] == [slice(0, 3), slice(3, 5)]
    assert both.is_polytope
    assert "simplex" in both.describe()


def test_a_product_without_a_block_s_cvxpy_form_has_none():
    both = ProductSet([Oracle(simplex, 2), blocks()[1]])
    assert not both.has_constraints
    with pytest.raises(NotImplementedError, match="simplex"):
        both.constraints(cp.Variable(4))


def test_a_product_knows_when_a_parameter_has_changed():
    cap = cp.Parameter(value=1.0)
    x = cp.Variable(2, nonneg=True)
    both = ProductSet([ConvexSet([x <= cap], x), Oracle(simplex, 2)])
    assert both.is_current()
    cap.value = 2.0
    assert not both.is_current()


def test_blocks_that_do_not_share_out_the_coordinates_are_refused():
    first, second = blocks()
    with pytest.raises(ValueError, match="at least one set"):
        ProductSet([])
    with pytest.raises(ValueError, match="block 1 of a ProductSet must be a feasible set"):
        ProductSet([first, simplex])
    with pytest.raises(ValueError, match="coordinate 2 is in 2 blocks"):
        ProductSet([(first, [0, 1, 2]), (second, [2, 3])])
    with pytest.raises(ValueError, match="dimension 3, but was given 2 indices"):
        ProductSet([(first, [0, 1]), (second, [2, 3])])
    with pytest.raises(ValueError, match=r"must lie in 0\.\.4"):
        ProductSet([(first, [0, 1, 5]), (second, [2, 3])])
    with pytest.raises(ValueError, match="slice or a list of integers"):
        ProductSet([(first, [0.5, 1, 2]), (second, [3, 4])])


# ------------------------------------------------------------------ the wrong way round
DATA = [[1.0, 2.0, 3.0], [1.0, 1.5, 2.0]]


@pytest.mark.parametrize("method", ["erm", "exact", "smoothed"])
@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_function_that_maximises_is_refused(method, boolean, seed):
    worst = wdro.sets.Oracle(lambda direction: np.eye(3)[np.argmax(direction)], 3, name="largest")
    x, z = cp.Variable(3, boolean=boolean), wdro.UncertainParameter(3, samples=DATA)
    problem = wdro.Problem(cp.Minimize(z @ x), [wdro.In(x, worst)], wdro.WassersteinBall(0.01))
    with pytest.raises(wdro.InexactOracleError, match=r"Oracle\(largest.* is not exact"):
        problem.solve(method, seed=seed)


@pytest.mark.parametrize("seed", range(40))
def test_a_function_that_minimises_is_never_taken_for_one_that_maximises(seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, size=(int(rng.integers(1, 12)), int(rng.integers(1, 6))))
    directions = rng.choice([rng.normal(), 0.0, 1.0, 1e-9, -1e9], size=(6, points.shape[1]))
    for direction in directions:
        found = wdro.sets.Oracle(lambda c: points[np.argmin(points @ c)], points.shape[1])
        least = (points @ direction).min()
        assert direction @ found.minimize(direction) <= least + 1e-12 * np.abs(direction).max()


def test_a_direction_that_no_solve_needs_may_fail():
    def for_one_direction(direction):
        if direction[0] > direction[1]:
            raise RuntimeError("never asked for that")
        return np.eye(2)[0]

    assert wdro.sets.Oracle(for_one_direction, 2).minimize([1.0, 2.0]).tolist() == [1.0, 0.0]
