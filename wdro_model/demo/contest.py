"""Two decisions on the same scenarios of several instances: gains, losses, promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.evaluation.report import ROUNDING
from wdro_model.evaluation.statistics import TAIL, conditional_value_at_risk, standard_error
from wdro_model.evaluation.tables import Column

ERM, ROBUST = "ERM", "robust"
CLEAR = 2.0
"""A gain counts as one if it is more than this many standard errors."""


@dataclass(frozen=True)
class Judgement:
    """One decision of one instance on one test."""

    promise: float
    """What its method said that the mean would be, or at most be."""
    mean: float
    tail: float
    """The mean of the worst 5%."""
    deviation: float = 0.0

    @classmethod
    def of(cls, promise: float, losses: np.ndarray) -> Judgement:
        tail = conditional_value_at_risk(losses, TAIL)
        return cls(float(promise), float(losses.mean()), tail, float(losses.std()))

    @property
    def kept(self) -> bool:
        """Was the mean at most what was promised, up to rounding?"""
        return self.mean <= self.promise + ROUNDING * (abs(self.promise) + self.deviation)


@dataclass(frozen=True)
class Match:
    """The decisions of ERM and of the robust problem on one instance."""

    tests: Mapping[str, Sequence[Judgement]]
    """(ERM, robust) by the name of the test."""
    radius: float
    drawn: Any = None
    """What the picture needs of it."""


@dataclass(frozen=True)
class Gain:
    """What the robust decisions save, as a share of ERM's cost; negative where they cost more."""

    share: float
    error: float
    """Its standard error over the instances; NaN for one instance."""

    @classmethod
    def of(cls, erm: np.ndarray, robust: np.ndarray) -> Gain:
        """The ratio of the means of saving and cost, with the error of a ratio."""
        share = float((erm - robust).mean() / erm.mean())
        residuals = (erm - robust) - share * erm
        return cls(share, standard_error(residuals) / abs(float(erm.mean())))

    @property
    def sign(self) -> int:
        """1 for a gain, -1 for a loss, 0 where the instances do not tell."""
        return int(np.sign(self.share)) if abs(self.share) > CLEAR * self.error else 0

    def __str__(self) -> str:
        error = "one instance" if np.isnan(self.error) else f"± {100 * self.error:.1f}"
        return f"{100 * self.share:+.1f}% {error}"


@dataclass(frozen=True)
class Contest:
    """All instances on one test."""

    test: str
    erm: Sequence[Judgement]
    robust: Sequence[Judgement]

    @classmethod
    def of(cls, test: str, matches: Sequence[Match]) -> Contest:
        pairs = [match.tests[test] for match in matches]
        return cls(test, [erm for erm, _ in pairs], [robust for _, robust in pairs])

    @property
    def size(self) -> int:
        """The number of instances."""
        return len(self.erm)

    def gain(self, what: str) -> Gain:
        """The gain in "mean" or "tail"."""
        return Gain.of(numbers(self.erm, what), numbers(self.robust, what))

    def kept(self, method: str) -> int:
        """In how many instances a promise was kept."""
        return sum(judged.kept for judged in (self.erm if method == ERM else self.robust))

    def rows(self) -> list[dict[str, Any]]:
        """ERM and the robust decision, a line each; the gains stand with the second."""
        rows: list[dict[str, Any]] = []
        for method, judged in ((ERM, self.erm), (ROBUST, self.robust)):
            mean, tail = numbers(judged, "mean"), numbers(judged, "tail")
            rows.append(
                {
                    "test": self.test,
                    "method": method,
                    "promise": float(numbers(judged, "promise").mean()),
                    "mean": float(mean.mean()),
                    "mean_error": standard_error(mean),
                    "tail": float(tail.mean()),
                    "tail_error": standard_error(tail),
                    "kept": f"{self.kept(method)} of {self.size}",
                }
            )
        rows[1] |= {"mean_gain": str(self.gain("mean")), "tail_gain": str(self.gain("tail"))}
        return rows


def numbers(judged: Sequence[Judgement], what: str) -> np.ndarray:
    """One number of each instance."""
    return np.array([getattr(one, what) for one in judged])


COLUMNS = (
    Column("test", "The data that the decisions are judged on.", "judged on", word=True),
    Column("method", "ERM, or the robust decision.", word=True),
    Column("promise", "What the method said that the mean cost will be.", "promised", ".4g"),
    Column("mean", "The mean cost; means over instances.", form=".4g"),
    Column("mean_error", "Its standard error over instances.", "error", ".2g"),
    Column("tail", "The mean of the worst 5% of the costs.", "worst 5%", ".4g"),
    Column("tail_error", "Its standard error over instances.", "error", ".2g"),
    Column("kept", "In how many instances the mean was at most the promise.", "promise kept"),
    Column("mean_gain", "What the robust decisions save in the mean.", "gain in mean"),
    Column("tail_gain", "What they save in the worst 5%.", "gain in worst 5%"),
)
