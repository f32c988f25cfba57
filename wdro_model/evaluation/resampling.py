"""Promises held against samples that were left out of resamples of the data.

The bootstrap of Mohajerin Esfahani and Kuhn (2018), section 7.2: N samples are drawn with
replacement, about a third of the data is left out, and a promise made on the draw is held against
the mean loss of its decision on what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.tables import Column, Tabular, brief
from wdro_model.evaluation.attempts import FAILED, collect
from wdro_model.evaluation.cross_validation import Fold, RadiusTask, Trial
from wdro_model.evaluation.radius import CHOSEN, default_radii, fold_seeds
from wdro_model.evaluation.report import PROMISE_TOLERANCE
from wdro_model.model import RobustModel
from wdro_model.uncertainty.ambiguity import Assurance

if TYPE_CHECKING:
    from wdro_model.problem import Problem

DEFAULT_RADII = 20
"""Number of positive radii in the default grid."""
COLUMNS = (
    Column("radius", "The radius of the Wasserstein ball."),
    Column("share", "In which share of the resamples the promise was kept.", form=".3g"),
    Column("promise", "The mean promise.", form=".6g"),
    Column("mean", "The mean loss on the samples that were left out.", "left out", ".6g"),
    CHOSEN,
)


@dataclass(frozen=True, eq=False)
class Resampling(Tabular):
    """Promises held against the samples that resamples left out, radius by radius.

    Examples
    --------
    >>> problem = problem.with_samples(np.random.default_rng(0).normal([1, 2], 0.5, size=(9, 2)))
    >>> found = wdro.radius_for(problem, radii=[0.0, 10.0], resamples=4, progress=False)
    >>> found.resampling.kept.shape                         # radii, resamples
    (2, 4)
    """

    radii: np.ndarray
    """(K,), increasing."""
    promised: np.ndarray
    """Promises, (K, B), as losses: minus the values of an objective that is maximised."""
    happened: np.ndarray
    """Mean losses on what was left out, (K, B)."""
    kept: np.ndarray
    """Whether the promise was kept, (K, B) booleans; a solve that failed kept none."""
    confidence: float

    columns = COLUMNS

    @property
    def shares(self) -> np.ndarray:
        """The share of the resamples in which each radius kept its promise, (K,)."""
        return self.kept.mean(axis=1)

    @property
    def index(self) -> int | None:
        """The position of the smallest radius whose share is at least the confidence."""
        enough = np.flatnonzero(self.shares >= self.confidence - 1e-12)
        return int(enough[0]) if enough.size else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each radius."""
        return [
            {
                "radius": float(radius),
                "share": float(self.shares[k]),
                "promise": _mean(self.promised[k]),
                "mean": _mean(self.happened[k]),
                "chosen": k == self.index,
            }
            for k, radius in enumerate(self.radii)
        ]

    @property
    def title(self) -> str:
        return f"promises kept in {self.kept.shape[1]} resamples, {self.confidence:.4g} asked for"

    def __repr__(self) -> str:
        return brief(self, self.title)


def _mean(numbers: np.ndarray) -> float:
    return float(np.nanmean(numbers)) if np.isfinite(numbers).any() else np.nan


def radius_by_bootstrap(
    problem: Problem,
    confidence: float,
    *,
    radii: np.ndarray | None,
    resamples: int,
    jobs: int | None,
    seed: int,
    progress: bool,
    arguments: Mapping[str, Any],
) -> tuple[float, Assurance, tuple[str, ...], Resampling]:
    """The smallest radius whose promise is kept in a share `confidence` of the resamples."""
    model = problem._model
    assert isinstance(model, RobustModel)
    if radii is None:
        order = model.ambiguity.cost.order
        radii = default_radii(model.joint, model.cost, order, DEFAULT_RADII)
    task = RadiusTask(
        problem=problem,
        radii=tuple(map(float, radii)),
        folds=draw_resamples(model.size, resamples, seed),
        seeds=fold_seeds(seed, resamples),
        metric="risk",
        scenarios=None,
        arguments=arguments,
    )
    collected = collect(
        task,
        resamples,
        task.parts(),
        jobs=jobs,
        progress=progress,
        title="radius_for",
        unit="resample",
    )
    results = [collected.results[k].trials for k in sorted(collected.results)]
    table = tabulate_promises(task.radii, results, confidence)
    notes = notes_on_failures(results)
    if collected.interruption is not None:
        notes.append(
            f"{collected.interruption}: {len(results)} of {resamples} resamples are finished"
        )
    index = chosen_index(table, notes)
    if index == 0 and table.radii[0] > 0:
        notes.append("the smallest radius was chosen: a smaller one may do")
    methods = {trials[index].method for trials in results} - {FAILED}
    plain = model.tails is None
    happened = "mean loss" if plain else "risk"
    guarantee = (
        f"in {int(table.kept[index].sum())} of {len(results)} resamples the promise was at least "
        f"the {happened} on the samples left out: an estimate of the probability that it holds, "
        "not a theorem"
    )
    assurance = Assurance(
        confidence,
        "bootstrap",
        guarantee,
        proven=False,
        covers_law=False,
        of="expected loss" if plain else "risk",
        method=methods.pop() if len(methods) == 1 else None,
        cost=model.ambiguity.cost,
    )
    return float(table.radii[index]), assurance, tuple(notes), table


def tabulate_promises(
    radii: tuple[float, ...], results: list[list[Trial]], confidence: float
) -> Resampling:
    """The promises of all resamples at all radii, and whether they were kept."""
    promised = np.array([[trial.promise for trial in trials] for trials in results]).T
    happened = np.array([[trial.score for trial in trials] for trials in results]).T
    room = PROMISE_TOLERANCE * (np.abs(promised) + np.abs(happened))
    kept = happened <= promised + room  # false for NaN
    return Resampling(np.array(radii), promised, happened, kept, confidence)


def notes_on_failures(results: list[list[Trial]]) -> list[str]:
    """A note on solves that failed; a RuntimeError if all did."""
    trials = [trial for resample in results for trial in resample]
    messages = [trial.message for trial in trials if trial.message]
    if not messages:
        return []
    if len(messages) == len(trials):
        raise RuntimeError(
            f"no promise could be made: all {len(trials)} solves failed. {messages[0]}"
        )
    return [f"{len(messages)} solves of {len(trials)} failed and kept no promise: {messages[0]}"]


def chosen_index(table: Resampling, notes: list[str]) -> int:
    """The position of the radius; an error that gives the best share where none has enough."""
    if table.index is not None:
        return table.index
    best = int(np.argmax(table.shares))
    message = (
        f"no radius keeps its promise in {table.confidence:.4g} of the resamples: the largest "
        f"share is {table.shares[best]:.3g}, at radius {table.radii[best]:.4g}, the largest radius "
        f"tried {table.radii[-1]:.4g}; give larger radii=[...]."
    )
    raise ValueError(" ".join([message, *notes]))


def draw_resamples(size: int, count: int, seed: int) -> tuple[Fold, ...]:
    """Resamples of the size of the data, with replacement, and the samples each leaves out."""
    rng = np.random.default_rng(seed)
    folds: list[Fold] = []
    while len(folds) < count:
        rows = np.sort(rng.integers(0, size, size))
        rest = np.setdiff1d(np.arange(size), rows)
        if rest.size:
            folds.append(Fold(rows, rest))
    return tuple(folds)
