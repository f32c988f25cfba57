"""How a model is solved: two Frank-Wolfe methods on one driver, and conic solvers by CVXPY."""

from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.directions import (
    ActiveSet,
    BlendedConjugate,
    BlendedPairwise,
    Conjugate,
    Plain,
)
from wdro_model.solvers.frank_wolfe import FrankWolfe, MomentumFrankWolfe
from wdro_model.solvers.outcome import Outcome, State, Stop
from wdro_model.solvers.steps import Adaptive, LineSearch, OpenLoop, register_step
from wdro_model.solvers.trace import Record, Trace

Solver = Conic | FrankWolfe | MomentumFrankWolfe
"""What `solve(solver=...)` takes."""

__all__ = [
    "ActiveSet",
    "Adaptive",
    "BlendedConjugate",
    "BlendedPairwise",
    "Conic",
    "Conjugate",
    "FrankWolfe",
    "LineSearch",
    "MomentumFrankWolfe",
    "OpenLoop",
    "Outcome",
    "Plain",
    "Record",
    "Solver",
    "State",
    "Stop",
    "Trace",
    "register_step",
]
