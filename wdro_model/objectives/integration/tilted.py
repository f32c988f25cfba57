"""Tilted importance sampling: draws around the modes of exp(f/eps - l c/eps) times the reference.

For a squared cost and an affine loss the proposal N(xi_k + m_k, v), m = v grad f/eps, is the tilted
distribution itself and all weights are equal. A maximum of affine pieces is covered by the mixture
of their Gaussians: the weights differ by at most the number of pieces. Any other loss is covered by
its modes, with the curvature of the loss in a few directions (`modes.cover`).

The proposals belong to the decision and the dual variable of the last `refresh`; the draws are
fixed in between. Without a refresh the first slice makes one at its decision, with the dual
variable that minimises the objective there (`settle`).

Supports: boxes by truncation, coordinate by coordinate. On a support without coordinate structure
the proposal is drawn by rejection with a bounded number of tries; the masses that proposal and
reference give to the support are estimated from the acceptance rates. They shift the value by a
constant for each sample, and no derivative.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from wdro_model.loss.batched import BatchedLoss
from wdro_model.loss.flat import FlatLoss
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.dual import DualPoint, minimise_dual
from wdro_model.objectives.integration.base import Stream
from wdro_model.objectives.integration.importance.frame import frame_of, reference_of
from wdro_model.objectives.integration.importance.modes import FLOOR, MODES, WINDOW, cover
from wdro_model.objectives.integration.importance.noise import noise
from wdro_model.objectives.integration.importance.proposals import (
    Component,
    Mixture,
    component,
    defended,
    mixture,
)
from wdro_model.objectives.integration.importance.rejection import accepted_draws, log_acceptance
from wdro_model.objectives.integration.importance.targets import Tilt
from wdro_model.objectives.integration.sampled import Draws, SampledIntegration, SampledSlice
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

KEPT_ENTRIES = 2**24
"""Proposals of all samples are kept up to this many numbers, and found again for each use beyond
(with one mode for each sample)."""
DEFENCE = 0.05
"""Share of the reference in the mixture, where the target is not known to be Gaussian."""
DEFENDED = 8
"""Dimension up to which a quadratic cost asks for that share."""
PILOT = Stream(seed=0, stage=2**63 - 1)
"""Random numbers that no slice uses."""
PILOT_DRAWS = 128
"""Draws that choose the shares of the components, where the target is far from Gaussian."""
DUAL_DRAWS, DUAL_SAMPLES = 16, 32
"""Draws and samples that look for the dual variable before the first refresh."""


class Tilted(SampledIntegration):
    """Importance sampling around the modes, S draws per sample."""

    name = "tilted"

    def __init__(
        self,
        loss: FlatLoss,
        joint: JointSamples,
        cost: BoundCost,
        *,
        epsilon: float,
        sigma: float | Array,
        draws: int,
        radius: float | None = None,
        pieces: tuple[FlatLoss, ...] = (),
    ) -> None:
        super().__init__(loss, joint, cost, epsilon=epsilon, sigma=sigma, draws=draws)
        self.radius = radius
        self.pieces = pieces
        self.frame = frame_of(joint, cost, sigma)
        self._at: tuple[Array, float] | None = None
        self._mixture: Mixture | None = None
        self._settling = False
        self._log_masses: dict[int, float] = {}

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

    def slice(self, x: Array, samples: Array, stream: Stream) -> SampledSlice:
        if self._at is None:
            self.settle(x)
        return super().slice(x, samples, stream)

    def settle(self, x: Array, dual: float | None = None) -> float:
        """Refresh at x and at the dual variable that minimises the objective there; returns it.

        In many dimensions the costs of draws concentrate: draws made for one dual variable say
        little about another, and minimising over it on fixed draws runs off. Here the proposals
        move along, for some of the samples. The first guess is `dual`, else G / (2 sqrt(radius)),
        optimal for an affine loss of slope G and a squared cost (G for costs of order 1).
        """
        rows = np.unique(np.linspace(0, self.joint.size - 1, DUAL_SAMPLES).astype(int))
        radius = self._radius()

        def adapted(at: float) -> DualPoint:
            self.refresh(x, at)
            return SampledSlice(self, x, rows, PILOT).at(at)

        start = dual if dual else self._first_dual(x, rows, radius)
        draws, self.draws, self._settling = self.draws, DUAL_DRAWS, True
        try:
            found = minimise_dual(adapted, radius, start, 1e6 * start, rounds=25, tolerance=1e-3)
        finally:
            self.draws, self._settling = draws, False
        self.refresh(x, found.dual)
        return found.dual

    def _radius(self) -> float:
        """The radius, or the one for which the reference has its default spread."""
        if self.radius:
            return self.radius
        deviation = np.sqrt(self.frame.spread)
        if self.frame.weights is not None:
            return max(float(2 * self.frame.weights @ deviation**2), 1e-300)
        return max(float(np.sqrt(2 * (deviation**2).sum())), 1e-300)

    def _first_dual(self, x: Array, rows: Array, radius: float) -> float:
        slopes = self.frame.pulled(
            self.loss(x, self.joint.matrix[rows])[1].in_data(np.ones(len(rows)))
        )
        weights = np.ones(self.frame.dimension)
        if self.frame.weights is not None:
            weights = self.frame.weights
        size = float(np.sqrt((slopes**2 / weights).sum(axis=1).mean()))
        dual = size if self.cost.kind == "norm" else size / (2 * np.sqrt(radius))
        return max(dual, 1e-6 * self.epsilon / radius, 1e-300)

    def proposals(self, samples: Array) -> Mixture:
        """The mixtures of these samples at the point of the last refresh."""
        if self._at is None:
            raise RuntimeError("the proposals have no decision yet: call refresh(x, dual) first.")
        entries = self.joint.size * max(1, self.frame.dimension) * 4
        if entries > KEPT_ENTRIES:
            return self._find(samples, modes=1)
        if self._settling:
            return self._find(samples, modes=MODES)
        if self._mixture is None:
            self._mixture = self._find(np.arange(self.joint.size), modes=MODES)
        return self._mixture.of(samples)

    def _find(self, samples: Array, modes: int) -> Mixture:
        assert self._at is not None
        x, dual = self._at
        slopes, levels = self._pieces_at(x)
        target = Tilt(
            self.loss, self.frame, self.cost, epsilon=self.epsilon, x=x, dual=dual, slopes=slopes
        )
        if slopes is not None and levels is not None and target.quadratic and not target.walled:
            return self._of_pieces(target, samples, slopes, levels)
        found, curved = cover(target, samples, modes)
        share = DEFENCE * curved
        if not target.quadratic or target.walled:
            found = self._balanced(widened(found, self.frame.dimension), target, samples)
            share = np.full(len(samples), DEFENCE)
        elif self.frame.dimension > DEFENDED:
            share = np.zeros(len(samples))
        return defended(found, share, self._reference_of(samples))

    def _pieces_at(self, x: Array) -> tuple[Array | None, Array | None]:
        """Slopes (J, r) in the moves and gradients (J, d) with levels of the affine pieces."""
        if not self.pieces:
            return None, None
        found = [piece(x, self.joint.mean[None]) for piece in self.pieces]
        raw = np.concatenate([pullback.in_data(np.ones(1)) for _, pullback in found])
        constants = np.array([values[0] for values, _ in found]) - raw @ self.joint.mean
        return self.frame.pulled(raw), np.column_stack([constants, raw])

    def _of_pieces(self, target: Tilt, samples: Array, slopes: Array, levels: Array) -> Mixture:
        """exp(max_j f_j/eps) lies between the largest and the sum of the tilted Gaussians."""
        bounds = self.frame.bounds(samples)
        variance = target.variance(samples, np.zeros((1, self.frame.dimension)))
        size = 1 if bounds is None else len(samples)
        shape = (size, self.frame.dimension)
        deviation = np.broadcast_to(np.sqrt(variance), shape)
        at_samples = levels[:, 0] + self.joint.matrix[samples] @ levels[:, 1:].T
        components, masses = [], []
        for j, slope in enumerate(slopes):
            one = component(
                np.broadcast_to(variance * slope / self.epsilon, shape), deviation, bounds
            )
            # h_j(y) = f_j(xi)/eps + <slope, y>/eps - y^2/(2v), at the anchor of the component.
            h = ((slope / self.epsilon - 0.5 * one.anchor / variance) * one.anchor).sum(axis=1)
            masses.append(at_samples[:, j] / self.epsilon + h - at_anchor(one))
            components.append(one)
        return mixture(components, np.stack(masses, axis=1), FLOOR, WINDOW)

    def _balanced(self, found: Mixture, target: Tilt, samples: Array) -> Mixture:
        """The shares under which the components are likeliest, on weighted pilot draws.

        shares_j <- mean of the responsibilities shares_j q_j / sum_i shares_i q_i under the target.
        """
        count, dimension = PILOT_DRAWS, self.frame.dimension
        shares = defended(found, np.full(len(samples), 0.5), self._reference_of(samples))
        points = [noise(PILOT.generator(int(k)), count, dimension) for k in samples]
        choice = shares.choose(np.stack([point.uniform for point in points]))
        moves = shares.transport(choice, np.stack([point.normal for point in points]))
        owners = np.repeat(samples, count)
        values = target.values(owners, moves.reshape(len(owners), dimension), exact=True)
        exponent = values.reshape(len(samples), count) - shares.log_density(moves)
        exponent -= np.maximum(exponent.max(axis=1, keepdims=True), -1e300)
        weights = np.exp(exponent)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        densities = np.stack([c.log_density(moves) for c in found.components], axis=2)
        log_shares = found.log_weights
        for _ in range(20):
            joint = log_shares[:, None] + densities
            joint -= joint.max(axis=2, keepdims=True)
            claims = np.exp(joint)
            claims /= claims.sum(axis=2, keepdims=True)
            mean = np.einsum("ks,ksj->kj", weights, claims)
            used = np.isfinite(found.log_weights)
            mean = np.where(used, np.maximum(mean, 0.2 * FLOOR), 0.0)
            mean /= mean.sum(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                log_shares = np.log(mean)
        return Mixture(found.components, log_shares)

    def _reference_of(self, samples: Array) -> Component:
        return reference_of(self.frame, samples)

    # -------------------------------------------------------------- draws
    def draw(self, samples: Array, stream: Stream) -> Draws:
        proposals = self.proposals(samples)
        shape = (len(samples), self.draws, self.frame.dimension)
        if self.frame.coupled or self.cost.kind == "callable":
            moves, log_mass = self._rejected(proposals, samples, stream)
        else:
            moves, log_mass = np.empty(shape), np.zeros(len(samples))
            points = [noise(stream.generator(int(k)), *shape[1:]) for k in samples]
            for i, point in enumerate(points):
                moves[i] = point.normal
            lines = [point.along for point in points]
            along = None if lines[0] is None else np.stack(lines)  # type: ignore[arg-type]
            choice = proposals.choose(np.stack([point.uniform for point in points]))
            moves = proposals.transport(choice, moves, along)
        log_ratio = self._reference_of(samples).log_density(moves) - proposals.log_density(moves)
        log_ratio += log_mass[:, None]
        owners = np.repeat(samples, self.draws)
        rows = self.frame.rows(owners, moves.reshape(len(owners), self.frame.dimension))
        costs = self.cost(self.joint.matrix[owners], rows).reshape(shape[:2])
        return Draws(rows, costs, log_ratio)

    def _rejected(self, proposals: Mixture, samples: Array, stream: Stream) -> tuple[Array, Array]:
        """Draws (K, S, r) inside the support, and log(Z_proposal / Z_reference) (K,)."""
        moves = np.empty((len(samples), self.draws, self.frame.dimension))
        log_mass = np.empty(len(samples))
        for i, k in enumerate(samples):
            drawn = accepted_draws(
                proposals.of(np.array([i])),
                self.draws,
                partial(self._allowed, int(k), priced=True),
                stream.generator(int(k)),
            )
            moves[i], log_mass[i] = drawn.moves, drawn.log_mass
            log_mass[i] -= self._reference_mass(int(k))
        return moves, log_mass

    def _allowed(self, k: int, moves: Array, priced: bool) -> Array:
        """Moves into the support; with `priced`, at a finite cost."""
        owners = np.full(len(moves), k)
        rows = self.frame.rows(owners, moves)
        good = self.frame.inside(rows)
        if priced and self.cost.kind == "callable":
            good[good] = np.isfinite(self.cost(self.joint.matrix[owners[good]], rows[good]))
        return good

    def _reference_mass(self, k: int) -> float:
        """log of the share of the reference inside the support, for one sample; computed once."""
        if not self.frame.coupled:
            return 0.0
        if k not in self._log_masses:
            reference = Mixture((self._reference_of(np.array([k])),), np.zeros((1, 1)))
            self._log_masses[k] = log_acceptance(
                reference, lambda y: self._allowed(k, y, priced=False), PILOT.generator(k)
            )
        return self._log_masses[k]


def widened(found: Mixture, dimension: int) -> Mixture:
    """Each component at several spreads: away from a wall, or for a cost of order 1, densities
    are not Gaussian."""
    factors = np.exp(np.array([-0.6, 0.0, 0.8]) / np.sqrt(max(1, dimension)))
    components = [
        component(c.center, factor * c.deviation, c.bounds, c.basis, c.scales)
        for factor in factors
        for c in found.components
    ]
    weights = np.concatenate([found.log_weights] * len(factors), axis=1) - np.log(len(factors))
    return Mixture(tuple(components), weights)


def at_anchor(one: Component) -> Array:
    """The log density of a component at its anchor, (K,)."""
    return one.log_density(one.anchor[:, None])[:, 0]


def tilted_refusal(model: Model) -> str | None:
    """Why tilted draws do not apply to a model; None if they do."""
    assert model.joint is not None
    try:
        with np.errstate(all="ignore"):
            x = np.zeros(model.loss.dimension)
            model.loss(x, model.joint.matrix[:1])[1].in_data(np.ones(1))
    except NotImplementedError:
        return "the loss gives no gradient in the data"
    except (ArithmeticError, ValueError):
        return None
    return None


def build_tilted(model: Model, scales: Any) -> Tilted:
    """The strategy for a model; scales: epsilon, sigma and draws."""
    assert model.joint is not None
    assert model.cost is not None
    structure = model.structure
    found = () if structure is None or structure.pieces is None else structure.pieces
    pieces = tuple(
        FlatLoss(BatchedLoss(e, model.joint.parameters), model.loss.layout, model.joint)
        for e in found
    )
    return Tilted(
        model.loss,
        model.joint,
        model.cost,
        epsilon=scales.epsilon,
        sigma=scales.sigma,
        draws=scales.draws,
        radius=model.radius,
        pieces=pieces,
    )
