"""Uncertain constraints as certain ones, by the exact counterpart of each row.

The worst case of a row is the minimum of a convex program, so that it is at most 0 if the program
has a point where it is: program <= 0 with the constraints of the program is the constraint itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cvxpy as cp
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError, NoReformulationError, UnboundedError
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.model import Model, RobustModel, compiled
from wdro_model.model.declared import compiled_loss
from wdro_model.model.same_labels import refuse_other_labels
from wdro_model.model.uncertain_constraints import (
    UncertainConstraint,
    WrittenRow,
    declared_constraint,
    has_measures,
    uncertain_in,
)
from wdro_model.objectives import exact
from wdro_model.objectives.empirical import Program, empirical_program
from wdro_model.sets.cone_program import twin_of
from wdro_model.solve.rescale import Units, probed_loss_unit, rescale_model
from wdro_model.solve.true_risk import rescale_for
from wdro_model.solvers import Conic
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.costs.norm_costs import cost_on
from wdro_model.uncertainty.parameter import UncertainParameter

ON_SAMPLES = "a ball of radius 0, which bounds it on the samples"


def written_row(row: Model, name: str, robust: bool) -> WrittenRow:
    """A row as certain constraints; a NoReformulationError that names it where there are none.

    robust: over the ball, rather than for the samples alone.
    """
    if not isinstance(row, RobustModel) or not robust or row.radius == 0:
        still = row.without_ball() if isinstance(row, RobustModel) else row
        rescaled = rescale_model(still)
        if rescaled.loss != 1.0 and _thresholds(still):
            rescaled = rescale_model(still, _threshold_units(still, rescaled.loss))
        program, unit = empirical_program(rescaled.model), rescaled.loss
    else:
        program, unit = _worst_case(row, name)
    if program is None:
        raise NoReformulationError(
            f"the constraint {name} is no convex CVXPY program in the decision: its left-hand side "
            f"minus the right one is {row.structure.describe()}",
            "a loss that is convex in the decision for all data, bounded from above",
        )
    return WrittenRow(program.expression <= 0, program.constraints, unit)


def _worst_case(row: RobustModel, name: str) -> tuple[Program | None, float]:
    """The worst case of a row as a program, and the unit that it is measured in."""
    try:
        counterpart = exact.counterpart(row)
    except NoReformulationError as error:
        raise NoReformulationError(
            f"the constraint {name} cannot be imposed over its ball: {error.reason}",
            f"another cost or support for its parameters, or {ON_SAMPLES}",
        ) from None
    if not counterpart.writes_samples(row):
        return exact.program_by(counterpart, row), 1.0
    # A row is written anew for each radius, so in its own units whatever they are: the price of the
    # radius is of order one then. In the user's units it is one over the root of a squared radius.
    units = _threshold_units(row, probed_loss_unit(row))
    rescaled = rescale_for(counterpart, row, units)
    return exact.program_by(counterpart, rescaled.model), rescaled.loss


def _thresholds(row: Model) -> list[Threshold]:
    return [v for v in row.feasible.layout.variables if isinstance(v, Threshold)]


def _threshold_units(row: Model, unit: float) -> Units:
    """The unit of the loss for the loss and for thresholds, which are losses themselves."""
    return Units(dict.fromkeys(_thresholds(row), unit), unit)


def constraint_rows(model: Model) -> list[tuple[str, str]]:
    """Each uncertain constraint and how it is imposed, for people."""
    rows: list[tuple[str, str]] = []
    for constraint in model.feasible.uncertain:
        first = constraint.rows[0]
        rows.append(("constraint", constraint.name))
        if not isinstance(first, RobustModel):
            rows.append(("", "nothing in it is uncertain"))
        elif not constraint.robust or first.radius == 0:
            rows.append(("", f"on the N = {first.size} samples"))
        else:
            rows.append(("", f"for every distribution with {first.ambiguity.describe()}"))
            rows.append(("", f"by {exact.counterpart(first).formula}"))
    return rows


# ------------------------------------------------------------------ from what is declared
def declared_model(
    objective: Any, constraints: Sequence[Any], ball: WassersteinBall | None, assume_convex: bool
) -> Model:
    """The model of a problem, whose uncertain constraints have a counterpart each."""
    loss, tails = compiled_loss(objective)
    refuse_other_labels(objective, constraints)
    certain = [c for c in constraints if not has_measures(c)]
    others = [c for c in constraints if has_measures(c)]
    every = [*loss.parameters, *uncertain_in(others)]
    shared = ball
    if ball is not None and loss.parameters:
        shared = replace(ball, cost=cost_on(ball.cost, loss.parameters, every))
    model = compiled(
        loss,
        certain,
        shared,
        assume_convex,
        isinstance(objective, cp.Maximize),
        tails,
        [v for c in others for v in c.variables()],
    )
    if not others:
        return model
    uncertain = [declared_constraint(c, ball, every, written_row) for c in others]
    model = model.bounded_by(uncertain)
    model.feasible.check_intersections()
    for c, constraint in zip(others, uncertain):
        if all(
            p.value is not None for p in c.parameters() if not isinstance(p, UncertainParameter)
        ):
            constraint.written_rows()
    return model


# ------------------------------------------------------------------ no decision meets them
def explained(model: Model, error: InfeasibleError) -> InfeasibleError:
    """Which uncertain constraint leaves no decision, and whether its ball is to blame."""
    certain = [*model.feasible.constraints, *model.feasible.set_forms()]
    found = [(c, least_excess(c, certain)) for c in model.feasible.uncertain]
    for constraint, least in found:
        if least is not None and least > 0:
            return InfeasibleError(_cannot_be_met(constraint, least, certain))
    these = " and ".join(constraint.name for constraint, _ in found)
    alone = all(least is not None for _, least in found)
    return InfeasibleError(
        f"no decision meets {these} together with the other constraints"
        f"{', though each of them can be met' if alone else ''}; take larger limits or smaller "
        f"radii. ({error})"
    )


def _cannot_be_met(constraint: UncertainConstraint, least: float, certain: list[object]) -> str:
    """What is told of a constraint that is exceeded by `least` at least."""
    radius = constraint.rows[0].radius if constraint.robust else 0.0
    told = f"the constraint {constraint.name} cannot be met: it is exceeded by {least:.4g} at least"
    larger = "take a larger limit, or relax other constraints."
    if not radius:
        return f"{told} on the samples; {larger}"
    on_samples = least_excess(constraint.empirical(), certain)
    if on_samples is not None and on_samples > 0:
        return f"{told}, even on the samples alone (by {on_samples:.4g}); {larger}"
    though = (
        "" if on_samples is None else ", though there are decisions that meet it on the samples"
    )
    return (
        f"{told}, for some distribution of the ball of radius {radius:g}{though}; take a smaller "
        "radius (with_radius, or ambiguity= of the constraint), or a larger limit."
    )


def least_excess(constraint: UncertainConstraint, certain: list[object]) -> float | None:
    """The least that a constraint is exceeded by over decisions that meet the certain ones.

    Where no solver takes the integers, that of the relaxation if it is positive. None where it is
    not known.
    """
    rows = constraint.written_rows()
    unit = max(row.unit for row in rows)
    largest = [row.bound.expr * (row.unit / unit) for row in rows]
    others = [c for row in rows for c in row.others]
    rest = [c for c in certain if hasattr(c, "args")]
    objective = cp.maximum(*largest) if len(largest) > 1 else largest[0]
    problem = cp.Problem(cp.Minimize(objective), [*others, *rest])
    kept = [(v, v.value) for v in problem.variables()]
    try:
        least = _least(problem)
        if least is None and problem.is_mixed_integer():
            least = _least(_relaxed(problem))
            least = least if least is not None and least > 0 else None
        return None if least is None else unit * least
    finally:
        for variable, value in kept:
            variable.save_value(value)


def _least(problem: cp.Problem) -> float | None:
    """The value of a program; None where a solver gives up."""
    try:
        Conic().run(problem)
        return float(problem.value)
    except UnboundedError:
        return -float("inf")
    except (InfeasibleError, SolverError):
        return None


def _relaxed(problem: cp.Problem) -> cp.Problem:
    """The program without integrality, booleans being between 0 and 1."""
    twins = {id(v): twin_of(v, relaxed=True) for v in problem.variables()}
    bounds = [
        bound
        for v in problem.variables()
        if v.attributes["boolean"]
        for bound in (twins[id(v)] >= 0, twins[id(v)] <= 1)
    ]
    constraints = [c.tree_copy(twins) for c in problem.constraints]
    return cp.Problem(cp.Minimize(problem.objective.expr.tree_copy(twins)), constraints + bounds)
