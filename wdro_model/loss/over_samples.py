"""A loss over all samples at once, as one vector-valued CVXPY expression.

The tree of the loss is rebuilt with data in place of the uncertain parameters, by what the facts of
its atoms say (`over_samples`). Trees with other shapes are left to one copy for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.facts import NoVectorForm, facts_of
from wdro_model.loss.atoms.samples import NumberPerSample, per_sample
from wdro_model.loss.walk import Walk


def vectorised(expression: Any, samples: Mapping[Any, Any]) -> Any | None:
    """The losses of all samples as a vector expression (N,), or None where there is none.

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
