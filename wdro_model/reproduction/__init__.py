"""The experiments of Villuendas, Besançon and Malick, with their estimator and with ours."""

from wdro_model.reproduction.experiment import Experiment
from wdro_model.reproduction.reproduce import Reproduction, reproduce
from wdro_model.reproduction.sioux_falls_shift import Traffic
from wdro_model.reproduction.tree_density import TreeDensity
from wdro_model.reproduction.tree_exact_vs_smoothed import TreeExactVsSmoothed
from wdro_model.reproduction.tree_shift import TreeShift

EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.name: kind for kind in (TreeShift, TreeDensity, TreeExactVsSmoothed, Traffic)
}
"""By the names that the command line knows."""

__all__ = ["EXPERIMENTS", "Experiment", "Reproduction", "reproduce"]
