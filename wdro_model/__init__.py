"""Wasserstein distributionally robust optimization over constrained sets, on top of CVXPY.

A model is a CVXPY loss in decision variables and uncertain parameters, a feasible set (CVXPY
constraints or a combinatorial oracle), and a Wasserstein ball around the data.
"""

from wdro_model.compat import make_room_for_highspy, make_room_for_or_tools

make_room_for_highspy()  # CVXPY looks for it when it is imported

import sys as _sys
from inspect import ismodule as _ismodule

import cvxpy as _cp

from wdro_model import (
    bounds,
    counterparts,
    datasets,
    errors,
    estimators,
    evaluation,
    loss,
    sets,
    solvers,
    traffic,
)
from wdro_model.counterparts import register_counterpart
from wdro_model.errors import (
    ConvexityWarning,
    InaccurateError,
    InexactOracleError,
    InfeasibleError,
    MissingRuleError,
    NoReformulationError,
    SamplingWarning,
    UnboundedError,
)
from wdro_model.evaluation import compare, radius_for, select_radius
from wdro_model.loss import (
    CallableLoss,
    cvar,
    expectation,
    probability,
    quadratic_form,
    register_rule,
)
from wdro_model.problem import Problem, solve_cvxpy_problem
from wdro_model.sets import In
from wdro_model.solve.certify import Solution
from wdro_model.uncertainty import UncertainParameter, WassersteinBall, costs, supports

__version__ = "0.1.0"

make_room_for_or_tools()
_cp.Problem.register_solve("wdro", solve_cvxpy_problem)

__all__ = [
    "CallableLoss",
    "ConvexityWarning",
    "In",
    "InaccurateError",
    "InexactOracleError",
    "InfeasibleError",
    "MissingRuleError",
    "NoReformulationError",
    "Problem",
    "SamplingWarning",
    "Solution",
    "UnboundedError",
    "UncertainParameter",
    "WassersteinBall",
    "bounds",
    "compare",
    "costs",
    "counterparts",
    "cvar",
    "datasets",
    "errors",
    "estimators",
    "evaluation",
    "expectation",
    "loss",
    "probability",
    "quadratic_form",
    "radius_for",
    "register_counterpart",
    "register_rule",
    "select_radius",
    "sets",
    "solvers",
    "supports",
    "traffic",
]
__dir__ = __all__.copy  # what the tab key offers
errors.name_keywords_of(
    [_sys.modules[__name__], *(thing for thing in map(globals().get, __all__) if _ismodule(thing))]
)
