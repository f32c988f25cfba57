"""What a sampled result can and cannot promise."""

from __future__ import annotations

import warnings

from wdro_model.errors import SamplingWarning
from wdro_model.model import Model
from wdro_model.objectives.base import Point

FEW = 0.1
"""Fewer effective draws than this share are not to be trusted."""


def is_reliable(point: Point, radius: float, tolerance: float) -> bool:
    """Is the sampled value accurate to the tolerance, as far as its draws can tell?"""
    d = point.diagnostics
    if d is None:
        return True
    many = d.effective_size >= FEW * d.draws and d.nearest_cost <= radius
    return many and d.standard_error <= tolerance * abs(point.value)


def smoothing_notes(model: Model, point: Point, bound: float | None) -> tuple[str, ...]:
    """What the result cannot promise; each note is a warning too."""
    notes, d = [], point.diagnostics
    if d is not None and d.effective_size < FEW * d.draws:
        notes.append(
            f"the effective sample size is {d.effective_size:.3g} of {d.draws} draws: the estimate "
            "rests on a few of them; let integration= choose (closed_form, low_rank, tilted), or "
            "raise epsilon."
        )
    if d is not None and d.nearest_cost > model.radius:
        notes.append(
            f"the nearest draws cost {d.nearest_cost:.3g} on average, more than the radius "
            f"{model.radius:.3g}: the sampled dual is unbounded below; lower sigma or draw more."
        )
    if point.dual == 0:
        notes.append("the dual variable is 0: the radius does not bind.")
    if bound is not None and point.dual is not None and point.dual > 0.99 * bound:
        notes.append(
            f"the dual variable {point.dual:.3g} sits at its bound {bound:.3g}, which may exclude "
            "the optimum; give a larger MomentumFrankWolfe(dual_bound=...)."
        )
    for note in notes:
        warnings.warn(note, SamplingWarning, stacklevel=5)
    return tuple(notes)
