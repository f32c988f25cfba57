"""Solvers: Frank-Wolfe methods on one driver, conic programs, both together, branch and bound."""

from wdro_model.solvers.branch_and_bound import BranchAndBound
from wdro_model.solvers.cone_solver import Aggregation, Conic
from wdro_model.solvers.directions import (
    ActiveSet,
    BlendedConjugate,
    BlendedPairwise,
    Conjugate,
    Plain,
)
from wdro_model.solvers.driver import Outcome, State, Stop
from wdro_model.solvers.frank_wolfe import FrankWolfe, MomentumFrankWolfe, QuasiNewton
from wdro_model.solvers.simplicial import Simplicial
from wdro_model.solvers.steps import Adaptive, LineSearch, OpenLoop, register_step
from wdro_model.solvers.trace import Record, Trace

Solver = (
    Conic
    | FrankWolfe
    | QuasiNewton
    | MomentumFrankWolfe
    | Simplicial
    | BranchAndBound
    | Aggregation
)
"""The solvers that `solve(solver=...)` takes."""

__all__ = [
    "ActiveSet",
    "Adaptive",
    "Aggregation",
    "BlendedConjugate",
    "BlendedPairwise",
    "BranchAndBound",
    "Conic",
    "Conjugate",
    "FrankWolfe",
    "LineSearch",
    "MomentumFrankWolfe",
    "OpenLoop",
    "Outcome",
    "Plain",
    "QuasiNewton",
    "Record",
    "Simplicial",
    "Solver",
    "State",
    "Stop",
    "Trace",
    "register_step",
]
__dir__ = __all__.copy  # what the tab key offers
