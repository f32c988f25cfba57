"""From a model and a method to a plan: what is minimised, by which solver, and why.

Planning solves nothing. Whether there is a convex program is asked of one sample where there are
many; a program that is small, or holds none of them, is written once, and travels in the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp

from wdro_model.errors import NoReformulationError, unknown_name
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import degree
from wdro_model.loss.structure import is_canonicalisable
from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.convexity import LARGEST, hessian_of_quadratic, is_positive_semidefinite
from wdro_model.objectives.empirical import Empirical, Program, empirical_program
from wdro_model.objectives.exact import Counterpart
from wdro_model.objectives.exact.decomposition import SampleMaxima, groups_of
from wdro_model.objectives.exact.lipschitz_loss import mean_maxima
from wdro_model.objectives.least_thresholds import EmpiricalTails
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.elementary import Ball
from wdro_model.sets.quadratic_program import Nearby
from wdro_model.solve.compiled_programs import FIRST, Kept
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

SMALL = 2**17
"""Numbers of data that a program may hold to be written while planning."""
LARGE_FORM = 5000
"""Sets whose CVXPY form has more variables of its own are left to their oracle."""
MOST_CURVED = 500
"""Over larger sets the matrices of a quadratic model take more time than vertices."""
MANY = 2_000
"""Numbers of data from which a smooth loss is left to gradients."""
COMPOSITE_GAP = 1e-6
MANY_SAMPLES = 5_000
"""Samples from which those that agree on a piece are aggregated."""
WIDEST = 600
"""At most so many numbers in the forms of an aggregation: each Newton step has a matrix of them."""
UNKNOWN_ATOM = "the loss has an atom that CVXPY's solvers do not know"
NOT_CONVEX = "the objective is not convex by CVXPY's rules"


@dataclass(frozen=True)
class Written:
    """How an objective becomes a convex CVXPY program."""

    program: Callable[[Model], Program | None]
    """The program of a model, in whatever units it is."""
    by_sample: bool
    """Does it hold every sample, rather than their mean?"""
    known: Program | None = None
    """That of the model itself, where planning has written it."""
    robust: bool = False
    """Does the radius count in it?"""

    def measured(self, model: Model) -> Model:
        """The model whose numbers tell the units: without its ball where that does not count."""
        return model.without_ball() if isinstance(model, RobustModel) and not self.robust else model


@dataclass(frozen=True)
class Plan:
    """One way to solve a model. Programs and objectives are built when they are asked for."""

    method: str
    solver: Solver
    formula: str
    reasons: tuple[str, ...]
    written: Written | None = None
    """The objective as a program, for conic solvers."""
    objective: Callable[[], Objective] | None = None
    """The objective as a smooth function, for the Frank-Wolfe methods."""
    counterpart: Counterpart | None = None
    """The exact counterpart that was chosen."""
    remainder: Callable[[], Program] | None = None
    """What the ball adds to a smooth mean loss, where that is a program without samples."""
    maxima: Callable[[RobustModel], SampleMaxima | None] | None = None
    """The objective through maxima of affine forms of the samples, where it is such."""
    key: tuple[Any, ...] = ()
    """What was asked for, under which a compiled program is kept."""
    kept: Kept | None = None
    """The program of an earlier solve, to be solved again."""
    compilation: str = FIRST
    """Why a program is compiled anew, or that it is not."""

    @property
    def stage(self) -> str:
        """The stage of the pipeline that runs it."""
        if self.solver.stage is not None:
            return self.solver.stage
        if self.objective is None and self.remainder is not None:
            return "composite"
        return "smoothed" if self.objective is None else "first_order"

    def because(self, reason: str) -> Plan:
        """The plan with one more reason, the first to be told."""
        return replace(self, reasons=(reason, *self.reasons))


def plan(model: Model, method: str, solver: Solver | None, relax: bool = False) -> Plan:
    """Choose what to minimise and how.

    relax: over the convex hull of the feasible points, where variables are integer.
    """
    if method not in METHODS:
        raise ValueError(unknown_name("method", method, METHODS))
    if model.tails is not None and samples_gradients(solver):
        raise ValueError(
            f"{type(solver).__name__} sees a few samples at a time, and {model.tails.describe()} "
            "is no mean over samples; use solver=FrankWolfe(), or leave it out."
        )
    key = (*program_key(method, solver, relax), *model.feasible.stamp())
    kept = model.programs.find(key)
    trouble = FIRST if kept is None else kept.trouble(model)
    if kept is not None and trouble is None:
        return kept.again
    chosen = METHODS[method](model, solver, relax)
    return replace(chosen, key=key, compilation=trouble)


def samples_gradients(solver: Solver | None) -> bool:
    """Whether a solver is given that sees a few samples at a time."""
    gradients = has_features(solver, Feature.GRADIENTS)
    return gradients and not has_features(solver, Feature.FULL_GRADIENTS)


def program_key(method: str, solver: Solver | None, relax: bool = False) -> tuple[Any, ...]:
    """What is asked for, under which a compiled program is kept."""
    return (method, repr(solver), relax)


def automatic(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """Exact where a counterpart is known, smoothed otherwise, ERM where nothing is robust."""
    if not isinstance(model, RobustModel):
        bounded = bool(model.feasible.uncertain)
        reason = "the objective is certain" if bounded else "nothing is uncertain"
        return _certain(model, solver, relax).because(reason)
    if not model.has_ball:
        return erm(model, solver, relax).because("no ambiguity set was given")
    if model.radius == 0:
        return erm(model, solver, relax).because("the radius is 0")
    if samples_gradients(solver):
        return smoothed(model, solver, relax).because("a stochastic solver was given")
    try:
        return exactly(model, solver, relax).because("an exact counterpart is known")
    except NoReformulationError as error:
        return smoothed(model, solver, relax).because(error.reason)


def erm(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """The mean loss over the samples."""
    uncertain = model.is_uncertain
    aggregated = by_aggregation(model, solver, mean_through_maxima)
    formula = f"mean of f(x, xi_k), N = {model.size}" if uncertain else "f(x)"
    written = Written(empirical_program, uncertain and not model.affine_in_data)
    if aggregated is not None:
        return replace(aggregated, method="erm", formula=formula, written=written)
    return _with_solver(
        model,
        Plan("erm", Conic(), formula, (), objective=lambda: empirical_with_convexity(model)),
        solver,
        written,
        relax,
    )


def exactly(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """The worst-case risk over the ball, by a formula."""
    if not isinstance(model, RobustModel) and model.feasible.uncertain:
        return _certain(model, solver, relax).because("the objective is certain")
    robust = _needs_ball(model, "exact")
    if samples_gradients(solver):
        raise ValueError(
            f"{type(solver).__name__} samples the smoothed objective, an exact counterpart needs "
            "no sampling; use solver=FrankWolfe() or Conic(), or method='smoothed'."
        )
    if model.radius == 0:
        return replace(erm(model, solver, relax), method="exact").because(
            "the radius is 0: this is ERM"
        )
    found = exact.counterpart(robust)
    smooth = found.has_objective(robust)
    if not smooth and takes_composite(robust, solver) and (rest := found.remainder(robust)):
        reason = "the mean loss is smooth, and what the ball adds holds no samples"
        return Plan(
            "exact",
            solver or QuasiNewton(gap=COMPOSITE_GAP),
            found.formula,
            (reason,),
            counterpart=found,
            remainder=lambda: rest,
        )
    written = Written(exact_program, found.writes_samples(robust), robust=True)
    aggregated = by_aggregation(robust, solver, found.maxima)
    if aggregated is not None:
        return replace(
            aggregated,
            method="exact",
            formula=found.formula,
            counterpart=found,
            written=written,
        )
    return _with_solver(
        model,
        Plan(
            "exact",
            Conic(),
            found.formula,
            (),
            objective=(lambda: exact.objective_by(found, robust)) if smooth else None,
            counterpart=found,
        ),
        solver,
        written,
        relax,
    )


def by_aggregation(
    model: Model,
    solver: Solver | None,
    maxima: Callable[[RobustModel], SampleMaxima | None],
) -> Plan | None:
    """A plan for many samples in few pieces, where it is asked for or of use; else None."""
    asked = has_features(solver, Feature.SAMPLE_GROUPS)
    if not asked and (solver is not None or model.size < MANY_SAMPLES):
        return None
    feasible = model.feasible
    suits = (
        isinstance(model, RobustModel)
        and model.expression is not None
        and not model.affine_in_data
        and feasible.has_conic_form
        and not feasible.is_integer
        and (asked or not (feasible.has_oracle_sets or feasible.uncertain))
        and model.shares.probabilities is None  # cells count their samples
    )
    found = maxima(model) if suits and isinstance(model, RobustModel) else None
    if found is not None and found.width <= WIDEST:
        reason = "the loss has few pieces, and most samples are far from a change of piece"
        return Plan("", solver or Aggregation(), "", (reason,), maxima=maxima)
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


def _certain(model: Model, solver: Solver | None, relax: bool) -> Plan:
    """A certain objective; that uncertain constraints hold over balls is then exact."""
    found = erm(model, solver, relax)
    return replace(found, method="exact") if model.feasible.uncertain else found


def takes_composite(model: RobustModel, solver: Solver | None) -> bool:
    """Are quasi-Newton steps asked for, or faster than a cone for each sample?"""
    feasible = model.feasible
    suits = has_features(solver, Feature.COMPOSITE) or (
        solver is None and model.rows.size > MANY and feasible.layout.dimension <= MOST_CURVED
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
    """Vertices suit polytopes and oracles, quadratic models curved and unbounded sets.

    Towards a minimiser inside a ball, or on its boundary, vertices lead in ever shorter steps.
    """
    oracle = model.feasible.oracle()
    if model.feasible.is_integer or oracle.dimension > MOST_CURVED:
        return FrankWolfe()
    if isinstance(oracle, Nearby | Ball):
        return QuasiNewton()
    curved = isinstance(oracle, ConvexSet) and not oracle.is_polytope
    return QuasiNewton() if curved else FrankWolfe()


def exact_program(model: Model) -> Program | None:
    """The program of the counterpart that applies."""
    assert isinstance(model, RobustModel)
    return exact.program_of(model)


def smoothed(model: Model, solver: Solver | None, relax: bool = False) -> Plan:
    """The entropic approximation of the worst-case risk."""
    _needs_ball(model, "smoothed")
    if model.radius == 0:
        kept = None if samples_gradients(solver) else solver
        return replace(erm(model, kept, relax), method="smoothed").because(
            "the radius is 0: this is ERM"
        )
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
    "auto": automatic,
    "erm": erm,
    "exact": exactly,
    "smoothed": smoothed,
}


def empirical_with_convexity(model: Model) -> Empirical | EmpiricalTails:
    """Empirical risk, after a look at the Hessian of a loss that is quadratic in the decision."""
    if model.tails is not None:
        return EmpiricalTails(model)
    objective = Empirical(model)
    quadratic = (
        objective.affine
        and model.loss.dimension <= LARGEST
        and degree(model.expression, model.feasible.layout.variables) <= 2
    )
    if not objective.convex and quadratic:
        hessian = hessian_of_quadratic(model.loss, objective.rows[0])
        objective.convex = is_positive_semidefinite(hessian)
    return objective


# ------------------------------------------------------------------ conic, or Frank-Wolfe
def _with_solver(
    model: Model, draft: Plan, solver: Solver | None, written: Written, relax: bool
) -> Plan:
    """A conic program for CVXPY constraints, Frank-Wolfe for oracles, or what the user says."""
    if isinstance(solver, BranchAndBound):
        return _integer(model, draft, solver, written)
    if isinstance(solver, Simplicial):
        return _by_columns(model, draft, solver, written)
    if solver is not None and Feature.GRADIENTS in solver.features:
        return replace(_smooth(draft), solver=solver, reasons=("solver given",))
    if solver is None and model.feasible.is_integer:
        if relax:
            return _over_the_hull(model, draft, written)
        if _needs_branching(model, draft, written):
            return _integer(model, draft, BranchAndBound(), written)
    if solver is None and model.feasible.has_oracle_sets:
        if _asks_for_columns(model, draft, written):
            return _by_columns(model, draft, Simplicial(), written)
        if draft.objective is not None:
            reason = "the feasible set has an oracle"
            return replace(draft, solver=first_order_solver(model), reasons=(reason,))
    obstacle, checked = _obstacle(model, draft, written)
    if obstacle is None:
        reason = "convex by CVXPY's rules, over CVXPY constraints"
        if draft.objective is None:
            reason = "convex by CVXPY's rules, not smooth"
        reason = reason if solver is None else "solver given"
        return replace(draft, solver=solver or Conic(), reasons=(reason,), written=checked)
    if draft.objective is None:
        raise NoReformulationError(obstacle, "method='smoothed' or method='erm'")
    if solver is not None:
        raise ValueError(f"{obstacle}; use solver=FrankWolfe() instead.")
    reason = "there is no convex CVXPY form of the objective"
    return replace(draft, solver=first_order_solver(model), reasons=(reason,))


# ------------------------------------------------------------------ vertices and conic programs
def _by_columns(model: Model, draft: Plan, solver: Simplicial, written: Written) -> Plan:
    """A conic program over the vertices of oracle sets."""
    obstacle, checked = _obstacle(model, draft, written, columns=True)
    if obstacle is not None:
        raise ValueError(f"{obstacle}, which Simplicial asks for; use solver=FrankWolfe() instead.")
    reason = "not smooth, and the feasible set has an oracle"
    return replace(draft, solver=solver, reasons=(reason,), written=checked)


def _asks_for_columns(model: Model, draft: Plan, written: Written) -> bool:
    """Is the objective a program that is not smooth, over sets best known by their oracles?"""
    if draft.objective is None:
        return not _has_small_form(model) and _is_written(model, draft, written)
    return _has_kinks(model, draft) and _is_written(model, draft, written)


def _is_written(model: Model, draft: Plan, written: Written) -> bool:
    return _obstacle(model, draft, written, columns=True)[0] is None


def _has_kinks(model: Model, draft: Plan) -> bool:
    """Is the mean loss a maximum of several pieces, which Frank-Wolfe cannot follow?"""
    pieces = model.structure.pieces
    return draft.counterpart is None and pieces is not None and len(pieces) > 1


def _has_small_form(model: Model) -> bool:
    """Are all oracle sets given by CVXPY constraints on few numbers?"""
    if not model.feasible.has_conic_form:
        return False
    known = {v.id for v in model.feasible.layout.variables}
    found = {v.id: v for c in model.feasible.set_forms() for v in c.variables()}
    return sum(v.size for v in found.values() if v.id not in known) <= LARGE_FORM


# ------------------------------------------------------------------ integers
def _needs_branching(model: Model, draft: Plan, written: Written) -> bool:
    """Do oracle sets, cones or a missing program keep the model from a mixed-integer solver?"""
    if model.feasible.has_oracle_sets:
        return True
    obstacle, checked = _obstacle(model, draft, written)
    if obstacle is not None:
        return True
    known = checked.known
    if known is None and isinstance(model, RobustModel):
        known = _on_one_sample(model, written)
    if known is None or cone_solver.takes_integer_cones():
        return False
    return not known.is_piecewise_linear(model.feasible.written_constraints())


def _integer(model: Model, draft: Plan, solver: BranchAndBound, written: Written) -> Plan:
    """Branch and bound, or what does without it."""
    if not model.feasible.is_integer:
        raise ValueError(
            "BranchAndBound is for integer decisions, and no variable is integer or boolean; "
            "declare cp.Variable(n, boolean=True), or use solver=FrankWolfe() or Conic()."
        )
    obstacle, checked = _obstacle(model, draft, written, columns=True)
    if obstacle is not None and draft.objective is None:
        raise NoReformulationError(obstacle, "method='smoothed' or method='erm'")
    reason = "integer variables, and no installed solver takes the program"
    if model.feasible.has_oracle_sets:
        reason = "integer variables over an oracle"
    known = checked if obstacle is None else None
    return replace(draft, solver=solver, reasons=(reason,), written=known)


def _over_the_hull(model: Model, draft: Plan, written: Written) -> Plan:
    """The convex hull of the integer points, by its oracle."""
    reason = "relax=True: over the convex hull of the integer points"
    if draft.objective is not None and not _has_kinks(model, draft):
        return replace(draft, solver=FrankWolfe(), reasons=(reason,))
    return _by_columns(model, draft, Simplicial(), written).because(reason)


def _smooth(draft: Plan) -> Plan:
    if draft.objective is None:
        raise ValueError(
            f"the exact counterpart ({draft.formula}) is not smooth in the decision, which "
            "first-order solvers ask for; use solver=Conic(), or method='smoothed'."
        )
    return draft


def _obstacle(
    model: Model, draft: Plan, written: Written, columns: bool = False
) -> tuple[str | None, Written]:
    """Why there is no conic program, None if there is one; and how it is written.

    columns: sets that are known by their oracle alone are no obstacle.
    """
    if not columns and not model.feasible.has_conic_form:
        return (
            f"the objective ({draft.formula}) is not smooth and needs a conic solver, but the "
            "feasible set has no CVXPY form (an oracle set without constraints=)"
            if draft.objective is None
            else "the feasible set has no CVXPY form (an oracle set without constraints=)"
        ), written
    if written.by_sample and isinstance(model, RobustModel) and model.rows.size > SMALL:
        found = _on_one_sample(model, written)
    else:
        found = written.program(model if columns else model.parametric())
        written = replace(written, known=found)
    if found is not None:
        return None, written
    if draft.counterpart is not None:
        return (
            f"the exact counterpart ({draft.formula}) is no convex CVXPY program in the decision: "
            f"{_why_not_convex(model)}"
        ), written
    return (
        f"method={draft.method!r} has no convex CVXPY form for this model ("
        f"{UNKNOWN_ATOM if _is_unknown(model) else NOT_CONVEX})"
    ), written


def _on_one_sample(model: RobustModel, written: Written) -> Program | None:
    if written.program is empirical_program:
        return empirical_program(model.on_one_sample(), count=model.joint.size)
    return written.program(model.on_one_sample())


def _is_unknown(model: Model) -> bool:
    """Is the loss convex by CVXPY's rules, but not one that its solvers can be given?"""
    if model.expression is None:
        return False
    at_mean = substitute(model.expression, model.mean_values())
    return at_mean.is_convex() and not is_canonicalisable(at_mean)


def _why_not_convex(model: Model) -> str:
    """What stands in the way of a convex program."""
    if _is_unknown(model):
        return UNKNOWN_ATOM
    if not model.convex_in_decision:
        return "the loss itself is not"
    return "the slopes of the loss in the data are not affine in the decision"


def _needs_ball(model: Model, method: str) -> RobustModel:
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
