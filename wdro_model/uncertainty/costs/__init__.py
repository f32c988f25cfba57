"""Ground costs c(xi, zeta): what it costs the adversary to move an observation xi to zeta.

A cost is declared before the parameters are known (`SquaredEuclidean(weights="standardize")`) and
bound to the joint samples when the problem is compiled, which resolves and checks its weights. The
bound cost has the mathematics. A new cost is a `GroundCost` with its `BoundCost`; `register_cost`
gives it a name.
"""

from wdro_model.errors import UnknownToCost
from wdro_model.uncertainty.costs.checking import check
from wdro_model.uncertainty.costs.cost_register import (
    Operation,
    as_cost,
    cost_names,
    find_cost,
    operations,
    register_cost,
)
from wdro_model.uncertainty.costs.ground_cost import (
    BoundCost,
    BoundUserCost,
    Callable,
    GroundCost,
    RescaledCost,
)
from wdro_model.uncertainty.costs.norm_costs import (
    BoundMahalanobis,
    BoundNorm,
    BoundSquared,
    Mahalanobis,
    Norm,
    SquaredEuclidean,
)

__all__ = [
    "BoundCost",
    "BoundMahalanobis",
    "BoundNorm",
    "BoundSquared",
    "BoundUserCost",
    "Callable",
    "GroundCost",
    "Mahalanobis",
    "Norm",
    "Operation",
    "RescaledCost",
    "SquaredEuclidean",
    "UnknownToCost",
    "as_cost",
    "check",
    "cost_names",
    "find_cost",
    "operations",
    "register_cost",
]
__dir__ = __all__.copy  # what the tab key offers
