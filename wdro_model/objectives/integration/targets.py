"""The log of the tilted densities, as targets of the mode search, and the pieces of the loss.

    h_k(y) = f(x, xi_k + R y)/eps - l c/eps - sum_i y_i^2/(2 sigma_i^2)

exp(max_j f_j/eps) lies between the largest and the sum of the tilted Gaussians, so that their
mixture, weighted by their masses, covers the target up to the number of pieces.

For a quadratic cost the last two terms are -sum y^2/(2 v), v_i = 1/(2 l w_i/eps + 1/sigma_i^2).
Other costs are kept as they are; a model c ~ sum q_i y_i^2 of them serves to choose a spread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.frame import Frame
from wdro_model.objectives.integration.modes import LIMITS, Target, ascend
from wdro_model.objectives.integration.proposals import (
    Bounds,
    Mixture,
    component,
    mixture,
)
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost


@dataclass(frozen=True)
class Tolerances:
    """Effort of the search for tangents of the loss; lengths in deviations of the reference."""

    differenced_dimensions: int = 64
    """Dimension up to which a user's cost is differentiated coordinate by coordinate."""
    probed_entries: int = 2**21
    """Entries of the scenarios in one call of the loss."""
    tangent_directions: int = 16
    """Random directions from each sample in which tangents are taken, besides the axes."""
    tangent_samples: int = 4
    """Samples from which tangents are taken."""
    slope_tolerance: float = 0.02
    """Relative difference below which two slopes lead to one mode: fewer tangents if larger."""
    most_tangents: int = 64
    """Tangents that are kept; each costs an evaluation of the loss for each sample and dual."""


EFFORT = Tolerances()


@dataclass(frozen=True)
class PieceLines:
    """Affine pieces f_j = constant_j + <gradient_j, xi> of a loss at one decision."""

    slopes: Array
    """In the moves y, (J, r)."""
    constants: Array
    gradients: Array
    """In the data, (J, d)."""

    def values(self, rows: Array) -> Array:
        """f_j at the rows (B, d): (B, J)."""
        return self.constants + rows @ self.gradients.T


def piece_lines(
    pieces: tuple[FlatLoss, ...], x: Array, row: Array, frame: Frame
) -> PieceLines | None:
    """The pieces at a decision, evaluated at one scenario `row` (d,); None without pieces."""
    if not pieces:
        return None
    at_row = [piece(x, row[None]) for piece in pieces]
    raw = np.concatenate([pullback.in_data(np.ones(1)) for _, pullback in at_row])
    constants = np.array([values[0] for values, _ in at_row]) - raw @ row
    return PieceLines(frame.pulled(raw), constants, raw)


def piece_mixture(
    lines: PieceLines, frame: Frame, samples: Array, variance: Array, epsilon: float
) -> Mixture:
    """The tilted Gaussians of all pieces; variance: of the tilt of the cost alone, (1, r)."""
    bounds = frame.bounds(samples)
    shape = (1 if bounds is None else len(samples), frame.dimension)
    deviation = np.broadcast_to(np.sqrt(variance), shape)
    at_samples = lines.values(frame.joint.matrix[samples])
    components, masses = [], []
    for j, slope in enumerate(lines.slopes):
        center = np.broadcast_to(variance * slope / epsilon, shape)
        one = component(center, deviation, bounds)
        # h_j(y) = f_j(xi)/eps + <slope, y>/eps - y^2/(2v), at the anchor of the component.
        h = ((slope / epsilon - 0.5 * one.anchor / variance) * one.anchor).sum(axis=1)
        masses.append(at_samples[:, j] / epsilon + h - one.log_density(one.anchor[:, None])[:, 0])
        components.append(one)
    return mixture(components, np.stack(masses, axis=1))


# ------------------------------
# The tilted densities


RAY_SHARES = 2.0 ** -np.arange(0.0, 41.0, 2.0)
"""Starts of the ascents of pieces, as shares of the way to the mode without a transport cost."""


