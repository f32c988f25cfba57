"""Integer decisions are the best of all that there are, and their gaps hold."""

import warnings
from itertools import combinations, product

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from scipy.sparse import issparse

import wdro_model as wdro
from tests.references.enumeration import all_trees
from tests.references.integer_cases import COSTS, KINDS, LOSSES, Case
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.deadlines import OutOfTime, deadline, seconds_left
from wdro_model.solve.integer import ProgramNodes
from wdro_model.solvers import BranchAndBound, FrankWolfe, Simplicial
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk, ParametricSearch
from wdro_model.solvers.relaxations import BinaryQuadratic, best_lift

SHARP = BranchAndBound(gap=1e-6)


def seed_of(kind, loss, cost):
    return 16 * KINDS.index(kind) + 4 * LOSSES.index(loss) + COSTS.index(cost)


# ------------------------------------------------------------------ against enumeration
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_of_all_decisions(kind, loss, cost):
    case = Case(kind, loss, cost, seed_of(kind, loss, cost))
    value = case.problem.solve(solver=SHARP)
    solution, best = case.problem.solution, case.risks.min()
    (at,) = np.flatnonzero((case.points == case.x.value).all(axis=1))
    assert case.risks[at] == pytest.approx(best, rel=2e-6)
    assert value == pytest.approx(best, rel=1e-5)
    assert solution.status == "optimal"
    assert solution.lower_bound <= best * (1 + 1e-6)
    assert value - solution.lower_bound == pytest.approx(solution.gap)


@pytest.mark.parametrize("kind", ["tree", "knapsack"])
@pytest.mark.parametrize("loss", ["coupled", "cvar"])
def test_gaps_hold_at_a_limit(kind, loss):
    for seed in range(3):
        case = Case(kind, loss, "squared", seed)
        case.problem.solve(solver=BranchAndBound(gap=0, node_limit=2))
        solution, best = case.problem.solution, case.risks.min()
        assert solution.lower_bound <= best * (1 + 1e-6)
        assert solution.value >= best * (1 - 1e-5)
        assert solution.gap == pytest.approx(solution.value - solution.lower_bound)
        assert solution.status == ("optimal" if solution.gap <= 1e-12 else "user_limit")


def quadratic_trees(nodes=6, edges=11, seed=0, radius=0.5, boolean=True):
    graph = nx.gnm_random_graph(nodes, edges, seed=seed)
    trees = wdro.sets.SpanningTree(graph)
    samples = np.random.default_rng(seed).uniform(size=(10, edges, edges))
    x = cp.Variable(edges, boolean=boolean, name="x")
    matrix = wdro.UncertainParameter((edges, edges), samples=samples, name="matrix")
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, matrix)),
        [wdro.In(x, trees)],
        wdro.WassersteinBall(radius),
    )
    every = all_trees(graph)
    mean = np.einsum("ki,ij,kj->k", every, samples.mean(axis=0), every)
    return problem, x, every, mean + np.sqrt(radius) * every.sum(axis=1)


@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("radius", [0.0, 1e-3, 2.0])
def test_quadratic_forms_that_are_not_convex(seed, radius):
    """At 0/1 points any quadratic form may be taken for a convex one."""
    problem, x, every, risks = quadratic_trees(seed=seed, radius=radius)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = problem.solve(solver=SHARP)
    assert value == pytest.approx(risks.min(), rel=1e-9)
    assert problem.solution.lower_bound <= risks.min() + 1e-9
    assert x.value.tolist() in every.tolist()


def test_a_lift_is_the_same_at_choices_and_larger_between():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(6, 6))
    form = BinaryQuadratic(matrix + matrix.T, rng.normal(size=6), 1.0)
    points = rng.uniform(size=(4, 6))
    start = form.least_lift()
    first = form.lifted(start)
    best = form.lifted(best_lift(form, start, list(points), gap=1.0))
    for lifted in (first, best):
        assert np.linalg.eigvalsh(lifted.hessian)[0] >= -1e-8
        for x in product([0.0, 1.0], repeat=6):
            assert lifted(np.array(x)) == pytest.approx(form(np.array(x)))
    assert min(map(best, points)) > min(map(first, points))


