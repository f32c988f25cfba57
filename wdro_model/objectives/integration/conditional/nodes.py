"""Quadrature nodes around the modes, and how they follow the decision and the dual variable.

Decisions and duals move little from one evaluation to the next: Newton steps from the last modes
find the new ones, the curvature being kept while it fits. All modes that were found are followed,
and get nodes when they come to count; others are climbed to from where they show (`lookout`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

import numpy as np

from wdro_model.objectives.integration.conditional.loss import Marginal
from wdro_model.objectives.integration.conditional.modes import (
    BlockModes,
    Lookout,
    bent,
    climb,
    climbed_on,
    distinct,
    gaussians,
    joined,
    priced,
    search,
    tracked,
    unknown,
)
from wdro_model.objectives.integration.frame import Frame
from wdro_model.objectives.integration.modes import clip_moves
from wdro_model.objectives.integration.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.proposals import reference_of
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional


STEP = 0.8
EXTENT = 5.5
"""The rule covers normal scores up to this size."""


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
    """BlockNodes spread so much wider than the density when they are placed: the dual will move."""
    narrowest: float
    """The least variance of a density that is resolved."""
    most_outside: float
    """The largest mass beyond extent - step of a density that is covered."""

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
        """Of a rule with twice the step, for normal densities of these variances (P, r): (P,)."""
        return 2 * np.exp(-2 * variances * (np.pi / (2 * self.step)) ** 2).sum(axis=1)


COARSE = Grid(step=1.3, extent=2.6, reach=2.8, wider=1.1, narrowest=0.4, most_outside=0.6)
"""A few nodes: 1e-2 in the log of the integral, nearly the same at neighbouring decisions."""


def fine() -> Grid:
    """Accurate to 1e-8 right after the nodes are placed, and to 4e-4 where they move next."""
    return Grid(
        STEP,
        EXTENT,
        reach=EXTENT + STEP,
        wider=1.25,
        narrowest=(0.625 * STEP) ** 2,
        most_outside=1e-3,
    )


@dataclass(frozen=True)
class BlockNodes:
    """S nodes in the block C around each of P modes; a sample may have several."""

    owners: Array
    """The samples of the modes, (P,)."""
    moves: Array
    """(P, S, r)"""
    log_weights: Array
    """log of weight times reference density, (P, S)."""
    scores: Array
    """Normal scores of the nodes, (S, r)."""

    def of(self, samples: Array) -> BlockNodes:
        """The nodes of some samples, in their order; for modes in the order of their samples."""
        if np.array_equal(samples, self.owners):
            return self
        low, high = (np.searchsorted(self.owners, samples, side=s) for s in ("left", "right"))
        counts = high - low
        before = np.cumsum(counts) - counts
        which = np.repeat(low - before, counts) + np.arange(counts.sum())
        return self[which]

    def updated(self, which: Array, new: BlockNodes) -> BlockNodes:
        """With the nodes of some of the modes replaced."""
        moves, log_weights = self.moves.copy(), self.log_weights.copy()
        moves[which], log_weights[which] = new.moves, new.log_weights
        return BlockNodes(self.owners, moves, log_weights, self.scores)

    def __getitem__(self, which: Array | slice) -> BlockNodes:
        """The nodes of some of the modes."""
        return BlockNodes(
            self.owners[which], self.moves[which], self.log_weights[which], self.scores
        )


# ------------------------------
# Where the nodes of the samples stand, and how they follow the decision and the dual variable


AT_REST = 0.4
"""A mode is where it was if an ascent would move it by less than so many deviations."""
TOLERATED = 0.02
"""The nodes move when they fail more than this share of the samples."""
TRUST = 1.002
"""The dual changes little between neighbouring decisions, and may sit where the cost jumps as a
sample moves to the edge of its support: the slope there says nothing about the next percent. Nodes
stay where they are for short steps; long ones move them, there and back."""
EXPECTED = 1.02
"""The same where the dual is that of a solve with another radius."""
NEARBY = 5e-3
"""Decisions that differ by this share of their size have much the same modes."""
AHEAD = 0.02
"""BlockModes have nodes if they may come to count while the dual variable changes by this share."""


@dataclass(frozen=True)
class KnownModes:
    """The modes at one decision and dual variable, for a density that is nearly the same."""

    data: ReferenceType[Array]
    """The samples that have them, (N, d); those who keep the modes do not keep these."""
    x: Array
    dual: float
    modes: BlockModes

    def at(self, dual: float, frame: Frame) -> KnownModes:
        """A guess for another dual: those that no bound holds are farther away where it is less."""
        moves, bounds = self.modes.moves, frame.bounds(self.modes.owners)
        farther = moves * (self.dual / dual)
        if bounds is not None:
            held = (moves <= bounds[0]) | (moves >= bounds[1])
            farther = np.where(held, moves, np.clip(farther, *bounds))
        return replace(self, dual=dual, modes=replace(self.modes, moves=farther))


class Placement:
    """The nodes of some of the samples."""

    def __init__(self, rule: Conditional, owners: Array) -> None:
        self.rule, self.owners = rule, owners
        self.dual = 1.0
        """The dual variable that the nodes were placed for."""
        self.trust = np.inf
        """The factor by which the first step of a search for the dual should change it at most."""
        self.unreached = 0.0
        """The share of samples that the nodes fail right after a search."""
        self.x: Array | None = None
        """The decision that the nodes are for, or will be when they are asked for."""
        self._modes: BlockModes | None = None
        """All modes that are followed, those that do not count (yet) among them."""
        self._earlier: BlockModes | None = None
        """Those of another density, from which they are climbed to."""
        self._lookout: Lookout | None = None
        """Made at this decision, or at one nearby."""
        self._nodes: tuple[Array, BlockNodes] | None = None
        self._placed: BlockModes | None = None
        """The modes that these are around."""

    @classmethod
    def going_on(cls, rule: Conditional, known: KnownModes) -> Placement:
        """All samples' nodes, around the modes that those of another density lead to."""
        found = cls(rule, np.arange(rule.joint.size))
        found.place(known.x, known.dual)
        found._earlier, found.trust = known.modes, EXPECTED
        return found

    def known(self) -> KnownModes | None:
        """The modes, for another density; None before there are any."""
        if self._modes is None or self.x is None or len(self.owners) < self.rule.joint.size:
            return None
        return KnownModes(ref(self.rule.rows), self.x, self.dual, self._modes)

    def copy(self) -> Placement:
        """A placement that goes on from here."""
        return copy(self)

    def forget_nodes(self) -> None:
        """Keep the modes alone: all else is made again when it is asked for."""
        self._nodes = self._lookout = None

    def place(self, x: Array, dual: float) -> None:
        """Put the nodes around the modes at this decision and dual, when they are asked for."""
        self.reached(x, dual)
        self._modes = self._earlier = self._nodes = self._lookout = None
        self.unreached = 0.0

    def reached(self, x: Array, dual: float) -> None:
        """Remember the decision and the dual variable that the nodes were found to fit."""
        self.x, self.dual = np.array(x, dtype=float), float(dual)

    def nodes(self, samples: Array) -> BlockNodes:
        """BlockNodes of these samples."""
        if self._modes is None:
            assert self.x is not None
            self._modes = self._found(Marginal(self.rule, self.x, self.dual))
        if self._nodes is None or not np.array_equal(self._nodes[0], samples):
            counted = self._modes.used(self._rate()) & np.isin(self._modes.owners, samples)
            self._placed = self._modes.where(counted)
            self._nodes = (samples, self._around(self._placed).of(samples))
        return self._nodes[1]

    def _found(self, target: Marginal) -> BlockModes:
        """The modes: from those of another density where a lattice will show what is new."""
        spread, found = self.rule.frame.spread, None
        if self._earlier is not None:
            found = climbed_on(target, self.owners, spread, self._earlier, self._rate())
            self._earlier = None
        return priced(target, search(target, self.owners, spread) if found is None else found)

    def _rate(self) -> float:
        return AHEAD * self.dual / self.rule.epsilon

    def _around(self, modes: BlockModes) -> BlockNodes:
        """The trapezoidal rule in the normal scores of each mode's Gaussian.

        Where a sample has several modes their rules overlap: each counts by its share of the sum
        of their densities.
        """
        rule = self.rule
        scores, log_rule = rule.grid.scores(rule.frame.dimension)
        size = len(modes.owners)
        wide = gaussians(modes, rule.frame.bounds(modes.owners), rule.grid.wider)
        moves = wide.transport(slice(None), scores[None])
        density = wide.log_density(moves)
        number, first = modes.count(), np.searchsorted(modes.owners, modes.owners)
        for shift in range(1, int(number.max(initial=1))):
            several = np.flatnonzero(number > shift)
            sibling = (first + (np.arange(size) - first + shift) % number)[several]
            other = wide.log_density(moves[several], sibling)
            density[several] = np.logaddexp(density[several], other)
        reference = reference_of(rule.frame, modes.owners).log_density(moves)
        return BlockNodes(modes.owners, moves, log_rule - density + reference, scores)

    # -------------------------------------------------------------- following
    def follow(self, x: Array, dual: float, samples: Array, curved: bool = False) -> bool:
        """Move the nodes of these samples along with their modes; False if they stay.

        curved: measure the curvature of the density again.
        """
        if self._modes is None:
            self.reached(x, dual)
        if self._modes is None or len(samples) == 0:
            return False
        target = Marginal(self.rule, x, dual)
        old, others = self._divided(samples)
        heights, gradients = target(old.owners, old.moves)
        variance = target.variance(old.owners, old.moves)
        ahead = clip_moves(old.moves + variance * gradients, target.bounds(old.owners))
        restless = np.linalg.norm((ahead - old.moves) / np.sqrt(variance), axis=1) > AT_REST
        counted, old = old.used(self._rate()), replace(old, heights=heights)
        rest = restless[counted].mean() <= TOLERATED and not np.any(old.used() & ~counted)
        if rest and not curved:
            return False
        moving = np.full(len(restless), True) if curved else restless
        new = tracked(target, old.where(moving), gradients[moving])
        known = distinct(joined([old.where(~moving), bent(target, new) if curved else new]))
        self._modes, self._nodes = joined([priced(target, known), others]), None
        self.reached(x, dual)
        return True

    def climb_from(self, x: Array, dual: float, owners: Array, starts: Array) -> bool:
        """Climb from points (P, r) of some samples; True if modes were found that get nodes.

        A loss that grows fast has modes at the far end of its support, which come up while decision
        and dual change, and are gone where the dual is large.
        """
        assert self._modes is not None
        target = Marginal(self.rule, x, dual)
        samples = np.unique(owners)
        known, others = self._divided(samples)
        found = unknown(bent(target, distinct(climb(target, owners, starts))), known)
        if len(found.owners) == 0:
            return False
        heights = target.values(known.owners, known.moves)
        every = distinct(joined([replace(known, heights=heights), found]))
        every = priced(target, every)
        before, now = (some.where(some.used(self._rate())) for some in (known, every))
        self._modes = joined([every, others])
        if np.array_equal(before.moves, now.moves):
            return False
        self._nodes = None
        return True

    def lookout(self, x: Array, samples: Array) -> Lookout:
        """A lattice for modes that are not known.

        On a coarse grid, which leads the way and promises nothing, one of a decision nearby does.
        """
        apart = NEARBY if self.rule.is_coarse else 0.0
        if self._lookout is None or not self._lookout.is_near(x, samples, apart):
            self._lookout = Lookout(self.rule, x, samples)
        return self._lookout

    def modes_at(self, dual: float) -> BlockModes | None:
        """All modes that are followed, their heights for another dual; None before there are any.

        Where a mode has moved since, it is a little higher.
        """
        if self._modes is None:
            return None
        fallen = (dual - self.dual) / self.rule.epsilon * self._modes.costs
        return replace(self._modes, heights=self._modes.heights - fallen)

    def modes_with_nodes(self, samples: Array) -> tuple[BlockModes, BlockModes]:
        """The modes of these samples that the last nodes are around, in their order, and others."""
        assert self._placed is not None
        mine, _ = self._divided(samples)
        placed = self._placed.where(np.isin(self._placed.owners, samples))
        return placed, unknown(mine, placed)

    def _divided(self, samples: Array) -> tuple[BlockModes, BlockModes]:
        """The modes of these samples, and of all others."""
        assert self._modes is not None
        mine = np.isin(self._modes.owners, samples)
        return self._modes.where(mine), self._modes.where(~mine)

    def shifts(self, x: Array, dual: float, samples: Array) -> bool:
        """Have modes without nodes come to count? They are looked at when the dual has changed."""
        if self._modes is None or abs(dual - self.dual) <= AHEAD * self.dual:
            return False
        counted = self._modes.used(self._rate())
        if counted.all():
            return False
        heights = Marginal(self.rule, x, dual).values(self._modes.owners, self._modes.moves)
        now = replace(self._modes, heights=heights).used()
        return bool(np.any(now & ~counted & np.isin(self._modes.owners, samples)))
