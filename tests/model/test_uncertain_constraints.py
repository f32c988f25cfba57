"""Uncertain constraints: against hand-written counterparts, brute force and their worst cases."""

import itertools

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.brute_force import corner_grid, cvar, worst_case_risk

DUAL = {1: "inf", 2: 2, np.inf: 1}


def market(seed=0, n=4, size=20):
    rng = np.random.default_rng(seed)
    data = rng.standard_t(5, size=(size, n)) * 0.2 + np.linspace(0.02, 0.12, n)
    x = cp.Variable(n, nonneg=True, name="x")
    return rng, data, x, wdro.UncertainParameter(n, "returns", samples=data)


def binding_limit(x, risk, ball, share=0.5):
    """A limit of a risk over the simplex between its least value and that of the best returns."""
    problem = wdro.Problem(cp.Minimize(risk), [cp.sum(x) == 1], ball)
    least = problem.solve()
    returns = problem.uncertain_parameters()[0].samples.mean(axis=0)
    return least + share * (problem.robust_value({x: np.eye(x.size)[returns.argmax()]}) - least)


# ------------------------------------------------------------------ hand-written programs
@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_expectation_and_cvar_on_norm_balls(p):
    _, data, x, returns = market(1)
    radius, level = 0.02, 0.8
    mean = data.mean(axis=0)
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(p))
    limit = binding_limit(x, wdro.cvar(-returns @ x, level), ball)
    constraints = [cp.sum(x) == 1, wdro.cvar(-returns @ x, level) <= limit]
    problem = wdro.Problem(cp.Minimize(-mean @ x), constraints, ball)
    t, dual = cp.Variable(), cp.norm(x, DUAL[p])
    tail = t + (cp.sum(cp.pos(-data @ x - t)) / len(data) + radius * dual) / (1 - level)
    by_hand = cp.Problem(cp.Minimize(-mean @ x), [cp.sum(x) == 1, tail <= limit])
    value = by_hand.solve(solver=cp.CLARABEL)
    assert by_hand.constraints[1].dual_value > 1e-3  # it binds
    assert problem.solve() == pytest.approx(value, abs=1e-6)
    assert float(constraints[1].dual_value) == pytest.approx(
        float(by_hand.constraints[1].dual_value), rel=1e-3
    )
    least = wdro.Problem(
        cp.Minimize(cp.sum_squares(x)),
        [cp.sum(x) == 1, wdro.expectation(returns @ x) >= 0.06],
        ball,
    )
    robust = mean @ x - radius * dual >= 0.06
    value = cp.Problem(cp.Minimize(cp.sum_squares(x)), [cp.sum(x) == 1, robust]).solve()
    assert least.solve() == pytest.approx(value, abs=1e-6)


def test_expectation_and_cvar_on_squared_balls():
    _, data, x, returns = market(2)
    radius, level = 0.003, 0.8
    mean, size = data.mean(axis=0), len(data)
    ball = wdro.WassersteinBall(radius)
    limit = binding_limit(x, wdro.cvar(-returns @ x, level), ball)
    problem = wdro.Problem(
        cp.Minimize(-mean @ x),
        [
            cp.sum(x) == 1,
            wdro.cvar(-returns @ x, level) <= limit,
            wdro.expectation(-returns @ x) <= 0.1,
        ],
        ball,
    )
    t, price, s = cp.Variable(), cp.Variable(nonneg=True), cp.Variable(size)
    shift = cp.quad_over_lin(x / (1 - level), 4 * price)
    by_hand = cp.Problem(
        cp.Minimize(-mean @ x),
        [
            cp.sum(x) == 1,
            s >= t,
            s >= t + (-data @ x - t) / (1 - level) + shift,
            price * radius + cp.sum(s) / size <= limit,
            -mean @ x + np.sqrt(radius) * cp.norm(x) <= 0.1,
        ],
    )
    assert problem.solve() == pytest.approx(by_hand.solve(solver=cp.CLARABEL), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_maximum_of_pieces_on_a_box(seed):
    rng, n, size = np.random.default_rng(seed), 3, 12
    data = rng.uniform(0.5, 2, size=(size, n))
    lower, upper = np.zeros(n), np.full(n, 3.0)
    demand = wdro.UncertainParameter(
        n, "demand", samples=data, support=wdro.supports.Box(lower, upper)
    )
    x, radius, limit = cp.Variable(n, nonneg=True), 0.2, 0.5
    short = cp.maximum(cp.sum(demand - x), demand[0] - x[0], 0)
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(1))
    prices = rng.uniform(1, 2, n)
    problem = wdro.Problem(cp.Minimize(prices @ x), [wdro.expectation(short) <= limit], ball)
    slopes = [np.ones(n), np.eye(n)[0], np.zeros(n)]
    offsets = [-cp.sum(x), -x[0], 0.0]
    price, s, program = cp.Variable(nonneg=True), cp.Variable(size), []
    for b, a in zip(slopes, offsets):
        up, down = cp.Variable((size, n), nonneg=True), cp.Variable((size, n), nonneg=True)
        room = cp.sum(cp.multiply(up, upper - data) + cp.multiply(down, data - lower), axis=1)
        program += [s >= a + data @ b + room, cp.abs(up - down - b[None]) <= price]
    by_hand = cp.Problem(
        cp.Minimize(prices @ x), [*program, price * radius + cp.sum(s) / size <= limit]
    )
    assert problem.solve() == pytest.approx(by_hand.solve(solver=cp.CLARABEL), abs=1e-6)


