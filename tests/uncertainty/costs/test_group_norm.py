"""A norm of the user's own: exact values against brute force, and bounds that do not lie."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize

import wdro_model as wdro
from tests.uncertainty.costs.group_norm import BareGroupNorm, BoundGroupNorm, GroupNorm
from wdro_model.errors import NoReformulationError, UnknownToCost
from wdro_model.model import Memory
from wdro_model.objectives.ascent import climb
from wdro_model.solve.true_risk import known_robust_value
from wdro_model.testing import check_cost
from wdro_model.uncertainty.costs import BoundCost

RADIUS, D = 0.3, 4
FEW = wdro.solvers.FrankWolfe(max_iterations=3)
DATA = np.random.default_rng(0).normal(size=(12, D))


def affine(x, t, xi):
    return -xi @ x + t**2


def cvar(x, t, xi):
    return t + 2.0 * cp.pos(-xi @ x - t)


def separate(x, t, xi):
    return sum(cp.maximum(2.0 * x[i] * xi[i], -x[i] * xi[i]) for i in range(3)) + xi[3] + t**2


def logistic(x, t, xi):
    return cp.logistic(xi @ x) + t**2


LOSSES = {f.__name__: f for f in (affine, cvar, separate, logistic)}


def built(loss, cost, support=None, unit=1.0, radius=RADIUS):
    xi = wdro.UncertainParameter(
        D, "xi", samples=unit * DATA, support=support or wdro.supports.Everywhere()
    )
    x, t = cp.Variable(D, name="x"), cp.Variable(name="t")
    return wdro.Problem(
        cp.Minimize(LOSSES[loss](x, t, xi)),
        [cp.abs(x) <= 2, cp.abs(t) <= 2 * unit, cp.sum(x) == 1],
        wdro.WassersteinBall(unit * radius, cost),
    )


def gained(move, losses):
    """The best rate of gain of a sample along a ray: loss per unit of cost, far away."""
    size = np.linalg.norm(move[:2]) + np.linalg.norm(move[2:])
    far = 1e5 * move / max(size, 1e-12)
    return float((losses(DATA + far) - losses(DATA)).max() / 1e5)


def brute_force(model, x):
    """mean + radius * the steepest ray, by search over directions from many starts."""

    def losses(rows):
        return model.loss.values(x, rows)

    rng, best = np.random.default_rng(1), 0.0
    starts = [*np.eye(D), *-np.eye(D), *rng.normal(size=(30, D))]
    for first in sorted(starts, key=lambda m: -gained(m, losses))[:3]:
        for start in (first, first * (np.arange(D) < 2), first * (np.arange(D) >= 2)):
            if not start.any():
                continue
            found = minimize(
                lambda m: -gained(m, losses),
                start,
                method="Nelder-Mead",
                options={"xatol": 1e-9, "fatol": 1e-10, "maxiter": 4000, "maxfev": 4000},
            )
            best = max(best, -found.fun)
    return float(losses(DATA).mean()) + model.radius * best


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_value_is_that_of_a_search_over_moves(loss):
    problem = built(loss, GroupNorm())
    problem.solve(method="exact")
    x = problem._model.feasible.layout.join(problem.solution.decision)
    expected = brute_force(problem._model, x)
    assert problem.solution.robust_value == pytest.approx(expected, rel=2e-4, abs=2e-4)
    assert problem.value == pytest.approx(problem.solution.robust_value, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_group_of_all_is_the_euclidean_norm_and_groups_of_one_the_l1_norm(loss):
    for own, known in [
        (GroupNorm(width=D), wdro.costs.Norm(2)),
        (GroupNorm(1), wdro.costs.Norm(1)),
    ]:
        values = []
        for cost in (own, known):
            problem = built(loss, cost)
            problem.solve(method="exact")
            values.append(problem.value)
        assert values[0] == pytest.approx(values[1], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("unit", [1e-5, 1e6])
def test_units_of_the_data_do_not_change_the_decision(unit):
    ordinary, other = built("cvar", GroupNorm()), built("cvar", GroupNorm(), unit=unit)
    for problem in (ordinary, other):
        problem.solve(method="exact")
    assert other.value == pytest.approx(unit * ordinary.value, rel=1e-5)
    x, y = (
        next(v for v in p.solution.decision.values() if np.ndim(v) == 1) for p in (ordinary, other)
    )
    np.testing.assert_allclose(x, y, atol=1e-3)


def test_worst_case_spends_the_radius_and_attains_the_value():
    problem = built("cvar", GroupNorm())
    problem.solve(method="exact")
    found = problem.worst_case()
    assert found.transport_cost <= RADIUS * (1 + 1e-9)
    assert found.expected_loss == pytest.approx(problem.solution.robust_value, rel=1e-5)


@pytest.mark.parametrize("dual", [1e-3, 1.0, 10.0, None])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("width", [1, 2])
def test_ascent_stays_in_the_ball_and_below_the_worst_case(loss, dual, width):
    problem = built(loss, GroupNorm(width))
    model = problem._model
    x = np.random.default_rng(3).normal(size=model.feasible.layout.dimension)
    found = climb(model, x, dual)
    truth = problem.robust_value(model.feasible.layout.split(x))
    spent = model.cost(model.rows, found.rows).mean()
    assert spent <= RADIUS * (1 + 1e-9)
    assert found.transport_cost == pytest.approx(spent)
    assert found.expected_loss <= truth + 1e-9
    assert found.expected_loss == pytest.approx(model.loss.values(x, found.rows).mean())


class Saturating(BoundCost):
    """c = |delta| + |delta|^3: convex, and of no order."""

    dimension = D

    def describe(self):
        return "|delta| + |delta|^3"

    def of_displacements(self, delta):
        size = np.linalg.norm(delta, axis=1)
        return size + size**3

    def gradient(self, delta):
        size = np.linalg.norm(delta, axis=1, keepdims=True)
        return delta / np.where(size > 0, size, 1.0) * (1 + 3 * size**2)


@pytest.mark.parametrize("dual", [1e-3, None])
def test_ascent_with_a_cost_of_no_order_is_shortened_into_the_ball(dual):
    model = replace(built("cvar", GroupNorm())._model, cost=Saturating(), memory=Memory())
    x = np.random.default_rng(3).normal(size=model.feasible.layout.dimension)
    found = climb(model, x, dual)
    spent = model.cost(model.rows, found.rows).mean()
    assert 0 < spent <= RADIUS * (1 + 1e-9)
    # The cost is above |delta|: what it allows is less than the norm does.
    above = replace(model, cost=wdro.costs.Norm(2).bind(model.joint), memory=Memory())
    assert found.expected_loss <= known_robust_value(above, x) + 1e-9


def test_a_smoothed_solve_does_not_promise_more_than_the_truth():
    problem = built("affine", GroupNorm())
    problem.solve(method="smoothed", integration="gaussian", solver=FEW)
    found = problem.solution
    assert not found.robust_value_is_bound
    x = next(v for v in found.decision.values() if np.ndim(v) == 1)
    t = next(v for v in found.decision.values() if np.ndim(v) == 0)
    margin = max(np.linalg.norm(x[:2]), np.linalg.norm(x[2:]))
    truth = float((-DATA @ x).mean() + t**2 + RADIUS * margin)
    assert found.robust_value == pytest.approx(truth, rel=1e-6)
    assert found.value <= truth + 0.02 * RADIUS * margin


def test_a_smoothed_bound_on_a_box_is_below_the_norm_that_is_cheaper():
    box = wdro.supports.Box(-3.0, 3.0)
    problem = built("affine", GroupNorm(), support=box)
    problem.solve(method="smoothed", integration="gaussian", solver=FEW)
    found = problem.solution
    assert found.robust_value_is_bound
    # |delta|_1 <= 2 sum_g |delta_g| in groups of two: a ball of twice the radius holds this one.
    wider = built("affine", wdro.costs.Norm(1), support=box, radius=2 * RADIUS)
    names = {v.name(): v for v in wider._model.feasible.layout.variables}
    decision = {names[v.name()]: value for v, value in found.decision.items()}
    assert found.empirical_value <= found.robust_value
    assert found.robust_value <= wider.robust_value(decision)


def test_a_cost_that_says_nothing_of_itself_gets_no_bound_and_no_counterpart():
    problem = built("affine", BareGroupNorm())
    with pytest.raises(NoReformulationError, match=r"not a norm \(a cost told by its values"):
        problem.solve(method="exact")
    assert climb(problem._model, np.ones(D + 1)) is None
    cost = problem._model.cost
    for operation, call in {
        "dual_norm": lambda: cost.dual_norm(cp.Constant(np.ones(D))),
        "steepest_move": lambda: cost.steepest_move(np.ones(D)),
        "gradient": lambda: cost.gradient(np.ones((1, D))),
        "distance": lambda: cost.distance(1.0),
        "coordinate_weights": lambda: cost.coordinate_weights,
    }.items():
        with pytest.raises(
            UnknownToCost, match=f"told by its values does not know its {operation}"
        ):
            call()


def test_a_norm_without_its_numbers_takes_them_from_cvxpy():
    class Written(BoundGroupNorm):
        dual_norms = BoundCost.dual_norms

    groups = (slice(0, 2), slice(2, 4))
    slopes = np.random.default_rng(0).normal(size=(2, 3, D))
    np.testing.assert_allclose(
        Written(D, groups).dual_norms(slopes), BoundGroupNorm(D, groups).dual_norms(slopes)
    )


def test_a_norm_without_a_dual_norm_is_refused_by_name():
    class Mute(BoundGroupNorm):
        dual_norm = BoundCost.dual_norm
        dual_norms = BoundCost.dual_norms

    class MuteNorm(GroupNorm):
        def bind(self, joint):
            return Mute(joint.dimension, super().bind(joint).groups)

    with pytest.raises(NoReformulationError, match="does not know its dual_norm"):
        built("affine", MuteNorm()).solve(method="exact")


def test_bounded_supports_ask_for_more_than_a_dual_norm():
    problem = built("cvar", GroupNorm(), support=wdro.supports.Box(-3.0, 3.0))
    with pytest.raises(NoReformulationError, match=r"bounded support needs .* conjugate is known"):
        problem.solve(method="exact")


@pytest.mark.parametrize(
    ("false", "message"),
    [
        ({"dual_norms": lambda self, b: 0.5 * BoundGroupNorm.dual_norms(self, b)}, "dual norm"),
        ({"is_norm": False, "is_quadratic": True}, r"twice a move over 2\^2"),
        ({"gradient": lambda self, delta: delta}, "its gradient gives the slope"),
        ({"steepest_move": lambda self, b: b}, "steepest move"),
        ({"of_displacements": lambda self, d: d.sum(axis=1)}, "negative or not a number"),
    ],
    ids=["dual norm", "order", "gradient", "steepest", "negative"],
)
def test_a_cost_that_contradicts_itself_is_refused(false, message):
    lying = type("Lying", (BoundGroupNorm,), false)

    class Liar(GroupNorm):
        order = None

        def bind(self, joint):
            return lying(joint.dimension, super().bind(joint).groups)

    rows = np.random.default_rng(0).normal(size=(10, 4))
    check_cost(GroupNorm(), rows)
    with pytest.raises(ValueError, match=f"(?s)contradicts itself.*{message}"):
        check_cost(Liar(), rows)


@dataclass(frozen=True, eq=False)
class BoundManhattan(BoundCost):
    """A separable norm told by as little as boxes need."""

    dimension: int

    is_norm = True
    is_separable = True

    def describe(self):
        return "sum_i (i + 1) |delta_i|"

    @property
    def coordinate_weights(self):
        return 1.0 + np.arange(self.dimension)

    def of_displacements(self, delta):
        return np.abs(delta) @ self.coordinate_weights

    def dual_norm(self, slope):
        return cp.norm(cp.multiply(1.0 / self.coordinate_weights, slope), "inf")


class Manhattan(GroupNorm):
    def bind(self, joint):
        return BoundManhattan(joint.dimension)


@pytest.mark.parametrize("support", [None, wdro.supports.Box(-3.0, 3.0)], ids=["plane", "box"])
@pytest.mark.parametrize("loss", ["affine", "cvar", "separate"])
def test_a_separable_norm_is_that_of_the_library_on_planes_and_boxes(loss, support):
    values = []
    for cost in (Manhattan(), wdro.costs.Norm(1, weights=1.0 + np.arange(D))):
        problem = built(loss, cost, support=support)
        problem.solve(method="exact")
        values.append(problem.value)
    assert values[0] == pytest.approx(values[1], rel=1e-5, abs=1e-6)
