"""The tilted Gaussian seen through the forms, and tables in place of one integral per sample.

Where the loss sees the data through one form u and samples share its slope, everything that is
integrated for a sample is a smooth function of u_k alone. It is computed at the Chebyshev points of
panels that cover the samples, and interpolated: with P (K, J) the matrix of the interpolation,

    q(u_k) = sum_j P_kj q(U_j),   sum_k m_k q(u_k) = sum_j c_j q(U_j),   c = P' m,

m_k being one, or K p_k where the samples have probabilities. Panels are halved until the last
Chebyshev coefficients of what is interpolated are negligible.

In whitened coordinates z (`Frame`) the cost alone tilts the scenarios to z ~ N(0, V). Forms
u = u_k + B z see of it

    u = u_k + L t,   t ~ N(0, I_r),   L L' = B V B',
    z = G t + noise independent of t,   G = V B' L^-T,   noise covariance V - G G',

and the cost given t has the mean tr(Lambda V) - tr M + t' M t, M = G' Lambda G.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wdro_model.objectives.integration.lines import DEGREE, NODES, TAIL
from wdro_model.objectives.integration.normal import TiltedLaw
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

FIRST_PANELS = 4
"""Panels of a group of samples in a first table."""
MOST_PLACES = 2**14
"""Integrals of a table, at most."""
SAMPLE_BLOCK = 2**15
"""Samples that are interpolated at once."""
BARYCENTRIC = np.where(np.arange(DEGREE + 1) % DEGREE == 0, 0.5, 1.0) * (
    (-1.0) ** np.arange(DEGREE + 1)
)
"""Weights of the interpolation at Chebyshev points of the second kind."""


def affordable_places(samples: int) -> int:
    """The number of integrals from which a table costs more than one integral per sample.

    Places that are hard to resolve lie close together, and cost more each.
    """
    return min(max(samples // 16, min(samples // 4, 160)), MOST_PLACES)


@dataclass(frozen=True)
class FormTable:
    """Panels [low, high] of the form, in order within each group of samples."""

    u: Array
    """The forms of the samples, (K,)."""
    member: Array
    """Their groups, (K,)."""
    shares: SampleShares
    """The weights of the samples in averages over them."""
    group: Array
    """The group of each panel, in order, (P,)."""
    low: Array
    high: Array

    @classmethod
    def covering(cls, u: Array, member: Array, shares: SampleShares) -> FormTable:
        """Equal panels over the forms of each group."""
        group, low, high = [], [], []
        for g in np.unique(member):
            mine = u[member == g]
            start, stop = float(mine.min()), float(mine.max())
            slack = 1e-9 * (1.0 + abs(start) + abs(stop))
            ends = np.linspace(start - slack, stop + slack, FIRST_PANELS + 1)
            group.append(np.full(FIRST_PANELS, g))
            low.append(ends[:-1])
            high.append(ends[1:])
        return cls(u, member, shares, *(np.concatenate(part) for part in (group, low, high)))

    @cached_property
    def places(self) -> Array:
        """U, (J,)."""
        half = 0.5 * (self.high - self.low)
        return (0.5 * (self.high + self.low)[:, None] + half[:, None] * NODES).ravel()

    @cached_property
    def members(self) -> Array:
        """The group of each place, (J,)."""
        return np.repeat(self.group, DEGREE + 1)

    @property
    def _blocks(self) -> list[slice]:
        starts = range(0, len(self.u), SAMPLE_BLOCK)
        return [slice(start, start + SAMPLE_BLOCK) for start in starts]

    def _interpolation(self, block: slice) -> tuple[Array, Array]:
        """The places that each sample of a block is interpolated from, and their weights."""
        u, member = self.u[block], self.member[block]
        panel = np.empty(len(u), dtype=int)
        for g in np.unique(self.group):
            own, mine = np.flatnonzero(self.group == g), member == g
            panel[mine] = own[0] + np.searchsorted(self.low[own[1:]], u[mine], side="right")
        middle, half = 0.5 * (self.high + self.low), 0.5 * (self.high - self.low)
        away = ((u - middle[panel]) / half[panel])[:, None] - NODES
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = BARYCENTRIC / away
            weights /= weights.sum(axis=1, keepdims=True)
        hit = np.flatnonzero((np.abs(away) < 1e-300).any(axis=1))
        weights[hit] = np.abs(away[hit]) < 1e-300
        return panel[:, None] * (DEGREE + 1) + np.arange(DEGREE + 1), weights

    @cached_property
    def counts(self) -> Array:
        """c = P' m, (J,): the weight of each place in a sum over samples; it may be negative."""
        counts = np.zeros(len(self.places))
        for block in self._blocks:
            columns, weights = self._interpolation(block)
            weights = self.shares.subset(block).multiple(weights)
            counts += np.bincount(columns.ravel(), weights.ravel(), len(counts))
        return counts

    def at_samples(self, values: Array) -> Array:
        """Values (J, m) at the places, interpolated to the samples: (K, m)."""
        out = np.empty((len(self.u), values.shape[1]))
        for block in self._blocks:
            columns, weights = self._interpolation(block)
            out[block] = np.einsum("kj,kjm->km", weights, values[columns])
        return out

    def refined(self, values: Array, allowed: Array) -> FormTable:
        """The table with panels halved that do not resolve values (J, m), itself if all do.

        allowed: errors (m,) relative to the largest value in a panel, which counts for 1 at least.
        """
        parts = values.reshape(len(self.low), DEGREE + 1, -1)
        tails = np.abs(np.einsum("pjm,jt->ptm", parts, TAIL)).max(axis=1)
        scale = np.maximum(1.0, np.abs(parts).max(axis=1))
        bad = (tails > allowed * scale).any(axis=1)
        if not bad.any():
            return self
        times = np.where(bad, 2, 1)
        first = np.cumsum(times) - times
        low, high = np.repeat(self.low, times), np.repeat(self.high, times)
        middle = 0.5 * (self.low + self.high)[bad]
        high[first[bad]], low[first[bad] + 1] = middle, middle
        return replace(self, group=np.repeat(self.group, times), low=low, high=high)


