"""A model in units of its own: data, loss and transport cost of order one.

Conic solvers stop at absolute tolerances. Prices in dollars and the same prices in millions are one
problem, and get one answer: with units u of the data, v of the loss and w of the cost, in which the
price of the radius is of order one,

    xi = u xi',   f = v f',   c(xi, zeta) = w c'(xi', zeta'),   radius' = radius / w.

The decision is the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from wdro_model.errors import UnknownToCost
from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.loss.expressions import is_ordinary, power_of_two, times
from wdro_model.loss.structure import analyse
from wdro_model.model import Memory, Model, RobustModel
from wdro_model.solve.units import Scale, known_loss_unit, largest_reach, smallest_loss
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Box, Support

Some = TypeVar("Some", bound=Model)

STEEP = 30.0
"""Prices of the radius above so many units of the loss are measured in a unit of their own."""
FAR = 1e8
"""Bounds so many units away act as if they were not there."""


@dataclass(frozen=True, eq=False)
class Units(Generic[Some]):
    """A model in its own units, and the units."""

    model: Some
    data: Array
    """u, (d,)."""
    loss: float
    """v."""
    cost: float
    """In which the price of the radius is of order one; 1 where the model has no radius."""

    @classmethod
    def of(cls, model: Some) -> Units[Some]:
        """The units that the model is in."""
        return cls(model, np.ones(model.loss.data_dimension), 1.0, 1.0)


def in_units(model: Some, scale: Scale | None = None) -> Units[Some]:
    """The model in units of its own; as it is where its numbers are of order one anyway.

    scale: units of the decision and the loss. The variables then stand for multiples of them.
    """
    if scale is not None:
        return _measured(model, scale)
    return model.remember(f"units: {model.radius!r}", lambda: _measured(model, None))


def _measured(model: Model, scale: Scale | None) -> Units[Any]:
    unchanged = Units.of(model)
    if not isinstance(model, RobustModel) or model.expression is None:
        return unchanged
    samples = model.joint.split(model.joint.matrix)
    sizes = {p: max(_size(values), _distance(model, p)) for p, values in samples.items()}
    if scale is None and not _is_extraordinary(model, sizes):
        return unchanged
    twins: dict[Any, UncertainParameter] = {}
    for p, u in sizes.items():
        twin = _twin(p, samples[p] / u, u)
        if twin is None:
            return unchanged if scale is None else _decision_in_units(model, scale)
        twins[p] = twin
    replaced = {id(p): sizes[p] * twin for p, twin in twins.items()}
    if scale is not None:
        replaced |= {id(v): unit * v for v, unit in scale.decision.items()}
    expression = model.expression.tree_copy(replaced)
    if set(expression.parameters()) & set(sizes):
        # Some parameter is hidden inside an atom, such as an exponent.
        return unchanged if scale is None else _decision_in_units(model, scale)
    unit = smallest_loss(model, max(sizes.values())) if scale is None else scale.loss
    data = np.concatenate([np.full(p.size, u) for p, u in sizes.items()])
    cost = _cost_unit(model, unit)
    changed = _rescaled(model, times(expression, 1.0 / unit), tuple(twins.values()), data, cost)
    return Units(changed, data, unit, cost)


def _decision_in_units(model: RobustModel, scale: Scale) -> Units[Any]:
    """The data as it is, decision and loss in other units."""
    replaced = {id(v): unit * v for v, unit in scale.decision.items()}
    expression = times(model.expression.tree_copy(replaced), 1.0 / scale.loss)
    parameters = model.joint.parameters
    loss = FlatLoss(BatchedLoss(expression, parameters), model.loss.layout, model.joint)
    structure = analyse(expression, parameters)
    changed = replace(model, expression=expression, loss=loss, structure=structure, memory=Memory())
    return replace(Units.of(changed), loss=scale.loss)


def _size(values: Array) -> float:
    """The root mean square of the samples, as a power of two so that nothing is rounded."""
    size = float(np.sqrt(np.mean(np.square(values / (np.abs(values).max() or 1.0)))))
    size *= float(np.abs(values).max())
    return power_of_two(size)


def _distance(model: RobustModel, parameter: Any) -> float:
    """How far the budget takes the parameter within its support, as a power of two."""
    if model.radius == 0:
        return 0.0
    try:
        scales, length = model.cost.coordinate_scales, model.cost.distance(model.radius)
    except UnknownToCost:
        return 0.0
    box = parameter.support.bounds(parameter.shape)
    width = np.inf if box is None else float(np.max(np.subtract(*box[::-1]), initial=0.0))
    where = model.joint.slices[parameter]
    weight = float(np.median(scales[where]))
    if not np.isfinite(weight) or weight <= 0:
        return 0.0
    reached = min(length / weight, width)
    return power_of_two(reached) if reached > 0 else 0.0


def has_large_numbers(model: RobustModel) -> bool:
    """Is some size of the data, or the price of the radius, beyond what solvers do well with?"""
    sizes = [_size(values) for values in model.joint.split(model.joint.matrix).values()]
    price = largest_reach(model) / model.radius if model.radius > 0 else 1.0
    return not all(1 / STEEP <= number <= STEEP for number in (*sizes, price) if number > 0)


def _is_extraordinary(model: RobustModel, sizes: dict[Any, float]) -> bool:
    """Is some number of the model far from order one?"""
    numbers = [*sizes.values(), known_loss_unit(model)]
    if model.radius > 0:
        numbers.append(np.sqrt(model.radius))
        price = largest_reach(model) / model.radius / known_loss_unit(model)
        if price > STEEP:
            return True
    if not all(is_ordinary(number) for number in numbers):
        return True
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


def _cost_unit(model: RobustModel, loss: float) -> float:
    """The unit of cost in which the price of the radius is of order one.

    The price is about what the budget adds to the loss, over the radius. Where it adds little, the
    price in units of the radius would be as small, and what a solver leaves of zero as large as it.
    """
    radius = model.radius
    if not 1e-150 < radius < 1e150:
        return 1.0
    added = largest_reach(model)
    return radius * power_of_two(max(loss / added, 1.0)) if added > 0 else radius


def _rescaled(
    model: RobustModel, expression: Any, parameters: tuple[Any, ...], data: Array, unit: float
) -> RobustModel:
    joint = JointSamples(parameters)
    if model.joint.probabilities is not None:
        joint = joint.with_rows(joint.matrix, model.joint.probabilities)
    return replace(
        model,
        expression=expression,
        loss=FlatLoss(BatchedLoss(expression, parameters), model.loss.layout, joint),
        structure=analyse(expression, parameters),
        joint=joint,
        ambiguity=replace(model.ambiguity, radius=model.ambiguity.budget / unit),
        cost=model.cost.rescaled(data, unit),
        budget=None,
        memory=Memory(),
    )
