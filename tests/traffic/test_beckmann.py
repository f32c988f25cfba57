"""Beckmann's objective and the system cost: values, gradients, convexity, structure, bad input."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import cvxpy as cp
import mpmath
import numpy as np
import pytest
from cvxpy.atoms.affine.affine_atom import AffAtom
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import wdro_model as wdro
from wdro_model.loss import BatchedLoss, affine_parts, convexity_in_data, degree
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import affine_forms
from wdro_model.traffic import beckmann, system_cost
from wdro_model.uncertainty.supports import Box, Nonnegative

pytestmark = pytest.mark.filterwarnings("error")

A = 4
CAPACITY = np.array([1.0, 2.0, 0.5, 1.5])
COSTS = {"beckmann": beckmann, "system_cost": system_cost}
x = cp.Variable(A, name="x")


# ------------------------------------------------------------------ an independent computation
def one_arc(name, flow, c, t, a, b):
    """The cost of an arc, by mpmath in 40 digits: exact limits at 0, no congestion below it."""
    with mpmath.workdps(40):
        flow, c, t, a, b = (mpmath.mpf(float(v)) for v in (flow, c, t, a, b))
        if flow <= 0:
            return t * flow
        if name == "beckmann":
            return t * (flow + a * c / (b + 1) * (flow / c) ** (b + 1))
        return t * flow * (1 + a * (flow / c) ** b)


def slow(name, flow, time, alpha, beta, capacity=CAPACITY):
    """The same summed over the arcs, in plain Python."""
    per_arc = [np.broadcast_to(v, A) for v in (capacity, time, alpha, beta)]
    return float(sum(one_arc(name, *arc) for arc in zip(flow, *per_arc)))


def slope(function, at):
    """A derivative in 40 digits."""
    with mpmath.workdps(40):
        return float(mpmath.diff(function, mpmath.mpf(float(at)), h=mpmath.mpf("1e-15")))


SHAPES = {"shared": (), "per arc": (A,)}
KINDS = list(product(SHAPES, ("certain", "parameter", "uncertain")))


def data(shape, kind, low, high, name, rng, batch=5):
    """An argument of some shape and kind, its value for CVXPY, and its scenarios (or None)."""
    values = rng.uniform(low, high, shape)
    if kind == "certain":
        return values, None
    if kind == "parameter":
        return cp.Parameter(shape, nonneg=True, value=values, name=name), None
    parameter = wdro.UncertainParameter(shape, support=Box(0.0, 10.0), name=name)
    return parameter, rng.uniform(low, high, (batch, *shape))


def scenario(argument, rows, k):
    """The number that scenario k gives to an argument."""
    if rows is not None:
        return rows[k]
    return argument.value if isinstance(argument, cp.Parameter) else argument


# ------------------------------------------------------------------ values and gradients
@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("shift", range(6))
@pytest.mark.parametrize("time", KINDS, ids=str)
def test_batches_of_every_mixture_of_arguments(name, time, shift):
    """Pairs of kinds of two arguments, against a loop over scenarios and arcs."""
    steps = shift, (0, 2, 4, 1, 3, 5)[shift]
    alpha, beta = (KINDS[(KINDS.index(time) + step) % 6] for step in steps)
    rng = np.random.default_rng(0)
    t, times = data(SHAPES[time[0]], time[1], 0.5, 2.0, "time", rng)
    a, alphas = data(SHAPES[alpha[0]], alpha[1], 0.1, 0.5, "alpha", rng)
    b, betas = data(SHAPES[beta[0]], beta[1], 0.0, 4.0, "beta", rng)
    given = {p: rows for p, rows in ((t, times), (a, alphas), (b, betas)) if rows is not None}
    loss = BatchedLoss(COSTS[name](x, CAPACITY, t, a, b))
    flow, weights = np.array([0.4, 1.3, 0.7, 2.2]), rng.normal(size=5 if given else 1)
    values, pullback = loss({x: flow}, given)
    of = [
        tuple(scenario(v, rows, k) for v, rows in ((t, times), (a, alphas), (b, betas)))
        for k in range(len(weights))
    ]
    np.testing.assert_allclose(values, [slow(name, flow, *d) for d in of], rtol=1e-13)
    h = 1e-6
    numeric = [
        sum(
            w * (slow(name, flow + h * e, *d) - slow(name, flow - h * e, *d)) / (2 * h)
            for w, d in zip(weights, of)
        )
        for e in np.eye(A)
    ]
    np.testing.assert_allclose(pullback(weights)[x], numeric, rtol=1e-7, atol=1e-8)
    rows = pullback.in_data(weights)
    for p in given:
        for index in np.ndindex(p.shape):
            up, down = ({q: r.copy() for q, r in given.items()} for _ in range(2))
            up[p][(slice(None), *index)] += h
            down[p][(slice(None), *index)] -= h
            difference = loss({x: flow}, up)[0] - loss({x: flow}, down)[0]
            found = rows[p][(slice(None), *index)]
            np.testing.assert_allclose(found, weights * difference / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", COSTS)
def test_gradients_in_forty_digits(name):
    """Every partial derivative of one arc, at flows from tiny to large."""
    time = wdro.UncertainParameter(1, support=Nonnegative(), name="t")
    alpha = wdro.UncertainParameter((), support=Nonnegative(), name="a")
    beta = wdro.UncertainParameter((), support=Nonnegative(), name="b")
    y = cp.Variable(1)
    loss = BatchedLoss(COSTS[name](y, 1.7, time, alpha, beta))
    for flow, t, a, b in product((1e-9, 0.4, 1.7, 30.0), (0.0, 2.5), (0.0, 0.15), (0.0, 0.3, 4.0)):
        given = {time: [[t]], alpha: [a], beta: [b]}
        values, pullback = loss({y: [flow]}, given)
        rows = pullback.in_data(np.ones(1))
        assert values[0] == pytest.approx(float(one_arc(name, flow, 1.7, t, a, b)), rel=1e-14)
        point = {"flow": flow, "t": t, "a": a, "b": b}
        found = {
            "flow": pullback(np.ones(1))[y][0],
            "t": rows[time][0, 0],
            "a": rows[alpha][0],
            "b": rows[beta][0],
        }
        for key, derivative in found.items():
            expected = slope(partial(_along, name, point, key), point[key])
            assert derivative == pytest.approx(expected, rel=1e-9, abs=1e-12)


def _along(name, point, key, value):
    """One arc of capacity 1.7 as an analytic function of one of its numbers; flows above zero."""
    p = {k: mpmath.mpf(v) for k, v in point.items()} | {key: value}
    share = p["b"] + 1 if name == "beckmann" else 1
    congested = mpmath.mpf(1.7) / share * (p["flow"] / mpmath.mpf(1.7)) ** (p["b"] + 1)
    return p["t"] * (p["flow"] + p["a"] * congested)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("tiny", [0.0, -1e-15, -0.0])
def test_no_flow(name, tiny):
    """Value 0; slope t in the flow, t (1 + alpha) without an exponent; all data slopes finite."""
    time = wdro.UncertainParameter(A, support=Nonnegative(), name="t")
    alpha = wdro.UncertainParameter((), support=Nonnegative(), name="a")
    beta = wdro.UncertainParameter((), support=Nonnegative(), name="b")
    loss = BatchedLoss(COSTS[name](x, CAPACITY, time, alpha, beta))
    times = np.array([[1.0, 2.0, 3.0, 0.0]] * 3)
    given = {time: times, alpha: [0.15, 0.15, 0.0], beta: [4.0, 0.0, 1e-3]}
    with np.errstate(all="raise", under="ignore"):
        values, pullback = loss({x: np.full(A, tiny)}, given)
        slopes = [pullback(weights)[x] for weights in np.eye(3)]
        rows = pullback.in_data(np.ones(3))
    np.testing.assert_allclose(values, 0.0, atol=1e-13)
    np.testing.assert_array_equal(slopes[0], times[0])
    np.testing.assert_allclose(slopes[1], 1.15 * times[1], rtol=1e-15)
    np.testing.assert_array_equal(slopes[2], times[2])
    for parameter in given:
        np.testing.assert_allclose(rows[parameter], 0.0, atol=1e-13)


def test_flows_below_zero_are_not_congested():
    beta = wdro.UncertainParameter((), support=Nonnegative(), name="b")
    loss = BatchedLoss(beckmann(x, CAPACITY, 2.0, 0.15, beta))
    values, pullback = loss({x: np.array([-3.0, -1e-3, 0.0, 1.5])}, {beta: [0.0, 4.0]})
    expected = 2 * (-1.501 + 1.5 * 0.15 * np.array([1.0, 0.2]))
    np.testing.assert_allclose(values, expected, rtol=1e-14)
    np.testing.assert_allclose(pullback(np.array([1.0, 0.0]))[x], [2, 2, 2.3, 2.3])
    np.testing.assert_allclose(pullback(np.array([0.0, 1.0]))[x], [2, 2, 2, 2.3])


def test_an_overflow_is_refused_by_name():
    beta = wdro.UncertainParameter((), samples=[1.0], support=Box(0.0, 1e4), name="b")
    y = cp.Variable(1)
    problem = wdro.Problem(cp.Minimize(beckmann(y, 1.0, 1.0, 0.1, beta)), [y >= 0, y <= 9])
    with pytest.raises(FloatingPointError, match="the loss is inf at scenario 0"):
        problem._model.loss(np.array([9.0]), np.array([[1e4]]))


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("beta", ["number", "uncertain"])
def test_flows_may_depend_on_the_data(name, beta):
    """A shift of the flows that is uncertain too."""
    rng = np.random.default_rng(2)
    shift = wdro.UncertainParameter(A, name="shift")
    power = wdro.UncertainParameter((), support=Nonnegative(), name="b")
    rows, powers = rng.uniform(-0.5, 0.5, (6, A)), rng.uniform(0.5, 4, 6)
    if beta == "number":
        power, powers = 2.5, np.full(6, 2.5)
    loss = BatchedLoss(COSTS[name](x + shift, CAPACITY, 1.3, 0.15, power))
    given = {shift: rows} if beta == "number" else {shift: rows, power: powers}
    flow = rng.uniform(0, 1, A)
    values, pullback = loss({x: flow}, given)
    expected = [slow(name, flow + r, 1.3, 0.15, b) for r, b in zip(rows, powers)]
    np.testing.assert_allclose(values, expected, rtol=1e-13)
    in_data, total = pullback.in_data(np.ones(6))[shift], pullback(np.ones(6))[x]
    np.testing.assert_allclose(in_data.sum(axis=0), total, rtol=1e-12)
    h = 1e-6
    for e in np.eye(A):
        ends = [
            [slow(name, flow + r + s * h * e, 1.3, 0.15, b) for r, b in zip(rows, powers)]
            for s in (1, -1)
        ]
        np.testing.assert_allclose(in_data @ e, np.subtract(*ends) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("name", COSTS)
def test_cvxpy_evaluates_and_differentiates_the_atom(name):
    beta = cp.Parameter(A, nonneg=True, value=[4.0, 0.0, 1.0, 2.5])
    expression = COSTS[name](2 * x, CAPACITY, 1.2, 0.15, beta)
    flow = np.array([0.3, 0.0, 1.0, 2.0])
    x.value = flow
    assert expression.value == pytest.approx(slow(name, 2 * flow, 1.2, 0.15, beta.value))
    h = 1e-7
    numeric = [
        (slow(name, 2 * (flow + h * e), 1.2, 0.15, beta.value) - expression.value) / h
        for e in np.eye(A)
    ]
    np.testing.assert_allclose(expression.grad[x].toarray().ravel(), numeric, rtol=1e-5)


# ------------------------------------------------------------------ certain data
@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("beta", [4.0, 0.0, 1.0, 2.37, np.array([4.0, 0.0, 4.0, 1.0])], ids=str)
def test_conic_solvers_take_certain_data(name, beta):
    time, alpha = np.array([1.0, 2.0, 0.0, 1.5]), np.array([0.15, 1.0, 0.15, 0.0])
    expression = COSTS[name](x, CAPACITY, time, alpha, beta)
    problem = cp.Problem(cp.Minimize(expression), [cp.sum(x) == 3, x >= 0, x[2] <= 0.4])
    value = problem.solve(solver=cp.CLARABEL)
    found = minimize(
        lambda v: slow(name, v, time, alpha, beta),
        np.full(A, 0.4),
        bounds=[(0, None), (0, None), (0, 0.4), (0, None)],
        constraints={"type": "eq", "fun": lambda v: v.sum() - 3},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert value == pytest.approx(found.fun, rel=1e-6)


def test_a_parameter_as_exponent_is_solved_at_its_value():
    beta = cp.Parameter(nonneg=True, value=4.0)
    constraints = [cp.sum(x) == 3, x >= 0]
    numbers = cp.Problem(cp.Minimize(beckmann(x, CAPACITY, 1.0, 0.15, 4.0)), constraints)
    problem = wdro.Problem(cp.Minimize(beckmann(x, CAPACITY, 1.0, 0.15, beta)), constraints)
    found = problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-7))
    assert found == pytest.approx(numbers.solve(solver=cp.CLARABEL), rel=1e-6)
    beta.value = 1.0
    numbers = cp.Problem(cp.Minimize(beckmann(x, CAPACITY, 1.0, 0.15, 1.0)), constraints)
    found = problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-7))
    assert found == pytest.approx(numbers.solve(solver=cp.CLARABEL), rel=1e-6)


def test_multipliers_far_from_one_do_not_upset_a_conic_solver():
    """Public networks write 10 x as 1e-8 (1 + 1e9 x), and (x/1)^17 with alpha = 1e-70."""
    linear = beckmann(x, 1.0, 1e-8, 1e9, 1.0)
    steep = beckmann(x, 1.0, 1.0, 0.15 * 1e-70, 17.0)
    flow = np.array([1.0, 2.0, 3.0, 0.0])
    x.value = flow
    assert linear.value == pytest.approx(slow("beckmann", flow, 1e-8, 1e9, 1.0, 1.0))
    x.value = 1e4 * flow
    assert steep.value == pytest.approx(slow("beckmann", 1e4 * flow, 1, 1.5e-71, 17.0, 1.0))
    problem = cp.Problem(cp.Minimize(steep), [cp.sum(x) == 6e4, x >= 0])
    assert problem.solve(solver=cp.CLARABEL) == pytest.approx(
        slow("beckmann", np.full(A, 1.5e4), 1, 1.5e-71, 17.0, 1.0), rel=1e-5
    )


def test_numbers_as_exponents_leave_nothing_but_cvxpys_nonlinear_atoms():
    time = wdro.UncertainParameter(A, support=Nonnegative(), name="t")
    for loss in (
        beckmann(x, CAPACITY, 1.0, 0.15, 4.0),
        beckmann(x, CAPACITY, time, 0.15, [4.0, 1.0, 4.0, 2.5]),
    ):
        assert all(a.__module__.startswith("cvxpy") or issubclass(a, AffAtom) for a in loss.atoms())


@pytest.mark.parametrize("name", COSTS)
def test_many_exponents_are_one_power_of_vectors(name):
    """Values and gradients as for each exponent alone, and a tree that CVXPY evaluates alike."""
    rng = np.random.default_rng(3)
    many, count = cp.Variable(60), 60
    beta = np.append(rng.uniform(0, 6, count - 2), [0.0, 1.0])
    capacity, flow = rng.uniform(1, 2, count), np.append(rng.uniform(-1, 4, count - 1), 0.0)
    loss = COSTS[name](many, capacity, 1.0, 0.15, beta)
    with np.errstate(all="raise", under="ignore"):
        values, pullback = BatchedLoss(loss)({many: flow}, {})
        gradient = pullback(np.ones(1))[many]
    many.value = flow
    assert values[0] == pytest.approx(loss.value, rel=1e-12)
    one = cp.Variable(1)
    for i in range(count):
        single = BatchedLoss(COSTS[name](one, capacity[i], 1.0, 0.15, float(beta[i])))
        assert gradient[i] == pytest.approx(
            single({one: flow[i : i + 1]}, {})[1](np.ones(1))[one][0], rel=1e-12
        )


# ------------------------------------------------------------------ convexity
def uncertain(shape, name, support=None):
    return wdro.UncertainParameter(shape, name, support=support)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("shape", [(), (A,)], ids=str)
def test_convex_in_the_flows_where_signs_are_known(name, shape):
    cost, box = COSTS[name], Box(0.0, 5.0)
    t, a, b = (uncertain(shape, n, box) for n in "tab")
    anything = uncertain(shape, "any")
    for loss in (cost(x, CAPACITY, t, a, b), cost(x, CAPACITY, t, a, 4.0), cost(x, 1.0, 1, 1, b)):
        assert loss.is_convex()
        assert not loss.is_concave()
        assert not loss.is_nonneg()
    assert cost(cp.Variable(A, nonneg=True), CAPACITY, t, a, b).is_nonneg()
    assert not cost(x, CAPACITY, anything, a, b).is_convex()
    assert not cost(x, CAPACITY, t, anything, b).is_convex()
    assert not cost(x, CAPACITY, t, a, anything).is_convex()
    falling = uncertain(shape, "falling", Box(-2.0, 0.0))
    assert cost(x, CAPACITY, falling, a, b).is_concave()


def test_composition_follows_the_monotonicity():
    t, a, b = (uncertain((), n, Box(0.0, 5.0)) for n in "tab")
    assert beckmann(cp.square(x), CAPACITY, t, a, b).is_convex()
    assert not beckmann(cp.sqrt(x), CAPACITY, t, a, b).is_convex()
    assert beckmann(cp.sqrt(x), CAPACITY, uncertain((), "f", Box(-1.0, 0.0)), a, b).is_convex() is (
        False
    )


@pytest.mark.parametrize("name", COSTS)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_midpoints_lie_below_chords(name, seed):
    rng = np.random.default_rng(seed)
    beta = wdro.UncertainParameter(A, support=Nonnegative(), name="b")
    loss = BatchedLoss(COSTS[name](x, CAPACITY, rng.uniform(0, 2, A), rng.uniform(0, 2), beta))
    exponents = {beta: rng.uniform(0, 6, (20, A)) * (rng.uniform(size=(20, A)) < 0.8)}
    u, v = rng.uniform(-2, 4, (2, A))
    ends = (loss({x: u}, exponents)[0] + loss({x: v}, exponents)[0]) / 2
    far, (middle, pullback) = loss({x: v}, exponents)[0], loss({x: (u + v) / 2}, exponents)
    assert np.all(middle <= ends + 1e-9 * (1 + np.abs(ends)))
    # A gradient is a subgradient: the tangent lies below.
    slopes = np.array([pullback(weights)[x] for weights in np.eye(20)])
    assert np.all(middle + slopes @ (v - u) / 2 <= far + 1e-9 * (1 + np.abs(far)))


# ------------------------------------------------------------------ structure
def parameters(time=(A,), alpha=(), beta=()):
    return tuple(
        uncertain(shape, name, Box(0.0, 5.0))
        for shape, name in ((time, "t"), (alpha, "a"), (beta, "b"))
    )


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("beta", ["atom", "number"])
def test_affine_in_time_and_in_alpha_bilinear_in_both(name, beta):
    t, a, b = parameters()
    loss = COSTS[name](x, CAPACITY, 1.0 + t, 2 * a, b if beta == "atom" else 3.0)
    assert degree(loss, (t,)) == 1
    assert degree(loss, (a,)) == 1
    assert degree(loss, (t, a)) == 2
    assert degree(loss, ()) == 0
    if beta == "atom":
        assert math.isinf(degree(loss, (b,)))
    assert math.isinf(degree(COSTS[name](x + t, CAPACITY, 1.0, a, 2 + b), (t,)))


@pytest.mark.parametrize("shape", [(), (A,)], ids=str)
@pytest.mark.parametrize("moving", ["t", "a"])
def test_affine_parts_add_up(shape, moving):
    t, a, _ = parameters(shape, shape, shape)
    exponent = cp.Parameter(shape, nonneg=True, value=np.full(shape, 3.5))
    loss = beckmann(x, CAPACITY, 1 + t, 0.5 + 2 * a, exponent)
    chosen = t if moving == "t" else a
    parts = affine_parts(loss, (chosen,))
    rng = np.random.default_rng(0)
    x.value = rng.uniform(0, 2, A)
    for p in (t, a):
        p.save_value(rng.uniform(0, 1, shape))
    total = parts.constant.value + np.sum(parts.slopes[chosen].value * chosen.value)
    assert total == pytest.approx(loss.value, rel=1e-12)
    for p in (t, a):
        p.save_value(None)
    assert parts.slopes[t].is_convex() if moving == "t" else parts.slopes[a].shape == shape


def test_convexity_in_the_data():
    t, a, b = parameters()
    assert convexity_in_data(beckmann(x, CAPACITY, t, 0.15, 2.0), (t,)) == "affine"
    assert convexity_in_data(beckmann(x, CAPACITY, 1.0, 0.15, b), (b,)) == "convex"
    assert convexity_in_data(beckmann(x, CAPACITY, t, a, b), (t, a, b)) == "unknown"
    assert convexity_in_data(beckmann(x, CAPACITY, t, a, b), (t,)) == "affine"


def test_data_put_in_gives_expressions_of_cvxpy():
    t, a, b = parameters()
    loss = cp.pos(system_cost(x, CAPACITY, t, a, b) - 1)
    fixed = substitute(loss, {t: np.ones(A), a: np.array(0.15), b: np.array(4.0)})
    x.value = np.array([0.5, 1.0, 0.2, 0.3])
    assert fixed.value == pytest.approx(slow("system_cost", x.value, 1.0, 0.15, 4.0) - 1)
    assert all(atom.__module__.startswith("cvxpy") for atom in fixed.atoms())
    forms = affine_forms(loss, (t,))
    assert [form.expression.shape for form in forms.forms] == [()]
    assert degree(forms.outer, forms.placeholders) == math.inf
    moving = affine_forms(loss, (t, a, b))
    assert len(moving.forms) == 3


# ------------------------------------------------------------------ problems
def flow_problem(time, alpha, beta, radius=0.05, cost=beckmann, **options):
    y = cp.Variable(A, name="y")
    return wdro.Problem(
        cp.Minimize(cost(y, CAPACITY, time, alpha, beta)),
        [cp.sum(y) == 4, y >= 0],
        ambiguity=wdro.WassersteinBall(radius, **options),
    )


def samples(shape, low, high, count=12, seed=0):
    return np.random.default_rng(seed).uniform(low, high, (count, *shape))


@pytest.mark.parametrize("support", [None, Box(0.2, 2.0)], ids=["everywhere", "box"])
@pytest.mark.parametrize("beta", [4.0, [4.0, 1.0, 4.0, 0.0]], ids=["one", "several"])
def test_uncertain_times_have_an_exact_counterpart(support, beta):
    rows = samples((A,), 0.5, 1.5)
    time = wdro.UncertainParameter(A, "time", samples=rows, support=support)
    problem = flow_problem(time, 0.15, beta)
    problem = wdro.Problem(
        problem.objective, problem.constraints, problem.ambiguity, assume_convex=True
    )
    assert "affine in the data (time)" in str(problem.explain())
    assert "sqrt(radius) * |B(x)|" in str(problem.explain(method="exact"))
    assert "closed_form" in str(problem.explain(method="smoothed"))
    value = problem.solve(method="exact", solver=wdro.solvers.FrankWolfe(gap=1e-7))

    def worst(flow):
        """mean <t, B> + sup { <d, B> : mean |d|^2 <= radius, t + d in the box }, by bisection."""
        per_arc = np.array(
            [
                float(one_arc("beckmann", v, c, 1.0, 0.15, b))
                for v, c, b in zip(flow, CAPACITY, np.broadcast_to(beta, A))
            ]
        )
        high = np.inf if support is None else 2.0
        least, most = 1e-9, 1e9
        for _ in range(200):
            dual = np.sqrt(least * most)
            moves = np.minimum(per_arc / (2 * dual), high - rows)
            if (moves**2).sum(axis=1).mean() > 0.05:
                least = dual
            else:
                most = dual
        return float(((rows + moves) @ per_arc).mean())

    found = minimize(
        worst,
        np.ones(A),
        bounds=[(0, None)] * A,
        constraints={"type": "eq", "fun": lambda v: v.sum() - 4},
        options={"ftol": 1e-12, "maxiter": 400},
    )
    assert value == pytest.approx(found.fun, rel=1e-5)


def test_times_and_a_shared_alpha_are_integrated_conditionally():
    time = wdro.UncertainParameter(A, "time", samples=samples((A,), 0.5, 1.5), support=Box(0, 3))
    alpha = wdro.UncertainParameter((), "alpha", samples=samples((), 0.1, 0.4), support=Box(0, 1))
    explained = str(flow_problem(time, alpha, 4.0).explain(method="smoothed"))
    assert "polynomial of degree 2" in explained
    assert "integration  conditional" in explained


def three_parameters(count=12):
    return (
        wdro.UncertainParameter(
            A, "time", samples=samples((A,), 0.5, 1.5, count), support=Box(0.1, 3)
        ),
        wdro.UncertainParameter(
            (), "alpha", samples=samples((), 0.1, 0.4, count), support=Box(0.01, 1)
        ),
        wdro.UncertainParameter((), "beta", samples=samples((), 2, 4, count), support=Box(0.5, 5)),
    )


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_all_three_uncertain_are_convex_and_conditional(cost):
    """No warning that convexity is not known: warnings are errors here."""
    time, alpha, beta = three_parameters()
    problem = flow_problem(time, alpha, beta, cost=cost)
    explained = str(problem.explain(method="smoothed"))
    assert "convex in the decision, of unknown curvature in the data" in explained
    assert "integration  conditional" in explained
    value = problem.solve(method="smoothed", solver=wdro.solvers.FrankWolfe(gap=1e-4))
    assert problem.status == "optimal"
    assert problem.solution.convex
    assert "exact over time (4 coordinates)" in problem.solution.integration
    assert value > problem.solution.empirical_value


def test_the_atom_and_ordinary_atoms_have_the_same_smoothed_solution():
    time, alpha, beta = three_parameters()
    y = cp.Variable(A, name="y")
    written = time @ (y + alpha * cp.multiply(y, cp.power(y / CAPACITY, beta)) / (beta + 1))
    ordinary = wdro.Problem(
        cp.Minimize(written),
        [cp.sum(y) == 4, y >= 0],
        ambiguity=wdro.WassersteinBall(0.05),
        assume_convex=True,
    )
    settings = {"method": "smoothed", "solver": wdro.solvers.FrankWolfe(gap=1e-6)}
    problem = flow_problem(time, alpha, beta)
    assert problem.solve(**settings) == pytest.approx(ordinary.solve(**settings), rel=1e-6)
    (flow,), (other,) = problem.solution.decision.values(), ordinary.solution.decision.values()
    np.testing.assert_allclose(flow, other, atol=2e-2)


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": cp.Variable((A, 1))}, r"flows x of shape \(A,\).*got shape \(4, 1\)"),
        ({"x": cp.Variable()}, r"one entry per arc, got shape \(\); x = cp.Variable\(A\) fits"),
        ({"x": None}, r"x of \w+ must be numbers or an expression, got None"),
        ({"capacity": np.ones(3)}, r"capacity of \w+ .* have shape \(4,\).*got shape \(3,\)"),
        ({"time": np.ones((A, 1))}, r"time of \w+ must be one number.*got shape \(4, 1\)"),
        ({"capacity": [1, 2, 0, 1]}, r"finite and > 0, got 0.0 at arc 2"),
        ({"capacity": -1.0}, r"capacity of \w+ must be finite and > 0, got -1.0\."),
        ({"capacity": [1, np.nan, 1, 1]}, r"got nan at arc 1"),
        ({"alpha": [0.1, 0.1, 0.1, -0.2]}, r"alpha .*finite and >= 0, got -0.2 at arc 3"),
        ({"beta": -1}, r"beta of \w+ must be finite and >= 0, got -1.0\."),
        ({"time": [1, 2, 3, np.inf]}, r"time .*got inf at arc 3"),
        ({"time": [1, -2, 3, 1]}, r"time .*got -2.0 at arc 1"),
        ({"alpha": 1j}, r"alpha of \w+ must be real"),
        ({"beta": "4"}, r"beta of \w+ must be numbers or an expression, got '4'"),
        ({"beta": object()}, r"beta of \w+ must be numbers or an expression, got object"),
        ({"time": cp.Variable(A, name="v")}, r"time .*must not depend on decision.*'v'"),
        (
            {"capacity": wdro.UncertainParameter(A, "room")},
            r"capacity .*must be certain.*'room'; let alpha carry",
        ),
        ({"capacity": cp.Parameter(A, pos=True)}, r"capacity .*needs a value"),
        (
            {"beta": cp.Parameter(value=-2.0)},
            r"beta of \w+ must be finite and >= 0, got -2.0",
        ),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else given,
)
def test_wrong_arguments_are_refused(cost, change, message):
    arguments = {"x": x, "capacity": CAPACITY, "time": 1.0, "alpha": 0.15, "beta": 4.0} | change
    with pytest.raises(ValueError, match=message):
        cost(**arguments)
