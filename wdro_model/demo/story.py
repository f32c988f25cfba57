"""Decisions by ERM and robustly on many instances: their costs, and sentences that compare them."""

from __future__ import annotations

import inspect
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from wdro_model.display.figures import COLOURS, ERM_COLOUR
from wdro_model.display.tables import Column, text_table
from wdro_model.errors import ConvexityWarning
from wdro_model.evaluation.attempts import collect
from wdro_model.evaluation.report import PROMISE_TOLERANCE
from wdro_model.evaluation.statistics import TAIL, conditional_value_at_risk, standard_error

ERM, ROBUST = "ERM", "robust"
ROBUST_COLOUR = COLOURS[1]
MEASURES = {"mean": "mean cost", "tail": "worst 5%"}
"""The costs that are compared, and their names in sentences."""
CLEAR_GAIN = 2.0
"""Standard errors by which a gain must differ from 0 to be called a gain or a loss."""
COLUMNS = (
    Column("test", "The data that the decisions are judged on.", "judged on", word=True),
    Column("method", "ERM, or the robust decision.", word=True),
    Column("promise", "The mean cost that the method predicts.", "promised", ".4g"),
    Column("mean", "The mean cost; means over instances.", form=".4g"),
    Column("mean_error", "Its standard error over instances.", "error", ".2g"),
    Column("tail", "The mean of the worst 5% of the costs.", "worst 5%", ".4g"),
    Column("tail_error", "Its standard error over instances.", "error", ".2g"),
    Column("kept", "The number of instances whose mean is at most the promise.", "promise kept"),
    Column("mean_gain", "The share of ERM's mean cost that is saved.", "gain in mean"),
    Column("tail_gain", "The share of ERM's worst 5% that is saved.", "gain in worst 5%"),
)


@dataclass(frozen=True)
class Judgement:
    """The promise of a decision, and its costs on the scenarios of a test."""

    promise: float
    """The mean cost that the method predicts; for a robust method its worst case."""
    mean: float
    tail: float
    """The mean of the worst 5%."""
    deviation: float = 0.0

    @classmethod
    def from_losses(cls, promise: float, losses: np.ndarray) -> Judgement:
        tail = conditional_value_at_risk(losses, TAIL)
        return cls(float(promise), float(losses.mean()), tail, float(losses.std()))

    @property
    def kept(self) -> bool:
        """Whether the mean was at most the promise, up to rounding."""
        return self.mean <= self.promise + PROMISE_TOLERANCE * (abs(self.promise) + self.deviation)


@dataclass(frozen=True)
class Instance:
    """The decisions of ERM and of the robust problem on one instance."""

    tests: Mapping[str, Sequence[Judgement]]
    """The judgements of (ERM, robust) by the name of the test."""
    radius: float
    details: Any = None
    """The data behind the picture."""


@dataclass(frozen=True)
class Gain:
    """The share of ERM's cost that the robust decisions save; negative where they cost more."""

    share: float
    error: float
    """Its standard error over the instances; NaN for one instance."""

    @classmethod
    def over(cls, erm: np.ndarray, robust: np.ndarray) -> Gain:
        """The ratio of the means of saving and cost, with the error of a ratio."""
        share = float((erm - robust).mean() / erm.mean())
        residuals = (erm - robust) - share * erm
        return cls(share, standard_error(residuals) / abs(float(erm.mean())))

    @property
    def sign(self) -> int:
        """1 for a clear gain, -1 for a clear loss, 0 otherwise."""
        return int(np.sign(self.share)) if abs(self.share) > CLEAR_GAIN * self.error else 0

    @property
    def size(self) -> str:
        """The size of the gain or loss in percent, without its sign."""
        error = "" if np.isnan(self.error) else f" ± {100 * self.error:.1f}"
        return f"{abs(100 * self.share):.1f}%{error}"

    def __str__(self) -> str:
        error = "one instance" if np.isnan(self.error) else f"± {100 * self.error:.1f}"
        return f"{100 * self.share:+.1f}% {error}"

    @property
    def sentence(self) -> str:
        """The change of a cost from ERM's decision to the robust one: "fell by 3.1% ± 0.5"."""
        direction = "fell" if self.share > 0 else "rose"
        if np.isnan(self.error):
            return f"{direction} by {self.size} in one instance"
        if self.sign == 0:
            return f"did not change measurably (gain {self})"
        return f"{direction} by {self.size}"


