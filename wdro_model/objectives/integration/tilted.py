"""Strategies that draw scenarios: from the modes of the tilted density, or from the reference.

The tilted density is exp(f/eps - l c/eps) times the reference.

For a squared cost and an affine loss the proposal N(xi_k + m_k, v), m = v grad f/eps, is the tilted
distribution itself and all weights are equal. A maximum of affine pieces is covered by the mixture
of their Gaussians: the weights differ by at most the number of pieces. Any other loss is covered by
its modes, with the curvature of the loss in a few directions (`find_modes`).

The proposals belong to the decision and the dual variable of the last `refresh`; the draws are
fixed in between. Without a refresh the first slice makes one at its decision, with the dual
variable that minimises the objective there (`settle_dual`).

Supports: boxes by truncation, coordinate by coordinate. On a support without coordinate structure
the proposal is drawn by rejection with a bounded number of tries; the masses that proposal and
reference give to the support are estimated from the acceptance rates. They shift the value by a
constant for each sample, and no derivative.

Draws that miss a mode still agree with each other: their effective sample size is full, and their
standard error does not show the missing mass. So an audit starts ascents from random places that
the search for modes has not used: draws of the reference, places as far out as the proposal's
draws, places all over the support. An ascent that ends higher than the mixture predicts has found
missing mass. With D such places, of which f1 were reached once and f2 twice, about
D + f1 (f1 - 1)/(2 (f2 + 1)) exist (Chao's estimate).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint, minimise_dual
from wdro_model.objectives.integration.frame import affine_dual, frame_of, typical_radius
from wdro_model.objectives.integration.inner_integral import (
    AUDIT_STREAM,
    PILOT_STREAM,
    Divergence,
    InfiniteSlice,
    Scales,
    Slice,
    Stream,
)
from wdro_model.objectives.integration.modes import (
    LIMITS,
    ascend,
    bring_inside,
    clip_moves,
    find_modes,
    fit_gaussians,
    points_across,
)
from wdro_model.objectives.integration.proposals import (
    Component,
    Mixture,
    Rejection,
    fit_mixture,
    reference_of,
    with_reference,
)
from wdro_model.objectives.integration.sampled import (
    Draws,
    Noise,
    SampledIntegration,
    draw_noise,
)
from wdro_model.objectives.integration.targets import (
    PieceLines,
    Tilt,
    piece_lines,
    piece_mixture,
    tangents,
)
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.samples import SampleShares
from wdro_model.uncertainty.sampling import GaussianSampler

PROPOSAL_ENTRIES = 2**24
"""Numbers up to which the proposals of all samples are stored. Beyond, they are computed again for
each use, with one mode for each sample."""
NOISE_ENTRIES = 2**22
"""Random numbers up to which they are stored between calls."""


@dataclass(frozen=True)
class Tolerances:
    """Effort of the strategies that draw scenarios."""

    reference_share: float = 0.05
    """Share of the reference in the mixture, if the target is not known to be Gaussian."""
    reference_dimensions: int = 8
    """Dimension up to which the mixture for a quadratic cost has that share of the reference."""
    dual_draws: int = 16
    """Draws for each sample in the search for the dual variable (`settle_dual`)."""
    dual_samples: int = 32
    """Samples in the search for the dual variable."""
    audited_samples: int = 16
    """Samples at which an audit searches for modes that were missed."""
    audit_draws: int = 64
    """Draws around the modes of each sample at which the paper's estimator is audited."""
    most_errors: float = 4.0
    """Standard errors up to which two estimates of one integral may differ."""


EFFORT = Tolerances()


@dataclass
class AuditFindings:
    """Modes that the audits of earlier stages have found."""

    places: list[Array] = field(default_factory=list)
    """Moves (r,)."""
    count: int = 0
    """Number of audits so far; each has random numbers of its own."""


