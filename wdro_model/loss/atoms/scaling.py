"""Products and quotients entry by entry, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import Adjoints, AtomFacts, Kernel, Operands, declare
from wdro_model.loss.atoms.products import (
    Vanishing,
    entrywise_adjoints,
    of_order_one,
    product_over_samples,
)
from wdro_model.loss.expressions import as_scalar, the_number, unbroadcast
from wdro_model.loss.per_sample import NumberPerSample, VectorPerSample, certain_number, numbers

Number = Callable[[Any], float | None]


class Scaling(AtomFacts):
    """An argument times, or divided by, the other one, entry by entry."""

    is_entrywise = True

    def _sides(self, atom: Any, degrees: Any) -> tuple[Any, Any]:
        """The factor, which should see no data, and what it scales."""
        return atom.args if degrees(atom.args[0]) == 0 else atom.args[::-1]

    def _scaled(self, factor: Any, other: Any) -> Any:
        return cp.multiply(factor, other)

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        return AtomFacts.dependence(self, atom, seen)

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        """A factor without data: one number for all terms."""
        factor, other = self._sides(atom, split.degrees)
        number = the_number(factor)
        if split.degrees(factor) > 0 or number.size != 1 or other.shape != atom.shape:
            return None
        return [self._scaled(as_scalar(number), term) for term in split(other)]

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        factor, other = self._sides(atom, at.degrees)
        size, sign = at.positive(at.part(factor), sign)
        return at.spread([self._scaled(size, piece) for piece in at(other, sign)])


@declare(atoms.MULTIPLY)
class EntrywiseProduct(Scaling):
    """a * b."""

    def rule(self, _atom: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return a * b, lambda g: g * b, lambda g: g * a

    def adjoints(self, atom: Any) -> Adjoints:
        return entrywise_adjoints(*atom.args)

    def factor(self, atom: Any, number: Number) -> Any | None:
        for found, other in ((number(a), b) for a, b in (atom.args, atom.args[::-1])):
            if found is not None:
                return (found, other) if other.shape == atom.shape else None
        return None

    def over_samples(self, atom: Any, arguments: list[Any]) -> Any:
        return product_over_samples(arguments)


@declare(atoms.DIVIDE)
class Quotient(Scaling, Vanishing):
    """a / b."""

    def _sides(self, atom: Any, degrees: Any) -> tuple[Any, Any]:
        return atom.args[1], atom.args[0]

    def _scaled(self, factor: Any, other: Any) -> Any:
        return other / factor

    def rule(self, _atom: Any, a: Any, b: Any) -> tuple[Any, ...]:
        q = a / b
        return q, lambda g: g / b, lambda g: -g * q / b

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return degrees[0] if degrees[1] == 0 else math.inf

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        a, b = atom.args
        signs = [int(e.is_nonneg()) - int(e.is_nonpos()) or math.nan for e in (a, b)]
        return [(cp.abs(b), signs[0] * signs[1] * math.inf)]

    def adjoints(self, atom: Any) -> Adjoints:
        """Of degree one only where b does not see the data: its own is never asked for."""
        a, b = atom.args
        return [lambda g: unbroadcast(g / b, a.shape)]

    def factor(self, atom: Any, number: Number) -> Any | None:
        over, by = atom.args
        found = number(by) if over.shape == atom.shape else None
        return (1.0 / found, over) if found else None

    def times(self, atom: Any, factor: float, push: Callable[[Any, float], Any]) -> Any:
        over, by = atom.args
        by, size = of_order_one(by, over)
        return atom.copy([push(over, factor / size), by])

    def over_samples(self, atom: Any, arguments: list[Any]) -> Any:
        a, b = arguments
        if isinstance(a, VectorPerSample):
            return VectorPerSample(a.data / certain_number(b), a.weights)
        left, right = numbers(arguments)
        return NumberPerSample(left / right)


@declare(*atoms.CONVOLUTIONS)
class Convolution(AtomFacts):
    """c_k = sum_i a_i b_(k-i): shifted copies of b, one for each entry of a."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        n, m = (int(np.prod(operand.shape)) for operand in operands)
        shapes = [operand.shape for operand in operands]

        def flat(v: Any, ndim: int) -> Any:
            return v.reshape((*v.shape[: v.ndim - ndim], -1))

        def kernel(a: Any, b: Any) -> tuple[Any, ...]:
            a, b = flat(a, len(shapes[0])), flat(b, len(shapes[1]))
            lead = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
            out = np.zeros((*lead, n + m - 1))
            for i in range(n):
                out[..., i : i + m] += a[..., i : i + 1] * b

            def pull_a(g: Any) -> Any:
                g = flat(g, atom.ndim)
                rows = [(g[..., i : i + m] * b).sum(axis=-1) for i in range(n)]
                return np.stack(rows, axis=-1).reshape(g.shape[:-1] + shapes[0])

            def pull_b(g: Any) -> Any:
                g = flat(g, atom.ndim)
                rows = sum(a[..., i : i + 1] * g[..., i : i + m] for i in range(n))
                return np.asarray(rows).reshape(g.shape[:-1] + shapes[1])

            return out.reshape(lead + atom.shape), pull_a, pull_b

        return kernel
