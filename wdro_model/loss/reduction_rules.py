"""Rules of the atoms that reduce an argument to fewer entries: over all of it, or along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wdro_model.loss import atoms
from wdro_model.loss.elementwise_rules import TINY, floored
from wdro_model.loss.rules import Kernel, Operand, own_axes, rule

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


@reduction(atoms.MAX)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: v.max(axis=axes, keepdims=True),
        lambda v, y, axes: _share(v == y, axes),
    )


@reduction(atoms.MIN)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: v.min(axis=axes, keepdims=True),
        lambda v, y, axes: _share(v == y, axes),
    )


@reduction(atoms.NORM1)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: np.abs(v).sum(axis=axes, keepdims=True),
        lambda v, y, axes: np.sign(v),
    )


@reduction(atoms.NORM_INF)
def _(_atom: Any) -> tuple[Any, Any]:
    return (
        lambda v, axes: np.abs(v).max(axis=axes, keepdims=True),
        lambda v, y, axes: np.sign(v) * _share(np.abs(v) == y, axes),
    )


@reduction(atoms.PNORM)
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


@reduction(atoms.LOG_SUM_EXP)
def _(_atom: Any) -> tuple[Any, Any]:
    def value(v: Any, axes: Axes) -> Any:
        top = v.max(axis=axes, keepdims=True)
        return top + np.log(np.exp(v - top).sum(axis=axes, keepdims=True))

    return value, lambda v, y, axes: np.exp(v - y)


@reduction(atoms.SUM_LARGEST)
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


@rule(atoms.GEO_MEAN, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
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


@rule(atoms.QUAD_OVER_LIN, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
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
