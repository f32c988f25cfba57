"""The result of a comparison: decisions side by side, as a table, a picture and a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.figures import METHOD_COLOURS
from wdro_model.display.tables import (
    Column,
    Tabular,
    brief,
    counted,
    listed,
    words,
    write_text,
)
from wdro_model.evaluation.explorer import Explorer, column_meanings, image, page, sortable_table
from wdro_model.evaluation.statistics import (
    METHOD,
    SCENARIOS,
    Advantage,
    Difference,
    LossStatistics,
    Outcome,
)
from wdro_model.solve.certify import Solution

if TYPE_CHECKING:
    from wdro_model.problem import Problem

PROMISE_TOLERANCE = 1e-6
"""Relative excess, of the promise's size plus the losses' deviation, up to which it is kept."""


QUANTILES = (
    Column("q05", "The quantile that 5% of the losses lie below.", "5%"),
    Column("q25", "The quantile that 25% of the losses lie below.", "25%"),
    Column("median", "Half of the losses lie below."),
    Column("q75", "The quantile that 75% of the losses lie below.", "75%"),
    Column("q95", "The quantile that 95% of the losses lie below.", "95%"),
)
RISK = Column("risk", "The objective, with the risk measures of the scenarios.")
"""The column of the objective, where it is not the mean loss."""


def report_columns(measure: str) -> tuple[Column, ...]:
    """The columns of a report whose promises are about the "mean" loss, or about the "risk"."""
    loss = "mean loss" if measure == "mean" else measure
    excess = f"The {loss} minus the promise: positive where the method promised too much."
    return (
        METHOD,
        Column("radius", "The radius of the Wasserstein ball it was solved with; 0 for ERM."),
        SCENARIOS,
        Column("promise", f"The optimal value of the method: its prediction of the {loss}."),
        *((RISK,) if measure == "risk" else ()),
        Column("mean", "The mean loss."),
        Column("standard_error", "Standard error of the mean.", "error", ".2g"),
        Column("excess", excess, f"{measure} - promise", "+.3g"),
        Column("kept", f"Whether the {loss} was at most the promise.", "kept?", word=True),
        Column("deviation", "The standard deviation of the losses."),
        *QUANTILES,
        Column("cvar95", "CVaR at 95%: the mean of the worst 5% of the losses."),
        Column("worst", "The largest loss."),
        Column(
            "status",
            'How the solve ended: "optimal", "stationary" (convexity not known), "user_limit" (a '
            'limit came first), "rounded" (the discrete decision next to it), or "refused" (see '
            "below).",
            word=True,
        ),
        Column("gap", "A bound on value minus optimum, where the method proves one.", form=".2g"),
        Column("relative_gap", "The gap as a fraction of the value.", form=".2g"),
        Column(
            "seconds", "Time of the solve; at further radii, from the decision before.", form=".3g"
        ),
    )


PRINTED_COLUMNS = (
    *("method", "scenarios", "promise", "risk", "mean", "standard_error", "excess", "kept"),
    *("deviation", "median", "cvar95", "worst", "status", "seconds"),
)
"""The columns of the printed table; the frame, the file and the page have all."""
METHOD_COLUMNS = ("method", "seconds", "status", "gap", "relative_gap")
"""Columns with one entry for a method, which its first row shows."""


@dataclass(frozen=True)
class Judged:
    """The solution of a method, and the losses of its decision on each set of scenarios.

    Examples
    --------
    >>> judged = wdro.compare(problem, "erm", test=[[3.0, 3.0], [1.0, 1.0]])["erm"]
    >>> judged.losses["test"].round(2), round(judged.mean("test"), 2), round(judged.promise, 2)
    (array([3., 1.]), 2.0, 1.5)
    >>> round(judged.statistics("test").worst, 2), round(judged.excess("test"), 2)
    (3.0, 0.5)
    >>> judged.kept("test")
    False
    """

    name: str
    solution: Solution
    outcomes: Mapping[str, Outcome] = field(repr=False)
    """Losses by the name of the scenario set; "training" is the data of the problem."""
    radius: float = 0.0
    """The radius it was solved with; 0 for ERM."""
    promise: float | None = None
    """The optimal value of the method: its prediction of the mean loss. None for a rounded decision
    that has no prediction."""
    group: str = ""
    """The label of its method, which it shares with other radii; empty for its own name."""

    @property
    def losses(self) -> dict[str, np.ndarray]:
        """The losses by the name of the scenario set: values of an objective that is maximised."""
        return {name: outcome.losses for name, outcome in self.outcomes.items()}

    @property
    def maximise(self) -> bool:
        """Whether the objective is maximised, so that large values are good."""
        return any(outcome.maximise for outcome in self.outcomes.values())

    @property
    def family(self) -> str:
        """The method behind the name, which decides its colour: "erm", "exact", "smoothed"."""
        label = self.group or self.name
        if self.solution is None or label in METHOD_COLOURS:
            return label
        return self.solution.method

    @property
    def has_risk(self) -> bool:
        """Whether the objective has a CVaR, so that it is judged by more than the mean."""
        return any(outcome.measures for outcome in self.outcomes.values())

    def statistics(self, scenarios: str) -> LossStatistics:
        """Mean, spread and tail on a set of scenarios."""
        return self.outcomes[scenarios].statistics

    def mean(self, scenarios: str) -> float:
        """The mean loss on a set of scenarios."""
        return self.statistics(scenarios).mean

    def excess(self, scenarios: str) -> float | None:
        """The mean loss (or the risk) minus the promise: positive where the promise was too good.

        The sign is turned where the objective is maximised.
        """
        if self.promise is None:
            return None
        risk = self.statistics(scenarios).risk
        if np.isclose(risk, self.promise, rtol=1e-9 if self.has_risk else 1e-12, atol=0.0):
            return 0.0
        return self.promise - risk if self.maximise else risk - self.promise

    def kept(self, scenarios: str) -> bool | None:
        """Whether the mean loss was at most the promise, up to rounding."""
        excess = self.excess(scenarios)
        if excess is None or self.promise is None:
            return None
        size = abs(self.promise) + self.losses[scenarios].std()
        return bool(excess <= PROMISE_TOLERANCE * size)

    def __repr__(self) -> str:
        promise = "none" if self.promise is None else f"{self.promise:.6g}"
        means = ", ".join(f"{name} {self.mean(name):.6g}" for name in self.outcomes)
        return brief(self, f"{self.name!r}, promise {promise}, mean loss on {means}")

    def row(self, scenarios: str) -> dict[str, Any]:
        """The line of the report for one set of scenarios."""
        return {
            "method": self.name,
            "radius": self.radius,
            "scenarios": scenarios,
            "promise": self.promise,
            **self.statistics(scenarios).row(),
            "excess": self.excess(scenarios),
            "kept": self.kept(scenarios),
            "status": self.solution.status,
            "gap": self.solution.gap,
            "relative_gap": self.solution.relative_gap,
            "seconds": self.solution.seconds,
        }


@dataclass(frozen=True)
class Refused:
    """A method that gave no decision.

    Examples
    --------
    >>> problem = wdro.Problem(cp.Minimize(cp.exp(-price @ x)), [cp.sum(x) == 1], ball)
    >>> report = wdro.compare(problem, ("erm", "exact"))
    >>> [(refused.name, refused.status) for refused in report.refused]
    [('exact', 'refused')]
    """

    name: str
    message: str
    status: str = "refused"
    """"refused", "failed", or "not run" after an interrupt."""
    radius: float = 0.0

    def row(self) -> dict[str, Any]:
        return {"method": self.name, "radius": self.radius, "status": self.status}


@dataclass(frozen=True)
class DecisionTable(Tabular):
    """Decisions of several solves, all judged on the same sets of scenarios."""

    entries: tuple[Judged | Refused, ...]
    """The solves in their order."""
    scenario_sets: tuple[str, ...]
    """The names of the scenario sets, "training" first."""
    problem: Problem | None = field(default=None, compare=False, kw_only=True)
    """The problem of the decisions; it is not pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "problem": None}

    @property
    def methods(self) -> tuple[Judged, ...]:
        """The solves that gave a decision."""
        return tuple(entry for entry in self.entries if isinstance(entry, Judged))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The solves that gave none, each with its message."""
        return tuple(entry for entry in self.entries if isinstance(entry, Refused))

    @property
    def maximise(self) -> bool:
        """Whether the objective is maximised: `losses` are then its values."""
        return any(judged.maximise for judged in self.methods)

    @property
    def has_risk(self) -> bool:
        """Whether the objective has a CVaR, so that it is judged by more than the mean."""
        return any(judged.has_risk for judged in self.methods)

    def messages(self) -> list[str]:
        """The sentences below the table."""
        raise NotImplementedError

    def _footnotes(self) -> list[str]:
        return self.messages()


@dataclass(frozen=True)
class Report(DecisionTable):
    """The result of `compare`: prints as a table; `plot()` and `to_html()` show more.

    Examples
    --------
    >>> report = wdro.compare(problem, ("erm", "exact"), test=[[3.0, 3.0], [1.0, 1.0]])
    >>> for row in report.rows():
    ...     print(row["method"], row["scenarios"], f"{row['promise']:.2f} {row['mean']:.2f}")
    erm training 1.50 1.50
    erm test 1.50 2.00
    exact training 2.21 1.50
    exact test 2.21 2.00
    >>> report.to_csv().splitlines()[0].split(",")[:3]
    ['method', 'radius', 'scenarios']
    >>> figure = report.plot()                              # or report.plot("losses.png")
    """

    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False, kw_only=True)
    """The arguments of the comparison but for the problem; they are not pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "arguments": {}}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns; the risk has one only where it is not the mean."""
        return report_columns("risk" if self.has_risk else "mean")

    def __getitem__(self, name: str) -> Judged:
        for entry in self.entries:
            if entry.name == name and isinstance(entry, Refused):
                raise KeyError(f"{name!r} gave no decision ({entry.status}): {entry.message}")
            if entry.name == name and isinstance(entry, Judged):
                return entry
        raise KeyError(f"{name!r} is not in the report; it has {[e.name for e in self.entries]}.")

    def __repr__(self) -> str:
        names, sets = words(entry.name for entry in self.entries), words(self.scenario_sets)
        return brief(self, f"{counted(len(self.entries), 'decision')} on {sets}: {names}")

    def rows(self) -> list[dict[str, Any]]:
        """A row for each method and set of scenarios; one for a method without a decision."""
        rows: list[dict[str, Any]] = []
        for entry in self.entries:
            if isinstance(entry, Judged):
                rows += [entry.row(scenarios) for scenarios in self.scenario_sets]
            else:
                rows.append(entry.row())
        names = [column.key for column in self.columns]
        return [{name: row.get(name) for name in names} for row in rows]

    def advantage(self, over: str = "erm") -> Advantage:
        """The gain of each method over `over`, scenario by scenario: positive where better.

        Examples
        --------
        >>> report = wdro.compare(problem, ("erm", "exact"), test=[[3.0, 1.0], [2.0, 1.0]])
        >>> print(report.advantage().title)
        advantage over 'erm' on the same scenarios (positive: better)
        """
        base = self[over]
        others = [judged for judged in self.methods if judged.name != over]
        if not others:
            raise ValueError(f"the report has no decision but that of {over!r} to compare.")
        differences = (
            Difference.between(judged.name, name, base.outcomes[name], judged.outcomes[name])
            for judged in others
            for name in self.scenario_sets
        )
        return Advantage(over, tuple(differences))

    # -------------------------------------------------------------- pictures and pages
    def plot(
        self,
        path: Any = None,
        *,
        kind: str = "strips",
        scenarios: str | Sequence[str] | None = None,
        ax: Any = None,
    ) -> Any:
        """The losses of each method, a panel for each set of scenarios.

        Returns the figure, which notebooks show, or `ax` where it is given.

        Parameters
        ----------
        path
            The file of the picture; the suffix says the format.
        kind : "strips" or "histogram"
            A row for each method, with its mean, CVaR and promise; or densities in one panel.
        scenarios
            The sets to show, by name; all by default.
        ax
            Matplotlib's axes to draw on, one for each set.
        """
        from wdro_model.evaluation.loss_pictures import plot_losses

        return plot_losses(self, path, kind=kind, scenarios=scenarios, ax=ax)

    def to_html(
        self,
        path: Any = None,
        title: str = "Comparison of decisions",
        *,
        radii: Iterable[float] | None = None,
        progress: bool = True,
    ) -> str | None:
        """A page with sortable tables, explanations and pictures; nothing is loaded from elsewhere.

        With several radii it has a slider that moves promise, losses, decision and worst case.

        Parameters
        ----------
        path
            The file of the page, which is returned without it.
        title
            Its heading.
        radii : list, optional
            Solve each robust method at these radii too, for the slider. Without it the slider has
            the radii that the report was computed for, by `compare(..., radii=[...])`.
        progress
            Show a bar while these are solved.

        Examples
        --------
        >>> report = wdro.compare(problem, ("erm", "exact"))
        >>> page = report.to_html(title="Prices", radii=[0.01, 0.1, 1.0], progress=False)
        >>> "<title>Prices</title>" in page, 'type="range"' in page
        (True, True)
        """
        along_radii = self if radii is None else self._at_radii(radii, progress)
        notes = [
            f"{judged.name}: {note}" for judged in self.methods for note in judged.solution.notes
        ]
        reasons: dict[str, str] = {}
        for report in (self, along_radii):  # each reason once, not at each radius
            for refused, text in zip(report.refused, report.messages()):
                reasons.setdefault(refused.message, text)
        others = self.messages()[len(self.refused) :]
        sections = {
            "Over the radius": along_radii._explorer(self),
            "Losses": sortable_table(self.html()),
            "Without a decision": listed([*reasons.values(), *others]),
            "Against a baseline": self._paired(),
            "Pictures": self._pictures(),
            "What the columns mean": column_meanings(self.columns),
            "Notes": listed(dict.fromkeys(notes)),
        }
        return write_text(page(title, sections), path)

    def _at_radii(self, radii: Iterable[float], progress: bool) -> Report:
        """The same comparison at other radii."""
        from wdro_model.evaluation.compare import compare

        if self.problem is None:
            raise ValueError(
                "this report has no problem to solve at other radii, as it was not made by compare "
                "or was read from a file; call compare(problem, ..., radii=[...])."
            )
        return compare(self.problem, radii=radii, **{**self.arguments, "progress": progress})

    def _explorer(self, report: Report) -> str:
        """The slider over the radii, which starts at that of `report`; empty for one radius."""
        if self.problem is None:
            return ""
        start = next((judged.radius for judged in report.methods if judged.radius > 0), 0.0)
        explorer = Explorer(self.problem, self.methods, self.scenario_sets, start)
        return explorer.html() if len(explorer.radii) > 1 else ""

    def _paired(self) -> str:
        """The advantage over ERM, or over the first method where there is no ERM."""
        names = [judged.name for judged in self.methods]
        if len(names) < 2:
            return ""
        return sortable_table(self.advantage("erm" if "erm" in names else names[0]).html())

    def _pictures(self) -> str:
        """The losses as a picture within the page."""
        try:
            figure = self.plot()
        except ImportError as error:
            return f"<p>{escape(str(error))}</p>"
        methods = ", ".join(judged.name for judged in self.methods)
        means = "; ".join(
            f"{judged.name} on {name}: mean {judged.mean(name):.5g}"
            for judged in self.methods
            for name in self.scenario_sets
        )
        return image(figure, f"The losses of {methods}. {means}.")

    # -------------------------------------------------------------- the printed table
    def messages(self) -> list[str]:
        """Sentences below the table: methods without a decision, confidences, the sign."""
        texts = [f"{r.name} ({r.status}): {r.message}" for r in self.refused]
        for judged in self.methods:
            assurance = judged.solution.assurance
            if assurance is not None:
                sentence = assurance.sentence(judged.solution.bound, judged.maximise)
                texts.append(f"{judged.name}: {sentence}.")
        if self.maximise:
            texts.append(
                "The objective is maximised: losses are its values, the worst are the smallest, "
                "and mean - promise is turned, positive where the method promised too much."
            )
        return texts

    def _printed_columns(self) -> list[Column]:
        return [column for column in self.columns if column.key in PRINTED_COLUMNS]

    def _printed_rows(self) -> list[dict[str, Any]]:
        """The rows, entries of a method (name, status, seconds) only in its first row."""
        printed: list[dict[str, Any]] = []
        rows = self.rows()
        for before, row in zip([{}, *rows], rows):
            is_next = before.get("method") == row["method"]
            printed.append({**row, **dict.fromkeys(METHOD_COLUMNS, "")} if is_next else row)
        return printed