def test_a_vector_is_bounded_entry_by_entry():
    rng, n = np.random.default_rng(4), 3
    data = rng.uniform(0.5, 2, size=(15, n))
    demand = wdro.UncertainParameter(n, "demand", samples=data)
    x, ball = cp.Variable(n), wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    limits = np.array([0.1, 0.0, -0.2])
    bound = wdro.cvar(demand - x, 0.7) <= limits
    problem = wdro.Problem(cp.Minimize(cp.sum(x)), [bound], ball)
    expected = [cvar(data[:, i], 0.7) + 0.1 / 0.3 - limits[i] for i in range(n)]
    assert problem.solve() == pytest.approx(sum(expected), abs=1e-6)
    assert x.value == pytest.approx(expected, abs=1e-5)
    assert bound.dual_value == pytest.approx(np.ones(n), abs=1e-4)


PEERS = {
    (0, 1): (0.286161374998, 0.168986192820, 0.065437613560, 0.160070404670),
    (0, 2): (0.293617745386, 0.169688768160, 0.066236936246, 0.159654956807),
    (1, 1): (0.186926565192, 0.031954643090, 0.035121453230, 0.033590533954),
    (1, 2): (0.192605290530, 0.032892884096, 0.036382851449, 0.034058128834),
    (2, 1): (0.167206290204, 0.075919741134, 0.028270074185, 0.089692995742),
    (2, 2): (0.175044367587, 0.079547196418, 0.029197610316, 0.092035801664),
}
"""Limits and optimal values by RSOME 1.3.1 with ECOS, for a seed and a norm; PICOS 2.6.2 with
CVXOPT has the same for the Euclidean norm, up to 1e-9."""


@pytest.mark.parametrize(("seed", "p"), PEERS)
def test_what_other_libraries_find(seed, p):
    _, data, x, returns = market(seed, n=3, size=12)
    mean, ball = data.mean(axis=0), wdro.WassersteinBall(0.02, wdro.costs.Norm(p))
    first, best, second, other = PEERS[seed, p]
    tail = wdro.cvar(-returns @ x, 0.8) <= first
    problem = wdro.Problem(cp.Maximize(mean @ x), [cp.sum(x) == 1, tail], ball)
    assert problem.solve() == pytest.approx(best, abs=1e-6)
    pieces = cp.maximum(-returns @ x - 0.05, 0, 0.5 * (returns[0] - x[0]))
    constraints = [cp.sum(x) == 1, wdro.expectation(pieces) <= second]
    problem = wdro.Problem(cp.Maximize(mean @ x), constraints, ball)
    assert problem.solve() == pytest.approx(other, abs=1e-6)


