"""The worst-case risk at 0/1 decisions of a loss that is affine in the data and in the decision.

With f = a(x) + <B(x), xi>, each entry of B seeing one entry of x, and a cost whose dual norm is
|B|_q with scales, x_i^q = x_i makes |B(x)|_q^q linear at 0/1 points:

    mean f + radius-factor * (w0 + <w, x>)^(1/q),

which is concave in (<c, x>, <w, x>); the maximum for q = inf. With equal weights and choices of
equal size <w, x> is the same for all of them, and so is what the adversary adds.
"""

from __future__ import annotations

import math

import numpy as np

from wdro_model.errors import UnknownToCost
from wdro_model.loss.expressions import substitute
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.exact.counterpart import moves_freely
from wdro_model.objectives.exact.robust_affine import may_leave
from wdro_model.solvers.objective import Array
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk

PROBES = 3
"""Random points at which entries that should see one coordinate are tried."""
CLOSE = 1e-9


def linear_risk(model: Model) -> ChoiceRisk | None:
    """The mean loss as <c, x> + c0, if it is that."""
    if model.expression is None or not model.affine_in_data:
        return None
    if not substitute(model.expression, model.mean_values()).is_affine():
        return None
    values, pullback = model.loss(np.zeros(model.loss.dimension), model.mean_row)
    costs = np.asarray(pullback(np.ones(1)), dtype=float)
    return ChoiceRisk(costs, float(values[0]), np.zeros_like(costs), 0.0, lambda _: 0.0)


def risk_at_choices(model: RobustModel) -> ChoiceRisk | BottleneckRisk | None:
    """The worst-case risk at 0/1 decisions; None where it is not of this form."""
    mean = linear_risk(model)
    if mean is None:
        return None
    slopes = _slopes_at_choices(model)
    if slopes is None:
        return None
    seen, at_zero, at_one = slopes
    known = _dual(model, at_zero, at_one)
    if known is None:
        return None
    scales, q, factor = known
    with np.errstate(divide="ignore"):
        zero, one = np.abs(at_zero) / scales, np.abs(at_one) / scales
    size = mean.costs.size
    if math.isinf(q):
        if zero.any():
            return None
        heights = np.zeros(size)
        np.maximum.at(heights, seen[seen >= 0], one[seen >= 0])
        return BottleneckRisk(mean.costs, mean.constant, heights, factor)
    change = np.where(seen >= 0, one**q - zero**q, 0.0)
    spread = np.bincount(np.maximum(seen, 0), change, minlength=size)

    def phi(total: float) -> float:
        return factor * total ** (1.0 / q)

    return ChoiceRisk(mean.costs, mean.constant, spread, float((zero**q).sum()), phi)


def _dual(model: RobustModel, at_zero: Array, at_one: Array) -> tuple[Array, float, float] | None:
    """Scales s and q of the dual norm |B / s|_q, and what the radius multiplies it by."""
    cost = model.cost
    try:
        if cost.is_quadratic and cost.is_separable:
            bounds = None if model.joint.everywhere else model.joint.bounds
            if not moves_freely(model) and (
                bounds is None or may_leave(at_zero, *bounds) or may_leave(at_one, *bounds)
            ):
                return None
            return np.sqrt(cost.coordinate_weights), 2.0, math.sqrt(model.radius)
        p = cost.exponent
        if cost.is_norm and p is not None and moves_freely(model):
            q = math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1.0)
            return np.asarray(cost.coordinate_scales), q, model.radius
    except UnknownToCost:
        pass
    return None


def _slopes_at_choices(model: RobustModel) -> tuple[Array, Array, Array] | None:
    """For each entry of B(x) the coordinate that it sees (-1 for none), and its values at 0 and 1.

    The coordinate is read off in binary, from B at the points whose entries are the binary digits
    of their positions; random points would give away an entry that sees more than one.
    """
    size, mean = model.loss.dimension, model.mean_row

    def slope(x: Array) -> Array:
        return np.asarray(model.loss(x, mean)[1].in_data(np.ones(1))[0], dtype=float)

    at_zero, at_one = slope(np.zeros(size)), slope(np.ones(size))
    change = at_one - at_zero
    scale = CLOSE * max(float(np.abs(at_one).max(initial=0.0)), 1e-300)
    moving = np.abs(change) > scale
    seen = np.zeros(change.size, dtype=np.int64)
    positions = np.arange(size)
    for digit in range(max(1, int(size - 1).bit_length())):
        bits = (positions >> digit) & 1
        on = np.abs(slope(bits.astype(float)) - at_zero) > 0.5 * np.abs(change)
        seen |= on.astype(np.int64) << digit
    seen = np.where(moving, seen, -1)
    if seen.max(initial=-1) >= size:
        return None
    rng = np.random.default_rng(0)
    for k in range(2 * PROBES):
        x = rng.uniform(size=size) if k % 2 else rng.integers(0, 2, size).astype(float)
        expected = at_zero + np.where(moving, change * x[np.maximum(seen, 0)], 0.0)
        if np.abs(slope(x) - expected).max(initial=0.0) > 10 * scale:
            return None
    return seen, at_zero, at_one
