"""Losses given as functions."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.loss import BatchedLoss, CallableLoss
from wdro_model.uncertainty.parameter import UncertainParameter

theta = cp.Variable(3, name="theta")
a = UncertainParameter(3, name="a")
b = UncertainParameter(name="b")
rng = np.random.default_rng(8)
POINT = {theta: rng.normal(size=3)}
DATA = {a: rng.normal(size=(5, 3)), b: rng.normal(size=5)}


def residuals(x, scenarios):
    r = scenarios[b] - scenarios[a] @ x[theta]

    def pullback(weights):
        return {
            theta: -2 * (weights * r) @ scenarios[a],
            a: (-2 * weights * r)[:, None] * x[theta],
            b: 2 * weights * r,
        }

    return r**2, pullback


def test_a_callable_agrees_with_the_cvxpy_loss() -> None:
    weights = rng.normal(size=5)
    values, pullback = CallableLoss(residuals, [theta], [a, b])(POINT, DATA)
    expected, reference = BatchedLoss(cp.square(b - a @ theta))(POINT, DATA)
    np.testing.assert_allclose(values, expected)
    np.testing.assert_allclose(pullback(weights)[theta], reference(weights)[theta])
    for parameter in (a, b):
        np.testing.assert_allclose(
            pullback.in_data(weights)[parameter], reference.in_data(weights)[parameter]
        )


def test_names_and_convexity() -> None:
    loss = CallableLoss(residuals, [theta], [a, b], convex=True)
    assert loss.convex
    assert repr(loss) == "CallableLoss(residuals)"
    assert loss.variables == (theta,)
    assert loss.parameters == (a, b)
    assert not CallableLoss(residuals, [theta], [a, b], name="fit").convex


def spoiled(values=None, **gradients):
    def loss(x, scenarios):
        good, pullback = residuals(x, scenarios)

        def changed(weights):
            found = {leaf.name(): (leaf, g) for leaf, g in pullback(weights).items()}
            for name, g in gradients.items():
                if g is None:
                    del found[name]
                else:
                    found[name] = (found[name][0], g)
            return dict(found.values())

        return good if values is None else values, changed

    return CallableLoss(loss, [theta], [a, b], name="mine")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (spoiled(values=np.ones(4)), r"values of the loss 'mine' must have shape \(5,\)"),
        (spoiled(values=np.full(5, np.nan)), r"'mine' must be finite, got nan at index \(0,\)"),
        (spoiled(theta=np.ones(4)), r"gradient in 'theta' of the loss 'mine' must have shape"),
        (spoiled(theta=np.array([0, np.inf, 0])), r"finite, got inf at index \(1,\)"),
        (spoiled(theta=None), "returned no gradient for the variable 'theta'"),
    ],
)
def test_wrong_outputs_are_named(loss, message) -> None:
    with pytest.raises(ValueError, match=message):
        loss(POINT, DATA)[1](np.ones(5))


def test_a_missing_gradient_in_the_data_is_named_when_it_is_needed() -> None:
    _, pullback = spoiled(a=None)(POINT, DATA)
    assert pullback(np.ones(5))[theta].shape == (3,)
    with pytest.raises(NotImplementedError, match=r"'mine' gives no gradient in .*'a'"):
        pullback.in_data(np.ones(5))


def test_wrong_kinds_are_named() -> None:
    with pytest.raises(TypeError, match="needs a function"):
        CallableLoss(3, [theta], [a])
    with pytest.raises(ValueError, match="at least one variable"):
        CallableLoss(residuals, [], [a])
    with pytest.raises(TypeError, match=r"must return \(values, pullback\)"):
        CallableLoss(lambda x, z: z[b], [theta], [b], name="mine")(POINT, DATA)
    with pytest.raises(TypeError, match="must return a dict"):
        CallableLoss(lambda x, z: (z[b], lambda w: w), [theta], [b])(POINT, DATA)[1](np.ones(5))
    stranger = cp.Variable(name="stranger")
    with pytest.raises(ValueError, match="gradient for stranger, which is not among"):
        CallableLoss(lambda x, z: (z[b], lambda w: {stranger: w}), [theta], [b])(POINT, DATA)[1](
            np.ones(5)
        )
    with pytest.raises(ValueError, match="uncertain parameter 'b'"):
        CallableLoss(residuals, [theta], [a, b])(POINT, {a: DATA[a]})


def test_weights_of_the_wrong_length_are_refused() -> None:
    _, pullback = CallableLoss(residuals, [theta], [a, b])(POINT, DATA)
    with pytest.raises(ValueError, match=r"weights must have shape \(5,\)"):
        pullback(np.ones(2))


def test_one_variable_and_one_parameter_may_stand_by_themselves() -> None:
    def first(x, z):
        return z[a] @ x[theta], lambda w: {theta: w @ z[a]}

    loss = CallableLoss(first, variables=theta, parameters=a)
    assert loss.variables == (theta,)
    assert loss.parameters == (a,)
    np.testing.assert_allclose(loss(POINT, {a: DATA[a]})[0], DATA[a] @ POINT[theta])


def test_leaves_of_the_wrong_kind_are_refused_at_once() -> None:
    certain = cp.Parameter(3, name="certain")
    with pytest.raises(ValueError, match=r"UncertainParameter, got Parameter 'certain'.*by itself"):
        CallableLoss(residuals, theta, [a, certain])
    with pytest.raises(ValueError, match="parameters of the loss 'residuals'"):
        CallableLoss(residuals, theta, certain)
    with pytest.raises(ValueError, match="must be of type Variable, got AddExpression"):
        CallableLoss(residuals, theta + 1, a)
