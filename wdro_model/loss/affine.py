"""f = a(x) + sum_p <B_p(x), xi_p>: the parts of a loss that is affine in the data, symbolically.

B is the derivative in the data, by a reverse pass whose adjoints are CVXPY expressions; since the
degree is one they contain no data. Both keep the curvature that CVXPY knows, so that a dual norm
of B can be written down where B is affine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss import atoms
from wdro_model.loss.linear_maps import linear_maps
from wdro_model.loss.polynomial import Degrees
from wdro_model.loss.rules import brief
from wdro_model.loss.structured import StructuredAtom, structured


@dataclass(frozen=True)
class AffineParts:
    """A scalar expression as constant + sum_p sum(multiply(slopes[p], p))."""

    constant: Any
    """a(x), a CVXPY expression of shape ()."""
    slopes: dict[Any, Any]
    """B_p(x) for each parameter, a CVXPY expression of the parameter's shape; zero if absent."""


def affine_parts(expression: Any, parameters: Iterable[Any]) -> AffineParts:
    """a(x) and B(x) of a scalar expression of degree at most one in the parameters."""
    degrees = Degrees(parameters)
    if expression.size != 1:
        raise ValueError(f"affine_parts needs one entry, got shape {expression.shape}.")
    found = degrees(expression)
    if found > 1:
        names = ", ".join(repr(p.name()) for p in degrees.parameters)
        raise ValueError(
            f"'{brief(expression)}' is not affine in {names}: its degree is {found:g}; "
            "see wdro_model.loss.pieces for a maximum of affine pieces."
        )
    return AffineParts(
        constant=as_scalar(constant_part(expression, degrees)),
        slopes=_slopes(expression, degrees),
    )


def constant_part(expression: Any, degrees: Degrees) -> Any:
    """The value of an expression of degree at most one where the parameters are zero."""
    found = _Constant(degrees)(expression)
    return cp.Constant(np.zeros(expression.shape)) if found is None else found


def as_scalar(expression: Any) -> Any:
    """An expression of one entry, with shape ()."""
    return expression if expression.shape == () else cp.reshape(expression, (), order="C")


class _Constant:
    """The part of an expression that does not see the data; None where it is zero."""

    def __init__(self, degrees: Degrees) -> None:
        self.degrees = degrees

    def __call__(self, expression: Any) -> Any | None:
        if self.degrees(expression) == 0:
            return expression
        if isinstance(expression, Leaf):
            return None
        parts = [self(a) for a in expression.args]
        if isinstance(expression, atoms.ADD):
            return _total([part for part in parts if part is not None])
        if (known := structured(expression)) is not None:
            return known.constant_part(parts)
        product = (*atoms.BILINEAR, atoms.DIVIDE)
        if any(p is None for p in parts) and (
            isinstance(expression, product) or all(p is None for p in parts)
        ):
            return None
        filled = [
            cp.Constant(np.zeros(a.shape)) if part is None else part
            for a, part in zip(expression.args, parts)
        ]
        return expression.copy(filled)


def _total(terms: list[Any]) -> Any | None:
    return sum(terms[1:], terms[0]) if terms else None


def _slopes(expression: Any, degrees: Degrees) -> dict[Any, Any]:
    """B_p for each parameter, by a reverse pass over the nodes that see the data."""
    adjoints: dict[int, list[Any]] = {id(expression): [cp.Constant(np.ones(expression.shape))]}
    for node in reversed(_order(expression, degrees)):
        adjoint = _total(adjoints[id(node)])
        for argument, pull in zip(node.args, _pulls(node)):
            if degrees(argument) > 0:
                adjoints.setdefault(id(argument), []).append(pull(adjoint))
    slopes = {}
    for parameter in degrees.parameters:
        total = _total(adjoints.get(id(parameter), []))
        slopes[parameter] = cp.Constant(np.zeros(parameter.shape)) if total is None else total
    return slopes


def _order(expression: Any, degrees: Degrees) -> list[Any]:
    """The atoms that see the data, arguments first, each one once."""
    order: list[Any] = []
    seen: set[int] = set()

    def visit(e: Any) -> None:
        if isinstance(e, Leaf) or id(e) in seen or degrees(e) == 0:
            return
        seen.add(id(e))
        for argument in e.args:
            visit(argument)
        order.append(e)

    visit(expression)
    return order


