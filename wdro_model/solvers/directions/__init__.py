"""Direction rules: where to go from an iterate, given the gradient and the oracle's vertex."""

from wdro_model.solvers.directions.blended import (
    ActiveSet,
    BlendedConjugate,
    BlendedNewton,
    BlendedPairwise,
)
from wdro_model.solvers.directions.newton import OracleNewton, ProjectedNewton
from wdro_model.solvers.directions.rules import (
    Conjugate,
    DirectionRule,
    DirectionState,
    GradientAt,
    GradientSource,
    Move,
    Plain,
)

RULES: dict[str, DirectionRule] = {
    "plain": Plain(),
    "conjugate": Conjugate(memory=1),
    "biconjugate": Conjugate(memory=2),
    "blended_pairwise": BlendedPairwise(),
    "blended_conjugate": BlendedConjugate(),
    "blended_newton": BlendedNewton(),
    "oracle_newton": OracleNewton(),
}
"""Direction rules by name."""

__all__ = [
    "RULES",
    "ActiveSet",
    "BlendedConjugate",
    "BlendedNewton",
    "BlendedPairwise",
    "Conjugate",
    "DirectionRule",
    "DirectionState",
    "GradientAt",
    "GradientSource",
    "Move",
    "OracleNewton",
    "Plain",
    "ProjectedNewton",
]
