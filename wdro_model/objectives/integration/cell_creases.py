"""Straight kinks across cells of the plane: found in the values at the nodes, and cut along.

On a line of nodes with a kink between two of them, parabolas through three nodes on either side
meet at the kink. Where the places on several lines of a cell, of both directions, lie on one
straight line, the cell is cut there into trapezoids, and the function is smooth on both sides:
halving would take as many cells as the kink is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
