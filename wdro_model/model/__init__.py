"""Problems after their checks: loss, data, ball and feasible set in one place."""

from wdro_model.model.compiled import Memory, Model, RobustModel, compiled
from wdro_model.model.feasible import Feasible

__all__ = ["Feasible", "Memory", "Model", "RobustModel", "compiled"]
