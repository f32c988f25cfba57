"""The solution that is reported: status, certificate and true risk; and the clock of its solve."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import cvxpy as cp
import numpy as np
from cvxpy import settings

from wdro_model.display.tables import Facts, brief, facts_html, present_facts
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.ascent import climb
from wdro_model.objectives.cvar_thresholds import at_quantiles, risk_on
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.smoothed_risk import value_scale
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.solve.compile import Compilation
from wdro_model.solve.notes import shortfall_notes
from wdro_model.solve.plan import Plan
from wdro_model.solve.true_risk import known_robust_value
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, Outcome, QuasiNewton, Stop
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.driver import relative_gap, tolerance
from wdro_model.solvers.objective import Array, Diagnostics, Point
from wdro_model.solvers.trace import Trace
from wdro_model.uncertainty.ambiguity import Assurance

MAX_DEFERRED_NUMBERS = 2**20
"""Numbers of data up to which a solution computes its mean loss only when it is asked for."""
STATIONARY = "stationary"
"""The status of a point with a small gap where convexity in the decision is not known."""


class Clock:
    """The time limit of a solve, and what has stopped it: the end of the time or Ctrl-C.

    limit: seconds from now; None for no limit.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.began, self.limit = time.perf_counter(), limit
        self.error: OutOfTime | KeyboardInterrupt | None = None
        """The error that ended the last block of `until_stopped`; None if it ran to its end."""

    @property
    def seconds(self) -> float:
        """Seconds since the solve began."""
        return time.perf_counter() - self.began

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the limit, a positive number; None without a limit."""
        return None if self.limit is None else max(1e-9, self.limit - self.seconds)

    @property
    def is_over(self) -> bool:
        """Has the limit passed?"""
        return self.limit is not None and self.seconds >= self.limit

    @property
    def stop(self) -> Stop | None:
        """Time limit or Ctrl-C, where one of them has ended the last block."""
        if self.error is None:
            return None
        return Stop.TIME if isinstance(self.error, OutOfTime) else Stop.INTERRUPT

    def limited(self, solver: Any, *, used: int = 0, share: float = 1.0) -> Any:
        """The solver with a share of the time that is left, and the iterations after `used`."""
        limits: dict[str, Any] = {"max_iterations": max(0, solver.max_iterations - used)}
        if (left := self.seconds_left) is not None:
            limits["time_limit"] = share * left
        return replace(solver, **limits)

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Run a block that the end of the time and Ctrl-C may end early; `stop` tells which."""
        self.error = None
        try:
            yield
        except (OutOfTime, KeyboardInterrupt) as error:
            self.error = error


