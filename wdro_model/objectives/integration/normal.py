"""The standard normal distribution on intervals: masses, moments, tilted versions.

    Z = Phi(b) - Phi(a),   E t = (phi(a) - phi(b)) / Z,   E t^2 = 1 + (a phi(a) - b phi(b)) / Z

These differences cancel in narrow intervals and far from the origin, where t stays close to the
end of the interval with the larger density, the heavier end. The moments are therefore those of the
depth e >= 0 from the heavier end: t = b - e, or t = a + e if a is the heavier end.

A maximum of lines a_p + b_p t is tilted in closed form (`integrate_pieces`). Each line is the
highest one on an interval [lo_p, hi_p], and there
    integral of exp(a + b t) N(t; 0, 1) dt = exp(a + b^2/2) (Phi(hi - b) - Phi(lo - b)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from wdro_model.solvers.objective import Array

SHORT_NODES, SHORT_WEIGHTS = np.polynomial.legendre.leggauss(16)
LONG_NODES, LONG_WEIGHTS = np.polynomial.legendre.leggauss(64)
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True)
class Tolerances:
    """Switches between formulas for truncated normals, and limits of sums of masses."""

    narrow: float = 0.5
    """Intervals with width * (1 + |midpoint|) below this are integrated by 16 nodes: the formulas
    cancel there."""
    tail: float = -5.0
    """Intervals whose heavier end lies below this are integrated on the scale of their decay."""
    decay: float = 45.0
    """Logarithm of the decay at which a tail is cut off: nothing beyond it counts."""
    fraction_terms: int = 60
    """Terms of the continued fraction: enough for all digits from `tail` on."""
    negligible: float = 45.0
    """Intervals of a sum whose log mass lies so far below the others are left out."""
    farthest_crossing: float = 1e100
    """Lines that cross beyond this are parallel: products of such numbers overflow."""


LIMITS = Tolerances()


@dataclass(frozen=True)
class TruncatedNormal:
    """N(0, 1) on intervals [a, b], entry by entry."""

    log_mass: Array
    """log Z."""
    depth: Array
    """E e, e the distance from the heavier end."""
    depth_square: Array
    """E e^2."""
    from_lower: Array
    """True where the heavier end is the lower one."""


def truncated_normal(a: Array, b: Array) -> TruncatedNormal:
    """Mass and moments on the intervals [a, b], a < b, of which one end at least is finite."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
    if np.isneginf(a).all():
        return TruncatedNormal(*left_tail(b), np.zeros(b.shape, dtype=bool))
    if np.isposinf(b).all():
        return TruncatedNormal(*left_tail(-a), np.ones(a.shape, dtype=bool))
    from_lower = a + b > 0
    low, high = np.where(from_lower, -b, a), np.where(from_lower, -a, b)
    parts = [np.empty(low.shape) for _ in range(3)]
    open_ = np.isneginf(low)
    middle = np.where(open_, 0.0, (low + high) / 2)
    narrow = (high - low) * (1 + np.abs(middle)) < LIMITS.narrow
    tail = ~narrow & ~open_ & (high < LIMITS.tail)
    central = ~narrow & ~open_ & ~tail
    rules = (
        (narrow, _narrow),
        (open_, lambda a, b: left_tail(b)),
        (tail, _tail),
        (central, _central),
    )
    for where, rule in rules:
        if where.any():
            for part, values in zip(parts, rule(low[where], high[where])):
                part[where] = values
    return TruncatedNormal(parts[0], parts[1], parts[2], from_lower)


