"""Standalone HTML pages: sections with tables and pictures, and a slider over the radius.

The contents of the slider's section are computed here and embedded as JSON into `slider.html`;
`page.js` draws them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wdro_model.display.figures import colours_of_methods, embedded_png, scenario_colour
from wdro_model.display.tables import Column, html_table
from wdro_model.evaluation.radius_pictures import most_changing
from wdro_model.evaluation.statistics import METHOD, SCENARIOS, outcome_of, quantiles
from wdro_model.evaluation.worst_case import find_worst_case
from wdro_model.model import RobustModel
from wdro_model.sets.choices import EdgeSet

if TYPE_CHECKING:
    from wdro_model.evaluation.report import Judged
    from wdro_model.problem import Problem


@dataclass(frozen=True)
class PageLimits:
    """Limits that keep a page small; larger ones show more."""

    dots_per_inch: int = 130
    """Resolution of a picture."""
    dots: float = 1.5e6
    """Dots of a picture in all."""
    coordinates: int = 24
    """Coordinates of the decision: those that change most."""
    entries: int = 12
    """Entries of the data that the adversary moves most."""
    samples: int = 8
    """Samples of the worst case whose moves gain most."""
    quantiles: int = 40_000
    """Quantiles of the losses in all."""
    data_size: int = 2**24
    """Numbers in the data up to which worst cases are computed."""
    digits: int = 8
    """Digits of a number."""
    quantile_digits: int = 5
    """Digits of a quantile of the losses."""


LIMITS = PageLimits()
PERCENT_STEPS = (1, 2, 5, 10)
"""Percents from one quantile of the losses to the next; the smallest step that fits is taken."""


def page(title: str, sections: Mapping[str, str]) -> str:
    """An HTML document of the sections that are not empty."""
    body = "\n".join(
        f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>"
        for heading, content in sections.items()
        if content
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{text_of_file('page.css')}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n"
        f"<script>\n{text_of_file('page.js')}</script>\n</body>\n</html>\n"
    )


def text_of_file(name: str) -> str:
    """The text of a file in this folder."""
    return (files("wdro_model.evaluation") / name).read_text(encoding="utf-8")


def scrolling_table(table: str) -> str:
    """A table that scrolls sideways where the page is too narrow."""
    return f'<div class="wide">{table}</div>'


def sortable_table(table: str) -> str:
    """A table whose headings sort it."""
    return scrolling_table(table.replace('class="wdro"', 'class="wdro report"', 1))


def column_meanings(columns: Iterable[Column]) -> str:
    """The columns and what they mean."""
    pairs = (f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in columns)
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"


def image(figure: Any, text: str) -> str:
    """A figure as an image within the page; the text is for readers who do not see it."""
    area = float(np.prod(figure.get_size_inches()))
    source, width, height = embedded_png(
        figure, min(LIMITS.dots_per_inch, np.sqrt(LIMITS.dots / area))
    )
    return f'<p><img src="{source}" width="{width}" height="{height}" alt="{escape(text)}"></p>'


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


# ------------------------------
# The section with the slider


@dataclass(frozen=True, eq=False)
class Explorer:
    """Decisions along the radius, as a section of a page: a slider, drawings and tables."""

    problem: Problem
    judged: Sequence[Judged]
    """The decisions of all methods at all radii; those of one method share their `group`."""
    scenario_sets: Sequence[str]
    start: float
    """The radius that is shown first, or the nearest one."""

    @cached_property
    def tracks(self) -> dict[str, list[Judged]]:
        """The decisions of each method in the order of their radii, by its label."""
        tracks: dict[str, list[Judged]] = {}
        for judged in sorted(self.judged, key=lambda judged: judged.radius):
            tracks.setdefault(judged.group or judged.name, []).append(judged)
        labels = dict.fromkeys(judged.group or judged.name for judged in self.judged)
        return {label: tracks[label] for label in labels}

    @cached_property
    def has_erm(self) -> bool:
        """Whether a decision of ERM, which depends on no radius, stands beside other methods."""
        return len(self.tracks) > 1 and any(map(is_constant, self.tracks.values()))

    @cached_property
    def radii(self) -> list[float]:
        """The radii of the slider."""
        moving = (track for track in self.tracks.values() if not is_constant(track))
        return sorted({judged.radius for track in moving for judged in track})

    @cached_property
    def percent(self) -> int:
        """The step, in percent, from one quantile of the losses on the page to the next."""
        curves = len(self.scenario_sets) * len(self.judged)
        fits = (step for step in PERCENT_STEPS if curves * (100 // step + 1) <= LIMITS.quantiles)
        return next(fits, PERCENT_STEPS[-1])

    def data(self) -> dict[str, Any]:
        """The contents of the section as numbers, lists and texts."""
        tracks = list(self.tracks.values())
        decisions = [np.array([self._decision(judged) for judged in track]) for track in tracks]
        coordinates = shown_coordinates(np.concatenate(decisions))
        moves = [[self._adversary_move(judged) for judged in track] for track in tracks]
        entries = shown_entries([move for on_track in moves for move in on_track if move])
        names, model = coordinate_names(self.problem), self.problem._model
        families = [track[0].family for track in tracks]
        methods = [
            {
                "name": name,
                "family": family,
                "colour": colour,
                "radii": short_list(judged.radius for judged in track),
                "promise": short_list(judged.promise for judged in track),
                "status": [judged.solution.status for judged in track],
                "decision": [short_list(x[coordinates]) for x in xs],
                "losses": [self._losses(track, scenarios) for scenarios in self.scenario_sets],
                "worst": [move and move.data(entries) for move in on_track],
            }
            for (name, track), family, colour, xs, on_track in zip(
                self.tracks.items(), families, colours_of_methods(families), decisions, moves
            )
        ]
        return {
            "radii": short_list(self.radii),
            "start": int(np.argmin(np.abs(np.array(self.radii) - self.start))),
            "sets": list(self.scenario_sets),
            "colours": ["var(--quiet)", *map(scenario_colour, range(1, len(self.scenario_sets)))],
            "maximise": bool(model.maximise),
            "coordinates": [names[i] for i in coordinates],
            "entries": [cast(RobustModel, model).joint.coordinate(i) for i in entries],
            "methods": methods,
        }

    def html(self) -> str:
        """The section, with its data; the script of the page brings it to life."""
        data, count = self.data(), len(coordinate_names(self.problem))
        choices = "".join(
            f'<label><input type="radio" name="method" value="{k}"> {escape(name)}</label>'
            for k, name in enumerate(self.tracks)
        )
        now, moved = (
            scrolling_table(html_table(columns, []).replace("<table", f'<table id="{name}"', 1))
            for name, columns in (("now", NOW), ("moved", MOVED))
        )
        shown = len(data["coordinates"])
        return (
            text_of_file("slider.html")
            .rstrip()
            .format(
                last=len(data["radii"]) - 1,
                start=data["start"],
                choices=choices,
                one="" if len(self.tracks) > 1 else " hidden",
                some=f", {shown} of {count} coordinates" if shown < count else "",
                erm="; the lines are ERM's" if self.has_erm else "",
                percent=f"{self.percent}%",
                now=now,
                moved=moved,
                json=embedded(data),
            )
        )

    def _decision(self, judged: Judged) -> np.ndarray:
        """The flat decision in the user's own variables, in the order of their names."""
        layout = self.problem._model.feasible.layout
        flat = layout.join(judged.solution.decision)
        return np.concatenate([flat[layout.slices[v]] for v in layout.user_variables])

    def _losses(self, track: Sequence[Judged], scenarios: str) -> dict[str, Any]:
        """The losses of a method on one set of scenarios, at each of its radii."""
        statistics = [judged.statistics(scenarios) for judged in track]
        levels = np.arange(0, 101, self.percent) / 100
        outcomes = [judged.outcomes[scenarios] for judged in track]
        curves = [quantiles(o.losses, levels, o.probabilities) for o in outcomes]
        return {
            "mean": short_list(s.mean for s in statistics),
            "error": short_list(s.standard_error for s in statistics),
            "cvar": short_list(s.tail for s in statistics),
            "worst": short_list(s.worst for s in statistics),
            "excess": short_list(judged.excess(scenarios) for judged in track),
            "quantiles": [short_list(curve, LIMITS.quantile_digits) for curve in curves],
        }

    def _adversary_move(self, judged: Judged) -> AdversaryMove | None:
        """The move of the adversary at the decision; None where it is unknown, or there is none."""
        if self.problem.ambiguity is None or judged.radius == 0:
            return None
        model = self.problem.with_radius(judged.radius)._model
        if (
            not isinstance(model, RobustModel)
            or model.joint.size * model.joint.dimension > LIMITS.data_size
        ):
            return None
        try:
            return AdversaryMove.against(judged, model)
        except ValueError:  # no formula is known; NoReformulationError is one
            return None


