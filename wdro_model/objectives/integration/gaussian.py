"""The paper's estimator: S draws from the reference Gaussian for each sample, self-normalised.

With zeta_1..zeta_S ~ N(xi_k, sigma^2) on the support and w_s = exp((f(x, zeta_s) - l c_s)/eps),

    phi_k ~ eps log mean_s w_s,   grad_x phi_k ~ sum_s w_s grad f(x, zeta_s) / sum_s w_s,
    d phi_k / dl ~ - sum_s w_s c_s / sum_s w_s.

Weights of draws that all miss the density are as even as those of draws that cover it, so that they
do not tell their error: some samples are integrated again by draws that follow the density.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.inner_integral import AUDIT_STREAM, Scales, Stream
from wdro_model.objectives.integration.sampled import Draws, SampledIntegration
from wdro_model.objectives.integration.tilted import AUDITED_SAMPLES, Tilted, spaced_indices
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.sampling import GaussianSampler

AUDIT_DRAWS = 64
"""Draws around the modes of each sample that is integrated again."""
MOST_ERRORS = 4.0
"""Standard errors up to which two estimates of one integral may differ."""


class Gaussian(SampledIntegration):
    """Plain Monte Carlo from the reference measure, S draws per sample."""

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
        """The diagnostics, with the distance to draws that follow the density as missed mass."""
        rows = spaced_indices(self.joint.size, AUDITED_SAMPLES)
        other = Tilted(self.model, replace(self.scales, draws=AUDIT_DRAWS))
        values, errors = [], []
        try:
            for rule in (self, other):
                rule.refresh(x, dual)
                inner = rule.slice(x, rows, AUDIT_STREAM)
                values.append(inner.at(dual).value)
                known = inner.diagnostics(dual)
                errors.append(0.0 if known is None else known.standard_error)
        except (OutOfTime, NotImplementedError):  # no time, or no gradient in the data
            return diagnostics
        apart, error = abs(values[1] - values[0]), math.hypot(*errors)
        return diagnostics if apart <= MOST_ERRORS * error else diagnostics.worse_by(0.0, apart)
