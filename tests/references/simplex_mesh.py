"""Smoothed values by adaptive quadrature on meshes of intervals or triangles, NumPy and SciPy only.

    F(l) = l rho + eps mean_k log E exp((f(z) - l c(xi_k, z)) / eps),   z ~ N(xi_k, sigma^2) on Xi

in one or two coordinates. The support, cut to a window outside of which nothing weighs, is divided
along the lines on which the loss or the cost has a kink, and the cells are bisected until halves
and wholes agree. Loss and cost do not depend on l: their values at the nodes are kept, so another l
costs a sum of exponentials, and a few more cells where it needs them. All in log space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import log_ndtr

Array = np.ndarray
Line = tuple[Array, float]
"""a, b: the points z with <a, z> = b."""

DEPTH = 60.0
"""What lies so far below the largest exponent does not count."""
SEEN = 30.0
"""A cell that may reach up to so far below the largest exponent is resolved."""
SPREAD = 20.0
"""Variation of the exponent over a cell that is resolved."""
HOPE = 0.25
"""Share of its variation by which the exponent may exceed what is known of it in a cell."""
MOST_CELLS = 60_000
ROUNDS = 80


def _rule(d: int) -> tuple[Array, Array]:
    """Barycentric nodes (q, d + 1) and weights (q,) that sum to 1 on a simplex."""
    if d == 1:
        t, w = np.polynomial.legendre.leggauss(10)
        t, w = (t + 1) / 2, w / 2
        return np.stack([1 - t, t], axis=1), w
    t, w = np.polynomial.legendre.leggauss(6)
    t, w = (t + 1) / 2, w / 2
    u, v = (a.ravel() for a in np.meshgrid(t, t, indexing="ij"))
    weights = 2 * np.outer(w * (1 - t), w).ravel()
    return np.stack([u, (1 - u) * v, (1 - u) * (1 - v)], axis=1), weights


RULES = {d: _rule(d) for d in (1, 2)}


# ------------------------------------------------------------------ cells between kinks
def cut(polygon: Array, line: Line, both: bool) -> list[Array]:
    """The parts of a convex polygon on the two sides of a line; only <a, z> <= b if not both."""
    a, b = line
    size = np.abs(polygon - polygon[0]).max() * np.abs(a).sum() + 1e-300
    height = polygon @ a - b
    height[np.abs(height) < 1e-12 * size] = 0.0
    parts = []
    for sign in (1.0, -1.0) if both else (1.0,):
        h, kept = sign * height, []
        for i in range(len(polygon)):
            j = (i + 1) % len(polygon)
            if h[i] <= 0:
                kept.append(polygon[i])
            if h[i] * h[j] < 0:
                t = h[i] / (h[i] - h[j])
                kept.append(polygon[i] + t * (polygon[j] - polygon[i]))
        if len(kept) >= 3 and np.any(h < 0):
            parts.append(np.array(kept))
    return parts


def triangles(polygon: Array) -> Array:
    """A fan (n, 3, 2) around the centroid."""
    middle = np.broadcast_to(polygon.mean(axis=0), polygon.shape)
    return np.stack([middle, polygon, np.roll(polygon, -1, axis=0)], axis=1)


def cells(lower: Array, upper: Array, halves: Sequence[Line], lines: Sequence[Line]) -> Array:
    """Simplices (n, d + 1, d) that fill a window, cut by half spaces, with no line inside one."""
    if len(lower) == 1:
        ends = [b / a[0] for a, b in lines if a[0] != 0]
        for a, b in halves:
            if a[0] > 0:
                upper = np.minimum(upper, b / a[0])
            elif a[0] < 0:
                lower = np.maximum(lower, b / a[0])
        inside = sorted({e for e in ends if lower[0] < e < upper[0]})
        knots = np.array([lower[0], *inside, upper[0]])
        return np.stack([knots[:-1], knots[1:]], axis=1)[:, :, None]
    (p, q), (r, s) = lower, upper
    polygons = [np.array([[p, q], [r, q], [r, s], [p, s]])]
    for half in halves:
        polygons = [part for one in polygons for part in cut(one, half, both=False)]
    for line in lines:
        polygons = [part for one in polygons for part in cut(one, line, both=True)]
    return np.concatenate([triangles(one) for one in polygons])


def volumes(cells: Array) -> Array:
    """Lengths or areas of simplices (n, d + 1, d)."""
    edges = cells[:, 1:] - cells[:, :1]
    if edges.shape[2] == 1:
        return np.abs(edges[:, 0, 0])
    return np.abs(edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0]) / 2


# ------------------------------------------------------------------ the integrals
@dataclass(frozen=True)
class Block:
    """A loss and a cost in one or two coordinates, with the lines on which they have kinks."""

    loss: Callable[[Array], Array]
    """(m, d) -> (m,)."""
    cost: Callable[[Array], Array]
    """Of moves z - xi, (m, d) -> (m,)."""
    samples: Array
    """(N, d)."""
    sigma: Array
    """(d,)."""
    lower: Array
    upper: Array
    halves: tuple[Line, ...] = ()
    """<a, z> <= b, beside the bounds."""
    lines: tuple[Line, ...] = ()
    """Kinks of the loss."""
    directions: tuple[Array, ...] = ()
    """Kinks of the cost: lines through each sample, by their normals."""
    points: tuple[Array, ...] = ()
    """Single points at which the loss is not smooth."""

    @property
    def d(self) -> int:
        return self.samples.shape[1]


@dataclass
class Moments:
    """log E exp((f - l c)/eps) for each sample, the tilted mean and variance of c, the error."""

    logs: Array
    cost: Array
    variance: Array
    error: Array
    """Of the logarithms: the disagreement of cells and their halves."""


class Unresolved(Exception):
    """The mesh grew too large."""


@dataclass
class Mesh:
    """Cells of all samples, each with its two halves and what is known at their nodes."""

    block: Block
    epsilon: float
    windows: Array
    """(N, 2, d)."""
    tolerance: float
    dual: float
    """The l at which cells were last looked at."""
    owner: Array = field(init=False)
    whole: Array = field(init=False)
    """(n, d + 1, d)."""
    halves: Array = field(init=False)
    """(n, 2, d + 1, d)."""
    known: Array = field(init=False)
    """(n, 3, q, 3): loss, cost, log density at the nodes of the cell and of its halves."""
    corners: Array = field(init=False)
    """(n, 2, m, 3): the same at corners and midpoints of the halves, to choose the next cuts."""

    def __post_init__(self) -> None:
        block, found, owner = self.block, [], []
        for k, (low, high) in enumerate(self.windows):
            xi = block.samples[k]
            normals = [np.eye(block.d)[i] for i in range(block.d)]
            lines = [(a, float(a @ xi)) for a in [*normals, *block.directions]]
            lines += [(a, float(a @ p)) for a in normals for p in block.points]
            mine = cells(low, high, block.halves, [*block.lines, *lines])
            found.append(mine)
            owner.append(np.full(len(mine), k))
        whole = np.concatenate(found)
        owner = np.concatenate(owner)
        real = volumes(whole) > 0
        self._add(whole[real], owner[real], None, None)
        self.owner, self.whole, self.halves, self.known, self.corners = self._new
        for _ in range(2):
            self._refine(np.ones(len(self.owner), dtype=bool))

    # -------------------------------------------------------------- values at the nodes
    def _at(self, points: Array, owner: Array) -> Array:
        """Loss, cost and log density (..., 3) at points (n, m, d) of samples (n,)."""
        block, flat = self.block, points.reshape(-1, self.block.d)
        moves = flat - np.repeat(block.samples[owner], points.shape[1], axis=0)
        density = -0.5 * ((moves / block.sigma) ** 2).sum(axis=1)
        density -= np.log(block.sigma * np.sqrt(2 * np.pi)).sum()
        return np.stack([block.loss(flat), block.cost(moves), density], -1).reshape(
            *points.shape[:2], 3
        )

    def _at_corners(self, simplices: Array, owner: Array) -> Array:
        if self.block.d == 1:
            return self._at(simplices, owner)
        middles = [(simplices[:, i] + simplices[:, (i + 1) % 3]) / 2 for i in range(3)]
        return self._at(np.concatenate([simplices, np.stack(middles, axis=1)], axis=1), owner)

    def _split(self, simplices: Array, edges: Array) -> Array:
        """Halves (n, 2, d + 1, d) of simplices along their edges (n,), edge i from i to i + 1."""
        rows = np.arange(len(simplices))
        ends = edges, (edges + 1) % simplices.shape[1]
        middle = (simplices[rows, ends[0]] + simplices[rows, ends[1]]) / 2
        out = np.repeat(simplices[:, None], 2, axis=1)
        for half in (0, 1):
            out[rows, half, ends[1 - half]] = middle
        return out

    def _edges(self, simplices: Array, corners: Array) -> Array:
        """The edge along which the exponent varies most, by corners (n, 6, 3)."""
        if self.block.d == 1:
            return np.zeros(len(corners), dtype=int)
        rows, g = np.arange(len(corners)), self._exponent(corners)
        ends = np.stack([g[:, [i, (i + 1) % 3]] for i in range(3)], axis=1)
        bend = np.abs(ends.sum(axis=2) - 2 * g[:, 3:])
        varied = bend + np.abs(ends[..., 0] - ends[..., 1])
        lengths = np.linalg.norm(simplices - np.roll(simplices, -1, axis=1), axis=2)
        most, longest = np.argmax(varied, axis=1), np.argmax(lengths, axis=1)
        # Humps between the corners are not seen: cells do not get thinner and thinner for them.
        long = varied[rows, longest] > 0.1 * varied[rows, most]
        return np.where(long, longest, most)

    def _add(self, whole: Array, owner: Array, nodes: Array | None, corners: Array | None) -> None:
        bary, _ = RULES[self.block.d]
        if nodes is None:
            nodes = self._at(bary @ whole, owner)
            corners = self._at_corners(whole, owner)
            lengths = np.linalg.norm(whole - np.roll(whole, -1, axis=1), axis=2)
            edges = np.argmax(lengths, axis=1) if self.block.d == 2 else np.zeros(len(whole), int)
        else:
            edges = self._edges(whole, corners)
        halves = self._split(whole, edges)
        parts = [self._at(bary @ halves[:, i], owner) for i in (0, 1)]
        ends = np.stack([self._at_corners(halves[:, i], owner) for i in (0, 1)], axis=1)
        self._new = owner, whole, halves, np.stack([nodes, *parts], axis=1), ends

    def _refine(self, marked: Array) -> None:
        """Each marked cell gives way to its halves."""
        owner = np.repeat(self.owner[marked], 2)
        whole = self.halves[marked].reshape(-1, *self.whole.shape[1:])
        nodes = self.known[marked][:, 1:].reshape(-1, *self.known.shape[2:])
        corners = self.corners[marked].reshape(-1, *self.corners.shape[2:])
        self._add(whole, owner, nodes, corners)
        new, keep = self._new, ~marked
        old = self.owner, self.whole, self.halves, self.known, self.corners
        joined = [np.concatenate([a[keep], b]) for a, b in zip(old, new)]
        self.owner, self.whole, self.halves, self.known, self.corners = joined

    # -------------------------------------------------------------- one l
    def _exponent(self, known: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            g = (known[..., 0] - self.dual * known[..., 1]) / self.epsilon + known[..., 2]
        return np.clip(np.nan_to_num(g, nan=-1e300), -1e300, 1e300)

    def moments(self, dual: float) -> Moments:
        """The integrals at a multiplier, to the tolerance."""
        self.dual = dual
        for _ in range(ROUNDS):
            result, marked = self._sums()
            if not marked.any():
                return result
            if len(self.owner) + marked.sum() > MOST_CELLS:
                raise Unresolved(f"{len(self.owner)} cells")
            self._refine(marked)
        raise Unresolved(f"{ROUNDS} rounds")

    def _sums(self) -> tuple[Moments, Array]:
        size = len(self.windows)
        _, weights = RULES[self.block.d]
        g = self._exponent(self.known)
        area = np.maximum(volumes(self.whole), 1e-300)
        scale = np.log(area)[:, None] + np.log([1.0, 0.5, 0.5])
        terms = g + scale[..., None] + np.log(weights)
        top_of = terms.max(axis=(1, 2))
        top = np.full(size, -np.inf)
        np.maximum.at(top, self.owner, top_of)
        terms = np.exp(terms - top[self.owner][:, None, None])
        whole, halves = terms[:, 0].sum(axis=1), terms[:, 1:].sum(axis=(1, 2))
        costs = self.known[:, 1:, :, 1]
        first = (terms[:, 1:] * costs).sum(axis=(1, 2))
        second = (terms[:, 1:] * costs**2).sum(axis=(1, 2))

        def by_sample(values: Array) -> Array:
            return np.bincount(self.owner, values, minlength=size)

        # Where no half weighs anything yet beside a node of its whole, the cell is coarse.
        total, wrong = np.maximum(by_sample(halves), 1e-300), np.abs(whole - halves)
        mean = by_sample(first) / total
        variance = np.maximum(by_sample(second) / total - mean**2, 0.0)
        error = by_sample(wrong) / total
        ends = self._exponent(self.corners)
        most = np.maximum(g.max(axis=(1, 2)), ends.max(axis=(1, 2)))
        spread = most - np.minimum(g.min(axis=(1, 2)), ends.min(axis=(1, 2)))
        best = np.full(size, -np.inf)
        np.maximum.at(best, self.owner, most)
        coarse = (most + HOPE * spread > best[self.owner] - SEEN) & (spread > SPREAD)
        active = by_sample((wrong > 1e-3 * self.tolerance * total[self.owner]).astype(float))
        share = self.tolerance * total / (2 * np.maximum(active, 1))
        bad = (wrong > share[self.owner]) & (error > self.tolerance)[self.owner]
        return Moments(np.log(total) + top, mean, variance, error), coarse | bad

    def tilted_mean(self, function: Callable[[Array], Array]) -> float:
        """The mean of a function of z under the tilted densities at the last l, over samples."""
        bary, weights = RULES[self.block.d]
        g = self._exponent(self.known[:, 1:]) + np.log(volumes(self.whole))[:, None, None]
        g += np.log(weights)
        top = np.full(len(self.windows), -np.inf)
        np.maximum.at(top, self.owner, g.max(axis=(1, 2)))
        mass = np.exp(g - top[self.owner][:, None, None])
        values = np.zeros_like(mass)
        seen = mass.max(axis=(1, 2)) > 1e-20
        points = bary @ self.halves[seen]
        values[seen] = function(points.reshape(-1, self.block.d)).reshape(points.shape[:-1])
        total = np.bincount(self.owner, mass.sum(axis=(1, 2)))
        return float((np.bincount(self.owner, (mass * values).sum(axis=(1, 2))) / total).mean())

    def shell(self, dual: float) -> float:
        """The largest share of mass within the outer parts of a window that is no support's end."""
        self.dual = dual
        bary, weights = RULES[self.block.d]
        g = self._exponent(self.known[:, 0]) + np.log(volumes(self.whole))[:, None]
        g += np.log(weights)
        top = np.full(len(self.windows), -np.inf)
        np.maximum.at(top, self.owner, g.max(axis=1))
        mass = np.exp(g - top[self.owner][:, None])
        points = bary @ self.whole
        low, high = self.windows[self.owner, 0][:, None], self.windows[self.owner, 1][:, None]
        near = (points < low + 0.03 * (high - low)) & (low > self.block.lower)
        near |= (points > high - 0.03 * (high - low)) & (high < self.block.upper)
        outer = np.bincount(self.owner, (mass * near.any(axis=2)).sum(axis=1))
        return float((outer / np.bincount(self.owner, mass.sum(axis=1))).max())


