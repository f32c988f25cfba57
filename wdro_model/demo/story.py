"""A story: a decision under uncertainty, taken twice, and what came of it."""

from __future__ import annotations

import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from wdro_model.deferred import joblib
from wdro_model.demo.contest import COLUMNS, Contest, Match
from wdro_model.demo.wording import verdict, where_it_loses
from wdro_model.errors import ConvexityWarning
from wdro_model.evaluation.drawing import COLOURS, ERM_COLOUR
from wdro_model.evaluation.tables import text_table

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
