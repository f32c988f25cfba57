"""The moves of a sample cut into cells, and the Gauss-Kronrod rules on a unit cell.

In units of the reference's deviations, t = y / sigma. A cell of the line is an interval; one of the
plane lies between two parallels u0 <= t_1 <= u1 and two lines, t_2 from lo(t_1) to hi(t_1): a
rectangle, or a trapezoid beside the oblique edge of a polyhedron. The sample itself is a corner:
costs have their kinks there.

The higher rule minus the embedded Gauss rule, line by line along each axis, estimates the error and
tells the axis that causes it. A density exp(g) may be much narrower than the nodes are apart: g
itself is then interpolated between them, up to the corners, and its last Legendre coefficients say
how far that can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import numpy as np
from numpy.polynomial import legendre

from wdro_model.objectives.integration.frame import Frame
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.supports import Polyhedron

MARKS = (1.5, 6.0)
"""First cells end at these deviations from the sample, on either side, and at a share of the end
(uneven: kinks like round numbers)."""
SHARE = 0.37
THIN = 1e-12
"""Cells are not cut into parts that are thinner, relative to the distance from the sample."""
OCTAVES = 2.0 ** np.arange(0, 45)
DIRECTIONS = 16
"""The scan: distances from the sample, and directions in the plane."""


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

    def inside(self, owner: Array, t: Array) -> Array:
        """Which points t (B, r) of the samples owner (B,) respect the half-planes."""
        if not len(self.normals):
            return np.ones(len(t), dtype=bool)
        return np.all(t @ self.normals.T <= self.slack[owner], axis=1)

    def scan(self, owner: Array) -> Array:
        """Points (K, P, r) at growing distances from each sample, within its bounds, by rays."""
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
        found = []
        for u0, u1, lo, _, hi, _ in cells.reshape(-1, 6):
            corners = np.array([(u0, lo), (u1, lo), (u1, hi), (u0, hi)])
            parts = [clipped_polygon(corners, self.normals, self.slack[sample])]
            for crease in self.creases:
                sides = (crease[None], -crease[None])
                parts = [clipped_polygon(p, side, np.zeros(1)) for p in parts for side in sides]
            found += [cell for part in parts for cell in trapezoids(part)]
        return np.array(found).reshape(-1, 6)


def region_of(frame: Frame, cost: BoundCost) -> CellRegion:
    """The region of a frame whose supports are boxes and polyhedra."""
    joint, deviation = frame.joint, np.sqrt(frame.spread)
    everyone = np.arange(joint.size)
    bounds = frame.bounds(everyone)
    shape = (joint.size, frame.dimension)
    low, high = bounds if bounds is not None else (np.full(shape, -np.inf), np.full(shape, np.inf))
    low, high = low / deviation, high / deviation
    normals, slacks = [np.zeros((0, frame.dimension))], [np.zeros((joint.size, 0))]
    for parameter, where in frame.coupled:
        support = parameter.support
        assert isinstance(support, Polyhedron)
        matrix = support.A.toarray() if hasattr(support.A, "toarray") else np.asarray(support.A)
        full = np.zeros((len(matrix), joint.dimension))
        full[:, where] = matrix
        mine = frame.pulled(full) * deviation
        size = np.linalg.norm(mine, axis=1)
        seen = size > 0
        slack = np.maximum(support.b - joint.matrix @ full.T, 0.0)
        normals.append(mine[seen] / size[seen, None])
        slacks.append(slack[:, seen] / size[seen])
    normal, slack = np.concatenate(normals), np.concatenate(slacks, axis=1)
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
    """Ends of the first cells between low <= 0 <= high."""
    found = [0.0]
    for end in (low, high):
        size = abs(end)
        if size > 0:
            marks = {SHARE * size, size, *(m for m in MARKS if m < 0.7 * size)}
            found += [float(np.copysign(m, end)) for m in marks]
    return np.array(sorted(found))


# ------------------------------------------------------------------ cells
def cell_points(cells: Array, mesh: list[Array]) -> tuple[Array, Array]:
    """Images (C, S, r) of points of the unit cell, and the log of the Jacobian there, (C, S)."""
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
    """Along which axes cells are thick enough to be cut, (C, r)."""
    ends = [cells[:, :2]]
    if cells.shape[1] == 6:
        ends.append(cells[:, [2, 4]] + cells[:, [3, 5]])
    return np.stack([np.ptp(end, axis=1) > THIN * np.abs(end).max(axis=1) for end in ends], axis=1)


def halved(cells: Array, axes: Array) -> tuple[Array, Array]:
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


def farthest(cells: Array) -> Array:
    """The largest coordinate of each cell, (C,)."""
    return np.abs(cells).max(axis=1)


# ------------------------------------------------------------------ polygons
def clipped_polygon(corners: Array, normals: Array, slack: Array) -> Array:
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


def trapezoids(corners: Array) -> list[tuple[float, ...]]:
    """A convex polygon, corners (V, 2) in order, as cells between its corners along t_1."""
    if len(corners) < 3:
        return []
    u = np.unique(corners[:, 0])
    size = max(np.abs(corners).max(), 1e-300)
    u = u[np.append(True, np.diff(u) > THIN * size)]
    edges = [(corners[i - 1], corners[i]) for i in range(len(corners))]
    found = []
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
            found.append((u0, u1, low[1], low[2], max(high[1], low[1]), max(high[2], low[2])))
    return [tuple(float(v) for v in one) for one in found]


# ------------------------------
# Tensor Gauss-Kronrod rules on a unit cell, and what their nodes say about the rest of the cell


GAUSS_POINTS = {1: 7, 2: 4}
"""Points of the embedded rule in one and in two dimensions."""
CAUTION = 2.0
"""How many times their last coefficients interpolated functions may be off."""


@dataclass(frozen=True)
class CellRule:
    """A rule with n points along each of r axes."""

    dimension: int
    nodes: Array
    """On [0, 1], (n,)."""
    weights: Array
    """Of the higher rule, (n,)."""
    excess: Array
    """Weights of the higher rule minus those of the embedded one, (n,)."""
    between: Array
    """Values at the nodes, between them and at the ends, from those at the nodes, (m, n)."""
    last: Array
    """The last two Legendre coefficients, (2, n)."""

    @property
    def size(self) -> int:
        """Nodes of a cell."""
        return len(self.nodes) ** self.dimension

    def mesh(self) -> list[Array]:
        """The coordinates of all nodes on the unit cell, r arrays (size,)."""
        mesh = np.meshgrid(*[self.nodes] * self.dimension, indexing="ij")
        return [axis.ravel() for axis in mesh]

    def product_weights(self) -> Array:
        """Those of all nodes, (size,)."""
        one = self.weights
        return one if self.dimension == 1 else np.outer(one, one).ravel()

    def integrate(self, density: Array) -> tuple[Array, Array]:
        """Integrals (C,) of densities given at the nodes (C, size), and errors by axis (C, r)."""
        n = len(self.nodes)
        if self.dimension == 1:
            return density @ self.weights, np.abs(density @ self.excess)[:, None]
        both = np.stack([self.weights, self.excess], axis=1)
        inner = (density.reshape(-1, n) @ both).reshape(-1, n, 2)
        across = density.reshape(-1, n, n).transpose(0, 2, 1).reshape(-1, n) @ self.excess
        first = np.abs(across).reshape(-1, n) @ self.weights
        second = np.abs(inner[:, :, 1]) @ self.weights
        return inner[:, :, 0] @ self.weights, np.stack([first, second], axis=1)

    def highest(self, logs: Array) -> Array:
        """How high functions, given at the nodes (C, size), may be within their cells, (C,)."""
        n, m = len(self.nodes), len(self.between)
        both = np.concatenate([self.between, self.last]).T
        lines = logs.reshape(-1, n) @ both
        finer, slack = lines[:, :m], np.abs(lines[:, m:]).sum(axis=1)
        if self.dimension == 1:
            return finer.max(axis=1) + _peak(finer, finer.argmax(axis=1)) + CAUTION * slack
        slack = slack.reshape(-1, n).max(axis=1)
        across = finer.reshape(-1, n, m).transpose(0, 2, 1).reshape(-1, n) @ both
        slack += np.abs(across[:, m:]).sum(axis=1).reshape(-1, m).max(axis=1)
        plane = across[:, :m].reshape(-1, m, m)  # second axis, first axis
        flat = plane.reshape(-1, m * m)
        second, first = np.divmod(flat.argmax(axis=1), m)
        cell = np.arange(len(plane))
        peak = _peak(plane[cell, second], first) + _peak(plane[cell, :, first], second)
        return flat[cell, second * m + first] + peak + CAUTION * slack

    def ranges(self, logs: Array) -> Array:
        """How much functions vary along lines in each axis, (C, r)."""
        n = len(self.nodes)
        cube = logs.reshape(-1, *[n] * self.dimension)
        parts = [np.ptp(cube, axis=1 + i) for i in range(self.dimension)]
        lines = n ** (self.dimension - 1)
        return np.stack([part.reshape(len(logs), lines).max(axis=1) for part in parts], axis=1)


def _peak(lines: Array, at: Array) -> Array:
    """How much higher parabolas through the highest points of lines and their neighbours may be."""
    row, last = np.arange(len(lines)), lines.shape[1] - 1
    inner = (at > 0) & (at < last)
    at = np.clip(at, 1, last - 1)
    bend = np.abs(lines[row, at - 1] - 2 * lines[row, at] + lines[row, at + 1])
    return np.where(inner, 0.25 * bend, 0.0)


@cache
def cell_rule(dimension: int) -> CellRule:
    """The rule for cells of one or two dimensions."""
    count = GAUSS_POINTS[dimension]
    gauss, low = legendre.leggauss(count)
    nodes = np.sort(np.concatenate([gauss, stieltjes_roots(count)]))
    # Exact for all polynomials up to the number of nodes; the rest follows from their place.
    n = len(nodes)
    moments = np.zeros(n)
    moments[0] = 2.0
    vander = legendre.legvander(nodes, n - 1)
    high = np.linalg.solve(vander.T, moments)
    excess = high.copy()
    excess[1::2] -= low
    ends = np.sort(np.concatenate([[-1.0, 1.0], nodes, 0.5 * (nodes[1:] + nodes[:-1])]))
    coefficients = np.linalg.inv(vander)
    between = legendre.legvander(ends, n - 1) @ coefficients
    return CellRule(
        dimension, 0.5 * (nodes + 1), 0.5 * high, 0.5 * excess, between, coefficients[-2:]
    )


def stieltjes_roots(count: int) -> Array:
    """The points that Kronrod adds to a Gauss rule: the roots of E with P_n E orthogonal to all
    polynomials of degree up to n."""
    points, weights = legendre.leggauss(2 * count + 2)
    own = weights * legendre.legval(points, np.eye(count + 1)[-1])
    powers = legendre.legvander(points, count + 1)
    # sum_j e_j <P_n P_j P_i> = 0 for i <= n, with e_(n+1) = 1.
    gram = powers[:, : count + 1].T @ (own[:, None] * powers)
    found = np.linalg.lstsq(gram[:, :-1], -gram[:, -1], rcond=None)[0]
    return np.sort(legendre.legroots(np.append(found, 1.0)).real)
