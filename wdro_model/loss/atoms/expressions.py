"""Small expressions that the facts of atoms are written with."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.cvxpy_classes import MATMUL, PROMOTE
from wdro_model.loss.atoms.facts import own_axes

Shape = tuple[int, ...]


def as_scalar(expression: Any) -> Any:
    """An expression of one entry, with shape ()."""
    return expression if expression.shape == () else cp.reshape(expression, (), order="C")


def total(terms: list[Any]) -> Any | None:
    """The sum of some expressions, None for none."""
    return sum(terms[1:], terms[0]) if terms else None


def outer(u: Any, v: Any) -> Any:
    """u v', as one product of a column and a row."""
    column = cp.reshape(u, (u.size, 1), order="C")
    return MATMUL(column, cp.reshape(v, (1, v.size), order="C"))


def weighted(g: Any, factor: Any) -> Any:
    """g * factor, without the product where g is the constant one."""
    if isinstance(g, cp.Constant) and g.shape in ((), factor.shape) and np.all(g.value == 1.0):
        return factor
    return cp.multiply(g, factor)


def spread(e: Any, shape: Shape) -> Any:
    """The expression broadcast to a shape, in atoms that all of CVXPY's backends know if it can."""
    if e.shape == shape:
        return e
    if isinstance(e, cp.Constant) and isinstance(e.value, np.ndarray | np.generic):
        return cp.Constant(np.broadcast_to(e.value, shape))
    return PROMOTE(e, shape) if e.shape == () else cp.broadcast_to(e, shape)


def unbroadcast(g: Any, shape: Shape) -> Any:
    """The transpose of broadcasting `shape` to g's: sums over the axes that were stretched."""
    if g.shape == shape:
        return g
    padded = (1,) * (g.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(padded) if n != g.shape[i])
    summed = cp.sum(g, axis=axes, keepdims=True) if axes else g
    return summed if summed.shape == shape else cp.reshape(summed, shape, order="C")


def the_number(e: Any) -> Any:
    """What a promoted number promotes; anything else is itself."""
    return e.args[0] if isinstance(e, PROMOTE) else e


def constant_number(e: Any) -> float | None:
    """The value of a constant whose entries are all the same one."""
    e = the_number(e)
    return float(np.reshape(e.value, ())) if isinstance(e, cp.Constant) and e.size == 1 else None


# ------------------------------------------------------------------ entries, in column-major order
def entry_of(e: Any, entry: int) -> Any:
    """One entry of an expression as a scalar."""
    if e.size == 1:
        return as_scalar(e)
    where = tuple(int(i) for i in np.unravel_index(entry, e.shape, order="F"))
    return cp.Constant(e.value[where]) if isinstance(e, cp.Constant) else e[where]


def broadcast_entry(shape: Shape, entry: int, source: Shape) -> int:
    """The entry of an argument of shape `source` that an entry of the broadcast shape reads."""
    labels = np.arange(int(np.prod(source))).reshape(source, order="F")
    return int(np.broadcast_to(labels, shape).ravel(order="F")[entry])


def reduced_entries(e: Any) -> np.ndarray:
    """For each entry of a reduction along axes, the entries of the argument it is taken over."""
    source = e.args[0]
    labels = np.arange(source.size).reshape(source.shape, order="F")
    axes = own_axes(source.ndim, e.axis)
    rows = np.moveaxis(labels, axes, range(-len(axes), 0)) if axes else labels
    kept = rows.reshape((*rows.shape[: rows.ndim - len(axes)], -1))
    return kept.reshape((-1, kept.shape[-1]), order="F")
