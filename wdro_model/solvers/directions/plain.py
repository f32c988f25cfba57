"""What a direction rule is, and the plain Frank-Wolfe direction.

A rule is a small frozen object; `start(x, gradient_at)` returns the state of one run, which
proposes a move for each iteration and is told how long the step was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from wdro_model.solvers.objective import Array

GradientAt = Callable[[Array], Array]
"""x -> the objective's gradient there, at the current dual variable; costs no oracle call."""


@dataclass(frozen=True)
class Move:
    """A direction from x and the longest step along it that stays in the set."""

    direction: Array
    longest: float = 1.0
    is_plain: bool = False
    """Does it lead to the oracle's vertex?"""
    suggested: float | None = None
    """A step that a model of second order thinks best."""


class DirectionState(Protocol):
    """The memory of a direction rule during one run."""

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        """Where to go from x, given the oracle's vertex and gap = <gradient, x - vertex>."""
        ...

    def retreat(self, x: Array, vertex: Array) -> Move:
        """The plain move, in place of the proposed one, along which no step improved anything."""
        ...

    def accept(self, step: float) -> Array | None:
        """Note the step taken; a rule that knows the new iterate more precisely returns it."""
        ...


class DirectionRule(Protocol):
    """A choice of direction."""

    needs_line_search: bool

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState: ...


@dataclass(frozen=True)
class Plain:
    """Towards the oracle's vertex: d = v - x.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(direction=wdro.solvers.Plain(), step="open_loop").direction
    Plain()
    """

    needs_line_search = False

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _Plain()


class _Plain:
    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        return self.retreat(x, vertex)

    def retreat(self, x: Array, vertex: Array) -> Move:
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        return None
