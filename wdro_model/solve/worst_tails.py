"""The worst distribution for a sum of CVaRs: a mixture of those that are worst at thresholds.

At the thresholds of the worst-case risk several distributions have the largest expected loss, and
most of them have a smaller CVaR: another threshold would be better for them. Those that are worst
at neighbouring thresholds are mixed, and so is the one at the threshold that is best for the
mixture, until the CVaRs of the mixture reach the worst-case risk. It is a column generation for
max over the ball of min over the thresholds.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from wdro_model.model import RobustModel
from wdro_model.model.functionals import Tails
from wdro_model.objectives.exact import Counterpart, Extremal
from wdro_model.solve.true_risk import robust_value, settled, worst_distribution
from wdro_model.solvers.objective import Array

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
