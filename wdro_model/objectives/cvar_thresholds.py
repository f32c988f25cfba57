"""An objective of the decision and of thresholds, as a function of the decision alone.

The thresholds t of CVaRs, min_t t + E max(loss - t, 0)/(1 - level), are free and enter convexly. At
each decision they are minimised out, and the gradient in the decision is that at the minimum (the
envelope theorem). For first-order solvers the thresholds in the flat decision have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

from wdro_model.model import Model
from wdro_model.objectives.empirical import Empirical
from wdro_model.solvers.objective import Array, Point


@dataclass(frozen=True)
class Tolerances:
    """Accuracies of the search for thresholds."""

    gain: float = 1e-6
    """Gain of a Newton step, in units of epsilon, below which none is taken."""
    flat: float = 1e-6
    """Relative gain of thresholds within reach, by the tangents, below which the search ends. With
    1e-5 the values are too rough for the line search of the decision."""
    stride: float = 4.0
    """Factor from one step along a line to the next; the first one stays within reach."""
    slope_left: float = 0.5
    """Share of the first slope below which a line search ends."""
    descent: float = 1e-4
    """Share of the first slope that a step across a kink has to gain."""
    gain_left: float = 0.1
    """Share of `flat` below which the gain left along a line ends its search."""
    rounding: float = 1e-9
    """Relative change of a slope that says nothing about the curvature."""
    line_evaluations: int = 40
    """Evaluations along a line, after which the search goes on by tangents."""
    evaluations: int = 300
    """Evaluations after which a search ends with its best point; the residual says how far the
    minimum may be below."""


TOLERANCES = Tolerances()


def at_quantiles(model: Model, x: Array, rows: Array | None = None) -> Array:
    """The decision with its thresholds at the quantiles of the samples, where they are best.

    rows: data of equal weight in place of the samples.
    """
    if model.tails is None:
        return x
    layout, joint = model.loss.layout, model.loss.joint
    weights = model.shares.probabilities if rows is None else None
    losses = model.tails.losses(layout, joint, x, model.rows if rows is None else rows)
    return model.tails.placed(layout, x, model.tails.quantiles(losses, weights))


def risk_on(model: Model, x: Array, rows: Array, weights: Array | None = None) -> float:
    """The risk of a decision on these rows as the data, CVaRs included.

    weights: of the rows, (B,); equal ones by default.
    """
    if model.tails is None:
        losses = model.loss.values(x, rows)
    else:
        parts = model.tails.losses(model.loss.layout, model.loss.joint, x, rows)
        losses = model.tails.contributions(parts, weights)
    return float(losses.mean() if weights is None else weights @ losses)


def threshold_coordinates(model: Model) -> Array:
    """The coordinates of the thresholds in the flat decision."""
    assert model.tails is not None
    slices = model.loss.layout.slices
    return np.concatenate([np.r_[slices[t]] for t in model.tails.thresholds])


def without_slope(point: Point, where: Array) -> Point:
    """The point with gradient 0 in the thresholds, which are at their minimum."""
    gradient = np.array(point.gradient)
    gradient[where] = 0.0
    return replace(point, gradient=gradient)


class EmpiricalTails:
    """Empirical risk with the thresholds at the quantiles of the samples, where they are best."""

    def __init__(self, model: Model) -> None:
        self.model, self.inner = model, Empirical(model)
        self.where = threshold_coordinates(model)
        self.convex, self.affine = self.inner.convex, False

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        return without_slope(self.inner.evaluate(at_quantiles(self.model, x), dual), self.where)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        z = at_quantiles(self.model, x)
        return without_slope(self.inner.estimate(z, dual, batch, rng), self.where)

    def describe(self) -> str:
        return f"{self.inner.describe()}, at the best thresholds"


class LeastThresholds:
    """A smoothed objective, minimised over the thresholds; other attributes are those of `inner`.

    The search starts from the last best thresholds, shifted like the quantiles of the samples, with
    the curvature of the last decision. The bound on the distance to the minimum value is added
    to the residual of the dual variable, and so to the gap.
    """

    def __init__(self, inner: Any, model: Model) -> None:
        self.inner, self.model = inner, model
        self.where = threshold_coordinates(model)
        self._last: tuple[Array, Array, Array] | None = None
        """Best thresholds minus the quantiles of the samples, inverse curvature, and reach."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def minimum(self) -> Any:
        return self.inner.minimum

    @minimum.setter
    def minimum(self, minimum: Any) -> None:
        self.inner.minimum = minimum

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        tails, layout = self.model.tails, self.model.loss.layout
        assert tails is not None
        losses = tails.losses(layout, self.model.loss.joint, x, self.model.rows)
        quantiles = tails.quantiles(losses, self.model.shares.probabilities)
        if self._last is None:
            first = quantiles
            reach = np.maximum(losses[:, 1:].std(axis=0), self.inner.epsilon)
            inverse = np.diag(reach)
        else:
            first, inverse, reach = self._last[0] + quantiles, *self._last[1:]

        def evaluate(t: Array) -> tuple[Point, Array]:
            point = self.inner.evaluate(tails.placed(layout, x, t), dual)
            return point, np.asarray(point.gradient)[self.where]

        best = minimise_thresholds(evaluate, first, inverse, reach, self.inner.epsilon)
        self._last = (best.t - quantiles, best.inverse, best.reach)
        residual = best.point.dual_residual + best.residual
        return without_slope(replace(best.point, dual_residual=residual), self.where)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        z = at_quantiles(self.model, x)
        return without_slope(self.inner.estimate(z, dual, batch, rng), self.where)

    def describe(self) -> str:
        return f"{self.inner.describe()}, minimised over the thresholds"


