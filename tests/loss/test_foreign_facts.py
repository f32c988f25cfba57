"""Facts of atoms that were added by a user: what is not so is refused, by name."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.atom import Atom

import wdro_model as wdro

SAMPLES = np.random.default_rng(0).normal(size=(20, 3))


def spread_atom():
    """max v - min v, of a vector, as an atom of its own each time."""

    class Spread(Atom):
        def __init__(self, v):
            super().__init__(v)

        def numeric(self, values):
            return np.max(values[0]) - np.min(values[0])

        def shape_from_args(self):
            return ()

        def sign_from_args(self):
            return True, False

        def is_atom_convex(self):
            return True

        def is_atom_concave(self):
            return False

        def is_incr(self, idx):
            return False

        def is_decr(self, idx):
            return False

        def _grad(self, values):
            raise NotImplementedError

    return Spread


def spread_rule(atom, v):
    eye = np.eye(v.shape[-1])
    slope = eye[v.argmax(axis=-1)] - eye[v.argmin(axis=-1)]
    return v.max(axis=-1) - v.min(axis=-1), lambda g: np.asarray(g)[..., None] * slope


def differences(v):
    return [v[i] - v[j] for i in range(3) for j in range(3) if i != j]


def declared(rule=spread_rule, **facts):
    """A new atom with the rule and the facts."""
    atom = spread_atom()
    wdro.register_rule(atom)(rule)
    wdro.loss.declare(atom)(type("Facts", (wdro.loss.AtomFacts,), facts))
    return atom


def problem_of(atom, radius=0.1, cost=None, samples=SAMPLES):
    w = cp.Variable(3, name="w")
    xi = wdro.UncertainParameter(3, name="xi", samples=samples)
    ball = wdro.WassersteinBall(radius, *([] if cost is None else [cost]))
    return wdro.Problem(cp.Minimize(cp.sum(atom(xi - w))), [cp.abs(w) <= 1], ball)


@pytest.mark.parametrize("taken", [cp.max, cp.min, cp.norm1, cp.abs, cp.log_sum_exp])
def test_a_rule_of_the_library_is_not_replaced_unasked(taken):
    with pytest.raises(ValueError, match=rf"{taken.__name__}' has a rule already.*replace=True"):
        wdro.register_rule(taken)(lambda atom, v: (v, lambda g: g))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"pieces": lambda self, atom, sign, at: cp.max(atom.args[0])},
            r"pieces\(atom, sign, at\) of the atom 'Spread' must return a list .* got max",
        ),
        (
            {"pieces": lambda self, atom, sign, at: []},
            r"pieces.* 'Spread' must return .* one at least .*NoPieces.*got \[\]",
        ),
        (
            {"pieces": lambda self, atom, sign: []},
            r"pieces\(atom, sign, at\) of the atom 'Spread' fails: TypeError: .*4 were given",
        ),
        (
            {"pieces": lambda self, atom, sign, at: [atom.args[0], -atom.args[0]]},
            r"pieces of the atom 'Spread' .*of shape \(3,\).* needs one entry",
        ),
        (
            {"pieces": lambda self, atom, sign, at: [cp.square(atom.args[0][0])]},
            r"pieces of the atom 'Spread' .*not affine in the data.*degree is 2",
        ),
        (
            {"degree": lambda self, atom, degrees: None},
            r"degree\(atom, degrees\) of the atom 'Spread' must return a number.* got None",
        ),
        (
            {"square": lambda self, atom: (atom.args[0], 1)},
            r"square\(atom\) of the atom 'Spread' must return \(u, t\), two .* got \(.*, int\)",
        ),
        ({"is_entrywise": True}, r"'Spread' is declared as is_entrywise.* \(\) .*shape \(3,\)"),
    ],
)
def test_a_fact_of_the_wrong_kind_is_named(facts, message):
    atom = declared(**facts)
    with pytest.raises(ValueError, match=message):
        problem_of(atom).solve(method="exact")


def test_a_distant_form_in_numpy_is_named():
    atom = declared(far=lambda self, atom, arguments: np.abs(arguments[0]))
    with pytest.raises(ValueError, match=r"far\(atom, arguments\) of the atom 'Spread' fails"):
        problem_of(atom, cost=wdro.costs.Norm(2)).solve(method="erm")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"is_homogeneous": lambda self: True}, "is_homogeneous is True or False, got"),
        ({"far": 3}, r"far\(atom, arguments\) is a method, got 3"),
    ],
)
def test_a_fact_that_is_no_method_is_refused_where_it_is_declared(facts, message):
    with pytest.raises(TypeError, match=message):
        declared(**facts)


def test_the_degree_one_asks_for_adjoints():
    atom = declared(
        rule=lambda atom, v: (v[..., 0] + v[..., 1], lambda g: g[..., None] * np.array([1, 1, 0])),
        degree=lambda self, atom, degrees: degrees[0],
    )
    atom.numeric = lambda self, values: values[0][0] + values[0][1]
    with pytest.raises(ValueError, match=r"declare the fact adjoints\(atom\) of 'Spread'"):
        problem_of(atom).solve(method="exact")


def test_a_rule_that_needs_the_batch_axis_is_named():
    def batched_only(atom, v):
        return spread_rule(atom, v[:, :])

    w = cp.Variable(3)
    atom = declared(batched_only)
    xi = wdro.UncertainParameter(3, samples=SAMPLES)
    message = r"rule of the atom 'Spread' fails on values of shape \(3,\): IndexError.*batch axis"
    with pytest.raises(ValueError, match=message):
        wdro.Problem(cp.Minimize(atom(w) + cp.sum_squares(w - xi)), [cp.abs(w) <= 1])


@pytest.mark.parametrize(
    ("pull", "message"),
    [
        (lambda full: full.sum(axis=-1), r"shape is \(3,\), the operand's \(3, 3\)"),
        (lambda full: full.sum(axis=0), r"shape is \(3,\), the operand's \(3, 3\)"),
        (lambda full: full[:2], r"has the shape \(2, 3\); .*the operand's, \(3, 3\)"),
    ],
)
def test_a_pullback_of_another_shape_is_told_the_shapes(pull, message):
    def rule(atom, v):
        value, pullback = spread_rule(atom, v)
        return value, lambda g: pull(pullback(g))

    with pytest.raises(ValueError, match=message):
        problem_of(declared(rule))


def test_a_rule_that_writes_into_its_operands_is_refused():
    def rule(atom, v):
        v -= v.mean(axis=-1, keepdims=True)
        return spread_rule(atom, v)

    with pytest.raises(ValueError, match="'Spread' changes the values that it is given"):
        problem_of(declared(rule))
