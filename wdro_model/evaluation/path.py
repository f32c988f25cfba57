"""Decisions along the radius: `Problem.path`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.tables import Column, brief, counted, frame, listed, write_text
from wdro_model.evaluation.attempts import (
    FAILED,
    Failure,
    attempt,
    check_radii,
    keep_decision,
    named_scenarios,
    radius_labels,
    solve_bar,
    warm_arguments,
    was_interrupted,
)
from wdro_model.evaluation.explorer import (
    Explorer,
    column_meanings,
    coordinate_names,
    page,
    sortable_table,
)
from wdro_model.evaluation.report import DecisionTable, Judged, Refused
from wdro_model.evaluation.statistics import TRAINING, LossStatistics, outcomes_by_set
from wdro_model.loss.batched import Layout
from wdro_model.solve.certify import Solution
from wdro_model.solve.compile import Compilation

if TYPE_CHECKING:
    from wdro_model.problem import Problem

SET_COLUMNS = {
    "risk": "The objective",
    "mean": "The mean loss",
    "cvar95": "The mean of the worst 5% of the losses",
}
"""The statistics that have a column for each set of scenarios, and their meanings."""


@dataclass(frozen=True)
class RadiusPath(DecisionTable):
    """Decisions along increasing radii: prints as a table; `plot()` shows how they change.

    Examples
    --------
    >>> path = problem.path([0.0, 1.0, 100.0])
    >>> path.radii
    array([  0.,   1., 100.])
    """

    decisions: np.ndarray = field(compare=False)
    """The flat decisions as rows, (K, n); NaN where the solver failed."""
    coordinates: tuple[str, ...]
    """The names of the n coordinates of a decision."""
    asked: tuple[float, ...]
    """The requested radii; after an interrupt fewer of them have an entry."""

    def __repr__(self) -> str:
        ends = f"radius {self.asked[0]:.6g} to {self.radii[-1]:.6g}"
        return brief(self, f"{counted(len(self.entries), 'solve')}, {ends}, {self.method}")

    @property
    def radii(self) -> np.ndarray:
        """The radii in increasing order, (K,)."""
        return np.array([entry.radius for entry in self.entries])

    @property
    def solutions(self) -> tuple[Solution | None, ...]:
        """The solutions at the radii; None where the solver failed."""
        return tuple(e.solution if isinstance(e, Judged) else None for e in self.entries)

    @property
    def method(self) -> str:
        """The method of the solves: that of the largest radius, as radius 0 is ERM."""
        return self.methods[-1].solution.method

    @property
    def values(self) -> np.ndarray:
        """The optimal value of the method at each radius, (K,); NaN where the solver failed."""
        return self._numbers("value")

    @property
    def robust_values(self) -> np.ndarray:
        """The exact worst-case risk of each decision over its ball, (K,); NaN if not known."""
        return self._numbers("robust_value")

    @property
    def seconds(self) -> np.ndarray:
        """The time of each solve, (K,)."""
        return self._numbers("seconds")

    def _numbers(self, name: str) -> np.ndarray:
        """A number of each solution, (K,); NaN where there is none."""
        return np.array([getattr(s, name, None) for s in self.solutions], dtype=float)

    @property
    def statuses(self) -> tuple[str, ...]:
        """The statuses of the solves."""
        return tuple(FAILED if s is None else s.status for s in self.solutions)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the path before its last radius."""
        return len(self.entries) < len(self.asked)

    @property
    def training(self) -> tuple[LossStatistics | None, ...]:
        """Statistics of the losses on the samples."""
        return self.statistics(TRAINING)

    def statistics(self, scenarios: str) -> tuple[LossStatistics | None, ...]:
        """Statistics of the losses on one set of scenarios; None where the solver failed."""
        if scenarios not in self.scenario_sets:
            raise KeyError(f"{scenarios!r} is not in the path; it has {list(self.scenario_sets)}.")
        return tuple(
            e.statistics(scenarios) if isinstance(e, Judged) else None for e in self.entries
        )

    def means(self, scenarios: str) -> np.ndarray:
        """The mean losses on one set of scenarios, (K,)."""
        return np.array([np.nan if s is None else s.mean for s in self.statistics(scenarios)])

    @property
    def columns(self) -> list[Column]:
        on_sets = [
            Column(f"{name} {key}", f"{meaning} on the scenarios {name!r}.")
            for name in self.scenario_sets
            for key, meaning in SET_COLUMNS.items()
            if key != "risk" or self.has_risk
        ]
        return [
            Column("radius", "The radius of the Wasserstein ball.", form=".4g"),
            Column("value", "The optimal value of the method."),
            Column("robust_value", "The exact worst-case risk of the decision."),
            *on_sets,
            Column("iterations", "Iterations of the solver.", form="d"),
            Column("seconds", "Time of the solve.", form=".3g"),
            Column("status", "How the solve ended.", word=True),
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each radius."""
        keys = [*(["risk"] if self.has_risk else []), "mean", "standard_error", "cvar95"]
        rows: list[dict[str, Any]] = []
        for entry, solution, status in zip(self.entries, self.solutions, self.statuses):
            row: dict[str, Any] = {"radius": entry.radius}
            for key in ("value", "robust_value"):
                row[key] = getattr(solution, key, None)
            for name in self.scenario_sets:
                numbers = entry.statistics(name).row() if isinstance(entry, Judged) else {}
                row |= {f"{name} {key}": numbers.get(key) for key in keys}
            for key in ("iterations", "seconds"):
                row[key] = getattr(solution, key, None)
            rows.append({**row, "status": status})
        return rows

    def messages(self) -> list[str]:
        """Sentences below the table: failures, and an interrupt."""
        labels = radius_labels(self.asked)
        texts = dict(zip(self.asked, labels))
        messages = [f"radius {texts[entry.radius]}: {entry.message}" for entry in self.refused]
        if self.interrupted:
            messages.append(
                f"interrupted from the keyboard at radius {labels[len(self.entries)]}: "
                f"{len(self.entries)} of {len(self.asked)} radii are finished."
            )
        return messages

    def to_frame(self, decisions: bool = False) -> Any:
        """A pandas DataFrame, a row for each radius; with a column for each coordinate if asked."""
        table = super().to_frame()
        if not decisions:
            return table
        coordinates = [dict(zip(self.coordinates, row)) for row in self.decisions.tolist()]
        return table.join(frame(coordinates))

    def plot(
        self, path: Any = None, labelled: int = 8, *, kind: str | None = None, ax: Any = None
    ) -> Any:
        """Values and coordinates of the decision against the radius; saved if a path is given.

        labelled: how many coordinates get a colour and a name: those that change most.
        kind: one panel alone, "loss", "mean loss" or "decision".
        ax: Matplotlib's axes to draw on, one for each panel.

        Returns the figure, which notebooks show, or `ax` where it is given.
        """
        from wdro_model.evaluation.radius_pictures import plot_path

        return plot_path(self, path, labelled, kind=kind, ax=ax)

    def to_html(self, path: Any = None, title: str = "Decisions along the radius") -> str | None:
        """A page with a slider over the radii and the table; nothing is loaded from elsewhere.

        It is written to a file, or returned without a path.

        Examples
        --------
        >>> page = problem.path([0.0, 0.1, 1.0]).to_html()      # or .to_html("path.html")
        >>> 'type="range"' in page
        True
        """
        if self.problem is None:
            raise ValueError(
                "the page of a path needs its problem, which is not kept in files; call "
                "problem.path(radii) again."
            )
        explorer = Explorer(self.problem, self.methods, self.scenario_sets, self.problem.radius)
        sections = {
            "Over the radius": explorer.html(),
            "All radii": sortable_table(self.html()),
            "Messages": listed(self.messages()),
            "What the columns mean": column_meanings(self.columns),
        }
        return write_text(page(title, sections), path)


def radius_path(
    problem: Problem, radii: Any, method: str, test: Any, options: Mapping[str, Any]
) -> RadiusPath:
    """Solve at each radius, in increasing order, each from the decision before it.

    A refusal at the first radius is raised; a solver that fails later leaves a gap. Ctrl-C ends the
    path with the radii that are finished, or with the one under way if it is the first. A problem
    that has a decision keeps it; one that has none is left at the last radius.
    """
    values, sets = check_radii(radii), named_scenarios(problem, test)
    names = coordinate_names(problem)
    answers: list[tuple[float, Solution | Failure]] = []
    last: Solution | None = None
    with keep_decision(problem), solve_bar("path", len(values), options) as bar:
        current = problem
        try:
            for radius in values:
                current = current.with_radius(radius)
                # A program that was solved again goes on by itself, with the same arguments.
                if last is None or last.compilation != Compilation.AGAIN:
                    arguments = warm_arguments(current, {**options, "method": method}, last)
                answer = attempt(current, arguments)
                gap = None if isinstance(answer, Failure) else answer.relative_gap
                text = f"radius {radius:.3g}" + ("" if gap is None else f", gap {gap:.1e}")
                bar.set_postfix_str(text, refresh=False)
                bar.update()
                if isinstance(answer, Failure):
                    if last is None:
                        raise answer.error
                    answers.append((radius, answer))
                    continue
                interrupted = was_interrupted(answer)
                if not interrupted or last is None:
                    answers.append((radius, answer))
                if interrupted:
                    break
                last = answer
        except KeyboardInterrupt:
            if last is None:
                raise
    layout = Layout(problem.variables())
    final = [answer for _, answer in answers if isinstance(answer, Solution)][-1]
    entries: list[Judged | Refused] = []
    decisions = np.full((len(answers), layout.dimension), np.nan)
    for k, (radius, answer) in enumerate(answers):
        name = f"radius {radius:.6g}"
        if isinstance(answer, Failure):
            entries.append(Refused(name, answer.message, answer.status, radius))
            continue
        outcomes = outcomes_by_set(problem._model, answer.everything, sets)
        entries.append(Judged(name, answer, outcomes, radius, answer.value, final.method))
        decisions[k] = layout.join(answer.decision)
    all_sets = (TRAINING, *sets)
    return RadiusPath(tuple(entries), all_sets, decisions, names, values, problem=problem)