# ------------------------------------------------------------------ brute force
@pytest.mark.parametrize("seed", range(4))
def test_the_best_decision_of_a_grid_is_no_better(seed):
    rng, n = np.random.default_rng(seed), 2
    data = rng.uniform(-1, 1, size=(5, n))
    lower, upper = np.full(n, -1.5), np.full(n, 2.0)
    xi = wdro.UncertainParameter(n, "xi", samples=data, support=wdro.supports.Box(lower, upper))
    x = cp.Variable(n)
    radius, levels = float(rng.uniform(0.05, 0.3)), rng.uniform(0.1, 0.9, 2)
    risk = (
        wdro.cvar(cp.maximum(xi[0] - x[0], 0.2 * xi[1]), levels[0])
        + 0.5 * wdro.cvar(xi[1] - x[1], levels[1])
        + wdro.expectation(cp.abs(xi[0]))
        + cp.square(x[0])
    )
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(1))
    grids = corner_grid(data, lower, upper)
    # |xi_0| has a kink of its own at 0: the gain along it is convex all the same.

    def by_force(point):
        return point[0] ** 2 + worst_case_risk(
            data,
            grids,
            lambda a, b: np.abs(a - b).sum(axis=1),
            radius,
            [
                (1.0, levels[0], lambda z: np.maximum(z[:, 0] - point[0], 0.2 * z[:, 1])),
                (0.5, levels[1], lambda z: z[:, 1] - point[1]),
            ],
            plain=lambda z: np.abs(z[:, 0]),
        )

    limit = by_force(np.array([0.3, 0.4]))
    constraint = risk <= limit
    problem = wdro.Problem(cp.Minimize(x[0] + x[1]), [constraint, x >= 0, x <= 2], ambiguity=ball)
    value = problem.solve()
    assert value <= 0.7 + 1e-6
    assert by_force(x.value) == pytest.approx(limit, abs=1e-6) or value <= 1e-6
    for point in itertools.product(np.linspace(0, 2, 9), repeat=2):
        if sum(point) < value - 1e-6:
            assert by_force(np.array(point)) > limit
    worst = problem.worst_case(constraint)
    assert worst.transport_cost <= radius * (1 + 1e-6)
    assert worst.expected_loss <= 1e-6
    if value > 1e-6:
        assert worst.expected_loss == pytest.approx(0.0, abs=1e-4)


def test_draws_from_the_worst_case_meet_the_constraint():
    rng, _, x, returns = market(5)
    ball = wdro.WassersteinBall(0.02, wdro.costs.Norm(2))
    limit = binding_limit(x, wdro.cvar(-returns @ x, 0.8), ball)
    bound = wdro.cvar(-returns @ x, 0.8) <= limit
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
    problem.solve()
    worst = problem.worst_case(bound)
    draws = rng.choice(len(worst.weights), size=1_000_000, p=worst.weights)
    losses = np.sort(-worst.scenarios[returns][draws] @ x.value)[::-1]
    tail = losses[:200_000]
    # Of a draw of a million the CVaR has a standard error that its own tail tells.
    error = np.sqrt(((losses - losses[199_999]).clip(0) / 0.2).var() / len(losses))
    assert tail.mean() <= limit + 4 * error
    assert tail.mean() >= limit - 4 * error - 1e-3
    likely = wdro.probability(returns @ x >= -limit) >= 0.8
    safe = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, likely], ball)
    safe.solve()
    worst = safe.worst_case(likely)
    draws = rng.choice(len(worst.weights), size=1_000_000, p=worst.weights)
    assert np.mean(worst.scenarios[returns][draws] @ x.value >= -limit - 1e-9) >= 0.8 - 2e-3


# ------------------------------------------------------------------ probabilities
def test_a_probability_is_bounded_by_its_cvar():
    _, _, x, returns = market(6)
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    objective = cp.Maximize(returns @ x)
    likely = wdro.probability(returns @ x >= -0.25) >= 0.8
    bound = wdro.cvar(-returns @ x - 0.25, 0.8) <= 0
    values = [wdro.Problem(objective, [cp.sum(x) == 1, c], ball).solve() for c in (likely, bound)]
    assert values[0] == pytest.approx(values[1], abs=1e-7)
    assert "CVaR" in str(likely)
    assert "safe" in wdro.Problem(objective, [cp.sum(x) == 1, likely], ball).explain()


def test_a_joint_probability_is_that_of_the_largest_excess():
    rng = np.random.default_rng(7)
    demand = wdro.UncertainParameter(2, samples=rng.uniform(0, 1, size=(10, 2)))
    x, ball = cp.Variable(2), wdro.WassersteinBall(0.05, wdro.costs.Norm(1))
    joint = wdro.Problem(cp.Minimize(cp.sum(x)), [wdro.probability(demand <= x) >= 0.7], ball)
    largest = wdro.cvar(cp.max(demand - x), 0.7) <= 0
    assert joint.solve() == pytest.approx(
        wdro.Problem(cp.Minimize(cp.sum(x)), [largest], ball).solve(), abs=1e-6
    )
    apart = wdro.Problem(
        cp.Minimize(cp.sum(x)),
        [wdro.probability(demand[i] <= x[i]) >= 0.7 for i in range(2)],
        ball,
    )
    assert apart.solve() < joint.value - 1e-3


