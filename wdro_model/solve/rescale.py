"""Rescale: the same problem with data, loss, decision and rows of order one.

Conic solvers stop at absolute tolerances, relative to the largest right-hand side at best: a row in
millions loosens all others. Prices in dollars and the same prices in millions are one problem, and
get one answer: with units u of the data, v of the loss and w of the transport cost, in which the
price of the radius is of order one,

    xi = u xi',   f = v f',   c(xi, zeta) = w c'(xi', zeta'),   radius' = radius / w.

`rescale_model` applies units to a model, `rescale_program` to a program and its constraints;
`RescaledProgram.invert` maps an answer back. All units are powers of two, so nothing is rounded.
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
from wdro_model.loss.expressions import (
    declared_attributes,
    is_ordinary,
    is_scalable,
    power_of_two,
    times,
)
from wdro_model.loss.structure import analyse
from wdro_model.model import Memory, Model, RobustModel
from wdro_model.objectives.cvar_thresholds import at_quantiles
from wdro_model.objectives.empirical import Program
from wdro_model.solvers.objective import Array
from wdro_model.solvers.warm_highs import WarmHighs
from wdro_model.uncertainty.costs.budgets import largest_gains
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Box

SCALED_ROWS = Equality | Inequality | Zero
"""Constraints whose rows may be multiplied by positive numbers."""


@dataclass(frozen=True)
class Tolerances:
    """Sizes that count as ordinary, and samples that are looked at."""

    probed_samples: int = 32
    """Samples at which losses are measured; more cost time and change the units little."""
    rounding: float = 1e-9
    """Spread of the losses, as a share of their size, below which they count as equal."""
    large_number: float = 30.0
    """Sizes of data and prices of the radius that solvers do well with, and their reciprocals."""
    largest_price: float = 300.0
    """Price of the radius, in units of the loss, above which it gets a unit of its own. A lower one
    writes ordinary squared costs (radius 0.001) as numbers, compiled anew for each radius; with a
    higher one Clarabel fails on sums of CVaRs with radii of 1e-6."""
    distant_bound: float = 1e8
    """Units beyond which bounds of a support are left out: they would only loosen other rows."""
    large_bound: float = 1e4
    """Bounds of a support from which the data is measured in a unit of its own."""


TOLERANCES = Tolerances()
PROBED_LEVELS = ((1.0, 1.0), (1.0, 0.0), (-1.0, -1.0))
"""Probed decisions before noise: the sum of the entries of a vector, the value of a scalar."""


@dataclass(frozen=True, eq=False)
class Units:
    """Units of the decision and of the loss."""

    decision: Mapping[Any, float]
    """The unit of each variable; variables that are left out keep their own."""
    loss: float


# ------------------------------------------------------------------ the loss at a few decisions
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
    """The change of the loss of a sample with each entry of the decision, (n,)."""


def probes(model: RobustModel) -> list[Probe]:
    """The loss at a few decisions of order one, computed once for a model."""
    return model.remember("probes of the loss", lambda: _probe_levels(model))


def _probe_levels(model: RobustModel) -> list[Probe]:
    rng, some = np.random.default_rng(0), []
    for level, scalars in PROBED_LEVELS:
        parts = [
            np.full(v.size, scalars if v.ndim == 0 else level / v.size)
            for v in model.feasible.layout.variables
        ]
        x = np.concatenate(parts)
        probe = probe_loss(model, x * rng.uniform(0.5, 1.5, size=x.shape))
        some += [] if probe is None else [probe]
    # A decision at which the data does not count says little, if there are others.
    some = [probe for probe in some if probe.varies] or some
    # Where all losses cancel, as rows of one sum do at equal weights, only rounding is left.
    largest = max((probe.size for probe in some), default=0.0)
    return [probe for probe in some if probe.size > TOLERANCES.rounding * largest]


def probe_loss(model: RobustModel, x: Array) -> Probe | None:
    """The size and steepness of the loss at x; None where it is zero or not defined.

    Thresholds of CVaRs are losses themselves, and stand where they are best for the samples.
    """
    rows = next(iter(model.joint.blocks(TOLERANCES.probed_samples)))
    # Random weights: gradients that cancel in the mean do not cancel in them.
    weights = (1.0 + np.random.default_rng(1).standard_normal(len(rows))) / len(rows)
    try:
        x = at_quantiles(model, x, rows)
        values, pullback = model.loss(x, rows)
        losses = np.array(values)
        gradient = np.abs(pullback(weights))
    except ArithmeticError:
        return None  # a logarithm of something negative, for example
    size, spread = float(np.abs(losses).max()), float(np.ptp(losses))
    varies = spread > TOLERANCES.rounding * size
    measure = spread if varies else size
    known = np.isfinite(measure) and measure > 0 and np.isfinite(gradient).all()
    return Probe(measure, varies, x, gradient) if known else None


def units_at(model: Model, x: Array | None = None) -> Units:
    """Units of the variables and of the loss, measured on the loss itself.

    The unit of a variable is the change that moves the loss as much as the samples do, at the
    decision x or, by default, at decisions of order one. Variables that the loss does not depend
    on, and variables that cannot be measured in another unit, are left out.
    """
    if not isinstance(model, RobustModel) or model.expression is None:
        return Units({}, 1.0)
    if x is None:
        return Units(_decision_units(model, probes(model)), probed_loss_unit(model))
    probe = probe_loss(model, x)
    some = [] if probe is None else [probe]
    return Units(_decision_units(model, some), _loss_unit(model, some, 1.0))


def _decision_units(model: RobustModel, some: list[Probe]) -> dict[Any, float]:
    units = {}
    for variable, where in model.feasible.layout.slices.items():
        steepness = [(probe.size, float(probe.gradient[where].max(initial=0.0))) for probe in some]
        sizes = [size / slope for size, slope in steepness if slope > 0]
        if sizes and is_scalable(variable):
            units[variable] = power_of_two(float(np.median(sizes)))
    return units


def uncommon_units(units: Mapping[Any, float]) -> dict[Any, float]:
    """The units that are far from one, as powers of two."""
    return {v: power_of_two(unit) for v, unit in units.items() if not is_ordinary(unit)}


def loss_unit(model: Model) -> float:
    """The size of the losses, as a power of two; 1 where it is of order one anyway."""
    if model.expression is None:
        return 1.0
    if isinstance(model, RobustModel):
        unit = probed_loss_unit(model)
    else:
        sizes = _row_sizes(model.expression)
        unit = 1.0 if sizes is None else power_of_two(float(np.max(sizes)))
    return 1.0 if is_ordinary(unit) else unit


def probed_loss_unit(model: RobustModel) -> float:
    """The size of the losses at decisions of order one, computed once for a radius."""
    name = f"unit of the loss: {model.radius!r}"
    return model.remember(name, lambda: _loss_unit(model, probes(model), 1.0))


def _loss_unit(model: RobustModel, some: list[Probe], default: float) -> float:
    """The smallest size of the losses, as a power of two."""
    if not some:
        return power_of_two(default)
    smallest = min(some, key=lambda probe: probe.size)
    return power_of_two(max(smallest.size, _budget_gain(model, smallest.x)))


def largest_budget_gain(model: RobustModel) -> float:
    """The most that the whole budget adds to the loss of a sample.

    At decisions of order one, and at decisions that change the loss as much as the samples do.
    """
    decisions = [probe.x for probe in probes(model)]
    if units := uncommon_units(_decision_units(model, probes(model))):
        size = entrywise_units(model, units)
        decisions += [size * x for x in decisions]
    count = TOLERANCES.probed_samples
    return max((_budget_gain(model, x, count) for x in decisions), default=0.0)


def entrywise_units(model: Model, units: Mapping[Any, float]) -> Array:
    """The unit of each entry of the flat decision, (n,)."""
    size = np.ones(model.feasible.layout.dimension)
    for variable, unit in units.items():
        size[model.feasible.layout.slices[variable]] = unit
    return size


def _budget_gain(model: RobustModel, x: Array, count: int = 1) -> float:
    """The most that the whole budget adds to the loss of one of `count` samples, by its slope."""
    if model.radius == 0:
        return 0.0
    rows = next(iter(model.joint.blocks(count)))
    try:
        slopes = np.array(model.loss(x, rows)[1].in_data(np.ones(len(rows))))
        slopes = np.where(model.cost.frozen, 0.0, slopes)
        gain = float(np.max(largest_gains(model.cost, slopes, model.radius, model.joint.width)))
    except (ArithmeticError, NotImplementedError, UnknownToCost):
        return 0.0
    return gain if np.isfinite(gain) else 0.0


# ------------------------------------------------------------------ programs
@dataclass(frozen=True)
class RescaledRow:
    """A constraint of the user, and the same constraint with coefficients of order one."""

    original: Any
    solved: Any
    factor: Any
    """The factor of its rows, a number or one for each."""

    def is_ordinary(self) -> bool:
        """Are its coefficients of order one, with the present values of its parameters?"""
        if not isinstance(self.solved, SCALED_ROWS):
            return True
        sizes = _row_sizes(self.solved.expr)
        return sizes is None or _all_ordinary(sizes)


Duals = list[tuple[Any, list[Any]]]
"""Constraints of the user, each with the values of its dual variables."""


def save_duals(duals: Duals) -> None:
    """Write dual values into the user's constraints."""
    for constraint, values in duals:
        for dual, value in zip(constraint.dual_variables, values):
            dual.save_value(None if value is None else np.asarray(value))


