"""c = (xi - zeta)' P (xi - zeta)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from wdro_model.display.factual import brief_fields
from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost
from wdro_model.uncertainty.costs.squared import QuadraticCost
from wdro_model.uncertainty.data_frames import column_names, in_order, label_order

if TYPE_CHECKING:
    from wdro_model.uncertainty.joint import JointSamples


@dataclass(frozen=True, eq=False)
class BoundMahalanobis(QuadraticCost):
    """A quadratic form of the move: its norm is |L' delta|, P = L L', of dual |L^-1 b|.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> cost = wdro.costs.BoundMahalanobis(2, precision=np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> cost.of_displacements(np.array([[1.0, 0.0], [1.0, 1.0]]))
    array([2., 6.])
    """

    dimension: int
    precision: Array
    """P, (d, d), symmetric and positive definite."""

    is_proven = True

    @property
    def largest_weight(self) -> float:
        return float(self._eigenvalues[-1])

    def of_displacements(self, delta: Array) -> Array:
        moved = delta @ self.stretching
        return np.einsum("bi,bi->b", moved, moved)

    def describe(self) -> str:
        values = self._eigenvalues
        return (
            f"(xi - zeta)' P (xi - zeta), eigenvalues of P from {values[0]:.3g} to {values[-1]:.3g}"
        )

    def gradient(self, delta: Array) -> Array:
        return 2.0 * delta @ self.precision

    @cached_property
    def coordinate_scales(self) -> Array:
        return np.sqrt(np.diag(self.precision))

    @property
    def matrix(self) -> Array:
        return self.precision

    @cached_property
    def couplings(self) -> Array:
        return self.precision

    def whitened(self, slope: Any) -> Any:
        return self.shrinking.T @ slope

    def whitened_numbers(self, slopes: Array) -> Array:
        flat = np.reshape(slopes, (-1, self.dimension))
        return solve_triangular(self.stretching, flat.T, lower=True).T.reshape(np.shape(slopes))

    def inverse_times(self, slopes: Array) -> Array:
        flat = np.reshape(slopes, (-1, self.dimension))
        return cho_solve((self.stretching, True), flat.T).T.reshape(np.shape(slopes))

    def quadratic_model(self, moves: Array, variance: Array) -> Array:
        """A diagonal below P: tails of proposals that follow it are then the wider ones."""
        return self._smallest_diagonal[None]

    def default_sigma(self, radius: float, joint: JointSamples) -> float:
        """sigma^2 = radius / (2 tr P)."""
        return float(np.sqrt(radius / (2 * np.trace(self.precision))))

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return BoundMahalanobis(self.dimension, units[:, None] * self.precision * units / unit)

    def restricted(self, where: Array) -> BoundCost:
        if np.array_equal(where, np.arange(self.dimension)):
            return self
        return BoundMahalanobis(len(where), self.precision[np.ix_(where, where)])

    @cached_property
    def _eigenvalues(self) -> Array:
        return np.linalg.eigvalsh(self.precision)

    @cached_property
    def stretching(self) -> Array:
        """L with P = L L', so that the cost is |L' delta|^2 and never negative."""
        return np.linalg.cholesky(self.precision)

    @cached_property
    def shrinking(self) -> Array:
        """F with P^-1 = F F'."""
        return np.linalg.cholesky(np.linalg.inv(self.precision))

    @cached_property
    def _smallest_diagonal(self) -> Array:
        scale = np.sqrt(np.diag(self.precision))
        least = np.linalg.eigvalsh(self.precision / np.outer(scale, scale))[0]
        return max(float(least), 0.0) * scale**2


@dataclass(frozen=True, eq=False)
class Mahalanobis(GroundCost):
    """c = (xi - zeta)' P (xi - zeta) for a positive definite P, the inverse of a covariance.

    Give exactly one of covariance and precision, of shape (d, d), d counting all coordinates.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> data = np.random.default_rng(0).normal(size=(100, 3))
    >>> cost = wdro.costs.Mahalanobis(covariance=np.cov(data, rowvar=False))
    >>> ball = wdro.WassersteinBall.order(2, 0.1, cost)
    >>> round(ball.radius, 3)
    0.01
    """

    covariance: Any = None
    precision: Any = None
    _labels: Any = field(default=None, init=False, repr=False)
    """The labels of the columns of a frame."""
    order = 2.0
    bound = BoundMahalanobis

    __repr__ = brief_fields

    def __post_init__(self) -> None:
        if (self.covariance is None) == (self.precision is None):
            raise ValueError(
                "Mahalanobis needs exactly one of covariance= and precision=, got "
                + ("neither." if self.covariance is None else "both.")
            )
        name = "precision" if self.covariance is None else "covariance"
        columns = column_names(getattr(self, name), name, numbered=True)
        if columns is not None:  # its rows go with its columns
            ordered = in_order(getattr(self, name), columns, f"the rows of the {name}")
            object.__setattr__(self, name, ordered)
        object.__setattr__(self, "_labels", columns)
        object.__setattr__(self, name, _positive_definite(getattr(self, name), name))

    def bind(self, joint: JointSamples) -> BoundMahalanobis:
        matrix = self.precision if self.covariance is None else _inverse(self.covariance)
        if len(matrix) != joint.dimension:
            raise ValueError(
                f"Mahalanobis has a matrix of shape {matrix.shape} but the uncertain parameters "
                f"have {joint.dimension} coordinates together; give one row per coordinate of "
                f"{', '.join(repr(p.name()) for p in joint.parameters)}."
            )
        what = "covariance or precision of Mahalanobis"
        order = label_order(self._labels, joint.labels, what, "column")
        return BoundMahalanobis(
            joint.dimension, matrix if order is None else matrix[order][:, order]
        )

    def describe(self) -> str:
        return "(xi - zeta)' P (xi - zeta)"


def _positive_definite(given: Any, name: str) -> np.ndarray:
    if isinstance(given, Mapping):
        raise ValueError(
            f"{name} of Mahalanobis is one matrix over the coordinates of all uncertain parameters,"
            " in the order of problem.uncertain_parameters(), not a dict; for one block for each "
            "parameter pass scipy.linalg.block_diag(first, second, ...)."
        )
    try:
        matrix = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} of Mahalanobis must be a real matrix, got {given!r}.") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} of Mahalanobis must be square, got shape {matrix.shape}.")
    if not np.all(np.isfinite(matrix)):
        raise ValueError(f"{name} of Mahalanobis must be finite.")
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > 1e-9 * float(np.abs(matrix).max()):
        raise ValueError(
            f"{name} of Mahalanobis must be symmetric, it differs from its transpose by {gap:.3g}; "
            "pass (M + M.T) / 2."
        )
    matrix = (matrix + matrix.T) / 2
    smallest = np.linalg.eigvalsh(matrix)[0]
    # A price beside a volume: definiteness is judged in units in which the diagonal is one.
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    definite = bool(np.all(scale > 0))
    if not definite or np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] <= 1e-14:
        raise ValueError(
            f"{name} of Mahalanobis must be positive definite, its smallest eigenvalue is "
            f"{smallest:.3g}; add a multiple of the identity."
        )
    matrix.flags.writeable = False
    return matrix


def _inverse(covariance: np.ndarray) -> np.ndarray:
    inverse = np.linalg.inv(covariance)
    return (inverse + inverse.T) / 2
