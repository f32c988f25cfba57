"""The strategy `cells`: at most two coordinates that move, integrated by adaptive cells.

With t the moves in deviations of the reference, and Z_k the mass that N(0, I) gives to the support,

    phi_k = eps log int exp(f(x, xi_k + sigma t)/eps - l c/eps - |t|^2/2) dt + const - eps log Z_k,

over the line or the plane, a half-line, a box or a polyhedron (`cells`). The loss is evaluated once
at the nodes of a decision, not for each dual variable; the search for the dual starts at that of
the last decision. The gradient in x is the mean of grad_x f over the nodes, by their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.cell_regions import CellRegion, clip_polygon, region_of
from wdro_model.objectives.integration.cells import (
    CellIntegral,
    CellIntegrand,
    Resolved,
    normal_log_masses,
)
from wdro_model.objectives.integration.frame import (
    Frame,
    affine_dual,
    frame_of,
    typical_radius,
)
from wdro_model.objectives.integration.inner_integral import (
    INFINITE,
    ROBUST,
    Integration,
    Scales,
    Slice,
    Stream,
    infinite_gradient,
)
from wdro_model.objectives.integration.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.targets import blocks, probe
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.samples import SampleShares
from wdro_model.uncertainty.supports import Polyhedron

TOLERANCE, COARSE_TOLERANCE = {1: 1e-9, 2: 3e-6}, 1e-3
"""Estimated relative errors of the integrals over one and over two coordinates, and those of the
surrogate. The estimate is that of the embedded rule: the error itself is far smaller."""
MOST_SAMPLES = {1: 3000, 2: 200}
"""Samples up to which cells apply, for one and for two coordinates."""
EXPECTED_NODES = {1: 1000, 2: 20_000}
"""Expected nodes of a sample, for one and for two coordinates."""
KEPT_NUMBERS, CHUNK_NUMBERS = 2**25, 2**23
"""Numbers up to which the loss at the nodes is stored for the next dual, and the size of the chunks
that are integrated anew for each dual beyond."""
DUAL_SAMPLES = 32
"""Samples whose slopes give the first guess of the dual variable."""
LEAST_WEIGHT = 1e-14
"""Weights of nodes below this are left out of the gradient."""
FLAT = 1e-9
"""Relative width below which a support has no interior."""


# ------------------------------
# The inner integral by cells, for any integrand


@dataclass(frozen=True)
class CellDomain:
    """The coordinates that cells fill, and the supports of all samples there."""

    frame: Frame
    region: CellRegion

    @classmethod
    def from_frame(cls, frame: Frame, cost: BoundCost) -> CellDomain:
        return cls(frame, region_of(frame, cost))

    @cached_property
    def reference(self) -> Array:
        """The log of the mass that N(0, I) gives to the support around each sample, (N,)."""
        return normal_log_masses(self.region)


class CellTarget(CellIntegrand, Protocol):
    """The exponent f/eps - l c/eps - |t|^2/2 at one decision."""

    @property
    def numbers(self) -> int:
        """Numbers that are kept of a node."""
        ...

    def cost_moments(
        self, data: tuple[Array, ...], owners: Array, dual: float
    ) -> tuple[Array, Array]:
        """The mean transport cost at the nodes and its variance, (C, S) twice."""
        ...

    def gradient(self, owners: Array, moves: Array, weights: Array, dual: float) -> Array:
        """The sum of gradients in x at nodes with moves (B, r), weighted by (B,)."""
        ...


@dataclass(frozen=True)
class CellResults:
    """The integrals of all samples at one dual variable."""

    dual: float
    point: DualPoint
    error: Array
    """Estimated relative errors, (K,)."""
    nodes: int


@dataclass
class LastDual:
    """The dual variable of the last decision, shared by the slices of a strategy; None at first."""

    dual: float | None = None


class CellSlice(Slice):
    """mean_k phi_k at one x, by cells; `ByCells` and `Conditional` make it.

    Parameters
    ----------
    last: the dual variable of the last decision; `gradient` stores that of this decision in it.
    guess: the first guess of the dual variable if there was no decision before.
    """

    def __init__(
        self,
        target: CellTarget,
        domain: CellDomain,
        samples: Array,
        shares: SampleShares,
        *,
        epsilon: float,
        tolerance: float,
        last: LastDual,
        guess: float | None,
    ) -> None:
        self._target, self._domain, self._epsilon = target, domain, epsilon
        self._samples, self._shares, self._tolerance = samples, shares.normalized(), tolerance
        self._last_dual = last
        self.guess = guess if last.dual is None else last.dual
        numbers, size = EXPECTED_NODES[domain.frame.dimension] * target.numbers, len(samples)
        self._keeps = size * numbers <= KEPT_NUMBERS
        step = max(1, size if self._keeps else CHUNK_NUMBERS // numbers)
        self._chunks = [slice(i, i + step) for i in range(0, size, step)]
        self._integrals: dict[int, CellIntegral] = {}
        self._last: CellResults | None = None

    def _parts(self, dual: float) -> Iterator[tuple[CellIntegral, Resolved, SampleShares]]:
        """The integrals and the shares of one chunk of samples after another."""
        for i, chunk in enumerate(self._chunks):
            integral, samples = self._integrals.get(i), self._samples[chunk]
            if integral is None:
                region, deviation = self._domain.region, self._domain.frame.deviation
                integral = CellIntegral(self._target, region, deviation, samples, self._tolerance)
            resolved = integral.evaluate(dual)
            yield integral, resolved, self._shares.subset(chunk)
            if self._keeps:
                self._integrals[i] = integral

    def evaluate(self, dual: float) -> DualPoint:
        return self._results(dual).point

    def _results(self, dual: float) -> CellResults:
        if self._last is None or self._last.dual != dual:
            self._last = self._integrated(dual)
        return self._last

    def _integrated(self, dual: float) -> CellResults:
        size, reference = len(self._samples), self._domain.reference
        value = cost = bend = 0.0
        errors, nodes = [], 0
        for integral, resolved, shares in self._parts(dual):
            if resolved.diverges:
                return CellResults(dual, INFINITE, np.zeros(0), 0)
            position, weights = integral.position, resolved.weights
            costs, spread = self._target.cost_moments(integral.node_data, integral.owners, dual)
            mean = np.bincount(position, np.vecdot(weights, costs), len(integral.samples))
            spread = spread + (costs - mean[position, None]) ** 2
            logs = resolved.log_mass - reference[integral.samples]
            logs = logs - self._domain.frame.dimension * HALF_LOG_2PI
            value += float(shares.multiple(logs).sum())
            cost += float(shares.multiple(mean).sum())
            bend += float(np.vdot(shares.subset(position).multiple(weights), spread))
            errors.append(resolved.error)
            nodes += weights.size
        epsilon = self._epsilon
        point = DualPoint(epsilon * value / size, -cost / size, bend / (size * epsilon))
        return CellResults(dual, point, np.concatenate(errors), nodes)

    def gradient(self, dual: float) -> Array:
        if not np.isfinite(self.evaluate(dual).value):
            raise infinite_gradient()
        gradient: Array = np.zeros(())
        for integral, resolved, shares in self._parts(dual):
            cell, node = np.nonzero(resolved.weights > LEAST_WEIGHT)
            counted = shares.subset(integral.position).multiple(resolved.weights)
            weights, moves = counted[cell, node] / len(self._samples), integral.moves()[cell, node]
            owners = integral.owners[cell]
            gradient = gradient + self._target.gradient(owners, moves, weights, dual)
        self._last_dual.dual = dual
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics | None:
        """The error estimate if some integral misses the tolerance; None otherwise."""
        results = self._results(dual)
        if (results.error <= self._tolerance).all():
            return None
        each = float(results.nodes // len(results.error))
        error = self._shares.total(np.minimum(results.error, 1e3))
        return Diagnostics(int(each), each, each, float(self._epsilon * error), 0.0)


# ------------------------------
# The strategy: all coordinates that move by cells


class ByCells(Integration):
    """Adaptive cells over one or two coordinates."""

    name = "cells"
    start = ROBUST

    def __init__(self, model: RobustModel, scales: Scales, tolerance: float | None = None) -> None:
        super().__init__(model, scales)
        self.domain = CellDomain.from_frame(frame_of(self.joint, self.cost, self.sigma), self.cost)
        self.dimension = self.domain.frame.dimension
        self.tolerance = tolerance or TOLERANCE[self.dimension]
        self.last = LastDual()
        self._easier: ByCells | None = None

    def describe(self) -> str:
        what = "line" if self.dimension == 1 else "plane"
        return (
            f"cells: adaptive quadrature over the {what} of the {self.dimension} coordinates "
            "that move"
        )

    def surrogate(self) -> ByCells | None:
        """The same integrals in the plane at a coarser tolerance; None on a line."""
        if self.dimension == 2 and self.tolerance < COARSE_TOLERANCE and self._easier is None:
            self._easier = ByCells(self.model, self.scales, COARSE_TOLERANCE)
            self._easier.last = self.last
        return self._easier

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> CellSlice:
        frame, guess = self.domain.frame, None
        if self.last.dual is None:
            radius = self.model.radius
            guess = typical_dual(self.loss, x, frame, self.cost, radius, self.epsilon)
        return CellSlice(
            Tilt(self.loss, self.cost, frame, self.epsilon, x),
            self.domain,
            samples,
            shares or self.joint.shares_of(samples),
            epsilon=self.epsilon,
            tolerance=self.tolerance,
            last=self.last,
            guess=guess,
        )


def typical_dual(
    loss: FlatLoss, x: Array, frame: Frame, cost: BoundCost, radius: float, epsilon: float
) -> float | None:
    """A first guess of the dual variable, optimal for an affine loss with the same slopes.

    None if the loss gives no slopes in the data. For radius 0 the size of the reference's moves
    takes the place of the radius.
    """
    rows = np.unique(np.linspace(0, frame.joint.size - 1, DUAL_SAMPLES).astype(int))
    radius = radius or typical_radius(frame)
    try:
        affine = affine_dual(loss, x, rows, frame, cost, radius)
    except NotImplementedError:  # no gradient in the data
        return None
    return max(affine, 1e-6 * epsilon / radius, 1e-300)


@dataclass(frozen=True)
class Tilt:
    """The exponent f/eps - l c/eps - |t|^2/2 at one decision, as a `CellTarget`."""

    loss: FlatLoss
    cost: BoundCost
    frame: Frame
    epsilon: float
    x: Array
    numbers: int = 2

    def evaluate_points(self, owners: Array, moves: Array) -> tuple[Array, ...]:
        """f/eps - |t|^2/2 and c, -inf and 0 where c forbids the move."""
        frame, fixed, costs = self.frame, np.empty(len(moves)), np.empty(len(moves))
        for some in blocks(len(moves), frame.joint.dimension):
            rows = frame.rows(owners[some], moves[some])
            fixed[some] = plain_values(self.loss, self.x, rows) / self.epsilon
            if frame.weights is not None:
                costs[some] = moves[some] ** 2 @ frame.weights
            else:
                costs[some] = self.cost(frame.joint.matrix[owners[some]], rows)
        fixed -= 0.5 * (moves**2 / frame.spread).sum(axis=1)
        forbidden = ~np.isfinite(costs)
        return np.where(forbidden, -np.inf, fixed), np.where(forbidden, 0.0, costs)

    def exponents(self, data: tuple[Array, ...], owners: Array, dual: float) -> Array:
        fixed, costs = data
        return fixed - (dual / self.epsilon) * costs

    def cost_moments(
        self, data: tuple[Array, ...], owners: Array, dual: float
    ) -> tuple[Array, Array]:
        return data[1], np.zeros(data[1].shape)

    def gradient(self, owners: Array, moves: Array, weights: Array, dual: float) -> Array:
        gradient = np.zeros(self.loss.dimension)
        for some in blocks(len(weights), self.frame.joint.dimension):
            rows = self.frame.rows(owners[some], moves[some])
            gradient += self.loss(self.x, rows)[1](weights[some])
        return gradient


def plain_values(loss: FlatLoss, x: Array, rows: Array) -> Array:
    """f at the rows: infinite where it overflows, NaN where it is not defined."""
    with np.errstate(all="ignore"):
        try:
            return loss(x, rows)[0]
        except FloatingPointError:
            loss.calls += 1
            assert loss.joint is not None
            values = loss.loss(loss.layout.split(x), loss.joint.split(rows))[0]
            return np.array(np.broadcast_to(np.asarray(values, dtype=float), (len(rows),)))
        except ValueError:  # a function of the user, which refuses some of the rows
            values = probe(loss, x, rows, np.ones(len(rows), dtype=bool), False)[0]
            return np.where(np.isneginf(values), np.nan, values)


def cells_refusal(model: RobustModel) -> str | None:
    """Reason why cells do not apply to a model; None if they do."""
    frame = frame_of(model.joint, model.cost, 1.0)
    r = frame.dimension
    if r == 0:
        return "no coordinate of the data moves"
    if r > 2:
        return f"{r} coordinates of the data move, and cells fill a line or a plane"
    if model.joint.size > MOST_SAMPLES[r]:
        return (
            f"{model.joint.size} samples are too many for cells of their own, which up to "
            f"{MOST_SAMPLES[r]} have where {r} coordinates move"
        )
    for parameter, _ in frame.coupled:
        if not isinstance(parameter.support, Polyhedron):
            return f"the support of {parameter.name()!r} is known point by point alone"
    return thin_refusal(region_of(frame, model.cost))


def thin_refusal(region: CellRegion) -> str | None:
    """Refusal if the support around the first sample has no interior; None if it has one."""
    size = 1.0 + np.abs(region.slack[0]).max(initial=0.0)
    low, high = np.maximum(region.low[0], -size), np.minimum(region.high[0], size)
    thin = bool((high - low < FLAT * size).any())
    if not thin and len(region.normals):
        (u0, lo), (u1, hi) = low, high
        corners = np.array([(u0, lo), (u1, lo), (u1, hi), (u0, hi)])
        part = clip_polygon(corners, region.normals, region.slack[0])
        x, y = part.T
        area = 0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1)))
        thin = len(part) < 3 or area < FLAT * size**2
    return "the support has no interior" if thin else None
