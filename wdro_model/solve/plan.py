"""Plan a solve: the objective, the solver, and the reasons for both.

Planning solves no program. With many samples, the program of a few extreme ones is written to see
whether it is convex. `Problem.solve` and `Problem.explain` call `plan`; a new method is one more
entry of `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import NoReformulationError, UnboundedError, unknown_name
from wdro_model.loss import CallableLoss
from wdro_model.loss.callable import refuse_wrong_gradient
from wdro_model.loss.domains import refuse_outside_domain
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import degree
from wdro_model.loss.structure import is_canonicalisable
from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.cvar_thresholds import EmpiricalTails
from wdro_model.objectives.empirical import Empirical, Program, empirical_program
from wdro_model.objectives.exact import Counterpart
from wdro_model.objectives.exact.decomposition import groups_of
from wdro_model.objectives.exact.lipschitz_loss import mean_maxima
from wdro_model.objectives.exact.maxima import SampleMaxima
from wdro_model.objectives.exact.quadratic_form import (
    MOST_EIGENVALUES,
    hessian_of_quadratic,
    is_positive_semidefinite,
)
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.elementary import Ball
from wdro_model.sets.feasible_set import checked_vertex
from wdro_model.sets.quadratic_program import Nearby
from wdro_model.solve.compile import Compilation, CompiledProgram
from wdro_model.solvers import (
    Aggregation,
    BranchAndBound,
    Conic,
    FrankWolfe,
    QuasiNewton,
    Simplicial,
    Solver,
    cone_solver,
)
from wdro_model.solvers.features import Feature, has_features, require
from wdro_model.solvers.objective import Objective


@dataclass(frozen=True)
class Limits:
    """Sizes at which another method is faster, measured on the models of benchmarks/."""

    form_variables: int = 5000
    """Auxiliary variables up to which the CVXPY form of a set is used in place of its oracle."""
    curved_variables: int = 500
    """Variables up to which QuasiNewton is chosen for curved sets; above, Frank-Wolfe."""
    composite_numbers: int = 2_000
    """Entries of the data above which a smooth mean loss takes gradients, not cones."""
    composite_gap: float = 1e-6
    """Relative gap to which such a loss is minimised."""
    aggregated_samples: int = 5_000
    """Samples from which those with the same largest piece are merged."""
    aggregated_width: int = 600
    """Most coefficients of the affine pieces: the Hessian of each Newton step is as wide."""


LIMITS = Limits()
UNKNOWN_ATOM = "the loss has an atom that CVXPY's solvers do not know"


@dataclass(frozen=True)
class Plan:
    """A way to solve a model. Programs and objectives are built when they are asked for."""

    method: str
    solver: Solver
    formula: str
    reasons: tuple[str, ...]
    by_sample: bool = False
    """Does the program of the objective contain every sample, rather than only their mean?"""
    has_program: bool = False
    """Does the solver work on a convex CVXPY program?"""
    objective: Callable[[], Objective] | None = None
    """The objective as a smooth function, for the Frank-Wolfe methods."""
    counterpart: Counterpart | None = None
    """The exact counterpart; None for the mean loss and for a smoothed objective."""
    remainder: Callable[[], Program] | None = None
    """The worst-case risk minus a smooth mean loss, where that is a program without samples."""
    maxima: Callable[[RobustModel], SampleMaxima | None] | None = None
    """The objective by maxima of affine forms of the samples, where it has that form."""
    key: tuple[Any, ...] = ()
    """The key of the request, under which a compiled program is kept."""
    compiled: CompiledProgram | None = None
    """The program of an earlier solve, to be solved again."""
    compilation: Compilation = Compilation.FIRST

    @property
    def stage(self) -> str:
        """The name of the stage of the pipeline that runs the plan."""
        if self.solver.stage is not None:
            return self.solver.stage
        if self.objective is None and self.remainder is not None:
            return "composite"
        return "smoothed" if self.objective is None else "first_order"

    def because(self, reason: str) -> Plan:
        """The plan with one more reason, placed before the others."""
        return replace(self, reasons=(reason, *self.reasons))

    def program(self, model: Model, count: int | None = None) -> Program | None:
        """The objective as a convex program; None where CVXPY sees no convexity.

        count: the number of samples of the whole data, where `model` has a few of them.
        """
        if self.counterpart is None:
            return empirical_program(model, count=count)
        assert isinstance(model, RobustModel)
        return exact.program_of(model)

    def counted(self, model: Model) -> Model:
        """The model without its ball, where the objective is the mean loss."""
        if self.counterpart is None and isinstance(model, RobustModel):
            return model.without_ball()
        return model

    def has_kinks(self, model: Model) -> bool:
        """Is the objective a mean of maxima of several pieces, which Frank-Wolfe cannot follow?"""
        pieces, is_mean = model.structure.pieces, self.counterpart is None
        return self.objective is not None and is_mean and pieces is not None and len(pieces) > 1


def plan(model: Model, method: str, solver: Solver | None, relax: bool = False) -> Plan:
    """Choose an objective and a solver.

    relax: minimise over the convex hull of the feasible points, where variables are integer.
    """
    if method not in METHODS:
        raise ValueError(unknown_name("method", method, METHODS))
    if model.tails is not None and is_stochastic(solver):
        raise ValueError(
            f"{type(solver).__name__} sees a few samples at a time, and {model.tails.describe()} "
            "is no mean over samples; use solver=FrankWolfe(), or leave it out."
        )
    key = (*program_key(method, solver, relax), *model.feasible.stamp())
    compiled = model.memory.programs.find(key)
    stale = Compilation.FIRST if compiled is None else compiled.stale_reason(model)
    if compiled is not None and stale is None:
        return compiled.plan_again
    return replace(METHODS[method](model, solver, relax), key=key, compilation=stale)


def is_stochastic(solver: Solver | None) -> bool:
    """Does the solver see only a few samples in each gradient? False for None."""
    gradients = has_features(solver, Feature.GRADIENTS)
    return gradients and not has_features(solver, Feature.FULL_GRADIENTS)


def program_key(method: str, solver: Solver | None, relax: bool = False) -> tuple[Any, ...]:
    """The key under which the compiled program of a request is kept."""
    return (method, repr(solver), relax)


# ------------------------------------------------------------------ losses that are refused
def refuse_undefined(
    model: Model, decision: Mapping[cp.Variable, np.ndarray] | None = None
) -> None:
    """Raise an UnboundedError where the data may leave the domain of the loss.

    decision: the decision that a solve returned; None before the solve, when only the checks that
    hold for all decisions are made.
    """
    if isinstance(model, RobustModel) and model.radius > 0 and model.expression is not None:
        judge = partial(refuse_outside_domain, model.expression, model.joint, model.cost.frozen)
        # True if the domain depends on the decision, which has to be checked as well.
        if model.remember("domain of the loss", judge) and decision is not None:
            judge(decision)


def refuse_wrong_loss(model: Model) -> None:
    """Raise a ValueError where the gradient of a callable loss is wrong in the feasible set."""
    loss, count = model.loss.loss, 4
    if not isinstance(loss, CallableLoss):
        return
    rng = np.random.default_rng(0)
    corners = rng.standard_normal((count, model.feasible.layout.dimension))
    with suppress(UnboundedError, NotImplementedError):
        oracle = model.feasible.oracle()
        directions = np.abs(corners) if oracle.nonnegative_directions else corners
        corners = np.array([checked_vertex(oracle, oracle.minimize_relaxed(d)) for d in directions])
    for _ in range(3):
        # A point inside the convex hull of the vertices, and a direction within their affine hull.
        weights, shifts = rng.uniform(0.2, 1.0, count), rng.uniform(-1.0, 1.0, count)
        x, direction = weights @ corners / weights.sum(), (shifts - shifts.mean()) @ corners
        refuse_wrong_gradient(model.loss, x, direction, rng, str(loss.name))


# ------------------------------------------------------------------ methods
def plan_auto(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """Exact where a counterpart is known, smoothed otherwise, ERM where nothing is robust."""
    if not isinstance(model, RobustModel):
        mean = plan_erm(model, solver, relax)
        if model.feasible.uncertain:  # constraints hold over their balls
            return replace(mean, method="exact").because("the objective is certain")
        return mean.because("nothing is uncertain")
    if not model.has_ball:
        return plan_erm(model, solver, relax).because("no ambiguity set was given")
    if model.radius == 0:
        return plan_erm(model, solver, relax).because("the radius is 0")
    if is_stochastic(solver):
        return plan_smoothed(model, solver, relax).because("a stochastic solver was given")
    try:
        return plan_exact(model, solver, relax).because("an exact counterpart is known")
    except NoReformulationError as error:
        return plan_smoothed(model, solver, relax).because(error.reason)


def plan_erm(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """The mean loss over the samples."""
    uncertain = model.is_uncertain
    formula = f"mean of f(x, xi_k), N = {model.size}" if uncertain else "f(x)"
    draft = Plan("erm", Conic(), formula, (), by_sample=uncertain and not model.affine_in_data)
    if (changes := by_aggregation(model, solver, mean_through_maxima)) is not None:
        return replace(draft, **changes)
    draft = replace(draft, objective=lambda: empirical_with_convexity(model))
    return _with_solver(model, draft, solver, relax)


def plan_exact(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """The worst-case risk over the ball, by a formula."""
    if not isinstance(model, RobustModel) and model.feasible.uncertain:
        return plan_auto(model, solver, relax)
    robust = _needs_ball(model, "exact")
    if is_stochastic(solver):
        raise ValueError(
            f"{type(solver).__name__} samples the smoothed objective, an exact counterpart needs "
            "no sampling; use solver=FrankWolfe() or Conic(), or method='smoothed'."
        )
    if model.radius == 0:
        mean = replace(plan_erm(model, solver, relax), method="exact")
        return mean.because("the radius is 0: this is ERM")
    counterpart = exact.counterpart(robust)
    draft = Plan("exact", Conic(), counterpart.formula, (), counterpart=counterpart)
    smooth = counterpart.has_objective(robust)
    if not smooth and takes_composite(robust, solver):
        remainder = counterpart.remainder(robust)
        if remainder is not None:
            return replace(
                draft,
                solver=solver or QuasiNewton(gap=LIMITS.composite_gap),
                reasons=("the mean loss is smooth, and what the ball adds holds no samples",),
                remainder=lambda: remainder,
            )
    draft = replace(draft, by_sample=counterpart.writes_samples(robust))
    if (changes := by_aggregation(robust, solver, counterpart.maxima)) is not None:
        return replace(draft, **changes)
    if smooth:
        draft = replace(draft, objective=lambda: exact.objective_by(counterpart, robust))
    return _with_solver(model, draft, solver, relax)


def plan_smoothed(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """The entropic approximation of the worst-case risk."""
    _needs_ball(model, "smoothed")
    if model.radius == 0:
        mean = plan_erm(model, None if is_stochastic(solver) else solver, relax)
        return replace(mean, method="smoothed").because("the radius is 0: this is ERM")
    require(
        solver,
        Feature.GRADIENTS,
        "the smoothed objective has no conic form and no bounds for {solver}; solve over the "
        "convex hull with solver=FrankWolfe(...) or MomentumFrankWolfe(...) and, for integers, "
        "call round() then, or use method='exact' or method='erm'.",
    )
    formula = (
        "F(x, l) = l radius + epsilon mean_k log E exp((f(x, zeta) - l c(xi_k, zeta))/epsilon)"
    )
    return Plan("smoothed", solver or first_order_solver(model), formula, ())


METHODS: dict[str, Callable[[Model, Solver | None, bool], Plan]] = {
    "auto": plan_auto,
    "erm": plan_erm,
    "exact": plan_exact,
    "smoothed": plan_smoothed,
}


def _needs_ball(model: Model, method: str) -> RobustModel:
    """The model, if its loss has uncertain data and a ball."""
    if not isinstance(model, RobustModel):
        raise ValueError(
            f"method={method!r} needs an uncertain parameter in the loss, and there is none; "
            "declare one with UncertainParameter(..., samples=...), or use method='erm'."
        )
    if not model.has_ball:
        raise ValueError(
            f"method={method!r} needs an ambiguity set; pass ambiguity=WassersteinBall(radius=...) "
            "to the problem, or use method='erm'."
        )
    return model


# ------------------------------------------------------------------ objectives and solvers
def by_aggregation(
    model: Model,
    solver: Solver | None,
    maxima: Callable[[RobustModel], SampleMaxima | None],
) -> dict[str, Any] | None:
    """The changes of a plan that merges samples; None where it is neither asked for nor faster."""
    asked = has_features(solver, Feature.SAMPLE_GROUPS)
    if not asked and (solver is not None or model.size < LIMITS.aggregated_samples):
        return None
    feasible = model.feasible
    suits = (
        isinstance(model, RobustModel)
        and model.expression is not None
        and not model.affine_in_data
        and feasible.has_conic_form
        and not feasible.is_integer
        and (asked or not (feasible.has_oracle_sets or feasible.uncertain))
        and model.shares.probabilities is None  # the weight of a cell is its number of samples
    )
    forms = maxima(model) if suits and isinstance(model, RobustModel) else None
    if forms is not None and forms.width <= LIMITS.aggregated_width:
        reason = "the loss has few pieces, and most samples are far from a change of piece"
        return {"solver": solver or Aggregation(), "reasons": (reason,), "maxima": maxima}
    if not asked:
        return None
    raise ValueError(
        "Aggregation is for losses that are maxima of a few affine pieces in the data and in "
        "continuous decisions under CVXPY constraints, with a norm or quadratic cost on R^d, and "
        "for samples of equal probabilities; leave solver= out, or use solver=Conic()."
    )


def mean_through_maxima(model: RobustModel) -> SampleMaxima | None:
    """The mean loss through maxima of affine forms."""
    groups = groups_of(model, "mean")
    return None if isinstance(groups, str) else mean_maxima(model, groups, cp.Constant(0.0))


def takes_composite(model: RobustModel, solver: Solver | None) -> bool:
    """Does the stage "composite" apply, and is it asked for or faster than one cone per sample?"""
    feasible = model.feasible
    suits = has_features(solver, Feature.COMPOSITE) or (
        solver is None
        and model.rows.size > LIMITS.composite_numbers
        and feasible.layout.dimension <= LIMITS.curved_variables
    )
    return (
        suits
        and feasible.has_conic_form
        and not feasible.is_integer
        and model.convex_in_decision
        and model.expression is not None
        and model.expression.is_smooth()
    )


def first_order_solver(model: Model) -> FrankWolfe | QuasiNewton:
    """Frank-Wolfe for polytopes and oracles, quadratic models for curved and unbounded sets.

    Steps towards vertices become ever shorter if the minimiser lies inside a ball, or on its
    boundary.
    """
    oracle = model.feasible.oracle()
    if model.feasible.is_integer or oracle.dimension > LIMITS.curved_variables:
        return FrankWolfe()
    if isinstance(oracle, Nearby | Ball):
        return QuasiNewton()
    curved = isinstance(oracle, ConvexSet) and not oracle.is_polytope
    return QuasiNewton() if curved else FrankWolfe()


def empirical_with_convexity(model: Model) -> Empirical | EmpiricalTails:
    """The empirical risk; the Hessian tells whether a loss that is quadratic in x is convex."""
    if model.tails is not None:
        return EmpiricalTails(model)
    objective = Empirical(model)
    quadratic = (
        objective.affine
        and model.loss.dimension <= MOST_EIGENVALUES
        and degree(model.expression, model.feasible.layout.variables) <= 2
    )
    if not objective.convex and quadratic:
        hessian = hessian_of_quadratic(model.loss, objective.rows[0])
        objective.convex = is_positive_semidefinite(hessian)
    return objective


# ------------------------------------------------------------------ conic, or Frank-Wolfe
def _with_solver(model: Model, draft: Plan, solver: Solver | None, relax: bool) -> Plan:
    """A conic program for CVXPY constraints, Frank-Wolfe for oracles, or the user's solver."""
    feasible = model.feasible
    if has_features(solver, Feature.INTEGERS):
        return _branching(model, draft, solver)
    if has_features(solver, Feature.COLUMNS):
        return _by_columns(model, draft, solver)
    if solver is not None and Feature.GRADIENTS in solver.features:
        if draft.objective is None:
            raise ValueError(
                f"the exact counterpart ({draft.formula}) is not smooth in the decision, which "
                "first-order solvers ask for; use solver=Conic(), or method='smoothed'."
            )
        return replace(draft, solver=solver, reasons=("solver given",))
    if solver is None and feasible.is_integer:
        if relax:
            return _over_the_hull(model, draft)
        if _needs_branching(model, draft):
            return _branching(model, draft, BranchAndBound())
    if solver is None and feasible.has_oracle_sets:
        # Vertices and a conic program for kinks, which Frank-Wolfe cannot follow.
        nonsmooth = draft.objective is None and not _has_small_form(model)
        if (nonsmooth or draft.has_kinks(model)) and _obstacle(model, draft, True) is None:
            return _by_columns(model, draft, Simplicial())
        if draft.objective is not None:
            reason = "the feasible set has an oracle"
            return replace(draft, solver=first_order_solver(model), reasons=(reason,))
    obstacle = _obstacle(model, draft)
    if obstacle is None:
        smooth = draft.objective is not None
        reason = f"convex by CVXPY's rules, {'over CVXPY constraints' if smooth else 'not smooth'}"
        reason = reason if solver is None else "solver given"
        return replace(draft, solver=solver or Conic(), reasons=(reason,), has_program=True)
    if draft.objective is None:
        raise NoReformulationError(obstacle, "method='smoothed' or method='erm'")
    if solver is not None:
        raise ValueError(f"{obstacle}; use solver=FrankWolfe() instead.")
    reason = "there is no convex CVXPY form of the objective"
    return replace(draft, solver=first_order_solver(model), reasons=(reason,))