def log_scaled_mass(a: Array, b: Array) -> Array:
    """log of the integral of exp((n^2 - t^2)/2) / sqrt(2 pi) over [a, b], n = the t nearest to 0.

    This is the log mass of the standard normal without its exponential factor in the tail.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        flip = a + b > 0
        low, high = np.where(flip, -b, a), np.where(flip, -a, b)
        near = np.minimum(high, 0.0)
        shifted = np.exp(np.minimum(0.5 * (high - low) * (high + low), 0.0))
        tail = 0.5 * (erfcx(-near / np.sqrt(2)) - erfcx(-low / np.sqrt(2)) * shifted)
        mass = np.where(high < 0, tail, ndtr(high) - ndtr(low))
    width = high - low
    narrow = width * np.maximum(1.0, np.abs(near)) < LIMITS.narrow
    if narrow.any():
        half = 0.5 * width[narrow, None]
        t = low[narrow, None] + half * (1 + SHORT_NODES)
        n = near[narrow, None]
        values = np.exp(0.5 * (n - t) * (n + t))
        mass[narrow] = half[:, 0] * (values @ SHORT_WEIGHTS) * np.exp(-HALF_LOG_2PI)
    return np.log(np.maximum(mass, 1e-300))


def log_mass(a: Array, b: Array) -> Array:
    """log Z on the intervals [a, b], a < b, whose ends may both be infinite."""
    return log_scaled_mass(a, b) - 0.5 * np.clip(0.0, a, b) ** 2


@dataclass(frozen=True)
class NormalInterval:
    """Log mass, mean and variance of N(center, 1) on intervals, entry by entry."""

    log_mass: Array
    mean: Array
    variance: Array


def normal_interval(low: Array, high: Array, center: Array | float = 0.0) -> NormalInterval:
    """Log mass, mean and variance of N(center, 1) on [low, high]; both ends may be infinite.

    The mean is an end of the interval plus or minus the depth: no cancellation if the center lies
    far outside of the interval.
    """
    whole = np.isneginf(low) & np.isposinf(high)
    if whole.any():
        center = np.broadcast_to(center, whole.shape)
        log_mass, mean, variance = np.zeros(whole.shape), np.array(center), np.ones(whole.shape)
        if not whole.all():
            part = normal_interval(low[~whole], high[~whole], center[~whole])
            log_mass[~whole], mean[~whole] = part.log_mass, part.mean
            variance[~whole] = part.variance
        return NormalInterval(log_mass, mean, variance)
    t = truncated_normal(low - center, high - center)
    mean = np.where(t.from_lower, low + t.depth, high - t.depth)
    return NormalInterval(t.log_mass, mean, np.maximum(t.depth_square - t.depth**2, 0.0))


def left_tail(b: Array) -> tuple[Array, Array, Array]:
    """log mass, E e and E e^2 on (-inf, b], b finite.

    E e = b + phi(b)/Phi(b) cancels for b -> -inf, where the continued fraction
    1/(y + 2/(y + 3/(y + ...))), y = -b, is used, and E e^2 = 1 + b E e.
    """
    with np.errstate(over="ignore"):
        depth = b + np.sqrt(2 / np.pi) / erfcx(-b / np.sqrt(2))
    square = 1.0 + b * depth
    far = b < LIMITS.tail
    if far.any():
        y = -b[far]
        inner = y.copy()
        for k in range(LIMITS.fraction_terms, 2, -1):
            inner = y + k / inner
        depth[far] = 1.0 / (y + 2.0 / inner)
        square[far] = 2.0 / (y * inner + 2.0)
    return log_ndtr(b), depth, square


def _central(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """a + b <= 0 and b not far in the tail: the textbook formulas, relative to the end b."""
    with np.errstate(under="ignore", over="ignore"):
        mass = ndtr(b) - ndtr(a)
        at_a, at_b = (np.exp(-0.5 * t * t - HALF_LOG_2PI) / mass for t in (a, b))
    mean = at_a - at_b
    return np.log(mass), b - mean, b * b - 2 * b * mean + 1.0 + a * at_a - b * at_b


def _narrow(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Short intervals: exp(-b^2/2) times the integral of exp(b e - e^2/2) over the depth e."""
    half = (b - a)[..., None] / 2
    e = half * (1.0 + SHORT_NODES)
    density = SHORT_WEIGHTS * np.exp(e * (b[..., None] - 0.5 * e))
    return _from_nodes(b, e, half[..., 0] * density.T)


