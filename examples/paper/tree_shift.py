"""A quadratic tree with 50 nodes and 331 edges: losses on training and on shifted data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from decisions import Decision
from experiment import Experiment, Record
from tree_methods import TreeModel
from tree_orthant import orthant_decisions
from tree_trial import SHIFTS, Shift, TreeSettings, run_tree, seeds_of
from wdro_model.datasets import QuadraticTree
from wdro_model.uncertainty.joint import LazySamples

UNSEEN = {"unseen": Shift(base=0.0, mask=0.0, noise=0.1)}
"""New scenarios of the training distribution itself."""


@dataclass(frozen=True)
class TreeShift(Experiment):
    """One instance, all methods."""

    name: ClassVar[str] = "tree-shift"
    title: ClassVar[str] = "Losses of trees on training and shifted data"

    trees: TreeSettings = field(
        default_factory=lambda: TreeSettings(tests=500, shifts={**UNSEEN, **SHIFTS})
    )
    edges: int = 331
    methods: tuple[str, ...] = ("erm", "sampled", "smoothed", "exact")
    radii: tuple[float, ...] = (1e-4, 1e-3, 1e-2)
    """Exact decisions of smaller radii, for the table only."""
    orthant_iterations: int = 300
    """Of the paper's algorithm with draws on the orthant: an iteration takes most of a second."""

    @classmethod
    def quick(cls, seed: int = 0) -> Self:
        full = cls(seed)
        small = replace(full.trees, nodes=10, count=20, tests=150, iterations=300)
        return replace(full, trees=small, edges=25, orthant_iterations=30)

    def keys(self) -> list[str]:
        return ["instance"]

    def run(self, key: str) -> Record:
        seeds = seeds_of(self.seed, self.edges)
        return run_tree(self.trees, self.edges, seeds, self.methods, self._others)

    def _others(
        self, model: TreeModel, instance: QuadraticTree, training: LazySamples
    ) -> list[Decision]:
        """The decisions that stand in the table only."""
        smaller = [model.exact(radius) for radius in self.radii]
        orthant = orthant_decisions(
            self.trees, instance, training[:], model.seed, self.orthant_iterations
        )
        return [*smaller, *orthant]

    def group(self, key: str) -> dict[str, Any]:
        return {"edges": self.edges}

    def figure(self, records: Mapping[str, Record]) -> Any:
        from plots import Panel, plot_panels

        methods = records["instance"]["methods"]
        names = ["training", *self.trees.shifts]
        panels = [Panel.of(name, methods, name) for name in names]
        return plot_panels(panels, self.title, columns=2)
