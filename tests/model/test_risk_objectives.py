"""Risk measures in the objective: against hand-written programs and brute force."""

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.brute_force import corner_grid, cvar, worst_case_risk

COSTS = {
    "squared": wdro.costs.SquaredEuclidean(),
    "l1": wdro.costs.Norm(1),
    "l2": wdro.costs.Norm(2),
    "linf": wdro.costs.Norm(np.inf),
}


def portfolio(seed=0, n=4, size=20):
    rng = np.random.default_rng(seed)
    data = rng.standard_t(4, size=(size, n)) * 0.3 + np.linspace(0.02, 0.1, n)
    x = cp.Variable(n, nonneg=True, name="x")
    return rng, data, x, wdro.UncertainParameter(n, "returns", samples=data)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("level", [0.0, 0.5, 0.9])
def test_cvar_is_the_program_with_its_threshold_written_out(cost, level):
    _, _, x, returns = portfolio(1)
    ball = wdro.WassersteinBall(0.02, COSTS[cost])
    problem = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, level)), [cp.sum(x) == 1], ball)
    t = cp.Variable()
    loss = t + cp.pos(-returns @ x - t) / (1 - level) if level else -returns @ x
    by_hand = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
    for method in ("erm", "exact"):
        assert problem.solve(method) == pytest.approx(by_hand.solve(method), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_mean_and_cvars_against_brute_force(seed):
    rng, n = np.random.default_rng(seed), 2
    data = rng.uniform(-1, 1, size=(6, n))
    lower, upper = np.full(n, -1.5), np.full(n, 2.0)
    xi = wdro.UncertainParameter(n, "xi", samples=data, support=wdro.supports.Box(lower, upper))
    x = cp.Variable(n, nonneg=True)
    fees, before = rng.uniform(0, 0.1, n), np.array([0.7, 0.3])
    weights, levels = rng.uniform(0.2, 2.0, 2), rng.uniform(0.1, 0.9, 2)
    objective = (
        xi @ x
        + weights[0] * wdro.cvar(-xi @ x, levels[0])
        + fees @ cp.abs(x - before)
        + weights[1] * wdro.cvar(cp.maximum(xi[0] - x[0], 0.3, -xi[1]), levels[1])
    )
    radius = float(rng.uniform(0.05, 0.5))
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(objective), [cp.sum(x) == 1], ball)
    grids = corner_grid(data, lower, upper)

    def by_force(point):
        found = worst_case_risk(
            data,
            grids,
            lambda a, b: np.abs(a - b).sum(axis=1),
            radius,
            [
                (weights[0], levels[0], lambda z: -z @ point),
                (
                    weights[1],
                    levels[1],
                    lambda z: np.max([z[:, 0] - point[0], np.full(len(z), 0.3), -z[:, 1]], axis=0),
                ),
            ],
            plain=lambda z: z @ point,
        )
        return found + fees @ np.abs(point - before)

    value = problem.solve("exact")
    assert value == pytest.approx(by_force(x.value), abs=1e-6)
    for share in np.linspace(0, 1, 21):
        point = np.array([share, 1 - share])
        assert by_force(point) >= value - 1e-6
        assert problem.robust_value({x: point}) == pytest.approx(by_force(point), abs=1e-6)


def test_rewards_are_maximised_with_their_risk():
    _, _, x, returns = portfolio(2)
    ball = wdro.WassersteinBall(0.02, wdro.costs.Norm(2))
    reward = wdro.expectation(returns @ x) - 2 * wdro.cvar(-returns @ x, 0.9)
    problem = wdro.Problem(cp.Maximize(reward), [cp.sum(x) == 1], ball)
    loss = -returns @ x + 2 * wdro.cvar(-returns @ x, 0.9)
    twin = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
    assert problem.solve() == pytest.approx(-twin.solve(), abs=1e-6)
    test = np.random.default_rng(0).normal(size=(50, 4))
    assert problem.evaluate(test).risk == pytest.approx(-twin.evaluate(test).risk)
    assert problem.losses(test) == pytest.approx(3 * (test @ twin._decision()[:4]), abs=1e-4)


