"""What the loss is: its values and gradients on many scenarios, and its structure in the data."""

from wdro_model.loss.batched import BatchedLoss
from wdro_model.loss.callable import CallableLoss
from wdro_model.loss.pullback import Loss, Pullback
from wdro_model.loss.quadratic_form import quadratic_form
from wdro_model.loss.rules import rule
from wdro_model.loss.structure import (
    AffineParts,
    Structure,
    affine_parts,
    analyse,
    convexity_in_data,
    degree,
    pieces,
)
from wdro_model.loss.structured import StructuredAtom

__all__ = [
    "AffineParts",
    "BatchedLoss",
    "CallableLoss",
    "Loss",
    "Pullback",
    "Structure",
    "StructuredAtom",
    "affine_parts",
    "analyse",
    "convexity_in_data",
    "degree",
    "pieces",
    "quadratic_form",
    "rule",
]
