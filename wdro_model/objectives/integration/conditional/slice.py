"""Slices of conditional integration: closed form over one block at the nodes of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from wdro_model.objectives.base import Array, Diagnostics
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.base import Stream
from wdro_model.objectives.integration.conditional.affine_block import BlockIntegral
from wdro_model.objectives.integration.conditional.nodes import EXTENT, STEP, Nodes

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.strategy import Conditional

CHUNK_ENTRIES = 2**22
"""Scenarios evaluated at once."""
KEPT_ENTRIES = 2**26
"""Slopes B kept for the dual variable (512 MiB); beyond, the loss is evaluated again for each."""
TOLERATED = 0.02
"""The grid moves when it fails more than this share of the samples."""


@dataclass(frozen=True)
class Part:
    """Some of the samples of a slice: values f(x, (xi_A, s)), (K, S), and slopes B (K S, r)."""

    samples: Array
    nodes: Nodes
    costs: Array
    """c_C of the nodes, (K, S)."""
    values: Array
    slopes: Array | None
    """None where they are too many to keep."""


class ConditionalSlice:
    """mean_k phi_k at one x, on fixed nodes of block C."""

    def __init__(self, rule: Conditional, x: Array, samples: Array, stream: Stream) -> None:
        self._rule, self._x, self._count = rule, x, len(samples)
        self._samples, self._stream = samples, stream
        self._prepare()

    def _prepare(self) -> None:
        """Evaluate the loss on the nodes of the last refresh."""
        rule, samples = self._rule, self._samples
        nodes = rule.nodes(samples, self._stream)
        size = nodes.moves.shape[1]
        width = max(1, rule.block.frame.dimension)
        kept = len(samples) * size * width <= KEPT_ENTRIES
        step = max(1, CHUNK_ENTRIES // (size * rule.joint.dimension))
        self._parts = [
            self._part(samples[i : i + step], _some(nodes, slice(i, i + step)), kept)
            for i in range(0, len(samples), step)
        ]
        self._cached: tuple[float, list[tuple[Array, BlockIntegral]], DualPoint] | None = None

    def _adapted(self, dual: float) -> list[tuple[Array, BlockIntegral]]:
        """Weights and integrals at the dual; a grid that does not cover the density is moved."""
        if self._rule.exact and self.uncovered(dual) > TOLERATED + self._rule.unreached:
            self._rule.refresh(self._x, dual)
            self._prepare()
            self._rule.unreached = self.uncovered(dual)
        return self._integrals(dual)[0]

    def _part(self, samples: Array, nodes: Nodes, kept: bool) -> Part:
        assert self._rule.frame.weights is not None
        values, slopes = self._evaluate(samples, nodes)
        costs = nodes.moves**2 @ self._rule.frame.weights
        return Part(samples, nodes, costs, values.reshape(costs.shape), slopes if kept else None)

    def _rows(self, samples: Array, nodes: Nodes) -> tuple[Array, Array]:
        owners = np.repeat(samples, nodes.moves.shape[1])
        flat = nodes.moves.reshape(len(owners), self._rule.frame.dimension)
        return owners, self._rule.frame.rows(owners, flat)

    def _evaluate(self, samples: Array, nodes: Nodes) -> tuple[Array, Array]:
        _, rows = self._rows(samples, nodes)
        values, pullback = self._rule.loss(self._x, rows)
        values = values.copy()
        return values, self._rule.block.frame.pulled(pullback.in_data(np.ones(len(rows))))

    def at(self, dual: float) -> DualPoint:
        self._adapted(dual)
        return self._integrals(dual)[1]

    def _integrals(self, dual: float) -> tuple[list[tuple[Array, BlockIntegral]], DualPoint]:
        """For each part the weights of its nodes (K, S) and the block's integrals; the sums."""
        if self._cached is not None and self._cached[0] == dual:
            return self._cached[1], self._cached[2]
        epsilon, found = self._rule.epsilon, []
        value = slope = curvature = 0.0
        for part in self._parts:
            slopes = part.slopes
            if slopes is None:
                slopes = self._evaluate(part.samples, part.nodes)[1]
            owners = np.repeat(part.samples, part.costs.shape[1])
            inner = self._rule.block.integrate(owners, slopes, dual)
            exponent = (part.values - dual * part.costs) / epsilon + part.nodes.log_weights
            exponent += inner.log_value.reshape(part.costs.shape)
            total = logsumexp(exponent, axis=1)
            weights = np.exp(exponent - total[:, None])
            cost = part.costs + inner.cost.reshape(part.costs.shape)
            mean = np.einsum("ks,ks->k", weights, cost)
            value += epsilon * float(total.sum())
            slope -= float(mean.sum())
            if inner.cost_variance is None:
                curvature = np.nan
            else:
                spread = (cost - mean[:, None]) ** 2 + inner.cost_variance.reshape(cost.shape)
                curvature += float((weights * spread).sum()) / epsilon
            found.append((weights, inner))
        count = self._count
        point = DualPoint(value / count, slope / count, curvature / count)
        self._cached = (dual, found, point)
        return found, point

    def gradient(self, dual: float) -> Array:
        rule = self._rule
        gradient = np.zeros(rule.loss.dimension)
        found = self._adapted(dual)
        for part, (weights, inner) in zip(self._parts, found):
            _, rows = self._rows(part.samples, part.nodes)
            rows[:, rule.block.frame.moving] += inner.move
            gradient += rule.loss(self._x, rows)[1](weights.ravel() / self._count)
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics | None:
        if self._rule.exact:
            return None
        weights = np.concatenate([w for w, _ in self._integrals(dual)[0]])
        sizes = 1.0 / np.einsum("ks,ks->k", weights, weights)
        draws = self._rule.draws
        variance = (1.0 / sizes - 1.0 / draws) * draws / max(1, draws - 1)
        costs = np.concatenate([part.costs for part in self._parts])
        return Diagnostics(
            draws=draws,
            effective_size=float(np.median(sizes)),
            smallest_effective_size=float(sizes.min()),
            standard_error=float(
                self._rule.epsilon * np.sqrt(max(0.0, variance.sum())) / len(sizes)
            ),
            nearest_cost=float(costs.min(axis=1).mean()),
        )

    def uncovered(self, dual: float) -> float:
        """The share of samples whose density the grid resolves badly or cuts off."""
        bad = 0
        for part, (weights, _) in zip(self._parts, self._integrals(dual)[0]):
            scores = part.nodes.scores
            assert scores is not None
            if scores.shape[1] == 0:
                continue
            by_mode = weights.reshape(len(weights), -1, len(scores))
            mass = by_mode.sum(axis=2)
            share = by_mode / np.maximum(mass, 1e-300)[:, :, None]
            mean = share @ scores
            narrow = (share @ scores**2 - mean**2).min(axis=2) < 0.25
            outer = np.linalg.norm(scores, axis=1) > EXTENT - STEP
            lost = share[:, :, outer].sum(axis=2) > 1e-3
            bad += int(((narrow | lost) & (mass > 1e-3)).any(axis=1).sum())
        return bad / self._count


def _some(nodes: Nodes, which: slice) -> Nodes:
    return Nodes(nodes.moves[which], nodes.log_weights[which], nodes.scores)
