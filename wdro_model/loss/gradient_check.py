"""Gradients that a user wrote, held against differences of the loss."""

from __future__ import annotations

import numpy as np

from wdro_model.loss.batched import FlatLoss

Array = np.ndarray

ROWS = 8
"""Samples at which a gradient is checked, at most."""
STEP = 1e-4
"""Length of a difference, relative to the move. Shorter ones drown in rounding."""
CLEAR = 1e-3
"""Relative difference of two slopes from which a gradient is wrong."""


def refuse_wrong_gradient(
    loss: FlatLoss, x: Array, way: Array, rng: np.random.Generator, name: str
) -> None:
    """Raise a ValueError where a pullback is not the slope of the values, at a decision.

    way: the move of the decision along which its gradient is checked; data move at random. Where
    differences to both sides, or of two lengths, disagree, there is a kink or noise: nothing is
    said. Neither is it of gradients that are not given, or beside the domain of the loss.
    """
    rows = np.zeros((1, 0))
    if loss.joint is not None:
        rows = loss.joint.matrix[rng.integers(loss.joint.size, size=ROWS)]
    weights = rng.uniform(0.5, 1.5, size=len(rows))
    spread = rows.std(axis=0) + 1e-2 * np.abs(rows).max(axis=0, initial=0.0)
    moves = np.where(spread > 0, spread, 1.0) * rng.standard_normal(rows.shape)
    for what, dx, dz in (
        ("variables", way, np.zeros_like(rows)),
        ("uncertain parameters", np.zeros_like(way), moves),
    ):
        try:
            pullback = loss(x, rows)[1]
            in_x = pullback.in_decision(weights) if what == "variables" else np.zeros_like(x)
            in_data = pullback.in_data(weights) if dz.any() else dz
            told = float(in_x @ dx + np.sum(in_data * dz))
            steps = STEP * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
            f = [float(weights @ loss.values(x + s * dx, rows + s * dz)) for s in steps]
        except (NotImplementedError, ArithmeticError, ValueError):
            continue
        wide, narrow = (f[4] - f[0]) / (2 * STEP), (f[3] - f[1]) / STEP
        bend = abs(f[4] - 2 * f[2] + f[0]) / STEP
        off, size = abs(told - narrow), max(abs(told), abs(narrow), 1e-6 * abs(f[2]))
        if off > CLEAR * size and off > 10 * abs(wide - narrow) and off > 2 * bend:
            raise ValueError(
                f"the loss {name!r} has a wrong gradient in its {what}: along a line its pullback "
                f"gives the slope {told:.6g}, differences of its values give {narrow:.6g}; correct "
                "the pullback, which is the gradient of weights @ values, and try it by "
                "wdro_model.testing.check_loss(loss)."
            )
