"""The solution that is reported: status, certificate, true risk, and a start for later solves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import cvxpy as cp
import numpy as np
from cvxpy import settings

from wdro_model.display.tables import Facts, brief, facts_html, present_facts
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.ascent import climb
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.least_thresholds import at_quantiles, risk_on
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.compile import Compilation
from wdro_model.solve.notes import shortfall_notes
from wdro_model.solve.plan import Plan
from wdro_model.solve.true_risk import known_robust_value
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, Outcome, QuasiNewton
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.driver import relative_gap, tolerance
from wdro_model.solvers.objective import Array, Diagnostics, Point, certificate
from wdro_model.solvers.trace import Trace
from wdro_model.uncertainty.ambiguity import Assurance

FARTHEST = 4.0
"""Solves are extrapolated over at most so many times the distance between two of them."""
MOST_CHANGE = 1.5
"""The factor by which the steepness of the risk is expected to change at most."""
MOST_KNOWN = 3
"""So many of them are kept."""


@dataclass(frozen=True)
class Experience:
    """What made the end of a solve fast: one with another radius begins with it."""

    distance: float = 0.0
    """That of the ball, a root of its radius: risks are nearly linear in it."""
    steepness: float | None = None
    """How fast the risk grows with the distance; None where it is not known."""
    integrals: Any = None
    """The findings of the strategy of integration."""
    directions: Any = None
    """Those of the directions over the feasible set."""
    before: Experience | None = None
    """That of the solve from which this one started."""

    def going_on(self, distance: float, name: str) -> list[tuple[Any, float]]:
        """What the last solves know by that name, and weights in what is expected now.

        It is taken to be a polynomial of the distance: of first order through two of them, of
        second through three. The last alone where the distances turn back, or the new one is too
        far away.
        """
        known, last = [self], self.before
        while last is not None and getattr(last, name) is not None and len(known) < MOST_KNOWN:
            known, last = [*known, last], last.before
        places = np.array([distance, *(one.distance for one in known)])
        apart = places[:-1] - places[1:]
        onwards = np.cumprod(apart * apart[0] > 0)[1:]
        far = abs(apart[0]) > FARTHEST * np.abs(apart[1:])
        count = 1 + int(np.cumprod(onwards * ~far).sum())
        others = [np.delete(places[1 : 1 + count], i) for i in range(count)]
        weights = [
            float(np.prod((distance - rest) / (place - rest)))
            for place, rest in zip(places[1:], others)
        ]
        return [(getattr(one, name), weight) for one, weight in zip(known, weights)]

    def expected_steepness(self, distance: float) -> float | None:
        """How fast the risk grows at another distance."""
        if not self.steepness:
            return None
        expected = sum(weight * one for one, weight in self.going_on(distance, "steepness"))
        most = MOST_CHANGE * self.steepness
        return float(np.clip(expected, self.steepness / MOST_CHANGE, most))

    def shortened(self, count: int = MOST_KNOWN - 1) -> Experience:
        """With no more than so many solves, and no integrals: what is kept for the next one."""
        before = self.before.shortened(count - 1) if self.before and count > 1 else None
        return Experience(self.distance, self.steepness, None, self.directions, before)


NONE = Experience()
"""That of a solve which has learnt nothing, or whose start is no solution."""


# ------------------------------
# What is reported: the solution with its status, its certificate and its true risk


EASY = 2**20
"""Numbers in the data of which a solution computes its mean loss when it is asked for."""
STATIONARY = "stationary"
"""The status of a point with a small gap where convexity in the decision is not known."""


class Later:
    """A field that may be given as a function: it is called when its value is first asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = f"_{name}"

    def __get__(self, solution: Any, owner: type) -> Any:
        if solution is None:
            return None  # the default
        value = solution.__dict__[self._key]
        if callable(value):
            value = solution.__dict__[self._key] = value()
        return value

    def __set__(self, solution: Any, value: Any) -> None:
        solution.__dict__[self._key] = value


