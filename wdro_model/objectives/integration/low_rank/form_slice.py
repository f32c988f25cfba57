"""mean_k phi_k at one decision as a function of the dual, for a loss of a few affine forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.objectives.integration.low_rank.draws import DrawnLaw
from wdro_model.objectives.integration.low_rank.form_table import (
    FormTable,
    affordable_places,
    first_table,
)
from wdro_model.objectives.integration.low_rank.groups import Grouped, rows_of
from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.objectives.integration.low_rank.projection import (
    Axes,
    Projection,
    principal_axes,
    projection,
    stacked,
    uniform_projection,
)
from wdro_model.objectives.integration.low_rank.tilted_law import TiltedLaw
from wdro_model.solvers.objective import Array, Diagnostics

if TYPE_CHECKING:
    from wdro_model.objectives.integration.low_rank.through_forms import LowRank

RESOLVED = np.array([1e-10, 1e-9, 1e-9])
"""Errors of a table: of log E exp, and of the tilted mean of t and of t^2."""
MOST_GROUPS = 4
"""Tables that stand for the samples of a chunk, at most."""


TOGETHER = 2**14
"""Samples times duals whose points exist at once."""


@dataclass(frozen=True)
class Chunk:
    """Some samples at one decision and dual variable."""

    group: Grouped
    u: Array
    outer: Outer
    projection: Projection
    law: TiltedLaw
    table: FormTable | None = None
    """The samples that u, projection and law stand for, where these are about places of a table."""

    def total(self, values: Array) -> float:
        """The sum over all samples of values at each of them, or at each place."""
        return float(values.sum() if self.table is None else self.table.counts @ values)


class LowRankSlice:
    """mean_k phi_k at one x."""

    def __init__(self, rule: LowRank, x: Array, samples: Array, stream: Stream) -> None:
        self._rule, self._x, self._stream = rule, np.asarray(x, dtype=float), stream
        self._samples = np.asarray(samples)
        self._groups = [rule.groups.of(part) for part in rule.groups.chunks(self._samples)]
        data = rule.joint.matrix
        self._u = [
            rule.anatomy.inner(self._x, rows_of(data, part.samples)) for part in self._groups
        ]
        self._check_finite()
        self._slopes: Array | None = None
        if len(self._groups) == 1:
            self._slopes = self._whitened(0)
        self._axes: list[Axes] | None = None
        if rule.whitening.uniform is not None:
            self._axes = [self._principal(i) for i in range(len(self._groups))]
        self._last: tuple[float, list[Chunk]] | None = None
        self._tables: dict[int, FormTable] = {}
        self._tabling = rule.expects_tables()

    def at(self, dual: float) -> DualPoint:
        rule, size = self._rule, len(self._samples)
        log_mass, cost, spread = 0.0, 0.0, 0.0
        for chunk in self._at(dual):
            if np.isposinf(chunk.law.log_mass).any():
                return DualPoint(np.inf, -np.inf, np.nan)
            mean, variance = cost_moments(chunk)
            log_mass += chunk.total(chunk.law.log_mass)
            cost += chunk.total(mean)
            spread += chunk.total(variance)
        v = rule.whitening.variances(dual, rule.epsilon)
        value = rule.epsilon * (log_mass / size + 0.5 * float(np.log(v).sum()))
        return DualPoint(value, -cost / size, spread / size / rule.epsilon)

    def gradient(self, dual: float) -> Array:
        gradient, size = np.zeros(self._rule.anatomy.inner.layout.dimension), len(self._samples)
        for i, chunk in enumerate(self._at(dual)):
            if chunk.table is not None:
                gradient += self._tabled_gradient(i, chunk, dual)
                continue
            shares = np.full((1, len(chunk.u)), 1.0 / size)
            gradient += self._gradient(i, chunk, np.array([dual]), shares)
        return gradient

    def each(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (J, K) twice."""
        rule, count = self._rule, len(duals)
        log_mass, costs = [], []
        for i in range(len(self._groups)):
            chunk = self._chunk(i, duals)
            found = chunk.law.log_mass
            finite = not np.isposinf(found).any()
            mean = cost_moments(chunk)[0] if finite else np.full(len(found), np.inf)
            log_mass.append(found.reshape(count, -1))
            costs.append(np.broadcast_to(mean, len(found)).reshape(count, -1))
        variances = (rule.whitening.variances(float(dual), rule.epsilon) for dual in duals)
        still = np.array([0.5 * float(np.log(v).sum()) for v in variances])[:, None]
        return rule.epsilon * (np.concatenate(log_mass, 1) + still), np.concatenate(costs, 1)

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j), for shares (J, K)."""
        gradient, start = np.zeros(self._rule.anatomy.inner.layout.dimension), 0
        for i, group in enumerate(self._groups):
            stop = start + len(group.samples)
            step = max(1, TOGETHER // len(group.samples))
            for first in range(0, len(duals), step):
                some = duals[first : first + step]
                chunk = self._chunk(i, some)
                gradient += self._gradient(i, chunk, some, shares[first : first + step, start:stop])
            start = stop
        return gradient

    def _gradient(self, i: int, chunk: Chunk, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j) over a chunk at these duals, shares (J, K)."""
        law, owner = chunk.law, chunk.law.owner
        moved = chunk.u[owner] + forms_moved(chunk.projection, law)
        weights = law.weights * shares.ravel()[owner]
        in_decision, in_forms = chunk.outer.gradients(owner, moved, weights)
        if not self._rule.anatomy.forms.count:
            return in_decision
        slope, back = law.total(in_forms), pulled_back(chunk, in_forms)
        return in_decision + self._through_forms(i, chunk.group, duals, slope, back)

    def _tabled_gradient(self, i: int, chunk: Chunk, dual: float) -> Array:
        """The same at one dual for a chunk of places, which stand for the samples of a table."""
        assert chunk.table is not None
        law, owner, table = chunk.law, chunk.law.owner, chunk.table
        moved = chunk.u[owner] + forms_moved(chunk.projection, law)
        weights = law.weights / len(self._samples)
        in_forms = chunk.outer.gradients(owner, moved, weights)[1]
        in_decision = chunk.outer.gradients(owner, moved, weights * table.counts[owner])[0]
        if not self._rule.anatomy.forms.count:
            return in_decision
        slope = table.at_samples(law.total(in_forms))
        back = table.at_samples(pulled_back(chunk, in_forms))
        return in_decision + self._through_forms(i, chunk.group, np.array([dual]), slope, back)

    def diagnostics(self, dual: float) -> Diagnostics | None:
        if self._rule.exact:
            return None
        rule, sizes, variance = self._rule, [], 0.0
        for chunk in self._at(dual):
            law = chunk.law
            if isinstance(law, DrawnLaw):
                sizes.append(law.effective_size)
                variance += float(law.variance_of_log.sum())
            else:
                sizes.append(np.full(len(law.log_mass), float(rule.draws)))
        found = np.concatenate(sizes)
        return Diagnostics(
            draws=rule.draws,
            effective_size=float(np.median(found)),
            smallest_effective_size=float(found.min()),
            standard_error=float(rule.epsilon * np.sqrt(variance) / len(found)),
            nearest_cost=0.0,  # the cost is averaged in closed form around every draw
        )

    # -------------------------------------------------------------- parts of a slice
    def _at(self, dual: float) -> Iterable[Chunk]:
        """The chunks at a dual variable; kept for the next call if there is but one."""
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        one = np.array([dual])
        chunks = (self._chunk(i, one, tables=True) for i in range(len(self._groups)))
        if len(self._groups) > 1:
            return chunks
        self._last = (dual, list(chunks))
        return self._last[1]

    def _chunk(self, i: int, duals: Array, tables: bool = False) -> Chunk:
        """A chunk at some duals: all its samples at the first one, then at the next.

        tables: places of a table may stand for the samples, at one dual.
        """
        rule, part, u = self._rule, self._groups[i], self._u[i]
        anatomy, count = rule.anatomy, len(duals)
        outer = Outer(
            function=anatomy.outer,
            x=self._x,
            epsilon=rule.epsilon,
            constants=np.tile(
                rule.joint.matrix[np.ix_(part.samples, anatomy.constants)], (count, 1)
            ),
            curvature=anatomy.curvature,
            quadratic=anatomy.quadratic,
            pieces=anatomy.pieces,
            common_pieces=anatomy.common_pieces,
        )
        several = [self._projection(i, float(dual)) for dual in duals]
        if tables and (found := self._tabled(i, outer, several[0])) is not None:
            return found
        if len(part.rows) > 1:
            several = [projected.at(part.member) for projected in several]
        projected = several[0] if count == 1 else stacked(several, len(u))
        u, samples = np.tile(u, (count, 1)), np.tile(part.samples, count)
        law = rule.law(outer, u, projected.forms, samples, self._stream)
        return Chunk(part, u, outer, projected, law)

    def _tabled(self, i: int, outer: Outer, projected: Projection) -> Chunk | None:
        """The chunk by a table in the form; None where one does not pay."""
        rule, part = self._rule, self._groups[i]
        if not self._tabling or projected.forms.shape[-1] != 1:
            return None
        table = self._tables.get(i)
        if table is None:
            if len(part.rows) > MOST_GROUPS:
                return None
            table = first_table(self._u[i][:, 0], part.member, len(part.rows))
        left = affordable_places(len(table.u))
        while (left := left - len(table.places)) >= 0:
            places = table.places[:, None]
            at_places = projected.at(table.members) if len(part.rows) > 1 else projected
            law = rule.law(outer, places, at_places.forms, part.samples, self._stream)
            if not np.isfinite(law.log_mass).all():
                return None
            chunk = Chunk(part, places, outer, at_places, law, table)
            t = law.points
            moments = law.mean(np.concatenate([t, t**2], axis=1))
            finer = table.refined(np.column_stack([law.log_mass, moments]), RESOLVED)
            self._tables[i] = finer
            if finer is table:
                rule.learn(paid=True)
                return chunk
            table = finer
        self._tabling = False
        rule.learn(paid=False)
        return None

    def _projection(self, i: int, dual: float) -> Projection:
        whitening = self._rule.whitening
        v = whitening.variances(dual, self._rule.epsilon)
        if self._axes is not None:
            assert whitening.uniform is not None
            return uniform_projection(
                self._axes[i], whitening.uniform, float(v[0]), whitening.dimension
            )
        return projection(self._whitened(i), whitening.weights, v)

    def _principal(self, i: int) -> Axes:
        slopes = self._whitened(i)
        return principal_axes(slopes @ slopes.swapaxes(1, 2))

    def _whitened(self, i: int) -> Array:
        """The slopes of the forms in the coordinates z, for each group (G, q, d)."""
        if self._slopes is not None:
            return self._slopes
        rule, rows = self._rule, self._groups[i].rows
        if len(rows) == 1:
            slopes = rule.anatomy.inner.jacobian(self._x, rows[0])[None]
        else:
            slopes = rule.anatomy.inner.jacobians(self._x, rows)
        return rule.whitening.slopes(slopes)

    def _through_forms(
        self, i: int, group: Grouped, duals: Array, slope: Array, back: Array
    ) -> Array:
        """sum_kj E[h_{u_j} grad_x u_j(x, zeta)] from slope = E h_u (K, q) and back, (K, q, q), what
        L^-T makes of E h_u t, where samples come once for each dual.

        Within a group grad_x u_j is affine in zeta: with b a scenario of the group,
        sum_k E[h_{u_j}] grad_x u_j(b) + grad_x u_j(b + m_j) - grad_x u_j(b),
        m_j = sum_k E[h_{u_j} (zeta - b)].
        """
        rule, inner = self._rule, self._rule.anatomy.inner
        whitened, spread = self._whitened(i), 0.0
        for dual, part in zip(duals, back.reshape(len(duals), -1, *back.shape[1:])):
            v = rule.whitening.variances(float(dual), rule.epsilon)
            spread = spread + (group.total(part) @ whitened) * v
        move = rule.whitening.moves(np.asarray(spread))
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

    def _check_finite(self) -> None:
        for part, u in zip(self._groups, self._u):
            bad = ~np.isfinite(u).all(axis=1)
            if bad.any():
                raise FloatingPointError(
                    f"the loss is not finite at sample {int(part.samples[np.argmax(bad)])}; keep "
                    "the decision inside its domain (bounds on the variables)."
                )


