"""Judging decisions on data, seen and unseen."""

from wdro_model.evaluation.compare import Judged, Report, compare
from wdro_model.evaluation.statistics import LossStatistics

__all__ = ["Judged", "LossStatistics", "Report", "compare"]