class Later:
    """A field that may be set to a function, which is called when the field is first read."""

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
        # A pickle holds the values of fields of type `Later`, not the functions.
        known = {"_robust_value": self.robust_value, "_empirical_value": self.empirical_value}
        return {**self.__dict__, **known}

    @property
    def everything(self) -> dict[cp.Variable, np.ndarray]:
        """The decision and the thresholds: all variables of the solver."""
        return {**self.decision, **self.thresholds}

    def turned(self) -> Solution:
        """The solution for minus the objective: a minimised loss becomes a maximised reward."""

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
        >>> round(problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-3)), 2)
        2.21
        >>> solution = problem.solution
        >>> (solution.weights @ solution.vertices).round(2)           # the decision
        array([0.5, 0.5])
        """
        return None if self.active_set is None else self.active_set.vertices

    @property
    def weights(self) -> np.ndarray | None:
        """The weights (k,) of the vertices, which sum to 1; None if not kept."""
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
        draws, robust = self.diagnostics, _number(self.robust_value)
        if robust is not None and self.robust_value_is_bound:
            robust = f"{'<=' if self.maximise else '>='} {robust}"
        scales = None
        if self.epsilon is not None and self.sigma is not None:
            sigma = np.unique(np.atleast_1d(self.sigma))
            spread = f"{sigma[0]:.4g}" if sigma.size == 1 else f"{sigma[0]:.4g} to {sigma[-1]:.4g}"
            scales = f"{self.epsilon:.4g}, {spread}"
        return present_facts(
            {
                "method": self.method,
                "status": f"{self.status} ({self.stop})",
                "value": f"{self.value:.8g}",
                "robust value": robust,
                "empirical value": _number(self.empirical_value),
                "out of sample": None
                if self.assurance is None
                else self.assurance.sentence(self.bound, self.maximise),
                "gap": None
                if self.gap is None
                else f"{self.gap:.3g} (relative {self.relative_gap:.3g})",
                "dual": _number(self.dual),
                "dual bound": _number(self.dual_bound),
                "epsilon, sigma": scales,
                "integration": self.integration,
                "effective draws": None
                if draws is None
                else f"{draws.effective_size:.3g} of {draws.draws} "
                f"(worst sample {draws.smallest_effective_size:.3g})",
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


def report(
    model: Model,
    chosen: Plan,
    solver: FrankWolfe | QuasiNewton | MomentumFrankWolfe,
    outcome: Outcome,
    point: Point,
    gap: float,
    clock: Clock,
    *,
    convex: bool,
    calls_before: int,
    same_objective: bool = True,
    reliable: bool = True,
    likely: Array | None = None,
    **details: Any,
) -> Solution:
    """The solution of a first-order run.

    calls_before: calls of the oracle before the solve.
    same_objective: the value was not re-estimated, so that the bounds of the run hold for it.
    reliable: the Monte Carlo error of the value is within the tolerance.
    likely: the samples as the smoothed adversary moves them.
    details: other fields of the solution.
    """
    value = point.value
    error = 0.0 if point.diagnostics is None else point.diagnostics.standard_error
    # F, minimised over the dual, is a lower bound on the worst-case risk: subtract its errors.
    below = value - 2 * error - (point.dual_residual if point.dual_gradient is None else gap)
    below = below if reliable else -np.inf
    values = evaluations(model, outcome.x, None, point.dual, below, likely, clock.is_over)
    robust = None if values.get("robust_value_is_bound") else values["robust_value"]
    if robust is not None and details.get("epsilon") is not None:
        mean, notes = values["empirical_value"](), details.get("notes", ())
        details["notes"] = (*notes, *shortfall_notes(model, value, mean, robust, notes))
    epsilon = details.get("epsilon")
    scale = 0.0 if epsilon is None else value_scale(epsilon, model.radius, point.dual)
    close = gap <= tolerance(solver.gap, value, scale)
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
        seconds=clock.seconds,
        stop=outcome.stop.value,
        convex=convex,
        iterations=outcome.iterations,
        oracle_calls=model.feasible.oracle().calls - calls_before,
        gap=gap,
        lower_bound=float(bound) if convex and reliable else None,
        dual=point.dual,
        trace=outcome.trace,
        active_set=outcome.active_set,
        **details,
        **values,
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

    robust: the worst-case risk, where an exact solve gave it.
    dual: the price of transport, after a smoothed solve.
    known: the lower bound on the worst-case risk that the smoothed solve gave.
    likely: the samples as the smoothed adversary moves them.
    late: the time limit has passed, so that nothing expensive is computed.
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
        # The risk on samples that ascent has moved within the ball is a lower bound as well.
        best, ascent = known, None if late else climb(model, x, dual, likely)
        if ascent is not None:
            best = max(best, risk_on(model, x, ascent.rows, model.shares.probabilities))
        return float(best) if np.isfinite(best) else None

    deferred = can_defer(model) and not isinstance(model.ambiguity.radius, cp.Parameter)
    least = bound if deferred and np.isfinite(known) else bound()
    known_bound = {"robust_value": least, "robust_value_is_bound": least is not None}
    return {"empirical_value": mean, **known_bound}


def mean_loss(model: Model, x: Array) -> Callable[[], float]:
    """The empirical value of a decision as a function, computed now where it may change later."""

    def computed() -> float:
        return Empirical(model).value(at_quantiles(model, x))

    if can_defer(model):
        return computed
    value = computed()
    return lambda: value


def can_defer(model: Model) -> bool:
    """May a solution compute values of its decision later?

    No if certain parameters of the loss may change, or much data would be kept in memory.
    """
    entries = model.joint.size * model.joint.dimension if isinstance(model, RobustModel) else 0
    return not model.loss_parameters() and entries <= MAX_DEFERRED_NUMBERS
