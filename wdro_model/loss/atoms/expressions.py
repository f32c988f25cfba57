"""Small expressions that the facts of atoms are written with, units, and a number per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.cvxpy_classes import MATMUL, PROMOTE
from wdro_model.loss.atoms.facts import NoVectorForm

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


def own_axes(ndim: int, axis: Any = None) -> tuple[int, ...]:
    """Axes of an expression counted from the end, so that they do not see the batch axis."""
    if axis is None:
        return tuple(range(-ndim, 0))
    return tuple(int(a) % ndim - ndim for a in np.atleast_1d(axis)) if ndim else ()


# ------------------------------------------------------------------ units
ORDINARY = 1e3
"""Numbers within this factor of one are left in their units."""
SCALABLE = {"nonneg", "nonpos", "pos", "neg", "bounds", "symmetric", "diag", "PSD", "NSD"}
"""Attributes of a variable that mean the same in another unit."""


def is_ordinary(number: float) -> bool:
    """Is the number of order one?"""
    return 1.0 / ORDINARY <= number <= ORDINARY


def power_of_two(number: float) -> float:
    """The nearest power of two: nothing is rounded by it. 1 for what is no positive number."""
    if not (np.isfinite(number) and number > 0):
        return 1.0
    return float(2.0 ** np.clip(np.round(np.log2(number)), -1000, 1000))


def declared(variable: Any) -> dict[str, Any]:
    """The attributes that a variable was declared with."""
    return {k: v for k, v in variable.attributes.items() if v is not None and v is not False}


def is_scalable(variable: Any) -> bool:
    """Can the variable be measured in another unit?"""
    return set(declared(variable)) <= SCALABLE


# ------------------------------------------------------------------ all samples at once
@dataclass(frozen=True)
class NumberPerSample:
    """A number for each sample, as a CVXPY vector of N entries.

    Over all samples a scalar parameter becomes a vector of N entries, a vector parameter a matrix
    of N rows, <xi, x> a matrix product, and entrywise atoms act on vectors. For atoms of other
    shapes there is no such form.
    """

    vector: Any


@dataclass(frozen=True)
class VectorPerSample:
    """A vector for each sample: data (N, d), times a certain vector where `weights` is given."""

    data: np.ndarray
    weights: Any = None

    def total(self) -> NumberPerSample:
        """The sum of the entries."""
        if self.weights is None:
            return NumberPerSample(cp.Constant(self.data.sum(axis=1)))
        return NumberPerSample(self.data @ self.weights)


PerSample = NumberPerSample | VectorPerSample


def per_sample(values: np.ndarray) -> PerSample:
    """The samples of a parameter."""
    if values.ndim == 1:
        return NumberPerSample(cp.Constant(values))
    if values.ndim == 2:
        return VectorPerSample(values)
    raise NoVectorForm


def numbers(arguments: list[Any]) -> list[Any]:
    """Vectors for numbers per sample and scalars for what is certain; nothing else may stand."""
    out = []
    for a in arguments:
        if isinstance(a, VectorPerSample) or (not isinstance(a, NumberPerSample) and a.size != 1):
            raise NoVectorForm
        out.append(a.vector if isinstance(a, NumberPerSample) else as_scalar(a))
    return out


def certain_number(a: Any) -> float:
    """The value of a certain number that is known now."""
    if isinstance(a, PerSample) or a.size != 1 or not a.is_constant() or a.value is None:
        raise NoVectorForm
    return float(np.reshape(a.value, ()))


def repeated(atom: Any, arguments: list[Any]) -> Any:
    """An atom of one entry that is its argument."""
    if atom.size != 1 or not isinstance(arguments[0], NumberPerSample):
        raise NoVectorForm
    return arguments[0]
