"""What a solver sees of an objective: its value and gradient at a point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Diagnostics:
    """How far a Monte Carlo estimate of the smoothed objective can be trusted."""

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
