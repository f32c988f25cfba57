"""The law of one linear form of independent moves in boxes, under a maximum of affine pieces of it.

Whole pieces are products over the coordinates at each parameter s of the norm; what neighbours have
in common is subtracted where it is not negligible (`kink_integrals`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.interval_laws import SumOnBoxes, normal_between
from wdro_model.objectives.integration.kernel.pieces import envelope
from wdro_model.objectives.integration.kink_integrals import lost_at_kinks
from wdro_model.objectives.integration.mixtures import PanelMixture
from wdro_model.objectives.integration.norm_components import Mixing, Reaches
from wdro_model.objectives.integration.one_form import Meeting, neighbours
from wdro_model.solvers.objective import Array

NEGLIGIBLE = 16.0
"""What lies so far below the whole integral in logarithm is left out."""
ACCURACY = 1e-7
"""Of the integrals at kinks, relative to the whole."""
LIVELY = 1e-7
"""Components of a smaller probability say nothing about the gradient."""
REACH = 11.0
"""Moves beyond so many standard deviations have no mass."""


@dataclass(frozen=True)
class TiltedBoxes:
    """Moves in M components tilted by R multiples of the form."""

    log_mass: Array
    """(M, R)"""
    low: Array
    """Ends of the intervals seen from the tilted normals, (M, d, R)."""
    high: Array
    each: Array
    """log mass of the intervals, (M, d, R)."""
    depth: Array
    """Means of the normals on their intervals, (M, d, R)."""
    shift: Array
    """Means of the tilted normals, (M, d, R)."""
    root: Array
    """Their deviations, (M, d, 1)."""


@dataclass(frozen=True)
class Crossed:
    """What two pieces lose to each other at nodes of a mixture, relative to their components."""

    nodes: Array
    above: Array
    """Of the lower piece beyond the kink, (S,)."""
    below: Array
    """Of the upper piece before it, (S,)."""
    moves_above: Array
    """E z there, (S, d); empty where it is not asked for."""
    moves_below: Array


@dataclass(frozen=True)
class PieceParts:
    """Probabilities (K, P) of the pieces, and E z on each of them, (K, P, d)."""

    shares: Array
    moves: Array


class FormOnBoxes(PanelMixture):
    """Laws of <b, z> in K boxes of z under max_j (h_kj + beta_j <b, z>).

    heights: (K, P); beta: (P,); b: (d,); ends: of the boxes, (K, d) twice.
    """

    def __init__(
        self,
        heights: Array,
        beta: Array,
        b: Array,
        ends: tuple[Array, Array],
        mixing: Mixing,
        places: tuple[Array, ...] | None,
    ) -> None:
        self.beta, self.b = beta, b
        self.low, self.high = (side[:, :, None] for side in ends)
        first, last = envelope(heights, np.broadcast_to(beta, heights.shape))
        self.heights = np.where(first < last, heights, -np.inf)
        self._turns = last
        self._meetings = neighbours(first, last, beta)
        steep = np.abs(beta).max() * np.abs(b)
        reaches = Reaches(np.minimum(steep + REACH, np.maximum(-ends[0], ends[1])), steep)
        kinks = mixing.kinks(self.low, self.high)
        super().__init__(mixing, len(heights), reaches, kinks, places)

    def bounds(self, owner: Array, points: Array) -> tuple[Array, Array]:
        each = self.heights[owner] + self._tilted(owner, points, self.beta).log_mass
        top = each.max(axis=1)
        with np.errstate(under="ignore"):
            logs = top + np.log(np.exp(each - top[:, None]).sum(axis=1))
        settled = np.ones(len(owner), dtype=bool)
        for meeting in self._meetings:
            settled[self._comparable(meeting, owner, each - logs[:, None])] = False
        return logs, settled

    def settle(self, owner: Array, points: Array, logs: Array) -> Array:
        common = np.zeros(len(owner))
        for meeting in self._meetings:
            nodes = np.flatnonzero(np.isin(owner, meeting.samples))
            lost = self._crossed(meeting, nodes, owner, points, logs, moves=False)
            common[lost.nodes] += lost.above + lost.below
        return logs + np.log1p(-common)

    def parts(self, rate: float) -> PieceParts:
        """How the pieces share the mass and the moves at a rate."""
        found = self.nodes(rate)
        found = found.picked(found.shares > LIVELY)
        whole = self._tilted(found.owner, found.points, self.beta)
        each = self.heights[found.owner] + whole.log_mass - found.logs[:, None]
        with np.errstate(under="ignore"):
            weights = np.exp(each)
        moves = whole.root * (whole.shift + whole.depth)
        moves = weights[:, None] * np.where(weights[:, None] > 0, moves, 0.0)
        for meeting in self._meetings:
            nodes = self._comparable(meeting, found.owner, each)
            lost = self._crossed(meeting, nodes, found.owner, found.points, found.logs, moves=True)
            weights[lost.nodes, meeting.lower] -= lost.above
            weights[lost.nodes, meeting.upper] -= lost.below
            moves[lost.nodes, :, meeting.lower] -= lost.moves_above
            moves[lost.nodes, :, meeting.upper] -= lost.moves_below
        first = np.flatnonzero(np.r_[True, found.owner[1:] != found.owner[:-1]])
        weights, moves = found.shares[:, None] * weights, found.shares[:, None, None] * moves
        return PieceParts(
            np.add.reduceat(weights, first), np.add.reduceat(moves, first).swapaxes(1, 2)
        )

    def _tilted(self, owner: Array, points: Array, tilts: Array) -> TiltedBoxes:
        """The components at log s, tilted."""
        seen = self.mixing.seen(points, self.low[owner], self.high[owner])
        low, high, width, shift, root = self._standard(seen, tilts)
        if self.mixing.cuts:  # what a support does not cut is the same for all samples
            some, which = np.unique(points, return_inverse=True)
            far = np.full((len(some), len(self.b), 1), np.inf)
            common = self._standard(self.mixing.seen(some, -far, far), tilts)[:3]
            each, depth = (part[which] for part in normal_between(*common))
            own = (low != common[0][which]) | (high != common[1][which])
            each[own], depth[own] = normal_between(low[own], high[own], width[own])
        else:
            each, depth = normal_between(low, high, width)
        logs = (0.5 * shift**2 + each).sum(axis=1) + np.log(root).sum(axis=1)
        return TiltedBoxes(logs, low, high, each, depth, shift, root)

    def _standard(
        self, seen: tuple[Array, Array, Array], tilts: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Ends and widths in the units of the tilted normals, their means and deviations."""
        variance, low, high = seen
        root = np.broadcast_to(np.sqrt(variance), low.shape)
        shift = root * (self.b[:, None] * tilts)
        width = np.broadcast_to((high - low) / root, shift.shape)
        return low / root - shift, high / root - shift, width, shift, root

    def _comparable(self, meeting: Meeting, owner: Array, each: Array) -> Array:
        """Nodes at which two pieces meet and may lose something, for their logarithms (M, P).

        At the tilt between them the integral is at most the geometric mean of theirs.
        """
        middle = 0.5 * (each[:, meeting.lower] + each[:, meeting.upper])
        nodes = np.flatnonzero(middle > -NEGLIGIBLE)
        return nodes[np.isin(owner[nodes], meeting.samples)]

    def _crossed(
        self, meeting: Meeting, nodes: Array, owner: Array, points: Array, logs: Array, moves: bool
    ) -> Crossed:
        """What two pieces lose to each other at some nodes, relative to exp(logs)."""
        lower, upper = float(self.beta[meeting.lower]), float(self.beta[meeting.upper])
        tilt, owner = 0.5 * (lower + upper), owner[nodes]
        found = self._tilted(owner, points[nodes], np.array([tilt]))
        turn = self._turns[owner, meeting.lower]
        height = self.heights[owner, meeting.lower] + (lower - tilt) * turn
        size = height + found.log_mass[:, 0] - logs[nodes]
        live = np.flatnonzero(size > -NEGLIGIBLE)
        parts = (found.low, found.high, found.each, found.depth, found.shift, found.root)
        low, high, each, depth, shift, root = (part[live, :, 0] for part in parts)
        scale = self.b * root
        offset = turn[live] - (scale * (shift + depth)).sum(axis=1)
        share = np.exp(size[live])
        lost = lost_at_kinks(
            SumOnBoxes(low, high, each, depth, scale),
            offset,
            upper - lower,
            ACCURACY / share,
            moves,
        )
        above, below = share * lost.above, share * lost.below
        lifted = [
            root * (shift * mass[:, None] + share[:, None] * moved) if moves else moved
            for mass, moved in ((above, lost.moves_above), (below, lost.moves_below))
        ]
        return Crossed(nodes[live], above, below, *lifted)
