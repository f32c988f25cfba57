"""Products: of matrices, entry by entry, quotients and convolutions.

`contraction("zj", "j", "z")` is the function (u, v) -> sum_j u[z, j] v[j], in the notation of
einsum; z is the letter of the batch axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.lib.stride_tricks import sliding_window_view

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import (
    Adjoints,
    AtomFacts,
    Kernel,
    NoPieces,
    Operand,
    Operands,
    declare,
)
from wdro_model.loss.atoms.linear import Affine
from wdro_model.loss.expressions import (
    as_scalar,
    entry_of,
    outer,
    power_of_two,
    the_number,
    unbroadcast,
    weighted,
)


class Vanishing(AtomFacts):
    """Atoms that are zero where one of their arguments is."""

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        return None if any(p is None for p in parts) else super().constant_part(atom, parts)


@declare(*atoms.BILINEAR)
class Bilinear(Vanishing, Affine):
    """Atoms that CVXPY calls affine and that are linear in each of their two arguments."""

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return sum(degrees)

    def adjoints(self, atom: Any) -> Adjoints:
        if any(isinstance(a, cp.Constant) for a in atom.args):
            return super().adjoints(atom)
        return AtomFacts.adjoints(self, atom)

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        return AtomFacts.dependence(self, atom, seen)

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        raise NoPieces

    def times(self, atom: Any, factor: float, push: Callable[[Any, float], Any]) -> Any:
        first, second = atom.args
        if second.is_constant():
            second, size = of_order_one(second, first)
            return atom.copy([push(first, factor * size), second])
        first, size = of_order_one(first, second)
        return atom.copy([first, push(second, factor * size)])


@declare(atoms.MATMUL)
class MatrixProduct(AtomFacts):
    """a @ b."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """Contractions for the value and the pullbacks, which sum over the batch where they can."""
        a, b = operands
        if not (a.shape and b.shape):
            return lambda u, v: (u * v, lambda g: g * v, lambda g: g * u)
        if any(_is_sparse(operand) for operand in operands):
            return super().kernel(atom, operands)
        stack = "pqrstuvw"[: max(a.ndim, b.ndim) - 2] if max(a.ndim, b.ndim) > 2 else ""
        za, zb = "z" * a.batched, "z" * b.batched
        sa = za + stack + "ij"[2 - min(a.ndim, 2) :]
        sb = zb + stack + "jk"[: b.ndim]
        so = (za or zb) + stack + "i" * (a.ndim > 1) + "k" * (b.ndim > 1)
        value, pull_a, pull_b = contraction_and_pulls(sa, sb, so)
        return lambda u, v: (value(u, v), lambda g: pull_a(g, v), lambda g: pull_b(g, u))

    def adjoints(self, atom: Any) -> Adjoints:
        a, b = atom.args
        if max(a.ndim, b.ndim) > 2:
            return super().adjoints(atom)
        if not (a.shape and b.shape):
            return entrywise_adjoints(a, b)
        if a.ndim == b.ndim == 1:
            return [lambda g: weighted(g, b), lambda g: weighted(g, a)]
        if b.ndim == 1:
            return [lambda g: outer(g, b), lambda g: atoms.MATMUL(g, a)]
        if a.ndim == 1:
            return [lambda g: atoms.MATMUL(b, g), lambda g: outer(a, g)]
        return [lambda g: atoms.MATMUL(g, b.T), lambda g: atoms.MATMUL(a.T, g)]

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        """Entry (i, k) of A B depends on row i of A and column k of B, without constant zeros."""
        a, b = atom.args
        if max(a.ndim, b.ndim) > 2 or not (a.shape and b.shape):
            return None
        rows = 1 if a.ndim == 1 else a.shape[0]
        columns = 1 if b.ndim == 1 else b.shape[1]
        left = _support(a, (rows, a.shape[-1]))
        right = _support(b, (b.shape[0], columns))
        return sp.kron(right.T, sp.eye_array(rows)) @ seen(a) + (
            sp.kron(sp.eye_array(columns), left) @ seen(b)
        )

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        """C v for a C without data: the terms sum_i C_ij v_j."""
        a, b = atom.args
        if b.ndim == 1 and split.degrees(a) == 0:
            return [cp.multiply(a if a.ndim == 1 else cp.sum(a, axis=0), b)]
        if a.ndim == 1 and split.degrees(b) == 0:
            return [cp.multiply(a, b if b.ndim == 1 else cp.sum(b, axis=1))]
        return None

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        a, b = atom.args
        if max(a.ndim, b.ndim) > 2 or not (a.shape and b.shape):
            raise NoPieces
        rows = np.arange(a.size).reshape(a.shape, order="F").reshape((-1, a.shape[-1]))
        columns = np.arange(b.size).reshape(b.shape, order="F").reshape((b.shape[0], -1))
        i, k = np.unravel_index(at.number, (len(rows), columns.shape[1]), order="F")
        factor, other = (a, b) if at.degrees(a) == 0 else (b, a)

        def term(left: int, right: int) -> list[Any]:
            p, q = (left, right) if factor is a else (right, left)
            size, turned = at.positive(entry_of(factor, p), sign)
            return [size * piece for piece in at.entry_pieces(other, q, turned)]

        return at.total(term(int(p), int(q)) for p, q in zip(rows[i], columns[:, k]))


def _is_sparse(operand: Operand) -> bool:
    expression = operand.expression
    return isinstance(expression, cp.Constant) and sp.issparse(expression.value)


def _support(e: Any, shape: tuple[int, int]) -> Any:
    """The pattern of the entries that may be nonzero: all but the zeros of a constant."""
    if isinstance(e, cp.Constant):
        value = e.value
        dense = value.toarray() if sp.issparse(value) else np.asarray(value)
        return sp.csr_array((dense.reshape(shape) != 0).astype(float))
    return sp.csr_array(np.ones(shape))


def entrywise_adjoints(a: Any, b: Any) -> Adjoints:
    return [
        lambda g: unbroadcast(weighted(g, b), a.shape),
        lambda g: unbroadcast(weighted(g, a), b.shape),
    ]


@declare(atoms.KRON)
class KroneckerProduct(AtomFacts):
    """The products of all entries of a with all entries of b."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        a, b = operands
        za, zb = "z" * a.batched, "z" * b.batched
        sa, sb, so = za + "ij", zb + "kl", (za or zb) + "ikjl"
        value, pull_a, pull_b = contraction_and_pulls(sa, sb, so)
        blocks = (a.shape[0], b.shape[0], a.shape[1], b.shape[1])

        def split(g: Any) -> Any:
            return g.reshape(g.shape[:-2] + blocks)

        def kernel(u: Any, v: Any) -> tuple[Any, ...]:
            w = value(u, v)
            w = w.reshape(w.shape[:-4] + atom.shape)
            return w, lambda g: pull_a(split(g), v), lambda g: pull_b(split(g), u)

        return kernel


