"""What a run says: its state before each step, why it ended, where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.objective import Array, Point
from wdro_model.solvers.trace import Trace

ABSOLUTE_GAP = 1e-12
"""A gap under this is small whatever the value."""


def tolerance(relative: float, value: float, scale: float = 0.0) -> float:
    """What a relative tolerance allows at a value: nothing under `scale` is told apart."""
    return max(relative * max(abs(value), scale), ABSOLUTE_GAP)


def relative_gap(gap: float, value: float) -> float:
    """gap / |value|, and the gap itself where the value is next to nothing."""
    return gap / max(abs(value), ABSOLUTE_GAP)


class Stop(Enum):
    """Why a run ended.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.Stop.TIME.value
    'time limit'
    """

    GAP = "the gap is under the tolerance"
    ITERATIONS = "iteration limit"
    TIME = "time limit"
    CALLBACK = "a callback asked to stop"
    INTERRUPT = "interrupted from the keyboard"
    DRAWS = "the gap is under the tolerance on the draws of the run, not on fresh ones"
    NOISE = "the gap is under the tolerance, the Monte Carlo error is not"
    STALLED = "no step along the direction improves the objective"


@dataclass(frozen=True)
class State:
    """What a callback sees before each step.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> seen = []
    >>> def remember(state):                          # True would stop the run
    ...     seen.append(state.gap)
    >>> x, point = cp.Variable(2), wdro.UncertainParameter(2, samples=[[0.2, 0.3], [0.4, 0.5]])
    >>> problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - point)), [x >= 0, x <= 1])
    >>> value = problem.solve(solver=wdro.solvers.FrankWolfe(callbacks=[remember]))
    >>> seen[-1] < seen[0]
    True
    """

    iteration: int
    time: float
    x: Array
    value: float
    gap: float
    dual: float | None
    gradient: Array
    vertex: Array


@dataclass(frozen=True)
class Outcome:
    """The last point of a run that was evaluated.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> from wdro_model.counterparts import Point
    >>> class Distance:
    ...     convex = True
    ...     def evaluate(self, x, dual=None):
    ...         return Point(float((x - 0.3) @ (x - 0.3)), 2 * (x - 0.3))
    ...     def describe(self):
    ...         return "|x - 0.3|^2"
    >>> rng, box = np.random.default_rng(0), wdro.sets.Box(np.zeros(2), 1.0)
    >>> outcome = wdro.solvers.FrankWolfe(gap=1e-6).run(Distance(), box, np.ones(2), rng=rng)
    >>> outcome.x.round(3), outcome.stop.name
    (array([0.3, 0.3]), 'GAP')
    """

    x: Array
    point: Point
    gap: float
    """Infinite where the run was interrupted before the first answer of the oracle."""
    lower_bound: float
    """The best bound F(x_t) - gap_t over the run; -inf where gaps are not certified."""
    stop: Stop
    iterations: int
    seconds: float
    oracle_calls: int
    trace: Trace
    dual: float | None
    active_set: ActiveSet | None = None
    """The vertices of which x is a combination, for rules that keep them; None after an interrupt.
    Another run can start from it."""
