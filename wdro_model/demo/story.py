"""A story of the demo: a decision taken by ERM and robustly, and sentences that compare the two."""

from __future__ import annotations

import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from wdro_model.compat import joblib
from wdro_model.display.figures import COLOURS, ERM_COLOUR
from wdro_model.display.tables import Column, text_table
from wdro_model.errors import ConvexityWarning
from wdro_model.evaluation.report import PROMISE_TOLERANCE
from wdro_model.evaluation.statistics import TAIL, conditional_value_at_risk, standard_error

ERM, ROBUST = "ERM", "robust"
CLEAR = 2.0
"""A gain counts as one if it is more than this many standard errors."""


@dataclass(frozen=True)
class Judgement:
    """One decision of one instance on one test."""

    promise: float
    """What its method said that the mean would be, or at most be."""
    mean: float
    tail: float
    """The mean of the worst 5%."""
    deviation: float = 0.0

    @classmethod
    def of(cls, promise: float, losses: np.ndarray) -> Judgement:
        tail = conditional_value_at_risk(losses, TAIL)
        return cls(float(promise), float(losses.mean()), tail, float(losses.std()))

    @property
    def kept(self) -> bool:
        """Was the mean at most what was promised, up to rounding?"""
        return self.mean <= self.promise + PROMISE_TOLERANCE * (abs(self.promise) + self.deviation)


@dataclass(frozen=True)
class Match:
    """The decisions of ERM and of the robust problem on one instance."""

    tests: Mapping[str, Sequence[Judgement]]
    """(ERM, robust) by the name of the test."""
    radius: float
    drawn: Any = None
    """What the picture needs of it."""


@dataclass(frozen=True)
class Gain:
    """What the robust decisions save, as a share of ERM's cost; negative where they cost more."""

    share: float
    error: float
    """Its standard error over the instances; NaN for one instance."""

    @classmethod
    def of(cls, erm: np.ndarray, robust: np.ndarray) -> Gain:
        """The ratio of the means of saving and cost, with the error of a ratio."""
        share = float((erm - robust).mean() / erm.mean())
        residuals = (erm - robust) - share * erm
        return cls(share, standard_error(residuals) / abs(float(erm.mean())))

    @property
    def sign(self) -> int:
        """1 for a gain, -1 for a loss, 0 where the instances do not tell."""
        return int(np.sign(self.share)) if abs(self.share) > CLEAR * self.error else 0

    def __str__(self) -> str:
        error = "one instance" if np.isnan(self.error) else f"± {100 * self.error:.1f}"
        return f"{100 * self.share:+.1f}% {error}"


@dataclass(frozen=True)
class Contest:
    """All instances on one test."""

    test: str
    erm: Sequence[Judgement]
    robust: Sequence[Judgement]

    @classmethod
    def of(cls, test: str, matches: Sequence[Match]) -> Contest:
        pairs = [match.tests[test] for match in matches]
        return cls(test, [erm for erm, _ in pairs], [robust for _, robust in pairs])

    @property
    def size(self) -> int:
        """The number of instances."""
        return len(self.erm)

    def gain(self, what: str) -> Gain:
        """The gain in "mean" or "tail"."""
        return Gain.of(numbers(self.erm, what), numbers(self.robust, what))

    def kept(self, method: str) -> int:
        """In how many instances a promise was kept."""
        return sum(judged.kept for judged in (self.erm if method == ERM else self.robust))

    def rows(self) -> list[dict[str, Any]]:
        """ERM and the robust decision, a line each; the gains stand with the second."""
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
                    "kept": f"{self.kept(method)} of {self.size}",
                }
            )
        rows[1] |= {"mean_gain": str(self.gain("mean")), "tail_gain": str(self.gain("tail"))}
        return rows


def numbers(judged: Sequence[Judgement], what: str) -> np.ndarray:
    """One number of each instance."""
    return np.array([getattr(one, what) for one in judged])


