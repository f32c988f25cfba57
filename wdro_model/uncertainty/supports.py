"""Supports: the set Xi in which the uncertain data may lie.

`Everywhere`, `Box` and `Nonnegative` bound each entry on its own and are sampled exactly;
`Polyhedron` and `Where` couple entries and are sampled by rejection. Membership allows for
rounding: a point may exceed a bound b by 1e-9 max(1, |b|).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from wdro_model.checks import real_array, refuse
from wdro_model.errors import blaming, function_name
from wdro_model.uncertainty.samples import (
    column_names,
    first_index,
    in_order,
    label_order,
    labels_of,
    read_only,
    reorder,
)

__all__ = ["Box", "Everywhere", "Nonnegative", "Polyhedron", "Support", "Where"]


Shape = tuple[int, ...]
Array = np.ndarray
TOLERANCE = 1e-9
"""Distance beyond a bound b that counts as inside, relative to max(1, |b|): rounding."""


class Support(ABC):
    """A closed set of scenarios of a given shape; immutable, and usable for several parameters.

    Examples
    --------
    >>> box = wdro.supports.Box(0, [1.0, 2.0])
    >>> isinstance(box, wdro.supports.Support)
    True
    >>> box.contains(np.array([[0.5, 1.5], [1.5, 1.5]]))
    array([ True, False])
    """

    @abstractmethod
    def contains(self, points: Array) -> Array:
        """The mask (B,) of the points `(B, *shape)` that lie in the support."""

    @abstractmethod
    def bounds(self, shape: Shape) -> tuple[Array, Array] | None:
        """Lower and upper bound of each entry, or None if the support is not a box."""

    @abstractmethod
    def validate(self, shape: Shape) -> None:
        """Raise ValueError if the support does not fit the shape or is empty."""

    @abstractmethod
    def restrict(self, lower: Any, upper: Any) -> Support:
        """The part of the support whose entries also lie between `lower` and `upper`."""

    def in_order(self, labels: Sequence[Any] | None) -> Support:
        """The support with its entries in the order of these labels, if it has labels too."""
        return self

    def scaled(self, factor: float) -> Support | None:
        """The support times factor > 0; None if this is not known."""
        return None

    def why_outside(self, point: Array) -> str:
        """The reason why a point (of the parameter's shape) is outside, for a message."""
        return f"it is outside {self!r}"


def slack(bound: Array, sign: float) -> Array:
    """The bound moved outwards by the tolerance: up for sign 1, down for -1."""
    return bound + sign * TOLERANCE * np.maximum(1.0, np.abs(bound))


# ------------------------------------------------------------------ entry by entry
class _Coordinatewise(Support):
    """A support that bounds each entry on its own."""

    lower: Any
    upper: Any
    """The bounds as declared, not yet broadcast to a shape."""

    def contains(self, points: Array) -> Array:
        lower, upper = slack(self.lower, -1.0), slack(self.upper, 1.0)
        entries = tuple(range(1, np.ndim(points)))
        inside = np.ones(len(points), dtype=bool)
        if np.any(lower > -np.inf):
            inside &= np.all(points >= lower, axis=entries)
        if np.any(upper < np.inf):
            inside &= np.all(points <= upper, axis=entries)
        return inside

    def bounds(self, shape: Shape) -> tuple[Array, Array]:
        """Lower and upper bound of each entry, as read-only arrays of that shape."""
        return _fit(self.lower, "lower", shape), _fit(self.upper, "upper", shape)

    def validate(self, shape: Shape) -> None:
        lower, upper = self.bounds(shape)
        if np.any(lower > upper):
            at = first_index(lower > upper)
            where = f" at entry {list(at)}" if at else ""
            raise ValueError(
                f"the box is empty: its lower bound {float(lower[at])!r} exceeds its upper bound "
                f"{float(upper[at])!r}{where}; exchange or correct the bounds."
            )

    def restrict(self, lower: Any, upper: Any) -> Support:
        return Box(np.maximum(self.lower, lower), np.minimum(self.upper, upper))

    def scaled(self, factor: float) -> Support:
        return Box(self.lower * factor, self.upper * factor)

    def why_outside(self, point: Array) -> str:
        lower, upper = self.bounds(np.shape(point))
        for word, bound, wrong in (
            ("below its lower bound", lower, point < slack(lower, -1.0)),
            ("above its upper bound", upper, point > slack(upper, 1.0)),
        ):
            if np.any(wrong):
                at = first_index(wrong)
                entry = f"entry {list(at)}" if at else "it"
                return f"{entry} is {float(point[at])!r}, {word} {float(bound[at])!r}"
        return super().why_outside(point)


def _fit(bound: Array, side: str, shape: Shape) -> Array:
    """The bound as a read-only array of the parameter's shape."""
    try:
        return np.broadcast_to(bound.reshape(()) if bound.size == 1 else bound, shape)
    except ValueError:
        raise ValueError(
            f"{side} bound of shape {bound.shape} does not fit a parameter of shape {shape}; give "
            "a number or an array that broadcasts to it."
        ) from None


@dataclass(frozen=True)
class Everywhere(_Coordinatewise):
    """The whole space R^d.

    Examples
    --------
    >>> wdro.UncertainParameter(2, samples=[[0.2, 0.4]]).support
    Everywhere()
    """

    lower, upper = np.array(-np.inf), np.array(np.inf)

    def restrict(self, lower: Any, upper: Any) -> Support:
        if np.all(np.equal(lower, 0.0)) and np.all(np.equal(upper, np.inf)):
            return Nonnegative()
        return Box(lower, upper)

    def scaled(self, factor: float) -> Everywhere:
        return self


@dataclass(frozen=True)
class Nonnegative(_Coordinatewise):
    """The nonnegative orthant: every entry is at least zero.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> demand = wdro.UncertainParameter(samples=[7.0, 9.0], support=wdro.supports.Nonnegative())
    >>> demand.is_nonneg()
    True
    """

    lower, upper = np.array(0.0), np.array(np.inf)

    def scaled(self, factor: float) -> Nonnegative:
        return self


@dataclass(frozen=True, eq=False)
class Box(_Coordinatewise):
    """Entries between bounds: {z : lower <= z <= upper}.

    Parameters
    ----------
    lower, upper
        Numbers, arrays that broadcast to the parameter's shape, or series and dictionaries with the
        labels of its columns; infinite values leave that side of an entry open.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> share = wdro.UncertainParameter(2, samples=[[0.2, 0.4]], support=wdro.supports.Box(0, 1))
    >>> share.is_nonneg()
    True
    >>> wdro.UncertainParameter(2, "share", samples=[[0.2, 1.4]], support=wdro.supports.Box(0, 1))
    Traceback (most recent call last):
        ...
    ValueError: ...
    """

    lower: Any = -np.inf
    upper: Any = np.inf
    _labels: Any = field(default=(), init=False, repr=False)
    """The labels of the lower and of the upper bounds, as given; None for bounds without."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_labels", (labels_of(self.lower), labels_of(self.upper)))
        object.__setattr__(self, "lower", _bound(self.lower, "lower", forbidden=np.inf))
        object.__setattr__(self, "upper", _bound(self.upper, "upper", forbidden=-np.inf))

    def in_order(self, labels: Sequence[Any] | None) -> Support:
        if self._labels == (None, None):
            return self
        lower, upper = self._labels
        return Box(
            reorder(self.lower, lower, labels, "lower bounds"),
            reorder(self.upper, upper, labels, "upper bounds"),
        )

    def __repr__(self) -> str:
        return f"Box(lower={_brief(self.lower)}, upper={_brief(self.upper)})"


def _bound(given: Any, side: str, forbidden: float) -> Array:
    """A bound of the user as a read-only array, without NaN and the forbidden infinity."""
    given = list(given.values()) if isinstance(given, Mapping) else given
    name, hint = f"{side} bound of a Box", f"{-forbidden} leaves that side of an entry open"
    array = real_array(name, given, finite=False, hint=hint)
    if np.any(array == forbidden):
        raise refuse(name, f"another number than {forbidden}", forbidden, hint)
    return read_only(array.copy())


def _brief(array: Array) -> str:
    if array.ndim == 0:
        return repr(float(array))
    return repr(array.tolist()) if array.size <= 6 else f"array of shape {array.shape}"


# ------------------------------------------------------------------ coupled entries
@dataclass(frozen=True, eq=False)
class Polyhedron(Support):
    """Linear inequalities on the flattened (row-major) parameter: {z : A z <= b}.

    Parameters
    ----------
    A
        (k, d) array or SciPy sparse matrix, finite; or a frame with the parameter's columns.
    b
        (k,), finite.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> at_most_one = wdro.supports.Polyhedron(np.vstack([np.ones(2), -np.eye(2)]), [1.0, 0.0, 0.0])
    >>> at_most_one.contains(np.array([[0.5, 0.4], [0.5, 0.6]]))
    array([ True, False])
    >>> share = wdro.UncertainParameter(2, samples=[[0.5, 0.4]], support=at_most_one)
    """

    A: Any
    b: Any
    _columns: Any = field(default=None, init=False, repr=False)
    """The labels of the columns of A; None if A was no frame."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_columns", column_names(self.A, "the inequalities", numbered=True)
        )
        object.__setattr__(self, "b", in_order(self.b, labels_of(self.A), "b"))
        hint = "drop the rows without a bound"
        matrix = self.A
        if sparse.issparse(matrix):
            matrix = sparse.csr_array(matrix, copy=True)
            real_array("A of a Polyhedron", matrix.data, hint=hint)
        else:
            given = list(matrix.values()) if isinstance(matrix, Mapping) else matrix
            matrix = read_only(real_array("A of a Polyhedron", given, hint=hint).copy())
        vector = np.atleast_1d(real_array("b of a Polyhedron", self.b, hint=hint)).copy()
        if matrix.ndim != 2 or vector.shape != (matrix.shape[0],):
            raise ValueError(
                f"Polyhedron(A, b) needs A of shape (k, d) and b of shape (k,), got shapes "
                f"{matrix.shape} and {vector.shape}; write one row of A and one entry of b per "
                "inequality."
            )
        object.__setattr__(self, "A", matrix)
        object.__setattr__(self, "b", read_only(vector))

    def in_order(self, labels: Sequence[Any] | None) -> Support:
        order = label_order(self._columns, labels, "the inequalities", "column")
        return self if order is None else Polyhedron(self.A[:, order], self.b)

    def contains(self, points: Array) -> Array:
        rows = np.reshape(points, (len(points), -1))
        products = (self.A @ rows.T).T
        return np.all(products <= slack(self.b, 1.0), axis=1)

    def bounds(self, shape: Shape) -> tuple[Array, Array] | None:
        """Bounds of each entry if every inequality has one nonzero coefficient; None otherwise."""
        rows = sparse.csr_array(self.A)
        rows.eliminate_zeros()
        if not np.all(np.diff(rows.indptr) == 1):
            return None
        at, limits = rows.indices, self.b / rows.data
        lower, upper = np.full(rows.shape[1], -np.inf), np.full(rows.shape[1], np.inf)
        above = rows.data > 0
        np.minimum.at(upper, at[above], limits[above])
        np.maximum.at(lower, at[~above], limits[~above])
        for side in (lower, upper):
            side.flags.writeable = False
        return lower.reshape(shape), upper.reshape(shape)

    def validate(self, shape: Shape) -> None:
        size = math.prod(shape)
        if self.A.shape[1] != size:
            raise ValueError(
                f"Polyhedron has {self.A.shape[1]} columns in A but the parameter of shape {shape} "
                f"has {size} entries; A acts on the flattened (row-major) parameter."
            )
        result = linprog(np.zeros(size), A_ub=self.A, b_ub=self.b, bounds=(None, None))
        if result.status == 2:
            raise ValueError(
                f"the polyhedron is empty: no point satisfies its {len(self.b)} inequalities "
                "A z <= b; check their signs."
            )

    def restrict(self, lower: Any, upper: Any) -> Polyhedron:
        size = self.A.shape[1]
        sides = [np.broadcast_to(np.ravel(side), size) for side in (lower, upper)]
        keep = [np.isfinite(side) for side in sides]
        identity = sparse.eye_array(size, format="csr")
        rows = sparse.vstack([self.A, -identity[keep[0]], identity[keep[1]]], format="csr")
        limits = np.concatenate([self.b, -sides[0][keep[0]], sides[1][keep[1]]])
        return Polyhedron(rows if sparse.issparse(self.A) else rows.toarray(), limits)

    def scaled(self, factor: float) -> Polyhedron:
        return Polyhedron(self.A, self.b * factor)

    def why_outside(self, point: Array) -> str:
        excess = self.A @ np.ravel(point) - self.b
        row = int(np.argmax(excess - slack(self.b, 1.0) + self.b))
        return f"row {row} of A z <= b is violated by {float(excess[row]):.3g}"

    def __repr__(self) -> str:
        rows, columns = self.A.shape
        return f"Polyhedron({rows} inequalities on {columns} entries)"