@dataclass(frozen=True, eq=False)
class RescaledProgram:
    """A program in some units, ready to be solved."""

    problem: cp.Problem
    units: Mapping[cp.Variable, float]
    twins: Mapping[cp.Variable, cp.Variable]
    """The variables in their units, for the variables that were replaced."""
    rows: tuple[RescaledRow, ...]

    @property
    def is_linear(self) -> bool:
        """Is the program linear, but for maxima?"""
        program = Program(self.problem.objective.expr, tuple(self.problem.constraints))
        return program.is_piecewise_linear(()) and not self.problem.is_mixed_integer()

    def invert(self, loss_unit: float) -> Duals:
        """Set the user's variables; return the user's duals, for an objective in `loss_unit`."""
        for variable, twin in self.twins.items():
            variable.save_value(None if twin.value is None else self.units[variable] * twin.value)
        values = [[d.value for d in row.solved.dual_variables] for row in self.rows]
        return self.duals(loss_unit, values)

    def duals(self, loss_unit: float, values: Sequence[list[Any]]) -> Duals:
        """The user's duals, from dual values of the rescaled rows."""
        return [
            (row.original, [None if v is None else loss_unit * row.factor * v for v in own])
            for row, own in zip(self.rows, values)
        ]

    def warm_solver(self, solver: Any, variables: tuple[cp.Variable, ...]) -> WarmHighs | None:
        """The simplex solver that holds the linear program, made once; None for other programs."""
        if "_warm" not in vars(self):
            warm = solver.warm(self.problem, variables) if self.is_linear else None
            object.__setattr__(self, "_warm", warm)
        return vars(self)["_warm"]


