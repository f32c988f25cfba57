"""Two coordinates beside the affine block: few nodes around the modes of each sample.

A trapezoidal rule in the normal scores of the Gaussians around the modes resolves a smooth density
with 16 or 220 nodes where cells take thousands, and the runs of traffic need many decisions. What
the nodes of one parity and those of the other disagree about is their error: where that is large,
as at a kink, the sample is left to cells.

A loss that grows faster than the cost, as traffic does in its exponent, has a second mode at the
edge of the support. At the dual variable where it overtakes the mode near the sample the cost of
the worst case jumps, and a radius within the jump leaves the sample torn between both. All modes
have nodes therefore, however low they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.by_cells import ByCells, CellSlice
from wdro_model.objectives.integration.conditional.block_nodes import BlockNodes, NodeSlice
from wdro_model.objectives.integration.conditional.marginal import Blocks, Marginal
from wdro_model.objectives.integration.importance.frame import Frame, reference_of
from wdro_model.objectives.integration.importance.modes import Modes, find
from wdro_model.objectives.integration.importance.proposals import HALF_LOG_2PI, Mixture
from wdro_model.objectives.integration.inner_integral import Divergence, refuse_gradient
from wdro_model.solvers.objective import Array, Diagnostics

FAILED = 0.02
"""The nodes follow the dual variable when they fail more than this share of the samples."""
TRUST = 1.01
"""The dual changes little between neighbouring decisions, and may sit where the cost jumps as a
sample moves to the edge of its support: the slope there says nothing about the next percent."""


@dataclass(frozen=True)
class Grid:
    """A trapezoidal rule for densities that are close to a standard normal in their scores.

    For an integrand whose deviation in these scores is u, the rule is accurate to a relative
    exp(-2 (pi u / step)^2), and to the mass that it leaves outside.
    """

    step: float
    extent: float
    """Scores that must be covered."""
    reach: float
    """Scores that have nodes."""
    wider: float
    """The nodes spread so much wider than the density: it will move."""
    errors: tuple[float, float]
    """What nodes of both parities may disagree about, and the mass that may lie far out."""
    follows: bool
    """Are modes followed from decision to decision, not searched anew?"""
    moved: float
    """The change of the dual variable after which they are looked for again."""

    @cache  # noqa: B019  (few grids, of a few hundred numbers each)
    def scores(self, dimension: int) -> tuple[Array, Array, Array]:
        """Points (S, r), the log weights (S,) of the standard normal, and what tells errors.

        The last, (S, 2): 1 and -1 by parity, and 1 far out.
        """
        if dimension == 0:
            return np.zeros((1, 0)), np.zeros(1), np.zeros((1, 2))
        half = int(np.ceil(self.extent / self.step))
        whole = np.arange(-half, half)
        mesh = np.meshgrid(*[whole] * dimension, indexing="ij")
        index = np.stack([axis.ravel() for axis in mesh], axis=1).reshape(-1, dimension)
        points = self.step * (index + 0.5)
        size = np.linalg.norm(points, axis=1)
        index, points, size = (a[size <= self.reach] for a in (index, points, size))
        weights = dimension * (np.log(self.step) - HALF_LOG_2PI) - 0.5 * size**2
        parity = 1.0 - 2.0 * (index.sum(axis=1) % 2)
        return points, weights, np.stack([parity, size > self.extent - self.step], axis=1)


FINE = Grid(0.75, 5.5, reach=6.3, wider=1.25, errors=(1e-3, 1e-3), follows=False, moved=0.02)
"""Accurate to 1e-8 where the density is smooth."""
ROUGH = Grid(1.3, 2.6, reach=2.8, wider=1.1, errors=(0.4, 0.6), follows=True, moved=0.1)
"""A few nodes: 1e-2 in the log of the integral, nearly the same at neighbouring decisions."""


def around(modes: Modes, frame: Frame, samples: Array, grid: Grid) -> BlockNodes:
    """The rule in the normal scores of each mode's Gaussian, for some of the samples.

    Where a sample has several modes their rules overlap: each counts by its share of the sum of
    their densities.
    """
    scores, log_rule, _ = grid.scores(frame.dimension)
    used = np.isfinite(np.stack(modes.masses, axis=1))[samples]
    wide = Mixture(
        tuple(one.scaled(grid.wider) for one in modes.components), np.where(used, 0.0, -np.inf)
    )
    wide = Mixture(tuple(one.rows(samples) for one in wide.components), wide.log_weights)
    rows, which = np.nonzero(used)
    moves = np.empty((len(rows), *scores.shape))
    density = np.empty(moves.shape[:2])
    for j, one in enumerate(wide.components):
        mine = np.flatnonzero(which == j)
        owner = np.repeat(rows[mine], len(scores))
        moves[mine] = one.transport(owner, np.tile(scores, (len(mine), 1))).reshape(
            len(mine), *scores.shape
        )
        density[mine] = one.rows(rows[mine]).log_density(moves[mine])
    several = np.flatnonzero(used.sum(axis=1)[rows] > 1)
    if len(several):
        density[several] = wide.of(rows[several]).log_density(moves[several])
    reference = reference_of(frame, samples[rows]).log_density(moves)
    return BlockNodes(samples[rows], moves, log_rule - density + reference)


class ModeGrid:
    """The modes of all samples: found, and followed from decision to decision."""

    def __init__(self, parts: Blocks, grid: Grid) -> None:
        self.parts, self.grid = parts, grid
        self.hard = np.zeros(parts.joint.size, dtype=bool)
        """Samples whose density the nodes did not resolve, where cells do."""
        self.dual: float | None = None
        """Where the dual variable was minimised last."""
        self._modes: Modes | None = None
        self._placed = 0.0
        """The dual variable that they were looked for at."""

    def is_old(self, dual: float) -> bool:
        """May others have come up at this dual variable?"""
        return abs(dual - self._placed) > self.grid.moved * self._placed

    def nodes(self, x: Array, dual: float, samples: Array, search: bool = False) -> BlockNodes:
        """Nodes around the modes at this decision and dual; raises a Divergence."""
        target, found = Marginal(self.parts, x, dual), None
        if self._modes is not None and self.grid.follows and not search:
            found = self._modes.again(target)
        if found is None or not found.everywhere:
            found = find(target, np.arange(self.parts.joint.size), window=np.inf)
        if not found.everywhere:
            raise Divergence
        self._modes, self._placed = found, dual
        return around(found, self.parts.frame, samples, self.grid)


class GridSlice:
    """mean_k phi_k at one x, on nodes that follow the dual variable if they must."""

    def __init__(
        self, places: ModeGrid, cells: ByCells | None, x: Array, samples: Array, start: float
    ) -> None:
        self._places, self._rule, self._x, self._samples = places, cells, x, samples
        self.guess = places.dual or start
        """Where the minimum over the dual variable may be."""
        self.trust = TRUST if places.dual else np.inf
        """The factor by which a first step from there should change it at most."""
        self._unreached = 0.0
        """The share of samples that no nodes of the grid resolve, where there are no cells."""
        self._divide()
        self._place(self.guess)

    def _divide(self) -> None:
        """Leave the samples to cells that the grid does not resolve."""
        hard = self._places.hard[self._samples]
        self._own, left = self._samples[~hard], self._samples[hard]
        self._cells = CellSlice(self._rule, self._x, left) if self._rule and len(left) else None
        self._share = len(self._own) / len(self._samples)

    def _place(self, dual: float, search: bool = False) -> None:
        self._nodes: NodeSlice | None = None
        if len(self._own):
            try:
                nodes = self._places.nodes(self._x, dual, self._own, search)
            except Divergence:
                return
            self._nodes = NodeSlice(self._places.parts, self._x, nodes)

    def _fit(self, dual: float) -> None:
        """Move nodes that do not resolve the density at this dual, or leave samples to cells."""
        if not len(self._own):
            return
        if self._nodes is None or self._places.is_old(dual):
            self._place(dual)
        for search in (False, True):
            if not self._fails(dual):
                return
            self._place(dual, search)
        if self._nodes is None or not self._fails(dual):
            return
        bad = self._unresolved(dual)
        if self._rule is None:
            self._unreached = float(bad.mean())
        else:
            self._places.hard[self._own[bad]] = True
            self._divide()
            self._place(dual)

    def _fails(self, dual: float) -> bool:
        if self._nodes is None:
            return False
        allowed = FAILED + self._unreached if self._rule is None else 0.0
        return float(self._unresolved(dual).mean()) > allowed

    def _unresolved(self, dual: float) -> Array:
        """Samples (K,) for which parities disagree, or too much is far out."""
        assert self._nodes is not None
        nodes, grid = self._nodes, self._places.grid
        _, _, tests = grid.scores(self._places.parts.frame.dimension)
        told = np.abs(nodes.weighted(dual).weights @ tests)
        return np.any(np.add.reduceat(told, nodes.first, axis=0) > grid.errors, axis=1)

    def at(self, dual: float) -> DualPoint:
        self._fit(dual)
        points = []
        if len(self._own):
            infinite = DualPoint(np.inf, -np.inf, np.nan)
            own = self._nodes.at(dual) if self._nodes is not None else infinite
            points.append((self._share, own))
        if self._cells is not None:
            points.append((1.0 - self._share, self._cells.at(dual)))
        return DualPoint(
            sum(share * p.value for share, p in points),
            sum(share * p.slope for share, p in points),
            sum(share * p.curvature for share, p in points),
        )

    def gradient(self, dual: float) -> Array:
        refuse_gradient(self.at(dual))
        self._places.dual = dual
        gradient = np.zeros(self._places.parts.loss.dimension)
        if self._nodes is not None:
            gradient += self._share * self._nodes.gradient(dual)
        if self._cells is not None:
            gradient += (1.0 - self._share) * self._cells.gradient(dual)
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics | None:
        return None if self._cells is None else self._cells.diagnostics(dual)
