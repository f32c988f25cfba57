"""Are F and the worst case finite? The loss along rays, against the cost of going there.

A loss that grows faster than the cost has an infinite worst case over every ball, and F averages
exp((f - l c)/eps) over a reference that reaches every point of the support: it is infinite for
every multiplier l, or would be without the thin tails of the reference, which are no property of
the ball. A loss that is not defined somewhere is refused too. Both are seen along rays from the
samples, before anything is optimised.
"""

from __future__ import annotations

import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.model import RobustModel
from wdro_model.solvers.objective import Array

SAMPLES, DIRECTIONS, VERTICES = 3, 12, 3
"""Samples and random directions that are looked at, and vertices whose mean is the decision."""
STRIDES = 2.0 ** np.arange(-4, 31)
"""Distances along a ray, in units of the data."""
FASTER = 1.005
"""Growth of f/c over a doubling of the distance that counts as faster than the cost."""
GROWTH, DOMAIN = "growth", "domain"
BOX = "for instance support=wdro.supports.Box(lower, upper)"


def refuse_infinite(model: RobustModel) -> None:
    """An UnboundedError where the loss outgrows the cost or is not defined on the support."""
    message = model.remember("growth of the loss", lambda: trouble(model, middle(model)))
    if message is not None:
        raise UnboundedError(message)


def refuse_growth_at(model: RobustModel, x: Array) -> None:
    """An UnboundedError where the loss of a decision outgrows the cost."""
    if risk_is_infinite(model, x):
        raise UnboundedError(outgrown(model))


def middle(model: RobustModel) -> Array:
    """A point in the middle of the feasible set: the mean of some vertices, opposite ones if the
    oracle is defined for all directions."""
    oracle, rng = model.feasible.oracle(), np.random.default_rng(0)
    vertices = []
    for _ in range(VERTICES):
        direction = rng.standard_normal(oracle.dimension)
        pair = [np.abs(direction)] if oracle.nonnegative_directions else [direction, -direction]
        for one in pair:
            oracle.calls += 1
            vertices.append(oracle.minimize_relaxed(one))
    return np.mean(vertices, axis=0)


def trouble(model: RobustModel, x: Array) -> str | None:
    """What makes F infinite at a decision; None if nothing was found."""
    if is_tame(model):
        return None
    names = ", ".join(repr(p.name()) for p in model.joint.parameters)
    for origin in model.joint.matrix[:: max(1, model.joint.size // SAMPLES)][:SAMPLES]:
        for direction in rays(model, x, origin):
            found = along(model, x, origin, direction)
            if found is None:
                continue
            if found == GROWTH:
                return outgrown(model)
            if model.structure.curvature_in_data != "concave":
                return (
                    f"the smoothed objective is infinite: the loss is not defined for all values "
                    f"that the data ({names}) may take, or infinite at some, and the reference "
                    f"reaches every point of the support (a logarithm, a root or a quotient that "
                    f"leaves its domain?); give the parameter a support on which the loss is "
                    f"defined, {BOX}."
                )
    return None


def outgrown(model: RobustModel) -> str:
    """The sentence for a loss that grows faster than the cost."""
    names = ", ".join(repr(p.name()) for p in model.joint.parameters)
    return (
        f"the smoothed objective is infinite, and the worst-case risk over the ball: the loss "
        f"grows faster than the cost in the data ({names}), on a support without bounds; give the "
        f"parameter a compact support, {BOX}, or use a cost that grows as fast, such as "
        f"SquaredEuclidean() for squares and products."
    )


def is_tame(model: RobustModel) -> bool:
    """Does the loss grow no faster than linearly, is it defined everywhere, and does the cost keep
    up with it?"""
    pieces = model.structure.pieces is not None
    return (model.affine_in_data or pieces) and (model.cost.is_norm or model.cost.is_quadratic)


def risk_is_infinite(model: RobustModel, x: Array) -> bool:
    """Does the loss of a decision outgrow the cost, so that its worst-case risk is infinite?"""
    if is_tame(model):
        return False
    origin = model.joint.matrix[0]
    return any(along(model, x, origin, ray) == GROWTH for ray in rays(model, x, origin))


def rays(model: RobustModel, x: Array, origin: Array) -> list[Array]:
    """Directions (d,) to look along: random ones, diagonals, slopes of the loss."""
    rng = np.random.default_rng(0)
    scale = np.maximum(model.joint.matrix.std(axis=0), 1e-3 * (1 + np.abs(origin)))
    found = list(scale * rng.standard_normal((DIRECTIONS, len(origin))))
    found += [sign * scale for sign in (1.0, -1.0)]
    try:
        with np.errstate(all="ignore"):
            slope = model.loss(x, origin[None])[1].in_data(np.ones(1))[0]
        if np.isfinite(slope).all() and slope.any():
            found += [sign * slope * scale / np.abs(slope).max() for sign in (1.0, -1.0)]
    except (NotImplementedError, ArithmeticError, ValueError):
        pass
    free = ~np.asarray(model.cost.frozen)
    kept = (np.where(free, direction, 0.0) for direction in found)
    return [direction for direction in kept if direction.any()]


def along(model: RobustModel, x: Array, origin: Array, direction: Array) -> str | None:
    """GROWTH, DOMAIN or None for one ray."""
    rows = origin + STRIDES[:, None] * direction
    if model.joint.bounds is not None:
        rows = np.clip(rows, *model.joint.bounds)
    unbounded = bool(np.any(rows[-1] != rows[-2]))
    inside = model.joint.contains(rows)
    rows = rows[: int(np.argmin(inside)) if not inside.all() else len(rows)]
    if not len(rows):
        return None
    values = raw_values(model, x, np.concatenate([origin[None], rows]))
    if values is None or not np.isfinite(values[0]):
        return None
    rise = values[1:] - values[0]
    pull = model.cost(np.broadcast_to(origin, rows.shape), rows)
    known = len(rise) if np.isfinite(rise).all() else int(np.argmin(np.isfinite(rise)))
    ended = known < len(rise)
    if len(rows) < len(STRIDES) and not ended:
        return None  # the support ends first
    with np.errstate(invalid="ignore", divide="ignore"):  # a cost of zero, or without end
        last = rise[max(0, known - 3) : known] / pull[max(0, known - 3) : known]
    growing = len(last) == 3 and last[0] > 0 and bool(np.all(last[1:] > FASTER * last[:-1]))
    overflows = ended and (np.isposinf(rise[known]) or model.expression is None)
    if growing and unbounded and (overflows or not ended):
        return GROWTH
    return DOMAIN if ended else None


def raw_values(model: RobustModel, x: Array, rows: Array) -> Array | None:
    """The loss at the rows, whatever it is there; None if it cannot be evaluated."""
    try:
        with np.errstate(all="ignore"):
            values, _ = model.loss.loss(model.loss.layout.split(x), model.joint.split(rows))
    except ArithmeticError:
        return None
    except ValueError:
        return one_by_one(model, x, rows)
    return np.asarray(values, dtype=float)


def one_by_one(model: RobustModel, x: Array, rows: Array) -> Array | None:
    """The same for a function of the user that refuses some of the rows: NaN for those."""
    values = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        try:
            with np.errstate(all="ignore"):
                values[i] = model.loss.values(x, row[None])[0]
        except (ArithmeticError, ValueError):
            break
    return None if np.isnan(values[0]) else values
