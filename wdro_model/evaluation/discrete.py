"""Discrete decisions from fractional ones: rounding to a tree, a path, an integer point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.display.tables import Facts, brief, facts_html, present_facts, words
from wdro_model.errors import UnboundedError
from wdro_model.loss import BatchedLoss, CallableLoss
from wdro_model.model import Model, RobustModel, compiled
from wdro_model.objectives import exact
from wdro_model.objectives.dual import DualMinimum
from wdro_model.objectives.exact.affine import linear_risk, risk_at_choices
from wdro_model.sets.cone_program import twin_of
from wdro_model.sets.feasible_set import FeasibleSet, In
from wdro_model.sets.rounding import best_of, descend
from wdro_model.solve import STAGES, plan
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.integer import chooses
from wdro_model.solve.notes import FRACTIONAL
from wdro_model.solve.options import Options
from wdro_model.solve.plan import empirical_with_convexity
from wdro_model.solve.scales import first_dual, prepare
from wdro_model.solve.true_risk import robust_value, worst_distribution
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.objective import Array
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk, ParametricSearch

if TYPE_CHECKING:
    from wdro_model.problem import Problem


MEAN, ROBUST = "mean loss over the samples", "worst-case risk"
SMOOTHED = f"smoothed {ROBUST}"
ROUNDED = "rounded"
"""The status of a decision that was rounded."""


@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search for discrete decisions: larger ones find better ones in more time."""

    costly_evaluations: int = 40
    """Evaluations of a criterion without a closed form."""
    long_decision: int = 2000
    """Coordinates of a decision from which evaluations of smooth criteria are limited as well."""
    long_decision_evaluations: int = 300
    """Evaluations of a smooth criterion at long decisions."""
    vertices: int = 100
    """Vertices of the solution, the heaviest first, that are candidates."""
    completed_candidates: int = 8
    """Discrete parts of candidates whose continuous part is solved again."""
    completed_neighbours: int = 24
    """Discrete parts of neighbours of the best candidate whose continuous part is solved again."""


LIMITS = SearchLimits()


@dataclass(frozen=True)
class Criterion:
    """A function of the flat decision, and the method of `solve` that minimises it."""

    name: str
    method: str
    value: Callable[[Array], float]
    slope: Callable[[Array], Array]
    """A gradient of the value, or a subgradient where there is none."""
    convex: bool
    max_evaluations: int | None = None
    """Evaluations that a search may take; None where they cost little."""
    options: Options = field(default_factory=Options)
    """Further options of `solve`."""
    values: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, x: Array) -> float:
        key = x.tobytes()
        if key not in self.values:
            self.values[key] = float(self.value(x))
        return self.values[key]

    @property
    def gradient(self) -> Callable[[Array], Array] | None:
        """The slope, if the criterion is convex, so that it bounds what exchanges can gain."""
        return self.slope if self.convex else None


def criterion_of(model: Model, solution: Solution | None, x: Array) -> Criterion:
    """The mean loss after ERM and without a ball, else the worst-case risk.

    The risk is exact where a formula is known, smooth or not; elsewhere it is the smoothed one, at
    the scales of the solution.
    """
    is_long = model.loss.dimension > LIMITS.long_decision
    limit = LIMITS.long_decision_evaluations if is_long else None
    averaged = model.radius == 0 or (solution is not None and solution.method == "erm")
    if averaged or not isinstance(model, RobustModel):
        return smooth_criterion(MEAN, "erm", empirical_with_convexity(model), limit)
    if not exact.has_counterpart(model):
        return smoothed_risk(model, solution, x)
    entry = exact.counterpart(model)
    if entry.has_objective(model):
        return smooth_criterion(ROBUST, "exact", entry.objective(model), limit)
    return Criterion(
        ROBUST,
        "exact",
        lambda y: robust_value(model, y, entry),
        lambda y: subgradient_at_worst_case(model, entry, y),
        model.convex_in_decision,
        LIMITS.costly_evaluations,
    )


def smooth_criterion(
    name: str, method: str, objective: Any, max_evaluations: int | None, **details: Any
) -> Criterion:
    """The value and gradient of an objective that is smooth in the decision."""
    return Criterion(
        name,
        method,
        lambda x: objective.evaluate(x).value,
        lambda x: np.asarray(objective.evaluate(x).gradient),
        objective.convex,
        max_evaluations,
        **details,
    )


