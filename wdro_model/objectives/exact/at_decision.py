"""Nature's problem at one decision, handed to a conic solver."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError

from wdro_model.loss.atoms.expressions import power_of_two
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.pieces import numeric
from wdro_model.objectives.exact.vectorised import group_rows
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array

TOLERANCES = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
LOOSER = (1e-8, 1e-7, 1e-5)
"""The solver's own tolerance, and what is tried after it."""


def size_at(model: RobustModel, groups: tuple[Group, ...], x: Array) -> float:
    """The size of the pieces at a decision: their spread over the samples, and nature's reach."""
    found = 0.0
    width = model.joint.width
    for group in groups:
        rows = group_rows(group, model.rows)
        for cluster in group.clusters:
            numbers = numeric(model, cluster, x)
            best = numbers.values(rows).max(axis=1)
            gains = model.cost.largest_gains(numbers.moving_slopes, model.radius, width)
            found = max(found, float(np.ptp(best)), float(gains.max()))
    return power_of_two(found)


def run_patiently(problem: cp.Problem) -> None:
    """Solve; with looser tolerances where the solver gets stuck on its way to the usual ones."""
    for tolerance in LOOSER:
        try:
            Conic("CLARABEL", dict.fromkeys(TOLERANCES, tolerance)).run(problem)
            return
        except SolverError:
            continue
    raise SolverError(
        "nature's problem at this decision could not be solved: its numbers are of too many "
        "sizes; measure the data, or its cost, in units in which they are of order one."
    )
