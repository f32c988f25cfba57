"""The structure of a loss in its data: degree, curvature, pieces; reformulations ask for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf
from cvxpy.reductions.dcp2cone.canonicalizers import CANON_METHODS
from cvxpy.reductions.dcp2cone.canonicalizers.quad import QUAD_CANON_METHODS

from wdro_model.loss.affine_pieces import pieces
from wdro_model.loss.atoms.cvxpy_classes import AffAtom, Atom
from wdro_model.loss.expressions import Walk
from wdro_model.loss.polynomial import Degrees, degree


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of a loss f(x, xi); each property is computed when it is first asked for.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2, "price", samples=[[1.0, 2.0]])
    >>> structure = wdro.loss.analyse(cp.pos(price @ x), [price])
    >>> structure.curvature_in_data, len(structure.pieces)
    ('convex', 2)
    """

    expression: Any
    """f, of one entry."""
    parameters: tuple[Any, ...]
    """The uncertain parameters."""
    limit: int = 64
    """At most so many affine pieces are written out."""

    @cached_property
    def degree(self) -> float:
        """Joint polynomial degree in the data: 0, 1, 2, ... or math.inf."""
        return degree(self.expression, self.parameters)

    @cached_property
    def convex_in_decision(self) -> bool:
        """True if f is convex in x for every scenario of the adversary, by CVXPY's rules."""
        return bool(_without_definiteness(self.expression, self.parameters).is_convex())

    @cached_property
    def convex_on_samples(self) -> bool:
        """True if f is convex in x for scenarios like the samples, which may be definite."""
        return bool(self.expression.is_convex())

    @cached_property
    def curvature_in_data(self) -> str:
        """ "affine", "convex", "concave" or "unknown", for every decision."""
        return convexity_in_data(self.expression, self.parameters)

    @cached_property
    def pieces(self) -> tuple[Any, ...] | None:
        """Scalar expressions, affine in the data, whose maximum is f; None if none are known."""
        return pieces(self.expression, self.parameters, self.limit)

    def describe(self) -> str:
        """The convexity in x and the structure in the data, in one line."""
        decision = "convex" if self.convex_in_decision else "not provably convex"
        return f"{decision} in the decision, {self._in_data()}"

    def _in_data(self) -> str:
        names = ", ".join(p.name() for p in self.parameters) or "no parameter"
        if self.degree == 0:
            return "independent of the data"
        if self.degree == 1:
            return f"affine in the data ({names})"
        if self.pieces is not None:
            return f"a maximum of {len(self.pieces)} pieces affine in the data ({names})"
        polynomial = "" if math.isinf(self.degree) else f"polynomial of degree {self.degree:g}, "
        known = self.curvature_in_data
        shape = "of unknown curvature" if known == "unknown" else known
        return f"{polynomial}{shape} in the data ({names})"


def analyse(expression: Any, parameters: Iterable[Any], limit: int = 64) -> Structure:
    """The structure of a scalar loss in its decision and in the parameters.

    Parameters
    ----------
    limit
        At most so many affine pieces are written out.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2, "price", samples=[[1.0, 2.0]])
    >>> print(wdro.loss.analyse(price @ x, [price]).describe())
    convex in the decision, affine in the data (price)
    """
    return Structure(expression, tuple(parameters), limit)


def _without_definiteness(expression: Any, parameters: tuple[Any, ...]) -> Any:
    """The expression with plain symmetric parameters in place of definite ones.

    PSD and NSD say something of the samples; the worst case may leave the cone.
    """
    definite = [p for p in parameters if p.attributes.get("PSD") or p.attributes.get("NSD")]
    if not definite:
        return expression
    return expression.tree_copy(
        {id(p): cp.Parameter(p.shape, p.name(), symmetric=True) for p in definite}
    )


# ------------------------------------------------------------------ curvature in the data
def convexity_in_data(expression: Any, parameters: Iterable[Any]) -> str:
    """ "affine", "convex", "concave" or "unknown", in the parameters and for every decision.

    Subexpressions that are affine in the data become variables, those without data become
    parameters of the same sign; CVXPY's composition rules then speak about the data.

    Examples
    --------
    >>> wdro.loss.convexity_in_data(cp.exp(price @ x), [price])
    'convex'
    """
    degrees = Degrees(parameters)
    if degrees(expression) <= 1:
        return "affine"

    def swap(walk: Walk, e: Any) -> Any:
        """The expression with the roles of decision and data swapped."""
        degree = degrees(e)
        if degree == 0 and not e.variables():
            return e
        if degree == 0:
            return cp.Parameter(e.shape, **_sign(e), **_definiteness(e))
        if degree == 1:
            return cp.Variable(e.shape, **_sign(e))
        return e.copy([walk(argument) for argument in e.args])

    try:
        swapped = Walk(swap)(expression)
    except (ValueError, cp.error.DCPError):
        return "unknown"  # some atoms refuse a variable where the data stands
    if any(p.id in degrees.ids for p in swapped.parameters()):
        return "unknown"
    if swapped.is_convex():
        return "convex"
    return "concave" if swapped.is_concave() else "unknown"


def _sign(expression: Any) -> dict[str, bool]:
    if expression.is_nonneg():
        return {"nonneg": True}
    return {"nonpos": True} if expression.is_nonpos() else {}


def _definiteness(expression: Any) -> dict[str, bool]:
    """PSD and NSD exclude a sign in CVXPY's attributes."""
    if expression.ndim != 2 or _sign(expression):
        return {}
    if expression.is_psd():
        return {"PSD": True}
    return {"NSD": True} if expression.is_nsd() else {}


# ------------------------------------------------------------------ what CVXPY's solvers know
def is_canonicalisable(expression: Any) -> bool:
    """True if CVXPY can write the expression for its solvers, which know all of its atoms.

    Examples
    --------
    >>> x, costs = cp.Variable(2), wdro.UncertainParameter((2, 2))
    >>> wdro.loss.is_canonicalisable(cp.exp(cp.sum(x)))
    True
    >>> wdro.loss.is_canonicalisable(wdro.quadratic_form(x, costs))
    False
    """

    def visit(walk: Walk, e: Any) -> bool:
        """By the exact class of an atom, as CVXPY does; constants are never looked up."""
        if isinstance(e, Leaf) or (e.is_constant() and not e.parameters()):
            return True
        cls = type(e)
        known = cls in CANON_METHODS or cls in QUAD_CANON_METHODS
        if not known and issubclass(cls, AffAtom):
            known = cls.graph_implementation is not Atom.graph_implementation
        return known and all(walk(argument) for argument in e.args)

    return bool(Walk(visit)(expression))
