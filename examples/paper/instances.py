"""Running the instances of an experiment: in parallel, each once, with a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import joblib
from tqdm import tqdm

from experiment import Experiment
from records import Records


def finished(
    experiment: Experiment, records: Records, *, jobs: int | None = None, progress: bool = True
) -> dict[str, dict[str, Any]]:
    """The records of all instances, in order; those that are missing are computed first.

    An interrupt from the keyboard is passed on: what is finished is on disk by then.
    """
    keys = experiment.keys()
    missing = [key for key in keys if records.load(key) is None]
    bar = tqdm(
        total=len(keys),
        initial=len(keys) - len(missing),
        desc=experiment.name,
        unit="instance",
        file=sys.stderr,
        disable=None if progress else True,
    )
    with bar:
        for _ in _computed(experiment, records, missing, jobs):
            bar.update()
    found = {key: records.load(key) for key in keys}
    return {key: record for key, record in found.items() if record is not None}


def _computed(
    experiment: Experiment, records: Records, keys: Sequence[str], jobs: int | None
) -> Iterator[str]:
    """Keys as they finish, each with its record written."""
    if len(keys) <= 1 or joblib.effective_n_jobs(jobs) == 1:
        yield from (compute(experiment, records, key) for key in keys)
        return
    parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
    yield from parallel(joblib.delayed(compute)(experiment, records, key) for key in keys)


def compute(experiment: Experiment, records: Records, key: str) -> str:
    """Run one instance and write its record."""
    records.save(key, experiment.run(key))
    return key