def _tail(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Far in the tail the depth decays like exp(b e): nodes on that scale."""
    half = np.minimum(b - a, LIMITS.decay / -b)[..., None] / 2
    e = half * (1.0 + LONG_NODES)
    density = LONG_WEIGHTS * np.exp(e * (b[..., None] - 0.5 * e))
    return _from_nodes(b, e, half[..., 0] * density.T)


def _from_nodes(b: Array, e: Array, density: Array) -> tuple[Array, Array, Array]:
    """log Z, E e and E e^2 from depths e (..., nodes) and weighted densities (nodes, ...)."""
    mass = density.sum(axis=0)
    depth = (density * e.T).sum(axis=0) / mass
    square = (density * e.T**2).sum(axis=0) / mass
    return -0.5 * b * b - HALF_LOG_2PI + np.log(mass), depth, square


# ------------------------------
# Tilted laws as weighted points: t ~ N(0, I_r) tilted by exp(H(t)), one law for each function


@dataclass(frozen=True)
class TiltedLaw:
    """F distributions on R^r ("laws") as weighted points, each N(0, I) tilted by one exp(H).

    The points of all laws are in one list; `owner` tells the law of each.
    """

    log_mass: Array
    """log E exp(H(t)), (F,); +inf where it diverges."""
    owner: Array
    """The law of each point, (M,)."""
    points: Array
    """t, (M, r)."""
    weights: Array
    """Probabilities (M,), of sum one over the points of a law."""
    variance: Array | None = None
    """Variance of the last coordinate around its points (M,), where a point stands for an
    interval on which H is affine; None for zero."""

    def mean(self, values: Array) -> Array:
        """Averages over each law of values (M,) or (M, ...) at its points: (F, ...)."""
        return self.total(values * self.weights.reshape(-1, *[1] * (values.ndim - 1)))

    def total(self, values: Array) -> Array:
        """Sums over the points of each law."""
        size = len(self.log_mass)
        flat = values.reshape(len(values), -1)
        sums = np.empty((size, flat.shape[1]))
        for j in range(flat.shape[1]):
            sums[:, j] = np.bincount(self.owner, weights=flat[:, j], minlength=size)
        return sums.reshape(size, *values.shape[1:])


def join_laws(parts: Sequence[tuple[Array, TiltedLaw]], size: int) -> TiltedLaw:
    """The laws of `size` functions from parts (functions, laws of these functions).

    Several laws of one function, on intervals of their own, are added up by their masses.
    """
    rows = np.concatenate([np.zeros(0, dtype=int), *(where for where, _ in parts)])
    laws = [law for _, law in parts]
    if len(laws) == 1 and np.array_equal(rows, np.arange(size)):
        return laws[0]
    log_mass = log_sum_exp(
        np.concatenate([np.zeros(0), *(law.log_mass for law in laws)]), rows, size
    )
    owners = [where[law.owner] for where, law in parts]
    with np.errstate(invalid="ignore"):
        weights = [
            law.weights * np.exp(law.log_mass - log_mass[where])[law.owner] for where, law in parts
        ]
    known = any(law.variance is not None for law in laws)
    variances = (np.zeros(len(law.owner)) if law.variance is None else law.variance for law in laws)
    return TiltedLaw(
        log_mass,
        np.concatenate(owners),
        np.concatenate([law.points for law in laws]),
        np.concatenate(weights),
        np.concatenate(list(variances)) if known else None,
    )


def infinite_laws(size: int, rank: int = 1) -> TiltedLaw:
    """Laws without points and with log mass +inf, for functions whose integral diverges."""
    nothing = np.zeros(0)
    return TiltedLaw(np.full(size, np.inf), nothing.astype(int), np.zeros((0, rank)), nothing)


def log_sum_exp(logs: Array, owner: Array, size: int) -> Array:
    """log sum exp over the entries of each owner, (size,); -inf for an owner without entries."""
    top = np.full(size, -np.inf)
    np.maximum.at(top, owner, logs)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        sums = np.bincount(owner, weights=np.exp(logs - shift[owner]), minlength=size)
        return np.log(sums) + shift


# ------------------------------
# log E exp(max_p (a_p + b_p t)), t ~ N(0, 1), in closed form for many maxima at once


def integrate_pieces(a: Array, b: Array) -> TiltedLaw:
    """The laws of max_p (a_kp + b_kp t), a and b of shape (K, P)."""
    a, b = np.broadcast_arrays(a, b)
    return integrate_segments(a, b, *envelope(a, b))


def integrate_segments(
    a: Array, b: Array, low: Array, high: Array, whole: Array | None = None
) -> TiltedLaw:
    """The laws of functions that are a_kp + b_kp t on [low_kp, high_kp], all of shape (K, P).

    The law has one point for each interval that carries mass: its mean. An interval with
    low >= high is empty. whole (K,): rows with one number are parts of one function, and an
    interval is left out if it is negligible for that function.
    """
    whole = np.arange(len(a)) if whole is None else whole
    owner, piece = np.nonzero(_carries_mass(a + 0.5 * b**2, low - b, high - b, whole))
    intercept, slope = a[owner, piece], b[owner, piece]
    part = normal_interval(low[owner, piece], high[owner, piece], slope)
    logs = intercept + 0.5 * slope**2 + part.log_mass
    log_mass = log_sum_exp(logs, owner, len(a))
    weights = np.exp(logs - log_mass[owner])
    return TiltedLaw(log_mass, owner, part.mean[:, None], weights, part.variance)


def _carries_mass(top: Array, low: Array, high: Array, whole: Array) -> Array:
    """A mask (K, P) of intervals that are not negligible in sum_p exp(top_p) P(t in interval p).

    With u the distance of the interval from 0 and h its length, its probability lies between
    exp(-u^2/2 - 2.5) min(h, 1/(1 + u)) and exp(-u^2/2).
    """
    used = low < high
    distance = np.where(used, np.maximum(np.maximum(low, -high), 0.0), 0.0)
    most = np.where(used, top - 0.5 * distance**2, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.where(used, np.minimum(high - low, 1.0 / (1.0 + distance)), 0.0)
        least = most + np.log(length) - 2.5
    best = np.full(len(top), -np.inf)
    np.maximum.at(best, whole, least.max(axis=1))
    return used & (most >= best[whole, None] - LIMITS.negligible)


def envelope(a: Array, b: Array) -> tuple[Array, Array]:
    """The interval on which each line is the highest, (K, P) twice; empty where low >= high."""
    low = np.full(a.shape, -np.inf)
    high = np.full(a.shape, np.inf)
    count = a.shape[1]
    for p in range(count):
        for q in range(p + 1, count):
            rise, gap = b[:, q] - b[:, p], a[:, p] - a[:, q]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                crossing = gap / rise
            # Parallel lines: the lower one is nowhere the highest, equal ones count once.
            crossing = np.where(rise == 0, np.where(gap >= 0, np.inf, -np.inf), crossing)
            far = np.abs(crossing) > LIMITS.farthest_crossing
            crossing = np.where(far, np.copysign(np.inf, crossing), crossing)
            steeper = rise >= 0
            high[:, p] = np.where(steeper, np.minimum(high[:, p], crossing), high[:, p])
            low[:, q] = np.where(steeper, np.maximum(low[:, q], crossing), low[:, q])
            low[:, p] = np.where(steeper, low[:, p], np.maximum(low[:, p], crossing))
            high[:, q] = np.where(steeper, high[:, q], np.minimum(high[:, q], crossing))
    return low, high
