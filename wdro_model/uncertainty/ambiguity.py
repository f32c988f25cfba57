"""The ambiguity set: the distributions within a transport cost of the observed one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.checks import number
from wdro_model.display.tables import brief_fields
from wdro_model.uncertainty.costs import GroundCost, Norm, SquaredEuclidean, as_cost
from wdro_model.uncertainty.parameter import UncertainParameter


@dataclass(frozen=True)
class Assurance:
    """The statistical guarantee of a radius that `radius_for` computed.

    The guarantee holds for one problem on one set of samples: `with_radius(number)` and
    `with_samples` drop it.
    """

    confidence: float
    """A probability over the draw of the samples, between 0 and 1."""
    rule: str
    """The name of the rule of `radius_for`."""
    guarantee: str
    """The sentence that says what holds with this confidence, and in which sense."""
    proven: bool
    """True if it holds for every distribution and number of samples that the sentence names."""
    covers_law: bool
    """True if the data-generating distribution is in the ball, whose worst-case risk is a bound."""
    method: str | None = None
    """The one method whose value is a bound; None if the guarantee names no method."""
    of: str = "expected loss"
    """The quantity that is bounded: "risk" where the objective has risk measures."""
    cost: Any = field(default=None, repr=False, compare=False)
    """The ground cost that the radius is measured in."""

    __repr__ = brief_fields

    def bound(self, method: str, value: float, robust_value: float | None) -> float | None:
        """The bound on the loss, or risk, that holds with this confidence; None if there is none.

        robust_value: the exact worst-case risk of the decision, None where it is not known.
        """
        if self.covers_law:
            return robust_value
        return value if self.method == method else None

    def sentence(self, bound: float | None, maximise: bool = False) -> str:
        """The guarantee of a solve, as a sentence. bound: from `bound`; None if there is none."""
        share = f"{self.confidence:.4g}"
        if bound is None and self.method is None and not self.covers_law:
            return self.guarantee
        if bound is None:
            return f"nothing is known with confidence {share} of this decision's {self.of}"
        side = "least" if maximise else "most"
        what = self.of.replace("loss", "value") if maximise else self.of
        sense = "at least" if self.proven else "about"
        return (
            f"with probability {sense} {share} the {what} is at {side} {bound:.6g} "
            f"(radius by rule {self.rule!r})"
        )


@dataclass(frozen=True)
class WassersteinBall:
    """The distributions Q on the support with W_c(P_N, Q) <= radius.

    Parameters
    ----------
    radius
        A bound on the optimal transport cost itself. With a squared cost it is a squared
        distance; `WassersteinBall.order(2, r)` takes the distance r instead. A number; a scalar
        `cp.Parameter(nonneg=True)`, whose value may change from one solve to the next; or the
        result of `radius_for`, which adds its confidence to the ball.
    cost
        A ground cost, or a function of (origins, points). The default is `SquaredEuclidean()`; for
        a radius of `radius_for`, the cost that it was computed for.
    assurance
        The guarantee of the radius, which `radius_for` gives.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> print(wdro.WassersteinBall(0.25).describe())
    W_c <= 0.25 with c(xi, zeta) = sum_i (xi_i - zeta_i)^2 (2-Wasserstein distance <= 0.5)
    >>> ball = wdro.WassersteinBall(0.5, wdro.costs.Norm(1))
    >>> ball.distance
    0.5
    """

    radius: Any
    cost: Any = None
    assurance: Assurance | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = getattr(self.radius, "assurance", None)
        if isinstance(known, Assurance):
            object.__setattr__(self, "radius", float(self.radius))
            object.__setattr__(self, "assurance", known)
        if not isinstance(self.radius, cp.Parameter):
            object.__setattr__(self, "radius", nonnegative(self.radius, "radius"))
        elif isinstance(self.radius, UncertainParameter) or self.radius.size != 1:
            raise ValueError(
                "the radius of a Wasserstein ball is one certain number, got the "
                f"{'uncertain ' * isinstance(self.radius, UncertainParameter)}parameter "
                f"{self.radius.name()!r} of shape {self.radius.shape}; use "
                "cp.Parameter(nonneg=True)."
            )
        own = None if self.assurance is None else self.assurance.cost
        cost = own if self.cost is None else self.cost
        object.__setattr__(self, "cost", as_cost(cost))
        if own is None or self.cost is own:
            return
        if type(self.cost) is not type(own) or self.cost.describe() != own.describe():
            raise ValueError(
                f"the radius was found for the cost {own.describe()} and means nothing in "
                f"{self.cost.describe()}; leave cost= out, or call radius_for with a problem of "
                "that cost."
            )

    @property
    def confidence(self) -> float | None:
        """The confidence of a radius that `radius_for` found; None for any other."""
        return None if self.assurance is None else self.assurance.confidence

    def unassured(self) -> WassersteinBall:
        """The same ball without its guarantee, which does not hold for other samples."""
        return self if self.assurance is None else replace(self, assurance=None)

    @classmethod
    def order(cls, p: float, radius: float, cost: Any = None) -> WassersteinBall:
        """The p-Wasserstein ball of this radius: W_p <= r, that is W_c <= r^p with c = |.|^p.

        Examples
        --------
        >>> ball = wdro.WassersteinBall.order(2, 0.5)
        >>> ball.radius, ball.distance
        (0.25, 0.5)
        """
        p = number("order p of a Wasserstein ball", p, low=1)
        if isinstance(radius, cp.Parameter):
            raise ValueError(
                "a radius that is a parameter bounds the transport cost itself: "
                f"WassersteinBall(radius=parameter, cost=...), its value the distance to the power "
                f"{p:g}."
            )
        distance = nonnegative(radius, "radius")
        if cost is None and p not in _DEFAULT_COSTS:
            raise ValueError(
                f"no default cost of order {p:g}: give cost=costs.Callable(function, order={p:g}), "
                "or use p = 1 or 2."
            )
        chosen = as_cost(_DEFAULT_COSTS[p]() if cost is None else cost)
        if chosen.order != p:
            raise ValueError(
                f"{type(chosen).__name__} is a cost of order {chosen.order}, not {p:g}: "
                "order 1 goes with Norm, order 2 with SquaredEuclidean or Mahalanobis, and "
                "Callable(function, order=p) states its own."
            )
        try:
            return cls(distance**p, chosen)
        except OverflowError:
            raise ValueError(
                f"radius {distance!r} to the power {p:g} is not a finite number."
            ) from None

    @property
    def budget(self) -> float:
        """The radius as a number: the current value of a parameter."""
        if not isinstance(self.radius, cp.Parameter):
            return float(self.radius)
        if self.radius.value is None:
            raise ValueError(
                f"the radius is the parameter {self.radius.name()!r}, which has no value; set its "
                ".value before solve()."
            )
        return nonnegative(float(np.reshape(self.radius.value, ())), "radius")

    @property
    def distance(self) -> float | None:
        """The radius as a p-Wasserstein distance, radius^(1/p); None if the order is unknown."""
        order = self.cost.order
        return None if order is None else float(self.budget ** (1 / order))

    def describe(self) -> str:
        """The cost, and the radius as a transport cost and as a Wasserstein distance."""
        bound = f"W_c <= {self.budget:g} with c(xi, zeta) = {self.cost.describe()}"
        if self.distance is not None:
            bound += f" ({self.cost.order:g}-Wasserstein distance <= {self.distance:g})"
        if self.assurance is None:
            return bound
        return f"{bound}, confidence {self.confidence:.4g} by rule {self.assurance.rule!r}"


_DEFAULT_COSTS: dict[float, type[GroundCost]] = {1.0: Norm, 2.0: SquaredEuclidean}


def nonnegative(given: Any, name: str) -> float:
    """The given radius as a finite number >= 0; an array of dimension 0 counts as a number."""
    given = given.item() if isinstance(given, np.ndarray) and given.ndim == 0 else given
    hint = "radius 0 is the observed distribution itself"
    return number(f"{name} of a Wasserstein ball", given, low=0, hint=hint)
