"""Rules of the affine atoms: sums, broadcasting, and moving entries about.

Every affine atom without a rule of its own goes through the sparse matrices that CVXPY itself
builds for it; they are computed once, when the loss is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.loss import atoms
from wdro_model.loss.linear_maps import linear_maps
from wdro_model.loss.rules import Kernel, Operand, own_axes, rule

Operands = tuple[Operand, ...]


def identity(g: Any) -> Any:
    return g


@rule(atoms.ADD, prepared=True)
def _(_atom: Any, operands: Operands) -> Kernel:
    pulls = (identity,) * len(operands)
    if len(operands) == 2:
        return lambda u, v: (u + v, *pulls)
    return lambda *v: (sum(v[1:], v[0]), *pulls)


@rule(atoms.NEGATE)
def _(_atom: Any, v: Any) -> tuple[Any, ...]:
    return -v, np.negative


@rule(atoms.WRAP)
def _(_atom: Any, v: Any) -> tuple[Any, ...]:
    return v, identity


@rule(atoms.PROMOTE, atoms.BROADCAST, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
    shape, source = atom.shape, operands[0].shape
    padded = (1,) * (len(shape) - len(source)) + source
    axes = tuple(i - len(shape) for i, n in enumerate(padded) if n != shape[i])

    def pull(g: Any) -> Any:
        return g.sum(axis=axes, keepdims=True).reshape(g.shape[: g.ndim - len(shape)] + source)

    def kernel(v: Any) -> tuple[Any, ...]:
        v = np.asarray(v)
        lead = v.shape[: v.ndim - len(source)]
        return np.broadcast_to(v.reshape(lead + padded), lead + shape), pull

    return kernel


@rule(atoms.SUM, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
    shape = operands[0].shape
    axes = own_axes(len(shape), atom.axis)
    ones = np.ones(int(np.prod(shape)))

    def pull(g: Any) -> Any:
        g = np.asarray(g)
        g = g if atom.keepdims else np.expand_dims(g, axes)
        return np.broadcast_to(g, g.shape[: g.ndim - len(shape)] + shape)

    if len(axes) == len(shape) and not atom.keepdims:
        return lambda v: (v.reshape(v.shape[: v.ndim - len(shape)] + ones.shape) @ ones, pull)
    return lambda v: (v.sum(axis=axes, keepdims=atom.keepdims), pull)


@rule(atoms.TRANSPOSE, prepared=True)
def _(atom: Any, operands: Operands) -> Kernel:
    ndim = operands[0].ndim
    order = tuple(reversed(range(ndim))) if atom.axes is None else tuple(np.mod(atom.axes, ndim))
    back = tuple(int(k) for k in np.argsort(order))

    def permute(v: Any, order: tuple[int, ...]) -> Any:
        lead = np.ndim(v) - ndim
        return np.transpose(v, (*range(lead), *(lead + k for k in order)))

    return lambda v: (permute(v, order), lambda g: permute(g, back))


@rule(
    atoms.INDEX,
    atoms.SPECIAL_INDEX,
    atoms.RESHAPE,
    atoms.HSTACK,
    atoms.VSTACK,
    atoms.CONCATENATE,
    prepared=True,
)
def _(atom: Any, operands: Operands) -> Kernel:
    """Atoms that copy entries: entry k of the result is entry source[k] of the operands in a row.

    The atom itself, applied to the numbers of the entries, says where each one goes.
    """
    ends = np.cumsum([0] + [int(np.prod(operand.shape)) for operand in operands])
    labels = [
        np.arange(start, end).reshape(operand.shape)
        for start, end, operand in zip(ends[:-1], ends[1:], operands)
    ]
    source = np.rint(np.asarray(atom.numeric(labels), dtype=float)).astype(np.intp).ravel()
    size = int(ends[-1])
    take, put = _selection(source, size)
    batched = any(operand.batched for operand in operands)

    def gather(*values: Any) -> Any:
        if len(values) == 1:
            v = np.asarray(values[0])
            lead = v.shape[: v.ndim - operands[0].ndim]
            return take(v.reshape((*lead, size))).reshape(lead + atom.shape)
        lead = next(v.shape[:1] for v, o in zip(values, operands) if o.batched) if batched else ()
        row = np.empty((*lead, size))
        for v, operand, start, end in zip(values, operands, ends[:-1], ends[1:]):
            own = np.shape(v)[:1] if operand.batched else ()
            row[..., start:end] = np.reshape(v, (*own, end - start))
        return take(row).reshape(lead + atom.shape)

    def scatter(g: Any, k: int) -> Any:
        g = np.asarray(g)
        lead = g.shape[: g.ndim - atom.ndim]
        row = put(g.reshape((*lead, source.size)))[..., ends[k] : ends[k + 1]]
        return row.reshape(lead + operands[k].shape)

    pulls = tuple(_bind(scatter, k) for k in range(len(operands)))
    return lambda *values: (gather(*values), *pulls)


def _bind(scatter: Callable[[Any, int], Any], k: int) -> Callable[[Any], Any]:
    return lambda g: scatter(g, k)


def _selection(source: np.ndarray, size: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Taking the entries `source` of rows of length `size`, and its transpose."""
    if np.array_equal(source, np.arange(size)):
        return identity, identity
    if len(np.unique(source)) < source.size:
        matrix = sp.csr_array(
            (np.ones(source.size), (np.arange(source.size), source)), shape=(source.size, size)
        )
        return lambda row: row[..., source], lambda g: g @ matrix
    key = _as_slice(source)

    def put(g: Any) -> Any:
        row = np.zeros((*g.shape[:-1], size))
        row[..., key] = g
        return row

    return lambda row: row[..., key], put


def _as_slice(source: np.ndarray) -> Any:
    """The same selection as a slice, if it is one with a positive step."""
    if source.size == 0:
        return source
    step = int(source[1] - source[0]) if source.size > 1 else 1
    if step > 0 and np.array_equal(source, source[0] + step * np.arange(source.size)):
        return slice(int(source[0]), int(source[-1]) + 1, step)
    return source


@rule(atoms.AffAtom, prepared=True)
def through_matrices(atom: Any, operands: Operands) -> Kernel:
    """Any other affine atom, through the sparse matrices that CVXPY builds for it."""
    maps = linear_maps(atom)
    used = [k for k, m in enumerate(maps) if m is not None]
    shapes = [operand.shape for operand in operands]

    def bind(k: int) -> Callable[[Any], Any]:
        transposed, shape = maps[k].T.tocsr() if maps[k] is not None else None, shapes[k]

        def pull(g: Any) -> Any:
            return _unvec(_vec(g, atom.ndim) @ transposed, shape)

        return pull

    pulls = tuple(bind(k) for k in range(len(operands)))

    def kernel(*values: Any) -> tuple[Any, ...]:
        parts = [_vec(values[k], len(shapes[k])) @ maps[k] for k in used]
        return _unvec(sum(parts[1:], parts[0]), atom.shape), *pulls

    return kernel


def _vec(v: Any, ndim: int) -> Any:
    """Column-major vectors, after the batch axis if there is one."""
    v = np.asarray(v)
    lead = v.ndim - ndim
    order = (*range(lead), *range(v.ndim - 1, lead - 1, -1))
    return v.transpose(order).reshape((*v.shape[:lead], -1))


def _unvec(v: Any, shape: tuple[int, ...]) -> Any:
    lead = v.ndim - 1
    v = v.reshape(v.shape[:lead] + shape[::-1])
    return v.transpose((*range(lead), *range(v.ndim - 1, lead - 1, -1)))
