"""Labels match labels: the answer of the model in plain arrays, or a refusal that names labels."""

import itertools

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro

pd = pytest.importorskip("pandas")
SEEDS = range(6)
ASSETS = ("bonds", "gold", "oil", "stocks")


def flat_index(labels):
    return pd.Index(list(labels), tupleize_cols=False)


def spanning_tree(rng):
    graph = nx.relabel_nodes(nx.cycle_graph(5), dict(enumerate("ABCDE")))
    graph.add_edges_from([("A", "C"), ("B", "E")])
    return wdro.sets.SpanningTree(graph)


def shortest_path(rng):
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 1)])
    return wdro.sets.ShortestPath(graph, 0, 3)


def flow(rng):
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
    nx.set_node_attributes(graph, {0: 1.0, 3: -1.0}, "supply")
    return wdro.sets.Flow(graph, {0: 1.0, 3: -1.0}, capacity=1.0)


def matching(rng):
    return wdro.sets.Matching(nx.complete_graph(4))


def assignment(rng):
    return wdro.sets.Assignment(["Ann", "Bob"], ["bake", "cook", "serve"])


def numbered_assignment(rng):
    return wdro.sets.Assignment(3)


def knapsack(rng):
    return wdro.sets.Knapsack([3.0, 2.0, 2.0, 1.0], 4.0, items=list(ASSETS))


def subsets(rng):
    return wdro.sets.Subsets(list(ASSETS), k=2)


def traffic(rng):
    network = wdro.traffic.Network(
        tails=[0, 0, 1, 1, 2],
        heads=[1, 2, 2, 3, 3],
        capacity=1.0,
        free_flow_time=1.0,
        b=0.0,
        power=1.0,
        demand=[[0.0, 3.0], [0.0, 0.0]],
        zones=[0, 3],
        nodes=tuple("abcd"),
    )
    return wdro.sets.TrafficFlows(network, backend="scipy")


SETS = [spanning_tree, shortest_path, flow, matching, assignment, numbered_assignment]
SETS += [knapsack, subsets, traffic]


def stated(feasible, cost):
    x = cp.Variable(feasible.dimension)
    return wdro.Problem(cp.Minimize(cost @ x), [wdro.In(x, feasible)])


def outcome(build):
    """The value, or what the refusal says."""
    try:
        return build()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("make", "seed"), list(itertools.product(SETS, SEEDS)))
def test_columns_match_the_set(make, seed):
    rng = np.random.default_rng(seed)
    feasible = make(rng)
    names, n = list(feasible.names), feasible.dimension
    data = rng.uniform(0.5, 2.0, (7, n)) + np.arange(n)
    if make in (knapsack, subsets):
        data = -data
    expected = stated(feasible, wdro.UncertainParameter(n, samples=data)).solve()
    order = rng.permutation(n)
    frame = pd.DataFrame(data[:, order], columns=flat_index(names[i] for i in order))
    levels = pd.DataFrame(data[:, order], columns=[names[i] for i in order])
    keyed = {names[i]: data[:, i] for i in order}
    for samples, labels in itertools.product((frame, levels, keyed), (feasible, names)):
        cost = wdro.UncertainParameter(samples=samples, labels=labels)
        assert cost.columns == tuple(names)
        np.testing.assert_array_equal(cost.samples, data)
    cost = wdro.UncertainParameter(samples=keyed, labels=feasible)
    problem = stated(feasible, cost)
    assert problem.solve() == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(problem.losses(frame), problem.losses(data))
    np.testing.assert_allclose(problem.losses(keyed), problem.losses(data))
    for samples in (frame, keyed):
        cost = wdro.UncertainParameter(n, "cost", samples=samples)
        found = outcome(lambda: stated(feasible, cost).solve())  # noqa: B023
        if list(order) == list(range(n)):
            assert found == pytest.approx(expected, abs=1e-6)
        else:
            assert "'cost'" in found
            assert "in another order" in found
            assert "labels=" in found
            assert any(repr(name) in found for name in names)
    right = wdro.UncertainParameter(n, "cost", samples=frame[names])
    assert stated(feasible, right).solve() == pytest.approx(expected, abs=1e-6)
    other = frame.set_axis(flat_index(["elsewhere", *frame.columns[1:]]), axis=1)
    with pytest.raises(ValueError, match=r"'elsewhere'.*to_numpy"):
        stated(feasible, wdro.UncertainParameter(n, "cost", samples=other))
    with pytest.raises(ValueError, match="elsewhere"):
        wdro.UncertainParameter(n, "cost", samples=other, labels=feasible)


