"""The moves of a sample cut into cells, and the supports of all samples as regions.

In units of the reference's deviations, t = y / sigma. A cell of the line is an interval; one of the
plane lies between two parallels u0 <= t_1 <= u1 and two lines, t_2 from lo(t_1) to hi(t_1): a
rectangle, or a trapezoid beside the oblique edge of a polyhedron. The sample itself is a corner:
costs have their kinks there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from wdro_model.objectives.integration.frame import Frame
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost

MARKS = (1.5, 6.0)
"""Ends of the first cells on either side of the sample, in deviations."""
SHARE = 0.37
"""One more end, as a share of the way to the last one; uneven: kinks are often at round numbers."""
THIN = 1e-12
"""Cells are not cut into parts that are thinner, relative to the distance from the sample."""
OCTAVES = 2.0 ** np.arange(0, 45)
"""Distances of the scan from the sample, in deviations."""
DIRECTIONS = 16
"""Directions of the scan in the plane."""


@dataclass(frozen=True)
class CellRegion:
    """The supports of all samples around them: a box cut by half-planes."""

    low: Array
    """Bounds (N, r) of t; infinite where there is none."""
    high: Array
    normals: Array
    """Half-planes normals @ t <= slack; (m, r)."""
    slack: Array
    """(N, m)"""
    creases: Array
    """Lines creases @ t = 0 along which the cost has kinks, (q, r), beside the axes."""

    @property
    def dimension(self) -> int:
        return self.low.shape[1]

    def contains(self, owner: Array, t: Array) -> Array:
        """True for the points t (B, r) of the samples owner (B,) within the half-planes."""
        if not len(self.normals):
            return np.ones(len(t), dtype=bool)
        return np.all(t @ self.normals.T <= self.slack[owner], axis=1)

    def scan(self, owner: Array) -> Array:
        """Points (K, P, r) on rays from the samples at doubling distances, within the bounds."""
        if self.dimension == 1:
            rays = np.array([[1.0], [-1.0]])
        else:
            angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
            rays = np.round(np.stack([np.cos(angles), np.sin(angles)], axis=1), 15)
        points = (rays[:, None] * OCTAVES[:, None]).reshape(1, -1, self.dimension)
        return np.clip(points, self.low[owner][:, None], self.high[owner][:, None])

    def roots(self, sample: int, reach: float) -> Array:
        """The first cells of a sample, out to some distance: (C, 2) intervals or (C, 6)."""
        low, high = np.maximum(self.low[sample], -reach), np.minimum(self.high[sample], reach)
        axes = [breaks(*ends) for ends in zip(low, high)]
        if self.dimension == 1:
            return np.stack([axes[0][:-1], axes[0][1:]], axis=1)
        rectangles = [
            (*one, *other) for one, other in product(pairwise(axes[0]), pairwise(axes[1]))
        ]
        cells = np.array([(u0, u1, lo, lo, hi, hi) for u0, u1, lo, hi in rectangles])
        if not len(self.normals) and not len(self.creases):
            return cells.reshape(-1, 6)
        parts = []
        for u0, u1, lo, _, hi, _ in cells.reshape(-1, 6):
            corners = np.array([(u0, lo), (u1, lo), (u1, hi), (u0, hi)])
            polygons = [clip_polygon(corners, self.normals, self.slack[sample])]
            for crease in self.creases:
                sides = (crease[None], -crease[None])
                polygons = [clip_polygon(p, s, np.zeros(1)) for p in polygons for s in sides]
            parts += [cell for polygon in polygons for cell in split_polygon(polygon)]
        return np.array(parts).reshape(-1, 6)


def region_of(frame: Frame, cost: BoundCost) -> CellRegion:
    """The region of a frame whose supports are boxes and polyhedra."""
    joint, deviation = frame.joint, np.sqrt(frame.spread)
    everyone = np.arange(joint.size)
    bounds = frame.bounds(everyone)
    shape = (joint.size, frame.dimension)
    low, high = bounds if bounds is not None else (np.full(shape, -np.inf), np.full(shape, np.inf))
    low, high = low / deviation, high / deviation
    walls, limits = frame.walls
    normal = frame.pulled(walls) * deviation
    size = np.linalg.norm(normal, axis=1)
    seen = size > 0
    normal = normal[seen] / size[seen, None]
    slack = np.maximum(limits - joint.matrix @ walls.T, 0.0)[:, seen] / size[seen]
    if frame.dimension == 1 and len(normal):
        high = np.minimum(high[:, 0], np.min(slack, axis=1, where=normal.T > 0, initial=np.inf))
        low = np.maximum(low[:, 0], -np.min(slack, axis=1, where=normal.T < 0, initial=np.inf))
        low, high, normal, slack = low[:, None], high[:, None], normal[:0], slack[:, :0]
    creases = np.zeros((0, frame.dimension))
    if cost.exponent == np.inf and frame.dimension == 2:
        one, other = cost.coordinate_scales[frame.moving] * deviation
        creases = np.array([(one, -other), (one, other)])
    return CellRegion(low, high, normal, slack, creases)


def breaks(low: float, high: float) -> Array:
    """Ends of the first cells along an axis between low <= 0 <= high, 0 among them."""
    ends = [0.0]
    for end in (low, high):
        size = abs(end)
        if size > 0:
            marks = {SHARE * size, size, *(m for m in MARKS if m < 0.7 * size)}
            ends += [float(np.copysign(m, end)) for m in marks]
    return np.array(sorted(ends))


# ------------------------------------------------------------------ cells
def node_positions(cells: Array, mesh: list[Array]) -> tuple[Array, Array]:
    """Images (C, S, r) of the nodes `mesh` of the unit cell, and the log Jacobian there, (C, S)."""
    start, width = cells[:, :1], cells[:, 1:2] - cells[:, :1]
    first = start + width * mesh[0]
    jacobian = np.broadcast_to(np.log(width), first.shape)
    if len(mesh) == 1:
        return first[:, :, None], jacobian
    low = cells[:, 2:3] * (1 - mesh[0]) + cells[:, 3:4] * mesh[0]
    height = (cells[:, 4:5] - cells[:, 2:3]) * (1 - mesh[0])
    height = height + (cells[:, 5:6] - cells[:, 3:4]) * mesh[0]
    second = low + height * mesh[1]
    return np.stack([first, second], axis=2), jacobian + np.log(height)


def divisible(cells: Array) -> Array:
    """A mask (C, r) of the axes along which cells are thick enough to be cut."""
    ends = [cells[:, :2]]
    if cells.shape[1] == 6:
        ends.append(cells[:, [2, 4]] + cells[:, [3, 5]])
    return np.stack([np.ptp(end, axis=1) > THIN * np.abs(end).max(axis=1) for end in ends], axis=1)


def halve_cells(cells: Array, axes: Array) -> tuple[Array, Array]:
    """Cells cut in the middle along the marked axes (C, r), and the cell each came from."""
    source = np.arange(len(cells))
    for axis in range(axes.shape[1]):
        cut = axes[source, axis]
        lower, upper = cells[cut].copy(), cells[cut].copy()
        if axis == 0:
            middle = 0.5 * (lower[:, 0] + lower[:, 1])
            lower[:, 1] = upper[:, 0] = middle
            if cells.shape[1] == 6:
                for side in (2, 4):
                    between = 0.5 * (lower[:, side] + lower[:, side + 1])
                    lower[:, side + 1] = upper[:, side] = between
        else:
            for end in (0, 1):
                between = 0.5 * (lower[:, 2 + end] + lower[:, 4 + end])
                lower[:, 4 + end] = upper[:, 2 + end] = between
        cells = np.concatenate([cells[~cut], lower, upper])
        source = np.concatenate([source[~cut], source[cut], source[cut]])
    return cells, source


# ------------------------------------------------------------------ polygons
def clip_polygon(corners: Array, normals: Array, slack: Array) -> Array:
    """The part of a convex polygon, corners (V, 2) in order, within half-planes."""
    for normal, limit in zip(normals, slack):
        excess = corners @ normal - limit
        if len(corners) == 0 or (excess <= 0).all():
            continue
        kept = []
        for i, here in enumerate(corners):
            before, over, under = corners[i - 1], excess[i], excess[i - 1]
            if (over > 0) != (under > 0):
                kept.append(before + (here - before) * (under / (under - over)))
            if over <= 0:
                kept.append(here)
        corners = np.array(kept).reshape(-1, 2)
    return corners


def split_polygon(corners: Array) -> list[tuple[float, ...]]:
    """A convex polygon, corners (V, 2) in order, as cells between its corners along t_1."""
    if len(corners) < 3:
        return []
    u = np.unique(corners[:, 0])
    size = max(np.abs(corners).max(), 1e-300)
    u = u[np.append(True, np.diff(u) > THIN * size)]
    edges = [(corners[i - 1], corners[i]) for i in range(len(corners))]
    cells = []
    for u0, u1 in pairwise(u):
        sides = []
        for one, other in edges:
            (a, p), (b, q) = sorted((tuple(one), tuple(other)))
            if a < b and a <= u0 + THIN * size and b >= u1 - THIN * size:
                ends = [p + (q - p) * (end - a) / (b - a) for end in (u0, u1)]
                sides.append((sum(ends), *ends))
        if len(sides) < 2:
            continue
        low, high = min(sides), max(sides)
        if high[0] - low[0] > THIN * size:
            cells.append((u0, u1, low[1], low[2], max(high[1], low[1]), max(high[2], low[2])))
    return [tuple(float(v) for v in one) for one in cells]