# ------------------------------------------------------------------ balls, radii, samples
def test_erm_bounds_the_risk_on_the_samples():
    _, data, x, returns = market(8)
    ball = wdro.WassersteinBall(0.02, wdro.costs.Norm(2))
    bound = wdro.cvar(-returns @ x, 0.8) <= 0.15
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
    t, mean = cp.Variable(), data.mean(axis=0)
    tail = t + cp.sum(cp.pos(-data @ x - t)) / len(data) / 0.2
    value = cp.Problem(cp.Maximize(mean @ x), [cp.sum(x) == 1, tail <= 0.15]).solve()
    assert problem.solve("erm") == pytest.approx(value, abs=1e-6)
    assert problem.with_radius(0.0).solve() == pytest.approx(value, abs=1e-6)
    assert cvar(-data @ x.value, 0.8) <= 0.15 + 1e-6
    without = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound])
    assert without.solve() == pytest.approx(value, abs=1e-6)
    assert problem.solve() < value - 1e-4
    assert problem.solve("erm") == pytest.approx(value, abs=1e-6)


def test_a_constraint_may_have_a_ball_of_its_own():
    _, _, x, returns = market(9)
    balls = [wdro.WassersteinBall(r, wdro.costs.Norm(2)) for r in (0.02, 0.005)]
    limit = binding_limit(x, wdro.cvar(-returns @ x, 0.8), balls[0])
    wide = wdro.cvar(-returns @ x, 0.8, ambiguity=balls[0]) <= limit
    narrow = wdro.cvar(-returns @ x, 0.8) <= limit
    both = [
        wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, c], balls[1])
        for c in (wide, narrow)
    ]
    values = [problem.solve() for problem in both]
    assert values[0] < values[1] - 1e-5
    # Another radius of the problem leaves the other ball alone.
    moved = [problem.with_radius(0.02).solve() for problem in both]
    assert moved[0] == pytest.approx(moved[1], abs=1e-6)
    worst = both[0].worst_case(wide, decision={x: both[0].solution.decision[x]})
    assert worst.transport_cost == pytest.approx(0.02, rel=1e-5)


def test_a_radius_that_is_a_parameter():
    _, _, x, returns = market(10)
    radius = cp.Parameter(nonneg=True, value=0.02)
    bound = wdro.cvar(-returns @ x, 0.8) <= 0.3
    cost = wdro.costs.Norm(2)
    problem = wdro.Problem(
        cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], wdro.WassersteinBall(radius, cost)
    )
    for value in (0.02, 0.005, 0.0, 0.02):
        radius.value = value
        ball = wdro.WassersteinBall(value, cost)
        fixed = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
        assert problem.solve() == pytest.approx(fixed.solve(), abs=1e-6)


def test_units_of_the_data_do_not_matter():
    found = []
    for unit in (1.0, 1e6, 1e-5):
        _, data, x, _ = market(25)
        returns = wdro.UncertainParameter(4, "returns", samples=unit * data)
        ball = wdro.WassersteinBall(0.002 * unit, wdro.costs.Norm(2))
        limit = binding_limit(x, wdro.cvar(-returns @ x, 0.8), ball)
        bound = wdro.cvar(-returns @ x, 0.8) <= limit
        problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
        found.append([problem.solve() / unit, float(bound.dual_value), *x.value])
    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-3, abs=1e-5)


def test_limits_may_be_parameters_and_decisions():
    _, _, x, returns = market(11)
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    high, low = (binding_limit(x, wdro.cvar(-returns @ x, 0.8), ball, s) for s in (0.7, 0.3))
    limit, z = cp.Parameter(value=high), cp.Variable()
    problem = wdro.Problem(
        cp.Maximize(returns @ x), [cp.sum(x) == 1, wdro.cvar(-returns @ x, 0.8) <= limit], ball
    )
    first = problem.solve()
    limit.value = low
    second = problem.solve()
    assert second < first - 1e-5
    fixed = wdro.Problem(
        cp.Maximize(returns @ x), [cp.sum(x) == 1, wdro.cvar(-returns @ x, 0.8) <= low], ball
    )
    assert second == pytest.approx(fixed.solve(), abs=1e-6)
    # An epigraph variable: the objective is then certain, its worst case that of the constraint.
    risk = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball)
    epigraph = wdro.Problem(
        cp.Minimize(z), [cp.sum(x) == 1, wdro.cvar(-returns @ x, 0.8) <= z], ball
    )
    for method in ("exact", "erm"):
        assert epigraph.solve(method) == pytest.approx(risk.solve(method), abs=1e-6)


