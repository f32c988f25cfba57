"""The square of an affine form of the data with a quadratic cost on R^d.

With u_k = a(x) + <b(x), xi_k> the worst case stretches every residual by the same factor:

    sup over the ball of E u^2 = ( sqrt(mean_k u_k^2) + sqrt(radius) |b(x)|_dual )^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.expressions import square_of_number, times
from wdro_model.loss.polynomial import Degrees, additive_terms
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.counterpart import (
    Counterpart,
    Extremal,
    first_refusal,
    needs_free_moves,
    needs_quadratic_cost,
    unmoved,
)
from wdro_model.objectives.exact.decomposition import scalars
from wdro_model.objectives.exact.pieces import Piece, as_piece, evaluate_piece
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True, eq=False)
class Residual:
    """The loss as factor * (a(x) + <b(x), xi>)^2 + terms without data."""

    piece: Piece
    seen: Array
    factor: float
    rest: tuple[Any, ...]


@dataclass(frozen=True)
class LeastSquaresLoss(Counterpart):
    """(a(x) + <b(x), xi>)^2 + g(x), squared or Mahalanobis cost, R^d."""

    is_proven = True
    formula = "(sqrt(mean_k u_k^2) + sqrt(radius) |b(x)|_dual)^2, u = a(x) + <b(x), xi>"

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_quadratic_cost("dual_norm", "steepest_move"),
            needs_free_moves,
            needs_residual,
        )

    def program(self, model: RobustModel) -> Program | None:
        found = residual(model)
        assert found is not None
        size = root_mean_square(found, model.rows, model.shares)
        reach = model.written_root * model.cost.dual_norm(found.piece.slope)
        total = times(cp.square(size + reach), found.factor) if found.factor else cp.Constant(0.0)
        return Program.if_convex(sum(found.rest, total))

    def value(self, model: RobustModel, x: Array) -> float:
        found, u, slope = self._at(model, x)
        size, rate = np.sqrt(model.shares.total(u**2)), float(model.cost.dual_norms(slope))
        stretched = (size + np.sqrt(model.radius) * rate) ** 2
        mean = float(model.shares.total(model.loss.values(x, model.rows)))
        certain = mean - found.factor * size**2
        return float(found.factor * stretched + certain)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        found, u, slope = self._at(model, x)
        size = float(np.sqrt(model.shares.total(u**2)))
        rate = float(model.cost.dual_norms(slope))
        still = unmoved(model)
        if rate == 0 or model.radius == 0:
            return still
        lengths = u / size if size > 0 else np.ones(len(u))
        move = np.sqrt(model.radius) * lengths[:, None] * model.cost.steepest_move(slope)
        dual = found.factor * rate * (size / np.sqrt(model.radius) + rate)
        return Extremal(still.rows + move, still.weights, still.source, float(dual))

    def _at(self, model: RobustModel, x: Array) -> tuple[Residual, Array, Array]:
        """The residuals u_k and the part of the slope b that moves, at a decision."""
        found = residual(model)
        assert found is not None
        constant, slope = evaluate_piece(model, found.piece, x)
        return found, constant + model.rows @ slope, np.where(model.cost.frozen, 0.0, slope)


def root_mean_square(found: Residual, rows: Array, shares: SampleShares) -> Any:
    """sqrt(mean_k u_k^2) as a CVXPY expression.

    With many samples |u| = |Q R (b, a)| = |R (b, a)|: as many rows as there are coordinates.
    """
    count, seen = len(rows), found.seen
    times = np.sqrt(shares.multiple(np.ones(count)))
    if not len(seen) or count <= 2 * (len(seen) + 1):
        values = found.piece.values(seen, rows)
        if values.size != count:
            return cp.norm(values, 2)
        return cp.norm(cp.multiply(times, values), 2) / np.sqrt(count)
    scaled = np.column_stack([found.piece.scale * rows[:, seen], np.ones(count)])
    factor = np.linalg.qr(times[:, None] * scaled / np.sqrt(count), mode="r")
    slope = found.piece.direction[seen]
    return cp.norm(
        factor @ cp.hstack([slope, cp.reshape(found.piece.constant, (1,), order="C")]), 2
    )


def needs_residual(model: RobustModel) -> str | None:
    if residual(model) is None:
        return (
            "the loss is not the square of one affine form of the data plus terms without data "
            f"({model.structure.describe()})"
        )
    return None


def residual(model: RobustModel) -> Residual | None:
    """The square in the loss, if it has one and no other term that sees the data."""
    return model.remember("residual", lambda: _residual(model))


def _residual(model: RobustModel) -> Residual | None:
    degrees = Degrees(model.joint.parameters)
    uncertain: list[Any] = []
    rest: list[Any] = []
    for vector in additive_terms(model.expression, model.joint.parameters):
        for term in scalars(vector, degrees):
            (uncertain if degrees(term) > 0 else rest).append(term)
            if len(uncertain) > 1:
                return None
    if not uncertain:
        return None
    found = _square(uncertain[0], degrees)
    if found is None or found[1] < 0:
        return None
    piece, seen = as_piece(model, found[0])
    return Residual(piece, seen, found[1], tuple(rest))


def _square(e: Any, degrees: Degrees) -> tuple[Any, float] | None:
    """(u, c) with e = c u^2 for a scalar u of degree one in the data."""

    def number(factor: Any) -> float | None:
        """The value of a factor without data and decision."""
        certain = degrees(factor) == 0 and not factor.variables() and factor.size == 1
        return float(np.reshape(factor.value, ())) if certain else None

    found = square_of_number(e, number)
    return None if found is None or degrees(found[1]) != 1 else (found[1], found[0])
