"""Affine atoms: sums, broadcasting, transposes, indices, reshaping, stacking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.errors import MissingRuleError
from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import (
    Adjoints,
    AtomFacts,
    Kernel,
    Operands,
    declare,
    missing_rule,
)
from wdro_model.loss.expressions import own_axes, total, unbroadcast, weighted

INDICES = (atoms.INDEX, atoms.SPECIAL_INDEX)


def identity(g: Any) -> Any:
    return g


@declare(atoms.AffAtom)
class Affine(AtomFacts):
    """Any affine atom, by the sparse matrices that CVXPY builds for it."""

    is_homogeneous = True

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        maps = linear_maps(atom)
        used = [k for k, m in enumerate(maps) if m is not None]
        shapes = [operand.shape for operand in operands]

        def pull(g: Any, transposed: Any, shape: tuple[int, ...]) -> Any:
            return _unvec(_vec(g, atom.ndim) @ transposed, shape)

        pulls = tuple(
            partial(pull, transposed=None if m is None else m.T.tocsr(), shape=shape)
            for m, shape in zip(maps, shapes)
        )

        def kernel(*values: Any) -> tuple[Any, ...]:
            parts = [_vec(values[k], len(shapes[k])) @ maps[k] for k in used]
            return _unvec(sum(parts[1:], parts[0]), atom.shape), *pulls

        return kernel

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return max(degrees)

    def adjoints(self, atom: Any) -> Adjoints:
        def pull(g: Any, matrix: Any, shape: tuple[int, ...]) -> Any:
            return cp.reshape(matrix @ cp.vec(g, order="F"), shape, order="F")

        maps = linear_maps(atom)
        return [partial(pull, matrix=m, shape=a.shape) for m, a in zip(maps, atom.args)]

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        if self.is_entrywise:
            return super().dependence(atom, seen)
        try:
            maps = linear_maps(atom)
        except MissingRuleError:
            return None
        return sum(abs(m).T @ seen(a) for a, m in zip(atom.args, maps) if m is not None)

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        return at.by_matrices(sign)


def linear_maps(atom: Any) -> list[Any]:
    """Sparse matrices M_k with vec(atom) = sum_k vec(argument_k) M_k, vec in column-major order.

    M_k is None for a constant factor of a product, which is part of the matrix of the other factor.
    """
    fixed = isinstance(atom, atoms.BILINEAR)
    arguments = [
        a if fixed and isinstance(a, cp.Constant) else cp.Variable(a.shape) for a in atom.args
    ]
    values = [a.value if isinstance(a, cp.Constant) else np.zeros(a.shape) for a in arguments]
    try:
        maps = atom.copy(arguments)._grad(values)
    except Exception as error:
        # CVXPY raises errors of many types here, for two variables or a missing graph.
        reason = str(error) or type(error).__name__
        raise missing_rule(atom, f", and CVXPY gives no matrix for it ({reason})") from error
    return [
        None
        if isinstance(a, cp.Constant)
        else sp.csr_array(m if sp.issparse(m) else np.reshape(m, (a.size, atom.size)), dtype=float)
        for a, m in zip(arguments, maps)
    ]


def _vec(v: Any, ndim: int) -> Any:
    """Arrays (..., *shape of `ndim` axes) as column-major vectors (..., size)."""
    v = np.asarray(v)
    lead = v.ndim - ndim
    order = (*range(lead), *range(v.ndim - 1, lead - 1, -1))
    return v.transpose(order).reshape((*v.shape[:lead], -1))


def _unvec(v: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `_vec`."""
    lead = v.ndim - 1
    v = v.reshape(v.shape[:lead] + shape[::-1])
    return v.transpose((*range(lead), *range(v.ndim - 1, lead - 1, -1)))


@declare(atoms.ADD)
class Addition(AtomFacts):
    """Sums of arguments that are broadcast to one shape."""

    is_entrywise = True

    def kernel(self, _atom: Any, operands: Operands) -> Kernel:
        pulls = (identity,) * len(operands)
        if len(operands) == 2:
            return lambda u, v: (u + v, *pulls)
        return lambda *v: (sum(v[1:], v[0]), *pulls)

    def adjoints(self, atom: Any) -> Adjoints:
        return [partial(unbroadcast, shape=argument.shape) for argument in atom.args]

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        return total([part for part in parts if part is not None])

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        return at.total(at.spread(at(argument, sign)) for argument in atom.args)


