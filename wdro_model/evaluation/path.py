"""Decisions along the radius: `Problem.path`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.tables import Column, Tabular, brief, counted, frame, listed, written
from wdro_model.evaluation.attempts import (
    Failure,
    attempt,
    check_radii,
    decision_kept,
    named_scenarios,
    radius_and_gap,
    radius_labels,
    solve_bar,
    warm_arguments,
    was_interrupted,
)
from wdro_model.evaluation.statistics import (
    PERCENTS,
    TRAINING,
    LossStatistics,
    observed_by_set,
    quantiles,
)
from wdro_model.loss.batched import Layout
from wdro_model.sets.graphs import EdgeSet
from wdro_model.solve.certify import Solution
from wdro_model.solve.compile import Compilation

if TYPE_CHECKING:
    from wdro_model.problem import Problem


@dataclass(frozen=True)
class Stage:
    """The solve at one radius."""

    radius: float
    solution: Solution | None
    """None where the solver failed."""
    decision: np.ndarray
    """Flat, (n,); NaN where the solver failed."""
    statistics: Mapping[str, LossStatistics]
    """By the name of the scenario set, "training" first; empty where the solver failed."""
    quantiles: Mapping[str, np.ndarray]
    """101 quantiles of the losses on each set of scenarios, evenly spaced from 0 to 1."""
    message: str = ""
    """Why there is no solution."""

    def __repr__(self) -> str:
        return brief(self, f"radius {self.radius:.6g}, {self.message or repr(self.solution)}")


@dataclass(frozen=True)
class RadiusPath(Tabular):
    """Decisions along increasing radii: prints as a table; `plot()` shows how they change.

    Examples
    --------
    >>> path = problem.path([0.0, 1.0, 100.0])
    >>> path.radii
    array([  0.,   1., 100.])
    """

    stages: tuple[Stage, ...]
    coordinates: tuple[str, ...]
    """The names of the n coordinates of a decision."""
    asked: tuple[float, ...]
    """The requested radii; after an interrupt there are fewer stages."""
    problem: Problem | None = field(default=None, compare=False)
    """The problem of the decisions; it is not pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "problem": None}

    def __repr__(self) -> str:
        ends = f"radius {self.asked[0]:.6g} to {self.radii[-1]:.6g}"
        return brief(self, f"{counted(len(self.stages), 'solve')}, {ends}, {self.method}")

    @property
    def radii(self) -> np.ndarray:
        """The radii in increasing order, (K,)."""
        return np.array([stage.radius for stage in self.stages])

    @property
    def solutions(self) -> tuple[Solution | None, ...]:
        return tuple(stage.solution for stage in self.stages)

    @property
    def method(self) -> str:
        """The method of the solves: that of the largest radius, as radius 0 is ERM."""
        return next((s.method for s in reversed(self.solutions) if s is not None), "erm")

    @property
    def maximise(self) -> bool:
        """Whether the objective is maximised: losses are then its values."""
        return any(s.maximise for s in self.solutions if s is not None)

    @property
    def values(self) -> np.ndarray:
        """The optimal value of the method at each radius, (K,); NaN where the solver failed."""
        return self._of_solution("value")

    @property
    def robust_values(self) -> np.ndarray:
        """The exact worst-case risk of each decision over its ball, (K,); NaN if not known."""
        return self._of_solution("robust_value")

    @property
    def seconds(self) -> np.ndarray:
        """The time of each solve, (K,)."""
        return self._of_solution("seconds")

    @property
    def decisions(self) -> np.ndarray:
        """The flat decisions as rows, (K, n)."""
        return np.array([stage.decision for stage in self.stages])

    @property
    def statuses(self) -> tuple[str, ...]:
        return tuple("failed" if s is None else s.status for s in self.solutions)

    @property
    def training(self) -> tuple[LossStatistics | None, ...]:
        """Statistics of the losses on the samples."""
        return self.statistics(TRAINING)

    @property
    def scenario_sets(self) -> tuple[str, ...]:
        """The names of the scenario sets, "training" first."""
        return tuple(next(stage.statistics for stage in self.stages if stage.statistics))

    @property
    def has_risk(self) -> bool:
        """Whether the objective has a CVaR, so that it is judged by more than the mean."""
        return any(s.measures for stage in self.stages for s in stage.statistics.values())

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the path before its last radius."""
        return len(self.stages) < len(self.asked)

    def statistics(self, scenarios: str) -> tuple[LossStatistics | None, ...]:
        """Statistics of the losses on one set of scenarios; None where the solver failed."""
        if scenarios not in self.scenario_sets:
            raise KeyError(f"{scenarios!r} is not in the path; it has {list(self.scenario_sets)}.")
        return tuple(stage.statistics.get(scenarios) for stage in self.stages)

    def means(self, scenarios: str) -> np.ndarray:
        """The mean losses on one set of scenarios, (K,)."""
        return np.array([np.nan if s is None else s.mean for s in self.statistics(scenarios)])

    def rows(self) -> list[dict[str, Any]]:
        """A row for each radius."""
        keys = [*(["risk"] if self.has_risk else []), "mean", "standard_error", "cvar95"]
        rows: list[dict[str, Any]] = []
        for stage, status in zip(self.stages, self.statuses):
            row: dict[str, Any] = {"radius": stage.radius}
            for key in ("value", "robust_value"):
                row[key] = getattr(stage.solution, key, None)
            for name in self.scenario_sets:
                statistics = stage.statistics.get(name)
                known = {} if statistics is None else statistics.row()
                row |= {f"{name} {key}": known.get(key) for key in keys}
            for key in ("iterations", "seconds"):
                row[key] = getattr(stage.solution, key, None)
            rows.append({**row, "status": status})
        return rows

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
        from wdro_model.evaluation.explorer import Explorer, meanings, page, sorting

        if self.problem is None:
            raise ValueError(
                "the page of a path needs its problem, which is not kept in files; call "
                "problem.path(radii) again."
            )
        sections = {
            "Over the radius": Explorer.of_path(self, self.problem).html(),
            "All radii": sorting(self.html()),
            "Messages": listed(self.messages()),
            "What the columns mean": meanings(self.columns),
        }
        return written(page(title, sections), path)

    def messages(self) -> list[str]:
        """Sentences below the table: failures, and an interrupt."""
        labels = radius_labels(self.asked)
        texts = dict(zip(self.asked, labels))
        out = [f"radius {texts[s.radius]}: {s.message}" for s in self.stages if s.message]
        if self.interrupted:
            out.append(
                f"interrupted from the keyboard at radius {labels[len(self.stages)]}: "
                f"{len(self.stages)} of {len(self.asked)} radii are finished."
            )
        return out

    def _footnotes(self) -> list[str]:
        return self.messages()

    @property
    def columns(self) -> list[Column]:
        on_sets = [
            Column(f"{name} {key}", f"{meaning} on the scenarios {name!r}.", form=form)
            for name in self.scenario_sets
            for key, meaning, form in (
                *([("risk", "The objective", ".5g")] if self.has_risk else []),
                ("mean", "The mean loss", ".5g"),
                ("cvar95", "The mean of the worst 5% of the losses", ".5g"),
            )
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

    def _of_solution(self, name: str) -> np.ndarray:
        values = [getattr(solution, name, None) for solution in self.solutions]
        return np.array(values, dtype=float)  # None is NaN


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
    with decision_kept(problem), solve_bar("path", len(values), options) as bar:
        current = problem
        try:
            for radius in values:
                current = current.with_radius(radius)
                if (
                    last is None or last.compilation != Compilation.AGAIN
                ):  # else there is a program to go on
                    arguments = warm_arguments(current, {**options, "method": method}, last)
                answer = attempt(current, arguments)
                bar.set_postfix_str(radius_and_gap(radius, answer), refresh=False)
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
    stages = tuple(judge_stage(problem, radius, answer, sets) for radius, answer in answers)
    return RadiusPath(stages, names, values, problem)


def judge_stage(
    problem: Problem, radius: float, answer: Solution | Failure, sets: Mapping[str, Any]
) -> Stage:
    """The solve at one radius, its decision judged on the samples and on each scenario set."""
    layout = Layout(problem.variables())
    if isinstance(answer, Failure):
        return Stage(radius, None, np.full(layout.dimension, np.nan), {}, {}, answer.message)
    observed = observed_by_set(problem._model, answer.everything, sets)
    return Stage(
        radius,
        answer,
        layout.join(answer.decision),
        {name: on_set.statistics() for name, on_set in observed.items()},
        {
            name: quantiles(on_set.losses, PERCENTS, on_set.probabilities)
            for name, on_set in observed.items()
        },
    )


def coordinate_names(problem: Problem) -> tuple[str, ...]:
    """The coordinates of the flat decision: "x[2]", "y[0, 1]", or "x(u, v)" for an edge."""
    feasible = problem._model.feasible
    edges = {m.variable: m.set.edges for m in feasible.memberships if isinstance(m.set, EdgeSet)}
    names: list[str] = []
    for variable in feasible.layout.user_variables:
        name = variable.name()
        if variable in edges:
            names += [f"{name}{edge!r}" for edge in edges[variable]]
        elif variable.ndim == 0:
            names.append(name)
        else:
            places = np.ndindex(*variable.shape)
            names += [f"{name}[{', '.join(map(str, place))}]" for place in places]
    return tuple(names)
