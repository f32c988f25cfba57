"""Conditional integration: in closed form over the data in which f is affine, given the rest.

With zeta = (zeta_A, zeta_C), f affine in zeta_A given zeta_C, at each node s of zeta_C for sample k

    f = f(x, (xi_A, s)) + <B_ks, zeta_A - xi_A>,
    phi_k = eps log sum_s w_ks exp(( f(x, (xi_A, s)) - l c_C(xi_k, s) )/eps + log E_A[...] ),

with E_A in closed form (`block_integral`). One coordinate in C is integrated by adaptive cells, and
so are two where f may have kinks in them (`block_cells`). Where f is smooth in two coordinates, the
nodes are the points of a trapezoidal rule in normal scores around each mode of the density of
zeta_C (`block_modes`, `block_nodes`), and samples whose density they fail to resolve are left to
cells. With more coordinates in C, draws of all the data are better (`tilted`).

Where f is smooth in block C, it is one pair of functions of s for all samples: a table of them at a
few hundred points takes the place of evaluations at the nodes (`block_table`).

On a grid the dual variable needs no further evaluation of the loss, unless it moves so far that the
nodes no longer cover the density: they then follow the modes (`placement`), which changes the
values by no more than their accuracy. The gradient in x is that of f at the tilted mean of zeta_A,
node by node: f is affine in it.

A loss that grows faster than the cost, as traffic does in its exponent, has a second mode at the
edge of the support. At the dual variable where it overtakes the mode near the sample the cost of
the worst case jumps, and a radius within the jump leaves the sample torn between both. All modes
are therefore followed, and looked for where they may come up (`lookout`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.cell_regions import CellRegion, region_of
from wdro_model.objectives.integration.cells import CellMemory, normal_log_masses
from wdro_model.objectives.integration.conditional.block_cells import BlockCellSlice
from wdro_model.objectives.integration.conditional.integral import AffineBlock
from wdro_model.objectives.integration.conditional.loss import (
    BlockLoss,
    LossAtNodes,
    affine_block,
    may_have_kinks,
)
from wdro_model.objectives.integration.conditional.modes import Lookout
from wdro_model.objectives.integration.conditional.nodes import (
    COARSE,
    Grid,
    KnownModes,
    Placement,
    fine,
)
from wdro_model.objectives.integration.conditional.slice import KEPT_ENTRIES, ConditionalSlice
from wdro_model.objectives.integration.conditional.table import BlockTable, TableLoss, Tables
from wdro_model.objectives.integration.frame import Frame, frame_of
from wdro_model.objectives.integration.inner_integral import (
    EMPIRICAL,
    Divergence,
    Integration,
    Scales,
    Stream,
)
from wdro_model.objectives.integration.targets import blocks
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.samples import SampleShares

CHUNK_ENTRIES, TABLE_ENTRIES = 2**17, 2**20
"""Numbers of scenarios that are evaluated at once (1 MiB: arrays that stay in the cache), and of
polynomials at nodes."""
DUAL_SAMPLES = 32
"""Samples that look for the dual variable before the first refresh."""
REMEMBERED = 4
"""Decisions whose nodes are remembered: a search along a line jumps back and forth."""
MOST_COORDINATES = 2
"""Coordinates that nodes fill; a third would have fifteen times as many nodes."""
NEARER = 0.25
"""BlockNodes of a decision are taken up again if its distance is this share of the latest one's."""


@dataclass(frozen=True)
class Columns:
    """The coordinates that move among those of some parameters, side by side."""

    chosen: Array | None
    """None for all of them, in order."""

    @classmethod
    def within(cls, joint: JointSamples, parameters: tuple[Any, ...], frame: Frame) -> Columns:
        own = np.concatenate([np.arange(joint.dimension)[joint.slices[p]] for p in parameters])
        position = np.empty(joint.dimension, dtype=int)
        position[own] = np.arange(len(own))
        chosen = position[frame.moving]
        return cls(None if np.array_equal(chosen, np.arange(len(own))) else chosen)

    def of(self, gradients: Array) -> Array:
        return gradients if self.chosen is None else gradients[:, self.chosen]


