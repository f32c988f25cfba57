"""Maxima of affine pieces along one direction of data in a box, with a norm as cost, without draws.

With f = max_j (f_j(xi_k) + beta_j v), v = <b, z> a linear form of the move and kinks t between
neighbours,

    exp(f/eps) = sum_j exp(f_j/eps) - sum over neighbours of the lower of the two.

Given the parameter s of the norm (`norm_components`) moves are independent normals on intervals:
whole pieces are products over the coordinates, and what neighbours have in common comes from the
characteristic function of v, tilted to the middle of their slopes (`kink_integrals`). By the
convexity of log E exp(theta v) that never exceeds the larger of the two whole integrals, and where
it is negligible against them, as it is at most kinks for small eps, it is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.loss.stacked import Stacked
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.form_on_boxes import FormOnBoxes
from wdro_model.objectives.integration.importance.frame import box_of
from wdro_model.objectives.integration.inner_integral import EMPIRICAL, ROBUST, Integration, Stream
from wdro_model.objectives.integration.interval_laws import normal_between
from wdro_model.objectives.integration.low_rank.groups import rows_of
from wdro_model.objectives.integration.norm_components import MIXINGS
from wdro_model.objectives.integration.one_form import parallel_pieces
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares


def boxed_form_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.cost.exponent not in MIXINGS:
        return "the ground cost is not a norm with p = 2 or inf"
    if not model.joint.everywhere and model.joint.bounds is None:
        return "the support has no coordinate structure"
    lower, upper = box_of(model.joint)
    if not np.any(~np.asarray(model.cost.frozen) & (lower < upper)):
        return "no coordinate moves"
    if parallel_pieces(model) is None:
        return "the loss is not affine, nor a maximum of affine pieces along one direction"
    return None


def build_boxed_form(model: RobustModel, scales: Any) -> BoxedForm:
    """The strategy for a model that it does not refuse."""
    return BoxedForm(model, epsilon=scales.epsilon, sigma=scales.sigma)


class BoxedForm(Integration):
    """Integration over a mixture of products, and at kinks through the law of one form."""

    name = "norms"
    exact = True

    def __init__(self, model: RobustModel, *, epsilon: float, sigma: float | Array) -> None:
        found = parallel_pieces(model)
        assert found is not None
        self.pieces = Stacked(found, model.loss.layout, model.joint.slices)
        self.joint, self.epsilon = model.joint, epsilon
        # With kinks a few samples would move far in the worst case: the reference hardly lets them.
        self.begins = ROBUST if self.pieces.count == 1 else EMPIRICAL
        lower, upper = box_of(model.joint)
        self.free = np.flatnonzero(~np.asarray(model.cost.frozen) & (lower < upper))
        deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (model.joint.dimension,))
        self.deviation = deviation[self.free]
        self.box = lower[self.free], upper[self.free]
        rho = np.asarray(model.cost.coordinate_scales)[self.free] * self.deviation
        self.mixing = MIXINGS[float(model.cost.exponent)](rho)  # type: ignore[arg-type]
        self.places: tuple[bytes, tuple[Array, ...] | None] = b"", None
        """Which samples moved alike at the last decision, and panels that did for them."""

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> BoxedFormSlice:
        shares = shares or self.joint.shares_of(samples)
        return BoxedFormSlice(self, np.asarray(x, dtype=float), np.asarray(samples), shares)

    def describe(self) -> str:
        return (
            f"norms: {self.pieces.count} affine pieces along one direction of data in a box, as a "
            "mixture of products over coordinates"
        )


class BoxedFormSlice:
    """mean_k phi_k at one x; samples that move alike are one."""

    def __init__(self, rule: BoxedForm, x: Array, samples: Array, shares: SampleShares) -> None:
        self._rule, self._x, self._shares = rule, x, shares
        rows = self._rows = rows_of(rule.joint.matrix, samples)
        slopes = rule.pieces.jacobian(x, rule.joint.mean)[:, rule.free] * rule.deviation
        steepest = slopes[np.argmax((slopes**2).sum(axis=1))]
        length = float(np.linalg.norm(steepest))
        b = steepest / length if length > 0 else steepest
        heights = rule.pieces(x, rows) / rule.epsilon
        if not np.isfinite(heights).all():
            raise FloatingPointError(
                "the loss is not finite at a sample; keep the decision inside its domain (bounds "
                "on the variables)."
            )
        low, high = ((side - rows[:, rule.free]) / rule.deviation for side in rule.box)
        self._constant = heights[:, 0] - normal_between(low, high)[0].sum(axis=1)
        keys = np.concatenate([heights - heights[:, :1], low, high], axis=1)
        keys, self._group = np.unique(keys, axis=0, return_inverse=True)
        count, d = heights.shape[1], len(rule.free)
        self._key = self._group.tobytes()
        self._mixture = FormOnBoxes(
            keys[:, :count],
            slopes @ b / rule.epsilon,
            b,
            (keys[:, count : count + d], keys[:, count + d :]),
            rule.mixing,
            rule.places[1] if rule.places[0] == self._key else None,
        )

    def at(self, dual: float) -> DualPoint:
        eps, group = self._rule.epsilon, self._group
        law = self._mixture.law(dual / eps)
        self._rule.places = (self._key, self._mixture.places)
        average = self._shares.total
        value = eps * float(average(law.log_mass[group] + self._constant))
        cost, spread = average(law.cost[group]), average(law.spread[group])
        return DualPoint(value, -float(cost), float(spread) / eps)

    def gradient(self, dual: float) -> Array:
        """Pieces are affine in the data: each is asked at the mean of its scenarios."""
        rule = self._rule
        parts = self._mixture.parts(dual / rule.epsilon)
        counts = np.bincount(self._group, self._shares.array, minlength=self._mixture.size)
        shares = self._shares.times(parts.shares[self._group])
        mass, moved = shares.sum(axis=0), shares.T @ self._rows
        moved[:, rule.free] += rule.deviation * np.einsum("k,kpd->pd", counts, parts.moves)
        used = np.abs(mass) > 0
        rows = np.where(used[:, None], moved / np.where(used, mass, 1.0)[:, None], 0.0)
        rule.pieces(self._x, rows)
        return rule.pieces.in_decision(np.diag(np.where(used, mass, 0.0)))

    def diagnostics(self, dual: float) -> None:
        return None
