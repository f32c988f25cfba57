"""The demo: three stories run one after the other, with tables in the terminal and an HTML page."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from wdro_model.compat import joblib
from wdro_model.demo import congestion, missing, towns
from wdro_model.demo.story import (
    COLUMNS,
    ERM,
    ROBUST_COLOUR,
    Comparison,
    Story,
    gained_and_lost,
    where_it_loses,
)
from wdro_model.display.figures import ERM_COLOUR, embedded_png, new_figure
from wdro_model.evaluation.attempts import check_jobs

STORIES: dict[str, Callable[..., Story]] = {
    towns.TITLE: towns.towns_story,
    congestion.TITLE: congestion.congestion_story,
    missing.TITLE: missing.missing_story,
}
TERMS = (
    "ERM (empirical risk minimisation) takes the decision with the least mean cost on the data, "
    "the robust method the one with the least worst-case mean cost over a ball of distributions "
    "around the data. The optimal value of a method is its promise; the promise is kept where the "
    "mean cost on the test days is no more. Errors are standard errors over instances."
)
SHOWN = {column.key: column for column in COLUMNS}
NARROW = 700
"""Pixels across up to which the panels of a picture stand below each other; as in page.css."""
DOTS_PER_INCH = 150
LINE_WIDTH = 100
"""Characters in a line of the sentences in the terminal."""


def demo(
    *,
    quick: bool = False,
    output: Path | str = "demo-output",
    seed: int = 0,
    jobs: int | None = None,
) -> None:
    """Run the three stories: a table for each in the terminal, and all of them on one page.

    quick: small instances, in a few seconds.
    output: the folder of the page; without matplotlib there is no page.
    seed: the seed of the first instance; the others have the next ones.
    jobs: instances at the same time, one for each core by default; the numbers are the same.
    """
    began = time.perf_counter()
    count = check_jobs(jobs) or (1 if quick else joblib.cpu_count())
    stories = []
    print(f"{wrap_lines(TERMS)}\n", flush=True)
    for number, (title, run_story) in enumerate(STORIES.items(), start=1):
        print(f"{number}. {title}\n", flush=True)
        story = run_story(quick=quick, jobs=count, seed=seed)
        stories.append(story)
        print(f"{story.table()}\n\n{wrap_lines(story.sentence)}\n", flush=True)
    summary = gained_and_lost({story.name: story.comparisons for story in stories})
    print(*map(wrap_lines, summary), sep="\n")
    seconds = time.perf_counter() - began
    try:
        new_figure(1, 1)
    except ImportError as error:
        print(f"\nNo page with the pictures: {error}")
        return
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    page.write_text(story_page(stories, summary, seconds, quick=quick), encoding="utf-8")
    print(f"\nThe page with the pictures: {page}")


def wrap_lines(text: str) -> str:
    return textwrap.fill(text, LINE_WIDTH)


# ------------------------------------------------------------------ the page
def story_page(
    stories: Sequence[Story], summary: Sequence[str], seconds: float, *, quick: bool = False
) -> str:
    """The HTML document of the stories, under the sentences of the summary."""
    sections = "\n".join(section(story, number) for number, story in enumerate(stories, start=1))
    gained = "\n".join(f"<p>{stress_start(text)}</p>" for text in summary)
    size = " Small instances (--quick): the numbers are noisy." if quick else ""
    return read_file("page.html").format(
        erm=ERM_COLOUR,
        robust=ROBUST_COLOUR,
        css=read_file("page.css"),
        gained=gained,
        size=size,
        sections=sections,
        seconds=seconds,
    )


def read_file(name: str) -> str:
    """The text of a file in this folder."""
    return (files("wdro_model.demo") / name).read_text(encoding="utf-8")


def stress_start(text: str) -> str:
    """A sentence whose words before the colon are stressed."""
    head, colon, rest = text.partition(":")
    return f"<strong>{escape(head)}{colon}</strong>{escape(rest)}"


def section(story: Story, number: int) -> str:
    """The section of a story: question, result, picture, radius and model."""
    losses = where_it_loses(story.comparisons)
    lost = f"<p>{escape(losses)}</p>" if losses else ""
    return f"""<section>
<p class="tag">Decision {number}</p>
<h2>{escape(story.title)}</h2>
<p>{escape(story.question)}</p>
<p class="verdict">{escape(story.sentence)}</p>
{lost}
{table(story.comparisons)}
{picture(story)}
<h3>The radius</h3>
<p>{escape(story.radius)}</p>
<h3>Behind the numbers</h3>
<p>{escape(story.remark)}</p>
<h3>The model</h3>
<pre><code>{escape(story.code)}</code></pre>
</section>"""


def table(comparisons: Sequence[Comparison]) -> str:
    """The tests, each with a row for ERM, one for the robust decision, and the gain."""
    heads = ("promise", "mean", "tail", "kept")
    head = "".join(f'<th scope="col">{escape(SHOWN[key].title)}</th>' for key in heads)
    body = "\n".join(comparison_rows(comparison) for comparison in comparisons)
    return f"<table>\n<thead><tr><th></th>{head}</tr></thead>\n{body}\n</table>"


def comparison_rows(comparison: Comparison) -> str:
    lines = [
        f'<tr class="test"><th colspan="5" scope="colgroup">{escape(comparison.test)}</th></tr>'
    ]
    for row in comparison.rows():
        kind = "erm" if row["method"] == ERM else "robust"
        lines.append(
            f'<tr><th scope="row" class="{kind}">{escape(row["method"])}</th>'
            f"<td>{SHOWN['promise'].show(row)}</td>"
            f"<td>{with_error(row, 'mean')}</td><td>{with_error(row, 'tail')}</td>"
            f"<td>{escape(row['kept'])}</td></tr>"
        )
    gains = "".join(f"<td>{gain_cell(comparison, measure)}</td>" for measure in ("mean", "tail"))
    lines.append(f'<tr class="gain"><th scope="row">gain</th><td></td>{gains}<td></td></tr>')
    return "<tbody>\n" + "\n".join(lines) + "\n</tbody>"


def with_error(row: Any, key: str) -> str:
    error = SHOWN[f"{key}_error"].show(row)
    return f'{SHOWN[key].show(row)} <span class="error">± {error}</span>'


def gain_cell(comparison: Comparison, measure: str) -> str:
    gain = comparison.gain(measure)
    kind = {1: ' class="better"', 0: "", -1: ' class="worse"'}[gain.sign]
    share, _, error = str(gain).partition(" ")
    return f'<span{kind}>{share}</span> <span class="error">{escape(error)}</span>'


def picture(story: Story) -> str:
    """Panels side by side on wide screens, below each other on narrow ones."""
    wide, width, height = embedded_png(story.picture(story.panels), DOTS_PER_INCH)
    tall, *_ = embedded_png(story.picture(1), DOTS_PER_INCH)
    return (
        f'<figure>\n<picture>\n<source media="(max-width: {NARROW}px)" srcset="{tall}">\n'
        f'<img src="{wide}" width="{width}" height="{height}" alt="{escape(story.caption)}">\n'
        f"</picture>\n<figcaption>{escape(story.caption)}</figcaption>\n</figure>"
    )
