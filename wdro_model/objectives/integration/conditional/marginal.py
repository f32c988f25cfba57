"""The density of the block C of the data, the affine block A integrated out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.conditional.block_integral import AffineBlock, BlockIntegral
from wdro_model.objectives.integration.importance.frame import Frame, frame_of
from wdro_model.objectives.integration.importance.proposals import Bounds
from wdro_model.objectives.integration.importance.targets import blocks, probe
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples


@dataclass(frozen=True)
class Blocks:
    """The data in two blocks: A, in which f is affine, and the rest, C; with a frame for each."""

    loss: FlatLoss
    joint: JointSamples
    cost: BoundCost
    epsilon: float
    sigma: float | Array
    affine: tuple[Any, ...]
    """The parameters of block A."""

    @cached_property
    def others(self) -> tuple[Any, ...]:
        """Those of block C."""
        return tuple(p for p in self.joint.parameters if all(p is not a for a in self.affine))

    @cached_property
    def block(self) -> AffineBlock:
        """The integral over block A."""
        return AffineBlock(self._frame(self.affine), self.epsilon)

    @cached_property
    def frame(self) -> Frame:
        """The moves of block C."""
        return self._frame(self.others)

    def _frame(self, parameters: tuple[Any, ...]) -> Frame:
        return frame_of(self.joint, self.cost, self.sigma, self._columns(parameters))

    def _columns(self, parameters: tuple[Any, ...]) -> Array:
        every = np.arange(self.joint.dimension)
        return np.concatenate([every[self.joint.slices[p]] for p in parameters])

    @cached_property
    def _chosen(self) -> tuple[Array, Array]:
        """Among the coordinates of A, and of C, side by side: those that move."""
        frames = ((self.affine, self.block.frame), (self.others, self.frame))
        found = []
        for parameters, frame in frames:
            own = self._columns(parameters)
            place = np.argsort(own)
            found.append(place[np.searchsorted(own, frame.moving, sorter=place)])
        return found[0], found[1]

    def slopes_in_block(self, x: Array, rows: Array) -> tuple[Array, Array]:
        """f (B,) and its gradient in the moves of block A, (B, r); see `_look`."""
        return self._look(x, rows, self.affine, self._chosen[0])

    def slopes_in_rest(self, x: Array, rows: Array) -> Array:
        """The gradient of f in the moves of block C, (B, r)."""
        return self._look(x, rows, self.others, self._chosen[1])[1]

    def _look(
        self, x: Array, rows: Array, parameters: tuple[Any, ...], chosen: Array
    ) -> tuple[Array, Array]:
        """f and its gradient in some coordinates of some parameters; -inf and 0 where f is not
        defined."""
        try:
            with np.errstate(all="ignore"):
                values, pullback = self.loss(x, rows)
                values = values.copy()
                slope = pullback.in_data(np.ones(len(rows)), parameters)
        except (FloatingPointError, ValueError):
            # Some of the rows lie outside the domain of the loss: found one by one.
            good = np.ones(len(rows), dtype=bool)
            values, raw = probe(self.loss, x, rows, good, True)
            slices = self.joint.slices
            slope = np.concatenate([raw[:, slices[p]] for p in parameters], axis=1)
        if len(chosen) < slope.shape[1]:
            slope = slope[:, chosen]
        return values, slope if np.isfinite(slope).all() else np.where(np.isfinite(slope), slope, 0)


class Marginal:
    """Log densities h of the moves of block C; a target of the search for modes.

    h = f(x, (xi_A, s))/eps + log E_A[...] - sum y^2/(2 v), and by the envelope rule its gradient
    is that of f at the tilted mean of block A.
    """

    walled = False
    quadratic = True
    lines = None

    def __init__(
        self, parts: Blocks, x: Array, dual: float, places: tuple[Array, ...] = ()
    ) -> None:
        self.parts, self.x, self.dual = parts, x, dual
        self.frame, self.places = parts.frame, places
        self.dimension = self.frame.dimension
        assert self.frame.weights is not None
        spread = self.frame.spread
        self._variance = spread / (1 + 2 * dual * self.frame.weights * spread / parts.epsilon)

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        return self._evaluate(owners, moves, slopes=True)

    def values(self, owners: Array, moves: Array, exact: bool = False) -> Array:
        """h alone; `exact` or not, there are no kinks of a cost to round off."""
        return self._evaluate(owners, moves, slopes=False)[0]

    def tilted_rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) with these moves of block C, and block A at its tilted mean."""
        rows = self.frame.rows(owners, moves)
        _, inner, steep = self._inner(owners, rows)
        return self._tilted(rows, inner, steep)

    def _inner(self, owners: Array, rows: Array) -> tuple[Array, BlockIntegral, Array]:
        """f at the rows, the integral over block A, and the slopes (B, 1, r)."""
        block = self.parts.block
        values, steep = self.parts.slopes_in_block(self.x, rows)
        slopes = block.slopes(owners, steep[:, None])
        return values, block.integrate(slopes, self.dual), steep[:, None]

    def _tilted(self, rows: Array, inner: BlockIntegral, steep: Array) -> Array:
        """The rows (changed in place) with block A at its tilted mean."""
        block = self.parts.block
        rows[:, block.frame.moving] += block.moves(inner, steep)[:, 0]
        return rows

    def _evaluate(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        values, gradients = np.empty(len(moves)), np.zeros(moves.shape)
        with np.errstate(all="ignore"):
            for some in blocks(len(moves), self.parts.joint.dimension):
                values[some], gradients[some] = self._block(owners[some], moves[some], slopes)
        return values, gradients

    def _block(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        epsilon = self.parts.epsilon
        rows = self.frame.rows(owners, moves)
        values, inner, steep = self._inner(owners, rows)
        h = values / epsilon + inner.log_value[:, 0]
        h -= (moves**2 / (2 * self._variance)).sum(axis=1)
        if not slopes:
            return h, np.zeros(moves.shape)
        outward = self.parts.slopes_in_rest(self.x, self._tilted(rows, inner, steep))
        gradient = outward / epsilon - moves / self._variance
        gradient[~np.isfinite(h)] = 0.0
        return h, gradient

    def variance(self, owners: Array, moves: Array) -> Array:
        return self._variance[None]

    def bounds(self, owners: Array) -> Bounds | None:
        return self.frame.bounds(owners)

    def starts(self, owners: Array) -> list[Array]:
        return [place if place.ndim == 1 else place[owners] for place in self.places]


class BlockTilt:
    """The exponent of block C at one decision, for cells.

    f(x, (xi_A, s))/eps + log E_A[...] - l c_C/eps - |t|^2/2, t = y / sigma. The loss and its slopes
    in block A are looked at once for all dual variables.
    """

    def __init__(self, parts: Blocks, x: Array) -> None:
        self._parts, self._x = parts, x
        self.width = 2 + parts.block.frame.dimension

    def look(self, owner: Array, moves: Array) -> tuple[Array, ...]:
        """f/eps - |t|^2/2, c_C, and the slopes of f in block A."""
        parts, frame = self._parts, self._parts.frame
        fixed = np.empty(len(moves))
        slopes = np.empty((len(moves), parts.block.frame.dimension))
        for some in blocks(len(moves), parts.joint.dimension):
            rows = frame.rows(owner[some], moves[some])
            values, slopes[some] = parts.slopes_in_block(self._x, rows)
            fixed[some] = np.where(np.isneginf(values), np.nan, values) / parts.epsilon
        assert frame.weights is not None
        fixed -= 0.5 * (moves**2 / frame.spread).sum(axis=1)
        return fixed, moves**2 @ frame.weights, slopes

    def exponents(self, looked: tuple[Array, ...], owner: Array, dual: float) -> Array:
        fixed, costs, slopes = looked
        found = fixed - (dual / self._parts.epsilon) * costs
        for some in blocks(len(fixed), slopes.shape[1]):
            found[some] += self._inner(slopes[some], owner[some], dual).log_value[:, 0]
        return found

    def cost_moments(
        self, looked: tuple[Array, ...], owner: Array, dual: float
    ) -> tuple[Array, Array]:
        """The mean over block A of the transport cost, and its variance: NaN near a bound."""
        _, costs, slopes = looked
        mean, variance = costs.copy(), np.full(len(costs), np.nan)
        for some in blocks(len(costs), slopes.shape[1]):
            inner = self._inner(slopes[some], owner[some], dual)
            mean[some] += inner.cost[:, 0]
            if inner.cost_variance is not None:
                variance[some] = inner.cost_variance[:, 0]
        return mean, variance

    def scenarios(self, owner: Array, moves: Array, dual: float) -> Array:
        """Block A at its tilted mean, node by node: f is affine in it."""
        return Marginal(self._parts, self._x, dual).tilted_rows(owner, moves)

    def _inner(self, slopes: Array, owner: Array, dual: float) -> BlockIntegral:
        block = self._parts.block
        return block.integrate(block.slopes(owner, slopes[:, None]), dual)
