"""Maxima of affine pieces along one direction of data in a box, with a norm as cost, without draws.

With f = max_j (f_j(xi_k) + beta_j v), v = <b, z> a linear form of the move and kinks t between
neighbours,

    exp(f/eps) = sum_j exp(f_j/eps) - sum over neighbours of the lower of the two.

Given the parameter s of the norm (`mixtures`) the moves are independent normals on intervals: whole
pieces are products over the coordinates, and what neighbours have in common comes from the
characteristic function of v, tilted to the middle of their slopes (`kink_integrals`). By the
convexity of log E exp(theta v) that never exceeds the larger of the two whole integrals, and where
it is negligible against them, as it is at most kinks for small eps, it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from wdro_model.loss.stacked import Stacked
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.importance.frame import box_of
from wdro_model.objectives.integration.inner_integral import EMPIRICAL, Integration, Stream
from wdro_model.objectives.integration.interval_laws import (
    SumOnBoxes,
    log_normal_between,
    mean_between,
)
from wdro_model.objectives.integration.kink_integrals import lost_at_kinks
from wdro_model.objectives.integration.low_rank.groups import rows_of
from wdro_model.objectives.integration.low_rank.piecewise import envelope
from wdro_model.objectives.integration.mixtures import MIXINGS, Mixing, PanelMixture, Reaches
from wdro_model.objectives.integration.one_form import Meeting, neighbours, parallel_pieces
from wdro_model.solvers.objective import Array

SMALLEST = 1e-3
"""Below a rate at which the cost of the reference is this the value is that of its series."""
NEGLIGIBLE = 16.0
"""What lies so far below the whole integral in logarithm is left out."""
ACCURACY = 1e-7
"""Of the integrals at kinks, relative to the whole."""
LIVELY = 1e-7
"""Components of a smaller probability say nothing about the gradient."""
REACH = 11.0
"""Moves beyond so many standard deviations have no mass."""


def boxed_form_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.cost.exponent not in MIXINGS:
        return "the ground cost is not a norm with p = 2 or inf"
    if not model.joint.everywhere and model.joint.bounds is None:
        return "the support has no coordinate structure"
    lower, upper = box_of(model.joint)
    if not np.any(~np.asarray(model.cost.frozen) & (lower < upper)):
        return "no coordinate moves"
    if parallel_pieces(model) is None:
        return "the loss is not a maximum of affine pieces along one direction of the data"
    return None


def build_boxed_form(model: RobustModel, scales: Any) -> BoxedForm:
    """The strategy for a model that it does not refuse."""
    return BoxedForm(model, epsilon=scales.epsilon, sigma=scales.sigma)


class BoxedForm(Integration):
    """Integration over a mixture of products, and at kinks through the law of one form."""

    name = "norms"
    # A few samples would move far in the worst case: the reference hardly lets them.
    begins = EMPIRICAL
    exact = True

    def __init__(self, model: RobustModel, *, epsilon: float, sigma: float | Array) -> None:
        found = parallel_pieces(model)
        assert found is not None
        self.pieces = Stacked(found, model.loss.layout, model.joint.slices)
        self.joint, self.epsilon = model.joint, epsilon
        lower, upper = box_of(model.joint)
        self.free = np.flatnonzero(~np.asarray(model.cost.frozen) & (lower < upper))
        deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (model.joint.dimension,))
        self.deviation = deviation[self.free]
        self.box = lower[self.free], upper[self.free]
        rho = np.asarray(model.cost.coordinate_scales)[self.free] * self.deviation
        self.mixing = MIXINGS[float(model.cost.exponent)](rho)  # type: ignore[arg-type]
        self.places: dict[bytes, tuple[Array, ...]] = {}
        """Panels that did at the last decision, by samples that move alike."""

    def slice(self, x: Array, samples: Array, stream: Stream) -> BoxedFormSlice:
        return BoxedFormSlice(self, np.asarray(x, dtype=float), np.asarray(samples))

    def describe(self) -> str:
        return (
            f"norms: {self.pieces.count} affine pieces along one direction of data in a box, as a "
            "mixture of products over coordinates"
        )


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
    shift: Array
    """Means of the tilted normals, (M, d, R)."""
    root: Array
    """Their deviations, (M, d, 1)."""

    @property
    def depths(self) -> Array:
        """Means of the normals on their intervals, (M, d, R)."""
        return mean_between(self.low, self.high, self.each)


class FormMixtureOnBoxes(PanelMixture):
    """Laws of <b, z> in K boxes of z under max_j (h_kj + beta_j <b, z>).

    heights: (K, P); beta: (P,); b: (d,); low, high: (K, d).
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
        self.kinks = last
        self.meetings = neighbours(first, last, beta)
        steep = np.abs(beta).max() * np.abs(b)
        room = np.maximum(-ends[0], ends[1])
        reaches = Reaches(np.minimum(steep + REACH, room), steep)
        kinks = mixing.kinks(self.low, self.high)
        super().__init__(mixing, len(heights), reaches, kinks, places)

    def bounds(self, owner: Array, points: Array) -> tuple[Array, bool]:
        logs = self.heights[owner] + self.tilted(owner, points, self.beta).log_mass
        return logsumexp(logs, axis=1), not self.meetings

    def settle(self, owner: Array, points: Array, logs: Array) -> Array:
        common = np.zeros(len(owner))
        for meeting in self.meetings:
            for crossing in self.crossings(meeting, owner, points, logs, moves=False):
                common[crossing.nodes] += crossing.above + crossing.below
        return logs + np.log1p(-common)

    def tilted(self, owner: Array, points: Array, tilts: Array) -> TiltedBoxes:
        """The components at log s, tilted."""
        variance, low, high = self.mixing.seen(points, self.low[owner], self.high[owner])
        root = np.broadcast_to(np.sqrt(variance), low.shape)
        shift = root * (self.b[:, None] * tilts)
        low, high = low / root - shift, high / root - shift
        each = log_normal_between(low, high)
        logs = (0.5 * shift**2 + each).sum(axis=1) + np.log(root).sum(axis=1)
        return TiltedBoxes(logs, low, high, each, shift, root)

    def crossings(
        self, meeting: Meeting, owner: Array, points: Array, logs: Array, moves: bool
    ) -> list[Crossed]:
        """What two pieces lose to each other at some nodes, relative to exp(logs)."""
        met = np.zeros(self.size, dtype=bool)
        met[meeting.samples] = True
        nodes = np.flatnonzero(met[owner])
        if not len(nodes):
            return []
        lower, upper = (float(self.beta[i]) for i in (meeting.lower, meeting.upper))
        tilt = np.array([0.5 * (lower + upper)])
        found = self.tilted(owner[nodes], points[nodes], tilt)
        kink = self.kinks[owner[nodes], meeting.lower]
        height = self.heights[owner[nodes], meeting.lower] + (lower - tilt) * kink
        size = height + found.log_mass[:, 0] - logs[nodes]
        live = np.flatnonzero(size > -NEGLIGIBLE)
        if not len(live):
            return []
        depth, root = found.depths[live, :, 0], found.root[live, :, 0]
        shift = found.shift[live, :, 0]
        scale = self.b * root
        boxes = SumOnBoxes(
            found.low[live, :, 0], found.high[live, :, 0], found.each[live, :, 0], depth, scale
        )
        offset = kink[live] - (scale * (shift + depth)).sum(axis=1)
        share = np.exp(size[live])
        gap = np.full(len(live), upper - lower)
        lost = lost_at_kinks(boxes, offset, gap, ACCURACY / share, moves)
        above, below = share * lost.above, share * lost.below
        if not moves:
            return [Crossed(nodes[live], above, below)]
        lifted = [
            root * (shift * mass[:, None] + share[:, None] * moved)
            for mass, moved in ((above, lost.moves_above), (below, lost.moves_below))
        ]
        return [Crossed(nodes[live], above, below, *lifted)]


