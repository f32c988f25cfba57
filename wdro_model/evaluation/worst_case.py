"""The worst-case distribution that a decision is robust against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model import checks
from wdro_model.display.tables import Facts, brief, counted, facts_html, present_facts
from wdro_model.errors import NoReformulationError
from wdro_model.loss.atoms.facts import brief as brief_constraint
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.cvar_thresholds import risk_on
from wdro_model.objectives.exact import Extremal, counterpart
from wdro_model.objectives.exact.counterpart import unmoved
from wdro_model.objectives.integration.inner_integral import Scales, Stream
from wdro_model.objectives.integration.sampled import SampledSlice
from wdro_model.objectives.integration.tilted import Gaussian, Tilted, tilted_refusal
from wdro_model.solve.certify import Solution
from wdro_model.solve.true_risk import robust_value, with_best_thresholds, worst_with_tails
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs.budgets import shorten_to_budget
from wdro_model.uncertainty.parameter import UncertainParameter

RANDOM_STREAM = 2**20
"""The number of a random stream that no solve uses."""


@dataclass(frozen=True)
class Tolerances:
    """Sizes and tolerances of worst-case distributions."""

    draws: int = 100
    """Draws for each sample, of a smoothed solution."""
    numbers: int = 2**24
    """Numbers in all draws together, as long as there is a draw for each sample."""
    shortfall: float = 1e-6
    """Share of the worst-case value by which a distribution that attains it may fall short. A
    smaller one would call the tolerance of conic solvers a shortfall."""
    longer_move: float = 1.001
    """Factor of moves that are tried, to see whether the support ends."""
    loss_rounding: float = 1e-14
    """Relative rounding error of a loss far away."""


TOLERANCES = Tolerances()


@dataclass(frozen=True)
class WorstCase:
    """A distribution of the ball under which the expected loss of a decision is largest.

    Examples
    --------
    >>> ball = wdro.WassersteinBall(0.02)
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
    >>> value = problem.solve()
    >>> adversary = problem.worst_case()
    >>> round(adversary.expected_loss, 3), adversary.weights, adversary.source
    (1.6, array([0.5, 0.5]), array([0, 1]))
    """

    scenarios: Mapping[UncertainParameter, np.ndarray]
    """The K atoms, `(K, *shape)` for each parameter; all inside the supports."""
    weights: np.ndarray
    """The probabilities of the atoms, (K,)."""
    source: np.ndarray
    """The index of the sample that each atom was moved from, (K,)."""
    expected_loss: float
    """The least expected value of an objective that is maximised. Where the objective has risk
    measures, the objective with those of this distribution."""
    transport_cost: float
    """At most the radius, up to rounding."""
    dual: float
    """The cost of one unit of radius; 0 where the radius does not bind."""
    penalty: float | None = None
    """For the smoothed problem: epsilon times the divergence from the reference distribution. The
    smoothed value is expected_loss - penalty + dual (radius - transport_cost)."""
    shortfall: float = 0.0
    """By how much the expected loss is less bad than the worst-case value, `robust_value`: 0 up to
    1e-6 of the size of the losses where it attains it. Of the exact problem alone."""
    is_limit: bool = False
    """Whether no distribution attains the worst case: with a norm as cost and an unbounded support
    a vanishing mass goes to infinity."""

    def _facts(self) -> Facts:
        """The distribution in numbers."""
        samples = counted(len(np.unique(self.source)), "sample")
        heaviest = int(np.argmax(self.weights))
        entropy = None if self.penalty is None else f"{self.penalty:.6g}"
        return present_facts(
            {
                "of the problem": "exact" if self.penalty is None else "smoothed",
                "scenarios": f"{len(self.weights)}, from {samples}",
                "expected loss": f"{self.expected_loss:.8g}",
                "worst case": "; ".join(self._remarks()) or None,
                "transport cost": f"{self.transport_cost:.6g}",
                "dual": f"{self.dual:.6g}" if self.dual else "0, the radius does not bind",
                "entropic penalty": entropy,
                "largest weight": f"{self.weights[heaviest]:.4g}, of a scenario from sample "
                f"{self.source[heaviest]}",
            }
        )

    _repr_html_ = facts_html

    def __repr__(self) -> str:
        return brief(
            self,
            f"{counted(len(self.weights), 'scenario')}, expected loss "
            f"{self.expected_loss:.6g}, transport cost {self.transport_cost:.6g}",
        )

    def __str__(self) -> str:
        kind = "worst case" if self.penalty is None else "worst case of the smoothed problem"
        less = "" if self.penalty is None else f", entropic penalty {self.penalty:.6g}"
        text = (
            f"{kind}: {len(self.weights)} scenarios, expected loss {self.expected_loss:.8g}, "
            f"transport cost {self.transport_cost:.6g}, dual {self.dual:.6g}{less}"
        )
        return "; ".join([text, *self._remarks()])

    def _remarks(self) -> list[str]:
        """The reasons why it does not attain the worst-case value."""
        remarks = []
        if self.shortfall:
            remarks.append(f"it falls short of the worst-case value by {self.shortfall:.3g}")
        if self.is_limit:
            remarks.append(
                "no distribution attains the worst case: a vanishing mass goes to infinity"
            )
        return remarks


def find_worst_case(
    model: Model, x: np.ndarray, solution: Solution | None, method: str | None
) -> WorstCase:
    """The distribution that goes with the last solve, or with the method that is asked for."""
    smoothed = solution is not None and solution.epsilon is not None
    wanted = method or ("smoothed" if smoothed else "exact")
    checks.choice("method", wanted, ("exact", "smoothed"))
    if wanted == "exact":
        return worst_case(model, x)
    if solution is None or not smoothed:
        raise ValueError(
            "the worst case of the smoothed problem belongs to a smoothed solve; call "
            "problem.solve(method='smoothed') first, or ask for worst_case('exact')."
        )
    assert isinstance(model, RobustModel)
    return smoothed_worst_case(model, solution)


def constraint_worst_case(model: Model, x: np.ndarray, constraint: Any) -> WorstCase:
    """The distribution that comes closest to violating an uncertain constraint of a model."""
    for uncertain in model.feasible.uncertain:
        if uncertain.original is constraint:
            values = model.feasible.layout.split(x)
            cases = [worst_case(row, row.feasible.layout.join(values)) for row in uncertain.rows]
            return max(cases, key=lambda case: case.expected_loss)
    known = "; ".join(uncertain.name for uncertain in model.feasible.uncertain) or "none"
    raise ValueError(
        f"{brief_constraint(constraint)} is not one of the uncertain constraints of the problem "
        f"(there are: {known}); give the very object that stands in its list."
    )


def worst_case(model: Model, x: np.ndarray) -> WorstCase:
    """The extremal distribution of the exact problem at the flat decision x.

    Where the supremum is not attained (a norm cost on an unbounded support), a distribution whose
    expected loss is close to it; `shortfall` says how close. NoReformulationError where no exact
    counterpart is known.
    """
    if not isinstance(model, RobustModel) or not model.has_ball:
        raise NoReformulationError(
            "a worst case needs an uncertain parameter and an ambiguity set; pass "
            "ambiguity=WassersteinBall(radius=...) to the problem."
        )
    x = np.asarray(x, dtype=float)
    worst, shortfall, is_limit = unmoved(model), 0.0, False
    if model.radius > 0:
        entry, x = counterpart(model), with_best_thresholds(model, x)
        worst = worst_with_tails(model, x, entry)
        value = robust_value(model, x, entry)
        missing = value - risk_on(model, x, worst.rows, worst.weights)
        size = max(abs(value), float(model.shares.total(np.abs(model.loss.values(x, model.rows)))))
        shortfall = missing if missing > TOLERANCES.shortfall * size else 0.0
        is_limit = goes_to_infinity(model, x, worst)
    costs = model.cost(model.rows[worst.source], worst.rows)
    return WorstCase(
        scenarios=model.joint.split(worst.rows),
        weights=worst.weights,
        source=worst.source,
        expected_loss=risk_on(model, x, worst.rows, worst.weights),
        transport_cost=float(worst.weights @ costs),
        dual=worst.dual,
        shortfall=shortfall,
        is_limit=is_limit,
    )


def goes_to_infinity(model: RobustModel, x: Array, worst: Extremal) -> bool:
    """Whether longer moves of a smaller mass would gain more for the same cost.

    Where half of a move gains less than half, the loss is convex along it, and the longer the
    better, as long as the support does not end.
    """
    if not model.cost.is_norm:
        return False
    origins = model.rows[worst.source]
    moves = worst.rows - origins
    spent = worst.weights * model.cost(origins, worst.rows)
    home, half, near = (model.loss.values(x, origins + t * moves) for t in (0.0, 0.5, 1.0))
    depths = (near - home) - 2.0 * (half - home)
    deep = depths > TOLERANCES.shortfall * np.abs(home).max() + TOLERANCES.loss_rounding * np.abs(
        near
    )
    deep &= spent > TOLERANCES.shortfall * spent.sum()
    return bool(np.any(deep & model.joint.contains(origins + TOLERANCES.longer_move * moves)))


def smoothed_worst_case(model: RobustModel, solution: Solution, seed: int = 0) -> WorstCase:
    """Weighted draws from the worst-case distribution of a smoothed solution.

    At a decision x and a dual variable l the adversary moves sample k to the distribution
    with density proportional to

        exp((f(x, zeta) - l c(xi_k, zeta)) / eps)    against the reference N(xi_k, sigma^2),

    and the smoothed value is its expected loss less eps times its divergence from the reference
    (plus what is left of the budget, at the price l). Moves are shortened by the
    little that Monte Carlo puts them over the budget, so that the distribution is in the ball: its
    expected loss is a lower bound on the worst-case risk.
    """
    assert solution.epsilon is not None
    assert solution.sigma is not None
    if solution.dual is None or not np.isfinite(solution.value):
        raise ValueError(
            "the smoothed solve was stopped before it had evaluated its decision: its worst case "
            "is not known. Solve again with more time, or ask for worst_case('exact')."
        )
    x = model.feasible.layout.join(solution.everything)
    draws = int(np.clip(TOLERANCES.numbers // max(1, model.rows.size), 1, TOLERANCES.draws))
    kind = Tilted if tilted_refusal(model) is None else Gaussian
    rule = kind(model, Scales(solution.epsilon, solution.sigma, draws))
    dual = float(solution.dual)
    rule.refresh(x, dual)
    samples, stream = np.arange(model.joint.size), Stream(seed, RANDOM_STREAM)
    inner = rule.slice(x, samples, stream)
    assert isinstance(inner, SampledSlice)
    weights, log_mean = inner.weights(dual)
    shares = model.shares
    penalty = float(
        shares.total(np.sum(weights * (inner.losses - dual * inner.costs), axis=1))
        - solution.epsilon * shares.total(log_mean)
    )
    rows = np.array(rule.draw(samples, stream).rows)
    source = np.repeat(samples, draws)
    flat = np.ravel(shares.times(weights))
    rows = within_budget(model, rows, source, flat)
    return WorstCase(
        scenarios=model.joint.split(rows),
        weights=flat,
        source=source,
        expected_loss=risk_on(model, x, rows, flat),
        transport_cost=float(flat @ model.cost(model.rows[source], rows)),
        dual=dual,
        penalty=penalty,
    )


def within_budget(model: RobustModel, rows: Array, source: Array, weights: Array) -> Array:
    """The draws, moved back towards their samples by one factor where they cost too much.

    A support known by a predicate alone may not hold the points between: nothing is moved there.
    """
    origins = model.rows[source]
    shorter = shorten_to_budget(model.cost, origins, rows, model.radius, weights)
    return shorter if model.joint.contains(shorter).all() else rows
