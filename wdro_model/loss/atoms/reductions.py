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

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.elementwise import TINY, floored
from wdro_model.loss.atoms.facts import (
    AtomFacts,
    Kernel,
    NoPieces,
    Operand,
    Operands,
    declare,
    missing_rule,
)
from wdro_model.loss.expressions import as_scalar, own_axes, reduced_entries

Axes = tuple[int, ...]


class Reduction:
    """The axes that an atom reduces, counted from the end."""

    def __init__(self, atom: Any, operand: Operand) -> None:
        self.axes = own_axes(operand.ndim, getattr(atom, "axis", None))
        self.keepdims = bool(getattr(atom, "keepdims", False))

    def drop(self, y: Any) -> Any:
        """The atom's value, from an array whose reduced axes have length one."""
        return y if self.keepdims else np.squeeze(y, axis=self.axes)

    def restore(self, g: Any) -> Any:
        """A gradient of the atom's shape, with reduced axes of length one."""
        return g if self.keepdims else np.expand_dims(g, self.axes)


@declare(atoms.AxisAtom)
class AlongAxes(AtomFacts):
    """A reduction along axes; subclasses give its value and its slope."""

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        """The value on v, the reduced axes kept with length one."""
        raise NotImplementedError

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        """The derivative, of the shape of v, where y is the value."""
        raise NotImplementedError

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        if type(self)._value is AlongAxes._value:
            raise missing_rule(atom)
        reduced = Reduction(atom, operands[0])
        axes = reduced.axes

        def kernel(v: Any) -> tuple[Any, ...]:
            v = np.asarray(v)
            y = self._value(atom, v, axes)
            return reduced.drop(y), lambda g: reduced.restore(g) * self._slope(atom, v, y, axes)

        return kernel

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        """Each entry depends on the entries of the argument that it combines."""
        if atom.axis is None or len(atom.args) > 1:
            return None
        taken = reduced_entries(atom)
        if len(taken) != atom.size:
            return None
        owner = np.repeat(np.arange(len(taken)), taken.shape[1])
        source = atom.args[0]
        shape = (atom.size, source.size)
        return sp.csr_array((np.ones(taken.size), (owner, taken.ravel())), shape) @ seen(source)


@declare(atoms.MAX, atoms.MIN)
class ExtremeEntry(AtomFacts):
    """The largest, or the smallest, entry; its slope has equal weights on entries that tie."""

    is_homogeneous = True

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        extreme = np.max if isinstance(atom, atoms.MAX) else np.min
        return extreme(v, axis=axes, keepdims=True)

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        return _share(v == y, axes)

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        if sign != (1 if isinstance(atom, atoms.MAX) else -1):
            raise NoPieces
        return at.union(at.entry_pieces(atom.args[0], k, sign) for k in at.reduced())


def _share(hits: Any, axes: Axes) -> Any:
    return hits / hits.sum(axis=axes, keepdims=True)


@declare(atoms.NORM1)
class SumOfAbsolutes(AtomFacts):
    """sum_i |v_i|."""

    is_homogeneous = True

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        return np.abs(v).sum(axis=axes, keepdims=True)

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        return np.sign(v)

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        return at.total(at.absolute(atom.args[0], k, sign) for k in at.reduced())

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        return [cp.abs(atom.args[0])] if atom.axis is None else None


@declare(atoms.NORM_INF)
class LargestAbsolute(AtomFacts):
    """max_i |v_i|."""

    is_homogeneous = True

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        return np.abs(v).max(axis=axes, keepdims=True)

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        return np.sign(v) * _share(np.abs(v) == y, axes)

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        return at.union(at.absolute(atom.args[0], k, sign) for k in at.reduced())


@declare(atoms.PNORM)
class PNorm(AtomFacts):
    """|v|_p with slope sign(v) (|v| / |v|_p)^(p-1), and 0 at v = 0; CVXPY's p < 1 on v >= 0."""

    is_homogeneous = True

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        p = float(atom.p)
        if p == 2:
            return np.sqrt((v * v).sum(axis=axes, keepdims=True))
        size = _size(v, p)
        largest = np.maximum(size.max(axis=axes, keepdims=True), TINY)
        with np.errstate(over="ignore"):
            total = ((size / largest) ** p).sum(axis=axes, keepdims=True)
        return largest * total ** (1 / p)

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        p = float(atom.p)
        if p == 2:
            return v / np.maximum(y, TINY)
        sign = np.sign(v) if p > 1 else 1.0
        return sign * (_size(v, p) / np.maximum(y, TINY)) ** (p - 1)