@dataclass(frozen=True)
class Crossed:
    """What two pieces lose to each other at nodes of a mixture, relative to their components."""

    nodes: Array
    above: Array
    """Of the lower piece beyond the kink, (S,)."""
    below: Array
    """Of the upper piece before it, (S,)."""
    moves_above: Array | None = None
    """E z there, (S, d)."""
    moves_below: Array | None = None


class BoxedFormSlice:
    """mean_k phi_k at one x; samples that move alike are one."""

    def __init__(self, rule: BoxedForm, x: Array, samples: Array) -> None:
        self._rule, self._x = rule, x
        rows = self._rows = rows_of(rule.joint.matrix, samples)
        slopes = rule.pieces.jacobian(x, rule.joint.mean)[:, rule.free] * rule.deviation
        steepest = slopes[np.argmax((slopes**2).sum(axis=1))]
        length = float(np.linalg.norm(steepest))
        b = steepest / length if length > 0 else steepest
        heights = rule.pieces(x, rows) / rule.epsilon
        if not np.isfinite(heights).all():
            raise FloatingPointError(
                "the loss is not finite at a sample; keep the decision inside its domain (bounds "
                "on the variables)."
            )
        low, high = ((side - rows[:, rule.free]) / rule.deviation for side in rule.box)
        self._constant = heights[:, 0] - log_normal_between(low, high).sum(axis=1)
        keys = np.concatenate([heights - heights[:, :1], low, high], axis=1)
        keys, self._group = np.unique(keys, axis=0, return_inverse=True)
        count, d = heights.shape[1], len(rule.free)
        self._key = self._group.tobytes()
        self._mixture = FormMixtureOnBoxes(
            keys[:, :count],
            slopes @ b / rule.epsilon,
            b,
            (keys[:, count : count + d], keys[:, count + d :]),
            rule.mixing,
            rule.places.get(self._key),
        )
        self._floor = SMALLEST / float(np.sqrt(np.sum(rule.mixing.rho**2)))

    def at(self, dual: float) -> DualPoint:
        eps = self._rule.epsilon
        rate = max(dual / eps, self._floor)
        found = self._mixture.mixed(rate)
        self._rule.places[self._key] = self._mixture.places
        cost, square = self._mixture.mixing.costs(rate, found)
        spread = np.maximum(square - cost**2, 0.0)
        less = rate - dual / eps
        logs = found.log_mass + less * (cost + 0.5 * less * spread)
        value = eps * float((logs[self._group] + self._constant).mean())
        cost = cost + less * spread
        return DualPoint(
            value, -float(cost[self._group].mean()), float(spread[self._group].mean()) / eps
        )

    def gradient(self, dual: float) -> Array:
        """Pieces are affine in the data: each is asked at the mean of its scenarios."""
        rule, mixture = self._rule, self._mixture
        size, count = len(self._rows), len(mixture.beta)
        found = mixture.mixed(max(dual / rule.epsilon, self._floor))
        found = found.picked(found.shares > LIVELY)
        whole = mixture.tilted(found.owner, found.points, mixture.beta)
        with np.errstate(under="ignore"):
            weights = np.exp(mixture.heights[found.owner] + whole.log_mass - found.logs[:, None])
        moves = whole.root * (whole.shift + whole.depths)
        lifted = weights[:, None] * np.where(weights[:, None] > 0, moves, 0.0)
        for meeting in mixture.meetings:
            nodes = (meeting, found.owner, found.points, found.logs)
            for one in mixture.crossings(*nodes, moves=True):
                weights[one.nodes, meeting.lower] -= one.above
                weights[one.nodes, meeting.upper] -= one.below
                lifted[one.nodes, :, meeting.lower] -= one.moves_above
                lifted[one.nodes, :, meeting.upper] -= one.moves_below
        counts = np.bincount(self._group, minlength=mixture.size) / size
        lifted = np.einsum("m,mdp->pd", found.shares * counts[found.owner], lifted)
        shares = np.stack([found.mean(weights[:, j]) for j in range(count)], axis=1)
        shares = shares[self._group] / size
        mass, moved = shares.sum(axis=0), shares.T @ self._rows
        moved[:, rule.free] += rule.deviation * lifted
        used = np.abs(mass) > 0
        rows = np.where(used[:, None], moved / np.where(used, mass, 1.0)[:, None], 0.0)
        rule.pieces(self._x, rows)
        return rule.pieces.in_decision(np.diag(np.where(used, mass, 0.0)))

    def diagnostics(self, dual: float) -> None:
        return None
