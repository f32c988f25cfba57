"""The pipeline of a solve, in the order it runs.

options       the request, checked
plan          the objective, the solver, and why; uncertain `constraints` are written as certain
rescale       better units for a model and its program
compile       parametrize a program for other data, and keep it for the next solve
conic | first_order | smoothed | integer | aggregated
              the run; `scales` prepares a smoothed objective, `notes` judges it
certify       the solution that is reported, with its `true_risk`
explain       the text of `Problem.explain()`
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
"""The run of each stage: a function of the model, the plan, its solver and the options."""
