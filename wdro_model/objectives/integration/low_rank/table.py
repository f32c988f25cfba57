"""The tilted Gaussian seen through the forms, and tables in place of one integral per sample.

Where the loss sees the data through one form u and samples share its slope, everything that is
integrated for a sample is a smooth function of u_k alone. It is computed at the Chebyshev points of
panels that cover the samples, and interpolated: with P (K, J) the matrix of the interpolation,

    q(u_k) = sum_j P_kj q(U_j),   sum_k m_k q(u_k) = sum_j c_j q(U_j),   c = P' m,

m_k being one, or K p_k where the samples have probabilities.

Panels are halved until the last Chebyshev coefficients of what is interpolated are negligible.

In coordinates z (`whitening`) the cost alone tilts the scenarios to z ~ N(0, V). Forms
u = u_k + B z see of it

    u = u_k + L t,   t ~ N(0, I_r),   L L' = B V B',
    z = G t + noise independent of t,   G = V B' L^-T,   noise covariance V - G G',

and the cost given t, with M = G' Lambda G and K = G' Lambda^2 V G, has

    mean      tr(Lambda V) - tr M + t' M t
    variance  2 (tr (Lambda V)^2 - 2 tr K + tr M^2) + 4 t' (K - M^2) t.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from wdro_model.objectives.integration.lines import DEGREE, NODES, TAIL
from wdro_model.objectives.integration.normal import TiltedLaw
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

FIRST = 4
"""Panels of a group of samples to begin with."""
BARYCENTRIC = np.where(np.arange(DEGREE + 1) % DEGREE == 0, 0.5, 1.0) * (
    (-1.0) ** np.arange(DEGREE + 1)
)
"""Weights of the interpolation at Chebyshev points of the second kind."""


MOST_PLACES = 2**14
"""Integrals of a table, at most."""
BLOCK = 2**15
"""Samples whose rows of the interpolation exist at once."""


def affordable_places(samples: int) -> int:
    """How many integrals a table may take: hard places lie close together, and cost more each."""
    return min(max(samples // 16, min(samples // 4, 160)), MOST_PLACES)


@dataclass(frozen=True)
class FormTable:
    """Panels [low, high] of the form, in order within each group of samples."""

    u: Array
    """The forms of the samples, (K,)."""
    member: Array
    """Their groups, (K,)."""
    group: Array
    """The group of each panel, in order, (P,)."""
    low: Array
    high: Array
    shares: SampleShares | None = None
    """What the samples count in averages over them; all the same by default."""

    @cached_property
    def places(self) -> Array:
        """U, (J,)."""
        half = 0.5 * (self.high - self.low)
        return (0.5 * (self.high + self.low)[:, None] + half[:, None] * NODES).ravel()

    @cached_property
    def members(self) -> Array:
        """The group of each place, (J,)."""
        return np.repeat(self.group, DEGREE + 1)

    def spread(self, some: slice) -> sp.csr_array:
        """P, (K, J): the interpolation from the places to some of the samples."""
        u, member = self.u[some], self.member[some]
        panel = np.empty(len(u), dtype=int)
        for g in np.unique(self.group):
            own, mine = np.flatnonzero(self.group == g), member == g
            inner = self.low[own[1:]]
            panel[mine] = own[0] + np.searchsorted(inner, u[mine], side="right")
        middle, half = 0.5 * (self.high + self.low), 0.5 * (self.high - self.low)
        away = ((u - middle[panel]) / half[panel])[:, None] - NODES
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = BARYCENTRIC / away
            weights /= weights.sum(axis=1, keepdims=True)
        hit = np.flatnonzero((np.abs(away) < 1e-300).any(axis=1))
        weights[hit] = np.abs(away[hit]) < 1e-300
        columns = panel[:, None] * (DEGREE + 1) + np.arange(DEGREE + 1)
        ends = np.arange(len(u) + 1) * (DEGREE + 1)
        shape = (len(u), len(self.places))
        return sp.csr_array((weights.ravel(), columns.ravel(), ends), shape)

    @cached_property
    def blocks(self) -> list[slice]:
        """The samples in blocks."""
        return [slice(start, start + BLOCK) for start in range(0, len(self.u), BLOCK)]

    @cached_property
    def _only(self) -> sp.csr_array:
        """P where there is one block."""
        return self.spread(self.blocks[0])

    def _spreads(self) -> Iterator[tuple[slice, sp.csr_array]]:
        """P block by block; kept where there is one."""
        if len(self.blocks) == 1:
            yield self.blocks[0], self._only
            return
        for some in self.blocks:
            yield some, self.spread(some)

    @cached_property
    def counts(self) -> Array:
        """c, (J,): for how many samples a place stands, of either sign."""
        counts = np.zeros(len(self.places))
        for some, spread in self._spreads():
            data = spread.data
            if self.shares is not None:
                data = self.shares.subset(some).repeat(DEGREE + 1).multiple(data)
            counts += np.bincount(spread.indices, weights=data, minlength=len(counts))
        return counts

    def at_samples(self, values: Array) -> Array:
        """Values (J, ...) at the places, interpolated to the samples: (K, ...)."""
        flat = values.reshape(len(values), -1)
        found = np.empty((len(self.u), flat.shape[1]))
        for some, spread in self._spreads():
            found[some] = spread @ flat
        return found.reshape(len(self.u), *values.shape[1:])

    def inner_ends(self) -> list[Array]:
        """Where panels of each group meet."""
        return [self.low[self.group == g][1:] for g in range(int(self.group.max()) + 1)]

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


def first_table(
    u: Array,
    member: Array,
    count: int,
    known: list[Array] | None = None,
    shares: SampleShares | None = None,
) -> FormTable:
    """Equal panels over the forms of each group of samples, or between known ends of panels."""
    group, low, high = [], [], []
    for g in range(count):
        mine = u[member == g]
        if not len(mine):
            continue
        start, stop = float(mine.min()), float(mine.max())
        slack = 1e-9 * (1.0 + abs(start) + abs(stop))
        start, stop = start - slack, stop + slack
        ends = np.linspace(start, stop, FIRST + 1)
        if known is not None and g < len(known) and len(known[g]):
            inner = known[g][(known[g] > start + slack) & (known[g] < stop - slack)]
            ends = np.concatenate([[start], inner, [stop]])
        group.append(np.full(len(ends) - 1, g))
        low.append(ends[:-1])
        high.append(ends[1:])
    panels = [np.concatenate(part) for part in (group, low, high)]
    return FormTable(u, member, panels[0], panels[1], panels[2], shares)


# ------------------------------
# The tilted Gaussian seen through affine forms: how a few numbers t move the forms and the cost


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