@dataclass(frozen=True)
class Comparison:
    """ERM and the robust decision on one test, in all instances."""

    test: str
    erm: Sequence[Judgement]
    robust: Sequence[Judgement]

    @classmethod
    def on_test(cls, test: str, instances: Sequence[Instance]) -> Comparison:
        pairs = [instance.tests[test] for instance in instances]
        return cls(test, [erm for erm, _ in pairs], [robust for _, robust in pairs])

    def gain(self, measure: str) -> Gain:
        """The gain in "mean" or "tail"."""
        return Gain.over(numbers(self.erm, measure), numbers(self.robust, measure))

    def rows(self) -> list[dict[str, Any]]:
        """A row for ERM and one for the robust decision, which has the gains."""
        rows: list[dict[str, Any]] = []
        for method, judged in ((ERM, self.erm), (ROBUST, self.robust)):
            mean, tail = numbers(judged, "mean"), numbers(judged, "tail")
            rows.append(
                {
                    "test": self.test,
                    "method": method,
                    "promise": float(numbers(judged, "promise").mean()),
                    "mean": float(mean.mean()),
                    "mean_error": standard_error(mean),
                    "tail": float(tail.mean()),
                    "tail_error": standard_error(tail),
                    "kept": f"{count_kept(judged)} of {len(judged)}",
                }
            )
        rows[1] |= {"mean_gain": str(self.gain("mean")), "tail_gain": str(self.gain("tail"))}
        return rows


def numbers(judged: Sequence[Judgement], name: str) -> np.ndarray:
    """A number of each judgement, by the name of its field."""
    return np.array([getattr(judgement, name) for judgement in judged])


def count_kept(judged: Sequence[Judgement]) -> int:
    return sum(judgement.kept for judgement in judged)


# ------------------------------------------------------------------ sentences
def verdict(comparison: Comparison) -> str:
    """The sentence on both costs and both promises."""
    return (
        f"{comparison.test[:1].upper()}{comparison.test[1:]}: with the robust decision the mean "
        f"cost {comparison.gain('mean').sentence} and the worst 5% "
        f"{comparison.gain('tail').sentence}; ERM kept its promise in "
        f"{count_kept(comparison.erm)} of {len(comparison.erm)} instances, the robust decision in "
        f"{count_kept(comparison.robust)}."
    )


def where_it_loses(comparisons: Sequence[Comparison]) -> str:
    """The tests on which the robust decision clearly costs more; nothing where there are none."""
    losses = []
    for comparison in comparisons:
        gains = {name: comparison.gain(measure) for measure, name in MEASURES.items()}
        worse = [f"{gain.size} more in the {name}" for name, gain in gains.items() if gain.sign < 0]
        if worse:
            losses.append(f"{comparison.test} ({', '.join(worse)})")
    return f"Where it loses: {'; '.join(losses)}." if losses else ""


def gained_and_lost(stories: Mapping[str, Sequence[Comparison]]) -> tuple[str, str]:
    """The sentences on what robustness gained and what it cost, a clause for each story.

    The first has the test with the largest clear gain of each story, the second all tests with a
    clear loss, the largest first.
    """
    gains, losses = [], []
    for name, comparisons in stories.items():
        better = sorted(clear_changes(comparisons, +1), reverse=True)
        worse = sorted(clear_changes(comparisons, -1))
        gains += [f"{name}, {clause}" for _, clause in better[:1]]
        losses += [f"{name}, {', '.join(clause for _, clause in worse)}"] if worse else []
    nothing = "nothing that can be measured"
    return (
        f"What it gained: {'; '.join(gains) or nothing}.",
        f"What it cost: {'; '.join(losses) or nothing}.",
    )


