"""Nature's problem at one decision, handed to a conic solver."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError

from wdro_model.loss.magnitudes import power_of_two
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.pieces import numeric
from wdro_model.objectives.exact.vectorised import group_rows
from wdro_model.objectives.geometry import dual_norms
from wdro_model.solvers.conic import Conic

LOOSE = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-7)


def size_at(model: Model, groups: tuple[Group, ...], x: Array) -> float:
    """The size of the pieces at a decision: their spread over the samples, and nature's reach."""
    assert model.cost is not None
    found = 0.0
    budget = model.radius if model.cost.kind == "norm" else np.sqrt(model.radius)
    for group in groups:
        rows = group_rows(group, model.rows)
        for cluster in group.clusters:
            numbers = numeric(model, cluster, x)
            best = numbers.values(rows).max(axis=1)
            rate = float(dual_norms(model.cost, numbers.moving_slopes).max())
            found = max(found, float(np.ptp(best)), budget * rate)
    return power_of_two(found)


def run_patiently(problem: cp.Problem) -> None:
    """Solve; with looser tolerances where the solver gets stuck on its way to the usual ones."""
    try:
        Conic().run(problem)
    except SolverError:
        Conic("CLARABEL", LOOSE).run(problem)
