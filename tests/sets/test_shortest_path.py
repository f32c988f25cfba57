import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from tests.references.enumeration import all_paths
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Flow, ShortestPath, check

BACKENDS = ("scipy", "networkx", "ortools", "cvxpy")


def graphs():
    """(graph, source, target): all kinds of graphs, parallel edges, loops, dead ends, cycles."""
    directed = nx.MultiDiGraph([(0, 1), (0, 1), (1, 2), (0, 2), (2, 1), (2, 3), (1, 3), (3, 3)])
    directed.add_edges_from([(3, 4), (5, 0)])
    undirected = nx.MultiGraph([("s", "a"), ("a", "b"), ("a", "b"), ("b", "t"), ("s", "b")])
    undirected.add_edges_from([("a", "t"), ("a", "a"), ("p", "q"), ("t", "dead end")])
    return {
        "edge": (nx.Graph([("u", "v")]), "v", "u"),
        "grid": (nx.grid_2d_graph(3, 3), (0, 0), (2, 2)),
        "complete": (nx.complete_graph(5), 0, 4),
        "directed with cycles": (directed, 0, 3),
        "undirected with parallel edges": (undirected, "s", "t"),
        "acyclic": (nx.DiGraph((i, j) for i in range(5) for j in range(i + 1, 5)), 0, 4),
    }


