"""Rules of products and quotients: entry by entry, matrices, Kronecker products, convolutions."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss import atoms
from wdro_model.loss.affine_rules import through_matrices
from wdro_model.loss.contraction import contraction
from wdro_model.loss.rules import Kernel, Operand, rule

Operands = tuple[Operand, ...]


@rule(atoms.MULTIPLY)
def _(_atom: Any, a: Any, b: Any) -> tuple[Any, ...]:
    return a * b, lambda g: g * b, lambda g: g * a


@rule(atoms.DIVIDE)
def _(_atom: Any, a: Any, b: Any) -> tuple[Any, ...]:
    q = a / b
    return q, lambda g: g / b, lambda g: -g * q / b


@rule(atoms.MATMUL, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
    """One contraction per product; z is the batch, and is summed where an operand has none."""
    a, b = operands
    if not (a.shape and b.shape):
        return lambda u, v: (u * v, lambda g: g * v, lambda g: g * u)
    if any(_is_sparse(operand) for operand in operands):
        return through_matrices(atom, operands)
    stack = "pqrstuvw"[: max(a.ndim, b.ndim) - 2] if max(a.ndim, b.ndim) > 2 else ""
    za, zb = "z" * a.batched, "z" * b.batched
    sa = za + stack + "ij"[2 - min(a.ndim, 2) :]
    sb = zb + stack + "jk"[: b.ndim]
    so = (za or zb) + stack + "i" * (a.ndim > 1) + "k" * (b.ndim > 1)
    value, pull_a, pull_b = (
        contraction(sa, sb, so),
        contraction(so, sb, sa),
        contraction(so, sa, sb),
    )
    return lambda u, v: (value(u, v), lambda g: pull_a(g, v), lambda g: pull_b(g, u))


def _is_sparse(operand: Operand) -> bool:
    expression = operand.expression
    return isinstance(expression, cp.Constant) and sp.issparse(expression.value)


@rule(atoms.KRON, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
    a, b = operands
    za, zb = "z" * a.batched, "z" * b.batched
    sa, sb, so = za + "ij", zb + "kl", (za or zb) + "ikjl"
    value, pull_a, pull_b = (
        contraction(sa, sb, so),
        contraction(so, sb, sa),
        contraction(so, sa, sb),
    )
    blocks = (a.shape[0], b.shape[0], a.shape[1], b.shape[1])

    def split(g: Any) -> Any:
        return g.reshape(g.shape[:-2] + blocks)

    def kernel(u: Any, v: Any) -> tuple[Any, ...]:
        w = value(u, v)
        w = w.reshape(w.shape[:-4] + atom.shape)
        return w, lambda g: pull_a(split(g), v), lambda g: pull_b(split(g), u)

    return kernel


@rule(*atoms.CONVOLUTIONS, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
    """c_k = sum_i a_i b_(k-i): shifted copies of b, one for each entry of a."""
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
