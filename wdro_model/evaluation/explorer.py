"""A standalone HTML page with a slider over the radius.

The contents of the page are computed here and embedded as JSON; `page.js` draws them.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.figures import colours_of_methods, scenario_colour
from wdro_model.display.tables import Column, html_table
from wdro_model.evaluation.radius_pictures import most_changing
from wdro_model.evaluation.statistics import PERCENTS, LossStatistics, observed, quantiles
from wdro_model.evaluation.worst_case import find_worst_case
from wdro_model.model import RobustModel
from wdro_model.solve.certify import Solution

if TYPE_CHECKING:
    from wdro_model.evaluation.path import RadiusPath
    from wdro_model.evaluation.report import Report
    from wdro_model.problem import Problem


DOTS_PER_INCH, MAX_DOTS = 130, 1.5e6
"""Resolution of a picture, and a limit on its dots in all."""


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


def wide(table: str) -> str:
    """A table that scrolls sideways where the page is too narrow."""
    return f'<div class="wide">{table}</div>'


def sorting(table: str) -> str:
    """A table whose headings sort it."""
    return wide(table.replace('class="wdro"', 'class="wdro report"', 1))


def meanings(columns: Iterable[Column]) -> str:
    """The columns and what they mean."""
    pairs = (f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in columns)
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"


def image(figure: Any, text: str) -> str:
    """A figure as an image within the page; the text is for readers who do not see it."""
    buffer = io.BytesIO()
    area = float(np.prod(figure.get_size_inches()))
    figure.savefig(buffer, format="png", dpi=min(DOTS_PER_INCH, np.sqrt(MAX_DOTS / area)))
    png = buffer.getvalue()
    width, height = struct.unpack(">II", png[16:24])  # the first fields of a PNG's header
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<p><img src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{escape(text)}"></p>'
    )


# ------------------------------
# A page that follows decisions along the radius: a slider, drawings and tables, no network


MAX_COORDINATES, MAX_ENTRIES, MAX_SAMPLES = 24, 12, 8
"""Coordinates of the decision, entries of the data, and samples of the worst case on the page."""
PERCENT_STEPS, MAX_QUANTILES = (1, 2, 5, 10), 40_000
"""Percents from one quantile of the losses to the next; quantiles on the page, at most."""
MAX_DATA_SIZE = 2**24
"""Numbers in the data up to which worst cases are computed for the page."""
DIGITS = 8

NOW = (
    Column("method", "The method, or the label it was given.", word=True),
    Column("scenarios", "The data that the decision is judged on.", word=True),
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


@dataclass(frozen=True, eq=False)
class Position:
    """The decision of a method at one radius, and its losses."""

    radius: float
    solution: Solution
    promise: float | None
    statistics: Mapping[str, LossStatistics]
    """By the name of the scenario set."""
    quantiles: Mapping[str, np.ndarray]
    """The quantiles of the losses, at the levels `PERCENTS`."""

    def excess(self, scenarios: str) -> float | None:
        """The risk minus the promise: positive where the promise was too good."""
        if self.promise is None:
            return None
        difference = self.statistics[scenarios].risk - self.promise
        return -difference if self.solution.maximise else difference


@dataclass(frozen=True, eq=False)
class Track:
    """A method along the radius."""

    name: str
    family: str
    positions: tuple[Position, ...]

    @property
    def is_constant(self) -> bool:
        """Whether the decision does not depend on the radius."""
        return self.family == "erm" and len(self.positions) == 1


@dataclass(frozen=True, eq=False)
class Explorer:
    """Decisions along the radius, as a section of a page."""

    tracks: tuple[Track, ...]
    scenario_sets: tuple[str, ...]
    problem: Problem
    start: float
    """The radius that is shown first, or the nearest one."""

    @classmethod
    def of_report(cls, report: Report, problem: Problem, start: float) -> Explorer:
        """The methods of a report, each at all its radii."""
        groups: dict[str, list[Any]] = {}
        for judged in report.methods:
            groups.setdefault(judged.group or judged.name, []).append(judged)
        tracks = []
        for name, entries in groups.items():
            positions = (
                Position(
                    judged.radius,
                    judged.solution,
                    judged.promise,
                    {s: judged.statistics(s) for s in report.scenario_sets},
                    {
                        s: quantiles(judged.losses[s], PERCENTS, judged.probabilities.get(s))
                        for s in report.scenario_sets
                    },
                )
                for judged in sorted(entries, key=lambda judged: judged.radius)
            )
            tracks.append(Track(name, entries[0].family, tuple(positions)))
        return cls(tuple(tracks), report.scenario_sets, problem, start)

    @classmethod
    def of_path(cls, path: RadiusPath, problem: Problem) -> Explorer:
        """The stages of a path, those that have a solution."""
        positions = tuple(
            Position(s.radius, s.solution, s.solution.value, s.statistics, s.quantiles)
            for s in path.stages
            if s.solution is not None
        )
        track = Track(path.method, path.method, positions)
        return cls((track,), path.scenario_sets, problem, problem.radius)

    @property
    def radii(self) -> list[float]:
        """The radii of the slider."""
        moving = (track for track in self.tracks if not track.is_constant)
        return sorted({p.radius for track in moving for p in track.positions})

    @property
    def percent(self) -> int:
        """The step, in percent, from one quantile of the losses on the page to the next."""
        curves = len(self.scenario_sets) * sum(len(track.positions) for track in self.tracks)
        fits = (step for step in PERCENT_STEPS if curves * (100 // step + 1) <= MAX_QUANTILES)
        return next(fits, PERCENT_STEPS[-1])

    def data(self) -> dict[str, Any]:
        """The contents of the page as numbers, lists and texts."""
        decisions = [[self._own_entries(p) for p in track.positions] for track in self.tracks]
        kept = shown_coordinates(np.concatenate(decisions))
        moves = [[self._move(p) for p in track.positions] for track in self.tracks]
        entries = shown_entries(
            [move for on_track in moves for move in on_track if move is not None]
        )
        colours = colours_of_methods([track.family for track in self.tracks])
        radii = self.radii
        return {
            "radii": rounded_list(radii),
            "start": int(np.argmin(np.abs(np.array(radii) - self.start))),
            "sets": list(self.scenario_sets),
            "colours": ["var(--quiet)", *map(scenario_colour, range(1, len(self.scenario_sets)))],
            "maximise": bool(self.problem._model.maximise),
            "coordinates": [self._coordinates()[i] for i in kept],
            "entries": [self._entry_name(i) for i in entries],
            "methods": [
                {
                    "name": track.name,
                    "family": track.family,
                    "colour": colour,
                    "radii": rounded_list([p.radius for p in track.positions]),
                    "promise": rounded_list([p.promise for p in track.positions]),
                    "status": [p.solution.status for p in track.positions],
                    "decision": [rounded_list(x[kept]) for x in xs],
                    "losses": [losses_of(track, s, self.percent) for s in self.scenario_sets],
                    "worst": [None if m is None else m.data(entries) for m in moved],
                }
                for track, colour, xs, moved in zip(self.tracks, colours, decisions, moves)
            ],
        }

    def html(self) -> str:
        """The section, with its data; the script of the page brings it to life."""
        data = self.data()
        choices = "".join(
            f'<label><input type="radio" name="method" value="{k}"> {escape(track.name)}</label>'
            for k, track in enumerate(self.tracks)
        )
        now, moved = (
            wide(html_table(columns, []).replace("<table", f'<table id="{name}"', 1))
            for name, columns in (("now", NOW), ("moved", MOVED))
        )
        erm = any(track.is_constant for track in self.tracks) and len(self.tracks) > 1
        some = f", {len(data['coordinates'])} of {len(self._coordinates())} coordinates"
        return TEMPLATE.format(
            last=len(data["radii"]) - 1,
            start=data["start"],
            choices=choices,
            one="" if len(self.tracks) > 1 else " hidden",
            some=some if len(data["coordinates"]) < len(self._coordinates()) else "",
            erm="; the lines are ERM's" if erm else "",
            percent=f"{self.percent}%",
            now=now,
            moved=moved,
            json=embedded(data),
        )

    def _flat(self, position: Position) -> np.ndarray:
        """The flat decision, with the thresholds of CVaRs."""
        return self.problem._model.feasible.layout.join(position.solution.everything)

    def _own_entries(self, position: Position) -> np.ndarray:
        """The entries of the user's own variables, in the order of their names."""
        layout, flat = self.problem._model.feasible.layout, self._flat(position)
        return np.concatenate([flat[layout.slices[v]] for v in layout.user_variables])

    def _coordinates(self) -> tuple[str, ...]:
        from wdro_model.evaluation.path import coordinate_names

        return coordinate_names(self.problem)

    def _entry_name(self, i: int) -> str:
        """An entry of the data: "returns[2]"."""
        model = self.problem._model
        assert isinstance(model, RobustModel)
        return model.joint.coordinate(i)

    def _move(self, position: Position) -> AdversaryMove | None:
        """The move of the adversary at the decision; None where it is unknown, or there is none."""
        if self.problem.ambiguity is None or position.radius == 0:
            return None
        model = self.problem.with_radius(position.radius)._model
        if (
            not isinstance(model, RobustModel)
            or model.joint.size * model.joint.dimension > MAX_DATA_SIZE
        ):
            return None
        try:
            return AdversaryMove.at(model, self._flat(position), position.solution.as_loss())
        except ValueError:  # no formula is known; NoReformulationError is one
            return None


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
    def at(cls, model: RobustModel, x: np.ndarray, solution: Solution) -> AdversaryMove:
        """The worst case of a decision, summed up by sample."""
        worst = find_worst_case(model, x, solution, None)
        count = len(worst.weights)
        rows = model.joint.join(worst.scenarios)
        mean = model.joint.mean
        deviation = np.sqrt(model.shares.total((model.rows - mean) ** 2))
        shift = worst.weights @ rows - mean
        before = observed(model, x).losses

        def per_sample(values: np.ndarray) -> np.ndarray:
            return np.bincount(worst.source, worst.weights * values, model.joint.size)

        weight = per_sample(np.ones(count))
        held = np.maximum(weight, 1e-300)
        after = per_sample(observed(model, x, worst.scenarios).losses) / held
        costs = per_sample(model.cost(model.rows[worst.source], rows)) / held
        gain = model.sign * weight * (after - before)
        most = np.argsort(-gain, kind="stable")[:MAX_SAMPLES]
        table = np.column_stack([np.arange(model.joint.size), weight, before, after, costs])
        return cls(
            expected=model.sign * worst.expected_loss,
            cost=worst.transport_cost,
            dual=worst.dual,
            shift=shift / np.where(deviation > 0, deviation, 1.0),
            samples=table[most[weight[most] > 0]],
        )

    def data(self, entries: Sequence[int]) -> dict[str, Any]:
        """The contents of the page for these entries of the data."""
        return {
            "expected": rounded_number(self.expected),
            "cost": rounded_number(self.cost),
            "dual": rounded_number(self.dual),
            "shift": rounded_list(self.shift[list(entries)]),
            "samples": [rounded_list(row) for row in self.samples],
        }


