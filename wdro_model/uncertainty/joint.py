"""Several uncertain parameters as one random vector: the joint sample axis and its coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.scenarios import as_scenarios, chunks, read_only
from wdro_model.uncertainty.supports import Everywhere


class JointSamples:
    """The N observed vectors xi_k in R^d: the parameters' samples, flattened and side by side.

    parameters: in the order of the coordinates; each is flattened row-major.
    size: N; dimension: d; slices: the coordinates of each parameter.
    matrix: (N, d), read-only; for one parameter it is a view of its samples.
    """

    def __init__(self, parameters: Sequence[UncertainParameter]) -> None:
        self.parameters = tuple(parameters)
        self.size = _common_count(self.parameters)
        self.slices: dict[UncertainParameter, slice] = {}
        stop = 0
        for parameter in self.parameters:
            start, stop = stop, stop + math.prod(parameter.shape)
            self.slices[parameter] = slice(start, stop)
        self.dimension = stop
        blocks = [np.reshape(np.asarray(p.samples), (self.size, -1)) for p in self.parameters]
        self.matrix = read_only(blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1))

    @cached_property
    def mean(self) -> np.ndarray:
        """The average observation (d,)."""
        return read_only(self.matrix.mean(axis=0))

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper bounds (d,) of the joint support; None if some support is not a box."""
        boxes = [parameter.support.bounds(parameter.shape) for parameter in self.parameters]
        if any(box is None for box in boxes):
            return None
        lower, upper = ([np.ravel(side) for side in sides] for sides in zip(*boxes))
        if len(boxes) == 1:
            return read_only(lower[0]), read_only(upper[0])
        return read_only(np.concatenate(lower)), read_only(np.concatenate(upper))

    @cached_property
    def everywhere(self) -> bool:
        """Is the joint support all of R^d?"""
        if all(isinstance(parameter.support, Everywhere) for parameter in self.parameters):
            return True
        return self.bounds is not None and bool(np.all(np.isinf(self.bounds)))

    def split(self, rows: np.ndarray) -> dict[UncertainParameter, np.ndarray]:
        """The rows (B, d) as one view (B, *shape) per parameter."""
        return {
            parameter: rows[:, where].reshape(len(rows), *parameter.shape)
            for parameter, where in self.slices.items()
        }

    def join(self, scenarios: Any) -> np.ndarray:
        """Scenarios of the user as rows (B, d).

        scenarios: {parameter: (B, *shape)}, or the bare (B, *shape) if there is one parameter;
        arrays, nested lists, pandas frames or `LazySamples`.
        """
        given = self.by_parameter(scenarios)
        blocks = [
            as_scenarios(given[p], p.shape, f"scenarios of {p.name()!r}") for p in self.parameters
        ]
        self.check_counts([len(block) for block in blocks])
        flat = [block.reshape(len(block), -1) for block in blocks]
        return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows (B, d) lie in the joint support, as booleans (B,)."""
        inside = np.ones(len(rows), dtype=bool)
        for parameter, points in self.split(rows).items():
            if not isinstance(parameter.support, Everywhere):
                for start, block in chunks(points):
                    inside[start : start + len(block)] &= parameter.support.contains(block)
        return inside

    def coordinate(self, i: int) -> str:
        """The name of coordinate i for messages, such as "costs[3, 4]"."""
        for parameter, where in self.slices.items():
            if where.start <= i < where.stop:
                index = np.unravel_index(i - where.start, parameter.shape)
                return parameter.name() + (f"[{', '.join(map(str, index))}]" if index else "")
        raise IndexError(f"coordinate {i} of {self.dimension}")

    def __repr__(self) -> str:
        names = ", ".join(parameter.name() for parameter in self.parameters)
        return f"JointSamples({self.size} samples of ({names}) in R^{self.dimension})"

    def by_parameter(self, scenarios: Any) -> Mapping[UncertainParameter, Any]:
        """What was given for each parameter; ValueError if one is missing or unknown."""
        names = ", ".join(repr(parameter.name()) for parameter in self.parameters)
        if not isinstance(scenarios, Mapping):
            if len(self.parameters) > 1:
                raise ValueError(
                    f"scenarios of several parameters must be given as {{parameter: array}} for "
                    f"{names}, got a {type(scenarios).__name__}."
                )
            return {self.parameters[0]: scenarios}
        for key in scenarios:
            if not isinstance(key, UncertainParameter) or key not in self.slices:
                label = repr(key.name()) if isinstance(key, UncertainParameter) else repr(key)
                raise ValueError(
                    f"scenarios are given for {label}, which is not an uncertain parameter here; "
                    f"the keys must be the parameter objects {names}."
                )
        missing = [p.name() for p in self.parameters if p not in scenarios]
        if missing:
            raise ValueError(f"scenarios are missing for {', '.join(map(repr, missing))}.")
        return scenarios

    def check_counts(self, counts: list[int]) -> None:
        """Refuse numbers of scenarios that differ between the parameters."""
        if len(set(counts)) > 1:
            given = ", ".join(f"{p.name()!r}: {n}" for p, n in zip(self.parameters, counts))
            raise ValueError(
                f"scenarios of all parameters must have the same number of rows, got {given}."
            )


def _common_count(parameters: tuple[UncertainParameter, ...]) -> int:
    """The shared number of samples; ValueError naming the parameter that does not fit."""
    if not parameters:
        raise ValueError("at least one uncertain parameter is needed to form joint samples.")
    for parameter in parameters:
        if not isinstance(parameter, UncertainParameter):
            raise ValueError(f"expected an UncertainParameter, got {parameter!r}.")
        if parameter.samples is None:
            raise ValueError(
                f"uncertain parameter {parameter.name()!r} has no samples; give them with "
                f"UncertainParameter({parameter.shape}, samples=...)."
            )
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise ValueError("an uncertain parameter is listed twice; list each one once.")
    first = parameters[0]
    for parameter in parameters[1:]:
        if parameter.count != first.count:
            raise ValueError(
                f"uncertain parameters share one sample axis, but {first.name()!r} has "
                f"{first.count} samples and {parameter.name()!r} has {parameter.count}; "
                "pair the observations row by row."
            )
    return first.count