def rescale_program(
    program: Program, constraints: Sequence[Any], units: Mapping[cp.Variable, float]
) -> RescaledProgram:
    """A program together with the user's constraints, all rows of order one.

    program: an expression and its constraints, whose variables stand for multiples of their units.
    constraints: in the variables' own units.
    """
    objective, others = program.expression, list(program.constraints)
    twins = {v: _rescaled_variable(v, size) for v, size in units.items()}
    multiples = {id(v): units[v] * twin for v, twin in twins.items()}
    if twins:
        twins_by_id = {id(v): twin for v, twin in twins.items()}
        objective = objective.tree_copy(twins_by_id)
        others = [c.tree_copy(twins_by_id) for c in others]
    rows = [_rescaled_row(c, multiples) for c in constraints if not isinstance(c, bool | np.bool_)]
    problem = cp.Problem(cp.Minimize(objective), [*(row.solved for row in rows), *others])
    return RescaledProgram(problem, units, twins, tuple(rows))


def _rescaled_variable(variable: cp.Variable, unit: float) -> cp.Variable:
    attributes = declared_attributes(variable)
    if "bounds" in attributes:
        attributes["bounds"] = [
            None if bound is None else np.asarray(bound, dtype=float) / unit
            for bound in attributes["bounds"]
        ]
    return cp.Variable(variable.shape, variable.name(), **attributes)