class Tilted(SampledIntegration):
    """Importance sampling around the modes of the tilted density, S draws per sample.

    Calls go `slice` -> `draw` -> `proposals` -> `_search`: slices ask for draws, draws come from
    the mixture of each sample, and a search for modes makes the mixture.
    """

    name = "tilted"
    adapts = True

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales)
        self.pieces = affine_pieces_of(model)
        self.frame = frame_of(self.joint, self.cost, self.sigma)
        self._at: tuple[Array, float] | None = None
        """Decision and dual variable of the last refresh."""
        self._mixture: Mixture | None = None
        self._settling = False
        """True during `settle_dual`, which asks for the proposals of some samples alone."""
        self._modes_seen: dict[str, tuple[float, tuple[Array, ...]]] = {}
        """Modes at the last and at the least dual variable: a small dual has modes far out."""
        self._audit = AuditFindings()
        self._numbers: tuple[tuple[Stream, int, bytes], Noise] | None = None
        """The last random numbers, with their stream, number of draws and samples."""
        self._rejection = Rejection(self.frame, self.cost)
        self._lines: tuple[Array, PieceLines | None] | None = None
        """A decision, and the pieces or tangents of the loss there."""

    def describe(self) -> str:
        how = "the modes of the tilted density"
        if self.pieces and self.frame.weights is not None:
            how = f"the tilted Gaussians of the {len(self.pieces)} pieces of the loss"
        return f"importance sampling: {self.draws} draws for each sample around {how}"

    # -------------------------------------------------------------- from one decision to the next
    def refresh(self, x: Array, dual: float) -> None:
        """Adapt the proposals to a decision and a dual variable; the draws change."""
        self._at = (np.array(x, dtype=float), float(dual))
        self._mixture = None
        self._stored = None

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """The slice of the proposals; infinite where the loss outgrows the cost at their dual."""
        if self._at is None:
            self.settle_dual(x, None)
        try:
            return super().slice(x, samples, stream, shares)
        except Divergence:
            return InfiniteSlice()

    def settle_dual(self, x: Array, dual: float | None) -> float:
        """Refresh at x and the dual variable that minimises the objective there; return the dual.

        In many dimensions the costs of draws concentrate: draws made for one dual variable say
        little about another, and a minimisation over the dual on fixed draws diverges. Here the
        proposals are made anew at each dual variable, for some of the samples.
        The first guess is `dual`, else G / (2 sqrt(radius)), optimal for an affine loss of slope G
        and a squared cost (G for costs of order 1).
        """
        rows = spaced_indices(self.joint.size, EFFORT.dual_samples)
        radius = self.model.radius or typical_radius(self.frame)

        def evaluate(dual: float) -> DualPoint:
            self.refresh(x, dual)
            return self.slice(x, rows, PILOT_STREAM).evaluate(dual)

        if not dual:
            guess = affine_dual(self.loss, x, rows, self.frame, self.cost, radius)
            dual = max(guess, 1e-6 * self.epsilon / radius, 1e-300)
        draws, self.draws, self._settling = self.draws, EFFORT.dual_draws, True
        try:
            least = minimise_dual(evaluate, radius, dual, 1e6 * dual, rounds=25, tolerance=1e-3)
        finally:
            self.draws, self._settling = draws, False
        self.refresh(x, least.dual)
        return least.dual

    def findings(self) -> AuditFindings:
        return self._audit

    def use_findings(self, findings: object, dual: float) -> None:
        if isinstance(findings, AuditFindings):
            self._audit = findings

    # -------------------------------------------------------------- proposals
    def proposals(self, samples: Array) -> Mixture:
        """The proposal mixtures of these samples, at the decision and dual of the last refresh."""
        if self._at is None:
            raise RuntimeError("the proposals have no decision yet: call refresh(x, dual) first.")
        if self.joint.size * max(1, self.frame.dimension) * 4 > PROPOSAL_ENTRIES:
            return self._search(samples, most=1)
        if self._settling:
            return self._search(samples, LIMITS.most_modes)
        if self._mixture is None:
            self._mixture = self._search(np.arange(self.joint.size), LIMITS.most_modes)
        return self._mixture.subset(samples)

    def _search(self, samples: Array, most: int) -> Mixture:
        """Search for up to `most` modes of each sample, and make the mixtures from them."""
        target, frame = self._target(), self.frame
        if self._has_known_pieces(target):
            assert target.lines is not None
            variance = target.variance(samples, np.zeros((1, frame.dimension)))
            return piece_mixture(target.lines, frame, samples, variance, self.epsilon)
        modes = find_modes(target, samples, most, target.piece_modes)
        proposals, share = modes.mixture(), EFFORT.reference_share * modes.curved
        if len(samples) == self.joint.size:
            self._remember_modes(target.dual, proposals)
        reference = reference_of(frame, samples)
        if not target.quadratic or target.walled:
            proposals = fit_mixture(proposals, target, samples, reference)
            share = np.full(len(samples), EFFORT.reference_share)
        elif frame.dimension > EFFORT.reference_dimensions:
            share = np.zeros(len(samples))
        return with_reference(proposals, share, reference)

    def _target(self) -> Tilt:
        assert self._at is not None
        x, dual = self._at
        seen = [place for _, places in self._modes_seen.values() for place in places]
        return Tilt(
            self.loss,
            self.frame,
            self.cost,
            epsilon=self.epsilon,
            x=x,
            dual=dual,
            lines=self._lines_at(x),
            known_modes=(*self._audit.places, *(seen if self.recalls else ())),
        )

    def _has_known_pieces(self, target: Tilt) -> bool:
        """True if the pieces of the loss give all components, so that no search is needed."""
        return bool(self.pieces) and target.quadratic and not target.walled

    def _lines_at(self, x: Array) -> PieceLines | None:
        """The affine pieces of the loss at a decision; tangents if the pieces are not known."""
        if self._lines is None or not np.array_equal(self._lines[0], x):
            lines = piece_lines(self.pieces, x, self.joint.mean, self.frame)
            self._lines = x, lines or tangents(self.loss, x, self.frame)
        return self._lines[1]

    def _remember_modes(self, dual: float, proposals: Mixture) -> None:
        shape = (self.joint.size, self.frame.dimension)
        now = (dual, tuple(np.broadcast_to(one.anchor, shape) for one in proposals.components))
        self._modes_seen["last"] = now
        if "least" not in self._modes_seen or dual <= self._modes_seen["least"][0]:
            self._modes_seen["least"] = now

    # -------------------------------------------------------------- draws
    def draw(self, samples: Array, stream: Stream) -> Draws:
        proposals, frame = self.proposals(samples), self.frame
        if self._rejection.needed:
            moves, log_mass = self._rejection.draw(proposals, samples, self.draws, stream)
        else:
            noise, log_mass = self._noise(samples, stream), np.zeros(len(samples))
            moves = proposals.transport(noise.uniform, noise.normal)
        # log(reference density / proposal density), the masses of the support included.
        log_ratio = reference_of(frame, samples).log_density(moves) - proposals.log_density(moves)
        owners = np.repeat(samples, self.draws)
        rows = frame.rows(owners, moves.reshape(len(owners), frame.dimension))
        costs = self.cost(self.joint.matrix[owners], rows).reshape(len(samples), self.draws)
        return Draws(rows, costs, log_ratio + log_mass[:, None])

    def _noise(self, samples: Array, stream: Stream) -> Noise:
        """The random numbers of these samples; stored, as new proposals use the same numbers."""
        key = (stream, self.draws, samples.tobytes())
        if self._numbers is not None and self._numbers[0] == key:
            return self._numbers[1]
        noise = draw_noise(stream, samples, self.draws, self.frame.dimension)
        if noise.normal.size <= NOISE_ENTRIES:
            self._numbers = (key, noise)
        return noise

    # -------------------------------------------------------------- errors
    def support_error(self, samples: Array, shares: SampleShares) -> float:
        variances = [self._rejection.variances.get(int(k), 0.0) for k in samples]
        return self.epsilon * shares.error(np.array(variances))

    def audit(self, diagnostics: Diagnostics, x: Array, dual: float) -> Diagnostics:
        """The diagnostics at (x, dual), with an error for modes that the draws may miss.

        The missed modes that it finds are stored: later searches start ascents there too.
        """
        rows = spaced_indices(self.joint.size, EFFORT.audited_samples)
        self.refresh(x, dual)
        target = self._target()
        if self._has_known_pieces(target) or not target.dimension:
            return diagnostics
        generator = AUDIT_STREAM.generator(self._audit.count)
        reference = reference_of(self.frame, rows)
        missed = search_missed_modes(self.proposals(rows), target, rows, reference, generator)
        self._audit.count += 1
        self._audit.places += list(missed.places)
        higher = float(self.joint.shares_of(rows).total(missed.log_mass))
        return diagnostics.worse_by(0.0, self.epsilon * higher)


