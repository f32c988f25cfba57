"""Notes on results, and errors before them: is a value reliable, is the worst case finite?

A loss that grows faster than the cost has an infinite worst case over every ball. The smoothed
objective F averages exp((f - l c)/eps) over a reference that reaches every point of the support: it
is infinite for every multiplier l, or would be without the thin tails of the reference, which are
no property of the ball. A loss that is not defined somewhere is refused too. Both are seen along
rays from the samples, before anything is optimised.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wdro_model.errors import SamplingWarning, UnboundedError
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.scales import default_sigma
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.objective import Array, Diagnostics, Point
from wdro_model.uncertainty.sampling import GaussianSampler


@dataclass(frozen=True)
class Tolerances:
    """Shares and counts from which on a result is doubted, or a loss is called unbounded."""

    effective_draws: float = 0.1
    """Share of the draws that must be effective for an estimate to be trusted."""
    heavy_samples: float = 0.2
    """Share of samples with heavy-tailed weights from which on no error is trusted."""
    short_reference: float = 0.05
    """Cost of the reference's moves, as a share of the radius, below which it is too narrow."""
    explained_shortfall: float = 0.1
    """Share of what the ball adds to the mean loss below which a value is explained."""
    fraction: float = 1e-6
    """Distance from an integer from which on a value is called fractional."""
    measured_draws: int = 200
    """Draws that measure the cost of the reference's moves."""
    samples: int = 3
    """Samples from which rays are followed."""
    directions: int = 12
    """Random rays from each of them."""
    vertices: int = 3
    """Vertices, and their opposites, whose mean is the middle of the feasible set."""
    aside: float = 0.3
    """Distance of generic decisions from the middle, as a share of the way to a vertex."""
    faster: float = 1.005
    """Growth of f/c over a doubling of the distance that counts as faster than the cost."""
    lasting: float = 0.7
    """Share of its gain that f/c keeps over a further doubling, where it grows without end. It
    would be half for a kink that lies far behind, and 29/30 for a logarithm."""
    entries: int = 2**17
    """Numbers of moved data that exist at once."""


TOLERANCES = Tolerances()
FRACTIONAL = "have fractional values"
STRIDES = 2.0 ** np.arange(-4, 31)
"""Distances along a ray, in units of the data."""
GROWTH, DOMAIN = "growth", "domain"
"""Findings along a ray: the loss outgrows the cost, or is not defined."""
BOX = "for instance support=wdro.supports.Box(lower, upper)"


# ------------------------------------------------------------------ notes on smoothed values
def is_reliable(point: Point, gap: float, radius: float, allowed: float) -> bool:
    """Are gap and standard error together within what is allowed, as far as the draws can tell?"""
    d = point.diagnostics
    if d is None:
        return True
    enough = d.effective_size >= TOLERANCES.effective_draws * d.draws and d.nearest_cost <= radius
    light = d.heavy <= TOLERANCES.heavy_samples
    return enough and light and d.standard_error + max(gap, 0.0) <= allowed


def smoothing_notes(
    model: RobustModel, point: Point, bound: float | None, sigma: float | Array, x: Array
) -> tuple[str, ...]:
    """Reasons to doubt a smoothed result; each note is a warning too."""
    notes = [] if point.diagnostics is None else sampling_notes(point.diagnostics, model.radius)
    if np.isnan(point.value):
        notes.append(
            "the solve was stopped before the objective was evaluated once: the decision is the "
            "one to begin with, and its value is not known; give a longer time_limit, or let it "
            "run on."
        )
    if point.dual == 0:
        notes.append(zero_dual_note(model, sigma))
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
    """Reasons to doubt the estimate of a value."""
    notes = []
    if d.effective_size < TOLERANCES.effective_draws * d.draws:
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
    if d.heavy > TOLERANCES.heavy_samples:
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


