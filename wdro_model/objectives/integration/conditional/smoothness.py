"""Whether a loss may have kinks in some of the data."""

from __future__ import annotations

from collections.abc import Iterable
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
from wdro_model.loss.polynomial import Degrees

SMOOTH_ATOMS = {
    *(DIVIDE, ENTR, EXP, KL_DIV, LOG, LOG1P, LOGISTIC, POWER, REL_ENTR, XEXP),
    *SMOOTH_CLASSES.values(),
}
"""Atoms without kinks inside of their domain."""


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