# ------------------------------------------------------------------ one parameter
@pytest.mark.parametrize("seed", range(20))
def test_concave_functions_of_two_costs(seed):
    rng = np.random.default_rng(seed)
    points = np.array([np.isin(np.arange(9), c) for c in combinations(range(9), 4)], float)
    calls = []

    def cheapest(direction):
        calls.append(direction)
        return points[int(np.argmin(points @ direction))]

    some = wdro.sets.Oracle(cheapest, 9, integral=True)
    costs, spread = rng.normal(size=9), rng.uniform(size=9) ** 3
    risk = ChoiceRisk(costs, 0.3, spread, 0.1, lambda s: 2.0 * s**0.4)
    found = ParametricSearch(some, risk).run()
    best = (points @ costs + 0.3 + 2.0 * (points @ spread + 0.1) ** 0.4).min()
    assert found.value == pytest.approx(best)
    assert found.lower_bound == pytest.approx(best)
    assert found.calls + 1 == len(calls) <= 25  # and one look whether it maximises
    heights = rng.uniform(size=9)
    found = BottleneckRisk(costs, 0.3, heights, 5.0).search(some)
    best = (points @ costs + 0.3 + 5.0 * (points * heights).max(axis=1)).min()
    assert found.value == pytest.approx(best)
    assert found.lower_bound == pytest.approx(best)


def test_an_oracle_with_bounds_of_its_own_has_a_gap():
    """An answer that may be 0.1 above the minimum leaves as much open."""
    points = np.array([np.isin(np.arange(6), c) for c in combinations(range(6), 3)], float)

    def careless(direction):
        costs = points @ direction
        order = np.argsort(costs)
        second = order[1] if costs[order[1]] - costs[order[0]] <= 0.1 else order[0]
        return points[second], costs[order[0]]

    some = wdro.sets.Oracle(careless, 6, integral=True, bounds=(0, 1))
    rng = np.random.default_rng(2)
    samples = 1.0 + 0.2 * rng.uniform(size=(8, 6))
    x = cp.Variable(6, boolean=True)
    xi = wdro.UncertainParameter(6, samples=samples)
    ball = wdro.WassersteinBall(0.1, wdro.costs.SquaredEuclidean(weights="standardize"))
    problem = wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, some)], ball)
    value = problem.solve()
    spread = np.sqrt(0.1 * points @ samples.var(axis=0))
    best = (points @ samples.mean(axis=0) + spread).min()
    assert problem.solution.lower_bound <= best <= value + 1e-12
    assert problem.solution.gap > 0


