"""Risk measures: expectation, CVaR, and the probability of an event.

Expectation and CVaR are atoms so that CVXPY can combine them: convex and nondecreasing in the loss.
A problem replaces an expectation by its loss and a CVaR by its minimum over a threshold.
"""

from __future__ import annotations

import numbers
from functools import partialmethod
from typing import Any, NoReturn

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Inequality

from wdro_model.loss.atoms.cvxpy_classes import Atom
from wdro_model.loss.atoms.facts import brief
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.parameter import UncertainParameter


class Threshold(cp.Variable):
    """The threshold t in cvar(loss) = min_t t + E pos(loss - t) / (1 - level)."""


class RiskMeasure(Atom):
    """Expectation (level 0) or CVaR of each entry of a loss; args are [loss]."""

    def __init__(self, loss: Any, level: float, ambiguity: WassersteinBall | None = None) -> None:
        self.level, self.ambiguity = level, ambiguity
        super().__init__(loss)

    def get_data(self) -> list[Any]:
        return [self.level, self.ambiguity]

    @property
    def value(self) -> Any:
        """The value of a loss without data; ValueError for an uncertain loss."""
        if is_uncertain(self.args[0]):
            raise ValueError(
                f"{brief(self)} has no value of its own, it depends on the distribution of the "
                "data; problem.evaluate(scenarios) gives it on scenarios, problem.robust_value() "
                "in the worst case."
            )
        return self.args[0].value

    def numeric(self, values: Any) -> Any:
        return values[0]

    def shape_from_args(self) -> tuple[int, ...]:
        return self.args[0].shape

    def sign_from_args(self) -> tuple[bool, bool]:
        return self.args[0].is_nonneg(), self.args[0].is_nonpos()

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        """An expectation is linear in the loss."""
        return self.level == 0

    def is_atom_smooth(self) -> bool:
        return self.level == 0

    def is_incr(self, idx: int) -> bool:
        return True

    def is_decr(self, idx: int) -> bool:
        return False

    def _grad(self, values: Any) -> NoReturn:
        raise NotImplementedError(f"{brief(self)} has no gradient of its own.")

    def name(self) -> str:
        ball = "" if self.ambiguity is None else f", {self.ambiguity!r}"
        loss = self.args[0].name()
        return f"cvar({loss}, {self.level:g}{ball})" if self.level else f"expectation({loss}{ball})"


def expectation(loss: Any, ambiguity: WassersteinBall | None = None) -> Any:
    """The expected value of each entry of a loss; in the worst case over a ball, in a problem.

    In an objective it may be left out: an uncertain term means its expectation.

    Parameters
    ----------
    loss
        A CVXPY expression in decisions and uncertain parameters, a number or a vector.
    ambiguity : WassersteinBall, optional
        In a constraint, a ball of its own in place of the problem's.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> stock = cp.Variable(nonneg=True)
    >>> demand = wdro.UncertainParameter(samples=[70.0, 90.0, 140.0], nonneg=True)
    >>> short = wdro.expectation(cp.pos(demand - stock)) <= 10      # 10 a day are lost on average
    >>> ball = wdro.WassersteinBall(5.0, wdro.costs.Norm())
    >>> problem = wdro.Problem(cp.Minimize(stock), [short], ambiguity=ball)
    >>> print(f"{problem.solve('erm'):.1f}, {problem.solve('exact'):.1f}")
    110.0, 125.0
    """
    return RiskMeasure(as_loss(loss, "expectation"), 0.0, as_ball(ambiguity))


def cvar(loss: Any, level: float, ambiguity: WassersteinBall | None = None) -> Any:
    """The conditional value at risk: the mean of the worst share 1 - level of a loss.

    Entry by entry for a vector. In a problem it is the worst case over a ball, in the objective and
    in constraints. A sum of risk measures is one worst case: the adversary is the same for all.

    Parameters
    ----------
    loss
        A CVXPY expression in decisions and uncertain parameters, a number or a vector.
    level
        At least 0 and below 1: with 0.95, the mean of the worst 5%; with 0, the expectation.
    ambiguity : WassersteinBall, optional
        In a constraint, a ball of its own in place of the problem's.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> data = np.array([[0.10, 0.02], [-0.04, 0.03], [0.12, 0.01], [-0.02, 0.02]])
    >>> x = cp.Variable(2, nonneg=True)
    >>> returns = wdro.UncertainParameter(2, samples=data)
    >>> ball = wdro.WassersteinBall(0.001, wdro.costs.Norm(2))
    >>> loss = -returns @ x
    >>> problem = wdro.Problem(cp.Minimize(wdro.cvar(loss, 0.5)), [cp.sum(x) == 1], ball)
    >>> print(f"{problem.solve():.4f}, {problem.evaluate().risk:.4f} on the samples")
    -0.0171, -0.0189 on the samples
    """
    return RiskMeasure(as_loss(loss, "cvar"), as_level(level, "cvar"), as_ball(ambiguity))


def is_uncertain(expression: Any) -> bool:
    """True if the expression contains an uncertain parameter."""
    return any(isinstance(p, UncertainParameter) for p in expression.parameters())


def as_loss(given: Any, name: str) -> Any:
    """The given loss as a CVXPY expression, checked to be real and without risk measures."""
    numeric = isinstance(given, cp.Expression) or np.asarray(given).dtype.kind in "biuf"
    if not numeric:
        raise ValueError(
            f"{name} takes a loss, a CVXPY expression in decisions and uncertain parameters, got "
            f"{given!r}."
        )
    loss = cp.Constant.cast_to_const(given)
    if loss.is_complex():
        raise ValueError(f"{name} takes a real loss, got the complex {brief(loss)}.")
    if any(issubclass(kind, RiskMeasure) for kind in loss.atoms()):
        raise ValueError(
            f"{name}({brief(loss)}) has a risk measure inside another; a risk measure is a number, "
            "give its limit or its multiple outside."
        )
    return loss


