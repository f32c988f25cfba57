"""Tangents of losses whose pieces are not known, near to the samples and far away."""

from __future__ import annotations

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.importance.modes import FEW
from wdro_model.objectives.integration.importance.piece_modes import PieceLines
from wdro_model.objectives.integration.importance.targets import PROBED_ENTRIES, probe
from wdro_model.solvers.objective import Array

DISTANCES = 2.0 ** np.arange(0, 21)
"""How far tangents are looked for, in deviations of the reference: a steep piece that begins ten
thousand deviations away is seen."""
DIRECTIONS = 16
"""Random directions from each sample, beside the axes."""
LOOKED_FROM = 4
"""Samples from which tangents are looked for."""
SAME_SLOPE = 0.02
"""Slopes that differ by less than this share lead to one mode: fewer tangents if larger."""
MOST_TANGENTS = 64
"""Tangents that are kept; each costs an evaluation of the loss for each sample and dual."""


def tangents(loss: FlatLoss, x: Array, frame: Frame) -> PieceLines | None:
    """Tangents of a loss whose pieces are not known, near to the samples and far away.

    Slopes do not depend on the dual variable, so one search serves all of them: along axes and
    random directions from a few samples, at distances that double.
    """
    r, size = frame.dimension, frame.joint.size
    if not r or frame.joint.dimension * LOOKED_FROM * DIRECTIONS * len(DISTANCES) > PROBED_ENTRIES:
        return None
    generator = np.random.default_rng(5)
    aside = generator.standard_normal((DIRECTIONS, r)) / np.sqrt(max(1, r))
    axes = np.eye(r) if r <= FEW else np.zeros((0, r))
    ways = np.concatenate([aside, axes, -axes]) * np.sqrt(frame.spread)
    steps = (DISTANCES[:, None, None] * ways).reshape(-1, r)
    few = np.unique(np.linspace(0, size - 1, LOOKED_FROM).astype(int))
    owners, moves = np.repeat(few, len(steps)), np.tile(steps, (len(few), 1))
    bounds = frame.bounds(owners)
    rows = frame.rows(owners, moves if bounds is None else np.clip(moves, *bounds))
    values, raw = probe(loss, x, rows, frame.inside(rows), slopes=True)
    good = np.isfinite(values)
    values, raw, rows = values[good], raw[good], rows[good]
    slopes = frame.pulled(raw)
    kept = spread_out(slopes * np.sqrt(frame.spread)) if len(slopes) else np.zeros(0, dtype=int)
    constants = values - np.einsum("bd,bd->b", raw, rows)
    return PieceLines(slopes[kept], constants[kept], raw[kept])


def spread_out(slopes: Array) -> Array:
    """Indices of up to `MOST_TANGENTS` slopes (B, r) that differ most in direction and in size.

    The steepest comes first, then again and again the one farthest from those before.
    """
    sizes = np.linalg.norm(slopes, axis=1, keepdims=True)
    usual = max(float(np.median(sizes)), 1e-12 * float(sizes.max()), 1e-300)
    places = slopes / np.maximum(sizes, 1e-300) * np.log1p(sizes / usual)
    kept = [int(sizes[:, 0].argmax())]
    apart = np.linalg.norm(places - places[kept[0]], axis=1)
    while len(kept) < MOST_TANGENTS and apart.max() > SAME_SLOPE:
        kept.append(int(apart.argmax()))
        apart = np.minimum(apart, np.linalg.norm(places - places[kept[-1]], axis=1))
    return np.array(kept)
