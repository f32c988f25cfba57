"""Gaussian mixtures, one for each sample: densities, draws, rejection, and fits to a target.

A diagonal component has center c, deviations s_i, and a few orthonormal directions u_j along which
the deviation is scaled by t_j (curvature of the loss):

    y = c + s * (g + sum_j (t_j - 1) <u_j, g> u_j),   g ~ N(0, 1).

On a box the coordinates near a bound are truncated Gaussians drawn by their quantiles; bounds far
away are ignored. Densities of truncated coordinates are taken relative to the point of the interval
nearest to c, so that nothing cancels when c lies far outside.

A full component y = c + L g, L lower triangular, is drawn coordinate by coordinate, each truncated
to its bounds given the ones before (Geweke, Hajivassiliou and Keane). The density is that of the
Gaussian over the masses of those intervals, which depend on the earlier coordinates:

    log q(y) = sum_i log phi(g_i) - log L_ii - log(Phi(b_i) - Phi(a_i)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import logsumexp, ndtr

from wdro_model.objectives.integration.frame import Frame
from wdro_model.objectives.integration.inner_integral import PILOT_STREAM, Stream
from wdro_model.objectives.integration.normal import HALF_LOG_2PI, log_mass, log_scaled_mass
from wdro_model.objectives.integration.sampled import draw_noise
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.sampling import Truncation, inverse_cdf

if TYPE_CHECKING:
    from wdro_model.objectives.integration.targets import Tilt

Bounds = tuple[Array, Array]


@dataclass(frozen=True)
class Tolerances:
    """Limits of mixtures; masses are logarithms."""

    bound_reach: float = 6.5
    """Deviations beyond which a bound is ignored: the mass there is 4e-11."""
    least_share: float = 0.05
    """The least share of a mode in a mixture: enough draws for a useful importance weight."""
    mass_window: float = 20.0
    """Modes whose log mass lies so far below the largest are left out."""
    block_entries: int = 2**20
    """Density terms computed at once."""
    tries_per_draw: int = 10_000
    """Proposals for each wanted draw by rejection, at most; a tenth of it if none is accepted."""
    round_tries: int = 256
    """Proposals in one round of rejection, at least."""
    round_entries: int = 2**20
    """Numbers in one round of rejection, at most."""
    mass_tries: int = 4096
    """Proposals from which the mass of the reference inside the support is estimated."""
    pilot_draws: int = 128
    """Draws to which spreads and shares of the components are fitted."""
    share_rounds: int = 20
    """Iterations of expectation maximisation for the shares."""
    inflation: float = 1.25
    """Factor of the variance of components that are fitted to draws, against light tails."""
    tail_factors: tuple[float, float] = (1.5, 2.5)
    """Deviations of wider components, in those of the fitted ones: costs of order 1 have long
    tails."""
    draws_per_dimension: float = 4.0
    """Effective sample size of the pilot draws, for each dimension, that suffices to estimate a
    covariance."""


LIMITS = Tolerances()


class Component:
    """Gaussians restricted to bounds, one for each of K samples: a term of a mixture."""

    center: Array
    """(K, r), or (1, r) for all samples."""
    anchor: Array
    """The points nearest to the centers within the bounds that matter, (K, r)."""
    bounds: Bounds | None

    def log_density(self, moves: Array, owners: Array | slice = slice(None)) -> Array:
        """Log density (K, S) at the moves (K, S, r) of some of the samples."""
        raise NotImplementedError

    def transport(self, owners: Array | slice, noise: Array) -> Array:
        """Draws (M, S, r) of samples (M,), from normal noise (M, S, r), or (1, S, r) for all."""
        raise NotImplementedError

    def scaled(self, factor: float) -> Component:
        """The Gaussians with all deviations multiplied by a factor."""
        raise NotImplementedError

    def subset(self, owners: Array | slice) -> Self:
        """The Gaussians of some of the samples."""
        parts = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return type(self)(*(select_samples(part, owners) for part in parts))


def select_samples(part: Any, owners: Array | slice) -> Any:
    """The entries of some samples; an array with a leading axis of 1 is shared by all samples."""
    if isinstance(part, tuple):
        return tuple(select_samples(side, owners) for side in part)
    return part if part is None or len(part) == 1 else part[owners]


@dataclass(frozen=True)
class DiagonalComponent(Component):
    """Gaussians with a diagonal covariance, scaled along a few directions."""

    center: Array
    """(K, r)"""
    deviation: Array
    """(K, r)"""
    basis: Array
    """Orthonormal directions (K, directions, r) in y / deviation, or zeros."""
    scales: Array
    """Factors of the deviation along them, (K, directions)."""
    anchor: Array
    """The point nearest to the center within the bounds that matter, (K, r)."""
    truncated: Array | None
    """Coordinates drawn as truncated Gaussians, (K, r); None for none."""
    bounds: Bounds | None
    log_norm: Array
    """log of the density at the anchor, (K,)."""

    def log_density(self, moves: Array, owners: Array | slice = slice(None)) -> Array:
        one = self.subset(owners)
        inverse = 1.0 / one.deviation[:, None]
        anchor, center = one.anchor[:, None], one.center[:, None]
        first = moves - anchor
        first *= inverse
        if self.truncated is None:
            square = np.einsum("ksr,ksr->ks", first, first)
        else:
            square = np.einsum("ksr,ksr->ks", first, first + 2 * (anchor - center) * inverse)
        if one.basis.shape[1]:
            along = first @ np.swapaxes(one.basis, 1, 2)
            square += np.einsum("ksj,kj->ks", along**2, one.scales**-2.0 - 1.0)
        return one.log_norm[:, None] - 0.5 * square

    def transport(self, owners: Array | slice, noise: Array) -> Array:
        one = self.subset(owners)
        center, deviation = one.center[:, None], one.deviation[:, None]
        bent = noise
        if one.basis.shape[1]:
            inner = noise @ np.swapaxes(one.basis, 1, 2)
            bent = noise + (inner * (one.scales[:, None] - 1.0)) @ one.basis
        moves = center + deviation * bent
        if one.bounds is None:
            return moves
        sides = [side[:, None] for side in one.bounds]
        if one.truncated is not None:
            # Pairs (k, i) of sample and truncated coordinate, each with all of its draws.
            size, count, r = moves.shape
            k, i = np.nonzero(np.broadcast_to(one.truncated, (size, r)))
            parts = (np.broadcast_to(a, (size, 1, r))[k, 0, i] for a in (center, deviation, *sides))
            law = Truncation(*(np.repeat(a, count) for a in parts))
            uniform = ndtr(np.broadcast_to(noise, moves.shape)[k, :, i])
            moves[k, :, i] = inverse_cdf(law, uniform.ravel()).reshape(uniform.shape)
        return np.clip(moves, *sides)

    def scaled(self, factor: float) -> Component:
        return component(self.center, factor * self.deviation, self.bounds, self.basis, self.scales)


def component(
    center: Array,
    deviation: Array,
    bounds: Bounds | None,
    basis: Array | None = None,
    scales: Array | None = None,
) -> DiagonalComponent:
    """A component from center and deviations (K, r), directions and factors."""
    r = center.shape[1]
    basis = np.zeros((1, 0, r)) if basis is None else basis
    scales = np.ones(basis.shape[:2]) if scales is None else scales
    log_norm = -r * HALF_LOG_2PI - np.log(deviation).sum(axis=1)
    anchor, truncated = center, None
    if bounds is not None:
        truncated = reachable(center, deviation, bounds)
        if basis.shape[1]:
            # A direction must not mix coordinates that are truncated, or would be once scaled.
            wide = deviation * np.sqrt(1 + np.einsum("kjr,kj->kr", basis**2, scales**2 - 1.0))
            near = reachable(center, np.maximum(wide, deviation), bounds)
            spoiled = ((basis != 0).any(axis=1) & near).any(axis=1)
            scales = np.where(spoiled[:, None], 1.0, scales)
            basis = np.where(spoiled[:, None, None], 0.0, basis)
        if truncated.any():
            anchor = np.where(truncated, np.clip(center, *bounds), center)
            a, b = ((side - center) / deviation for side in bounds)
            mass = np.zeros(truncated.shape)
            mass[truncated] = log_scaled_mass(a[truncated], b[truncated])
            log_norm = log_norm - mass.sum(axis=1)
        else:
            truncated = None
    log_norm = log_norm - np.log(scales).sum(axis=1)
    return DiagonalComponent(center, deviation, basis, scales, anchor, truncated, bounds, log_norm)


def reference_of(frame: Frame, samples: Array) -> Component:
    """The reference N(0, spread) of the moves of these samples, truncated to the box."""
    bounds = frame.bounds(samples)
    shape = (1 if bounds is None else len(samples), frame.dimension)
    return component(np.zeros(shape), np.broadcast_to(np.sqrt(frame.spread), shape), bounds)


def reachable(center: Array, deviation: Array, bounds: Bounds) -> Array:
    """A mask (K, r) of coordinates with a bound within `bound_reach` deviations of the center."""
    reach = LIMITS.bound_reach * deviation
    return (center - bounds[0] < reach) | (bounds[1] - center < reach)


@dataclass(frozen=True)
class FullComponent(Component):
    """Gaussians with a full covariance."""

    center: Array
    """(K, r)"""
    root: Array
    """Lower triangular root of the covariance, (K, r, r)."""
    bounds: Bounds | None

    @property
    def anchor(self) -> Array:  # type: ignore[override]
        return self.center if self.bounds is None else np.clip(self.center, *self.bounds)

    def log_density(self, moves: Array, owners: Array | slice = slice(None)) -> Array:
        one = self.subset(owners)
        scores = np.zeros(moves.shape)
        out = np.full(moves.shape[:2], -moves.shape[2] * HALF_LOG_2PI)
        for i in range(moves.shape[2]):
            mean, scale, ends = one.conditional(i, scores)
            scores[:, :, i] = (moves[:, :, i] - mean) / scale
            out -= 0.5 * scores[:, :, i] ** 2 + np.log(scale)
            if ends is not None:
                low, high = ((end - mean) / scale for end in ends)
                near = (low > -LIMITS.bound_reach) | (high < LIMITS.bound_reach)
                out[near] -= log_mass(low[near], high[near])
        return out

    def transport(self, owners: Array | slice, noise: Array) -> Array:
        one = self.subset(owners)
        if one.bounds is None:
            return one.center[:, None] + noise @ np.swapaxes(one.root, 1, 2)
        moves, scores = np.empty(noise.shape), np.zeros(noise.shape)
        for i in range(noise.shape[2]):
            mean, scale, ends = one.conditional(i, scores)
            assert ends is not None
            moves[:, :, i] = mean + scale * noise[:, :, i]
            law = [np.broadcast_to(part, mean.shape) for part in (mean, scale, *ends)]
            near = reachable(mean, scale, ends)
            if near.any():
                moves[near, i] = inverse_cdf(
                    Truncation(*(part[near] for part in law)), ndtr(noise[near, i])
                )
            moves[:, :, i] = np.clip(moves[:, :, i], *ends)
            scores[:, :, i] = (moves[:, :, i] - mean) / scale
        return moves

    def conditional(self, i: int, scores: Array) -> tuple[Array, Array, Bounds | None]:
        """Mean (K, S), deviation (K, 1) and bounds (K, 1) of coordinate i given those before."""
        before = np.einsum("ksj,kj->ks", scores[:, :, :i], self.root[:, i, :i])
        ends = (
            None
            if self.bounds is None
            else (self.bounds[0][:, i, None], self.bounds[1][:, i, None])
        )
        return self.center[:, i, None] + before, self.root[:, i, i, None], ends

    def scaled(self, factor: float) -> FullComponent:
        return replace(self, root=factor * self.root)


def correlated(center: Array, precision: Array, bounds: Bounds | None) -> FullComponent:
    """A full component from centers (K, r) and precisions (K, r, r)."""
    # The root of the inverse, lower triangular: reverse the order, invert the root, reverse back.
    flipped = np.linalg.cholesky(precision[:, ::-1, ::-1])
    root = np.swapaxes(np.linalg.inv(flipped), 1, 2)[:, ::-1, ::-1]
    return FullComponent(center, root, bounds)


@dataclass(frozen=True)
class Mixture:
    """One mixture for each of K samples: J components with log weights (K, J).

    A log weight of -inf leaves the component out of the sample's mixture.
    """

    components: tuple[Component, ...]
    log_weights: Array

    def log_density(self, moves: Array) -> Array:
        """Log density (K, S) at the moves (K, S, r)."""
        size, count, dimension = moves.shape
        out = np.empty((size, count))
        step = max(1, LIMITS.block_entries // max(1, count * dimension))
        for start in range(0, size, step):
            own = slice(start, start + step)
            terms = [
                one.log_density(moves[own], own) + weights[own, None]
                for one, weights in zip(self.components, self.log_weights.T)
            ]
            out[own] = terms[0] if len(terms) == 1 else logsumexp(np.stack(terms), axis=0)
        return out

    def transport(self, uniform: Array, noise: Array) -> Array:
        """Draws (K, S, r): uniform numbers (K, S) choose the component, noise moves it."""
        if len(self.components) == 1:
            return self.components[0].transport(slice(None), noise)
        edges = np.cumsum(np.exp(self.log_weights), axis=1)
        edges /= edges[:, -1:]
        choice = (uniform[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
        moves = np.empty_like(noise)
        for j, one in enumerate(self.components):
            rows, columns = np.nonzero(choice == j)
            if len(rows):
                moves[rows, columns] = one.transport(rows, noise[rows, columns][:, None])[:, 0]
        return moves

    def subset(self, owners: Array) -> Mixture:
        """The mixtures of some of the samples."""
        return Mixture(
            tuple(one.subset(owners) for one in self.components), self.log_weights[owners]
        )

    def scaled(self, factor: float) -> Mixture:
        """The mixture with all deviations multiplied by a factor."""
        return Mixture(tuple(one.scaled(factor) for one in self.components), self.log_weights)


def with_reference(proposals: Mixture, share: Array, reference: Component) -> Mixture:
    """The mixture with a share (K,) of the reference, which bounds the importance weights."""
    if not share.any():
        return proposals
    with np.errstate(divide="ignore"):
        own, kept = np.log(share)[:, None], np.log1p(-share)[:, None]
    log_weights = np.concatenate([proposals.log_weights + kept, own], axis=1)
    return Mixture((*proposals.components, reference), log_weights)


def mixture(components: Sequence[Component], log_masses: Array) -> Mixture:
    """The mixture with weights proportional to the masses (K, J) of its components.

    Components more than `mass_window` below the best in log mass are left out; the others get at
    least `least_share` (or half of an equal share).
    """
    best = log_masses.max(axis=1, keepdims=True)
    used = log_masses >= best - LIMITS.mass_window
    shares = np.where(used, np.exp(np.minimum(log_masses - best, 0.0)), 0.0)
    shares /= shares.sum(axis=1, keepdims=True)
    smallest = np.minimum(LIMITS.least_share, 0.5 / used.sum(axis=1, keepdims=True))
    shares = np.where(used, np.maximum(shares, smallest), 0.0)
    shares /= shares.sum(axis=1, keepdims=True)
    kept = [int(j) for j in np.flatnonzero(used.any(axis=0))]
    with np.errstate(divide="ignore"):
        log_shares = np.log(shares[:, kept])
    return Mixture(tuple(components[j] for j in kept), log_shares)


# ------------------------------
# Draws of a mixture by rejection, with a bounded number of tries, and the mass they reveal


@dataclass(frozen=True)
class Accepted:
    """Draws (S, r) inside a set, and the share of proposals that fell inside."""

    moves: Array
    tried: int

    @property
    def share(self) -> float:
        """The acceptance rate; none counts as half a success, as the sample lies inside."""
        return max(len(self.moves), 0.5) / self.tried

    @property
    def log_variance(self) -> float:
        """The variance of the log of the acceptance rate."""
        return (1 / self.share - 1) / self.tried


def accepted_draws(
    proposals: Mixture,
    inside: Callable[[Array], Array],
    generator: np.random.Generator,
    wanted: int,
    least: int,
    most: int,
) -> Accepted:
    """Draws of the mixture of one sample that lie inside a set.

    At least `least` proposals; more until `wanted` are accepted, up to `most`, or up to a tenth of
    `most` if none is accepted.
    """
    dimension = proposals.components[0].center.shape[1]
    most_tries = LIMITS.round_entries // max(1, dimension)
    size = max(1, min(max(LIMITS.round_tries, wanted, least // 4), most_tries))
    moves: list[Array] = []
    tried = accepted = 0
    while tried < least or (accepted < wanted and tried < (most if accepted else most // 10)):
        normal = generator.standard_normal((1, size, dimension))
        drawn = proposals.transport(generator.random((1, size)), normal)[0]
        moves.append(drawn[inside(drawn)])
        tried, accepted = tried + size, accepted + len(moves[-1])
    return Accepted(np.concatenate(moves), tried)


class Rejection:
    """Draws by rejection, for supports without coordinate structure and costs that may be infinite.

    The acceptance rates estimate the masses that proposal and reference give to the support.
    """

    def __init__(self, frame: Frame, cost: BoundCost) -> None:
        self.frame, self.cost = frame, cost
        self.may_forbid = not (cost.is_norm or cost.is_quadratic)
        """True if a move of coordinates that are not frozen may cost infinity."""
        self.needed = bool(frame.coupled) or self.may_forbid
        self._log_masses: dict[tuple[int, int], tuple[float, float]] = {}
        self.variances: dict[int, float] = {}
        """Variances of the estimated log masses, by sample."""

    def draw(
        self, proposals: Mixture, samples: Array, draws: int, stream: Stream
    ) -> tuple[Array, Array]:
        """Draws (K, S, r) inside the support, and log(Z_proposal / Z_reference) (K,)."""
        moves = np.empty((len(samples), draws, self.frame.dimension))
        log_mass = np.empty(len(samples))
        for i, k in enumerate(map(int, samples)):
            inside = partial(self.allowed, k, priced=True)
            most = max(LIMITS.tries_per_draw * draws, 10 * LIMITS.tries_per_draw)
            one, generator = proposals.subset(np.array([i])), stream.generator(k)
            drawn = accepted_draws(one, inside, generator, draws, 0, most)
            if len(drawn.moves) < draws:
                raise ValueError(
                    f"{len(drawn.moves)} of {drawn.tried} draws fell into the support (or had a "
                    f"finite cost) where {draws} are needed; use a smaller sigma or epsilon, or a "
                    "Box, which is drawn exactly."
                )
            known, variance = self._reference_mass(k, max(LIMITS.mass_tries, 4 * draws))
            moves[i] = drawn.moves[:draws]
            log_mass[i] = np.log(drawn.share) - known
            self.variances[k] = drawn.log_variance + variance
        return moves, log_mass

    def allowed(self, k: int, moves: Array, priced: bool) -> Array:
        """A mask of the moves of sample k into the support; with `priced`, at finite cost."""
        owners = np.full(len(moves), k)
        rows = self.frame.rows(owners, moves)
        good = self.frame.is_inside(rows)
        if priced and self.may_forbid:
            origins = self.frame.joint.matrix[owners[good]]
            good[good] = np.isfinite(self.cost(origins, rows[good]))
        return good

    def _reference_mass(self, k: int, tries: int) -> tuple[float, float]:
        """log mass of the reference in the support of sample k, and its variance; computed once."""
        if not self.frame.coupled:
            return 0.0, 0.0
        if (k, tries) not in self._log_masses:
            reference = Mixture((reference_of(self.frame, np.array([k])),), np.zeros((1, 1)))
            inside = partial(self.allowed, k, priced=False)
            generator = PILOT_STREAM.generator(k)
            most = 1000 * LIMITS.mass_tries
            drawn = accepted_draws(reference, inside, generator, 16, tries, most)
            self._log_masses[k, tries] = float(np.log(drawn.share)), drawn.log_variance
        return self._log_masses[k, tries]


# ------------------------------
# Mixtures for densities that are not Gaussian around their modes: spreads and shares that fit


@dataclass(frozen=True)
class PilotDraws:
    """Pilot draws of K samples: moves (K, S, r), weights (K, S) that sum to one."""

    moves: Array
    weights: Array

    @classmethod
    def draw(
        cls, proposals: Mixture, target: Tilt, samples: Array, reference: Component
    ) -> PilotDraws:
        """Draws of the mixture, half of them from the reference, with their weights."""
        size, r = len(samples), target.dimension
        wide = with_reference(proposals, np.full(size, 0.5), reference)
        noise = draw_noise(PILOT_STREAM, samples, LIMITS.pilot_draws, r)
        moves = wide.transport(noise.uniform, noise.normal)
        owners = np.repeat(samples, LIMITS.pilot_draws)
        values = target.values(owners, moves.reshape(len(owners), r), exact=True)
        exponent = values.reshape(size, LIMITS.pilot_draws) - wide.log_density(moves)
        return cls(moves, softmax(exponent, axis=1))

    def densities(self, proposals: Mixture) -> Array:
        """Log densities (K, S, J) of the components at the draws."""
        return np.stack([one.log_density(self.moves) for one in proposals.components], axis=2)


def softmax(logs: Array, axis: int) -> Array:
    """Shares proportional to exp(logs); 0 where all logs are -inf."""
    shares = np.exp(logs - np.maximum(logs.max(axis=axis, keepdims=True), -1e300))
    return shares / np.maximum(shares.sum(axis=axis, keepdims=True), 1e-300)


def fit_mixture(proposals: Mixture, target: Tilt, samples: Array, reference: Component) -> Mixture:
    """A mixture at several spreads, with maximum likelihood shares on weighted pilot draws."""
    if all(isinstance(one, FullComponent) for one in proposals.components):
        fit = fit_covariances(proposals, PilotDraws.draw(proposals, target, samples, reference))
        wider = (fit.scaled(factor) for factor in LIMITS.tail_factors)
        wide = equal_parts([proposals, fit, *wider])
    else:
        # Next to a wall, or with a cost of order 1, densities are not Gaussian: several spreads.
        factors = np.exp(np.array([-0.6, 0.0, 0.8]) / np.sqrt(max(1, target.dimension)))
        wide = equal_parts([proposals.scaled(factor) for factor in factors])
    return fit_shares(wide, PilotDraws.draw(wide, target, samples, reference))


def fit_covariances(proposals: Mixture, drawn: PilotDraws) -> Mixture:
    """Components with mean and covariance of the weighted pilot draws that belong to them.

    A component whose draws have too small an effective sample size keeps its center and covariance.
    """
    claims = softmax(proposals.log_weights[:, None] + drawn.densities(proposals), axis=2)
    components: list[Component] = []
    r = drawn.moves.shape[2]
    for j, one in enumerate(proposals.components):
        assert isinstance(one, FullComponent)
        mine = drawn.weights * claims[:, :, j]
        total = mine.sum(axis=1)
        known = total**2 > LIMITS.draws_per_dimension * r * (mine**2).sum(axis=1)
        shares = mine / np.maximum(total, 1e-300)[:, None]
        mean = np.einsum("ks,ksr->kr", shares, drawn.moves)
        apart = drawn.moves - mean[:, None]
        covariance = LIMITS.inflation * np.einsum("ks,ksi,ksj->kij", shares, apart, apart)
        old = one.root @ np.swapaxes(one.root, 1, 2)
        covariance = np.where(known[:, None, None], covariance + 0.02 * old, old)
        center = np.where(known[:, None], mean, one.center)
        components.append(FullComponent(center, np.linalg.cholesky(covariance), one.bounds))
    return Mixture(tuple(components), proposals.log_weights)


def fit_shares(proposals: Mixture, drawn: PilotDraws) -> Mixture:
    """The mixture with maximum likelihood shares on weighted pilot draws, by EM:

    shares_j <- mean of the responsibilities shares_j q_j / sum_i shares_i q_i under the target.
    """
    densities = drawn.densities(proposals)
    log_shares, used = proposals.log_weights, np.isfinite(proposals.log_weights)
    least = np.minimum(0.2 * LIMITS.least_share, 0.2 / used.sum(axis=1, keepdims=True))
    for _ in range(LIMITS.share_rounds):
        claims = softmax(log_shares[:, None] + densities, axis=2)
        mean = np.einsum("ks,ksj->kj", drawn.weights, claims)
        mean = np.where(used, np.maximum(mean, least), 0.0)
        with np.errstate(divide="ignore"):
            log_shares = np.log(mean / mean.sum(axis=1, keepdims=True))
    return Mixture(proposals.components, log_shares)


def equal_parts(several: list[Mixture]) -> Mixture:
    """The mixture of several mixtures in equal parts."""
    weights = np.concatenate([m.log_weights for m in several], axis=1) - np.log(len(several))
    return Mixture(tuple(one for m in several for one in m.components), weights)
