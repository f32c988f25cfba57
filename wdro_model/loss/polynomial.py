"""The polynomial degree of an expression in some of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cvxpy.expressions.leaf import Leaf

from wdro_model.loss import atoms
from wdro_model.loss.lowering import hidden_parameters
from wdro_model.loss.structured import structured


def degree(expression: Any, parameters: Iterable[Any]) -> float:
    """The joint polynomial degree in the parameters: 0, 1, 2, ..., or math.inf if there is none.

    0 means that the expression does not depend on them, 1 that it is affine in them.
    """
    return Degrees(parameters)(expression)


class Degrees:
    """Degrees of many expressions in the same parameters; each one is computed once."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.parameters = tuple(parameters)
        self.ids = {p.id for p in self.parameters}
        self._known: dict[int, tuple[Any, float]] = {}

    def __call__(self, expression: Any) -> float:
        if isinstance(expression, Leaf):
            return float(getattr(expression, "id", None) in self.ids)
        if id(expression) not in self._known:
            # The expression is kept beside its degree: an id may be reused once it is gone.
            self._known[id(expression)] = (expression, self._of_atom(expression))
        return self._known[id(expression)][1]

    def _of_atom(self, atom: Any) -> float:
        if any(p.id in self.ids for p in hidden_parameters(atom)):
            return math.inf
        d = [self(argument) for argument in atom.args]
        if isinstance(atom, atoms.POWER):
            return self._of_power(atom, d[0])
        if max(d) == 0:
            return 0
        if isinstance(atom, atoms.BILINEAR):
            return sum(d)
        if isinstance(atom, atoms.DIVIDE | atoms.QUAD_OVER_LIN):
            times = 2 if isinstance(atom, atoms.QUAD_OVER_LIN) else 1
            return times * d[0] if d[1] == 0 else math.inf
        if (known := structured(atom)) is not None:
            return known.degree_in(d)
        return max(d) if isinstance(atom, atoms.AffAtom) else math.inf

    def _of_power(self, atom: Any, base: float) -> float:
        if self(atom.p) > 0:
            return math.inf
        if base == 0:
            return 0
        p = atom.p.value
        natural = p is not None and float(p) == int(p) and p >= 0
        return int(p) * base if natural and not atom.p.parameters() else math.inf
