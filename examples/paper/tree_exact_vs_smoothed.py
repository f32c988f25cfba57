"""Three quadratic trees with costs of any sign: ERM, exact and smoothed on data not seen before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from experiment import Experiment, Record
from tree_trial import TreeSettings, run_tree, seeds_of


@dataclass(frozen=True)
class TreeExactVsSmoothed(Experiment):
    """Costs are not clipped at zero, so that the scenarios fill all of R^(m x m)."""

    name: ClassVar[str] = "tree-exact-vs-smoothed"
    title: ClassVar[str] = "Exact and smoothed trees on unseen data, unconstrained costs"

    trees: TreeSettings = field(default_factory=lambda: TreeSettings(tests=500, nonnegative=False))
    edges: int = 331
    instances: tuple[str, ...] = ("a", "b", "c")
    methods: tuple[str, ...] = ("erm", "sampled", "smoothed", "exact")

    @classmethod
    def quick(cls, seed: int = 0) -> Self:
        full = cls(seed)
        small = replace(full.trees, nodes=12, count=30, tests=150, iterations=200)
        return replace(full, trees=small, edges=40)

    def keys(self) -> list[str]:
        return list(self.instances)

    def run(self, key: str) -> Record:
        seeds = seeds_of(self.seed, self.edges, 1 + self.instances.index(key))
        return run_tree(self.trees, self.edges, seeds, self.methods)

    def group(self, key: str) -> dict[str, Any]:
        return {"instance": key, "edges": self.edges}

    def figure(self, records: Mapping[str, Record]) -> Any:
        from plots import Panel, plot_panels

        panels = [
            Panel.of(f"({key}) {scenarios}", record["methods"], scenarios)
            for scenarios in self.trees.shifts
            for key, record in records.items()
        ]
        return plot_panels(panels, self.title, columns=len(records))
