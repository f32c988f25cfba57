"""The worst-case risk of a decision and the distribution that attains it, by the exact counterpart.

At the thresholds of the worst-case risk several distributions have the largest expected loss, and
most of them have a smaller CVaR: another threshold would be better for them. The distributions that
are worst at neighbouring thresholds are mixed, and so is the one at the threshold that is best for
the mixture, until the CVaRs of the mixture reach the worst-case risk. It is a column generation for
max over the ball of min over the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.error import SolverError
from scipy.optimize import linprog

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.loss.batched import BatchedLoss, FlatLoss
from wdro_model.loss.structure import analyse
from wdro_model.model import Feasible, Memory, Model, RobustModel
from wdro_model.model.declared import Tails
from wdro_model.objectives import exact
from wdro_model.objectives.cvar_thresholds import at_quantiles
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.exact import Counterpart, Extremal
from wdro_model.solve.plan import Plan
from wdro_model.solve.rescale import RescaledModel, Units, rescale_model, units_at
from wdro_model.solvers import Conic
from wdro_model.solvers.cone_solver import OTHER_SOLVERS
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Tolerances:
    """Accuracy of the mixture of distributions that are worst at thresholds."""

    threshold_step: float = 1e-4
    """Distance of neighbouring thresholds, as a share of the spread of the losses."""
    max_distributions: int = 40
    """Distributions that are added to the mixture at most; a few are usual."""
    missing_risk: float = 1e-6
    """Share of what the ball adds by which the mixture may fall short of the worst-case risk."""


TOLERANCES = Tolerances()


def true_objective(model: Model, chosen: Plan) -> Callable[[Array], float]:
    """The objective of a plan as a function of the decision: mean loss, or worst-case risk."""
    counterpart = chosen.counterpart
    if counterpart is not None and isinstance(model, RobustModel):
        return lambda x: robust_value(model, x, counterpart)
    return lambda x: Empirical(model).evaluate(x).value


def known_robust_value(model: RobustModel, x: Array) -> float | None:
    """The worst-case risk of a decision over the ball; None where no formula is known.

    Thresholds of CVaRs are where they are best for this ball, whatever x has in their place.
    """
    if not exact.has_counterpart(model):
        return None
    counterpart = exact.counterpart(model)
    if model.tails is None or model.radius == 0 or not np.all(np.isfinite(x)):
        return robust_value(model, with_best_thresholds(model, x), counterpart)
    values = []
    for thresholds in (lambda: with_best_thresholds(model, x), lambda: x):  # either may be better
        with suppress(SolverError):
            values.append(robust_value(model, thresholds(), counterpart))
    return min(values) if values else robust_value(model, x, counterpart)


def robust_value(model: RobustModel, x: Array, counterpart: Counterpart) -> float:
    """The worst-case risk of a decision, by its counterpart, computed in the model's units."""
    rescaled = rescale_for(counterpart, model)
    return rescaled.loss * float(counterpart.value(rescaled.model, x))


def worst_distribution(model: RobustModel, x: Array, counterpart: Counterpart) -> Extremal:
    """A distribution of the ball that attains the worst-case risk of a decision."""
    rescaled = rescale_for(counterpart, model)
    worst = counterpart.extremal(rescaled.model, x)
    dual = worst.dual * rescaled.loss / rescaled.cost
    return Extremal(worst.rows * rescaled.data, worst.weights, worst.source, dual)


def rescale_for(
    counterpart: Counterpart, model: RobustModel, units: Units | None = None
) -> RescaledModel[RobustModel]:
    """The model in units of its own, if its counterpart applies there as well.

    units: by default those of the model, where the counterpart holds every sample.
    """
    if units is None and not counterpart.writes_samples(model):
        return RescaledModel.unchanged(model)
    rescaled = rescale_model(model, units)
    if rescaled.model is model or counterpart.refusal(rescaled.model) is None:
        return rescaled
    return RescaledModel.unchanged(model)


# ------------------------------------------------------------------ thresholds of CVaRs
def with_best_thresholds(model: Model, x: Array) -> Array:
    """The decision with the thresholds of CVaRs at which its worst-case risk is attained.

    The thresholds that are best for the samples where no counterpart is known.
    """
    x = at_quantiles(model, x)
    if model.tails is None or not isinstance(model, RobustModel) or model.radius == 0:
        return x
    inner = _in_thresholds(model, x)
    if not exact.has_counterpart(inner):
        return x
    unit, layout = units_at(model, x).loss, inner.feasible.layout
    units = Units(dict.fromkeys(layout.variables, unit), unit)
    counterpart = exact.counterpart(inner)
    rescaled = rescale_for(counterpart, inner, units)
    program = exact.program_by(counterpart, rescaled.model)
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
        best = {t: rescaled.loss * np.array(t.value) for t in layout.variables}
    return model.loss.layout.join({**model.loss.layout.split(x), **best})


def _in_thresholds(model: RobustModel, x: Array) -> RobustModel:
    """The model in its thresholds alone: the decision is x, certain parameters are numbers."""
    assert model.tails is not None
    numbers = {id(v): cp.Constant(part) for v, part in model.loss.layout.split_user(x).items()}
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


def worst_with_tails(model: RobustModel, x: Array, counterpart: Counterpart) -> Extremal:
    """A distribution of the ball whose CVaRs attain the worst-case risk of a decision."""
    tails = model.tails
    if tails is None:
        return worst_distribution(model, x, counterpart)
    x = with_best_thresholds(model, x)
    risk = robust_value(model, x, counterpart)
    observed = tails.losses(model.loss.layout, model.joint, x, model.rows)
    given = model.shares.probabilities
    added = risk - float(model.shares.total(tails.contributions(observed, given)))
    spread = np.maximum(np.ptp(observed[:, 1:], axis=0), 1e-9)
    places = [model.loss.layout.slices[part.threshold].start + part.entry for part in tails.parts]
    steps = TOLERANCES.threshold_step * np.diag(spread)

    def worst_at(thresholds: Array) -> Extremal:
        return worst_distribution(
            model, tails.placed(model.loss.layout, x, thresholds), counterpart
        )

    near = [x[places], *(x[places] + step for step in (*steps, *-steps))]
    mixed = [worst_at(thresholds) for thresholds in near]
    last = None
    for _ in range(TOLERANCES.max_distributions):
        value, mixture, thresholds = _mixture(model, x, tails, mixed)
        known = last is not None and np.allclose(thresholds, last, rtol=1e-12, atol=0.0)
        if known or value >= risk - TOLERANCES.missing_risk * abs(added) - 1e-9 * abs(risk):
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
