"""Maxima of affine pieces along one direction of the data with a norm as cost, without draws.

With f = max_j (f_j(xi_k) + beta_j v), v = <b, z> a linear form of the move, slopes in increasing
order and kinks t between neighbours, all samples share the law of v and its transform
m(theta) = E exp(theta v - a c) (`norm_transforms`). Each piece has the integral
exp(f_j/eps) m(beta_j/eps) over all of R^d, less what lies beyond its kinks, below others:

    E [exp(beta v - a c); v > t] = 1/(2 pi) int m(z) exp((beta - z) t)/(z - beta) d omega,
    E [exp(beta v - a c); v < t] = 1/(2 pi) int m(z) exp((beta - z) t)/(beta - z) d omega,

z = tilt + i omega on a vertical line to the right, or left, of beta. A line between the slopes of
two neighbours serves both of them and all samples: by the convexity of log m no integrand exceeds
the larger of the two whole integrals, so that nothing cancels, and where it is negligible
against them no line is needed. The same lines carry the moments of v, c and z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.loss.affine_pieces import pieces
from wdro_model.loss.polynomial import degree
from wdro_model.loss.stacked import Stacked
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.form_transforms import TiltedForm, Transformed
from wdro_model.objectives.integration.inner_integral import EMPIRICAL, Integration, Stream
from wdro_model.objectives.integration.kernel.pieces import envelope
from wdro_model.objectives.integration.low_rank.form_anatomy import everywhere
from wdro_model.objectives.integration.low_rank.groups import rows_of
from wdro_model.objectives.integration.norm_transforms import LAWS
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares

PIECES = 16
"""Pieces that are told apart."""
PARALLEL = 1e-9
"""Slopes whose directions differ by less are parallel."""
NEGLIGIBLE = 20.0
"""What lies so far below the whole integral in logarithm is left out."""
SMALLEST = 1e-10
"""A dual variable under which the cost of the reference is this share of eps is taken for 0."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
FARTHEST = 64
"""Panels of a line."""
QUIET = 1e-7
"""A line ends where its integrand is so small."""


def parallel_pieces(model: RobustModel) -> tuple[Any, ...] | None:
    """Pieces, affine in all data, whose maximum is the loss and whose slopes are parallel."""
    if model.expression is None:
        return None
    found = pieces(model.expression, model.joint.parameters, PIECES)
    if found is None or any(degree(piece, model.joint.parameters) > 1 for piece in found):
        return None
    stacked = Stacked(found, model.loss.layout, model.joint.slices)
    rng = np.random.default_rng(0)
    for _ in range(2):
        x = rng.uniform(0.5, 1.5, model.loss.dimension)
        with np.errstate(all="ignore"):
            slopes = stacked.jacobian(x, model.joint.mean)[:, ~np.asarray(model.cost.frozen)]
        if not np.isfinite(slopes).all():
            return None
        values = np.linalg.svd(slopes, compute_uv=False)
        if len(values) > 1 and values[1] > PARALLEL * values[0]:
            return None
    return found


def one_form_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.cost.exponent not in LAWS:
        return "the ground cost is not a norm with p = 1, 2 or inf"
    if not everywhere(model):
        return "the support is not all of R^d"
    if parallel_pieces(model) is None:
        return "the loss is not a maximum of affine pieces along one direction of the data"
    return None


def build_one_form(model: RobustModel, scales: Any) -> OneForm:
    """The strategy for a model that it does not refuse."""
    return OneForm(model, epsilon=scales.epsilon, sigma=scales.sigma)


class OneForm(Integration):
    """Integration through the transform of one linear form."""

    name = "norms"
    # A few samples would move far in the worst case: the reference hardly lets them.
    begins = EMPIRICAL
    exact = True

    def __init__(self, model: RobustModel, *, epsilon: float, sigma: float | Array) -> None:
        found = parallel_pieces(model)
        assert found is not None
        self.pieces = Stacked(found, model.loss.layout, model.joint.slices)
        self.joint, self.epsilon = model.joint, epsilon
        self.free = np.flatnonzero(~np.asarray(model.cost.frozen))
        deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (model.joint.dimension,))
        self.deviation = deviation[self.free]
        self.rho = np.asarray(model.cost.coordinate_scales)[self.free] * self.deviation
        self.law = LAWS[float(model.cost.exponent)]  # type: ignore[arg-type]
        self.hints: dict[int, Any] = {}

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> OneFormSlice:
        shares = shares or self.joint.shares_of(samples)
        return OneFormSlice(self, np.asarray(x, dtype=float), np.asarray(samples), shares)

    def describe(self) -> str:
        return (
            f"norms: {self.pieces.count} affine pieces along one direction of the data, through "
            "the transform of its law"
        )


