from itertools import permutations

import numpy as np
import pytest

from tests.sets.fuzzing import agrees, is_hull, travels
from wdro_model.sets import BasePolytope, check

COVERED = {"a": {1, 2}, "b": {2, 3}, "c": {3, 4, 5}, "d": {1, 5}}


def coverage(chosen):
    """How many numbers are covered: submodular."""
    return float(len(set().union(*(COVERED[item] for item in chosen))))


def root(chosen):
    return len(chosen) ** 0.5


def cut(chosen):
    """The cut function of a cycle of 5 nodes: submodular, not monotone."""
    return float(sum((i in chosen) != ((i + 1) % 5 in chosen) for i in range(5)))


CASES = {"coverage": (coverage, list(COVERED)), "root": (root, 4), "cut": (cut, 5)}


def vertices(f, items):
    """The marginal values along every order: all vertices, by Edmonds."""
    names = list(range(items)) if isinstance(items, int) else items
    rows = []
    for order in permutations(range(len(names))):
        row, before = np.empty(len(names)), 0.0
        for k in range(len(names)):
            value = f(frozenset(names[i] for i in order[: k + 1]))
            row[order[k]], before = value - before, value
        rows.append(row)
    return np.unique(rows, axis=0)


@pytest.mark.parametrize("case", CASES)
def test_the_greedy_point_is_the_best_of_all_vertices(case):
    polytope, points = BasePolytope(*CASES[case]), vertices(*CASES[case])
    agrees(points, polytope, exact=False)
    is_hull(points, polytope)
    travels(polytope)
    assert check(polytope, directions=20).passed
    lower, upper = polytope.bounds
    np.testing.assert_allclose(points.min(axis=0), lower, atol=1e-12)
    np.testing.assert_allclose(points.max(axis=0), upper, atol=1e-12)


def test_large_functions_have_no_cvxpy_form():
    polytope = BasePolytope(root, 40)
    assert check(polytope, directions=20).passed
    with pytest.raises(NotImplementedError, match="no CVXPY form"):
        polytope.constraints(None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BasePolytope(3, 3), "must be a function of a set of items, got 3"),
        (lambda: BasePolytope(lambda s: 1.0, 3), "of the empty set must be 0, got 1; subtract it"),
        (lambda: BasePolytope(lambda s: len(s) ** 2, 5), "f is not submodular: .* adds"),
        (lambda: BasePolytope(lambda s: np.inf if s else 0.0, 3), "f must be finite, got inf"),
        (lambda: BasePolytope(root, 0), "number of items must be"),
        (lambda: BasePolytope(root, 3).minimize(np.ones(3), np.zeros(3)), "within bounds; write"),
        (lambda: BasePolytope(root, 3).round(np.ones(3)), "cannot be rounded"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
