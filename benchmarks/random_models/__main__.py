"""The command line: draw, solve and judge models, and print a table of the outcomes."""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import multiprocessing
import sys
import time
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from random_models.families import FAMILIES
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
    NoReferenceError,
    Outcome,
    classify_error,
)

KINDS = (OK, UNFINISHED, OFF, REFUSED, WRONG, OVER_TIME, BARE, NO_REFERENCE)
FAMILY_NUMBERS = {name: k for k, name in enumerate(FAMILIES)}


def time_is_over(seconds: float, limit: float) -> bool:
    """Has a solve taken longer than 10% or one second over its limit?"""
    return seconds > limit + max(1.0, 0.1 * limit)


def run_model(family: str, seed: int, limit: float) -> Outcome:
    """Draw, solve and judge one model, in this process."""
    import numpy as np

    rng = np.random.default_rng([seed, sum(map(ord, family))])
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, expected, refused = "the model is not even stated", None, False
        try:
            trial = FAMILIES[family](rng)
            text, expected = trial.text, trial.expected_error
            refused = trial.must_be_refused
            began = time.perf_counter()
            answer = trial.solve(limit)
        except NoReferenceError as error:
            return Outcome(family, seed, NO_REFERENCE, 0.0, text, str(error))
        except Exception as error:
            seconds = time.perf_counter() - began
            kind, reason = classify_error(error, expected, refused)
            if time_is_over(seconds, limit) and kind != BARE:
                kind = OVER_TIME
            return Outcome(family, seed, kind, seconds, text, reason)
        seconds = time.perf_counter() - began
        if time_is_over(seconds, answer.more.get("solves", 1) * limit):
            return Outcome(family, seed, OVER_TIME, seconds, text, f"{seconds:.1f} s")
        if expected is not None and answer.is_optimal:
            reason = f"{expected.__name__} expected, optimal at {answer.value:.6g}"
            return Outcome(family, seed, WRONG, seconds, text, reason)
        try:
            wrong = trial.judge(answer)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Outcome(family, seed, NO_REFERENCE, seconds, text, reason)
    if wrong:
        reason = f"status {answer.status}: " + "; ".join(wrong)
        claimed = any(one.is_optimal for one in answer.more.get("answers", [answer]))
        return Outcome(family, seed, WRONG if claimed else OFF, seconds, text, reason)
    if not answer.is_optimal:
        return Outcome(family, seed, UNFINISHED, seconds, text, f"status {answer.status}")
    return Outcome(family, seed, OK, seconds, text)


def send_outcome(pipe: Any, family: str, seed: int, limit: float) -> None:
    """Run a model in a process of its own."""
    pipe.send(run_model(family, seed, limit))
    pipe.close()


def run_apart(family: str, seed: int, limit: float) -> Outcome:
    """Run a model in a child process, which is ended when it takes far too long."""
    patience = 3 * limit + 60
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=send_outcome, args=(sender, family, seed, limit), daemon=True)
    began = time.perf_counter()
    child.start()
    sender.close()
    try:
        if not receiver.poll(patience):
            seconds = time.perf_counter() - began
            return Outcome(family, seed, OVER_TIME, seconds, "?", f"no end after {seconds:.0f} s")
        return receiver.recv()
    except EOFError:
        child.join()
        seconds = time.perf_counter() - began
        reason = f"the process died with exit code {child.exitcode}"
        return Outcome(family, seed, BARE, seconds, "?", reason)
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        receiver.close()


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
