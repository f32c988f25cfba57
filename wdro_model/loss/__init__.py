"""Losses: values and gradients on many scenarios, structure in the data, atoms, risk measures."""

from wdro_model.loss.atoms.facts import AtomFacts, NoPieces, declare, rule
from wdro_model.loss.atoms.quadratic import StructuredAtom, quadratic_form
from wdro_model.loss.atoms.risk import cvar, expectation, probability
from wdro_model.loss.batched import BatchedLoss, Loss, Pullback
from wdro_model.loss.callable import CallableLoss
from wdro_model.loss.polynomial import AffineParts, affine_parts, degree
from wdro_model.loss.structure import (
    Structure,
    analyse,
    convexity_in_data,
    is_canonicalisable,
    pieces,
)

register_rule = rule

__all__ = [
    "AffineParts",
    "AtomFacts",
    "BatchedLoss",
    "CallableLoss",
    "Loss",
    "NoPieces",
    "Pullback",
    "Structure",
    "StructuredAtom",
    "affine_parts",
    "analyse",
    "convexity_in_data",
    "cvar",
    "declare",
    "degree",
    "expectation",
    "is_canonicalisable",
    "pieces",
    "probability",
    "quadratic_form",
    "register_rule",
    "rule",
]
__dir__ = __all__.copy  # what the tab key offers
