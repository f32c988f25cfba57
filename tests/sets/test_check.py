import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

from wdro_model.sets import FeasibleSet, Oracle, OracleError, SpanningTree, check


def simplex(direction):
    return np.eye(direction.size)[np.argmin(direction)]


class Raw(FeasibleSet):
    """A set whose `minimize` is the given function, with nothing in between."""

    def __init__(self, function, dimension=4):
        self.dimension, self._function = dimension, function

    def minimize(self, direction):
        return self._function(direction)


def failures(feasible, **options):
    with pytest.raises(OracleError) as caught:
        check(feasible, **options)
    assert not caught.value.report.passed
    return str(caught.value)


def test_a_right_oracle_passes_and_the_report_says_how_much_was_tried():
    report = check(Raw(simplex), directions=30)
    assert report.passed
    assert report.failures == ()
    assert "passed (30 directions, 0 against its CVXPY form)" in str(report)


def test_an_oracle_that_is_sometimes_not_optimal_is_caught():
    def lazy(direction):
        return np.append(simplex(direction[:3]), 0.0)

    # Among its own vertices it is optimal: only the CVXPY form tells.
    assert check(Raw(lazy)).passed
    form = Oracle(lazy, 4, constraints=lambda x: [x >= 0, cp.sum(x) == 1])
    assert "the minimum over the CVXPY form is" in failures(form, compared=20)

    def greedy(direction):
        return simplex(np.round(direction))

    assert "not optimal" in failures(Raw(greedy))


def test_an_oracle_that_maximises_is_told_so():
    assert "does the oracle maximise?" in failures(Raw(lambda g: simplex(-g)))


def test_an_oracle_that_changes_its_input_is_caught():
    def mutating(direction):
        vertex = simplex(direction)
        direction *= -1
        return vertex

    assert "changed the direction" in failures(Raw(mutating))


def test_an_oracle_that_is_not_homogeneous_is_caught():
    def shrinking(direction):
        return simplex(direction) / (1 + np.linalg.norm(direction))

    assert "not homogeneous" in failures(Raw(shrinking))


def test_an_oracle_that_returns_its_buffer_is_caught():
    buffer = np.zeros(4)

    def reusing(direction):
        buffer[:] = simplex(direction)
        return buffer

    assert "not a fresh array" in failures(Raw(reusing))


def test_an_oracle_that_is_random_is_caught():
    rng = np.random.default_rng(0)
    assert "not deterministic" in failures(Raw(lambda g: rng.standard_normal(4)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones(3), r"shape \(4,\), got \(3,\)"),
        ([0.0] * 4, "got list"),
        (np.full(4, np.inf), "finite, got inf at index 0"),
    ],
)
def test_answers_of_the_wrong_form_are_caught(answer, message):
    with pytest.raises(OracleError, match=message):
        check(Raw(lambda g: answer))


def test_answers_outside_the_bounds_are_caught():
    feasible = Raw(simplex)
    feasible.bounds = (np.zeros(4), np.full(4, 0.5))
    assert "outside the declared bounds [0, 0.5]" in failures(feasible)


def test_an_oracle_that_raises_is_reported_with_its_error():
    def fails(direction):
        raise RuntimeError("no licence")

    assert "raised RuntimeError: no licence" in failures(Raw(fails))


def test_a_wrong_cvxpy_form_is_caught():
    trees = SpanningTree(nx.complete_graph(4))
    wrong = Oracle(trees.minimize, 6, constraints=lambda x: [x >= 0, x <= 1, cp.sum(x) == 3])
    assert "the minimum over the CVXPY form is" in failures(wrong, compared=20)
    infeasible = Oracle(trees.minimize, 6, constraints=lambda x: [x >= 0, x <= -1])
    assert "infeasible" in failures(infeasible)


def test_nonnegative_sets_are_given_nonnegative_directions():
    seen = []

    def watching(direction):
        seen.append(direction.min())
        return simplex(direction)

    feasible = Raw(watching)
    feasible.nonnegative_directions = True
    assert check(feasible).passed
    assert min(seen) >= 0


def test_the_global_random_state_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    check(Raw(simplex))
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_function_is_not_a_set():
    with pytest.raises(ValueError, match="wrap a function as Oracle"):
        check(simplex)
