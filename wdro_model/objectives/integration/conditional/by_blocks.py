"""Conditional integration: in closed form over the data in which f is affine, given the rest.

With zeta = (zeta_A, zeta_C), f affine in zeta_A given zeta_C, at each node s of zeta_C for sample k

    f = f(x, (xi_A, s)) + <B_ks, zeta_A - xi_A>,
    phi_k = eps log sum_s w_ks exp(( f(x, (xi_A, s)) - l c_C(xi_k, s) )/eps + log E_A[...] ),

with E_A in closed form (`block_integral`). What is left is a density of the moves of block C
(`marginal`), as there is one without an affine block: one coordinate is integrated by adaptive
cells, more than two by importance sampling, and two by cells, or where f is smooth on a few nodes
around the modes (`mode_grid`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.by_cells import ByCells
from wdro_model.objectives.integration.conditional.affine_block import affine_block, may_have_kinks
from wdro_model.objectives.integration.conditional.block_nodes import BlockNodes, NodeSlice
from wdro_model.objectives.integration.conditional.marginal import Blocks, BlockTilt, Marginal
from wdro_model.objectives.integration.conditional.mode_grid import (
    FINE,
    ROUGH,
    Grid,
    GridSlice,
    ModeGrid,
)
from wdro_model.objectives.integration.importance.frame import frame_of
from wdro_model.objectives.integration.importance.proposal_scales import typical_dual
from wdro_model.objectives.integration.inner_integral import EMPIRICAL, Given, Stream
from wdro_model.objectives.integration.tilted import Tilted
from wdro_model.solvers.objective import Array


class BlockCells(ByCells):
    """Closed form over the affine block, adaptive cells over the rest."""

    name = "conditional"
    begins = EMPIRICAL
    """Vertices may be so bad that the density of the data has modes all over its support."""

    def __init__(self, parts: Blocks, radius: float | None) -> None:
        super().__init__(
            *(parts.loss, parts.joint, parts.cost),
            epsilon=parts.epsilon,
            sigma=parts.sigma,
            radius=radius,
            frame=parts.frame,
        )
        self.parts = parts

    def describe(self) -> str:
        return described(self.parts, "quadrature")

    def surrogate(self) -> Any:
        """Few nodes, to begin with, in the plane."""
        if self.frame.dimension == 2 and self._easier is None:
            self._easier = BlockGrid(self.parts, self.radius, ROUGH)
        return self._easier

    def tilt(self, x: Array) -> BlockTilt:
        return BlockTilt(self.parts, x)


class BlockGrid(Given):
    """Closed form over the affine block, a few nodes around the modes of two coordinates.

    Also where no other coordinate moves: each sample is then its own mode, and its own node.
    """

    name = "conditional"
    begins = EMPIRICAL
    exact = True

    def __init__(self, parts: Blocks, radius: float | None, grid: Grid = FINE) -> None:
        super().__init__(
            parts.loss, parts.joint, parts.cost, epsilon=parts.epsilon, sigma=parts.sigma
        )
        self.parts, self.radius, self.grid = parts, radius, grid
        self.frame, self.block = parts.frame, parts.block
        self._places = ModeGrid(parts, grid)
        self._start: float | None = None
        fine = grid is FINE and self.frame.dimension > 0
        self._cells = BlockCells(parts, radius) if fine else None
        self._easier: Any = None

    def describe(self) -> str:
        return described(self.parts, "quadrature")

    @property
    def rows(self) -> Array:
        """The samples, (N, d)."""
        return self.joint.matrix

    @property
    def dual(self) -> float | None:
        """Where the dual variable was minimised last."""
        return self._places.dual

    def surrogate(self) -> Any:
        """The same on fewer nodes, to begin with."""
        if self.grid is FINE and self.frame.dimension and self._easier is None:
            self._easier = BlockGrid(self.parts, self.radius, ROUGH)
        return self._easier

    def refresh(self, x: Array, dual: float) -> None:
        """Forget the modes of other decisions."""
        self._places, self._start = ModeGrid(self.parts, self.grid), dual

    def slice(self, x: Array, samples: Array, stream: Stream) -> GridSlice:
        start = self.dual or self._start or getattr(self._easier, "dual", None)
        if start is None:
            frame = frame_of(self.joint, self.cost, self.sigma)
            start = typical_dual(
                *(self.loss, x, frame, self.cost), radius=self.radius, epsilon=self.epsilon
            )
        return GridSlice(self._places, self._cells, x, samples, start)


class BlockDraws(Tilted):
    """Closed form over the affine block, importance sampling over the rest."""

    name = "conditional"

    def __init__(self, parts: Blocks, radius: float | None, draws: int) -> None:
        super().__init__(
            *(parts.loss, parts.joint, parts.cost),
            epsilon=parts.epsilon,
            sigma=parts.sigma,
            draws=draws,
            radius=radius,
            frame=parts.frame,
        )
        self.parts = parts

    def describe(self) -> str:
        return described(self.parts, f"{self.draws} tilted draws for each sample")

    def target(self) -> Marginal:
        return Marginal(self.parts, *self.point, places=self.recalled())

    def nodes(self, samples: Array, stream: Stream) -> BlockNodes:
        """Draws of these samples as nodes."""
        moves, log_ratio = self.drawn(samples, stream)
        return BlockNodes(samples, moves, log_ratio - np.log(self.draws))

    def slice_of_draws(self, x: Array, samples: Array, stream: Stream) -> NodeSlice:
        return NodeSlice(self.parts, x, self.nodes(samples, stream))


def described(parts: Blocks, how: str) -> str:
    """What is computed, for people."""
    names = ", ".join(p.name() for p in parts.affine)
    return (
        f"conditional closed form: exact over {names} ({parts.block.frame.dimension} "
        f"coordinates), {how} over the other {parts.frame.dimension}"
    )


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
    return None


def build_conditional(model: RobustModel, scales: Any) -> BlockCells | BlockGrid | BlockDraws:
    """The strategy for a model; scales: epsilon, sigma and draws."""
    affine = affine_block(model.expression, model.joint.parameters)
    given = (model.loss, model.joint, model.cost, scales.epsilon, scales.sigma, affine)
    parts = Blocks(*given)
    if parts.frame.dimension > 2:
        return BlockDraws(parts, model.radius, scales.draws)
    smooth = parts.frame.dimension != 1 and not may_have_kinks(model.expression, parts.others)
    if smooth or parts.frame.dimension == 0:
        return BlockGrid(parts, model.radius)
    return BlockCells(parts, model.radius)