def is_constant(track: Sequence[Judged]) -> bool:
    """Whether the decision does not depend on the radius."""
    return track[0].family == "erm" and len(track) == 1


@dataclass(frozen=True, eq=False)
class AdversaryMove:
    """The worst case of a decision, sample by sample."""

    expected: float
    cost: float
    dual: float
    shift: np.ndarray
    """The move of the mean of each entry of the data, in its standard deviations, (d,)."""
    samples: np.ndarray
    """The samples whose moves gain most: index, probability, loss before and after, cost."""

    @classmethod
    def against(cls, judged: Judged, model: RobustModel) -> AdversaryMove:
        """The worst case of a decision, summed up by sample."""
        x = model.feasible.layout.join(judged.solution.everything)
        worst = find_worst_case(model, x, judged.solution.as_loss(), None)
        rows = model.joint.join(worst.scenarios)
        deviation = np.sqrt(model.shares.total((model.rows - model.joint.mean) ** 2))

        def sum_by_sample(values: np.ndarray | float) -> np.ndarray:
            return np.bincount(worst.source, worst.weights * values, model.joint.size)

        weight = sum_by_sample(1.0)
        divisor = np.maximum(weight, 1e-300)
        before = outcome_of(model, x).losses
        after = sum_by_sample(outcome_of(model, x, worst.scenarios).losses) / divisor
        costs = sum_by_sample(model.cost(model.rows[worst.source], rows)) / divisor
        gain = model.sign * weight * (after - before)
        most = np.argsort(-gain, kind="stable")[: LIMITS.samples]
        table = np.column_stack([np.arange(model.joint.size), weight, before, after, costs])
        return cls(
            expected=model.sign * worst.expected_loss,
            cost=worst.transport_cost,
            dual=worst.dual,
            shift=(worst.weights @ rows - model.joint.mean) / np.where(deviation > 0, deviation, 1),
            samples=table[most[weight[most] > 0]],
        )

    def data(self, entries: Sequence[int]) -> dict[str, Any]:
        """The contents of the page for these entries of the data."""
        return {
            "expected": short_number(self.expected),
            "cost": short_number(self.cost),
            "dual": short_number(self.dual),
            "shift": short_list(self.shift[list(entries)]),
            "samples": [short_list(row) for row in self.samples],
        }


