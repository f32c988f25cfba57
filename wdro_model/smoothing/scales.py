"""Scales of a smoothed problem: sigma, epsilon, and first guesses and bounds of the dual."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.execution import run_empirical
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.calibration import (
    calibrate_dual,
    default_epsilon,
    default_sigma,
    gradient_size,
    typical_dual,
)
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.integration.gaussian import Gaussian
from wdro_model.options import Options
from wdro_model.sets.base import FeasibleSet
from wdro_model.smoothing.recipe import FirstOrder, Recipe

CALIBRATION_STAGE = 2**62
"""A stream of random numbers that no iteration uses."""


def resolve_sigma(model: Model, sigma: Any) -> float | Array:
    """The reference's standard deviation: the user's, else the default of the calibration."""
    assert model.joint is not None
    assert model.cost is not None
    if sigma is None:
        return default_sigma(model.cost, model.radius, model.joint)
    array = np.asarray(sigma, dtype=float)
    good = np.isfinite(array) & (array > 0)
    if array.shape not in ((), (model.joint.dimension,)) or not np.all(good):
        raise ValueError(
            "sigma must be a positive number or one for each of the "
            f"{model.joint.dimension} coordinates of the data, got {sigma!r}."
        )
    return float(array) if array.ndim == 0 else array


def derived_epsilon(model: Model, options: Options) -> float:
    """kappa sqrt(radius) G / (2 d), G the loss's gradient in the data at the ERM decision."""
    assert model.joint is not None
    assert model.cost is not None
    scale = model.remember("scale of the loss in the data", lambda: data_scale(model, options))
    return default_epsilon(scale if scale > 0 else 1.0, model.radius, model.cost, model.joint)


def data_scale(model: Model, options: Options) -> float:
    """The size of the loss's gradient in the data at the ERM decision, or of the loss itself."""
    assert model.joint is not None
    assert model.cost is not None
    x = empirical_decision(model, options)
    size = gradient_size(model.loss, model.joint, model.cost, x)
    return size if size > 0 else float(np.abs(model.loss.values(x, model.rows)).mean())


def empirical_decision(model: Model, options: Options) -> Array:
    """The ERM decision, computed once for a model."""
    return model.remember("ERM decision", lambda: run_empirical(model, options))


def first_dual(model: Model, x: Array) -> float:
    """The multiplier that a loss linear in the data would have."""
    assert model.joint is not None
    assert model.cost is not None
    size = gradient_size(model.loss, model.joint, model.cost, x)
    return typical_dual(size, model.radius, model.cost, model.joint)


def dual_bound(recipe: Recipe, solver: FirstOrder, oracle: FeasibleSet, start: Array) -> float:
    """The user's lambda_max, else the paper's calibration."""
    given = getattr(solver, "dual_bound", None)
    if given is not None:
        return float(given)
    scales = Scales(recipe.epsilon, recipe.sigma, max(2, solver.samples))
    sampler = Choice("gaussian", "").build(recipe.model, scales)
    assert isinstance(sampler, Gaussian)
    stream = Stream(recipe.seed, CALIBRATION_STAGE)
    bound = calibrate_dual(sampler, oracle.minimize, start, stream).bound
    if not bound > 0:
        raise ValueError(
            "the calibration of the dual bound found no dispersion of the loss over "
            f"{scales.draws} draws per sample: the loss does not depend on the data there; give "
            "MomentumFrankWolfe(dual_bound=...) or use dual='exact'."
        )
    return bound
