"""Notes on a smoothed result: what it can promise, and whether F and the worst case are finite.

A loss that grows faster than the cost has an infinite worst case over every ball, and F averages
exp((f - l c)/eps) over a reference that reaches every point of the support: it is infinite for
every multiplier l, or would be without the thin tails of the reference, which are no property of
the ball. A loss that is not defined somewhere is refused too. Both are seen along rays from the
samples, before anything is optimised.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import cvxpy as cp
import numpy as np

from wdro_model.errors import SamplingWarning, UnboundedError
from wdro_model.loss import CallableLoss
from wdro_model.loss.callable import refuse_wrong_gradient
from wdro_model.loss.domains import refuse_outside_domain
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.scales import default_sigma
from wdro_model.sets.feasible_set import checked_vertex
from wdro_model.solvers.objective import Array, Diagnostics, Point
from wdro_model.uncertainty.sampling import GaussianSampler

FEW = 0.1
"""Fewer effective draws than this share are not to be trusted."""
MAX_HEAVY_SHARE = 0.2
"""Samples with weights of heavy tails, as a share, from which on no error is to be trusted."""
TIMID = 0.05
"""A reference whose moves cost less than this share of the radius cannot reach its boundary."""
FAR_BELOW = 0.1
"""A value with less than this share of what the ball adds to the mean loss is explained."""
FRACTION = 1e-6
FRACTIONAL = "have fractional values"
MEASURED = 200
"""Draws that measure the cost of the reference's moves."""


def is_reliable(point: Point, gap: float, radius: float, allowed: float) -> bool:
    """Are gap and standard error together within what is allowed, as far as the draws can tell?"""
    d = point.diagnostics
    if d is None:
        return True
    many = d.effective_size >= FEW * d.draws and d.nearest_cost <= radius
    many &= d.heavy <= MAX_HEAVY_SHARE
    return many and d.standard_error + max(gap, 0.0) <= allowed


def smoothing_notes(
    model: RobustModel, point: Point, bound: float | None, sigma: float | Array, x: Array
) -> tuple[str, ...]:
    """What the result cannot promise; each note is a warning too."""
    notes = [] if point.diagnostics is None else sampling_notes(point.diagnostics, model.radius)
    if np.isnan(point.value):
        notes.append(
            "the solve was stopped before the objective was evaluated once: the decision is the "
            "one to begin with, and its value is not known; give a longer time_limit, or let it "
            "run on."
        )
    if point.dual == 0:
        notes.append(idle_note(model, sigma))
    if overreaches(model, point, sigma, x):
        notes.append(
            f"moves of the reference cost {reference_cost(model, sigma):.3g} on average, more than "
            f"the radius {model.radius:.3g} allows, and the value is below the mean loss: it is "
            "that of the reference, not of the ball; leave sigma out, or give a smaller one."
        )
    if bound is not None and point.dual is not None and point.dual > 0.99 * bound:
        notes.append(
            f"the dual variable {point.dual:.3g} sits at its bound {bound:.3g}, which may exclude "
            "the optimum; give a larger MomentumFrankWolfe(dual_bound=...)."
        )
    for note in notes:
        warnings.warn(note, SamplingWarning, stacklevel=5)
    return (*notes, *hull_notes(model, x))


def overreaches(model: RobustModel, point: Point, sigma: float | Array, x: Array) -> bool:
    """Is the reference too wide for the radius, so that F falls below the mean loss?"""
    mean = float(model.shares.total(model.loss.values(x, model.rows)))
    return point.value < mean and reference_cost(model, sigma) > model.radius


def sampling_notes(d: Diagnostics, radius: float) -> list[str]:
    """What the draws behind a value say about it."""
    notes = []
    if d.effective_size < FEW * d.draws:
        notes.append(
            f"the effective sample size is {d.effective_size:.3g} of {d.draws} draws: the estimate "
            "rests on a few of them; let integration= choose (closed_form, separable, low_rank, "
            "tilted), or raise epsilon."
        )
    if np.isinf(d.standard_error):
        notes.append(
            "the standard error is not known: for some samples a single one of the "
            f"{d.draws} draws carries all the weight; let integration= choose, draw more samples, "
            "or raise epsilon."
        )
    if d.heavy > MAX_HEAVY_SHARE:
        notes.append(
            f"for {d.heavy:.0%} of the samples a few of the {d.draws} draws have weights far above "
            "the others: the standard error may be larger than they tell; raise epsilon, or draw "
            "more samples."
        )
    if d.missed > 0:
        notes.append(
            f"the draws miss modes of the tilted density: the value may be higher by about "
            f"{d.missed:.3g}, which is part of its standard error; raise epsilon, or write the "
            "loss as a sum of terms in separate coordinates if it is one."
        )
    if d.nearest_cost > radius:
        notes.append(
            f"the nearest draws cost {d.nearest_cost:.3g} on average, more than the radius "
            f"{radius:.3g}: the sampled dual is unbounded below; lower sigma or draw more."
        )
    return notes


