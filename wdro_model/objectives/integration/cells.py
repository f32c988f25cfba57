"""Integrals of exp(g_k) over one or two coordinates by adaptive cells, for many samples at once.

Whatever g looks like: cells are halved where an embedded rule disagrees with the rule, along the
axis that causes it, until the errors of a sample add up to less than a tolerance of its integral;
and where g, interpolated, may be so high between the nodes that the cell matters though its nodes
do not (a density much narrower than they are apart). A scan by octaves of the distance finds how
far the cells must reach, and where g rises without end.

The loss at the nodes is evaluated once; the dual variable recombines what is known there, errors
are estimated anew, and cells are halved further only where that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from wdro_model.objectives.integration.cell_regions import (
    OCTAVES,
    CellRegion,
    cell_points,
    cell_rule,
    divisible,
    farthest,
    halved,
)
from wdro_model.objectives.integration.normal import HALF_LOG_2PI, truncated_normal
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array

REFERENCE = 1e-9
"""Estimated relative error of the mass that the reference gives to a polyhedron."""
CUT = 60.0
"""What is so far below the top, in logarithm, is not looked for."""
SEEN = 2.5
"""Nodes that come so close to the highest value that a cell may have, in logarithm, see it."""
ALONG = {"error": 0.2, "range": 0.3}
"""A cell is halved along the worst axis, and the other one if it has this share of the worst."""
LEAST_REACH = 8.0
FARTHEST = OCTAVES[-1]
"""In deviations of the reference."""
LARGEST = 1e15
"""An exponent of this size has no digits left."""
ROUNDS = 120
GROWN = 2.0
"""Cells that are so many times as many as at the last beginning are given up for new ones."""
MOST_CELLS = {1: 1000, 2: 4000}
"""Cells of one sample, at most."""
MOST_NODES = 2**22
"""Nodes of all samples, at most; those of a sample get their share of it."""


class CellIntegrand(Protocol):
    """Exponents g_k(y; l) of some samples, up to what is looked at once for all dual variables."""

    def look(self, owner: Array, moves: Array) -> tuple[Array, ...]:
        """What is needed of the points with moves y (B, r), as arrays (B, ...); the first of them
        is NaN where the loss is not defined, and -inf where a move is ruled out."""
        ...

    def exponents(self, looked: tuple[Array, ...], owner: Array, dual: float) -> Array:
        """g (K, S) at S points of the samples owner (K,), seen as arrays (K, S, ...)."""
        ...


@dataclass(frozen=True)
class Resolved:
    """The integrals at one dual variable."""

    dual: float
    log_mass: Array
    """log of the integral of exp(g) in t, (K,)."""
    shares: Array
    """Densities of the nodes in their sample, (C, S)."""
    rule: Array
    """Weights of the nodes of a cell, (S,)."""
    error: Array
    """Its estimated relative error, (K,)."""

    @property
    def diverges(self) -> bool:
        return bool(np.isposinf(self.log_mass).any())

    @cached_property
    def weights(self) -> Array:
        """Probabilities of the nodes in their sample, (C, S)."""
        return self.shares * self.rule


Kept = dict[int, tuple[float, Array]]
"""For samples: how far their cells reach, and the cells."""


class CellMemory:
    """The cells and the dual variable of the decision that was evaluated last.

    The next decision begins with them.
    """

    def __init__(self, dual: float | None = None) -> None:
        self.dual = dual
        self._cells: Kept = {}
        self._first_counts: dict[int, int] = {}
        """For samples, how many cells there were after the last begin without known cells."""

    def of(self, samples: Array) -> Kept:
        """The cells of some samples; none if they have become too many."""
        own = {int(k): self._cells[int(k)] for k in samples if int(k) in self._cells}
        first = sum(self._first_counts[k] for k in own)
        return own if sum(len(cells) for _, cells in own.values()) <= GROWN * first else {}

    def keep(self, cells: Kept, anew: bool) -> None:
        """Remember the cells of a decision; anew: it did not begin with known cells."""
        self._cells.update(cells)
        for k, (_, own) in cells.items():
            if anew or k not in self._first_counts:
                self._first_counts[k] = len(own)


class CellIntegral:
    """Cells of some samples at one decision."""

    def __init__(
        self,
        integrand: CellIntegrand,
        region: CellRegion,
        deviation: Array,
        samples: Array,
        tolerance: float,
        known: Kept | None = None,
    ) -> None:
        self.integrand, self.region, self.samples = integrand, region, samples
        self.tolerance = tolerance
        self.anew = not known
        """Are there no cells of another decision to begin with?"""
        self._deviation = deviation
        self._rule = cell_rule(region.dimension)
        self._mesh = self._rule.mesh()
        self._most = min(
            MOST_CELLS[region.dimension],
            max(16, MOST_NODES // (self._rule.size * max(1, len(samples)))),
        )
        points = region.scan(samples)
        owner = np.repeat(samples, points.shape[1])
        flat = points.reshape(-1, region.dimension)
        self._scan_points, shape = points, points.shape[:2]
        self._scan_inside = region.inside(owner, flat).reshape(shape)
        looked = _defined(integrand.look(owner, flat * deviation))
        self._scanned = tuple(part.reshape(*shape, *part.shape[1:]) for part in looked)
        known = known or {}
        self._reach = np.array([known[int(k)][0] if int(k) in known else 0.0 for k in samples])
        self._position = np.zeros(0, dtype=int)
        given = [known[int(k)][1] for k in samples if int(k) in known]
        self._take(np.flatnonzero(self._reach > 0), given, fresh=True)
        self._last: Resolved | None = None

    # -------------------------------------------------------------- what there is
    @property
    def owners(self) -> Array:
        """The samples of the cells, (C,)."""
        return self.samples[self._position]

    @property
    def position(self) -> Array:
        """Positions of the cells' samples among the given ones, (C,), in order."""
        return self._position

    @property
    def looked(self) -> tuple[Array, ...]:
        """What was seen at the nodes, arrays (C, S, ...)."""
        return self._looked

    def moves(self) -> Array:
        """The moves y of the nodes, (C, S, r)."""
        return cell_points(self._cells, self._mesh)[0] * self._deviation

    def kept(self) -> Kept:
        """For each sample how far its cells reach, and the cells."""
        ends = np.flatnonzero(np.diff(self._position)) + 1
        parts = np.split(self._cells, ends)
        found = self._position[np.append(0, ends)] if len(self._position) else []
        return {int(self.samples[i]): (self._reach[i], part) for i, part in zip(found, parts)}

    # -------------------------------------------------------------- the integrals
    def at(self, dual: float) -> Resolved:
        """The integrals, resolved at this dual variable."""
        if self._last is not None and self._last.dual == dual:
            return self._last
        with np.errstate(all="ignore"):
            self._last = self._resolved(dual)
        return self._last

    def _resolved(self, dual: float) -> Resolved:
        needed = self._needed(dual)
        if np.isinf(needed).any():
            return self._infinite(dual)
        self._extend(needed)
        for _ in range(ROUNDS):
            check_deadline()
            found, axes, beyond = self._measured(dual)
            if beyond.any():
                needed = np.where(beyond, 4 * self._reach, 0.0)
                if (needed > FARTHEST).any():
                    return self._infinite(dual)
                self._extend(needed)
            elif found.diverges or not axes.any():
                break
            else:
                self._halve(axes)
        return found

    def _infinite(self, dual: float) -> Resolved:
        none = np.full(len(self.samples), np.inf)
        return Resolved(dual, none, np.zeros((0, 0)), np.zeros(0), none)

    def _measured(self, dual: float) -> tuple[Resolved, Array, Array]:
        """The integrals on the cells as they are, the axes (C, r) along which cells are to be
        halved, and the samples (K,) whose cells do not reach far enough."""
        rule, position, size = self._rule, self._position, len(self.samples)
        nowhere = np.zeros((0, 1), dtype=bool)
        first = np.searchsorted(position, np.arange(size))
        logs = self._exponents(dual) + self._jacobian
        heights = logs.max(axis=1)
        top = np.maximum.reduceat(heights, first)
        if np.isposinf(top).any():
            return self._infinite(dual), nowhere, np.zeros(size, dtype=bool)
        self._refuse_undefined(heights > top[position] - CUT)
        density = np.exp(logs - top[position, None])
        mass, errors = rule.integrate(density)
        total = np.add.reduceat(mass, first)
        log_mass = top + np.log(total)
        errors /= total[position, None]
        worst = errors.sum(axis=1)
        # What the cell may hold that the nodes do not see.
        highest = np.where(self._holes, heights, rule.highest(logs))
        share = highest - log_mass[position]
        blind = (highest > heights + SEEN) & (share > np.log(0.1 * self.tolerance))
        worst += np.where(blind, np.exp(np.minimum(share, 0.0)), 0.0)
        error = np.add.reduceat(worst, first)
        outside = farthest(self._cells) >= self._reach[position] * (1 - 1e-9)
        over = outside & (blind | (heights > top[position] - 0.5 * CUT))
        beyond = np.zeros(size, dtype=bool)
        beyond[position[over]] = True
        density /= total[position, None]
        found = Resolved(dual, log_mass, density, rule.product_weights(), error)
        if not (error > self.tolerance).any():
            return found, nowhere, beyond
        return found, self._rough_axes(errors, worst, error, blind, logs), beyond

    def _rough_axes(
        self, errors: Array, worst: Array, error: Array, blind: Array, logs: Array
    ) -> Array:
        """Axes (C, r) of the cells with the largest errors, so that the rest is tolerable."""
        position = self._position
        order = np.lexsort((worst, position))
        sums = np.cumsum(worst[order])
        first = np.searchsorted(position, np.arange(len(self.samples)))
        before = np.append(0.0, sums)[first]
        small = np.empty(len(worst), dtype=bool)
        small[order] = sums - before[position[order]] <= 0.5 * self.tolerance
        rough = (error > self.tolerance)[position]
        count = np.bincount(position, minlength=len(self.samples))
        rough &= ~small & (count < self._most)[position]
        axes = errors > ALONG["error"] * errors.max(axis=1, keepdims=True)
        some = np.flatnonzero(rough & blind)
        spread = self._rule.ranges(logs[some])
        axes[some] = spread >= ALONG["range"] * spread.max(axis=1, keepdims=True)
        axes &= rough[:, None]
        return axes & divisible(self._cells)

    def _exponents(self, dual: float) -> Array:
        return self.integrand.exponents(self._looked, self.owners, dual)

    def _refuse_undefined(self, lively: Array) -> None:
        if (self._undefined & lively).any():
            raise FloatingPointError(
                "the loss is not defined for scenarios of the support that matter; keep decision "
                "and data inside its domain (bounds on the variables, a support for the uncertain "
                "parameters)."
            )

    # -------------------------------------------------------------- how far
    def _needed(self, dual: float) -> Array:
        """How far the cells of each sample must reach, (K,); infinite where g rises without end."""
        points, size = self._scan_points, len(self.samples)
        g = self.integrand.exponents(self._scanned, self.samples, dual)
        g = np.where(self._scan_inside, g, -np.inf)
        away = np.abs(points).max(axis=2)
        near = np.where(g > g.max(axis=1, keepdims=True) - CUT, away, 0.0).max(axis=1)
        needed = np.maximum(LEAST_REACH, 2.0 * near)
        rays, distance = (a.reshape(size, -1, len(OCTAVES)) for a in (g, away))
        # Beyond some distance nothing of g is left but rounding: the last steps before tell.
        defined = np.cumprod(np.abs(np.nan_to_num(rays, nan=np.inf)) < LARGEST, axis=2).sum(axis=2)
        last = np.maximum(defined - 1, 1)[:, :, None]
        ahead, behind = (
            np.take_along_axis(rays, last - shift, axis=2)[:, :, 0] for shift in (0, 1)
        )
        inside = self._scan_inside.reshape(rays.shape)[:, :, -1]
        grows = inside & (np.diff(distance, axis=2)[:, :, -1] > 0)
        rises = grows & (defined > 1) & (ahead > behind)
        rises |= grows & np.isposinf(rays).any(axis=2)
        return np.where(rises.any(axis=1), np.inf, needed)

    def _extend(self, needed: Array) -> None:
        """Begin anew where the cells do not reach far enough."""
        short = np.flatnonzero(needed > self._reach)
        if not len(short):
            return
        reach = LEAST_REACH * 4.0 ** np.ceil(np.log(needed[short] / LEAST_REACH) / np.log(4.0))
        self._reach[short] = reach
        self._take(short, [self.region.roots(int(self.samples[i]), self._reach[i]) for i in short])

    # -------------------------------------------------------------- changes of the cells
    def _take(self, which: Array, cells: list[Array], fresh: bool = False) -> None:
        """Replace the cells of some samples, given by position."""
        width = 2 if self.region.dimension == 1 else 6
        new = np.concatenate([np.zeros((0, width)), *cells])
        position = np.repeat(which, [len(part) for part in cells]).astype(int)
        if fresh:
            empty = np.zeros((0, width))
            self._cells, self._jacobian = empty, np.zeros((0, self._rule.size))
            self._holes = self._undefined = np.zeros(0, dtype=bool)
            self._looked = tuple(
                np.zeros((0, self._rule.size, *part.shape[2:])) for part in self._scanned
            )
        keep = ~np.isin(self._position, which)
        self._join(np.flatnonzero(keep), position, new)

    def _halve(self, axes: Array) -> None:
        """Halve cells along the marked axes (C, r)."""
        cut = axes.any(axis=1)
        parts, source = halved(self._cells[cut], axes[cut])
        self._join(np.flatnonzero(~cut), self._position[cut][source], parts)

    def _join(self, keep: Array, position: Array, cells: Array) -> None:
        """Those of the cells that are kept, and new ones."""
        moves, jacobian = cell_points(cells, self._mesh)
        flat = (moves * self._deviation).reshape(-1, self.region.dimension)
        looked = self.integrand.look(np.repeat(self.samples[position], self._rule.size), flat)
        shape = (len(cells), self._rule.size)
        looked = tuple(part.reshape(*shape, *part.shape[1:]) for part in looked)
        undefined = np.any(np.isnan(looked[0]), axis=1)
        looked = _defined(looked)
        holes = np.any(np.isneginf(looked[0]), axis=1)
        order = np.argsort(np.concatenate([self._position[keep], position]), kind="stable")

        def joined(old: Array, new: Array) -> Array:
            return np.concatenate([old[keep], new])[order]

        self._cells = joined(self._cells, cells)
        self._jacobian = joined(self._jacobian, jacobian)
        self._holes = joined(self._holes, holes)
        self._undefined = joined(self._undefined, undefined)
        self._looked = tuple(joined(*pair) for pair in zip(self._looked, looked))
        self._position = joined(self._position, position)
        self._last = None


def _defined(looked: tuple[Array, ...]) -> tuple[Array, ...]:
    """With -inf for NaN: a scenario without a loss has no weight."""
    return (np.where(np.isnan(looked[0]), -np.inf, looked[0]), *looked[1:])


class Normal:
    """The reference as an integrand."""

    def look(self, owner: Array, moves: Array) -> tuple[Array, ...]:
        return (-0.5 * (moves**2).sum(axis=1),)

    def exponents(self, looked: tuple[Array, ...], owner: Array, dual: float) -> Array:
        return looked[0]


def normal_log_masses(region: CellRegion) -> Array:
    """The log of the mass that N(0, I) gives to the region of each sample, (N,)."""
    if not len(region.normals):
        finite = np.isfinite(region.low) | np.isfinite(region.high)
        masses = np.zeros(finite.shape)
        if finite.any():
            masses[finite] = truncated_normal(region.low[finite], region.high[finite]).log_mass
        return masses.sum(axis=1)
    everyone, unit = np.arange(len(region.low)), np.ones(region.dimension)
    found = CellIntegral(Normal(), region, unit, everyone, REFERENCE).at(0.0)
    return found.log_mass - region.dimension * HALF_LOG_2PI
