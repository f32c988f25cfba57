"""From a model and a method to a plan: what is minimised, by which solver, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from wdro_model.errors import NoReformulationError, unknown_name
from wdro_model.loss.polynomial import degree
from wdro_model.loss.rewriting import substitute
from wdro_model.loss.structure import is_canonicalisable
from wdro_model.model import Model
from wdro_model.objectives import exact
from wdro_model.objectives.base import Objective
from wdro_model.objectives.convexity import LARGEST, hessian_of_quadratic, is_positive_semidefinite
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.programs import Program, empirical_program
from wdro_model.objectives.units import Scale
from wdro_model.solvers import Conic, FrankWolfe, MomentumFrankWolfe

Solver = Conic | FrankWolfe | MomentumFrankWolfe
UNKNOWN_ATOM = "the loss has an atom that CVXPY's solvers do not know"
Writer = Callable[[Scale | None], Program]
"""Writes a program, in other units of the decision and the loss where they are given."""


@dataclass(frozen=True)
class Plan:
    """One way to solve a model. Programs and objectives are built when they are asked for."""

    method: str
    solver: Solver
    formula: str
    reasons: tuple[str, ...]
    program: Writer | None = None
    """The objective as a convex CVXPY program, for `Conic`."""
    objective: Callable[[], Objective] | None = None
    """The objective as a smooth function, for the Frank-Wolfe methods."""


def plan(model: Model, method: str, solver: Solver | None) -> Plan:
    """Choose what to minimise and how."""
    if method not in METHODS:
        raise ValueError(unknown_name("method", method, METHODS))
    return METHODS[method](model, solver)


def automatic(model: Model, solver: Solver | None) -> Plan:
    """Exact where a counterpart is known, smoothed otherwise, ERM where nothing is robust."""
    if model.joint is None:
        return _because(erm(model, solver), "nothing is uncertain")
    if model.ambiguity is None:
        return _because(erm(model, solver), "no ambiguity set was given")
    if model.radius == 0:
        return _because(erm(model, solver), "the radius is 0")
    if isinstance(solver, MomentumFrankWolfe):
        return _because(smoothed(model, solver), "a stochastic solver was given")
    try:
        return _because(exact_method(model, solver), "an exact counterpart is known")
    except NoReformulationError as error:
        return _because(smoothed(model, solver), str(error).split(". What applies")[0])


def erm(model: Model, solver: Solver | None) -> Plan:
    """The mean loss over the samples."""
    formula = "f(x)" if model.joint is None else f"mean of f(x, xi_k), N = {model.joint.size}"
    writer = _writer(model, solver, lambda scale: empirical_program(model, scale))
    return _dispatch(model, "erm", solver, formula, writer, lambda: empirical_with_convexity(model))


def exact_method(model: Model, solver: Solver | None) -> Plan:
    """The worst-case risk over the ball, by a formula."""
    _needs_ball(model, "exact")
    if isinstance(solver, MomentumFrankWolfe):
        raise ValueError(
            "MomentumFrankWolfe samples the smoothed objective, an exact counterpart needs no "
            "sampling; use solver=FrankWolfe() or Conic(), or method='smoothed'."
        )
    if model.radius == 0:
        return _because(_renamed(erm(model, solver), "exact"), "the radius is 0: this is ERM")
    found = exact.counterpart(model)
    if not found.has_objective():
        return _conic_only(model, solver, found.formula, _written(found.program))
    writer = _writer(model, solver, found.program)
    objective = cast(Callable[[], Objective], found.objective)
    return _dispatch(model, "exact", solver, found.formula, writer, objective)


def smoothed(model: Model, solver: Solver | None) -> Plan:
    """The entropic approximation of the worst-case risk."""
    _needs_ball(model, "smoothed")
    if model.radius == 0:
        kept = None if isinstance(solver, MomentumFrankWolfe) else solver
        return _because(_renamed(erm(model, kept), "smoothed"), "the radius is 0: this is ERM")
    if isinstance(solver, Conic):
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
    "exact": exact_method,
    "smoothed": smoothed,
}


def empirical(model: Model) -> Empirical:
    """Empirical risk as a smooth objective."""
    affine = model.affine_in_data
    return Empirical(model.loss, model.joint, affine=affine, convex=model.convex_on_samples)


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


def _may_be_conic(model: Model, solver: Solver | None) -> bool:
    """Is a conic program of any use? For oracle sets and Frank-Wolfe none needs to be written."""
    return isinstance(solver, Conic) or (solver is None and not model.feasible.has_oracle_sets)


def _dispatch(
    model: Model,
    method: str,
    solver: Solver | None,
    formula: str,
    program: Writer | None,
    objective: Callable[[], Objective],
) -> Plan:
    """A conic program for CVXPY constraints, Frank-Wolfe for oracles, or what the user says."""
    conic = model.feasible.has_conic_form
    if solver is None:
        if program is not None and conic and not model.feasible.has_oracle_sets:
            reason = "convex by CVXPY's rules, over CVXPY constraints"
            return Plan(method, Conic(), formula, (reason,), program, objective)
        reason = (
            "the feasible set has an oracle"
            if model.feasible.has_oracle_sets
            else "there is no convex CVXPY form of the objective"
        )
        return Plan(method, FrankWolfe(), formula, (reason,), None, objective)
    if isinstance(solver, Conic):
        if program is None:
            raise ValueError(
                f"method={method!r} has no convex CVXPY form for this model ({_why_not(model)}); "
                "use solver=FrankWolfe() instead."
            )
        if not conic:
            raise ValueError(
                "the feasible set has no CVXPY form (an oracle set without constraints=); use "
                "solver=FrankWolfe() instead."
            )
        return Plan(method, solver, formula, ("solver given",), program, objective)
    return Plan(method, solver, formula, ("solver given",), None, objective)


def _conic_only(model: Model, solver: Solver | None, formula: str, program: Writer | None) -> Plan:
    """An exact counterpart that is not smooth in the decision: by a conic solver or not at all."""
    if program is None:
        raise NoReformulationError(
            f"the exact counterpart ({formula}) is no convex CVXPY program in the decision: "
            f"{_why_not_convex(model)}. What applies: method='smoothed' or method='erm'."
        )
    if not model.feasible.has_conic_form:
        raise NoReformulationError(
            f"the exact counterpart ({formula}) is not smooth and needs a conic solver, but the "
            "feasible set has no CVXPY form (an oracle set without constraints=). "
            "What applies: method='smoothed' or method='erm'."
        )
    if solver is not None and not isinstance(solver, Conic):
        raise ValueError(
            f"the exact counterpart ({formula}) is not smooth in the decision, which Frank-Wolfe "
            "asks for; use solver=Conic(), or method='smoothed'."
        )
    reason = "convex by CVXPY's rules, not smooth" if solver is None else "solver given"
    return Plan("exact", solver or Conic(), formula, (reason,), program, _not_smooth)


def _why_not(model: Model) -> str:
    """What stands in the way of a CVXPY form."""
    return UNKNOWN_ATOM if _is_unknown(model) else "the objective is not convex by CVXPY's rules"


def _is_unknown(model: Model) -> bool:
    """Is the loss convex by CVXPY's rules, but not one that its solvers can be given?"""
    if model.expression is None:
        return False
    values = {} if model.joint is None else model.mean_values()
    at_mean = substitute(model.expression, values)
    return at_mean.is_convex() and not is_canonicalisable(at_mean)


