"""A quasi-Newton method for smooth objectives, on the driver of the Frank-Wolfe methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.nearby import Nearby
from wdro_model.sets.quadratic_program import quadratic_over
from wdro_model.solvers import dual_rules, gradients
from wdro_model.solvers.directions.projected_newton import ProjectedNewton
from wdro_model.solvers.driver import Limits, Rules, run
from wdro_model.solvers.frank_wolfe import Callback, check_limits
from wdro_model.solvers.objective import Array
from wdro_model.solvers.outcome import Outcome, State
from wdro_model.solvers.steps import LineSearch

FAR = 1e12
"""Entries of a decision that are larger have run away."""


@dataclass(frozen=True)
class QuasiNewton:
    """Projected quasi-Newton steps: for curved sets, unbounded ones, or no constraints at all.

    The certificate is a Frank-Wolfe gap: over the set where it is bounded; else over what of it is
    within a distance of the decision, its size, in every entry.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> x = cp.Variable(3)
    >>> point = wdro.UncertainParameter(3, samples=rng.normal(size=(20, 3)))
    >>> ball = wdro.WassersteinBall(0.1)
    >>> problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - point)), [x >= -1, x <= 1], ball)
    >>> value = problem.solve(method="erm", solver=wdro.solvers.QuasiNewton())
    >>> problem.status, bool(np.allclose(x.value, point.samples.mean(axis=0), atol=1e-3))
    ('optimal', True)
    """

    gap: float = 1e-4
    """Stop when the gap is at most this fraction of |value|; of epsilon where that is larger, with
    the smoothed method."""
    max_iterations: int = 500
    samples: int = 100
    """Draws per sample where the inner integral is sampled."""
    time_limit: float | None = None
    """Seconds."""
    callbacks: Sequence[Callback] = ()
    """Called with the state before each step; one that returns True stops the run."""

    is_conic: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False
    takes_unbounded: ClassVar[bool] = True
    stage: ClassVar[str | None] = None
    dual_bound: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        check_limits(self)

    def run(
        self,
        objective: Any,
        feasible: FeasibleSet,
        start: Array | None,
        *,
        rng: np.random.Generator,
        dual_bound: float | None = None,
        active_set: Any = None,
        **display: Any,
    ) -> Outcome:
        """Minimise the objective from a starting point."""
        if dual_bound is not None:
            raise ValueError(
                "QuasiNewton minimises the dual variable out; use dual='exact', or FrankWolfe() "
                "with dual='vertex'."
            )
        whole = feasible.whole if isinstance(feasible, Nearby) else feasible
        rules = Rules(
            direction=ProjectedNewton(quadratic_over(whole)),
            step=LineSearch(),
            gradient=gradients.Full(),
            dual=dual_rules.Exact(),
        )
        limits = Limits(self.max_iterations, self.gap, self.time_limit)
        guards = () if feasible.is_bounded else (refuse_flight,)
        return run(
            objective,
            feasible,
            start,
            rules,
            limits,
            rng=rng,
            callbacks=(*self.callbacks, *guards),
            **display,
        )

    def describe(self, feasible: FeasibleSet) -> str:
        where = ""
        if isinstance(feasible, Nearby):
            where = ", over what is within the size of the decision (the set is unbounded)"
        return f"projected quasi-Newton, relative gap {self.gap:g}{where}"


def refuse_flight(state: State) -> None:
    """An UnboundedError where a decision runs away, and the objective goes on falling."""
    far = float(np.abs(state.x).max(initial=0.0))
    if far > FAR:
        raise UnboundedError(
            f"the objective falls without end: an entry of the decision has grown to {far:.1g} and "
            "nothing bounds it; bound the variables, for example by x <= 10, or check the sign of "
            "the loss."
        )
