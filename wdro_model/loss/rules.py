"""The registry of rules: how one CVXPY atom is evaluated on a batch, and pulled back.

A rule is a function of the atom and of the values of its operands. It returns the atom's value,
followed by one pullback per operand: a function that turns the gradient of a number in the atom
into the gradient of that number in the operand.

    @rule(MyAtom)                                   # y = sin(v), entry by entry
    def _(atom, v):
        return np.sin(v), lambda g: g * np.cos(v)

A value has the shape of its expression, preceded by the batch axis if the expression depends on an
uncertain parameter. Operands of elementwise atoms come with the atom's own shape. A pullback may
leave the batch axis on the gradient of an operand that has none: it is summed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from wdro_model.errors import MissingRuleError

Kernel = Callable[..., tuple[Any, ...]]
"""Values of the operands -> the atom's value, then one pullback per operand."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operand:
    """What is known of an operand before its value: its expression, and whether it is batched."""

    expression: Any
    batched: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.expression.shape

    @property
    def ndim(self) -> int:
        return len(self.expression.shape)


_PREPARE: dict[type, Callable[[Any, tuple[Operand, ...]], Kernel]] = {}


def rule(*atoms: type, prepared: bool = False) -> Callable[[Function], Function]:
    """Register a batched rule for CVXPY atoms; subclasses inherit it.

    prepared: the function takes (atom, operands), where operands are `Operand`s, and returns the
        kernel itself. It runs once, when the loss is built: the place for work that depends on
        shapes alone, and for refusing an option by raising MissingRuleError.
    """
    for atom in atoms:
        if not isinstance(atom, type):
            raise TypeError(f"rule expects atom classes, got {atom!r}; pass type(expression).")

    def register(function: Function) -> Function:
        for atom in atoms:
            _PREPARE[atom] = function if prepared else _plain(function)
        return function

    return register


def _plain(function: Callable[..., Any]) -> Callable[[Any, tuple[Operand, ...]], Kernel]:
    return lambda atom, _operands: partial(function, atom)


def prepare(atom: Any, operands: tuple[Operand, ...]) -> Kernel:
    """The kernel of an atom, by the rule of the nearest class in its method resolution order."""
    for cls in type(atom).__mro__:
        if cls in _PREPARE:
            return _PREPARE[cls](atom, operands)
    raise missing_rule(atom)


def missing_rule(atom: Any, why: str = "") -> MissingRuleError:
    """The error for an atom, or an option of it, that no rule covers."""
    name = type(atom).__name__
    return MissingRuleError(
        f"the atom {name!r} in '{brief(atom)}' has no batched rule{why}. Rewrite the loss with "
        f"other atoms, register a rule with @wdro_model.loss.rule({name}), or give the loss as a "
        "wdro_model.loss.CallableLoss."
    )


def brief(expression: Any, width: int = 80) -> str:
    """The expression in CVXPY's notation, shortened to fit a message."""
    text = " ".join(str(expression).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def own_axes(ndim: int, axis: Any = None) -> tuple[int, ...]:
    """Axes of an expression counted from the end, so that they do not see the batch axis."""
    if axis is None:
        return tuple(range(-ndim, 0))
    return tuple(int(a) % ndim - ndim for a in np.atleast_1d(axis)) if ndim else ()