def spaced_indices(size: int, count: int) -> Array:
    """Up to `count` indices below `size`, evenly spaced."""
    return np.unique(np.linspace(0, size - 1, count).astype(int))


def tilted_refusal(model: RobustModel) -> str | None:
    """The reason why tilted draws do not apply to a model; None if they do."""
    try:
        with np.errstate(all="ignore"):
            x = np.zeros(model.loss.dimension)
            model.loss(x, model.joint.matrix[:1])[1].in_data(np.ones(1))
    except NotImplementedError:
        return "the loss gives no gradient in the data"
    except (ArithmeticError, ValueError):
        return None
    return None


def affine_pieces_of(model: RobustModel) -> tuple[FlatLoss, ...]:
    """The affine pieces f_j of a loss max_j f_j; an empty tuple if they are not known."""
    structure = model.structure
    pieces = () if structure is None or structure.pieces is None else structure.pieces
    loss, joint = model.loss, model.joint
    return tuple(FlatLoss(BatchedLoss(e, joint.parameters), loss.layout, joint) for e in pieces)


# ------------------------------
# The audit: a search for modes that a mixture misses


@dataclass(frozen=True)
class AuditLimits:
    """Effort and thresholds of an audit; masses are logarithms of shares of the known mass."""

    starts: int = 12
    """Random starts for each sample, a third of each kind."""
    known_draws: int = 128
    """Draws of the mixture that estimate the mass it covers."""
    local_draws: int = 32
    """Draws around a place that estimate the mass there."""
    lacking: float = float(np.log(4.0))
    """A place counts as missed if its mass exceeds the mixture's mass there by this much."""
    negligible: float = float(np.log(1e-4))
    """Places with less mass do not count."""
    most_places: int = 8
    """Places that are stored, those of the largest mass."""


