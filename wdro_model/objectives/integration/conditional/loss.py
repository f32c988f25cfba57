"""The loss as an affine function of block A of the data given block C, and the density of C.

Where f is smooth in block C a few hundred evaluations tell it for all samples (`block_table`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol

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
from wdro_model.loss.expressions import Walk
from wdro_model.loss.polynomial import Degrees, degree
from wdro_model.objectives.integration.conditional.integral import BlockIntegral, Slopes
from wdro_model.objectives.integration.conditional.modes import PricedTarget
from wdro_model.objectives.integration.frame import Frame
from wdro_model.objectives.integration.proposals import Bounds
from wdro_model.objectives.integration.targets import probe
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Columns, Conditional


TRIED_PARAMETERS = 12
"""Up to so many parameters every subset is looked at; beyond, parameters are added greedily."""


def affine_block(expression: Any, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters with the most coordinates in which a loss is jointly affine.

    Only parameters with a box or R^d as support are looked at; () if there are none.
    """
    boxed = [p for p in parameters if p.support.bounds(p.shape) is not None]
    alone = [p for p in boxed if degree(expression, (p,)) <= 1]
    if len(alone) > TRIED_PARAMETERS:
        return _greedy(expression, alone)
    best: tuple[Any, ...] = ()
    for count in range(1, len(alone) + 1):
        for subset in combinations(alone, count):
            if _size(subset) > _size(best) and degree(expression, subset) <= 1:
                best = subset
    return best


def _greedy(expression: Any, alone: list[Any]) -> tuple[Any, ...]:
    best: tuple[Any, ...] = ()
    for p in sorted(alone, key=lambda p: -math.prod(p.shape)):
        if degree(expression, (*best, p)) <= 1:
            best = (*best, p)
    return best


def _size(subset: tuple[Any, ...]) -> int:
    return sum(math.prod(p.shape) for p in subset)


# ------------------------------
# What the integrals need of the loss at nodes of the block C: evaluated there


class BlockLoss(Protocol):
    """The loss at S nodes of K samples, at one decision."""

    @property
    def values(self) -> Array:
        """f, the block A at its sample, (K, S); -inf where it is not defined."""

    @property
    def slopes(self) -> Slopes:
        """What the integrals over block A need of the slopes there."""

    def outward(self, inner: BlockIntegral) -> Array:
        """The gradients of f in the moves of block C, the block A at its tilted mean, (K, S, r)."""

    def gradient(self, x: Array, inner: BlockIntegral, weights: Array) -> Array:
        """The sum of gradients at a decision x, near this one or not, weighted by (K, S).

        The block A is at the tilted mean that it has at the decision of the loss.
        """


class LossAtNodes:
    """The loss, evaluated at every node.

    Parameters
    ----------
    owners: the samples, (K,).
    moves: of block C, (K, S, r).
    keep: are the slopes kept? Otherwise they are evaluated again where they are asked for.
    lenient: may nodes lie where the loss is not defined?
    """

    def __init__(
        self,
        rule: Conditional,
        x: Array,
        owners: Array,
        moves: Array,
        *,
        keep: bool = True,
        lenient: bool = False,
    ) -> None:
        self._rule, self._x, self._owners, self._moves = rule, x, owners, moves
        self._lenient = lenient
        self.values, slopes = self._evaluated()
        self._kept = slopes if keep else None
        entries = (
            None if keep else (lambda samples, coordinates: self._steep[samples, :, coordinates])
        )
        self.slopes = rule.block.slopes(owners, slopes, entries)

    def _evaluated(self) -> tuple[Array, Array]:
        """f and its slopes in the moving coordinates of block A, (K, S) and (K, S, r_A)."""
        rule, shape = self._rule, self._moves.shape[:2]
        look = looked if self._lenient else evaluated
        values, slopes = look(rule, self._x, self._rows(), rule.affine, rule.in_block)
        return values.reshape(shape), slopes.reshape(*shape, rule.block.frame.dimension)

    @property
    def _steep(self) -> Array:
        return self._evaluated()[1] if self._kept is None else self._kept

    def _rows(self) -> Array:
        """Scenarios (K S, d), the block A at its samples."""
        repeated = np.repeat(self._owners, self._moves.shape[1])
        moves = self._moves.reshape(len(repeated), self._rule.frame.dimension)
        return self._rule.frame.rows(repeated, moves)

    def tilted_rows(self, inner: BlockIntegral) -> Array:
        """Scenarios (K S, d), the block A at its tilted mean."""
        block, rows = self._rule.block, self._rows()
        rows[:, block.frame.columns] += block.moves(inner, self._steep).reshape(len(rows), -1)
        return rows

    def outward(self, inner: BlockIntegral) -> Array:
        rule = self._rule
        _, slopes = looked(rule, self._x, self.tilted_rows(inner), rule.others, rule.in_others)
        return slopes.reshape(self._moves.shape)

    def gradient(self, x: Array, inner: BlockIntegral, weights: Array) -> Array:
        return self._rule.loss(x, self.tilted_rows(inner))[1](weights.ravel())


