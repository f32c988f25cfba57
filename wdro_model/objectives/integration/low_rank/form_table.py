"""Tables in the form u: integrals at a few hundred places instead of one for each sample.

Where the loss sees the data through one form u and samples share its slope, everything that is
integrated for a sample is a smooth function of u_k alone. It is computed at the Chebyshev points of
panels that cover the samples, and interpolated: with P (K, J) the matrix of the interpolation,

    q(u_k) = sum_j P_kj q(U_j),   sum_k m_k q(u_k) = sum_j c_j q(U_j),   c = P' m,

m_k being one, or K p_k where the samples have probabilities.

Panels are halved until the last Chebyshev coefficients of what is interpolated are negligible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from wdro_model.objectives.integration.kernel.panels import DEGREE, NODES, TAIL
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares

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
                data = self.shares.some(some).repeated(DEGREE + 1).multiple(data)
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
