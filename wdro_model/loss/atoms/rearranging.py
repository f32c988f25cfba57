"""Atoms that move entries about: transposes, indices, reshaping and stacking."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import Adjoints, AtomFacts, Kernel, NoVectorForm, Operands, declare
from wdro_model.loss.atoms.linear import INDICES, identity
from wdro_model.loss.per_sample import NumberPerSample, per_sample, repeated


@declare(atoms.TRANSPOSE)
class Transposition(AtomFacts):
    """The axes in another order."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        ndim = operands[0].ndim
        axes = range(-1, -ndim - 1, -1) if atom.axes is None else atom.axes
        order = tuple(int(k) % ndim for k in axes)
        back = tuple(int(k) for k in np.argsort(order))

        def permute(v: Any, order: tuple[int, ...]) -> Any:
            lead = np.ndim(v) - ndim
            return np.transpose(v, (*range(lead), *(lead + k for k in order)))

        return lambda v: (permute(v, order), lambda g: permute(g, back))

    def adjoints(self, atom: Any) -> Adjoints:
        return [lambda g: g.T] if atom.axes is None else super().adjoints(atom)


@declare(*INDICES, atoms.RESHAPE, atoms.HSTACK, atoms.VSTACK, atoms.CONCATENATE)
class Copying(AtomFacts):
    """Entry k of the result is entry source[k] of the operands in a row."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """The atom itself, applied to the numbers of the entries, says where each one goes."""
        ends = np.cumsum([0] + [int(np.prod(operand.shape)) for operand in operands])
        labels = [
            np.arange(start, end).reshape(operand.shape)
            for start, end, operand in zip(ends[:-1], ends[1:], operands)
        ]
        source = np.rint(np.asarray(atom.numeric(labels), dtype=float)).astype(np.intp).ravel()
        size = int(ends[-1])
        take, put = _selection(source, size)

        def gather(*values: Any) -> Any:
            if len(values) == 1:
                v = np.asarray(values[0])
                lead = v.shape[: v.ndim - operands[0].ndim]
                return take(v.reshape((*lead, size))).reshape(lead + atom.shape)
            lead = next((v.shape[:1] for v, o in zip(values, operands) if o.batched), ())
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

        pulls = tuple(partial(scatter, k=k) for k in range(len(operands)))
        return lambda *values: (gather(*values), *pulls)


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


@declare(*INDICES)
class Indexing(AtomFacts):
    """Some of the entries."""

    def adjoints(self, atom: Any) -> Adjoints:
        return [partial(_scattered, atom=atom)]

    def over_samples(self, atom: Any, arguments: list[Any]) -> Any:
        (a,) = arguments
        if isinstance(a, NumberPerSample):
            return repeated(atom, arguments)
        if a.weights is not None or not isinstance(atom, atoms.INDEX):
            raise NoVectorForm
        taken = a.data[(slice(None), *atom.key)]
        return per_sample(taken.reshape(len(a.data), *atom.shape))


def _scattered(g: Any, atom: Any) -> Any:
    """The entries of g where the index took its own from, zeros elsewhere."""
    source = atom.args[0]
    labels = np.arange(source.size).reshape(source.shape)
    taken = np.ravel(atom.numeric([labels])).astype(int)
    if isinstance(g, cp.Constant) and not sp.issparse(g.value):
        out = np.zeros(source.size)
        np.add.at(out, taken, np.ravel(g.value))
        return cp.Constant(out.reshape(source.shape))
    ones = np.ones(len(taken))
    matrix = sp.csr_array((ones, (taken, np.arange(len(taken)))), (source.size, len(taken)))
    return cp.reshape(matrix @ cp.vec(g, order="C"), source.shape, order="C")
