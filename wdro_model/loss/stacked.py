"""The entries of several expressions at once, on flat vectors: values and derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.batched import Array, Layout
from wdro_model.loss.tape import Tape, lower


class Stacked:
    """The entries of some expressions, each flattened row by row: x (n,), rows (B, d) -> (B, q).

    layout: where the decision variables sit in x; columns: where each parameter sits in a row.
    The gradients are those of the last evaluation.
    """

    def __init__(
        self, expressions: Sequence[Any], layout: Layout, columns: Mapping[Any, slice]
    ) -> None:
        self.layout, self.columns = layout, dict(columns)
        self.count = sum(e.size for e in expressions)
        self.dimension = max((s.stop for s in self.columns.values()), default=0)
        self._tape: Tape | None = None
        if expressions:
            flat = [cp.reshape(e, (e.size,), order="C") for e in expressions]
            self._tape = lower(flat[0] if len(flat) == 1 else cp.hstack(flat), self.columns)
            self._variables = self._tape.slots_of(cp.Variable)
            self._parameters = self._tape.slots_of(cp.Parameter)
            self._batched = self._tape.nodes[self._tape.root].batched

    def __call__(self, x: Array, rows: Array) -> Array:
        """Values (B, q) at the rows (B, d)."""
        values = np.empty((len(rows), self.count))
        if self._tape is not None:
            point = self.layout.split(x)
            leaves = {slot: point[v] for v, slot in self._variables.items()}
            for parameter, slot in self._parameters.items():
                block = rows[:, self.columns[parameter]]
                leaves[slot] = block.reshape(len(rows), *parameter.shape)
            values[:] = self._tape.evaluate(leaves)
        return values

    def in_decision(self, seeds: Array) -> Array:
        """The gradient in x of sum(seeds * values), seeds (B, q)."""
        if self._tape is None:
            return np.zeros(self.layout.dimension)
        adjoints = self._tape.gradients_in_decision(seeds if self._batched else seeds.sum(axis=0))
        found = {v: adjoints[slot] for v, slot in self._variables.items()}
        return self.layout.join({v: g for v, g in found.items() if g is not None})

    def in_data(self, seeds: Array) -> Array:
        """Rows (B, d): the gradient of seeds_b @ values_b in the data of scenario b."""
        rows = np.zeros((len(seeds), self.dimension))
        if self._tape is None or not self._batched:
            return rows
        adjoints = self._tape.gradients_in_data(seeds)
        for parameter, slot in self._parameters.items():
            if adjoints[slot] is not None:
                shape = (len(seeds), *parameter.shape)
                block = np.broadcast_to(adjoints[slot], shape).reshape(len(seeds), -1)
                rows[:, self.columns[parameter]] = block
        return rows

    def jacobian(self, x: Array, row: Array) -> Array:
        """The derivative (q, d) of the values in the data, at one scenario (d,)."""
        self(x, np.repeat(row[None], self.count, axis=0))
        return self.in_data(np.eye(self.count))

    def jacobians(self, x: Array, rows: Array) -> Array:
        """The derivatives (B, q, d) at each of the rows."""
        self(x, rows)
        derivatives = np.empty((len(rows), self.count, self.dimension))
        for j in range(self.count):
            seeds = np.zeros((len(rows), self.count))
            seeds[:, j] = 1.0
            derivatives[:, j] = self.in_data(seeds)
        return derivatives
