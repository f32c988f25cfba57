"""Integrals of exp(g_k) over one or two coordinates by adaptive cells, for many samples at once.

On a line of nodes with a kink between two of them, parabolas through three nodes on either side
meet at the kink. Where the places on several lines of a cell, of both directions, lie on one
straight line, the cell is cut there into trapezoids, and the function is smooth on both sides:
halving would take as many cells as the kink is long.

Whatever g looks like: cells are halved where an embedded rule disagrees with the rule, along the
axis that causes it, until the errors of a sample add up to less than a tolerance of its integral;
and where g, interpolated, may be so high between the nodes that the cell matters though its nodes
do not (a density much narrower than they are apart). Straight kinks are cut along
(`cell_creases`). A scan by octaves of the distance finds how far the cells must reach, and where g
rises without end.

What costs is the loss at the nodes. It is looked at once; the dual variable recombines what was
seen, errors are estimated anew, and cells are halved further only where that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

PLACES = 4
"""Places on a straight line that make a crease."""
STRAIGHT = 0.01
"""How far they may be off it, relative to the cell."""
LONG = 0.1
"""How far they spread along it, at least."""
VISIBLE_JUMP = 1e-5
"""Kinks of less effect on the exponent are left alone."""
SLIVER = 1e-9
"""Thinner parts of a cell are left out."""


@dataclass(frozen=True)
class Creases:
    """Lines first * t_1 + second * t_2 = offset, one for each cell."""

    found: Array
    """Which cells have one, (C,)."""
    first: Array
    second: Array
    offset: Array

    def __getitem__(self, which: Array) -> Creases:
        return Creases(self.found[which], self.first[which], self.second[which], self.offset[which])


def find_creases(logs: Array, cells: Array, nodes: Array) -> Creases:
    """Creases of functions given at the nodes (C, n * n) of cells (C, 6)."""
    n = len(nodes)
    cube = logs.reshape(-1, n, n)
    inner = kinks(cube.reshape(-1, n), nodes).reshape(-1, n)
    outer = kinks(cube.transpose(0, 2, 1).reshape(-1, n), nodes).reshape(-1, n)
    start, width = cells[:, :1], cells[:, 1:2] - cells[:, :1]
    base = cells[:, 2:3]
    height = np.maximum(cells[:, 4:5] - cells[:, 2:3], cells[:, 5:6] - cells[:, 3:4])
    share = np.concatenate([np.broadcast_to(nodes, inner.shape), outer], axis=1)
    across = np.concatenate([inner, np.broadcast_to(nodes, outer.shape)], axis=1)
    low = cells[:, 2:3] * (1 - share) + cells[:, 3:4] * share
    high = cells[:, 4:5] * (1 - share) + cells[:, 5:6] * share
    points = np.stack([share, (low + (high - low) * across - base) / height], axis=2)
    there = np.isfinite(points).all(axis=2)
    count = there.sum(axis=1)
    points = np.where(there[:, :, None], points, 0.0)
    center = points.sum(axis=1) / np.maximum(count, 1)[:, None]
    away = np.where(there[:, :, None], points - center[:, None], 0.0)
    spread = np.einsum("cpi,cpj->cij", away, away) / np.maximum(count, 1)[:, None, None]
    values, vectors = np.linalg.eigh(spread)
    normal = vectors[:, :, 0]
    straight = np.abs(np.einsum("cpi,ci->cp", away, normal)).max(axis=1) < STRAIGHT
    found = (count >= PLACES) & straight & (values[:, 1] > LONG**2)
    first, second = normal[:, 0] / width[:, 0], normal[:, 1] / height[:, 0]
    offset = (normal * center).sum(axis=1) + first * start[:, 0] + second * base[:, 0]
    return Creases(found, first, second, offset)


def kinks(lines: Array, nodes: Array) -> Array:
    """Where functions on [0, 1], given at the nodes (M, n), have their strongest kink; NaN for
    none."""
    best, place = np.full(len(lines), VISIBLE_JUMP), np.full(len(lines), np.nan)
    for j in range(2, len(nodes) - 3):
        a, b = nodes[j], nodes[j + 1]
        left, right = slice(j - 2, j + 1), slice(j + 1, j + 4)

        def difference(at: float, left: slice = left, right: slice = right) -> Array:
            """Left parabola minus right one."""
            return lines[:, left] @ cardinal(nodes[left], at) - lines[:, right] @ cardinal(
                nodes[right], at
            )

        da, dm, db = difference(a), difference(0.5 * (a + b)), difference(b)
        jump = np.abs(db - da)
        # The root of the parabola through the three differences, near that of the chord.
        bend = 2 * (da - 2 * dm + db)
        slope = -3 * da + 4 * dm - db
        root = -da / (db - da)
        for _ in range(3):
            root = root - (da + slope * root + bend * root**2) / (slope + 2 * bend * root)
        good = (da * db <= 0) & (jump > best) & (root >= -0.05) & (root <= 1.05)
        best = np.where(good, jump, best)
        place = np.where(good, a + (b - a) * root, place)
    return place


def cardinal(nodes: Array, at: float) -> Array:
    """Weights of three values for the parabola through them at a point."""
    p, q, r = nodes
    return np.array(
        [
            (at - q) * (at - r) / ((p - q) * (p - r)),
            (at - p) * (at - r) / ((q - p) * (q - r)),
            (at - p) * (at - q) / ((r - p) * (r - q)),
        ]
    )


def cut_along(cells: Array, lines: Creases) -> tuple[Array, Array]:
    """The parts of cells (C, 6) on either side of their lines, and the cell each came from."""

    def level(u: Array, v: Array) -> Array:
        return lines.first * u + lines.second * v - lines.offset

    u0, u1, lo0, lo1, hi0, hi1 = cells.T
    below, above = (level(u0, lo0), level(u1, lo1)), (level(u0, hi0), level(u1, hi1))
    marks = [np.zeros(len(cells)), np.ones(len(cells))]
    for start, end in (below, above):
        crossing = start / (start - end)
        marks.append(np.where(start * end < 0, crossing, 1.0))
    ends = np.sort(np.stack(marks, axis=1), axis=1)
    parts, source = [], []

    def between(pair: tuple[Array, Array], share: Array) -> Array:
        return pair[0] + (pair[1] - pair[0]) * share

    for i in range(3):
        a, b = ends[:, i], ends[:, i + 1]
        wide = b - a > SLIVER
        middle = 0.5 * (a + b)
        crossed = between(below, middle) * between(above, middle) < 0
        u, lo, hi, at = [], [], [], []
        for end in (a, b):
            u.append(between((u0, u1), end))
            lo.append(between((lo0, lo1), end))
            hi.append(between((hi0, hi1), end))
            under, over = between(below, end), between(above, end)
            share = np.clip(np.nan_to_num(under / (under - over), nan=0.5), 0.0, 1.0)
            at.append(lo[-1] + (hi[-1] - lo[-1]) * share)
        whole = np.stack([*u, *lo, *hi], axis=1)
        lower, upper = np.stack([*u, *lo, *at], axis=1), np.stack([*u, *at, *hi], axis=1)
        for geometry, some in (
            (whole, wide & ~crossed),
            (lower, wide & crossed),
            (upper, wide & crossed),
        ):
            height = (geometry[:, 4:] - geometry[:, 2:4]).max(axis=1)
            some = np.flatnonzero(some & (height > SLIVER * (hi0 - lo0 + hi1 - lo1)))
            parts.append(geometry[some])
            source.append(some)
    return np.concatenate(parts), np.concatenate(source)


# ------------------------------
# Integrals of exp(g_k) over one or two coordinates by adaptive cells, for many samples at once


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


@dataclass(frozen=True)
class Cuts:
    """Cells that are halved along axes, (C, r), and some that are cut along creases."""

    axes: Array
    creased: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    lines: Creases | None = None

    @property
    def none(self) -> bool:
        return not self.axes.any() and not len(self.creased)


NOWHERE = Cuts(np.zeros((0, 1), dtype=bool))


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
            found, cuts, beyond = self._measured(dual)
            if beyond.any():
                needed = np.where(beyond, 4 * self._reach, 0.0)
                if (needed > FARTHEST).any():
                    return self._infinite(dual)
                self._extend(needed)
            elif found.diverges or cuts.none:
                break
            else:
                self._cut(cuts)
        return found

    def _infinite(self, dual: float) -> Resolved:
        none = np.full(len(self.samples), np.inf)
        return Resolved(dual, none, np.zeros((0, 0)), np.zeros(0), none)

    def _measured(self, dual: float) -> tuple[Resolved, Cuts, Array]:
        """The integrals on the cells as they are, where to cut them, and the samples (K,) whose
        cells do not reach far enough."""
        rule, position, size = self._rule, self._position, len(self.samples)
        first = np.searchsorted(position, np.arange(size))
        logs = self._exponents(dual) + self._jacobian
        heights = logs.max(axis=1)
        top = np.maximum.reduceat(heights, first)
        if np.isposinf(top).any():
            return self._infinite(dual), NOWHERE, np.zeros(size, dtype=bool)
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
            return found, NOWHERE, beyond
        return found, self._cuts(errors, worst, error, blind, logs), beyond

    def _cuts(self, errors: Array, worst: Array, error: Array, blind: Array, logs: Array) -> Cuts:
        """Where to cut: the cells with the largest errors, so that the rest is tolerable."""
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
        axes &= divisible(self._cells)
        if self.region.dimension == 1:
            return Cuts(axes)
        some = np.flatnonzero(axes.any(axis=1) & ~blind & ~self._holes)
        lines = find_creases(logs[some], self._cells[some], self._rule.nodes)
        creased = some[lines.found]
        axes[creased] = False
        return Cuts(axes, creased, lines[lines.found])

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

    def _cut(self, cuts: Cuts) -> None:
        keep = np.logical_not(np.any(cuts.axes, axis=1))
        which = np.flatnonzero(~keep)
        parts, source = halved(self._cells[which], cuts.axes[which])
        position = self._position[which][source]
        if cuts.lines is not None:
            keep[cuts.creased] = False
            more, source = cut_along(self._cells[cuts.creased], cuts.lines)
            parts = np.concatenate([parts, more])
            position = np.concatenate([position, self._position[cuts.creased][source]])
        self._join(np.flatnonzero(keep), position, parts)

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
