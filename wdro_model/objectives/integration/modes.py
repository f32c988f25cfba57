"""The search for modes of tilted densities: all samples at once, from global starts.

The target of sample k is the log density h_k(y) of its moves, up to a constant. With a loss that is
convex in the data h can have many modes, and an ascent ends in one of them. The first ascents start
from the sample, from one gradient step away from it, and from modes of other dual variables. Then h
is evaluated at points where it rises along rays, at the modes of single pieces of the loss, at
corners and centre of the box, and beyond the known modes. A point whose height the known modes do
not predict starts another ascent.

The Hessian of h comes from differences of gradients: all of it in a few dimensions; in more, the
directions in which the loss bends, by Lanczos' method, for two gradients each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from wdro_model.objectives.integration.inner_integral import Divergence
from wdro_model.objectives.integration.proposals import LIMITS as MIXTURES
from wdro_model.objectives.integration.proposals import (
    Bounds,
    Component,
    FullComponent,
    Mixture,
    component,
    correlated,
    mixture,
    reachable,
)
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Tolerances:
    """Limits of the search; lengths are in standard deviations of the density without the loss."""

    ascent_rounds: int = 30
    """Steps of an ascent; most end after three."""
    step_tol: float = 0.01
    """An ascent ends when its step is shorter."""
    runaway: float = 1e50
    """Distance of an ascent beyond which h counts as unbounded: -y^2/2 dominates long before."""
    far_rays: tuple[float, float] = (2.0**80, 2.0**84)
    """Two distances between which any integrable density falls: there -y^2/2 outweighs pieces as
    steep as numbers allow. Powers of the data up to the twelfth are finite there."""
    new_mode: float = float(np.log(1.5))
    """Excess of h over the height predicted by the known modes from which a mode is new."""
    most_modes: int = 16
    """Modes kept for each sample."""
    second_starts: int = 8
    """Ascents for each sample from points whose height the known modes do not predict."""
    corners: int = 32
    """Corners of the box at which h is evaluated."""
    outside: int = 16
    """Points beyond the known modes, in random directions, at which h is evaluated."""
    full_dimensions: int = 8
    """Dimensions in which modes have a full covariance."""
    directions: int = 3
    """Directions in which the curvature of the loss is measured in more dimensions."""
    precision_range: tuple[float, float] = (0.08, 400.0)
    """Bounds of the precisions along these directions. Where h is flat or convex, -Hess h is not
    the precision of a Gaussian; the bound limits the deviation to 3.5 times that of an affine
    loss."""
    full_precision_range: tuple[float, float] = (0.02, 1e4)
    """The same for full covariances."""


LIMITS = Tolerances()
RAY_POINTS = 2.0 ** np.arange(-1, 8)
"""Points of a ray, in deviations."""
DIFFERENCE_STEPS = (1.0, 0.1, 1e-3)
"""Steps of differences of gradients, in deviations: a smaller one where h is undefined at the step
before."""


class Target:
    """Log densities h of the moves y (r,) of the samples, up to a constant for each sample.

    A subclass gives h, its gradients and a variance; bounds and walls (faces of polyhedral
    supports) are optional. `owners` are always the indices of the samples whose moves are given.
    """

    dimension: int
    walled: bool = False
    """True if the support has walls."""

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """h (B,) and its gradients (B, r); -inf and 0 where h is not defined."""
        raise NotImplementedError

    def values(self, owners: Array, moves: Array) -> Array:
        """h alone."""
        return self(owners, moves)[0]

    def variance(self, owners: Array, moves: Array) -> Array:
        """Variances (B, r) or (1, r) of the density around the moves if the loss were affine."""
        raise NotImplementedError

    def bounds(self, owners: Array) -> Bounds | None:
        """Bounds (B, r) of the moves; None on R^r."""
        return None

    def room(self, owners: Array) -> Bounds | None:
        """Bounds (B, r) around the support, walls included."""
        return self.bounds(owners)

    def within_walls(self, owners: Array, moves: Array) -> Array:
        """The moves (B, r), brought back inside the walls."""
        return moves

    def wall_contacts(
        self, owners: Array, moves: Array, slopes: Array, deviation: Array
    ) -> tuple[Array, Array]:
        """Precisions (B, r, r) and steps (B, r) of the decay away from walls; see `Frame`."""
        raise NotImplementedError

    def starts(self, owners: Array) -> list[Array]:
        """More starts of ascents, besides 0: moves (B, r) or (r,)."""
        return []


# ------------------------------------------------------------------ curvature
def bent_directions(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    deviation: Array,
    free: Array,
) -> tuple[Array, Array]:
    """Orthonormal directions (K, j, r) and the precisions of h along them, the flattest first.

    Lanczos' method on -diag(s) Hess h diag(s), restricted to the free coordinates (K, r); it starts
    from the gradient of the loss.
    """
    size, dimension = moves.shape
    count = min(LIMITS.directions, dimension)
    basis = np.zeros((size, count, dimension))
    images = np.zeros((size, count, dimension))
    direction = unit(np.where(free, deviation * gradients + moves / deviation, 0.0))
    empty = np.einsum("kr,kr->k", direction, direction) < 0.5
    if dimension and empty.any():
        even = np.random.default_rng(1).standard_normal(dimension)
        direction[empty] = unit(np.where(free[empty], even, 0.0))
    for j in range(count):
        basis[:, j] = direction
        image = hessian_products(target, owners, moves, deviation, direction)
        images[:, j] = np.where(free, image, 0.0)
        rest = images[:, j].copy()
        for _ in range(2):
            inner = np.einsum("kjr,kr->kj", basis, rest)
            rest -= np.einsum("kj,kjr->kr", inner, basis)
        weight, scale = np.linalg.norm(rest, axis=1), np.linalg.norm(images[:, j], axis=1)
        direction = np.where((weight > 1e-3 * (1e-3 + scale))[:, None], unit(rest), 0.0)
        if not direction.any():
            basis, images = basis[:, : j + 1], images[:, : j + 1]
            break
    projected = np.einsum("kir,kjr->kij", basis, images)
    projected = 0.5 * (projected + np.swapaxes(projected, 1, 2))
    missing = np.einsum("kjr,kjr->kj", basis, basis) < 0.5
    projected += missing[:, :, None] * np.eye(basis.shape[1]) * 1e6
    precisions, vectors = np.linalg.eigh(projected)
    return np.einsum("kij,kir->kjr", vectors, basis), precisions


def hessian_products(
    target: Target, owners: Array, moves: Array, deviation: Array, directions: Array
) -> Array:
    """-diag(s) Hess h diag(s) u (B, r) for one direction u (B, r) at each move.

    Gradients one deviation to either side are compared; where a side is outside the domain of h the
    points come closer. The product is u where no step fits.
    """
    products = directions.copy()
    bounds = target.bounds(owners)
    rows = np.flatnonzero(np.einsum("br,br->b", directions, directions) > 0.5)
    for stride in DIFFERENCE_STEPS:
        if len(rows) == 0:
            break
        step, size = stride * (deviation * directions)[rows], deviation[rows]
        sides = None if bounds is None else (bounds[0][rows], bounds[1][rows])
        ends = [clip_moves(moves[rows] + sign * step, sides) for sign in (1.0, -1.0)]
        heights, slopes = target(np.tile(owners[rows], 2), np.concatenate(ends))
        apart = np.linalg.norm((ends[0] - ends[1]) / size, axis=1)
        known = np.isfinite(heights).reshape(2, -1).all(axis=0) & (apart > 0)
        ahead, back = slopes.reshape(2, *step.shape)
        products[rows[known]] = ((back - ahead) * size / apart[:, None])[known]
        rows = rows[~known]
    return products


def full_precision(
    target: Target, owners: Array, moves: Array, deviation: Array, held: Array
) -> Array:
    """-diag(s) Hess h diag(s) made definite, (K, r, r); `held` coordinates are decoupled."""
    size, r = moves.shape
    units = np.eye(r)
    each = np.repeat(np.arange(size), r)
    directions = np.tile(units, (size, 1))
    hessian = hessian_products(target, owners[each], moves[each], deviation[each], directions)
    hessian = hessian.reshape(size, r, r)
    separate = held[:, :, None] | held[:, None, :]
    hessian = np.where(separate & (units == 0), 0.0, 0.5 * (hessian + np.swapaxes(hessian, 1, 2)))
    values, vectors = np.linalg.eigh(hessian)
    safe = np.clip(values, *LIMITS.full_precision_range)
    return (vectors * safe[:, None]) @ np.swapaxes(vectors, 1, 2)


def unit(vectors: Array) -> Array:
    """Rows scaled to length one; zero rows stay."""
    peak = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(peak > 0, peak, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(length > 0, length, 1.0)


def clip_moves(moves: Array, bounds: Bounds | None) -> Array:
    """The moves, brought back between bounds."""
    return moves if bounds is None else np.clip(moves, *bounds)


def bring_inside(target: Target, owners: Array, moves: Array) -> Array:
    """The moves (B, r), brought back to the support as far as its shape is known."""
    return target.within_walls(owners, clip_moves(moves, target.bounds(owners)))


# ------------------------------------------------------------------ the Gaussian at a mode
def fit_gaussians(
    target: Target, owners: Array, moves: Array, gradients: Array, curved: Array, wanted: Array
) -> Component:
    """The Gaussians with value, slope and curvature of the targets at modes, for `wanted` samples.

    curved (K,): measure the curvature of the loss there; else that of the cost alone is used.
    In the interior its center is the mode; where a bound stops the ascent, the center lies beyond
    the bound, at the top of the parabola with slope grad h and curvature -1/v.
    """
    variance = target.variance(owners, moves)
    deviation = np.sqrt(np.broadcast_to(variance, moves.shape))
    few, bounds = 1 < target.dimension <= LIMITS.full_dimensions, target.bounds(owners)
    if few and (curved.any() or target.walled):
        return fit_full_gaussians(target, owners, moves, gradients, deviation, wanted)
    center, slopes = moves + variance * gradients, deviation * gradients
    free = np.ones(moves.shape, dtype=bool)
    settled = np.abs(slopes) < (np.inf if target.walled else 0.5)
    if bounds is not None:
        free = ~reachable(center, deviation, bounds)
    center = np.where(settled & free, moves, center)
    basis = scales = None
    if target.walled:
        # Away from the wall the density decays exponentially, at the rate |grad h| in deviations.
        inwards = np.where(free, slopes, 0.0)
        rate = np.maximum(np.linalg.norm(inwards, axis=1), 1.5)
        basis, scales = unit(inwards)[:, None], (1.5 / rate)[:, None]
    elif (rows := np.flatnonzero(curved & wanted)).size:
        ways, precisions = bent_directions(
            target, owners[rows], moves[rows], gradients[rows], deviation[rows], free[rows]
        )
        used = np.einsum("kjr,kjr->kj", ways, ways) > 0.5
        basis = np.zeros((len(owners), *ways.shape[1:]))
        scales = np.ones(basis.shape[:2])
        basis[rows] = np.where(used[:, :, None], ways, 0.0)
        scales[rows] = np.where(used, np.clip(precisions, *LIMITS.precision_range) ** -0.5, 1.0)
    return component(center, deviation, bounds, basis, scales)


def fit_full_gaussians(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    deviation: Array,
    wanted: Array,
) -> FullComponent:
    """The Gaussians with precision -Hess h at modes, for `wanted` samples.

    Coordinates that a bound holds are independent of the others. Away from a wall the density
    decays with the slope of h, which adds to the precision.
    """
    rows = np.flatnonzero(wanted)
    precision = np.broadcast_to(np.eye(moves.shape[1]), (*moves.shape, moves.shape[1])).copy()
    slopes, bounds = deviation * gradients, target.bounds(owners)
    held = np.zeros(moves.shape, dtype=bool)
    if bounds is not None:
        held = ((moves <= bounds[0]) & (slopes < 0)) | ((moves >= bounds[1]) & (slopes > 0))
    precision[rows] = full_precision(target, owners[rows], moves[rows], deviation[rows], held[rows])
    step = np.where(held, slopes / np.einsum("kii->ki", precision), 0.0)
    if target.walled:
        free_slopes = np.where(held, 0.0, slopes)
        walls, inwards = target.wall_contacts(owners, moves, free_slopes, deviation)
        precision += walls / 1.5**2
        step += inwards
    scaled = precision / (deviation[:, :, None] * deviation[:, None, :])
    return correlated(moves + deviation * step, scaled, bounds)


# ------------------------------------------------------------------ the finder
class Modes:
    """The modes known so far of the samples `owners`, with the Gaussians around them.

    `find_modes` fills it; component j holds the j-th mode of every sample that has so many.
    """

    def __init__(self, target: Target, owners: Array, most: int) -> None:
        self.target, self.owners, self.most = target, owners, most
        self.bounds = target.bounds(owners)
        self.curved = np.zeros(len(owners), dtype=bool)
        """True for targets that are not Gaussian, (K,)."""
        self.components: list[Component] = []
        self.masses: list[Array] = []
        """Log mass of each component, (K,); -inf for samples without that component."""

    def expected(self, moves: Array) -> Array:
        """The log density (K, C) that the known modes predict at moves (K, C, r)."""
        out = np.full(moves.shape[:2], -np.inf)
        for one, mass in zip(self.components, self.masses):
            out = np.logaddexp(out, mass[:, None] + one.log_density(moves))
        return out

    def add(self, starts: Array, alive: Array, origin: Array) -> None:
        """Ascend from starts (K, C, r) where alive (K, C), and add the modes that are new.

        An end of an ascent is new if h there exceeds the log density that the known modes predict.
        origin: the gradient of h at y = 0, (K, r).
        """
        target, rows = self.target, np.arange(len(self.owners))
        who, which = np.nonzero(alive)
        moves, values = starts.copy(), np.full(alive.shape, -np.inf)
        gradients = np.zeros(starts.shape)
        ends = ascend(target, self.owners[who], starts[who, which])
        moves[who, which], values[who, which], gradients[who, which] = ends
        self.curved |= self._are_curved(moves, gradients, alive, origin)
        covered, left = self.expected(moves), np.isfinite(values)
        while len(self.components) < self.most:
            score = np.where(left & (values > covered + LIMITS.new_mode), values, -np.inf)
            pick = score.argmax(axis=1)
            picked = np.isfinite(score[rows, pick])
            if not picked.any():
                break
            left[rows, pick] = False
            place, slopes = moves[rows, pick], gradients[rows, pick]
            one = fit_gaussians(target, self.owners, place, slopes, self.curved, picked)
            # The mass is such that mass * density of the component equals exp(h) at the mode.
            height = values[rows, pick] - one.log_density(place[:, None])[:, 0]
            mass = np.where(picked, height, -np.inf)
            self.components.append(one)
            self.masses.append(mass)
            covered = np.logaddexp(covered, mass[:, None] + one.log_density(moves))

    def _are_curved(self, moves: Array, gradients: Array, alive: Array, origin: Array) -> Array:
        """True where the gradient of h + y^2/(2v), from the loss alone, differs from that at 0."""
        zero = np.zeros((len(self.owners), self.target.dimension))
        variance = np.broadcast_to(self.target.variance(self.owners, zero), zero.shape)
        slopes = (gradients + moves / variance[:, None]) * np.sqrt(variance)[:, None]
        first = origin * np.sqrt(variance)
        change = np.where(alive[:, :, None], np.abs(slopes - first[:, None]), 0.0)
        size = np.abs(first).max(axis=1, initial=0.0)
        return change.max(axis=(1, 2), initial=0.0) > 1e-7 * (1.0 + size)

    def unknown_peaks(self, points: Array, values: Array, count: int) -> tuple[Array, Array]:
        """Up to `count` points (K, P, r), apart and above the predicted height, and a mask."""
        zero = np.zeros((len(self.owners), self.target.dimension))
        deviation = np.sqrt(np.broadcast_to(self.target.variance(self.owners, zero), zero.shape))
        top = np.max(self.masses, axis=0)[:, None]
        left = np.isfinite(values) & (values > self.expected(points) + LIMITS.new_mode)
        left &= values > top - 10 * MIXTURES.mass_window
        scaled, rows = points / deviation[:, None], np.arange(len(self.owners))
        starts, alive = [], []
        for _ in range(count):
            pick = np.where(left, values, -np.inf).argmax(axis=1)
            starts.append(points[rows, pick])
            alive.append(left[rows, pick])
            place = scaled[rows, pick][:, None]
            apart = np.maximum(1.0, 0.1 * np.linalg.norm(place, axis=2))
            left &= np.linalg.norm(scaled - place, axis=2) > apart
        return np.stack(starts, axis=1), np.stack(alive, axis=1)

    def mixture(self) -> Mixture:
        """The Gaussians, weighted by the masses of their modes."""
        if not self.components:
            raise Divergence
        return mixture(self.components, np.stack(self.masses, axis=1))


def find_modes(
    target: Target, owners: Array, most: int = LIMITS.most_modes, piece_modes: Array | None = None
) -> Modes:
    """The modes of the targets of the samples `owners`, up to `most` for each.

    piece_modes: moves (J, r) at which single pieces of the loss have their modes.
    """
    modes = Modes(target, owners, most)
    bounds, shape = modes.bounds, (len(owners), target.dimension)
    piece_modes = np.zeros((0, target.dimension)) if piece_modes is None else piece_modes
    zero = np.zeros(shape)
    value, gradient = target(owners, zero)
    variance = np.broadcast_to(target.variance(owners, zero), shape)
    starts = [zero, variance * gradient]
    wide = most > 1 and target.dimension > 0
    if wide:
        starts += [np.broadcast_to(start, shape) for start in target.starts(owners)]
    alive = np.ones((len(owners), len(starts)), dtype=bool)
    alive[:, 0] = np.isfinite(value)
    modes.add(np.stack([clip_moves(s, bounds) for s in starts], axis=1), alive, gradient)
    if wide and modes.components:
        deviation = np.sqrt(variance)
        directions = search_directions(target, owners, zero, gradient, deviation)
        refuse_divergence(target, owners, directions)
        points, values = peaks_along_rays(target, owners, directions, value, bounds)
        if modes.curved.any() or np.isfinite(values).any() or len(piece_modes):
            pieces = np.broadcast_to(piece_modes, (len(owners), *piece_modes.shape))
            more = support_corners(target, owners), points_beyond(modes, deviation), pieces
            seen = climb_once(target, owners, np.concatenate(more, axis=1))
            points = np.concatenate([points, seen[0]], axis=1)
            values = np.concatenate([values, seen[1]], axis=1)
            places, unknown = modes.unknown_peaks(points, values, LIMITS.second_starts)
            if unknown.any():
                modes.add(places, unknown, gradient)
    return modes


# ------------------------------------------------------------------ ascent
def ascend(target: Target, owners: Array, moves: Array) -> tuple[Array, Array, Array]:
    """Monotone ascents of h by scaled gradient steps within the bounds, each with its own length.

    y <- clip(y + t v grad h), with t by the Barzilai-Borwein rule, halved while h would fall. For
    a loss affine in the data one step with t = 1 arrives. Raises a Divergence if h still rises at
    the distance `runaway`. Returns moves, heights and gradients.
    """
    moves = moves.copy()
    values, gradients = target(owners, moves)
    length = np.ones(len(owners))
    active = np.flatnonzero(np.isfinite(values))
    for _ in range(LIMITS.ascent_rounds):
        if len(active) == 0:
            break
        who, here = owners[active], moves[active]
        variance = target.variance(who, here)
        step = length[active, None] * variance * gradients[active]
        trial = bring_inside(target, who, here + step)
        move = (trial - here) / np.sqrt(variance)
        size = np.linalg.norm(move, axis=1)
        value, gradient = target(who, trial)
        better = value >= values[active]
        away = np.abs(trial / np.sqrt(variance)).max(axis=1, initial=0.0)
        if np.any(better & (away > LIMITS.runaway)):
            raise Divergence
        change = np.sqrt(variance) * (gradient - gradients[active])
        fall = -np.einsum("br,br->b", move, change)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            secant = np.where(fall > 0, size**2 / fall, 4 * length[active])
        grown = np.clip(np.nan_to_num(secant, nan=1.0), 0.05, 8 * np.maximum(1, length[active]))
        length[active] = np.where(better, grown, 0.3 * length[active])
        accepted = active[better]
        moves[accepted], values[accepted] = trial[better], value[better]
        gradients[accepted] = gradient[better]
        active = active[(size > LIMITS.step_tol) & (length[active] > 1e-4)]
    return moves, values, gradients


# ------------------------------------------------------------------ places to look at
def refuse_divergence(target: Target, owners: Array, directions: list[Array]) -> None:
    """Raise a Divergence where a target still rises far out along some direction (K, r)."""
    bounds = target.bounds(owners)
    ways = np.stack([sign * one for one in directions for sign in (1.0, -1.0)], axis=1)
    if bounds is not None:
        ends = [np.isfinite(side)[:, None] for side in bounds]
        ways = np.where(np.where(ways > 0, ends[1], ends[0]), 0.0, ways)
    points = np.stack([stride * ways for stride in LIMITS.far_rays]).reshape(-1, target.dimension)
    who = np.tile(np.repeat(owners, ways.shape[1]), 2)
    near, far = target.values(who, points).reshape(2, -1)
    if np.any(far > near):
        raise Divergence


def search_directions(
    target: Target, owners: Array, zero: Array, gradient: Array, deviation: Array
) -> list[Array]:
    """Directions (K, r) of rays: the gradient, flattest directions of h, axes, sign vectors."""
    directions, _ = bent_directions(
        target, owners, zero, gradient, deviation, np.ones(zero.shape, dtype=bool)
    )
    ways = [deviation * unit(deviation * gradient)]
    ways += [deviation * directions[:, j] for j in range(min(2, directions.shape[1]))]
    if target.dimension <= LIMITS.full_dimensions:
        ways += [deviation * axis for axis in np.eye(target.dimension)]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, target.dimension))
    if target.dimension <= 3:
        signs = np.array(list(product((1.0, -1.0), repeat=target.dimension)))
        signs = signs[signs[:, 0] > 0] * (1.0 + 0.01 * np.arange(target.dimension))
    return ways + [deviation * one for one in signs]


def peaks_along_rays(
    target: Target, owners: Array, directions: list[Array], value: Array, bounds: Bounds | None
) -> tuple[Array, Array]:
    """The highest point of each ray at which h has risen, (K, R, r), and h there; -inf for none.

    h rises at a point if it exceeds h at the point before. A ray along which h only falls leads to
    no other mode.
    """
    ways = np.stack([sign * d for d in directions for sign in (1.0, -1.0)], axis=1)
    points = ways[:, :, None] * RAY_POINTS[:, None]
    if bounds is not None:
        points = np.clip(points, bounds[0][:, None, None], bounds[1][:, None, None])
    shape = points.shape[:3]
    flat = points.reshape(-1, target.dimension)
    values = target.values(np.repeat(owners, shape[1] * shape[2]), flat).reshape(shape)
    start = np.broadcast_to(value[:, None, None], (*shape[:2], 1))
    rising = np.isfinite(values) & (values > np.concatenate([start, values[:, :, :-1]], axis=2))
    heights = np.where(rising, values, -np.inf)
    best = heights.argmax(axis=2)[:, :, None]
    places = np.take_along_axis(points, best[..., None], axis=2)[:, :, 0]
    return places, np.take_along_axis(heights, best, axis=2)[:, :, 0]


def support_corners(target: Target, owners: Array) -> Array:
    """Corners and centre (K, C, r) of the support; 0 in coordinates without bounds."""
    dimension = target.dimension
    if 2**dimension <= LIMITS.corners:
        ends = np.array(list(product((0.0, 1.0), repeat=dimension)))
    else:
        ends = np.random.default_rng(3).choice([0.0, 1.0], (LIMITS.corners, dimension))
    return points_across(target, owners, np.concatenate([ends, np.full((1, dimension), 0.5)]))


def points_across(target: Target, owners: Array, shares: Array) -> Array:
    """Moves (K, C, r) at these shares (C, r) or (K, C, r) of the way across the support."""
    room = target.room(owners)
    if room is None:
        return np.zeros((len(owners), 0, target.dimension))
    lower, upper = (np.where(np.isfinite(side), side, 0.0)[:, None] for side in room)
    return np.asarray(lower + shares * (upper - lower))


def points_beyond(modes: Modes, deviation: Array) -> Array:
    """Moves (K, C, r) in random directions, beyond the modes that are known."""
    shape = (LIMITS.outside, deviation.shape[1])
    directions = unit(np.random.default_rng(4).standard_normal(shape))
    lengths = [np.linalg.norm(one.anchor / deviation, axis=1) for one in modes.components]
    reach = 1.5 * np.max(lengths, axis=0) + 3.0
    return (reach[:, None] * deviation)[:, None] * directions


def climb_once(target: Target, owners: Array, points: Array) -> tuple[Array, Array]:
    """The points (K, P, r) after one gradient step where that is higher, and h there (K, P)."""
    size, count, dimension = points.shape
    who = np.repeat(owners, count)
    flat = bring_inside(target, who, points.reshape(-1, dimension))
    values, gradients = target(who, flat)
    moved = bring_inside(target, who, flat + target.variance(who, flat) * gradients)
    further = target.values(who, moved)
    better = further > values
    flat = np.where(better[:, None], moved, flat)
    return flat.reshape(points.shape), np.where(better, further, values).reshape(size, count)
