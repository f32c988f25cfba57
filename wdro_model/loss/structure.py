"""What a loss is as a function of the data: the facts that pick a reformulation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp

from wdro_model.loss.affine import AffineParts, affine_parts
from wdro_model.loss.curvature import convexity_in_data
from wdro_model.loss.piecewise import pieces
from wdro_model.loss.polynomial import degree

__all__ = [
    "AffineParts",
    "Structure",
    "affine_parts",
    "analyse",
    "convexity_in_data",
    "degree",
    "pieces",
]


@dataclass(frozen=True, eq=False)
class Structure:
    """What is known of f(x, xi); each fact is worked out when it is first asked for."""

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
        """Is f convex in x for every scenario that nature may choose, by CVXPY's rules?"""
        return bool(_without_definiteness(self.expression, self.parameters).is_convex())

    @cached_property
    def convex_on_samples(self) -> bool:
        """The same for scenarios like the samples, which may be definite where nature is free."""
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
        """One line: the loss in x, and in the data."""
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

    limit: at most so many affine pieces are written out.
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
