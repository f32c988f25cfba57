"""CVXPY expressions: the walk over a tree, rewritten trees, small building blocks, units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.cvxpy_classes import ADD, MATMUL, PROMOTE
from wdro_model.loss.atoms.facts import facts_of

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
    """The number that a promotion repeats; any other expression is returned as it is."""
    return e.args[0] if isinstance(e, PROMOTE) else e


def constant_number(e: Any) -> float | None:
    """The value of a constant whose entries are all the same one."""
    e = the_number(e)
    return float(np.reshape(e.value, ())) if isinstance(e, cp.Constant) and e.size == 1 else None


# ------------------------------------------------------------------ entries, in column-major order
def entry_of(e: Any, entry: int) -> Any:
    """An entry of an expression as a scalar, counted in column-major order."""
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
"""Factor from one within which numbers are left in their units: solvers are at ease there."""
SCALABLE = {"nonneg", "nonpos", "pos", "neg", "bounds", "symmetric", "diag", "PSD", "NSD"}
"""Attributes of a variable that mean the same in another unit."""


def is_ordinary(number: float) -> bool:
    """True for a number of order one."""
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
    """True if the variable can be measured in another unit."""
    return set(declared(variable)) <= SCALABLE


# ------------------------------------------------------------------ trees
class Walk:
    """A function of expressions, worked out once for each of them.

    `Walk(visit)` calls visit(walk, expression), which asks the walk for the arguments. A subclass
    defines `leaf` and `atom`, the latter from the values at the arguments, or `visit` itself.
    """

    def __init__(self, visit: Callable[[Any, Any], Any] | None = None) -> None:
        self._values: dict[int, tuple[Any, Any]] = {}
        if visit is not None:
            self.visit = partial(visit, self)  # type: ignore[method-assign]

    def __call__(self, expression: Any) -> Any:
        if id(expression) not in self._values:
            # The expression is kept beside its value: an id may be reused once it is gone.
            self._values[id(expression)] = (expression, self.visit(expression))
        return self._values[id(expression)][1]

    def visit(self, expression: Any) -> Any:
        if isinstance(expression, Leaf):
            return self.leaf(expression)
        return self.atom(expression, [self(argument) for argument in expression.args])

    def leaf(self, leaf: Any) -> Any:
        return leaf

    def atom(self, atom: Any, arguments: list[Any]) -> Any:
        """The atom on other arguments, itself where they are its own."""
        is_same = all(new is old for new, old in zip(arguments, atom.args))
        return atom if is_same else atom.copy(arguments)


def substitute(expression: Any, values: Mapping[Any, np.ndarray]) -> Any:
    """The expression with each parameter or variable in `values` replaced by a constant.

    Other leaves are the user's own. Structured atoms come back in
    CVXPY's own atoms where their new arguments allow it.

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
    """The expression with smooth atoms replaced by the maxima that they approach far away."""

    def visit(walk: Walk, e: Any) -> Any:
        if isinstance(e, Leaf):
            return e
        arguments = [walk(argument) for argument in e.args]
        distant = facts_of(e).far(e, arguments)
        return walk.atom(e, arguments) if distant is None else distant

    return Walk(visit)(expression)


def times(expression: Any, factor: float) -> Any:
    """factor * expression for a factor > 0, pushed inwards: factor * max(a, b) as max(factor a, ..)

    The auxiliary variables that CVXPY puts in place of a maximum then have the size of the
    multiple, and those in place of a square its root: factor * a^2 is (sqrt(factor) a)^2.
    """
    if isinstance(expression, Leaf):
        return factor * expression
    return facts_of(expression).times(expression, factor, times)


def factored(
    expression: Any, number: Callable[[Any], float | None] = constant_number
) -> tuple[float, Any]:
    """(c, e) with expression = c * e, e of the same shape and without factors outside.

    Multiples of one expression come back with that very object, so that they can be told apart
    from others by identity: factored(-x) and factored(51 * x) both hold x.
    number: the value of a factor, None where it counts as none.
    """
    factor, e = 1.0, expression
    while not isinstance(e, Leaf) and (split := facts_of(e).factor(e, number)) is not None:
        factor, e = factor * split[0], split[1]
    return factor, e


def square_of_number(
    expression: Any, number: Callable[[Any], float | None] = constant_number
) -> tuple[float, Any] | None:
    """(c, u) with expression = c u^2 for a u of one entry; None if it is no such square."""
    factor, e = factored(expression, number)
    while not isinstance(e, Leaf):
        facts = facts_of(e)
        if (square := facts.square(e)) is not None:
            by = number(square[1])
            return (factor / by, square[0]) if by else None
        if (same := facts.same_number(e)) is None:
            return None
        inner, e = factored(same, number)
        factor *= inner
    return None


def summands(expression: Any) -> list[Any]:
    """The terms of a sum as it is written."""
    return list(expression.args) if isinstance(expression, ADD) else [expression]
