"""The experiments of Villuendas, Besançon and Malick, by the names that the command line knows."""

from experiment import Experiment
from traffic import Traffic
from tree_density import TreeDensity
from tree_exact_vs_smoothed import TreeExactVsSmoothed
from tree_shift import TreeShift

EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.name: kind for kind in (TreeShift, TreeDensity, TreeExactVsSmoothed, Traffic)
}
