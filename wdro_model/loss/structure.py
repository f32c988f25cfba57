"""What a loss is as a function of the data: the facts that pick a reformulation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Structure:
    """What is known of f(x, xi)."""

    degree: float
    """Joint polynomial degree in the data: 0, 1, 2, ... or math.inf."""
    convex_in_decision: bool
    """Is f convex in x for every scenario that nature may choose, by CVXPY's rules?"""
    convex_on_samples: bool
    """The same for scenarios like the samples, which may be definite where nature is free."""
    curvature_in_data: str
    """ "affine", "convex", "concave" or "unknown", for every decision."""
    pieces: tuple[Any, ...] | None
    """Scalar expressions, affine in the data, whose maximum is f; None if there are none known."""
    parameters: tuple[Any, ...]
    """The uncertain parameters."""

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
    parameters = tuple(parameters)
    return Structure(
        degree=degree(expression, parameters),
        convex_in_decision=bool(_without_definiteness(expression, parameters).is_convex()),
        convex_on_samples=bool(expression.is_convex()),
        curvature_in_data=convexity_in_data(expression, parameters),
        pieces=pieces(expression, parameters, limit),
        parameters=parameters,
    )


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
