"""Fixtures shared by the tests."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro

FOLDER = Path(__file__).parent
SLOW = {
    "benchmarks/test_random_models",
    "demo/test_stories",
    "estimators/test_estimators",
    "evaluation/test_guarantee",
    "evaluation/test_plots",
    "evaluation/test_radius",
    "evaluation/test_radius_dask",
    "evaluation/test_random_reports",
    "evaluation/test_rounding",
    "evaluation/test_worst_case_random",
    "model/test_infeasible_risks",
    "model/test_risk_objectives",
    "objectives/test_battery",
    "objectives/test_battery_solves",
    "objectives/test_blocks_of_three",
    "objectives/test_cells",
    "objectives/test_certificates",
    "objectives/test_conditional",
    "objectives/test_conditional_kinks",
    "objectives/test_exact_attacks",
    "objectives/test_exact_brute_force",
    "objectives/test_exact_properties",
    "objectives/test_far_pieces",
    "objectives/test_lines",
    "objectives/test_low_rank",
    "objectives/test_norm_costs",
    "objectives/test_thresholds",
    "objectives/test_tilted",
    "objectives/test_units",
    "package/test_documents",
    "package/test_imports",
    "package/test_memory",
    "package/test_notebooks",
    "package/test_public_names",
    "package/test_site",
    "paper/test_reproduce",
    "paper/test_resuming",
    "sets/test_every_set",
    "solve/test_limits_of_conic_solves",
    "solve/test_probabilities",
    "solve/test_rescaling",
    "solve/test_scales",
    "solve/test_smoothed",
    "solve/test_stored_samples",
    "solve/test_threads",
    "solve/test_values_of_decisions",
    "solvers/test_integer",
    "solvers/test_newton_steps",
    "testing/test_extending",
    "traffic/test_maps",
    "traffic/test_planning",
    "traffic/test_towards_equilibrium",
    "traffic/test_traffic_flows",
}
"""Modules that take most of the time of a full run; `make quick` leaves them out."""


def pytest_collection_modifyitems(items):
    for item in items:
        module = item.path.relative_to(FOLDER).with_suffix("").as_posix()
        if module in SLOW:
            item.add_marker("slow")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def portfolio(rng):
    """An affine loss over the simplex: the smallest model with an exact counterpart."""
    x = cp.Variable(4, nonneg=True, name="x")
    data = rng.normal(0.1, 0.3, size=(15, 4))
    returns = wdro.UncertainParameter(4, name="returns", samples=data)
    problem = wdro.Problem(
        cp.Minimize(-returns @ x), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.04)
    )
    return problem, x, data
