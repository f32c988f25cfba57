import importlib.metadata
from types import SimpleNamespace

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

from wdro_model.sets import (
    FeasibleSet,
    In,
    Oracle,
    ShortestPath,
    SpanningTree,
    check,
    register_backend,
)


class Box(FeasibleSet):
    """[0, 1]^n with a backend of its own, as a user would write it."""

    default_backend = "signs"

    def __init__(self, dimension, backend=None):
        self.dimension = dimension
        self.use_backend(backend)


def signs(box):
    return lambda direction: np.where(direction < 0, 1.0, 0.0)


register_backend(Box, "signs", signs)


class Interval(FeasibleSet):
    """[0, 1] with `minimize` written by hand and nothing else."""

    dimension = 1

    def minimize(self, direction):
        return np.where(np.asarray(direction) < 0, 1.0, 0.0)


@pytest.fixture
def entry_points(monkeypatch):
    """A list of entry points that importlib.metadata answers with."""
    offered = []
    original = importlib.metadata.entry_points

    def answer(**selection):
        if selection.get("group") == "wdro_model.backends":
            return offered
        return original(**selection)

    monkeypatch.setattr(importlib.metadata, "entry_points", answer)
    return offered


def entry(name, factory, loads):
    def load():
        loads.append(name)
        return factory()

    return SimpleNamespace(name=name, value="package.module:factory", load=load)


def test_a_set_of_ones_own_passes_the_check():
    assert check(Box(4)).passed
    assert check(Interval()).passed


def test_a_set_without_cvxpy_form_says_so():
    with pytest.raises(NotImplementedError, match="no CVXPY form"):
        Box(2).constraints(cp.Variable(2))


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        ([1.0, 2.0], r"shape \(3,\), got shape \(2,\)"),
        (np.ones((3, 1)), r"got shape \(3, 1\)"),
        ([1.0, np.nan, 0.0], "got nan at index 1"),
        ([1.0, 0.0, -np.inf], "got -inf at index 2"),
    ],
)
def test_a_direction_that_makes_no_sense_is_refused(direction, message):
    with pytest.raises(ValueError, match=message):
        Box(3).minimize(direction)
    with pytest.raises(ValueError, match=message):
        ShortestPath(nx.path_graph(4), 0, 3).minimize(direction)


def test_very_large_finite_directions_are_accepted():
    np.testing.assert_array_equal(Box(2).minimize([1e200, -1e200]), [0, 1])


def test_a_registered_backend_can_be_used_by_name():
    class Cube(Box):
        pass

    register_backend(Cube, "looped", lambda cube: lambda g: np.array([float(v < 0) for v in g]))
    assert Cube.backends() == ("looped", "signs")
    assert Box.backends() == ("signs",)
    np.testing.assert_array_equal(Cube(2, backend="looped").minimize([1, -1]), [0, 1])


def test_a_taken_name_is_refused_unless_it_is_to_be_replaced():
    class Cube(Box):
        pass

    register_backend(Cube, "mine", signs)
    with pytest.raises(ValueError, match="already has a backend 'mine'"):
        register_backend(Cube, "mine", signs)
    register_backend(Cube, "mine", lambda cube: lambda g: np.zeros(2), replace=True)
    np.testing.assert_array_equal(Cube(2, "mine").minimize([-1, -1]), [0, 0])


def test_a_registration_that_cannot_work_is_refused():
    with pytest.raises(ValueError, match="takes the class of a set"):
        register_backend(Box(2), "mine", signs)
    with pytest.raises(ValueError, match="non-empty string, got 3"):
        register_backend(Box, 3, signs)
    with pytest.raises(ValueError, match="must be callable, got 'signs'"):
        register_backend(Box, "mine", "signs")


def test_another_package_can_offer_a_backend(entry_points):
    loads = []
    entry_points.append(entry("Box.theirs", lambda: signs, loads))
    entry_points.append(entry("Other.theirs", lambda: signs, loads))
    assert Box.backends() == ("signs", "theirs")
    assert SpanningTree.backends() == (
        "kruskal",
        "numba",
        "scipy",
        "networkx",
        "ortools",
        "cvxpy",
    )
    assert loads == []  # listed, not imported
    try:
        np.testing.assert_array_equal(Box(2, "theirs").minimize([-1, 1]), [1, 0])
        Box(2, "theirs")
        assert loads == ["Box.theirs"]
    finally:
        from wdro_model.sets import backends

        backends._registered[Box].pop("theirs", None)


def test_a_package_that_fails_to_load_is_named(entry_points):
    def fail():
        raise ImportError("no module named fast_trees")

    entry_points.append(entry("Box.broken", fail, []))
    with pytest.raises(ValueError, match=r"'Box\.broken' could not be loaded .* fast_trees"):
        Box(2, backend="broken")


def test_unknown_backends_list_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown backend of Box 'sings'\. Did you mean 'signs'"):
        Box(2, backend="sings")
    with pytest.raises(ValueError, match="unknown backend of Box 3"):
        Box(2, backend=3)
    with pytest.raises(ValueError, match="one way to be minimised"):
        Oracle(np.sign, 2).with_backend("scipy")


def test_with_backend_leaves_the_original_alone():
    trees = SpanningTree(nx.complete_graph(4))
    other = trees.with_backend("networkx")
    assert (trees.backend, other.backend) == ("kruskal", "networkx")
    assert other.edges is trees.edges


def test_membership_keeps_variable_and_set():
    x, box = cp.Variable(3, name="x"), Box(3)
    member = In(x, box)
    assert member.variable is x
    assert member.set is box
    assert repr(member) == "In(x, Box(dimension=3))"


def test_membership_accepts_a_matrix_variable_in_row_major_order():
    trees = SpanningTree(nx.complete_graph(4))
    x = cp.Variable((3, 2))
    weights = np.arange(6.0)[::-1]
    objective = cp.Minimize(weights @ cp.vec(x, order="C"))
    problem = cp.Problem(objective, In(x, trees).constraints())
    problem.solve()
    np.testing.assert_allclose(x.value.ravel(), trees.minimize(weights), atol=1e-6)


def test_membership_of_the_wrong_thing_is_refused():
    trees = SpanningTree(nx.complete_graph(4))
    x = cp.Variable(5, name="x")
    with pytest.raises(ValueError, match=r"variable 'x' has shape \(5,\).*dimension 6"):
        In(x, trees)
    with pytest.raises(ValueError, match=r"takes a cp\.Variable first, got"):
        In(2 * cp.Variable(6), trees)
    with pytest.raises(ValueError, match="takes a feasible set second, got function"):
        In(cp.Variable(6), signs)
    with pytest.raises(ValueError, match="is complex"):
        In(cp.Variable(6, complex=True), trees)
