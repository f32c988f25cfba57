"""Units of the decision and the loss, and a CVXPY problem in them, its rows of order one.

Solvers stop at absolute tolerances, relative to the largest right-hand side at best: a row in
millions loosens all others, a decision in millions is found as if in ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Equality, Inequality, Zero

from wdro_model.errors import UnknownToCost
from wdro_model.loss.expressions import declared, is_ordinary, is_scalable, power_of_two, times
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.least_thresholds import at_quantiles
from wdro_model.solvers.objective import Array

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
