import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from wdro_model.errors import InfeasibleError
from wdro_model.sets import Assignment

BACKENDS = Assignment.backends()
SHAPES = [(1, 1), (1, 4), (3, 3), (2, 4), (3, 4)]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_backends_agree(data):
    n = data.draw(st.integers(1, 5))
    m = data.draw(st.integers(n, 6))
    costs = data.draw(st.lists(st.integers(-3, 3), min_size=n * m, max_size=n * m))
    oracle = Assignment(n, m)
    found = {name: costs @ oracle.with_backend(name).minimize(costs) for name in BACKENDS}
    assert len(set(found.values())) == 1, found


def test_larger_tables_with_held_pairs_match_scipy_on_the_rest():
    rng = np.random.default_rng(0)
    costs = rng.standard_normal((20, 25))
    costs[3, 7], costs[11, 2] = 5.0, 5.0
    rest = np.delete(np.delete(costs, [3, 11], axis=0), [7, 2], axis=1)
    least = 10.0 + rest[linear_sum_assignment(rest)].sum()
    for backend in BACKENDS:
        oracle = Assignment(20, 25, backend=backend, mandatory=[(3, 7), (11, 2)])
        table = oracle.table(oracle.minimize(costs.ravel()))
        assert np.sum(costs * table) == pytest.approx(least)


def test_rows_and_columns_have_names():
    oracle = Assignment(["Ann", "Bob"], ["wash", "cook", "shop"], forbidden=[("Ann", "cook")])
    vertex = oracle.minimize([3.0, 0.0, 1.0, 2.0, 1.0, 2.0])
    assert oracle.selected(vertex) == [("Ann", "shop"), ("Bob", "cook")]
    assert oracle.pairs[1] == ("Ann", "cook")
    np.testing.assert_array_equal(oracle.table(vertex), [[0, 0, 1], [0, 1, 0]])
    assert "2 rows to 3 columns (1 forbidden)" in oracle.describe()


def test_a_matrix_variable_may_be_constrained():
    costs = np.array([[3.0, 1.0], [1.0, 5.0]])
    x = cp.Variable((2, 2))
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(costs, x))), Assignment(2).constraints(x))
    problem.solve()
    assert problem.value == pytest.approx(2.0, abs=1e-6)


def test_pairs_that_leave_no_assignment_are_infeasible():
    blocked = [(0, 0), (1, 0), (0, 1), (1, 1)]
    for backend in BACKENDS:
        with pytest.raises(InfeasibleError, match="0 mandatory and 4 forbidden"):
            Assignment(2, 2, backend=backend, forbidden=blocked)
        with pytest.raises(InfeasibleError, match="2 mandatory"):
            Assignment(3, 3, backend=backend, mandatory=[(0, 0), (0, 1)])
        with pytest.raises(InfeasibleError, match="2 mandatory"):
            Assignment(3, 3, backend=backend, mandatory=[(0, 0), (1, 0)])