def shown_coordinates(decisions: np.ndarray) -> list[int]:
    """The coordinates of the decision that change most between radii and methods."""
    if decisions.shape[1] <= LIMITS.coordinates:
        return list(range(decisions.shape[1]))
    return sorted(most_changing(decisions, LIMITS.coordinates).tolist())


def shown_entries(moves: Sequence[AdversaryMove]) -> list[int]:
    """The entries of the data that adversaries move most."""
    if not moves:
        return []
    most = np.abs([move.shift for move in moves]).max(axis=0)
    return sorted(np.argsort(-most, kind="stable")[: LIMITS.entries].tolist())


def short_list(values: Iterable[Any], digits: int = LIMITS.digits) -> list[float | None]:
    """Numbers with a few digits."""
    return [short_number(value, digits) for value in values]


def short_number(value: Any, digits: int = LIMITS.digits) -> float | None:
    """A number with a few digits, short in JSON; None where there is none, or an infinite one."""
    if value is None or not math.isfinite(value):
        return None
    number = float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() and abs(number) < 1e6 else number


def embedded(data: Mapping[str, Any]) -> str:
    """JSON for a script, with "<" written as its number, so that no text of the user ends it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


NOW = (
    METHOD,
    SCENARIOS,
    Column("promise", "The optimal value of the method at this radius."),
    Column("mean", "The mean loss."),
    Column("error", "Standard error of the mean."),
    Column("excess", "Positive where the method promised too much.", "mean - promise"),
    Column("cvar95", "CVaR at 95%: the mean of the worst 5% of the losses."),
    Column("worst", "The worst loss."),
    Column("status", "How the solve ended.", word=True),
)
MOVED = (
    Column("sample", "The sample that the adversary moves."),
    Column("weight", "Its probability in the worst case.", "probability"),
    Column("before", "The loss at the sample.", "loss before"),
    Column("after", "The mean loss where it is moved to.", "loss after"),
    Column("cost", "The mean transport cost of the move."),
)
