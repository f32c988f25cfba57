"""Weights of a ground cost, from numbers, arrays, {parameter: weights} or "standardize"."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import chunks, first_index, in_order, read_only

STANDARDIZE, OR_HOLD = "standardize", "standardize_or_hold"
SMALLEST_VARIANCE = 1e-300
"""Variance below which data counts as constant: its inverse would not be a finite weight."""


def own_weights(weights: Any) -> Any:
    """A copy of the weights: later changes of the user's arrays have no effect."""
    if isinstance(weights, Mapping):
        return {parameter: copy.deepcopy(value) for parameter, value in weights.items()}
    return copy.deepcopy(weights)


def weighted_formula(formula: str, weights: Any) -> str:
    """The formula of a cost, with its weights."""
    if weights is None:
        return formula.format(w="")
    label = f", weights {weights}" if isinstance(weights, str | numbers.Real) else ", given weights"
    return formula.format(w="w * " if "||" in formula else "w_i ") + label


def resolve_weights(weights: Any, joint: JointSamples, power: int) -> np.ndarray | None:
    """The weights (d,) of the coordinates, read-only; None if all are 1.

    power: "standardize" means 1 / (sample standard deviation)^power.
    """
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        names = ", ".join(repr(parameter.name()) for parameter in joint.parameters)
        resolved = np.ones(joint.dimension)
        for key, value in weights.items():
            if not isinstance(key, UncertainParameter) or key not in joint.slices:
                label = repr(key.name()) if isinstance(key, UncertainParameter) else repr(key)
                raise ValueError(
                    f"weights are given for {label}, which is not an uncertain parameter of the "
                    f"loss; the keys must be the parameter objects {names}."
                )
            where, what = joint.slices[key], f"weights of {key.name()!r}"
            resolved[where] = _entries(value, where, key.shape, key.columns, what, joint, power)
    else:
        every, single = slice(0, joint.dimension), joint.parameters[0].shape
        shape = single if len(joint.parameters) == 1 else (joint.dimension,)
        entries = _entries(weights, every, shape, joint.labels, "weights of a cost", joint, power)
        resolved = np.broadcast_to(entries, (joint.dimension,))
    if not np.all(resolved > 0):
        i = int(np.argmin(resolved > 0))
        raise ValueError(
            f"weights of a cost must be positive, got {float(resolved[i])} for "
            f"{joint.coordinate(i)}; np.inf keeps a coordinate at its observed value."
        )
    return None if np.all(resolved == 1.0) else read_only(resolved)


def _entries(
    given: Any,
    where: slice,
    shape: tuple[int, ...],
    labels: Sequence[Any] | None,
    what: str,
    joint: JointSamples,
    power: int,
) -> np.ndarray:
    """Weights of the coordinates `where`: (size,) for these coordinates, or (1,) for one number."""
    if isinstance(given, str):
        return _standardized(given, joint, where, power)
    given = in_order(given, labels, what)
    try:
        array = np.asarray(given)
    except ValueError:  # rows of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fiu":
        shown = given if isinstance(given, numbers.Number | str) else type(given).__name__
        raise ValueError(f"weights of a cost must be positive numbers, got {shown!r}.")
    size = where.stop - where.start
    if array.ndim == 0 or array.shape in (shape, (size,)):
        return array.astype(np.float64).reshape(-1)
    expected = f"shape ({size},)" + (f" or {shape}" if len(shape) > 1 else "")
    raise ValueError(
        f"{what} have shape {array.shape}, expected a number or {expected}; "
        "{parameter: weights} weights parameters apart."
    )


def _standardized(word: str, joint: JointSamples, where: slice, power: int) -> np.ndarray:
    """Weights 1 / deviation^power of the samples; infinite for coordinates that are held fixed."""
    if word not in (STANDARDIZE, OR_HOLD):
        raise ValueError(
            f"unknown weights {word!r}; write {STANDARDIZE!r}, {OR_HOLD!r}, a number, an array or "
            "{parameter: weights}."
        )
    rows, mean = joint.matrix[:, where], joint.mean[where]
    squares = (
        joint.shares.subset(slice(start, start + len(block))).multiple((block - mean) ** 2)
        for start, block in chunks(rows)
    )
    variance = np.asarray(sum(square.sum(axis=0) for square in squares)) / joint.size
    # Rounding of the mean gives constant data a tiny variance, but no range.
    held = constant = (rows.max(axis=0) == rows.min(axis=0)) | (variance < SMALLEST_VARIANCE)
    if word == STANDARDIZE:  # a support of one point, as of a road without a travel time
        held = constant & (False if joint.width is None else joint.width[where] == 0.0)
    refused = constant & ~held
    if refused.any() or (held.all() and joint.size == 1):
        i = where.start + (first_index(refused)[0] if refused.any() else 0)
        reason = "there is one sample" if joint.size == 1 else "all samples agree"
        raise ValueError(
            f"weights={word!r} needs data that varies, but {joint.coordinate(i)} does not "
            f"({reason}: {float(joint.matrix[0, i])!r}); give its weight as a number with "
            "{parameter: weights}, np.inf to keep it fixed"
            + ("." if joint.size == 1 else f"; weights={OR_HOLD!r} keeps all such entries fixed.")
        )
    return np.where(held, np.inf, np.where(held, 1.0, variance) ** (-power / 2))
