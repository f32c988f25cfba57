"""What the runs add up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trials import RADII, RULES

Record = Mapping[str, Any]
QUANTILES = (0.2, 0.8)
"""The tubes of the paper."""


def by_size(records: Iterable[Record], experiment: str) -> dict[int, list[Record]]:
    """The results of an experiment for each number of samples."""
    found: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record["experiment"] == experiment:
            found[record["size"]].append(record["result"])
    return dict(sorted(found.items()))


def along_radii_table(records: Iterable[Record]) -> list[dict[str, float]]:
    """Risk, reliability and promise at each radius, for each number of samples."""
    rows: list[dict[str, float]] = []
    for size, runs in by_size(records, "radius").items():
        risk, promise = (np.array([run[name] for run in runs]) for name in ("risk", "promise"))
        for k, radius in enumerate(RADII):
            rows.append({"size": size, "radius": radius, **summary(risk[:, k], promise[:, k])})
    return rows


def rules_table(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The same for each rule, with its radii."""
    rows: list[dict[str, Any]] = []
    for size, runs in by_size(records, "rules").items():
        for rule in RULES:
            radius, risk, promise = (
                np.array([run[rule][name] for run in runs])
                for name in ("radius", "risk", "promise")
            )
            row = {"size": size, "rule": rule, "radius": radius.mean()}
            rows.append({**row, **summary(risk, promise)})
    return rows


def summary(risk: np.ndarray, promise: np.ndarray) -> dict[str, float]:
    """Means and tubes of true risks and promises, and how often the promise was kept."""
    low, high = np.quantile(risk, QUANTILES)
    return {
        "runs": len(risk),
        "risk": float(risk.mean()),
        "risk_20": float(low),
        "risk_80": float(high),
        "promise": float(promise.mean()),
        "reliability": float((risk <= promise).mean()),
    }


def compositions(records: Iterable[Record]) -> dict[int, np.ndarray]:
    """The mean portfolio at each radius, (radii, assets), for each number of samples."""
    return {
        size: np.mean([run["weights"] for run in runs], axis=0)
        for size, runs in by_size(records, "radius").items()
    }