# ------------------------------
# The tilted Gaussian seen through affine forms: how a few numbers t move the forms and the cost


RANK_TOLERANCE = 1e-13
"""Relative variance under which a direction of the forms counts as absent."""


@dataclass(frozen=True)
class Projection:
    """Effect of t on forms and cost, for each sample (K leading) or for all of them (1 leading)."""

    forms: Array
    """L, (K or 1, q, r)."""
    pull: Array
    """L^-T, (K or 1, q, r), zero where a sample has a lower rank."""
    cost: Array
    """M, (K or 1, r, r)."""
    mean: Array
    """tr(Lambda V) - tr M, (K or 1,)."""

    def select(self, member: Array, duals: int = 1) -> Projection:
        """The projections of samples that are members of groups, at one dual after another."""
        if len(self.mean) == 1:
            return self
        first = len(self.mean) // duals * np.arange(duals)
        index = (first[:, None] + member).ravel()
        return Projection(self.forms[index], self.pull[index], self.cost[index], self.mean[index])

    def form_moves(self, law: TiltedLaw) -> Array:
        """L t at each point of the law, (M, q)."""
        if len(self.forms) == 1:
            return law.points @ self.forms[0].T
        return np.einsum("mqr,mr->mq", self.forms[law.owner], law.points)

    def pulled_back(self, law: TiltedLaw, in_forms: Array) -> Array:
        """L^-T E[h_u t] of each law, (K, q, q), from h_u (M, q) at its points."""
        lever = law.total(in_forms[:, :, None] * law.points[:, None])
        pull = np.broadcast_to(self.pull, (len(lever), *lever.shape[1:]))
        return np.einsum("kqr,kjr->kjq", pull, lever)

    def mean_costs(self, law: TiltedLaw) -> Array:
        """The mean transport cost under the tilted law of each sample, (K,)."""
        t = law.points
        if not t.shape[1]:
            return np.broadcast_to(self.mean, len(law.log_mass))
        matrices = self.cost if len(self.cost) == 1 else self.cost[law.owner]
        moved = t @ matrices[0] if len(matrices) == 1 else np.einsum("mr,mrs->ms", t, matrices)
        squares = np.vecdot(moved, t)
        if law.variance is not None:
            squares = squares + matrices[:, -1, -1] * law.variance
        return self.mean + law.mean(squares)


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


def projection(slopes: Array, weights: Array, v: Array, total: Array) -> Projection:
    """The projections of forms with slopes B (G, q, d) at J duals, one dual after another.

    weights (d,) and variances v (J, d) of the coordinates that the forms see; total:
    tr(Lambda V) over all coordinates, (J,).
    """
    groups = len(slopes)

    def product(left: Array, diagonal: Array) -> Array:
        """left diag left' for matrices (J or 1, G, r, d): (J G, r, r)."""
        products = (left * diagonal[:, None, None]) @ left.swapaxes(2, 3)
        return products.reshape(len(v) * groups, *products.shape[2:])

    vectors, values = principal_axes(product(slopes[None], v))
    deviation = np.sqrt(values)
    inverse = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=values > 0)
    pull = vectors * inverse[:, None]
    _, forms, rank = pull.shape
    turned = pull.swapaxes(1, 2).reshape(len(v), groups, rank, forms) @ slopes  # L^-1 B
    cost = product(turned, v**2 * weights)
    mean = np.repeat(total, groups) - np.trace(cost, axis1=1, axis2=2)
    return Projection(forms=vectors * deviation[:, None], pull=pull, cost=cost, mean=mean)