def test_other_samples_are_those_of_constraints_too():
    rng, _, x, returns = market(12)
    other = wdro.UncertainParameter(4, "loads", samples=rng.uniform(0, 1, size=(20, 4)))
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    constraints = [cp.sum(x) == 1, wdro.cvar(other @ x, 0.8) <= 0.8]
    problem = wdro.Problem(cp.Maximize(returns @ x), constraints, ball)
    assert {p.name() for p in problem.uncertain_parameters()} == {"returns", "loads"}
    problem.solve()
    fresh = {returns: rng.normal(size=(9, 4)), other: rng.uniform(0, 1, size=(9, 4))}
    twin = problem.with_samples(fresh)
    r, o = (wdro.UncertainParameter(4, samples=fresh[p]) for p in (returns, other))
    new = wdro.Problem(cp.Maximize(r @ x), [cp.sum(x) == 1, wdro.cvar(o @ x, 0.8) <= 0.8], ball)
    assert twin.solve() == pytest.approx(new.solve(), abs=1e-6)
    some = problem.with_samples(rows=[0, 3, 5, 7, 11])
    r, o = (
        wdro.UncertainParameter(4, samples=p.samples[[0, 3, 5, 7, 11]]) for p in (returns, other)
    )
    new = wdro.Problem(cp.Maximize(r @ x), [cp.sum(x) == 1, wdro.cvar(o @ x, 0.8) <= 0.8], ball)
    assert some.solve() == pytest.approx(new.solve(), abs=1e-6)
    with pytest.raises(ValueError, match="loads"):
        problem.with_samples({returns: fresh[returns]})


def test_weights_may_name_parameters_that_are_elsewhere():
    rng, _, x, returns = market(13)
    loads = wdro.UncertainParameter(4, "loads", samples=rng.uniform(0, 1, size=(20, 4)))
    bound = wdro.expectation(loads @ x) <= 0.55
    problem = wdro.Problem(
        cp.Maximize(returns @ x),
        [cp.sum(x) == 1, bound],
        wdro.WassersteinBall(0.01, wdro.costs.Norm(2, weights={returns: 2.0, loads: 4.0})),
    )
    mean, load = (p.samples.mean(axis=0) for p in (returns, loads))
    by_hand = cp.Problem(
        cp.Maximize(mean @ x - 0.01 / 2 * cp.norm(x)),
        [cp.sum(x) == 1, load @ x + 0.01 / 4 * cp.norm(x) <= 0.55],
    )
    assert problem.solve() == pytest.approx(by_hand.solve(), abs=1e-6)
    matrix = np.eye(8) + 0.5 * np.eye(8, k=4) + 0.5 * np.eye(8, k=-4)
    with pytest.raises(ValueError, match="loads"):
        wdro.Problem(
            cp.Maximize(returns @ x),
            [cp.sum(x) == 1, bound],
            wdro.WassersteinBall(0.01, wdro.costs.Mahalanobis(precision=matrix)),
        )


# ------------------------------------------------------------------ sets and solvers
def test_portfolio_with_costs_and_a_second_risk():
    """A CVaR portfolio with transaction costs, and a CVaR constraint on another loss."""
    rng, data, x, returns = market(14, n=5, size=30)
    drops = wdro.UncertainParameter(5, "drops", samples=rng.uniform(0, 0.3, size=(30, 5)))
    before, fees = np.full(5, 0.2), np.linspace(0.001, 0.005, 5)
    ball = wdro.WassersteinBall(0.005, wdro.costs.Norm(2))
    for boolean in (False, True):
        chosen = cp.Variable(5, boolean=True) if boolean else None
        subset = [wdro.In(chosen, wdro.sets.Subsets(5, k=3)), x <= chosen] if boolean else []
        problem = wdro.Problem(
            cp.Minimize(wdro.cvar(-returns @ x, 0.9) + fees @ cp.abs(x - before)),
            [cp.sum(x) == 1, wdro.cvar(drops @ x, 0.8) <= 0.24, *subset],
            ball,
        )
        value = problem.solve()
        assert problem.solution.method == "exact"
        t, s = cp.Variable(), cp.Variable()
        objective = t + (cp.sum(cp.pos(-data @ x - t)) / 30 + 0.005 * cp.norm(x)) / 0.1
        objective = objective + fees @ cp.abs(x - before)
        load = s + (cp.sum(cp.pos(drops.samples @ x - s)) / 30 + 0.005 * cp.norm(x)) / 0.2
        found = []
        for some in itertools.combinations(range(5), 3) if boolean else [range(5)]:
            rest = [i for i in range(5) if i not in some]
            held = [x[rest] == 0] if rest else []
            by_hand = cp.Problem(cp.Minimize(objective), [cp.sum(x) == 1, load <= 0.24, *held])
            by_hand.solve(solver=cp.CLARABEL)
            found.append(by_hand.value)
        assert value == pytest.approx(min(found), rel=1e-4 if boolean else 1e-6)
        if boolean:
            assert problem.solution.decision[chosen].round(6).sum() == 3