def clear_changes(comparisons: Sequence[Comparison], sign: int) -> list[tuple[float, str]]:
    """The largest share and a clause for each test with a clear gain (sign 1) or loss (-1)."""
    changes = []
    for comparison in comparisons:
        gains = {name: comparison.gain(measure) for measure, name in MEASURES.items()}
        clear = {name: gain for name, gain in gains.items() if gain.sign == sign}
        if clear:
            more = "less" if sign > 0 else "more"
            parts = [f"{gain.size} {more} in the {name}" for name, gain in clear.items()]
            largest = sign * max(abs(gain.share) for gain in clear.values())
            changes.append((largest, f"{' and '.join(parts)} ({comparison.test})"))
    return changes


# ------------------------------------------------------------------ a story
@dataclass(frozen=True)
class Story:
    """A decision that was taken by ERM and robustly; all numbers are those of this run."""

    name: str
    """The name in the sentences at the top of the page."""
    title: str
    question: str
    """The decision, and the data for it."""
    code: str
    """The model and its solves, as they were run."""
    comparisons: tuple[Comparison, ...]
    main: int
    """The position of the test that the story is about."""
    radius: str
    """The radius, and how it was chosen."""
    remark: str
    """Facts that the numbers do not show."""
    picture: Callable[[int], Any] = field(repr=False)
    """The figure, given the number of panels side by side."""
    panels: int
    caption: str

    @property
    def sentence(self) -> str:
        return verdict(self.comparisons[self.main])

    def rows(self) -> list[dict[str, Any]]:
        return [row for comparison in self.comparisons for row in comparison.rows()]

    def table(self) -> str:
        """The table for a terminal, in which a test is named once."""
        rows = self.rows()
        for row in rows[1::2]:
            row["test"] = ""
        return text_table(COLUMNS, rows)


def source(*parts: Callable[..., Any]) -> str:
    """The code of some functions as it stands in their file."""
    return "\n\n".join(textwrap.dedent(inspect.getsource(part)).strip() for part in parts)


def run_instances(
    run: Callable[[int], Instance], seeds: Sequence[int], jobs: int, title: str
) -> list[Instance]:
    """An instance for each seed, several at a time, with a progress bar."""
    task = partial(run_quietly, run, seeds)
    collected = collect(
        task, len(seeds), {}, jobs=jobs, progress=True, title=title, unit="instance"
    )
    if collected.interruption is not None:
        raise KeyboardInterrupt(collected.interruption)
    return [collected.results[k] for k in range(len(seeds))]


def run_quietly(run: Callable[[int], Instance], seeds: Sequence[int], k: int) -> Instance:
    with warnings.catch_warnings():
        # The page says that ERM of the quadratic trees is a stationary point.
        warnings.simplefilter("ignore", ConvexityWarning)
        return run(seeds[k])


def hide_frame(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def draw_pairs(axes: Any, comparison: Comparison, measure: str, ylabel: str) -> None:
    """A line from ERM's number to the robust decision's for each instance, means as bars."""
    erm, robust = numbers(comparison.erm, measure), numbers(comparison.robust, measure)
    axes.plot([0, 1], [erm, robust], color="#c9c9c9", lw=0.8, zorder=1)
    for place, values, colour in ((0, erm, ERM_COLOUR), (1, robust, ROBUST_COLOUR)):
        mean = values.mean()
        axes.plot([place] * len(values), values, "o", ms=4, alpha=0.55, color=colour, zorder=2)
        axes.plot([place - 0.16, place + 0.16], [mean] * 2, color=colour, lw=3.5, zorder=3)
        offset, side = (-0.2, "right") if place == 0 else (0.2, "left")
        label = {"ha": side, "va": "center", "color": colour, "weight": "bold"}
        axes.annotate(f"{mean:.2f}", (place + offset, mean), **label)
    axes.set_xticks([0, 1], ["ERM", "robust"])
    axes.set_xlim(-0.75, 1.75)
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel(ylabel)
    hide_frame(axes)
