"""The demo's output: stories run one after the other, tables in the terminal and one HTML page."""

from __future__ import annotations

import base64
import io
import struct
import textwrap
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from wdro_model.compat import joblib
from wdro_model.demo import congestion, missing, towns
from wdro_model.demo.story import COLUMNS, ROBUST_COLOUR, Contest, Story, gained_and_lost
from wdro_model.display.figures import ERM_COLOUR, new_figure
from wdro_model.evaluation.attempts import check_jobs

SHOWN = {column.key: column for column in COLUMNS}
NARROW = 700
"""Screens with fewer pixels in a row get the panels of a picture below each other."""
DOTS = 150
"""Of a picture to the inch."""
STYLE = """
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 17px/1.6 Charter, "Bitstream Charter",
  "Source Serif Pro", Cambria, Georgia, serif; -webkit-text-size-adjust: 100%; }
main { max-width: 1040px; margin: 0 auto; padding: 3.2rem 1.4rem 4rem; }
h1, h2, h3, table, figcaption, .tag, footer { font-family: system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 2.1rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 1.4rem; }
h2 { font-size: 1.45rem; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 0.8rem; }
h3 { font-size: 0.8rem; text-transform: uppercase; letter-spacing: 0.07em; color: var(--soft);
  margin: 1.8rem 0 0.4rem; }
p { margin: 0 0 0.9rem; max-width: 44rem; }
.summary { border-left: 4px solid var(--robust); padding: 0.2rem 0 0.2rem 1.2rem;
  margin: 0 0 1.4rem; font-size: 1.12rem; }
.summary p { max-width: 50rem; margin: 0.35rem 0; }
.key { color: var(--soft); font-size: 0.95rem; }
.erm { color: var(--erm); font-weight: 650; } .robust { color: var(--robust); font-weight: 650; }
section { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: 2.2rem; }
.tag { color: var(--soft); font-size: 0.85rem; margin: 0 0 0.3rem; }
.verdict { font-size: 1.08rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; margin: 0.4rem 0 1.2rem; }
th, td { text-align: right; padding: 0.35rem 0.5rem; vertical-align: baseline; font-weight: 400; }
th[scope=row], th:first-child { text-align: left; }
thead th { color: var(--soft); font-size: 0.8rem; border-bottom: 1.5px solid #b9bec4; }
.test th { text-align: left; font-weight: 650; padding-top: 0.9rem; }
.gain th, .gain td { border-bottom: 1px solid var(--line); padding-bottom: 0.6rem; }
.better { color: #14713d; font-weight: 650; } .worse { color: #b3261e; font-weight: 650; }
.error { color: var(--soft); font-size: 0.85em; white-space: nowrap; }
figure { margin: 1.2rem 0 1.4rem; } img { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 0.86rem; line-height: 1.45; margin-top: 0.5rem; }
pre { background: #f6f7f8; border-radius: 8px; padding: 0.9rem 1.1rem; margin: 0.3rem 0 1rem;
  font: 0.8rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: 0.86rem; border-top: 1px solid var(--line);
  margin-top: 3rem; padding-top: 1.2rem; }
"""
PHONE = """
body { font-size: 16px; } main { padding: 1.6rem 1rem 2.5rem; } h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; } table { font-size: 0.8rem; } th, td { padding: 0.3rem 0.2rem; }
.error { display: block; } pre { font-size: 0.68rem; padding: 0.7rem 0.8rem; }
"""
COLOURED = f":root {{ --erm: {ERM_COLOUR}; --robust: {ROBUST_COLOUR}; --ink: #1c1e21; " + (
    "--soft: #5b6168; --line: #e3e5e8; }"
)


def story_page(
    stories: Sequence[Story], summary: Sequence[str], seconds: float, *, quick: bool = False
) -> str:
    """A whole HTML document."""
    told = "\n".join(section(story, number) for number, story in enumerate(stories, start=1))
    gained = "\n".join(f"<p>{lead(text)}</p>" for text in summary)
    size = " Small instances (--quick): the numbers are noisy." if quick else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Three robust decisions</title>
<style>
{COLOURED}{STYLE}@media (max-width: {NARROW}px) {{{PHONE}}}
</style>
</head>
<body>
<main>
<h1>Three decisions, taken twice: what robustness gained, and what it cost</h1>
<div class="summary">
{gained}
</div>
<p class="key"><span class="erm">ERM</span> takes the decision that was best on the data.
<span class="robust">Robust</span> takes the one whose worst expected cost is least, over all
distributions within a Wasserstein ball around the data. Errors are standard errors over instances;
seeds were not chosen.{size}</p>
{told}
<footer>Computed live in {seconds:.0f} seconds. A gain is the share of ERM&#8217;s cost that was
saved; it is coloured where it is more than two standard errors from 0. The worst 5% is the mean of
the worst twentieth of the test scenarios (CVaR). A promise is the optimal value that a method
reported; it is kept where the mean on the test was not above it.</footer>
</main>
</body>
</html>
"""


def lead(text: str) -> str:
    """A sentence whose words before the colon are stressed."""
    head, colon, rest = text.partition(":")
    return f"<strong>{escape(head)}{colon}</strong>{escape(rest)}"


def section(story: Story, number: int) -> str:
    """One story: the question, what happened, the picture, the radius and the model."""
    lost = f"<p>{escape(story.losses)}</p>" if story.losses else ""
    return f"""<section>