def _rescaled_row(constraint: Any, multiples: Mapping[int, Any]) -> RescaledRow:
    """The constraint in the units of its variables, with coefficients of order one."""
    solved = constraint.tree_copy(multiples) if multiples else constraint
    if not isinstance(constraint, SCALED_ROWS):
        return RescaledRow(constraint, solved, 1.0)
    sizes = _row_sizes(solved.expr)
    if sizes is None or _all_ordinary(sizes):
        return RescaledRow(constraint, solved, 1.0)
    sizes = np.where(sizes > 0, sizes, 1.0)
    if is_ordinary(float(sizes.max() / sizes.min())):
        factor: Any = 1.0 / power_of_two(float(sizes.max()))
        expression = times(solved.expr, factor)
    else:
        factor = 1.0 / sizes
        expression = cp.multiply(factor, solved.expr)
    changed = expression <= 0 if isinstance(constraint, Inequality) else expression == 0
    return RescaledRow(constraint, changed, factor)


def _all_ordinary(sizes: np.ndarray) -> bool:
    return all(is_ordinary(size) for size in np.ravel(sizes[sizes > 0]))


def _row_sizes(expression: Any) -> np.ndarray | None:
    """The change of each row from variables of 0 to variables of order one; None if not defined."""
    variables, rng = expression.variables(), np.random.default_rng(0)
    before, values = [v.value for v in variables], []
    try:
        for noise in (0.0, 1.0):
            for v in variables:
                v.save_value(v.project(noise * rng.uniform(0.5, 1.5, size=v.shape)))
            with np.errstate(all="ignore"):
                values.append(expression.value)
    finally:
        for v, old in zip(variables, before):
            v.save_value(old)
    if any(value is None or not np.all(np.isfinite(value)) for value in values):
        return None
    return np.abs(np.asarray(values[1], dtype=float) - np.asarray(values[0], dtype=float))


# ------------------------------------------------------------------ models
AnyModel = TypeVar("AnyModel", bound=Model)


@dataclass(frozen=True, eq=False)
class RescaledModel(Generic[AnyModel]):
    """A model whose numbers are multiples of these units."""

    model: AnyModel
    data: Array
    """u, (d,)."""
    loss: float
    """v."""
    cost: float
    """w; 1 where the model has no radius."""

    @classmethod
    def unchanged(cls, model: AnyModel) -> RescaledModel[AnyModel]:
        """The model in the units that it is in."""
        return cls(model, np.ones(model.loss.data_dimension), 1.0, 1.0)


def rescale_model(model: AnyModel, units: Units | None = None) -> RescaledModel[AnyModel]:
    """The model in units of its own; unchanged if its numbers are of order one anyway.

    units: of the decision and the loss. The variables then stand for multiples of them, and the
    data has a unit of its own wherever that is possible.
    """
    if units is not None:
        return _rescale(model, units)
    return model.remember(f"units: {model.radius!r}", lambda: _rescale(model, None))


def _rescale(model: Model, units: Units | None) -> RescaledModel[Any]:
    if not isinstance(model, RobustModel) or model.expression is None:
        return RescaledModel.unchanged(model)
    samples = model.joint.split(model.joint.matrix)
    sizes = {p: max(_sample_size(v), _budget_distance(model, p)) for p, v in samples.items()}
    if units is None and not _has_extreme_numbers(model, sizes):
        return RescaledModel.unchanged(model)
    twins = _rescaled_parameters(samples, sizes)
    multiples = {id(p): sizes[p] * twin for p, twin in twins.items()}
    variables = {} if units is None else {id(v): u * v for v, u in units.decision.items()}
    expression = model.expression.tree_copy(multiples | variables)
    if set(expression.parameters()) & set(sizes):
        # A parameter inside an atom, as in an exponent, was not replaced: the data keeps its unit.
        if units is None:
            return RescaledModel.unchanged(model)
        expression = times(model.expression.tree_copy(variables), 1.0 / units.loss)
        changed = _with_expression(model, expression, model.joint)
        return replace(RescaledModel.unchanged(changed), loss=units.loss)
    largest = max(sizes.values())
    loss = _loss_unit(model, probes(model), largest) if units is None else units.loss
    joint = JointSamples(tuple(twins.values()))
    if model.joint.probabilities is not None:
        joint = joint.with_rows(joint.matrix, model.joint.probabilities)
    data = np.concatenate([np.full(p.size, u) for p, u in sizes.items()])
    cost = _cost_unit(model, loss)
    changed = replace(
        _with_expression(model, times(expression, 1.0 / loss), joint),
        ambiguity=replace(model.ambiguity, radius=model.ambiguity.budget / cost),
        cost=model.cost.rescaled(data, cost),
        budget=None,
    )
    return RescaledModel(changed, data, loss, cost)


