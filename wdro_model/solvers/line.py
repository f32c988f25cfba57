"""The objective along a line, evaluated where a step rule asks and never twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.solvers.objective import Array, Point

ROUNDING = 1e-12
"""Relative error of a value below which an increase means nothing."""


@dataclass(frozen=True)
class Sample:
    """The objective at one step s along a line: phi(s) and phi'(s)."""

    step: float
    value: float
    slope: float
    """The directional derivative; infinite where the objective is not finite (too far)."""
    point: Point


class Line:
    """phi(s) = F(x + s d, l + s e) for s in [0, longest]; e = 0 where the dual l does not move.

    Parameters
    ----------
    evaluate: s -> the objective there.
    start: the objective at s = 0.
    direction: d, (n,).
    longest: the longest step that stays in the set.
    dual_direction: e.
    suggested: a step that is thought to be good; None where nothing is known.
    noise: an increase by less than this part of the value means nothing: slopes decide. Where there
        is some, the function is convex.
    """

    def __init__(
        self,
        evaluate: Callable[[float], Point],
        start: Point,
        direction: Array,
        longest: float = 1.0,
        dual_direction: float = 0.0,
        suggested: float | None = None,
        noise: float = 0.0,
    ) -> None:
        self._evaluate = evaluate
        self._direction = direction
        self._dual_direction = dual_direction
        self._samples: dict[float, Sample] = {}
        self._noisy = noise > 0
        self.longest, self.suggested = longest, suggested
        self.start = self._sample(0.0, start)
        self.highest = start.value + max(noise, ROUNDING) * abs(start.value)
        """Values up to this one are no higher than that of the start."""
        self.squared_length = float(direction @ direction) + dual_direction**2

    @property
    def slope(self) -> float:
        """phi'(0), negative for a descent direction."""
        return self.start.slope

    def at(self, step: float) -> Sample:
        """phi and phi' at a step, from memory where it was evaluated before."""
        if step not in self._samples:
            found = self._samples[step] = self._sample(step, self._evaluate(step))
            if self._noisy and found.slope <= 0:
                # A convex function that falls here has come from above: the start was too low.
                self.highest = max(self.highest, found.value)
        return self._samples[step]

    def point(self, step: float) -> Point | None:
        """The objective at exactly this step, if it was evaluated."""
        sample = self._samples.get(step)
        return None if sample is None else sample.point

    def _sample(self, step: float, point: Point) -> Sample:
        slope = float(point.gradient @ self._direction)
        if point.dual_gradient is not None:
            slope += point.dual_gradient * self._dual_direction
        finite = np.isfinite(slope) and np.isfinite(point.value)
        return Sample(step, point.value, slope if finite else np.inf, point)
