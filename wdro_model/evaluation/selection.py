"""The outcome of a radius selection: a table, a frame, a picture, and the problem at the choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.factual import brief
from wdro_model.display.html_tables import Column
from wdro_model.evaluation.attempts import NOT_RUN
from wdro_model.evaluation.tables import Tabular
from wdro_model.solve.certify import Solution

if TYPE_CHECKING:
    from wdro_model.problem import Problem

COLUMNS = (
    Column("radius", "The radius of the Wasserstein ball."),
    Column("mean", "The mean of the folds' scores.", form=".6g"),
    Column("standard_error", "The standard error of the mean.", form=".3g"),
    Column("status", "How the solves ended.", word=True),
    Column("mark", "Which radius was chosen.", heading=" ", word=True),
)


@dataclass(frozen=True, eq=False)
class RadiusSelection(Tabular):
    """Scores of K radii on F folds, and the radius chosen by them.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> x = cp.Variable(3, nonneg=True)
    >>> returns = wdro.UncertainParameter(3, samples=rng.normal(0.05, 0.3, size=(12, 3)))
    >>> ball = wdro.WassersteinBall(0.01)
    >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
    >>> found = wdro.select_radius(problem, radii=[0.0, 0.1], folds=3, progress=False)
    >>> found.scores.shape, found.complete                  # radii, folds
    ((2, 3), True)
    """

    radii: np.ndarray
    """(K,), increasing."""
    scores: np.ndarray
    """The metric on what each fold held out, (K, F); NaN where a solve failed or was not run."""
    errors: np.ndarray
    """Standard errors over the scenarios within each fold, (K, F); NaN for a user's metric."""
    statuses: np.ndarray
    """Of the solves, (K, F) strings; "failed" and "not run" have no score."""
    fold_seconds: np.ndarray
    """The time that each fold took where it ran, (F,); NaN where it did not."""
    messages: tuple[str, ...]
    """Why solves failed, each reason once."""
    metric: str
    rule: str
    seconds: float
    """From call to return, the last solve included."""
    complete: bool
    """Did every fold run to its end?"""
    problem: Problem
    """The user's problem at the chosen radius, solved on all samples unless refit=False, the run
    was interrupted, or the solve failed."""
    notes: tuple[str, ...] = ()
    fold_probabilities: np.ndarray | None = None
    """Of the samples that each fold judges on, (F,), where samples have probabilities: folds count
    by them in the mean. None where all folds count the same."""

    columns = COLUMNS

    def __repr__(self) -> str:
        return brief(self, self.title)

    @property
    def solution(self) -> Solution | None:
        """The decision at the chosen radius, fitted on all samples; None if that was not done."""
        return self.problem.solution

    @property
    def radius(self) -> float:
        """The chosen radius."""
        return float(self.radii[self.index])

    @cached_property
    def index(self) -> int:
        """The position of the chosen radius."""
        return choose(self.rule, self.mean, self.standard_error, self.counts)

    @cached_property
    def counts(self) -> np.ndarray:
        """On how many folds each radius has a score, (K,)."""
        return np.isfinite(self.scores).sum(axis=1)

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean score over the folds, (K,)."""
        if self.fold_probabilities is not None:
            known = np.where(np.isfinite(self.scores), self.scores, 0.0)
            total = (self._fold_shares * known).sum(axis=1)
            return np.where(self.counts > 0, total, np.nan)
        total = np.where(np.isfinite(self.scores), self.scores, 0.0).sum(axis=1)
        return np.where(self.counts > 0, total / np.maximum(self.counts, 1), np.nan)

    @cached_property
    def standard_error(self) -> np.ndarray:
        """Of the mean, (K,): from the spread of the folds, or within the fold if there is one."""
        scored, count = np.isfinite(self.scores), np.maximum(self.counts, 2)
        squares = np.where(scored, (self.scores - self.mean[:, None]) ** 2, 0.0)
        between = np.sqrt(squares.sum(axis=1) / (count - 1) / count)
        if self.fold_probabilities is not None:
            shares = self._fold_shares
            square = np.minimum((shares**2).sum(axis=1), 1.0 - 1e-12)
            between = np.sqrt((shares * squares).sum(axis=1) * square / (1.0 - square))
        within = np.where(scored, self.errors, 0.0).sum(axis=1)
        return np.select([self.counts > 1, self.counts == 1], [between, within], np.nan)

    @cached_property
    def _fold_shares(self) -> np.ndarray:
        """What each fold with a score counts in the mean of a radius, (K, F)."""
        assert self.fold_probabilities is not None
        counted = np.where(np.isfinite(self.scores), self.fold_probabilities, 0.0)
        return counted / np.maximum(counted.sum(axis=1, keepdims=True), 1e-300)

    @property
    def erm(self) -> float | None:
        """The mean score of radius 0; None if it is not among the radii."""
        at = np.flatnonzero(self.radii == 0)
        return float(self.mean[at[0]]) if at.size else None

    def rows(self) -> list[dict[str, Any]]:
        """One row for each radius."""
        return [
            {
                "radius": float(radius),
                "mean": float(self.mean[k]),
                "standard_error": float(self.standard_error[k]),
                "chosen": k == self.index,
                "status": self._status(k),
                **{f"fold {j}": float(score) for j, score in enumerate(self.scores[k])},
            }
            for k, radius in enumerate(self.radii)
        ]

    def plot(self, path: Any = None, *, ax: Any = None) -> Any:
        """Scores against radii with their standard errors; saved if a path is given.

        Returns the figure, which notebooks show, or `ax`, Matplotlib's axes to draw on.

        Examples
        --------
        >>> import cvxpy as cp, numpy as np, wdro_model as wdro
        >>> rng = np.random.default_rng(0)
        >>> x = cp.Variable(3, nonneg=True)
        >>> returns = wdro.UncertainParameter(3, samples=rng.normal(0.05, 0.3, size=(12, 3)))
        >>> ball = wdro.WassersteinBall(0.01)
        >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
        >>> found = wdro.select_radius(problem, radii=[0.0, 0.01, 0.1], folds=3, progress=False)
        >>> figure = found.plot()                               # or found.plot("radii.png")
        """
        from wdro_model.evaluation.radius_drawing import plot_radii

        return plot_radii(self, path, ax=ax)

    def _shown(self) -> list[dict[str, Any]]:
        return [{**row, "mark": "<- chosen" if row["chosen"] else ""} for row in self.rows()]

    def _under_table(self) -> list[str]:
        return [f"note: {note}" for note in self.notes]

    @property
    def headline(self) -> str:
        """What was chosen, and by what, for a picture."""
        by = "smallest mean" if self.rule == "min" else self.rule.replace("_", " ")
        folds = "1 fold" if self.scores.shape[1] == 1 else f"{self.scores.shape[1]} folds"
        return f"radius {self.radius:.3g} has been chosen ({by}, {folds})"

    @property
    def title(self) -> str:
        done = int((self.statuses[0] != NOT_RUN).sum())
        folds = "1 fold" if self.scores.shape[1] == 1 else f"{self.scores.shape[1]} folds"
        finished = "" if self.complete else f" ({done} finished)"
        return f"radius {self.radius:.5g} by {self.rule!r}: {self.metric} over {folds}{finished}"

    def _status(self, k: int) -> str:
        """The status of all folds, with counts where they differ."""
        found = Counter(str(status) for status in self.statuses[k] if status != NOT_RUN)
        if len(found) == 1:
            return next(iter(found))
        return ", ".join(f"{count} {status}" for status, count in found.most_common())


# ------------------------------------------------------------------ rules
def smallest_mean(mean: np.ndarray, standard_error: np.ndarray) -> int:
    """The radius with the smallest mean score; the smaller one of two that are equal."""
    return int(np.nanargmin(mean))


def one_standard_error(mean: np.ndarray, standard_error: np.ndarray) -> int:
    """The largest radius whose mean score is within one standard error of the smallest."""
    best = int(np.nanargmin(mean))
    margin = standard_error[best] if np.isfinite(standard_error[best]) else 0.0
    return int(np.flatnonzero(mean <= mean[best] + margin)[-1])


RULES: dict[str, Callable[[np.ndarray, np.ndarray], int]] = {
    "min": smallest_mean,
    "one_standard_error": one_standard_error,
}


def choose(rule: str, mean: np.ndarray, standard_error: np.ndarray, counts: np.ndarray) -> int:
    """The chosen radius, among those that have a score on the most folds.

    Folds differ in difficulty: a mean over fewer of them is no match for a mean over all.
    """
    eligible = counts == counts.max()
    return RULES[rule](np.where(eligible, mean, np.nan), standard_error)
