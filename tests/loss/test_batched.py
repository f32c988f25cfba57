"""The contract of a batched loss: shapes, broadcasting, validity, refusals."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.errors import MissingRuleError
from wdro_model.loss import BatchedLoss, rule
from wdro_model.loss.atoms import Atom
from wdro_model.uncertainty.parameter import UncertainParameter

x = cp.Variable(3, name="x")
y = cp.Variable(3, name="y")
xi = UncertainParameter(3, name="xi")
s = UncertainParameter(name="s")
POINT = {x: np.array([1.0, -2.0, 0.5]), y: np.ones(3)}


def rows(size: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(size, 3))


def test_variables_and_parameters_in_order_of_appearance() -> None:
    loss = BatchedLoss(s * (y @ xi) + x @ xi)
    assert loss.variables == (y, x)
    assert loss.parameters == (s, xi)


def test_a_parameter_used_twice_counts_once() -> None:
    loss = BatchedLoss(x @ xi + cp.sum_squares(xi))
    assert loss.parameters == (xi,)
    data = rows(4)
    values, pullback = loss(POINT, {xi: data})
    np.testing.assert_allclose(values, data @ POINT[x] + (data**2).sum(axis=1))
    np.testing.assert_allclose(pullback.in_data(np.ones(4))[xi], POINT[x] + 2 * data)


def test_an_uncertain_exponent_is_found() -> None:
    assert BatchedLoss(cp.sum(cp.power(x, s))).parameters == (s,)


def test_a_loss_without_data_is_broadcast_over_scenarios() -> None:
    loss = BatchedLoss(cp.sum_squares(x))
    values, pullback = loss(POINT, {xi: rows(4)})
    np.testing.assert_allclose(values, np.full(4, 5.25))
    np.testing.assert_allclose(pullback(np.full(4, 0.25))[x], 2 * POINT[x])
    assert pullback.in_data(np.ones(4)) == {}
    values[0] = 7.0
    assert loss(POINT, {})[0].shape == (1,)


def test_a_loss_without_decision_has_gradients_in_the_data() -> None:
    values, pullback = BatchedLoss(cp.sum(xi))({}, {xi: rows(4)})
    assert pullback(np.ones(4)) == {}
    np.testing.assert_allclose(
        pullback.in_data(np.arange(4.0))[xi], np.outer(np.arange(4), [1] * 3)
    )
    assert values.shape == (4,)


def test_parameters_given_explicitly() -> None:
    plain = cp.Parameter(3, name="plain")
    loss = BatchedLoss(plain @ x, parameters=[plain, s])
    assert loss.parameters == (plain, s)
    values, pullback = loss(POINT, {plain: rows(2), s: np.zeros(2)})
    np.testing.assert_allclose(values, rows(2) @ POINT[x])
    np.testing.assert_array_equal(pullback.in_data(np.ones(2))[s], np.zeros(2))


def test_certain_parameters_are_read_at_each_call() -> None:
    scale = cp.Parameter(name="scale", value=2.0)
    loss = BatchedLoss(cp.exp(scale) * (x @ xi) + scale)
    for value in (2.0, -1.0):
        scale.value = value
        np.testing.assert_allclose(
            loss(POINT, {xi: rows(2)})[0], np.exp(value) * rows(2) @ POINT[x] + value
        )
    scale.value = None
    with pytest.raises(cp.error.ParameterError, match="'scale' of the loss has no value"):
        loss(POINT, {xi: rows(2)})


def test_hidden_certain_parameters_are_read_at_each_call() -> None:
    threshold = cp.Parameter(name="threshold", nonneg=True, value=1.0)
    loss = BatchedLoss(cp.sum(cp.huber(x - xi, threshold)))
    for value in (1.0, 0.2):
        threshold.value = value
        r = np.abs(POINT[x] - rows(2))
        expected = np.where(r <= value, r**2, 2 * value * r - value**2).sum(axis=1)
        np.testing.assert_allclose(loss(POINT, {xi: rows(2)})[0], expected)
    threshold.value = None
    with pytest.raises(cp.error.ParameterError, match="'threshold' of the loss has no value"):
        loss(POINT, {xi: rows(2)})


def test_inputs_are_neither_changed_nor_shared() -> None:
    data, weights = rows(2), np.ones(2)
    values, pullback = BatchedLoss(s + 0 * x[0])(POINT, {s: data[:, 0]})
    values += 1
    gradient = pullback.in_data(weights)[s]
    gradient += 1
    np.testing.assert_array_equal(data, rows(2))
    np.testing.assert_array_equal(weights, np.ones(2))
    gradients = BatchedLoss(cp.sum(x + y))(POINT, {})[1](np.ones(1))
    gradients[x] += 1
    np.testing.assert_array_equal(gradients[y], np.ones(3))


def test_a_stale_pullback_is_refused() -> None:
    loss = BatchedLoss(x @ xi)
    _, pullback = loss(POINT, {xi: rows(2)})
    loss(POINT, {xi: rows(3)})
    with pytest.raises(RuntimeError, match="earlier call"):
        pullback(np.ones(2))


def test_pullback_twice_gives_the_same() -> None:
    _, pullback = BatchedLoss(cp.square(x @ xi))(POINT, {xi: rows(2)})
    first, again = pullback(np.ones(2))[x], pullback(np.ones(2))[x]
    np.testing.assert_array_equal(first, again)


def test_a_loss_of_many_entries_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one entry, got .* of shape \(3,\)"):
        BatchedLoss(cp.multiply(x, xi))


@pytest.mark.parametrize(
    ("point", "data", "message"),
    [
        ({}, {xi: rows(2)}, "no value given for the variable 'x', of shape"),
        ({x: np.ones(4)}, {xi: rows(2)}, r"variable 'x' needs shape \(3,\), got \(4,\)"),
        (POINT, {}, "no value given for the uncertain parameter 'xi'"),
        (POINT, {xi: np.ones((2, 4))}, r"'xi' needs shape \(2, 3\), got \(2, 4\)"),
        (POINT, {xi: rows(2), s: np.ones(3)}, "share the batch axis, got .*'xi': 2, 's': 3"),
    ],
)
def test_wrong_inputs_are_named(point, data, message) -> None:
    with pytest.raises(ValueError, match=message):
        BatchedLoss(x @ xi)(point, data)


def test_weights_of_the_wrong_length_are_refused() -> None:
    _, pullback = BatchedLoss(x @ xi)(POINT, {xi: rows(2)})
    with pytest.raises(ValueError, match=r"weights must have shape \(2,\), got \(3,\)"):
        pullback(np.ones(3))


def test_an_atom_without_a_rule_is_refused_when_the_loss_is_built() -> None:
    X = cp.Variable((3, 3), symmetric=True)
    for expression in (cp.lambda_max(X), -cp.log_det(X), cp.norm(X, "nuc"), cp.sigma_max(X)):
        with pytest.raises(MissingRuleError, match=r"no batched rule.*@wdro_model.register_rule\("):
            BatchedLoss(expression + s)


def test_a_vector_of_exponents_is_refused() -> None:
    with pytest.raises(MissingRuleError, match=r"exponent of shape \(3,\)"):
        BatchedLoss(cp.sum(cp.power(x, xi)))


def test_complex_losses_are_refused() -> None:
    z = cp.Variable(3, complex=True)
    with pytest.raises(MissingRuleError, match="complex"):
        BatchedLoss(cp.norm(z) + s)


@pytest.mark.parametrize("elsewhere", [0, 1])
def test_an_uncertain_option_of_an_atom_is_refused(elsewhere: int) -> None:
    threshold = UncertainParameter(name="threshold", nonneg=True)
    loss = cp.sum(cp.huber(x, threshold)) + elsewhere * threshold * x[0]
    with pytest.raises(MissingRuleError, match="'threshold' is an option of 'huber'"):
        BatchedLoss(loss)
    exponents = UncertainParameter((3, 3), name="exponents")
    with pytest.raises(MissingRuleError, match="'exponents' is an option of 'gmatmul'"):
        BatchedLoss(cp.sum(cp.gmatmul(exponents, cp.Variable(3, pos=True))))


def test_constant_subexpressions_may_use_any_atom() -> None:
    fixed = cp.log_det(np.eye(3) * 2)
    values, _ = BatchedLoss(fixed * (x @ xi))(POINT, {xi: rows(2)})
    np.testing.assert_allclose(values, 3 * np.log(2) * rows(2) @ POINT[x])


class Gaussian(Atom):
    """exp(-v^2), entry by entry: an atom of somebody else."""

    def numeric(self, values):
        return np.exp(-np.square(values[0]))

    def shape_from_args(self):
        return self.args[0].shape

    def sign_from_args(self):
        return (True, False)

    def is_atom_convex(self):
        return False

    def is_atom_concave(self):
        return False

    def is_incr(self, idx):
        return False

    def is_decr(self, idx):
        return False

    def _grad(self, values):
        raise NotImplementedError


class Bell(Gaussian):
    """A variant that inherits its rule."""


def test_a_third_party_atom_registers_a_rule() -> None:
    with pytest.raises(MissingRuleError, match="'Gaussian'"):
        BatchedLoss(cp.sum(Gaussian(x - xi)))

    @rule(Gaussian)
    def _(atom, v):
        value = np.exp(-v * v)
        return value, lambda g: -2 * g * v * value

    for atom in (Gaussian, Bell):
        values, pullback = BatchedLoss(cp.sum(atom(x - xi)))(POINT, {xi: rows(2)})
        v = POINT[x] - rows(2)
        np.testing.assert_allclose(values, np.exp(-(v**2)).sum(axis=1))
        np.testing.assert_allclose(pullback(np.ones(2))[x], (-2 * v * np.exp(-(v**2))).sum(axis=0))


def test_batched_losses_survive_reuse_with_other_batch_sizes() -> None:
    loss = BatchedLoss(cp.norm(cp.multiply(x, xi)))
    for size in (5, 1, 8):
        values, _ = loss(POINT, {xi: rows(size)})
        np.testing.assert_allclose(values, np.linalg.norm(rows(size) * POINT[x], axis=1))


def test_building_a_loss_leaves_the_expression_alone() -> None:
    expression = cp.sum(cp.maximum(x, s)) + cp.sum(cp.cumsum(x))
    before, attributes = str(expression), set(vars(expression))
    BatchedLoss(expression)(POINT, {s: np.ones(2)})
    assert str(expression) == before
    assert set(vars(expression)) == attributes
    assert s.value is None
