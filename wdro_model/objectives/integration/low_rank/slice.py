"""The strategy `low_rank`: the inner integral over the forms, as a function of the dual variable.

With a quadratic cost on R^d the tilted scenarios move the forms by u = u_k + L t, t ~ N(0, I_r),
and everything orthogonal to that integrates in closed form (see `projection`):

    log E exp((f - l c)/eps) = log E_t exp(h(x, u_k + L t)/eps) - sum_i log(1 + 2 l lambda_i/eps)/2.

Rank one (logistic, hinge, CVaR, least squares...) and two are integrated without sampling, a
quadratic h in any rank; otherwise t is drawn from a mixture around the modes. The dimension d of
the data enters through products only. The gradient in x is

    E h_x + sum_j E h_{u_j} grad_x u_j(x, zeta),   E[zeta | t] = xi_k + R G t,

where grad_x u_j is affine in zeta, so that averages of h_{u_j} and h_{u_j} zeta suffice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.importance.frame import as_slice, frame_of
from wdro_model.objectives.integration.inner_integral import (
    ROBUST,
    Integration,
    SampleSlice,
    Scales,
    Stream,
    refuse_undefined,
)
from wdro_model.objectives.integration.low_rank.forms import (
    Grouped,
    Groups,
    Outer,
    dissect,
    drawn_refusal,
    generic_rank,
    low_rank_refusal,
)
from wdro_model.objectives.integration.low_rank.laws import (
    DrawnLaw,
    QuasiRandom,
    drawn_law,
    exact_law,
)
from wdro_model.objectives.integration.low_rank.table import (
    FormTable,
    Projection,
    affordable_places,
    compact,
    first_table,
    projection,
)
from wdro_model.objectives.integration.normal import TiltedLaw, united
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.samples import SampleShares

__all__ = ["LowRank", "drawn_refusal", "low_rank_refusal"]


RESOLVED = np.array([1e-10, 1e-9, 1e-9])
"""Errors of a table: of log E exp, and of the tilted mean of t and of t^2."""
BLOCK = 2**15
"""Samples whose forms are computed at once."""
PLACES = 2**12
"""Places of a table whose integrals are computed at once."""
TOGETHER = 2**14
"""Samples times duals whose points exist at once."""


@dataclass(frozen=True)
class Chunk:
    """Some samples at one decision and dual variable."""

    part: Part
    u: Array
    outer: Outer
    projection: Projection
    law: TiltedLaw
    table: FormTable | None = None
    """The samples that u, projection and law stand for, where these are about places of a table."""

    def total(self, values: Array) -> float:
        """The sum over all samples of values at each of them, or at each place, times K p_k."""
        if self.table is not None:
            return float(self.table.counts @ values)
        return float(self.part.shares.multiple(values).sum())

    def cost_moments(self) -> tuple[Array, Array]:
        """Mean and variance of the transport cost, (K,) each."""
        points_do = not self.outer.anatomy.quadratic or self.law.points.shape[1] <= 2
        return self.projection.cost_moments(self.law, fourth=points_do)


class Part:
    """Some samples and their forms at one decision."""

    def __init__(
        self, rule: LowRank, x: Array, group: Grouped, u: Array, shares: SampleShares
    ) -> None:
        self.group, self.u, self.shares = group, u, shares
        """u: (K, q)."""
        self._rule, self._x = rule, x
        self._kept: Array | None = None

    def whitened(self, keep: bool = False) -> Array:
        """The slopes of the forms in the coordinates z, for each group (G, q, d)."""
        if self._kept is not None:
            return self._kept
        rule, rows = self._rule, self.group.rows
        if len(rows) == 1:
            slopes = rule.anatomy.inner.jacobian(self._x, rows[0])[None]
        else:
            slopes = rule.anatomy.inner.jacobians(self._x, rows)
        found = rule.frame.whitened_slopes(slopes)
        if keep:
            self._kept = found
        return found

    @cached_property
    def _compact(self) -> Array:
        """Slopes in few coordinates, which do where all weigh the same."""
        return compact(self.whitened())

    def projection(self, duals: Array) -> Projection:
        """How the forms of each group move at some duals, one after another."""
        frame = self._rule.frame
        v = frame.whitened_variances(duals, self._rule.epsilon)
        costs = frame.whitened_weights * v
        slopes = self.whitened() if frame.common_weight is None else self._compact
        seen = slopes.shape[-1]
        return projection(
            slopes,
            frame.whitened_weights[:seen],
            v[:, :seen],
            costs.sum(axis=1),
            (costs**2).sum(axis=1),
        )

    def outer(self, count: int = 1) -> Outer:
        """The outer function for the samples, once for each of `count` duals."""
        rule = self._rule
        constants = rule.joint.matrix[np.ix_(self.group.samples, rule.anatomy.constants)]
        return Outer(rule.anatomy, self._x, rule.epsilon, np.tile(constants, (count, 1)))


class LowRankSlice(SampleSlice):
    """mean_k phi_k at one x: by one table over all samples where that pays, else in parts."""

    def __init__(
        self, rule: LowRank, x: Array, samples: Array, stream: Stream, shares: SampleShares
    ) -> None:
        self._rule, self._x, self._stream = rule, np.asarray(x, dtype=float), stream
        self._shares = shares
        self._samples = np.asarray(samples)
        data, count = rule.joint.matrix, len(self._samples)
        self._u = np.empty((count, rule.anatomy.inner.count))
        for start in range(0, count, BLOCK):
            some = slice(start, start + BLOCK)
            self._u[some] = rule.anatomy.inner(self._x, data[as_slice(self._samples[some])])
        refuse_undefined(self._u, self._samples)
        self._last: tuple[float, list[Chunk]] | None = None
        self._table: FormTable | None = None
        self._tabling = rule.expects_tables()

    @cached_property
    def _parts(self) -> list[Part]:
        """The samples in parts that fit into memory."""
        rule, parts, start = self._rule, [], 0
        for samples in rule.groups.chunks(self._samples):
            stop = start + len(samples)
            own = self._shares.subset(slice(start, stop))
            parts.append(Part(rule, self._x, rule.groups.of(samples), self._u[start:stop], own))
            start = stop
        if len(parts) == 1:
            parts[0].whitened(keep=True)
        return parts

    @cached_property
    def _whole(self) -> Part:
        """All samples, for a table."""
        group = self._rule.groups.of(self._samples)
        part = Part(self._rule, self._x, group, self._u, self._shares)
        part.whitened(keep=True)
        return part

    def at(self, dual: float) -> DualPoint:
        rule, size = self._rule, len(self._samples)
        log_mass, cost, spread = 0.0, 0.0, 0.0
        for chunk in self._at(dual):
            if np.isposinf(chunk.law.log_mass).any():
                return DualPoint(np.inf, -np.inf, np.nan)
            mean, variance = chunk.cost_moments()
            log_mass += chunk.total(chunk.law.log_mass)
            cost += chunk.total(mean)
            spread += chunk.total(variance)
        v = rule.frame.whitened_variances(dual, rule.epsilon)
        value = rule.epsilon * (log_mass / size + 0.5 * float(np.log(v).sum()))
        return DualPoint(value, -cost / size, spread / size / rule.epsilon)

    def gradient(self, dual: float) -> Array:
        gradient, size = np.zeros(self._rule.anatomy.inner.layout.dimension), len(self._samples)
        for chunk in self._at(dual):
            shares = chunk.part.shares.array[None]
            if chunk.table is not None:  # the places know what they stand for
                shares = np.full((1, len(chunk.u)), 1.0 / size)
            gradient += self._gradient(chunk, np.array([dual]), shares)
        return gradient

    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (J, K) twice."""
        rule, count = self._rule, len(duals)
        log_mass, costs = [], []
        for part in self._parts:
            chunk = self._chunk(part, duals)
            found = chunk.law.log_mass
            finite = not np.isposinf(found).any()
            mean = chunk.cost_moments()[0] if finite else np.full(len(found), np.inf)
            log_mass.append(found.reshape(count, -1))
            costs.append(np.broadcast_to(mean, len(found)).reshape(count, -1))
        variances = (rule.frame.whitened_variances(float(dual), rule.epsilon) for dual in duals)
        still = np.array([0.5 * float(np.log(v).sum()) for v in variances])[:, None]
        return rule.epsilon * (np.concatenate(log_mass, 1) + still), np.concatenate(costs, 1)

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j), for shares (J, K)."""
        gradient, start = np.zeros(self._rule.anatomy.inner.layout.dimension), 0
        for part in self._parts:
            stop = start + len(part.u)
            step = max(1, TOGETHER // len(part.u))
            for first in range(0, len(duals), step):
                some = duals[first : first + step]
                chunk = self._chunk(part, some)
                gradient += self._gradient(chunk, some, shares[first : first + step, start:stop])
            start = stop
        return gradient

    def _gradient(self, chunk: Chunk, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j) over a chunk at these duals, shares (J, K)."""
        law, table = chunk.law, chunk.table
        owner = law.owner
        moved = chunk.u[owner] + chunk.projection.moved(law)
        weights = law.weights * shares.ravel()[owner]
        counts = None if table is None else table.counts[owner]
        in_decision, in_forms = chunk.outer.gradients(owner, moved, weights, counts)
        if not self._rule.anatomy.forms.count:
            return in_decision
        slope, back = law.total(in_forms), chunk.projection.pulled_back(law, in_forms)
        if table is not None:
            counted = chunk.part.shares.multiple
            slope, back = (counted(table.at_samples(part)) for part in (slope, back))
        return in_decision + self._through_forms(chunk.part, duals, slope, back)

    def diagnostics(self, dual: float) -> Diagnostics | None:
        if self._rule.exact:
            return None
        rule, sizes, variance = self._rule, [], 0.0
        for chunk in self._at(dual):
            law = chunk.law
            if isinstance(law, DrawnLaw):
                sizes.append(law.effective_size)
                variance += chunk.part.shares.error(law.variance_of_log) ** 2
            else:
                sizes.append(np.full(len(law.log_mass), float(rule.draws)))
        found = np.concatenate(sizes)
        return Diagnostics(
            draws=rule.draws,
            effective_size=float(np.median(found)),
            smallest_effective_size=float(found.min()),
            standard_error=float(rule.epsilon * np.sqrt(variance)),
            nearest_cost=0.0,  # the cost is averaged in closed form around every draw
        )

    # -------------------------------------------------------------- parts of a slice
    def _at(self, dual: float) -> Iterable[Chunk]:
        """The chunks at a dual variable; kept for the next call if there is but one."""
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        if self._tabling and (found := self._tabled(dual)) is not None:
            self._last = (dual, [found])
            return self._last[1]
        one = np.array([dual])
        chunks = (self._chunk(part, one) for part in self._parts)
        if len(self._parts) > 1:
            return chunks
        self._last = (dual, list(chunks))
        return self._last[1]

    def _chunk(self, part: Part, duals: Array) -> Chunk:
        """A part at some duals: all its samples at the first one, then at the next."""
        rule, group, count = self._rule, part.group, len(duals)
        outer = part.outer(count)
        projected = part.projection(duals).at(group.member, count)
        u, samples = np.tile(part.u, (count, 1)), np.tile(group.samples, count)
        law = rule.law(outer, u, projected.forms, samples, self._stream)
        return Chunk(part, u, outer, projected, law)

    def _tabled(self, dual: float) -> Chunk | None:
        """All samples by a table in the form; None where one does not pay."""
        rule, part = self._rule, self._whole
        projected = part.projection(np.array([dual]))
        if projected.forms.shape[-1] != 1:
            self._tabling = False
            return None
        outer = part.outer()
        table = self._table or rule.first_table(part.u[:, 0], part.group.member, self._shares)
        left = affordable_places(len(table.u))
        while (left := left - len(table.places)) >= 0:
            places = table.places[:, None]
            at_places = projected.at(table.members)
            law = self._law_at_places(outer, places, at_places.forms)
            if not np.isfinite(law.log_mass).all():
                return None
            t = law.points
            moments = law.mean(np.concatenate([t, t**2], axis=1))
            self._table = table.refined(np.column_stack([law.log_mass, moments]), RESOLVED)
            if self._table is table:
                rule.learn(paid=True, table=table)
                return Chunk(part, places, outer, at_places, law, table)
            table = self._table
        self._tabling = False
        rule.learn(paid=False)
        return None

    def _law_at_places(self, outer: Outer, places: Array, L: Array) -> TiltedLaw:
        """The laws at places (J, 1) of a table, some at once."""
        none, every, parts = self._samples[:0], np.arange(len(places)), []
        for start in range(0, len(places), PLACES):
            some = every[start : start + PLACES]
            moved = L[some] if len(L) > 1 else L
            parts.append((some, self._rule.law(outer, places[some], moved, none, self._stream)))
        return united(parts, len(places))

    def _through_forms(self, part: Part, duals: Array, slope: Array, back: Array) -> Array:
        """sum_kj E[h_{u_j} grad_x u_j(x, zeta)] from slope = E h_u (K, q) and back, (K, q, q), what
        L^-T makes of E h_u t, where samples come once for each dual.

        Within a group grad_x u_j is affine in zeta: with b a scenario of the group,
        sum_k E[h_{u_j}] grad_x u_j(b) + grad_x u_j(b + m_j) - grad_x u_j(b),
        m_j = sum_k E[h_{u_j} (zeta - b)].
        """
        rule, group, inner = self._rule, part.group, self._rule.anatomy.inner
        whitened, spread = part.whitened(), 0.0
        for dual, pulled in zip(duals, back.reshape(len(duals), -1, *back.shape[1:])):
            v = rule.frame.whitened_variances(float(dual), rule.epsilon)
            spread = spread + (group.total(pulled) @ whitened) * v
        move = rule.frame.displacements(np.asarray(spread))
        slope = slope.reshape(len(duals), -1, slope.shape[1]).sum(axis=0)
        total = group.total(slope)
        if not group.alone:
            move += group.weighted(slope, rule.joint.matrix)
            move -= total[:, :, None] * group.rows[:, None]
        rows = np.concatenate([group.rows[:, None], group.rows[:, None] + move], axis=1)
        inner(self._x, rows.reshape(-1, rows.shape[-1]))
        ones = np.broadcast_to(np.eye(inner.count), (len(total), inner.count, inner.count))
        seeds = np.concatenate([total[:, None] - 1.0, ones], axis=1)
        return inner.in_decision(seeds.reshape(-1, inner.count))


