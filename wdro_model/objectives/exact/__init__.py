"""Exact robust counterparts: a table keyed by the loss's structure, the cost and the support.

An entry says whether it applies to a model, and gives the worst-case risk as a CVXPY program, as a
smooth objective for Frank-Wolfe where it is one, and as a number with its worst-case distribution
at a fixed decision. Adding one is a file with a class, and `register_counterpart`.

| entry                 | loss in the data                | cost            | support   |
|-----------------------|---------------------------------|-----------------|-----------|
| QuadraticFormLoss     | x' Xi x                         | squared         | R^d       |
| AffineLoss            | affine                          | quadratic       | R^d, box  |
| LipschitzLoss         | maxima, logistic, huber         | norm            | R^d       |
| LeastSquaresLoss      | the square of an affine form    | quadratic       | R^d       |
| MaxAffineEverywhere   | sums of maxima of affine pieces | quadratic       | R^d       |
| MaxAffineOnBox        | the same                        | separable       | box       |
| MaxAffineOnPolyhedron | the same                        | norm, quadratic | C xi <= h |
"""

from __future__ import annotations

from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.affine import AffineLoss
from wdro_model.objectives.exact.counterpart import (
    Counterpart,
    Extremal,
    build_in,
    counterpart,
    has_counterpart,
    objective_by,
    program_by,
    program_of,
    register_counterpart,
)
from wdro_model.objectives.exact.least_squares_loss import LeastSquaresLoss
from wdro_model.objectives.exact.lipschitz_loss import LipschitzLoss
from wdro_model.objectives.exact.max_affine import (
    MaxAffineEverywhere,
    MaxAffineOnBox,
    MaxAffineOnPolyhedron,
)
from wdro_model.objectives.exact.quadratic_form import QuadraticFormLoss

__all__ = [
    "Counterpart",
    "Extremal",
    "Program",
    "counterpart",
    "has_counterpart",
    "objective_by",
    "program_by",
    "program_of",
    "register_counterpart",
]

build_in("quadratic_form", QuadraticFormLoss())
build_in("affine", AffineLoss())
build_in("lipschitz", LipschitzLoss())
build_in("least_squares", LeastSquaresLoss())
build_in("max_affine", MaxAffineEverywhere())
build_in("box", MaxAffineOnBox())
build_in("polyhedral", MaxAffineOnPolyhedron())
