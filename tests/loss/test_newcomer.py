"""An atom that neither CVXPY's solvers nor the library know: its rule, and its other facts."""

from __future__ import annotations

from importlib import metadata

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize

import wdro_model as wdro
from wdro_model.errors import MissingRuleError
from wdro_model.loss import (
    AtomFacts,
    BatchedLoss,
    declare,
    degree,
    is_canonicalisable,
    pieces,
    quadratic_form,
    register_rule,
    rule,
)
from wdro_model.loss.atoms.cvxpy_classes import Elementwise
from wdro_model.testing import check_atom

ROWS = np.random.default_rng(0).normal(1.0, 1.0, (20, 2))


class Convex(Elementwise):
    """A convex function of each entry, of which CVXPY knows the curvature alone."""

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


class LogCosh(Convex):
    """log cosh v."""

    def numeric(self, values):
        return np.logaddexp(values[0], -values[0]) - np.log(2)


@register_rule(LogCosh)
def _(_atom, v):
    return np.logaddexp(v, -v) - np.log(2), lambda g: g * np.tanh(v)


class Hinge(Convex):
    """max(1 - v, 0)."""

    def numeric(self, values):
        return np.maximum(1 - values[0], 0)

    def is_decr(self, idx):
        return True


@declare(Hinge)
class HingeFacts(AtomFacts):
    def rule(self, atom, v):
        return np.maximum(1 - v, 0), lambda g: -g * (v < 1)

    def pieces(self, atom, sign, at):
        written = cp.pos(1 - atom.args[0])
        return at.entry_pieces(written, at.number, sign)

    def rebuild(self, atom, reads):
        (argument,) = reads
        return Hinge(argument) if argument.parameters() else cp.pos(1 - argument)


def problem_of(loss_of):
    x = cp.Variable(2, name="x")
    z = wdro.UncertainParameter(2, "z", samples=ROWS)
    ball = wdro.WassersteinBall(0.1)
    return x, wdro.Problem(cp.Minimize(loss_of(x, z)), [x >= 0, x <= 1, cp.sum(x) <= 1], ball)


def test_empirical_risk_over_cvxpy_constraints():
    x, problem = problem_of(lambda x, z: cp.sum(LogCosh(x - z)))
    value = problem.solve(method="erm")
    found = minimize(
        lambda y: np.log(np.cosh(y - ROWS)).sum(axis=1).mean(),
        np.full(2, 0.3),
        bounds=[(0, 1)] * 2,
        constraints={"type": "ineq", "fun": lambda y: 1 - y.sum()},
    )
    assert value == pytest.approx(found.fun, rel=1e-4)
    np.testing.assert_allclose(x.value, found.x, atol=1e-2)


@pytest.mark.parametrize("method", ["smoothed", "auto"])
def test_the_smoothed_problem_needs_no_epsilon(method):
    _, problem = problem_of(lambda x, z: cp.sum(LogCosh(x - z)))
    robust = problem.solve(method=method)
    # The worst case over the ball is at least the mean, and log cosh is 1-Lipschitz in each entry.
    _, plain = problem_of(lambda x, z: cp.sum(LogCosh(x - z)))
    mean = plain.solve(method="erm")
    assert mean < robust <= mean + np.sqrt(2 * 0.1) + 0.1


def test_a_conic_solver_is_refused_with_the_reason():
    _, problem = problem_of(lambda x, z: cp.sum(LogCosh(x - z)))
    with pytest.raises(ValueError, match=r"an atom that CVXPY's solvers do not know.*FrankWolfe"):
        problem.solve(method="erm", solver=wdro.solvers.Conic())


def test_what_cvxpy_can_write():
    x, y = cp.Variable(2), cp.Variable(nonneg=True)
    P = cp.Parameter((2, 2), PSD=True)
    assert is_canonicalisable(cp.sum(cp.exp(x)) + cp.quad_form(x, np.eye(2)) + y * 3)
    assert is_canonicalisable(cp.power(y, 1.5) + cp.norm(x, 3) + cp.sum(cp.huber(x)[0:1]))
    assert is_canonicalisable(cp.sum(LogCosh(cp.Constant([1.0, 2.0]))) + y)
    assert not is_canonicalisable(cp.sum(LogCosh(x)))
    assert not is_canonicalisable(quadratic_form(x, wdro.UncertainParameter((2, 2))))
    assert is_canonicalisable(cp.quad_form(x, P))


@pytest.mark.parametrize("given", [cp.sum, cp.exp(cp.Variable()), int, cp.Variable, "LogCosh"])
def test_what_is_no_atom_class_is_refused(given):
    with pytest.raises(
        TypeError, match=r"subclasses of cvxpy.*Atom, got .*pass type\(expression\)"
    ):
        register_rule(given)
    with pytest.raises(TypeError, match=r"@rule\(MyAtom\)"):
        rule()


