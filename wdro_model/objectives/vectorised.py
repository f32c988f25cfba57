"""A loss over all samples at once, as one vector-valued CVXPY expression.

The tree of the loss is rebuilt with data in place of the uncertain parameters: a scalar parameter
becomes a vector of N entries, a vector parameter a matrix of N rows, <xi, x> a matrix product, and
elementwise atoms act on vectors. Trees with other shapes are left to one copy for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.index import index
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.quad_over_lin import quad_over_lin

Samples = Mapping[cp.Parameter, np.ndarray]


class NoVectorForm(Exception):
    """The tree has a node that is not a number or a vector of data for each sample."""


@dataclass(frozen=True)
class Batch:
    """A number for each sample, as a CVXPY vector of N entries."""

    vector: Any


@dataclass(frozen=True)
class Rows:
    """A vector for each sample: data (N, d), times a certain vector where `weights` is given."""

    data: np.ndarray
    weights: Any = None

    def total(self) -> Batch:
        """The sum of the entries."""
        if self.weights is None:
            return Batch(cp.Constant(self.data.sum(axis=1)))
        return Batch(self.data @ self.weights)


def vectorised(expression: Any, samples: Samples) -> Any | None:
    """The losses of all samples as a vector expression (N,), or None where there is none."""
    try:
        built = build(expression, samples)
    except NoVectorForm:
        return None
    return built.vector if isinstance(built, Batch) else None


def build(node: Any, samples: Samples) -> Any:
    """A Batch, Rows, or the node itself where it is certain."""
    if isinstance(node, cp.Parameter) and node in samples:
        return leaf(samples[node])
    if not any(p in samples for p in node.parameters()):
        return node
    if isinstance(node, Power) and any(p in samples for p in node.p.parameters()):
        raise NoVectorForm
    arguments = [build(argument, samples) for argument in node.args]
    for kind, rule in RULES:
        if isinstance(node, kind):
            return rule(node, arguments)
    raise NoVectorForm


def leaf(values: np.ndarray) -> Any:
    if values.ndim == 1:
        return Batch(cp.Constant(values))
    if values.ndim == 2:
        return Rows(values)
    raise NoVectorForm


def add(node: Any, arguments: list[Any]) -> Any:
    if all(isinstance(a, Rows) and a.weights is None for a in arguments):
        return Rows(np.sum([a.data for a in arguments], axis=0))
    first, *others = numbers(arguments)
    return Batch(sum(others, first))


def negate(node: Any, arguments: list[Any]) -> Any:
    (a,) = arguments
    return Rows(-a.data, a.weights) if isinstance(a, Rows) else Batch(-a.vector)


def multiplied(node: Any, arguments: list[Any]) -> Any:
    """<xi, x>, data times a certain vector entry by entry, or a product of numbers."""
    a, b = arguments
    if isinstance(a, Rows) or isinstance(b, Rows):
        rows, other = (a, b) if isinstance(a, Rows) else (b, a)
        if isinstance(other, (Rows, Batch)) or rows.weights is not None:
            raise NoVectorForm
        if other.ndim == 0:
            return Rows(rows.data * constant(other))
        if other.shape != (rows.data.shape[1],):
            raise NoVectorForm
        if not isinstance(node, multiply):
            return Rows(rows.data, other).total()
        known = other.is_constant() and other.value is not None
        return Rows(rows.data * other.value) if known else Rows(rows.data, other)
    left, right = numbers(arguments)
    return Batch(cp.multiply(left, right) if left.ndim == right.ndim else left * right)


def divided(node: Any, arguments: list[Any]) -> Any:
    a, b = arguments
    if isinstance(a, Rows):
        if isinstance(b, (Rows, Batch)):
            raise NoVectorForm
        return Rows(a.data / constant(b), a.weights)
    left, right = numbers(arguments)
    return Batch(left / right)


def entry(node: Any, arguments: list[Any]) -> Any:
    (a,) = arguments
    if not isinstance(a, Rows) or a.weights is not None:
        raise NoVectorForm
    return leaf(a.data[(slice(None), *node.key)].reshape(len(a.data), *node.shape))


def total(node: Any, arguments: list[Any]) -> Any:
    (a,) = arguments
    if node.shape != ():
        raise NoVectorForm
    return a.total() if isinstance(a, Rows) else a


def elementwise(node: Any, arguments: list[Any]) -> Any:
    if node.shape != ():
        raise NoVectorForm
    return Batch(node.copy(numbers(arguments)))


def squared(node: Any, arguments: list[Any]) -> Any:
    """quad_over_lin of one number."""
    a, b = numbers(arguments)
    if node.args[0].size != 1 or not b.is_constant():
        raise NoVectorForm
    return Batch(cp.square(a) / b)


def unchanged(node: Any, arguments: list[Any]) -> Any:
    if node.shape != ():
        raise NoVectorForm
    return arguments[0]


def numbers(arguments: list[Any]) -> list[Any]:
    """Vectors for batches and scalars for what is certain; nothing else may stand here."""
    out = [a.vector if isinstance(a, Batch) else a for a in arguments]
    for a, number in zip(arguments, out):
        if isinstance(a, Rows) or (not isinstance(a, Batch) and number.ndim > 0):
            raise NoVectorForm
    return out


def constant(a: Any) -> float:
    """The value of a certain number that is known now."""
    if a.ndim > 0 or not a.is_constant() or a.value is None:
        raise NoVectorForm
    return float(a.value)


RULES: tuple[tuple[Any, Any], ...] = (
    (AddExpression, add),
    (NegExpression, negate),
    (MulExpression, multiplied),
    (DivExpression, divided),
    (Promote, unchanged),
    (index, entry),
    (Sum, total),
    (Elementwise, elementwise),
    (quad_over_lin, squared),
)
