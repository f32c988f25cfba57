"""Checks for the tests of those who extend the library: do their parts do what they say?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss import CallableLoss
from wdro_model.loss.batched import FlatLoss, Layout
from wdro_model.loss.gradient_check import refuse_wrong_gradient
from wdro_model.uncertainty.joint import JointSamples

__all__ = ["check_loss"]
__dir__ = __all__.copy  # what the tab key offers


def check_loss(
    loss: CallableLoss,
    decision: Mapping[cp.Variable, Any] | None = None,
    *,
    tries: int = 20,
    seed: int = 0,
) -> None:
    """Gradients of a callable loss in its variables and in the data, against its own differences.

    A ValueError says which gradient is wrong. The check is made at the samples of the parameters
    and around the decision, by default around random ones of order one; a solve makes the same
    check at few points.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> from wdro_model.testing import check_loss
    >>> x, z = cp.Variable(), wdro.UncertainParameter(samples=[1.0, 2.0])
    >>> def square(values, scenarios):
    ...     r = values[x] - scenarios[z]
    ...     return r**2, lambda weights: {x: weights @ r}           # 2 is missing
    >>> check_loss(wdro.CallableLoss(square, x, z))
    Traceback (most recent call last):
        ...
    ValueError: the loss 'square' has a wrong gradient in its variables: ...
    """
    if not isinstance(loss, CallableLoss):
        raise TypeError(f"check_loss takes a CallableLoss, got {type(loss).__name__}.")
    rng, layout = np.random.default_rng(seed), Layout(loss.variables)
    flat = FlatLoss(loss, layout, JointSamples(loss.parameters) if loss.parameters else None)
    for _ in range(tries):
        near = rng.standard_normal(layout.dimension)
        if decision is not None:
            given = layout.join({v: np.asarray(a, dtype=float) for v, a in decision.items()})
            near = given + 1e-2 * (1e-2 + np.abs(given)) * near
        split = layout.split(near).items()
        x = near if decision is not None else layout.join({v: v.project(a) for v, a in split})
        refuse_wrong_gradient(flat, x, rng.standard_normal(len(x)), rng, str(loss.name))
