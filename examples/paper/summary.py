"""From records to tables: losses of each method, and what it gains over ERM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiment import Experiment, Record
from wdro_model.evaluation.statistics import (
    TAIL,
    conditional_value_at_risk,
    standard_error,
    tail_error,
)

BASELINE = "erm"
OF_A_SOLVE = (
    *("promise", "smoothed_value", "robust_value", "relative_gap", "dual", "dual_bound"),
    *("draws", "effective_draws", "squared_length"),
)
"""What is recorded of a decision whatever it is judged on; averaged over the instances."""


@dataclass(frozen=True)
class Pooled:
    """The losses of one method and of ERM on the same scenarios of several instances."""

    losses: Sequence[np.ndarray]
    """One array for each instance."""
    baseline: Sequence[np.ndarray]

    def row(self) -> dict[str, Any]:
        """Losses: their mean, deviation (in all, within instances, between them) and tail.

        Advantages are losses of ERM minus those of the method, positive where the method is better:
        their mean, the mean of the 5% least ones, and the difference of the two tails.
        """
        losses, advantages = np.concatenate(self.losses), np.concatenate(self.advantages)
        means = np.array([part.mean() for part in self.losses])
        several = len(means) > 1
        return {
            "instances": len(means),
            "mean": float(means.mean()),
            "mean_error": standard_error(means if several else losses),
            "deviation": float(losses.std(ddof=1)),
            "deviation_within": rms([part.std(ddof=1) for part in self.losses]),
            "deviation_between": float(means.std(ddof=1)) if several else None,
            "cvar95": conditional_value_at_risk(losses, TAIL),
            "advantage": float(advantages.mean()),
            "advantage_error": self.advantage_error(),
            "advantage_deviation": float(advantages.std(ddof=1)),
            "relative_advantage": float(advantages.mean() / np.concatenate(self.baseline).mean()),
            "advantage_cvar95": -conditional_value_at_risk(-advantages, TAIL),
            "advantage_cvar95_error": tail_error(-advantages, TAIL) if not several else None,
            "tail_advantage": self.tail_advantage(slice(None)),
            "tail_advantage_error": self.tail_advantage_error(),
            "better": float((advantages > 0).mean()),
        }

    @property
    def advantages(self) -> list[np.ndarray]:
        """ERM minus method, scenario by scenario."""
        return [base - own for base, own in zip(self.baseline, self.losses)]

    def advantage_error(self) -> float:
        """Standard error: instances are independent, the scenarios of one of them are not."""
        if len(self.losses) == 1:
            return standard_error(self.advantages[0])
        return standard_error(np.array([part.mean() for part in self.advantages]))

    def tail_advantage(self, chosen: Any) -> float:
        """CVaR of ERM minus CVaR of the method, over the chosen instances together."""
        base = np.concatenate([self.baseline[i] for i in self._indices(chosen)])
        own = np.concatenate([self.losses[i] for i in self._indices(chosen)])
        return conditional_value_at_risk(base, TAIL) - conditional_value_at_risk(own, TAIL)

    def tail_advantage_error(self) -> float:
        """By the jackknife over instances; for a single one, from the influence of a scenario."""
        count = len(self.losses)
        if count == 1:
            own, base = (influence(part[0]) for part in (self.losses, self.baseline))
            return standard_error(base - own)
        left_out = [self.tail_advantage([i for i in range(count) if i != k]) for k in range(count)]
        return float(np.sqrt((count - 1) * np.var(left_out)))

    def _indices(self, chosen: Any) -> list[int]:
        every = range(len(self.losses))
        return list(every[chosen]) if isinstance(chosen, slice) else list(chosen)


def influence(losses: np.ndarray) -> np.ndarray:
    """(loss - quantile)_+ / (1 - level): CVaR is its mean plus the quantile."""
    return np.maximum(losses - np.quantile(losses, TAIL), 0.0) / (1.0 - TAIL)


def rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def group_rows(experiment: Experiment, records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """One row for each group of instances, method and set of scenarios."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for key, record in records.items():
        groups.setdefault(tuple(experiment.group(key).items()), []).append(record)
    rows = []
    for group in sorted(groups):
        rows += [{**dict(group), **row} for row in rows_of(groups[group])]
    return rows


def instance_rows(experiment: Experiment, records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """The same for each instance by itself."""
    return [
        {"instance": key, **experiment.group(key), **row}
        for key, record in records.items()
        for row in rows_of([record])
    ]


def rows_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Rows by method and scenario set, for instances that are reported together."""
    first = records[0]["methods"]
    rows = []
    for method in first:
        for scenarios in first[method]["losses"]:
            pooled = Pooled(*(losses_of(records, name, scenarios) for name in (method, BASELINE)))
            rows.append(
                {
                    "method": method,
                    "scenarios": scenarios,
                    **pooled.row(),
                    "status": statuses(records, method),
                    **{name: averaged(records, method, name) for name in OF_A_SOLVE},
                }
            )
    return rows


def losses_of(records: Sequence[Record], method: str, scenarios: str) -> list[np.ndarray]:
    """The losses of a method, one array for each instance."""
    return [np.array(record["methods"][method]["losses"][scenarios]) for record in records]


def averaged(records: Sequence[Record], method: str, name: str) -> float | None:
    """The mean of a number over the instances that have it."""
    found = [record["methods"][method][name] for record in records]
    numbers = [value for value in found if value is not None]
    return float(np.mean(numbers)) if numbers else None


def statuses(records: Sequence[Record], method: str) -> str:
    """The statuses that occurred, each with how often."""
    found = [record["methods"][method]["status"] for record in records]
    if len(set(found)) == 1:
        return str(found[0])
    return ", ".join(f"{status} ({found.count(status)})" for status in sorted(set(found)))


def time_rows(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """Seconds and iterations of each solve: what differs from one run to the next is kept apart."""
    return [
        {
            "instance": key,
            "method": method,
            "seconds": found["seconds"],
            "iterations": found["iterations"],
        }
        for key, record in records.items()
        for method, found in record["methods"].items()
    ]