def _pulls(node: Any) -> list[Any]:
    """For each argument, the map from an adjoint of the node to one of the argument."""
    args = node.args
    if isinstance(node, atoms.ADD):
        return [lambda g, a=a: _unbroadcast(g, a.shape) for a in args]
    if isinstance(node, atoms.NEGATE):
        return [lambda g: -g]
    if isinstance(node, atoms.WRAP | atoms.POWER):
        return [lambda g: g]
    if isinstance(node, atoms.MULTIPLY):
        a, b = args
        return [
            lambda g: _unbroadcast(_times(g, b), a.shape),
            lambda g: _unbroadcast(_times(g, a), b.shape),
        ]
    if isinstance(node, atoms.DIVIDE):
        return [lambda g: _unbroadcast(g / args[1], args[0].shape), None]
    if isinstance(node, atoms.MATMUL) and max(a.ndim for a in args) <= 2:
        return _matmul_pulls(*args)
    if (known := structured(node)) is not None:
        return _structured_pulls(known)
    if isinstance(node, atoms.PROMOTE | atoms.BROADCAST):
        return [lambda g: _unbroadcast(g, args[0].shape)]
    if isinstance(node, atoms.TRANSPOSE) and node.axes is None:
        return [lambda g: g.T]
    if isinstance(node, atoms.SUM) and node.shape == ():
        return [lambda g: _times(g, cp.Constant(np.ones(args[0].shape)))]
    if isinstance(node, atoms.INDEX | atoms.SPECIAL_INDEX):
        return [lambda g: _scattered(g, node)]
    return _linear_pulls(node)


def _structured_pulls(node: StructuredAtom) -> list[Any]:
    """A structured atom of one entry, by its slopes; they are asked for where they are needed."""
    return [lambda g, k=k: _times(g, node.slope(k)) for k in range(len(node.args))]


def _scattered(g: Any, node: Any) -> Any:
    """The entries of g where the index took its own from, zeros elsewhere."""
    source = node.args[0]
    labels = np.arange(source.size).reshape(source.shape)
    taken = np.ravel(node.numeric([labels])).astype(int)
    if isinstance(g, cp.Constant) and not sp.issparse(g.value):
        out = np.zeros(source.size)
        np.add.at(out, taken, np.ravel(g.value))
        return cp.Constant(out.reshape(source.shape))
    ones = np.ones(len(taken))
    matrix = sp.csr_array((ones, (taken, np.arange(len(taken)))), (source.size, len(taken)))
    return cp.reshape(matrix @ cp.vec(g, order="C"), source.shape, order="C")


def _linear_pulls(node: Any) -> list[Any]:
    """Any other affine atom, through the matrices of the arguments that see the data."""
    if isinstance(node, atoms.BILINEAR) and not any(isinstance(a, cp.Constant) for a in node.args):
        raise ValueError(
            f"the slope of '{brief(node)}' in the data is not known; write the product with "
            "cp.multiply or @ on vectors and matrices."
        )

    def through(matrix: Any, shape: tuple[int, ...]) -> Any:
        def pull(g: Any) -> Any:
            return cp.reshape(matrix @ cp.vec(g, order="F"), shape, order="F")

        return pull

    return [through(m, a.shape) for m, a in zip(linear_maps(node), node.args)]


def _matmul_pulls(a: Any, b: Any) -> list[Any]:
    if not (a.shape and b.shape):
        return [
            lambda g: _unbroadcast(_times(g, b), a.shape),
            lambda g: _unbroadcast(_times(g, a), b.shape),
        ]
    if a.ndim == b.ndim == 1:
        return [lambda g: _times(g, b), lambda g: _times(g, a)]
    if b.ndim == 1:
        return [lambda g: atoms.outer(g, b), lambda g: atoms.MATMUL(g, a)]
    if a.ndim == 1:
        return [lambda g: atoms.MATMUL(b, g), lambda g: atoms.outer(a, g)]
    return [lambda g: atoms.MATMUL(g, b.T), lambda g: atoms.MATMUL(a.T, g)]


def _times(g: Any, factor: Any) -> Any:
    """g * factor, without the product where g is the constant one."""
    if isinstance(g, cp.Constant) and g.shape in ((), factor.shape) and np.all(g.value == 1.0):
        return factor
    return cp.multiply(g, factor)


def _unbroadcast(g: Any, shape: tuple[int, ...]) -> Any:
    """The transpose of broadcasting `shape` to g's: sums over the axes that were stretched."""
    if g.shape == shape:
        return g
    padded = (1,) * (g.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(padded) if n != g.shape[i])
    summed = cp.sum(g, axis=axes, keepdims=True) if axes else g
    return summed if summed.shape == shape else cp.reshape(summed, shape, order="C")
