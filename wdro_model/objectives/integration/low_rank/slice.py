"""The strategy `low_rank`: the inner integral over the forms, as a function of the dual variable.

With a quadratic cost on R^d the tilted scenarios move the forms by u = u_k + L t, t ~ N(0, I_r),
and everything orthogonal to that integrates in closed form (see `projection`):

    log E exp((f - l c)/eps) = log E_t exp(h(x, u_k + L t)/eps) - sum_i log(1 + 2 l lambda_i/eps)/2.

Rank one (logistic, hinge, CVaR, least squares...) and two are integrated by quadrature, a quadratic
h in any rank. The dimension d of the data enters through products only. The gradient in x is

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
from wdro_model.objectives.integration.frame import as_slice, frame_of
from wdro_model.objectives.integration.inner_integral import (
    INFINITE,
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
    form_structure,
    generic_rank,
    low_rank_refusal,
)
from wdro_model.objectives.integration.low_rank.laws import tilted_law
from wdro_model.objectives.integration.low_rank.table import (
    FormTable,
    Projection,
    affordable_places,
    compact,
    projection,
)
from wdro_model.objectives.integration.normal import TiltedLaw, join_laws
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

__all__ = ["LowRank", "low_rank_refusal"]

TABLE_ERRORS = np.array([1e-10, 1e-9, 1e-9])
"""Relative errors of a table: of log E exp, and of the tilted means of t and t^2."""
FORM_BLOCK = 2**15
"""Samples whose forms are computed at once."""
PLACE_BLOCK = 2**12
"""Places of a table whose integrals are computed at once."""
SAMPLE_DUALS = 2**14
"""Samples times duals whose points exist at once."""
LINE_CHUNK, PLANE_CHUNK = 4096, 512
"""Samples whose points exist at once, for integrals along lines and over planes."""
MOST_TABLE_GROUPS = 4
"""Groups of samples that may have tables; more have few samples each."""
SURROGATE_SIZE, SURROGATE_SHARE = 2**14, 8
"""Samples from which on a run starts on some of them, and the inverse of their share."""


class LowRank(Integration):
    """Integration over the few directions in which a loss sees the data."""

    name = "low_rank"
    start = ROBUST

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales)
        structure = form_structure(model)
        if structure is None:
            raise ValueError("the loss does not see the data through a few affine forms.")
        self.structure = structure
        self.frame = frame_of(model.joint, model.cost, scales.sigma)
        self.rank = generic_rank(model, structure)
        lines = structure.quadratic or self.rank < 2
        chunk = LINE_CHUNK if lines else PLANE_CHUNK
        self.groups = Groups(model.joint, structure.keys, structure.forms.count, chunk)
        self.has_tables = (
            structure.forms.count == 1
            and not structure.quadratic
            and structure.pieces is None
            and not len(structure.constants)
            and self.groups.number <= MOST_TABLE_GROUPS
        )
        """True if the integral of a sample depends on one number, its form."""

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> LowRankSlice:
        return LowRankSlice(self, x, samples, shares or self.joint.shares_of(samples))

    def surrogate(self) -> LowRank | None:
        """The same integral over some of the samples, where they are many."""
        if self.joint.size < SURROGATE_SIZE:
            return None
        return LowRank(self.model.on_some(self.joint.size // SURROGATE_SHARE), self.scales)

    def describe(self) -> str:
        count = self.structure.forms.count
        seen = f"low rank: the loss sees the data through {count} affine form(s)"
        if self.structure.quadratic:
            return f"{seen} and is quadratic in them, the tilted scenarios are Gaussian"
        way = "piece by piece in closed form" if self.structure.pieces else "by quadrature"
        return f"{seen}, integrated {way} in dimension {self.rank}"


class Part:
    """A chunk of samples with their forms u (K, q) at one decision."""

    def __init__(
        self, rule: LowRank, x: Array, group: Grouped, u: Array, shares: SampleShares
    ) -> None:
        self.group, self.u, self.shares = group, u, shares
        self._rule, self._x = rule, x
        self._whitened: Array | None = None

    def whitened(self, keep: bool = False) -> Array:
        """The slopes of the forms in whitened coordinates, for each group (G, q, r)."""
        if self._whitened is not None:
            return self._whitened
        rule, rows = self._rule, self.group.rows
        if len(rows) == 1:
            slopes = rule.structure.inner.jacobian(self._x, rows[0])[None]
        else:
            slopes = rule.structure.inner.jacobians(self._x, rows)
        whitened = rule.frame.whitened_slopes(slopes)
        if keep:
            self._whitened = whitened
        return whitened

    @cached_property
    def _compact(self) -> Array:
        """The slopes in as few coordinates as their rank; enough if all lambda_i are equal."""
        return compact(self.whitened())

    def projection(self, duals: Array) -> Projection:
        """The projections of each group at some duals, one dual after another."""
        frame = self._rule.frame
        v = frame.whitened_variances(duals, self._rule.epsilon)
        costs = frame.whitened_weights * v
        slopes = self.whitened() if frame.common_weight is None else self._compact
        r = slopes.shape[-1]
        return projection(slopes, frame.whitened_weights[:r], v[:, :r], costs.sum(axis=1))

    def outer(self, count: int = 1) -> Outer:
        """The outer function for the samples, once for each of `count` duals."""
        rule = self._rule
        constants = rule.joint.matrix[np.ix_(self.group.samples, rule.structure.constants)]
        return Outer(rule.structure, self._x, rule.epsilon, np.tile(constants, (count, 1)))

    def integrated(self, duals: Array) -> PartIntegral:
        """The integrals at some duals, ordered by dual, then by sample."""
        outer, u = self.outer(len(duals)), np.tile(self.u, (len(duals), 1))
        projected = self.projection(duals).select(self.group.member, len(duals))
        return PartIntegral(self, u, outer, projected, tilted_law(outer, u, projected.forms))


@dataclass(frozen=True)
class PartIntegral:
    """The integrals of a part, at its samples or at the places of its table."""

    part: Part
    u: Array
    outer: Outer
    projection: Projection
    law: TiltedLaw
    table: FormTable | None = None

    def total(self, values: Array) -> float:
        """The sum over all samples of values at each of them, or at each place, times K p_k."""
        if self.table is not None:
            return float(self.table.counts @ values)
        return float(self.part.shares.multiple(values).sum())

    def form_gradients(self, shares: Array) -> tuple[Array, Array, Array]:
        """The gradient of sum_k shares_k phi_k in x at fixed forms, E h_u and L^-T E[h_u t]."""
        law, table, owner = self.law, self.table, self.law.owner
        moved = self.u[owner] + self.projection.form_moves(law)
        counts = None if table is None else table.counts[owner]
        weights = law.weights * shares[owner]
        in_decision, in_forms = self.outer.gradients(owner, moved, weights, counts)
        slope, back = law.total(in_forms), self.projection.pulled_back(law, in_forms)
        if table is not None:
            q = slope.shape[1]
            both = table.at_samples(np.column_stack([slope, back.reshape(len(back), -1)]))
            both = self.part.shares.multiple(both)
            slope, back = both[:, :q], both[:, q:].reshape(-1, q, q)
        return in_decision, slope, back


class LowRankSlice(SampleSlice):
    """mean_k phi_k at one x: by one table over all samples where that pays, else in parts."""

    def __init__(self, rule: LowRank, x: Array, samples: Array, shares: SampleShares) -> None:
        self._rule, self._x, self._shares = rule, np.asarray(x, dtype=float), shares
        self._samples = np.asarray(samples)
        count, inner = len(self._samples), rule.structure.inner
        self._u = np.empty((count, inner.count))
        for start in range(0, count, FORM_BLOCK):
            block = slice(start, start + FORM_BLOCK)
            self._u[block] = inner(self._x, rule.joint.matrix[as_slice(self._samples[block])])
        refuse_undefined(self._u, self._samples)
        self._last: tuple[float, list[PartIntegral]] | None = None
        self._table: FormTable | None = None
        self._tabulates = rule.has_tables

    @cached_property
    def _parts(self) -> list[Part]:
        """The samples in parts that fit into memory."""
        rule, parts, start = self._rule, [], 0
        for samples in rule.groups.chunks(self._samples):
            own = slice(start, start + len(samples))
            group, shares = rule.groups.group_samples(samples), self._shares.subset(own)
            parts.append(Part(rule, self._x, group, self._u[own], shares))
            start = own.stop
        if len(parts) == 1:
            parts[0].whitened(keep=True)
        return parts

    @cached_property
    def _table_part(self) -> Part:
        group = self._rule.groups.group_samples(self._samples)
        part = Part(self._rule, self._x, group, self._u, self._shares)
        part.whitened(keep=True)
        return part

    # -------------------------------------------------------------- at one dual variable
    def evaluate(self, dual: float) -> DualPoint:
        rule, size = self._rule, len(self._samples)
        log_mass, cost = 0.0, 0.0
        for integral in self._integrals(dual):
            if np.isposinf(integral.law.log_mass).any():
                return INFINITE
            log_mass += integral.total(integral.law.log_mass)
            cost += integral.total(integral.projection.mean_costs(integral.law))
        value = rule.epsilon * (log_mass / size + self._log_shrinkage(dual))
        return DualPoint(value, -cost / size, np.nan)

    def gradient(self, dual: float) -> Array:
        gradient, size = np.zeros(len(self._x)), len(self._samples)
        for integral in self._integrals(dual):
            shares = integral.part.shares.array
            if integral.table is not None:  # the table's counts hold the shares of the samples
                shares = np.full(len(integral.u), 1.0 / size)
            gradient += self._gradient(integral, np.array([dual]), shares)
        return gradient

    def _integrals(self, dual: float) -> Iterable[PartIntegral]:
        """The integrals at a dual variable, part by part; one part is kept for the next call."""
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        integral = self._tabulated(dual) if self._tabulates else None
        if integral is None and len(self._parts) > 1:
            return (part.integrated(np.array([dual])) for part in self._parts)
        integral = integral or self._parts[0].integrated(np.array([dual]))
        self._last = (dual, [integral])
        return self._last[1]

    def _log_shrinkage(self, dual: float) -> float:
        """sum_i log(v_i)/2 over all coordinates."""
        v = self._rule.frame.whitened_variances(dual, self._rule.epsilon)
        return 0.5 * float(np.log(v).sum())

    def _tabulated(self, dual: float) -> PartIntegral | None:
        """The integrals of all samples by a table in the form; None if it does not pay."""
        part = self._table_part
        projected = part.projection(np.array([dual]))
        self._tabulates = projected.forms.shape[-1] == 1
        if not self._tabulates:
            return None
        outer = part.outer()
        table = self._table or FormTable.covering(part.u[:, 0], part.group.member, self._shares)
        left = affordable_places(len(table.u))
        while (left := left - len(table.places)) >= 0:
            places = table.places[:, None]
            at_places = projected.select(table.members)
            law = law_at_places(outer, places, at_places.forms)
            if not np.isfinite(law.log_mass).all():
                return None
            moments = law.mean(np.concatenate([law.points, law.points**2], axis=1))
            self._table = table.refined(np.column_stack([law.log_mass, moments]), TABLE_ERRORS)
            if self._table is table:
                return PartIntegral(part, places, outer, at_places, law, table)
            table = self._table
        self._tabulates = False
        return None

    # -------------------------------------------------------------- sample by sample
    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        log_mass, costs = [], []
        for part in self._parts:
            integral = part.integrated(duals)
            masses = integral.law.log_mass
            finite = not np.isposinf(masses).any()
            mean = np.full(len(masses), np.inf)
            if finite:
                mean[:] = integral.projection.mean_costs(integral.law)
            log_mass.append(masses.reshape(len(duals), -1))
            costs.append(mean.reshape(len(duals), -1))
        still = np.array([self._log_shrinkage(float(dual)) for dual in duals])[:, None]
        return self._rule.epsilon * (np.concatenate(log_mass, 1) + still), np.concatenate(costs, 1)

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        gradient, start = np.zeros(len(self._x)), 0
        for part in self._parts:
            own = slice(start, start + len(part.u))
            step = max(1, SAMPLE_DUALS // len(part.u))
            for first in range(0, len(duals), step):
                few = slice(first, first + step)
                integral = part.integrated(duals[few])
                gradient += self._gradient(integral, duals[few], shares[few, own].ravel())
            start = own.stop
        return gradient

    def _gradient(self, integral: PartIntegral, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j) of integrals at these duals, shares (J K,).

        sum_kj E[h_{u_j} grad_x u_j(x, zeta)] comes from E h_u (K, q) and L^-T E[h_u t] (K, q, q):
        within a group grad_x u_j is affine in zeta, so that with b a scenario of the group it is
        sum_k E[h_{u_j}] grad_x u_j(b) + grad_x u_j(b + m_j) - grad_x u_j(b),
        m_j = sum_k E[h_{u_j} (zeta - b)].
        """
        rule, part, inner = self._rule, integral.part, self._rule.structure.inner
        in_decision, slope, back = integral.form_gradients(shares)
        if not inner.count:
            return in_decision
        group, whitened = part.group, part.whitened()
        spread = np.zeros(())
        for dual, pulled in zip(duals, back.reshape(len(duals), -1, *back.shape[1:])):
            v = rule.frame.whitened_variances(float(dual), rule.epsilon)
            spread = spread + (group.total(pulled) @ whitened) * v
        slope = slope.reshape(len(duals), -1, slope.shape[1]).sum(axis=0)
        total = group.total(slope)
        move = rule.frame.displacements(spread) + group.weighted(slope, rule.joint.matrix)
        move -= total[:, :, None] * group.rows[:, None]
        rows = np.concatenate([group.rows[:, None], group.rows[:, None] + move], axis=1)
        inner(self._x, rows.reshape(-1, rows.shape[-1]))
        ones = np.broadcast_to(np.eye(inner.count), (len(total), inner.count, inner.count))
        seeds = np.concatenate([total[:, None] - 1.0, ones], axis=1)
        return in_decision + inner.in_decision(seeds.reshape(-1, inner.count))


def law_at_places(outer: Outer, places: Array, L: Array) -> TiltedLaw:
    """The laws at places (J, 1) of a table, a block of them at once."""
    parts = []
    for start in range(0, len(places), PLACE_BLOCK):
        block = np.arange(start, min(start + PLACE_BLOCK, len(places)))
        moved = L[block] if len(L) > 1 else L
        parts.append((block, tilted_law(outer, places[block], moved)))
    return join_laws(parts, len(places))
