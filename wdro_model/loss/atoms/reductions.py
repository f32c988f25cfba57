"""Atoms that reduce an argument to fewer entries: over all of it, or along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.atoms.cvxpy_classes import (
    GEO_MEAN,
    LOG_SUM_EXP,
    MAX,
    MIN,
    NORM1,
    NORM_INF,
    PNORM,
    QUAD_OVER_LIN,
    SUM_LARGEST,
    AxisAtom,
)
from wdro_model.loss.atoms.elementwise import TINY, floored
from wdro_model.loss.atoms.expressions import as_scalar, reduced_entries
from wdro_model.loss.atoms.facts import (
    AtomFacts,
    Kernel,
    NotPiecewise,
    NoVectorForm,
    Operand,
    declare,
    own_axes,
    rule,
)
from wdro_model.loss.atoms.samples import NumberPerSample, numbers

Axes = tuple[int, ...]
Operands = tuple[Operand, ...]


class Reduction:
    """The axes that an atom reduces, counted from the end, and how to drop and restore them."""

    def __init__(self, atom: Any, operand: Operand) -> None:
        self.axes = own_axes(operand.ndim, getattr(atom, "axis", None))
        self.keepdims = bool(getattr(atom, "keepdims", False))

    def drop(self, y: Any) -> Any:
        """The atom's value, from one whose reduced axes have length one."""
        return y if self.keepdims else np.squeeze(y, axis=self.axes)

    def restore(self, g: Any) -> Any:
        """A gradient of the atom's shape, with axes of length one where it was reduced."""
        return g if self.keepdims else np.expand_dims(g, self.axes)


def reduction(
    *classes: type,
) -> Callable[[Callable[[Any], tuple[Any, Any]]], Callable[[Any], tuple[Any, Any]]]:
    """Register an atom from a function of it that gives value(v, axes) and slope(v, y, axes).

    `value` keeps the reduced axes with length one; `slope` has the shape of v.
    """

    def register(function: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
        @rule(*classes, prepared=True)
        def _(atom: Any, operands: Operands) -> Kernel:
            shape = Reduction(atom, operands[0])
            value, slope = function(atom)

            def kernel(v: Any) -> tuple[Any, ...]:
                v = np.asarray(v)
                y = value(v, shape.axes)
                return shape.drop(y), lambda g: shape.restore(g) * slope(v, y, shape.axes)

            return kernel

        return function

    return register


def _share(hits: Any, axes: Axes) -> Any:
    """Equal weights on the entries that attain a maximum: a subgradient also where they tie."""
    return hits / hits.sum(axis=axes, keepdims=True)


@declare(AxisAtom)
class AlongAxes(AtomFacts):
    """What all reductions along axes have in common."""

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        """Each entry sees those that it is taken over."""
        if atom.axis is None or len(atom.args) > 1:
            return None
        taken = reduced_entries(atom)
        if len(taken) != atom.size:
            return None
        owner = np.repeat(np.arange(len(taken)), taken.shape[1])
        source = atom.args[0]
        shape = (atom.size, source.size)
        return sp.csr_array((np.ones(taken.size), (owner, taken.ravel())), shape) @ seen(source)


@declare(MAX, MIN, NORM1, NORM_INF, PNORM, SUM_LARGEST)
class Homogeneous(AtomFacts):
    """Norms and extremes: a factor goes inside."""

    is_homogeneous = True


@reduction(MAX)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: v.max(axis=axes, keepdims=True),
        lambda v, y, axes: _share(v == y, axes),
    )


@reduction(MIN)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: v.min(axis=axes, keepdims=True),
        lambda v, y, axes: _share(v == y, axes),
    )


@reduction(NORM1)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: np.abs(v).sum(axis=axes, keepdims=True),
        lambda v, y, axes: np.sign(v),
    )


@reduction(NORM_INF)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: np.abs(v).max(axis=axes, keepdims=True),
        lambda v, y, axes: np.sign(v) * _share(np.abs(v) == y, axes),
    )


@reduction(PNORM)
def _(atom: Any) -> tuple[Any, Any]:
    """|v|_p with slope sign(v) (|v| / |v|_p)^(p-1), and 0 at v = 0; CVXPY's p < 1 on v >= 0."""
    p = float(atom.p)
    if p == 2:
        return (
            lambda v, axes: np.sqrt((v * v).sum(axis=axes, keepdims=True)),
            lambda v, y, axes: v / np.maximum(y, TINY),
        )

    def size(v: Any) -> Any:
        return np.abs(v) if p > 1 else floored(v)

    def value(v: Any, axes: Axes) -> Any:
        largest = np.maximum(size(v).max(axis=axes, keepdims=True), TINY)
        with np.errstate(over="ignore"):
            total = ((size(v) / largest) ** p).sum(axis=axes, keepdims=True)
        return largest * total ** (1 / p)

    def slope(v: Any, y: Any, axes: Axes) -> Any:
        sign = np.sign(v) if p > 1 else 1.0
        return sign * (size(v) / np.maximum(y, TINY)) ** (p - 1)

    return value, slope


@reduction(LOG_SUM_EXP)
def _(_atom: Any) -> tuple[Any, Any]:
    def value(v: Any, axes: Axes) -> Any:
        top = v.max(axis=axes, keepdims=True)
        return top + np.log(np.exp(v - top).sum(axis=axes, keepdims=True))

    return value, lambda v, y, axes: np.exp(v - y)