@dataclass(frozen=True)
class Solution:
    """The result of one solve. Fields that do not apply to its method are None.

    Values have the sign of the objective as it was written, also where it is maximised; the trace
    is that of the loss which the solver minimised.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> x = cp.Variable(2, nonneg=True)
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    >>> ball = wdro.WassersteinBall(0.02)
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
    >>> round(problem.solve(), 2)
    1.6
    >>> solution = problem.solution
    >>> solution.method, solution.status
    ('exact', 'optimal')
    >>> print(f"promised {solution.value:.2f}, on the samples {solution.empirical_value:.2f}")
    promised 1.60, on the samples 1.50
    >>> solution.decision[x].round(2)
    array([0.5, 0.5])
    """

    method: str
    status: str
    """A CVXPY status, or "stationary"."""
    value: float
    """The objective of the method at the decision, re-evaluated after the last iteration."""
    decision: Mapping[cp.Variable, np.ndarray]
    solver: str
    seconds: float
    stop: str
    """Why the solver ended."""
    convex: bool
    """Is the objective known to be convex? Otherwise the decision is a stationary point."""
    iterations: int | None = None
    oracle_calls: int | None = None
    gap: float | None = None
    """Frank-Wolfe gap at the decision, from a full gradient: value - optimum <= gap if convex. By a
    conic solver how far its own value was from that of the decision, where they differ."""
    lower_bound: float | None = None
    """The best lower bound on the optimal value that the run proved; None if not convex."""
    upper_bound: float | None = None
    """The same from above, for an objective that is maximised."""
    dual: float | None = None
    """The multiplier of the transport budget."""
    dual_bound: float | None = None
    """The upper end of the dual's interval, where it was bounded."""
    epsilon: float | None = None
    """Smoothing temperature."""
    sigma: float | np.ndarray | None = None
    """Standard deviation of the reference Gaussian."""
    integration: str | None = None
    """How the inner integral was computed."""
    diagnostics: Diagnostics | None = None
    """Effective sample size and Monte Carlo error of the reported value."""
    robust_value: float | None = cast(Any, Later())
    """The exact worst-case risk of the decision over the ball, where a formula is known; after a
    smoothed solve without one, the best lower bound known: its value, or ascent in the data."""
    robust_value_is_bound: bool = False
    """Is `robust_value` only a lower bound (an upper one where the objective is maximised)?"""
    empirical_value: float | None = cast(Any, Later())
    """The mean loss of the decision over the samples."""
    maximise: bool = False
    """Is the objective maximised, its worst case being the least expected value?"""
    assurance: Assurance | None = field(default=None, repr=False)
    """What is known of the radius, where `radius_for` found it."""
    compilation: str | None = None
    """Whether the conic program was compiled for this solve, and why; None without one."""
    notes: tuple[str, ...] = ()
    """What the user should know about this result."""
    trace: Trace = field(default_factory=Trace, repr=False)
    active_set: ActiveSet | None = field(default=None, repr=False)
    """Vertices whose combination is the decision; a solve that starts here goes on from them."""
    experience: Experience = field(default=NONE, repr=False, compare=False)
    """What a solve that starts here knows from the beginning; not kept in files."""
    thresholds: Mapping[cp.Variable, np.ndarray] = field(default_factory=dict, repr=False)
    """Of CVaRs in the objective: the library's own variables, which are not in the decision."""

    def __post_init__(self) -> None:
        if not any(isinstance(v, Threshold) for v in self.decision):
            return
        every = {**self.thresholds, **self.decision}
        own = {v: value for v, value in every.items() if not isinstance(v, Threshold)}
        object.__setattr__(self, "decision", own)
        object.__setattr__(self, "thresholds", {v: every[v] for v in every if v not in own})

    def __getstate__(self) -> dict[str, Any]:
        known = {"_robust_value": self.robust_value, "_empirical_value": self.empirical_value}
        return {**self.__dict__, **known, "experience": NONE}

    @property
    def everything(self) -> dict[cp.Variable, np.ndarray]:
        """The decision and the thresholds: what the solver has found."""
        return {**self.decision, **self.thresholds}

    def turned(self) -> Solution:
        """The same for minus the objective: a loss that is minimised, a reward maximised."""

        def minus(number: float | None) -> float | None:
            return None if number is None else -number

        return replace(
            self,
            value=-self.value,
            robust_value=minus(self.robust_value),
            empirical_value=minus(self.empirical_value),
            lower_bound=minus(self.upper_bound),
            upper_bound=minus(self.lower_bound),
            maximise=not self.maximise,
        )

    def as_loss(self) -> Solution:
        """The solution in terms of the loss that was minimised."""
        return self.turned() if self.maximise else self

    @property
    def confidence(self) -> float | None:
        """The probability with which `bound` holds; None where nothing is known of the radius."""
        return None if self.bound is None or self.assurance is None else self.assurance.confidence

    @property
    def bound(self) -> float | None:
        """A bound on the expected loss that holds with the confidence of the radius, if it has one.

        For an objective that is maximised, on its expected value, from below.
        """
        if self.assurance is None:
            return None
        robust = None if self.robust_value_is_bound else self.robust_value
        return self.assurance.bound(self.method, self.value, robust)

    @property
    def relative_gap(self) -> float | None:
        """gap / |value|.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> x = cp.Variable(3)
        >>> price = wdro.UncertainParameter(3, samples=[[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]])
        >>> simplex, ball = wdro.sets.Simplex(3), wdro.WassersteinBall(1.0)
        >>> problem = wdro.Problem(cp.Minimize(price @ x), [wdro.In(x, simplex)], ambiguity=ball)
        >>> round(problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-3)), 2)
        2.21
        >>> problem.solution.relative_gap <= 1e-3
        True
        """
        return None if self.gap is None else relative_gap(self.gap, self.value)

    @property
    def vertices(self) -> np.ndarray | None:
        """The points (k, n) of which the flat decision is a combination; None if not kept.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> x = cp.Variable(3)
        >>> price = wdro.UncertainParameter(3, samples=[[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]])
        >>> simplex, ball = wdro.sets.Simplex(3), wdro.WassersteinBall(0.1)
        >>> problem = wdro.Problem(cp.Minimize(price @ x), [wdro.In(x, simplex)], ambiguity=ball)
        >>> round(problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-3)), 2)
        1.72
        >>> solution = problem.solution
        >>> (solution.weights @ solution.vertices).round(2)           # the decision
        array([0.5, 0.5, 0. ])
        """
        return None if self.active_set is None else self.active_set.vertices

    @property
    def weights(self) -> np.ndarray | None:
        """Their weights (k,), which sum to 1; None if not kept."""
        return None if self.active_set is None else self.active_set.weights

    @property
    def effective_sample_size(self) -> float | None:
        """Median over the samples of the effective number of draws."""
        return None if self.diagnostics is None else self.diagnostics.effective_size

    @property
    def standard_error(self) -> float | None:
        """Monte Carlo standard error of the value."""
        return None if self.diagnostics is None else self.diagnostics.standard_error

    def _facts(self) -> Facts:
        """What is known of the solve, for people."""
        return present_facts(
            {
                "method": self.method,
                "status": f"{self.status} ({self.stop})",
                "value": f"{self.value:.8g}",
                "robust value": _robust(self),
                "empirical value": _number(self.empirical_value),
                "out of sample": _assured(self),
                "gap": _gap(self),
                "dual": _number(self.dual),
                "dual bound": _number(self.dual_bound),
                "epsilon, sigma": _scales(self),
                "integration": self.integration,
                "effective draws": _draws(self.diagnostics),
                "standard error": _number(self.standard_error),
                "solver": self.solver,
                "program": None if self.compilation == Compilation.FIRST else self.compilation,
                "iterations": None if self.iterations is None else str(self.iterations),
                "seconds": f"{self.seconds:.3g}",
            }
        )

    def __str__(self) -> str:
        lines = [f"{name:<16} {text}" for name, text in self._facts()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    _repr_html_ = facts_html

    def __repr__(self) -> str:
        return brief(
            self, f"{self.method}, {self.status}, value {self.value:.6g}, {self.seconds:.2g} s"
        )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.8g}"


