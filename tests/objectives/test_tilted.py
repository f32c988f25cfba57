"""Tilted importance sampling against closed forms, quadrature and plain Monte Carlo."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from tests.references.quadrature import brute_force
from wdro_model.objectives.integration.closed_form import ClosedForm
from wdro_model.objectives.integration.inner_integral import Scales, Stream
from wdro_model.objectives.integration.normal import log_scaled_mass
from wdro_model.objectives.integration.tilted import Gaussian, Tilted, tilted_refusal
from wdro_model.uncertainty.costs import Callable, Mahalanobis, Norm, SquaredEuclidean
from wdro_model.uncertainty.supports import Box, Nonnegative, Polyhedron, Where

pytestmark = pytest.mark.filterwarnings("error")


def compiled(loss, *, cost=None, radius=0.1, variables=None):
    """The model of a problem whose variables lie in a box."""
    objective = loss if isinstance(loss, wdro.CallableLoss) else cp.Minimize(loss)
    found = variables or (loss.variables if variables is None and objective is loss else None)
    found = list(found) if found else loss.variables()
    constraints = [c for v in found for c in (v >= -50, v <= 50)]
    return wdro.Problem(objective, constraints, wdro.WassersteinBall(radius, cost))._model


def tilted(model, epsilon, sigma, draws) -> Tilted:
    return Tilted(model, Scales(epsilon, sigma, draws))


def everything(model):
    return np.arange(model.joint.size)


def at_point(rule, model, x, dual, seed=0):
    """The slice of a strategy adapted to (x, dual)."""
    rule.refresh(x, dual)
    return rule.slice(x, everything(model), Stream(seed))


def small_model(support, cost=None, d=1, count=3, loss=None, seed=0):
    rng = np.random.default_rng(seed)
    samples = 0.4 * rng.standard_normal((count, d)) + (0.5 if support is None else 0.0)
    if isinstance(support, (Box, Nonnegative)):
        lower, upper = support.bounds((d,))
        samples = np.clip(np.abs(samples), lower + 0.01, upper - 0.01)
    xi = wdro.UncertainParameter(d, samples=samples, support=support, name="xi")
    x = cp.Variable(d, name="x")
    return compiled(loss(x, xi), cost=cost), xi


def pieces_loss(x, xi):
    return cp.maximum(x @ xi, -2 * (x @ xi) - 0.3, 0.2)


def logistic_loss(x, xi):
    return cp.logistic(3 * (x @ xi)) + cp.logistic(-2 * (x @ xi))


# ------------------------------------------------------------------ affine losses
@pytest.mark.parametrize("box", [False, True])
def test_affine_losses_have_equal_weights_and_the_closed_form_value(box):
    rng = np.random.default_rng(1)
    d, count, epsilon, sigma, dual = 50, 4, 0.02, 0.3, 0.7
    support = Box(-1.0, 2.0) if box else None
    samples = np.clip(rng.standard_normal((count, d)), -0.9, 1.9)
    xi = wdro.UncertainParameter(d, samples=samples, support=support)
    x = cp.Variable(d)
    model = compiled(xi @ x)
    point = rng.standard_normal(d)
    exact = ClosedForm(model, Scales(epsilon, sigma))
    truth = exact.slice(point, everything(model), Stream(0))
    total, gradient, slope = [], np.zeros(d), []
    chunks, draws = 5, 20_000
    for seed in range(chunks):
        inner = at_point(tilted(model, epsilon, sigma, draws), model, point, dual, seed)
        diagnostics = inner.diagnostics(dual)
        assert diagnostics.smallest_effective_size > (1 - 1e-9) * draws
        total.append(inner.evaluate(dual).value)
        slope.append(inner.evaluate(dual).slope)
        gradient += inner.gradient(dual) / chunks
    assert np.ptp(total) < 1e-10
    assert np.mean(total) == pytest.approx(truth.evaluate(dual).value, rel=1e-9)
    assert np.mean(slope) == pytest.approx(truth.evaluate(dual).slope, rel=2e-3)
    np.testing.assert_allclose(gradient, truth.gradient(dual), atol=2e-3)


def test_another_dual_variable_reweights_the_same_draws():
    rng = np.random.default_rng(2)
    xi = wdro.UncertainParameter(3, samples=rng.standard_normal((5, 3)))
    model = compiled(cp.Variable(3) @ xi)
    x, epsilon, sigma = np.array([1.0, -0.5, 0.2]), 0.1, 0.3
    truth = ClosedForm(model, Scales(epsilon, sigma))
    exact = truth.slice(x, everything(model), Stream(0))
    inner = at_point(tilted(model, epsilon, sigma, 4000), model, x, 1.0)
    for dual in (0.5, 1.0, 2.0):
        assert inner.evaluate(dual).value == pytest.approx(exact.evaluate(dual).value, abs=2e-3)
        assert inner.evaluate(dual).slope == pytest.approx(exact.evaluate(dual).slope, rel=3e-2)
        if dual >= 1.0:  # a smaller one asks for wider draws than there are
            assert inner.evaluate(dual).curvature == pytest.approx(
                exact.evaluate(dual).curvature, rel=0.1
            )


def test_mahalanobis_cost_on_affine_losses_is_the_closed_form():
    rng = np.random.default_rng(3)
    d = 6
    factor = rng.standard_normal((d, d))
    xi = wdro.UncertainParameter(d, samples=rng.standard_normal((4, d)))
    model = compiled(cp.Variable(d) @ xi, cost=Mahalanobis(precision=factor @ factor.T + np.eye(d)))
    x, epsilon, sigma = rng.standard_normal(d), 0.05, 0.2
    truth = ClosedForm(model, Scales(epsilon, sigma))
    exact = truth.slice(x, everything(model), Stream(0)).evaluate(0.4)
    inner = at_point(tilted(model, epsilon, sigma, 50), model, x, 0.4)
    assert inner.evaluate(0.4).value == pytest.approx(exact.value, rel=1e-10)
    assert inner.diagnostics(0.4).smallest_effective_size == pytest.approx(50)


def test_tiny_epsilon_stays_finite():
    rng = np.random.default_rng(4)
    support = Box(-1.0, 1.0)
    samples = rng.uniform(-1, 1, (3, 4))
    for loss in (lambda x, z: x @ z, logistic_loss, pieces_loss):
        xi = wdro.UncertainParameter(4, samples=samples, support=support)
        model = compiled(loss(cp.Variable(4), xi))
        inner = at_point(tilted(model, 1e-8, 0.3, 16), model, np.ones(4), 0.2)
        assert np.isfinite(inner.evaluate(0.2).value)
        assert np.isfinite(inner.gradient(0.2)).all()
        assert inner.diagnostics(0.2).effective_size > 4


# ------------------------------------------------------------------ better than the reference
def logistic_model():
    rng = np.random.default_rng(5)
    d = 20
    xi = wdro.UncertainParameter(d, samples=rng.standard_normal((20, d)))
    x = cp.Variable(d)
    return compiled(cp.logistic(x @ xi)), 0.4 * rng.standard_normal(d), 1.0, 0.02, 0.3


def cvar_model():
    rng = np.random.default_rng(6)
    d = 10
    xi = wdro.UncertainParameter(d, samples=0.02 + 0.1 * rng.standard_normal((20, d)))
    x, t = cp.Variable(d), cp.Variable()
    model = compiled(t + cp.pos(-(x @ xi) - t) / 0.1)
    point = model.loss.layout.join({x: np.ones(d) / d, t: 0.02})
    return model, point, 8.0, 0.005, 0.03


@pytest.mark.parametrize("case", [logistic_model, cvar_model])
def test_ten_tilted_draws_beat_a_thousand_from_the_reference(case):
    model, x, dual, epsilon, sigma = case()
    reference = at_point(tilted(model, epsilon, sigma, 5000), model, x, dual, seed=99)
    truth = reference.gradient(dual)
    few = tilted(model, epsilon, sigma, 10)
    plain = Gaussian(model, Scales(epsilon, sigma, 1000))
    errors = [
        np.linalg.norm(at_point(few, model, x, dual, seed).gradient(dual) - truth)
        for seed in range(5)
    ]
    crude = [
        np.linalg.norm(plain.slice(x, everything(model), Stream(seed)).gradient(dual) - truth)
        for seed in range(3)
    ]
    assert np.max(errors) < 0.5 * np.min(crude)
    assert reference.diagnostics(dual).effective_size > 0.8 * 5000


def test_logistic_loss_in_many_dimensions_agrees_with_its_one_dimensional_integral():
    """log(1 + exp(<x, z>)) sees the data through <x, z>: the rest integrates in closed form."""
    model, x, dual, epsilon, sigma = logistic_model()
    inner = at_point(tilted(model, epsilon, sigma, 2000), model, x, dual)
    length = np.linalg.norm(x)
    v = 1 / (2 * dual / epsilon + 1 / sigma**2)
    t = np.linspace(-14, 14, 20_001) * np.sqrt(v)
    t = t + np.linspace(0, v * length / epsilon, 41)[:, None]
    t = np.unique(t)
    values = []
    for row in model.joint.matrix:
        exponent = np.logaddexp(0, row @ x + length * t) / epsilon - t**2 / (2 * v)
        top = exponent.max()
        integral = np.trapezoid(np.exp(exponent - top), t)
        d = len(x)
        log_mean = top + np.log(integral) - 0.5 * np.log(2 * np.pi * sigma**2)
        values.append(epsilon * (log_mean + 0.5 * (d - 1) * np.log(v / sigma**2)))
    assert inner.evaluate(dual).value == pytest.approx(np.mean(values), abs=2e-5)


# ------------------------------------------------------------------ several modes
def test_both_modes_of_two_steep_pieces_are_found():
    """Samples between two steep slopes: one fixed point would see one side alone."""
    samples = np.linspace(-0.3, 0.3, 7)[:, None]
    xi = wdro.UncertainParameter(1, samples=samples)
    x = cp.Variable(1)
    model = compiled(cp.maximum(5 * (x @ xi), -4.9 * (x @ xi)))
    dual, epsilon, sigma = 2.0, 0.05, 1.0
    truth = brute_force(
        lambda z: np.maximum(5 * z[:, 0], -4.9 * z[:, 0]),
        model.cost,
        samples,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=8.0,
    )
    inner = at_point(tilted(model, epsilon, sigma, 500), model, np.ones(1), dual)
    assert inner.evaluate(dual).value == pytest.approx(truth[0], abs=1e-4)
    assert inner.evaluate(dual).slope == pytest.approx(truth[1], rel=2e-2)


def steep(x, scenarios):
    """max(5 z, -4.9 z) as a function, whose pieces nothing reveals."""
    ((p, z),) = scenarios.items()
    ((variable, value),) = x.items()
    inner = z @ value
    slope = np.where(inner > 0, 5.0, -4.9)

    def pullback(weights):
        pulled = weights * slope
        return {variable: pulled @ z, p: pulled[:, None] * value}

    return slope * inner, pullback


@pytest.mark.parametrize("d", [1, 2, 5])
def test_both_modes_of_a_function_without_known_pieces_are_found(d):
    rng = np.random.default_rng(7)
    samples = np.concatenate([np.linspace(-0.3, 0.3, 6)[:, None], rng.normal(size=(6, d - 1))], 1)
    xi = wdro.UncertainParameter(d, samples=samples)
    x = cp.Variable(d)
    model = compiled(wdro.CallableLoss(steep, [x], [xi]), variables=[x])
    dual, epsilon, sigma = 2.0, 0.05, 1.0
    truth = brute_force(
        lambda z: np.maximum(5 * z[:, 0], -4.9 * z[:, 0]),
        lambda a, b: ((a - b) ** 2).sum(axis=1),
        samples[:, :1],
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=8.0,
    )
    flat = 0.5 * epsilon * (d - 1) * np.log(1 / (1 + 2 * dual * sigma**2 / epsilon))
    inner = at_point(tilted(model, epsilon, sigma, 2000), model, np.eye(d)[0], dual)
    assert inner.evaluate(dual).value == pytest.approx(truth[0] + flat, abs=1e-3)


@pytest.mark.parametrize("d", [1, 2])
def test_convex_loss_on_a_box_has_modes_in_the_corners(d):
    samples = np.array([[0.05, 0.0], [-0.1, 0.02], [0.0, 0.0]])[:, :d]
    xi = wdro.UncertainParameter(d, samples=samples, support=Box(-1.0, 1.0))
    x = cp.Variable(d)
    model = compiled(cp.sum_squares(cp.multiply(x, xi)))
    point = np.array([2.0, 1.5])[:d]
    dual, epsilon, sigma = 0.5, 0.1, 0.8
    truth = brute_force(
        lambda z: ((point * z) ** 2).sum(axis=1),
        model.cost,
        samples,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=8.0,
        lower=-1.0,
        upper=1.0,
        size=20_000 if d == 1 else 500,
    )
    inner = at_point(tilted(model, epsilon, sigma, 4000), model, point, dual)
    assert inner.evaluate(dual).value == pytest.approx(truth[0], abs=2e-3)
    assert inner.evaluate(dual).slope == pytest.approx(truth[1], rel=1e-2)
    assert inner.diagnostics(dual).effective_size > 0.4 * 4000


# ------------------------------------------------------------------ costs and supports
def walled(origins, points):
    """A cost that grows with the fourth power and forbids long moves."""
    length = np.linalg.norm(points - origins, axis=1)
    return np.where(length < 1.5, length**2 + 2 * length**4, np.inf)


COSTS = {
    "squared": SquaredEuclidean(),
    "weighted": SquaredEuclidean(weights=0.3),
    "norm 1": Norm(1),
    "norm 2": Norm(2),
    "norm inf": Norm(np.inf),
    "callable": Callable(walled),
}
SUPPORTS = {
    "everywhere": None,
    "box": Box(-0.2, 1.1),
    "nonnegative": Nonnegative(),
    "polyhedron": Polyhedron([[1.0, 1.0], [-1.0, 0.5]], [1.2, 0.8]),
    "where": Where(lambda z: (z**2).sum(axis=-1) < 1.7),
}


@pytest.mark.parametrize(
    ("kind", "d", "loss"),
    [
        (kind, d, (pieces_loss, logistic_loss)[(i + d) % 2])
        for i, kind in enumerate(COSTS)
        for d in (1, 2)
    ],
)
def test_every_cost_agrees_with_quadrature(kind, d, loss):
    model, _ = small_model(None, COSTS[kind], d, loss=loss)
    compare_with_quadrature(model, {}, d, draws=6000)


@pytest.mark.parametrize(
    ("where", "kind", "d", "loss"),
    [
        ("box", "squared", 1, pieces_loss),
        ("box", "squared", 2, logistic_loss),
        ("box", "norm 2", 1, logistic_loss),
        ("box", "norm 2", 2, pieces_loss),
        ("nonnegative", "squared", 1, logistic_loss),
        ("nonnegative", "squared", 2, pieces_loss),
        ("nonnegative", "norm 2", 1, pieces_loss),
        ("nonnegative", "norm 2", 2, logistic_loss),
        ("polyhedron", "squared", 2, pieces_loss),
        ("polyhedron", "squared", 2, logistic_loss),
        ("polyhedron", "norm 2", 2, pieces_loss),
        ("polyhedron", "norm 2", 2, logistic_loss),
        ("where", "squared", 1, pieces_loss),
        ("where", "squared", 2, logistic_loss),
        ("where", "norm 2", 1, logistic_loss),
        ("where", "norm 2", 2, pieces_loss),
    ],
)
def test_every_support_agrees_with_quadrature(where, kind, d, loss):
    model, xi = small_model(SUPPORTS[where], COSTS[kind], d, loss=loss)
    box = xi.support.bounds((d,))
    limits = {} if box is None else {"lower": box[0], "upper": box[1]}
    compare_with_quadrature(model, {"inside": xi.support.contains, **limits}, d, draws=6000)


def compare_with_quadrature(model, domain, d, draws, dual=1.3, epsilon=0.15, sigma=0.5):
    x = np.array([1.2, -0.7])[:d]
    truth = brute_force(
        lambda z: model.loss.values(x, z),
        model.cost,
        model.joint.matrix,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        reach=8.0,
        size=20_000 if d == 1 else 640,
        **domain,
    )
    inner = at_point(tilted(model, epsilon, sigma, draws), model, x, dual)
    diagnostics = inner.diagnostics(dual)
    coupled = model.joint.bounds is None or not (model.cost.is_norm or model.cost.is_quadratic)
    # Masses of proposal and reference from about 6000 and 4096 proposals each.
    tolerance = 5 * diagnostics.standard_error + (5e-3 if coupled else 1e-4)
    assert inner.evaluate(dual).value == pytest.approx(truth[0], abs=tolerance)
    assert inner.evaluate(dual).slope == pytest.approx(truth[1], rel=0.05)
    assert diagnostics.effective_size > 0.2 * draws


def test_mahalanobis_cost_on_a_box_agrees_with_quadrature():
    rng = np.random.default_rng(8)
    samples = rng.uniform(0, 1, (3, 2))
    xi = wdro.UncertainParameter(2, samples=samples, support=Box(-0.2, 1.1))
    cost = Mahalanobis(precision=np.array([[2.0, 1.2], [1.2, 1.5]]))
    model = compiled(pieces_loss(cp.Variable(2), xi), cost=cost)
    compare_with_quadrature(
        model, {"lower": np.full(2, -0.2), "upper": np.full(2, 1.1)}, 2, draws=6000
    )


def test_frozen_and_pinned_coordinates_never_move():
    rng = np.random.default_rng(9)
    xi = wdro.UncertainParameter(
        3,
        samples=np.column_stack([rng.normal(size=(4, 2)), np.full(4, 0.5)]),
        support=Box([-9.0, -9.0, 0.5], [9.0, 9.0, 0.5]),
    )
    label = wdro.UncertainParameter((), samples=rng.choice([-1.0, 1.0], 4))
    x = cp.Variable(3)
    model = compiled(
        cp.logistic(-label * (x @ xi)), cost=SquaredEuclidean(weights={xi: 1.0, label: np.inf})
    )
    rule = tilted(model, 0.05, 0.3, 20)
    rule.refresh(np.ones(3), 0.5)
    rows = rule.draw(everything(model), Stream(0)).rows.reshape(4, 20, 4)
    parts = {p: rows[..., s] for p, s in model.joint.slices.items()}
    assert np.all(parts[label][..., 0] == label.samples[:, None])
    assert np.all(parts[xi][..., 2] == 0.5)
    assert np.all(parts[xi][..., :2].std(axis=1) > 0)
    inner = rule.slice(np.ones(3), everything(model), Stream(0))
    assert np.isfinite(inner.evaluate(0.5).value)


def test_everything_frozen_leaves_the_samples():
    xi = wdro.UncertainParameter(2, samples=np.array([[1.0, 2.0], [3.0, -1.0]]))
    model = compiled(cp.Variable(2) @ xi, cost=SquaredEuclidean(weights=np.inf))
    inner = tilted(model, 0.1, 0.3, 3).slice(np.ones(2), everything(model), Stream(0))
    assert inner.evaluate(1.0).value == pytest.approx(2.5)
    np.testing.assert_allclose(inner.gradient(1.0), [2.0, 0.5])


# ------------------------------------------------------------------ derivatives, streams, edges
def test_gradient_and_slope_are_derivatives_of_the_value_on_the_same_draws():
    model, _ = small_model(Box(-0.2, 1.1), None, 2, loss=logistic_loss)
    rule = tilted(model, 0.1, 0.4, 30)
    x, dual, h = np.array([0.8, -0.3]), 1.1, 1e-6
    rule.refresh(x, dual)

    def value(point, at):
        return rule.slice(point, everything(model), Stream(3)).evaluate(at).value

    inner = rule.slice(x, everything(model), Stream(3))
    numeric = [(value(x + h * e, dual) - value(x - h * e, dual)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(inner.gradient(dual), numeric, atol=1e-7)
    slope = (value(x, dual + h) - value(x, dual - h)) / (2 * h)
    assert inner.evaluate(dual).slope == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize(
    ("cost", "support"),
    [
        (SquaredEuclidean(), Box(-0.2, 1.1)),
        (SquaredEuclidean(), SUPPORTS["where"]),
        (Norm(2), None),
        (Norm(2), Box(-0.2, 1.1)),
        (Callable(walled), None),
        (Callable(walled), SUPPORTS["where"]),
    ],
)
def test_draws_depend_on_the_stream_and_the_sample_alone(cost, support):
    model, _ = small_model(support, cost, 2, count=6, loss=logistic_loss)
    rule = tilted(model, 0.1, 0.4, 7)
    rule.refresh(np.array([0.8, -0.3]), 1.1)
    whole = rule.draw(everything(model), Stream(5, 2))
    rows, ratio = whole.rows.reshape(6, 7, 2).copy(), np.array(whole.log_ratio)
    for batch in ([4], [3, 1], [0, 5, 2]):
        some = rule.draw(np.array(batch), Stream(5, 2))
        np.testing.assert_allclose(some.rows.reshape(-1, 7, 2), rows[batch], atol=1e-12)
        np.testing.assert_allclose(some.log_ratio, ratio[batch], atol=1e-9)
    other = rule.draw(everything(model), Stream(6, 2))
    assert not np.allclose(other.rows.reshape(6, 7, 2), rows)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_few_draws_and_one_sample(draws):
    for loss in (pieces_loss, logistic_loss):
        model, _ = small_model(None, None, 8, count=1, loss=loss)
        inner = at_point(tilted(model, 0.1, 0.2, draws), model, np.ones(8) / 4, 1.0)
        assert np.isfinite(inner.evaluate(1.0).value)
        assert inner.gradient(1.0).shape == (8,)


def test_single_draws_average_to_the_integral():
    """exp(phi/eps) is estimated without bias, also by one draw for each sample."""
    model, _ = small_model(None, None, 8, count=2, loss=logistic_loss)
    x, dual, epsilon = np.full(8, 0.2), 1.0, 0.3
    many = at_point(tilted(model, epsilon, 0.3, 20_000), model, x, dual)
    truth = np.exp(many.weights(dual)[1])
    for draws in (1, 3):
        rule = tilted(model, epsilon, 0.3, draws)
        rule.refresh(x, dual)
        found = [
            np.exp(rule.slice(x, everything(model), Stream(seed)).weights(dual)[1])
            for seed in range(400)
        ]
        error = np.std(found, axis=0) / np.sqrt(len(found))
        assert np.all(np.abs(np.mean(found, axis=0) - truth) < 5 * error + 1e-6 * truth)


def test_a_slice_without_refresh_adapts_itself():
    model, x, _, epsilon, sigma = logistic_model()
    rule = tilted(model, epsilon, sigma, 10)
    inner = rule.slice(x, everything(model), Stream(0))
    adapted = rule._at
    assert adapted is not None
    assert inner.diagnostics(adapted[1]).effective_size > 8
    again = rule.slice(x + 0.01, everything(model), Stream(0))
    assert rule._at is adapted
    np.testing.assert_array_equal(again.costs, inner.costs)


def test_refresh_changes_the_draws():
    model, x, dual, epsilon, sigma = logistic_model()
    rule = tilted(model, epsilon, sigma, 10)
    before = at_point(rule, model, x, dual).costs
    after = at_point(rule, model, x, 2 * dual).costs
    assert after.mean() < before.mean()


def test_proposals_found_for_each_chunk_are_the_stored_ones(monkeypatch):
    model, x, dual, epsilon, sigma = logistic_model()
    rule = tilted(model, epsilon, sigma, 10)
    stored = at_point(rule, model, x, dual)
    monkeypatch.setattr("wdro_model.objectives.integration.tilted.PROPOSAL_ENTRIES", 0)
    monkeypatch.setattr("wdro_model.objectives.integration.sampled.STORED_ENTRIES", 0)
    monkeypatch.setattr("wdro_model.objectives.integration.sampled.CHUNK_ENTRIES", 600)
    fresh = at_point(tilted(model, epsilon, sigma, 10), model, x, dual)
    assert fresh.evaluate(dual).value == pytest.approx(stored.evaluate(dual).value, rel=1e-3)
    np.testing.assert_allclose(fresh.gradient(dual), stored.gradient(dual), rtol=0.05, atol=1e-3)


def test_a_loss_that_ends_inside_the_space_is_looked_at_only_where_it_lives():
    """1 / (1/2 + <x, z>) on the orthant: the search must not leave it."""
    rng = np.random.default_rng(10)
    xi = wdro.UncertainParameter(2, samples=rng.uniform(0.5, 2, (4, 2)), support=Nonnegative())
    x = cp.Variable(2)
    model = compiled(cp.inv_pos(0.5 + x @ xi))
    point = np.array([1.0, 0.5])
    compare = brute_force(
        lambda z: 1 / (0.5 + z @ point),
        model.cost,
        model.joint.matrix,
        dual=0.5,
        epsilon=0.1,
        sigma=0.4,
        reach=4.0,
        lower=0.0,
        size=500,
    )
    inner = at_point(tilted(model, 0.1, 0.4, 4000), model, point, 0.5)
    assert inner.evaluate(0.5).value == pytest.approx(compare[0], abs=2e-3)


def test_a_function_without_data_gradients_is_refused():
    def only_decision(x, scenarios):
        ((variable, value),) = x.items()
        ((_, z),) = scenarios.items()
        return z @ value, lambda weights: {variable: weights @ z}

    xi = wdro.UncertainParameter(2, samples=np.ones((3, 2)))
    x = cp.Variable(2)
    model = compiled(wdro.CallableLoss(only_decision, [x], [xi]), variables=[x])
    assert "no gradient in the data" in (tilted_refusal(model) or "")
    assert tilted_refusal(logistic_model()[0]) is None


def test_a_support_that_is_never_hit_says_so():
    samples = np.zeros((1, 2))
    xi = wdro.UncertainParameter(
        2, samples=samples, support=Where(lambda z: np.abs(z).max(axis=-1) < 1e-9)
    )
    model = compiled(cp.Variable(2) @ xi)
    with pytest.raises(ValueError, match="fell into the support"):
        at_point(tilted(model, 0.1, 0.5, 5), model, np.ones(2), 1.0)


@settings(max_examples=60, deadline=None)
@given(
    a=st.floats(-60, 60),
    width=st.floats(1e-6, 80),
)
def test_scaled_mass_of_an_interval(a, width):
    b = a + width
    near = np.clip(0.0, a, b)
    # The integrand falls from the near end: substitute t = near +- u over the visible part.
    ends = [(near, b), (near, a)]
    total = 0.0
    for start, stop in ends:
        length = min(abs(stop - start), 40 / max(1.0, abs(near)) if near else 40.0)
        u = np.linspace(0, length, 200_001)
        sign = np.sign(stop - start)
        t = start + sign * u
        total += np.trapezoid(np.exp(0.5 * (near - t) * (near + t)), u)
    expected = np.log(total / np.sqrt(2 * np.pi))
    found = log_scaled_mass(np.array([a]), np.array([b]))[0]
    assert found == pytest.approx(expected, abs=1e-6)