@reduction(SUM_LARGEST)
def _(atom: Any) -> tuple[Any, Any]:
    """sum of the k largest entries; a fraction of the next one if k is not an integer."""
    k = float(atom.k)

    def weights(v: Any, axes: Axes) -> Any:
        rows = np.moveaxis(v, axes, range(-len(axes), 0))
        flat = rows.reshape((*rows.shape[: rows.ndim - len(axes)], -1))
        order = np.argsort(-flat, axis=-1, kind="stable")
        taken = np.clip(k - np.arange(flat.shape[-1]), 0.0, 1.0)
        chosen = np.empty_like(flat)
        np.put_along_axis(chosen, order, np.broadcast_to(taken, flat.shape), axis=-1)
        return np.moveaxis(chosen.reshape(rows.shape), range(-len(axes), 0), axes)

    return (
        lambda v, axes: (v * weights(v, axes)).sum(axis=axes, keepdims=True),
        lambda v, y, axes: weights(v, axes),
    )


@declare(MAX, MIN)
class LargestEntry(AtomFacts):
    """The largest, or the smallest, entry."""

    def pieces(self, atom: Any, entry: int, sign: int, walk: Any) -> list[Any]:
        if sign != (1 if isinstance(atom, MAX) else -1):
            raise NotPiecewise
        return walk.union(walk.of(atom.args[0], int(k), sign) for k in reduced_entries(atom)[entry])


@declare(NORM1, NORM_INF)
class PolyhedralNorm(AtomFacts):
    """The sum, or the largest, of the absolute values."""

    def pieces(self, atom: Any, entry: int, sign: int, walk: Any) -> list[Any]:
        combine = walk.union if isinstance(atom, NORM_INF) else walk.total
        entries = reduced_entries(atom)[entry]
        return combine(walk.absolute(atom.args[0], int(k), sign) for k in entries)

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        whole = isinstance(atom, NORM1) and atom.axis is None
        return [cp.abs(atom.args[0])] if whole else None


@declare(SUM_LARGEST)
class LargestSum(AtomFacts):
    """The maximum over all choices of k entries of their sum."""

    def pieces(self, atom: Any, entry: int, sign: int, walk: Any) -> list[Any]:
        entries, k = [int(j) for j in reduced_entries(atom)[entry]], int(atom.k)
        if sign < 0 or k != atom.k or comb(len(entries), min(k, len(entries))) > walk.limit:
            raise NotPiecewise
        return walk.union(
            walk.total(walk.of(atom.args[0], j, 1) for j in chosen)
            for chosen in combinations(entries, min(k, len(entries)))
        )


@declare(LOG_SUM_EXP)
class SoftMaximum(AtomFacts):
    """log sum exp."""

    def far(self, atom: Any, arguments: list[Any]) -> Any | None:
        return cp.max(arguments[0], axis=atom.axis, keepdims=atom.keepdims)


@declare(GEO_MEAN)
class GeometricMean(AtomFacts):
    """prod v_i^w_i."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """prod v_i^w_i and its slope w_i y / v_i; entries of weight zero take no part."""
        reduced = Reduction(atom, operands[0])
        weights = _geometric_weights(atom, operands[0], reduced.axes)

        def kernel(v: Any) -> tuple[Any, ...]:
            base = floored(np.where(weights > 0, v, 1.0))
            y = np.exp((weights * np.log(base)).sum(axis=reduced.axes, keepdims=True))
            vanishes = (base == TINY).any(axis=reduced.axes, keepdims=True)
            value = reduced.drop(np.where(vanishes, 0.0, y))
            return value, lambda g: reduced.restore(g) * (weights * y / base)

        return kernel


def _geometric_weights(atom: Any, operand: Operand, axes: Axes) -> np.ndarray:
    """The weights, broadcast against the argument; CVXPY counts entries in column-major order."""
    lengths = [n if i - operand.ndim in axes else 1 for i, n in enumerate(operand.shape)]
    kept = np.asarray(getattr(atom, "_keep", np.ones(int(np.prod(lengths)), dtype=bool)))
    weights = np.zeros(kept.size)
    weights[kept] = [float(w) for w in atom.w]
    return weights.reshape(lengths, order="F")


@declare(QUAD_OVER_LIN)
class SumOfSquares(AtomFacts):
    """sum v^2 / t."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """sum v^2 / t; at t = 0 the floor TINY stands for it, so that 0 / 0 counts as 0."""
        reduced = Reduction(atom, operands[0])
        over = operands[1]
        axes = own_axes(operands[0].ndim)

        def kernel(v: Any, t: Any) -> tuple[Any, ...]:
            t = np.where(np.equal(t, 0), TINY, t)
            shape = np.shape(t)
            t = t.reshape(shape[: len(shape) - over.ndim] + (1,) * operands[0].ndim)
            y = (v * v).sum(axis=reduced.axes, keepdims=True) / t

            def pull_over(g: Any) -> Any:
                d = (reduced.restore(g) * (-y / t)).sum(axis=axes)
                return d.reshape(d.shape + (1,) * over.ndim)

            return reduced.drop(y), lambda g: (reduced.restore(g) * (2 / t)) * v, pull_over

        return kernel

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return 2 * degrees[0] if degrees[1] == 0 else math.inf

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        over, by = atom.args
        if getattr(atom, "axis", None) is not None or split.degrees(by) > 0:
            return None
        return [cp.square(over) / as_scalar(by)]

    def square(self, atom: Any) -> tuple[Any, Any] | None:
        over, by = atom.args
        return (over, by) if atom.size == 1 and over.size == 1 and by.is_constant() else None

    def times(self, atom: Any, factor: float, push: Callable[[Any, float], Any]) -> Any:
        over, by = atom.args
        return atom.copy([push(over, factor**0.5), by])

    def over_samples(self, atom: Any, arguments: list[Any]) -> Any:
        over, by = numbers(arguments)
        if atom.size != 1 or not by.is_constant():
            raise NoVectorForm
        return NumberPerSample(cp.square(over) / by)
