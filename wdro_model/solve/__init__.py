"""The pipeline of a solve, in the order it runs.

options (what is asked for), plan (what is minimised, by which solver), the passes rescale,
parametrize and compile of a conic program, the run (conic, first_order, smoothed, integer or
aggregated), certify (what is reported), explain (in words).
"""

from collections.abc import Callable
from typing import Any

from wdro_model.solve.aggregated import run_aggregation
from wdro_model.solve.certify import Solution
from wdro_model.solve.conic import run_conic
from wdro_model.solve.first_order import run_composite, run_first_order, run_simplicial
from wdro_model.solve.integer import run_integer
from wdro_model.solve.options import Options
from wdro_model.solve.plan import METHODS, Plan, plan
from wdro_model.solve.smoothed import run_smoothed

__all__ = ["METHODS", "STAGES", "Options", "Plan", "Solution", "plan"]


STAGES: dict[str, Callable[[Any, Plan, Any, Options], Solution]] = {
    "conic": run_conic,
    "first_order": run_first_order,
    "composite": run_composite,
    "smoothed": run_smoothed,
    "simplicial": run_simplicial,
    "integer": run_integer,
    "aggregation": run_aggregation,
}
"""What runs a plan: a function of the model, the plan, its solver and the options."""
