"""Atoms that know what they are in each of their arguments.

The structure of a loss (degree, affine parts, forms, substitution) is found by walking its tree.
Affine atoms, products, quotients and powers are known to that walk; any other atom counts as not
polynomial, and is copied by CVXPY. An atom for which more is known says so itself, by subclassing
`StructuredAtom`: no other module needs to hear of it.

CVXPY's own atoms cannot be subclassed after the fact; `view` registers how one of them is read as
a structured atom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms import Atom


class StructuredAtom(Atom):
    """An atom of this library: CVXPY reads its curvature, the walk over a loss its structure.

    CVXPY's solvers do not know it. Where its arguments allow it, `rebuilt` returns an expression
    of CVXPY's own atoms instead.
    """

    def degree_in(self, degrees: Sequence[float]) -> float:
        """The joint polynomial degree, from those of the arguments, of which one is not zero."""
        return math.inf

    def slope(self, k: int) -> Any:
        """The derivative in argument k, an expression of its shape; for atoms with one entry.

        Asked for only where the degree is one, so that it does not depend on the moving arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} declares no slope in argument {k}.")

    def vanishes(self, zero: Sequence[bool]) -> bool:
        """Is the atom zero whenever the arguments marked here are?"""
        return False

    def rebuilt(self, arguments: Sequence[Any]) -> Any:
        """The same function of other arguments, in CVXPY's own atoms where they allow it."""
        return type(self)(*arguments, *(self.get_data() or ()))

    def constant_part(self, parts: Sequence[Any | None]) -> Any | None:
        """The value where the moving parts of the arguments are zero; None for zero."""
        if self.vanishes([part is None for part in parts]):
            return None
        return self.rebuilt(
            [
                cp.Constant(np.zeros(a.shape)) if part is None else part
                for a, part in zip(self.args, parts)
            ]
        )

    def copy(self, args: Any = None, id_objects: Any = None) -> Any:
        """As CVXPY's, with other arguments through `rebuilt`."""
        if id_objects is not None and id(self) in id_objects:
            return id_objects[id(self)]
        return self.rebuilt(self.args if args is None else args)


_VIEWS: dict[type, Callable[[Any], StructuredAtom]] = {}


def view(atom: type) -> Callable[[Callable[[Any], StructuredAtom]], Any]:
    """Register how an atom of CVXPY is read as a structured one; subclasses inherit it."""

    def register(function: Callable[[Any], StructuredAtom]) -> Any:
        _VIEWS[atom] = function
        return function

    return register


def structured(expression: Any) -> StructuredAtom | None:
    """The expression as a structured atom; None if it is none."""
    if isinstance(expression, StructuredAtom):
        return expression
    for cls in type(expression).__mro__:
        if cls in _VIEWS:
            return _VIEWS[cls](expression)
    return None
