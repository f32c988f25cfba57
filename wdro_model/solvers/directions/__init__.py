"""Direction rules: where to go from an iterate, given the gradient and the oracle's vertex."""

from wdro_model.solvers.directions.active_set import ActiveSet
from wdro_model.solvers.directions.blended import BlendedConjugate, BlendedNewton, BlendedPairwise
from wdro_model.solvers.directions.conjugate import (
    Conjugate,
    DirectionRule,
    DirectionState,
    Move,
    Plain,
)
from wdro_model.solvers.directions.projected_newton import OracleNewton

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
    "Move",
    "OracleNewton",
    "Plain",
]
