"""The first-order methods of the library as settings of one driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from wdro_model.checks import choice, refuse
from wdro_model.errors import UnboundedError, unknown_name
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.quadratic_program import Nearby, quadratic_over
from wdro_model.solvers import directions, gradients
from wdro_model.solvers.directions import ActiveSet, DirectionRule, ProjectedNewton
from wdro_model.solvers.driver import Limits, Outcome, Rules, State, run
from wdro_model.solvers.features import GRADIENT_FEATURES, Feature, check_settings
from wdro_model.solvers.objective import Array
from wdro_model.solvers.steps import (
    STEPS,
    LineSearch,
    OpenLoop,
    StepRule,
    check_step,
    looks_along,
    rule_name,
)

Callback = Callable[[State], bool | None]
DirectionName = Literal[
    "auto",
    "plain",
    "conjugate",
    "biconjugate",
    "blended_pairwise",
    "blended_conjugate",
    "blended_newton",
    "oracle_newton",
]
StepName = Literal["line_search", "adaptive", "open_loop"]
"""The built-in step rules; `register_step` adds others."""


class FirstOrder:
    """Settings that the first-order methods share, and their way to the driver."""

    max_iterations: int
    time_limit: float | None
    callbacks: Sequence[Callback]
    stage: ClassVar[str | None] = None
    """The stage of a solve that runs it; None where the objective decides."""

    def __post_init__(self) -> None:
        check_settings(self)

    def _drive(
        self,
        objective: Any,
        feasible: FeasibleSet,
        start: Any,
        rules: Rules,
        gap: float,
        **rest: Any,
    ) -> Outcome:
        limits = Limits(self.max_iterations, gap, self.time_limit)
        rest = {"callbacks": self.callbacks, **rest}
        return run(objective, feasible, start, rules, limits, **rest)


@dataclass(frozen=True)
class FrankWolfe(FirstOrder):
    """Deterministic Frank-Wolfe: full gradients on fixed draws, a certified relative gap.

    Examples
    --------
    >>> import cvxpy as cp, networkx as nx, numpy as np, wdro_model as wdro
    >>> path = wdro.sets.ShortestPath(nx.grid_2d_graph(3, 3), (0, 0), (2, 2))
    >>> x = cp.Variable(path.dimension)
    >>> data = np.random.default_rng(0).uniform(1, 2, size=(20, path.dimension))
    >>> time = wdro.UncertainParameter(path.dimension, samples=data)
    >>> ball = wdro.WassersteinBall(1.0)
    >>> problem = wdro.Problem(cp.Minimize(time @ x), [wdro.In(x, path)], ball)
    >>> fast = wdro.solvers.FrankWolfe(gap=1e-3, direction="blended_pairwise")
    >>> print(f"{problem.solve(solver=fast):.2f}", problem.solution.relative_gap <= 1e-3)
    7.36 True
    """

    gap: float = 1e-4
    """Stop when the Frank-Wolfe gap is at most this fraction of |value|; of epsilon where that is
    larger, with the smoothed method."""
    max_iterations: int = 1000
    direction: DirectionName | DirectionRule = "auto"
    """"plain", "conjugate", "biconjugate", "blended_pairwise", "blended_conjugate",
    "blended_newton", "oracle_newton", a rule, or "auto": what the set prefers (traffic:
    towards equilibria where Numba is installed, else Newton directions by its oracle), else blended
    Newton directions on polytopes (conjugate ones over many vertices) and plain ones elsewhere."""
    step: StepName | str | StepRule = "line_search"
    """"line_search", "adaptive", "open_loop" (2/(t+2)), or a rule such as `OpenLoop(offset=7)`."""
    samples: int = 100
    """Draws per sample where the inner integral is sampled."""
    dual_bound: float | None = None
    """lambda_max for dual="vertex"; None calibrates it by the paper's Algorithm 3."""
    time_limit: float | None = None
    """Seconds."""
    callbacks: Sequence[Callback] = ()
    """Called with the state before each step; one that returns True stops the run."""

    features: ClassVar[frozenset[Feature]] = GRADIENT_FEATURES

    def __post_init__(self) -> None:
        check_settings(self)
        direction = self.direction
        if isinstance(direction, str):
            choice("direction", direction, ["auto", *directions.RULES])
        elif not isinstance(direction, DirectionRule):
            hint = "see DirectionRule in wdro_model.solvers.directions"
            raise refuse("direction", "a name or a rule object", direction, hint)
        if isinstance(self.step, str):
            choice("step", self.step, STEPS.names())
        else:
            object.__setattr__(self, "step", check_step("step", self.step))
        rule = directions.RULES.get(direction) if isinstance(direction, str) else direction
        if rule is not None and rule.needs_line_search and not looks_along(self.step_rule):
            raise ValueError(
                f"direction={self.direction!r} needs a step rule that looks along the line; use "
                "step='line_search' or 'adaptive', or direction='plain' with an open-loop step."
            )

    @property
    def step_rule(self) -> StepRule:
        return STEPS[self.step] if isinstance(self.step, str) else self.step

    def direction_name(self, feasible: FeasibleSet) -> str:
        """The direction rule for a set, by name."""
        if not isinstance(self.direction, str):
            return str(self.direction)
        if self.direction != "auto":
            return self.direction
        if not looks_along(self.step_rule):
            return "plain"
        if feasible.own_direction is not None:
            return str(feasible.own_direction)
        preferred = feasible.preferred_direction
        if preferred is None:
            return "blended_newton" if feasible.is_polytope else "plain"
        if preferred not in directions.RULES:
            raise ValueError(unknown_name("preferred_direction", preferred, directions.RULES))
        return str(preferred)

    def direction_rule(self, feasible: FeasibleSet) -> DirectionRule:
        """The direction rule for a set."""
        if not isinstance(self.direction, str):
            return self.direction
        name, own = self.direction_name(feasible), feasible.own_direction
        rule = own if own is not None and name == str(own) else directions.RULES[name]
        return rule.over(feasible)

    def run(
        self,
        objective: Any,
        feasible: FeasibleSet,
        start: Array | None,
        *,
        rng: np.random.Generator,
        dual_bound: float | None = None,
        active_set: ActiveSet | None = None,
        **display: Any,
    ) -> Outcome:
        """Minimise the objective from a starting point.

        Parameters
        ----------
        dual_bound
            With a bound the dual variable takes vertex steps on [0, dual_bound] as well;
            without one it is minimised out.
        active_set
            The active set of an earlier run over the same set, such as that for the last
            radius of a path: the run goes on from its point and its vertices, `start` is not used.
        """
        plain = dual_bound is not None and self.direction == "auto"
        rules = Rules(
            direction=directions.Plain() if plain else self.direction_rule(feasible),
            step=self.step_rule,
            gradient=gradients.Full(),
            dual=gradients.Exact() if dual_bound is None else gradients.Vertex(dual_bound),
        )
        display |= {"rng": rng, "active_set": active_set}
        return self._drive(objective, feasible, start, rules, self.gap, **display)

    def describe(self, feasible: FeasibleSet) -> str:
        name, step = self.direction_name(feasible).replace("_", " "), rule_name(self.step_rule)
        return f"Frank-Wolfe, {name} directions, {step}, relative gap {self.gap:g}"