class Conditional(Integration):
    """Closed form over the affine block, nodes over the rest."""

    name = "conditional"
    start = EMPIRICAL
    """Vertices may be so bad that the density of the data has modes all over its support."""
    block: AffineBlock
    _tables: Tables

    def __init__(
        self,
        model: RobustModel,
        scales: Scales,
        grid: Grid | None = None,
        whole: Conditional | None = None,
    ) -> None:
        super().__init__(model, scales)
        joint, cost, sigma = self.joint, self.cost, self.sigma
        self.radius, self.grid = model.radius, grid or fine()
        self.is_coarse = grid is not None
        """Does it lead the way for one on a fine grid?"""
        affine = affine_block(model.expression, model.joint.parameters)
        kinked = may_have_kinks(model.expression, other_parameters(model, affine))
        self.affine = affine
        self.others = tuple(p for p in joint.parameters if all(p is not a for a in affine))
        columns = np.concatenate([np.arange(joint.dimension)[joint.slices[p]] for p in affine])
        rest = np.setdiff1d(np.arange(joint.dimension), columns)
        self.block = (
            AffineBlock(frame_of(joint, cost, sigma, columns), self.epsilon)
            if whole is None
            else whole.block
        )
        self.frame = frame_of(joint, cost, sigma, rest)
        self.in_block = Columns.within(joint, affine, self.block.frame)
        self.in_others = Columns.within(joint, self.others, self.frame)
        self.adaptive = grid is None and (self.frame.dimension == 1 or kinked)
        self.adaptive &= self.frame.dimension > 0
        """Are the integrals over C taken by cells, not on a grid around the modes?"""
        self.falls_back = grid is None
        """Are samples left to cells that a grid does not resolve?"""
        self.smooth = not kinked
        """Has the density peaks that a lattice tells apart? Kinks have one each."""
        self.unresolved = np.zeros(joint.size, dtype=bool)
        """The samples for which that was seen."""
        self._dual: float | None = None
        """The dual variable that cells were last asked for."""
        self.memory = CellMemory()
        self._tables = Tables(self) if whole is None else whole._tables
        self._places: list[Placement] = []
        """BlockNodes of the decisions looked at last, the latest first."""
        self._easier: Conditional | None = None
        self._known: KnownModes | None = None
        """Modes of another radius or temperature."""

    def describe(self) -> str:
        names = ", ".join(p.name() for p in self.affine)
        return (
            f"conditional closed form: exact over {names} ({self.block.frame.dimension} "
            f"coordinates), quadrature over the other {self.frame.dimension}"
        )

    @cached_property
    def region(self) -> CellRegion:
        """Where the moves of block C may go, around each sample."""
        return region_of(self.frame, self.cost)

    @cached_property
    def reference(self) -> Array:
        """The log of the mass of the reference there, (N,)."""
        return normal_log_masses(self.region)

    @property
    def dual(self) -> float | None:
        """The dual variable that the nodes stand for; None before there are any."""
        if self.adaptive:
            return self._dual
        return self._places[0].dual if self._places else None

    def looked(
        self, x: Array, owners: Array, moves: Array, *, keep: bool = True, lenient: bool = False
    ) -> BlockLoss:
        """What the integrals need of the loss at moves (K, S, r) of block C; see `LossAtNodes`."""
        table = self._tables.at(x)
        if table is not None and table.covers(owners, moves):
            return TableLoss(table, owners, moves, keep=keep)
        return LossAtNodes(self, x, owners, moves, keep=keep, lenient=lenient)

    def blocks(self, x: Array, size: int, count: int = 1) -> list[slice]:
        """Parts of so many samples with so many nodes each, to be looked at one after the other."""
        entries = CHUNK_ENTRIES if self._tables.at(x) is None else TABLE_ENTRIES
        return blocks(size, count * self.width(x), entries)

    def table(self, x: Array) -> BlockTable | None:
        """The table of a decision, if it holds wherever the moves of block C may go."""
        table = self._tables.at(x)
        return table if table is not None and table.region.is_support else None

    def width(self, x: Array) -> int:
        """Numbers that are computed for a node."""
        table = self._tables.at(x)
        return self.joint.dimension if table is None else sum(table.kept)

    def surrogate(self) -> Conditional | None:
        """The same on fewer nodes, to begin with; None where the nodes are few."""
        if self.frame.dimension == 0 or self._easier is not None:
            return self._easier
        self._easier = Conditional(self.model, self.scales, COARSE, self)
        self._easier._known = self._known
        return self._easier

    def findings(self) -> KnownModes | None:
        return self._places[0].known() if self._places and self._looks_out() else None

    def use_findings(self, findings: object, dual: float) -> None:
        """Take the modes of the same samples, with another radius, as a first guess."""
        if isinstance(findings, KnownModes) and findings.data() is self.rows:
            self._known = findings.at(dual, self.frame)

    def _looks_out(self) -> bool:
        """Does a lattice show modes that are not known? Otherwise all are searched for."""
        fits = Lookout.fits(self, self.joint.size, KEPT_ENTRIES)
        return self.smooth and not self.adaptive and fits

    def reached(self, dual: float) -> None:
        """Remember the dual variable that cells were found to end at."""
        self._dual = dual

    def refresh(self, x: Array, dual: float) -> None:
        """Put the nodes where the density of the block C is, at this decision and dual."""
        self.memory = CellMemory()
        if self.adaptive:
            self._dual = dual
            return
        placement = Placement(self, np.arange(self.joint.size))
        placement.place(x, dual)
        self._places = [placement]

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> ConditionalSlice | BlockCellSlice:
        """The inner integral at x, on the nodes of the last refresh where they fit."""
        shares = shares or self.joint.shares_of(samples)
        if self.adaptive:
            if self._dual is None:
                known = self._easier.dual if self._easier is not None else None
                self._dual = known or self._typical_dual(x)
            return BlockCellSlice(self, x, samples, shares)
        if not self._places:
            self._go_on(x)
        if not self._places:
            self.refresh(x, self._typical_dual(x))
        self._go_to(x, samples)
        return ConditionalSlice(self, x, samples, self._places[0], shares)

    def _go_on(self, x: Array) -> None:
        """Begin where the easier strategy ended, or the solve before."""
        known = None if self._easier is None else self._easier.findings()
        if (known := known or self._known) is not None and self._looks_out():
            self._places = [Placement.going_on(self, known)]
        elif self._easier is not None and self._easier.dual is not None:
            self.refresh(x, self._easier.dual)

    def _go_to(self, x: Array, samples: Array) -> None:
        """Go on from the latest nodes, or from those of a decision that is much nearer."""
        samples = samples[~self.unresolved[samples]]
        away = [float(np.linalg.norm(x - place.x)) for place in self._places]
        nearest = int(np.argmin(away))
        placement = self._places[nearest if away[nearest] < NEARER * away[0] else 0].copy()
        try:
            placement.follow(x, placement.dual, samples)
        except Divergence:
            placement.place(x, placement.dual)
        kept = [self._places[i] for i in np.argsort(away)[: REMEMBERED - 1]]
        for place in kept:
            place.forget_nodes()
        self._places = [placement, *kept]

    def _typical_dual(self, x: Array) -> float:
        """G / (2 sqrt(radius)), optimal for a loss that is affine in all the data."""
        rows = self._some()
        raw = self.loss(x, self.joint.matrix[rows])[1].in_data(np.ones(len(rows)))
        square = 0.0
        for frame in (self.block.frame, self.frame):
            assert frame.weights is not None
            squares = (frame.pulled(raw) ** 2 / frame.weights).sum(axis=1)
            square += float(self.joint.shares_of(rows).total(squares))
        radius = self._radius()
        return max(np.sqrt(square / radius) / 2, 1e-6 * self.epsilon / radius, 1e-300)

    def _radius(self) -> float:
        """The radius, or twice what moves of the reference cost where it is not known."""
        assert self.frame.weights is not None
        cost = self.block.weights @ self.block.frame.spread + self.frame.weights @ self.frame.spread
        return self.radius or max(float(2 * cost), 1e-300)

    def _some(self) -> Array:
        """Samples that look for the dual variable before the first refresh."""
        return np.unique(np.linspace(0, self.joint.size - 1, DUAL_SAMPLES).astype(int))


