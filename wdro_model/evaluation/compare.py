"""Decisions of several methods side by side, on the data they saw and on data they did not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.evaluation.statistics import LossStatistics
from wdro_model.problem import Problem
from wdro_model.solution import Solution


@dataclass(frozen=True)
class Judged:
    """One method: its solution and the losses of its decision on each set of scenarios."""

    name: str
    solution: Solution
    losses: Mapping[str, np.ndarray]
    """Losses by the name of the scenario set; "training" is the data of the problem."""

    def statistics(self, scenarios: str) -> LossStatistics:
        return LossStatistics.of(self.losses[scenarios])


@dataclass(frozen=True)
class Report:
    """The result of `compare`: prints as a table; `plot()` and `to_frame()` show more."""

    methods: tuple[Judged, ...]

    @property
    def scenario_sets(self) -> tuple[str, ...]:
        return tuple(self.methods[0].losses)

    def __getitem__(self, name: str) -> Judged:
        for judged in self.methods:
            if judged.name == name:
                return judged
        raise KeyError(f"{name!r} is not in the report; it has {[m.name for m in self.methods]}.")

    def rows(self) -> list[dict[str, Any]]:
        """One row for each method and set of scenarios."""
        out = []
        for judged in self.methods:
            for scenarios in self.scenario_sets:
                s = judged.statistics(scenarios)
                out.append(
                    {
                        "method": judged.name,
                        "scenarios": scenarios,
                        "promise": judged.solution.value,
                        "mean": s.mean,
                        "deviation": s.deviation,
                        "median": s.median,
                        "cvar95": s.tail,
                        "worst": s.worst,
                        "status": judged.solution.status,
                        "gap": judged.solution.gap,
                        "seconds": judged.solution.seconds,
                    }
                )
        return out

    def to_frame(self) -> Any:
        """A pandas DataFrame of `rows()`."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install pandas.") from error
        return pd.DataFrame(self.rows())

    def plot(self, path: Any = None) -> Any:
        """Histograms of the losses, a panel for each set of scenarios; saved if a path is given."""
        from wdro_model.evaluation.plots import plot_losses

        return plot_losses(self, path)

    def __str__(self) -> str:
        numbers = ("promise", "mean", "deviation", "cvar95", "worst")
        wide = max(10, *(len(judged.name) for judged in self.methods))
        head = f"{'method':<{wide}} {'scenarios':<12}"
        head += "".join(f"{name:>12}" for name in numbers) + f"{'seconds':>9}  status"
        lines = [head, "-" * len(head)]
        for row in self.rows():
            first = row["scenarios"] == self.scenario_sets[0]
            line = f"{row['method'] if first else '':<{wide}} {row['scenarios']:<12}"
            line += "".join(f"{row[name]:12.5g}" for name in numbers)
            line += f"{row['seconds']:9.2f}  {row['status']}" if first else ""
            lines.append(line.rstrip())
        return "\n".join(lines)


def compare(
    problem: Problem,
    methods: Iterable[str] | Mapping[str, Mapping[str, Any]] = ("erm", "exact", "smoothed"),
    test: Any = None,
    **options: Any,
) -> Report:
    """Solve by each method and judge the decisions on the samples and on held-out scenarios.

    `methods` is a list of method names, or a dict from a label to the arguments of `solve`.
    `test` is {parameter: array}, an array, or a dict from a name to such scenarios. The problem
    and its variables are left at the last method's solution.
    """
    if isinstance(methods, str):
        methods = (methods,)
    plans: dict[str, dict[str, Any]] = (
        {name: {"method": name, **dict(arguments)} for name, arguments in methods.items()}
        if isinstance(methods, Mapping)
        else {name: {"method": name} for name in methods}
    )
    if not plans:
        raise ValueError("compare needs at least one method.")
    sets = named_scenarios(test)
    judged = []
    for name, arguments in plans.items():
        problem.solve(**{**options, **arguments})
        losses = {"training": problem.losses()}
        losses.update({label: problem.losses(scenarios) for label, scenarios in sets.items()})
        assert problem.solution is not None
        judged.append(Judged(name, problem.solution, losses))
    return Report(tuple(judged))


def named_scenarios(test: Any) -> dict[str, Any]:
    """Sets of scenarios by name; one without a name is called "test"."""
    if test is None:
        return {}
    if isinstance(test, Mapping) and test and all(isinstance(key, str) for key in test):
        return dict(test)
    return {"test": test}
