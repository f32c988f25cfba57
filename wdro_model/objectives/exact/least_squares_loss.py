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
from wdro_model.objectives.exact.decomposition import scalar_terms
from wdro_model.objectives.exact.maxima import Piece, write_piece
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True, eq=False)
class Residual:
    """The loss as factor * (a(x) + <b(x), xi>)^2 + terms without data."""

    piece: Piece
    factor: float
    rest: tuple[Any, ...]

    def root_mean_square(self, rows: Array, shares: SampleShares) -> Any:
        """sqrt(mean_k u_k^2) as a CVXPY expression.

        With many samples |u| = |Q R (b, a)| = |R (b, a)|: as many rows as there are coordinates.
        """
        count, seen = len(rows), np.flatnonzero(self.piece.seen)
        roots = np.sqrt(shares.multiple(np.ones(count)))
        if not len(seen) or count <= 2 * (len(seen) + 1):
            values = self.piece.values(rows)
            if values.size != count:
                return cp.norm(values, 2)
            return cp.norm(cp.multiply(roots, values), 2) / np.sqrt(count)
        scaled = np.column_stack([self.piece.scale * rows[:, seen], np.ones(count)])
        factor = np.linalg.qr(roots[:, None] * scaled / np.sqrt(count), mode="r")
        constant = cp.reshape(self.piece.constant, (1,), order="C")
        return cp.norm(factor @ cp.hstack([self.piece.direction[seen], constant]), 2)


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
        square = known_residual(model)
        if square.factor == 0:
            return Program.if_convex(sum(square.rest, cp.Constant(0.0)))
        size = square.root_mean_square(model.rows, model.shares)
        reach = model.written_root * model.cost.dual_norm(square.piece.slope)
        return Program.if_convex(sum(square.rest, times(cp.square(size + reach), square.factor)))

    def value(self, model: RobustModel, x: Array) -> float:
        square, residuals, slope = self._evaluate(model, x)
        size = np.sqrt(model.shares.total(residuals**2))
        stretched = size + np.sqrt(model.radius) * float(model.cost.dual_norms(slope))
        mean = float(model.shares.total(model.loss.values(x, model.rows)))
        return float(mean + square.factor * (stretched**2 - size**2))

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        square, residuals, slope = self._evaluate(model, x)
        size = float(np.sqrt(model.shares.total(residuals**2)))
        rate, still = float(model.cost.dual_norms(slope)), unmoved(model)
        if rate == 0 or model.radius == 0:
            return still
        lengths = residuals / size if size > 0 else np.ones(len(residuals))
        moves = np.sqrt(model.radius) * lengths[:, None] * model.cost.steepest_move(slope)
        dual = square.factor * rate * (size / np.sqrt(model.radius) + rate)
        return Extremal(still.rows + moves, still.weights, still.source, float(dual))

    def _evaluate(self, model: RobustModel, x: Array) -> tuple[Residual, Array, Array]:
        """The residuals u_k and the part of the slope b that moves, at a decision."""
        square = known_residual(model)
        constant, slope = square.piece.evaluate(model, x)
        return square, constant + model.rows @ slope, np.where(model.cost.frozen, 0.0, slope)


def needs_residual(model: RobustModel) -> str | None:
    if residual(model) is None:
        return (
            "the loss is not the square of one affine form of the data plus terms without data "
            f"({model.structure.describe()})"
        )
    return None


def known_residual(model: RobustModel) -> Residual:
    """The square in a loss that has one."""
    square = residual(model)
    assert square is not None
    return square


def residual(model: RobustModel) -> Residual | None:
    """The square in the loss, if it has one and no other term that sees the data."""
    return model.remember("residual", lambda: _find_residual(model))


def _find_residual(model: RobustModel) -> Residual | None:
    degrees = Degrees(model.joint.parameters)

    def number(factor: Any) -> float | None:
        """The value of a factor without data and decision."""
        certain = degrees(factor) == 0 and not factor.variables() and factor.size == 1
        return float(np.reshape(factor.value, ())) if certain else None

    uncertain: list[Any] = []
    rest: list[Any] = []
    for vector in additive_terms(model.expression, model.joint.parameters):
        for term in scalar_terms(vector, degrees):
            (uncertain if degrees(term) > 0 else rest).append(term)
            if len(uncertain) > 1:
                return None
    square = square_of_number(uncertain[0], number) if uncertain else None
    if square is None or degrees(square[1]) != 1 or square[0] < 0:
        return None
    return Residual(write_piece(model, square[1]), square[0], tuple(rest))
