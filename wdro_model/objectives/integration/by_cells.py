"""At most two coordinates that move: the inner integral by adaptive cells, whatever the loss.

With t the moves in deviations of the reference, and Z_k the mass that N(0, I) gives to the support,

    phi_k = eps log int exp(f(x, xi_k + sigma t)/eps - l c/eps - |t|^2/2) dt + const - eps log Z_k,

over the line or the plane, a half-line, a box or a polyhedron (`cells`). The loss is evaluated once
at the nodes of a decision, not for each dual variable, and the cells of one decision are where the
next one begins. The gradient in x is that of f, averaged over the nodes in their weights.
"""

from __future__ import annotations

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.cell_regions import CellRegion, clipped_polygon, region_of
from wdro_model.objectives.integration.cells import (
    CellIntegral,
    CellMemory,
    Resolved,
    cell_diagnostics,
    normal_log_masses,
)
from wdro_model.objectives.integration.frame import (
    Frame,
    affine_dual,
    frame_of,
    typical_radius,
)
from wdro_model.objectives.integration.inner_integral import (
    ROBUST,
    Integration,
    Scales,
    Slice,
    Stream,
)
from wdro_model.objectives.integration.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.targets import blocks, probe
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.samples import SampleShares
from wdro_model.uncertainty.supports import Polyhedron

FINE, COARSE = {1: 1e-9, 2: 3e-6}, 1e-3
"""Estimated relative errors of the integrals over one and over two coordinates, and of those to
begin with. The estimate is that of the embedded rule: the error itself is smaller by far."""
MOST_SAMPLES = {1: 3000, 2: 200}
"""More samples, with one or two coordinates, are left to draws."""
LIVELY = 1e-14
"""A smaller weight has no part in the gradient."""
FLAT = 1e-9
"""A polyhedron so thin around a sample, relative to its distance from 0, has no interior."""


class ByCells(Integration):
    """Adaptive cells over one or two coordinates."""

    name = "cells"
    start = ROBUST

    def __init__(self, model: RobustModel, scales: Scales, tolerance: float | None = None) -> None:
        super().__init__(model, scales)
        self.radius = model.radius
        self.frame: Frame = frame_of(self.joint, self.cost, self.sigma)
        self.tolerance = tolerance or FINE[self.frame.dimension]
        self.region: CellRegion = region_of(self.frame, self.cost)
        self.deviation = np.sqrt(self.frame.spread)
        self.dual: float | None = None
        """Where the dual variable was minimised last."""
        self.memory = CellMemory()
        self._log_mass: Array | None = None
        self._easier: ByCells | None = None

    def describe(self) -> str:
        what = "line" if self.frame.dimension == 1 else "plane"
        return (
            f"cells: adaptive quadrature over the {what} of the {self.frame.dimension} "
            "coordinates that move"
        )

    def surrogate(self) -> ByCells | None:
        """The same with fewer cells, to begin with, in the plane."""
        if self.frame.dimension == 2 and self.tolerance < COARSE and self._easier is None:
            self._easier = ByCells(self.model, self.scales, COARSE)
        return self._easier

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> CellSlice:
        return CellSlice(self, x, samples, shares or self.joint.shares_of(samples))

    def guess(self, x: Array) -> float | None:
        """Where the dual variable may be."""
        if self.dual is not None:
            return self.dual
        if self._easier is not None and self._easier.dual is not None:
            return self._easier.dual
        rows = np.unique(np.linspace(0, self.joint.size - 1, 32).astype(int))
        radius = self.radius or typical_radius(self.frame)
        try:
            found = affine_dual(self.loss, x, rows, self.frame, self.cost, radius)
        except NotImplementedError:  # no gradient in the data
            return None
        return max(found, 1e-6 * self.epsilon / radius, 1e-300)

    def reference(self, samples: Array) -> Array:
        """The log of the mass that N(0, I) gives to the support around each sample, (K,)."""
        if self._log_mass is None:
            self._log_mass = normal_log_masses(self.region)
        return self._log_mass[samples]


class Tilting:
    """f/eps - l c/eps - |t|^2/2 at one decision."""

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


class CellSlice(Slice):
    """mean_k phi_k at one x."""

    def __init__(self, rule: ByCells, x: Array, samples: Array, shares: SampleShares) -> None:
        self._rule, self._x, self._samples, self._shares = rule, x, samples, shares
        known = rule.memory.of(samples)
        self._integral = CellIntegral(
            Tilting(rule, x), rule.region, rule.deviation, samples, rule.tolerance, known
        )
        self.guess = rule.guess(x)

    def evaluate(self, dual: float) -> DualPoint:
        found, eps = self._integral.at(dual), self._rule.epsilon
        if found.diverges:
            return DualPoint(np.inf, -np.inf, np.nan)
        costs = self._integral.looked[1]
        mean = self._by_sample(np.vecdot(found.weights, costs))
        away = costs - mean[self._integral.position, None]
        spread = np.vdot(self._counted(found.weights), away**2) / len(self._samples)
        logs = found.log_mass - self._rule.reference(self._samples)
        logs = logs - self._rule.frame.dimension * HALF_LOG_2PI
        average = self._shares.total
        return DualPoint(float(eps * average(logs)), -float(average(mean)), float(spread) / eps)

    def _counted(self, weights: Array) -> Array:
        """The weights of the nodes of each cell, times K p_k of its sample."""
        return self._shares.subset(self._integral.position).multiple(weights)

    def _by_sample(self, parts: Array) -> Array:
        return np.bincount(self._integral.position, parts, minlength=len(self._samples))

    def gradient(self, dual: float) -> Array:
        rule, found = self._rule, self._integral.at(dual)
        if found.diverges:
            raise FloatingPointError("the smoothed objective is infinite here: it has no gradient.")
        rule.memory.keep(self._integral.kept(), self._integral.anew)
        rule.dual = dual
        cell, node = np.nonzero(found.weights > LIVELY)
        weights = self._counted(found.weights)[cell, node] / len(self._samples)
        moves, owners = self._integral.moves()[cell, node], self._integral.owners[cell]
        gradient = np.zeros(rule.loss.dimension)
        for some in blocks(len(weights), rule.joint.dimension):
            rows = rule.frame.rows(owners[some], moves[some])
            gradient += rule.loss(self._x, rows)[1](weights[some])
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics | None:
        """None where the cells are as fine as they should be."""
        found: Resolved = self._integral.at(dual)
        if found.diverges:
            return None
        return cell_diagnostics(
            found.error, self._rule.tolerance, found.weights.size, self._rule.epsilon, self._shares
        )


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