def _size(v: Any, p: float) -> Any:
    return np.abs(v) if p > 1 else floored(v)


@declare(atoms.LOG_SUM_EXP)
class SoftMaximum(AtomFacts):
    """log sum_i exp v_i."""

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        top = v.max(axis=axes, keepdims=True)
        return top + np.log(np.exp(v - top).sum(axis=axes, keepdims=True))

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        return np.exp(v - y)

    def far(self, atom: Any, arguments: list[Any]) -> Any | None:
        return cp.max(arguments[0], axis=atom.axis, keepdims=atom.keepdims)


@declare(atoms.SUM_LARGEST)
class LargestSum(AtomFacts):
    """The sum of the k largest entries; a fraction of the next one if k is not an integer."""

    is_homogeneous = True

    def _value(self, atom: Any, v: Any, axes: Axes) -> Any:
        return (v * self._slope(atom, v, None, axes)).sum(axis=axes, keepdims=True)

    def _slope(self, atom: Any, v: Any, y: Any, axes: Axes) -> Any:
        rows = np.moveaxis(v, axes, range(-len(axes), 0))
        flat = rows.reshape((*rows.shape[: rows.ndim - len(axes)], -1))
        order = np.argsort(-flat, axis=-1, kind="stable")
        taken = np.clip(float(atom.k) - np.arange(flat.shape[-1]), 0.0, 1.0)
        chosen = np.empty_like(flat)
        np.put_along_axis(chosen, order, np.broadcast_to(taken, flat.shape), axis=-1)
        return np.moveaxis(chosen.reshape(rows.shape), range(-len(axes), 0), axes)

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        """The maximum over all choices of k entries of their sum."""
        entries, k = at.reduced(), int(atom.k)
        if sign < 0 or k != atom.k or comb(len(entries), min(k, len(entries))) > at.limit:
            raise NoPieces
        return at.union(
            at.total(at.entry_pieces(atom.args[0], j, 1) for j in chosen)
            for chosen in combinations(entries, min(k, len(entries)))
        )


@declare(atoms.GEO_MEAN)
class GeometricMean(AtomFacts):
    """prod v_i^w_i."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """prod v_i^w_i and its slope w_i y / v_i; entries of weight zero are ignored."""
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
    """The weights in a shape that broadcasts to the argument; CVXPY lists them column-major."""
    lengths = [n if i - operand.ndim in axes else 1 for i, n in enumerate(operand.shape)]
    kept = np.asarray(getattr(atom, "_keep", np.ones(int(np.prod(lengths)), dtype=bool)))
    weights = np.zeros(kept.size)
    weights[kept] = [float(w) for w in atom.w]
    return weights.reshape(lengths, order="F")


@declare(atoms.QUAD_OVER_LIN)
class SumOfSquares(AtomFacts):
    """sum v^2 / t."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """sum v^2 / t; TINY replaces t = 0, so that 0 / 0 is 0."""
        reduced, divisor = Reduction(atom, operands[0]), operands[1]
        axes = own_axes(operands[0].ndim)

        def kernel(v: Any, t: Any) -> tuple[Any, ...]:
            t = np.where(np.equal(t, 0), TINY, t)
            shape = np.shape(t)
            t = t.reshape(shape[: len(shape) - divisor.ndim] + (1,) * operands[0].ndim)
            y = (v * v).sum(axis=reduced.axes, keepdims=True) / t

            def pull_t(g: Any) -> Any:
                d = (reduced.restore(g) * (-y / t)).sum(axis=axes)
                return d.reshape(d.shape + (1,) * divisor.ndim)

            return reduced.drop(y), lambda g: (reduced.restore(g) * (2 / t)) * v, pull_t

        return kernel

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return 2 * degrees[0] if degrees[1] == 0 else math.inf

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        return [(atom.args[1], math.inf)]

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
