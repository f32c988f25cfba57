"""The loss on flat vectors: a decision x in R^n, scenarios as rows of a (B, d) matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.tape import Tape, lower
from wdro_model.uncertainty.joint import JointSamples

Array = np.ndarray


class Layout:
    """Several variables side by side in one vector, each flattened row by row."""

    def __init__(self, variables: Sequence[cp.Variable]) -> None:
        self.variables = tuple(variables)
        self.slices: dict[cp.Variable, slice] = {}
        start = 0
        for variable in self.variables:
            self.slices[variable] = slice(start, start + variable.size)
            start += variable.size
        self.dimension = start

    def split(self, x: Array) -> dict[cp.Variable, Array]:
        """The value of each variable, as views of x."""
        return {v: x[s].reshape(v.shape) for v, s in self.slices.items()}

    def join(self, values: Mapping[cp.Variable, Any]) -> Array:
        """One vector from a value for each variable; a variable left out counts as zero."""
        x = np.zeros(self.dimension)
        for variable, s in self.slices.items():
            if variable in values:
                value = values[variable]
                value = value.toarray() if hasattr(value, "toarray") else value
                x[s] = np.asarray(value, dtype=float).ravel()
        return x

    @contextmanager
    def holding(self, x: Array | None = None) -> Iterator[None]:
        """The variables have the value x inside the block, if given, and after it their own."""
        before = [(variable, variable.value) for variable in self.variables]
        try:
            for variable, value in ({} if x is None else self.split(x)).items():
                variable.save_value(np.array(value))
            yield
        finally:
            for variable, value in before:
                variable.save_value(value)


@dataclass(frozen=True)
class FlatPullback:
    """Gradients of one evaluation: in x by a call, in the data by `in_data`."""

    in_decision: Callable[[Array], Array]
    in_data: Callable[..., Array]
    """weights (B,) -> (B, d); with parameters as a second argument, their columns side by side."""

    def __call__(self, weights: Array) -> Array:
        return self.in_decision(weights)


class FlatLoss:
    """A loss in the protocol `values, pullback = loss(x, scenarios)`, on flat vectors."""

    def __init__(self, loss: Any, layout: Layout, joint: JointSamples | None) -> None:
        self.loss = loss
        self.layout = layout
        self.joint = joint
        self.dimension = layout.dimension
        self.data_dimension = 0 if joint is None else joint.dimension
        self.calls = 0
        """Evaluations so far; a pullback is valid until the next one."""

    def __call__(self, x: Array, rows: Array) -> tuple[Array, FlatPullback]:
        """Values (B,) at the scenarios in rows (B, d), and their gradients.

        The pullback is valid until the next call.
        """
        self.calls += 1
        scenarios = {} if self.joint is None else self.joint.split(rows)
        values, pullback = self.loss(self.layout.split(x), scenarios)
        values = np.broadcast_to(np.asarray(values, dtype=float), (len(rows),))
        if not np.isfinite(values).all():
            worst = int(np.flatnonzero(~np.isfinite(values))[0])
            raise FloatingPointError(
                f"the loss is {values[worst]} at scenario {worst} of a batch of {len(rows)}; "
                "keep decision and data inside its domain (bounds on the variables, a support "
                "for the uncertain parameters)."
            )

        def in_decision(weights: Array) -> Array:
            return self.layout.join(pullback(weights))

        def in_data(weights: Array, only: Sequence[Any] | None = None) -> Array:
            assert self.joint is not None
            asked = self.joint.parameters if only is None else only
            given = () if only is None else (asked,)
            gradients = pullback.in_data(weights, *given)
            flat = [np.reshape(gradients[p], (len(rows), -1)) for p in asked]
            return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)

        return values, FlatPullback(in_decision, in_data)

    def values(self, x: Array, rows: Array) -> Array:
        """f(x, xi) for each row xi."""
        return self(x, rows)[0]


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
