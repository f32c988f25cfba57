"""Maxima of affine pieces: each piece tilts the reference to a Gaussian of its own.

exp(max_j f_j/eps) lies between the largest and the sum of the tilted Gaussians, so that their
mixture, weighted by their masses, covers the target up to the number of pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.importance.modes import FLOOR, WINDOW
from wdro_model.objectives.integration.importance.proposals import (
    Component,
    Mixture,
    component,
    mixture,
)
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class PieceLines:
    """Affine pieces f_j = constant_j + <gradient_j, xi> of a loss at one decision."""

    slopes: Array
    """In the moves y, (J, r)."""
    constants: Array
    gradients: Array
    """In the data, (J, d)."""

    def at(self, rows: Array) -> Array:
        """f_j at the rows (B, d): (B, J)."""
        return self.constants + rows @ self.gradients.T


def piece_lines(
    pieces: tuple[FlatLoss, ...], x: Array, row: Array, frame: Frame
) -> PieceLines | None:
    """The pieces at a decision, seen from one scenario (d,); None without pieces."""
    if not pieces:
        return None
    found = [piece(x, row[None]) for piece in pieces]
    raw = np.concatenate([pullback.in_data(np.ones(1)) for _, pullback in found])
    constants = np.array([values[0] for values, _ in found]) - raw @ row
    return PieceLines(frame.pulled(raw), constants, raw)


def piece_mixture(
    lines: PieceLines, frame: Frame, samples: Array, variance: Array, epsilon: float
) -> Mixture:
    """The tilted Gaussians of all pieces; variance: of the tilt of the cost alone, (1, r)."""
    bounds = frame.bounds(samples)
    shape = (1 if bounds is None else len(samples), frame.dimension)
    deviation = np.broadcast_to(np.sqrt(variance), shape)
    at_samples = lines.at(frame.joint.matrix[samples])
    components, masses = [], []
    for j, slope in enumerate(lines.slopes):
        center = np.broadcast_to(variance * slope / epsilon, shape)
        one = component(center, deviation, bounds)
        # h_j(y) = f_j(xi)/eps + <slope, y>/eps - y^2/(2v), at the anchor of the component.
        h = ((slope / epsilon - 0.5 * one.anchor / variance) * one.anchor).sum(axis=1)
        masses.append(at_samples[:, j] / epsilon + h - at_anchor(one))
        components.append(one)
    return mixture(components, np.stack(masses, axis=1), FLOOR, WINDOW)


def at_anchor(one: Component) -> Array:
    """The log density of a component at its anchor, (K,)."""
    return one.log_density(one.anchor[:, None])[:, 0]
