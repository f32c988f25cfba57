"""The outer function h(x, u)/eps of a loss at one decision, on the forms u of several samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wdro_model.objectives.integration.kernel.exponents import Exponent
from wdro_model.objectives.integration.low_rank.form_anatomy import Anatomy
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Outer:
    """h/eps for K samples: constants of a sample (frozen data in h) stay beside its forms."""

    anatomy: Anatomy
    x: Array
    epsilon: float
    constants: Array
    """(K, f); f = 0 where h sees no frozen data."""

    def __call__(self, owner: Array, u: Array) -> Array:
        """h/eps at forms u (M, q) of the samples owner (M,)."""
        with np.errstate(all="ignore"):
            return self.anatomy.outer(self.x, self._rows(owner, u))[:, 0] / self.epsilon

    def with_slopes(self, owner: Array, u: Array) -> tuple[Array, Array]:
        """h/eps (M,) and its gradients (M, q) in u."""
        function = self.anatomy.outer
        with np.errstate(all="ignore"):
            values = function(self.x, self._rows(owner, u))[:, 0] / self.epsilon
            slopes = function.in_data(np.full((len(u), 1), 1.0 / self.epsilon))
            return values, slopes[:, : u.shape[1]]

    def gradients(
        self, owner: Array, u: Array, weights: Array, counts: Array | None = None
    ) -> tuple[Array, Array]:
        """The gradient in x of sum(counts * weights * h), and weights * h_u (M, q)."""
        function = self.anatomy.outer
        function(self.x, self._rows(owner, u))
        in_data = function.in_data(weights[:, None])[:, : u.shape[1]]
        seeds = weights if counts is None else weights * counts
        return function.in_decision(seeds[:, None]), in_data

    def pieces(self, u: Array) -> tuple[Array, Array]:
        """Values (K, P) at the forms of the samples and slopes (K or 1, P, q) of the pieces/eps."""
        pieces = self.anatomy.pieces
        assert pieces is not None
        rows = self._rows(np.arange(len(u)), u)
        values = pieces(self.x, rows)
        if self.anatomy.common_pieces:
            slopes = pieces.jacobian(self.x, rows[0])[None]
        else:
            slopes = pieces.jacobians(self.x, rows)
        return values / self.epsilon, slopes[..., : u.shape[1]] / self.epsilon

    def parabolas(self, u: Array, L: Array) -> tuple[Array, Array, Array]:
        """A quadratic h/eps at u + L t as c + b't + t'At/2: c (K,), b (K, r), A (K, r, r)."""
        size, rank = len(u), L.shape[-1]
        owner = np.arange(size)
        L = np.broadcast_to(L, (size, *L.shape[1:]))
        c, at_rest = self.with_slopes(owner, u)
        # Differences over steps of the size of u: those over L cancel for a small eps.
        length, far = np.linalg.norm(L, axis=1), 1 + np.linalg.norm(u, axis=1)[:, None]
        step = np.divide(far, length, where=length > 0, out=np.ones_like(length))
        A = np.empty((size, rank, rank))
        for i in range(rank):
            _, moved = self.with_slopes(owner, u + step[:, i, None] * L[:, :, i])
            A[:, i] = np.einsum("kq,kqr->kr", moved - at_rest, L) / step[:, i, None]
        return c, np.einsum("kq,kqr->kr", at_rest, L), A

    def along(self, base: Array, direction: Array, sample: Array | None = None) -> Exponent:
        """H(owner, t) = h(base + direction t)/eps, direction (K or 1, q)."""
        common = len(direction) == 1

        def exponent(owner: Array, t: Array) -> Array:
            moves = direction[0] if common else direction[owner]
            points = base[owner] + moves * t[:, None]
            return self(owner if sample is None else sample[owner], points)

        return exponent

    def _rows(self, owner: Array, u: Array) -> Array:
        if not self.constants.shape[1]:
            return u
        return np.concatenate([u, self.constants[owner]], axis=1)


@dataclass
class FormTarget:
    """g(t) = h(u_k + L t)/eps - |t|^2/2 for K samples, as a target of the finder of modes.

    u (K, q), L (K, q, r).
    """

    outer: Outer
    u: Array
    L: Array
    walled: bool = False
    dimension: int = field(init=False)

    def __post_init__(self) -> None:
        self.dimension = self.L.shape[-1]

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """g at points (M, r) of the samples owners (M,), +inf for NaN, and its gradients (M, r)."""
        values, slopes = self.outer.with_slopes(owners, self._forms(owners, moves))
        tilt = np.nan_to_num(np.einsum("mq,mqr->mr", slopes, self.L[owners]))
        return self._lowered(values, moves), tilt - moves

    def values(self, owners: Array, moves: Array) -> Array:
        return self._lowered(self.outer(owners, self._forms(owners, moves)), moves)

    def variance(self, owners: Array, moves: Array) -> Array:
        return np.ones((1, self.dimension))

    def bounds(self, owners: Array) -> None:
        return None

    def starts(self, owners: Array) -> list[Array]:
        return []

    def _forms(self, owners: Array, moves: Array) -> Array:
        return self.u[owners] + np.einsum("mqr,mr->mq", self.L[owners], moves)

    def _lowered(self, values: Array, moves: Array) -> Array:
        with np.errstate(invalid="ignore"):
            lowered = values - 0.5 * np.einsum("mr,mr->m", moves, moves)
        return np.where(np.isnan(lowered), np.inf, lowered)
