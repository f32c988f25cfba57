"""Random smoothed models against independent quadrature: what is right, wrong, short or slow.

    python benchmarks battery [--models 2000] [--start-seed 0] [--dimension 3] [--solves 100]

Fixed decisions in one or two uncertain coordinates; with `--dimension` in as many: sums over
the coordinates and losses of one affine form, whose integrals fall apart. `--solves` models with a
free decision, whose minimum is searched by SciPy. The seeds of the tests are the first ones. Prints
outcomes and seconds for each strategy, and every model that is not right.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import wdro_model as wdro
from tests.references.battery import (
    RIGHT,
    Model,
    described,
    draw,
    solved,
    truth,
    verdict,
)
from tests.references.battery_solves import draw_free, judged
from tests.references.simplex_mesh import Unresolved

REFUSED, CRASHED, ASIDE, SLOW = "refused", "crashed", "no reference", "slow"
LIMIT = 30.0


class Table:
    """Outcomes and seconds by strategy."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.listed: list[tuple[str, str]] = []

    def add(self, strategy: str, outcome: str, seconds: float | None, text: str) -> None:
        self.outcomes[strategy][outcome] += 1
        if seconds is not None:
            self.seconds[strategy].append(seconds)
            if seconds > LIMIT:
                self.outcomes[strategy][SLOW] += 1
        if outcome not in (RIGHT, REFUSED) or (seconds or 0) > LIMIT:
            self.listed.append((outcome, text))
            print(f"[{outcome}] {text}", flush=True)

    def __str__(self) -> str:
        columns = sorted({name for row in self.outcomes.values() for name in row})
        width = max(12, *(len(name) for name in columns)) + 2
        lines = [
            f"{'strategy':<22}" + "".join(f"{c:>{width}}" for c in columns) + "  median s   max s"
        ]
        for strategy in sorted(self.outcomes):
            row, times = self.outcomes[strategy], self.seconds[strategy]
            line = f"{strategy:<22}" + "".join(f"{row[c]:>{width}}" for c in columns)
            if times:
                line += f"{np.median(times):10.2f}{np.max(times):8.1f}"
            lines.append(line)
        total = sum(self.outcomes.values(), Counter())
        lines.append(f"{'all':<22}" + "".join(f"{total[c]:>{width}}" for c in columns))
        return "\n".join(lines)


def fixed(model: Model, table: Table) -> None:
    """One model with a fixed decision."""
    try:
        answer = solved(model, LIMIT)
    except wdro.UnboundedError as error:
        expected = model.outgrows()
        table.add("-", REFUSED if expected else CRASHED, None, f"{model.name}\n  refused: {error}")
        return
    except Exception as error:
        where = traceback.format_exc(limit=-2)
        table.add("-", CRASHED, None, f"{model.name}\n  {type(error).__name__}: {error}\n{where}")
        return
    try:
        true = truth(model, answer)
    except Unresolved as error:
        table.add(answer.integration, ASIDE, answer.seconds, f"{model.name}: {error}")
        return
    text = described(model, answer, true)
    table.add(answer.integration, verdict(answer, true), answer.seconds, text)


def free(seed: int, table: Table) -> None:
    """One model with a free decision."""
    model = draw_free(seed)
    try:
        found = judged(model, long=True, limit=LIMIT)
    except Unresolved as error:
        table.add("-", ASIDE, None, f"{model.name}: {error}")
        return
    except Exception as error:
        where = traceback.format_exc(limit=-2)
        table.add("-", CRASHED, None, f"{model.name}\n  {type(error).__name__}: {error}\n{where}")
        return
    table.add(found.answer.integration, found.outcome, found.answer.seconds, str(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--dimension", type=int, default=None)
    parser.add_argument("--solves", type=int, default=0)
    asked = parser.parse_args()
    seeds = range(asked.start_seed, asked.start_seed + asked.models)
    began = time.perf_counter()
    table = Table()
    for seed in seeds:
        fixed(draw(seed, asked.dimension), table)
    if asked.models:
        print(f"\n{asked.models} models, decision fixed, {time.perf_counter() - began:.0f} s")
        print(table)
    began, table = time.perf_counter(), Table()
    for seed in range(asked.start_seed, asked.start_seed + asked.solves):
        free(seed, table)
    if asked.solves:
        print(f"\n{asked.solves} models, decision free, {time.perf_counter() - began:.0f} s")
        print(table)


if __name__ == "__main__":
    main()
