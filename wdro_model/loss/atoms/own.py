"""Atoms of this library, which say themselves what they are in each of their arguments.

An atom of one's own counts as not polynomial in the data. One for which more is known subclasses
`StructuredAtom` and overrides `degree_in`, `slope`, `vanishes`, `rebuilt`: the facts below read
them. An atom of CVXPY that can be read as one of ours is declared as a `View`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from wdro_model.loss.atoms.cvxpy_classes import Atom
from wdro_model.loss.atoms.facts import Adjoints, AtomFacts, declare, facts_of, filled
from wdro_model.loss.expressions import weighted


class StructuredAtom(Atom):
    """An atom of this library: CVXPY reads its curvature, the walk over a loss its structure.

    CVXPY's solvers do not know it. Where its arguments allow it, `rebuilt` returns an expression
    of CVXPY's own atoms instead.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> x, costs = cp.Variable(2), wdro.UncertainParameter((2, 2))
    >>> isinstance(wdro.quadratic_form(x, costs), wdro.loss.StructuredAtom)
    True
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

    def copy(self, args: Any = None, id_objects: Any = None) -> Any:
        """As CVXPY's, with other arguments through `rebuilt`."""
        if id_objects is not None and id(self) in id_objects:
            return id_objects[id(self)]
        return self.rebuilt(self.args if args is None else args)


@declare(StructuredAtom)
class View(AtomFacts):
    """The facts of an atom by the word of a structured atom, which it is or is read as."""

    def _view(self, atom: Any) -> StructuredAtom:
        return atom

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return self._view(atom).degree_in(degrees)

    def adjoints(self, atom: Any) -> Adjoints:
        """By its slopes, which are asked for where they are needed."""

        def pull(g: Any, k: int) -> Any:
            return weighted(g, self._view(atom).slope(k))

        return [partial(pull, k=k) for k in range(len(atom.args))]

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        if self._view(atom).vanishes([part is None for part in parts]):
            return None
        return self.rebuilt(atom, filled(atom, parts))

    def rebuilt(self, atom: Any, arguments: Sequence[Any]) -> Any:
        return self._view(atom).rebuilt(arguments)


def structured(expression: Any) -> StructuredAtom | None:
    """The expression as a structured atom; None if it is none."""
    facts = facts_of(expression)
    return facts._view(expression) if isinstance(facts, View) else None
