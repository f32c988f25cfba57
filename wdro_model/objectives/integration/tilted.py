"""Tilted importance sampling: draws around the modes of exp(f/eps - l c/eps) times the reference.

Draws around some of the modes agree with each other whatever the others carry: their effective
sample size is full, and their standard error knows nothing of it. Here ascents start from random
places that the finder has not used: of the reference, as far out as the draws, all over the
support. What they reach and the
mixture does not expect is mass elsewhere. With D such places, of which f1 were reached once and f2
twice, about D + f1 (f1 - 1)/(2 (f2 + 1)) exist (Chao's estimate).

For a squared cost and an affine loss the proposal N(xi_k + m_k, v), m = v grad f/eps, is the tilted
distribution itself and all weights are equal. A maximum of affine pieces is covered by the mixture
of their Gaussians: the weights differ by at most the number of pieces. Any other loss is covered by
its modes, with the curvature of the loss in a few directions (`modes.cover`).

The proposals belong to the decision and the dual variable of the last `refresh`; the draws are
fixed in between. Without a refresh the first slice makes one at its decision, with the dual
variable that minimises the objective there (`settle_dual`).

Supports: boxes by truncation, coordinate by coordinate. On a support without coordinate structure
the proposal is drawn by rejection with a bounded number of tries; the masses that proposal and
reference give to the support are estimated from the acceptance rates. They shift the value by a
constant for each sample, and no derivative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint, minimise_dual
from wdro_model.objectives.integration.importance.draws import Noise, Rejection, adapted, noise
from wdro_model.objectives.integration.importance.frame import (
    affine_dual,
    frame_of,
    reference_of,
    typical_radius,
)
from wdro_model.objectives.integration.importance.modes import (
    MODES,
    NEW,
    ascend,
    clipped,
    confined,
    cover,
    local,
    within,
)
from wdro_model.objectives.integration.importance.proposals import Component, Mixture, defended
from wdro_model.objectives.integration.importance.targets import (
    PieceLines,
    Tilt,
    piece_lines,
    piece_mixture,
    tangents,
)
from wdro_model.objectives.integration.inner_integral import (
    AUDIT_STREAM,
    PILOT_STREAM,
    Divergence,
    InfiniteSlice,
    Scales,
    Slice,
    Stream,
)
from wdro_model.objectives.integration.sampled import Draws, SampledIntegration
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.samples import SampleShares

STARTS = 12
"""Random starts for each sample."""
NEGLIGIBLE = np.log(1e-4)
"""Places with less than this share of the known mass do not count."""
AROUND, LACKING = 32, np.log(4.0)
"""Draws around a place, and the factor by which it has more than the mixture gives to it."""
KNOWN = 128
"""Draws of the mixture that tell the mass it covers."""
LEARNED = 8
"""Places that are remembered."""


@dataclass(frozen=True)
class Missed:
    """What a mixture does not cover."""

    log_mass: Array
    """log(1 + unknown mass / known mass) for each sample, as far as random starts can tell."""
    places: Array
    """Moves (P, r) to where it was found, the largest first."""


def missed_by(
    known: Mixture, target: Tilt, owners: Array, reference: Any, generator: np.random.Generator
) -> Missed:
    """Search from random places for mass that the mixtures of these samples do not cover."""
    size, r, bounds = len(owners), target.dimension, target.bounds(owners)
    rows = np.arange(size)

    def at(law: Any, count: int) -> Array:
        normal = generator.standard_normal((size, count, r))
        return law.transport(np.repeat(rows, count), normal.reshape(-1, r)).reshape(normal.shape)

    def heights(moves: Array) -> Array:
        flat = moves.reshape(-1, r)
        found = target.values(np.repeat(owners, moves.shape[1]), flat, exact=True)
        return found.reshape(moves.shape[:2])

    choice = known.choose(generator.random((size, KNOWN)))
    drawn = known.transport(choice, generator.standard_normal((size, KNOWN, r)))
    weights = heights(drawn) - known.log_density(drawn)
    total = np.logaddexp.reduce(weights, axis=1) - np.log(KNOWN)
    reach = np.abs(drawn).max(axis=1)[:, None]
    third = STARTS // 3
    own = reference if len(reference.center) == size else reference.rows(np.zeros(size, dtype=int))
    across = generator.random((size, third, r))
    ends = generator.random(across.shape) < 0.7
    spread = [
        at(own, third),
        reach * generator.uniform(-1, 1, (size, third, r)),
        within(target, owners, np.where(ends, np.round(across), across)),
    ]
    starts = np.concatenate(spread, axis=1)
    who = np.repeat(owners, starts.shape[1])
    inside = confined(target, who, starts.reshape(-1, r))
    moves, _, gradients = ascend(target, who, inside)
    moves, gradients = moves.reshape(starts.shape), gradients.reshape(starts.shape)
    values = heights(moves)
    left = np.isfinite(values) & (values > total[:, None] + known.log_density(moves) + NEW)
    found, once, twice, distinct = (np.zeros(size) for _ in range(4))
    places: list[tuple[float, Array]] = []
    while left.any():
        pick = np.where(left, values, -np.inf).argmax(axis=1)
        some = left[rows, pick]
        place = clipped(moves[rows, pick], bounds)
        one = local(target, owners, place, gradients[rows, pick], bounds, some, some)
        # What it has there, and what the mixture gives to the same place, by draws.
        around = at(one, AROUND)
        own = one.log_density(around)
        there = np.logaddexp.reduce(heights(around) - own, axis=1) - np.log(AROUND)
        given = np.logaddexp.reduce(known.log_density(around) - own, axis=1) - np.log(AROUND)
        lacks = there - total > given + LACKING
        mass = values[rows, pick] - one.log_density(place[:, None])[:, 0]
        same = left & (values <= mass[:, None] + one.log_density(moves) + NEW)
        same[rows, pick] |= some
        counts = some & lacks & (there > total + NEGLIGIBLE)
        reached = np.where(counts, same.sum(axis=1), 0)
        extra = np.where(counts, np.exp(np.minimum(there - total, 50.0)), 0.0)
        places += [(float(extra[k]), place[k]) for k in np.flatnonzero(counts)]
        found += extra
        distinct += counts
        once += reached == 1
        twice += reached == 2
        left &= ~same
    unseen = once * np.maximum(once - 1, 0) / (2 * (twice + 1))
    scale = 1 + np.divide(unseen, distinct, out=np.zeros(size), where=distinct > 0)
    places.sort(key=lambda item: -item[0])
    moved = np.array([place for _, place in places[:LEARNED]]).reshape(-1, r)
    return Missed(np.log1p(found * scale), moved)


# ------------------------------
# Tilted importance sampling: draws around the modes of exp(f/eps - l c/eps) times the reference


KEPT_ENTRIES = 2**24
"""Proposals of all samples are kept up to this many numbers, and found again for each use beyond
(with one mode for each sample)."""
KEPT_NOISE = 2**22
"""Random numbers are kept up to so many."""
DEFENCE = 0.05
"""Share of the reference in the mixture, where the target is not known to be Gaussian."""
DEFENDED = 8
"""Dimension up to which a quadratic cost asks for that share."""
AUDITED = 16
"""Samples at which an audit searches for modes that were missed."""
DUAL_DRAWS, DUAL_SAMPLES = 16, 32
"""Draws and samples that look for the dual variable before the first refresh."""


@dataclass
class AuditFindings:
    """Modes that the audits of earlier stages have found."""

    places: list[Array] = field(default_factory=list)
    """Moves (r,)."""
    count: int = 0
    """Audits so far, which have random numbers of their own."""


class Tilted(SampledIntegration):
    """Importance sampling around the modes, S draws per sample."""

    name = "tilted"
    adapts = True

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales)
        self.radius = model.radius
        self.pieces = affine_pieces_of(model)
        self.frame = frame_of(self.joint, self.cost, self.sigma)
        self._at: tuple[Array, float] | None = None
        self._mixture: Mixture | None = None
        self._settling = False
        self._seen: dict[str, tuple[float, tuple[Array, ...]]] = {}
        """Modes of the last and of the least dual variable: far ones belong to small duals."""
        self._audit = AuditFindings()
        self._numbers: tuple[tuple[Stream, int, bytes], Noise] | None = None
        self._rejection = Rejection(self.frame, self.cost)
        self._lines: tuple[Array, PieceLines | None] | None = None
        """The decision of the last search for pieces, and what it found."""

    def describe(self) -> str:
        how = "the modes of the tilted density"
        if self.pieces and self.frame.weights is not None:
            how = f"the tilted Gaussians of the {len(self.pieces)} pieces of the loss"
        return f"importance sampling: {self.draws} draws for each sample around {how}"

    # -------------------------------------------------------------- proposals
    def refresh(self, x: Array, dual: float) -> None:
        """Adapt the proposals to a decision and a dual variable; the draws change."""
        self._at = (np.array(x, dtype=float), float(dual))
        self._mixture = None
        self.forget()

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        if self._at is None:
            self.settle_dual(x, None)
        return self._sliced(x, samples, stream, shares)

    def _sliced(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """The slice of the proposals; infinite where the loss outgrows the cost at this dual."""
        try:
            return super().slice(x, samples, stream, shares)
        except Divergence:
            return InfiniteSlice()

    def settle_dual(self, x: Array, dual: float | None) -> float:
        """Refresh at x and at the dual variable that minimises the objective there; returns it.

        In many dimensions the costs of draws concentrate: draws made for one dual variable say
        little about another, and minimising over it on fixed draws runs off. Here the proposals
        move along, for some of the samples. The first guess is `dual`, else G / (2 sqrt(radius)),
        optimal for an affine loss of slope G and a squared cost (G for costs of order 1).
        """
        rows = np.unique(np.linspace(0, self.joint.size - 1, DUAL_SAMPLES).astype(int))
        radius = self.radius or typical_radius(self.frame)

        def adapted(at: float) -> DualPoint:
            self.refresh(x, at)
            return self._sliced(x, rows, PILOT_STREAM).at(at)

        start = (
            dual
            if dual
            else max(
                affine_dual(self.loss, x, rows, self.frame, self.cost, radius),
                1e-6 * self.epsilon / radius,
                1e-300,
            )
        )
        draws, self.draws, self._settling = self.draws, DUAL_DRAWS, True
        try:
            found = minimise_dual(adapted, radius, start, 1e6 * start, rounds=25, tolerance=1e-3)
        finally:
            self.draws, self._settling = draws, False
        self.refresh(x, found.dual)
        return found.dual

    def proposals(self, samples: Array) -> Mixture:
        """The mixtures of these samples at the point of the last refresh."""
        if self._at is None:
            raise RuntimeError("the proposals have no decision yet: call refresh(x, dual) first.")
        if not self._keeps_modes():
            return self._find(samples, modes=1)
        if self._settling:
            return self._find(samples, modes=MODES)
        if self._mixture is None:
            self._mixture = self._find(np.arange(self.joint.size), modes=MODES)
        return self._mixture.of(samples)

    def _keeps_modes(self) -> bool:
        return self.joint.size * max(1, self.frame.dimension) * 4 <= KEPT_ENTRIES

    def _target(self) -> Tilt:
        assert self._at is not None
        x, dual = self._at
        recalled = [p for _, places in self._seen.values() for p in places] if self.recalls else []
        return Tilt(
            self.loss,
            self.frame,
            self.cost,
            epsilon=self.epsilon,
            x=x,
            dual=dual,
            lines=self._lines_at(x),
            places=(*self._audit.places, *recalled),
        )

    def _knows_pieces(self, target: Tilt) -> bool:
        """Are the components known without a search?"""
        return bool(self.pieces) and target.quadratic and not target.walled

    def _lines_at(self, x: Array) -> PieceLines | None:
        """The affine pieces of the loss at a decision, or tangents where they are not known."""
        if self._lines is None or not np.array_equal(self._lines[0], x):
            found = piece_lines(self.pieces, x, self.joint.mean, self.frame)
            self._lines = x, found or tangents(self.loss, x, self.frame)
        return self._lines[1]

    def _find(self, samples: Array, modes: int) -> Mixture:
        target = self._target()
        if self._knows_pieces(target):
            assert target.lines is not None
            variance = target.variance(samples, np.zeros((1, self.frame.dimension)))
            return piece_mixture(target.lines, self.frame, samples, variance, self.epsilon)
        found, curved = cover(target, samples, modes, target.summits)
        if len(samples) == self.joint.size:
            self._see(target.dual, found)
        share = DEFENCE * curved
        if not target.quadratic or target.walled:
            found = adapted(found, target, samples, self._reference_of(samples))
            share = np.full(len(samples), DEFENCE)
        elif self.frame.dimension > DEFENDED:
            share = np.zeros(len(samples))
        return defended(found, share, self._reference_of(samples))

    def _see(self, dual: float, found: Mixture) -> None:
        """Remember where the modes are at a dual variable."""
        shape = (self.joint.size, self.frame.dimension)
        now = (dual, tuple(np.broadcast_to(one.anchor, shape) for one in found.components))
        self._seen["last"] = now
        if "least" not in self._seen or dual <= self._seen["least"][0]:
            self._seen["least"] = now

    def audit(self, diagnostics: Diagnostics, x: Array, dual: float) -> Diagnostics:
        """The diagnostics at (x, dual), with an error for modes that the draws may miss.

        Places where some were found are remembered: the next search begins there too.
        """
        rows = np.unique(np.linspace(0, self.joint.size - 1, AUDITED).astype(int))
        self.refresh(x, dual)
        target = self._target()
        if self._knows_pieces(target) or not target.dimension:
            return diagnostics
        generator = AUDIT_STREAM.generator(self._audit.count)
        missed = missed_by(self.proposals(rows), target, rows, self._reference_of(rows), generator)
        self._audit.count += 1
        self._audit.places += list(missed.places)
        higher = float(self.joint.shares_of(rows).total(missed.log_mass))
        return diagnostics.worse_by(0.0, self.epsilon * higher)

    def findings(self) -> AuditFindings:
        return self._audit

    def use_findings(self, findings: object, dual: float) -> None:
        if isinstance(findings, AuditFindings):
            self._audit = findings

    def support_error(self, samples: Array, shares: SampleShares) -> float:
        variances = [self._rejection.variances.get(int(k), 0.0) for k in samples]
        return self.epsilon * shares.error(np.array(variances))

    def _reference_of(self, samples: Array) -> Component:
        return reference_of(self.frame, samples)

    # -------------------------------------------------------------- draws
    def _noise(self, samples: Array, stream: Stream) -> Noise:
        """The random numbers (K, S, ...) of these samples; kept for the next proposals."""
        key = (stream, self.draws, samples.tobytes())
        if self._numbers is not None and self._numbers[0] == key:
            return self._numbers[1]
        each = [noise(stream.generator(int(k)), self.draws, self.frame.dimension) for k in samples]
        found = Noise(
            np.stack([one.normal for one in each]),
            np.stack([one.along for one in each]),
            np.stack([one.uniform for one in each]),
        )
        if found.normal.size <= KEPT_NOISE:
            self._numbers = (key, found)
        return found

    def draw(self, samples: Array, stream: Stream) -> Draws:
        proposals = self.proposals(samples)
        shape = (len(samples), self.draws, self.frame.dimension)
        if self._rejection.needed:
            moves, log_mass = self._rejection.draw(proposals, samples, self.draws, stream)
        else:
            log_mass = np.zeros(len(samples))
            points = self._noise(samples, stream)
            moves = proposals.transport(
                proposals.choose(points.uniform), points.normal, points.along
            )
        log_ratio = self._reference_of(samples).log_density(moves) - proposals.log_density(moves)
        log_ratio += log_mass[:, None]
        owners = np.repeat(samples, self.draws)
        rows = self.frame.rows(owners, moves.reshape(len(owners), self.frame.dimension))
        costs = self.cost(self.joint.matrix[owners], rows).reshape(shape[:2])
        return Draws(rows, costs, log_ratio)


def tilted_refusal(model: RobustModel) -> str | None:
    """Why tilted draws do not apply to a model; None if they do."""
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
    """The affine pieces whose maximum the loss is; none where they are not known."""
    structure = model.structure
    pieces = () if structure is None or structure.pieces is None else structure.pieces
    loss, joint = model.loss, model.joint
    return tuple(FlatLoss(BatchedLoss(e, joint.parameters), loss.layout, joint) for e in pieces)
