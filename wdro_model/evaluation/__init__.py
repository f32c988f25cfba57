"""Judging decisions: comparisons on held-out data, the choice of the radius, guarantees."""

from wdro_model.evaluation.compare import compare
from wdro_model.evaluation.guarantee import GuaranteedRadius, Resampling, radius_for
from wdro_model.evaluation.radius import RadiusSelection, select_radius
from wdro_model.evaluation.report import Judged, Refused, Report
from wdro_model.evaluation.statistics import ConstraintValue, LossStatistics

__all__ = [
    "ConstraintValue",
    "GuaranteedRadius",
    "Judged",
    "LossStatistics",
    "RadiusSelection",
    "Refused",
    "Report",
    "Resampling",
    "compare",
    "radius_for",
    "select_radius",
]
__dir__ = __all__.copy  # what the tab key offers
