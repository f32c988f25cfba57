"""The true worst-case risk of a decision and who attains it, by a counterpart in its own units."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError

from wdro_model.loss.atoms.risk import Threshold
from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.loss.structure import analyse
from wdro_model.model import Feasible, Memory, Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.ascent import climb, push
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.exact import Counterpart, Extremal
from wdro_model.objectives.least_thresholds import at_quantiles
from wdro_model.solve.own_units import Units, in_units
from wdro_model.solve.units import Scale, decision_units
from wdro_model.solvers import Conic
from wdro_model.solvers.objective import Array

FALSE = 1e-5
"""How far a counterpart of one's own may be below what is known, relative to that."""
ATTAINED = 1e-2
"""The share of what the ball adds to the mean loss by which a worst case may fall short of it."""
AGREE = 1e-4
"""How far its program, its objective and its value may be apart, relative to them."""


def known_robust_value(model: RobustModel, x: Array) -> float | None:
    """The worst-case risk of a decision over the ball; None where no formula is known.

    Thresholds of CVaRs are where they are best for this ball, whatever x has in their place.
    """
    found = exact.counterpart(model) if exact.has_counterpart(model) else None
    if found is None:
        return None
    if model.tails is None or model.radius == 0 or not np.all(np.isfinite(x)):
        return robust_value(model, settled(model, x), found)
    values = []
    for thresholds in (lambda: settled(model, x), lambda: x):  # either may be the better one
        with suppress(SolverError):
            values.append(robust_value(model, thresholds(), found))
    return min(values) if values else robust_value(model, x, found)


def settled(model: Model, x: Array) -> Array:
    """The decision with the thresholds of CVaRs at which its worst-case risk is attained.

    Those of the samples where no counterpart is known.
    """
    x = at_quantiles(model, x)
    if model.tails is None or not isinstance(model, RobustModel) or model.radius == 0:
        return x
    within = in_thresholds(model, x)
    if not exact.has_counterpart(within):
        return x
    found = exact.counterpart(within)
    unit = decision_units(model, x).loss
    layout = within.feasible.layout
    units = in_units(within, Scale(dict.fromkeys(layout.variables, unit), unit))
    if found.refusal(units.model) is not None:
        units = Units.of(within)
    program = exact.program_by(found, units.model)
    if program is None:
        return x
    with layout.holding():
        Conic().run(cp.Problem(cp.Minimize(program.expression), list(program.constraints)))
        best = {t: units.loss * np.array(t.value) for t in layout.variables}
    return model.loss.layout.join({**model.loss.layout.split(x), **best})


def in_thresholds(model: RobustModel, x: Array) -> RobustModel:
    """The model in its thresholds alone: the decision is x, certain parameters are numbers."""
    assert model.tails is not None
    numbers = {id(v): cp.Constant(part) for v, part in model.loss.layout.split_own(x).items()}
    certain = set(model.expression.parameters()) - set(model.joint.parameters)
    numbers |= {id(p): cp.Constant(p.value) for p in certain}
    expression = model.expression.tree_copy(numbers)
    feasible = Feasible([], model.tails.thresholds)
    loss = BatchedLoss(expression, model.joint.parameters)
    return replace(
        model,
        expression=expression,
        loss=FlatLoss(loss, feasible.layout, model.joint),
        structure=analyse(expression, model.joint.parameters),
        feasible=feasible,
        tails=None,
        memory=Memory(),
    )


def robust_value(model: RobustModel, x: Array, found: Counterpart) -> float:
    """The worst-case risk of a decision, by its counterpart, worked out in the model's units."""
    units = units_of(model, found)
    told: Any = found.value(units.model, x)
    if np.ndim(told) != 0 or not isinstance(told, int | float | np.number | np.ndarray):
        what = f"an array of shape {np.shape(told)}" if np.ndim(told) else repr(told)
        raise ValueError(
            f"the counterpart {type(found).__name__} gives the worst-case risk as {what}; its "
            "value(model, x) must return one number."
        )
    value = units.loss * float(told)
    if not found.is_proven:
        refuse_false_value(model, x, value, found)
    return value


