"""Contractions of two arrays, planned once from their index letters and run through BLAS.

`contraction("zj", "j", "z")` is the function (u, v) -> sum_j u[z, j] v[j]. Letters of both
operands and of the result are batch letters, letters of both operands alone are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

Contraction = Callable[[Any, Any], Any]


def contraction(s: str, t: str, out: str) -> Contraction:
    """The function (u, v) -> einsum("s,t->out", u, v)."""
    batch = "".join(c for c in s if c in t and c in out)
    inner = "".join(c for c in s if c in t and c not in out)
    left = "".join(c for c in s if c not in t)
    right = "".join(c for c in t if c not in s)
    if not inner:
        return _outer(s, t, out)
    if not batch:
        return _vector_product(s, t, out) or _matrix_product(s, t, out, left, inner, right)
    if s == t == batch + inner and out == batch and len(inner) == 1:
        return np.vecdot
    return _batched_product(s, t, out, (batch, left, inner, right))


def contraction_and_pulls(s: str, t: str, out: str) -> tuple[Contraction, Contraction, Contraction]:
    """The contraction (u, v), and its pullbacks (g, v) in u and (g, u) in v."""
    return contraction(s, t, out), contraction(out, t, s), contraction(out, s, t)


def _outer(s: str, t: str, out: str) -> Contraction:
    """No letter is summed: a product with broadcasting."""
    if s == out and t == "":
        return np.multiply

    def run(u: Any, v: Any) -> Any:
        return _spread(u, s, out) * _spread(v, t, out)

    return run


def _spread(u: Any, s: str, out: str) -> Any:
    """u with its axes in the order of `out`, of length one where it has no such letter."""
    u = np.asarray(u)
    order = [s.index(c) for c in out if c in s]
    if order != list(range(len(order))):
        u = u.transpose(order)
    lengths = iter(u.shape)
    return u.reshape([next(lengths) if c in s else 1 for c in out])


def _vector_product(s: str, t: str, out: str) -> Contraction | None:
    """The contractions that are one matrix-vector product as they stand."""
    if len(t) == 1 and s[-1:] == t and out == s[:-1]:
        return _rows_times_vector if len(s) > 2 else np.matmul
    if len(s) == 1 and t[-1:] == s and out == t[:-1]:
        times = _rows_times_vector if len(t) > 2 else np.matmul
        return lambda u, v: times(v, u)
    if len(s) == 1 and len(t) == 2 and t[0] == s and out == t[1:]:
        return np.matmul
    if len(t) == 1 and len(s) == 2 and s[0] == t and out == s[1:]:
        return lambda u, v: v @ u
    return None


def _rows_times_vector(u: Any, v: Any) -> Any:
    """u @ v for a stack of matrices: one product over all rows, unless that would copy u."""
    if not u.flags.c_contiguous:
        return u @ v
    return (u.reshape(-1, u.shape[-1]) @ v).reshape(u.shape[:-1])


def _matrix_product(s: str, t: str, out: str, left: str, inner: str, right: str) -> Contraction:
    first = [s.index(c) for c in left + inner]
    second = [t.index(c) for c in inner + right]
    last = [(left + right).index(c) for c in out]

    def run(u: Any, v: Any) -> Any:
        a, b = u.transpose(first), v.transpose(second)
        kept = a.shape[: len(left)] + b.shape[len(inner) :]
        summed = prod(b.shape[: len(inner)])
        if not right:
            return (a.reshape(-1, summed) @ b.reshape(summed)).reshape(kept).transpose(last)
        product = a.reshape(-1, summed) @ b.reshape(summed, -1)
        return product.reshape(kept).transpose(last)

    return run


def _batched_product(s: str, t: str, out: str, groups: tuple[str, str, str, str]) -> Contraction:
    batch, left, inner, right = groups
    first = [s.index(c) for c in batch + left + inner]
    second = [t.index(c) for c in batch + inner + right]
    last = [(batch + left + right).index(c) for c in out]
    k = len(batch)

    def run(u: Any, v: Any) -> Any:
        a, b = u.transpose(first), v.transpose(second)
        lead, summed = a.shape[:k], prod(b.shape[k : k + len(inner)])
        rows, columns = a.shape[k : k + len(left)], b.shape[k + len(inner) :]
        product = a.reshape(*lead, prod(rows), summed) @ b.reshape(*lead, summed, prod(columns))
        return product.reshape(lead + rows + columns).transpose(last)

    return run
