"""Uncertain constraints as certain ones, by the exact counterpart of each row.

The worst case of a row is the minimum of a convex program over auxiliary variables. It is at most 0
if some values of these variables meet the program's constraints and make its objective at most 0:
these inequalities are the certain constraints. `Problem` hands `written_row` to the model.
"""

from __future__ import annotations

import cvxpy as cp
from cvxpy.error import SolverError

from wdro_model.errors import InfeasibleError, NoReformulationError, UnboundedError
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.model import Model, RobustModel
from wdro_model.model.uncertain_constraints import (
    UncertainConstraint,
    WrittenRow,
)
from wdro_model.objectives import exact
from wdro_model.objectives.empirical import Program, empirical_program
from wdro_model.sets.cone_program import twin_of
from wdro_model.solve.rescale import Units, probed_loss_unit, rescale_model
from wdro_model.solve.true_risk import rescale_for
from wdro_model.solvers import Conic

ON_SAMPLES = "a ball of radius 0, which bounds it on the samples"


def written_row(row: Model, name: str, robust: bool) -> WrittenRow:
    """Certain constraints for a row; a NoReformulationError with its name where none are known.

    robust: over the ball, rather than for the samples alone.
    """
    if isinstance(row, RobustModel) and robust and row.radius > 0:
        program, unit = _worst_case(row, name)
    else:
        mean_row = row.without_ball() if isinstance(row, RobustModel) else row
        rescaled = rescale_model(mean_row)
        units = _threshold_units(mean_row, rescaled.loss)
        if rescaled.loss != 1.0 and units.decision:
            rescaled = rescale_model(mean_row, units)
        program, unit = empirical_program(rescaled.model), rescaled.loss
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
    # A row is written anew for each radius, and so can always have units in which the price of the
    # radius is of order one. In the user's units the price grows like 1/sqrt(radius) for a
    # quadratic cost.
    units = _threshold_units(row, probed_loss_unit(row))
    rescaled = rescale_for(counterpart, row, units)
    return exact.program_by(counterpart, rescaled.model), rescaled.loss


def _threshold_units(row: Model, unit: float) -> Units:
    """The unit of the loss, which is also that of thresholds: they are losses themselves."""
    thresholds = [v for v in row.feasible.layout.variables if isinstance(v, Threshold)]
    return Units(dict.fromkeys(thresholds, unit), unit)


# ------------------------------------------------------------------ no decision meets them
def explain_infeasibility(model: Model, error: InfeasibleError) -> InfeasibleError:
    """The error that names the uncertain constraint to blame, and whether it is for its ball."""
    certain = [*model.feasible.constraints, *model.feasible.set_forms()]
    excesses = [(c, least_excess(c, certain)) for c in model.feasible.uncertain]
    for constraint, excess in excesses:
        if excess is not None and excess > 0:
            return InfeasibleError(_excess_message(constraint, excess, certain))
    names = " and ".join(constraint.name for constraint, _ in excesses)
    alone = all(excess is not None for _, excess in excesses)
    return InfeasibleError(
        f"no decision meets {names} together with the other constraints"
        f"{', though each of them can be met' if alone else ''}; take larger limits or smaller "
        f"radii. ({error})"
    )


def _excess_message(constraint: UncertainConstraint, excess: float, certain: list[object]) -> str:
    """The message for a constraint whose left-hand side exceeds the right one at all decisions."""
    radius = constraint.rows[0].radius if constraint.robust else 0.0
    message = f"the constraint {constraint.name} cannot be met: it is exceeded by {excess:.4g}"
    larger = "take a larger limit, or relax other constraints."
    if not radius:
        return f"{message} at least on the samples; {larger}"
    on_samples = least_excess(constraint.empirical(), certain)
    if on_samples is not None and on_samples > 0:
        return f"{message} at least, even on the samples alone (by {on_samples:.4g}); {larger}"
    though = (
        "" if on_samples is None else ", though there are decisions that meet it on the samples"
    )
    return (
        f"{message} at least, for some distribution of the ball of radius {radius:g}{though}; take "
        "a smaller radius (with_radius, or ambiguity= of the constraint), or a larger limit."
    )


def least_excess(constraint: UncertainConstraint, certain: list[object]) -> float | None:
    """The least amount by which decisions that meet the certain constraints exceed this one.

    Without a mixed-integer solver, the excess of the continuous relaxation if that is positive, a
    lower bound. None where no solver gives a value.
    """
    rows = constraint.written_rows()
    unit = max(row.unit for row in rows)
    largest = [row.bound.expr * (row.unit / unit) for row in rows]
    others = [c for row in rows for c in row.others]
    rest = [c for c in certain if hasattr(c, "args")]
    objective = cp.maximum(*largest) if len(largest) > 1 else largest[0]
    problem = cp.Problem(cp.Minimize(objective), [*others, *rest])
    values = [(v, v.value) for v in problem.variables()]
    try:
        least = _minimum(problem)
        if least is None and problem.is_mixed_integer():
            least = _minimum(_relaxation(problem))
            least = least if least is not None and least > 0 else None
        return None if least is None else unit * least
    finally:
        for variable, value in values:
            variable.save_value(value)


def _minimum(problem: cp.Problem) -> float | None:
    """The value of a program; None where a solver gives up."""
    try:
        Conic().run(problem)
        return float(problem.value)
    except UnboundedError:
        return -float("inf")
    except (InfeasibleError, SolverError):
        return None


def _relaxation(problem: cp.Problem) -> cp.Problem:
    """The program without integrality, with booleans between 0 and 1."""
    twins = {id(v): twin_of(v, relaxed=True) for v in problem.variables()}
    bounds = [
        bound
        for v in problem.variables()
        if v.attributes["boolean"]
        for bound in (twins[id(v)] >= 0, twins[id(v)] <= 1)
    ]
    constraints = [c.tree_copy(twins) for c in problem.constraints]
    return cp.Problem(cp.Minimize(problem.objective.expr.tree_copy(twins)), constraints + bounds)