def test_smoothed_objectives_take_exact_constraints():
    _, _, x, returns = market(15)
    ball = wdro.WassersteinBall(0.02)
    bound = wdro.cvar(-returns @ x, 0.8) <= binding_limit(x, wdro.cvar(-returns @ x, 0.8), ball)
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
    exact = problem.solve("exact")
    smoothed = problem.solve("smoothed")
    assert problem.status == "optimal"
    assert problem.solution.robust_value == pytest.approx(exact, abs=1e-4)
    assert exact <= smoothed + 1e-9
    assert problem.worst_case(bound).expected_loss <= 1e-5
    assert bound.dual_value is None


def test_a_start_that_violates_them_is_refused():
    _, _, x, returns = market(27)
    ball = wdro.WassersteinBall(0.001)
    limit = binding_limit(x, wdro.cvar(-returns @ x, 0.8), ball)
    bound = wdro.cvar(-returns @ x, 0.8) <= limit
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
    best = np.eye(4)[returns.samples.mean(axis=0).argmax()]
    with pytest.raises(ValueError, match="outside the feasible set"):
        problem.solve("smoothed", start={x: best})
    problem.solve("exact")
    inside = 0.9 * problem.solution.decision[x] + 0.1 * least_risky(x, returns, ball)
    assert problem.solve("smoothed", start={x: inside}) == pytest.approx(problem.value)


def least_risky(x, returns, ball):
    wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball).solve()
    return x.value


def test_frank_wolfe_takes_them():
    _, _, x, returns = market(16)
    bound = wdro.expectation(cp.abs(returns @ x)) <= 0.12
    ball = wdro.WassersteinBall(0.001, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - 0.5)), [cp.sum(x) == 1, bound], ball)
    value = problem.solve()
    found = problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-5))
    assert found == pytest.approx(value, rel=1e-4)


def test_beside_an_oracle_on_other_variables():
    rng = np.random.default_rng(17)
    subsets = wdro.sets.Subsets(5, k=2)
    oracle = wdro.sets.Oracle(subsets.minimize, 5)
    costs = wdro.UncertainParameter(5, samples=rng.uniform(1, 2, size=(10, 5)))
    demand = wdro.UncertainParameter(samples=rng.uniform(1, 2, size=10), name="demand")
    x, y = cp.Variable(5, name="x"), cp.Variable(nonneg=True, name="y")
    enough = wdro.cvar(demand - y, 0.5) <= 0
    ball = wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(costs @ x + y), [wdro.In(x, oracle), enough, y <= 10], ball)
    value = problem.solve()
    apart = wdro.Problem(cp.Minimize(costs @ x), [wdro.In(x, subsets)], ball).solve()
    other = wdro.Problem(cp.Minimize(y), [enough], ball).solve()
    assert value == pytest.approx(apart + other, rel=1e-3)
    with pytest.raises(ValueError, match="known only through an oracle"):
        wdro.Problem(
            cp.Minimize(costs @ x),
            [wdro.In(x, oracle), wdro.expectation(costs @ x) <= 3],
            ball,
        )


def test_boolean_decisions_against_enumeration():
    rng, n = np.random.default_rng(18), 5
    data = rng.uniform(1, 3, size=(8, n))
    loads = wdro.UncertainParameter(n, "loads", samples=data)
    values = rng.uniform(1, 2, n)
    for cost, dual in ((wdro.costs.Norm(np.inf), 1), (wdro.costs.Norm(2), 2)):
        x = cp.Variable(n, boolean=True)
        ball = wdro.WassersteinBall(0.1, cost)
        bound = wdro.cvar(loads @ x, 0.7) <= 6.5
        problem = wdro.Problem(cp.Maximize(values @ x), [bound], ball)
        value = problem.solve()
        best = 0.0
        for choice in itertools.product([0, 1], repeat=n):
            point = np.array(choice)
            risk = cvar(data @ point, 0.7) + 0.1 * np.linalg.norm(point, dual) / 0.3
            best = max(best, values @ point) if risk <= 6.5 else best
        assert value == pytest.approx(best, abs=1e-5)


