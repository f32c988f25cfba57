"""The command line: draw, solve and judge models, and print a table of the outcomes."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from random_models.families import FAMILIES
from random_models.running import run_apart
from random_models.trial import (
    BARE,
    FAILURES,
    NO_REFERENCE,
    OFF,
    OK,
    OVER_TIME,
    REFUSED,
    UNFINISHED,
    WRONG,
    Outcome,
)

KINDS = (OK, UNFINISHED, OFF, REFUSED, WRONG, OVER_TIME, BARE, NO_REFERENCE)


def print_table(outcomes: list[Outcome]) -> None:
    """Print the counts of every family, and of all."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for one in outcomes:
        for name in (one.family, "all"):
            rows[name][one.kind] += 1
            seconds[name] += one.seconds
    print(f"\n{'family':<16}{'models':>8}" + "".join(f"{k:>14}" for k in KINDS) + f"{'s':>9}")
    for name in [*(n for n in FAMILIES if n in rows), "all"]:
        counts = "".join(f"{rows[name][kind]:>14}" for kind in KINDS)
        print(f"{name:<16}{rows[name].total():>8}{counts}{seconds[name]:>9.1f}")


def main() -> int:
    """Run the models that were asked for; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="random_models", description=__doc__)
    parser.add_argument("--models", type=int, default=2000, help="how many, over the families")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--family", choices=list(FAMILIES), action="append")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of each solve")
    parser.add_argument("--only-bad", action="store_true", help="print failures alone")
    asked = parser.parse_args()
    names = asked.family or list(FAMILIES)
    tasks = [(names[k % len(names)], asked.seed + k // len(names)) for k in range(asked.models)]
    outcomes = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for one in pool.map(lambda task: run_apart(*task, asked.time_limit), tasks):
            outcomes.append(one)
            if one.kind in (*FAILURES, OFF) or not asked.only_bad:
                print(one, flush=True)
    print_table(outcomes)
    return int(any(one.kind in FAILURES for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