COLUMNS = (
    Column("test", "The data that the decisions are judged on.", "judged on", word=True),
    Column("method", "ERM, or the robust decision.", word=True),
    Column("promise", "What the method said that the mean cost will be.", "promised", ".4g"),
    Column("mean", "The mean cost; means over instances.", form=".4g"),
    Column("mean_error", "Its standard error over instances.", "error", ".2g"),
    Column("tail", "The mean of the worst 5% of the costs.", "worst 5%", ".4g"),
    Column("tail_error", "Its standard error over instances.", "error", ".2g"),
    Column("kept", "In how many instances the mean was at most the promise.", "promise kept"),
    Column("mean_gain", "What the robust decisions save in the mean.", "gain in mean"),
    Column("tail_gain", "What they save in the worst 5%.", "gain in worst 5%"),
)


# ------------------------------
# Sentences that follow the numbers: who was better, and whose promise was kept


MEASURES = {"mean": "mean cost", "tail": "worst 5%"}


def percent(gain: Gain) -> str:
    """The size of a gain or loss, without its sign."""
    error = "" if gain.error != gain.error else f" ± {100 * gain.error:.1f}"
    return f"{abs(100 * gain.share):.1f}%{error}"


def moved(gain: Gain) -> str:
    """What became of a cost when the robust decision was taken in place of ERM's."""
    if gain.error != gain.error:
        return f"{'fell' if gain.share > 0 else 'rose'} by {percent(gain)} in one instance"
    if gain.sign == 0:
        return f"did not change measurably (gain {gain})"
    return f"{'fell' if gain.sign > 0 else 'rose'} by {percent(gain)}"


def verdict(contest: Contest) -> str:
    """One sentence: both costs and both promises."""
    mean, tail = contest.gain("mean"), contest.gain("tail")
    return (
        f"{contest.test[:1].upper()}{contest.test[1:]}: with the robust decision the mean cost "
        f"{moved(mean)} and the worst 5% {moved(tail)}; ERM kept its promise in "
        f"{contest.kept(ERM)} of {contest.size} instances, the robust decision in "
        f"{contest.kept(ROBUST)}."
    )


def where_it_loses(contests: Sequence[Contest]) -> str:
    """The tests on which the robust decision clearly costs more; nothing where there are none."""
    found = []
    for contest in contests:
        gains = {MEASURES[what]: contest.gain(what) for what in MEASURES}
        worse = [f"{percent(g)} more in the {what}" for what, g in gains.items() if g.sign < 0]
        if worse:
            found.append(f"{contest.test} ({', '.join(worse)})")
    return f"Where it loses: {listing(found)}." if found else ""


def gained_and_lost(stories: Mapping[str, Sequence[Contest]]) -> tuple[str, str]:
    """What robustness gained and what it cost, one sentence for each, a clause for each story.

    Of each story the test with the largest clear gain is told, and all tests with a clear loss,
    the largest first; always the mean and the tail.
    """
    gains, losses = [], []
    for name, contests in stories.items():
        better = sorted(clear(contests, +1), key=lambda found: -found[0])
        worse = sorted(clear(contests, -1), key=lambda found: found[0])
        gains += [f"{name}, {text}" for _, text in better[:1]]
        losses += [f"{name}, {', '.join(text for _, text in worse)}"] if worse else []
    return (
        f"What it gained: {listing(gains) or 'nothing that can be measured'}.",
        f"What it cost: {listing(losses) or 'nothing that can be measured'}.",
    )


def clear(contests: Sequence[Contest], sign: int) -> list[tuple[float, str]]:
    """The tests with a clear gain (or loss), its share where it is largest, and a clause."""
    found = []
    for contest in contests:
        gains = {what: contest.gain(what) for what in MEASURES}
        told = {what: gain for what, gain in gains.items() if gain.sign == sign}
        if told:
            change = "less" if sign > 0 else "more"
            parts = [f"{percent(g)} {change} in the {MEASURES[what]}" for what, g in told.items()]
            largest = sign * max(abs(gain.share) for gain in told.values())
            found.append((largest, f"{' and '.join(parts)} ({contest.test})"))
    return found


