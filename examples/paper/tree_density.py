"""Quadratic trees on graphs from sparse to complete: the advantage of robust decisions over ERM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from experiment import Experiment, Record
from tree_expectation import expected_rows
from tree_trial import TreeSettings, run_tree, seeds_of
from wdro_model.datasets import quadratic_tree

EDGES = (75, 203, 331, 458, 586, 714, 842, 969, 1097, 1225)
"""Ten densities from 75 edges to the complete graph on 50 nodes, evenly spaced."""


@dataclass(frozen=True)
class TreeDensity(Experiment):
    """Ten densities, ten instances each, all methods on each instance."""

    name: ClassVar[str] = "tree-density"
    title: ClassVar[str] = "Advantage over ERM on shifted data, by the number of edges"

    trees: TreeSettings = field(default_factory=TreeSettings)
    edges: tuple[int, ...] = EDGES
    instances: int = 10
    methods: tuple[str, ...] = ("erm", "sampled", "smoothed", "exact")

    @classmethod
    def quick(cls, seed: int = 0) -> Self:
        trees = replace(TreeSettings(), nodes=10, count=20, tests=50, iterations=150)
        return cls(seed, trees, edges=(15, 30, 45), instances=3)

    def keys(self) -> list[str]:
        return [f"{m:04d}-edges-{i:02d}" for i in range(self.instances) for m in self.edges]

    def run(self, key: str) -> Record:
        edges, instance = self._parsed(key)
        seeds = seeds_of(self.seed, edges, instance)
        return run_tree(self.trees, edges, seeds, self.methods)

    def group(self, key: str) -> dict[str, Any]:
        return {"edges": self._parsed(key)[0]}

    def figure(self, records: Mapping[str, Record]) -> Any:
        from plots import plot_advantages

        return plot_advantages(self, records)

    def further(self, records: Mapping[str, Record]) -> dict[str, Any]:
        """Expected and measured advantages of all instances, as a table and as a picture."""
        from plots import plot_expected

        rows = []
        for key, record in records.items():
            edges, number = self._parsed(key)
            first = seeds_of(self.seed, edges, number)[0]
            drawn = quadratic_tree(
                self.trees.nodes, edges, first, nonnegative=self.trees.nonnegative
            )
            found = expected_rows(drawn, self.trees.shifts, record)
            rows += [{"instance": key, "edges": edges, **row} for row in found]
        return {"expected.csv": rows, "expected.png": plot_expected(rows)}

    def _parsed(self, key: str) -> tuple[int, int]:
        edges, _, instance = key.split("-")
        return int(edges), int(instance)