# ------------------------------------------------------------------ products and mixtures
def test_a_tree_beside_a_subset_and_continuous_shares():
    rng = np.random.default_rng(5)
    graph = nx.complete_graph(4)
    trees = wdro.sets.SpanningTree(graph)
    subsets = np.array([np.isin(np.arange(4), c) for c in combinations(range(4), 2)], float)
    pick = wdro.sets.Oracle(
        lambda g: subsets[int(np.argmin(subsets @ g))], 4, integral=True, bounds=(0, 1)
    )
    x, y = cp.Variable(6, boolean=True), cp.Variable(4, boolean=True)
    share, t = cp.Variable(2, nonneg=True), cp.Variable()
    samples = rng.uniform(size=(8, 12))
    z = wdro.UncertainParameter(12, samples=samples)
    loss = z[:6] @ x + z[6:10] @ y + z[10:] @ share
    ball = wdro.WassersteinBall(0.05)
    problem = wdro.Problem(
        cp.Minimize(t + cp.pos(loss - t) / 0.4 + cp.sum_squares(share)),
        [wdro.In(x, trees), wdro.In(y, pick), cp.sum(share) == 1],
        ball,
    )
    value = problem.solve(solver=SHARP)
    best = np.inf
    for tree, pair in product(all_trees(graph), subsets):
        held = z[:6] @ tree + z[6:10] @ pair + z[10:] @ share
        rest = wdro.Problem(
            cp.Minimize(t + cp.pos(held - t) / 0.4 + cp.sum_squares(share)),
            [cp.sum(share) == 1],
            ball,
        )
        best = min(best, rest.solve())
    assert value == pytest.approx(best, rel=1e-5)
    problem.solve(solver=SHARP)
    assert x.value.tolist() in all_trees(graph).tolist()
    assert y.value.tolist() in subsets.tolist()
    assert share.value.sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_at_most_some_assets(seed, monkeypatch):
    """Integers under CVXPY constraints with cones, which no installed solver takes."""
    monkeypatch.setattr("wdro_model.solvers.cone_solver.MIXED_INTEGER", ("HIGHS",))
    rng = np.random.default_rng(seed)
    samples = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 6)) + rng.uniform(0, 0.4, 6)
    w, z = cp.Variable(6, nonneg=True), cp.Variable(6, boolean=True)
    r = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.square(r @ w - 0.1)),
        [cp.sum(w) == 1, w <= z, cp.sum(z) <= 2],
        wdro.WassersteinBall(0.05),
    )
    value = problem.solve(method="exact", solver=SHARP)
    best = np.inf
    for pair in combinations(range(6), 2):
        v = cp.Variable(2, nonneg=True)
        spread = cp.norm(samples[:, pair] @ v - 0.1) / np.sqrt(20)
        risk = cp.Minimize(spread + np.sqrt(0.05) * cp.norm(v))
        best = min(best, cp.Problem(risk, [cp.sum(v) == 1]).solve(solver=cp.CLARABEL) ** 2)
    assert value == pytest.approx(best, rel=1e-5)
    assert problem.solution.lower_bound <= best * (1 + 1e-6)
    assert problem.status == "optimal"
    assert problem.robust_value() == pytest.approx(value, rel=1e-6)


def test_whole_numbers_under_constraints(monkeypatch):
    monkeypatch.setattr("wdro_model.solvers.cone_solver.MIXED_INTEGER", ("HIGHS",))
    samples = np.random.default_rng(0).gamma(3.0, 1.0, size=(15, 2))
    order = cp.Variable(2, integer=True)
    demand = wdro.UncertainParameter(2, samples=samples)
    loss = cp.sum(cp.maximum(order - demand, 3 * (demand - order)))
    problem = wdro.Problem(
        cp.Minimize(loss), [order >= 0, order <= 8, cp.sum(order) <= 9], wdro.WassersteinBall(0.1)
    )
    value = problem.solve(method="exact", solver=SHARP)
    every = [np.array(v, float) for v in product(range(9), repeat=2) if sum(v) <= 9]
    risks = [problem.robust_value({order: v}) for v in every]
    assert value == pytest.approx(min(risks), rel=1e-6)
    assert order.value == pytest.approx(every[int(np.argmin(risks))])


def test_an_empty_set_of_integers(monkeypatch):
    x = cp.Variable(3, boolean=True)
    xi = wdro.UncertainParameter(3, samples=np.ones((4, 3)) + np.arange(4)[:, None])
    problem = wdro.Problem(
        cp.Minimize(cp.square(xi @ x)), [cp.sum(x) == 1.5], wdro.WassersteinBall(0.1)
    )
    with pytest.raises(wdro.InfeasibleError, match="feasible set is empty"):
        problem.solve(method="exact", solver=BranchAndBound())


# ------------------------------------------------------------------ relaxing, limits, words
def test_relax_is_the_hull_and_round_still_works():
    problem, x, every, risks = quadratic_trees(radius=2.0)
    hull, *_ = quadratic_trees(radius=2.0, boolean=False)
    value = problem.solve(relax=True, solver=None)
    assert value == pytest.approx(hull.solve(), rel=1e-3)
    assert value < risks.min()
    assert np.abs(x.value - np.rint(x.value)).max() > 0.01
    found = problem.round()
    assert x.value.tolist() in every.tolist()
    assert found.lower_bound <= risks.min() <= found.value + 1e-9
    assert problem.solve() == pytest.approx(risks.min(), rel=1e-3)


