"""Coordinates in which the reference and a quadratic cost are diagonal together.

The reference N(xi_k, diag sigma^2) and the cost (zeta - xi_k)' P (zeta - xi_k) become z ~ N(0, I)
and sum_i lambda_i z_i^2 with zeta = xi_k + R z. The cost alone tilts z to N(0, V),
v_i = 1/(1 + 2 l lambda_i/eps).
"""

from __future__ import annotations

import numpy as np

from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost


class Whitening:
    """Coordinates z of the moving data in which reference and cost are diagonal.

    weights: lambda (d,), the cost of a unit move of each z_i; uniform: their common value, None
    where they differ; free: which coordinates of the data move.
    """

    def __init__(self, cost: BoundCost, sigma: float | Array) -> None:
        self.free = ~cost.frozen
        spread = np.broadcast_to(np.asarray(sigma, dtype=float), (cost.dimension,))[self.free]
        self.deviation = spread
        """sigma of the coordinates that move: dzeta/dz where the cost is separable."""
        self._turn: Array | None = None
        if not cost.is_separable:
            block = cost.matrix[np.ix_(self.free, self.free)]
            self.weights, turn = np.linalg.eigh(spread[:, None] * block * spread)
            self._turn = spread[:, None] * turn
        else:
            self.weights = cost.coordinate_weights[self.free] * spread**2
        self.dimension = len(self.weights)
        self._whole = bool(self.free.all())
        same = self.dimension > 0 and np.ptp(self.weights) <= 1e-14 * self.weights.max()
        self.uniform = float(self.weights[0]) if same else None

    def moving(self, rows: Array) -> Array:
        """The coordinates of data (..., d) that move; a view where all do."""
        return rows if self._whole else rows[..., self.free]

    def slopes(self, gradients: Array) -> Array:
        """Derivatives in z from derivatives (..., d) in the data."""
        free = self.moving(gradients)
        return free * self.deviation if self._turn is None else free @ self._turn

    def moves(self, z: Array) -> Array:
        """The displacements of the data (..., d) that coordinates z stand for."""
        moved = z * self.deviation if self._turn is None else z @ self._turn.T
        if self._whole:
            return moved
        full = np.zeros((*z.shape[:-1], len(self.free)))
        full[..., self.free] = moved
        return full

    def variances(self, dual: float | Array, epsilon: float) -> Array:
        """v (d,), or (J, d) for several duals: those of z under the tilt of the cost alone."""
        return 1.0 / (1.0 + 2.0 * np.multiply.outer(dual, self.weights) / epsilon)