def refuse_false_value(model: RobustModel, x: Array, value: Any, found: Counterpart) -> None:
    """A ValueError where a counterpart's risk is below that of a distribution of the ball."""
    mean = Empirical(model).evaluate(x).value
    moved = [found for found in (climb(model, x), push(model, x)) if found is not None]
    known = max([mean, *(found.expected_loss for found in moved)])
    number = np.ndim(value) == 0 and np.isfinite(value)
    if number and value >= known - FALSE * max(abs(known), abs(known - mean), 1e-3):
        return
    raise ValueError(
        f"the counterpart {type(found).__name__} gives the worst-case risk {value!r}, but some "
        f"distribution of the ball has the expected loss {known:.8g} at this decision (the data "
        f"itself has {mean:.8g}); correct its formula, or its refusal."
    )


def refuse_disagreement(
    model: RobustModel, x: Array, solved: float, value: float | None, found: Counterpart
) -> None:
    """A ValueError where what was minimised and the `value` of a counterpart differ at x."""
    if value is None:
        return
    mean = Empirical(model).evaluate(x).value
    if abs(solved - value) <= AGREE * max(abs(solved), abs(value), abs(value - mean), 1e-3):
        return
    raise ValueError(
        f"the counterpart {type(found).__name__} contradicts itself: the worst-case risk of the "
        f"solution is {solved:.8g} by what was minimised, but {value:.8g} by its value(model, x) "
        "(by default its program with the decision held fixed); correct one of them."
    )


def refuse_false_distribution(model: RobustModel, worst: Extremal, found: Counterpart) -> None:
    """A ValueError where what a counterpart calls its worst case is no distribution of the ball."""
    size, count = len(model.rows), len(worst.weights)
    shapes = np.shape(worst.rows) == (count, model.rows.shape[1]) and len(worst.source) == count
    if shapes and np.all(np.isin(worst.source, np.arange(size))) and np.all(worst.weights >= 0):
        shares = np.bincount(worst.source, worst.weights, minlength=size)
        cost = float(worst.weights @ model.cost(model.rows[worst.source], worst.rows))
        fair = np.allclose(shares, model.shares.array, rtol=1e-6)
        if fair and cost <= model.radius * (1 + 1e-5):
            return
    raise ValueError(
        f"the worst case of the counterpart {type(found).__name__} is no distribution of the ball: "
        "rows (K, d) come from the samples `source` (K,) with `weights` (K,), which add up to the "
        "probability of each sample (1/N), and move them at a mean cost of at most the radius."
    )


def refuse_unattained(model: RobustModel, x: Array, worst: Extremal, found: Counterpart) -> None:
    """A ValueError where the expected loss of a worst case is below the worst-case risk."""
    risk = robust_value(model, x, found)
    mean = Empirical(model).evaluate(x).value
    attained = float(worst.weights @ model.loss.values(x, worst.rows))
    if attained >= risk - ATTAINED * abs(risk - mean) - FALSE * max(abs(risk), 1e-3):
        return
    raise ValueError(
        f"the worst case of the counterpart {type(found).__name__} has the expected loss "
        f"{attained:.8g}, below the worst-case risk {risk:.8g} that it is to attain; correct its "
        "extremal(model, x)."
    )


def worst_distribution(model: RobustModel, x: Array, found: Counterpart) -> Extremal:
    """A distribution of the ball that attains it."""
    units = units_of(model, found)
    worst = found.extremal(units.model, x)
    if not isinstance(worst, Extremal):
        raise TypeError(
            f"extremal of the counterpart {type(found).__name__} must return Extremal(rows, "
            f"weights, source, dual), got {type(worst).__name__}."
        )
    if units.model is not model:
        dual = worst.dual * units.loss / units.cost
        worst = Extremal(worst.rows * units.data, worst.weights, worst.source, dual)
    if not found.is_proven:
        refuse_false_distribution(model, worst, found)
        refuse_unattained(model, x, worst, found)
    return worst


def with_thresholds_in_units(units: Units, model: Model) -> Units:
    """The model in its own units, its thresholds measured in that of the loss.

    They are losses themselves, and variables of the library's own: solvers get them of order one.
    """
    own = [v for v in model.feasible.layout.variables if isinstance(v, Threshold)]
    if units.loss == 1.0 or not own:
        return units
    return in_units(model, Scale(dict.fromkeys(own, units.loss), units.loss))


def units_of(model: RobustModel, found: Counterpart) -> Units:
    """The model in its own units, where samples are written out and the counterpart allows it."""
    units = in_units(model) if found.writes_samples(model) else Units.of(model)
    return units if found.refusal(units.model) is None else Units.of(model)