def shown_coordinates(decisions: np.ndarray) -> list[int]:
    """The coordinates of the decision that change most between radii and methods."""
    if decisions.shape[1] <= MAX_COORDINATES:
        return list(range(decisions.shape[1]))
    return sorted(most_changing(decisions, MAX_COORDINATES).tolist())


def shown_entries(moves: Sequence[AdversaryMove]) -> list[int]:
    """The entries of the data that adversaries move most."""
    if not moves:
        return []
    most = np.abs([move.shift for move in moves]).max(axis=0)
    return sorted(np.argsort(-most, kind="stable")[:MAX_ENTRIES].tolist())


def losses_of(track: Track, scenarios: str, percent: int) -> dict[str, Any]:
    """The losses of a method on one set of scenarios, at each of its radii."""
    statistics = [position.statistics[scenarios] for position in track.positions]
    return {
        "mean": rounded_list([s.mean for s in statistics]),
        "error": rounded_list([s.standard_error for s in statistics]),
        "cvar": rounded_list([s.tail for s in statistics]),
        "worst": rounded_list([s.worst for s in statistics]),
        "excess": rounded_list([p.excess(scenarios) for p in track.positions]),
        "quantiles": [rounded_list(p.quantiles[scenarios][::percent], 5) for p in track.positions],
    }


