"""The loss as an affine function of block A of the data given block C, and the density of C.

With zeta = (zeta_A, s), s in block C, and f affine in zeta_A given s,

    f(x, (zeta_A, s)) = f(x, (xi_A, s)) + <B(x, s), zeta_A - xi_A>.

`SplitLoss` holds both blocks and evaluates the loss at nodes s of the samples. The integral over A
is taken in closed form (`block`); the integrals over C are taken on nodes around the modes of the
density that is left (`nodes`), or by adaptive cells (`BlockTarget`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.cvxpy_classes import (
    DIVIDE,
    ENTR,
    EXP,
    KL_DIV,
    LOG,
    LOG1P,
    LOGISTIC,
    POWER,
    REL_ENTR,
    SMOOTH_CLASSES,
    XEXP,
    family,
)
from wdro_model.loss.atoms.facts import facts_of, hidden_parameters
from wdro_model.loss.atoms.quadratic import StructuredAtom
from wdro_model.loss.batched import FlatLoss
from wdro_model.loss.expressions import Walk
from wdro_model.loss.polynomial import Degrees, degree
from wdro_model.model import RobustModel
from wdro_model.objectives.integration.conditional.block import (
    AffineBlock,
    BlockIntegral,
    Slopes,
)
from wdro_model.objectives.integration.frame import Frame, as_slice, frame_of
from wdro_model.objectives.integration.inner_integral import Scales
from wdro_model.objectives.integration.modes import Target
from wdro_model.objectives.integration.proposals import Bounds
from wdro_model.objectives.integration.targets import blocks, probe
from wdro_model.solvers.objective import Array

CHUNK_ENTRIES = 2**17
"""Numbers of scenarios that are evaluated at once (1 MiB: arrays that stay in the cache)."""


# ------------------------------
# The loss at nodes of block C


@dataclass(frozen=True)
class SplitLoss:
    """A loss, the block of parameters in which it is affine, and the block of the others."""

    loss: FlatLoss
    affine: tuple[Any, ...]
    """The parameters of block A."""
    others: tuple[Any, ...]
    """The parameters of block C."""
    block: AffineBlock
    frame: Frame
    """Of the moves of block C."""
    epsilon: float

    @classmethod
    def from_model(cls, model: RobustModel, scales: Scales) -> SplitLoss:
        """The blocks of a model whose loss is affine in some parameters."""
        affine = affine_block(model.expression, model.joint.parameters)
        others = remaining_parameters(model, affine)
        frames = [
            frame_of(model.joint, model.cost, scales.sigma, columns_of(model, parameters))
            for parameters in (affine, others)
        ]
        block = AffineBlock(frames[0], scales.epsilon)
        return cls(model.loss, affine, others, block, frames[1], scales.epsilon)

    @cached_property
    def _in_affine(self) -> Array | slice:
        return self._moving_positions(self.affine, self.block.frame)

    @cached_property
    def _in_others(self) -> Array | slice:
        return self._moving_positions(self.others, self.frame)

    def _moving_positions(self, parameters: tuple[Any, ...], frame: Frame) -> Array | slice:
        """Positions of the moving coordinates among those of the parameters, side by side."""
        slices = frame.joint.slices
        columns = np.concatenate([np.r_[slices[p]] for p in parameters])
        position = np.empty(frame.joint.dimension, dtype=int)
        position[columns] = np.arange(len(columns))
        return as_slice(position[frame.moving])

    def slopes_in_affine(self, x: Array, rows: Array, lenient: bool) -> tuple[Array, Array]:
        """f (B,) and its slopes (B, r_A) in block A; lenient: -inf and 0 where f is undefined."""
        return self._evaluate(x, rows, self.affine, self._in_affine, lenient)

    def slopes_in_others(self, x: Array, rows: Array) -> Array:
        """The slopes (B, r) of f in block C; 0 where f is undefined."""
        return self._evaluate(x, rows, self.others, self._in_others, True)[1]

    def _evaluate(
        self,
        x: Array,
        rows: Array,
        parameters: tuple[Any, ...],
        moving: Array | slice,
        lenient: bool,
    ) -> tuple[Array, Array]:
        if not lenient:
            values, pullback = self.loss(x, rows)
            return values.copy(), pullback.in_data(np.ones(len(rows)), parameters)[:, moving]
        try:
            with np.errstate(all="ignore"):
                values, slopes = self._evaluate(x, rows, parameters, moving, False)
        except (FloatingPointError, ValueError):
            # Rows outside the domain of the loss are separated by halving.
            values, raw = probe(self.loss, x, rows, np.ones(len(rows), dtype=bool), True)
            slices = self.frame.joint.slices
            slopes = np.concatenate([raw[:, slices[p]] for p in parameters], axis=1)[:, moving]
        finite = np.isfinite(slopes)
        return values, slopes if finite.all() else np.where(finite, slopes, 0.0)

    def chunks(self, size: int, count: int = 1) -> list[slice]:
        """Parts of `size` samples with `count` nodes each, to be evaluated one after another."""
        return blocks(size, count * self.frame.joint.dimension, CHUNK_ENTRIES)


class LossAtNodes:
    """The loss and its slopes in block A at nodes of the samples, at one decision.

    Parameters
    ----------
    owners: the samples, (K,).
    moves: of block C, (K, S, r).
    keep: are the slopes kept? Otherwise they are evaluated again where they are asked for.
    lenient: may nodes lie where the loss is not defined?
    """

    def __init__(
        self,
        split: SplitLoss,
        x: Array,
        owners: Array,
        moves: Array,
        *,
        keep: bool = True,
        lenient: bool = False,
    ) -> None:
        self._split, self._x, self._owners, self._moves = split, x, owners, moves
        self._lenient = lenient
        self.values, steep = self._evaluated()
        """f, block A at its sample, (K, S); -inf where it is not defined."""
        self._kept = steep if keep else None
        entries = None if keep else (lambda where, i: self._evaluated()[1][where, :, i])
        self.slopes: Slopes = split.block.slopes(owners, steep, entries=entries)

    def _evaluated(self) -> tuple[Array, Array]:
        """f and its slopes in the moving coordinates of block A, (K, S) and (K, S, r_A)."""
        shape = self._moves.shape[:2]
        values, slopes = self._split.slopes_in_affine(self._x, self._rows(), self._lenient)
        return values.reshape(shape), slopes.reshape(*shape, slopes.shape[1])

    def _rows(self) -> Array:
        """Scenarios (K S, d), block A at its samples."""
        owners = np.repeat(self._owners, self._moves.shape[1])
        return self._split.frame.rows(owners, self._moves.reshape(len(owners), -1))

    def tilted_rows(self, inner: BlockIntegral) -> Array:
        """Scenarios (K S, d), block A at its tilted mean."""
        block, rows = self._split.block, self._rows()
        steep = self._evaluated()[1] if self._kept is None else self._kept
        rows[:, block.frame.columns] += block.moves(inner, steep).reshape(len(rows), -1)
        return rows

    def outward(self, inner: BlockIntegral) -> Array:
        """The gradients of f in the moves of block C, block A at its tilted mean, (K, S, r)."""
        slopes = self._split.slopes_in_others(self._x, self.tilted_rows(inner))
        return slopes.reshape(self._moves.shape)

    def gradient(self, x: Array, inner: BlockIntegral, weights: Array) -> Array:
        """The sum of gradients at a decision x, near this one or not, weighted by (K, S).

        Block A is at the tilted mean that it has at the decision of the loss.
        """
        return self._split.loss(x, self.tilted_rows(inner))[1](weights.ravel())


# ------------------------------
# The density of block C, block A integrated out


class Marginal(Target):
    """Log densities h of the moves of block C; a target of the search for modes.

    h = f(x, (xi_A, s))/eps + log E_A[...] - sum y^2/(2 v), and by the envelope rule its gradient
    is that of f at the tilted mean of block A.
    """

    def __init__(self, split: SplitLoss, x: Array, dual: float) -> None:
        self.split, self.x, self.dual = split, x, dual
        self.frame: Frame = split.frame
        self.dimension = self.frame.dimension
        assert self.frame.weights is not None
        spread = self.frame.spread
        self._variance = spread / (1 + 2 * dual * self.frame.weights * spread / split.epsilon)

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """h (B,) and its gradients (B, r)."""
        return self._evaluate(owners, moves, slopes=True)

    def values(self, owners: Array, moves: Array) -> Array:
        """h alone."""
        return self._evaluate(owners, moves, slopes=False)[0]

    def costs(self, owners: Array, moves: Array) -> Array:
        """The transport cost of moves of block C, with its mean over block A, (B,)."""
        assert self.frame.weights is not None
        costs = moves**2 @ self.frame.weights
        for some, _, inner in self._chunks(owners, moves):
            costs[some] += inner.cost[:, 0]
        return costs

    def tilted_rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) with these moves of block C, and block A at its tilted mean."""
        there = LossAtNodes(self.split, self.x, owners, moves[:, None], lenient=True)
        return there.tilted_rows(self.split.block.integrate(there.slopes, self.dual))

    def _chunks(
        self, owners: Array, moves: Array
    ) -> Iterator[tuple[slice, LossAtNodes, BlockIntegral]]:
        """The loss at the moves and the integrals over block A, chunk by chunk."""
        for some in self.split.chunks(len(moves)):
            there = LossAtNodes(self.split, self.x, owners[some], moves[some, None], lenient=True)
            yield some, there, self.split.block.integrate(there.slopes, self.dual)

    def _evaluate(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        h, gradients = np.empty(len(moves)), np.zeros(moves.shape)
        with np.errstate(all="ignore"):
            for some, there, inner in self._chunks(owners, moves):
                h[some] = (there.values / self.split.epsilon + inner.log_value)[:, 0]
                if slopes:
                    gradients[some] = there.outward(inner)[:, 0] / self.split.epsilon
            h -= (moves**2 / (2 * self._variance)).sum(axis=1)
        if slopes:
            gradients -= moves / self._variance
            gradients[~np.isfinite(h)] = 0.0
        return h, gradients

    def variance(self, owners: Array, moves: Array) -> Array:
        """Variances (1, r) of the density without curvature of the loss."""
        return self._variance[None]

    def bounds(self, owners: Array) -> Bounds | None:
        """Bounds (B, r) of the moves; None on R^r."""
        return self.frame.bounds(owners)


class BlockTarget:
    """The density of block C at one decision, as the integrand of adaptive cells."""

    def __init__(self, split: SplitLoss, x: Array) -> None:
        self._split, self._x = split, x
        block = split.block
        self.numbers = 2 + block.frame.dimension + len(block.levels)

    def evaluate_points(self, owners: Array, moves: Array) -> tuple[Array, ...]:
        """f/eps - |t|^2/2, c_C, the slopes of f in block A, and their sums of squares."""
        split, frame = self._split, self._split.frame
        assert frame.weights is not None
        values = np.empty(len(moves))
        slopes = np.empty((len(moves), split.block.frame.dimension))
        for some in split.chunks(len(moves)):
            rows = frame.rows(owners[some], moves[some])
            values[some], slopes[some] = split.slopes_in_affine(self._x, rows, lenient=True)
        fixed = np.where(np.isneginf(values), np.nan, values) / split.epsilon
        fixed -= 0.5 * (moves**2 / frame.spread).sum(axis=1)
        with np.errstate(over="ignore"):
            squares = split.block.square_sums(slopes)
        return fixed, moves**2 @ frame.weights, slopes, squares

    def exponents(self, data: tuple[Array, ...], owners: Array, dual: float) -> Array:
        fixed, costs, *_ = data
        inner = self._inner(data, owners, dual)
        return fixed - (dual / self._split.epsilon) * costs + inner.log_value

    def cost_moments(
        self, data: tuple[Array, ...], owners: Array, dual: float
    ) -> tuple[Array, Array]:
        """The mean over block A of the transport cost, and its variance: NaN near a bound."""
        inner = self._inner(data, owners, dual)
        variance = np.full(inner.cost.shape, np.nan)
        if inner.cost_variance is not None:
            variance[:] = inner.cost_variance
        return data[1] + inner.cost, variance

    def _inner(self, data: tuple[Array, ...], owners: Array, dual: float) -> BlockIntegral:
        block = self._split.block
        return block.integrate(block.slopes(owners, data[2], data[3]), dual)

    def gradient(self, owners: Array, moves: Array, weights: Array, dual: float) -> Array:
        """The sum of gradients in x at nodes (B, r), block A at its tilted mean."""
        split, gradient = self._split, np.zeros(self._split.loss.dimension)
        for some in split.chunks(len(weights)):
            there = LossAtNodes(split, self._x, owners[some], moves[some, None], lenient=True)
            inner = split.block.integrate(there.slopes, dual)
            gradient += there.gradient(self._x, inner, weights[some, None])
        return gradient


# ------------------------------
# The blocks of a loss


TRIED_PARAMETERS = 12
"""Parameters up to which every subset is tried; beyond, parameters are added greedily."""


def affine_block(expression: Any, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters with the most coordinates in which a loss is jointly affine.

    Only parameters with a box or R^d as support count; () if there are none.
    """
    boxed = [p for p in parameters if p.support.bounds(p.shape) is not None]
    alone = [p for p in boxed if degree(expression, (p,)) <= 1]
    best: tuple[Any, ...] = ()
    if len(alone) > TRIED_PARAMETERS:
        for p in sorted(alone, key=lambda p: -p.size):
            if degree(expression, (*best, p)) <= 1:
                best = (*best, p)
        return best
    subsets = [s for count in range(1, len(alone) + 1) for s in combinations(alone, count)]
    for subset in sorted(subsets, key=lambda subset: -sum(p.size for p in subset)):
        if degree(expression, subset) <= 1:
            return subset
    return ()


def remaining_parameters(model: RobustModel, affine: tuple[Any, ...]) -> tuple[Any, ...]:
    """The uncertain parameters of a model that are not in the affine block."""
    return tuple(p for p in model.joint.parameters if all(p is not a for a in affine))


def columns_of(model: RobustModel, parameters: tuple[Any, ...]) -> Array:
    """The coordinates of some parameters in the data."""
    return np.concatenate([np.r_[model.joint.slices[p]] for p in parameters])


SMOOTH_ATOMS = {
    *(DIVIDE, ENTR, EXP, KL_DIV, LOG, LOG1P, LOGISTIC, POWER, REL_ENTR, XEXP),
    *SMOOTH_CLASSES.values(),
}
"""Atoms without kinks inside of their domain."""


def may_have_kinks(expression: Any, parameters: Iterable[Any]) -> bool:
    """Is an atom of the parameters not known to be smooth? Polynomials in them are."""
    return not _Smooth(parameters)(expression)


class _Smooth(Walk):
    """Is an expression known to be smooth in some parameters?"""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__()
        self._degrees = Degrees(parameters)

    def visit(self, expression: Any) -> bool:
        if isinstance(expression, Leaf) or self._degrees(expression) < float("inf"):
            return True
        if any(p.id in self._degrees.ids for p in hidden_parameters(expression)):
            return False
        known = isinstance(expression, AffAtom | StructuredAtom)
        known = known or family(expression) in SMOOTH_ATOMS
        return known and all(self(read) for read in facts_of(expression).reads(expression))