FORMS = {
    "multiply": lambda x, c, d: cp.sum(cp.multiply(c, x)),
    "square": lambda x, c, d: cp.sum_squares(x - c),
    "scaled": lambda x, c, d: (2 * c + 1) @ x,
    "maximum": lambda x, c, d: cp.max(cp.maximum(c - x, 0.0)),
    "two": lambda x, c, d: d @ x + (c + d) @ x,
    "table": lambda x, c, d: cp.sum(
        cp.multiply(cp.reshape(c, (1, 4), order="C"), cp.reshape(x, (1, 4), order="C"))
    ),
    "cvar": lambda x, c, d: wdro.cvar(c @ x, 0.5),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_labels_meet_through_expressions(form, seed):
    rng = np.random.default_rng(seed)
    feasible = wdro.sets.Subsets(list(ASSETS), k=2)
    data, order = rng.uniform(1, 3, (5, 4)), [1, *rng.permutation([0, 2, 3])]

    def problem(samples, **labels):
        x = cp.Variable(4)
        c = wdro.UncertainParameter(4, "c", samples=samples, **labels)
        d = wdro.UncertainParameter(4, "d", samples=data + 1)
        return wdro.Problem(cp.Minimize(FORMS[form](x, c, d)), [wdro.In(x, feasible)])

    frame = pd.DataFrame(data, columns=list(ASSETS)).iloc[:, order]
    decision = np.array([0.5, 0.2, 0.3, 1.0])
    plain, labelled = problem(data), problem(frame, labels=feasible)
    values = [p.losses(decision={p.variables()[0]: decision}) for p in (plain, labelled)]
    np.testing.assert_allclose(*values)
    with pytest.raises(ValueError, match=r"'c'.*another order"):
        problem(frame)


def test_what_does_not_meet_entry_by_entry_is_left_alone():
    feasible, data = wdro.sets.Subsets(list(ASSETS), k=2), np.ones((3, 4))
    x, frame = cp.Variable(4), pd.DataFrame(data, columns=["a", "b", "c", "d"])
    c = wdro.UncertainParameter(samples=frame)
    for loss in (cp.sum(x) * c[0], (np.ones((4, 4)) @ c) @ x, c[1] * x[2] + cp.sum(c)):
        wdro.Problem(cp.Minimize(loss), [wdro.In(x, feasible)])
    known = wdro.UncertainParameter(samples=frame.set_axis(list(ASSETS[::-1]), axis=1))
    wdro.Problem(cp.Minimize(known @ x[::-1]), [wdro.In(x, feasible)])  # brought into order by hand
    numbered = wdro.sets.Subsets(4, k=2)
    wdro.Problem(cp.Minimize(c @ x), [wdro.In(x, numbered)])


def test_parameters_that_are_added_have_the_same_columns():
    data, x = np.ones((3, 4)), cp.Variable(4, nonneg=True)
    c = wdro.UncertainParameter(name="c", samples=pd.DataFrame(data, columns=list(ASSETS)))
    d = wdro.UncertainParameter(name="d", samples=pd.DataFrame(data, columns=list(ASSETS[::-1])))
    with pytest.raises(ValueError, match=r"'d'.*'c'.*another order"):
        wdro.Problem(cp.Minimize((c + d) @ x), [cp.sum(x) == 1])
    other = wdro.UncertainParameter(samples=pd.DataFrame(data, columns=["e", "f", "g", "h"]))
    wdro.Problem(cp.Minimize((c + other) @ x), [cp.sum(x) == 1])  # words of their own
    part = wdro.UncertainParameter(name="e", samples=pd.DataFrame(data, columns=["oil", *"fgh"]))
    with pytest.raises(ValueError, match=r"meet entry by entry and have different labels"):
        wdro.Problem(cp.Minimize((c + part) @ x), [cp.sum(x) == 1])
    with pytest.raises(ValueError, match=r"'d'.*another order"):
        wdro.Problem(cp.Minimize(0), [cp.sum(x) == 1, wdro.expectation((c + d) @ x) <= 9])


def test_a_callable_loss_is_held_to_the_order_as_well():
    feasible, x = wdro.sets.Subsets(list(ASSETS), k=2), cp.Variable(4)
    frame = pd.DataFrame(np.ones((3, 4)), columns=list(ASSETS[::-1]))
    c = wdro.UncertainParameter(name="c", samples=frame)

    def function(values, scenarios):
        return scenarios[c] @ values[x], lambda weights: {x: weights @ scenarios[c]}

    loss = wdro.CallableLoss(function, x, c, convex=True)
    with pytest.raises(ValueError, match=r"'c'.*another order"):
        wdro.Problem(loss, [wdro.In(x, feasible)])


def test_an_undirected_edge_has_two_names():
    tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
    data = np.random.default_rng(0).uniform(1, 2, (5, 4))
    turned = [(v, u) for u, v in tree.edges]
    frame = pd.DataFrame(data[:, ::-1], columns=turned[::-1])
    cost = wdro.UncertainParameter(samples=frame, labels=tree)
    assert cost.columns == tree.edges
    np.testing.assert_array_equal(cost.samples, data)
    np.testing.assert_array_equal(cost.as_scenarios(frame, "test"), data)
    stated(tree, wdro.UncertainParameter(samples=dict(zip(turned, data.T))))


def test_labels_of_an_array():
    data = np.ones((3, 2))
    assert wdro.UncertainParameter(samples=data, labels=["a", "b"]).columns == ("a", "b")
    for labels, message in (
        (["a"], "1 label"),
        (["a", "a"], "'a' twice"),
        ("ab", "list of labels"),
        (wdro.sets.Simplex(2), "no labels"),
    ):
        with pytest.raises(ValueError, match=message):
            wdro.UncertainParameter(2, samples=data, labels=labels)
    with pytest.raises(ValueError, match="same length"):
        wdro.UncertainParameter(samples={"a": [1.0, 2.0], "b": [1.0]})


# ------------------------------------------------------------------ weights, matrices, bounds
DATA = np.random.default_rng(3).normal(0.1, 1.0, (9, 4)) * [1, 2, 3, 4]
FRAME = pd.DataFrame(DATA, columns=list(ASSETS))
POINT = np.array([0.4, 0.1, 0.3, 0.2])


def worst(samples, cost, support=None, **attributes):
    x = cp.Variable(4, nonneg=True)
    z = wdro.UncertainParameter(4, "z", samples=samples, support=support, **attributes)
    given = cost(z) if callable(cost) else cost
    loss = cp.Minimize(cp.maximum(z @ x, 0.1))
    problem = wdro.Problem(loss, [cp.sum(x) == 1], wdro.WassersteinBall(0.5, given))
    return problem.robust_value({x: POINT})


@pytest.mark.parametrize("cost", [wdro.costs.Norm, wdro.costs.SquaredEuclidean])
@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_matched(cost, seed):
    rng = np.random.default_rng(seed)
    weights, order = rng.uniform(0.5, 4, 4), [1, *rng.permutation([0, 2, 3])]
    expected = worst(FRAME, cost(weights=weights))
    series = pd.Series(weights, list(ASSETS)).iloc[order]
    for given in (series, series.to_dict()):
        by_name = lambda z, given=given: cost(weights={z: given})  # noqa: E731
        assert worst(FRAME, by_name) == pytest.approx(expected)
    assert worst(FRAME, cost(weights=series)) == pytest.approx(expected)
    other = series.rename({"gold": "Gold"})
    for given in (other, lambda z: {z: other}):
        with pytest.raises(ValueError, match=r"'gold'.*'Gold'"):
            worst(FRAME, lambda z: cost(weights=given(z) if callable(given) else given))  # noqa: B023


@pytest.mark.parametrize("name", ["covariance", "precision"])
@pytest.mark.parametrize("seed", SEEDS)
def test_matrices_are_matched(name, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    matrix = pd.DataFrame(root @ root.T + np.eye(4), list(ASSETS), list(ASSETS))
    order, rows = [ASSETS[i] for i in [1, 0, 3, 2]], [ASSETS[i] for i in rng.permutation(4)]
    expected = worst(FRAME, wdro.costs.Mahalanobis(**{name: matrix.to_numpy()}))
    for shuffled in (matrix.loc[order, order], matrix.loc[rows, order]):
        cost = wdro.costs.Mahalanobis(**{name: shuffled})
        assert worst(FRAME, cost) == pytest.approx(expected)
    for other in (matrix.rename(columns={"gold": "Gold"}), matrix.rename(index={"oil": "Oil"})):
        with pytest.raises(ValueError, match=r"'Gold'|'Oil'"):
            worst(FRAME, wdro.costs.Mahalanobis(**{name: other}))


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_are_matched(seed):
    rng = np.random.default_rng(seed)
    lower = DATA.min(axis=0) - rng.uniform(0.1, 1, 4)
    upper = DATA.max(axis=0) + rng.uniform(0.1, 5, 4)
    expected = worst(FRAME, wdro.costs.Norm(1), wdro.supports.Box(lower, upper))
    order = [1, *rng.permutation([0, 2, 3])]
    low, high = (pd.Series(side, list(ASSETS)).iloc[order] for side in (lower, upper))
    for sides in ((low, high), (lower, high), (low.to_dict(), high)):
        found = worst(FRAME, wdro.costs.Norm(1), wdro.supports.Box(*sides))
        assert found == pytest.approx(expected)
        assert worst(FRAME, wdro.costs.Norm(1), bounds=list(sides)) == pytest.approx(expected)
    rows = pd.DataFrame(np.vstack([np.eye(4), -np.eye(4)]), columns=list(ASSETS))
    region = wdro.supports.Polyhedron(rows.iloc[:, order], np.append(upper, -lower))
    assert worst(FRAME, wdro.costs.Norm(1), region) == pytest.approx(expected)
    for support in (
        wdro.supports.Box(low.rename({"oil": "Oil"}), upper),
        wdro.supports.Polyhedron(rows.rename(columns={"oil": "Oil"}), np.append(upper, -lower)),
    ):
        with pytest.raises(ValueError, match=r"'oil'.*'Oil'"):
            worst(FRAME, wdro.costs.Norm(1), support)


def test_weights_of_several_parameters():
    x = cp.Variable(nonneg=True)
    price = wdro.UncertainParameter(name="price", samples=[1.0, 2.0])
    demand = wdro.UncertainParameter(name="demand", samples=[3.0, 5.0])

    def value(weights):
        cost = wdro.costs.SquaredEuclidean(weights=weights)
        loss = cp.Minimize(price * x + demand)
        return wdro.Problem(loss, [x >= 1], wdro.WassersteinBall(0.5, cost)).solve()

    right = value({price: 1.0, demand: 9.0})
    assert value(pd.Series({"demand": 9.0, "price": 1.0})) == pytest.approx(right)
    with pytest.raises(ValueError, match=r"'demands'"):
        value(pd.Series({"demands": 9.0, "price": 1.0}))


def test_weights_and_capacities_of_sets_are_matched():
    weights = pd.Series({"stocks": 4.0, "bonds": 1.0, "oil": 3.0, "gold": 2.0})
    for given in (weights, weights.to_dict()):
        bag = wdro.sets.Knapsack(given, 4.0, items=list(ASSETS))
        np.testing.assert_array_equal(bag.weights, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"'gold'.*'Gold'"):
        wdro.sets.Knapsack(weights.rename({"gold": "Gold"}), 4.0, items=list(ASSETS))
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2)])
    capacity = pd.Series([3.0, 2.0, 1.0], pd.MultiIndex.from_tuples([(1, 2), (0, 2), (0, 1)]))
    found = wdro.sets.Flow(graph, {0: 1.0, 2: -1.0}, capacity=capacity)
    np.testing.assert_array_equal(found.bounds[1], [1.0, 2.0, 3.0])