def evaluated(
    rule: Conditional, x: Array, rows: Array, parameters: tuple[Any, ...], columns: Columns
) -> tuple[Array, Array]:
    """f and its gradient in the moving coordinates of some parameters, (B,) and (B, r)."""
    values, pullback = rule.loss(x, rows)
    return values.copy(), columns.of(pullback.in_data(np.ones(len(rows)), parameters))


def looked(
    rule: Conditional, x: Array, rows: Array, parameters: tuple[Any, ...], columns: Columns
) -> tuple[Array, Array]:
    """The same; -inf and 0 where f is not defined."""
    try:
        with np.errstate(all="ignore"):
            values, slope = evaluated(rule, x, rows, parameters, columns)
    except (FloatingPointError, ValueError):
        # Some of the rows lie outside the domain of the loss: found one by one.
        good = np.ones(len(rows), dtype=bool)
        values, raw = probe(rule.loss, x, rows, good, True)
        slices = rule.joint.slices
        slope = columns.of(np.concatenate([raw[:, slices[p]] for p in parameters], axis=1))
    return values, slope if np.isfinite(slope).all() else np.where(np.isfinite(slope), slope, 0)


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


# ------------------------------
# The density of the block C of the data, the affine block A integrated out


class Marginal(PricedTarget):
    """Log densities h of the moves of block C; a target of the search for modes.

    h = f(x, (xi_A, s))/eps + log E_A[...] - sum y^2/(2 v), and by the envelope rule its gradient
    is that of f at the tilted mean of block A.
    """

    def __init__(self, rule: Conditional, x: Array, dual: float) -> None:
        self.rule, self.x, self.dual = rule, x, dual
        self.frame: Frame = rule.frame
        self.dimension = self.frame.dimension
        assert self.frame.weights is not None
        spread = self.frame.spread
        self._variance = spread / (1 + 2 * dual * self.frame.weights * spread / rule.epsilon)

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        return self._evaluate(owners, moves, slopes=True)

    def values(self, owners: Array, moves: Array) -> Array:
        return self._evaluate(owners, moves, slopes=False)[0]

    def costs(self, owners: Array, moves: Array) -> Array:
        """The transport cost of moves of block C, with its mean over block A, (B,)."""
        return self.cost_moments(owners, moves)[0]

    def cost_moments(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """The mean over block A of the transport cost, and its variance: NaN near a bound, (B,)."""
        mean, variance = np.empty(len(moves)), np.full(len(moves), np.nan)
        assert self.frame.weights is not None
        for some, _, inner in self._looked(owners, moves):
            mean[some] = inner.cost[:, 0] + moves[some] ** 2 @ self.frame.weights
            if inner.cost_variance is not None:
                variance[some] = inner.cost_variance[:, 0]
        return mean, variance

    def exponents(self, owners: Array, moves: Array) -> Array:
        """h without the Gaussian of reference and cost, (B,)."""
        found = np.empty(len(moves))
        with np.errstate(all="ignore"):
            for some, loss, inner in self._looked(owners, moves):
                found[some] = (loss.values / self.rule.epsilon + inner.log_value)[:, 0]
        return found

    def tilted_rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) with these moves of block C, and block A at its tilted mean."""
        there = LossAtNodes(self.rule, self.x, owners, moves[:, None], lenient=True)
        return there.tilted_rows(self.rule.block.integrate(there.slopes, self.dual))

    def _looked(
        self, owners: Array, moves: Array
    ) -> Iterator[tuple[slice, BlockLoss, BlockIntegral]]:
        """The loss at the moves, and the integral over block A; some after the other."""
        rule = self.rule
        for some in rule.blocks(self.x, len(moves)):
            loss = rule.looked(self.x, owners[some], moves[some, None], lenient=True)
            yield some, loss, rule.block.integrate(loss.slopes, self.dual)

    def _evaluate(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        h, gradients = np.empty(len(moves)), np.zeros(moves.shape)
        epsilon = self.rule.epsilon
        with np.errstate(all="ignore"):
            for some, loss, inner in self._looked(owners, moves):
                h[some] = (loss.values / epsilon + inner.log_value)[:, 0]
                if slopes:
                    gradients[some] = loss.outward(inner)[:, 0] / epsilon
            h -= (moves**2 / (2 * self._variance)).sum(axis=1)
        if slopes:
            gradients -= moves / self._variance
            gradients[~np.isfinite(h)] = 0.0
        return h, gradients

    def variance(self, owners: Array, moves: Array) -> Array:
        return self._variance[None]

    def bounds(self, owners: Array) -> Bounds | None:
        return self.frame.bounds(owners)
