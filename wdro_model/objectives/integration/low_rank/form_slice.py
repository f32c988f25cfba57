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
        gradient = np.zeros(self._rule.anatomy.inner.layout.dimension)
        for i, chunk in enumerate(self._at(dual)):
            law, owner = chunk.law, chunk.law.owner
            moved = chunk.u[owner] + forms_moved(chunk.projection, law)
            weights = law.weights / len(self._samples)
            in_decision, in_forms = chunk.outer.gradients(owner, moved, weights)
            if chunk.table is not None:
                counted = weights * chunk.table.counts[owner]
                in_decision = chunk.outer.gradients(owner, moved, counted)[0]
            gradient += in_decision
            if not self._rule.anatomy.forms.count:
                continue
            slope = law.total(in_forms)
            lever = law.total(in_forms[:, :, None] * law.points[:, None])
            pull = np.broadcast_to(chunk.projection.pull, lever.shape)
            back = np.einsum("kqr,kjr->kjq", pull, lever)
            if chunk.table is not None:
                slope, back = chunk.table.at_samples(slope), chunk.table.at_samples(back)
            gradient += self._through_forms(i, chunk.group, dual, slope, back)
        return gradient

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
        chunks = (self._chunk(i, dual) for i in range(len(self._groups)))
        if len(self._groups) > 1:
            return chunks
        self._last = (dual, list(chunks))
        return self._last[1]

    def _chunk(self, i: int, dual: float) -> Chunk:
        rule, part, u = self._rule, self._groups[i], self._u[i]
        anatomy = rule.anatomy
        outer = Outer(
            function=anatomy.outer,
            x=self._x,
            epsilon=rule.epsilon,
            constants=rule.joint.matrix[np.ix_(part.samples, anatomy.constants)],
            curvature=anatomy.curvature,
            quadratic=anatomy.quadratic,
            pieces=anatomy.pieces,
            common_pieces=anatomy.common_pieces,
        )
        projected = self._projection(i, dual)
        if (found := self._tabled(i, outer, projected)) is not None:
            return found
        if len(part.rows) > 1:
            projected = projected.at(part.member)
        law = rule.law(outer, u, projected.forms, part.samples, self._stream)
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
        self, i: int, group: Grouped, dual: float, slope: Array, back: Array
    ) -> Array:
        """sum_kj E[h_{u_j} grad_x u_j(x, zeta)] from slope = E h_u (K, q) and back, (K, q, q), what
        L^-T makes of E h_u t.

        Within a group grad_x u_j is affine in zeta: with b a scenario of the group,
        sum_k E[h_{u_j}] grad_x u_j(b) + grad_x u_j(b + m_j) - grad_x u_j(b),
        m_j = sum_k E[h_{u_j} (zeta - b)].
        """
        rule, inner = self._rule, self._rule.anatomy.inner
        back = group.total(back)
        v = rule.whitening.variances(dual, rule.epsilon)
        move = rule.whitening.moves((back @ self._whitened(i)) * v)
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
