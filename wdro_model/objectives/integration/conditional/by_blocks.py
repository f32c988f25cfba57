"""The strategy `conditional`: closed form over the data in which f is affine, given the rest.

With zeta = (zeta_A, zeta_C), f affine in zeta_A given zeta_C, at each node s of zeta_C for sample k

    f = f(x, (xi_A, s)) + <B_ks, zeta_A - xi_A>,
    phi_k = eps log sum_s w_ks exp(( f(x, (xi_A, s)) - l c_C(xi_k, s) )/eps + log E_A[...] ),

with E_A in closed form (`block`). One coordinate in C is integrated by adaptive cells, and so are
two where f may have kinks in them (`cells`). Where f is smooth in two coordinates, the nodes are
the points of a trapezoidal rule around each mode of the density of zeta_C (`modes`, `nodes`), and
samples whose density they fail to resolve are left to cells. With more coordinates in C, draws of
all the data are better (`tilted`).

On a grid the dual variable needs no further evaluation of the loss, unless it moves so far that the
nodes no longer cover the density: they then follow the modes, which changes the values by no more
than their accuracy. The gradient in x is that of f at the tilted mean of zeta_A, node by node: f is
affine in it.

A loss that grows faster than the cost, as traffic does in its exponent, has a second mode at the
edge of the support. At the dual variable where it overtakes the mode near the sample the cost of
the worst case jumps, and a radius within the jump leaves the sample torn between both. All modes
are therefore followed, and searched for where they may come up (`Lattice`).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.by_cells import (
    TOLERANCE,
    CellDomain,
    CellSlice,
    LastDual,
    typical_dual,
)
from wdro_model.objectives.integration.conditional.loss import (
    BlockTarget,
    SplitLoss,
    affine_block,
    columns_of,
    may_have_kinks,
    remaining_parameters,
)
from wdro_model.objectives.integration.conditional.nodes import (
    COARSE,
    FINE,
    Grid,
    KnownModes,
    NodeTracker,
)
from wdro_model.objectives.integration.conditional.slice import ConditionalSlice
from wdro_model.objectives.integration.frame import frame_of
from wdro_model.objectives.integration.inner_integral import (
    EMPIRICAL,
    Divergence,
    Integration,
    Scales,
    Slice,
    Stream,
)
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

MOST_COORDINATES = 2
"""Coordinates that nodes fill; a third would have fifteen times as many nodes."""


class Conditional(Integration):
    """Closed form over the affine block, quadrature over the rest.

    grid: the nodes around modes; a coarse grid leads the way for a fine one.
    """

    name = "conditional"
    start = EMPIRICAL
    """Vertices may be so bad that the density of the data has modes all over its support."""

    def __init__(self, model: RobustModel, scales: Scales, grid: Grid = FINE) -> None:
        super().__init__(model, scales)
        self.split, self.grid = SplitLoss.from_model(model, scales), grid
        dimension = self.split.frame.dimension
        kinked = may_have_kinks(model.expression, self.split.others)
        self.by_cells = dimension > 0 and (dimension == 1 or kinked)
        """True if all integrals over C are taken by cells, not on a grid around the modes."""
        self._last = LastDual()
        self._tracker: NodeTracker | None = None
        """Nodes of the last decision."""
        self._easier: Conditional | None = None
        self._known: KnownModes | None = None
        """Modes of another radius or temperature."""

    def describe(self) -> str:
        names = ", ".join(p.name() for p in self.split.affine)
        return (
            f"conditional closed form: exact over {names} ({self.split.block.frame.dimension} "
            f"coordinates), quadrature over the other {self.split.frame.dimension}"
        )

    @cached_property
    def _domain(self) -> CellDomain:
        return CellDomain.from_frame(self.split.frame, self.cost)

    # -------------------------------------------------------------- evaluations
    def refresh(self, x: Array, dual: float) -> None:
        """Put the nodes where the density of the block C is, at this decision and dual."""
        self._last = LastDual(dual)
        self._tracker = NodeTracker(self.split, self.grid, x, dual)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """The inner integral at x, on the nodes of the last decision where they fit."""
        order = np.argsort(samples, kind="stable")
        shares = (shares or self.joint.shares_of(samples)).subset(order)
        samples = samples[order]
        if self.by_cells:
            return self._cell_slice(x, samples, shares)
        tracker = self._tracker.copy() if self._tracker is not None else self._first_tracker(x)
        try:
            tracker.follow(x, tracker.dual, samples[~tracker.unresolved[samples]])
        except Divergence:
            tracker.place(x, tracker.dual)
        self._tracker = tracker
        return ConditionalSlice(
            tracker, x, samples, shares, lambda few, own: self._cell_slice(x, few, own)
        )

    def _cell_slice(self, x: Array, samples: Array, shares: SampleShares) -> CellSlice:
        return CellSlice(
            BlockTarget(self.split, x),
            self._domain,
            samples,
            shares,
            epsilon=self.epsilon,
            tolerance=TOLERANCE[self.split.frame.dimension],
            last=self._last,
            guess=self._typical_dual(x) if self._last.dual is None else None,
        )

    def _first_tracker(self, x: Array) -> NodeTracker:
        """A tracker from the modes of the surrogate or of an earlier solve, else without modes."""
        known = (self._easier.findings() if self._easier is not None else None) or self._known
        if known is not None:
            return NodeTracker.continued(self.split, self.grid, known)
        return NodeTracker(self.split, self.grid, x, self._typical_dual(x))

    def _typical_dual(self, x: Array) -> float:
        frame = frame_of(self.joint, self.cost, self.sigma)
        guess = typical_dual(self.loss, x, frame, self.cost, self.model.radius, self.epsilon)
        assert guess is not None
        return guess

    # -------------------------------------------------------------- stages and radii
    def surrogate(self) -> Conditional | None:
        """The same on fewer nodes, to begin with; None where there is no grid."""
        if self._easier is None and not self.by_cells and self.split.frame.dimension > 0:
            self._easier = Conditional(self.model, self.scales, COARSE)
            self._easier._known = self._known
        return self._easier

    def findings(self) -> KnownModes | None:
        return self._tracker.known_modes() if self._tracker is not None else None

    def use_findings(self, findings: object, dual: float) -> None:
        """Take the modes of the same samples, with another radius, as a first guess."""
        if isinstance(findings, KnownModes) and findings.data() is self.rows:
            self._known = findings.for_dual(dual, self.split.frame)


def conditional_refusal(model: RobustModel) -> str | None:
    """Reason why conditional integration does not apply to a model; None if it does."""
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
    rest = columns_of(model, remaining_parameters(model, affine))
    moving = frame_of(model.joint, model.cost, 1.0, rest).dimension
    if moving > MOST_COORDINATES:
        return (
            f"{moving} coordinates move beside those in which the loss is affine, and nodes fill a "
            "line or a plane"
        )
    return None
