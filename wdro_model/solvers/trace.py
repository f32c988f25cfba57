"""Records of a run, one for each iteration, with a printed table and a progress bar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdro_model.display.bars import progress_bar
from wdro_model.display.tables import brief, counted
from wdro_model.errors import unknown_name


@dataclass(frozen=True)
class Record:
    """Values of a Frank-Wolfe run at one iteration, before its step.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> record = wdro.solvers.Record(0, 0.01, 2.0, gap=1.0, dual=0.0, step=0.5, oracle_calls=1)
    >>> wdro.solvers.Trace([record])["gap"]
    array([1.])
    """

    iteration: int
    time: float
    """Seconds since the start of the run."""
    value: float
    """Objective at the iterate; an estimate from one batch in stochastic runs."""
    gap: float
    """Frank-Wolfe gap; that of the gradient estimate in stochastic runs."""
    dual: float
    """Multiplier of the transport budget, NaN where there is none."""
    step: float
    """The step taken from here; NaN after the last iteration."""
    oracle_calls: int


@dataclass
class Trace:
    """The records of a run as columns: `trace["gap"]`, `len(trace)`, `trace.to_frame()`.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> x, point = cp.Variable(2), wdro.UncertainParameter(2, samples=[[0.2, 0.3], [0.4, 0.5]])
    >>> problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - point)), [x >= 0, x <= 1])
    >>> value = problem.solve(solver=wdro.solvers.FrankWolfe())
    >>> trace = problem.solution.trace
    >>> bool(trace["value"][-1] <= trace["value"][0])
    True
    """

    records: list[Record] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return brief(self, counted(len(self.records), "record"))

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in Record.__dataclass_fields__:
            raise KeyError(unknown_name("column", column, Record.__dataclass_fields__))
        return np.array([getattr(record, column) for record in self.records])

    def columns(self) -> dict[str, np.ndarray]:
        """Column name to array.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> record = wdro.solvers.Record(0, 0.01, 2.0, gap=1.0, dual=0.0, step=0.5, oracle_calls=1)
        >>> list(wdro.solvers.Trace([record]).columns())
        ['iteration', 'time', 'value', 'gap', 'dual', 'step', 'oracle_calls']
        """
        return {name: self[name] for name in Record.__dataclass_fields__}

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row per iteration.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> record = wdro.solvers.Record(0, 0.01, 2.0, gap=1.0, dual=0.0, step=0.5, oracle_calls=1)
        >>> wdro.solvers.Trace([record]).to_frame().shape
        (1, 7)
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install pandas.") from error
        return pd.DataFrame(self.columns())


class Display:
    """The verbose table of a run, or its progress bar.

    A line is printed at iterations 0, 1, 2, 5, 10, 20, 50, ... and at the last. The bar shows only
    once a run has lasted a few seconds.
    """

    HEADER = f"{'iteration':>9} {'value':>14} {'gap':>10} {'dual':>10} {'step':>9} {'seconds':>8}"

    def __init__(
        self,
        verbose: bool,
        progress: bool,
        total: int | None,
        title: str,
        header: str = HEADER,
        unit: str = "it",
    ) -> None:
        self.verbose, self._header = verbose, header
        self._next: int | None = None
        self._bar = progress_bar(title, total, unit=unit, show=progress and not verbose, delay=3.0)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, record: Record, last: bool = False) -> None:
        """Print the line of a record, if its iteration asks for one, or advance the bar."""
        line = (
            f"{record.iteration:9d} {record.value:14.7g} {record.gap:10.2e} "
            f"{record.dual:10.3g} {record.step:9.2e} {record.time:8.2f}"
        )
        self.show_line(record.iteration, line, record.gap, 1, last)

    def show_line(self, iteration: int, line: str, gap: float, advance: int, last: bool) -> None:
        """Print a line, if its iteration asks for one, or advance the bar."""
        if self.verbose:
            if self._next is None:
                print(self._header)
            if self._next is None or iteration >= self._next or last:
                self._next = next_milestone(iteration)
                print(line)
        elif not self._bar.disable:
            self._bar.set_postfix_str(f"gap {gap:.1e}", refresh=False)
            self._bar.update(advance)

    def end(self, reason: str) -> None:
        """Print why the run ended, under the table."""
        if self.verbose:
            print(f"stopped: {reason}")


def next_milestone(iteration: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, 100, ... after this iteration."""
    scale = 1
    while True:
        for lead in (1, 2, 5):
            if lead * scale > iteration:
                return lead * scale
        scale *= 10
