"""Which nodes have a bound of block A in sight, by the slopes of the loss in the cells of a table.

Most nodes have none. That is known of the cells between the points of a table as soon as the least
and the largest slope in each cell are: no node asks for slopes of its own unless its cell may be
concerned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wdro_model.objectives.integration.conditional.block_integral import Pairs, Sight
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.kernel.chebyshev import extremal_points
from wdro_model.solvers.objective import Array

WIDER = 0.25
"""Slopes over a box may go beyond those at its corners and in the middle by this share of their
range."""


class SlopeRanges:
    """The slopes of the loss over [-1, 1]^2.

    Parameters
    ----------
    frame: that of block A.
    slopes: B at the points of a table, (n0, n1, r).
    interpolated: B (..., r) at places (..., 2).
    """

    def __init__(self, frame: Frame, slopes: Array, interpolated: Callable[[Array], Array]) -> None:
        self._frame, self._interpolated = frame, interpolated
        self._ends = [extremal_points(size) for size in slopes.shape[:2]]
        corners = [slopes]
        for axis, size in enumerate(slopes.shape[:2]):
            if size > 1:
                sides = [np.arange(size - 1), np.arange(1, size)]
                corners = [np.take(c, side, axis=axis) for side in sides for c in corners]
        self._range = widened(np.stack(corners))
        """The least and the largest slopes in the cells, (c0, c1, r)."""
        origins = frame.origins
        self._tightest = (
            np.minimum(frame.lower - origins.min(axis=0), 0.0),
            np.maximum(frame.upper - origins.max(axis=0), 0.0),
        )
        """Bounds of moves that no sample goes beyond, (r,)."""
        self._last: tuple[float, Array] | None = None

    def near(self, owners: Array, u: Array, sight: Sight) -> Pairs:
        """Samples and coordinates with a bound in sight, at one of the nodes u (K, S, 2)."""
        low, high = u.min(axis=1), u.max(axis=1)
        some = self._concerned(low, high, sight)
        if len(some) == 0:
            return some, some
        bounds = self._frame.bounds(owners[some])
        assert bounds is not None
        slopes = self._over_boxes(low[some], high[some])
        samples, coordinates = np.nonzero(sight.lacks_room(*slopes, *bounds))
        return some[samples], coordinates

    def _concerned(self, low: Array, high: Array, sight: Sight) -> Array:
        """Boxes [low, high] (K, 2) that meet a cell from which some sample sees a bound."""
        before = self._cells_before(sight)
        (a0, b0), (a1, b1) = (
            met(self._ends[i], low[:, i], high[:, i], before.shape[i] - 1) for i in (0, 1)
        )
        return np.flatnonzero(before[b0, b1] - before[a0, b1] - before[b0, a1] + before[a0, a1])

    def _cells_before(self, sight: Sight) -> Array:
        """How many cells below and to the left of each point see a bound, (c0 + 1, c1 + 1)."""
        if self._last is None or self._last[0] != sight.dual:
            seen = sight.lacks_room(*self._range, *self._tightest).any(axis=-1)
            found = np.zeros((seen.shape[0] + 1, seen.shape[1] + 1), dtype=int)
            found[1:, 1:] = seen.cumsum(axis=0).cumsum(axis=1)
            self._last = sight.dual, found
        return self._last[1]

    def _over_boxes(self, low: Array, high: Array) -> tuple[Array, Array]:
        """The least and the largest slopes in boxes [low, high] (K, 2), about, (K, r)."""
        middle = 0.5 * (low + high)
        sides = ((low, low), (low, high), (high, low), (high, high), (middle, middle))
        corners = np.stack([np.stack([a[:, 0], b[:, 1]], axis=1) for a, b in sides])
        return widened(self._interpolated(corners))


def met(ends: Array, low: Array, high: Array, cells: int) -> tuple[Array, Array]:
    """The first cell between ends that each interval meets, and the first one beyond."""
    first = np.clip(np.searchsorted(ends, low, "right") - 1, 0, cells - 1)
    return first, np.clip(np.searchsorted(ends, high, "left"), first + 1, cells)


def widened(values: Array) -> tuple[Array, Array]:
    """The range of values along the first axis, and somewhat more."""
    least, most = values.min(axis=0), values.max(axis=0)
    slack = WIDER * (most - least)
    return least - slack, most + slack
