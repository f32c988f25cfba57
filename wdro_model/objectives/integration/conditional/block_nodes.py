"""Slices of conditional integration: closed form over block A at nodes of block C.

At node s of sample k, with log weight log w_ks of rule and reference,

    phi_k = eps log sum_s w_ks exp(( f(x, (xi_A, s)) - l c_C(xi_k, s) )/eps + log E_A[...] ).

The loss is evaluated once at the nodes of a decision: the dual variable recombines what was seen.
The gradient in x is that of f at the tilted mean of block A, node by node: f is affine in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.conditional.block_integral import BlockIntegral, Slopes
from wdro_model.objectives.integration.conditional.marginal import Blocks
from wdro_model.objectives.integration.sampled import sampling_diagnostics
from wdro_model.solvers.objective import Array, Diagnostics

CHUNK_ENTRIES = 2**18
"""Scenarios evaluated at once (2 MiB): arrays that stay in the cache."""
KEPT_ENTRIES = 2**26
"""Slopes B kept for the dual variable (512 MiB); beyond, the loss is evaluated again for each."""


@dataclass(frozen=True)
class BlockNodes:
    """S nodes in block C for each of P places; a sample may have several, next to each other."""

    owners: Array
    """The samples of the places, (P,)."""
    moves: Array
    """(P, S, r)"""
    log_weights: Array
    """log of weight times reference density, (P, S)."""


@dataclass(frozen=True)
class Weighted:
    """The integrals at one dual variable."""

    dual: float
    weights: Array
    """Weights of the nodes, (P, S); they sum to one for each sample."""
    inner: list[BlockIntegral]
    """One for each part of the places."""
    point: DualPoint


class NodeSlice:
    """mean_k phi_k at one x, on nodes that stay where they are."""

    def __init__(self, parts: Blocks, x: Array, nodes: BlockNodes) -> None:
        self.parts, self.x, self.nodes = parts, x, nodes
        new = np.diff(nodes.owners, prepend=-1) != 0
        self.first = np.flatnonzero(new)
        """Where the places of each sample begin, (K,)."""
        self.sample = np.cumsum(new) - 1
        """Positions of the samples of the places, (P,)."""
        size, count = nodes.log_weights.shape
        kept = size * count * max(1, parts.block.frame.dimension) <= KEPT_ENTRIES
        step = max(1, CHUNK_ENTRIES // (count * parts.joint.dimension))
        self._chunks = [slice(i, i + step) for i in range(0, size, step)]
        assert parts.frame.weights is not None
        self._costs = nodes.moves**2 @ parts.frame.weights
        self._values = np.empty((size, count))
        self._slopes: list[Slopes] = []
        for chunk in self._chunks:
            self._values[chunk], slopes = self._evaluate(chunk)
            self._slopes.append(parts.block.slopes(nodes.owners[chunk], slopes, kept))
        self._known: Weighted | None = None

    def _rows(self, chunk: slice) -> Array:
        """Scenarios at the nodes of some of the places, block A at its samples."""
        moves = self.nodes.moves[chunk]
        owners = np.repeat(self.nodes.owners[chunk], moves.shape[1])
        return self.parts.frame.rows(owners, moves.reshape(len(owners), -1))

    def _evaluate(self, chunk: slice) -> tuple[Array, Array]:
        """f (P', S) and its slopes in block A (P', S, r)."""
        shape = self._values[chunk].shape
        values, slopes = self.parts.slopes_in_block(self.x, self._rows(chunk))
        return values.reshape(shape), slopes.reshape(*shape, -1)

    def _steep(self, k: int) -> Array:
        """B at the nodes of a chunk, evaluated again where it was not kept."""
        kept = self._slopes[k].values
        return self._evaluate(self._chunks[k])[1] if kept is None else kept

    def at(self, dual: float) -> DualPoint:
        return self.weighted(dual).point

    def weighted(self, dual: float) -> Weighted:
        if self._known is None or self._known.dual != dual:
            self._known = self._integrated(dual)
        return self._known

    def _integrated(self, dual: float) -> Weighted:
        epsilon, block = self.parts.epsilon, self.parts.block
        exponent = (self._values - dual * self._costs) / epsilon + self.nodes.log_weights
        cost, spread = self._costs.copy(), np.zeros(exponent.shape)
        integrals = []
        for k, chunk in enumerate(self._chunks):
            steep = self._steep(k) if block.needs_values(self._slopes[k], dual) else None
            inner = block.integrate(self._slopes[k], dual, steep)
            exponent[chunk] += inner.log_value
            cost[chunk] += inner.cost
            spread[chunk] = np.nan if inner.cost_variance is None else inner.cost_variance
            integrals.append(inner)
        first, sample = self.first, self.sample
        top = np.maximum.reduceat(exponent.max(axis=1), first)
        weights = np.exp(exponent - top[sample, None])
        total = np.add.reduceat(weights.sum(axis=1), first)
        weights /= total[sample, None]
        mean = np.add.reduceat(np.vecdot(weights, cost), first)
        spread += (cost - mean[sample, None]) ** 2
        point = DualPoint(
            float(epsilon * (top + np.log(total)).mean()),
            float(-mean.mean()),
            float(np.vdot(weights, spread)) / (epsilon * len(first)),
        )
        return Weighted(dual, weights, integrals, point)

    def gradient(self, dual: float) -> Array:
        parts, found = self.parts, self.weighted(dual)
        gradient = np.zeros(parts.loss.dimension)
        # Backwards: what the loss computed for the last chunk may still be known to it.
        for k in reversed(range(len(self._chunks))):
            chunk = self._chunks[k]
            rows = self._rows(chunk)
            moves = parts.block.moves(found.inner[k], self._steep(k))
            rows[:, parts.block.frame.moving] += moves.reshape(len(rows), -1)
            weights = found.weights[chunk].ravel() / len(self.first)
            gradient += parts.loss(self.x, rows)[1](weights)
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics:
        """How far the values can be trusted where the nodes are draws, one place a sample."""
        nearest = float(self._costs.min(axis=1).mean())
        return sampling_diagnostics(self.weighted(dual).weights, self.parts.epsilon, nearest)
