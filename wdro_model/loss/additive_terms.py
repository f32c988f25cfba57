"""A loss as a sum: expressions whose entries are its terms.

    cp.sum(order - d) + 4 * cp.sum(cp.pos(d - order))   ->   [order - d],  [4 * cp.pos(d - order)]

Sums, negation, weights without data, stacking and reshaping are taken apart; sum_squares and norm1
become sums of squares and of absolute values. Anything else is one term.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wdro_model.loss.atoms.facts import facts_of
from wdro_model.loss.polynomial import Degrees
from wdro_model.loss.walk import Walk


def additive_terms(expression: Any, parameters: Iterable[Any]) -> list[Any]:
    """Expressions whose entries, all of them, add up to the entries of the expression."""
    return list(_Split(Degrees(parameters))(expression))


class _Split(Walk):
    def __init__(self, degrees: Degrees) -> None:
        super().__init__()
        self.degrees = degrees

    def visit(self, expression: Any) -> list[Any]:
        if self.degrees(expression) <= 1:
            return [expression]
        return facts_of(expression).terms(expression, self) or [expression]
