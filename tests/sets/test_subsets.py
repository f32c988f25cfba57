import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.sets.fuzzing import (
    agrees,
    agrees_when_held,
    all_choices,
    is_hull,
    rounds_well,
    travels,
)
from wdro_model.sets import Subsets, check

CASES = [(5, 2, False), (5, 2, True), (4, 4, False), (6, 1, False), (1, 1, True)]


def members(n, k, at_most):
    return all_choices(n, lambda row: row.sum() <= k if at_most else row.sum() == k)


@pytest.mark.parametrize(("n", "k", "at_most"), CASES)
def test_subsets_are_the_best_of_all(n, k, at_most):
    subsets, points = Subsets(n, k, at_most=at_most), members(n, k, at_most)
    agrees(points, subsets)
    agrees_when_held(points, subsets)
    is_hull(points, subsets)
    travels(subsets)
    assert check(subsets, directions=20).passed


@pytest.mark.parametrize("at_most", [False, True])
def test_subsets_are_rounded_to(at_most):
    rounds_well(members(5, 2, at_most), Subsets(5, 2, at_most=at_most))


def test_items_have_names():
    subsets = Subsets(["tea", "milk", "salt"], 2, forbidden=["tea"])
    assert subsets.items == ("tea", "milk", "salt")
    vertex = subsets.minimize([-9.0, 1.0, 2.0])
    assert subsets.selected(vertex) == ["milk", "salt"]
    assert "(1 forbidden)" in subsets.describe()
    assert check(subsets, directions=10).passed
    rounded = subsets.round(np.array([1.0, 0.9, 0.1]), value=lambda v: -v[0])
    assert subsets.selected(rounded) == ["milk", "salt"]


def test_a_robust_choice_of_items():
    rng = np.random.default_rng(0)
    subsets = Subsets(6, 2)
    x = cp.Variable(6)
    price = wdro.UncertainParameter(6, samples=rng.uniform(1, 2, size=(10, 6)))
    problem = wdro.Problem(
        cp.Minimize(price @ x), [wdro.In(x, subsets)], ambiguity=wdro.WassersteinBall(0.01)
    )
    problem.solve()
    assert x.value.sum() == pytest.approx(2, abs=1e-4)
    problem.round()
    assert len(subsets.selected(x.value)) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subsets(3, 4), "k = 4 items need as many, got 3 items"),
        (lambda: Subsets(3, 1.5), "size k of Subsets must be an integer of at least 1"),
        (lambda: Subsets(0, 0), "number of items must be an integer of at least 1, got 0"),
        (lambda: Subsets([], 0), "at least one item, got none"),
        (lambda: Subsets(["a", "a"], 1), "name of its own, got 'a' twice"),
        (lambda: Subsets([["a"], ["b"]], 1), r"names that can be looked up, got \['a'\]"),
        (lambda: Subsets("abc", 1), "a number or a list of names, got 'abc'"),
        (lambda: Subsets(3, 1, mandatory=[7]), "7 is no item of Subsets"),
        (lambda: Subsets(3, 1, mandatory=[0, 1]), "no point with 2 mandatory"),
        (lambda: Subsets(3, 1, mandatory=[0], forbidden=[0]), "both forbidden and mandatory"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