def idle_note(model: RobustModel, sigma: float | Array) -> str:
    """Why the dual variable is 0: the reference does not get to the radius, or the loss does not
    ask for it."""
    reached = reference_cost(model, sigma)
    default = default_sigma(model.cost, model.radius, model.joint)
    if reached >= TIMID * min(model.radius, reference_cost(model, default)):
        return "the dual variable is 0: the radius does not bind."
    usual = np.unique(np.round(default, 12))
    shown = f"{usual[0]:.3g}" if usual.size == 1 else f"{usual[0]:.3g} to {usual[-1]:.3g}"
    return (
        f"the dual variable is 0 because sigma is too small for the radius: moves of the reference "
        f"cost {reached:.3g} on average and the radius allows {model.radius:.3g}, so that the "
        f"value is not that of the ball; leave sigma out (here {shown})."
    )


def shortfall_notes(
    model: Model, value: float, mean: float, robust: float, seen: tuple[str, ...]
) -> tuple[str, ...]:
    """Why a smoothed value is far from the known worst case; nothing where it is not.

    seen: notes that were made before.
    """
    if not isinstance(model, RobustModel) or not mean <= value:
        return ()
    added = robust - mean
    if not (np.isfinite(added) and value - mean < FAR_BELOW * added and model.radius > 0):
        return ()
    if added <= 1e-6 * (abs(mean) + abs(robust)) or any("sigma is too small" in s for s in seen):
        return ()
    note = (
        "the value is far from the worst case of this decision (robust_value): it has "
        f"{(value - mean) / added:.1%} of what the ball adds to the mean loss, because the "
        "reference does not reach where the adversary goes; give a larger sigma, a smaller "
        "epsilon, or method='exact'."
    )
    warnings.warn(note, SamplingWarning, stacklevel=6)
    return (note,)


def reference_cost(model: RobustModel, sigma: float | Array) -> float:
    """E c(xi, zeta) for zeta from the reference around a sample, from draws."""
    sampler = GaussianSampler(model.joint, model.cost.frozen)
    count = max(1, min(MEASURED, 2**22 // max(1, model.joint.dimension)))
    some = np.linspace(0, model.joint.size - 1, count).astype(int)
    origins = model.joint.matrix[some]
    points = sampler.draw(origins, sigma, np.random.default_rng(0))
    costs = model.cost(origins, points)
    finite = np.isfinite(costs)
    if not finite.any():
        return np.inf
    return float(model.joint.shares_of(some[finite]).total(costs[finite]))


def hull_notes(model: Model, x: Array) -> list[str]:
    """Frank-Wolfe, and what relaxes, works on the convex hull of integer points."""
    names = []
    for variable, value in model.feasible.layout.split(x).items():
        integer = variable.attributes["integer"] or variable.attributes["boolean"]
        if integer and np.abs(value - np.round(value)).max(initial=0.0) > FRACTION:
            names.append(repr(variable.name()))
    if not names:
        return []
    return [
        f"the integer variables {', '.join(names)} {FRACTIONAL}: this is a decision of "
        "the convex hull of the feasible points, and its value a bound for integer ones; round() "
        "finds an integer decision, and so do method='exact' and method='erm' without relax=True "
        "or a solver for the hull."
    ]


# ------------------------------
# Are F and the worst case finite? The loss along rays, against the cost of going there


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


def refuse_wrong_loss(model: Model) -> None:
    """A ValueError where the gradient of a callable loss is wrong inside the feasible set."""
    loss, count = model.loss.loss, 4
    if not isinstance(loss, CallableLoss):
        return
    rng = np.random.default_rng(0)
    corners = rng.standard_normal((count, model.feasible.layout.dimension))
    with suppress(UnboundedError, NotImplementedError):
        oracle = model.feasible.oracle()
        directions = np.abs(corners) if oracle.nonnegative_directions else corners
        corners = np.array([checked_vertex(oracle, oracle.minimize_relaxed(d)) for d in directions])
    for _ in range(3):
        parts, shares = rng.uniform(0.2, 1.0, count), rng.uniform(-1.0, 1.0, count)
        way = (shares - shares.mean()) @ corners
        refuse_wrong_gradient(model.loss, parts @ corners / parts.sum(), way, rng, str(loss.name))


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
