"""A model in units of its own: data, loss and transport cost of order one.

Conic solvers stop at absolute tolerances. Prices in dollars and the same prices in millions are one
problem, and get one answer: with units u of the data, v of the loss and the radius as the unit of
cost,

    xi = u xi',   f = v f',   c(xi, zeta) = radius c'(xi', zeta'),   radius' = 1.

The decision is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from wdro_model.errors import UnknownToCost
from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.loss.expressions import is_ordinary, is_scalable, power_of_two, times
from wdro_model.loss.structure import analyse
from wdro_model.model import Memory, Model, RobustModel
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Box, Support

Some = TypeVar("Some", bound=Model)

FAR = 1e8
"""Bounds so many units away act as if they were not there."""
MEASURED = 32
"""Samples that tell the size of the losses."""
LEVELS = ((1.0, 1.0), (1.0, 0.0), (-1.0, -1.0))
"""Decisions of order one, but for noise: the sum of a vector and the value of a scalar."""
ROUNDING = 1e-9
"""A spread of the losses below this share of their size is rounding."""


@dataclass(frozen=True, eq=False)
class Units(Generic[Some]):
    """A model in its own units, and the units."""

    model: Some
    data: Array
    """u, (d,)."""
    loss: float
    """v."""
    cost: float
    """The radius of the original model; 1 where it has none."""

    @classmethod
    def of(cls, model: Some) -> Units[Some]:
        """The units that the model is in."""
        return cls(model, np.ones(model.loss.data_dimension), 1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Scale:
    """Units of the decision and of the loss."""

    decision: Mapping[Any, float]
    """Of some of the variables; the others keep their own."""
    loss: float


def in_units(model: Some, scale: Scale | None = None) -> Units[Some]:
    """The model in units of its own; as it is where its numbers are of order one anyway.

    scale: units of the decision and the loss. The variables then stand for multiples of them.
    """
    if scale is not None:
        return _measured(model, scale)
    return model.remember(f"units: {model.radius!r}", lambda: _measured(model, None))


def own_units(model: Some, by_sample: bool) -> Units[Some]:
    """The units of a program without others: those of the model where it holds every sample."""
    return in_units(model) if by_sample else Units.of(model)


def loss_unit(model: Model) -> float:
    """The size of the losses, as a power of two; 1 where it is of order one anyway."""
    if not isinstance(model, RobustModel) or model.expression is None:
        return 1.0
    unit = _known_loss_unit(model)
    return 1.0 if is_ordinary(unit) else unit


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
    unit = _loss_unit(model, max(sizes.values())) if scale is None else scale.loss
    data = np.concatenate([np.full(p.size, u) for p, u in sizes.items()])
    return Units(
        _rescaled(model, times(expression, 1.0 / unit), tuple(twins.values()), data),
        data,
        unit,
        _cost_unit(model),
    )


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


def _is_extraordinary(model: RobustModel, sizes: dict[Any, float]) -> bool:
    """Is some number of the model far from order one?"""
    numbers = [*sizes.values(), _known_loss_unit(model)]
    if model.radius > 0:
        numbers.append(np.sqrt(model.radius))
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


def decision_units(model: Model, x: Array | None = None) -> Scale:
    """The size of each variable that changes the loss as much as the samples do, and of the loss.

    At the decision x, or at decisions of order one. Variables that the loss does not see, and those
    that cannot be measured in another unit, are left out.
    """
    if not isinstance(model, RobustModel) or model.expression is None:
        return Scale({}, 1.0)
    if x is None:
        return Scale(_decision_units(model, probes(model)), _known_loss_unit(model))
    found = _probe(model, x)
    some = [] if found is None else [found]
    return Scale(_decision_units(model, some), _unit_of_loss(model, some, 1.0))


def _decision_units(model: RobustModel, some: list[Probe]) -> dict[Any, float]:
    units = {}
    for variable, where in model.feasible.layout.slices.items():
        found = [
            probe.size / steepness
            for probe in some
            if (steepness := float(probe.gradient[where].max(initial=0.0))) > 0
        ]
        if found and is_scalable(variable):
            units[variable] = power_of_two(float(np.median(found)))
    return units


@dataclass(frozen=True)
class Probe:
    """The loss at one decision."""

    size: float
    """The spread of the losses over some samples; their size where they do not differ."""
    varies: bool
    """Do the losses differ from sample to sample?"""
    x: Array
    """The decision, (n,)."""
    gradient: Array
    """How fast the loss of a sample changes with each entry of the decision, (n,)."""


def probes(model: RobustModel) -> list[Probe]:
    """The loss at a few decisions of order one, generic ones among them."""
    return model.remember(f"probes of the loss: {model.radius!r}", lambda: _look(model))


def _look(model: RobustModel) -> list[Probe]:
    rng, found = np.random.default_rng(0), []
    for level, scalars in LEVELS:
        x = np.concatenate(
            [
                np.full(v.size, scalars if v.ndim == 0 else level / v.size)
                for v in model.feasible.layout.variables
            ]
        )
        found.append(_probe(model, x * rng.uniform(0.5, 1.5, size=x.shape)))
    some = [probe for probe in found if probe is not None]
    # A decision at which the data does not count says little, if there are others.
    some = [probe for probe in some if probe.varies] or some
    # Where all losses cancel, as rows of one sum do at equal weights, what is left is rounding.
    largest = max((probe.size for probe in some), default=0.0)
    return [probe for probe in some if probe.size > ROUNDING * largest]


def _probe(model: RobustModel, x: Array) -> Probe | None:
    """The size and steepness of the loss at x; None where it is zero or not defined."""
    rows = next(iter(model.joint.blocks(MEASURED)))
    # Random weights: gradients that cancel in the mean do not in them.
    weights = (1.0 + np.random.default_rng(1).standard_normal(len(rows))) / len(rows)
    try:
        values, pullback = model.loss(x, rows)
        losses = np.array(values)
        gradient = np.abs(pullback(weights))
    except ArithmeticError:
        return None  # a logarithm of something negative, for example
    size, spread = float(np.abs(losses).max()), float(np.ptp(losses))
    varies = spread > ROUNDING * size
    measure = spread if varies else size
    known = np.isfinite(measure) and measure > 0 and np.isfinite(gradient).all()
    return Probe(measure, varies, x, gradient) if known else None


def _known_loss_unit(model: RobustModel) -> float:
    """The same, looked at once."""
    return model.remember(f"unit of the loss: {model.radius!r}", lambda: _loss_unit(model, 1.0))


def _loss_unit(model: RobustModel, size: float) -> float:
    """The smallest size of the losses at decisions of order one, as a power of two."""
    return _unit_of_loss(model, probes(model), size)


def _unit_of_loss(model: RobustModel, some: list[Probe], otherwise: float) -> float:
    if not some:
        return power_of_two(otherwise)
    smallest = min(some, key=lambda probe: probe.size)
    return power_of_two(max(smallest.size, _reach(model, smallest.x)))


def _reach(model: RobustModel, x: Array) -> float:
    """What the whole budget adds to the loss of a sample, by its slope there."""
    if model.radius == 0:
        return 0.0
    row = next(iter(model.joint.blocks(1)))
    try:
        slope = np.array(model.loss(x, row)[1].in_data(np.ones(1))[0])
    except (ArithmeticError, NotImplementedError):
        return 0.0
    slope = np.where(model.cost.frozen, 0.0, slope)
    try:
        found = float(model.cost.largest_gains(slope, model.radius, model.joint.width))
    except UnknownToCost:
        return 0.0
    return found if np.isfinite(found) else 0.0


def _cost_unit(model: RobustModel) -> float:
    """The radius, where one can divide by it."""
    return model.radius if 1e-150 < model.radius < 1e150 else 1.0


def _rescaled(
    model: RobustModel, expression: Any, parameters: tuple[Any, ...], data: Array
) -> RobustModel:
    joint = JointSamples(parameters)
    unit = _cost_unit(model)
    return replace(
        model,
        expression=expression,
        loss=FlatLoss(BatchedLoss(expression, parameters), model.loss.layout, joint),
        structure=analyse(expression, parameters),
        joint=joint,
        ambiguity=replace(model.ambiguity, radius=model.ambiguity.radius / unit),
        cost=model.cost.rescaled(data, unit),
        memory=Memory(),
    )


def sizes_of(variables: Sequence[Any]) -> dict[Any, float]:
    """The largest entries of the values of those variables that can be scaled."""
    return {v: _largest_entry(v) for v in variables if is_scalable(v)}


def unusual(units: Mapping[Any, float]) -> dict[Any, float]:
    """Those units that are far from one, as powers of two."""
    return {v: power_of_two(unit) for v, unit in units.items() if not is_ordinary(unit)}


def _largest_entry(variable: Any) -> float:
    """Of the variable's value; 0 without one."""
    if variable.value is None:
        return 0.0
    value = variable.value.data if hasattr(variable.value, "tocsr") else variable.value
    size = float(np.abs(value).max(initial=0.0))
    return size if np.isfinite(size) else 0.0