def test_relaxing_integers_under_constraints_is_their_hull():
    """2 x + 2 y <= 3 leaves three integer points, and more than their hull without integers."""
    x = cp.Variable(2, boolean=True)
    samples = np.random.default_rng(1).normal(-1.0, 0.1, size=(10, 2))
    xi = wdro.UncertainParameter(2, samples=samples)
    loss = cp.maximum(xi @ x, -0.2)
    problem = wdro.Problem(
        cp.Minimize(loss + 0.1 * cp.sum(x)), [2 * x[0] + 2 * x[1] <= 3], wdro.WassersteinBall(1e-3)
    )
    problem.solve(method="exact", relax=True)
    assert x.value.sum() <= 1 + 1e-6
    assert problem.solution.gap <= 1e-4 * abs(problem.value) + 1e-9


@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_keeps_the_incumbent(early, monkeypatch):
    problem, x, every, risks = quadratic_trees(nodes=7, edges=15, seed=1)
    trees = problem.constraints[0].set
    ask, calls = trees.held_answer, []
    problem.solve(solver=BranchAndBound(gap=0))
    call = 20 if early else problem.solution.oracle_calls - 20

    def interrupted(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return ask(*args)

    monkeypatch.setattr(trees, "held_answer", interrupted)
    problem.solve(solver=BranchAndBound(gap=0))
    solution = problem.solution
    assert solution.status == "user_limit"
    assert "keyboard" in solution.stop
    assert x.value.tolist() in every.tolist()
    assert risks.min() <= solution.value + 1e-9
    if not early:
        assert solution.lower_bound <= risks.min()
    else:
        assert solution.lower_bound is None
        assert solution.gap == np.inf


def test_limits_leave_a_decision_and_a_bound(capsys):
    problem, x, every, risks = quadratic_trees(nodes=7, edges=15, seed=1)
    problem.solve(solver=BranchAndBound(gap=0, node_limit=5), verbose=True)
    shown = capsys.readouterr().out
    assert "incumbent" in shown
    assert "bound" in shown
    assert "stopped: iteration limit" in shown
    assert problem.status == "user_limit"
    assert problem.solution.iterations <= 6
    problem.solve(solver=BranchAndBound(gap=0), time_limit=1e-3)
    assert problem.solution.stop == "time limit"
    assert x.value.tolist() in every.tolist()
    assert problem.solution.lower_bound <= risks.min()


@pytest.mark.parametrize("kind", ["quadratic", "cvar"])
def test_a_start_is_tried_first(kind):
    if kind == "quadratic":
        problem, x, every, risks = quadratic_trees(nodes=7, edges=15, seed=1)
        values = {x: every[int(np.argmin(risks))]}
    else:
        case = Case("tree", "cvar", "squared", 5)
        problem, x, every, risks = case.problem, case.x, case.points, case.risks
        (t,) = (v for v in problem.variables() if v is not x)
        values = {x: every[int(np.argmin(risks))], t: 0.0}
    one = BranchAndBound(gap=0, node_limit=1)
    problem.solve(solver=one, start=values)
    assert problem.value == pytest.approx(risks.min(), rel=1e-5)
    problem.solve(solver=one, start={**values, x: np.zeros(x.size)})
    assert x.value.tolist() in every.tolist()


def test_integers_without_an_exact_counterpart_are_rounded():
    """A logistic loss with a squared cost: smoothed over the hull, and then one choice."""
    trees = wdro.sets.SpanningTree(nx.complete_graph(4))
    x = cp.Variable(6, boolean=True, name="x")
    samples = np.random.default_rng(0).uniform(size=(8, 6))
    xi = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(xi @ x - 2.0)), [wdro.In(x, trees)], wdro.WassersteinBall(0.1)
    )
    value = problem.solve()
    solution, every = problem.solution, all_trees(nx.complete_graph(4))
    assert x.value.tolist() in every.tolist()
    assert problem.status == "rounded"
    assert solution.method == "smoothed"
    assert solution.lower_bound <= value
    assert not any("fractional" in note for note in solution.notes)
    problem.solve(relax=True)
    assert problem.value <= value * (1 + 1e-3)


