"""Facts of atoms that were added by a user: `check_atom` names what is not so."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.elementwise import Elementwise

import wdro_model as wdro
from wdro_model.testing import check_atom

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


def check(atom, samples=SAMPLES, decision=None):
    """Test the atom at differences of data and decision."""
    w = cp.Variable(3, name="w")
    xi = wdro.UncertainParameter(3, name="xi", samples=samples)
    check_atom(atom(xi - w), None if decision is None else {w: decision})


@pytest.mark.parametrize("taken", [cp.max, cp.min, cp.norm1, cp.abs, cp.log_sum_exp])
def test_a_rule_of_the_library_is_not_replaced_unasked(taken):
    with pytest.raises(ValueError, match=rf"{taken.__name__}' has a rule already.*replace=True"):
        wdro.register_rule(taken)(lambda atom, v: (v, lambda g: g))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"pieces": lambda self, atom, sign, at: cp.max(atom.args[0])},
            r"pieces of the atom 'Spread' must return a list .* got max",
        ),
        (
            {"pieces": lambda self, atom, sign, at: []},
            r"pieces.* 'Spread' must return .* one at least .*NoPieces.*got \[\]",
        ),
        (
            {"pieces": lambda self, atom, sign: []},
            r"pieces of the atom 'Spread' fails: TypeError: .*4 were given",
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
            r"degree of the atom 'Spread' must return a number.* got None",
        ),
        (
            {"square": lambda self, atom: (atom.args[0], 1)},
            r"square of the atom 'Spread' must return \(u, t\), two .* got \[.*, int\]",
        ),
        ({"is_entrywise": True}, r"'Spread' is declared as is_entrywise.* \(\) .*shape \(3,\)"),
    ],
)
def test_a_fact_of_the_wrong_kind_is_named(facts, message):
    atom = declared(**facts)
    with pytest.raises(ValueError, match=message):
        check(atom)


def test_a_distant_form_in_numpy_is_named():
    atom = declared(far=lambda self, atom, arguments: np.abs(arguments[0]))
    with pytest.raises(ValueError, match="fact far of the atom 'Spread' fails"):
        check(atom)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"is_homogeneous": lambda self: True}, "is_homogeneous is True or False, got"),
        ({"far": 3}, r"far is a method \(self, atom, arguments\), got 3"),
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
        check(atom)


def test_a_rule_that_needs_the_batch_axis_is_named():
    def batched_only(atom, v):
        return spread_rule(atom, v[:, :])

    atom = declared(batched_only)
    message = r"rule of the atom 'Spread' fails on values of shape \(3,\): IndexError.*batch axis"
    with pytest.raises(ValueError, match=message):
        check_atom(atom(cp.Variable(3)))
    with pytest.raises(ValueError, match=message):
        check(atom)


@pytest.mark.parametrize(
    ("pull", "message"),
    [
        (lambda full: full.sum(axis=-1), r"has the shape \(16,\); .*the operand's, \(16, 3\)"),
        (lambda full: full.sum(axis=0), r"shape is \(3,\), the operand's \(16, 3\)"),
        (lambda full: full[:2], r"has the shape \(2, 3\); .*the operand's, \(16, 3\)"),
    ],
)
def test_a_pullback_of_another_shape_is_told_the_shapes(pull, message):
    def rule(atom, v):
        value, pullback = spread_rule(atom, v)
        return value, lambda g: pull(pullback(g))

    with pytest.raises(ValueError, match=message):
        check(declared(rule))


def test_a_rule_that_writes_into_its_operands_is_refused():
    def rule(atom, v):
        v -= v.mean(axis=-1, keepdims=True)
        return spread_rule(atom, v)

    with pytest.raises(ValueError, match="'Spread' changes the values that it is given"):
        check(declared(rule))


# ------------------------------------------------------------------ held against the atom's values
class Bowl(Elementwise):
    """A convex function of each entry."""

    def sign_from_args(self):
        return True, False

    def is_atom_convex(self):
        return True

    def is_atom_concave(self):
        return False

    def is_incr(self, idx):
        return self.args[idx].is_nonneg()

    def is_decr(self, idx):
        return self.args[idx].is_nonpos()

    def _grad(self, values):
        raise NotImplementedError


def rounded(v):
    return np.sqrt(1 + v**2) - 1


def elementwise(value, rule, **facts):
    """A new atom, value(v) entry by entry, with the rule and the facts."""

    class Entries(Bowl):
        def numeric(self, values):
            return value(values[0])

    wdro.register_rule(Entries)(rule)
    wdro.loss.declare(Entries)(type("Facts", (wdro.loss.AtomFacts,), facts))
    return Entries


def rounded_rule(atom, v):
    return rounded(v), lambda g: g * v / np.sqrt(1 + v**2)


def huber(v, bend):
    return np.where(np.abs(v) <= bend, v**2, 2 * bend * np.abs(v) - bend**2)


@pytest.mark.parametrize("bend", [1.0, 5.0, 50.0])
def test_a_rule_that_forgets_a_branch_is_refused_at_the_data(bend):
    atom = elementwise(lambda v: huber(v, bend), lambda atom, v: (v**2, lambda g: 2 * g * v))
    message = r"rule of the atom 'Entries' gives .* where its numeric\(\) gives .* the operands \["
    with pytest.raises(ValueError, match=message):
        check(atom, samples=100 * SAMPLES**3)


def test_a_pullback_that_forgets_a_branch_is_refused_at_the_data():
    atom = elementwise(
        lambda v: huber(v, 5.0), lambda atom, v: (huber(v, 5.0), lambda g: 2 * g * v)
    )
    with pytest.raises(
        ValueError, match=r"pullback of operand 0 .* 'Entries' is not the derivative"
    ):
        check(atom, samples=100 * SAMPLES**3)


def test_a_rule_with_all_branches_is_taken_also_at_its_kinks():
    atom = elementwise(np.abs, lambda atom, v: (np.abs(v), lambda g: g * np.sign(v)))
    w = cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=np.round(SAMPLES))
    problem = wdro.Problem(cp.Minimize(cp.sum(atom(xi)) + cp.sum(atom(w))), [cp.abs(w) <= 1])
    expected = np.abs(np.round(SAMPLES)).sum(axis=1).mean()
    assert problem.solve(method="erm") == pytest.approx(expected, abs=1e-4)


def test_a_rule_is_held_against_the_atom_at_a_decision():
    def rule(atom, v):
        return rounded(v) + (v > 500), rounded_rule(atom, v)[1]

    atom, w = elementwise(rounded, rule), cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=SAMPLES)
    check_atom(atom(w - xi))
    with pytest.raises(ValueError, match=r"rule of the atom 'Entries' gives .* numeric\(\) gives"):
        check_atom(atom(w - xi), {w: np.full(3, 1000.0)})
    assert w.value is None
    assert xi.value is None


@pytest.mark.parametrize(
    ("value", "slope", "claimed", "order"),
    [
        (rounded, lambda v: v / np.sqrt(1 + v**2), 1, 2),
        (lambda v: v**2, lambda v: 2 * v, 1, 2),
        (lambda v: v**4, lambda v: 4 * v**3, 2, 3),
        (np.abs, np.sign, 2, 3),
    ],
)
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_a_degree_that_is_too_low_is_refused(value, slope, claimed, order, scale):
    atom = elementwise(
        value,
        lambda atom, v: (value(v), lambda g: g * slope(v)),
        degree=lambda self, atom, degrees: claimed * degrees[0],
    )
    message = f"'Entries' .* degree {claimed} in the data, .* differences of order {order} are not"
    with pytest.raises(ValueError, match=message):
        check(atom, samples=scale * SAMPLES)


def test_a_degree_that_is_right_is_taken():
    atom = elementwise(
        lambda v: v**4,
        lambda atom, v: (v**4, lambda g: 4 * g * v**3),
        degree=lambda self, atom, degrees: 4 * degrees[0],
    )
    for scale in (1e-2, 1.0, 1e3):
        check(atom, samples=scale * SAMPLES)


def test_slopes_that_are_not_those_of_the_atom_are_refused():
    def line(factor):
        return elementwise(
            lambda v: 2 * v,
            lambda atom, v: (2 * v, lambda g: 2 * g),
            degree=lambda self, atom, degrees: degrees[0],
            adjoints=lambda self, atom: [lambda g: factor * g],
            constant_part=lambda self, atom, parts: None if parts[0] is None else 2 * parts[0],
        )

    check(line(2.0))
    with pytest.raises(ValueError, match="facts adjoints and constant_part of the atom 'Entries'"):
        check(line(1.0))


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (lambda v: differences(v)[:5], 5),
        (lambda v: differences(v)[:4], 4),
        (lambda v: [*differences(v), 2 * v[0] - 2 * v[1]], 7),
        (lambda v: [2 * e for e in differences(v)], 6),
    ],
)
def test_pieces_whose_maximum_is_not_the_atom_are_refused(written, count):
    def pieces(self, atom, sign, at):
        if sign < 0:
            raise wdro.loss.NoPieces
        return written(atom.args[0])

    message = rf"largest of the {count} pieces of the atom 'Spread' .* is .* where the atom is"
    with pytest.raises(ValueError, match=message):
        check(declared(pieces=pieces))


def test_pieces_that_ignore_the_sign_are_refused():
    atom = declared(pieces=lambda self, atom, sign, at: differences(atom.args[0]))
    with pytest.raises(
        ValueError, match=r"'Spread' for the sign -1 .* minus the atom is .*NoPieces"
    ):
        check(atom)


@pytest.mark.parametrize("cost", [wdro.costs.Norm(2), wdro.costs.SquaredEuclidean()])
def test_pieces_that_are_right_give_the_exact_counterpart(cost):
    def pieces(self, atom, sign, at):
        if sign < 0:
            raise wdro.loss.NoPieces
        return differences(atom.args[0])

    found = problem_of(declared(pieces=pieces), cost=cost).solve(method="exact")
    known = problem_of(lambda v: cp.max(v) - cp.min(v), cost=cost).solve(method="exact")
    assert found == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_distant_form_of_another_slope_is_refused(factor):
    def far(self, atom, arguments):
        return factor * cp.abs(arguments[0]) - 1

    atom = elementwise(rounded, rounded_rule, is_entrywise=True, far=far)
    if factor != 1:
        with pytest.raises(ValueError, match="fact far of the atom 'Entries' has another slope"):
            check(atom)
        return
    problem = problem_of(atom, radius=0.5, cost=wdro.costs.Norm(2))
    mean = problem.solve(method="erm")
    # sqrt(1 + v^2) has slopes up to 1 in each of three entries.
    assert problem.solution.robust_value == pytest.approx(mean + 0.5 * np.sqrt(3), rel=1e-6)


def test_what_is_not_homogeneous_or_not_entrywise_is_refused():
    with pytest.raises(ValueError, match="'Entries' is declared as is_homogeneous, but is"):
        check(elementwise(rounded, rounded_rule, is_homogeneous=True))

    def centred(v):
        return (v - v.mean(axis=-1, keepdims=True)) ** 2

    def rule(atom, v):
        c = v - v.mean(axis=-1, keepdims=True)
        return c**2, lambda g: 2 * (g * c - (g * c).mean(axis=-1, keepdims=True))

    check(elementwise(centred, rule, is_entrywise=False))
    with pytest.raises(ValueError, match=r"'Entries' is known as is_entrywise .* but another"):
        check(elementwise(centred, rule))


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_square_that_is_not_the_atom_is_refused(factor):
    def square(self, atom):
        v = atom.args[0]
        return v - cp.sum(v) / 3, cp.Constant(factor)

    def rule(atom, v):
        c = v - v.mean(axis=-1, keepdims=True)
        return (c**2).sum(axis=-1), lambda g: 2 * np.asarray(g)[..., None] * c

    atom = declared(rule, square=square)
    atom.numeric = lambda self, values: 3 * np.var(values[0])
    if factor == 1:
        check(atom)
        return
    with pytest.raises(ValueError, match="fact square of the atom 'Spread' makes"):
        check(atom)


def test_an_atom_derived_from_a_known_one_is_held_against_its_own_values():
    class Same(cp.abs):
        pass

    class Twice(cp.abs):
        def numeric(self, values):
            return 2 * np.abs(values[0])

    known = problem_of(cp.abs).solve(method="erm")
    assert problem_of(Same).solve(method="erm") == pytest.approx(known, rel=1e-3)
    with pytest.raises(ValueError, match=r"rule of the atom 'Twice' gives .* numeric\(\) gives"):
        check(Twice)


def test_rules_with_a_domain_are_taken():
    """1/v for v > 0, by a rule that refuses all else, of data that is close to zero."""

    def rule(atom, v):
        if np.any(v <= 0):
            raise ValueError("not positive")
        return 1 / v, lambda g: -g / v**2

    atom = elementwise(lambda v: np.where(v > 0, 1 / v, np.inf), rule)
    for scale in (1e-6, 1.0, 1e6):
        x = cp.Variable(3, nonneg=True)
        z = wdro.UncertainParameter(3, samples=scale * np.exp(SAMPLES))
        problem = wdro.Problem(cp.Minimize(atom(z @ x)), [cp.sum(x) == 1], assume_convex=True)
        problem.solve(method="erm")
        mean = np.mean(1 / (scale * np.exp(SAMPLES) @ x.value))
        assert problem.value == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("terms", lambda self, atom, split: [cp.abs(atom.args[0]), cp.abs(atom.args[0])]),
        ("factor", lambda self, atom, number: (3.0, cp.abs(atom.args[0]))),
        ("times", lambda self, atom, factor, push: cp.abs(atom.args[0])),
        ("rebuild", lambda self, atom, reads: cp.square(reads[0])),
        ("same_number", lambda self, atom: atom.args[0]),
    ],
)
def test_an_atom_that_is_rewritten_as_another_is_refused(name, fact):
    atom = elementwise(
        np.abs, lambda atom, v: (np.abs(v), lambda g: g * np.sign(v)), **{name: fact}
    )
    with pytest.raises(ValueError, match=f"fact {name} of the atom 'Entries' makes .* of what is"):
        check(atom)