def forms_moved(projected: Projection, law: TiltedLaw) -> Array:
    """L t at each point of the law, (M, q)."""
    L = projected.forms
    if len(L) == 1:
        return law.points @ L[0].T
    return np.einsum("mqr,mr->mq", L[law.owner], law.points)


def pulled_back(chunk: Chunk, in_forms: Array) -> Array:
    """L^-T E[h_u t] of each sample or place, (K, q, q), from h_u at the points of its law."""
    lever = chunk.law.total(in_forms[:, :, None] * chunk.law.points[:, None])
    pull = np.broadcast_to(chunk.projection.pull, (len(lever), *lever.shape[1:]))
    return np.einsum("kqr,kjr->kjq", pull, lever)


def cost_moments(chunk: Chunk) -> tuple[Array, Array]:
    """Mean and variance of the transport cost under the tilted law of each sample, (K,).

    The variance is NaN where the points of the law do not carry fourth moments. Where a point
    stands for an interval, it is taken for a Gaussian of the same variance: close enough for the
    Newton steps in the dual that the variance is for.
    """
    projected, law = chunk.projection, chunk.law
    t = law.points
    size, rank = len(law.log_mass), t.shape[1]
    if rank == 0:
        return np.broadcast_to(projected.mean, size), np.broadcast_to(projected.variance, size)

    def form(matrices: Array) -> Array:
        if len(matrices) == 1:
            return np.einsum("mr,mr->m", t @ matrices[0], t)
        return np.einsum("mr,mrs,ms->m", t, matrices[law.owner], t)

    def last(matrices: Array) -> Array:
        """The last row of the matrices at each point, (M, r)."""
        row = matrices[:, -1]
        return np.broadcast_to(row[0], t.shape) if len(row) == 1 else row[law.owner]

    square = form(projected.cost)
    within = 0.0
    if law.variance is not None:
        row = last(projected.cost)
        square = square + row[:, -1] * law.variance
        within = 4 * np.einsum("mr,mr->m", row, t) ** 2 * law.variance
        within = within + 2 * (row[:, -1] * law.variance) ** 2
        within = within + 4 * last(projected.excess)[:, -1] * law.variance
    mean = law.mean(square)
    if chunk.outer.quadratic and rank > 2:
        return projected.mean + mean, np.full(size, np.nan)
    spread = law.mean((square - mean[law.owner]) ** 2 + within + 4 * form(projected.excess))
    return projected.mean + mean, projected.variance + spread