def _by_columns(model: Model, draft: Plan, solver: Any) -> Plan:
    """The plan of a conic program over the vertices of oracle sets, by column generation."""
    obstacle = _obstacle(model, draft, by_columns=True)
    if obstacle is not None:
        raise ValueError(f"{obstacle}, which Simplicial asks for; use solver=FrankWolfe() instead.")
    reason = "not smooth, and the feasible set has an oracle"
    return replace(draft, solver=solver, reasons=(reason,), has_program=True)


def _has_small_form(model: Model) -> bool:
    """Are all oracle sets given by CVXPY constraints on few numbers?"""
    if not model.feasible.has_conic_form:
        return False
    own = {v.id for v in model.feasible.layout.variables}
    others = {v.id: v for c in model.feasible.set_forms() for v in c.variables()}
    return sum(v.size for v in others.values() if v.id not in own) <= LIMITS.form_variables


# ------------------------------------------------------------------ integers
def _needs_branching(model: Model, draft: Plan) -> bool:
    """Do oracle sets, cones or a missing program keep the model from a mixed-integer solver?"""
    if model.feasible.has_oracle_sets or _obstacle(model, draft) is not None:
        return True
    if cone_solver.takes_integer_cones():
        return False
    program = _sample_program(model, draft)
    return program is not None and not program.is_piecewise_linear(
        model.feasible.written_constraints()
    )


