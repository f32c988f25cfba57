"""Tools for CVXPY expressions: building blocks, entries, units, walks over trees, rewriting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.cvxpy_classes import ADD, MATMUL, PROMOTE
from wdro_model.loss.atoms.facts import facts_of

Shape = tuple[int, ...]


def as_scalar(expression: Any) -> Any:
    """The expression, which has one entry, reshaped to ()."""
    return expression if expression.shape == () else cp.reshape(expression, (), order="C")


def total(terms: list[Any]) -> Any | None:
    """The sum of the terms; None for an empty list."""
    return sum(terms[1:], terms[0]) if terms else None


def outer(u: Any, v: Any) -> Any:
    """u v', as one product of a column and a row."""
    column = cp.reshape(u, (u.size, 1), order="C")
    return MATMUL(column, cp.reshape(v, (1, v.size), order="C"))


def weighted(g: Any, factor: Any) -> Any:
    """g * factor, entry by entry; the factor itself where g is constantly 1."""
    if isinstance(g, cp.Constant) and g.shape in ((), factor.shape) and np.all(g.value == 1.0):
        return factor
    return cp.multiply(g, factor)


def spread(e: Any, shape: Shape) -> Any:
    """The expression broadcast to a shape, by `promote` where it can: all backends know it."""
    if e.shape == shape:
        return e
    if isinstance(e, cp.Constant) and isinstance(e.value, np.ndarray | np.generic):
        return cp.Constant(np.broadcast_to(e.value, shape))
    return PROMOTE(e, shape) if e.shape == () else cp.broadcast_to(e, shape)


def unbroadcast(g: Any, shape: Shape) -> Any:
    """The adjoint of broadcasting `shape` to the shape of g: sums over the stretched axes."""
    if g.shape == shape:
        return g
    padded = (1,) * (g.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(padded) if n != g.shape[i])
    summed = cp.sum(g, axis=axes, keepdims=True) if axes else g
    return summed if summed.shape == shape else cp.reshape(summed, shape, order="C")


def the_number(e: Any) -> Any:
    """The number that a promotion repeats; any other expression itself."""
    return e.args[0] if isinstance(e, PROMOTE) else e


def constant_number(e: Any) -> float | None:
    """The value of a constant number, also of a promoted one; None for other expressions."""
    e = the_number(e)
    return float(np.reshape(e.value, ())) if isinstance(e, cp.Constant) and e.size == 1 else None


# ------------------------------------------------------------------ entries
# Entries are counted in column-major order, as in CVXPY.
def entry_of(e: Any, entry: int, order: Literal["C", "F"] = "F") -> Any:
    """An entry of an expression as a scalar; order "C" counts the entries row by row."""
    if e.size == 1:
        return as_scalar(e)
    where = tuple(int(i) for i in np.unravel_index(entry, e.shape, order=order))
    return cp.Constant(e.value[where]) if isinstance(e, cp.Constant) else e[where]


def broadcast_entry(shape: Shape, entry: int, source: Shape) -> int:
    """The entry of `source` that is broadcast to this entry of `shape`."""
    labels = np.arange(int(np.prod(source))).reshape(source, order="F")
    return int(np.broadcast_to(labels, shape).ravel(order="F")[entry])


def reduced_entries(e: Any) -> np.ndarray:
    """(size of e, k): the k entries of the argument that each entry of a reduction e combines."""
    source = e.args[0]
    labels = np.arange(source.size).reshape(source.shape, order="F")
    axes = own_axes(source.ndim, e.axis)
    rows = np.moveaxis(labels, axes, range(-len(axes), 0)) if axes else labels
    groups = rows.reshape((*rows.shape[: rows.ndim - len(axes)], -1))
    return groups.reshape((-1, groups.shape[-1]), order="F")


def own_axes(ndim: int, axis: Any = None) -> tuple[int, ...]:
    """The axes of an expression, counted from the end: a batch axis in front changes nothing."""
    if axis is None:
        return tuple(range(-ndim, 0))
    return tuple(int(a) % ndim - ndim for a in np.atleast_1d(axis)) if ndim else ()


# ------------------------------------------------------------------ units
ORDINARY = 1e3
"""Factor from 1 within which numbers are not rescaled: conic solvers need no help there."""
SCALABLE = {"nonneg", "nonpos", "pos", "neg", "bounds", "symmetric", "diag", "PSD", "NSD"}
"""Attributes of a variable that hold in any unit."""


def is_ordinary(number: float) -> bool:
    """True for a number between 1 / ORDINARY and ORDINARY."""
    return 1.0 / ORDINARY <= number <= ORDINARY


def power_of_two(number: float) -> float:
    """The nearest power of two, a factor without rounding; 1 unless the number is positive."""
    if not (np.isfinite(number) and number > 0):
        return 1.0
    return float(2.0 ** np.clip(np.round(np.log2(number)), -1000, 1000))


