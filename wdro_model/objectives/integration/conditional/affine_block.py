"""The part of the data in which the loss is affine, and whether it may have kinks in the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations
from typing import Any

from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.cvxpy_classes import (
    DIVIDE,
    ENTR,
    EXP,
    KL_DIV,
    LOG,
    LOG1P,
    LOGISTIC,
    POWER,
    REL_ENTR,
    SMOOTH_CLASSES,
    XEXP,
    family,
)
from wdro_model.loss.atoms.facts import facts_of, hidden_parameters
from wdro_model.loss.atoms.own import StructuredAtom
from wdro_model.loss.expressions import Walk
from wdro_model.loss.polynomial import Degrees, degree

SMOOTH_ATOMS = {
    *(DIVIDE, ENTR, EXP, KL_DIV, LOG, LOG1P, LOGISTIC, POWER, REL_ENTR, XEXP),
    *SMOOTH_CLASSES.values(),
}
"""Atoms without kinks inside of their domain."""
TRIED_PARAMETERS = 12
"""Up to so many parameters every subset is looked at; beyond, parameters are added greedily."""


def affine_block(expression: Any, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters with the most coordinates in which a loss is jointly affine.

    Only parameters with a box or R^d as support are looked at; () if there are none.
    """
    boxed = [p for p in parameters if p.support.bounds(p.shape) is not None]
    alone = [p for p in boxed if degree(expression, (p,)) <= 1]
    if len(alone) > TRIED_PARAMETERS:
        return _greedy(expression, alone)
    best: tuple[Any, ...] = ()
    for count in range(1, len(alone) + 1):
        for subset in combinations(alone, count):
            if _size(subset) > _size(best) and degree(expression, subset) <= 1:
                best = subset
    return best


def _greedy(expression: Any, alone: list[Any]) -> tuple[Any, ...]:
    best: tuple[Any, ...] = ()
    for p in sorted(alone, key=lambda p: -math.prod(p.shape)):
        if degree(expression, (*best, p)) <= 1:
            best = (*best, p)
    return best


def _size(subset: tuple[Any, ...]) -> int:
    return sum(math.prod(p.shape) for p in subset)


def may_have_kinks(expression: Any, parameters: Iterable[Any]) -> bool:
    """Is an atom of the parameters not known to be smooth? Polynomials in them are."""
    return not _Smooth(parameters)(expression)


class _Smooth(Walk):
    """Is an expression known to be smooth in some parameters?"""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__()
        self._degrees = Degrees(parameters)

    def visit(self, expression: Any) -> bool:
        if isinstance(expression, Leaf) or self._degrees(expression) < float("inf"):
            return True
        if any(p.id in self._degrees.ids for p in hidden_parameters(expression)):
            return False
        known = isinstance(expression, AffAtom | StructuredAtom)
        known = known or family(expression) in SMOOTH_ATOMS
        return known and all(self(read) for read in facts_of(expression).reads(expression))