def test_a_rule_of_the_wrong_signature_is_refused():
    needed = r"function \(atom, value of each operand\) -> \(value, pullback for each operand\)"
    with pytest.raises(TypeError, match=needed + r", got <lambda>\(v\)"):
        register_rule(LogCosh)(lambda v: v)
    with pytest.raises(TypeError, match=needed + ", got 3"):
        register_rule(LogCosh)(3)
    with pytest.raises(TypeError, match=r"\(atom, operands\) -> kernel, got <lambda>\(a, b, c\)"):
        register_rule(LogCosh, prepared=True)(lambda a, b, c: None)


def test_a_misspelled_fact_is_refused():
    class Misspelled(AtomFacts):
        def degre(self, atom, degrees):
            return 1

    with pytest.raises(TypeError, match=r"declares 'degre', which is no fact .*degree, adjoints"):
        declare(LogCosh)(Misspelled)
    with pytest.raises(TypeError, match="a subclass of AtomFacts"):
        declare(LogCosh)(dict)


def test_pieces_that_a_new_atom_declares_give_its_exact_counterpart():
    values = []
    for hinge in (Hinge, lambda v: cp.pos(1 - v)):
        x, z = cp.Variable(2), wdro.UncertainParameter(2, "z", samples=ROWS)
        loss = hinge(x @ z) + cp.sum_squares(x)
        assert len(pieces(loss, (z,))) == 2
        ball = wdro.WassersteinBall(0.2, wdro.costs.Norm(2))
        values.append(wdro.Problem(cp.Minimize(loss), [x >= -5, x <= 5], ball).solve("exact"))
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_facts_and_rule_add_up_in_either_order():
    class Line(Convex):
        """2 v."""

        def numeric(self, values):
            return 2 * values[0]

    class Twin(Line):
        pass

    class Facts(AtomFacts):
        def degree(self, atom, degrees):
            return degrees[0]

    def double(_atom, v):
        return 2 * v, lambda g: 2 * g

    rule(Line)(double)
    declare(Line)(Facts)
    declare(Twin)(Facts)
    rule(Twin)(double)
    z = wdro.UncertainParameter(2, "z")
    for atom in (Line, Twin):
        assert degree(cp.sum(atom(z)), (z,)) == 1
        values, _ = BatchedLoss(cp.sum(atom(z)))({}, {z: ROWS})
        np.testing.assert_allclose(values, 2 * ROWS.sum(axis=1))


class Offered(Convex):
    """An atom whose rule another package has."""

    numeric = LogCosh.numeric


def test_another_package_offers_a_rule(monkeypatch):
    loaded = []

    def load(entry):
        loaded.append(entry.value)
        register_rule(Offered)(
            lambda atom, v: (Offered.numeric(atom, [v]), lambda g: g * np.tanh(v))
        )

    entries = [
        metadata.EntryPoint(name, "somebody.atoms", "wdro_model.rules")
        for name in ("Offered", "Another")
    ]
    loss = Offered(cp.Variable(name="x") - wdro.UncertainParameter(name="z"))
    with pytest.raises(MissingRuleError, match="'Offered'"):
        BatchedLoss(loss)
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    with pytest.raises(ValueError, match="rule of 'Offered' could not be loaded from 'somebody"):
        BatchedLoss(loss)
    monkeypatch.setattr(metadata.EntryPoint, "load", load)
    assert BatchedLoss(loss).variables[0].name() == "x"
    assert loaded == ["somebody.atoms"]


def wrong(value, slope):
    """An atom of its own that has a rule."""

    class Mistaken(Convex):
        numeric = LogCosh.numeric

    register_rule(Mistaken)(lambda atom, v: (value(v), slope(v)))
    return Mistaken(cp.Variable(2, name="x"))


def log_cosh(v):
    return np.logaddexp(v, -v) - np.log(2)


@pytest.mark.parametrize(
    ("value", "slope", "message"),
    [
        (lambda v: 5 * log_cosh(v), lambda v: lambda g: 5 * g * np.tanh(v), "where its numeric"),
        (log_cosh, lambda v: lambda g: -g * np.tanh(v), "not the derivative of its value"),
        (log_cosh, lambda v: np.tanh(v), "then one pullback"),
        (log_cosh, lambda v: lambda g: np.ones(7), "pullback of operand 0 .* fails"),
    ],
)
def test_a_rule_that_is_not_the_atom_is_named(value, slope, message):
    with pytest.raises(ValueError, match=message):
        check_atom(wrong(value, slope))
