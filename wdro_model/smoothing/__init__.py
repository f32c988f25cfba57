"""The smoothed method: scales, strategy, stages, certificates."""

from wdro_model.smoothing.recipe import choose_integration, dual_rule
from wdro_model.smoothing.run import run_smoothed

__all__ = ["choose_integration", "dual_rule", "run_smoothed"]