def _why_not_convex(model: Model) -> str:
    """What stands in the way of a convex program."""
    if _is_unknown(model):
        return UNKNOWN_ATOM
    if not model.convex_in_decision:
        return "the loss itself is not"
    return "the slopes of the loss in the data are not affine in the decision"


def _writer(
    model: Model, solver: Solver | None, write: Callable[[Scale | None], Program | None]
) -> Writer | None:
    """Writes the program; None where none is of use, or where CVXPY sees no convexity."""
    return _written(write) if _may_be_conic(model, solver) else None


def _written(write: Callable[[Scale | None], Program | None]) -> Writer | None:
    """The program as it is is written at once: whether there is one decides on the solver."""
    first = write(None)
    if first is None:
        return None

    def again(scale: Scale | None) -> Program:
        return first if scale is None else write(scale) or first

    return again


def _not_smooth() -> Objective:
    raise ValueError("the exact counterpart is not smooth in the decision; use solver=Conic().")


def _needs_ball(model: Model, method: str) -> None:
    if model.joint is None:
        raise ValueError(
            f"method={method!r} needs an uncertain parameter in the loss, and there is none; "
            "declare one with UncertainParameter(..., samples=...), or use method='erm'."
        )
    if model.ambiguity is None:
        raise ValueError(
            f"method={method!r} needs an ambiguity set; pass ambiguity=WassersteinBall(radius=...) "
            "to the problem, or use method='erm'."
        )


def _because(plan: Plan, reason: str) -> Plan:
    return Plan(
        plan.method,
        plan.solver,
        plan.formula,
        (reason, *plan.reasons),
        plan.program,
        plan.objective,
    )


def _renamed(plan: Plan, method: str) -> Plan:
    return Plan(method, plan.solver, plan.formula, plan.reasons, plan.program, plan.objective)
