"""Exact counterparts of one's own: the class to subclass, and what its program is written with.

A model arrives in `refusal` and `program` in units in which a conic solver is at ease; whatever is
asked of `model.cost`, `model.radius` and `model.joint` is in those.
"""

from wdro_model.loss import AffineParts, affine_parts, pieces
from wdro_model.loss.expressions import substitute
from wdro_model.model import RobustModel
from wdro_model.objectives.exact import Counterpart, Extremal, Program, register_counterpart
from wdro_model.solvers.objective import Objective, Point

__all__ = [
    "AffineParts",
    "Counterpart",
    "Extremal",
    "Objective",
    "Point",
    "Program",
    "RobustModel",
    "affine_parts",
    "pieces",
    "register_counterpart",
    "substitute",
]
__dir__ = __all__.copy  # what the tab key offers
