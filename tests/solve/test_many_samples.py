"""Exact counterparts with many samples: gradients and QR factors, against one cone for each."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.solvers import Conic, QuasiNewton

RNG = np.random.default_rng(5)
FEATURES = RNG.normal(size=(700, 4))
LABELS = np.where(RNG.random(700) < 1 / (1 + np.exp(-2 * FEATURES @ [1, -1, 0.5, 0])), 1.0, -1.0)


def logistic(p, constraints=lambda w: [], held: bool = True, radius=0.05):
    w = cp.Variable(4)
    x = wdro.UncertainParameter(4, name="x", samples=FEATURES)
    y = wdro.UncertainParameter(name="y", samples=LABELS)
    weights = {x: 1.0, y: np.inf if held else 3.0}
    if not held:
        loss = cp.logistic(-x @ w)
        cost = wdro.costs.Norm(p)
    else:
        loss, cost = cp.logistic(-y * (x @ w)), wdro.costs.Norm(p, weights=weights)
    return w, wdro.Problem(
        cp.Minimize(loss), constraints(w), ambiguity=wdro.WassersteinBall(radius, cost)
    )


SETS = {
    "none": lambda w: [],
    "box": lambda w: [w <= 0.4, w >= -0.2],
    "ball": lambda w: [cp.norm(w, 2) <= 0.5],
    "plane": lambda w: [cp.sum(w) == 0.3],
}


@pytest.mark.parametrize("p", [1, 2, np.inf])
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("held", [True, False])
def test_gradients_and_cones_agree(p, kind: str, held: bool) -> None:
    w, stated = logistic(p, SETS[kind], held)
    stated.solve(method="exact")
    assert stated.solution.solver.startswith("projected quasi-Newton")
    assert stated.status == "optimal"
    mine, at = stated.value, np.array(w.value)
    stated.solve(method="exact", solver=Conic())
    assert mine == pytest.approx(stated.value, rel=1e-6)
    assert mine >= stated.value - 1e-7
    assert stated.robust_value({w: at}) == pytest.approx(mine, rel=1e-9)


def test_the_gap_bounds_the_distance_to_the_optimum() -> None:
    w, stated = logistic(2)
    stated.solve(method="exact", solver=QuasiNewton(gap=1e-2, max_iterations=2))
    early, gap, at = stated.value, stated.solution.gap, np.array(w.value)
    stated.solve(method="exact", solver=Conic())
    far = np.abs(np.append(w.value - at, 0.05 * np.linalg.norm(w.value - at))).max()
    assert early - stated.value <= gap * max(1.0, far) + 1e-9


def test_a_start_outside_the_set_is_refused() -> None:
    w, stated = logistic(2, SETS["ball"])
    with pytest.raises(ValueError, match="outside the feasible set"):
        stated.solve(method="exact", start={w: 10 * np.ones(4)})


def test_a_time_limit_keeps_the_best_point() -> None:
    _, stated = logistic(2)
    stated.solve(method="exact", time_limit=1e-3)
    assert stated.status in ("user_limit", "optimal")
    assert np.isfinite(stated.value)


def test_a_loss_with_kinks_keeps_its_cones() -> None:
    w = cp.Variable(4)
    x = wdro.UncertainParameter(4, samples=FEATURES)
    hinge = wdro.Problem(
        cp.Minimize(cp.pos(1 - x @ w)), [], ambiguity=wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    )
    hinge.solve()
    assert hinge.solution.solver.startswith("conic")
    with pytest.raises(ValueError, match="not smooth"):
        hinge.solve(method="exact", solver=QuasiNewton())


@pytest.mark.parametrize("count", [3, 8, 700])
def test_least_squares_have_the_value_of_their_formula(count: int) -> None:
    targets = FEATURES @ [1.0, 2.0, -1.0, 0.0] + 0.3
    w, b = cp.Variable(4), cp.Variable()
    x = wdro.UncertainParameter(4, name="x", samples=FEATURES[:count])
    y = wdro.UncertainParameter(name="y", samples=targets[:count])
    cost = wdro.costs.SquaredEuclidean(weights={x: 1.0, y: np.inf})
    stated = wdro.Problem(
        cp.Minimize(2 * cp.square(y - x @ w - b)),
        [cp.norm(w, 2) <= 3],
        wdro.WassersteinBall(0.2, cost),
    )
    stated.solve(method="exact")
    u = targets[:count] - FEATURES[:count] @ w.value - b.value
    truth = 2 * (np.sqrt(np.mean(u**2)) + np.sqrt(0.2) * np.linalg.norm(w.value)) ** 2
    assert stated.value == pytest.approx(truth, rel=1e-6, abs=1e-8)
    v, c = cp.Variable(4), cp.Variable()
    residual = targets[:count] - FEATURES[:count] @ v - c
    size = cp.norm(residual, 2) / np.sqrt(count) + np.sqrt(0.2) * cp.norm(v, 2)
    by_hand = cp.Problem(cp.Minimize(2 * cp.square(size)), [cp.norm(v, 2) <= 3])
    by_hand.solve(solver="CLARABEL")
    assert stated.value == pytest.approx(by_hand.value, rel=1e-6, abs=1e-7)
