"""An objective as solvers see it: a point, a line through it, the Frank-Wolfe gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from wdro_model.errors import InexactOracleError
from wdro_model.sets.feasible_set import FeasibleSet, vertex_with_slack
from wdro_model.sets.product import ProductSet

Array = np.ndarray


@dataclass(frozen=True)
class Diagnostics:
    """The error of a Monte Carlo estimate of the smoothed objective."""

    draws: int
    """Draws per sample, S."""
    effective_size: float
    """Median over the samples of the effective sample size (sum w)^2 / sum w^2, between 1 and S."""
    smallest_effective_size: float
    """The same for the worst sample."""
    standard_error: float
    """Monte Carlo standard error of the value; infinite where single draws carry all the weight, so
    that the draws cannot tell it."""
    nearest_cost: float
    """mean_k min_s c(xi_k, zeta_ks): above the radius, the sampled dual is unbounded below."""
    missed: float = 0.0
    """How much higher the value may be for modes that the draws miss, as far as that was looked
    into; part of the standard error."""
    heavy: float = 0.0
    """Share of the samples whose weights have so heavy a tail that they cannot tell their error."""

    def worse_by(self, error: float, missed: float = 0.0) -> Diagnostics:
        """The diagnostics with independent errors beside that of the draws."""
        total = float(np.linalg.norm([self.standard_error, error, missed]))
        return replace(self, standard_error=total, missed=float(np.hypot(self.missed, missed)))


@dataclass(frozen=True)
class Point:
    """An objective at one decision x: value, gradient in x and, where there is one, the dual.

    Examples
    --------
    >>> import numpy as np
    >>> from wdro_model.counterparts import Point
    >>> x = np.array([3.0, 4.0])
    >>> point = Point(value=float(x @ x), gradient=2 * x)
    >>> point.value, point.gradient
    (25.0, array([6., 8.]))
    """

    value: float
    gradient: Array
    dual: float | None = None
    """The multiplier of the transport budget at which value and gradient were taken."""
    dual_gradient: float | None = None
    """The derivative in the dual variable; None where the dual was minimised out."""
    dual_residual: float = 0.0
    """How much the value may lie above its minimum over the dual, where that was minimised out."""
    diagnostics: Diagnostics | None = None


class Objective(Protocol):
    """A function of the flat decision x, minimised by a Frank-Wolfe method.

    Examples
    --------
    >>> import numpy as np
    >>> from wdro_model.counterparts import Objective, Point
    >>> class Distance:
    ...     convex = True
    ...     def evaluate(self, x, dual=None):
    ...         return Point(float(x @ x), 2 * x)
    ...     def describe(self):
    ...         return "|x|^2"
    >>> objective: Objective = Distance()
    >>> objective.evaluate(np.array([3.0, 4.0])).value
    25.0
    """

    convex: bool
    """Is the objective known to be convex in x?"""

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        """Value and full gradient at x; the dual, if any, is minimised out unless it is given."""
        ...

    def describe(self) -> str:
        """The formula that is minimised, for people."""
        ...


OPTIONAL_PARTS: dict[str, Any] = {
    # Values that differ by less are the same: relative gaps end there.
    "scale": 0.0,
    # Relative error of the values, by which those of neighbours may differ.
    "noise": 0.0,
    # Whether differences of gradients are free of Monte Carlo error.
    "is_exact": True,
    # Probabilities by which the samples of a mini-batch are drawn; None for equal ones.
    "probabilities": None,
    # x -> gradients while the adversary keeps its distribution for x, if known.
    "fixed_adversary_gradient": lambda x: None,
    # x -> gradients close to x, to which the adversary replies, if known.
    "replying_adversary_gradient": lambda x: None,
}
"""Further parts that an objective may have, with their defaults."""


def optional_part(objective: Any, name: str) -> Any:
    """A part of an objective that it need not have."""
    return getattr(objective, name, OPTIONAL_PARTS[name])


# ------------------------------
# The objective along a line, evaluated where a step rule asks and never twice


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
            sample = self._samples[step] = self._sample(step, self._evaluate(step))
            if self._noisy and sample.slope <= 0:
                # A convex function that falls here has come from above: the start was too low.
                self.highest = max(self.highest, sample.value)
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


# ------------------------------
# The Frank-Wolfe gap of a point, and what it says of the oracle that it was computed with


ORACLE_ROUNDING = 1e-6
"""Relative error of an oracle's cost that counts as rounding; `sets.check` allows as much."""


