"""A scalar loss as a sum of scalar terms, each of which sees little of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp

from wdro_model.loss import atoms
from wdro_model.loss.affine import as_scalar
from wdro_model.loss.piecewise import entry_of
from wdro_model.loss.polynomial import Degrees

LARGEST_SUM = 512
"""Sums are written out entry by entry up to this many."""


def additive_terms(expression: Any, degrees: Degrees) -> list[Any]:
    """Scalar expressions whose sum is the expression; parts affine in the data stay whole."""
    return list(_walk(as_scalar(expression), None, degrees))


def _walk(e: Any, factor: Any, degrees: Degrees) -> Iterator[Any]:
    """The terms of factor * e, the factor without data."""
    if degrees(e) > 1:
        parts = list(_parts(e, degrees))
        if parts:
            for part, own in parts:
                scale = own if factor is None else factor if own is None else factor * own
                yield from _walk(part, scale, degrees)
            return
    yield as_scalar(e) if factor is None else factor * as_scalar(e)


def _parts(e: Any, degrees: Degrees) -> Iterator[tuple[Any, Any]]:
    """The summands of one atom, each with its factor; none where the atom is no sum."""
    if isinstance(e, atoms.ADD) and all(a.size == 1 for a in e.args):
        yield from ((a, None) for a in e.args)
    elif isinstance(e, atoms.NEGATE):
        yield e.args[0], cp.Constant(-1.0)
    elif isinstance(e, atoms.RESHAPE | atoms.WRAP):
        yield e.args[0], None
    elif isinstance(e, atoms.MULTIPLY) and e.size == 1:
        factor, other = e.args if degrees(e.args[0]) == 0 else e.args[::-1]
        if degrees(factor) == 0:
            yield other, as_scalar(factor)
    elif isinstance(e, atoms.DIVIDE) and degrees(e.args[1]) == 0 and e.size == 1:
        yield e.args[0], 1 / as_scalar(e.args[1])
    elif isinstance(e, atoms.SUM) and e.size == 1 and e.args[0].size <= LARGEST_SUM:
        yield from ((entry_of(e.args[0], i), None) for i in range(e.args[0].size))
    elif isinstance(e, atoms.NORM1) and e.size == 1 and e.args[0].size <= LARGEST_SUM:
        yield from ((cp.abs(entry_of(e.args[0], i)), None) for i in range(e.args[0].size))
    elif isinstance(e, atoms.MATMUL) and e.size == 1 and e.args[0].size == e.args[1].size:
        factor, other = e.args if degrees(e.args[0]) == 0 else e.args[::-1]
        if degrees(factor) == 0 and 1 < other.size <= LARGEST_SUM:
            for i in range(other.size):
                yield entry_of(other, i), entry_of(factor, i)