<p class="tag">Decision {number}</p>
<h2>{escape(story.title)}</h2>
<p>{escape(story.question)}</p>
<p class="verdict">{escape(story.sentence)}</p>
{lost}
{table(story.contests)}
{picture(story)}
<h3>The radius</h3>
<p>{escape(story.radius)}</p>
<h3>Behind the numbers</h3>
<p>{escape(story.remark)}</p>
<h3>The model</h3>
<pre><code>{escape(story.code)}</code></pre>
</section>"""


def table(contests: Sequence[Contest]) -> str:
    """The tests, each with a row for ERM, one for the robust decision, and the gain."""
    heads = ("promise", "mean", "tail", "kept")
    head = "".join(f'<th scope="col">{escape(SHOWN[key].title)}</th>' for key in heads)
    body = "\n".join(group(contest) for contest in contests)
    return f"<table>\n<thead><tr><th></th>{head}</tr></thead>\n{body}\n</table>"


def group(contest: Contest) -> str:
    lines = [f'<tr class="test"><th colspan="5" scope="colgroup">{escape(contest.test)}</th></tr>']
    for row in contest.rows():
        kind = "erm" if row["method"] == "ERM" else "robust"
        lines.append(
            f'<tr><th scope="row" class="{kind}">{escape(row["method"])}</th>'
            f"<td>{SHOWN['promise'].show(row)}</td>"
            f"<td>{with_error(row, 'mean')}</td><td>{with_error(row, 'tail')}</td>"
            f"<td>{escape(row['kept'])}</td></tr>"
        )
    gains = "".join(f"<td>{gain_cell(contest, what)}</td>" for what in ("mean", "tail"))
    lines.append(f'<tr class="gain"><th scope="row">gain</th><td></td>{gains}<td></td></tr>')
    return "<tbody>\n" + "\n".join(lines) + "\n</tbody>"


def with_error(row: Any, key: str) -> str:
    error = SHOWN[f"{key}_error"].show(row)
    return f'{SHOWN[key].show(row)} <span class="error">± {error}</span>'


def gain_cell(contest: Contest, what: str) -> str:
    gain = contest.gain(what)
    kind = {1: ' class="better"', 0: "", -1: ' class="worse"'}[gain.sign]
    share, _, error = str(gain).partition(" ")
    return f'<span{kind}>{share}</span> <span class="error">{escape(error)}</span>'


# ------------------------------------------------------------------ pictures
def picture(story: Story) -> str:
    """Panels side by side on wide screens, below each other on narrow ones."""
    wide, (width, height) = png(story.picture(story.panels))
    tall, _ = png(story.picture(1))
    return (
        f'<figure>\n<picture>\n<source media="(max-width: {NARROW}px)" srcset="{tall}">\n'
        f'<img src="{wide}" width="{width}" height="{height}" alt="{escape(story.caption)}">\n'
        f"</picture>\n<figcaption>{escape(story.caption)}</figcaption>\n</figure>"
    )


def png(figure: Any) -> tuple[str, tuple[int, int]]:
    """A figure as part of the page, and its size in pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS)
    content = buffer.getvalue()
    width, height = struct.unpack(">II", content[16:24])  # the first fields of a PNG's header
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}", (width, height)


# ------------------------------
# Running the stories one after the other: tables in the terminal, pictures on a page


STORIES: dict[str, Callable[..., Story]] = {
    towns.TITLE: towns.towns_story,
    congestion.TITLE: congestion.congestion_story,
    missing.TITLE: missing.missing_story,
}
TERMS = (
    "ERM (empirical risk minimisation) takes the decision that was best on average over the data, "
    "the robust one that whose expected cost is least in the worst case over a ball of "
    "distributions around the data. What a method promises is that value; the promise is kept "
    "where the mean cost on the test days is no more. Errors are standard errors over instances."
)
WIDTH = 100
"""Of the sentences in the terminal."""


def demo(
    *,
    quick: bool = False,
    output: Path | str = "demo-output",
    seed: int = 0,
    jobs: int | None = None,
) -> None:
    """Tell three decisions: a table for each in the terminal, and all of it on one page.

    quick: small instances, in a few seconds.
    output: the folder of the page; without matplotlib there is none.
    seed: the first of the seeds, which follow each other.
    jobs: instances at the same time, one for each core by default; the numbers are the same.
    """
    began = time.perf_counter()
    count = check_jobs(jobs) or (1 if quick else joblib.cpu_count())
    stories = []
    print(f"{wrapped(TERMS)}\n", flush=True)
    for number, (title, tell) in enumerate(STORIES.items(), start=1):
        print(f"{number}. {title}\n", flush=True)
        story = tell(quick=quick, jobs=count, seed=seed)
        stories.append(story)
        print(f"{story.table()}\n\n{wrapped(story.sentence)}\n", flush=True)
    summary = gained_and_lost({story.name: story.contests for story in stories})
    print(*map(wrapped, summary), sep="\n")
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
    print(f"\nThe whole story, with pictures: {page}")


def wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH)
