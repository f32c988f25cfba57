"""Running the stories one after the other: tables in the terminal, pictures on a page."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from wdro_model.deferred import joblib
from wdro_model.demo import congestion, missing, towns
from wdro_model.demo.story import Story
from wdro_model.demo.story_page import story_page
from wdro_model.demo.wording import gained_and_lost
from wdro_model.evaluation.drawing import new_figure
from wdro_model.evaluation.parallel import check_jobs

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
