"""Losses of a decision, their statistics, and the gain of one decision over another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.display.tables import Column, Facts, Tabular, brief, facts_html, facts_lines, words
from wdro_model.loss.atoms.risk import ChanceConstraint, is_uncertain
from wdro_model.model import Model, RobustModel
from wdro_model.uncertainty.joint import scenario_batches
from wdro_model.uncertainty.samples import SampleShares

METHOD = Column("method", "The method, or the label it was given.", word=True)
SCENARIOS = Column("scenarios", "The data that decisions are judged on.", word=True)
TRAINING = "training"
"""The name of the samples of the problem among the sets of scenarios."""
BATCH_ENTRIES = 2**24
"""Numbers of scenario data that are held at once (128 MiB)."""
TAIL = 0.95
"""The level of CVaR: the mean of the worst 5% of the losses."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The levels of the quantiles in tables."""
CONSTRAINT_TOLERANCE = 1e-6
"""Excess up to which a constraint holds, relative to limits above 1."""
DIFFERENCE_TOLERANCE = 1e-7
"""Fraction of the largest loss under which a difference is a solver's rounding."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The losses of a decision on a set of scenarios, with the sign of the user's objective."""

    losses: np.ndarray
    """(n,); a risk measure in the objective is replaced by the loss that it measures."""
    contributions: np.ndarray | None = None
    """The contribution of each scenario to the objective, which is their mean, (n,). None stands
    for the losses themselves, where the objective has no CVaR."""
    measures: str = ""
    """The CVaRs of the objective."""
    maximise: bool = False
    probabilities: np.ndarray | None = None
    """Probabilities of the scenarios, (n,); None where they are equal."""

    @property
    def risk(self) -> float:
        """The objective on the scenarios."""
        return float(mean_of(self.scores, self.probabilities))

    @property
    def scores(self) -> np.ndarray:
        """Numbers (n,) whose mean is the objective."""
        return self.losses if self.contributions is None else self.contributions

    @cached_property
    def statistics(self) -> LossStatistics:
        """The statistics of the losses, with the risk and its standard error."""
        statistics = LossStatistics.of(self.losses, self.maximise, self.probabilities)
        if self.contributions is None:
            return statistics
        error = standard_error(self.contributions, self.probabilities)
        return replace(statistics, risk=self.risk, risk_error=error, measures=self.measures)