# ------------------------------
# Losses that see the data through a few affine forms, f = h(x, u): integration in r dimensions


MOST_TABLES = 4
"""Groups of samples that may have tables."""
LINE_CHUNK, PLANE_CHUNK = 4096, 512
"""Samples whose points exist at once, for integrals along lines and over planes."""
DRAWN_POINTS = 2**17
"""Draws that exist at once."""

LONGEST_PAUSE = 64
"""Decisions for which no table is tried after others did not pay."""
AFRESH = 16
"""Tables in a row that begin with the panels of the last one: panels are halved, never joined."""
SURROGATE_SIZE, SURROGATE_SHARE = 2**14, 8
"""Samples from which on a run begins on some of them, one in so many."""


class LowRank(Integration):
    """Integration over the few directions in which a loss sees the data."""

    name = "low_rank"
    start = ROBUST

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales)
        anatomy = dissect(model)
        if anatomy is None:
            raise ValueError("the loss does not see the data through a few affine forms.")
        self.anatomy = anatomy
        self.frame = frame_of(model.joint, model.cost, scales.sigma)
        self.rank = generic_rank(model, anatomy)
        self.exact = anatomy.quadratic or self.rank <= 2
        self.refines = not self.exact
        curved = not anatomy.quadratic and anatomy.pieces is None
        self.in_one_form = curved and anatomy.forms.count == 1 and not len(anatomy.constants)
        """Does what is integrated for a sample depend on one number, its form?"""
        self._failures = self._pause = self._tables = 0
        self._panels: list[Array] | None = None
        few = self.rank > 1 and not anatomy.quadratic
        chunk = PLANE_CHUNK if few else LINE_CHUNK
        if not self.exact:
            chunk = max(1, min(chunk, DRAWN_POINTS // self.draws))
        self.groups = Groups(model.joint, anatomy.keys, anatomy.forms.count, chunk)
        self.in_one_form &= self.groups.number <= MOST_TABLES
        self._numbers = QuasiRandom(self.draws)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> LowRankSlice:
        return LowRankSlice(self, x, samples, stream, shares or self.joint.shares_of(samples))

    def surrogate(self) -> LowRank | None:
        """The same integral over some of the samples, where they are many."""
        if not self.exact or self.joint.size < SURROGATE_SIZE:
            return None
        return LowRank(self.model.on_some(self.joint.size // SURROGATE_SHARE), self.scales)

    def expects_tables(self) -> bool:
        """Is a table worth a try at the next decision? Failures in a row make for pauses."""
        self._pause -= 1
        return self.in_one_form and self._pause < 0

    def first_table(self, u: Array, member: Array, shares: SampleShares) -> FormTable:
        """A table to begin with: the panels of the last one, now and then a few equal ones."""
        self._tables += 1
        known = self._panels if self._tables % AFRESH else None
        return first_table(u, member, self.groups.number, known, shares)

    def learn(self, paid: bool, table: FormTable | None = None) -> None:
        """Remember whether a table did pay, and its panels."""
        self._panels = None if table is None else table.inner_ends()
        self._failures = 0 if paid else self._failures + 1
        self._pause = 0 if paid else min(2 ** (self._failures - 1) - 1, LONGEST_PAUSE)

    def describe(self) -> str:
        count = self.anatomy.forms.count
        seen = f"low rank: the loss sees the data through {count} affine form(s)"
        if self.anatomy.quadratic:
            return f"{seen} and is quadratic in them, the tilted scenarios are Gaussian"
        if self.exact:
            way = "piece by piece in closed form" if self.anatomy.pieces else "by quadrature"
            return f"{seen}, integrated {way} in dimension {self.rank}"
        return f"{seen}, {self.draws} tilted draws for each sample in dimension {self.rank}"

    def law(self, outer: Outer, u: Array, L: Array, samples: Array, stream: Stream) -> TiltedLaw:
        """The tilted law of t for forms u (K, q) moved by L."""
        law = exact_law(outer, u, L)
        if law is not None:
            return law
        return drawn_law(outer, u, L, self._numbers.normal(samples, stream, L.shape[-1]))