def declared_attributes(variable: Any) -> dict[str, Any]:
    """The attributes that a variable was declared with."""
    return {k: v for k, v in variable.attributes.items() if v is not None and v is not False}


def is_scalable(variable: Any) -> bool:
    """True if the variable can be measured in another unit."""
    return set(declared_attributes(variable)) <= SCALABLE


# ------------------------------------------------------------------ trees
class Walk:
    """A recursive function of expressions, computed once for each of them.

    `Walk(visit)` calls visit(walk, expression); `visit` calls walk(argument) for the arguments. A
    subclass overrides `visit`, or `leaf` and `atom`, which gets the values of the arguments.
    """

    def __init__(self, visit: Callable[[Any, Any], Any] | None = None) -> None:
        self._values: dict[int, tuple[Any, Any]] = {}
        if visit is not None:
            self.visit = partial(visit, self)  # type: ignore[method-assign]

    def __call__(self, expression: Any) -> Any:
        if id(expression) not in self._values:
            # The reference to the expression keeps its id from being used again.
            self._values[id(expression)] = (expression, self.visit(expression))
        return self._values[id(expression)][1]

    def visit(self, expression: Any) -> Any:
        if isinstance(expression, Leaf):
            return self.leaf(expression)
        return self.atom(expression, [self(argument) for argument in expression.args])

    def leaf(self, leaf: Any) -> Any:
        return leaf

    def atom(self, atom: Any, arguments: list[Any]) -> Any:
        """The atom with these arguments; the atom itself where nothing changed."""
        is_same = all(new is old for new, old in zip(arguments, atom.args))
        return atom if is_same else atom.copy(arguments)


def substitute(expression: Any, values: Mapping[Any, np.ndarray]) -> Any:
    """The expression with each parameter or variable in `values` replaced by a constant.

    Other leaves stay the same objects. A `StructuredAtom` becomes an atom of CVXPY where its new
    arguments allow it.

    Examples
    --------
    >>> from wdro_model.counterparts import substitute
    >>> certain = substitute(price @ x, {price: np.array([3.0, 4.0])})
    >>> x.value = [1.0, 1.0]
    >>> float(certain.value)
    7.0
    """

    def visit(walk: Walk, e: Any) -> Any:
        if isinstance(e, Leaf):
            given = not isinstance(e, cp.Constant) and e in values
            return cp.Constant(np.asarray(values[e])) if given else e
        reads = facts_of(e).reads(e)
        replaced = [walk(read) for read in reads]
        is_same = all(new is old for new, old in zip(replaced, reads))
        return e if is_same else facts_of(e).rebuild(e, replaced)

    return Walk(visit)(expression)


def recession(expression: Any) -> Any:
    """The expression with smooth atoms replaced by the piecewise affine ones that they approach."""

    def visit(walk: Walk, e: Any) -> Any:
        if isinstance(e, Leaf):
            return e
        arguments = [walk(argument) for argument in e.args]
        distant = facts_of(e).far(e, arguments)
        return walk.atom(e, arguments) if distant is None else distant

    return Walk(visit)(expression)


def times(expression: Any, factor: float) -> Any:
    """factor * expression for a factor > 0, with the factor moved into the atoms.

    factor * max(a, b) becomes max(factor * a, factor * b), factor * a^2 becomes
    (sqrt(factor) * a)^2. CVXPY's auxiliary variables for the atoms are then scaled as well.
    """
    if isinstance(expression, Leaf):
        return factor * expression
    return facts_of(expression).times(expression, factor, times)


def split_factor(
    expression: Any, number: Callable[[Any], float | None] = constant_number
) -> tuple[float, Any]:
    """(c, e) with expression = c * e, where e has the same shape and no constant factor.

    All multiples of one expression give the same object e, so that `is` compares them:
    split_factor(-x) and split_factor(51 * x) both give x.
    number: the value of a factor; None for expressions that are no factor.
    """
    factor, e = 1.0, expression
    while not isinstance(e, Leaf) and (split := facts_of(e).factor(e, number)) is not None:
        factor, e = factor * split[0], split[1]
    return factor, e


def square_of_number(
    expression: Any, number: Callable[[Any], float | None] = constant_number
) -> tuple[float, Any] | None:
    """(c, u) with expression = c u^2 and u of one entry; None for other expressions."""
    factor, e = split_factor(expression, number)
    while not isinstance(e, Leaf):
        facts = facts_of(e)
        if (square := facts.square(e)) is not None:
            by = number(square[1])
            return (factor / by, square[0]) if by else None
        if (same := facts.same_number(e)) is None:
            return None
        inner, e = split_factor(same, number)
        factor *= inner
    return None


def summands(expression: Any) -> list[Any]:
    """The terms of a sum as it is written."""
    return list(expression.args) if isinstance(expression, ADD) else [expression]
