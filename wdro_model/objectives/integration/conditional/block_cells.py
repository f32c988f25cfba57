"""Conditional integration by adaptive cells over one or two coordinates.

With the affine block A integrated out, what is left is a function of the moves y of block C,

    phi_k = eps log int exp(f(x, (xi_A, s))/eps + log E_A[...] - l c_C/eps - |t|^2/2) dt + const,

t = y / sigma, over the line or the plane: `cells`, whatever it looks like. The loss and its slopes
in block A are evaluated once at the nodes of a decision, where they can be kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.cells import CellIntegral, Resolved, cell_diagnostics
from wdro_model.objectives.integration.conditional.integral import Slopes
from wdro_model.objectives.integration.conditional.loss import looked
from wdro_model.objectives.integration.conditional.table import TableLoss
from wdro_model.objectives.integration.inner_integral import Slice
from wdro_model.objectives.integration.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.targets import blocks
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.samples import SampleShares

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional

TOLERANCE = {1: 1e-9, 2: 3e-6}
"""Estimated relative errors of the integrals over one and over two coordinates."""
EXPECTED = {1: 1000, 2: 20_000}
"""Nodes of a sample, on one and on two coordinates."""
KEPT_NUMBERS, CHUNK_NUMBERS = 2**25, 2**23
"""What was seen at the nodes is kept for the next dual up to so many numbers; beyond, samples are
integrated in chunks of this size, anew for each dual."""
LIVELY = 1e-14
"""A smaller weight has no part in the gradient."""


class BlockTilt:
    """The exponent of block C at one decision."""

    def __init__(self, rule: Conditional, x: Array) -> None:
        self._rule, self._x, self._table = rule, x, rule.table(x)
        self._known: list[tuple[Array, list[tuple[slice, Slopes]]]] = []
        """What was seen last, and what the integrals over block A need of it at any dual."""

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers tell the slopes at a node: themselves, or Q and the place in a table."""
        block = self._rule.block
        return (block.frame.dimension,) if self._table is None else (len(block.levels), 2)

    def look(self, owner: Array, moves: Array) -> tuple[Array, ...]:
        """f/eps - |t|^2/2, c_C, and what tells the slopes of f in block A."""
        rule, frame = self._rule, self._rule.frame
        values = np.empty(len(moves))
        seen = [np.empty((len(moves), width)) for width in self.widths]
        for some in rule.blocks(self._x, len(moves)):
            parts = self._seen(owner[some], moves[some])
            for array, part in zip((values, *seen), parts):
                array[some] = part
        assert frame.weights is not None
        fixed = np.where(np.isneginf(values), np.nan, values) / rule.epsilon
        fixed -= 0.5 * (moves**2 / frame.spread).sum(axis=1)
        return fixed, moves**2 @ frame.weights, *seen

    def _seen(self, owner: Array, moves: Array) -> tuple[Array, ...]:
        """f, and its slopes (B, r_A), or in place of them Q and the places in a table."""
        rule, table = self._rule, self._table
        if table is None:
            rows = rule.frame.rows(owner, moves)
            return looked(rule, self._x, rows, rule.affine, rule.in_block)
        there = TableLoss(table, owner, moves[:, None])
        return there.values[:, 0], there.slopes.squares[:, 0], there.places[:, 0]

    def exponents(self, seen: tuple[Array, ...], owner: Array, dual: float) -> Array:
        fixed, costs, *others = seen
        found = fixed - (dual / self._rule.epsilon) * costs
        for some, part in self._parts(others, owner):
            found[some] += self._rule.block.integrate(part, dual).log_value
        return found

    def cost_moments(
        self, seen: tuple[Array, ...], owner: Array, dual: float
    ) -> tuple[Array, Array]:
        """The mean over block A of the transport cost, and its variance: NaN near a bound."""
        _, costs, *others = seen
        mean, variance = costs.copy(), np.full(costs.shape, np.nan)
        for some, part in self._parts(others, owner):
            inner = self._rule.block.integrate(part, dual)
            mean[some] += inner.cost
            if inner.cost_variance is not None:
                variance[some] = inner.cost_variance
        return mean, variance

    def _parts(self, seen: list[Array], owner: Array) -> list[tuple[slice, Slopes]]:
        """Slopes at nodes seen as (K, S, ...), kept for the next dual: of a scan, and of cells."""
        first = seen[0]
        for known, parts in self._known:
            if known is first:
                return parts
        parts = []
        for some in blocks(len(first), first.shape[1] * sum(self.widths)):
            if self._table is None:
                slopes = self._rule.block.slopes(owner[some], first[some])
            else:
                slopes = self._table.slopes(owner[some], seen[1][some], first[some])
            parts.append((some, slopes))
        self._known = [(first, parts), *self._known[:1]]
        return parts


