"""Conditional integration: in closed form over the data in which f is affine, given the rest.

With zeta = (zeta_A, zeta_C), f affine in zeta_A given zeta_C, at each node s of zeta_C for sample k

    f = f(x, (xi_A, s)) + <B_ks, zeta_A - xi_A>,
    phi_k = eps log sum_s w_ks exp(( f(x, (xi_A, s)) - l c_C(xi_k, s) )/eps + log E_A[...] ),

with E_A in closed form (`affine_block`). Up to two coordinates in C, the nodes are the points of a
trapezoidal rule of step STEP in normal scores of a mixture that covers the modes of the density of
zeta_C: for an integrand whose deviation in these scores is u, the rule is accurate to a relative
exp(-2 (pi u / STEP)^2), about 1e-8 right after a refresh and 4e-4 where the next one is made.
In more coordinates the nodes are draws from that mixture. Given x, the dual variable needs no
further evaluation of the loss, unless it moves so far that the grid no longer covers the density:
the grid is then refreshed, which changes the values by no more than its accuracy. The gradient in
x is that of f at the tilted mean of zeta_A, node by node: f is affine in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.loss.flat import FlatLoss
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.dual import DualPoint, minimise_dual
from wdro_model.objectives.integration.base import Stream
from wdro_model.objectives.integration.conditional.affine_block import (
    AffineBlock,
    affine_block,
)
from wdro_model.objectives.integration.conditional.nodes import Marginal, Nodes, normal_scores
from wdro_model.objectives.integration.conditional.slice import ConditionalSlice
from wdro_model.objectives.integration.importance.frame import frame_of, reference_of
from wdro_model.objectives.integration.importance.modes import cover
from wdro_model.objectives.integration.importance.noise import noise
from wdro_model.objectives.integration.importance.proposals import (
    Mixture,
    component,
    defended,
)
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

WIDER = 1.25
"""Nodes spread so much wider than the density at the refresh: the dual variable will move."""
DUAL_SAMPLES = 32
"""Samples that look for the dual variable before the first refresh."""
DEFENCE = 0.05
"""Share of the reference among draws."""


class Conditional:
    """Closed form over the affine block, nodes over the rest."""

    name = "conditional"

    def __init__(
        self,
        loss: FlatLoss,
        joint: JointSamples,
        cost: BoundCost,
        *,
        epsilon: float,
        sigma: float | Array,
        draws: int,
        affine: tuple[Any, ...],
        radius: float | None = None,
    ) -> None:
        self.loss, self.joint, self.epsilon = loss, joint, epsilon
        self.draws, self.radius = draws, radius
        self.affine = affine
        columns = np.concatenate([np.arange(joint.dimension)[joint.slices[p]] for p in affine])
        rest = np.setdiff1d(np.arange(joint.dimension), columns)
        self.block = AffineBlock(frame_of(joint, cost, sigma, columns), epsilon)
        self.frame = frame_of(joint, cost, sigma, rest)
        self.exact = self.frame.dimension <= 2
        self.unreached = 0.0
        """The share of samples that the grid fails right after a refresh."""
        self._at: tuple[Array, float] | None = None
        self._only: Array | None = None
        """The samples whose nodes are looked for; None for all."""
        self._mixture: Mixture | None = None
        self._grid: Nodes | None = None

    def describe(self) -> str:
        names = ", ".join(p.name() for p in self.affine)
        how = "quadrature" if self.exact else f"{self.draws} tilted draws for each sample"
        return (
            f"conditional closed form: exact over {names} ({self.block.frame.dimension} "
            f"coordinates), {how} over the other {self.frame.dimension}"
        )

    # -------------------------------------------------------------- adapting
    def refresh(self, x: Array, dual: float) -> None:
        """Put the nodes where the density of the block C is, at this decision and dual."""
        self._at = (np.array(x, dtype=float), float(dual))
        self._mixture = self._grid = None
        self.unreached = 0.0

    def slice(self, x: Array, samples: Array, stream: Stream) -> ConditionalSlice:
        """The inner integral at x, on the nodes of the last refresh."""
        if self._at is None:
            self.settle(x)
        return ConditionalSlice(self, x, samples, stream)

    def settle(self, x: Array, dual: float | None = None) -> float:
        """Refresh at x and at the dual variable that minimises the objective there; returns it.

        The nodes move along with the dual variable, for some of the samples. The first guess is
        `dual`, else G / (2 sqrt(radius)), optimal for a loss that is affine in all the data.
        """
        rows = np.unique(np.linspace(0, self.joint.size - 1, DUAL_SAMPLES).astype(int))
        raw = self.loss(x, self.joint.matrix[rows])[1].in_data(np.ones(len(rows)))
        square, spread = 0.0, 0.0
        for frame in (self.block.frame, self.frame):
            assert frame.weights is not None
            square += float((frame.pulled(raw) ** 2 / frame.weights).sum(axis=1).mean())
            spread += float(2 * frame.weights @ frame.spread)
        radius = self.radius or max(spread, 1e-300)
        guess = max(np.sqrt(square / radius) / 2, 1e-6 * self.epsilon / radius, 1e-300)
        start = dual if dual else guess
        self._only = rows

        def adapted(at: float) -> DualPoint:
            self.refresh(x, at)
            return ConditionalSlice(self, x, rows, Stream(0, 2**63 - 1)).at(at)

        try:
            found = minimise_dual(adapted, radius, start, 1e6 * start, rounds=25, tolerance=1e-3)
        finally:
            self._only = None
        self.refresh(x, found.dual)
        return found.dual

    # -------------------------------------------------------------- nodes
    def nodes(self, samples: Array, stream: Stream) -> Nodes:
        """Nodes of these samples: the grid of the last refresh, or draws of a stream."""
        everyone = np.arange(self.joint.size) if self._only is None else self._only
        where = samples if self._only is None else np.searchsorted(everyone, samples)
        if self._mixture is None:
            assert self._at is not None
            self._mixture, curved = cover(Marginal(self, *self._at), everyone)
            if not self.exact:
                reference = reference_of(self.frame, everyone)
                self._mixture = defended(self._mixture, DEFENCE * curved, reference)
        if not self.exact:
            return self._draw(self._mixture.of(where), samples, stream)
        if self._grid is None:
            self._grid = self._rule(self._mixture, everyone)
        grid = self._grid
        return Nodes(grid.moves[where], grid.log_weights[where], grid.scores)

    def _rule(self, found: Mixture, samples: Array) -> Nodes:
        """The trapezoidal rule in the normal scores of each component."""
        wide = Mixture(
            tuple(
                component(c.center, WIDER * c.deviation, c.bounds, c.basis, c.scales)
                for c in found.components
            ),
            found.log_weights,
        )
        scores, log_rule = normal_scores(self.frame.dimension)
        count = len(scores)
        moves = np.concatenate(
            [
                c.transport(
                    np.repeat(np.arange(len(samples)), count), np.tile(scores, (len(samples), 1))
                ).reshape(len(samples), count, self.frame.dimension)
                for c in wide.components
            ],
            axis=1,
        )
        shares = np.repeat(wide.log_weights, count, axis=1)
        log_weights = shares + np.tile(log_rule, len(wide.components))
        log_weights += reference_of(self.frame, samples).log_density(moves)
        return Nodes(moves, log_weights - wide.log_density(moves), scores)

    def _draw(self, found: Mixture, samples: Array, stream: Stream) -> Nodes:
        points = [
            noise(stream.generator(int(k)), self.draws, self.frame.dimension) for k in samples
        ]
        lines = [p.along for p in points if p.along is not None]
        choice = found.choose(np.stack([p.uniform for p in points]))
        moves = found.transport(
            choice, np.stack([p.normal for p in points]), np.stack(lines) if lines else None
        )
        log_ratio = reference_of(self.frame, samples).log_density(moves) - found.log_density(moves)
        return Nodes(moves, log_ratio - np.log(self.draws), None)


def conditional_refusal(model: Model) -> str | None:
    """Why conditional integration does not apply to a model; None if it does."""
    assert model.joint is not None
    assert model.cost is not None
    if model.expression is None:
        return "the loss is a function, whose structure is not known"
    if model.cost.kind != "squared":
        return "the ground cost is not a weighted squared distance"
    affine = affine_block(model.expression, model.joint.parameters)
    if not affine:
        return "the loss is affine in no uncertain parameter with a box as support"
    if len(affine) == len(model.joint.parameters):
        return "the loss is affine in all the data"
    for parameter in model.joint.parameters:
        if parameter.support.bounds(parameter.shape) is None:
            return f"the support of {parameter.name()!r} has no coordinate structure"
    return None


def build_conditional(model: Model, scales: Any) -> Conditional:
    """The strategy for a model; scales: epsilon, sigma and draws."""
    assert model.joint is not None
    assert model.cost is not None
    return Conditional(
        model.loss,
        model.joint,
        model.cost,
        epsilon=scales.epsilon,
        sigma=scales.sigma,
        draws=scales.draws,
        affine=affine_block(model.expression, model.joint.parameters),
        radius=model.radius,
    )
