"""Units in which data, loss, decision and rows of a program are of order one.

Solvers stop at absolute tolerances, relative to the largest right-hand side at best: a row in
millions loosens all others, a decision in millions is found as if in ones.

Conic solvers stop at absolute tolerances. Prices in dollars and the same prices in millions are one
problem, and get one answer: with units u of the data, v of the loss and w of the cost, in which the
price of the radius is of order one,

    xi = u xi',   f = v f',   c(xi, zeta) = w c'(xi', zeta'),   radius' = radius / w.

The decision is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Equality, Inequality, Zero

from wdro_model.errors import UnknownToCost
from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.loss.expressions import declared, is_ordinary, is_scalable, power_of_two, times
from wdro_model.loss.structure import analyse
from wdro_model.model import Memory, Model, RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.least_thresholds import at_quantiles
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Box, Support

Rows = Equality | Inequality | Zero

MEASURED = 32
"""Samples that tell the size of the losses."""
LEVELS = ((1.0, 1.0), (1.0, 0.0), (-1.0, -1.0))
"""Decisions of order one, but for noise: the sum of a vector and the value of a scalar."""
ROUNDING = 1e-9
"""A spread of the losses below this share of their size is rounding."""


@dataclass(frozen=True, eq=False)
class Scale:
    """Units of the decision and of the loss."""

    decision: Mapping[Any, float]
    """Of some of the variables; the others keep their own."""
    loss: float


def loss_unit(model: Model) -> float:
    """The size of the losses, as a power of two; 1 where it is of order one anyway."""
    if model.expression is None:
        return 1.0
    if isinstance(model, RobustModel):
        unit = known_loss_unit(model)
    else:
        sizes = _coefficients(model.expression)
        unit = 1.0 if sizes is None else power_of_two(float(np.max(sizes)))
    return 1.0 if is_ordinary(unit) else unit


def decision_units(model: Model, x: Array | None = None) -> Scale:
    """The size of each variable that changes the loss as much as the samples do, and of the loss.

    At the decision x, or at decisions of order one. Variables that the loss does not see, and those
    that cannot be measured in another unit, are left out.
    """
    if not isinstance(model, RobustModel) or model.expression is None:
        return Scale({}, 1.0)
    if x is None:
        return Scale(_decision_units(model, probes(model)), known_loss_unit(model))
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
    return model.remember("probes of the loss", lambda: _look(model))


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
    """The size and steepness of the loss at x; None where it is zero or not defined.

    Thresholds of CVaRs are losses themselves, and stand where they are best for the samples.
    """
    rows = next(iter(model.joint.blocks(MEASURED)))
    # Random weights: gradients that cancel in the mean do not in them.
    weights = (1.0 + np.random.default_rng(1).standard_normal(len(rows))) / len(rows)
    try:
        x = at_quantiles(model, x, rows)
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


def known_loss_unit(model: RobustModel) -> float:
    """The unit of the losses at decisions of order one, looked at once."""
    return model.remember(f"unit of the loss: {model.radius!r}", lambda: smallest_loss(model, 1.0))


def smallest_loss(model: RobustModel, size: float) -> float:
    """The smallest size of the losses at decisions of order one, as a power of two."""
    return _unit_of_loss(model, probes(model), size)


def _unit_of_loss(model: RobustModel, some: list[Probe], otherwise: float) -> float:
    if not some:
        return power_of_two(otherwise)
    smallest = min(some, key=lambda probe: probe.size)
    return power_of_two(max(smallest.size, _reach(model, smallest.x)))


def largest_reach(model: RobustModel) -> float:
    """The most that the whole budget adds to the loss of a sample.

    At decisions of order one, and at those that change the loss as much as the samples do.
    """
    some, units = probes(model), unusual(_decision_units(model, probes(model)))
    decisions = [probe.x for probe in some]
    if units:
        size = np.ones(model.feasible.layout.dimension)
        for variable, unit in units.items():
            size[model.feasible.layout.slices[variable]] = unit
        decisions += [size * x for x in decisions]
    return max((_reach(model, x, MEASURED) for x in decisions), default=0.0)


def _reach(model: RobustModel, x: Array, count: int = 1) -> float:
    """The most that the whole budget adds to the loss of one of `count` samples, by its slope."""
    if model.radius == 0:
        return 0.0
    rows = next(iter(model.joint.blocks(count)))
    try:
        slopes = np.array(model.loss(x, rows)[1].in_data(np.ones(len(rows))))
    except (ArithmeticError, NotImplementedError):
        return 0.0
    slopes = np.where(model.cost.frozen, 0.0, slopes)
    try:
        found = float(np.max(model.cost.largest_gains(slopes, model.radius, model.joint.width)))
    except UnknownToCost:
        return 0.0
    return found if np.isfinite(found) else 0.0


def unusual(units: Mapping[Any, float]) -> dict[Any, float]:
    """Those units that are far from one, as powers of two."""
    return {v: power_of_two(unit) for v, unit in units.items() if not is_ordinary(unit)}


# ------------------------------------------------------------------ a problem in these units
@dataclass(frozen=True)
class Row:
    """A constraint of the user, and what it became."""

    original: Any
    solved: Any
    factor: Any
    """What its rows were multiplied by, a number or one for each."""

    def multipliers(self, unit: float) -> list[Any]:
        """Those of the original constraint, for an objective in its own unit."""
        found = [dual.value for dual in self.solved.dual_variables]
        return [None if value is None else unit * self.factor * value for value in found]

    def is_ordinary(self) -> bool:
        """Are its coefficients of order one, with the present values of its parameters?"""
        if not isinstance(self.solved, Rows):
            return True
        sizes = _coefficients(self.solved.expr)
        return sizes is None or _all_ordinary(sizes)


@dataclass(frozen=True)
class Multipliers:
    """Those of the user's constraints."""

    rows: tuple[tuple[Any, list[Any]], ...]

    def save(self) -> None:
        """Write them into the constraints."""
        for constraint, values in self.rows:
            for dual, value in zip(constraint.dual_variables, values):
                dual.save_value(None if value is None else np.asarray(value))