AUDIT = AuditLimits()


@dataclass(frozen=True)
class MissedMass:
    """The mass that a mixture does not cover."""

    log_mass: Array
    """log(1 + missed mass / known mass), estimated for each sample from random starts, (K,)."""
    places: Array
    """Moves (P, r) to the missed modes, the one with the largest mass first."""


def log_mean_exp(logs: Array) -> Array:
    """log mean exp of each row."""
    return np.logaddexp.reduce(logs, axis=1) - np.log(logs.shape[1])


def search_missed_modes(
    known: Mixture,
    target: Tilt,
    owners: Array,
    reference: Component,
    generator: np.random.Generator,
) -> MissedMass:
    """Search from random places for mass that the mixtures `known` of these samples miss."""
    size, r, rows = len(owners), target.dimension, np.arange(len(owners))

    def heights(moves: Array) -> Array:
        who = np.repeat(owners, moves.shape[1])
        return target.values(who, moves.reshape(-1, r), exact=True).reshape(moves.shape[:2])

    uniform = generator.random((size, AUDIT.known_draws))
    draws = known.transport(uniform, generator.standard_normal((*uniform.shape, r)))
    known_mass = log_mean_exp(heights(draws) - known.log_density(draws))
    reach = np.abs(draws).max(axis=1)[:, None]
    moves, gradients = ascend_from_random(target, owners, reach, reference, generator)
    values = heights(moves)
    # `left`: ends of ascents where h exceeds the mixture's prediction, log mass + log density.
    # Each round takes the highest one of each sample, and drops the ends at the same place.
    left = np.isfinite(values)
    left &= values > known_mass[:, None] + known.log_density(moves) + LIMITS.new_mode
    extra, once, twice, distinct = (np.zeros(size) for _ in range(4))
    places: list[tuple[float, Array]] = []
    while left.any():
        pick = np.where(left, values, -np.inf).argmax(axis=1)
        picked = left[rows, pick]
        place = clip_moves(moves[rows, pick], target.bounds(owners))
        one = fit_gaussians(target, owners, place, gradients[rows, pick], picked, picked)
        # The mass around the place, and the mass that the mixture gives to it, by draws.
        noise = generator.standard_normal((size, AUDIT.local_draws, r))
        around = one.transport(slice(None), noise)
        density = one.log_density(around)
        mass = log_mean_exp(heights(around) - density)
        covered = log_mean_exp(known.log_density(around) - density)
        counts = picked & (mass - known_mass > covered + AUDIT.lacking)
        counts &= mass > known_mass + AUDIT.negligible
        # Ends whose height the Gaussian at this place predicts have reached the same place.
        top = values[rows, pick] - one.log_density(place[:, None])[:, 0]
        same = left & (values <= top[:, None] + one.log_density(moves) + LIMITS.new_mode)
        same[rows, pick] |= picked
        reached = np.where(counts, same.sum(axis=1), 0)
        share = np.where(counts, np.exp(np.minimum(mass - known_mass, 50.0)), 0.0)
        places += [(float(share[k]), place[k]) for k in np.flatnonzero(counts)]
        extra += share
        distinct += counts
        once += reached == 1
        twice += reached == 2
        left &= ~same
    unseen = once * np.maximum(once - 1, 0) / (2 * (twice + 1))  # Chao's estimate
    scale = 1 + np.divide(unseen, distinct, out=np.zeros(size), where=distinct > 0)
    places.sort(key=lambda item: -item[0])
    largest = np.array([place for _, place in places[: AUDIT.most_places]]).reshape(-1, r)
    return MissedMass(np.log1p(extra * scale), largest)


