"""Direction rules: where to go from an iterate, given the gradient and the oracle's vertex."""

from wdro_model.solvers.directions.active_set import ActiveSet, BlendedPairwise
from wdro_model.solvers.directions.base import DirectionRule, DirectionState, Move, Plain
from wdro_model.solvers.directions.conjugate import Conjugate

RULES: dict[str, DirectionRule] = {
    "plain": Plain(),
    "conjugate": Conjugate(memory=1),
    "biconjugate": Conjugate(memory=2),
    "blended_pairwise": BlendedPairwise(),
}
"""Direction rules by name."""

__all__ = [
    "RULES",
    "ActiveSet",
    "BlendedPairwise",
    "Conjugate",
    "DirectionRule",
    "DirectionState",
    "Move",
    "Plain",
]
