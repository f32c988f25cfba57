"""The contract of direction rules, plain Frank-Wolfe directions, and conjugate ones.

A rule is a small frozen object; `start(x, gradient_at)` returns the state of one run, which
proposes a move for each iteration and is told how long the step was. The base classes hold all
that the driver may ask, with defaults: those of a plain step towards the oracle's vertex.

Mitradjieva and Lindberg, "The stiff is moving" (Transportation Science, 2013).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.solvers.directions.blended import ActiveSet

GradientAt = Callable[[Array], Array]
"""x -> a gradient there; costs no oracle call."""


@dataclass(frozen=True)
class GradientSource:
    """Gradients that a direction rule may ask for, at the dual variable of the current iterate."""

    evaluate: GradientAt
    """The gradient of the objective at other decisions."""
    is_exact: bool = True
    """Whether differences of gradients are free of Monte Carlo error."""
    fixed_adversary: Callable[[], GradientAt | None] = lambda: None
    """Gradients while the adversary keeps its distribution for the current iterate, if known."""
    replying_adversary: Callable[[], GradientAt | None] = lambda: None
    """Gradients close to the current iterate, to which the adversary replies, if known."""

    def __call__(self, x: Array) -> Array:
        return self.evaluate(x)


@dataclass(frozen=True)
class Move:
    """A direction from x and the longest step along it that stays in the set."""

    direction: Array
    longest: float = 1.0
    is_plain: bool = False
    """Whether it leads to the oracle's vertex."""
    suggested: float | None = None
    """A step that a model of second order thinks best."""


class DirectionState:
    """The state of a direction rule during one run; by default plain moves without memory."""

    active: ActiveSet | None = None
    """The vertices of which the iterate is a combination, for rules that keep them."""

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        """The next move from x, given the oracle's vertex and gap = <gradient, x - vertex>."""
        return self.retreat(x, vertex)

    def retreat(self, x: Array, vertex: Array) -> Move:
        """The plain move, in place of the proposed one, along which no step improved anything."""
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        """Record the step taken; a rule that knows the new iterate more precisely returns it."""
        return None


class DirectionRule:
    """A choice of direction."""

    needs_line_search: bool = True
    """Whether step rules have to look along the line."""

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        """The state of a run from x."""
        raise NotImplementedError

    def resume(self, active: ActiveSet, gradient_at: GradientSource) -> DirectionState:
        """The state of a run that goes on from the vertices of another."""
        return self.start(active.x, gradient_at)

    def over(self, feasible: Any) -> DirectionRule:
        """The rule for one set, for rules that ask its oracle by themselves."""
        return self


@dataclass(frozen=True)
class Plain(DirectionRule):
    """Towards the oracle's vertex: d = v - x.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(direction=wdro.solvers.Plain(), step="open_loop").direction
    Plain()
    """

    needs_line_search = False

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        return DirectionState()


# ------------------------------
# Conjugate directions, for flows and other sets where plain steps zig-zag


@dataclass(frozen=True)
class Conjugate(DirectionRule):
    """Towards a point s that makes d = s - x conjugate to the last direction, or the last two.

    s = (v + nu s_1 + mu s_2) / (1 + nu + mu) with v the oracle's vertex, s_1 and s_2 the points
    that the last steps aimed at, and nu, mu >= 0 from `<d, H d_1> = <d, H d_2> = 0`. It is a convex
    combination of points of the set, so a step up to 1 is feasible.

    H d_i is the difference of the gradients at both ends of step i, the mean of the Hessian along
    it: exact for quadratics, and no gradient is evaluated for it.

    Parameters
    ----------
    memory
        1 (conjugate) or 2 (biconjugate).

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(direction=wdro.solvers.Conjugate(memory=2)).direction
    Conjugate(memory=2)
    """

    memory: int = 1

    def __post_init__(self) -> None:
        if self.memory not in (1, 2):
            raise ValueError(f"memory must be 1 or 2 directions, got {self.memory!r}.")

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        return _Conjugate(self.memory)


@dataclass(frozen=True)
class PastStep:
    """An earlier step of the run."""

    aim: Array
    """s_i, the point that the step went towards."""
    length: float
    """The length of the step, as a share of the way to s_i."""
    change: Array
    """H d_i up to a positive factor: what the step changed in the gradient."""


class _Conjugate(DirectionState):
    LEAST_SLOPE = 1e-4
    """The least descent that is accepted, as a fraction of the plain direction's."""
    SHORTEST_STEP, LONGEST_STEP = 1e-6, 1.0 - 1e-5
    """Steps outside are no basis for the next direction: nothing moved, or nothing is left."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._past: list[PastStep] = []
        """The last steps, latest first."""
        self._pending: tuple[Array, float] | None = None
        """Aim and length of a step whose effect on the gradient is not known yet."""
        self._aim: Array | None = None
        self._gradient: Array | None = None

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        self._note_change(gradient)
        aim = self._conjugate_point(x, vertex)
        if aim is None or not gradient @ (aim - x) < -self.LEAST_SLOPE * gap:
            return self.retreat(x, vertex)
        self._aim = aim
        return Move(aim - x)

    def retreat(self, x: Array, vertex: Array) -> Move:
        self._past, self._aim = [], vertex
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        assert self._aim is not None
        if self.SHORTEST_STEP <= step <= self.LONGEST_STEP:
            self._pending = (self._aim, step)
        else:
            self._past, self._pending = [], None
        return None

    def _note_change(self, gradient: Array) -> None:
        """Complete the last step by the change of the gradient along it."""
        if self._pending is not None and self._gradient is not None:
            step = PastStep(*self._pending, gradient - self._gradient)
            self._past = [step, *self._past][: self.memory]
        self._pending, self._gradient = None, gradient

    def _conjugate_point(self, x: Array, vertex: Array) -> Array | None:
        """s, or None where there is no last step or no curvature along it."""
        if not self._past:
            return None
        last, towards = self._past[0], vertex - x
        bend = last.change @ (last.aim - x)
        if not bend > 0:
            return None
        mu = self._second_weight(towards)
        nu = -(last.change @ towards) / bend + mu * last.length / (1.0 - last.length)
        nu = max(0.0, float(nu))
        if not nu + mu < 1.0 / self.LEAST_SLOPE:
            return None
        total = vertex + nu * last.aim
        if mu > 0:
            total += mu * self._past[1].aim
        return total / (1.0 + nu + mu)

    def _second_weight(self, towards: Array) -> float:
        """mu: conjugacy to the last step but one."""
        if len(self._past) < 2:
            return 0.0
        last, second = self._past
        bend = second.change @ (second.aim - last.aim)
        return max(0.0, -float(second.change @ towards) / float(bend)) if bend != 0 else 0.0
