"""Are F and the worst case finite? The loss along rays, against the cost of going there.

A loss that grows faster than the cost has an infinite worst case over every ball, and F averages
exp((f - l c)/eps) over a reference that reaches every point of the support: it is infinite for
every multiplier l, or would be without the thin tails of the reference, which are no property of
the ball. A loss that is not defined somewhere is refused too. Both are seen along rays from the
samples, before anything is optimised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import cvxpy as cp
import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.loss.domains import refuse_outside_domain
from wdro_model.model import Model, RobustModel
from wdro_model.solvers.objective import Array

SAMPLES, DIRECTIONS, VERTICES = 3, 12, 3
"""Samples and random directions that are looked at, and vertices whose mean is the decision."""
LASTING = 0.7
"""Share of its gain that f/c keeps over a further doubling, where it grows without end. It would be
half for a kink that lies far behind, and 29/30 for a logarithm."""
ASIDE = 0.3
"""How far generic decisions are from the middle, as a share of the way to a vertex."""
STRIDES = 2.0 ** np.arange(-4, 31)
"""Distances along a ray, in units of the data."""
FASTER = 1.005
"""Growth of f/c over a doubling of the distance that counts as faster than the cost."""
AT_ONCE = 2**17
"""Numbers of moved data that exist at once."""
GROWTH, DOMAIN = "growth", "domain"
BOX = "for instance support=wdro.supports.Box(lower, upper)"


def refuse_infinite(model: RobustModel) -> None:
    """An UnboundedError where the loss outgrows the cost or is not defined on the support."""
    message = model.remember("growth of the loss", lambda: known_trouble(model))
    if message is not None:
        raise UnboundedError(message)


def refuse_undefined(
    model: Model, decision: Mapping[cp.Variable, np.ndarray] | None = None
) -> None:
    """An UnboundedError where the data may leave the domain of the loss.

    decision: the one that was found; without it, what does not depend on a decision is judged.
    """
    if isinstance(model, RobustModel) and model.radius > 0 and model.expression is not None:
        judge = partial(refuse_outside_domain, model.expression, model.joint, model.cost.frozen)
        if model.remember("domain of the loss", judge) and decision is not None:
            judge(decision)


def known_trouble(model: RobustModel) -> str | None:
    """What makes F infinite in the middle of the feasible set, or almost everywhere in it.

    The middle may be where the loss does not depend on the data: the decision zero of a classifier.
    """
    centre = middle(model)
    message = trouble(model, centre)
    if message is not None or not can_outgrow(model):
        return message
    oracle, rng = model.feasible.oracle(), np.random.default_rng(1)
    for _ in range(VERTICES):
        direction = rng.standard_normal(oracle.dimension)
        direction = np.abs(direction) if oracle.nonnegative_directions else direction
        oracle.calls += 1
        aside = centre + ASIDE * (oracle.minimize_relaxed(direction) - centre)
        if not risk_is_infinite(model, aside):
            return None
    return outgrown(model)


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
        for found in along(model, x, origin, rays(model, x, origin)):
            if found == GROWTH:
                return outgrown(model)
            if found == DOMAIN and model.structure.curvature_in_data != "concave":
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


def can_outgrow(model: RobustModel) -> bool:
    """Is there room for the data to go far, where the loss is not known to keep to the cost?"""
    bounds = model.joint.bounds
    return not is_tame(model) and (bounds is None or not np.isfinite(bounds).all())


def risk_is_infinite(model: RobustModel, x: Array) -> bool:
    """Does the loss of a decision outgrow the cost, so that its worst-case risk is infinite?"""
    origin = model.joint.matrix[0]
    return can_outgrow(model) and GROWTH in along(model, x, origin, rays(model, x, origin))


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


def along(
    model: RobustModel, x: Array, origin: Array, directions: list[Array]
) -> Iterator[str | None]:
    """GROWTH, DOMAIN or None for each ray; several are looked along at once."""
    several = max(1, AT_ONCE // (len(STRIDES) * len(origin)))
    for first in range(0, len(directions), several):
        some = [way(model, origin, ray) for ray in directions[first : first + several]]
        pulls = model.cost(*np.broadcast_arrays(origin, np.concatenate([w.rows for w in some])))
        ends = np.cumsum([len(w.rows) for w in some])[:-1]
        for one, values, pull in zip(some, raw_values(model, x, some), np.split(pulls, ends)):
            yield None if values is None else judged(model, one, values, pull)


class Way(NamedTuple):
    """A ray, as far as the support goes."""

    rows: Array
    """Scenarios (L, d), the sample itself first."""
    unbounded: bool
    """Does it leave every bounded set?"""


def way(model: RobustModel, origin: Array, direction: Array) -> Way:
    """The part of a ray that lies in the support."""
    rows = origin + STRIDES[:, None] * direction
    if model.joint.bounds is not None:
        rows = np.clip(rows, *model.joint.bounds)
    elif not (inside := model.joint.contains(rows)).all():
        rows = rows[: int(np.argmin(inside))]
    unbounded = len(rows) == len(STRIDES) and bool(np.any(rows[-1] != rows[-2]))
    return Way(np.concatenate([origin[None], rows]), unbounded)


def judged(model: RobustModel, way: Way, values: Array, pull: Array) -> str | None:
    """GROWTH, DOMAIN or None for the losses along a ray and the costs of going there."""
    if len(values) == 1 or not np.isfinite(values[0]):
        return None
    rise, pull = values[1:] - values[0], pull[1:]
    known = len(rise) if np.isfinite(rise).all() else int(np.argmin(np.isfinite(rise)))
    ended = known < len(rise)
    if len(rise) < len(STRIDES) and not ended:
        return None  # the support ends first
    with np.errstate(invalid="ignore", divide="ignore"):  # a cost of zero, or without end
        last = rise[max(0, known - 3) : known] / pull[max(0, known - 3) : known]
    growing = len(last) == 3 and last[0] > 0 and bool(np.all(last[1:] > FASTER * last[:-1]))
    if growing:  # behind a far kink the ratio gains half as much with each doubling
        gains = last[1:] / last[:-1] - 1.0
        growing = bool(gains[1] > LASTING * gains[0])
    overflows = ended and (np.isposinf(rise[known]) or model.expression is None)
    if growing and way.unbounded and (overflows or not ended):
        return GROWTH
    return DOMAIN if ended else None


def raw_values(model: RobustModel, x: Array, some: list[Way]) -> list[Array | None]:
    """The loss along some rays, whatever it is there; None where it cannot be evaluated."""
    rows = np.concatenate([way.rows for way in some])
    try:
        with np.errstate(all="ignore"):
            values, _ = model.loss.loss(model.loss.layout.split(x), model.joint.split(rows))
    except (ArithmeticError, ValueError) as error:
        if len(some) > 1:
            return [raw_values(model, x, [way])[0] for way in some]
        return [None if isinstance(error, ArithmeticError) else one_by_one(model, x, rows)]
    ends = np.cumsum([len(way.rows) for way in some])[:-1]
    return list(np.split(np.asarray(values, dtype=float), ends))


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
