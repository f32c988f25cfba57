"""Checks for authors of extensions: sets, costs, atoms, counterparts and losses against values.

Each `check_...` raises an error that names the wrong answer. Call it in the tests of an extension:
a solve checks only shapes, and that numbers are finite.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import name_keywords_of
from wdro_model.loss import CallableLoss
from wdro_model.loss.batched import FlatLoss, Layout
from wdro_model.loss.callable import refuse_wrong_gradient
from wdro_model.sets import check as check_set
from wdro_model.testing.atoms import check_atom
from wdro_model.testing.counterparts import check_counterpart
from wdro_model.uncertainty.costs import check as check_cost
from wdro_model.uncertainty.joint import JointSamples

__all__ = ["check_atom", "check_cost", "check_counterpart", "check_loss", "check_set"]
__dir__ = __all__.copy  # what the tab key offers


def check_loss(
    loss: CallableLoss,
    decision: Mapping[cp.Variable, Any] | None = None,
    *,
    tries: int = 20,
    seed: int = 0,
) -> None:
    """Compare the gradients of a callable loss with differences of its values.

    A ValueError says whether the gradient in the variables or in the data is wrong. The check uses
    samples of the parameters and points near the decision, by default random points of order one.
    The first solve makes the same check at fewer points.

    Examples
    --------
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


name_keywords_of([sys.modules[__name__]])