def test_one_boolean_variable_in_a_set_and_in_a_constraint():
    rng, n = np.random.default_rng(26), 5
    data = rng.normal(0.05, 0.2, size=(15, n))
    returns = wdro.UncertainParameter(n, "returns", samples=data)
    for cost, dual in ((wdro.costs.Norm(np.inf), 1), (wdro.costs.Norm(2), 2)):
        x = cp.Variable(n, boolean=True)
        points = [np.eye(n)[i] + np.eye(n)[j] for i in range(n) for j in range(i)]
        margins = [0.01 * np.linalg.norm(p, dual) for p in points]
        risks = [cvar(-data @ p, 0.8) + m / 0.2 for p, m in zip(points, margins)]
        limit = float(np.sort(risks)[5]) + 1e-3
        best = min(
            data.mean(axis=0) @ p + m for p, m, risk in zip(points, margins, risks) if risk <= limit
        )
        bound = wdro.cvar(-returns @ x, 0.8) <= limit
        member = wdro.In(x, wdro.sets.Subsets(n, k=2))
        ball = wdro.WassersteinBall(0.01, cost)
        problem = wdro.Problem(cp.Minimize(returns @ x), [member, bound], ball)
        assert problem.solve() == pytest.approx(best, abs=1e-5)
        searched = "search along one parameter" in problem.solution.solver
        assert ("search along one parameter" in problem.explain()) == searched


def test_cvxpy_problems_take_them():
    _, _, x, returns = market(19)
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    constraints = [cp.sum(x) == 1, wdro.cvar(-returns @ x, 0.8) <= 0.3]
    objective = cp.Maximize(returns @ x)
    value = cp.Problem(objective, constraints).solve(method="wdro", ambiguity=ball)
    assert value == pytest.approx(wdro.Problem(objective, constraints, ball).solve(), abs=1e-7)


# ------------------------------------------------------------------ judging
def test_evaluate_tells_the_constraints_on_the_scenarios():
    rng, _, x, returns = market(20)
    loads = wdro.UncertainParameter(4, "loads", samples=rng.uniform(0, 1, size=(20, 4)))
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    first = wdro.cvar(-returns @ x, 0.8) <= 0.35
    second = wdro.expectation(loads @ x) + 0.1 * cp.sum(x) <= 0.7
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, first, second], ball)
    problem.solve()
    test = {returns: rng.normal(size=(50, 4)), loads: rng.uniform(0, 1, size=(50, 4))}
    found = problem.evaluate(test)
    risk, mean = cvar(-test[returns] @ x.value, 0.8), (test[loads] @ x.value).mean() + 0.1
    values = [c.value for c in found.constraints]
    assert values == pytest.approx([risk, mean], abs=1e-6)
    assert [c.limit for c in found.constraints] == [0.35, 0.7]
    excesses = [c.excess for c in found.constraints]
    assert excesses == pytest.approx([risk - 0.35, mean - 0.7], abs=1e-6)
    assert [c.holds for c in found.constraints] == [risk <= 0.35, mean <= 0.7]
    assert [c.name for c in found.constraints] == [str(first), str(second)]
    assert "cvar" in str(found)
    assert problem.losses(test) == pytest.approx(test[returns] @ x.value)
    assert all(c.holds for c in problem.evaluate().constraints)
    report = wdro.compare(problem, ("erm", "exact"), test=test)
    assert [judged.name for judged in report.methods] == ["erm", "exact"]


def test_evaluate_tells_how_often_an_event_occurs():
    rng, _, x, returns = market(24)
    likely = wdro.probability(returns @ x >= -0.3) >= 0.7
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, likely])
    problem.solve()
    test = rng.normal(0, 0.4, size=(200, 4))
    [found] = problem.evaluate(test).constraints
    assert found.value == np.mean(test @ x.value >= -0.3)
    assert (found.limit, found.holds) == (0.7, found.value >= 0.7)


# ------------------------------------------------------------------ bad input
def test_a_ball_that_is_too_large_is_told():
    _, _, x, returns = market(21)
    bound = wdro.cvar(-returns @ x, 0.8) <= 0.2
    ball = wdro.WassersteinBall(5.0, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
    with pytest.raises(wdro.InfeasibleError, match="radius") as caught:
        problem.solve()
    assert "cvar(" in str(caught.value)
    assert "smaller" in str(caught.value)
    assert problem.solve("erm") > 0
    never = wdro.cvar(-returns @ x, 0.8) <= -10
    small = wdro.WassersteinBall(0.001, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, never], small)
    with pytest.raises(wdro.InfeasibleError, match="even on the samples"):
        problem.solve()


def test_a_ball_that_is_too_large_for_integers_is_told():
    data = np.random.default_rng(0).normal(size=(10, 3))
    xi = wdro.UncertainParameter(3, samples=data)
    x = cp.Variable(3, boolean=True)
    bound = wdro.cvar(xi @ x, 0.9) <= 1.5
    problem = wdro.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) == 2, bound], wdro.WassersteinBall(3))
    with pytest.raises(wdro.InfeasibleError, match="of the ball of radius 3") as caught:
        problem.solve()
    assert "each of them can be met" not in str(caught.value)