def smoothed_risk(model: RobustModel, solution: Solution | None, x: Array) -> Criterion:
    """The smoothed objective, on draws that no solve used."""
    scales = (None, None) if solution is None else (solution.epsilon, solution.sigma)
    options = Options(epsilon=scales[0], sigma=scales[1], progress=False)
    solver = FrankWolfe()
    recipe = prepare(model, solver, options)
    objective = recipe.objective(solver.samples, 0)
    dual = None if solution is None else solution.dual
    objective.minimum = DualMinimum(dual or first_dual(model, x), np.nan)
    options = Options(epsilon=recipe.epsilon, sigma=recipe.sigma, progress=False)
    return smooth_criterion(
        SMOOTHED, "smoothed", objective, LIMITS.costly_evaluations, options=options
    )


def subgradient_at_worst_case(model: RobustModel, entry: exact.Counterpart, x: Array) -> Array:
    """The gradient of the expected loss under the worst distribution at x: a subgradient."""
    worst = worst_distribution(model, x, entry)
    _, pullback = model.loss(x, worst.rows)
    return np.asarray(pullback(worst.weights))


# ------------------------------
# A discrete decision in place of a fractional one: a tree, a path, a point of integers


@dataclass(frozen=True)
class Rounded:
    """A discrete decision beside the fractional one that it replaces.

    Examples
    --------
    >>> teams = wdro.sets.Subsets(4, k=2)
    >>> x = cp.Variable(4)
    >>> cost = wdro.UncertainParameter(4, samples=[[1.0, 2.0, 2.0, 3.0], [1.5, 1.0, 2.0, 3.0]])
    >>> problem = wdro.Problem(cp.Minimize(cost @ x), [wdro.In(x, teams)], ball)
    >>> value = problem.solve()
    >>> rounded = problem.round()
    >>> rounded.criterion, rounded.value >= rounded.fractional_value
    ('worst-case risk', True)
    """

    decision: Mapping[cp.Variable, Array]
    criterion: str
    """The name of its criterion: "worst-case risk", "smoothed worst-case risk", or after ERM "mean
    loss over the samples"."""
    value: float
    fractional_value: float
    """The criterion at the fractional decision."""
    lower_bound: float | None
    """A bound on all discrete decisions from below, where the fractional solve proved one."""

    @property
    def gap(self) -> float | None:
        """A bound on how much better the best discrete decision could be."""
        return None if self.lower_bound is None else max(0.0, self.value - self.lower_bound)

    def _facts(self) -> Facts:
        """The two decisions side by side."""
        gap = None
        if self.gap is not None:
            gap = f"at most {self.gap:.3g} ({self.gap / max(abs(self.value), 1e-300):.2%})"
        return present_facts(
            {
                "judged by": self.criterion,
                "rounded": f"{self.value:.8g}",
                "fractional": f"{self.fractional_value:.8g}",
                "lower bound": None if self.lower_bound is None else f"{self.lower_bound:.8g}",
                "above the best": gap,
                "not zero": words(
                    f"{np.count_nonzero(x)} of {x.size} entries of {variable.name()}"
                    for variable, x in self.decision.items()
                ),
            }
        )

    _repr_html_ = facts_html

    def __repr__(self) -> str:
        return brief(
            self, f"{self.criterion} {self.value:.6g}, fractional {self.fractional_value:.6g}"
        )

    def __str__(self) -> str:
        text = (
            f"rounded: {self.criterion} {self.value:.8g}, "
            f"{self.fractional_value:.8g} for the fractional decision"
        )
        if self.gap is None:
            return text
        share = self.gap / max(abs(self.value), 1e-300)
        return f"{text}; at most {self.gap:.3g} ({share:.2%}) above the best discrete decision"


def refuse_rounding(problem: Problem) -> None:
    """A ValueError where the feasible set has no discrete points to round to."""
    problem._model.feasible.oracle().check_rounds()


def round_decision(problem: Problem) -> Rounded:
    """Replace the problem's decision by the best discrete decision near it."""
    x = problem._decision()
    model = problem._current_model()
    rounded, point = round_to_discrete(model, x, problem._solution_at(x))
    problem._decide(model.feasible.layout.split(point))
    return rounded