def test_explain_says_where_the_radius_cannot_change_the_choice():
    graph = nx.complete_graph(5)
    samples = np.random.default_rng(0).uniform(size=(12, 10)) * np.arange(1, 11)
    for boolean in (True, False):
        x = cp.Variable(10, boolean=boolean)
        c = wdro.UncertainParameter(10, samples=samples)
        trees, paths = wdro.sets.SpanningTree(graph), wdro.sets.ShortestPath(graph, 0, 4)
        for feasible, weights, idle in (
            (trees, None, True),
            (trees, "standardize", False),
            (paths, None, False),
        ):
            ball = wdro.WassersteinBall(1.0, wdro.costs.SquaredEuclidean(weights=weights))
            problem = wdro.Problem(cp.Minimize(c @ x), [wdro.In(x, feasible)], ball)
            words = "the robust choice is ERM's. weights='standardize'"
            assert (words in problem.explain()) == idle
            if boolean:
                problem.solve()
                assert any(words in note for note in problem.solution.notes) == idle
                robust = x.value.copy()
                problem.solve(method="erm")
                assert not idle or np.array_equal(robust, x.value)
    quadratic, *_ = quadratic_trees()
    assert "the robust choice is ERM's" in quadratic.explain()
    assert "branch and bound" in quadratic.explain()
    assert "one decision, with a proven gap" in quadratic.explain()


def test_what_cannot_be_bounded_is_refused_with_a_way_out():
    trees = wdro.sets.SpanningTree(nx.complete_graph(4))
    x = cp.Variable(6, boolean=True)
    xi = wdro.UncertainParameter(6, samples=np.random.default_rng(0).uniform(size=(5, 6)))
    problem = wdro.Problem(cp.Minimize(cp.sqrt(1 + xi @ x)), [wdro.In(x, trees)])
    with pytest.raises(ValueError, match=r"neither quadratic.*relax=True.*round\(\)"):
        problem.solve(method="erm")
    share = cp.Variable(nonneg=True)

    def squares(values, scenarios):
        residual = scenarios[xi] @ values[x] + values[share] - 3.0

        def pullback(weights):
            slope = 2 * weights * residual
            return {x: slope @ scenarios[xi], share: slope.sum()}

        return residual**2, pullback

    opaque = wdro.CallableLoss(squares, variables=[x, share], parameters=[xi], convex=True)
    mixed = wdro.Problem(opaque, [wdro.In(x, trees), share <= 1])
    with pytest.raises(ValueError, match=r"no convex CVXPY program.*not 0 or 1.*relax=True"):
        mixed.solve(method="erm")
    mixed.solve(method="erm", relax=True)
    assert mixed.round().value >= mixed.value - 1e-9
    y = cp.Variable(6)
    hull = wdro.Problem(cp.Minimize(xi @ y), [wdro.In(y, trees)])
    with pytest.raises(ValueError, match=r"no variable is integer.*boolean=True"):
        hull.solve(solver=BranchAndBound())
    ball = wdro.WassersteinBall(0.1)
    robust = wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, trees)], ball)
    with pytest.raises(ValueError, match=r"smoothed.*BranchAndBound.*round\(\)"):
        robust.solve(method="smoothed", solver=BranchAndBound())
    with pytest.raises(ValueError, match="relax must be True or False"):
        robust.solve(relax="yes")
    for wrong in ({"gap": -1}, {"time_limit": 0}, {"node_limit": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            BranchAndBound(**wrong)
        if "node_limit" not in wrong:
            with pytest.raises(ValueError, match=next(iter(wrong))):
                Simplicial(**wrong)


# ------------------------------------------------------------------ vertices and conic programs
@pytest.mark.parametrize("cost", [wdro.costs.SquaredEuclidean(), wdro.costs.Norm(2)])
@pytest.mark.parametrize("loss", ["cvar", "newsvendor", "erm"])
def test_vertices_and_the_conic_form_agree(cost, loss):
    graph = nx.gnm_random_graph(6, 11, seed=2)
    trees = wdro.sets.SpanningTree(graph)
    samples = np.random.default_rng(3).gamma(2.0, 1.0, size=(15, 11))
    x, t = cp.Variable(11), cp.Variable()
    c = wdro.UncertainParameter(11, samples=samples)
    expression = t + cp.pos(c @ x - t) / 0.3 if loss == "cvar" else cp.abs(c @ x - 9)
    problem = wdro.Problem(
        cp.Minimize(expression), [wdro.In(x, trees)], wdro.WassersteinBall(0.2, cost)
    )
    method = "erm" if loss == "erm" else "exact"
    conic = problem.solve(method=method, solver=wdro.solvers.Conic())
    value = problem.solve(method=method, solver=Simplicial(gap=1e-6))
    solution = problem.solution
    assert value == pytest.approx(conic, rel=1e-5, abs=1e-7)
    assert solution.lower_bound <= conic * (1 + 1e-6) + 1e-7
    assert solution.status == "optimal"
    assert trees.contains(x.value, 1e-5)


def test_an_oracle_alone_is_enough_for_a_cvar():
    """Found by the method itself where the set has no CVXPY form."""
    points = np.array([np.isin(np.arange(7), c) for c in combinations(range(7), 3)], float)
    some = wdro.sets.Oracle(lambda g: points[int(np.argmin(points @ g))], 7)
    samples = np.random.default_rng(0).gamma(2.0, 1.0, size=(20, 7))
    x, t = cp.Variable(7), cp.Variable()
    c = wdro.UncertainParameter(7, samples=samples)
    loss, ball = t + cp.pos(c @ x - t) / 0.2, wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, some)], ball)
    value = problem.solve()
    assert "simplicial" in problem.solution.solver
    shares = cp.Variable(len(points), nonneg=True)
    same = wdro.Problem(cp.Minimize(loss), [x == points.T @ shares, cp.sum(shares) == 1], ball)
    assert value == pytest.approx(same.solve(), rel=1e-4)
    with pytest.raises(ValueError, match=r"not smooth"):
        problem.solve(method="exact", solver=FrankWolfe())
    problem.solve(solver=Simplicial(gap=1e-9, max_iterations=2))
    assert problem.status == "user_limit"
    assert problem.solution.lower_bound <= value * (1 + 1e-6)


