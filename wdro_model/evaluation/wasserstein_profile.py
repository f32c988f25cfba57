"""The radius at which the best decision is the best for some distribution in the ball.

Blanchet, Kang and Murthy, "Robust Wasserstein profile inference and applications to machine
learning" (2019). A decision x is the best for a distribution P if E_P h(x, xi) = 0, h = grad_x f.
Its profile

    R_N(x) = min { W_c(P, P_N) : E_P h(x, xi) = 0 }

is the least radius at which x is the best for some distribution in the ball. At the best decision
x* of the data-generating distribution and for a quadratic cost c(delta) = delta' A delta,

    N R_N(x*)  ->  H' V^-1 H,      H ~ N(0, Cov h),      V = E[D A^-1 D'],      D = dh/dxi,

a sum of squares of normal numbers with weights, whose quantile divided by N is the radius. Cov h
and V are taken at the decision of ERM. Where constraints are active, h stands for its part along
the face of the feasible set that the decision lies in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Equality, Inequality, NonNeg, NonPos, Zero
from scipy.linalg import eigh, null_space

from wdro_model.display.tables import counted
from wdro_model.model import RobustModel
from wdro_model.sets.convex import integer_entries
from wdro_model.uncertainty.ambiguity import Assurance

if TYPE_CHECKING:
    from wdro_model.problem import Problem


@dataclass(frozen=True)
class Tolerances:
    """Steps and tolerances of the limit distribution."""

    difference_step: float = 1e-4
    """Step of finite differences, relative to the decision; their error is about its square."""
    active_slack: float = 1e-5
    """Slack of an active constraint, relative to the size of its terms."""
    singular_share: float = 1e-10
    """Share of the largest eigenvalue up to which an eigenvalue is zero."""
    stationarity: float = 0.1
    """The mean gradient at ERM's decision, in standard errors of its entries, up to which it is 0.
    A larger one lets an inaccurate decision of ERM pass."""
    draws: int = 400_000
    """Draws of the limit distribution, whose quantile then has an error of about 0.3%."""


TOLERANCES = Tolerances()
BOUND_ATTRIBUTES = {"nonneg", "nonpos", "bounds", "pos", "neg"}
"""Attributes of variables that are bounds."""


def radius_by_profile(
    problem: Problem, confidence: float, seed: int, arguments: Mapping[str, Any]
) -> tuple[float, Assurance, tuple[str, ...]]:
    """The quantile of the limit distribution of the profile, over N."""
    model = problem._model
    assert isinstance(model, RobustModel)
    refuse_rough(model)
    twin = problem.with_radius(problem.radius)
    with model.feasible.holding():
        twin.solve(**{**arguments, "method": "erm", "seed": seed})
        assert twin.solution is not None
        x = model.feasible.layout.join(twin.solution.decision)
        rows = active_rows(model, x)
    directions = null_space(rows) if len(rows) else np.eye(len(x))
    slopes, covariance, bend = limit_moments(model, x, directions)
    weights = limit_weights(model, slopes, covariance, bend)
    draws = np.random.default_rng(seed).standard_normal(
        (TOLERANCES.draws // len(weights) + 1, len(weights))
    )
    radius = float(np.quantile(draws**2 @ weights, confidence)) / model.size
    guarantee = (
        f"with a probability that tends to {confidence:.4g} as samples are added, the best "
        "decision under the data-generating distribution is the best for some distribution within "
        "the radius; nothing is said of the expected loss, which may be above the worst-case risk"
    )
    notes = [f"limit distribution at ERM's decision, {counted(len(weights), 'direction')}"]
    if len(rows):
        notes.append(
            f"{counted(len(rows), 'active constraint')} taken as equalities, which asks for "
            "positive multipliers"
        )
    assurance = Assurance(confidence, "profile", guarantee, False, False, cost=model.ambiguity.cost)
    return radius, assurance, tuple(notes)


def limit_moments(
    model: RobustModel, x: np.ndarray, directions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The slopes z' h at the samples (N, m), their covariance, and V = E[z' D A^-1 D' z], (m, m).

    directions: the z, as columns (n, m). Derivatives in x are central differences.
    """
    rows, step = model.rows, TOLERANCES.difference_step * max(1.0, float(np.abs(x).max()))

    def values_and_gradients(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, pullback = model.loss(point, rows)
        return np.array(values), np.array(pullback.in_data(np.ones(len(rows))))

    count = directions.shape[1]
    slopes = np.empty((len(rows), count))
    moves = np.empty((count, len(rows), model.joint.dimension))  # D' z at each sample
    for k, z in enumerate(directions.T):
        ends = [values_and_gradients(x + sign * step * z) for sign in (1, -1)]
        slopes[:, k] = (ends[0][0] - ends[1][0]) / (2 * step)
        moves[k] = (ends[0][1] - ends[1][1]) / (2 * step)
    prices = [model.cost.inverse_times(move) for move in moves]
    bend = np.array([[np.vdot(a, b) for b in moves] for a in prices]).reshape(count, count)
    bend /= len(rows)
    centred = slopes - slopes.mean(axis=0)
    covariance = centred.T @ centred / max(1, len(rows) - 1)
    return slopes, covariance, (bend + bend.T) / 2


def limit_weights(
    model: RobustModel, slopes: np.ndarray, covariance: np.ndarray, bend: np.ndarray
) -> np.ndarray:
    """The weights of the squares in H' V^-1 H; a ValueError where there is no limit."""
    if not len(covariance):
        raise ValueError(
            "rule='profile' has nothing to go by: the decision of ERM is a vertex of the feasible "
            "set, which is the best for all distributions near the samples; use rule='bootstrap'."
        )
    error, mean = np.sqrt(np.diag(covariance) / model.size), np.abs(slopes.mean(axis=0))
    if np.any(mean > TOLERANCES.stationarity * error + 1e-6 * np.abs(slopes).mean(axis=0)):
        raise ValueError(
            "rule='profile' needs the mean gradient to vanish at the decision of ERM (along active "
            f"constraints), and it is {float(mean.max()):.3g}: the solve was not accurate enough, "
            "or a constraint is nearly active; use rule='bootstrap'."
        )
    # Directions in units of their own size; the loss does not see those of size zero.
    size = np.sqrt(np.maximum(np.diag(bend), np.diag(covariance)))
    seen = size > TOLERANCES.singular_share * size.max()
    if not seen.any():
        raise ValueError("rule='profile' has nothing to go by: the loss has no slope at all.")
    units = np.outer(size[seen], size[seen])
    spread, scaled_bend = (matrix[np.ix_(seen, seen)] / units for matrix in (covariance, bend))
    values, vectors = np.linalg.eigh(scaled_bend)
    singular = values <= TOLERANCES.singular_share * max(values[-1], np.trace(spread))
    kernel, image = vectors[:, singular], vectors[:, ~singular]
    if np.trace(kernel.T @ spread @ kernel) > 1e-8 * np.trace(spread):
        raise ValueError(
            "rule='profile': no move of the data makes the mean gradient vanish in some "
            "direction (a variable that no uncertain number meets, or coordinates with "
            "infinite weights), so that no radius is large enough; use rule='bootstrap'."
        )
    weights = eigh(image.T @ spread @ image, np.diag(values[~singular]), eigvals_only=True)
    return np.maximum(weights, 0.0)


# ------------------------------------------------------------------ the face of the decision
def active_rows(model: RobustModel, x: np.ndarray) -> np.ndarray:
    """Normals (k, n) of the constraints that are active at x, the variables' bounds among them."""
    feasible, rows = model.feasible, []
    for variable, where in feasible.layout.slices.items():
        asked = {k for k, v in variable.attributes.items() if v is not None and v is not False}
        if asked - BOUND_ATTRIBUTES:
            raise unknown_face(
                f"the variable {variable.name()!r}, declared {', '.join(sorted(asked))}"
            )
        if feasible.is_integer and np.any(integer_entries(variable)):
            raise unknown_face(f"the integer variable {variable.name()!r}")
        lower, upper = declared_bounds(variable)
        value = x[where]
        room = TOLERANCES.active_slack * max(1.0, float(np.abs(value).max(initial=0.0)))
        at_bound = (value <= lower + room) | (value >= upper - room)
        rows += [np.eye(1, len(x), k)[0] for k in np.r_[where][at_bound]]
    for constraint in feasible.conic_constraints():
        if isinstance(constraint, bool | np.bool_) or not constraint.variables():
            continue
        rows += [*active_part(model, constraint, x)]
    return np.array(rows).reshape(len(rows), len(x))


def active_part(model: RobustModel, constraint: Any, x: np.ndarray) -> np.ndarray:
    """The normals of a constraint's entries that are active at x."""
    layout = model.feasible.layout
    foreign = [v for v in constraint.variables() if v not in layout.slices]
    if foreign:
        raise unknown_face(f"the constraint {constraint}, which has auxiliary variables")

    def value_at(point: np.ndarray) -> np.ndarray:
        with layout.holding(point):
            return np.ravel(np.asarray(expression.value, dtype=float))

    equality = isinstance(constraint, Equality | Zero)
    if not equality and not isinstance(constraint, Inequality | NonPos | NonNeg):
        raise unknown_face(f"the constraint {constraint}")
    sided = isinstance(constraint, Equality | Inequality)
    expression: cp.Expression = constraint.expr if sided else constraint.args[0]
    here = value_at(x)
    origin = value_at(np.zeros_like(x)) if expression.is_affine() else here
    room = TOLERANCES.active_slack * np.maximum(1.0, np.abs(origin))
    active = np.ones(here.shape, dtype=bool) if equality else np.abs(here) <= room
    if not active.any():
        return np.empty((0, len(x)))
    if not expression.is_affine():
        raise unknown_face(f"the constraint {constraint}, which is active and curved")
    columns = [value_at(unit)[active] - origin[active] for unit in np.eye(len(x))]
    return np.array(columns).T


def declared_bounds(variable: cp.Variable) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a variable's entries by its attributes, flat and row by row."""
    bounds = variable.attributes.get("bounds") or (-np.inf, np.inf)
    lower, upper = (
        np.ravel(np.broadcast_to(side, variable.shape)).astype(float) for side in bounds
    )
    if variable.is_nonneg():
        lower = np.maximum(lower, 0.0)
    if variable.is_nonpos():
        upper = np.minimum(upper, 0.0)
    return lower, upper


def unknown_face(what: str) -> ValueError:
    """The error that the face of the decision is not known."""
    return ValueError(
        "rule='profile' goes by the gradient along the constraints that are active at the "
        f"decision, and is not known for {what}; it takes bounds and linear constraints, and "
        "others where they are not active. Use rule='bootstrap'."
    )


def refuse_rough(model: RobustModel) -> None:
    """A ValueError where the theorem does not apply to the loss or the cost."""
    if not model.cost.is_quadratic:
        raise ValueError(
            "rule='profile' is for quadratic costs, SquaredEuclidean and Mahalanobis, whose limit "
            f"distribution has a closed form, got {model.cost.describe()}; for a norm it has none, "
            "and is 0 where gradients are unbounded. Use rule='bootstrap'."
        )
    if not model.joint.everywhere:
        raise ValueError(
            "rule='profile' lets the data move freely, and here it has a support "
            f"({', '.join(repr(p.support) for p in model.joint.parameters)}); leave it out, or use "
            "rule='bootstrap'."
        )
    if model.feasible.uncertain:
        raise ValueError(
            "rule='profile' is for decisions that are feasible under every distribution, and here "
            f"the constraint {model.feasible.uncertain[0].name} is uncertain; use rule='bootstrap'."
        )
    expression = model.expression
    if expression is not None and not expression.is_smooth():
        raise ValueError(
            "rule='profile' needs a loss with a gradient that changes smoothly with the data, and "
            "this one has kinks (a maximum, an absolute value, CVaR); use rule='bootstrap'."
        )
    if not model.convex_on_samples:
        raise ValueError(
            "rule='profile' needs a loss that is convex in the decision, for which a vanishing "
            "gradient means the best decision; if you know that it is, pass assume_convex=True to "
            "the problem. rule='bootstrap' takes any loss."
        )