@dataclass(frozen=True)
class Measured:
    """The integrals of all samples at one dual variable."""

    dual: float
    point: DualPoint
    error: Array
    nodes: int


class BlockCellSlice(Slice):
    """mean_k phi_k at one x."""

    def __init__(self, rule: Conditional, x: Array, samples: Array, shares: SampleShares) -> None:
        order = np.argsort(samples, kind="stable")
        self._rule, self._x, self._samples = rule, x, samples[order]
        self._shares = shares.subset(order).normalized()
        r = rule.frame.dimension
        self._tolerance = TOLERANCE[r]
        self._tilt = BlockTilt(rule, x)
        numbers = EXPECTED[r] * (4 + sum(self._tilt.widths))
        self._keeps = len(samples) * numbers <= KEPT_NUMBERS
        step = len(samples) if self._keeps else max(1, CHUNK_NUMBERS // numbers)
        starts = range(0, len(samples), max(1, step))
        self._chunks = [slice(i, i + step) for i in starts]
        self._integrals: dict[int, CellIntegral] = {}
        self._known: Measured | None = None
        self.guess = rule.dual
        """Where the minimum over the dual variable may be."""

    def _parts(self, dual: float) -> Iterator[tuple[CellIntegral, Resolved, SampleShares]]:
        """The integrals of some samples after the other, and what these count."""
        rule = self._rule
        for i, some in enumerate(self._chunks):
            integral, chunk = self._integrals.get(i), self._samples[some]
            if integral is None:
                deviation, known = np.sqrt(rule.frame.spread), rule.memory.of(chunk)
                integral = CellIntegral(
                    self._tilt, rule.region, deviation, chunk, self._tolerance, known
                )
            found = integral.at(dual)
            yield integral, found, self._shares.subset(some)
            if self._keeps:
                self._integrals[i] = integral
            elif not found.diverges:
                rule.memory.keep(integral.kept(), integral.anew)

    def evaluate(self, dual: float) -> DualPoint:
        if self._known is None or self._known.dual != dual:
            self._known = self._measured(dual)
        return self._known.point

    def _measured(self, dual: float) -> Measured:
        rule, size = self._rule, len(self._samples)
        value = cost = bend = 0.0
        errors, nodes = [], 0
        for integral, found, shares in self._parts(dual):
            if found.diverges:
                return Measured(dual, DualPoint(np.inf, -np.inf, np.nan), np.zeros(0), 0)
            position = integral.position
            costs, spread = self._tilt.cost_moments(integral.looked, integral.owners, dual)
            mean = np.bincount(position, np.vecdot(found.weights, costs), len(integral.samples))
            spread = spread + (costs - mean[position, None]) ** 2
            logs = found.log_mass - rule.reference[integral.samples]
            logs = logs - rule.frame.dimension * HALF_LOG_2PI
            value += float(shares.multiple(logs).sum())
            cost += float(shares.multiple(mean).sum())
            bend += float(np.vdot(shares.subset(position).multiple(found.weights), spread))
            errors.append(found.error)
            nodes += found.weights.size
        point = DualPoint(rule.epsilon * value / size, -cost / size, bend / (size * rule.epsilon))
        return Measured(dual, point, np.concatenate(errors), nodes)

    def gradient(self, dual: float) -> Array:
        """That of f at the tilted mean of the block, node by node: f is affine in it."""
        rule, size = self._rule, len(self._samples)
        if not np.isfinite(self.evaluate(dual).value):
            raise FloatingPointError(
                "the smoothed objective is infinite here: the loss outgrows the cost, and has no "
                "gradient; give the data a bounded support."
            )
        rule.reached(dual)
        x, gradient = self._x, np.zeros(rule.loss.dimension)
        for integral, found, shares in self._parts(dual):
            rule.memory.keep(integral.kept(), integral.anew)
            cell, node = np.nonzero(found.weights > LIVELY)
            counted = shares.subset(integral.position).multiple(found.weights)
            weights = counted[cell, node] / size
            moves, owners = integral.moves()[cell, node], integral.owners[cell]
            for some in rule.blocks(x, len(weights)):
                loss = rule.looked(x, owners[some], moves[some, None], lenient=True)
                inner = rule.block.integrate(loss.slopes, dual)
                gradient += loss.gradient(x, inner, weights[some, None])
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics | None:
        self.evaluate(dual)
        assert self._known is not None
        return cell_diagnostics(
            self._known.error,
            self._tolerance,
            self._known.nodes,
            self._rule.epsilon,
            self._shares,
        )
