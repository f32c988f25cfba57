"""Losses that see the data through a few affine forms, f = h(x, u): integration in r dimensions.

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

from typing import Any

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.inner_integral import ROBUST, Integration, Stream
from wdro_model.objectives.integration.kernel.laws import TiltedLaw
from wdro_model.objectives.integration.kernel.whitening import Whitening
from wdro_model.objectives.integration.low_rank.draws import QuasiRandom, drawn_law
from wdro_model.objectives.integration.low_rank.form_anatomy import (
    dissect,
    drawn_refusal,
    generic_rank,
    low_rank_refusal,
)
from wdro_model.objectives.integration.low_rank.form_laws import exact_law
from wdro_model.objectives.integration.low_rank.form_slice import LowRankSlice
from wdro_model.objectives.integration.low_rank.form_table import FormTable, first_table
from wdro_model.objectives.integration.low_rank.groups import Groups
from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares

__all__ = ["LowRank", "build_low_rank", "drawn_refusal", "low_rank_refusal"]

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


def build_low_rank(model: RobustModel, scales: Any) -> LowRank:
    """The strategy for a model that it does not refuse."""
    return LowRank(model, epsilon=scales.epsilon, sigma=scales.sigma, draws=scales.draws)


class LowRank(Integration):
    """Integration over the few directions in which a loss sees the data."""

    name = "low_rank"
    begins = ROBUST

    def __init__(
        self, model: RobustModel, *, epsilon: float, sigma: float | Array, draws: int = 100
    ) -> None:
        anatomy = dissect(model)
        if anatomy is None:
            raise ValueError("the loss does not see the data through a few affine forms.")
        self.anatomy, self.joint, self.epsilon, self.draws = anatomy, model.joint, epsilon, draws
        self._model, self._sigma = model, sigma
        self.whitening = Whitening(model.cost, sigma)
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
            chunk = max(1, min(chunk, DRAWN_POINTS // draws))
        self.groups = Groups(model.joint, anatomy.keys, anatomy.forms.count, chunk)
        self.in_one_form &= self.groups.number <= MOST_TABLES
        self._numbers = QuasiRandom(draws)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> LowRankSlice:
        return LowRankSlice(self, x, samples, stream, shares or self.joint.shares_of(samples))

    @property
    def rows(self) -> Array:
        """The samples."""
        return self.joint.matrix

    def surrogate(self) -> LowRank | None:
        """The same integral over some of the samples, where they are many."""
        if not self.exact or self.joint.size < SURROGATE_SIZE:
            return None
        fewer = self._model.on_some(self.joint.size // SURROGATE_SHARE)
        return LowRank(fewer, epsilon=self.epsilon, sigma=self._sigma, draws=self.draws)

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
