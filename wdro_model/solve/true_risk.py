"""The worst-case risk of a decision and the distribution that attains it, by the exact counterpart.

At the thresholds of the worst-case risk several distributions have the largest expected loss, and
most of them have a smaller CVaR: another threshold would be better for them. Those that are worst
at neighbouring thresholds are mixed, and so is the one at the threshold that is best for the
mixture, until the CVaRs of the mixture reach the worst-case risk. It is a column generation for
max over the ball of min over the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.error import SolverError
from scipy.optimize import linprog

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.loss import CallableLoss
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.loss.callable import refuse_wrong_gradient
from wdro_model.loss.structure import analyse
from wdro_model.model import Feasible, Memory, Model, RobustModel
from wdro_model.model.declared import Tails
from wdro_model.objectives import exact
from wdro_model.objectives.ascent import climb, push
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.exact import Counterpart, Extremal
from wdro_model.objectives.least_thresholds import at_quantiles
from wdro_model.sets.feasible_set import FeasibleSet, checked_vertex
from wdro_model.solve.plan import Plan
from wdro_model.solve.units import Scale, Units, decision_units, in_units
from wdro_model.solvers import Conic
from wdro_model.solvers.cone_solver import OTHER_SOLVERS
from wdro_model.solvers.objective import Array, Point

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
        over_thresholds = cp.Problem(cp.Minimize(program.expression), list(program.constraints))
        for solver in (Conic(), *OTHER_SOLVERS):
            # Thresholds are free: a solver that finds the program infeasible has failed.
            with suppress(SolverError, InfeasibleError, UnboundedError):
                solver.run(over_thresholds)
                break
        else:
            return x
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


Judge = Callable[[Array], float]
"""The true objective of a decision."""


def judge_of(model: Model, chosen: Plan) -> Judge:
    """The mean loss of a decision, or its worst-case risk."""
    found = chosen.counterpart
    if found is not None and isinstance(model, RobustModel):
        return lambda x: robust_value(model, x, found)
    return lambda x: Empirical(model).evaluate(x).value


# ------------------------------
# The worst distribution for a sum of CVaRs: a mixture of those that are worst at thresholds


NEAR = 1e-4
"""How far neighbouring thresholds are, as a share of the spread of the losses."""
ROUNDS = 40
REACHED = 1e-6
"""The share of what the ball adds by which the mixture may fall short of the worst-case risk."""


def worst_with_tails(model: RobustModel, x: Array, found: Counterpart) -> Extremal:
    """A distribution of the ball whose CVaRs attain the worst-case risk of a decision."""
    tails = model.tails
    if tails is None:
        return worst_distribution(model, x, found)
    x = settled(model, x)
    risk = robust_value(model, x, found)
    observed = tails.losses(model.loss.layout, model.joint, x, model.rows)
    given = model.shares.probabilities
    added = risk - float(model.shares.total(tails.contributions(observed, given)))
    spread = np.maximum(np.ptp(observed[:, 1:], axis=0), 1e-9)
    places = [model.loss.layout.slices[part.threshold].start + part.entry for part in tails.parts]
    steps = NEAR * np.diag(spread)

    def worst_at(thresholds: Array) -> Extremal:
        return worst_distribution(model, tails.placed(model.loss.layout, x, thresholds), found)

    near = [x[places], *(x[places] + step for step in (*steps, *-steps))]
    mixed = [worst_at(thresholds) for thresholds in near]
    last = None
    for _ in range(ROUNDS):
        value, mixture, thresholds = _mixture(model, x, tails, mixed)
        known = last is not None and np.allclose(thresholds, last, rtol=1e-12, atol=0.0)
        if known or value >= risk - REACHED * abs(added) - 1e-9 * abs(risk):
            break  # at thresholds that come again, so would their distribution
        last = thresholds
        mixed.append(worst_at(thresholds))
    return mixture


def _mixture(
    model: RobustModel, x: Array, tails: Tails, mixed: list[Extremal]
) -> tuple[float, Extremal, Array]:
    """The mixture with the largest risk, its risk, and the thresholds that are best for it.

    With weights m of the distributions and p of the atoms, the CVaR of g is the largest q @ g over
    0 <= q <= p / (1 - level), sum q = 1; the multiplier of the last is the threshold. It is solved
    in q over the shares of atoms in their own distributions: those of atoms far away are tiny.
    """
    rows = np.concatenate([one.rows for one in mixed])
    source = np.concatenate([one.source for one in mixed])
    losses = tails.losses(model.loss.layout, model.joint, x, rows)
    weights = np.array([float(np.reshape(part.weight.value, ())) for part in tails.parts])
    shares = sp.block_diag([one.weights[:, None] for one in mixed]).tocsr()
    count, atoms = shares.shape[1], len(rows)
    certain = losses[:, 0] - losses[:, 1:] @ weights
    own = np.concatenate([one.weights for one in mixed])
    tails_of = [w * g * own for w, g in zip(weights, losses.T[1:])]
    gain = np.concatenate([shares.T @ certain, *tails_of])
    levels = np.array([part.level for part in tails.parts])
    blocks = sp.block_diag([(1 - level) * sp.eye_array(atoms) for level in levels])
    limits = sp.hstack([sp.vstack([-shares.sign()] * len(levels)), blocks]).tocsr()
    sums = sp.block_diag([np.ones((1, count)), *([own[None]] * len(levels))]).tocsr()
    answer = linprog(
        -gain,
        A_ub=limits,
        b_ub=np.zeros(limits.shape[0]),
        A_eq=sums,
        b_eq=np.ones(1 + len(levels)),
        method="highs",
    )
    p = shares @ np.maximum(answer.x[:count], 0.0)
    thresholds = -answer.eqlin.marginals[1:] / np.where(weights > 0, weights, 1.0)
    kept = p > 0
    heaviest = mixed[int(np.argmax(answer.x[:count]))]
    mixture = Extremal(rows[kept], p[kept] / p.sum(), source[kept], heaviest.dual)
    return -float(answer.fun), mixture, thresholds


# ------------------------------
# Gradients of counterparts and losses that people add, held against differences of values


CORNERS, WAYS = 4, 3
"""Vertices, a combination of which is tried, and directions from there."""
STEP = 1e-3
"""Of the way to a combination of vertices."""
SLOPE = 1e-3
"""How far a slope may be from that of differences, relative to both."""


def refuse_false_objective(found: Counterpart, objective: Any, oracle: FeasibleSet) -> None:
    """An error where a gradient is not that of differences, at a point inside the feasible set.

    Where differences of two sizes disagree there is a kink, or noise, and nothing is said.
    """
    rng = np.random.default_rng(0)
    corners = np.array([_corner(oracle, rng) for _ in range(CORNERS)])
    parts = rng.uniform(0.2, 1.0, size=CORNERS)  # not the centre, where symmetry hides mistakes
    middle = parts @ corners / parts.sum()
    point = _evaluated(found, objective, middle)
    for _ in range(WAYS):
        shares = rng.uniform(-1.0, 1.0, size=CORNERS)
        way = (shares - shares.mean()) @ corners  # a small step along it stays in the hull
        wide, narrow = (_slope(found, objective, middle, way, step) for step in (STEP, STEP / 2))
        told = float(point.gradient @ way)
        off = abs(told - narrow)
        size = max(abs(told), abs(narrow), 1e-6 * abs(point.value))
        if off > SLOPE * size and off > 10 * abs(wide - narrow):
            raise ValueError(
                f"the objective of the counterpart {type(found).__name__} has a wrong gradient: "
                f"along a line inside the feasible set it gives the slope {told:.6g}, differences "
                f"of its values {narrow:.6g}; correct the gradient in evaluate(x, dual)."
            )


def refuse_wrong_loss(model: Model) -> None:
    """An error where the gradient of a callable loss is wrong inside the feasible set."""
    loss = model.loss.loss
    if not isinstance(loss, CallableLoss):
        return
    rng, layout = np.random.default_rng(0), model.feasible.layout
    try:
        oracle = model.feasible.oracle()
        corners = np.array([_corner(oracle, rng) for _ in range(CORNERS)])
    except (UnboundedError, NotImplementedError):
        corners = rng.standard_normal((CORNERS, layout.dimension))
    for _ in range(WAYS):
        parts, shares = rng.uniform(0.2, 1.0, size=CORNERS), rng.uniform(-1.0, 1.0, size=CORNERS)
        way = (shares - shares.mean()) @ corners
        refuse_wrong_gradient(model.loss, parts @ corners / parts.sum(), way, rng, str(loss.name))


def _corner(oracle: FeasibleSet, rng: np.random.Generator) -> Array:
    direction = rng.standard_normal(oracle.dimension)
    direction = np.abs(direction) if oracle.nonnegative_directions else direction
    return checked_vertex(oracle, oracle.minimize_relaxed(direction))


def _slope(found: Counterpart, objective: Any, x: Array, way: Array, step: float) -> float:
    ahead, back = (_evaluated(found, objective, x + s * way).value for s in (step, -step))
    return float(ahead - back) / (2 * step)


def _evaluated(found: Counterpart, objective: Any, x: Array) -> Point:
    """The objective at a point, if it is a `Point` with a number and a gradient of its shape."""
    point = objective.evaluate(x, None)
    name = f"evaluate of the objective of the counterpart {type(found).__name__}"
    if not isinstance(point, Point):
        raise TypeError(f"{name} must return Point(value, gradient), got {type(point).__name__}.")
    if np.ndim(point.value) != 0 or np.shape(point.gradient) != x.shape:
        raise ValueError(
            f"{name} must return a Point with one number and a gradient of shape {x.shape}, got "
            f"the shapes {np.shape(point.value)} and {np.shape(point.gradient)}."
        )
    return point
