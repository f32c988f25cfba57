"""The outer function h(x, u)/eps of a loss at one decision, on the forms u of several samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.loss.stacked import Stacked
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Outer:
    """h/eps for K samples: constants of a sample (frozen data in h) stay beside its forms."""

    function: Stacked
    """h, of rows (u, constants)."""
    x: Array
    epsilon: float
    constants: Array
    """(K, f); f = 0 where h sees no frozen data."""
    curvature: str
    """Of h in u: "affine", "convex", "concave" or "unknown"."""
    quadratic: bool
    """Is h a polynomial of degree two in u?"""
    pieces: Stacked | None
    """Functions affine in u whose maximum is h."""
    common_pieces: bool
    """Are their slopes the same for all samples?"""

    def __call__(self, owner: Array, u: Array) -> Array:
        """h/eps at forms u (M, q) of the samples owner (M,)."""
        with np.errstate(all="ignore"):
            return self.function(self.x, self.rows(owner, u))[:, 0] / self.epsilon

    def slopes(self, owner: Array, u: Array) -> Array:
        """The gradients (M, q) of h/eps in u."""
        with np.errstate(all="ignore"):
            self.function(self.x, self.rows(owner, u))
            seeds = np.full((len(u), 1), 1.0 / self.epsilon)
            return self.function.in_data(seeds)[:, : u.shape[1]]

    def gradients(self, owner: Array, u: Array, weights: Array) -> tuple[Array, Array]:
        """The gradient in x of sum(weights * h), and weights * h_u (M, q)."""
        self.function(self.x, self.rows(owner, u))
        seeds = weights[:, None]
        in_data = self.function.in_data(seeds)[:, : u.shape[1]]
        return self.function.in_decision(seeds), in_data

    def lines(self, u: Array) -> tuple[Array, Array]:
        """Values (K, P) at the forms of the samples and slopes (K or 1, P, q) of the pieces/eps."""
        assert self.pieces is not None
        rows = self.rows(np.arange(len(u)), u)
        values = self.pieces(self.x, rows)
        if self.common_pieces:
            slopes = self.pieces.jacobian(self.x, rows[0])[None]
        else:
            slopes = self.pieces.jacobians(self.x, rows)
        return values / self.epsilon, slopes[..., : u.shape[1]] / self.epsilon

    def rows(self, owner: Array, u: Array) -> Array:
        if not self.constants.shape[1]:
            return u
        return np.concatenate([u, self.constants[owner]], axis=1)