# ------------------------------------------------------------------ rows
def paired(first, second, **given):
    x = cp.Variable(2, nonneg=True)
    c = wdro.UncertainParameter(2, samples=first, name="c", **given)
    d = wdro.UncertainParameter(samples=second, name="d")
    problem = wdro.Problem(cp.Minimize((c @ x) * d), [cp.sum(x) == 1], wdro.WassersteinBall(0.0))
    return problem, x


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_paired_by_their_labels(seed):
    rng = np.random.default_rng(seed)
    days = pd.date_range("2024-01-01", periods=6) if seed % 2 else pd.RangeIndex(6)
    c = pd.DataFrame(rng.normal(size=(6, 2)), days, ["a", "b"])
    d = pd.Series(rng.normal(size=6), days)
    p = rng.dirichlet(np.ones(6))
    test_c, test_d = c + 1, d + 1
    rows = [1, *rng.permutation([0, 2, 3, 4, 5])]
    plain, x = paired(c.to_numpy(), d.to_numpy(), probabilities=p)
    expected = plain.evaluate(decision={x: [0.5, 0.5]}).mean
    held_out = plain.losses({"c": test_c.to_numpy(), "d": test_d.to_numpy()}, {x: [0.5, 0.5]})
    problem, x = paired(c, d.iloc[rows], probabilities=p)
    at = {x: [0.5, 0.5]}
    assert problem.evaluate(decision=at).mean == pytest.approx(expected)
    found = problem.losses({"c": test_c, "d": test_d.iloc[rows]}, at)
    np.testing.assert_allclose(found, held_out)
    twin = problem.with_samples({"c": c, "d": d.iloc[rows]}, probabilities=p)
    assert twin.evaluate(decision=at).mean == pytest.approx(expected)
    series = pd.Series(p, days)
    again = problem.with_samples(probabilities=series)
    assert again.evaluate(decision=at).mean == pytest.approx(expected)
    again = problem.with_samples(probabilities=series.iloc[rows])
    assert again.evaluate(decision=at).mean == pytest.approx(expected)
    with pytest.raises(ValueError, match="the rows of probabilities of the samples, paired with"):
        problem.with_samples(probabilities=series.set_axis(days + (days[1] - days[0])))
    part = problem.with_samples(rows=[1, 0], probabilities=pd.Series([0.5, 0.5], days[[1, 0]]))
    assert part.evaluate(decision=at).mean == pytest.approx(twin.losses(None, at)[:2].mean())
    later = d.set_axis(days + (days[1] - days[0]))
    choices = {"radii": [0.0], "progress": False}
    scores = [
        wdro.select_radius(problem, test={"c": test_c, "d": series}, **choices).scores
        for series in (test_d, test_d.iloc[rows])
    ]
    np.testing.assert_allclose(*scores)
    for wrong in (
        lambda: paired(c, later),
        lambda: problem.losses({"c": test_c, "d": later}, at),
        lambda: problem.with_samples({"c": c, "d": later}),
    ):
        with pytest.raises(ValueError, match=r"rows of 'd'.*'c'.*to_numpy"):
            wrong()


