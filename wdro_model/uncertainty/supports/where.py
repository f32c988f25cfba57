"""Supports known through a predicate alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.errors import blaming
from wdro_model.uncertainty.supports.base import Array, Shape, Support
from wdro_model.uncertainty.supports.boxes import Box


@dataclass(frozen=True, eq=False)
class Where(Support):
    """The points a predicate accepts: predicate(points (B, *shape)) -> booleans (B,)."""

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
        with blaming(f"the predicate {_name(self.predicate)} of Where"):
            answer = np.asarray(self.predicate(given))
        if answer.dtype != bool or answer.shape != (len(given),):
            raise ValueError(
                f"predicate {_name(self.predicate)} of Where must return {len(given)} booleans, "
                f"shape ({len(given)},), for points of shape {given.shape}; it returned "
                f"{answer.dtype} of shape {answer.shape}. Reduce over the entries of each point."
            )
        return answer

    def bounds(self, shape: Shape) -> None:
        return None

    def validate(self, shape: Shape) -> None:
        """Nothing is known before a point is tried."""

    def restrict(self, lower: Any, upper: Any) -> Where:
        return Where(_Both(self, Box(lower, upper)))

    def why_outside(self, point: Array) -> str:
        return f"the predicate {_name(self.predicate)} rejects it"

    def __repr__(self) -> str:
        return f"Where({_name(self.predicate)})"


@dataclass(frozen=True)
class _Both:
    """The predicate of an intersection."""

    first: Support
    second: Support

    def __call__(self, points: Array) -> Array:
        return self.first.contains(points) & self.second.contains(points)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