def zero_dual_note(model: RobustModel, sigma: float | Array) -> str:
    """Why the dual variable is 0: the reference is too narrow, or the radius does not bind."""
    reached = reference_cost(model, sigma)
    default = default_sigma(model.cost, model.radius, model.joint)
    usual = min(model.radius, reference_cost(model, default))
    if reached >= TOLERANCES.short_reference * usual:
        return "the dual variable is 0: the radius does not bind."
    sizes = np.unique(np.round(default, 12))
    shown = f"{sizes[0]:.3g}" if sizes.size == 1 else f"{sizes[0]:.3g} to {sizes[-1]:.3g}"
    return (
        f"the dual variable is 0 because sigma is too small for the radius: moves of the reference "
        f"cost {reached:.3g} on average and the radius allows {model.radius:.3g}, so that the "
        f"value is not that of the ball; leave sigma out (here {shown})."
    )


def shortfall_notes(
    model: Model, value: float, mean: float, robust: float, notes: tuple[str, ...]
) -> tuple[str, ...]:
    """Why a smoothed value is far from the known worst case; nothing where it is not.

    notes: those that were made before.
    """
    if not isinstance(model, RobustModel) or model.radius == 0 or not mean <= value:
        return ()
    added = robust - mean
    if not (np.isfinite(added) and value - mean < TOLERANCES.explained_shortfall * added):
        return ()
    if added <= 1e-6 * (abs(mean) + abs(robust)) or any("sigma is too small" in n for n in notes):
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
    count = max(1, min(TOLERANCES.measured_draws, 2**22 // max(1, model.joint.dimension)))
    some = np.linspace(0, model.joint.size - 1, count).astype(int)
    origins = model.joint.matrix[some]
    costs = model.cost(origins, sampler.draw(origins, sigma, np.random.default_rng(0)))
    finite = np.isfinite(costs)
    if not finite.any():
        return np.inf
    return float(model.joint.shares_of(some[finite]).total(costs[finite]))


def hull_notes(model: Model, x: Array) -> list[str]:
    """A note on integer variables with fractional values: the decision is one of the hull."""
    names = []
    for variable, value in model.feasible.layout.split(x).items():
        integer = variable.attributes["integer"] or variable.attributes["boolean"]
        if integer and np.abs(value - np.round(value)).max(initial=0.0) > TOLERANCES.fraction:
            names.append(repr(variable.name()))
    if not names:
        return []
    return [
        f"the integer variables {', '.join(names)} {FRACTIONAL}: this is a decision of "
        "the convex hull of the feasible points, and its value a bound for integer ones; round() "
        "finds an integer decision, and so do method='exact' and method='erm' without relax=True "
        "or a solver for the hull."
    ]


# ------------------------------------------------------------------ losses with infinite F
def refuse_infinite(model: RobustModel) -> None:
    """Raise an UnboundedError where F is infinite in the middle of the feasible set, or around it.

    The middle may be where the loss does not depend on the data: the decision zero of a classifier.
    """
    message = model.remember("growth of the loss", lambda: _infinite_message(model))
    if message is not None:
        raise UnboundedError(message)


def refuse_growth_at(model: RobustModel, x: Array) -> None:
    """Raise an UnboundedError where the loss of a decision outgrows the cost."""
    if risk_is_infinite(model, x):
        raise UnboundedError(_growth_message(model))


def risk_is_infinite(model: RobustModel, x: Array) -> bool:
    """Does the loss of a decision outgrow the cost, so that its worst-case risk is infinite?"""
    origin = model.joint.matrix[0]
    return _can_outgrow(model) and GROWTH in ray_findings(model, x, origin)


def middle(model: RobustModel) -> Array:
    """The mean of some vertices of the feasible set, in opposite pairs where that is possible."""
    oracle, rng = model.feasible.oracle(), np.random.default_rng(0)
    vertices = []
    for _ in range(TOLERANCES.vertices):
        vertices.append(_random_vertex(oracle, direction := rng.standard_normal(oracle.dimension)))
        if not oracle.nonnegative_directions:
            vertices.append(_random_vertex(oracle, -direction))
    return np.mean(vertices, axis=0)


def _random_vertex(oracle: FeasibleSet, direction: Array) -> Array:
    oracle.calls += 1
    return oracle.minimize_relaxed(
        np.abs(direction) if oracle.nonnegative_directions else direction
    )


def _infinite_message(model: RobustModel) -> str | None:
    """Why F is infinite at almost all decisions; None if no reason is seen."""
    if _is_tame(model):
        return None
    centre, rng = middle(model), np.random.default_rng(1)
    step = max(1, model.joint.size // TOLERANCES.samples)
    for origin in model.joint.matrix[::step][: TOLERANCES.samples]:
        for finding in ray_findings(model, centre, origin):
            if finding == GROWTH:
                return _growth_message(model)
            if finding == DOMAIN and model.structure.curvature_in_data != "concave":
                return (
                    f"the smoothed objective is infinite: the loss is not defined for all values "
                    f"that the data ({_data_names(model)}) may take, or infinite at some, and the "
                    f"reference reaches every point of the support (a logarithm, a root or a "
                    f"quotient that leaves its domain?); give the parameter a support on which the "
                    f"loss is defined, {BOX}."
                )
    if not _can_outgrow(model):
        return None
    oracle = model.feasible.oracle()
    for _ in range(TOLERANCES.vertices):
        vertex = _random_vertex(oracle, rng.standard_normal(oracle.dimension))
        if not risk_is_infinite(model, centre + TOLERANCES.aside * (vertex - centre)):
            return None
    return _growth_message(model)


def _growth_message(model: RobustModel) -> str:
    return (
        f"the smoothed objective is infinite, and the worst-case risk over the ball: the loss "
        f"grows faster than the cost in the data ({_data_names(model)}), on a support without "
        f"bounds; give the parameter a compact support, {BOX}, or use a cost that grows as fast, "
        f"such as SquaredEuclidean() for squares and products."
    )


def _data_names(model: RobustModel) -> str:
    return ", ".join(repr(p.name()) for p in model.joint.parameters)


def _is_tame(model: RobustModel) -> bool:
    """Is the loss defined everywhere and at most linear in the data, and the cost as fast?"""
    linear = model.affine_in_data or model.structure.pieces is not None
    return linear and (model.cost.is_norm or model.cost.is_quadratic)


def _can_outgrow(model: RobustModel) -> bool:
    """Can the data go far, with a loss that is not known to grow as slowly as the cost?"""
    bounds = model.joint.bounds
    return not _is_tame(model) and (bounds is None or not np.isfinite(bounds).all())


# ------------------------------------------------------------------ losses along rays
class Ray(NamedTuple):
    """A ray from a sample, as far as the support goes."""

    rows: Array
    """Scenarios (L, d), the sample itself first."""
    is_unbounded: bool
    """Does it leave every bounded set?"""

    @classmethod
    def within_support(cls, model: RobustModel, origin: Array, direction: Array) -> Ray:
        """The part of a ray that lies in the support."""
        rows = origin + STRIDES[:, None] * direction
        if model.joint.bounds is not None:
            rows = np.clip(rows, *model.joint.bounds)
        elif not (inside := model.joint.contains(rows)).all():
            rows = rows[: int(np.argmin(inside))]
        is_unbounded = len(rows) == len(STRIDES) and bool(np.any(rows[-1] != rows[-2]))
        return cls(np.concatenate([origin[None], rows]), is_unbounded)

    def finding(self, model: RobustModel, values: Array, costs: Array) -> str | None:
        """GROWTH, DOMAIN or None for the losses along the ray and the costs of going there."""
        if len(values) == 1 or not np.isfinite(values[0]):
            return None
        rise, costs = values[1:] - values[0], costs[1:]
        count = len(rise) if np.isfinite(rise).all() else int(np.argmin(np.isfinite(rise)))
        leaves_domain = count < len(rise)
        if len(rise) < len(STRIDES) and not leaves_domain:
            return None  # the support ends first
        some = slice(max(0, count - 3), count)
        with np.errstate(invalid="ignore", divide="ignore"):  # costs may be zero or infinite
            last = rise[some] / costs[some]
        faster = TOLERANCES.faster
        growing = len(last) == 3 and last[0] > 0 and bool(np.all(last[1:] > faster * last[:-1]))
        if growing:  # behind a far kink the ratio gains half as much with each doubling
            gains = last[1:] / last[:-1] - 1.0
            growing = bool(gains[1] > TOLERANCES.lasting * gains[0])
        overflows = leaves_domain and (np.isposinf(rise[count]) or model.expression is None)
        if growing and self.is_unbounded and (overflows or not leaves_domain):
            return GROWTH
        return DOMAIN if leaves_domain else None


def ray_findings(model: RobustModel, x: Array, origin: Array) -> Iterator[str | None]:
    """GROWTH, DOMAIN or None for each ray from a sample; several are evaluated at once."""
    directions = _ray_directions(model, x, origin)
    several = max(1, TOLERANCES.entries // (len(STRIDES) * len(origin)))
    for first in range(0, len(directions), several):
        some = directions[first : first + several]
        rays = [Ray.within_support(model, origin, direction) for direction in some]
        costs = model.cost(*np.broadcast_arrays(origin, np.concatenate([r.rows for r in rays])))
        ends = np.cumsum([len(ray.rows) for ray in rays])[:-1]
        for ray, values, cost in zip(rays, _raw_values(model, x, rays), np.split(costs, ends)):
            yield None if values is None else ray.finding(model, values, cost)


def _ray_directions(model: RobustModel, x: Array, origin: Array) -> list[Array]:
    """Directions (d,) of rays: random ones, diagonals, slopes of the loss."""
    rng = np.random.default_rng(0)
    scale = np.maximum(model.joint.matrix.std(axis=0), 1e-3 * (1 + np.abs(origin)))
    directions = list(scale * rng.standard_normal((TOLERANCES.directions, len(origin))))
    directions += [scale, -scale]
    with suppress(NotImplementedError, ArithmeticError, ValueError):
        with np.errstate(all="ignore"):
            slope = model.loss(x, origin[None])[1].in_data(np.ones(1))[0]
        if np.isfinite(slope).all() and slope.any():
            steep = slope * scale / np.abs(slope).max()
            directions += [steep, -steep]
    free = ~np.asarray(model.cost.frozen)
    moves = (np.where(free, direction, 0.0) for direction in directions)
    return [move for move in moves if move.any()]


def _raw_values(model: RobustModel, x: Array, rays: list[Ray]) -> list[Array | None]:
    """The loss along some rays, finite or not; None where it cannot be evaluated."""
    rows = np.concatenate([ray.rows for ray in rays])
    try:
        with np.errstate(all="ignore"):
            values, _ = model.loss.loss(model.loss.layout.split(x), model.joint.split(rows))
    except (ArithmeticError, ValueError) as error:
        if len(rays) > 1:
            return [_raw_values(model, x, [ray])[0] for ray in rays]
        return [None if isinstance(error, ArithmeticError) else _values_one_by_one(model, x, rows)]
    ends = np.cumsum([len(ray.rows) for ray in rays])[:-1]
    return list(np.split(np.asarray(values, dtype=float), ends))


def _values_one_by_one(model: RobustModel, x: Array, rows: Array) -> Array | None:
    """The loss of a user's function that refuses some of the rows: NaN from the first of those."""
    values = np.full(len(rows), np.nan)
    with suppress(ArithmeticError, ValueError), np.errstate(all="ignore"):
        for i, row in enumerate(rows):
            values[i] = model.loss.values(x, row[None])[0]
    return None if np.isnan(values[0]) else values