def test_a_vector_of_cvars_is_summed_entry_by_entry():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(15, 3))
    demand = wdro.UncertainParameter(3, "demand", samples=data)
    x = cp.Variable(3)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    prices = np.array([1.0, 2.0, 0.5])
    objective = cp.sum_squares(x) + prices @ wdro.cvar(demand - x, 0.8)
    problem = wdro.Problem(cp.Minimize(objective), ambiguity=ball)
    t = cp.Variable(3)
    by_hand = cp.sum_squares(x) + prices @ (t + cp.pos(demand - x - t) / 0.2)
    twin = wdro.Problem(cp.Minimize(by_hand), ambiguity=ball)
    assert problem.solve() == pytest.approx(twin.solve(), rel=1e-5)


# ------------------------------------------------------------------ judging
def test_losses_are_of_the_loss_and_the_risk_is_its_cvar():
    rng, _, x, returns = portfolio(4)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball)
    problem.solve()
    test = rng.normal(size=(37, 4))
    assert problem.losses(test) == pytest.approx(-test @ x.value)
    statistics = problem.evaluate(test)
    assert statistics.mean == pytest.approx(-(test @ x.value).mean())
    assert statistics.risk == pytest.approx(cvar(-test @ x.value, 0.8), abs=1e-8)
    assert "risk" in str(statistics)
    on_samples = problem.evaluate().risk
    assert problem.solution.empirical_value == pytest.approx(on_samples, abs=1e-6) or (
        problem.solution.empirical_value >= on_samples
    )
    plain = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
    plain.solve()
    found = plain.evaluate(test)
    assert found.risk == found.mean
    assert "risk" not in str(found)


def test_mean_and_risk_are_judged_together():
    rng, _, x, returns = portfolio(5)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    scale = cp.Parameter(nonneg=True, value=3.0)
    objective = -returns @ x + scale * wdro.cvar(-returns @ x, 0.8) + 0.1 * cp.norm1(x - 0.25)
    problem = wdro.Problem(cp.Minimize(objective), [cp.sum(x) == 1], ball)
    problem.solve()
    test = rng.normal(size=(23, 4))
    losses, fee = -test @ x.value, 0.1 * np.abs(x.value - 0.25).sum()
    assert problem.losses(test) == pytest.approx(4 * losses + fee)
    risk = losses.mean() + 3 * cvar(losses, 0.8) + fee
    assert problem.evaluate(test).risk == pytest.approx(risk, abs=1e-8)
    scale.value = 1.0
    risk = losses.mean() + cvar(losses, 0.8) + fee
    assert problem.evaluate(test, {x: x.value}).risk == pytest.approx(risk, abs=1e-8)


def test_nobody_sees_the_threshold():
    _, _, x, returns = portfolio(6)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball)
    problem.solve()
    assert [v.name() for v in problem.variables()] == ["x"]
    assert list(problem.solution.decision) == [x]
    assert "decision     x (4); 4 numbers" in problem.explain()
    path = problem.path([0.01, 0.1])
    assert path.coordinates == tuple(f"x[{i}]" for i in range(4))
    assert path.decisions.shape == (2, 4)
    start = {x: np.full(4, 0.25)}
    assert np.isfinite(problem.robust_value(start))
    assert "0.8" in problem.explain()


