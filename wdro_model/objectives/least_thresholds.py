"""An objective of the decision and of thresholds, as a function of the decision alone.

The thresholds of CVaRs are free, and enter convexly: at each decision they are minimised out, and
the gradient in the decision is that at the minimum (the envelope theorem). First-order solvers then
see thresholds that do not count, whatever their value in the flat decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from wdro_model.model import Model
from wdro_model.objectives.empirical import Empirical
from wdro_model.solvers.objective import Array, Point

SETTLED = 1e-6
"""How far the value may be above its minimum over the thresholds, in units of the smoothing."""
ROUNDS = 60


def at_quantiles(model: Model, x: Array, some: Array | None = None) -> Array:
    """The decision with the thresholds that are best for the samples themselves.

    some: rows of equal weight in the place of all samples.
    """
    if model.tails is None:
        return x
    layout, joint = model.loss.layout, model.loss.joint
    rows, shares = (model.rows, model.shares.probabilities) if some is None else (some, None)
    losses = model.tails.losses(layout, joint, x, rows)
    return model.tails.placed(layout, x, model.tails.quantiles(losses, shares))


def risk_on(model: Model, x: Array, rows: Array, weights: Array | None = None) -> float:
    """The loss of a decision, risk measures included, where these rows are the data.

    weights: of the rows, (B,); equal ones by default.
    """
    if model.tails is None:
        found = model.loss.values(x, rows)
    else:
        losses = model.tails.losses(model.loss.layout, model.loss.joint, x, rows)
        found = model.tails.contributions(losses, weights)
    return float(found.mean() if weights is None else weights @ found)


def threshold_places(model: Model) -> Array:
    """The coordinates of the thresholds in the flat decision."""
    assert model.tails is not None
    slices = model.loss.layout.slices
    return np.concatenate([np.r_[slices[t]] for t in model.tails.thresholds])


class EmpiricalTails:
    """Empirical risk with the thresholds at the quantiles of the samples, where they are best."""

    def __init__(self, model: Model) -> None:
        self.model, self.inner = model, Empirical(model)
        self.where = threshold_places(model)
        self.convex, self.affine = self.inner.convex, False

    def settled(self, x: Array) -> Array:
        return at_quantiles(self.model, x)

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        return without(self.inner.evaluate(self.settled(x), dual), self.where)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        return without(self.inner.estimate(self.settled(x), dual, batch, rng), self.where)

    def describe(self) -> str:
        return f"{self.inner.describe()}, at the best thresholds"


class LeastThresholds:
    """A smoothed objective, minimised over the thresholds; all else is that of the objective.

    Quasi-Newton steps from where they were best last, moved along with the mean of their losses;
    the curvature that was seen is kept from one decision to the next.
    """

    def __init__(self, inner: Any, model: Model) -> None:
        self.inner, self.model = inner, model
        self.where = threshold_places(model)
        self._last: tuple[Array, Array] | None = None
        """Thresholds that were best, less the means of their losses; and the inverse curvature."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def minimum(self) -> Any:
        return self.inner.minimum

    @minimum.setter
    def minimum(self, found: Any) -> None:
        self.inner.minimum = found

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        return without(self._least(x, dual)[1], self.where)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        z = at_quantiles(self.model, x)
        return without(self.inner.estimate(z, dual, batch, rng), self.where)

    def settled(self, x: Array, dual: float | None = None) -> Array:
        """The decision with its best thresholds."""
        return self._least(x, dual)[0]

    def _least(self, x: Array, dual: float | None) -> tuple[Array, Point]:
        """The best thresholds and the objective there."""
        tails, layout = self.model.tails, self.model.loss.layout
        assert tails is not None
        losses = tails.losses(layout, self.model.loss.joint, x, self.model.rows)
        means, z = losses[:, 1:].mean(axis=0), np.array(x, dtype=float)
        if self._last is None:
            given = self.model.shares.probabilities
            first, spread = tails.quantiles(losses, given), losses[:, 1:].std(axis=0)
            inverse = np.diag(np.maximum(spread, self.inner.epsilon))
        else:
            first, inverse = self._last[0] + means, self._last[1]

        def at(t: Array) -> tuple[Point, Array]:
            point = self.inner.evaluate(tails.placed(layout, z, t), dual)
            return point, np.asarray(point.gradient)[self.where]

        t, point, inverse = _minimum(at, first, inverse, SETTLED * self.inner.epsilon)
        self._last = (t - means, inverse)
        return tails.placed(layout, z, t), point

    def describe(self) -> str:
        return f"{self.inner.describe()}, minimised over the thresholds"


def without(point: Point, where: Array) -> Point:
    """The point with no slope in the thresholds, over which it is a minimum."""
    gradient = np.array(point.gradient)
    gradient[where] = 0.0
    return replace(point, gradient=gradient)


def _minimum(
    at: Callable[[Array], tuple[Point, Array]], t: Array, inverse: Array, enough: float
) -> tuple[Array, Point, Array]:
    """The minimum of a convex function of a few numbers from its slopes: BFGS.

    A step is taken as long as it does not lead further uphill than it began downhill; else the
    secant tells a shorter one.

    enough: the accuracy of the minimum, by what a Newton step would gain.
    """
    point, slope = at(t)
    for _ in range(ROUNDS):
        step = -inverse @ slope
        if -(slope @ step) / 2 <= enough:
            break
        for _ in range(ROUNDS):
            there, other = at(t + step)
            change, down, up = other - slope, -(slope @ step), other @ step
            if change @ step > 0:
                inverse = _bfgs(inverse, step, change)
            if up <= down:
                break
            step = step * (down / (down + up))
        t, point, slope = t + step, there, other
    return t, point, inverse


def _bfgs(inverse: Array, step: Array, change: Array) -> Array:
    """The inverse curvature that takes a change of the slope to the step that made it."""
    rate = 1.0 / (change @ step)
    keep = np.eye(len(step)) - rate * np.outer(step, change)
    return keep @ inverse @ keep.T + rate * np.outer(step, step)
