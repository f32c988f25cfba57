"""Draws from the Gaussian N(center, sigma^2 I) restricted to the support of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import one_if_equal


@dataclass(frozen=True)
class Tolerances:
    """Limits of draws that are repeated until they lie in the support."""

    redraw_rounds: int = 8
    """Rounds of redrawing entries outside a box; then the inverse cdf, ten times slower."""
    most_proposals: int = 10_000
    """Proposals per point on a support that is sampled by rejection; a tenth if none succeeds."""
    proposed_entries: int = 1 << 18
    """Numbers in one round of repeated proposals, about: it bounds the memory."""


TOLERANCES = Tolerances()


class Truncation(NamedTuple):
    """The Gaussian N(center, sigma^2) on [lower, upper], entry by entry."""

    center: np.ndarray
    sigma: Any
    lower: Any
    upper: Any


class GaussianSampler:
    """Truncated Gaussian draws on the joint support.

    Draws in a box are exact, coordinate by coordinate, also where the center lies many sigma
    outside of it. Supports that couple entries are sampled by rejection, parameter by parameter.
    frozen: mask (d,) of the coordinates that stay at the center; None for none.
    """

    def __init__(self, joint: JointSamples, frozen: np.ndarray | None = None) -> None:
        held = np.zeros(joint.dimension, dtype=bool) if frozen is None else np.asarray(frozen)
        self.joint = joint
        self.frozen = held if held.any() else None
        self._coupled = [
            (parameter, where)
            for parameter, where in joint.slices.items()
            if parameter.support.bounds(parameter.shape) is None and not held[where].all()
        ]
        lower, upper = np.full((2, joint.dimension), [[-np.inf], [np.inf]])
        for parameter, where in joint.slices.items():
            box = parameter.support.bounds(parameter.shape)
            if box is not None:
                lower[where], upper[where] = map(np.ravel, box)
        lower[held], upper[held] = -np.inf, np.inf
        self._lower, self._upper = one_if_equal(lower), one_if_equal(upper)

    def draw(self, centers: np.ndarray, sigma: Any, rng: np.random.Generator) -> np.ndarray:
        """Draw a point for each center: (B, d) -> (B, d).

        sigma: the standard deviation, a positive number or one per coordinate (d,).
        """
        sigma = self._deviations(sigma)
        points = rng.standard_normal(centers.shape)
        points *= sigma
        points += centers
        if self.frozen is not None:
            points[:, self.frozen] = centers[:, self.frozen]
        self._draw_box(points, centers, sigma, rng)
        for parameter, where in self._coupled:
            self._draw_coupled(parameter, where, points, centers, sigma, rng)
        return points

    def _deviations(self, sigma: Any) -> np.ndarray:
        array = np.asarray(sigma, dtype=np.float64)
        if array.shape not in ((), (self.joint.dimension,)):
            raise ValueError(
                f"sigma must be a number or have shape ({self.joint.dimension},), got shape "
                f"{array.shape}."
            )
        moving = array if self.frozen is None or array.ndim == 0 else array[~self.frozen]
        if not np.all((moving > 0) & (moving < np.inf)):
            wrong = np.ravel(moving)[np.argmin(np.ravel((moving > 0) & (moving < np.inf)))]
            raise ValueError(f"sigma must be positive and finite, got {float(wrong)!r}.")
        return array

    def _draw_box(
        self, points: np.ndarray, centers: np.ndarray, sigma: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Replace the entries outside the box by draws of the same Gaussian inside it.

        Each entry is redrawn independently of its rejected draws. The rounds may therefore stop at
        any time and the inverse cdf draw the remaining entries: the draws stay exact.
        """
        outside = np.zeros(1, dtype=bool)
        if np.any(self._lower > -np.inf):
            outside = points < self._lower
        if np.any(self._upper < np.inf):
            outside = outside | (points > self._upper)
        pending = np.flatnonzero(outside)
        entries = points.reshape(-1)
        for _ in range(TOLERANCES.redraw_rounds):
            if pending.size == 0:
                return
            law = self._law(pending, centers, sigma)
            drawn = rng.standard_normal(pending.size)
            drawn *= law.sigma
            drawn += law.center
            inside = (drawn >= law.lower) & (drawn <= law.upper)
            entries[pending] = drawn
            tried, pending = pending.size, pending[~inside]
            if pending.size > 0.75 * tried:
                break
        law = self._law(pending, centers, sigma)
        entries[pending] = inverse_cdf(law, rng.random(pending.size))

    def _law(self, entries: np.ndarray, centers: np.ndarray, sigma: np.ndarray) -> Truncation:
        """The truncated Gaussian of each of these entries, flat indices into (B, d)."""
        sides: tuple[Any, ...] = (sigma, self._lower, self._upper)
        center = centers.reshape(-1)[entries]
        if not any(map(np.ndim, sides)):
            return Truncation(center, *sides)
        columns = entries % self.joint.dimension
        return Truncation(center, *(v[columns] if np.ndim(v) else v for v in sides))

    def _draw_coupled(
        self,
        parameter: UncertainParameter,
        where: slice,
        points: np.ndarray,
        centers: np.ndarray,
        sigma: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        """Redraw the points of a parameter that lie outside its support until they lie inside."""
        moving = np.arange(where.start, where.stop)
        if self.frozen is not None:
            moving = moving[~self.frozen[where]]
        deviation = sigma[moving] if sigma.ndim else sigma
        inside = _accepted(parameter, points[:, where])
        pending = np.flatnonzero(~inside)
        tries, proposed, accepted = 1, inside.size, int(inside.sum())
        while pending.size and tries < (
            TOLERANCES.most_proposals if accepted else TOLERANCES.most_proposals // 10
        ):
            repeats = TOLERANCES.proposed_entries // (pending.size * (where.stop - where.start))
            repeats = min(max(repeats, 1), 64)
            blocks = np.repeat(points[pending, where][:, None], repeats, axis=1)
            noise = rng.standard_normal((pending.size, repeats, moving.size))
            blocks[..., moving - where.start] = (
                centers[pending[:, None], moving][:, None] + deviation * noise
            )
            inside = _accepted(parameter, blocks.reshape(-1, blocks.shape[-1]))
            inside = inside.reshape(pending.size, repeats)
            hit = inside.any(axis=1)
            points[pending[hit], where] = blocks[hit, inside.argmax(axis=1)[hit]]
            pending = pending[~hit]
            tries, proposed, accepted = (
                tries + repeats,
                proposed + inside.size,
                accepted + int(inside.sum()),
            )
        if pending.size:
            raise ValueError(
                f"no draw of {parameter.name()!r} fell into its support {parameter.support!r} for "
                f"{pending.size} of {len(points)} points after {tries} tries (acceptance rate "
                f"{accepted / proposed:.2g}); use a smaller sigma, or a Box that is drawn exactly."
            )


def inverse_cdf(law: Truncation, uniform: np.ndarray) -> np.ndarray:
    """Quantiles of a truncated Gaussian, accurate however far the interval is from the center.

    The interval is mirrored so that most of it lies left of the center; `near` is then its right
    end, where the cdf is largest, `far` its left end, and with Phi the normal cdf
        x = Phi^-1( Phi(near) - u (Phi(near) - Phi(far)) ),   all in logarithms.
    Far in the tail, and on an interval so short that the density is nearly exponential, the
    distance from `near` is a truncated exponential variable of rate |near|.
    """
    center, sigma, lower, upper = np.broadcast_arrays(*law)
    with np.errstate(over="ignore"):
        a, b, width = (lower - center) / sigma, (upper - center) / sigma, (upper - lower) / sigma
        mirrored = a + b > 0
        near, far = np.where(mirrored, -a, b), np.where(mirrored, -b, a)
        rate = np.clip(-near, 1e-8, 1e150)
        depth = -sigma * np.log1p(uniform * np.expm1(-rate * width)) / rate
    points = np.where(mirrored, lower + depth, upper - depth)
    exponential = (near < -1e4) | (width < 1e-5)
    rest = np.flatnonzero(~exponential)
    log_near, log_far = log_ndtr(near[rest]), log_ndtr(far[rest])
    x = ndtri_exp(log_near + np.log1p(uniform[rest] * np.expm1(log_far - log_near)))
    points[rest] = center[rest] + sigma[rest] * np.where(mirrored[rest], -x, x)
    return np.clip(points, lower, upper)


def _accepted(parameter: UncertainParameter, rows: np.ndarray) -> np.ndarray:
    return parameter.support.contains(rows.reshape(len(rows), *parameter.shape))