def as_level(given: Any, name: str) -> float:
    """The given level as a number, checked to be in [0, 1)."""
    number = isinstance(given, numbers.Real) and not isinstance(given, bool | np.bool_)
    if number and 0 <= float(given) < 1:
        return float(given)
    hint = "; 0.95 looks at the worst 5%"
    if number and 1 < float(given) < 100:
        hint = f"; {float(given):g}% is {float(given) / 100:g}"
    elif number and float(given) == 1:
        hint = (
            "; 1 would be the worst case of all, which no data tells: take a level such as 0.99, "
            "or bound the support"
        )
    raise ValueError(f"the level of {name} must be a number >= 0 and < 1, got {given!r}{hint}.")


def as_ball(given: Any) -> WassersteinBall | None:
    if given is None or isinstance(given, WassersteinBall):
        return given
    raise ValueError(
        f"the ambiguity of a risk measure must be a WassersteinBall, got {given!r}; write "
        "ambiguity=WassersteinBall(radius=...)."
    )


# ------------------------------------------------------------------ probabilities
class ChanceConstraint(Inequality):
    """cvar(g, level) <= 0, which makes g <= 0 hold with a probability of at least the level."""

    event: Any = None
    """The inequality g <= 0, for messages; a copy with other arguments has none."""

    @property
    def level(self) -> float:
        """The required probability."""
        return float(self.args[0].level)

    def name(self) -> str:
        if self.event is None:
            return str(super().name())
        return f"probability({self.event}) >= {self.level:g} (by CVaR, which is safe)"

    __str__ = name


class Probability:
    """The probability of an event, to be bounded from below: `probability(g <= 0) >= 0.9`."""

    __array_ufunc__ = None

    def __init__(self, event: Any, ambiguity: WassersteinBall | None) -> None:
        self.event, self.ambiguity = event, ambiguity

    def __ge__(self, level: Any) -> ChanceConstraint:
        if isinstance(level, numbers.Real) and float(level) == 0:
            raise ValueError("a probability is always >= 0; leave the constraint out.")
        excess = self.event.args[0] - self.event.args[1]
        largest = excess if excess.size == 1 else cp.max(excess)
        risk = RiskMeasure(largest, as_level(level, "probability"), self.ambiguity)
        constraint = ChanceConstraint(risk, cp.Constant(0.0))
        constraint.event = self.event
        return constraint

    def _refuse(self, sign: str, level: object) -> NoReturn:
        raise ValueError(
            f"probability({self.event}) {sign} ... cannot be asked for: a probability is bounded "
            "from below, over all distributions of a ball. Write probability(g <= 0) >= 0.9. For a "
            "rare event bound the probability of its opposite: probability(g >= 0) >= 0.9."
        )

    __le__ = partialmethod(_refuse, "<=")
    __lt__ = partialmethod(_refuse, "<")
    __gt__ = partialmethod(_refuse, ">")
    __eq__ = partialmethod(_refuse, "==")
    __hash__ = None  # type: ignore[assignment]

    def _no_number(self, *others: Any) -> NoReturn:
        """Refuse conversion to a number and arithmetic, for CVXPY's objectives and sums."""
        raise ValueError(
            f"probability({self.event}) is neither minimised nor maximised, and no term of a sum; "
            "it stands alone in a constraint, probability(g <= 0) >= 0.9. For an objective take "
            "cvar(g, 0.9), which looks at how far g is above 0."
        )

    __float__ = __neg__ = __add__ = __radd__ = __sub__ = __rsub__ = _no_number
    __mul__ = __rmul__ = __truediv__ = _no_number

    def __repr__(self) -> str:
        return f"probability({self.event})"


def probability(event: Any, ambiguity: WassersteinBall | None = None) -> Probability:
    """The probability that a constraint holds, for `probability(constraint) >= level`.

    A vector constraint must hold in all entries at once. The problem imposes cvar(g, level) <= 0
    for the largest excess g. For every distribution of the ball this implies that g <= 0 holds
    with the required probability. It is convex and safe, but stronger than required: it bounds the
    mean of g over the worst scenarios, not only their probability.

    Parameters
    ----------
    event
        A CVXPY inequality between expressions of decisions and uncertain parameters.
    ambiguity : WassersteinBall, optional
        A ball of its own in place of the problem's.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> stock = cp.Variable(nonneg=True, name="stock")
    >>> samples = [70.0, 90.0, 100.0, 110.0, 140.0]
    >>> demand = wdro.UncertainParameter(name="demand", samples=samples)
    >>> enough = wdro.probability(demand <= stock) >= 0.8
    >>> print(enough)
    probability(demand <= stock) >= 0.8 (by CVaR, which is safe)
    >>> ball = wdro.WassersteinBall(1.0, wdro.costs.Norm())
    >>> problem = wdro.Problem(cp.Minimize(stock), [enough], ambiguity=ball)
    >>> print(f"{problem.solve():.1f}")
    145.0
    """
    if isinstance(event, ChanceConstraint) or not isinstance(event, Inequality):
        raise ValueError(
            "probability takes a CVXPY inequality such as load @ x <= capacity, got "
            f"{event if isinstance(event, cp.constraints.Constraint) else repr(event)}; an "
            "equality has no probability to speak of: allow a margin on both sides."
        )
    for side in event.args:
        as_loss(side, "probability")
    return Probability(event, as_ball(ambiguity))
