"""One model from its seed to its verdict, in this process or in one of its own."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from typing import Any

import numpy as np

from random_models.families import FAMILIES
from random_models.trial import (
    BARE,
    NO_REFERENCE,
    OFF,
    OK,
    OVER_TIME,
    UNFINISHED,
    WRONG,
    NoReferenceError,
    Outcome,
    Trial,
    classify_error,
)


def draw_trial(family: str, seed: int) -> Trial:
    """Draw the model of a family and a seed."""
    return FAMILIES[family](np.random.default_rng([seed, sum(map(ord, family))]))


def time_is_over(seconds: float, limit: float) -> bool:
    """Has a solve taken longer than 10% or one second over its limit?"""
    return seconds > limit + max(1.0, 0.1 * limit)


def run_model(family: str, seed: int, limit: float) -> Outcome:
    """Draw, solve and judge one model, in this process."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, expected, refused = "the model is not even stated", None, False
        allowed = limit
        try:
            trial = draw_trial(family, seed)
            text, expected = trial.text, trial.expected_error
            refused, allowed = trial.must_be_refused, trial.solves * limit
            began = time.perf_counter()
            answer = trial.solve(limit)
        except NoReferenceError as error:
            return Outcome(family, seed, NO_REFERENCE, 0.0, text, str(error))
        except Exception as error:
            seconds = time.perf_counter() - began
            kind, reason = classify_error(error, expected, refused)
            if time_is_over(seconds, allowed) and kind != BARE:
                kind = OVER_TIME
            return Outcome(family, seed, kind, seconds, text, reason)
        seconds = time.perf_counter() - began
        if time_is_over(seconds, allowed):
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
