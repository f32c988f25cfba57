"""Instances to try the library on, each with a training distribution and a shifted one."""

from wdro_model.datasets.quadratic_tree import QuadraticTree, TreeCosts, quadratic_tree
from wdro_model.datasets.traffic_scenarios import (
    TrafficDraw,
    TrafficRanges,
    TrafficScenarios,
    shifted_scenarios,
    sioux_falls,
    training_scenarios,
)

__all__ = [
    "QuadraticTree",
    "TrafficDraw",
    "TrafficRanges",
    "TrafficScenarios",
    "TreeCosts",
    "quadratic_tree",
    "shifted_scenarios",
    "sioux_falls",
    "training_scenarios",
]
__dir__ = __all__.copy  # what the tab key offers