class Tilt(Target):
    """The targets h_k at one decision and dual variable."""

    def __init__(
        self,
        loss: FlatLoss,
        frame: Frame,
        cost: BoundCost,
        *,
        epsilon: float,
        x: Array,
        dual: float,
        lines: PieceLines | None = None,
        known_modes: tuple[Array, ...] = (),
    ) -> None:
        self.loss, self.frame, self.cost = loss, frame, cost
        self.epsilon, self.x, self.dual = epsilon, x, dual
        self.lines = lines
        """Affine pieces or tangents of the loss."""
        self.known_modes = known_modes
        """Modes at other dual variables, (N, r), or of another sample, (r,)."""
        self.dimension = frame.dimension
        self.walled = bool(frame.coupled)
        self.quadratic = frame.weights is not None
        self._variance: Array | None = None
        self._rounding: Array | None = None
        if cost.knows("rounded"):
            first = np.zeros((1, frame.dimension))
            self._rounding = np.sqrt(self.variance(np.zeros(1, dtype=int), first))
        if frame.weights is not None:
            self._variance = frame.spread / (1 + 2 * dual * frame.weights * frame.spread / epsilon)

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        values, gradients = np.empty(len(moves)), np.empty(moves.shape)
        for block in blocks(len(moves), self.loss.data_dimension):
            values[block], gradients[block] = self._block(owners[block], moves[block])
        return values, gradients

    def values(self, owners: Array, moves: Array, exact: bool = False) -> Array:
        """h alone; `exact` takes the cost itself, in place of the one with rounded kinks."""
        out = np.empty(len(moves))
        for block in blocks(len(moves), self.loss.data_dimension):
            out[block] = self._block(owners[block], moves[block], slopes=False, exact=exact)[0]
        return out

    def _block(
        self, owners: Array, moves: Array, slopes: bool = True, exact: bool = False
    ) -> tuple[Array, Array]:
        rows = self.frame.rows(owners, moves)
        good = self.frame.is_inside(rows)
        values, raw = probe(self.loss, self.x, rows, good, slopes)
        base, fall = self._without_loss(owners, moves, rows, slopes, exact)
        values = values / self.epsilon + base
        gradients = self.frame.pulled(raw) / self.epsilon + fall
        gradients[~np.isfinite(values)] = 0.0
        return values, gradients

    def _without_loss(
        self, owners: Array, moves: Array, rows: Array, slopes: bool, exact: bool
    ) -> tuple[Array, Array]:
        """-l c/eps - sum y^2/(2 sigma^2) at the moves, and its gradients."""
        spread = self.frame.spread if self._variance is None else self._variance
        values = -0.5 * (moves**2 / spread).sum(axis=1)
        gradients = -moves / spread
        if not self.quadratic and self.dual > 0:
            ratio = self.dual / self.epsilon
            if self._rounding is not None and not exact:
                costs, steep = self._moving_cost.rounded(moves, self._rounding)
            else:
                costs = self.cost(self.frame.joint.matrix[owners], rows)
                steep = self._cost_gradient(owners, moves) if slopes else np.zeros(1)
            values -= ratio * costs
            gradients -= ratio * steep
        return values, gradients

    def variance(self, owners: Array, moves: Array) -> Array:
        if self._variance is not None:
            return self._variance[None]
        spread, ratio = self.frame.spread, 2 * self.dual / self.epsilon
        variance = np.broadcast_to(spread, moves.shape)
        for _ in range(12 if self.cost.knows("rounded") else 3):
            variance = spread / (1 + ratio * spread * self._model(owners, moves, variance))
        return variance

    def bounds(self, owners: Array) -> Bounds | None:
        return self.frame.bounds(owners)

    def room(self, owners: Array) -> Bounds | None:
        """Bounds (B, r) around the support; the farthest wall's distance if there is no bound."""
        bounds = self.bounds(owners)
        if not self.walled:
            return bounds
        room = np.repeat(self.frame.room(owners)[:, None], self.dimension, axis=1)
        low, high = (-room, room) if bounds is None else bounds
        return np.where(np.isfinite(low), low, -room), np.where(np.isfinite(high), high, room)

    def within_walls(self, owners: Array, moves: Array) -> Array:
        deviation = np.sqrt(np.broadcast_to(self.variance(owners, moves), moves.shape))
        return self.frame.within_walls(owners, moves, deviation)

    def wall_contacts(
        self, owners: Array, moves: Array, slopes: Array, deviation: Array
    ) -> tuple[Array, Array]:
        return self.frame.wall_contacts(owners, moves, slopes, deviation)

    def starts(self, owners: Array) -> list[Array]:
        return [moves if moves.ndim == 1 else moves[owners] for moves in self.known_modes]

    @cached_property
    def piece_modes(self) -> Array:
        """Moves (J, r) at which the targets of the affine pieces are largest on R^r."""
        if self.lines is None:
            return np.zeros((0, self.dimension))
        if self._variance is not None:
            return self._variance * self.lines.slopes / self.epsilon
        return PieceTilt(self, self.lines.slopes).modes_along_rays()

    # -------------------------------------------------------------- costs that are not quadratic
    def _model(self, owners: Array, moves: Array, variance: Array) -> Array:
        """Weights q (B, r) of a quadratic model c ~ sum_i q_i y_i^2 around the moves (B, r)."""
        if self.cost.knows("quadratic_model"):
            return self._moving_cost.quadratic_model(moves, variance)
        return self._probed_weights(owners, np.sqrt(variance))

    @cached_property
    def _moving_cost(self) -> BoundCost:
        """The cost as a function of the coordinates that move alone."""
        return self.cost.restricted(self.frame.moving)

    def _probed_weights(self, owners: Array, size: Array) -> Array:
        """Weights q of a user's cost, from its values one deviation away from the samples."""
        if self.dimension <= EFFORT.differenced_dimensions:
            shape = (len(owners), self.dimension)
            costs = np.empty(shape)
            for i in range(self.dimension):
                step = np.zeros(shape)
                step[:, i] = size[:, i]
                costs[:, i] = self._pair(owners, step)
            return costs / size**2
        signs = np.random.default_rng(2).choice([-1.0, 1.0], (4, self.dimension))
        total = np.mean([self._pair(owners, size * one) for one in signs], axis=0)
        return (total / self.dimension)[:, None] / size**2

    def _pair(self, owners: Array, step: Array) -> Array:
        """The mean cost of two opposite moves; moves of infinite cost are left out."""
        both = np.stack([self._cost(owners, step), self._cost(owners, -step)])
        allowed = np.isfinite(both)
        return np.where(allowed, both, 0.0).sum(axis=0) / np.maximum(1, allowed.sum(axis=0))

    def _cost(self, owners: Array, moves: Array) -> Array:
        return self.cost(self.frame.joint.matrix[owners], self.frame.rows(owners, moves))

    def _cost_gradient(self, owners: Array, moves: Array) -> Array:
        if self.cost.knows("gradient"):
            full = np.zeros((len(moves), self.cost.dimension))
            full[:, self.frame.moving] = moves
            return self.cost.gradient(full)[:, self.frame.moving]
        if self.dimension <= EFFORT.differenced_dimensions:
            return differences(lambda y: self._cost(owners, y), moves, np.sqrt(self.frame.spread))
        return 2 * moves * self._probed_weights(owners, np.sqrt(self.frame.spread)[None])


