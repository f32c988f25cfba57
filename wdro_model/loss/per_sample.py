"""An expression for all samples at once: a number or a vector for each of them.

Over all samples a scalar parameter becomes a vector of N entries, a vector parameter a matrix
of N rows, <xi, x> a matrix product, and entrywise atoms act on vectors. For atoms of other
shapes there is no such form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.facts import NoVectorForm, facts_of
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
    try:
        built = _OverSamples(samples)(expression)
    except NoVectorForm:
        return None
    return built.vector if isinstance(built, NumberPerSample) else None


class _OverSamples(Walk):
    """A number or a vector per sample, or the expression itself where it is certain."""

    def __init__(self, samples: Mapping[Any, Any]) -> None:
        super().__init__()
        self.samples = samples

    def visit(self, expression: Any) -> Any:
        if not any(p in self.samples for p in expression.parameters()):
            return expression
        if isinstance(expression, cp.Parameter):
            given = self.samples[expression]
            return per_sample(given) if isinstance(given, np.ndarray) else NumberPerSample(given)
        facts, arguments = facts_of(expression), expression.args
        outside = facts.reads(expression)[len(arguments) :]
        if any(p in self.samples for read in outside for p in read.parameters()):
            raise NoVectorForm
        return facts.over_samples(expression, [self(argument) for argument in arguments])