@dataclass(frozen=True, eq=False)
class Where(Support):
    """The points that a predicate accepts: `predicate(points (B, *shape)) -> booleans (B,)`.

    Examples
    --------
    >>> ring = wdro.supports.Where(lambda points: np.linalg.norm(points, axis=1) >= 1.0)
    >>> ring.contains(np.array([[1.0, 1.0], [0.1, 0.1]]))
    array([ True, False])
    """

    predicate: Callable[[Array], Array]

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise ValueError(
                f"Where(predicate) needs a callable from points (B, *shape) to booleans (B,), got "
                f"{self.predicate!r}."
            )

    def contains(self, points: Array) -> Array:
        given = np.asarray(points).view()
        given.flags.writeable = False
        name = function_name(self.predicate)
        with blaming(f"the predicate {name} of Where"):
            answer = np.asarray(self.predicate(given))
        if answer.dtype != bool or answer.shape != (len(given),):
            raise ValueError(
                f"predicate {name} of Where must return {len(given)} booleans, "
                f"shape ({len(given)},), for points of shape {given.shape}; it returned "
                f"{answer.dtype} of shape {answer.shape}. Reduce over the entries of each point."
            )
        return answer

    def bounds(self, shape: Shape) -> None:
        return None

    def validate(self, shape: Shape) -> None:
        """Check nothing: a predicate is known only at points."""

    def restrict(self, lower: Any, upper: Any) -> Where:
        return Where(partial(_in_both, self, Box(lower, upper)))

    def why_outside(self, point: Array) -> str:
        return f"the predicate {function_name(self.predicate)} rejects it"

    def __repr__(self) -> str:
        return f"Where({function_name(self.predicate)})"


def _in_both(first: Support, second: Support, points: Array) -> Array:
    return first.contains(points) & second.contains(points)


__dir__ = __all__.copy  # what the tab key offers
