"""At most two coordinates that move: the inner integral by adaptive cells, whatever the loss.

With t the moves in deviations of the reference, and Z_k the mass that N(0, I) gives to the support,

    phi_k = eps log int exp(f(x, xi_k + sigma t)/eps - l c/eps - |t|^2/2) dt + const - eps log Z_k,

over the line or the plane, a half-line, a box or a polyhedron (`cells`). The loss is evaluated once
at the nodes of a decision, not for each dual variable, and the cells of one decision are where the
next one begins. The gradient in x is that of f, averaged over the nodes in their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.cell_regions import CellRegion, clipped_polygon, region_of
from wdro_model.objectives.integration.cells import (
    CellIntegral,
    CellIntegrand,
    CellMemory,
    Resolved,
    cell_diagnostics,
    normal_log_masses,
)
from wdro_model.objectives.integration.importance.frame import Frame, frame_of
from wdro_model.objectives.integration.importance.proposal_scales import typical_dual
from wdro_model.objectives.integration.importance.targets import blocks, probe
from wdro_model.objectives.integration.inner_integral import (
    ROBUST,
    Given,
    Stream,
    inputs,
    refuse_gradient,
)
from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.supports import Polyhedron

FINE, COARSE = {1: 1e-9, 2: 3e-6}, 1e-3
"""Estimated relative errors of the integrals over one and over two coordinates, and of those to
begin with. The estimate is that of the embedded rule: the error itself is smaller by far."""
MOST_SAMPLES = {1: 3000, 2: 200}
"""More samples, with one or two coordinates, are left to draws."""
EXPECTED = {1: 1000, 2: 20_000}
"""Nodes of a sample, on one and on two coordinates."""
KEPT_NUMBERS, CHUNK_NUMBERS = 2**25, 2**23
"""What was seen at the nodes is kept for the next dual up to so many numbers; beyond, samples are
integrated in chunks of this size, anew for each dual."""
LIVELY = 1e-14
"""A smaller weight has no part in the gradient."""
FLAT = 1e-9
"""A polyhedron so thin around a sample, relative to its distance from 0, has no interior."""


class CellTilt(CellIntegrand, Protocol):
    """The exponent at one decision, with what else is averaged in the weights of the nodes."""

    width: int
    """Numbers that are looked at for each node, about."""

    def cost_moments(
        self, looked: tuple[Array, ...], owner: Array, dual: float
    ) -> tuple[Array, Array]:
        """The mean transport cost at the nodes, and its variance; (B,)."""
        ...

    def scenarios(self, owner: Array, moves: Array, dual: float) -> Array:
        """Where the gradient of f is that of the integrand, (B, d)."""
        ...


class ByCells(Given):
    """Adaptive cells over one or two coordinates."""

    name = "cells"
    begins = ROBUST
    exact = True

    def __init__(
        self,
        *given: Any,
        radius: float | None,
        frame: Frame | None = None,
        tolerance: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*given, **settings)
        self.radius = radius
        self.whole: Frame = frame_of(self.joint, self.cost, self.sigma)
        self.frame = frame or self.whole
        self.tolerance = tolerance or FINE[self.frame.dimension]
        self.region: CellRegion = region_of(self.frame, self.cost)
        self.deviation = np.sqrt(self.frame.spread)
        self.dual: float | None = None
        """Where the dual variable was minimised last."""
        self.memory = CellMemory()
        self._easier: Any = None

    def describe(self) -> str:
        what = "line" if self.frame.dimension == 1 else "plane"
        return (
            f"cells: adaptive quadrature over the {what} of the {self.frame.dimension} "
            "coordinates that move"
        )

    @property
    def rows(self) -> Array:
        """The samples, (N, d)."""
        return self.joint.matrix

    def surrogate(self) -> Any:
        """The same with fewer cells, to begin with, in the plane."""
        if self.frame.dimension == 2 and self.tolerance < COARSE and self._easier is None:
            self._easier = ByCells(
                self.loss,
                self.joint,
                self.cost,
                epsilon=self.epsilon,
                sigma=self.sigma,
                radius=self.radius,
                tolerance=COARSE,
            )
        return self._easier

    def tilt(self, x: Array) -> CellTilt:
        """What is integrated at a decision."""
        return Tilting(self, x)

    def slice(self, x: Array, samples: Array, stream: Stream) -> CellSlice:
        return CellSlice(self, x, samples)

    def guess(self, x: Array) -> float | None:
        """Where the dual variable may be."""
        if self.dual is not None:
            return self.dual
        if self._easier is not None and self._easier.dual is not None:
            return self._easier.dual
        try:
            return typical_dual(
                *(self.loss, x, self.whole, self.cost), radius=self.radius, epsilon=self.epsilon
            )
        except NotImplementedError:  # no gradient in the data
            return None

    @cached_property
    def reference(self) -> Array:
        """The log of the mass that N(0, I) gives to the support around each sample, (N,)."""
        return normal_log_masses(self.region)


class Tilting:
    """f/eps - l c/eps - |t|^2/2 at one decision."""

    width = 2

    def __init__(self, rule: ByCells, x: Array) -> None:
        self._rule, self._x = rule, x

    def look(self, owner: Array, moves: Array) -> tuple[Array, ...]:
        """f/eps - |t|^2/2 and c, -inf and 0 where c forbids the move."""
        rule, frame = self._rule, self._rule.frame
        fixed, costs = np.empty(len(moves)), np.empty(len(moves))
        for some in blocks(len(moves), rule.joint.dimension):
            rows = frame.rows(owner[some], moves[some])
            fixed[some] = plain_values(rule.loss, self._x, rows) / rule.epsilon
            if frame.weights is not None:
                costs[some] = moves[some] ** 2 @ frame.weights
            else:
                costs[some] = rule.cost(rule.joint.matrix[owner[some]], rows)
        fixed -= 0.5 * (moves**2 / frame.spread).sum(axis=1)
        forbidden = ~np.isfinite(costs)
        return np.where(forbidden, -np.inf, fixed), np.where(forbidden, 0.0, costs)

    def exponents(self, looked: tuple[Array, ...], owner: Array, dual: float) -> Array:
        fixed, costs = looked
        return fixed - (dual / self._rule.epsilon) * costs

    def cost_moments(
        self, looked: tuple[Array, ...], owner: Array, dual: float
    ) -> tuple[Array, Array]:
        return looked[1], np.zeros(len(owner))

    def scenarios(self, owner: Array, moves: Array, dual: float) -> Array:
        return self._rule.frame.rows(owner, moves)


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
            found = probe(loss, x, rows, np.ones(len(rows), dtype=bool), False)[0]
            return np.where(np.isneginf(found), np.nan, found)


@dataclass(frozen=True)
class Measured:
    """The integrals of all samples at one dual variable."""

    dual: float
    point: DualPoint
    error: Array
    """Estimated relative errors of the integrals."""
    nodes: int


class CellSlice:
    """mean_k phi_k at one x."""

    trust = np.inf

    def __init__(self, rule: ByCells, x: Array, samples: Array) -> None:
        self._rule, self._x, self._samples = rule, x, samples
        self._tilt = rule.tilt(x)
        numbers = EXPECTED[rule.frame.dimension] * (2 + self._tilt.width)
        self._keeps = len(samples) * numbers <= KEPT_NUMBERS
        step = max(1, len(samples) if self._keeps else CHUNK_NUMBERS // numbers)
        self._chunks = [samples[i : i + step] for i in range(0, len(samples), step)]
        self._integrals: dict[int, CellIntegral] = {}
        self._known: Measured | None = None
        self.guess = rule.guess(x)
        """Where the minimum over the dual variable may be."""

    def _parts(self, dual: float) -> Iterator[tuple[CellIntegral, Resolved]]:
        """The integrals of some samples after the other."""
        rule = self._rule
        for i, chunk in enumerate(self._chunks):
            integral = self._integrals.get(i)
            if integral is None:
                known = rule.memory.of(chunk)
                integral = CellIntegral(
                    self._tilt, rule.region, rule.deviation, chunk, rule.tolerance, known
                )
            found = integral.at(dual)
            yield integral, found
            if self._keeps:
                self._integrals[i] = integral
            elif not found.diverges:
                rule.memory.keep(integral.kept(), integral.anew)

    def at(self, dual: float) -> DualPoint:
        return self._measured(dual).point

    def _measured(self, dual: float) -> Measured:
        if self._known is None or self._known.dual != dual:
            self._known = self._measure(dual)
        return self._known

    def _measure(self, dual: float) -> Measured:
        rule, size = self._rule, len(self._samples)
        value = cost = bend = 0.0
        errors, nodes = [], 0
        for integral, found in self._parts(dual):
            if found.diverges:
                return Measured(dual, DualPoint(np.inf, -np.inf, np.nan), np.zeros(0), 0)
            shape, position = found.weights.shape, integral.position
            owner = np.repeat(integral.owners, shape[1])
            flat = tuple(part.reshape(-1, *part.shape[2:]) for part in integral.looked)
            costs, spread = (
                part.reshape(shape) for part in self._tilt.cost_moments(flat, owner, dual)
            )
            mean = np.bincount(position, np.vecdot(found.weights, costs), len(integral.samples))
            logs = found.log_mass - rule.reference[integral.samples]
            value += float((logs - rule.frame.dimension * HALF_LOG_2PI).sum())
            cost += float(mean.sum())
            bend += float(np.vdot(found.weights, spread + (costs - mean[position, None]) ** 2))
            errors.append(found.error)
            nodes += found.weights.size
        point = DualPoint(rule.epsilon * value / size, -cost / size, bend / (size * rule.epsilon))
        return Measured(dual, point, np.concatenate(errors), nodes)

    def gradient(self, dual: float) -> Array:
        rule, size = self._rule, len(self._samples)
        refuse_gradient(self.at(dual))
        rule.dual = dual
        gradient = np.zeros(rule.loss.dimension)
        for integral, found in self._parts(dual):
            rule.memory.keep(integral.kept(), integral.anew)
            cell, node = np.nonzero(found.weights > LIVELY)
            weights = found.weights[cell, node] / size
            moves, owners = integral.moves()[cell, node], integral.owners[cell]
            for some in blocks(len(weights), rule.joint.dimension):
                rows = self._tilt.scenarios(owners[some], moves[some], dual)
                gradient += rule.loss(self._x, rows)[1](weights[some])
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics | None:
        """None where the cells are as fine as they should be."""
        found, rule = self._measured(dual), self._rule
        return cell_diagnostics(found.error, rule.tolerance, found.nodes, rule.epsilon)


def cells_refusal(model: RobustModel) -> str | None:
    """Why cells do not apply to a model; None if they do."""
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
    """Is the support around the first sample of no width?"""
    size = 1.0 + np.abs(region.slack[0]).max(initial=0.0)
    low, high = np.maximum(region.low[0], -size), np.minimum(region.high[0], size)
    thin = bool((high - low < FLAT * size).any())
    if not thin and len(region.normals):
        (u0, lo), (u1, hi) = low, high
        corners = np.array([(u0, lo), (u1, lo), (u1, hi), (u0, hi)])
        part = clipped_polygon(corners, region.normals, region.slack[0])
        x, y = part.T
        area = 0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1)))
        thin = len(part) < 3 or area < FLAT * size**2
    return "the support has no interior" if thin else None


def build_cells(model: RobustModel, scales: Any) -> ByCells:
    """The strategy for a model; scales: epsilon and sigma."""
    return ByCells(*inputs(model), epsilon=scales.epsilon, sigma=scales.sigma, radius=model.radius)