@dataclass(frozen=True)
class MomentumFrankWolfe(FirstOrder):
    """The paper's Algorithm 2: momentum stochastic Frank-Wolfe with mini-batches.

    Steps 2/(t+7), momentum 4/(t+8)^(2/3), batches without replacement, S fresh draws for each
    sample of the batch, and a Frank-Wolfe step of the dual variable on [0, lambda_max] from
    lambda_max/2. It runs all its iterations: gaps of momentum estimates certify nothing.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> x = cp.Variable(2)
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0], [1.5, 1.5]])
    >>> simplex, ball = wdro.sets.Simplex(2), wdro.WassersteinBall(0.5)
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [wdro.In(x, simplex)], ambiguity=ball)
    >>> stochastic = wdro.solvers.MomentumFrankWolfe(batch_size=2, samples=20, max_iterations=200)
    >>> value = problem.solve(method="smoothed", solver=stochastic, epsilon=0.5)
    >>> problem.solution.iterations
    200
    """

    batch_size: int = 10
    samples: int = 10
    """Draws S for each sample of the batch."""
    max_iterations: int = 5000
    dual_bound: float | None = None
    """lambda_max; None calibrates it by the paper's Algorithm 3."""
    gap: float = 1e-4
    """The relative gap at which the final, full evaluation is called optimal."""
    time_limit: float | None = None
    """Seconds."""
    callbacks: Sequence[Callback] = ()

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.GRADIENTS})

    def run(
        self,
        objective: Any,
        feasible: FeasibleSet,
        start: Array,
        *,
        rng: np.random.Generator,
        dual_bound: float | None = None,
        tracking: gradients.Tracking | None = None,
        **display: Any,
    ) -> Outcome:
        """Minimise the objective; the dual takes vertex steps, or tracks the batches."""
        rules = Rules(
            direction=directions.Plain(),
            step=OpenLoop(offset=7.0),
            gradient=gradients.Momentum(self.batch_size),
            dual=tracking
            or (gradients.Exact() if dual_bound is None else gradients.Vertex(dual_bound)),
        )
        return self._drive(objective, feasible, start, rules, 0.0, rng=rng, **display)

    def describe(self, feasible: FeasibleSet) -> str:
        return (
            f"momentum stochastic Frank-Wolfe, {self.max_iterations} iterations, batches of "
            f"{self.batch_size} samples, {self.samples} draws each, steps 2/(t+7)"
        )


# ------------------------------
# A quasi-Newton method for smooth objectives, on the driver of the Frank-Wolfe methods


LARGEST_ENTRY = 1e12
"""Entries of a decision beyond which it has run away, and the objective is called unbounded."""


@dataclass(frozen=True)
class QuasiNewton(FirstOrder):
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

    features: ClassVar[frozenset[Feature]] = GRADIENT_FEATURES | {
        Feature.UNBOUNDED_SETS,
        Feature.COMPOSITE,
    }
    dual_bound: ClassVar[float | None] = None

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
            dual=gradients.Exact(),
        )
        if not feasible.is_bounded:
            display["callbacks"] = (*self.callbacks, refuse_flight)
        return self._drive(objective, feasible, start, rules, self.gap, rng=rng, **display)

    def describe(self, feasible: FeasibleSet) -> str:
        where = ""
        if isinstance(feasible, Nearby):
            where = ", over what is within the size of the decision (the set is unbounded)"
        return f"projected quasi-Newton, relative gap {self.gap:g}{where}"


def refuse_flight(state: State) -> None:
    """An UnboundedError where a decision runs away, and the objective goes on falling."""
    far = float(np.abs(state.x).max(initial=0.0))
    if far > LARGEST_ENTRY:
        raise UnboundedError(
            f"the objective falls without end: an entry of the decision has grown to {far:.1g} and "
            "nothing bounds it; bound the variables, for example by x <= 10, or check the sign of "
            "the loss."
        )