def _robust(solution: Solution) -> str | None:
    value = _number(solution.robust_value)
    if value is None or not solution.robust_value_is_bound:
        return value
    return f"<= {value}" if solution.maximise else f">= {value}"


def _assured(solution: Solution) -> str | None:
    """What is known of the expected loss, with what probability."""
    if solution.assurance is None:
        return None
    return solution.assurance.sentence(solution.bound, solution.maximise)


def _gap(solution: Solution) -> str | None:
    if solution.gap is None:
        return None
    return f"{solution.gap:.3g} (relative {solution.relative_gap:.3g})"


def _scales(solution: Solution) -> str | None:
    if solution.epsilon is None or solution.sigma is None:
        return None
    sigma = np.unique(np.atleast_1d(solution.sigma))
    spread = f"{sigma[0]:.4g}" if sigma.size == 1 else f"{sigma[0]:.4g} to {sigma[-1]:.4g}"
    return f"{solution.epsilon:.4g}, {spread}"


def _draws(diagnostics: Diagnostics | None) -> str | None:
    if diagnostics is None:
        return None
    return (
        f"{diagnostics.effective_size:.3g} of {diagnostics.draws} "
        f"(worst sample {diagnostics.smallest_effective_size:.3g})"
    )


def certified(
    objective: Any, oracle: FeasibleSet, x: Array, dual: float | None
) -> tuple[Point, float]:
    """A full evaluation at x and its Frank-Wolfe gap."""
    point = objective.evaluate(x, dual)
    return point, certificate(oracle, x, point.gradient).gap