class PieceTilt(Tilt):
    """The targets of affine pieces on R^r: target j has piece j in place of the loss.

    They are the same for all samples, and concave if the cost is convex. `owners` are the indices
    of pieces here.
    """

    def __init__(self, tilt: Tilt, slopes: Array) -> None:
        free = np.full(tilt.dimension, np.inf)
        frame = replace(tilt.frame, lower=-free, upper=free, coupled=())
        super().__init__(
            tilt.loss, frame, tilt.cost, epsilon=tilt.epsilon, x=tilt.x, dual=tilt.dual
        )
        self.rises = slopes / tilt.epsilon

    def _block(
        self, owners: Array, moves: Array, slopes: bool = True, exact: bool = False
    ) -> tuple[Array, Array]:
        first = np.zeros(len(owners), dtype=int)
        rows = self.frame.rows(first, moves)
        values, gradients = self._without_loss(first, moves, rows, slopes, exact)
        rises = self.rises[owners]
        return values + np.einsum("br,br->b", rises, moves), gradients + rises

    def variance(self, owners: Array, moves: Array) -> Array:
        return super().variance(np.zeros(len(owners), dtype=int), moves)

    def modes_along_rays(self) -> Array:
        """The modes (J, r), by ascents from the best point on the way to the mode without cost."""
        freely = self.frame.spread * self.rises
        rays = RAY_SHARES[:, None] * freely[:, None]
        size, count, r = rays.shape
        which = np.repeat(np.arange(size), count)
        heights = self.values(which, rays.reshape(-1, r)).reshape(size, count)
        best = np.where(np.isfinite(heights), heights, -np.inf).argmax(axis=1)
        return ascend(self, np.arange(size), rays[np.arange(size), best])[0]


def differences(function: Callable[[Array], Array], moves: Array, size: Array) -> Array:
    """Gradients (B, r) of a function of the rows by central differences; 0 where it is infinite."""
    out = np.zeros(moves.shape)
    for i in range(moves.shape[1]):
        step = 1e-5 * max(float(size[i]), 1e-12)
        ahead, back = moves.copy(), moves.copy()
        ahead[:, i] += step
        back[:, i] -= step
        up, down = function(ahead), function(back)
        good = np.isfinite(up) & np.isfinite(down)
        out[good, i] = (up[good] - down[good]) / (2 * step)
    return out