def rounded_solution(problem: Problem, solution: Solution) -> tuple[Solution, float | None]:
    """A solution with its decision rounded, and the promise of the rounded decision.

    The promise is the mean loss for ERM and the worst-case risk for the others, None if not known.
    """
    began = time.perf_counter()
    model = problem._current_model()
    x = model.feasible.layout.join(solution.everything)
    rounded, vertex = round_to_discrete(model, x, solution)
    assurance = solution.assurance  # of a method's own decisions, or of all
    discrete = replace(
        solution,
        status=ROUNDED,
        value=rounded.value,
        decision=model.feasible.layout.split(vertex),
        seconds=solution.seconds + time.perf_counter() - began,
        gap=rounded.gap,
        lower_bound=rounded.lower_bound,
        diagnostics=None,
        active_set=None,
        assurance=assurance if assurance is not None and assurance.covers_law else None,
        notes=tuple(note for note in solution.notes if FRACTIONAL not in note),
        **evaluations(model, vertex),
    )
    erm = solution.method == "erm"
    return discrete, discrete.empirical_value if erm else discrete.robust_value


def round_to_discrete(model: Model, x: Array, solution: Solution | None) -> tuple[Rounded, Array]:
    """The best of x itself, if it is discrete, of vertices near x and of those reached from them.

    Where a part of the decision is continuous it is solved again for each discrete part. Where the
    criterion is concave at 0/1 points, the best of all is found by a search along one parameter.
    """
    oracle = model.feasible.oracle()
    oracle.check_rounds()
    criterion = criterion_of(model, solution, x)
    choice = best_choice(model, criterion)
    if choice is not None:
        best, bound = choice
        lower_bound: float | None = min(bound, criterion(best))
    else:
        candidates = list(discrete_points(oracle, x, solution, criterion))
        discrete = oracle.discrete_coordinates()
        if discrete.all():
            best = oracle.round(x, criterion, candidates)
        else:
            candidates[1:1] = oracle.discrete_near(x)
            best = best_completed(model, criterion, x, candidates, discrete)
        lower_bound = proven_bound(solution, criterion)
    rounded = Rounded(
        decision=model.feasible.layout.split_user(best),
        criterion=criterion.name,
        value=criterion(best),
        fractional_value=criterion(x),
        lower_bound=lower_bound,
    )
    return rounded, best


def best_choice(model: Model, criterion: Criterion) -> tuple[Array, float] | None:
    """The best 0/1 point and a lower bound at all of them; None if the criterion is not concave."""
    if not chooses(model):
        return None
    risk: ChoiceRisk | BottleneckRisk | None = None
    if criterion.method == "erm":
        risk = linear_risk(model)
    elif criterion.method == "exact" and isinstance(model, RobustModel):
        risk = risk_at_choices(model)
    oracle = model.feasible.oracle()
    if risk is None or (oracle.nonnegative_directions and bool(np.any(risk.costs < 0))):
        return None
    if isinstance(risk, ChoiceRisk):
        result = ParametricSearch(oracle, risk).run()
    else:
        result = risk.search(oracle)
    return result.x, result.lower_bound


def discrete_points(
    oracle: FeasibleSet, x: Array, solution: Solution | None, criterion: Criterion
) -> Iterator[Array]:
    """The decision of a solve, the vertex of steepest descent, the heaviest of the active set."""
    if solution is not None and oracle.is_vertex(x):
        yield x
    yield steepest_vertex(oracle, criterion.slope(x))
    active = None if solution is None else solution.active_set
    if active is None:
        return
    heaviest = np.argsort(-active.weights, kind="stable")
    for k in heaviest[: criterion.max_evaluations or LIMITS.vertices]:
        vertex = active.vertex(int(k))
        if oracle.is_vertex(vertex):
            yield vertex


def steepest_vertex(oracle: FeasibleSet, slope: Array) -> Array:
    """The vertex of steepest descent; by the discrete part alone where the rest has no bound."""
    try:
        return oracle.minimize(slope)
    except UnboundedError:
        return oracle.minimize(np.where(oracle.discrete_coordinates(), slope, 0.0))


def best_completed(
    model: Model,
    criterion: Criterion,
    x: Array,
    candidates: list[Array],
    discrete: Array,
) -> Array:
    """The best decision with the discrete part of a candidate, or of one reached from there."""
    completed = Completion(model, discrete, criterion)
    patterns: dict[bytes, Array] = {}
    for candidate in candidates:
        patterns.setdefault(completed.key(candidate), candidate)
    start = best_of(list(patterns.values())[: LIMITS.completed_candidates], completed)
    oracle = model.feasible.oracle()

    def neighbours(vertex: Array) -> Iterator[Array]:
        near = oracle.neighbours(completed.decision(vertex), x)
        return (other for other in near if not completed.knows(other))

    return completed.decision(descend(start, completed, neighbours, LIMITS.completed_neighbours))