def conditional_refusal(model: RobustModel) -> str | None:
    """Why conditional integration does not apply to a model; None if it does."""
    if model.expression is None:
        return "the loss is a function, whose structure is not known"
    if not (model.cost.is_quadratic and model.cost.is_separable):
        return "the ground cost is not a weighted squared distance"
    affine = affine_block(model.expression, model.joint.parameters)
    if not affine:
        return "the loss is affine in no uncertain parameter with a box as support"
    if len(affine) == len(model.joint.parameters):
        return "the loss is affine in all the data"
    for parameter in model.joint.parameters:
        if parameter.support.bounds(parameter.shape) is None:
            return f"the support of {parameter.name()!r} has no coordinate structure"
    columns = [model.joint.slices[p] for p in other_parameters(model, affine)]
    rest = np.concatenate([np.arange(model.joint.dimension)[where] for where in columns])
    moving = frame_of(model.joint, model.cost, 1.0, rest).dimension
    if moving > MOST_COORDINATES:
        return (
            f"{moving} coordinates move beside those in which the loss is affine, and nodes fill a "
            "line or a plane"
        )
    return None


def other_parameters(model: RobustModel, affine: tuple[Any, ...]) -> tuple[Any, ...]:
    """The uncertain parameters of a model that are not in the affine block."""
    return tuple(p for p in model.joint.parameters if all(p is not a for a in affine))