def test_the_worst_case_attains_the_risk():
    _, _, x, returns = portfolio(7)
    for cost in (wdro.costs.Norm(1), wdro.costs.SquaredEuclidean()):
        ball = wdro.WassersteinBall(0.05, cost)
        problem = wdro.Problem(
            cp.Minimize(-returns @ x + wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball
        )
        problem.solve()
        for decision in (None, {x: np.array([0.1, 0.2, 0.3, 0.4])}):
            worst = problem.worst_case(decision=decision)
            point = x.value if decision is None else decision[x]
            losses = -worst.scenarios[returns] @ point
            order = np.argsort(-losses)
            ends = np.minimum(np.cumsum(worst.weights[order]), 0.2)
            tail = np.diff(ends, prepend=0.0) @ losses[order] / 0.2
            value = problem.robust_value(decision)
            assert worst.weights @ losses + tail == pytest.approx(value, rel=1e-3)
            assert worst.transport_cost <= 0.05 * (1 + 1e-6)


@pytest.mark.parametrize("seed", [4, 5, 17, 26, 29])
def test_the_worst_case_attains_several_cvars_at_once(seed):
    rng, n = np.random.default_rng(seed), 2
    data = rng.uniform(-1, 1, size=(6, n))
    box = {"support": wdro.supports.Box(np.full(n, -1.5), np.full(n, 2.0))} if seed % 2 else {}
    xi = wdro.UncertainParameter(n, "xi", samples=data, **box)
    x = cp.Variable(n, nonneg=True)
    weights, levels = rng.uniform(0.2, 2, 2), rng.uniform(0.1, 0.9, 2)
    cost = [wdro.costs.Norm(1), wdro.costs.SquaredEuclidean(), wdro.costs.Norm(2)][seed % 3]
    radius = float(rng.uniform(0.05, 0.5))
    objective = (
        xi @ x
        + weights[0] * wdro.cvar(-xi @ x, levels[0])
        + weights[1] * wdro.cvar(cp.maximum(xi[0] - x[0], 0.3, -xi[1]), levels[1])
    )
    ball = wdro.WassersteinBall(radius, cost)
    problem = wdro.Problem(cp.Minimize(objective), [cp.sum(x) == 1], ball)
    value, worst = problem.solve("exact"), problem.worst_case()
    z, p = worst.scenarios[xi], worst.weights

    def tail(losses, level):
        order = np.argsort(-losses)
        ends = np.minimum(np.cumsum(p[order]), 1 - level)
        return np.diff(ends, prepend=0.0) @ losses[order] / (1 - level)

    second = np.max([z[:, 0] - x.value[0], np.full(len(z), 0.3), -z[:, 1]], axis=0)
    risk = p @ z @ x.value + weights[0] * tail(-z @ x.value, levels[0])
    risk += weights[1] * tail(second, levels[1])
    added = value - problem.evaluate().risk
    assert risk == pytest.approx(value, abs=1e-3 * added)
    assert worst.expected_loss == pytest.approx(risk, abs=1e-9)
    assert worst.transport_cost <= radius * (1 + 1e-6)
    assert np.bincount(worst.source, p) == pytest.approx(np.full(6, 1 / 6))


def test_compare_and_select_radius_judge_by_the_risk():
    rng, data, x, returns = portfolio(8, size=30)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.8)), [cp.sum(x) == 1], ball)
    test = rng.normal(size=(200, 4)) * 0.3
    report = wdro.compare(problem, ("erm", "exact"), test=test)
    for judged in report.methods:
        losses = -test @ judged.solution.decision[x]
        risk = cvar(losses, 0.8)
        row = next(
            r for r in report.rows() if r["method"] == judged.name and r["scenarios"] == "test"
        )
        assert row["risk"] == pytest.approx(risk, abs=1e-8)
        assert judged.excess("test") == pytest.approx(risk - judged.promise, abs=1e-8)
    assert "risk" in str(report)
    found = wdro.select_radius(problem, radii=[0.0, 0.1], folds=3, progress=False)
    assert found.metric == "risk"
    scores = []
    for fold in (0, 1, 2):
        part = np.array_split(np.random.default_rng(0).permutation(30), 3)[fold]
        rest = np.setdiff1d(np.arange(30), part)
        twin = problem.with_samples(rows=rest).with_radius(0.1)
        twin.solve()
        scores.append(cvar(-data[np.sort(part)] @ twin.solution.decision[x], 0.8))
    assert found.scores[1] == pytest.approx(scores, abs=1e-5)