def refusals():
    _, _, x, returns = market(22)
    loss = -returns @ x
    ball = wdro.WassersteinBall(0.1)
    return {
        "bare": (loss <= 0.1, ValueError, r"cvar\("),
        "outside": (wdro.cvar(loss, 0.9) + returns[0] <= 0.1, ValueError, "outside"),
        "equality": (wdro.cvar(loss, 0.9) == 0.1, ValueError, "<="),
        "from below": (wdro.cvar(loss, 0.9) >= 0.1, ValueError, "convex"),
        "square": (cp.square(wdro.cvar(loss, 0.9)) <= 0.1, ValueError, "epigraph"),
        "cone": (
            cp.SOC(cp.Constant(1.0), cp.hstack([wdro.cvar(loss, 0.9), x[0]])),
            ValueError,
            "inequal",
        ),
        "two balls": (
            wdro.cvar(loss, 0.9, ambiguity=ball) + wdro.cvar(loss, 0.8) <= 1,
            ValueError,
            "ball",
        ),
        "no counterpart": (
            wdro.expectation(cp.exp(loss)) <= 2,
            wdro.NoReformulationError,
            "exp",
        ),
        "concave": (wdro.expectation(cp.sqrt(returns @ x + 10)) <= 2, Exception, "convex|sqrt"),
        "probability itself": (wdro.probability(loss <= 0.1), ValueError, ">= 0.9"),
    }


@pytest.mark.parametrize(
    "use",
    [
        cp.Maximize,
        lambda p: p + 0.1,
        lambda p: 1 - p,
        lambda p: 2 * p,
        lambda p: cp.Variable() + p,
        lambda p: -p,
    ],
)
def test_a_probability_is_no_term(use):
    _, _, x, returns = market(22)
    with pytest.raises(ValueError, match="stands alone in a constraint"):
        use(wdro.probability(returns @ x >= 0))


@pytest.mark.parametrize("case", refusals())
def test_what_cannot_be_bounded_is_refused_with_the_reason(case):
    constraint, kind, words = refusals()[case]
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    x = next(iter(constraint.variables())) if hasattr(constraint, "variables") else cp.Variable()
    with pytest.raises(kind, match=words):
        wdro.Problem(cp.Minimize(cp.sum_squares(x)), [constraint], ball)


def test_a_worst_case_of_a_stranger_is_refused():
    _, _, x, returns = market(23)
    ball = wdro.WassersteinBall(0.01)
    limit = binding_limit(x, wdro.cvar(-returns @ x, 0.8), ball)
    bound = wdro.cvar(-returns @ x, 0.8) <= limit
    problem = wdro.Problem(cp.Maximize(returns @ x), [cp.sum(x) == 1, bound], ball)
    problem.solve()
    with pytest.raises(ValueError, match="not one of the uncertain constraints"):
        problem.worst_case(wdro.cvar(-returns @ x, 0.8) <= 0.3)
    with pytest.raises(ValueError, match="not one of the uncertain constraints"):
        problem.worst_case(problem.constraints[0])
    assert problem.worst_case("exact").transport_cost <= 0.01 * (1 + 1e-6)


def test_probabilities_count_as_repeated_samples():
    _, data, _, _ = market(28, size=6)
    counts = np.array([1, 2, 1, 3, 1, 2])
    found = []
    for given in (
        {"samples": data, "probabilities": counts / counts.sum()},
        {"samples": np.repeat(data, counts, axis=0)},
    ):
        x = cp.Variable(4, nonneg=True, name="x")
        returns = wdro.UncertainParameter(4, "returns", **given)
        ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
        least = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball)
        limit = least.solve() + 0.05
        bound = wdro.cvar(-returns @ x, 0.8) <= limit
        likely = wdro.probability(returns @ x >= -0.6) >= 0.7
        problem = wdro.Problem(
            cp.Minimize(-returns @ x + wdro.cvar(-returns @ x, 0.5)),
            [cp.sum(x) == 1, bound, likely],
            ball,
        )
        for method in ("erm", "exact"):
            value = problem.solve(method)
            seen = problem.evaluate()
            numbers = [value, seen.risk, seen.mean, problem.worst_case().expected_loss]
            numbers += [c.value for c in seen.constraints]
            found.append([limit, *numbers, problem.worst_case(bound).expected_loss])
    assert found[0] == pytest.approx(found[2], abs=1e-6)
    assert found[1] == pytest.approx(found[3], abs=1e-5)