def test_rows_that_cannot_be_told_apart_are_refused():
    c = pd.DataFrame(np.ones((3, 2)), ["p", "q", "q"])
    paired(c, pd.Series([1.0, 2.0, 3.0], c.index))
    with pytest.raises(ValueError, match=r"'q' twice"):
        paired(c, pd.Series([1.0, 2.0, 3.0], ["q", "p", "q"]))


# ------------------------------------------------------------------ numbers that are labels
@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_in_another_order_are_labels(seed):
    rng = np.random.default_rng(seed)
    order = [1, *rng.permutation([0, 2, 3])]
    frame = pd.DataFrame(DATA)
    weights = rng.uniform(0.5, 4, 4)
    expected = worst(frame, wdro.costs.Norm(2, weights))
    series = pd.Series(weights)[order]
    assert worst(frame, wdro.costs.Norm(2, series)) == pytest.approx(expected)
    root = rng.normal(size=(4, 4))
    matrix = pd.DataFrame(root @ root.T + np.eye(4))
    right = worst(frame, wdro.costs.Mahalanobis(matrix.to_numpy()))
    cost = wdro.costs.Mahalanobis(matrix.iloc[order, order])
    assert worst(frame, cost) == pytest.approx(right)
    x = cp.Variable(4)
    z = wdro.UncertainParameter(4, "z", samples=frame)
    feasible = wdro.sets.Subsets(4, k=2)
    problem = wdro.Problem(cp.Minimize(z @ x), [wdro.In(x, feasible)])
    at = {x: POINT}
    np.testing.assert_allclose(problem.losses(frame.iloc[:, order], at), DATA @ POINT)
    moved = wdro.UncertainParameter(4, "z", samples=frame.iloc[:, order])
    assert moved.columns == tuple(order)
    np.testing.assert_array_equal(moved.as_scenarios(frame, "test"), DATA[:, order])
    with pytest.raises(ValueError, match=r"'z'.*another order"):
        wdro.Problem(cp.Minimize(moved @ x), [wdro.In(x, feasible)])
    held = wdro.UncertainParameter(4, "z", samples=frame.iloc[:, order], labels=feasible)
    np.testing.assert_array_equal(held.samples, DATA)


def test_sets_of_different_labels_may_share_a_decision():
    graph = nx.complete_graph(3)
    x, y = cp.Variable(3), cp.Variable(3)
    tree, team = wdro.sets.SpanningTree(graph), wdro.sets.Subsets(["a", "b", "c"], k=2)
    wdro.Problem(cp.Minimize(cp.sum_squares(x - y)), [wdro.In(x, tree), wdro.In(y, team)])
