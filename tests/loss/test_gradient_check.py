"""Wrong gradients of callable losses are found, right ones are left alone."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.testing import check_loss

SHAPES = {
    "square": (lambda r: r**2, lambda r: 2 * r),
    "absolute": (np.abs, np.sign),
    "hinge": (lambda r: np.maximum(r, 0), lambda r: (r > 0) * 1.0),
    "logistic": (lambda r: np.logaddexp(0, r), lambda r: 1 / (1 + np.exp(-r))),
    "exponential": (lambda r: np.exp(r / 3), lambda r: np.exp(r / 3) / 3),
    "steps": (lambda r: np.floor(5 * r), lambda r: 0 * r),
    "root": (lambda r: np.sqrt(np.abs(r)), lambda r: np.sign(r) / (2 * np.sqrt(np.abs(r)))),
}
SPOILT = {
    "factor": lambda g: 1.1 * g,
    "sign": lambda g: -g,
    "offset": lambda g: g + 0.3 * np.abs(g).max(initial=0.1),
}


def model(shape, where, wrong, seed, scale):
    """A problem in three numbers, and its loss: shape(z @ x - t), spoilt where asked."""
    rng = np.random.default_rng(seed)
    data = scale * rng.normal(size=(6, 3))
    x, z = cp.Variable(3), wdro.UncertainParameter(3, "z", samples=data)
    value, slope = SHAPES[shape]
    spoil = SPOILT.get(wrong, lambda g: g)
    shift = rng.normal()

    def loss(values, scenarios):
        r = scenarios[z] @ values[x] / scale - shift

        def pullback(weights):
            inner = weights * slope(r) / scale
            in_x, in_z = inner @ scenarios[z], inner[:, None] * values[x]
            return {
                x: spoil(in_x) if where == "x" else in_x,
                z: spoil(in_z) if where == "z" else in_z,
            }

        return value(r), pullback

    return x, wdro.CallableLoss(loss, [x], [z], convex=True)


CASES = [
    (shape, where, wrong, seed, (1.0, 1e3, 1e-3)[seed % 3])
    for shape in SHAPES
    for where in "xz"
    for wrong in ("no", *SPOILT)
    for seed in (1, 2)
]


@pytest.mark.parametrize(("shape", "where", "wrong", "seed", "scale"), CASES)
def test_a_solve_finds_it(shape, where, wrong, seed, scale) -> None:
    x, loss = model(shape, where, wrong, seed, scale)
    problem = wdro.Problem(loss, [x >= -1, x <= 2], wdro.WassersteinBall(0.1 * scale**2))
    flat = shape == "steps" and wrong != "offset"
    if wrong == "no" or flat:
        from wdro_model.solve.plan import refuse_wrong_loss

        refuse_wrong_loss(problem._model)
        check_loss(loss)
        return
    what = "variables" if where == "x" else "uncertain parameters"
    with pytest.raises(ValueError, match=rf"wrong gradient in its {what}: .*check_loss"):
        problem.solve("erm")
    with pytest.raises(ValueError, match=f"wrong gradient in its {what}"):
        check_loss(loss, {x: np.array([0.3, 0.2, 1.0])})


def test_a_loss_without_gradients_in_the_data_is_left_alone() -> None:
    x, z = cp.Variable(2), wdro.UncertainParameter(2, samples=[[1.0, 2.0], [0.5, 3.0]])

    def loss(values, scenarios):
        r = values[x] - scenarios[z]
        return (r**2).sum(axis=1), lambda weights: {x: 2 * weights @ r}

    problem = wdro.Problem(wdro.CallableLoss(loss, x, z, convex=True))
    assert problem.solve() == pytest.approx(0.3125)


def test_check_loss_takes_a_callable_loss() -> None:
    with pytest.raises(TypeError, match="check_loss takes a CallableLoss, got Variable"):
        check_loss(cp.Variable())