@dataclass(frozen=True)
class Meeting:
    """Two pieces that are neighbours, the one of the smaller slope first, and where they are."""

    lower: int
    upper: int
    samples: Array


@dataclass(frozen=True)
class Crossing:
    """What two neighbouring pieces lose to each other in some samples, seen on one line."""

    lower: int
    upper: int
    samples: Array
    """Those for which that is not negligible, (S,)."""
    above: Array
    """(S, 4): of the lower piece beyond the kink; of 1, v, c and c^2."""
    below: Array
    """(S, 4): of the upper piece before it."""
    phases: Array
    """Coefficients of m on the line for each of the samples, (S, T)."""
    theta: Array
    line: Transformed


@dataclass(frozen=True)
class TiltedPieces:
    """The integrals of all pieces over their intervals, divided by exp(top); (K, P, 4)."""

    top: Array
    whole: TiltedForm
    sizes: Array
    """exp(f_kj/eps) m(beta_j) / exp(top), (K, P)."""
    parts: Array
    crossings: list[Crossing]

    @property
    def totals(self) -> Array:
        """Of 1, v, c and c^2, (K, 4)."""
        return self.parts.sum(axis=1)


class OneFormSlice:
    """mean_k phi_k at one x."""

    def __init__(self, rule: OneForm, x: Array, samples: Array, shares: SampleShares) -> None:
        self._rule, self._x, self._shares = rule, x, shares
        self._rows = rows_of(rule.joint.matrix, samples)
        slopes = rule.pieces.jacobian(x, rule.joint.mean)[:, rule.free] * rule.deviation
        steepest = slopes[np.argmax((slopes**2).sum(axis=1))]
        length = float(np.linalg.norm(steepest))
        b = steepest / length if length > 0 else steepest
        self._beta = slopes @ b / rule.epsilon
        self._heights = rule.pieces(x, self._rows) / rule.epsilon
        if not np.isfinite(self._heights).all():
            raise FloatingPointError(
                "the loss is not finite at a sample; keep the decision inside its domain (bounds "
                "on the variables)."
            )
        self._law = rule.law(b, rule.rho, rule.hints)
        beta = np.broadcast_to(self._beta, self._heights.shape)
        self._low, self._high = envelope(self._heights, beta)
        self._active = self._low < self._high
        self._meetings = neighbours(self._low, self._high, self._beta)
        tilts = [0.5 * (self._beta[one.lower] + self._beta[one.upper]) for one in self._meetings]
        self._tilts = np.concatenate([self._beta, tilts])
        self._last: tuple[float, TiltedPieces] | None = None

    def at(self, dual: float) -> DualPoint:
        found, eps = self._tilted(dual), self._rule.epsilon
        total = found.totals
        cost, square = total[:, 2] / total[:, 0], total[:, 3] / total[:, 0]
        spread = np.maximum(square - cost**2, 0.0)
        average = self._shares.total
        value = float(average(found.top + np.log(total[:, 0])))
        return DualPoint(eps * value, -float(average(cost)), float(average(spread)) / eps)

    def gradient(self, dual: float) -> Array:
        """Pieces are affine in the data: each is asked at the mean of its scenarios."""
        rule, found = self._rule, self._tilted(dual)
        shares = self._shares.times(1.0 / found.totals[:, 0])
        weights = found.parts[:, :, 0] * shares[:, None]
        mass = weights.sum(axis=0)
        moved = weights.T @ self._rows
        count = len(self._beta)
        lifted = (shares @ found.sizes)[:, None] * found.whole.moves[:count]
        moved[:, rule.free] += rule.deviation * lifted
        for one in found.crossings:
            seeds = shares[one.samples] @ one.phases
            for j, kernel in _kernels(one.theta, self._beta, one.lower, one.upper):
                moved[j, rule.free] -= rule.deviation * one.line.moves(seeds * kernel)
        used = np.abs(mass) > 0
        rows = np.where(used[:, None], moved / np.where(used, mass, 1.0)[:, None], 0.0)
        rule.pieces(self._x, rows)
        return rule.pieces.in_decision(np.diag(np.where(used, mass, 0.0)))

    def diagnostics(self, dual: float) -> None:
        return None

    # -------------------------------------------------------------- the integrals
    def _tilted(self, dual: float) -> TiltedPieces:
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        unit = float(np.sqrt(np.sum(self._rule.rho**2))) or 1.0
        rate = max(dual / self._rule.epsilon, SMALLEST / unit)
        whole, count = self._law.tilted(rate, self._tilts), len(self._beta)
        logs = np.where(self._active, self._heights + whole.log_mass[:count], -np.inf)
        top = logs.max(axis=1)
        with np.errstate(under="ignore"):
            sizes = np.exp(logs - top[:, None])
        moments = np.stack([np.ones(len(whole.cost)), whole.form, whole.cost, whole.square], axis=1)
        parts = sizes[:, :, None] * moments[:count]
        crossings = []
        for i, meeting in enumerate(self._meetings):
            crossing = self._crossing(rate, meeting, count + i, top, whole)
            if crossing is not None:
                crossings.append(crossing)
                parts[crossing.samples, crossing.lower] -= crossing.above
                parts[crossing.samples, crossing.upper] -= crossing.below
        found = TiltedPieces(top, whole, sizes, parts, crossings)
        self._last = (dual, found)
        return found

    def _crossing(
        self, rate: float, meeting: Meeting, which: int, top: Array, whole: TiltedForm
    ) -> Crossing | None:
        """What the two pieces lose to each other in the samples where they meet."""
        lower, upper, met = meeting.lower, meeting.upper, meeting.samples
        left, right, tilt = (float(self._tilts[i]) for i in (lower, upper, which))
        kink = self._high[met, lower]
        height = self._heights[met, lower] + left * kink - top[met]
        size = height - tilt * kink + float(whole.log_mass[which])
        live = size > -NEGLIGIBLE
        if not live.any():
            return None
        met, kink, size = met[live], kink[live], size[live]
        away = float(np.abs(kink - whole.form[which]).max())
        omega, weights = self._panels(
            rate, which, right - left, float(whole.deviation[which]), away
        )
        line = self._law.along(rate, self._tilts, which, omega)
        theta = tilt + 1j * omega
        phases = np.exp(size[:, None] - 1j * kink[:, None] * omega) * (weights / np.pi)
        values = np.stack([line.mass, line.form, line.cost, line.square], axis=1)
        lost = [
            (phases @ (kernel[:, None] * values)).real
            for _, kernel in _kernels(theta, self._beta, lower, upper)
        ]
        return Crossing(lower, upper, met, lost[0], lost[1], phases, theta, line)

    def _panels(
        self, rate: float, which: int, apart: float, deviation: float, away: float
    ) -> tuple[Array, Array]:
        """Nodes and weights on the half line omega > 0: panels grow from the poles outwards."""
        widest = min(10.0 / max(away + deviation, 1e-300), 3.0 / max(deviation, 1e-300))
        width = [min(0.5 * apart, widest)]
        while width[-1] < widest:
            width.append(min(2 * width[-1], widest))
        ends = np.concatenate([[0.0], np.cumsum(width + [widest] * FARTHEST)])
        at = np.unique(np.r_[np.arange(0, 16, 2), np.geomspace(16, len(ends) - 1, 12).astype(int)])
        decay = np.abs(self._law.along(rate, self._tilts, which, ends[at]).mass)
        quiet = np.flatnonzero(decay * np.minimum(1.0, apart / np.maximum(ends[at], apart)) < QUIET)
        ends = ends[: at[quiet[0]] + 1] if len(quiet) else ends
        low, high = ends[:-1], ends[1:]
        half = 0.5 * (high - low)[:, None]
        nodes = 0.5 * (high + low)[:, None] + half * NODES
        return nodes.ravel(), (half * WEIGHTS).ravel()


def neighbours(low: Array, high: Array, beta: Array) -> list[Meeting]:
    """Pairs of pieces by increasing slope that are neighbours in some samples.

    low, high: the intervals on which each of them is the highest, (K, P).
    """
    order, active, found = np.argsort(beta, kind="stable"), low < high, []
    for n, i in enumerate(order):
        for j in order[n + 1 :]:
            met = active[:, i] & active[:, j] & (high[:, i] == low[:, j])
            if met.any() and beta[i] < beta[j]:
                found.append(Meeting(int(i), int(j), np.flatnonzero(met)))
    return found


def _kernels(
    theta: Array, beta: Array, lower: int, upper: int
) -> tuple[tuple[int, Array], tuple[int, Array]]:
    """1/(z - beta) of the lower piece and 1/(beta - z) of the upper one."""
    return (lower, 1.0 / (theta - beta[lower])), (upper, 1.0 / (beta[upper] - theta))
