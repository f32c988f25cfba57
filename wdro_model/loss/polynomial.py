"""The polynomial degree of an expression in some of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.facts import facts_of, hidden_parameters
from wdro_model.loss.walk import Walk


def degree(expression: Any, parameters: Iterable[Any]) -> float:
    """The joint polynomial degree in the parameters: 0, 1, 2, ..., or math.inf if there is none.

    0 means that the expression does not depend on them, 1 that it is affine in them.
    """
    return Degrees(parameters)(expression)


class Degrees(Walk):
    """Degrees of many expressions in the same parameters; each one is computed once."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__()
        self.parameters = tuple(parameters)
        self.ids = {p.id for p in self.parameters}

    def visit(self, expression: Any) -> float:
        if isinstance(expression, Leaf):
            return float(getattr(expression, "id", None) in self.ids)
        if any(p.id in self.ids for p in hidden_parameters(expression)):
            return math.inf
        facts = facts_of(expression)
        found = [self(read) for read in facts.reads(expression)]
        return facts.degree(expression, found) if max(found) > 0 else 0

    def replaceable(self, atom: Any) -> bool:
        """Are the parameters in the atom's arguments alone, no exponent and no option of it?"""
        outside = facts_of(atom).reads(atom)[len(atom.args) :]
        return not any(p.id in self.ids for p in hidden_parameters(atom)) and not any(
            self(read) > 0 for read in outside
        )
