"""Observed travel times as scenarios: a series in time, drawn from in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.traffic.demand_matrix import as_numbers
from wdro_model.traffic.uncertain.scenario_checks import as_seed, check_count
from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Nonnegative

Array = np.ndarray


class ObservedTimes:
    """A series of travel times (T, A): one row for each interval, one column for each link.

    Links are slow together, and stay so for a while: a draw takes whole rows, which keeps what
    happens on the links together, and `block` rows in a row, which keeps what follows (a moving
    block bootstrap). Rows with a missing entry (NaN) are left out, and `missing` counts them; no
    block reaches over one.

    Parameters
    ----------
    times
        (T, A), or a pandas DataFrame with a column for each link, in the order of the arcs.
    period, within
        Keep only the intervals t with t % period in `within`: period=24 and within=[7, 8] are the
        mornings of hourly data that begin at midnight.
    block
        The length of the blocks that are drawn.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> hours = np.arange(48)[:, None] % 24
    >>> times = 5.0 + np.where(np.isin(hours, [7, 8]), 3.0, 0.0) + np.zeros((48, 2))
    >>> mornings = wdro.traffic.ObservedTimes(times, period=24, within=[7, 8])
    >>> mornings.times.mean(), mornings.sample(10, seed=0).shape
    (np.float64(8.0), (10, 2))
    """

    def __init__(
        self, times: Any, *, period: int | None = None, within: Any = None, block: int = 1
    ) -> None:
        series = as_numbers(times, "times")
        if series.ndim != 2 or 0 in series.shape:
            raise ValueError(
                f"times must have shape (T, A), a row for each interval, got {series.shape}."
            )
        wrong = np.isinf(series) | (series < 0)
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            raise ValueError(f"times must be finite and >= 0, got {series[at]} at index {at}.")
        check_count(block)
        kept = _within(len(series), period, within)
        complete = ~np.isnan(series).any(axis=1)
        self.missing = int(np.sum(kept & ~complete))
        """Rows that were left out because an entry is missing."""
        where = np.flatnonzero(kept & complete)
        self.times: Array = series[where]
        """(T, A) the rows that are kept."""
        self.block = int(block)
        # A block starts where the next `block` rows were observed one after the other.
        last = where[: len(where) - self.block + 1] if len(where) >= self.block else where[:0]
        ends = where[self.block - 1 :][: len(last)]
        self._starts = np.flatnonzero(ends - last == self.block - 1)
        if not self._starts.size:
            raise ValueError(
                f"no {self.block} intervals in a row are left of {len(series)} ({self.missing} "
                "have missing entries); choose a shorter block, or other intervals."
            )

    def sample(self, count: int, seed: int | None = None) -> Array:
        """`count` rows (count, A), drawn in blocks.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> wdro.traffic.ObservedTimes([[1.0, 2.0], [3.0, 4.0]], block=2).sample(2, seed=0)
        array([[1., 2.],
               [3., 4.]])
        """
        check_count(count)
        rng = np.random.default_rng(as_seed(seed))
        starts = rng.choice(self._starts, size=-(-count // self.block))
        rows = (starts[:, None] + np.arange(self.block)).ravel()[:count]
        return self.times[rows]

    def parameter(self, name: str = "time") -> UncertainParameter:
        """The uncertain times (A,), with all rows as samples and nonnegative.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> time = wdro.traffic.ObservedTimes([[1.0, 2.0], [3.0, 4.0]]).parameter()
        >>> time.count, time.shape
        (2, (2,))
        """
        return UncertainParameter(
            self.times.shape[1], name, samples=self.times, support=Nonnegative()
        )

    def __repr__(self) -> str:
        rows, links = self.times.shape
        return f"ObservedTimes({rows} intervals, {links} links, blocks of {self.block})"


def _within(count: int, period: Any, within: Any) -> Array:
    """Which intervals are kept (T,)."""
    if period is None and within is None:
        return np.ones(count, dtype=bool)
    if period is None or within is None:
        raise ValueError("period and within belong together: period=24, within=[7, 8].")
    check_count(period)
    hours = np.atleast_1d(np.asarray(within))
    if hours.dtype.kind not in "iu" or ((hours < 0) | (hours >= period)).any():
        raise ValueError(f"within must be whole numbers from 0 to {period - 1}, got {within!r}.")
    return np.isin(np.arange(count) % period, hours)
