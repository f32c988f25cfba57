"""Atoms of one's own: one class for CVXPY, and one with their facts."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import wdro_model as wdro
from wdro_model.loss import (
    AtomFacts,
    BatchedLoss,
    affine_parts,
    convexity_in_data,
    declare,
    degree,
)
from wdro_model.loss.atoms.quadratic import StructuredAtom
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import affine_forms
from wdro_model.uncertainty.supports import Nonnegative

N = 3


class Quartic(StructuredAtom):
    """sum_i w_i x_i^4: everything that the library knows of it is in this class and its rule."""

    def numeric(self, values):
        return np.asarray(values[1] @ values[0] ** 4)

    def shape_from_args(self):
        return ()

    def sign_from_args(self):
        return self.args[1].is_nonneg(), self.args[1].is_nonpos()

    def is_atom_convex(self):
        x, w = self.args
        return x.is_constant() or (w.is_constant() and w.is_nonneg())

    def is_atom_concave(self):
        return self.args[0].is_constant()

    def is_incr(self, idx):
        return idx == 1

    def is_decr(self, idx):
        return False

    def _grad(self, values):
        x, w = values
        return [sp.csc_array(np.reshape(g, (-1, 1))) for g in (4 * w * x**3, x**4)]


@declare(Quartic)
class QuarticFacts(AtomFacts):
    def degree(self, atom, degrees):
        return 4 * degrees[0] + degrees[1]

    def adjoints(self, atom):
        return [lambda g: AtomFacts.adjoints(self, atom), lambda g: g * cp.power(atom.args[0], 4)]

    def constant_part(self, atom, parts):
        return None if any(p is None for p in parts) else super().constant_part(atom, parts)

    def rebuild(self, atom, reads):
        x, w = map(cp.Constant.cast_to_const, reads)
        certain = w.is_constant() and not w.parameters()
        return w @ cp.power(x, 4) if certain and not x.is_constant() else Quartic(x, w)

    def rule(self, _atom, x, w):
        cube = x**3
        value = np.vecdot(w, cube * x)
        return (
            value,
            lambda g: 4 * np.asarray(g)[..., None] * w * cube,
            lambda g: np.asarray(g)[..., None] * cube * x,
        )


x = cp.Variable(N, name="x")
weights = wdro.UncertainParameter(N, "w", support=Nonnegative())


def test_the_degree_is_the_atoms_word():
    assert degree(Quartic(x, weights), (weights,)) == 1
    assert degree(Quartic(x, weights), (x,)) == 4
    assert degree(cp.square(Quartic(x, 2 * weights + 1)) + 3, (weights,)) == 2
    assert degree(Quartic(weights, weights), (weights,)) == 5
    assert degree(Quartic(x, np.ones(N)), (weights,)) == 0


def test_affine_parts_come_from_its_slope():
    loss = 2 * Quartic(x, 1 + weights) - cp.sum(weights)
    parts = affine_parts(loss, (weights,))
    point = np.array([0.5, -1.0, 2.0])
    x.value = point
    assert parts.constant.value == pytest.approx(2 * np.sum(point**4))
    np.testing.assert_allclose(parts.slopes[weights].value, 2 * point**4 - 1)
    assert parts.constant.is_convex()


def test_its_exact_counterpart_is_found():
    rows = np.random.default_rng(0).uniform(0.5, 1.5, (8, N))
    data = wdro.UncertainParameter(N, "w", samples=rows, nonneg=True)
    y = cp.Variable(N)
    problem = wdro.Problem(
        cp.Minimize(Quartic(y, data)),
        [cp.sum(y) == 1, y >= 0],
        ambiguity=wdro.WassersteinBall(0.04),
    )
    value = problem.solve(method="exact")
    norm = cp.norm(cp.power(y, 4), 2)
    written = cp.Problem(
        cp.Minimize(rows.mean(axis=0) @ cp.power(y, 4) + 0.2 * norm), [cp.sum(y) == 1, y >= 0]
    )
    assert value == pytest.approx(written.solve(solver=cp.CLARABEL), rel=1e-4)
    assert problem.solution.convex


def test_forms_and_substitution_rebuild_it():
    shift = wdro.UncertainParameter((), "shift")
    loss = cp.exp(Quartic(x - shift, weights))
    found = affine_forms(loss, (shift,))
    assert [form.expression.shape for form in found.forms] == [(N,)]
    fixed = substitute(loss, {shift: np.array(0.5), weights: np.ones(N)})
    assert all(atom.__module__.startswith("cvxpy") for atom in fixed.atoms())
    x.value = np.array([0.5, 1.0, 0.0])
    assert fixed.value == pytest.approx(np.exp(0.125))


def test_curvature_in_the_data_follows_cvxpys_rules():
    assert convexity_in_data(cp.exp(Quartic(x, weights)), (weights,)) == "convex"
    shift = wdro.UncertainParameter(N, "shift")
    assert convexity_in_data(Quartic(x + shift, np.ones(N)), (shift,)) == "convex"


def test_cvxpys_quadratic_form_has_the_facts_of_ours():
    matrix = wdro.UncertainParameter((N, N), "S", symmetric=True)
    assert degree(cp.quad_form(x, matrix), (matrix,)) == 1


def test_gradients_in_some_of_the_data_alone():
    rng = np.random.default_rng(1)
    y, z = wdro.UncertainParameter((), "y"), wdro.UncertainParameter(2, "z")
    loss = BatchedLoss(cp.exp(y * Quartic(x, weights)) + cp.square(y) + cp.sum(z))
    point = {x: rng.uniform(0, 1, N)}
    given = {weights: rng.uniform(0, 1, (4, N)), y: rng.normal(size=4), z: rng.normal(size=(4, 2))}
    _, pullback = loss(point, given)
    w = rng.normal(size=4)
    every = pullback.in_data(w)
    for some in ([y], [weights], [z, y], [weights, y, z], []):
        found = pullback.in_data(w, some)
        assert list(found) == some
        for p in some:
            np.testing.assert_array_equal(found[p], every[p])