NONNEGATIVE = {
    "random": lambda rng, n: rng.uniform(0, 1, n),
    "zero": lambda rng, n: np.zeros(n),
    "equal": lambda rng, n: np.full(n, 3.0),
    "many zeros": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "tiny": lambda rng, n: 1e-12 * rng.uniform(0, 1, n),
    "huge": lambda rng, n: 1e12 * rng.uniform(0, 1, n),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_arcs_are_right_where_no_cycle_is_negative(backend):
    graph = nx.DiGraph([("s", "a"), ("a", "b"), ("b", "a"), ("b", "t"), ("s", "b"), ("a", "t")])
    oracle = ShortestPath(graph, "s", "t", backend=backend)
    assert oracle.nonnegative_directions
    weight = {("s", "a"): 2, ("a", "b"): -1, ("b", "a"): 1.5, ("b", "t"): 0, ("s", "b"): 3}
    path = oracle.minimize([weight.get(edge, 4.0) for edge in oracle.edges])
    assert set(oracle.selected(path)) == {("s", "a"), ("a", "b"), ("b", "t")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cycle_of_weight_zero_is_not_part_of_the_path(backend):
    graph = nx.DiGraph([("s", "a"), ("a", "b"), ("b", "a"), ("a", "t")])
    oracle = ShortestPath(graph, "s", "t", backend=backend)
    path = oracle.minimize([{("a", "b"): -1.0, ("b", "a"): 1.0}.get(e, 1.0) for e in oracle.edges])
    assert set(oracle.selected(path)) == {("s", "a"), ("a", "t")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_negative_cycle_is_named(backend):
    graph = nx.DiGraph([("s", "a"), ("a", "b"), ("b", "a"), ("b", "t")])
    oracle = ShortestPath(graph, "s", "t", backend=backend)
    weights = [{("b", "a"): -2.0}.get(edge, 1.0) for edge in oracle.edges]
    with pytest.raises(ValueError, match=r"cycle '[ab]' -> '[ab]' -> '[ab]' .* weight -1"):
        oracle.minimize(weights)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_negative_undirected_edge_is_named(backend):
    oracle = ShortestPath(nx.path_graph(4), 0, 3, backend=backend)
    with pytest.raises(ValueError, match=r"edge \(1, 2\) has the negative weight -0\.5"):
        oracle.minimize([1, -0.5, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounding_errors_below_zero_are_forgiven(backend):
    oracle = ShortestPath(nx.cycle_graph(4), 0, 2, backend=backend)
    path = oracle.minimize([1.0 if edge in {(0, 1), (1, 2)} else -1e-17 for edge in oracle.edges])
    assert set(oracle.selected(path)) == {(2, 3), (0, 3)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_edges_that_no_path_can_use_do_not_matter(backend):
    graph = nx.DiGraph([("s", "t"), ("t", "u"), ("u", "t"), ("v", "v"), ("v", "s"), ("s", "s")])
    oracle = ShortestPath(graph, "s", "t", backend=backend)
    path = oracle.minimize([1.0 if edge == ("s", "t") else -5.0 for edge in oracle.edges])
    assert oracle.selected(path) == [("s", "t")]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_backends_agree_in_answers_and_in_refusals(data):
    count = data.draw(st.integers(2, 6))
    node = st.integers(0, count - 1)
    kind = data.draw(st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]))
    graph = kind([(i, i + 1) for i in range(count - 1)])
    graph.add_edges_from(data.draw(st.lists(st.tuples(node, node), max_size=7)))
    paths = ShortestPath(graph, 0, count - 1)
    lowest = data.draw(st.sampled_from([0, -1]))
    size = paths.dimension
    weights = np.array(
        data.draw(st.lists(st.integers(lowest, 3), min_size=size, max_size=size)), dtype=float
    )
    answers = []
    for name in BACKENDS:
        try:
            answers.append(weights @ paths.with_backend(name).minimize(weights))
        except ValueError as refusal:
            answers.append(str(refusal))
    assert len(set(answers)) == 1
    if not isinstance(answers[0], str):
        assert answers[0] == (all_paths(graph, 0, count - 1) @ weights).min()


@pytest.mark.parametrize("name", graphs())
def test_the_cvxpy_form_has_the_same_minima_for_nonnegative_weights(name):
    graph, source, target = graphs()[name]
    paths, oracle = all_paths(graph, source, target), ShortestPath(graph, source, target)
    x = cp.Variable(oracle.dimension)
    rng = np.random.default_rng(2)
    for draw in (NONNEGATIVE["random"], NONNEGATIVE["many zeros"]):
        weights = draw(rng, oracle.dimension)
        problem = cp.Problem(cp.Minimize(weights @ x), oracle.constraints(x))
        problem.solve()
        assert problem.value == pytest.approx((paths @ weights).min(), abs=1e-6)


def test_round_follows_the_heaviest_flow():
    oracle = ShortestPath(nx.cycle_graph(4), 0, 2)
    flow = [0.8 if edge in {(0, 1), (1, 2)} else 0.2 for edge in oracle.edges]
    assert set(oracle.selected(oracle.round(flow))) == {(0, 1), (1, 2)}


def test_unsuitable_ends_are_refused():
    graph = nx.DiGraph([("a", "b"), ("c", "d")])
    with pytest.raises(ValueError, match="source 'x' is not a node"):
        ShortestPath(graph, "x", "b")
    with pytest.raises(ValueError, match="target 'y' is not a node"):
        ShortestPath(graph, "a", "y")
    with pytest.raises(ValueError, match="both 'a'"):
        ShortestPath(graph, "a", "a")
    with pytest.raises(ValueError, match="no path leads from 'a' to 'd'; add"):
        ShortestPath(graph, "a", "d")
    with pytest.raises(ValueError, match="no path leads from 'b' to 'a'; there is one the other"):
        ShortestPath(graph, "b", "a")
    with pytest.raises(ValueError, match="networkx graph, got dict"):
        ShortestPath({"a": ["b"]}, "a", "b")
    with pytest.raises(ValueError, match="Did you mean 'scipy'"):
        ShortestPath(graph, "a", "b", backend="scpy")


def test_describe_says_what_kind_of_graph_it_is():
    assert "an acyclic directed graph" in ShortestPath(*graphs()["acyclic"]).describe()
    assert "in a directed graph" in ShortestPath(*graphs()["directed with cycles"]).describe()
    assert "an undirected graph" in ShortestPath(*graphs()["grid"]).describe()


def test_the_list_of_backends():
    assert ShortestPath.backends() == (*BACKENDS, "highs")


def test_forbidden_and_mandatory_arcs_are_part_of_the_set():
    graph = nx.DiGraph((i, j) for i in range(5) for j in range(i + 1, 5))
    oracle = ShortestPath(graph, 0, 4, forbidden=[(1, 2)], mandatory=[(2, 3)])
    paths = {tuple(oracle.selected(oracle.minimize(g))) for g in np.eye(10) - np.eye(10)[::-1]}
    assert all((2, 3) in path and (1, 2) not in path for path in paths)
    assert check(oracle, directions=15).passed
    x = cp.Variable(oracle.dimension)
    assert oracle.contains(oracle.minimize(np.ones(oracle.dimension)))
    assert len(oracle.constraints(x)) > len(ShortestPath(graph, 0, 4).constraints(x))


def test_a_mandatory_edge_beside_cycles_has_no_cvxpy_form():
    graph = nx.grid_2d_graph(3, 3)
    free = ShortestPath(graph, (0, 0), (2, 2))
    oracle = ShortestPath(graph, (0, 0), (2, 2), mandatory=[((0, 1), (0, 2))])
    assert free.has_constraints
    assert not oracle.has_constraints
    with pytest.raises(NotImplementedError, match="go round cycles beside their path"):
        oracle.constraints(cp.Variable(oracle.dimension))
    assert check(oracle, directions=8).passed


def test_held_edges_that_leave_no_path_are_refused():
    graph = nx.DiGraph([("s", "a"), ("s", "b"), ("a", "t"), ("b", "t"), ("t", "u")])
    with pytest.raises(
        InfeasibleError, match=r"from 's' to 't' through \('s', 'a'\), \('s', 'b'\)"
    ):
        ShortestPath(graph, "s", "t", mandatory=[("s", "a"), ("s", "b")])
    with pytest.raises(InfeasibleError, match=r"without \('s', 'a'\), \('s', 'b'\); allow"):
        ShortestPath(graph, "s", "t", forbidden=[("s", "a"), ("s", "b")])
    with pytest.raises(InfeasibleError, match=r"edge \('t', 'u'\) is mandatory, and no point"):
        ShortestPath(graph, "s", "t", mandatory=[("t", "u")])


def test_a_negative_cycle_comes_with_two_ways_out():
    graph = nx.DiGraph([("s", "a"), ("a", "b"), ("b", "a"), ("b", "t")])
    weights = np.array([{("b", "a"): -2.0}.get(edge, 1.0) for edge in graph.edges])
    with pytest.raises(
        ValueError, match=r"backend='highs' .* sets.Flow\(graph, \{'s': 1, 't': -1\}"
    ):
        ShortestPath(graph, "s", "t").minimize(weights)
    path = ShortestPath(graph, "s", "t", backend="highs").minimize(weights)
    assert weights @ path == 3.0
    flow = Flow(graph, {"s": 1, "t": -1}, capacity=1).minimize(weights)
    assert weights @ flow <= 3.0


def test_a_loss_with_a_slope_below_zero_on_a_graph_with_cycles():
    graph = nx.DiGraph([("s", "a"), ("a", "b"), ("b", "a"), ("b", "t"), ("s", "b"), ("a", "t")])
    rng = np.random.default_rng(0)
    samples = rng.uniform(1, 2, (20, graph.number_of_edges()))

    def problem(feasible):
        x = cp.Variable(feasible.dimension)
        time = wdro.UncertainParameter(feasible.dimension, samples=samples)
        late = cp.square(time @ x - 6.0)  # as near to an appointment as can be
        ball = wdro.WassersteinBall(radius=0.01)
        return wdro.Problem(cp.Minimize(late), [wdro.In(x, feasible)], ambiguity=ball)

    with pytest.raises(ValueError, match=r"backend='highs' .* sets\.Flow"):
        problem(ShortestPath(graph, "s", "t")).solve(method="smoothed")
    simple = problem(ShortestPath(graph, "s", "t", backend="highs"))
    simple.solve(method="erm")
    paths = all_paths(graph, "s", "t")
    hull = cp.Variable(len(paths), nonneg=True)
    mean = cp.sum_squares(samples @ (paths.T @ hull) - 6.0) / len(samples)
    best = cp.Problem(cp.Minimize(mean), [cp.sum(hull) == 1]).solve(solver=cp.CLARABEL)
    assert simple.value == pytest.approx(best, rel=1e-3)
    cycles = problem(Flow(graph, {"s": 1, "t": -1}, capacity=1))
    cycles.solve(method="erm")
    assert cycles.value <= simple.value + 1e-6


@pytest.mark.parametrize("cheap", [1, 2])
def test_weights_that_are_rounded_away_are_in_the_slack(cheap):
    """Beside an arc of 1e12, whole numbers of 44 bits do not tell 1e-3 from 1e-4."""
    graph = nx.DiGraph([(0, 1), (1, 3), (0, 2), (2, 3), (0, 3)])
    paths = wdro.sets.ShortestPath(graph, 0, 3, backend="ortools")
    weights = np.array([1e12 if e == (0, 3) else 1e-4 if cheap in e else 1e-3 for e in paths.edges])
    path, slack = paths.minimize_with_slack(weights)
    assert weights @ path - 2e-4 <= slack <= 0.1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-310, 1e-300, 1e300])
def test_weights_of_any_size_are_told_apart_in_integers(size):
    graph = nx.DiGraph([(0, 1), (1, 3), (0, 2), (2, 3), (0, 3)])
    paths = wdro.sets.ShortestPath(graph, 0, 3, backend="ortools")
    weights = size * np.array([3.0 if e == (0, 3) else 1.0 if 2 in e else 2.0 for e in paths.edges])
    assert set(paths.selected(paths.minimize(weights))) == {(0, 2), (2, 3)}


def mixtures(paths, rng, count):
    """Points of the hull of the paths, and as many with a cycle beside the path."""
    return rng.dirichlet(np.ones(len(paths)), size=count) @ paths


def test_mixtures_of_simple_paths_are_told_from_flows_round_cycles():
    graph = nx.grid_2d_graph(3, 2)
    path = ShortestPath(graph, (0, 0), (2, 1))
    rng = np.random.default_rng(0)
    for x in mixtures(np.array(all_paths(graph, (0, 0), (2, 1))), rng, 20):
        assert path.contains(x)
    direct = path.minimize(np.ones(path.dimension))
    cycle = 0.3 * (1.0 - direct)
    assert not path.contains(np.clip(direct + cycle, 0.0, 1.0))


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_that_falls_along_cycles_is_refused_or_solved_over_simple_paths(seed):
    """The flows of the CVXPY form are more than the mixtures of simple paths."""
    graph = nx.grid_2d_graph(3, 2)
    samples = np.random.default_rng(seed).uniform(0.2, 2.0, size=(8, 7))
    points = np.array(all_paths(graph, (0, 0), (2, 1)))
    shares = cp.Variable(len(points), nonneg=True)
    x = points.T @ shares
    risk = cp.sum(cp.abs(samples @ x - 5.0)) / 8 + 0.1 * cp.norm(x)
    best = cp.Problem(cp.Minimize(risk), [cp.sum(shares) == 1]).solve(solver="CLARABEL")

    def solve(backend):
        path = ShortestPath(graph, (0, 0), (2, 1), backend=backend)
        x = cp.Variable(7)
        z = wdro.UncertainParameter(7, samples=samples)
        loss = cp.Minimize(cp.abs(z @ x - 5.0))
        problem = wdro.Problem(loss, [wdro.In(x, path)], wdro.WassersteinBall(0.01))
        return problem.solve()

    assert solve("highs") == pytest.approx(best, rel=2e-4)
    with pytest.raises(ValueError, match="use backend='highs', which knows the simple paths"):
        solve("scipy")