@dataclass(frozen=True)
class Certificate:
    """The oracle's vertex v for the gradient g at x, and the gap <g, x> - min <g, .>."""

    vertex: Array
    slope: float
    """<g, x - v>: what a step towards the vertex promises."""
    slack: float
    """By how much at most <g, v> is above the minimum; 0 for an exact oracle."""
    parts: tuple[Certificate, ...] = ()
    """The certificates of the blocks, for a product of sets."""

    @property
    def gap(self) -> float:
        """At least the true gap, up to rounding."""
        return max(self.slope + self.slack, 0.0)


def certificate(feasible: FeasibleSet, x: Array, gradient: Array) -> Certificate:
    """The gap of a point of the set; one that is negative beyond rounding is an error.

    In a product of sets every block has a gap of its own.
    """
    feasible.calls += 1
    feasible.seen_from(x)
    return _certificate(feasible, x, gradient)


def _certificate(feasible: FeasibleSet, x: Array, gradient: Array) -> Certificate:
    if isinstance(feasible, ProductSet):
        vertex, parts = np.empty(x.size), []
        for block, where in feasible.blocks:
            parts.append(_certificate(block, x[where], gradient[where]))
            vertex[where] = parts[-1].vertex
        slope, slack = sum(part.slope for part in parts), sum(part.slack for part in parts)
        return Certificate(vertex, slope, slack, tuple(parts))
    vertex, slack = vertex_with_slack(feasible, gradient)
    slope = float(gradient @ (x - vertex))
    refuse_negative(feasible, slope + slack, x, vertex, gradient)
    return Certificate(vertex, slope, slack)


def refuse_beaten(feasible: FeasibleSet, answer: Certificate, gradient: Array, known: Any) -> None:
    """An error where an earlier vertex of the oracle, a row of `known`, beats its answer.

    known: an array (k, n), or a sparse matrix.
    """
    if isinstance(feasible, ProductSet):
        for (block, where), part in zip(feasible.blocks, answer.parts):
            refuse_beaten(block, part, gradient[where], known[:, where])
        return
    costs = known @ gradient - float(answer.vertex @ gradient)
    best = int(costs.argmin())
    point = known[[best]]
    point = point.toarray()[0] if sp.issparse(point) else point[0]
    refuse_negative(feasible, float(costs[best]) + answer.slack, point, answer.vertex, gradient)


def refuse_negative(
    feasible: FeasibleSet, gap: float, x: Array, vertex: Array, gradient: Array
) -> None:
    """An error that names the oracle if a point x of its set costs less than its minimum."""
    size = max(float(np.linalg.norm(x)), float(np.linalg.norm(vertex)))
    rounding = ORACLE_ROUNDING * float(np.linalg.norm(gradient)) * size
    if gap >= -rounding - feasible.accuracy * float(np.abs(gradient).sum()):
        return
    backend = "" if feasible.backend is None else f" with backend {feasible.backend!r}"
    raise InexactOracleError(
        f"the oracle of {feasible!r}{backend} is not exact: its minimum of <gradient, x> is "
        f"{-gap:.3g} above the cost of a point of the set, so that its gaps prove nothing. Use an "
        "exact oracle, or one that returns (vertex, bound) with a lower bound on the minimum, as "
        "sets.Oracle takes it; wdro_model.sets.check(set) tests it. (A start= outside the set "
        "looks the same.)"
    )
