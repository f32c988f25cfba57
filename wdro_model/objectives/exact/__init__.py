"""Exact robust counterparts: a table keyed by the loss's structure, the cost and the support.

An entry says whether it applies to a model, and gives the worst-case risk as a CVXPY program, as a
smooth objective for Frank-Wolfe where it is one, and as a number with its worst-case distribution
at a fixed decision. Adding one is a file with a class, and `register_counterpart`.
"""

from wdro_model.objectives.exact.counterpart import Counterpart, Extremal, register_counterpart
from wdro_model.objectives.exact.table import counterpart, counterparts, has_counterpart
from wdro_model.objectives.programs import Program

__all__ = [
    "Counterpart",
    "Extremal",
    "Program",
    "counterpart",
    "counterparts",
    "has_counterpart",
    "register_counterpart",
]