def _with_expression(model: RobustModel, expression: Any, joint: JointSamples) -> RobustModel:
    """The model with another loss, and joint samples of that loss."""
    return replace(
        model,
        expression=expression,
        loss=FlatLoss(BatchedLoss(expression, joint.parameters), model.loss.layout, joint),
        structure=analyse(expression, joint.parameters),
        joint=joint,
        memory=Memory(),
    )


def _rescaled_parameters(
    samples: Mapping[Any, Array], sizes: Mapping[Any, float]
) -> dict[Any, UncertainParameter]:
    """The uncertain parameters in their units; none if one has a support without other units."""
    twins = {}
    for p, unit in sizes.items():
        support = p.support.scaled(1.0 / unit)
        if support is None:
            return {}
        if isinstance(support, Box):
            (lower, upper), far = support.bounds(p.shape), TOLERANCES.distant_bound
            lower = np.where(lower < -far, -np.inf, lower)
            support = Box(lower, np.where(upper > far, np.inf, upper))
        known = ("symmetric", "diag", "PSD", "NSD")
        attributes = {
            k: p.attributes[k] for k in known if declared_attributes(p).get(k) is not None
        }
        twins[p] = UncertainParameter(
            p.shape, p.name(), samples=samples[p] / unit, support=support, **attributes
        )
    return twins


def _sample_size(values: Array) -> float:
    """The root mean square of the samples, as a power of two."""
    largest = float(np.abs(values).max())
    return power_of_two(largest * float(np.sqrt(np.mean(np.square(values / (largest or 1.0))))))


def _budget_distance(model: RobustModel, parameter: Any) -> float:
    """The distance that the budget moves the parameter within its support, as a power of two."""
    if model.radius == 0:
        return 0.0
    try:
        scales, length = model.cost.coordinate_scales, model.cost.distance(model.radius)
    except UnknownToCost:
        return 0.0
    box = parameter.support.bounds(parameter.shape)
    width = np.inf if box is None else float(np.max(np.subtract(*box[::-1]), initial=0.0))
    weight = float(np.median(scales[model.joint.slices[parameter]]))
    if not np.isfinite(weight) or weight <= 0:
        return 0.0
    reached = min(length / weight, width)
    return power_of_two(reached) if reached > 0 else 0.0


def has_large_numbers(model: RobustModel) -> bool:
    """Is some size of the data, or the price of the radius, beyond what solvers do well with?"""
    sizes = [_sample_size(values) for values in model.joint.split(model.joint.matrix).values()]
    price = largest_budget_gain(model) / model.radius if model.radius > 0 else 1.0
    most = TOLERANCES.large_number
    return not all(1 / most <= number <= most for number in (*sizes, price) if number > 0)


def _has_extreme_numbers(model: RobustModel, sizes: dict[Any, float]) -> bool:
    """Is some number of the model far from order one?"""
    unit = probed_loss_unit(model)
    numbers = [*sizes.values(), unit]
    if model.radius > 0:
        numbers.append(np.sqrt(model.radius))
        if largest_budget_gain(model) / model.radius / unit > TOLERANCES.largest_price:
            return True
    if not all(is_ordinary(number) for number in numbers):
        return True
    bounds = np.concatenate([np.ravel(b) for b in model.joint.bounds or (np.zeros(0),)])
    return bool(np.any(np.isfinite(bounds) & (np.abs(bounds) > TOLERANCES.large_bound)))


def _cost_unit(model: RobustModel, loss: float) -> float:
    """The unit of cost in which the price of the radius is of order one.

    The price is about the amount that the budget adds to the loss, over the radius. If the amount
    is small, so is the price in units of the radius, down to the tolerance of a solver; a larger
    unit of cost makes up for it.
    """
    radius = model.radius
    if not 1e-150 < radius < 1e150:
        return 1.0
    added = largest_budget_gain(model)
    return radius * power_of_two(max(loss / added, 1.0)) if added > 0 else radius