def ascend_from_random(
    target: Tilt, owners: Array, reach: Array, reference: Component, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Ends (K, S, r) of ascents from random starts, and the gradients there.

    A third of the starts are draws of the reference, a third are uniform in the box of half-widths
    `reach` (K, 1, r), a third lie all over the support, often in corners.
    """
    size, r, third = len(owners), target.dimension, AUDIT.starts // 3
    shares = generator.random((size, third, r))
    corner = generator.random(shares.shape) < 0.7
    kinds = [
        reference.transport(slice(None), generator.standard_normal((size, third, r))),
        reach * generator.uniform(-1, 1, (size, third, r)),
        points_across(target, owners, np.where(corner, np.round(shares), shares)),
    ]
    starts = np.concatenate(kinds, axis=1)
    who = np.repeat(owners, starts.shape[1])
    moves, _, gradients = ascend(target, who, bring_inside(target, who, starts.reshape(-1, r)))
    return moves.reshape(starts.shape), gradients.reshape(starts.shape)


# ------------------------------
# The paper's estimator: S draws from the reference Gaussian for each sample, self-normalised


class Gaussian(SampledIntegration):
    """Plain Monte Carlo from the reference measure, S draws per sample.

    With zeta_1..zeta_S ~ N(xi_k, sigma^2) on the support and w_s = exp((f(x, zeta_s) - l c_s)/eps),

        phi_k ~ eps log mean_s w_s,   grad_x phi_k ~ sum_s w_s grad f(x, zeta_s) / sum_s w_s,
        d phi_k / dl ~ - sum_s w_s c_s / sum_s w_s.

    Draws that all miss the mass of the density have weights as even as draws that cover it, and
    their standard error is too small. An audit therefore integrates some samples again, by
    importance sampling around the modes (`Tilted`).
    """

    name = "gaussian"

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales)
        self._sampler = GaussianSampler(self.joint, self.cost.frozen)
        self._buffer = np.empty((0, self.joint.dimension))

    def describe(self) -> str:
        return (
            f"Monte Carlo: {self.draws} draws from the reference Gaussian for each sample "
            "(the paper's estimator)"
        )

    def draw(self, samples: Array, stream: Stream) -> Draws:
        return self.draw_many(samples, stream, self.draws)

    def draw_many(self, samples: Array, stream: Stream, count: int) -> Draws:
        """`count` draws for each sample, in a buffer that the next call overwrites."""
        if len(self._buffer) < len(samples) * count:
            self._buffer = np.empty((len(samples) * count, self.joint.dimension))
        costs = np.empty((len(samples), count))
        for i, k in enumerate(samples):
            centers = np.broadcast_to(self.joint.matrix[k], (count, self.joint.dimension))
            points = self._sampler.draw(centers, self.sigma, stream.generator(int(k)))
            self._buffer[i * count : (i + 1) * count] = points
            costs[i] = self.cost(centers, points)
        return Draws(self._buffer[: len(samples) * count], costs)

    def audit(self, diagnostics: Diagnostics, x: Array, dual: float) -> Diagnostics:
        """The diagnostics; a significant difference from `Tilted` on some samples is an error."""
        rows = spaced_indices(self.joint.size, EFFORT.audited_samples)
        other = Tilted(self.model, replace(self.scales, draws=EFFORT.audit_draws))
        values, errors = [], []
        try:
            for rule in (self, other):
                rule.refresh(x, dual)
                inner = rule.slice(x, rows, AUDIT_STREAM)
                values.append(inner.evaluate(dual).value)
                known = inner.diagnostics(dual)
                errors.append(0.0 if known is None else known.standard_error)
        except (OutOfTime, NotImplementedError):  # no time, or no gradient in the data
            return diagnostics
        apart, error = abs(values[1] - values[0]), math.hypot(*errors)
        return (
            diagnostics if apart <= EFFORT.most_errors * error else diagnostics.worse_by(0.0, apart)
        )
