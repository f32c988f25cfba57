"""Promises held against samples that were left out of resamples of the data.

The bootstrap of Mohajerin Esfahani and Kuhn (2018), section 7.2: N samples are drawn with
replacement, about a third of the data is left out, and a promise made on the draw is held against
the mean loss of its decision on what was left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.tables import Column, Tabular, brief
from wdro_model.evaluation.attempts import FAILED, collect, warm_arguments
from wdro_model.evaluation.cross_validation import METRICS, Fold, RadiusTask
from wdro_model.evaluation.radius import SMALLEST, fold_seeds, spread
from wdro_model.evaluation.report import PROMISE_TOLERANCE
from wdro_model.model import RobustModel
from wdro_model.solve.certify import Solution
from wdro_model.uncertainty.ambiguity import Assurance

if TYPE_CHECKING:
    from wdro_model.problem import Problem

COUNT = 20
"""Positive radii of the default grid."""
COLUMNS = (
    Column("radius", "The radius of the Wasserstein ball."),
    Column("share", "In which share of the resamples the promise was kept.", form=".3g"),
    Column("promise", "The mean promise.", form=".6g"),
    Column("mean", "The mean loss on the samples that were left out.", "left out", ".6g"),
    Column("mark", "Which radius was chosen.", heading=" ", word=True),
)


@dataclass(frozen=True)
class Promises:
    """What one resample gave at each radius."""

    promised: np.ndarray
    """(K,); NaN where the solve failed. Small is good, as for losses."""
    happened: np.ndarray
    """The mean loss on what was left out, (K,)."""
    kept: np.ndarray
    """Was the mean loss at most what was promised? (K,) booleans."""
    methods: tuple[str, ...]
    """The method of each solve; "failed" where there is no decision."""
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class ResampleTask(RadiusTask):
    """The task of every resample: fit at each radius, and hold the promise against the rest."""

    def __call__(self, index: int) -> Any:
        began = time.perf_counter()
        feasible = self.problem._model.feasible
        with feasible.holding():
            for variable in feasible.layout.variables:
                variable.save_value(None)
            fold = self.folds[index]
            assert fold is not None
            found = self._promises(fold, self.seeds[index])
        return replace(found, seconds=time.perf_counter() - began)

    def _promises(self, fold: Fold, seed: int) -> Promises:
        count = len(self.radii)
        promised, happened = np.full(count, np.nan), np.full(count, np.nan)
        kept, methods, message = np.zeros(count, dtype=bool), [FAILED] * count, ""
        sign = self.problem._model.sign
        fitted = self.problem.with_samples(rows=fold.train)
        fitted._warned = True  # of a loss that is not convex: the solve on all samples says so
        arguments = {**self.arguments, "seed": seed, "progress": False}
        last: Solution | None = None
        for k, radius in enumerate(self.radii):
            fitted = fitted.with_radius(radius)
            trial = self._trial(fitted, fold, warm_arguments(fitted, arguments, last))
            solution = fitted.solution
            if solution is None or trial.message:
                message = message or trial.message
                continue
            last, methods[k] = solution, solution.method
            promised[k], happened[k] = sign * solution.value, trial.score
            kept[k] = trial.score <= promised[k] + PROMISE_TOLERANCE * (
                abs(promised[k]) + abs(trial.score)
            )
        return Promises(promised, happened, kept, tuple(methods), message)


@dataclass(frozen=True, eq=False)
class Resampling(Tabular):
    """How often promises were kept on what resamples left out, radius by radius.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = cp.Variable(3, nonneg=True)
    >>> returns = wdro.UncertainParameter(3, samples=rng.normal(0.05, 0.3, size=(12, 3)))
    >>> ball = wdro.WassersteinBall(0.01)
    >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
    >>> found = wdro.radius_for(problem, radii=[0.0, 0.1, 1.0], resamples=4, progress=False)
    >>> found.resampling.kept.shape                         # radii, resamples
    (3, 4)
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
        """In which share of the resamples each radius kept its promise, (K,)."""
        return self.kept.mean(axis=1)

    @property
    def index(self) -> int | None:
        """The position of the smallest radius whose share is at least the confidence."""
        enough = np.flatnonzero(self.shares >= self.confidence - 1e-12)
        return int(enough[0]) if enough.size else None

    def rows(self) -> list[dict[str, Any]]:
        """One row for each radius."""
        with np.errstate(invalid="ignore"):
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

    def _shown(self) -> list[dict[str, Any]]:
        return [{**row, "mark": "<- chosen" if row["chosen"] else ""} for row in self.rows()]

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
    grid = resampling_radii(model) if radii is None else radii
    task = ResampleTask(
        problem=problem,
        radii=tuple(map(float, grid)),
        folds=drawn(model.size, resamples, seed),
        seeds=fold_seeds(seed, resamples),
        metric=next(iter(METRICS)),  # the objective itself
        scenarios=None,
        arguments=arguments,
    )
    found = collect(
        task,
        resamples,
        task.parts(),
        jobs=jobs,
        progress=progress,
        title="radius_for",
        unit="resample",
    )
    results: list[Promises] = [found.results[k] for k in sorted(found.results)]
    table = Resampling(
        radii=np.array(task.radii),
        promised=np.array([r.promised for r in results]).T,
        happened=np.array([r.happened for r in results]).T,
        kept=np.array([r.kept for r in results]).T,
        confidence=confidence,
    )
    notes = failures(table, results)
    if found.interruption is not None:
        notes.append(f"{found.interruption}: {len(results)} of {resamples} resamples are finished")
    index = chosen(table, notes)
    if index == 0 and table.radii[0] > 0:
        notes.append("the smallest radius was chosen: a smaller one may do")
    methods = {r.methods[index] for r in results} - {FAILED}
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


def failures(table: Resampling, results: list[Promises]) -> list[str]:
    """What there is to say of solves that failed; an error if all did."""
    failed = sum(r.methods.count(FAILED) for r in results)
    message = next((r.message for r in results if r.message), "")
    if failed == table.kept.size:
        raise RuntimeError(f"no promise could be made: all {failed} solves failed. {message}")
    if not failed:
        return []
    return [f"{failed} solves of {table.kept.size} failed and kept no promise: {message}"]


def chosen(table: Resampling, notes: list[str]) -> int:
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


def drawn(size: int, count: int, seed: int) -> tuple[Fold, ...]:
    """Resamples of the size of the data, with replacement, and what each of them leaves out."""
    rng = np.random.default_rng(seed)
    found: list[Fold] = []
    while len(found) < count:
        rows = np.sort(rng.integers(0, size, size))
        rest = np.setdiff1d(np.arange(size), rows)
        if rest.size:
            found.append(Fold(rows, rest))
    return tuple(found)


def resampling_radii(model: RobustModel) -> np.ndarray:
    """0 and 20 radii, evenly spaced in their logarithm, from 0.01 S N^(-p/2) to S.

    S and p are those of `wdro_model.evaluation.radius.default_radii`.
    """
    scale = spread(model.joint, model.cost)
    order = model.ambiguity.cost.order
    first = SMALLEST * scale * model.size ** (-(2.0 if order is None else order) / 2)
    return np.concatenate([[0.0], np.geomspace(first, scale, COUNT)])