def _branching(model: Model, draft: Plan, solver: Any) -> Plan:
    """The plan of branch and bound on integer decisions."""
    if not model.feasible.is_integer:
        raise ValueError(
            "BranchAndBound is for integer decisions, and no variable is integer or boolean; "
            "declare cp.Variable(n, boolean=True), or use solver=FrankWolfe() or Conic()."
        )
    obstacle = _obstacle(model, draft, by_columns=True)
    if obstacle is not None and draft.objective is None:
        raise NoReformulationError(obstacle, "method='smoothed' or method='erm'")
    reason = "integer variables, and no installed solver takes the program"
    if model.feasible.has_oracle_sets:
        reason = "integer variables over an oracle"
    return replace(draft, solver=solver, reasons=(reason,), has_program=obstacle is None)


def _over_the_hull(model: Model, draft: Plan) -> Plan:
    """The plan over the convex hull of the integer points, by its oracle."""
    reason = "relax=True: over the convex hull of the integer points"
    if draft.objective is not None and not draft.has_kinks(model):
        return replace(draft, solver=FrankWolfe(), reasons=(reason,))
    return _by_columns(model, draft, Simplicial()).because(reason)


def _obstacle(model: Model, draft: Plan, by_columns: bool = False) -> str | None:
    """Why there is no conic program; None if there is one.

    by_columns: allow sets that are known only by their oracle.
    """
    if not by_columns and not model.feasible.has_conic_form:
        what = "the feasible set has no CVXPY form (an oracle set without constraints=)"
        if draft.objective is not None:
            return what
        return f"the objective ({draft.formula}) is not smooth and needs a conic solver, but {what}"
    if _sample_program(model, draft) is not None:
        return None
    unknown = _has_unknown_atom(model)
    if draft.counterpart is None:
        why = UNKNOWN_ATOM if unknown else "the objective is not convex by CVXPY's rules"
        return f"method={draft.method!r} has no convex CVXPY form for this model ({why})"
    why = "the slopes of the loss in the data are not affine in the decision"
    if unknown or not model.convex_in_decision:
        why = UNKNOWN_ATOM if unknown else "the loss itself is not"
    return (
        f"the exact counterpart ({draft.formula}) is no convex CVXPY program in the decision: {why}"
    )


def _sample_program(model: Model, draft: Plan) -> Program | None:
    """The program of the objective on the samples with extreme entries, to see whether it is one.

    CVXPY sees convexity by signs, and the smallest and largest entries have the signs of all.
    """
    if draft.by_sample and isinstance(model, RobustModel):
        extreme = np.unique([model.rows.argmin(axis=0), model.rows.argmax(axis=0)])
        if 2 * extreme.size < model.size:
            return draft.program(model.on_samples(extreme), model.size)
    return draft.program(model)


def _has_unknown_atom(model: Model) -> bool:
    """Is the loss convex by CVXPY's rules, but not one that its solvers can be given?"""
    if model.expression is None:
        return False
    at_mean = substitute(model.expression, model.mean_values())
    return at_mean.is_convex() and not is_canonicalisable(at_mean)