@declare(atoms.ADD, atoms.PROMOTE, atoms.BROADCAST)
class Broadcast(AtomFacts):
    """Atoms that repeat entries of smaller arguments, which are counted as often in a sum."""

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        return [
            term if argument.size == atom.size else (atom.size // argument.size) * term
            for argument in atom.args
            for term in split(argument)
        ]


@declare(atoms.NEGATE)
class Negation(AtomFacts):
    """-a."""

    is_entrywise = True

    def rule(self, _atom: Any, v: Any) -> tuple[Any, ...]:
        return -v, np.negative

    def adjoints(self, atom: Any) -> Adjoints:
        return [lambda g: -g]

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        return [-term for term in split(atom.args[0])]

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        return at(atom.args[0], -sign)

    def factor(self, atom: Any, number: Callable[[Any], float | None]) -> Any | None:
        return -1.0, atom.args[0]


@declare(atoms.PROMOTE, atoms.BROADCAST)
class Stretching(AtomFacts):
    """Each entry of an argument, several times."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
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

    def adjoints(self, atom: Any) -> Adjoints:
        return [partial(unbroadcast, shape=atom.args[0].shape)]


@declare(
    atoms.WRAP,
    atoms.RESHAPE,
    atoms.TRANSPOSE,
    atoms.HSTACK,
    atoms.VSTACK,
    atoms.CONCATENATE,
    atoms.SUM,
)
class SameTotal(AtomFacts):
    """Sums over axes and rearrangements, which keep the sum of all entries."""

    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        return [term for argument in atom.args for term in split(argument)]


@declare(atoms.WRAP, atoms.RESHAPE, atoms.SUM, *INDICES, atoms.PROMOTE)
class MaybeSame(AtomFacts):
    """Atoms that return an argument of one entry with its value unchanged."""

    def same_number(self, atom: Any) -> Any | None:
        return atom.args[0] if atom.args[0].size == 1 else None

    def factor(self, atom: Any, number: Callable[[Any], float | None]) -> Any | None:
        argument = atom.args[0]
        same = argument.shape == atom.shape and (atom.size == 1 or isinstance(atom, atoms.RESHAPE))
        return (1.0, argument) if same and atom.ndim <= 1 else None


@declare(atoms.RESHAPE, atoms.TRANSPOSE, *INDICES, atoms.PROMOTE, atoms.BROADCAST)
class Rearranged(AtomFacts):
    """Atoms whose entries are entries of one argument."""

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        if at.entry is not None:
            return at.by_matrices(sign)
        return [atom.copy([p]) for p in at(atom.args[0], sign)]


@declare(atoms.WRAP)
class Wrapping(AtomFacts):
    """psd_wrap: the argument itself, declared PSD."""

    def rule(self, _atom: Any, v: Any) -> tuple[Any, ...]:
        return v, identity

    def adjoints(self, atom: Any) -> Adjoints:
        return [identity]


@declare(atoms.SUM)
class Summation(AtomFacts):
    """Sums over all entries or along axes."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        shape = operands[0].shape
        axes = own_axes(len(shape), atom.axis)

        def pull(g: Any) -> Any:
            g = np.asarray(g)
            g = g if atom.keepdims else np.expand_dims(g, axes)
            return np.broadcast_to(g, g.shape[: g.ndim - len(shape)] + shape)

        return lambda v: (v.sum(axis=axes, keepdims=atom.keepdims), pull)

    def adjoints(self, atom: Any) -> Adjoints:
        if atom.shape != ():
            return super().adjoints(atom)
        return [lambda g: weighted(g, cp.Constant(np.ones(atom.args[0].shape)))]


# ------------------------------------------------------------------ entries in other places


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
    """Atoms that copy entries: entry k is entry source[k] of the concatenated operands."""

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """`source` is the value of the atom where each entry of its operands holds its position."""
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
    """(take, put): the selection of the entries `source` of rows (..., size), and its adjoint."""
    if np.array_equal(source, np.arange(size)):
        return identity, identity
    is_unique, entries = len(np.unique(source)) == source.size, np.index_exp[..., source]

    def put(g: Any) -> Any:
        row = np.zeros((*g.shape[:-1], size))
        if is_unique:
            row[entries] = g
        else:
            np.add.at(row, entries, g)  # type: ignore[arg-type]
        return row

    return lambda row: row[..., source], put


@declare(*INDICES)
class Indexing(AtomFacts):
    """Some of the entries."""

    def adjoints(self, atom: Any) -> Adjoints:
        return [partial(_scattered, atom=atom)]


def _scattered(g: Any, atom: Any) -> Any:
    """The adjoint of an index: the entries of g in the places they were read from, 0 elsewhere."""
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
