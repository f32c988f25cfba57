"""Quadrature nodes around the modes, and how they follow the decision and the dual variable.

The nodes are those of a trapezoidal rule in the normal scores of the Gaussian around each mode.
Decisions and duals move little from one evaluation to the next: `NodeTracker` carries the modes
along, and the nodes stay where they are while they resolve the density.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from weakref import ReferenceType, ref

import numpy as np

from wdro_model.objectives.integration.conditional.loss import Marginal, SplitLoss
from wdro_model.objectives.integration.conditional.modes import (
    LIMITS,
    Lattice,
    Modes,
    climb,
    distinct,
    gaussians,
    joined,
    new_modes,
    track,
    track_from,
    with_costs,
    with_curvature,
)
from wdro_model.objectives.integration.frame import Frame
from wdro_model.objectives.integration.modes import clip_moves
from wdro_model.objectives.integration.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.proposals import reference_of
from wdro_model.solvers.objective import Array


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
    """Factor by which nodes spread wider than the density when they are placed: the dual moves."""
    narrowest: float
    """The least variance of a density that is resolved."""
    most_outside: float
    """The largest mass beyond extent - step of a density that is covered."""
    is_coarse: bool
    """True if the rule only leads the way for a finer one: few points of the lattice, one lattice
    for neighbouring decisions, and no cells for samples that it does not resolve."""
    most_failing: float = 0.02
    """The share of samples that nodes may fail before they are moved."""

    @cache  # noqa: B019  (few grids, of a few hundred numbers each)
    def scores(self, dimension: int) -> tuple[Array, Array]:
        """Points (S, r), and the log weights (S,) of the standard normal at them."""
        if dimension == 0:
            return np.zeros((1, 0)), np.zeros(1)
        half = int(np.ceil(self.extent / self.step))
        line = self.step * (np.arange(-half, half) + 0.5)
        mesh = np.meshgrid(*[line] * dimension, indexing="ij")
        points = np.stack([axis.ravel() for axis in mesh], axis=1)
        points = points[np.linalg.norm(points, axis=1) <= self.reach]
        weights = dimension * (np.log(self.step) - HALF_LOG_2PI) - 0.5 * (points**2).sum(axis=1)
        return points, weights

    @cache  # noqa: B019
    def halves(self, dimension: int) -> tuple[Array, Array]:
        """The points of two rules with twice the step, (S,) each."""
        places = np.round(self.scores(dimension)[0] / self.step - 0.5).astype(int)
        return tuple(np.all(places % 2 == parity, axis=1) for parity in (0, 1))

    def expected_error(self, variances: Array) -> Array:
        """Error of a rule with twice the step for normal densities of variances (P, r): (P,)."""
        return 2 * np.exp(-2 * variances * (np.pi / (2 * self.step)) ** 2).sum(axis=1)


COARSE = Grid(1.3, 2.6, 2.8, wider=1.1, narrowest=0.4, most_outside=0.6, is_coarse=True)
"""A few nodes: 1e-2 in the log of the integral, nearly the same at neighbouring decisions."""
FINE = Grid(0.8, 5.5, 6.3, wider=1.25, narrowest=0.25, most_outside=1e-3, is_coarse=False)
"""Accurate to 1e-8 right after the nodes are placed, and to 4e-4 where they move next."""
NEARBY = 5e-3
"""Decisions that differ by this share of their size have one lattice, on a coarse grid."""


@dataclass(frozen=True)
class Nodes:
    """S nodes in the block C around each of P modes; a sample may have several."""

    owners: Array
    """The samples of the modes, (P,)."""
    moves: Array
    """(P, S, r)"""
    log_weights: Array
    """log of weight times reference density, (P, S)."""
    scores: Array
    """Normal scores of the nodes, (S, r)."""


@dataclass(frozen=True)
class KnownModes:
    """The modes at one decision and dual variable, for a density that is nearly the same."""

    data: ReferenceType[Array]
    """The samples that have them, (N, d); who keeps the modes does not keep these alive."""
    x: Array
    dual: float
    modes: Modes

    def for_dual(self, dual: float, frame: Frame) -> KnownModes:
        """A guess for another dual: modes away from bounds are farther out where it is less."""
        moves, bounds = self.modes.moves, frame.bounds(self.modes.owners)
        farther = moves * (self.dual / dual)
        if bounds is not None:
            held = (moves <= bounds[0]) | (moves >= bounds[1])
            farther = np.where(held, moves, np.clip(farther, *bounds))
        return replace(self, dual=dual, modes=replace(self.modes, moves=farther))


class NodeTracker:
    """Modes and nodes of all samples, carried from one decision and dual variable to the next."""

    def __init__(self, split: SplitLoss, grid: Grid, x: Array, dual: float) -> None:
        self.split, self.grid = split, grid
        self.unresolved = np.zeros(split.frame.joint.size, dtype=bool)
        """The samples that no grid resolves, (N,); copies of the tracker share them."""
        self.place(x, dual)

    @classmethod
    def continued(cls, split: SplitLoss, grid: Grid, known: KnownModes) -> NodeTracker:
        """A tracker that starts from the modes of another density."""
        tracker = cls(split, grid, known.x, known.dual)
        tracker._earlier = known.modes
        return tracker

    def place(self, x: Array, dual: float) -> None:
        """Put the nodes around the modes at this decision and dual, when they are asked for."""
        self.settle(x, dual)
        self.failing = 0.0
        """The share of samples that the nodes fail right after they were placed."""
        self._modes: Modes | None = None
        """All modes that are followed, with nodes and without."""
        self._earlier: Modes | None = None
        """Modes of another density, from which the search starts."""
        self._lattice: Lattice | None = None
        """The lattice of this decision, or of one nearby."""
        self._nodes: tuple[Array, Nodes, Modes] | None = None
        """The last nodes, their samples, and the modes that they are around."""

    def settle(self, x: Array, dual: float) -> None:
        """Remember the decision and the dual variable that the modes belong to."""
        self.x, self.dual = np.array(x, dtype=float), float(dual)

    def copy(self) -> NodeTracker:
        """A tracker that goes on from here."""
        return copy(self)

    def known_modes(self) -> KnownModes | None:
        """The modes, for another density; None before there are any."""
        if self._modes is None:
            return None
        return KnownModes(ref(self.split.frame.joint.matrix), self.x, self.dual, self._modes)

    # -------------------------------------------------------------- nodes
    def nodes(self, samples: Array) -> Nodes:
        """The nodes of these samples."""
        if self._modes is None:
            everyone = np.arange(len(self.unresolved))
            modes, self._earlier = self._earlier, None
            if modes is not None:
                target = Marginal(self.split, self.x, self.dual)
                modes = track_from(target, everyone, modes, self._rate)
            self._modes = modes or self.lattice(self.x, everyone).search(self.dual)
        if self._nodes is None or not np.array_equal(self._nodes[0], samples):
            counted = self._need_nodes(self._modes) & np.isin(self._modes.owners, samples)
            modes = self._modes.where(counted)
            self._nodes = (samples, self._nodes_around(modes), modes)
        return self._nodes[1]

    @property
    def _rate(self) -> float:
        """The change of the dual over epsilon within which modes may come to count."""
        return LIMITS.dual_ahead * self.dual / self.split.epsilon

    def _need_nodes(self, modes: Modes) -> Array:
        """True for modes that get nodes, (P,)."""
        return modes.in_window(LIMITS.window, self._rate)

    def _nodes_around(self, modes: Modes) -> Nodes:
        """The trapezoidal rule in the normal scores of each mode's Gaussian.

        Where a sample has several modes their rules overlap: each counts by its share of the sum
        of their densities.
        """
        frame, size = self.split.frame, len(modes.owners)
        scores, log_rule = self.grid.scores(frame.dimension)
        wide = gaussians(modes, frame.bounds(modes.owners), self.grid.wider)
        moves = wide.transport(slice(None), scores[None])
        density = wide.log_density(moves)
        number, first = modes.count(), np.searchsorted(modes.owners, modes.owners)
        for shift in range(1, int(number.max(initial=1))):
            several = np.flatnonzero(number > shift)
            sibling = (first + (np.arange(size) - first + shift) % number)[several]
            other = wide.log_density(moves[several], sibling)
            density[several] = np.logaddexp(density[several], other)
        reference = reference_of(frame, modes.owners).log_density(moves)
        return Nodes(modes.owners, moves, log_rule - density + reference, scores)

    # -------------------------------------------------------------- following
    def modes_at(self, dual: float) -> Modes | None:
        """All modes that are followed, their heights for another dual; None before there are any.

        Where a mode has moved since, it is a little higher.
        """
        if self._modes is None:
            return None
        fallen = (dual - self.dual) / self.split.epsilon * self._modes.costs
        return replace(self._modes, heights=self._modes.heights - fallen)

    def modes_with_nodes(self, samples: Array) -> tuple[Modes, Modes]:
        """The modes that the last nodes are around, in their order, and the others of `samples`."""
        assert self._nodes is not None
        placed = self._nodes[2]
        return placed, new_modes(self._divided(samples)[0], placed)

    def lacks_nodes(self, dual: float, samples: Array) -> bool:
        """True if some mode of these samples matters at this dual and has no nodes."""
        modes = self.modes_at(dual)
        if modes is None or self._nodes is None:
            return False
        counting = modes.where(modes.in_window(LIMITS.counting) & np.isin(modes.owners, samples))
        return len(new_modes(counting, self._nodes[2]).owners) > 0

    def follow(self, x: Array, dual: float, samples: Array, curved: bool = False) -> bool:
        """Move the nodes of these samples along with their modes; False if they stay.

        curved: measure the curvature of the density again.
        """
        if self._modes is None:
            self.settle(x, dual)
        if self._modes is None or len(samples) == 0:
            return False
        target = Marginal(self.split, x, dual)
        old, others = self._divided(samples)
        counted = self._need_nodes(old)
        heights, gradients = target(old.owners, old.moves)
        variance = target.variance(old.owners, old.moves)
        ahead = clip_moves(old.moves + variance * gradients, target.bounds(old.owners))
        steps = np.linalg.norm((ahead - old.moves) / np.sqrt(variance), axis=1)
        restless, old = steps > LIMITS.at_rest, replace(old, heights=heights)
        rest = restless[counted].mean() <= self.grid.most_failing
        rest &= not np.any(old.in_window(LIMITS.counting) & ~counted)
        if rest and not curved:
            self._modes = joined([old, others])
            return False
        moving = np.full(len(restless), True) if curved else restless
        new = track(target, old.where(moving), gradients[moving])
        new = joined([old.where(~moving), with_curvature(target, new) if curved else new])
        self._modes = joined([with_costs(target, distinct(new)), others])
        self._nodes = None
        self.settle(x, dual)
        return True

    def add_modes(self, x: Array, dual: float, samples: Array) -> bool:
        """Climb from peaks of the lattice that no known mode explains; True if nodes are added.

        A loss that grows fast has modes at the far end of its support, which come up while decision
        and dual change, and are gone where the dual is large.
        """
        followed = self.modes_at(dual)
        if followed is None:
            return False
        owners, starts = self.lattice(x, samples).unexplained_peaks(dual, followed)
        if len(owners) == 0:
            return False
        target = Marginal(self.split, x, dual)
        known, others = self._divided(np.unique(owners))
        added = new_modes(with_curvature(target, climb(target, owners, starts)), known)
        if len(added.owners) == 0:
            return False
        known = replace(known, heights=target.values(known.owners, known.moves))
        every = with_costs(target, distinct(joined([known, added])))
        self._modes = joined([every, others])
        before, now = (some.where(self._need_nodes(some)).moves for some in (known, every))
        if np.array_equal(before, now):
            return False
        self._nodes = None
        return True

    def lattice(self, x: Array, samples: Array) -> Lattice:
        """The lattice of a decision; on a coarse grid that of one nearby serves."""
        apart = NEARBY if self.grid.is_coarse else 0.0
        if self._lattice is None or not self._lattice.is_near(x, samples, apart):
            self._lattice = Lattice(self.split, x, samples, self.grid.is_coarse)
        return self._lattice

    def _divided(self, samples: Array) -> tuple[Modes, Modes]:
        """The modes of these samples, and of all others."""
        assert self._modes is not None
        mine = np.isin(self._modes.owners, samples)
        return self._modes.where(mine), self._modes.where(~mine)
