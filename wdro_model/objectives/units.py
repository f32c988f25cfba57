"""A model in units of its own: data, loss and transport cost of order one.

Conic solvers stop at absolute tolerances. Prices in dollars and the same prices in millions are one
problem, and get one answer: with units u of the data, v of the loss and the radius as the unit of
cost,

    xi = u xi',   f = v f',   c(xi, zeta) = radius c'(xi', zeta'),   radius' = 1.

The decision is the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.loss.batched import BatchedLoss
from wdro_model.loss.flat import FlatLoss
from wdro_model.loss.homogeneous import times
from wdro_model.loss.structure import analyse
from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Box, Support

ORDINARY = 30.0
"""Data between this and its inverse are left as they are."""
FAR = 1e8
"""Bounds so many units away act as if they were not there."""
MEASURED = 32
"""Samples that tell the size of the losses."""


@dataclass(frozen=True, eq=False)
class Units:
    """A model in its own units, and the units."""

    model: Model
    data: Array
    """u, (d,)."""
    loss: float
    """v."""
    cost: float
    """The radius of the original model; 1 where it has none."""

    @classmethod
    def of(cls, model: Model) -> Units:
        """The units that the model is in."""
        return cls(model, np.ones(model.loss.data_dimension), 1.0, 1.0)


def in_units(model: Model) -> Units:
    """The model in units of its own; as it is where its numbers are of order one anyway."""
    return model.remember(f"units: {model.radius!r}", lambda: _measured(model))


def loss_unit(model: Model) -> float:
    """The size of the losses, as a power of two; 1 where it is of order one anyway."""
    if model.joint is None or model.expression is None:
        return 1.0
    unit = model.remember("unit of the loss", lambda: _loss_unit(model, 1.0))
    return 1.0 if 1.0 / ORDINARY <= unit <= ORDINARY else unit


def _measured(model: Model) -> Units:
    unchanged = Units.of(model)
    if model.joint is None or model.expression is None:
        return unchanged
    samples = model.joint.split(model.joint.matrix)
    sizes = {p: _size(values) for p, values in samples.items()}
    if not _is_extraordinary(model, sizes):
        return unchanged
    twins: dict[Any, UncertainParameter] = {}
    for p, u in sizes.items():
        twin = _twin(p, samples[p] / u, u)
        if twin is None:
            return unchanged
        twins[p] = twin
    replaced = {id(p): sizes[p] * twin for p, twin in twins.items()}
    expression = model.expression.tree_copy(replaced)
    if set(expression.parameters()) & set(sizes):
        return unchanged  # hidden inside an atom, such as an exponent
    unit = _loss_unit(model, max(sizes.values()))
    data = np.concatenate([np.full(p.size, u) for p, u in sizes.items()])
    return Units(
        _rescaled(model, times(expression, 1.0 / unit), tuple(twins.values()), data),
        data,
        unit,
        _cost_unit(model),
    )


def _size(values: Array) -> float:
    """The root mean square of the samples, as a power of two so that nothing is rounded."""
    size = float(np.sqrt(np.mean(np.square(values / (np.abs(values).max() or 1.0)))))
    size *= float(np.abs(values).max())
    return float(2.0 ** np.round(np.log2(size))) if size > 0 else 1.0


def _is_extraordinary(model: Model, sizes: dict[Any, float]) -> bool:
    """Is some number of the model far from order one?"""
    numbers = list(sizes.values())
    if model.radius > 0:
        numbers.append(np.sqrt(model.radius))
    if any(not 1.0 / ORDINARY <= number <= ORDINARY for number in numbers):
        return True
    assert model.joint is not None
    bounds = [np.ravel(b) for b in model.joint.bounds or ()]
    return any(bool(np.any(np.isfinite(b) & (np.abs(b) > 1e4))) for b in bounds)


def _twin(parameter: Any, samples: Array, unit: float) -> UncertainParameter | None:
    """The parameter in its unit; None where its support cannot be rescaled."""
    support = _near(parameter.support.scaled(1.0 / unit), parameter.shape)
    if support is None:
        return None
    declared = {k: v for k, v in parameter.attributes.items() if v is not None and v is not False}
    declared = {k: declared[k] for k in ("symmetric", "diag", "PSD", "NSD") if k in declared}
    return UncertainParameter(
        parameter.shape, parameter.name(), samples=samples, support=support, **declared
    )


def _near(support: Support | None, shape: tuple[int, ...]) -> Support | None:
    """The support without bounds that are too far away to matter."""
    if not isinstance(support, Box):
        return support
    lower, upper = support.bounds(shape)
    return Box(np.where(lower < -FAR, -np.inf, lower), np.where(upper > FAR, np.inf, upper))


def _loss_unit(model: Model, size: float) -> float:
    """The smallest spread of the losses over some samples, at decisions of order one."""
    assert model.joint is not None
    rows = next(iter(model.joint.blocks(MEASURED)))
    spreads = []
    for level, scalars in ((1.0, 1.0), (1.0, 0.0), (-1.0, -1.0)):
        x = np.concatenate(
            [
                np.full(v.size, scalars if v.ndim == 0 else level / v.size)
                for v in model.feasible.layout.variables
            ]
        )
        try:
            losses = np.array(model.loss.values(x, rows))
        except ArithmeticError:
            continue  # not defined there, a logarithm for example
        spreads.append(float(np.ptp(losses) if len(rows) > 1 else np.abs(losses).max()))
    spreads = [spread for spread in spreads if np.isfinite(spread)]
    found = [spread for spread in spreads if spread > 1e-12 * max(spreads)]
    return float(2.0 ** np.round(np.log2(min(found, default=size))))


def _cost_unit(model: Model) -> float:
    """The radius, where one can divide by it."""
    return model.radius if 1e-150 < model.radius < 1e150 else 1.0


def _rescaled(model: Model, expression: Any, parameters: tuple[Any, ...], data: Array) -> Model:
    joint = JointSamples(parameters)
    unit = _cost_unit(model)
    return replace(
        model,
        expression=expression,
        loss=FlatLoss(BatchedLoss(expression, parameters), model.loss.layout, joint),
        structure=analyse(expression, parameters),
        joint=joint,
        ambiguity=None
        if model.ambiguity is None
        else replace(model.ambiguity, radius=model.ambiguity.radius / unit),
        cost=None if model.cost is None else _cost(model.cost, data, unit),
        memory={},
    )


def _cost(cost: BoundCost, data: Array, unit: float) -> BoundCost:
    """c' with c(u delta') = unit c'(delta')."""
    if cost.kind == "mahalanobis":
        assert cost.matrix is not None
        return replace(cost, matrix=data[:, None] * cost.matrix * data / unit)
    if cost.kind == "callable":
        assert cost.function is not None
        function = cost.function
        return replace(cost, function=lambda a, b: function(a * data, b * data) / unit)
    weights = np.ones(cost.dimension) if cost.weights is None else cost.weights
    return replace(cost, weights=weights * (data if cost.kind == "norm" else data**2) / unit)
