"""Costs by name: built in, registered, from a package, and what a class lacks."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.uncertainty.costs.group_norm import BareGroupNorm, BoundGroupNorm, GroupNorm
from wdro_model.uncertainty.costs import BoundCost, GroundCost
from wdro_model.uncertainty.costs.cost_register import COSTS


@pytest.fixture(autouse=True)
def register(monkeypatch):
    """A copy of the register, thrown away afterwards."""
    monkeypatch.setattr(COSTS, "_things", dict(COSTS._things))
    monkeypatch.setattr(COSTS, "_entries", None)


@pytest.fixture
def entry_points(monkeypatch):
    """Entry points that importlib.metadata answers with."""
    offered = []
    original = importlib.metadata.entry_points

    def answer(**wanted):
        if wanted.get("group") == "wdro_model.costs":
            return list(offered)
        return original(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", answer)
    return offered


def test_built_in_costs_go_by_name():
    assert isinstance(wdro.WassersteinBall(1.0, "squared").cost, wdro.costs.SquaredEuclidean)
    assert isinstance(wdro.WassersteinBall(1.0, cost="norm").cost, wdro.costs.Norm)
    assert wdro.WassersteinBall.order(1, 0.5, "norm").radius == 0.5
    with pytest.raises(ValueError, match="exactly one of covariance= and precision="):
        wdro.WassersteinBall(1.0, "mahalanobis")


def test_a_registered_cost_goes_by_its_name():
    assert wdro.costs.register_cost("group")(GroupNorm) is GroupNorm
    assert isinstance(wdro.WassersteinBall(1.0, cost="group").cost, GroupNorm)
    assert "group" in wdro.costs.cost_names()
    with pytest.raises(ValueError, match=r"unknown cost 'gruop'. Did you mean 'group'\?"):
        wdro.WassersteinBall(1.0, cost="gruop")


def test_a_name_that_is_taken_is_refused_unless_replaced():
    with pytest.raises(ValueError, match=r"a cost 'norm' already, Norm; .* replace=True"):
        wdro.costs.register_cost("norm")(GroupNorm)
    wdro.costs.register_cost("norm", replace=True)(GroupNorm)
    assert isinstance(wdro.costs.as_cost("norm"), GroupNorm)
    with pytest.raises(ValueError, match=r"registered under a name: .*got 3"):
        wdro.costs.register_cost(3)


def test_a_cost_with_arguments_says_so():
    @wdro.costs.register_cost("needy")
    class Needy(GroupNorm):
        def __init__(self, width):
            pass

    with pytest.raises(ValueError, match=r"'needy' needs arguments .*width.*cost=Needy\(\.\.\.\)"):
        wdro.costs.as_cost("needy")


def test_what_a_class_lacks_is_named():
    class Empty(GroundCost):
        pass

    class Valueless(BoundCost):
        pass

    class Half(GroupNorm):
        bound = Valueless

    for given, message in [
        (Empty, "Empty lacks bind, describe, order, bound; see"),
        (Half, "Half lacks Valueless.describe, Valueless.of_displacements"),
        (np.linalg.norm, "must be a subclass of wdro_model.costs.GroundCost"),
        (type("Odd", (GroupNorm,), {"bound": 3}), "bound of the cost 'x' must be a subclass"),
    ]:
        with pytest.raises(ValueError, match=message):
            wdro.costs.register_cost("x")(given)


def test_operations_tell_what_a_cost_knows_and_what_that_is_for():
    known = {o.name: o for o in wdro.costs.operations(GroupNorm)}
    assert known["dual_norm"].known
    assert not known["conjugate"].known
    assert str(known["conjugate"]).startswith("lacks conjugate: bounded supports")
    assert wdro.costs.operations(BoundGroupNorm) == wdro.costs.operations(GroupNorm)
    bare = {o.name for o in wdro.costs.operations(BareGroupNorm) if o.known}
    assert bare == set()
    assert all(
        o.known
        for o in wdro.costs.operations(wdro.costs.SquaredEuclidean)
        if o.name in ("gradient", "dual_norm", "steepest_move", "conjugate", "matrix")
    )


def test_another_package_can_offer_a_cost(entry_points):
    loads = []

    def load():
        loads.append(1)
        return GroupNorm

    entry_points.append(SimpleNamespace(name="theirs", value="their:GroupNorm", load=load))
    assert "theirs" in wdro.costs.cost_names()
    assert loads == []
    assert isinstance(wdro.WassersteinBall(1.0, "theirs").cost, GroupNorm)
    wdro.WassersteinBall(2.0, "theirs")
    assert loads == [1]


def test_a_package_that_fails_to_load_is_named(entry_points):
    def fail():
        raise ImportError("no module named their")

    entry_points.append(SimpleNamespace(name="broken", value="their:Cost", load=fail))
    with pytest.raises(
        ValueError, match="'broken' could not be loaded from 'their:Cost': no module"
    ):
        wdro.WassersteinBall(1.0, "broken")


class Absolute(BoundCost):
    """sum_i |delta_i|, with one operation replaced in each case below."""

    order, is_norm = 1, True

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def of_displacements(self, delta):
        return np.abs(delta).sum(axis=1)

    def describe(self):
        return "mine"


@pytest.mark.parametrize(
    ("operation", "wrong", "message"),
    [
        ("dual_norm", lambda self, slope: cp.abs(slope), r"dual_norm .*shape \(\).*got \(3,\)"),
        ("dual_norm", lambda self, slope: None, "dual_norm .*a CVXPY expression is asked for"),
        ("of_displacements", lambda self, delta: delta.sum(axis=2), "fails at random moves"),
        ("of_displacements", lambda self, delta: list(abs(delta).sum(axis=1)), "return an array"),
        ("of_displacements", lambda self, delta: abs(delta), r"shape \(8,\).*got \(8, 3\)"),
        ("gradient", lambda self, delta: 1 / 0, "gradient .*ZeroDivisionError"),
        ("gradient", lambda self, delta: delta.sum(axis=1), r"gradient .*\(8, 3\).*got \(8,\)"),
    ],
)
def test_an_operation_that_fails_is_named(operation, wrong, message):
    bound = type("Wrong", (Absolute,), {operation: wrong})(3)
    rows = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(ValueError, match=message):
        wdro.costs.check(bound, rows)


def test_the_arguments_of_bind_are_named():
    class Forgets(GroundCost):
        order, bound = 1, Absolute

        def bind(self):
            return Absolute(2)

        def describe(self):
            return "mine"

    z = wdro.UncertainParameter(2, samples=np.eye(2))
    x = cp.Variable(2, nonneg=True)
    with pytest.raises(ValueError, match=r"bind of the cost Forgets must take \(joint\)"):
        wdro.Problem(cp.Minimize(z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(1.0, Forgets()))


class Lengths(BoundCost):
    """A Euclidean norm with weights, to some power."""

    is_norm, weights = True, np.array([1.0, 2.0, 3.0, 4.0])

    def __init__(self, dimension=4):
        self.dimension = dimension

    def describe(self):
        return "|w delta|"

    def of_displacements(self, delta):
        return np.linalg.norm(delta * self.weights, axis=1)

    def dual_norm(self, slope):
        return cp.norm(cp.multiply(1 / self.weights, slope), 2)


class Sums(Lengths):
    def of_displacements(self, delta):
        return np.abs(delta * self.weights).sum(axis=1)

    def dual_norm(self, slope):
        return cp.norm(cp.multiply(1 / self.weights, slope), "inf")


class Largest(Lengths):
    def of_displacements(self, delta):
        return np.abs(delta * self.weights).max(axis=1)

    def dual_norm(self, slope):
        return cp.norm1(cp.multiply(1 / self.weights, slope))


class Cubes(Lengths):
    is_norm, order = False, 3.0

    def of_displacements(self, delta):
        return super().of_displacements(delta) ** 3


class Wide(Lengths):
    weights = np.ones(150)

    def __init__(self):
        self.dimension = 150


class Wider(Largest):
    weights = np.linspace(1, 3, 700)

    def __init__(self):
        self.dimension = 700


@pytest.mark.parametrize("declared", [Lengths, Sums, Largest, Cubes, Wide, Wider])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_dual_norm_is_accepted(declared, seed):
    wdro.costs.check(
        declared(), np.random.default_rng(seed).normal(size=(20, 1)) + 0 * declared.weights, seed
    )


@pytest.mark.parametrize("declared", [Lengths, Sums, Largest, Cubes, Wide, Wider])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_dual_norm_that_is_too_low_or_too_high_is_refused(declared, factor):
    wrong = {"dual_norm": lambda self, slope: factor * declared.dual_norm(self, slope)}
    bound = type("Wrong", (declared,), wrong)()
    rows = np.random.default_rng(0).normal(size=(20, bound.dimension))
    with pytest.raises(ValueError, match="contradicts itself"):
        wdro.costs.check(bound, rows)


@pytest.mark.parametrize("declared", [Lengths, Sums, Largest, Cubes])
def test_weights_of_a_dual_norm_that_are_not_inverted_are_refused(declared):
    wrong = {
        "dual_norm": lambda self, slope: declared.dual_norm(
            self, cp.multiply(self.weights**2, slope)
        )
    }
    with pytest.raises(ValueError, match="the dual norm is too high"):
        wdro.costs.check(type("Wrong", (declared,), wrong)())


P = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 3.0]])


class BareQuadratic(BoundCost):
    """delta' P delta, which knows its values and its dual norm."""

    is_quadratic, dimension = True, 3

    def describe(self):
        return "delta' P delta"

    def of_displacements(self, delta):
        return np.einsum("bi,ij,bj->b", delta, P, delta)

    def dual_norm(self, slope):
        return cp.norm(np.linalg.cholesky(np.linalg.inv(P)).T @ slope, 2)