# ------------------------------------------------------------------ windows on unbounded supports
def rays(block: Block) -> Array:
    """Directions to look along."""
    if block.d == 1:
        return np.array([[1.0], [-1.0]])
    angles = 0.1 + np.linspace(0, 2 * np.pi, 48, endpoint=False)
    found = list(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    for a, _ in block.lines:
        found += [a / np.linalg.norm(a), -a / np.linalg.norm(a)]
    return np.array(found)


def windows(block: Block, epsilon: float, dual: float) -> Array | None:
    """Boxes (N, 2, d) outside of which nothing weighs; None if an integral diverges."""
    out = np.empty((len(block.samples), 2, block.d))
    bounded = np.isfinite(block.lower) & np.isfinite(block.upper)
    out[:, 0], out[:, 1] = block.lower, block.upper
    if bounded.all():
        return out
    scale = float(block.sigma.max())
    steps = np.concatenate([[0.0], scale * np.geomspace(1e-8, 1e8, 400)])
    directions = rays(block)
    for k, xi in enumerate(block.samples):
        moves = (steps[:, None, None] * directions).reshape(-1, block.d)
        points = xi + moves
        inside = np.all((points >= block.lower) & (points <= block.upper), axis=1)
        for a, b in block.halves:
            inside &= points @ a <= b
        with np.errstate(all="ignore"):
            g = (block.loss(points) - dual * block.cost(moves)) / epsilon
            g -= 0.5 * ((moves / block.sigma) ** 2).sum(axis=1)
        g = np.where(inside, g, -np.inf)
        if not np.all(g[inside] < np.inf):
            return None
        g = g.reshape(len(steps), -1)
        counts = g >= g.max() - DEPTH
        if counts[-1].any():
            return None
        reach = np.abs(moves.reshape(len(steps), -1, block.d))[counts].max(axis=0)
        reach = np.maximum(1.5 * reach, 1e-2 * reach.max())
        out[k, 0] = np.maximum(block.lower, xi - reach)
        out[k, 1] = np.minimum(block.upper, xi + reach)
    return out


# ------------------------------------------------------------------ log of the reference's mass
def log_mass(block: Block, tolerance: float) -> Array:
    """log P(z in Xi) for z ~ N(xi_k, sigma^2), for each sample."""
    if block.halves:
        still = Block(
            lambda z: np.zeros(len(z)),
            lambda m: np.zeros(len(m)),
            block.samples,
            block.sigma,
            block.lower,
            block.upper,
            block.halves,
        )
        frame = windows(still, 1.0, 0.0)
        assert frame is not None
        return Mesh(still, 1.0, frame, tolerance, 0.0).moments(0.0).logs
    below = (block.lower - block.samples) / block.sigma
    above = (block.upper - block.samples) / block.sigma
    flip = below > 0  # both in the upper tail
    below, above = np.where(flip, -above, below), np.where(flip, -below, above)
    log_low, log_high = log_ndtr(below), log_ndtr(above)
    with np.errstate(divide="ignore"):
        return (log_high + np.log1p(-np.exp(log_low - log_high))).sum(axis=1)


# ------------------------------------------------------------------ F and its minimum over l
@dataclass(frozen=True)
class Value:
    """F, F' and F'' at l, and an estimate of the error of F."""

    dual: float
    value: float
    slope: float
    curvature: float
    error: float


@dataclass
class Reference:
    """F(l) of a loss that is a sum over blocks of coordinates, with a cost that is such a sum."""

    blocks: Sequence[Block]
    radius: float
    epsilon: float
    constant: float = 0.0
    tolerance: float = 1e-6
    """Of the logarithms."""
    extra: Callable[[float], tuple[float, float, float]] | None = None
    """log E of what else moves, as a function of l, with its two derivatives."""
    meshes: dict[int, Mesh] = field(default_factory=dict)
    masses: dict[int, Array] = field(default_factory=dict)

    def __call__(self, dual: float) -> Value:
        size = len(self.blocks[0].samples)
        logs, costs, variances, errors = np.zeros((4, size))
        for i, block in enumerate(self.blocks):
            found = self._block(i, block, dual)
            if found is None:
                return Value(dual, np.inf, -np.inf, np.nan, 0.0)
            logs += found.logs - self.masses[i]
            costs += found.cost
            variances += found.variance
            errors += found.error
        value = self.constant + dual * self.radius + self.epsilon * logs.mean()
        slope = self.radius - costs.mean()
        curvature = variances.mean() / self.epsilon
        if self.extra is not None:
            log, first, second = self.extra(dual)
            value += self.epsilon * log
            slope += self.epsilon * first
            curvature += self.epsilon * second
        return Value(dual, value, slope, curvature, self.epsilon * errors.mean())

    def _block(self, i: int, block: Block, dual: float) -> Moments | None:
        if i not in self.masses:
            self.masses[i] = log_mass(block, self.tolerance)
        frame = windows(block, self.epsilon, dual)
        if frame is None:
            return None
        mesh = self.meshes.get(i)
        if mesh is not None:
            fits = (mesh.windows[:, 0] <= frame[:, 0]) & (mesh.windows[:, 1] >= frame[:, 1])
            if not fits.all():
                mesh = None
        if mesh is None:
            wider = windows(block, self.epsilon, 0.7 * dual)
            frame = frame if wider is None else wider
            mesh = Mesh(block, self.epsilon, frame, self.tolerance, dual)
        for _ in range(6):
            found = mesh.moments(dual)
            if mesh.shell(dual) < 1e-9:
                self.meshes[i] = mesh
                return found
            middle, half = mesh.windows.mean(axis=1), np.ptp(mesh.windows, axis=1)
            if not np.isfinite(half).all():
                break
            frame = np.stack([middle - half, middle + half], axis=1)
            frame[:, 0] = np.maximum(frame[:, 0], block.lower)
            frame[:, 1] = np.minimum(frame[:, 1], block.upper)
            mesh = Mesh(block, self.epsilon, frame, self.tolerance, dual)
        raise Unresolved("the window does not end")


@dataclass(frozen=True)
class Minimum:
    """min F over l >= 0, between `lower` and `value` by the tangents, up to the error."""

    value: float
    lower: float
    dual: float
    error: float


def minimise(reference: Reference, start: float | None, tolerance: float) -> Minimum:
    """The least F over l >= 0: a bracket by the signs of F', Newton's steps inside of it.

    F is convex: where two slopes have opposite signs, the tangents cross below the minimum.
    """
    dual = start if start is not None and np.isfinite(start) and start >= 0 else 1.0
    low: Value | None = None  # the slope is negative
    high: Value | None = None
    best, wall = None, -1.0  # F is infinite up to the wall
    for _ in range(100):
        point = reference(dual)
        if np.isfinite(point.value):
            best = point if best is None or point.value < best.value else best
            if point.slope < 0:
                low = point
            else:
                high = point
                if point.dual == 0:
                    return Minimum(point.value, point.value, 0.0, point.error)
        else:
            wall = max(wall, dual)
        if low is not None and high is not None:
            # a + s t, b + u t: where the tangents cross
            cross = (high.value - low.value - high.slope * high.dual + low.slope * low.dual) / (
                low.slope - high.slope
            )
            bound = low.value + low.slope * (cross - low.dual)
            assert best is not None
            if best.value - bound <= tolerance:
                return Minimum(best.value, bound, best.dual, best.error)
        dual = _next(point, low, high, wall)
    raise Unresolved("no bracket of the dual")


def _next(point: Value, low: Value | None, high: Value | None, wall: float) -> float:
    """Another l: beyond Newton's step while there is one sign, inside of the bracket after."""
    if high is None:
        newton = _newton(point)
        if newton is None or not newton > 0:
            return max(2 * point.dual, 2 * wall, 1e-3)
        most = 15 * point.dual if point.dual > 0 else np.inf
        return point.dual + min(1.5 * newton + 1e-9 * point.dual, most)
    if low is None:
        newton = _newton(high)
        target = 0.0 if newton is None else high.dual + 1.5 * newton - 1e-9 * high.dual
        if target > max(wall, 0.0):
            return float(target)
        if wall < 0:
            return 0.0
        return max(float(np.sqrt(wall * high.dual)), high.dual / 10)
    # Newton from the side that is closer, and past it, so that both ends come in.
    near = low if abs(low.slope) < abs(high.slope) else high
    newton = _newton(near)
    if newton is not None:
        for factor in (1.3, 1.0):
            target = near.dual + factor * newton
            if low.dual < target < high.dual:
                return float(target)
    if low.dual > 0 and high.dual > 4 * low.dual:
        return float(np.sqrt(low.dual * high.dual))
    return (low.dual + high.dual) / 2


def _newton(point: Value) -> float | None:
    """Newton's step for F' = 0."""
    if not np.isfinite(point.value) or not point.curvature > 0:
        return None
    return -point.slope / point.curvature
