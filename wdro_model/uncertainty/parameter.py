"""The uncertain data of a loss: a CVXPY parameter with its samples and its support."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

import cvxpy as cp
import numpy as np

from wdro_model.checks import whole_number
from wdro_model.errors import unknown_name
from wdro_model.uncertainty.samples import (
    NamesCoordinates,
    as_labels,
    as_probabilities,
    as_scenarios,
    chunks,
    column_names,
    frame_numbers,
    in_order,
    in_row_order,
    index_of,
    is_dask_array,
    is_frame,
    read_only,
)
from wdro_model.uncertainty.supports import Everywhere, Support

KNOWN = tuple(
    name
    for name in inspect.signature(cp.expressions.leaf.Leaf.__init__).parameters
    if name not in ("self", "shape", "value")
)
"""Names of the attributes of a CVXPY parameter."""
DATA_WORDS = ("data", "observations", "scenarios", "sample", "values", "X")
"""Keywords that users may write for `samples`; the error message then names `samples`."""
SPECTRAL_LIMIT = 200
"""Rows of a matrix up to which its semidefiniteness is checked; eigenvalues of more take long."""


class ParameterAttributes(TypedDict, total=False):
    """The attributes of a CVXPY parameter that uncertain data can have, for type checkers."""

    nonneg: bool
    nonpos: bool
    pos: bool
    neg: bool
    bounds: Any
    symmetric: bool
    diag: bool
    PSD: bool
    NSD: bool
    sparsity: Any


class UncertainParameter(cp.Parameter):
    """Data known through N samples, which the adversary may move within its support.

    `.value` stays None, so that solving the model as an ordinary CVXPY problem fails loudly.

    Parameters
    ----------
    shape
        () for a number, an int or a tuple as in CVXPY. Without it, the number of columns where the
        samples are a frame, and () elsewhere.
    samples
        `(N, *shape)`, or anything NumPy reads as that: nested lists, a pandas or polars frame (one
        column for each entry), a dictionary {label: (N,)}, a series for a scalar. (N, 1) is read as
        (N,) for a scalar, (N,) as (N, 1) for shape (1,). The samples are copied, so that later
        changes of the array have no effect; memory maps, and arrays made read-only by
        `array.flags.writeable = False`, are not copied. Other data, weights and bounds are matched
        by the labels of the columns, and samples of several parameters by the labels of the rows.
        Without samples a loss can be written with the parameter, but not solved.
    labels
        The labels of the entries in their order: a list such as `tree.edges`, or the set that has
        these coordinates. Columns of a frame are brought into this order.
    support
        Where the adversary may move the data; all of R^d by default.
    probabilities
        The probabilities of the samples, (N,), which add up to one; equal by default. Parameters of
        one loss share one vector: give it to one of them, or the same to all. A sample of
        probability zero is dropped.
    **attributes
        Attributes of `cvxpy.Parameter`. nonneg, nonpos, pos, neg and bounds restrict the support
        (pos and neg to the closed half-line), and a support of one sign declares that sign to
        CVXPY. symmetric, PSD, NSD, diag and sparsity are checked on the samples and declared to
        CVXPY; they do not restrict the adversary.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> data = np.random.default_rng(0).uniform(1.0, 2.0, size=(50, 3))
    >>> orthant = wdro.supports.Nonnegative()
    >>> price = wdro.UncertainParameter(3, "price", samples=data, support=orthant)
    >>> price.shape, price.count, price.is_nonneg()
    ((3,), 50, True)
    >>> wdro.UncertainParameter(2, "price", samples=[[1.0, np.nan]])
    Traceback (most recent call last):
        ...
    ValueError: samples of 'price' must be finite...

    Returns of three days in a frame, the last ones counting more:

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"bonds": [0.01, 0.02, 0.01], "stocks": [0.05, -0.02, 0.03]})
    >>> returns = wdro.UncertainParameter(samples=frame, probabilities=[0.2, 0.3, 0.5])
    >>> returns.shape, returns.columns, returns.probabilities
    ((2,), ('bonds', 'stocks'), array([0.2, 0.3, 0.5]))
    """

    def __init__(
        self,
        shape: int | tuple[int, ...] | None = None,
        name: str | None = None,
        *,
        samples: Any = None,
        support: Support | None = None,
        probabilities: Any = None,
        labels: Any = None,
        **attributes: Unpack[ParameterAttributes],
    ) -> None:
        label = "the uncertain parameter" if name is None else f"uncertain parameter {name!r}"
        given: dict[str, Any] = {**attributes}
        _refuse_attributes(label, name, given)
        self.is_named = name is not None
        self._known = labels if isinstance(labels, NamesCoordinates) else None
        if labels is None:
            columns = column_names(samples, f"samples of {label}")
        else:
            columns = as_labels(labels, label)
        if shape is None:
            count = len(
                samples if isinstance(samples, Mapping) else getattr(samples, "columns", ())
            )
            shape = (count,) if is_frame(samples) else () if columns is None else (len(columns),)
        full_shape = _as_shape(label, shape)
        if labels is not None and full_shape != (len(columns or ()),):
            raise ValueError(
                f"{label} has shape {full_shape}, and labels= has {len(columns or ())} label(s); "
                "give one for each entry of a vector."
            )
        try:
            region = _restricted(support, given, columns)
            region.validate(full_shape)
        except ValueError as error:
            raise ValueError(f"support of {label}: {error}") from error
        # The support may imply a sign, which CVXPY reads when the parameter is made.
        lower, upper = region.bounds(full_shape) or (-np.inf, np.inf)
        signs = {"nonneg": np.all(lower >= 0) and not given.get("pos")}
        signs["nonpos"] = np.all(upper <= 0) and not given.get("neg")
        super().__init__(full_shape, name, **given | {s: True for s in signs if signs[s]})
        self._support = region
        self._samples: np.ndarray | None = None
        self.stored = samples if is_dask_array(samples) else None
        """The Dask array that the samples were given as; None for other samples."""
        self._columns = columns
        self._index = index_of(samples)
        self._probabilities: np.ndarray | None = None
        if samples is not None:
            self._samples = self.as_samples(samples)
        if probabilities is not None:
            if samples is None:
                raise ValueError(f"{label} has probabilities but no samples; give samples= too.")
            what = f"probabilities of {self.name()!r}"
            ordered = in_row_order(probabilities, self._index, what)
            self._probabilities = as_probabilities(ordered, self.count, what)

    @property
    def value(self) -> Any:
        """None: the data is given by samples."""
        return self._value

    @value.setter
    def value(self, given: Any) -> None:
        if given is not None:
            raise AttributeError(
                f"the uncertain parameter {self.name()!r} takes no value, its data is its samples: "
                "declare it with samples=, see other data with problem.with_samples(...), judge a "
                "scenario with problem.losses(...), or use cp.Parameter for what is certain."
            )

    @property
    def samples(self) -> np.ndarray | None:
        """The observations `(N, *shape)`, read-only; None if none were given."""
        return self._samples

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """The labels of the entries, from labels= or from the columns of a frame; None if none."""
        return self._columns

    def has_columns(self, given: Mapping[Any, Any]) -> bool:
        """True if the keys of a dictionary are columns of this parameter, not parameters."""
        known = {*(self._columns or ()), *(() if self._known is None else self._known.coordinates)}
        return not known.isdisjoint(given) and self not in given and self.name() not in given

    @property
    def row_labels(self) -> Any:
        """The index of the frame or series that the samples were given as; None for others."""
        return self._index

    @property
    def probabilities(self) -> np.ndarray | None:
        """The probabilities of the observations (N,), read-only; None if they are equal."""
        return self._probabilities

    @property
    def support(self) -> Support:
        """The set within which the adversary may move the data."""
        return self._support

    @property
    def count(self) -> int:
        """The number N of samples; 0 if none were given."""
        return 0 if self._samples is None else len(self._samples)

    def is_hermitian(self) -> bool:
        """True if declared symmetric; ValueError where CVXPY reads x @ P @ x with another P."""
        known = bool(super().is_hermitian())
        if not known and sys._getframe(1).f_code.co_name == "validate_arguments":
            raise ValueError(
                f"CVXPY reads x @ P @ x as a quadratic form of a symmetric matrix, which "
                f"{self.name()!r} is not declared to be: write wdro_model.quadratic_form(x, P), "
                "which takes any square matrix."
            )
        return known

    def as_samples(self, given: Any) -> np.ndarray:
        """Observations `(N, *shape)` of this parameter, read-only; arrays of the user are copied.

        ValueError where they contradict the shape, the support or an attribute.
        """
        label = repr(self.name())
        array = self.as_scenarios(given, f"samples of {label}", own=True)
        _refuse_samples(array, self._support, self.attributes, self.sparse_idx, label)
        return read_only(array)

    def as_scenarios(self, given: Any, what: str, own: bool = False) -> np.ndarray:
        """Scenarios `(B, *shape)` of this parameter, in the support or not; frames by columns.

        own: True to copy arrays that the user may write into.
        """
        if is_frame(given):
            given = frame_numbers(given, self._columns, what, self._known)
        return as_scenarios(given, self.shape, what, own)

    def __getstate__(self) -> dict[str, Any]:
        # CVXPY's deepcopy stores a bound method in the instance, which a copy must not inherit.
        return {key: value for key, value in self.__dict__.items() if key != "__deepcopy__"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._samples is not None:
            self._samples = read_only(self._samples)
        if self._probabilities is not None:
            self._probabilities = read_only(self._probabilities)

    def __repr__(self) -> str:
        data = "no samples" if self._samples is None else f"{self.count} samples"
        data += "" if self._probabilities is None else " with probabilities"
        return f"UncertainParameter({self.shape}, {self.name()!r}, {data}, {self.support!r})"


def _as_shape(label: str, shape: Any) -> tuple[int, ...]:
    dimensions = tuple(shape) if np.iterable(shape) and not isinstance(shape, str) else (shape,)
    hint = "a shape is a positive integer or a tuple of them"
    return tuple(whole_number(f"the shape of {label}", n, low=1, hint=hint) for n in dimensions)


def _refuse_attributes(label: str, name: Any, attributes: dict[str, Any]) -> None:
    if not (name is None or isinstance(name, str)):
        raise ValueError(f"name of an uncertain parameter must be a string, got {name!r}.")
    known = [*KNOWN, "name", "samples", "support", "probabilities", "labels", "shape"]
    for key in attributes:
        if key not in (*KNOWN, "value", "id"):
            meant = "samples" if key in DATA_WORDS else None
            raise TypeError(f"{label}: {unknown_name('argument', key, known, meant)}")
    if attributes.get("value") is not None:
        raise ValueError(f"{label} takes no value: give the observed data as samples=.")
    for key in ("complex", "imag", "hermitian", "boolean", "integer"):
        if attributes.get(key):
            raise ValueError(
                f"{label} cannot be {key}: the data is moved continuously in R^d. Leave {key}= out "
                "(a cost with weight np.inf keeps a parameter at its observed values)."
            )


def _restricted(support: Any, attributes: dict[str, Any], labels: Any) -> Support:
    """The support, restricted to the sign and the bounds among the attributes."""
    support = Everywhere() if support is None else support
    if not isinstance(support, Support):
        raise ValueError(
            f"expected one of wdro_model.supports (Box, Nonnegative, Polyhedron, Where), "
            f"got {support!r}."
        )
    support = support.in_order(labels)
    if attributes.get("nonneg") or attributes.get("pos"):
        support = support.restrict(0.0, np.inf)
    if attributes.get("nonpos") or attributes.get("neg"):
        support = support.restrict(-np.inf, 0.0)
    if attributes.get("bounds") is not None:
        sides = [in_order(side, labels, "bounds") for side in attributes["bounds"]]
        lower, upper = (s if s is None or np.isscalar(s) else np.array(s) for s in sides)
        attributes["bounds"] = [lower, upper]
        support = support.restrict(
            -np.inf if lower is None else lower, np.inf if upper is None else upper
        )
    return support


def _refuse_samples(
    samples: np.ndarray, support: Support, attributes: dict[str, Any], sparse_idx: Any, label: str
) -> None:
    """Raise a ValueError for samples that contradict the support or an attribute."""
    pattern = np.zeros(samples.shape[1:], dtype=bool)
    if attributes.get("sparsity"):
        pattern[tuple(map(np.asarray, sparse_idx))] = True
    checks = {
        "pos": lambda rows: rows > 0,
        "neg": lambda rows: rows < 0,
        "symmetric": _symmetric,
        "diag": lambda rows: (rows == 0) | np.eye(rows.shape[-1], dtype=bool),
        "sparsity": lambda rows: (rows == 0) | pattern,
        "PSD": lambda rows: _symmetric(rows) & _semidefinite(rows),
        "NSD": lambda rows: _symmetric(rows) & _semidefinite(-rows),
    }
    declared = [key for key, value in attributes.items() if value and key in checks]
    if not declared and isinstance(support, Everywhere):
        return
    for start, rows in chunks(samples):
        inside = support.contains(rows)
        if not inside.all():
            first = int(np.argmin(inside))
            raise ValueError(
                f"sample {start + first} of {label} lies outside its support: "
                f"{support.why_outside(rows[first])}. "
                "Widen the support, or drop or clip the sample."
            )
        for key in declared:
            fine = checks[key](rows).reshape(len(rows), -1).all(axis=1)
            if not fine.all():
                raise ValueError(
                    f"sample {start + int(np.argmin(fine))} of {label} contradicts {key}=True; "
                    f"correct the sample or leave {key}= out."
                )


def _symmetric(rows: np.ndarray) -> np.ndarray:
    size = np.abs(rows).max(axis=(-2, -1), keepdims=True)
    return np.abs(rows - np.swapaxes(rows, -2, -1)) <= 1e-9 * size


def _semidefinite(rows: np.ndarray) -> np.ndarray:
    """The mask of matrices whose smallest eigenvalue is at least -1e-8 of the largest entry."""
    if rows.shape[-1] > SPECTRAL_LIMIT:
        return np.ones_like(rows, dtype=bool)
    smallest = np.linalg.eigvalsh(rows)[..., :1, None]
    size = np.abs(rows).max(axis=(-2, -1), keepdims=True)
    return np.broadcast_to(smallest >= -1e-8 * size, rows.shape)