class Quadratic(GroundCost):
    order, bound = 2.0, BareQuadratic

    def bind(self, joint):
        return self.bound()

    def describe(self):
        return "delta' P delta"


def allocation(cost):
    samples = np.random.default_rng(0).normal(0.1, 0.3, size=(30, 3))
    z, x = wdro.UncertainParameter(3, samples=samples), cp.Variable(3, nonneg=True)
    return wdro.Problem(cp.Minimize(-z @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1, cost))


@pytest.mark.parametrize("method", ["auto", "exact", "smoothed"])
def test_a_quadratic_cost_finds_its_matrix(method):
    smoothing = {"epsilon": 0.01, "sigma": 0.1} if method == "smoothed" else {}
    known = allocation(wdro.costs.Mahalanobis(precision=P))
    expected = known.solve(method=method, **smoothing)
    found = allocation(Quadratic()).solve(method=method, **smoothing)
    assert found == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(BareQuadratic().matrix, P, atol=1e-12)
    slopes = np.random.default_rng(1).normal(size=(2, 4, 3))
    np.testing.assert_allclose(BareQuadratic().inverse_times(slopes), slopes @ np.linalg.inv(P))


def test_a_property_that_is_a_method_is_named():
    bound = type("Bound", (BareQuadratic,), {"matrix": lambda self: P})
    with pytest.raises(ValueError, match=r"matrix of the cost .* must be a property: write @prop"):
        wdro.costs.check(type("Mine", (Quadratic,), {"bound": bound})(), np.eye(3))