def probe(loss: FlatLoss, x: Array, rows: Array, good: Array, slopes: bool) -> tuple[Array, Array]:
    """f and its gradients in the data at the rows marked good; -inf and 0 elsewhere.

    The search for modes may leave the domain of the loss. A call that fails is repeated on both
    halves of its rows, until the rows outside of the domain are isolated.
    """
    values, gradients = np.full(len(rows), -np.inf), np.zeros(rows.shape)
    pending = [np.flatnonzero(good)]
    while pending:
        few = pending.pop()
        if len(few) == 0:
            continue
        try:
            with np.errstate(all="ignore"):
                losses, pullback = loss(x, rows if len(few) == len(rows) else rows[few])
                losses = losses.copy()
                slope = pullback.in_data(np.ones(len(few))) if slopes else None
        except (FloatingPointError, ValueError):
            if len(few) > 1:
                pending += [few[: len(few) // 2], few[len(few) // 2 :]]
            continue
        values[few] = losses
        if slope is not None:
            gradients[few] = np.where(np.isfinite(slope), slope, 0.0)
    return values, gradients


def blocks(size: int, width: int, entries: int = EFFORT.probed_entries) -> list[slice]:
    """Slices of `size` rows of this width, with at most `entries` numbers each."""
    step = max(1, entries // max(1, width))
    return [slice(start, start + step) for start in range(0, size, step)]


# ------------------------------
# Tangents of losses whose pieces are not known, near to the samples and far away


TANGENT_DISTANCES = 2.0 ** np.arange(0, 21)
"""Distances at which tangents are taken, in deviations of the reference: they reach a steep piece
that begins ten thousand deviations away."""


def tangents(loss: FlatLoss, x: Array, frame: Frame) -> PieceLines | None:
    """Tangents of a loss whose pieces are not known, near to the samples and far away.

    Slopes do not depend on the dual variable, so one search serves all of them: along axes and
    random directions from a few samples, at distances that double.
    """
    r, size = frame.dimension, frame.joint.size
    entries = EFFORT.tangent_samples * EFFORT.tangent_directions * len(TANGENT_DISTANCES)
    if not r or frame.joint.dimension * entries > EFFORT.probed_entries:
        return None
    generator = np.random.default_rng(5)
    aside = generator.standard_normal((EFFORT.tangent_directions, r)) / np.sqrt(r)
    axes = np.eye(r) if r <= LIMITS.full_dimensions else np.zeros((0, r))
    ways = np.concatenate([aside, axes, -axes]) * frame.deviation
    steps = (TANGENT_DISTANCES[:, None, None] * ways).reshape(-1, r)
    few = np.unique(np.linspace(0, size - 1, EFFORT.tangent_samples).astype(int))
    owners, moves = np.repeat(few, len(steps)), np.tile(steps, (len(few), 1))
    bounds = frame.bounds(owners)
    rows = frame.rows(owners, moves if bounds is None else np.clip(moves, *bounds))
    values, raw = probe(loss, x, rows, frame.is_inside(rows), slopes=True)
    good = np.isfinite(values)
    values, raw, rows = values[good], raw[good], rows[good]
    slopes = frame.pulled(raw)
    kept = distinct_slopes(slopes * frame.deviation) if len(slopes) else np.zeros(0, dtype=int)
    constants = values - np.einsum("bd,bd->b", raw, rows)
    return PieceLines(slopes[kept], constants[kept], raw[kept])


def distinct_slopes(slopes: Array) -> Array:
    """Indices of the `most_tangents` slopes (B, r) that differ most in direction and in size.

    Farthest-point selection: the steepest slope comes first, then repeatedly the slope with the
    largest distance from all selected ones.
    """
    sizes = np.linalg.norm(slopes, axis=1, keepdims=True)
    usual = max(float(np.median(sizes)), 1e-12 * float(sizes.max()), 1e-300)
    places = slopes / np.maximum(sizes, 1e-300) * np.log1p(sizes / usual)
    kept = [int(sizes[:, 0].argmax())]
    apart = np.linalg.norm(places - places[kept[0]], axis=1)
    while len(kept) < EFFORT.most_tangents and apart.max() > EFFORT.slope_tolerance:
        kept.append(int(apart.argmax()))
        apart = np.minimum(apart, np.linalg.norm(places - places[kept[-1]], axis=1))
    return np.array(kept)