# ------------------------------------------------------------------ time and memory
def hard_set():
    """Integers that make three sums meet: days of branch and bound."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 100, size=(4, 40))
    x, over = cp.Variable(40, boolean=True), cp.Variable(4, nonneg=True)
    gap = rows @ x - rows.sum(axis=1) // 2
    return ConvexSet([gap <= over, gap >= -over, over <= 50], [x, over])


def test_branch_and_bound_in_an_oracle_sees_the_time_limit():
    hard, direction = hard_set(), np.r_[np.zeros(40), np.ones(4)]
    with deadline(0.2), pytest.raises(OutOfTime, match="time limit passed"):
        hard.minimize(direction)
    assert seconds_left() is None
    easy = np.r_[np.ones(40), np.zeros(4)]
    point = hard.minimize(easy, None, None)
    assert hard.contains(point)


@pytest.mark.parametrize("solver", [FrankWolfe(gap=1e-12), Simplicial(gap=1e-12), None])
def test_an_oracle_that_runs_out_of_time_ends_the_run_with_what_there_is(solver):
    points = np.array([np.isin(np.arange(9), c) for c in combinations(range(9), 4)], float)
    calls = []

    def slow(direction):
        calls.append(1)
        if len(calls) > 4 and seconds_left() is not None:
            raise OutOfTime
        return points[int(np.argmin(points @ direction))]

    x = cp.Variable(9, boolean=solver is None)
    samples = np.random.default_rng(0).uniform(size=(10, 9))
    xi = wdro.UncertainParameter(9, samples=samples)
    loss = cp.sum_squares(samples[:5] @ x - 1.0) + xi @ x
    problem = wdro.Problem(
        cp.Minimize(loss), [wdro.In(x, wdro.sets.Oracle(slow, 9, integral=True, bounds=(0, 1)))]
    )
    solver = solver or BranchAndBound(gap=0)
    calls.clear()
    problem.solve(method="erm", solver=solver, time_limit=60)
    assert problem.status == "user_limit"
    assert problem.solution.stop == "time limit"
    assert x.value.sum() == pytest.approx(4)
    with pytest.raises(TimeoutError, match="longer time_limit"):
        problem.solve(method="erm", solver=solver, time_limit=60)


@pytest.mark.parametrize("direction", ["blended_pairwise", "blended_conjugate"])
def test_long_vertices_are_kept_sparse(direction, monkeypatch):
    """The same run with sparse and with dense vertices, in a fraction of the memory."""
    rng = np.random.default_rng(0)
    size, chosen = 5000, 20
    centre = rng.uniform(size=size)

    def cheapest(g):
        found = np.zeros(size)
        found[np.argpartition(g, chosen)[:chosen]] = 1.0
        return found

    some = wdro.sets.Oracle(cheapest, size, bounds=(0, 1))
    x = cp.Variable(size)
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - centre)), [wdro.In(x, some)])
    solver = FrankWolfe(gap=1e-9, max_iterations=60, direction=direction)
    sparse = problem.solve(solver=solver)
    active = problem.solution.active_set
    assert issparse(active.matrix)
    assert active.matrix.data.nbytes < 0.02 * active.vertices.nbytes
    assert active.x == pytest.approx(x.value, abs=1e-9)
    assert active.vertex(1) == pytest.approx(active.vertices[1])
    again = active.copy()
    again.keep(np.arange(1, len(again)))
    again.add(np.ones(size), 0.0)
    assert not issparse(again.matrix)
    assert again.vertices[-1] == pytest.approx(np.ones(size))
    monkeypatch.setattr("wdro_model.solvers.directions.blended.SPARSE_DIMENSION", 10**6)
    assert problem.solve(solver=solver) == pytest.approx(sparse, rel=1e-9)
    assert not issparse(problem.solution.active_set.matrix)


@pytest.mark.parametrize("loss", [lambda z, x: z @ x, lambda z, x: cp.abs(z @ x + 1)])
def test_an_oracle_whose_points_are_no_choices_is_refused_for_booleans(loss):
    half = wdro.sets.Oracle(lambda direction: 1.5 * (direction < 0), 3)
    x = cp.Variable(3, boolean=True, name="x")
    z = wdro.UncertainParameter(3, samples=np.random.default_rng(1).normal(-1, 0.3, (6, 3)))
    ball = wdro.WassersteinBall(0.05)
    problem = wdro.Problem(cp.Minimize(loss(z, x)), [wdro.In(x, half)], ball)
    with pytest.raises(ValueError, match="entries 0 and 1"):
        problem.solve()


def test_a_decision_on_which_the_solver_gives_up_keeps_its_bound(monkeypatch):
    """A leaf that cannot be solved is no proof that it is worse than the others."""
    rng = np.random.default_rng(0)
    subsets = wdro.sets.Subsets(4, 2)
    x = cp.Variable(4, boolean=True, name="x")
    z = wdro.UncertainParameter(4, samples=rng.normal(size=(8, 4)))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    loss = cp.maximum(z @ x, 0.5 - z @ x)
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, subsets)], ball)
    best = problem.solve(solver=wdro.solvers.BranchAndBound(gap=1e-6))
    chosen = np.rint(x.value)
    original = ProgramNodes._solve_with_integers

    def gives_up(self, key, point):
        if np.array_equal(np.rint(point), chosen):
            self._failures.add(key)
            return np.inf, point
        return original(self, key, point)

    monkeypatch.setattr(ProgramNodes, "_solve_with_integers", gives_up)
    value = problem.solve(solver=wdro.solvers.BranchAndBound(gap=1e-6))
    assert value > best
    assert problem.solution.lower_bound <= best + 1e-6
    assert problem.status != "optimal"
