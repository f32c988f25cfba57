"""What one decision gains over another, scenario by scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.evaluation.statistics import (
    TAIL,
    conditional_value_at_risk,
    standard_error,
    tail_error,
)
from wdro_model.evaluation.tables import Column, csv_text, frame, html_table, text_table

ROUNDING = 1e-7
"""Differences under this fraction of the largest loss are a solver's rounding."""


@dataclass(frozen=True)
class Difference:
    """Losses of the baseline minus those of a method on one set of scenarios."""

    method: str
    scenarios: str
    losses: np.ndarray
    """The differences, one for each scenario; positive where the method is better."""
    rounding: float
    """Smaller differences are none."""

    def row(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "scenarios": self.scenarios,
            "difference": float(self.losses.mean()),
            "standard_error": standard_error(self.losses),
            "cvar95": -conditional_value_at_risk(-self.losses, TAIL),
            "cvar95_error": tail_error(-self.losses, TAIL),
            "better": float((self.losses > self.rounding).mean()),
        }


@dataclass(frozen=True)
class Advantage:
    """Paired differences of losses, positive where a method is better than the baseline.

    What all scenarios have in common cancels.
    """

    over: str
    """The baseline."""
    differences: tuple[Difference, ...]

    def __getitem__(self, key: tuple[str, str]) -> Difference:
        """The differences of (method, scenarios)."""
        for difference in self.differences:
            if (difference.method, difference.scenarios) == key:
                return difference
        known = [(d.method, d.scenarios) for d in self.differences]
        raise KeyError(f"{key!r} is not compared with {self.over!r}; there are {known}.")

    def rows(self) -> list[dict[str, Any]]:
        """One row for each method and set of scenarios."""
        return [difference.row() for difference in self.differences]

    def to_frame(self) -> Any:
        """A pandas DataFrame of `rows()`."""
        return frame(self.rows())

    def to_csv(self, path: Any = None) -> str | None:
        """`rows()` as comma-separated values: written to a file, or returned without a path."""
        return csv_text(self.rows(), path)

    @property
    def title(self) -> str:
        return f"advantage over {self.over!r} on the same scenarios (positive: better)"

    def __str__(self) -> str:
        return f"{self.title}\n{text_table(COLUMNS, self.rows(), WORDS)}"

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, self.rows(), WORDS, self.title)


WORDS = ("method", "scenarios")
COLUMNS = (
    Column("method", "The method, or the label it was given."),
    Column("scenarios", "The data that the decisions are judged on."),
    Column("difference", "The mean of the baseline's loss minus its own.", "mean advantage"),
    Column("standard_error", "Standard error of the mean difference.", "error", ".2g"),
    Column("cvar95", "The mean of the 5% of scenarios where the method does worst against it."),
    Column("cvar95_error", "Standard error of that CVaR.", "error", ".2g"),
    Column("better", "The share of scenarios where it is better.", "better in", ".1%"),
)


def advantage(
    others: Mapping[str, Mapping[str, np.ndarray]],
    over: str,
    base: Mapping[str, np.ndarray],
    maximise: bool = False,
) -> Advantage:
    """What each method gains on each set of scenarios; maximise: large values are good."""
    sign = -1.0 if maximise else 1.0
    if not others:
        raise ValueError(f"the report has no decision but that of {over!r} to compare.")
    found = [
        Difference(
            name, scenarios, sign * (own - losses[scenarios]), ROUNDING * float(np.abs(own).max())
        )
        for name, losses in others.items()
        for scenarios, own in base.items()
    ]
    return Advantage(over, tuple(found))
