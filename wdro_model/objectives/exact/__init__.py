"""Exact robust counterparts: a table keyed by the loss's structure, the cost and the support.

An entry says whether it applies to a model, and gives the worst-case risk as a CVXPY program, as a
smooth objective for Frank-Wolfe where it is one, and as a number with its worst-case distribution
at a fixed decision. Adding one is a file with a class, and a line in `table.ENTRIES`.
"""

from wdro_model.objectives.exact.affine import robust_affine
from wdro_model.objectives.exact.base import Entry, Extremal
from wdro_model.objectives.exact.table import (
    ENTRIES,
    Counterpart,
    counterpart,
    find_entry,
    has_entry,
    robust_value,
)

__all__ = [
    "ENTRIES",
    "Counterpart",
    "Entry",
    "Extremal",
    "counterpart",
    "find_entry",
    "has_entry",
    "robust_affine",
    "robust_value",
]
