"""Ways to compute the inner integral of the smoothed objective, in order of preference.

Each strategy says why it does not apply to a model (`refusal`), and builds itself for one. The
first that applies is taken, unless the user names another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.by_cells import ByCells, cells_refusal
from wdro_model.objectives.integration.closed_form import ClosedForm
from wdro_model.objectives.integration.conditional.by_blocks import (
    Conditional,
    conditional_refusal,
)
from wdro_model.objectives.integration.inner_integral import Integration, Scales, Slice, Stream
from wdro_model.objectives.integration.low_rank.forms import form_structure, generic_rank
from wdro_model.objectives.integration.low_rank.slice import (
    LowRank,
    low_rank_refusal,
)
from wdro_model.objectives.integration.norms import EuclideanMixture, squared_twin
from wdro_model.objectives.integration.separable.slice import Separable, separable_refusal
from wdro_model.objectives.integration.tilted import Gaussian, Tilted, tilted_refusal

__all__ = ["STRATEGIES", "Choice", "Integration", "Scales", "Slice", "Stream", "choose"]


@dataclass(frozen=True)
class Strategy:
    """A way to integrate: when it does not apply, how to build it, when a later one is better."""

    refusal: Callable[[RobustModel], str | None]
    """Reason why the strategy does not apply to a model; None if it applies."""
    build: Callable[[RobustModel, Scales], Integration]
    detour: Callable[[RobustModel], str | None] = lambda model: None
    """Reason to skip this strategy, though it applies, because a later one is better; None to take
    it. Not asked if the user names the strategy."""


@dataclass(frozen=True)
class Choice:
    """The name of a strategy, and the reason for which it was chosen."""

    name: str
    reason: str

    def build(self, model: RobustModel, scales: Scales) -> Integration:
        return STRATEGIES[self.name].build(model, scales)


def closed_form_refusal(model: RobustModel) -> str | None:
    if not model.affine_in_data:
        return "the loss is not affine in the data"
    if not model.cost.is_quadratic:
        return "the ground cost is not quadratic"
    if not model.cost.is_separable and np.any(model.cost.frozen):
        return "the ground cost couples coordinates, some of which may not move"
    if not model.joint.everywhere:
        if model.joint.bounds is None:
            return "the support has no coordinate structure"
        if not model.cost.is_separable:
            return "the ground cost couples the coordinates of a box support"
    return None


def norms_refusal(model: RobustModel) -> str | None:
    """Reason why no mixture of squared costs integrates the model; None if one does."""
    if model.cost.exponent != 2.0:
        return "the ground cost is not a Euclidean norm"
    refused = _squared_refusals(model)
    if all(reason is not None for reason in refused.values()):
        reasons = "; not ".join(f"{name}: {reason}" for name, reason in refused.items())
        return f"with squared costs it is not {reasons}"
    return None


def _squared_refusals(model: RobustModel) -> dict[str, str | None]:
    """For each strategy in `MIXABLE`, its refusal of the model with the square of its cost."""
    twin = squared_twin(model)
    return {name: STRATEGIES[name].refusal(twin) for name in MIXABLE}


def build_norms(model: RobustModel, scales: Scales) -> EuclideanMixture:
    name = next(name for name, reason in _squared_refusals(model).items() if reason is None)
    return EuclideanMixture(model, scales, STRATEGIES[name].build(squared_twin(model), scales))


def low_rank_detour(model: RobustModel) -> str | None:
    """Two forms of two coordinates that move: cells integrate over the plane of the data itself."""
    if cells_refusal(model) is not None:
        return None
    structure = form_structure(model)
    if structure is None or structure.quadratic or generic_rank(model, structure) < 2:
        return None
    return "as many forms as coordinates that move"


def norms_detour(model: RobustModel) -> str | None:
    """Few samples in the plane: cells are faster than a mixture of quadratures."""
    if cells_refusal(model) is not None or model.size > FEW_SAMPLES:
        return None
    return "for a few samples in a plane a mixture is a detour"


FEW_SAMPLES = 50
"""Samples up to which cells are faster than a mixture of squared costs (`norms_detour`)."""
MIXABLE = ("closed_form", "separable", "low_rank")
"""Strategies for squared costs whose slices give one value for each sample (`SampleSlice`)."""

# In order of preference; roughly closed forms, then quadrature, then draws.
STRATEGIES: dict[str, Strategy] = {
    "closed_form": Strategy(closed_form_refusal, ClosedForm),
    "separable": Strategy(separable_refusal, Separable),
    "low_rank": Strategy(low_rank_refusal, LowRank, low_rank_detour),
    "norms": Strategy(norms_refusal, build_norms, norms_detour),
    "cells": Strategy(cells_refusal, ByCells),
    "conditional": Strategy(conditional_refusal, Conditional),
    "tilted": Strategy(tilted_refusal, Tilted),
    "gaussian": Strategy(lambda model: None, Gaussian),
}


def choose(model: RobustModel, forced: str | None) -> Choice:
    """The named strategy, or the first that applies; a ValueError if the named one cannot."""
    if forced is not None:
        reason = STRATEGIES[forced].refusal(model)
        if reason is not None:
            others = [n for n, s in STRATEGIES.items() if s.refusal(model) is None]
            raise ValueError(
                f"integration={forced!r} does not apply: {reason}; what does: "
                f"{', '.join(map(repr, others))}."
            )
        return Choice(forced, "asked for")
    refused: list[str] = []
    for name, strategy in STRATEGIES.items():
        reason = strategy.refusal(model) or strategy.detour(model)
        if reason is None:
            why = "; ".join(refused) if refused else "the first choice"
            return Choice(name, why)
        refused.append(f"not {name}: {reason}")
    raise AssertionError("the last strategy applies to every model")
