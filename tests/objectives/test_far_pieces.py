"""Steep pieces far from the samples: their modes are found, and their values are integrated."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.battery import RIGHT, described, truth, verdict
from tests.references.far_pieces import FarModel, by_tilting, draw_far
from tests.references.simplex_mesh import minimise
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.solve.notes import risk_is_infinite

SLOW = {
    6,
    8,
    9,
    11,
    14,
    15,
    25,
    29,
    30,
    32,
    36,
    37,
    43,
    44,
    48,
    54,
    59,
    61,
    63,
    66,
    78,
    80,
    83,
    84,
    88,
    92,
    93,
    97,
    98,
    99,
    104,
    106,
    108,
    109,
    123,
    124,
    130,
    131,
    132,
    135,
    138,
    139,
    141,
    143,
    145,
    149,
    158,
    164,
    167,
    177,
}
"""Seeds whose quadrature takes more than half a second."""
COARSE = wdro.solvers.FrankWolfe(gap=1e-2)
MODELS = [draw_far(seed) for seed in range(160) if seed not in SLOW]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_integral_at_the_true_dual_is_that_of_quadrature(model: FarModel) -> None:
    reference = model.reference(model.epsilon, model.sigma, 1e-5)
    true = minimise(reference, None, 1e-4 * model.epsilon)
    built = model.problem()._model
    rule = Choice("tilted", "").build(built, Scales(model.epsilon, model.sigma, 200))
    rule.refresh(model.x, true.dual)
    samples = np.arange(len(model.samples))
    inner = rule.slice(model.x, samples, Stream(0))
    value = true.dual * model.radius + inner.evaluate(true.dual).value
    error = inner.diagnostics(true.dual).standard_error
    assert abs(value - reference(true.dual).value) <= 5 * error + 1e-3 * model.epsilon


@pytest.mark.parametrize("seed", [7, 12])
def test_solves_find_the_dual_at_which_the_far_mode_takes_over(seed: int) -> None:
    model = draw_far(seed)
    answer = by_tilting(model)
    true = truth(model, answer)
    assert verdict(answer, true) == RIGHT, described(model, answer, true)


def far_maximum(distance: float = 4.0) -> wdro.Problem:
    """Three nonnegative numbers, one sample near 0.3, and a piece with 100 times their slope."""
    x = cp.Variable(3)
    z = wdro.UncertainParameter(3, samples=[[0.3, 0.31, 0.29]], support=wdro.supports.Nonnegative())
    loss = cp.maximum(z @ x, 50 * (z[0] - distance))
    ball = wdro.WassersteinBall(0.5, wdro.costs.Norm(1))
    return wdro.Problem(cp.Minimize(loss), [x >= 0.5, x <= 0.5], ball)


def test_a_far_kink_is_no_growth_without_end() -> None:
    """Along rays that nearly miss the piece it begins a million units away."""
    model = draw_far(43)
    assert not risk_is_infinite(model.problem()._model, model.x)


def test_a_loss_that_outgrows_the_cost_by_a_logarithm_is_still_seen() -> None:
    x = cp.Variable()
    z = wdro.UncertainParameter(samples=[1.0, 2.0], support=wdro.supports.Box(0.5, np.inf))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(-cp.entr(z) + x), [x >= 0, x <= 1], ball)
    with pytest.raises(wdro.UnboundedError, match="grows faster than the cost"):
        problem.solve(method="smoothed", progress=False)


def test_a_value_far_from_the_worst_case_is_explained() -> None:
    problem = far_maximum()
    with pytest.warns(wdro.SamplingWarning, match=r"far from the worst case.*sigma"):
        problem.solve(method="smoothed", sigma=0.1, epsilon=0.2, solver=COARSE, progress=False)
    assert problem.value < 0.1 * problem.solution.robust_value


def test_the_reference_that_reaches_the_far_piece_needs_no_explanation() -> None:
    problem = far_maximum()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        problem.solve(method="smoothed", sigma=0.5, epsilon=0.05, solver=COARSE, progress=False)
    assert problem.value > 0.7 * problem.solution.robust_value
    assert not any("far from the worst case" in str(w.message) for w in seen)
