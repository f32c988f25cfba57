"""What a smoothed result can and cannot promise."""

from __future__ import annotations

import warnings

import numpy as np

from wdro_model.errors import SamplingWarning
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.calibration import default_sigma
from wdro_model.solvers.objective import Array, Diagnostics, Point
from wdro_model.uncertainty.sampling import GaussianSampler

FEW = 0.1
"""Fewer effective draws than this share are not to be trusted."""
HEAVY = 0.2
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
    many &= d.heavy <= HEAVY
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
    if d.heavy > HEAVY:
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
