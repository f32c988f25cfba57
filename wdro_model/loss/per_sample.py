"""Expressions evaluated for all samples at once, on flat vectors.

Over all samples a scalar parameter becomes a vector of N entries, a vector parameter a matrix
of N rows, <xi, x> a matrix product, and entrywise atoms act on vectors. For atoms of other
shapes there is no such form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.facts import NoVectorForm, facts_of
from wdro_model.loss.batched import Array, Layout, Tape, lower
from wdro_model.loss.expressions import Walk, as_scalar


@dataclass(frozen=True)
class NumberPerSample:
    """A number for each sample, as a CVXPY vector of N entries."""

    vector: Any


@dataclass(frozen=True)
class VectorPerSample:
    """A vector for each sample: data (N, d), times a certain vector where `weights` is given."""

    data: np.ndarray
    weights: Any = None

    def total(self) -> NumberPerSample:
        """The sum of the entries."""
        if self.weights is None:
            return NumberPerSample(cp.Constant(self.data.sum(axis=1)))
        return NumberPerSample(self.data @ self.weights)


PerSample = NumberPerSample | VectorPerSample


def per_sample(values: np.ndarray) -> PerSample:
    """The samples of a parameter."""
    if values.ndim == 1:
        return NumberPerSample(cp.Constant(values))
    if values.ndim == 2:
        return VectorPerSample(values)
    raise NoVectorForm


def numbers(arguments: list[Any]) -> list[Any]:
    """Vectors for numbers per sample and scalars for what is certain; nothing else may stand."""
    out = []
    for a in arguments:
        if isinstance(a, VectorPerSample) or (not isinstance(a, NumberPerSample) and a.size != 1):
            raise NoVectorForm
        out.append(a.vector if isinstance(a, NumberPerSample) else as_scalar(a))
    return out


def certain_number(a: Any) -> float:
    """The value of a certain number that is known now."""
    if isinstance(a, PerSample) or a.size != 1 or not a.is_constant() or a.value is None:
        raise NoVectorForm
    return float(np.reshape(a.value, ()))


def repeated(atom: Any, arguments: list[Any]) -> Any:
    """An atom of one entry that is its argument."""
    if atom.size != 1 or not isinstance(arguments[0], NumberPerSample):
        raise NoVectorForm
    return arguments[0]


def vectorised(expression: Any, samples: Mapping[Any, Any]) -> Any | None:
    """The losses of all samples as a vector expression (N,), or None where there is none.

    The tree is rebuilt with data in place of the parameters, by what the facts of its atoms say
    (`over_samples`). Trees with other shapes are left to one copy for each sample.
    samples: for each parameter its values, (N,) or (N, d), or a CVXPY vector of N entries.
    """

    def visit(walk: Walk, e: Any) -> Any:
        """A number or a vector per sample, or the expression itself where it is certain."""
        if not any(p in samples for p in e.parameters()):
            return e
        if isinstance(e, cp.Parameter):
            values = samples[e]
            return per_sample(values) if isinstance(values, np.ndarray) else NumberPerSample(values)
        facts = facts_of(e)
        outside = facts.reads(e)[len(e.args) :]
        if any(p in samples for read in outside for p in read.parameters()):
            raise NoVectorForm
        return facts.over_samples(e, [walk(argument) for argument in e.args])

    try:
        built = Walk(visit)(expression)
    except NoVectorForm:
        return None
    return built.vector if isinstance(built, NumberPerSample) else None


# ------------------------------------------------------------------ several expressions at once
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
        gradients = {v: adjoints[slot] for v, slot in self._variables.items()}
        return self.layout.join({v: g for v, g in gradients.items() if g is not None})

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
