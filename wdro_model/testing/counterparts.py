"""The test of an exact counterpart: its value, program and worst case against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import NoReformulationError, UnboundedError
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.ascent import climb, push
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.exact import Counterpart, Extremal
from wdro_model.objectives.exact.counterpart import (
    COUNTERPARTS,
    counterpart_instance,
    objective_by,
    program_by,
    refusal_of,
    value_at,
)
from wdro_model.problem import Problem
from wdro_model.sets.feasible_set import checked_vertex
from wdro_model.solvers.objective import Array, Point


@dataclass(frozen=True)
class Tolerances:
    """Allowed differences between a counterpart and the worst-case risk."""

    too_low: float = 1e-5
    """Relative amount by which a value may be below that of a known distribution: rounding."""
    disagreement: float = 1e-4
    """Relative difference of a value and a solved program; conic solvers err by 1e-6."""
    unattained: float = 1e-2
    """Largest gap of a worst case to the risk, as a share of risk minus mean loss."""
    slope: float = 1e-3
    """Relative difference of a gradient and a difference quotient over `difference`."""
    difference: float = 1e-3
    """Length of that difference, relative to the size of the feasible set."""
    corner_count: int = 4
    """Vertices of the feasible set that are combined to decisions."""


TOLERANCES = Tolerances()


def check_counterpart(
    counterpart: Any,
    problem: Problem,
    decisions: Iterator[Mapping[cp.Variable, Any]] | Any = (),
    *,
    tries: int = 3,
    seed: int = 0,
) -> None:
    """Test an exact counterpart on a problem.

    A ValueError (TypeError for an answer of another type) names the error: a risk below that of
    some distribution of the ball, searched by ascent in the data; a program, value and smooth
    objective that differ; a wrong gradient; a program that is not convex, or that contains the
    data; a worst case outside the ball, or one that does not attain the risk. A risk that is too
    high is not detected: compare it with an independent computation.

    Parameters
    ----------
    counterpart
        A subclass of `Counterpart`, an instance, or the name of a registered one.
    problem
        A problem to which the counterpart applies.
    decisions
        {variable: value} for each decision to test at; by default combinations of vertices.
    tries
        The number of these combinations.

    Examples
    --------
    >>> from wdro_model.counterparts import Counterpart, Program, substitute
    >>> from wdro_model.testing import check_counterpart
    >>> class MeanLoss(Counterpart):
    ...     formula = "the mean loss, as if there were no ball"
    ...     def refusal(self, model):
    ...         return None
    ...     def program(self, model):
    ...         return Program.if_convex(substitute(model.expression, model.mean_values()))
    >>> x = cp.Variable(2, nonneg=True)
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    >>> ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
    >>> check_counterpart(MeanLoss, problem)
    Traceback (most recent call last):
        ...
    ValueError: the counterpart MeanLoss gives the worst-case risk ..., but some distribution ...
    """
    if isinstance(counterpart, str):
        entry = COUNTERPARTS[counterpart]
    else:
        entry = counterpart_instance(
            getattr(counterpart, "__name__", type(counterpart).__name__), counterpart
        )
    model = problem._current_model()
    if not isinstance(model, RobustModel) or not model.has_ball:
        raise ValueError("check_counterpart needs a problem with uncertain data and a ball.")
    name = type(entry).__name__
    reason = refusal_of(entry, model)
    if reason is not None:
        raise ValueError(f"the counterpart {name} does not apply to the problem: {reason}.")
    program = program_by(entry, model)
    rng = np.random.default_rng(seed)
    points = [model.feasible.layout.join(dict(d)) for d in decisions]
    corners = _corners(model, rng)
    for _ in range(0 if points else tries):
        # Equal shares would give a symmetric point, where errors may cancel.
        shares = rng.uniform(0.2, 1.0, size=TOLERANCES.corner_count)
        points.append(shares @ corners / shares.sum())
    for x in points:
        value = refuse_value(model, x, entry)
        if program is not None:
            refuse_disagreement(model, x, value_at(program, model, x), value, entry)
        if entry.has_objective(model):
            refuse_objective(model, x, entry, value, corners, rng)
        try:
            worst = entry.extremal(model, x)
        except NoReformulationError:
            continue
        refuse_worst_case(model, x, worst, value, entry)


def _corners(model: Model, rng: np.random.Generator) -> Array:
    """Vertices of the feasible set; random decisions where it is unbounded."""
    dimension = model.feasible.layout.dimension
    try:
        oracle = model.feasible.oracle()
        directions = rng.standard_normal((TOLERANCES.corner_count, dimension))
        if oracle.nonnegative_directions:
            directions = np.abs(directions)
        return np.array([checked_vertex(oracle, oracle.minimize_relaxed(d)) for d in directions])
    except (UnboundedError, NotImplementedError):
        return rng.standard_normal((TOLERANCES.corner_count, dimension))


def refuse_value(model: RobustModel, x: Array, entry: Counterpart) -> float:
    """The risk of a decision; ValueError if a distribution of the ball has a larger risk."""
    name, value = type(entry).__name__, entry.value(model, x)
    if np.ndim(value) != 0 or not isinstance(value, int | float | np.number | np.ndarray):
        what = f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)
        raise ValueError(
            f"the counterpart {name} gives the worst-case risk as {what}; its value(model, x) "
            "must return one number."
        )
    mean = Empirical(model).evaluate(x).value
    moved = [climbed for climbed in (climb(model, x), push(model, x)) if climbed is not None]
    known = max([mean, *(climbed.expected_loss for climbed in moved)])
    if not value >= known - TOLERANCES.too_low * max(abs(known), abs(known - mean), 1e-3):
        raise ValueError(
            f"the counterpart {name} gives the worst-case risk {float(value):.8g}, but some "
            f"distribution of the ball has the expected loss {known:.8g} at this decision (the "
            f"data itself has {mean:.8g}); correct its formula, or its refusal."
        )
    return float(value)


def refuse_disagreement(
    model: RobustModel, x: Array, solved: float, value: float, entry: Counterpart
) -> None:
    """Raise a ValueError if `solved`, by the program or objective, differs from the value."""
    mean = Empirical(model).evaluate(x).value
    size = max(abs(solved), abs(value), abs(value - mean), 1e-3)
    if not abs(solved - value) <= TOLERANCES.disagreement * size:
        raise ValueError(
            f"the counterpart {type(entry).__name__} contradicts itself: the worst-case risk of a "
            f"decision is {solved:.8g} by what is minimised, but {value:.8g} by its value(model, "
            "x) (by default its program with the decision held fixed); correct one of them."
        )


def refuse_objective(
    model: RobustModel,
    x: Array,
    entry: Counterpart,
    value: float,
    corners: Array,
    rng: np.random.Generator,
) -> None:
    """Raise an error if a smooth objective differs from the value, or its gradient is wrong.

    Differences of two sizes disagree at a kink and under noise: no error is raised then.
    """
    name, objective = type(entry).__name__, objective_by(entry, model)

    def evaluate(y: Array) -> Point:
        point = objective.evaluate(y, None)
        whose = f"evaluate of the objective of the counterpart {name}"
        if not isinstance(point, Point):
            raise TypeError(
                f"{whose} must return Point(value, gradient), got {type(point).__name__}."
            )
        if np.ndim(point.value) != 0 or np.shape(point.gradient) != x.shape:
            raise ValueError(
                f"{whose} must return a Point with one number and a gradient of shape {x.shape}, "
                f"got the shapes {np.shape(point.value)} and {np.shape(point.gradient)}."
            )
        return point

    point = evaluate(x)
    refuse_disagreement(model, x, float(point.value), value, entry)
    for _ in range(3):
        shares = rng.uniform(-1.0, 1.0, size=TOLERANCES.corner_count)
        way = (shares - shares.mean()) @ corners
        wide, narrow = (
            (evaluate(x + step * way).value - evaluate(x - step * way).value) / (2 * step)
            for step in (TOLERANCES.difference, TOLERANCES.difference / 2)
        )
        told = float(point.gradient @ way)
        size = max(abs(told), abs(narrow), 1e-6 * abs(point.value))
        if abs(told - narrow) > max(TOLERANCES.slope * size, 10 * abs(wide - narrow)):
            raise ValueError(
                f"the objective of the counterpart {name} has a wrong gradient: along a line "
                f"inside the feasible set it gives the slope {told:.6g}, differences of its "
                f"values {narrow:.6g}; correct the gradient in evaluate(x, dual)."
            )


def refuse_worst_case(
    model: RobustModel, x: Array, worst: Any, risk: float, entry: Counterpart
) -> None:
    """Raise an error if a worst case is not in the ball, or does not attain the risk."""
    name = type(entry).__name__
    if not isinstance(worst, Extremal):
        raise TypeError(
            f"extremal of the counterpart {name} must return Extremal(rows, weights, source, "
            f"dual), got {type(worst).__name__}."
        )
    size, count = len(model.rows), len(worst.weights)
    fits = np.shape(worst.rows) == (count, model.rows.shape[1]) and len(worst.source) == count
    fits = fits and bool(np.all(np.isin(worst.source, np.arange(size))))
    if fits and np.all(worst.weights >= 0):
        shares = np.bincount(worst.source, worst.weights, minlength=size)
        cost = float(worst.weights @ model.cost(model.rows[worst.source], worst.rows))
        fits = np.allclose(shares, model.shares.array, rtol=1e-6)
        fits = fits and cost <= model.radius * (1 + 1e-5)
    if not fits or np.any(worst.weights < 0):
        raise ValueError(
            f"the worst case of the counterpart {name} is no distribution of the ball: rows (K, d) "
            "come from the samples `source` (K,) with `weights` (K,), which add up to the "
            "probability of each sample (1/N), and move them at a mean cost of at most the radius."
        )
    mean = Empirical(model).evaluate(x).value
    attained = float(worst.weights @ model.loss.values(x, worst.rows))
    if attained < risk - TOLERANCES.unattained * abs(risk - mean) - TOLERANCES.too_low * max(
        abs(risk), 1e-3
    ):
        raise ValueError(
            f"the worst case of the counterpart {name} has the expected loss {attained:.8g}, below "
            f"the worst-case risk {risk:.8g} that it is to attain; correct its extremal(model, x)."
        )