def proven_bound(solution: Solution | None, criterion: Criterion) -> float | None:
    """A lower bound over the hull, from a solve of the criterion itself."""
    if solution is None or not solution.convex or solution.method != criterion.method:
        return None
    if solution.lower_bound is not None or solution.status != settings.OPTIMAL:
        return solution.lower_bound
    return solution.value


# ------------------------------------------------------------------ the continuous part
class Completion:
    """The value of a discrete part: min criterion(x) over feasible x with x[discrete] = values.

    The problem is stated on continuous twins of the variables, so that no solver for integers is
    needed, and compiled once for all values.
    """

    def __init__(self, model: Model, discrete: Array, criterion: Criterion) -> None:
        layout = model.feasible.layout
        self.layout, self.discrete, self.criterion = layout, discrete, criterion
        self.twins = {v: twin_of(v, relaxed=True) for v in layout.variables}
        self.fixed = cp.Parameter(int(discrete.sum()), value=np.zeros(int(discrete.sum())))
        self._model = self._compile(model)
        self._completions: dict[bytes, tuple[float, Array]] = {}

    def __call__(self, x: Array) -> float:
        return self._completion(x)[0]

    def decision(self, x: Array) -> Array:
        """The best known decision with the discrete part of x; x itself may be it."""
        return self._completion(x)[1]

    def knows(self, x: Array) -> bool:
        """Whether this discrete part was completed before."""
        return self.key(x) in self._completions

    def key(self, x: Array) -> bytes:
        """The discrete part of x."""
        return np.rint(x[self.discrete]).tobytes()

    def _completion(self, x: Array) -> tuple[float, Array]:
        key = self.key(x)
        if key not in self._completions:
            whole = np.where(self.discrete, np.rint(x), x)
            points = [whole, *self._solve(whole)]
            values = ((self.criterion(point), point) for point in points)
            self._completions[key] = min(values, key=lambda pair: pair[0])
        return self._completions[key]

    def _solve(self, x: Array) -> Iterator[Array]:
        """The best decision with the discrete coordinates of x; none if no solver finds it."""
        self.fixed.value = x[self.discrete]
        try:
            chosen = plan(self._model, self.criterion.method, None)
            solution = STAGES[chosen.stage](
                self._model, chosen, chosen.solver, self.criterion.options
            )
        except (ValueError, SolverError):  # no convex form, or numbers that a solver gives up on
            return
        best = self.layout.join({v: solution.everything[twin] for v, twin in self.twins.items()})
        best[self.discrete] = x[self.discrete]
        yield best

    def _compile(self, model: Model) -> Model:
        """The model on the twins, on the same samples."""
        feasible, by_id = model.feasible, {id(v): twin for v, twin in self.twins.items()}
        constraints = [
            c if isinstance(c, (bool, np.bool_)) else c.tree_copy(by_id)
            for c in feasible.written_constraints()
        ]
        flat = cp.hstack([cp.vec(self.twins[v], order="C") for v in self.layout.variables])
        constraints.append(flat[np.flatnonzero(self.discrete)] == self.fixed)
        for member in feasible.memberships:
            if not self.discrete[self.layout.slices[member.variable]].any():
                constraints.append(In(self.twins[member.variable], member.set))
        loss = loss_on(model.loss.loss, self.twins)
        ball = model.ambiguity if isinstance(model, RobustModel) and model.has_ball else None
        twin = compiled(loss, constraints, ball, model.assume_convex)
        if isinstance(twin, RobustModel) and isinstance(model, RobustModel):
            return twin.with_joint(model.joint)
        return twin


def loss_on(loss: Any, twins: dict[cp.Variable, cp.Variable]) -> Any:
    """The loss on other variables."""
    if not isinstance(loss, CallableLoss):
        return BatchedLoss(loss.expression.tree_copy({id(v): twin for v, twin in twins.items()}))
    originals = {twins[v]: v for v in loss.variables}

    def function(x: Any, scenarios: Any) -> tuple[Any, Any]:
        values, pullback = loss.function({v: x[t] for t, v in originals.items()}, scenarios)

        def renamed(weights: Array) -> dict[Any, Any]:
            return {twins.get(key, key): slope for key, slope in pullback(weights).items()}

        return values, renamed

    return CallableLoss(function, list(originals), loss.parameters, loss.convex, loss.name)
