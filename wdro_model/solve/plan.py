"""From a model and a method to a plan: what is minimised, by which solver, and why.

Planning solves nothing. Whether there is a convex program is asked of one sample where there are
many; a program that is small, or holds none of them, is written once, and travels in the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wdro_model.errors import NoReformulationError, unknown_name
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import degree
from wdro_model.loss.structure import is_canonicalisable
from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.convexity import LARGEST, hessian_of_quadratic, is_positive_semidefinite
from wdro_model.objectives.empirical import Empirical, Program, empirical_program
from wdro_model.objectives.exact import Counterpart
from wdro_model.solvers import Conic, FrankWolfe, Solver
from wdro_model.solvers.objective import Objective

SMALL = 2**17
"""Numbers of data that a program may hold to be written while planning."""
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

    @property
    def stage(self) -> str:
        """The stage of the pipeline that runs it."""
        if self.solver.is_conic:
            return "conic"
        return "smoothed" if self.objective is None else "first_order"

    def because(self, reason: str) -> Plan:
        """The plan with one more reason, the first to be told."""
        return replace(self, reasons=(reason, *self.reasons))


def plan(model: Model, method: str, solver: Solver | None) -> Plan:
    """Choose what to minimise and how."""
    if method not in METHODS:
        raise ValueError(unknown_name("method", method, METHODS))
    return METHODS[method](model, solver)


def automatic(model: Model, solver: Solver | None) -> Plan:
    """Exact where a counterpart is known, smoothed otherwise, ERM where nothing is robust."""
    if not isinstance(model, RobustModel):
        return erm(model, solver).because("nothing is uncertain")
    if not model.has_ball:
        return erm(model, solver).because("no ambiguity set was given")
    if model.radius == 0:
        return erm(model, solver).because("the radius is 0")
    if solver is not None and solver.is_stochastic:
        return smoothed(model, solver).because("a stochastic solver was given")
    try:
        return exactly(model, solver).because("an exact counterpart is known")
    except NoReformulationError as error:
        return smoothed(model, solver).because(error.reason)


def erm(model: Model, solver: Solver | None) -> Plan:
    """The mean loss over the samples."""
    uncertain = model.is_uncertain
    formula = f"mean of f(x, xi_k), N = {model.size}" if uncertain else "f(x)"
    by_sample = uncertain and not model.affine_in_data
    return _with_solver(
        model,
        Plan("erm", Conic(), formula, (), objective=lambda: empirical_with_convexity(model)),
        solver,
        Written(empirical_program, by_sample),
    )


def exactly(model: Model, solver: Solver | None) -> Plan:
    """The worst-case risk over the ball, by a formula."""
    robust = _needs_ball(model, "exact")
    if solver is not None and solver.is_stochastic:
        raise ValueError(
            f"{type(solver).__name__} samples the smoothed objective, an exact counterpart needs "
            "no sampling; use solver=FrankWolfe() or Conic(), or method='smoothed'."
        )
    if model.radius == 0:
        return replace(erm(model, solver), method="exact").because("the radius is 0: this is ERM")
    found = exact.counterpart(robust)
    smooth = found.has_objective(robust)
    return _with_solver(
        model,
        Plan(
            "exact",
            Conic(),
            found.formula,
            (),
            objective=(lambda: found.objective(robust)) if smooth else None,
            counterpart=found,
        ),
        solver,
        Written(exact_program, found.writes_samples(robust)),
    )


def exact_program(model: Model) -> Program | None:
    """The program of the counterpart that applies."""
    assert isinstance(model, RobustModel)
    return exact.program_of(model)


def smoothed(model: Model, solver: Solver | None) -> Plan:
    """The entropic approximation of the worst-case risk."""
    _needs_ball(model, "smoothed")
    if model.radius == 0:
        kept = None if solver is not None and solver.is_stochastic else solver
        return replace(erm(model, kept), method="smoothed").because("the radius is 0: this is ERM")
    if solver is not None and solver.is_conic:
        raise ValueError(
            "the smoothed objective has no conic form; use solver=FrankWolfe(...) or "
            "MomentumFrankWolfe(...), or method='exact'."
        )
    formula = (
        "F(x, l) = l radius + epsilon mean_k log E exp((f(x, zeta) - l c(xi_k, zeta))/epsilon)"
    )
    return Plan("smoothed", solver or FrankWolfe(), formula, ())


METHODS: dict[str, Callable[[Model, Solver | None], Plan]] = {
    "auto": automatic,
    "erm": erm,
    "exact": exactly,
    "smoothed": smoothed,
}


def empirical(model: Model) -> Empirical:
    """Empirical risk as a smooth objective."""
    return Empirical(model)


def empirical_with_convexity(model: Model) -> Empirical:
    """The same, after a look at the Hessian of a loss that is quadratic in the decision."""
    objective = empirical(model)
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
def _with_solver(model: Model, draft: Plan, solver: Solver | None, written: Written) -> Plan:
    """A conic program for CVXPY constraints, Frank-Wolfe for oracles, or what the user says."""
    if solver is not None and not solver.is_conic:
        return replace(_smooth(draft), solver=solver, reasons=("solver given",))
    if solver is None and draft.objective is not None and model.feasible.has_oracle_sets:
        return replace(draft, solver=FrankWolfe(), reasons=("the feasible set has an oracle",))
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
    return replace(draft, solver=FrankWolfe(), reasons=(reason,))


def _smooth(draft: Plan) -> Plan:
    if draft.objective is None:
        raise ValueError(
            f"the exact counterpart ({draft.formula}) is not smooth in the decision, which "
            "Frank-Wolfe asks for; use solver=Conic(), or method='smoothed'."
        )
    return draft


def _obstacle(model: Model, draft: Plan, written: Written) -> tuple[str | None, Written]:
    """Why there is no conic program, None if there is one; and how it is written."""
    if not model.feasible.has_conic_form:
        return (
            f"the objective ({draft.formula}) is not smooth and needs a conic solver, but the "
            "feasible set has no CVXPY form (an oracle set without constraints=)"
            if draft.objective is None
            else "the feasible set has no CVXPY form (an oracle set without constraints=)"
        ), written
    if written.by_sample and isinstance(model, RobustModel) and model.rows.size > SMALL:
        found = _on_one_sample(model, written)
    else:
        found = written.program(model)
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