@dataclass(frozen=True)
class Rescaled:
    """A program in some units, ready to be solved, and how its answers are read."""

    problem: cp.Problem
    units: Mapping[cp.Variable, float]
    twins: Mapping[cp.Variable, cp.Variable]
    """The variables in their units, for those that were replaced."""
    rows: tuple[Row, ...]

    def multipliers(self, unit: float) -> Multipliers:
        """Set the variables in the user's units; the multipliers for an objective in `unit`."""
        for variable, twin in self.twins.items():
            variable.save_value(None if twin.value is None else self.units[variable] * twin.value)
        return Multipliers(tuple((row.original, row.multipliers(unit)) for row in self.rows))


def rescaled(
    program: Program, constraints: Sequence[Any], units: Mapping[cp.Variable, float]
) -> Rescaled:
    """A program together with the user's constraints, all rows of order one.

    program: an expression and its constraints, whose variables stand for multiples of their units.
    constraints: in the variables' own units.
    """
    objective, own = program.expression, list(program.constraints)
    twins = {v: _twin(v, size) for v, size in units.items()}
    multiples = {id(v): units[v] * twin for v, twin in twins.items()}
    if twins:
        plain = {id(v): twin for v, twin in twins.items()}
        objective, own = objective.tree_copy(plain), [c.tree_copy(plain) for c in own]
    rows = tuple(
        _ordinary_row(c, multiples) for c in constraints if not isinstance(c, bool | np.bool_)
    )
    problem = cp.Problem(cp.Minimize(objective), [*(row.solved for row in rows), *own])
    return Rescaled(problem, units, twins, rows)


def _twin(variable: cp.Variable, unit: float) -> cp.Variable:
    attributes = declared(variable)
    if "bounds" in attributes:
        attributes["bounds"] = [
            None if bound is None else np.asarray(bound, dtype=float) / unit
            for bound in attributes["bounds"]
        ]
    return cp.Variable(variable.shape, variable.name(), **attributes)


def _ordinary_row(constraint: Any, multiples: Mapping[int, Any]) -> Row:
    """The constraint in the units of its variables, with coefficients of order one."""
    solved = constraint.tree_copy(multiples) if multiples else constraint
    if not isinstance(constraint, Rows):
        return Row(constraint, solved, 1.0)
    sizes = _coefficients(solved.expr)
    if sizes is None or _all_ordinary(sizes):
        return Row(constraint, solved, 1.0)
    sizes = np.where(sizes > 0, sizes, 1.0)
    if is_ordinary(float(sizes.max() / sizes.min())):
        factor: Any = 1.0 / power_of_two(float(sizes.max()))
        expression = times(solved.expr, factor)
    else:
        factor = 1.0 / sizes
        expression = cp.multiply(factor, solved.expr)
    changed = expression <= 0 if isinstance(constraint, Inequality) else expression == 0
    return Row(constraint, changed, factor)


def _all_ordinary(sizes: np.ndarray) -> bool:
    return all(is_ordinary(size) for size in np.ravel(sizes[sizes > 0]))


def _coefficients(expression: Any) -> np.ndarray | None:
    """How much each row changes with variables of order one; None where it is not defined."""
    variables, rng = expression.variables(), np.random.default_rng(0)
    kept = [v.value for v in variables]
    try:
        found = []
        for noise in (0.0, 1.0):
            for v in variables:
                v.save_value(v.project(noise * rng.uniform(0.5, 1.5, size=v.shape)))
            with np.errstate(all="ignore"):
                found.append(expression.value)
    finally:
        for v, old in zip(variables, kept):
            v.save_value(old)
    if any(value is None or not np.all(np.isfinite(value)) for value in found):
        return None
    return np.abs(np.asarray(found[1], dtype=float) - np.asarray(found[0], dtype=float))


# ------------------------------
# A model in units of its own: data, loss and transport cost of order one


Some = TypeVar("Some", bound=Model)

STEEP = 30.0
"""Sizes of data and prices of the radius that solvers do well with, and their reciprocals."""
HIGHEST_PRICE = 300
"""Prices of the radius above so many units of the loss are measured in a unit of their own.

A lower one writes ordinary squared costs (radius 0.001) as numbers, compiled anew for each radius;
with a higher one Clarabel fails on sums of CVaRs with radii of 1e-6."""
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
        twin = _twin_own_units(p, samples[p] / u, u)
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
        if price > HIGHEST_PRICE:
            return True
    if not all(is_ordinary(number) for number in numbers):
        return True
    bounds = [np.ravel(b) for b in model.joint.bounds or ()]
    return any(bool(np.any(np.isfinite(b) & (np.abs(b) > 1e4))) for b in bounds)


def _twin_own_units(parameter: Any, samples: Array, unit: float) -> UncertainParameter | None:
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
