"""The tilted Gaussian seen through affine forms: how a few numbers t move the forms and the cost.

In coordinates z (`whitening`) the cost alone tilts the scenarios to z ~ N(0, V). Forms
u = u_k + B z see of it

    u = u_k + L t,   t ~ N(0, I_r),   L L' = B V B',
    z = G t + noise independent of t,   G = V B' L^-T,   noise covariance V - G G',

and the cost given t, with M = G' Lambda G and K = G' Lambda^2 V G, has

    mean      tr(Lambda V) - tr M + t' M t
    variance  2 (tr (Lambda V)^2 - 2 tr K + tr M^2) + 4 t' (K - M^2) t.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from wdro_model.objectives.integration.kernel.laws import TiltedLaw
from wdro_model.solvers.objective import Array

RANK_TOLERANCE = 1e-13
"""Relative variance under which a direction of the forms counts as absent."""


@dataclass(frozen=True)
class Projection:
    """How t moves forms and cost, for each sample (K leading) or for all of them (1 leading)."""

    forms: Array
    """L, (K or 1, q, r)."""
    pull: Array
    """L^-T, (K or 1, q, r), zero where a sample has a lower rank."""
    cost: Array
    """M, (K or 1, r, r)."""
    excess: Array
    """K - M^2, (K or 1, r, r)."""
    mean: Array
    """tr(Lambda V) - tr M, (K or 1,)."""
    variance: Array
    """2 (tr (Lambda V)^2 - 2 tr K + tr M^2), (K or 1,)."""

    def at(self, member: Array, duals: int = 1) -> Projection:
        """The projections of samples that are members of groups, at one dual after another."""
        if len(self.mean) == 1:
            return self
        first = len(self.mean) // duals * np.arange(duals)
        index = (first[:, None] + member).ravel()
        return Projection(*(getattr(self, field.name)[index] for field in fields(self)))

    def moved(self, law: TiltedLaw) -> Array:
        """L t at each point of the law, (M, q)."""
        if len(self.forms) == 1:
            return law.points @ self.forms[0].T
        return np.einsum("mqr,mr->mq", self.forms[law.owner], law.points)

    def pulled_back(self, law: TiltedLaw, in_forms: Array) -> Array:
        """L^-T E[h_u t] of each law, (K, q, q), from h_u (M, q) at its points."""
        lever = law.total(in_forms[:, :, None] * law.points[:, None])
        pull = np.broadcast_to(self.pull, (len(lever), *lever.shape[1:]))
        return np.einsum("kqr,kjr->kjq", pull, lever)

    def cost_moments(self, law: TiltedLaw, fourth: bool) -> tuple[Array, Array]:
        """Mean and variance of the transport cost under the tilted law of each sample, (K,).

        The variance is NaN where the points of the law do not carry fourth moments. Where a point
        stands for an interval, it is taken for a Gaussian of the same variance: close enough for
        the Newton steps in the dual that the variance is for.
        """
        t, size = law.points, len(law.log_mass)
        if not t.shape[1]:
            return np.broadcast_to(self.mean, size), np.broadcast_to(self.variance, size)

        def form(matrices: Array) -> Array:
            if len(matrices) == 1:
                return np.einsum("mr,mr->m", t @ matrices[0], t)
            return np.einsum("mr,mrs,ms->m", t, matrices[law.owner], t)

        def last(matrices: Array) -> Array:
            """The last row of the matrices at each point, (M, r)."""
            row = matrices[:, -1]
            return np.broadcast_to(row[0], t.shape) if len(row) == 1 else row[law.owner]

        square, within = form(self.cost), 0.0
        if law.variance is not None:
            row = last(self.cost)
            spread = row[:, -1] * law.variance
            square = square + spread
            within = 4 * np.einsum("mr,mr->m", row, t) ** 2 * law.variance + 2 * spread**2
            within = within + 4 * last(self.excess)[:, -1] * law.variance
        mean = law.mean(square)
        if not fourth:
            return self.mean + mean, np.full(size, np.nan)
        spread = law.mean((square - mean[law.owner]) ** 2 + within + 4 * form(self.excess))
        return self.mean + mean, self.variance + spread


def principal_axes(gram: Array) -> tuple[Array, Array]:
    """The axes (K, q, r) of covariances (K, q, q) that are not numerically zero, the largest first,
    and the variances (K, r) along them; 0 beyond the rank of a covariance."""
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[..., ::-1], vectors[..., ::-1]
    largest = values[:, :1] if values.shape[-1] else np.zeros((len(values), 1))
    present = (values > RANK_TOLERANCE * largest) & (values > 0)
    rank = int(present.sum(axis=-1).max(initial=0))
    return vectors[..., :rank], np.where(present, values, 0.0)[..., :rank]


def compact(slopes: Array) -> Array:
    """Slopes (G, q, r) with the products B B' of given ones (G, q, d), in as few coordinates."""
    vectors, values = principal_axes(slopes @ slopes.swapaxes(1, 2))
    return vectors * np.sqrt(values)[:, None]


def projection(slopes: Array, weights: Array, v: Array, first: Array, second: Array) -> Projection:
    """The projections of forms with slopes B (G, q, d) at J duals, one dual after another.

    weights (d,) and variances v (J, d) of the coordinates that the forms see; first and second:
    tr(Lambda V) and tr (Lambda V)^2 over all coordinates, (J,).
    """
    groups = len(slopes)

    def product(left: Array, diagonal: Array) -> Array:
        """left diag left' for matrices (J or 1, G, r, d): (J G, r, r)."""
        found = (left * diagonal[:, None, None]) @ left.swapaxes(2, 3)
        return found.reshape(len(v) * groups, *found.shape[2:])

    vectors, values = principal_axes(product(slopes[None], v))
    deviation = np.sqrt(values)
    inverse = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=values > 0)
    pull = vectors * inverse[:, None]
    _, forms, rank = pull.shape
    turned = pull.swapaxes(1, 2).reshape(len(v), groups, rank, forms) @ slopes  # L^-1 B
    cost = product(turned, v**2 * weights)
    square = product(turned, v**3 * weights**2)
    power = cost @ cost

    def trace(matrices: Array) -> Array:
        return np.trace(matrices, axis1=1, axis2=2)

    return Projection(
        forms=vectors * deviation[:, None],
        pull=pull,
        cost=cost,
        excess=square - power,
        mean=np.repeat(first, groups) - trace(cost),
        variance=2 * (np.repeat(second, groups) - 2 * trace(square) + trace(power)),
    )