@dataclass(frozen=True)
class ThresholdMinimum:
    """The best thresholds of a search."""

    t: Array
    point: Point
    inverse: Array
    """The inverse curvature there, (K, K)."""
    reach: Array
    """Bound on the distance of the minimum from evaluated thresholds, (K,)."""
    residual: float
    """Bound on the value's excess over the minimum."""


@dataclass(frozen=True)
class Tangent:
    """The objective at some thresholds; no value is below its tangent."""

    t: Array
    point: Point
    slope: Array


def minimise_thresholds(
    evaluate: Callable[[Array], tuple[Point, Array]],
    t: Array,
    inverse: Array,
    reach: Array,
    scale: float,
) -> ThresholdMinimum:
    """Minimise a convex function of a few thresholds from its slopes.

    BFGS steps end when another step would gain next to nothing, and the tangent says that no
    thresholds within reach are much better. At kinks or with noise the search goes on at the
    minimum of all tangents (a cutting plane step), which is also a lower bound of the minimum.

    scale: epsilon; values that differ by less count as equal.
    """
    tangents: list[Tangent] = []

    def look(t: Array) -> Tangent:
        tangents.append(Tangent(t, *evaluate(t)))
        return tangents[-1]

    here, at_kink = look(t), False
    while True:
        flat = TOLERANCES.flat * max(abs(here.point.value), scale)
        gain = float(here.slope @ inverse @ here.slope) / 2
        if gain <= TOLERANCES.gain * scale and np.abs(here.slope) @ reach <= flat:
            return ThresholdMinimum(here.t, here.point, inverse, reach, gain)
        step = -inverse @ here.slope
        clipped = np.clip(step, -reach, reach)
        if here.slope @ clipped < 0:
            step = clipped
        else:
            step *= float(np.min(reach / np.maximum(np.abs(step), 1e-300)))
        goes_on = gain > TOLERANCES.gain * scale and len(tangents) <= TOLERANCES.evaluations
        # BFGS steps across a kink make little progress: the next step is a cutting plane step.
        there = search_line(look, here, step, flat) if goes_on and not at_kink else None
        reach = np.maximum(reach, 2 * np.max([np.abs(seen.t - t) for seen in tangents], axis=0))
        if there is None:
            best = min(tangents, key=lambda seen: seen.point.value)
            lowest, bound, shares = minimise_tangents(tangents, best.t, reach)
            residual = best.point.value - bound
            if residual <= flat or len(tangents) > TOLERANCES.evaluations:
                gradient = shares @ np.array([seen.point.gradient for seen in tangents])
                point = replace(best.point, gradient=gradient)
                return ThresholdMinimum(best.t, point, inverse, reach, abs(residual))
            here, there, goes_on = best, look(lowest), False
        at_kink = goes_on and abs(there.slope @ step) > TOLERANCES.slope_left * abs(
            here.slope @ step
        )
        moved, change = there.t - here.t, there.slope - here.slope
        noise = TOLERANCES.rounding * np.linalg.norm(here.slope) * np.linalg.norm(moved)
        if change @ moved > noise:
            inverse = update_inverse(inverse, moved, change)
        lower = there.point.value <= here.point.value
        here = there if goes_on or lower else here


def search_line(
    look: Callable[[Array], Tangent], here: Tangent, step: Array, flat: float
) -> Tangent | None:
    """A point along a descent step with a much smaller slope, or a lower one beyond a kink.

    None if by the tangents less than `flat` can be gained along the line.
    """
    down = -float(here.slope @ step)
    low, high, share = (0.0, -down), (np.inf, np.inf), 1.0
    for count in range(TOLERANCES.line_evaluations):
        there = look(here.t + share * step)
        along, fall = float(there.slope @ step), here.point.value - there.point.value
        beyond = along > 0 and fall >= TOLERANCES.descent * share * down
        if abs(along) <= TOLERANCES.slope_left * down or beyond:
            return there
        low, high = ((share, along), high) if along < 0 else (low, (share, along))
        if np.isinf(high[0]):
            share *= TOLERANCES.stride
        elif (high[0] - low[0]) * low[1] * high[1] > TOLERANCES.gain_left * flat * (
            low[1] - high[1]
        ):
            return None
        else:
            part = low[1] / (low[1] - high[1]) if count % 2 == 0 else 0.5
            share = low[0] + min(max(part, 0.1), 0.9) * (high[0] - low[0])
    return None


def minimise_tangents(
    tangents: list[Tangent], centre: Array, reach: Array
) -> tuple[Array, float, Array]:
    """The minimiser of the maximum of the tangents within reach of the centre, and its value.

    The shares of the tangents in that minimum come last: at a kink, their mean is the gradient.
    """
    slopes = np.array([seen.slope for seen in tangents])
    heights = np.array([seen.point.value + seen.slope @ (centre - seen.t) for seen in tangents])
    top = heights.max()
    program = linprog(
        np.r_[np.zeros(len(centre)), 1.0],
        np.column_stack([slopes * reach, -np.ones(len(slopes))]),
        -heights + top,
        bounds=[*[(-1.0, 1.0)] * len(centre), (None, None)],
    )
    if program.x is None:
        return centre, -np.inf, np.eye(len(heights))[heights.argmax()]
    shares = -program.ineqlin.marginals
    return centre + reach * program.x[:-1], float(top + program.fun), shares


def update_inverse(inverse: Array, step: Array, change: Array) -> Array:
    """The BFGS update of the inverse curvature, which maps `change` of the slope to `step`."""
    rate = 1.0 / (change @ step)
    keep = np.eye(len(step)) - rate * np.outer(step, change)
    return keep @ inverse @ keep.T + rate * np.outer(step, step)
