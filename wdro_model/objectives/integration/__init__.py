"""Ways to compute the inner integral of the smoothed objective, in order of preference.

Each strategy says why it does not apply to a model (`refusal`), and builds itself for one. The
first that applies is taken, unless the user names another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.boxed_form import boxed_form_refusal, build_boxed_form
from wdro_model.objectives.integration.by_cells import build_cells, cells_refusal
from wdro_model.objectives.integration.closed_form import ClosedForm
from wdro_model.objectives.integration.conditional.by_blocks import (
    build_conditional,
    conditional_refusal,
)
from wdro_model.objectives.integration.gaussian import Gaussian
from wdro_model.objectives.integration.inner_integral import Integration, Slice, Stream, inputs
from wdro_model.objectives.integration.low_rank.form_anatomy import dissect, generic_rank
from wdro_model.objectives.integration.low_rank.through_forms import (
    build_low_rank,
    drawn_refusal,
    low_rank_refusal,
)
from wdro_model.objectives.integration.norm_terms import build_norm_terms, norm_terms_refusal
from wdro_model.objectives.integration.norms import EuclideanMixture, squared_twin
from wdro_model.objectives.integration.one_form import build_one_form, one_form_refusal
from wdro_model.objectives.integration.separable.by_terms import (
    build_separable,
    separable_refusal,
)
from wdro_model.objectives.integration.tilted import build_tilted, tilted_refusal

__all__ = ["STRATEGIES", "Choice", "Integration", "Scales", "Slice", "Stream", "choose"]


@dataclass(frozen=True)
class Scales:
    """Temperature and reference of the smoothing, and the draws of the sampling strategies."""

    epsilon: float
    sigma: float | np.ndarray
    draws: int


@dataclass(frozen=True)
class Strategy:
    """One entry of the table."""

    refusal: Callable[[RobustModel], str | None]
    build: Callable[[RobustModel, Scales], Any]
    detour: Callable[[RobustModel], str | None] = lambda model: None
    """Why a later one does better, where this one applies; asked if the user names none."""


@dataclass(frozen=True)
class Choice:
    """A strategy by name, and why it was taken."""

    name: str
    reason: str

    def build(self, model: RobustModel, scales: Scales) -> Any:
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


def build_closed_form(model: RobustModel, scales: Scales) -> ClosedForm:
    return ClosedForm(*inputs(model), epsilon=scales.epsilon, sigma=scales.sigma)


def norms_refusal(model: RobustModel) -> str | None:
    """Why no transform of one form and no mixture applies; None if one does."""
    if _written_out(model) is not None:
        return None
    if model.cost.exponent == np.inf:
        return boxed_form_refusal(model)
    if model.cost.exponent != 2.0:
        return "the ground cost is not a norm with p = 2 or inf"
    reasons = [f"{name}: {refused}" for name, refused in _mixable(model) if refused is not None]
    if len(reasons) == len(MIXABLE):
        return f"with squared costs it is not {'; not '.join(reasons)}"
    return None


def _written_out(model: RobustModel) -> Callable[[RobustModel, Scales], Integration] | None:
    """What integrates a maximum of affine pieces, or sums of such; None if nothing."""
    if model.affine_in_data:
        largest = model.cost.exponent == np.inf and boxed_form_refusal(model) is None
        return build_boxed_form if largest else None
    if one_form_refusal(model) is None:
        return build_one_form
    if boxed_form_refusal(model) is None:
        return build_boxed_form
    return build_norm_terms if norm_terms_refusal(model) is None else None


def _mixable(model: RobustModel) -> list[tuple[str, str | None]]:
    """Why strategies for squared costs refuse a model with the square of its cost."""
    twin = squared_twin(model)
    refused = {name: STRATEGIES[name].refusal(twin) for name in MIXABLE}
    if refused["low_rank"] is None:
        refused["low_rank"] = drawn_refusal(twin)
    return list(refused.items())


def build_norms(model: RobustModel, scales: Scales) -> Integration:
    if (build := _written_out(model)) is not None:
        return build(model, scales)
    name = next(name for name, refused in _mixable(model) if refused is None)
    inner = STRATEGIES[name].build(squared_twin(model), scales)
    return EuclideanMixture(model, inner, epsilon=scales.epsilon, sigma=scales.sigma)


def build_gaussian(model: RobustModel, scales: Scales) -> Gaussian:
    return Gaussian(*inputs(model), epsilon=scales.epsilon, sigma=scales.sigma, draws=scales.draws)


def low_rank_detour(model: RobustModel) -> str | None:
    """Two forms of two coordinates: the plane of the data will do."""
    if cells_refusal(model) is not None:
        return None
    anatomy = dissect(model)
    if anatomy is None or anatomy.quadratic or generic_rank(model, anatomy) < 2:
        return None
    return "as many forms as coordinates that move"


def norms_detour(model: RobustModel) -> str | None:
    """Few samples in the plane: cells are faster than a mixture of quadratures."""
    if cells_refusal(model) is not None or model.size > FEW_SAMPLES:
        return None
    if model.structure is not None and model.structure.pieces is not None:
        return None  # affine pieces have closed forms
    return "for a few samples in a plane a mixture is a detour"


FEW_SAMPLES = 50
MIXABLE = ("closed_form", "separable", "low_rank")
"""Strategies for squared costs that tell the samples apart."""

STRATEGIES: dict[str, Strategy] = {
    "closed_form": Strategy(closed_form_refusal, build_closed_form),
    "separable": Strategy(separable_refusal, build_separable),
    "low_rank": Strategy(low_rank_refusal, build_low_rank, low_rank_detour),
    "norms": Strategy(norms_refusal, build_norms, norms_detour),
    "cells": Strategy(cells_refusal, build_cells),
    "conditional": Strategy(conditional_refusal, build_conditional),
    "tilted": Strategy(tilted_refusal, build_tilted),
    "gaussian": Strategy(lambda model: None, build_gaussian),
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
