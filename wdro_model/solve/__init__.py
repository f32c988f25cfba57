"""The pipeline of a solve, in the order it runs.

options (what is asked for), plan (what is minimised, by which solver), units (numbers of order
one), conic or first_order or smoothed (the run), certify (what is reported), explain (in words).
"""

from typing import Any

from wdro_model.solve.certify import Solution
from wdro_model.solve.conic import run_conic
from wdro_model.solve.first_order import run_first_order
from wdro_model.solve.options import Options
from wdro_model.solve.plan import METHODS, Plan, plan
from wdro_model.solve.smoothed import run_smoothed
from wdro_model.solvers import Conic

__all__ = ["METHODS", "Options", "Plan", "Solution", "execute", "plan"]


def execute(model: Any, chosen: Plan, options: Options) -> Solution:
    """Solve a model as planned."""
    if isinstance(chosen.solver, Conic):
        return run_conic(model, chosen, chosen.solver, options)
    if chosen.objective is None:
        return run_smoothed(model, chosen, chosen.solver, options)
    return run_first_order(model, chosen, chosen.solver, options)