def test_what_is_missing_is_named_as_a_property_or_a_method():
    with pytest.raises(wdro.costs.UnknownToCost, match="give Lengths the property matrix"):
        _ = Lengths().matrix
    with pytest.raises(wdro.costs.UnknownToCost, match="give Lengths the method inverse_times"):
        Lengths().inverse_times(np.ones(4))


@pytest.mark.parametrize("given", [BareQuadratic(), BareQuadratic])
def test_a_bound_cost_is_no_ground_cost(given):
    with pytest.raises(ValueError, match="pass the ground cost, not what it binds to"):
        wdro.WassersteinBall(0.1, given)


class PartlyFrozen(BareQuadratic):
    """The same, with the last coordinate as observed."""

    frozen = np.array([False, False, True])
    matrix = property(lambda self: P)

    def of_displacements(self, delta):
        return np.where(delta[:, 2] != 0, np.inf, super().of_displacements(delta))

    def dual_norm(self, slope):
        return cp.norm(np.linalg.cholesky(np.linalg.inv(P[:2, :2])).T @ slope[:2], 2)

    def inverse_times(self, slopes):
        moved = slopes[..., :2] @ np.linalg.inv(P[:2, :2])
        return np.concatenate([moved, 0 * slopes[..., 2:]], axis=-1)


@pytest.mark.parametrize(
    ("method", "curved"), [("exact", False), ("smoothed", False), ("smoothed", True)]
)
def test_coordinates_that_stay_leave_the_others_coupled(method, curved):
    """The same as a model without them, which are numbers then."""
    samples = np.random.default_rng(0).normal(0.1, 0.3, size=(30, 3))
    samples[:, 2] = 0.2
    smoothing = {"epsilon": 1e-2, "sigma": 0.1} if method == "smoothed" else {}
    values = []
    for d, cost in [
        (3, type("Mine", (Quadratic,), {"bound": PartlyFrozen})()),
        (2, wdro.costs.Mahalanobis(precision=P[:2, :2])),
    ]:
        z, x = wdro.UncertainParameter(d, samples=samples[:, :d]), cp.Variable(3)
        gain = z @ x[:d] + (0.2 * x[2] if d == 2 else 0.0)
        loss = cp.logistic(-gain) if curved else -gain
        ball = wdro.WassersteinBall(0.1, cost)
        problem = wdro.Problem(cp.Minimize(loss), [x == [0.3, 0.5, 0.2]], ball)
        values.append(problem.solve(method=method, **smoothing))
    assert values[0] == pytest.approx(values[1], rel=1e-4)