def outcome_of(model: Model, x: np.ndarray, scenarios: Any = None) -> Outcome:
    """The losses of the flat decision x on scenarios: {parameter: array}, an array, or the samples.

    Scenarios are evaluated in blocks, so that they need not fit into memory together.
    """
    if not isinstance(model, RobustModel):
        rows: Iterator[np.ndarray] = iter([model.rows])
    else:
        size = max(1, BATCH_ENTRIES // max(1, model.joint.dimension))
        rows = model.joint.blocks(size)
        if scenarios is not None:
            given = model.scenarios_of(model.joint, scenarios)
            rows = scenario_batches(model.joint, given, size, reuse=True)
    probabilities = model.shares.probabilities if scenarios is None else None
    tails, layout, joint = model.tails, model.loss.layout, model.loss.joint
    if tails is None:
        losses = model.sign * np.concatenate([model.loss.values(x, block) for block in rows])
        return Outcome(losses, maximise=model.maximise, probabilities=probabilities)
    parts = np.concatenate([tails.losses(layout, joint, x, block) for block in rows])
    return Outcome(
        model.sign * parts[:, 0],
        model.sign * tails.contributions(parts, probabilities),
        tails.describe(),
        model.maximise,
        probabilities,
    )


def outcomes_by_set(
    model: Model, decision: Mapping[Any, np.ndarray], sets: Mapping[str, Any]
) -> dict[str, Outcome]:
    """The losses of a decision on the samples and on each set of scenarios, by its name."""
    x = model.feasible.layout.join(decision)
    every = {TRAINING: None, **sets}
    return {name: outcome_of(model, x, scenarios) for name, scenarios in every.items()}


@dataclass(frozen=True)
class ConstraintValue:
    """The value of an uncertain constraint on some scenarios.

    For a vector, the entry that exceeds its limit most; for a probability, the share of scenarios
    in which the event occurs.

    Examples
    --------
    >>> stock = cp.Variable(nonneg=True, name="stock")
    >>> demand = wdro.UncertainParameter(name="demand", samples=[70.0, 90.0, 140.0])
    >>> short = wdro.expectation(cp.pos(demand - stock)) <= 10
    >>> problem = wdro.Problem(cp.Minimize(stock), [short])
    >>> value = problem.solve()
    >>> [constraint] = problem.evaluate([100.0, 150.0]).constraints
    >>> round(constraint.value, 1), constraint.limit, constraint.holds
    (20.0, 10.0, False)
    """

    name: str
    """The constraint as it was written."""
    value: float
    """The side with the risk measures."""
    limit: float
    """The other side, where it is a number; 0 where it is not, the value being left minus right."""
    excess: float
    """The violation; at most 0 where it holds."""
    holds: bool

    def __str__(self) -> str:
        verdict = "holds" if self.holds else f"violated by {self.excess:.3g}"
        return f"{self.name}: {self.value:.6g}, limit {self.limit:.6g}, {verdict}"


def constraint_values(
    model: Model, x: np.ndarray, scenarios: Any = None
) -> tuple[ConstraintValue, ...]:
    """The uncertain constraints of a model on scenarios, or on the samples."""
    values = model.feasible.layout.split(x)
    return tuple(_constraint_value(model, u, values, scenarios) for u in model.feasible.uncertain)


def _constraint_value(model: Model, uncertain: Any, values: Any, scenarios: Any) -> ConstraintValue:
    outcomes = []
    for row in uncertain.rows:
        given = scenarios
        if isinstance(row, RobustModel) and scenarios is not None:
            given = model.scenarios_of(row.joint, scenarios)
        outcomes.append(outcome_of(row, row.feasible.layout.join(values), given))
    if isinstance(uncertain.original, ChanceConstraint):
        level, event = uncertain.original.level, outcomes[0]
        occurs = (event.losses <= CONSTRAINT_TOLERANCE).astype(float)
        share = float(mean_of(occurs, event.probabilities))
        return ConstraintValue(uncertain.name, share, level, level - share, share >= level)
    risks = [outcome.risk for outcome in outcomes]
    worst = int(np.argmax(risks))
    excess, value, limit = float(risks[worst]), float(risks[worst]), 0.0
    for side, sign in zip(uncertain.original.args, (-1.0, 1.0)):
        if side.is_constant() and not is_uncertain(side):
            numbers = np.ravel(np.broadcast_to(side.value, uncertain.original.shape), order="F")
            limit = float(numbers[worst])
            value = limit + sign * excess
    holds = excess <= CONSTRAINT_TOLERANCE * max(1.0, abs(limit))
    return ConstraintValue(uncertain.name, value, limit, excess, bool(holds))


@dataclass(frozen=True)
class LossStatistics:
    """Mean, spread, quantiles and tail of a sample of losses; prints as a small table.

    Probabilities weight the losses; standard errors are then those of 1 / sum p^2 equally likely
    losses. Where the objective is maximised, the losses are its values and the worst the smallest.

    Examples
    --------
    >>> statistics = wdro.evaluation.LossStatistics.of(np.arange(1.0, 101.0))
    >>> statistics.mean, statistics.median, statistics.worst
    (50.5, 50.5, 100.0)
    >>> round(statistics.tail, 1)                           # the mean of 96, ..., 100
    98.0
    >>> wdro.evaluation.LossStatistics.of([1.0, 2.0, 3.0], maximise=True).worst
    1.0
    """

    count: int
    mean: float
    standard_error: float
    """Standard error of the mean: deviation / sqrt(count); NaN for a single loss."""
    deviation: float
    """Standard deviation with the divisor count - 1; 0 for a single loss. With probabilities
    sqrt(sum p (loss - mean)^2), that of the distribution."""
    quantiles: Mapping[float, float]
    """Quantiles by their level, linear between the ordered losses as in NumPy and pandas. With
    probabilities the least loss whose cumulative probability is at least the level."""
    tail: float
    """CVaR at 95%: the mean of the worst 5% of the losses."""
    tail_error: float
    """Standard error of the CVaR; NaN for a single loss."""
    worst: float
    risk: float = float("nan")
    """The objective on the scenarios, with the risk measures of their distribution; the mean where
    it has none."""
    risk_error: float = float("nan")
    """Standard error of the risk at fixed thresholds; NaN for a single loss."""
    measures: str = ""
    """The CVaRs of the objective; empty where it has none."""
    constraints: tuple[ConstraintValue, ...] = ()
    """The uncertain constraints of the problem on the scenarios."""

    @classmethod
    def of(
        cls, losses: Any, maximise: bool = False, probabilities: np.ndarray | None = None
    ) -> LossStatistics:
        """The statistics of a sample of losses, (count,); maximise: large ones are good.

        probabilities: of the losses, (count,); equal by default.
        """
        losses = np.asarray(losses, dtype=float)
        if losses.ndim != 1 or not losses.size:
            raise ValueError(
                f"statistics need a vector of at least one loss, got shape {losses.shape}."
            )
        sign, levels = (-1.0, LEVELS[::-1]) if maximise else (1.0, LEVELS)
        costs = sign * losses  # of which small ones are good
        mean, error = float(mean_of(losses, probabilities)), standard_error(losses, probabilities)
        return cls(
            losses.size,
            mean,
            error,
            deviation(losses, probabilities) if losses.size > 1 else 0.0,
            dict(zip(LEVELS, (sign * quantiles(costs, levels, probabilities)).tolist())),
            sign * conditional_value_at_risk(costs, TAIL, probabilities),
            tail_error(costs, TAIL, probabilities),
            sign * float(costs.max()),
            risk=mean,
            risk_error=error,
        )

    @property
    def median(self) -> float:
        return self.quantiles[0.5]

    def row(self) -> dict[str, float]:
        """The statistics under the names of the columns of a report."""
        return {
            "risk": self.risk,
            "mean": self.mean,
            "standard_error": self.standard_error,
            "deviation": self.deviation,
            "q05": self.quantiles[0.05],
            "q25": self.quantiles[0.25],
            "median": self.quantiles[0.5],
            "q75": self.quantiles[0.75],
            "q95": self.quantiles[0.95],
            "cvar95": self.tail,
            "worst": self.worst,
        }

    def _facts(self) -> Facts:
        """The statistics as names and texts."""
        spread = ", ".join(f"{level:.0%} {q:.6g}" for level, q in self.quantiles.items())
        risk = f"{self.risk:.6g} (standard error {self.risk_error:.2g}), with {self.measures}"
        return [
            ("scenarios", str(self.count)),
            *([("risk", risk)] if self.measures else []),
            ("mean", f"{self.mean:.6g} (standard error {self.standard_error:.2g})"),
            ("deviation", f"{self.deviation:.6g}"),
            ("quantiles", spread),
            ("CVaR 95%", f"{self.tail:.6g} (standard error {self.tail_error:.2g})"),
            ("worst", f"{self.worst:.6g}"),
            *(("constraint", str(constraint)) for constraint in self.constraints),
        ]

    _repr_html_ = facts_html
    __str__ = facts_lines

    def __repr__(self) -> str:
        return brief(
            self,
            f"{self.count} losses, mean {self.mean:.6g}, CVaR {self.tail:.6g}, "
            f"worst {self.worst:.6g}",
        )


def mean_of(losses: np.ndarray, probabilities: np.ndarray | None = None) -> float:
    """The mean of losses, with their probabilities where they have some."""
    return SampleShares.full(losses.size, probabilities).total(losses)


def deviation(losses: np.ndarray, probabilities: np.ndarray | None = None) -> float:
    """The standard deviation of at least two losses, with the divisor count - 1.

    With probabilities that of the distribution, as the number of draws behind it is not known.
    """
    if probabilities is None:
        return float(losses.std(ddof=1))
    away = losses - probabilities @ losses
    return float(np.sqrt(probabilities @ away**2))


def quantiles(losses: np.ndarray, levels: Any, probabilities: np.ndarray | None = None) -> Any:
    """The quantiles of losses: interpolated, or one of the losses where they have probabilities."""
    if probabilities is None:
        return np.quantile(losses, levels)
    order = np.argsort(losses, kind="stable")
    reached = np.cumsum(probabilities[order])
    # Rounding of the sums must not skip a loss that just reaches the level.
    first = np.searchsorted(reached, np.asarray(levels) - 1e-12)
    return losses[order][np.minimum(first, losses.size - 1)]


def standard_error(losses: np.ndarray, probabilities: np.ndarray | None = None) -> float:
    """Standard error of the mean of independent losses; NaN for a single one.

    Probabilities p make 1 / sum p^2 draws of them: the variance is unbiased over 1 - sum p^2.
    """
    size = SampleShares.full(losses.size, probabilities).effective_size
    if losses.size < 2 or size <= 1.0:
        return float("nan")
    lost = 1.0 if probabilities is None else 1.0 - 1.0 / size
    return float(deviation(losses, probabilities) / np.sqrt(size * lost))


def conditional_value_at_risk(
    losses: np.ndarray, level: float, probabilities: np.ndarray | None = None
) -> float:
    """Mean of the worst (1 - level) share of the losses, a fraction of a sample counted as such."""
    share = 1.0 - level
    if probabilities is None:
        share *= losses.size
        worst = np.sort(losses)[::-1][: int(share) + 1]
        counted = np.clip(share - np.arange(worst.size), 0.0, 1.0)
    else:
        order = np.argsort(-losses, kind="stable")
        worst, shares = losses[order], probabilities[order]
        counted = np.clip(share - (np.cumsum(shares) - shares), 0.0, shares)
    return float(counted @ worst / counted.sum())


def tail_error(losses: np.ndarray, level: float, probabilities: np.ndarray | None = None) -> float:
    """Standard error of the CVaR of independent losses, from its influence function.

    CVaR is the mean of t + (loss - t)_+ / (1 - level) at the quantile t, whose own error is of
    second order. NaN for a single loss. With fewer than 1 / (1 - level) losses the tail is a part
    of one loss, and the error is too small.
    """
    return standard_error(excesses(losses, level, probabilities), probabilities)


def excesses(losses: np.ndarray, level: float, probabilities: np.ndarray | None = None) -> Any:
    """(loss - t)_+ / (1 - level) at the quantile t: the CVaR is t plus their mean."""
    quantile = float(quantiles(losses, level, probabilities))
    return np.maximum(losses - quantile, 0.0) / (1.0 - level)


# ------------------------------------------------------------------ one against another
ADVANTAGE_COLUMNS = (
    METHOD,
    SCENARIOS,
    Column("difference", "The mean of the baseline's loss minus its own.", "mean advantage"),
    Column("standard_error", "Standard error of the mean difference.", "error", ".2g"),
    Column("cvar95", "The CVaR at 95% of the baseline minus its own.", "cvar95 advantage"),
    Column("cvar95_error", "Standard error of the difference of the CVaRs.", "error", ".2g"),
    Column("better", "The share of scenarios where it is better.", "better in", ".1%"),
)


@dataclass(frozen=True)
class Difference:
    """Losses of the baseline minus those of a method on one set of scenarios."""

    method: str
    scenarios: str
    losses: np.ndarray
    """The differences, one for each scenario; positive where the method is better."""
    rounding: float
    """Differences up to this number are rounding."""
    probabilities: np.ndarray | None = None
    """Probabilities of the scenarios; None where all count the same."""
    cvar: float = float("nan")
    """The CVaR at 95% of the baseline minus that of the method; positive where it is better."""
    cvar_error: float = float("nan")
    """Standard error of that difference at fixed quantiles."""

    @classmethod
    def between(cls, method: str, scenarios: str, base: Outcome, own: Outcome) -> Difference:
        """The gain of a method's own outcome over that of the baseline, on the same scenarios."""
        p, sign = base.probabilities, -1.0 if base.maximise else 1.0
        costs = [sign * base.losses, sign * own.losses]
        tails = [conditional_value_at_risk(side, TAIL, p) for side in costs]
        parts = [excesses(side, TAIL, p) for side in costs]
        error = standard_error(parts[0] - parts[1], p)
        rounding = DIFFERENCE_TOLERANCE * float(np.abs(base.losses).max())
        return cls(method, scenarios, costs[0] - costs[1], rounding, p, tails[0] - tails[1], error)

    def __repr__(self) -> str:
        mean = mean_of(self.losses, self.probabilities)
        return brief(self, f"{self.method!r} on {self.scenarios!r}, mean {mean:.6g}")

    def row(self) -> dict[str, Any]:
        p = self.probabilities
        better = (self.losses > self.rounding).astype(float)
        return {
            "method": self.method,
            "scenarios": self.scenarios,
            "difference": float(mean_of(self.losses, p)),
            "standard_error": standard_error(self.losses, p),
            "cvar95": self.cvar,
            "cvar95_error": self.cvar_error,
            "better": float(mean_of(better, p)),
        }


@dataclass(frozen=True)
class Advantage(Tabular):
    """Paired differences of losses, positive where a method is better than the baseline.

    Losses that all decisions share cancel. The difference of the CVaRs is that of the column
    `cvar95` of the report, with its sign turned where the objective is maximised.

    Examples
    --------
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [1.4, 1.2]])
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
    >>> report = wdro.compare(problem, ("erm", "exact"), test=[[3.0, 1.0], [2.0, 1.0]])
    >>> gained = report.advantage(over="erm")
    >>> gained.over, len(gained.differences)                # on the samples and on the test
    ('erm', 2)
    """

    over: str
    """The baseline."""
    differences: tuple[Difference, ...]

    columns = ADVANTAGE_COLUMNS

    def __repr__(self) -> str:
        methods = words(dict.fromkeys(d.method for d in self.differences))
        return brief(self, f"of {methods} over {self.over}")

    def __getitem__(self, key: tuple[str, str]) -> Difference:
        """The differences of (method, scenarios)."""
        for difference in self.differences:
            if (difference.method, difference.scenarios) == key:
                return difference
        known = [(d.method, d.scenarios) for d in self.differences]
        raise KeyError(f"{key!r} is not compared with {self.over!r}; there are {known}.")

    def rows(self) -> list[dict[str, Any]]:
        """A row for each method and set of scenarios."""
        return [difference.row() for difference in self.differences]

    @property
    def title(self) -> str:
        return f"advantage over {self.over!r} on the same scenarios (positive: better)"