# ------------------------------------------------------------------ everywhere
def test_over_an_oracle_without_a_cvxpy_form():
    rng = np.random.default_rng(9)
    graph = nx.complete_graph(5)
    tree = wdro.sets.SpanningTree(graph)
    data = rng.uniform(1, 3, size=(8, tree.dimension))
    x = cp.Variable(tree.dimension)
    costs = wdro.UncertainParameter(tree.dimension, samples=data)
    bare = wdro.sets.Oracle(tree.minimize, tree.dimension)
    values = {}
    for ball in (
        wdro.WassersteinBall(0.1, wdro.costs.Norm(1)),
        wdro.WassersteinBall(0.1),
    ):
        objective = cp.Minimize(wdro.cvar(costs @ x, 0.7) + 0.5 * (costs @ x))
        for feasible in (tree, bare):
            problem = wdro.Problem(objective, [wdro.In(x, feasible)], ball)
            for method in ("erm", "exact"):
                values[method, feasible] = problem.solve(method)
        for method in ("erm", "exact"):
            assert values[method, tree] == pytest.approx(values[method, bare], rel=1e-4)


@pytest.mark.parametrize("oracle", [False, True])
def test_smoothed_cvar_is_near_the_exact_one(oracle):
    rng = np.random.default_rng(10)
    n = 6
    data = rng.uniform(1, 3, size=(12, n))
    x = cp.Variable(n)
    costs = wdro.UncertainParameter(n, samples=data)
    simplex = wdro.sets.Subsets(n, k=2)
    member = wdro.In(x, wdro.sets.Oracle(simplex.minimize, n) if oracle else simplex)
    certain = [member] if oracle else [x >= 0, x <= 1, cp.sum(x) == 2]
    ball = wdro.WassersteinBall(0.3)
    problem = wdro.Problem(cp.Minimize(wdro.cvar(costs @ x, 0.7)), certain, ball)
    exact = problem.solve("exact")
    smoothed = problem.solve("smoothed")
    assert problem.status == "optimal"
    assert problem.solution.robust_value >= exact - 1e-5
    assert problem.solution.robust_value == pytest.approx(exact, rel=2e-2)
    assert smoothed == pytest.approx(exact, rel=5e-2)
    assert list(problem.solution.decision) == [x]
    # At the decision, the smoothed objective is a minimum over the threshold.
    assert problem.losses(data) == pytest.approx(data @ problem.solution.decision[x])


@pytest.mark.parametrize("cost", ["l1", "squared"])
def test_integer_decisions_against_enumeration(cost):
    rng = np.random.default_rng(11)
    n = 6
    data = rng.uniform(1, 3, size=(8, n))
    costs = wdro.UncertainParameter(n, samples=data)
    ball = wdro.WassersteinBall(0.2, COSTS[cost])
    for constraint in (
        lambda x: wdro.In(x, wdro.sets.Subsets(n, k=2)),
        lambda x: cp.sum(x) == 2,
    ):
        x = cp.Variable(n, boolean=True)
        problem = wdro.Problem(cp.Minimize(wdro.cvar(costs @ x, 0.7)), [constraint(x)], ball)
        value = problem.solve()
        assert set(np.round(x.value, 6)) <= {0.0, 1.0}
        every = [
            problem.robust_value({x: np.eye(n)[i] + np.eye(n)[j]})
            for i in range(n)
            for j in range(i)
        ]
        assert value == pytest.approx(min(every), rel=1e-4)


def test_rounding_keeps_the_threshold_free():
    rng = np.random.default_rng(12)
    n = 6
    data = rng.uniform(1, 3, size=(8, n))
    costs = wdro.UncertainParameter(n, samples=data)
    x = cp.Variable(n)
    ball = wdro.WassersteinBall(0.2)
    problem = wdro.Problem(
        cp.Minimize(wdro.cvar(costs @ x, 0.7)), [wdro.In(x, wdro.sets.Subsets(n, k=2))], ball
    )
    problem.solve()
    found = problem.round()
    assert list(found.decision) == [x]
    assert found.value == pytest.approx(problem.robust_value({x: found.decision[x]}), rel=1e-5)


def test_cvxpy_problems_take_it():
    _, _, x, returns = portfolio(13)
    ball = wdro.WassersteinBall(0.05, wdro.costs.Norm(2))
    objective = cp.Minimize(wdro.cvar(-returns @ x, 0.8))
    value = cp.Problem(objective, [cp.sum(x) == 1]).solve(method="wdro", ambiguity=ball)
    assert value == pytest.approx(wdro.Problem(objective, [cp.sum(x) == 1], ball).solve())