def listing(texts: Iterable[str]) -> str:
    return "; ".join(texts)


# ------------------------------
# A story: a decision under uncertainty, taken twice, and what came of it


ROBUST_COLOUR = COLOURS[1]


@dataclass(frozen=True)
class Story:
    """What is told of one decision; all numbers are those of this run."""

    name: str
    """In the sentences at the top of the page."""
    title: str
    question: str
    """What is decided, from which data."""
    code: str
    """The model and its solves, as they were run."""
    contests: tuple[Contest, ...]
    main: int
    """The position of the contest that the story is about."""
    radius: str
    """Which radius, and how it was chosen."""
    remark: str
    """What the numbers do not say by themselves."""
    picture: Callable[[int], Any] = field(repr=False)
    """The figure, with so many panels side by side."""
    panels: int
    caption: str

    @property
    def sentence(self) -> str:
        return verdict(self.contests[self.main])

    @property
    def losses(self) -> str:
        """Where the robust decision costs more; empty if nowhere."""
        return where_it_loses(self.contests)

    def rows(self) -> list[dict[str, Any]]:
        return [row for contest in self.contests for row in contest.rows()]

    def table(self) -> str:
        """For a terminal; a test is named once."""
        rows = self.rows()
        for row in rows[1::2]:
            row["test"] = ""
        return text_table(COLUMNS, rows)


def source(*parts: Callable[..., Any]) -> str:
    """The code of some functions as it stands in their file."""
    return "\n\n".join(textwrap.dedent(inspect.getsource(part)).strip() for part in parts)


def played(
    task: Callable[[int], Match], seeds: Sequence[int], jobs: int, title: str
) -> list[Match]:
    """An instance for each seed, several at a time, in the order of the seeds, with a bar."""
    bar = tqdm(
        total=len(seeds), desc=title, unit="instance", file=sys.stderr, leave=False, disable=None
    )
    with bar:
        found = []
        for match in _matches(task, seeds, jobs):
            found.append(match)
            bar.update()
    return found


def _matches(task: Callable[[int], Match], seeds: Sequence[int], jobs: int) -> Iterator[Match]:
    if jobs == 1:
        yield from (_quietly(task, seed) for seed in seeds)
        return
    parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator")
    yield from parallel(joblib.delayed(_quietly)(task, seed) for seed in seeds)


def _quietly(task: Callable[[int], Match], seed: int) -> Match:
    with warnings.catch_warnings():
        # The page says that ERM of the quadratic trees is a stationary point.
        warnings.simplefilter("ignore", ConvexityWarning)
        return task(seed)


def clean(axes: Any) -> None:
    """Axes with what is needed of their frame."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_pairs(axes: Any, erm: Any, robust: Any, ylabel: str) -> None:
    """A line from ERM's number to the robust decision's for each instance, means as bars."""
    for before, after in zip(erm, robust):
        axes.plot([0, 1], [before, after], color="#c9c9c9", lw=0.8, zorder=1)
    for place, values, colour in ((0, erm, ERM_COLOUR), (1, robust, ROBUST_COLOUR)):
        axes.plot([place] * len(values), values, "o", ms=4, alpha=0.55, color=colour, zorder=2)
        axes.plot([place - 0.16, place + 0.16], [values.mean()] * 2, color=colour, lw=3.5, zorder=3)
        axes.annotate(
            f"{values.mean():.2f}",
            (place + (-0.2 if place == 0 else 0.2), values.mean()),
            ha="right" if place == 0 else "left",
            va="center",
            color=colour,
            weight="bold",
        )
    axes.set_xticks([0, 1], ["ERM", "robust"])
    axes.set_xlim(-0.75, 1.75)
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel(ylabel)
    clean(axes)