def rounded_list(values: Iterable[Any], digits: int = DIGITS) -> list[float | None]:
    return [rounded_number(value, digits) for value in values]


def rounded_number(value: Any, digits: int = DIGITS) -> float | None:
    """A number with a few digits, short in JSON; None where there is none, or an infinite one."""
    if value is None or not math.isfinite(value):
        return None
    number = float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() and abs(number) < 1e6 else number


def embedded(data: Mapping[str, Any]) -> str:
    """JSON for a script, with "<" written as its number, so that no text of the user ends it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


TEMPLATE = """<div id="explorer">
<noscript><p>The slider needs JavaScript; the tables below do not.</p></noscript>
<div class="controls">
<div class="slider"><label for="radius">radius</label>
<input type="range" id="radius" min="0" max="{last}" step="1" value="{start}">
<output id="radius-value" for="radius"></output></div>
<fieldset class="choice"{one}><legend>decision of</legend>{choices}</fieldset>
</div>
<div class="cards">
<figure><figcaption>Promise and mean loss</figcaption>
<svg id="curves" role="img"></svg><p class="key" id="curves-key"></p></figure>
<figure><figcaption>Losses</figcaption><svg id="strips" role="img"></svg>
<p class="key">a dot for each {percent} of the scenarios, circle: mean, triangle: CVaR 95%, bar:
promise</p></figure>
<figure><figcaption>Decision</figcaption><svg id="decision" role="img"></svg>
<p class="key">value of each coordinate{erm}{some}</p></figure>
<figure id="worst-case"><figcaption>Worst case</figcaption><svg id="worst" role="img"></svg>
<p class="key">how far the adversary moves the mean of the data, in standard deviations;
<span id="worst-note"></span></p></figure>
</div>
<h3>At this radius</h3>
{now}
<div id="moved-case">
<h3>Samples whose moves cost the decision most</h3>
{moved}
</div>
<script type="application/json" id="explored">{json}</script>
</div>"""
