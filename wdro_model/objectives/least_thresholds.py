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
from scipy.optimize import minimize

from wdro_model.model import Model
from wdro_model.objectives.empirical import Empirical
from wdro_model.solvers.objective import Array, Point

SETTLED = 1e-3
"""How far the value may be above its minimum over the thresholds, in units of the smoothing."""
ROUNDS = 60


def at_quantiles(model: Model, x: Array) -> Array:
    """The decision with the thresholds that are best for the samples themselves."""
    if model.tails is None:
        return x
    layout, joint = model.loss.layout, model.loss.joint
    losses = model.tails.losses(layout, joint, x, model.rows)
    return model.tails.placed(layout, x, model.tails.quantiles(losses))


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
    """A smoothed objective, minimised over the thresholds; all else is that of the objective."""

    def __init__(self, inner: Any, model: Model) -> None:
        self.inner, self.model = inner, model
        self.where = threshold_places(model)
        self._last: Array | None = None
        """The thresholds that were best last, near which the next are."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def minimum(self) -> Any:
        return self.inner.minimum

    @minimum.setter
    def minimum(self, found: Any) -> None:
        self.inner.minimum = found

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        z = self.settled(x, dual)
        return without(self.inner.evaluate(z, dual), self.where)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        z = at_quantiles(self.model, x)
        return without(self.inner.estimate(z, dual, batch, rng), self.where)

    def settled(self, x: Array, dual: float | None = None) -> Array:
        """The decision with its best thresholds."""
        z = at_quantiles(self.model, x)
        if self._last is not None:
            z[self.where] = self._last

        def at(t: Array) -> tuple[float, Array]:
            z[self.where] = t
            point = self.inner.evaluate(z, dual)
            return point.value, np.asarray(point.gradient)[self.where]

        enough = SETTLED * self.inner.epsilon
        if len(self.where) == 1:
            first = float(z[self.where][0])
            found = np.array([_root(lambda t: at(np.array([t]))[1][0], first, enough)])
        else:
            best = minimize(at, z[self.where], jac=True, method="BFGS", options={"gtol": 1e-6})
            found = best.x
        self._last = found
        z[self.where] = found
        return z

    def describe(self) -> str:
        return f"{self.inner.describe()}, minimised over the thresholds"


def without(point: Point, where: Array) -> Point:
    """The point with no slope in the thresholds, over which it is a minimum."""
    gradient = np.array(point.gradient)
    gradient[where] = 0.0
    return replace(point, gradient=gradient)


def _root(slope: Callable[[float], float], start: float, enough: float) -> float:
    """Where an increasing function is zero: a bracket around the start, then secants inside it.

    enough: the minimum of what the slope is of is found to this accuracy.
    """
    step = max(enough, 1e-9 * abs(start))
    t, at = start, slope(start)
    if at == 0:
        return t
    low, high = (t, at), (t, at)
    for _ in range(ROUNDS):  # outwards, in steps that double
        t = t - np.sign(at) * step
        found = slope(t)
        if np.sign(found) != np.sign(at):
            low, high = sorted([(t, found), high if at > 0 else low])
            break
        low = high = (t, found)
        step *= 2
    for k in range(ROUNDS):
        (a, below), (b, above) = low, high
        worst = min(abs(below), abs(above)) * (b - a)
        if worst <= enough or b - a <= 1e-12 * max(abs(a), abs(b)):
            break
        # Secants, and every third time the middle, so that the bracket shrinks from both sides.
        t = 0.5 * (a + b) if k % 3 == 2 else a - below * (b - a) / (above - below)
        found = slope(t)
        low, high = (low, (t, found)) if found > 0 else ((t, found), high)
    return low[0] if abs(low[1]) < abs(high[1]) else high[0]