def report(
    model: Model,
    chosen: Plan,
    solver: FrankWolfe | QuasiNewton | MomentumFrankWolfe,
    outcome: Outcome,
    point: Point,
    gap: float,
    *,
    convex: bool,
    began: float,
    same_objective: bool,
    asked: int,
    reliable: bool = True,
    likely: Array | None = None,
    **details: Any,
) -> Solution:
    """The solution of a Frank-Wolfe run.

    same_objective: the bounds of the run hold for the reported value, which was not re-estimated.
    asked: the calls of the oracle before the solve.
    reliable: the Monte Carlo error of the value is within the tolerance.
    likely: where the smoothed adversary moves the samples.
    """
    value = point.value
    error = 0.0 if point.diagnostics is None else point.diagnostics.standard_error
    # F is below the worst-case risk at the dual that minimises it.
    below = value - 2 * error - (point.dual_residual if point.dual_gradient is None else gap)
    below = below if reliable else -np.inf
    late = solver.time_limit is not None and time.perf_counter() - began >= solver.time_limit
    known = evaluations(model, outcome.x, None, point.dual, below, likely, late)
    robust = None if known.get("robust_value_is_bound") else known["robust_value"]
    if robust is not None and details.get("epsilon") is not None:
        mean, seen = known["empirical_value"](), details.get("notes", ())
        details["notes"] = (*seen, *shortfall_notes(model, value, mean, robust, seen))
    close = gap <= tolerance(solver.gap, value, details.get("epsilon") or 0.0)
    solved = settings.OPTIMAL if convex else STATIONARY
    if not reliable:
        solved = settings.OPTIMAL_INACCURATE if convex else settings.USER_LIMIT
    bound = max(outcome.lower_bound, value - gap) if same_objective else value - gap - 2 * error
    return Solution(
        method=chosen.method,
        status=solved if close else settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(outcome.x),
        solver=solver.describe(model.feasible.oracle()),
        seconds=time.perf_counter() - began,
        stop=outcome.stop.value,
        convex=convex,
        iterations=outcome.iterations,
        oracle_calls=model.feasible.oracle().calls - asked,
        gap=gap,
        lower_bound=float(bound) if convex and reliable else None,
        dual=point.dual,
        trace=outcome.trace,
        active_set=outcome.active_set,
        **details,
        **known,
    )


def evaluations(
    model: Model,
    x: Array,
    robust: float | None = None,
    dual: float | None = None,
    known: float = -np.inf,
    likely: Array | None = None,
    late: bool = False,
) -> dict[str, Any]:
    """Mean loss and worst-case risk of a decision: by a formula, or a bound where there is none.

    robust: the worst-case risk, where the solve was exact and gave it.
    dual: the price of transport that a smoothed solve found.
    known: a lower bound on the worst-case risk that it gave.
    likely: where its adversary moves the samples.
    late: there is no time left to look for more than that.
    """
    mean = mean_loss(model, x)
    if not isinstance(model, RobustModel) or not model.has_ball:
        return {"empirical_value": mean, "robust_value": robust}
    if robust is None and not late:
        try:
            robust = mean() if model.radius == 0 else known_robust_value(model, x)
        except OutOfTime:
            late = True
    if robust is not None or dual is None:
        return {"empirical_value": mean, "robust_value": robust}

    def bound() -> float | None:
        found = None if late else climb(model, x, dual, likely)
        reached = -np.inf
        if found is not None:
            reached = risk_on(model, x, found.rows, model.shares.probabilities)
        best = max(known, reached)
        return float(best) if np.isfinite(best) else None

    lasting = is_lasting(model) and not isinstance(model.ambiguity.radius, cp.Parameter)
    later = bound if lasting and np.isfinite(known) else bound()
    return {
        "empirical_value": mean,
        "robust_value": later,
        "robust_value_is_bound": later is not None,
    }


def mean_loss(model: Model, x: Array) -> Callable[[], float]:
    """The empirical value of a decision, computed now where it may be another one later."""

    def computed() -> float:
        return Empirical(model).value(at_quantiles(model, x))

    if is_lasting(model):
        return computed
    value = computed()
    return lambda: value


def is_lasting(model: Model) -> bool:
    """May a solution compute later what it is asked for?

    Certain parameters of the loss may have other values then, and much data is not to be kept.
    """
    entries = model.joint.size * model.joint.dimension if isinstance(model, RobustModel) else 0
    return not model.loss_parameters() and entries <= EASY
