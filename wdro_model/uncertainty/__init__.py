"""Uncertain data: parameters with samples and supports, ground costs, Wasserstein balls."""

from wdro_model.uncertainty import costs, supports
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.joint import JointSamples, LazySamples, scenario_batches
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.sampling import GaussianSampler

__all__ = [
    "GaussianSampler",
    "JointSamples",
    "LazySamples",
    "UncertainParameter",
    "WassersteinBall",
    "costs",
    "scenario_batches",
    "supports",
]
__dir__ = __all__.copy  # what the tab key offers