def test_cvar_of_a_certain_loss_is_the_loss():
    x = cp.Variable(2, nonneg=True)
    problem = wdro.Problem(cp.Minimize(wdro.cvar(cp.sum_squares(x), 0.9)), [cp.sum(x) == 1])
    assert problem.solve() == pytest.approx(0.5, abs=1e-6)


# ------------------------------------------------------------------ bad input
def refusals():
    _, _, x, returns = portfolio(14)
    loss = -returns @ x
    t = cp.Variable(nonneg=True)
    ball = wdro.WassersteinBall(0.1)
    return {
        "square": (lambda: cp.Minimize(cp.square(wdro.cvar(loss, 0.9))), "nonnegative multiple"),
        "max": (lambda: cp.Minimize(cp.maximum(wdro.cvar(loss, 0.9), 0)), "epigraph"),
        "minus": (lambda: cp.Minimize(-wdro.cvar(loss, 0.9)), "-1"),
        "reward": (lambda: cp.Maximize(wdro.cvar(loss, 0.9)), "cvar"),
        "by a variable": (lambda: cp.Minimize(t * wdro.cvar(loss, 0.9)), "a number"),
        "nested": (lambda: cp.Minimize(wdro.cvar(wdro.cvar(loss, 0.9) + loss, 0.9)), "inside"),
        "own ball": (
            lambda: cp.Minimize(wdro.cvar(loss, 0.9, ambiguity=ball)),
            "epigraph variable",
        ),
        "level 1": (lambda: cp.Minimize(wdro.cvar(loss, 1.0)), "level"),
        "level 95": (lambda: cp.Minimize(wdro.cvar(loss, 95)), "0.95"),
        "level negative": (lambda: cp.Minimize(wdro.cvar(loss, -0.1)), "level"),
        "level text": (lambda: cp.Minimize(wdro.cvar(loss, "0.9")), "level"),
        "ball": (lambda: cp.Minimize(wdro.cvar(loss, 0.9, 0.3)), "WassersteinBall"),
        "not an expression": (lambda: cp.Minimize(wdro.cvar("loss", 0.9)), "loss"),
    }


@pytest.mark.parametrize("case", refusals())
def test_what_is_no_risk_is_refused_with_the_reason(case):
    build, words = refusals()[case]
    x = cp.Variable(4, nonneg=True)
    with pytest.raises((ValueError, TypeError), match=words):
        wdro.Problem(build(), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))


def test_an_atom_has_no_value_of_its_own():
    _, _, x, returns = portfolio(15)
    x.value = np.full(4, 0.25)
    with pytest.raises(ValueError, match="evaluate"):
        _ = wdro.cvar(-returns @ x, 0.9).value
    assert wdro.cvar(cp.sum(x), 0.9).value == 1.0


def test_stochastic_solvers_are_refused():
    _, _, x, returns = portfolio(16)
    ball = wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.9)), [cp.sum(x) == 1], ball)
    with pytest.raises(ValueError, match="FrankWolfe"):
        problem.solve("smoothed", solver=wdro.solvers.MomentumFrankWolfe())


@pytest.mark.parametrize("cost", ["squared", "l2"])
def test_the_smoothed_objective_is_minimised_over_thresholds(cost):
    _, _, x, returns = portfolio(17, size=10)
    ball = wdro.WassersteinBall(0.05, COSTS[cost])
    t = cp.Variable()
    by_hand = -returns @ x + t + cp.pos(-returns @ x - t) / 0.2
    measured = -returns @ x + wdro.cvar(-returns @ x, 0.8)
    scales = {"epsilon": 0.02, "sigma": 0.05, "solver": wdro.solvers.QuasiNewton(gap=1e-5)}
    values = []
    for loss in (measured, by_hand):
        problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
        values.append(problem.solve("smoothed", **scales))
    assert values[0] == pytest.approx(values[1], abs=1e-4)