def of_order_one(constant: Any, other: Any) -> tuple[Any, float]:
    """(constant / size, size), so that the size can be moved into the other factor of a product.

    1e9 max(a, b) divided by 1e9 is then max(a, b), not 1e9 max(1e-9 a, 1e-9 b). The size is 1 where
    the other factor is affine: there it makes no difference.
    """
    if other.is_affine() or not constant.is_constant() or constant.parameters():
        return constant, 1.0
    size = power_of_two(float(abs(constant.value).max()))
    return cp.Constant(constant.value / size), size


# ------------------------------------------------------------------ contractions
Contraction = Callable[[Any, Any], Any]


def contraction(s: str, t: str, out: str) -> Contraction:
    """The function (u, v) -> einsum("s,t->out", u, v)."""
    matrix, vector = (s, t) if len(s) > len(t) else (t, s)
    if len(matrix) == 2 and len(vector) == 1 and out == matrix.replace(vector, ""):
        is_in_order = (vector == matrix[0]) == (vector == s)
        return np.matmul if is_in_order else lambda u, v: v @ u
    # With a path einsum uses BLAS where it can.
    return lambda u, v: np.einsum(f"{s},{t}->{out}", u, v, optimize=["einsum_path", (0, 1)])


def contraction_and_pulls(s: str, t: str, out: str) -> tuple[Contraction, Contraction, Contraction]:
    """The contraction (u, v), and its pullbacks (g, v) in u and (g, u) in v."""
    return contraction(s, t, out), contraction(out, t, s), contraction(out, s, t)


# ------------------------------------------------------------------ entry by entry
Number = Callable[[Any], float | None]


class Scaling(AtomFacts):
    """An argument times, or divided by, the other one, entry by entry."""

    is_entrywise = True

    def _sides(self, atom: Any, degrees: Any) -> tuple[Any, Any]:
        """(factor, scaled argument); the factor should not depend on the data."""
        return atom.args if degrees(atom.args[0]) == 0 else atom.args[::-1]

    def _scaled(self, factor: Any, other: Any) -> Any:
        return cp.multiply(factor, other)

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        return AtomFacts.dependence(self, atom, seen)

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        """The terms of the scaled argument, for a factor that is one number without data."""
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
        for value, other in ((number(a), b) for a, b in (atom.args, atom.args[::-1])):
            if value is not None:
                return (value, other) if other.shape == atom.shape else None
        return None


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
        """The adjoint in a alone: the degree is one only if b does not depend on the data."""
        a, b = atom.args
        return [lambda g: unbroadcast(g / b, a.shape)]

    def factor(self, atom: Any, number: Number) -> Any | None:
        over, by = atom.args
        divisor = number(by) if over.shape == atom.shape else None
        return (1.0 / divisor, over) if divisor else None

    def times(self, atom: Any, factor: float, push: Callable[[Any, float], Any]) -> Any:
        over, by = atom.args
        by, size = of_order_one(by, over)
        return atom.copy([push(over, factor / size), by])


@declare(*atoms.CONVOLUTIONS)
class Convolution(AtomFacts):
    """c_k = sum_i a_i b_(k-i): shifted copies of b, one for each entry of a."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        first, second = (operand.shape for operand in operands)

        def flat(v: Any, shape: tuple[int, ...]) -> Any:
            return v.reshape((*v.shape[: v.ndim - len(shape)], -1))

        def kernel(a: Any, b: Any) -> tuple[Any, ...]:
            a, b = flat(a, first), flat(b, second)
            value = (shifted(b, math.prod(first)) @ a[..., None])[..., 0]

            def pull(g: Any, other: Any, shape: tuple[int, ...]) -> Any:
                g = flat(g, atom.shape)
                rows = (g[..., None, :] @ shifted(other, math.prod(shape)))[..., 0, :]
                return rows.reshape(g.shape[:-1] + shape)

            return (
                value.reshape(value.shape[:-1] + atom.shape),
                lambda g: pull(g, b, first),
                lambda g: pull(g, a, second),
            )

        return kernel


def shifted(v: Any, count: int) -> Any:
    """The matrix of a convolution with v: entry (k, i) is v[k - i], zero outside."""
    padding = [(0, 0)] * (v.ndim - 1) + [(count - 1, count - 1)]
    return sliding_window_view(np.pad(v, padding), count, axis=-1)[..., ::-1]
