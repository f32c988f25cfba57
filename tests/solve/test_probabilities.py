"""Samples with probabilities: the same as samples that are repeated, for everything."""

import pickle
from itertools import product

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.exact_cases import LOSSES, SUPPORTS, case
from tests.references.pairwise import pairwise
from tests.solve.test_with_samples import KINDS, draws
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe

TIMES = np.array([3, 1, 2, 2, 1, 5])
"""How often each of six samples is repeated."""
P = TIMES / TIMES.sum()


def pair(problem, count=6):
    """The problem on its first samples, with probabilities and with repetitions."""
    first = problem.with_samples(rows=np.arange(count))
    times = TIMES[:count]
    weighted = first.with_samples(rows=np.arange(count), probabilities=times / times.sum())
    return weighted, first.with_samples(rows=np.repeat(np.arange(count), times))


def close(one, other, rel=1e-8):
    assert one == pytest.approx(other, rel=rel, abs=rel * 1e-1)


# ------------------------------------------------------------------ solving
COSTS = ("squared", "weighted", "mahalanobis", "norm1", "norm2", "norminf")


@pytest.mark.parametrize(("loss", "cost", "support"), pairwise(product(LOSSES, COSTS, SUPPORTS)))
def test_worst_case_risks_are_those_of_repeated_samples(loss, cost, support):
    given = case(loss, cost, support, radius=0.3)
    weighted, repeated = pair(given.problem)
    decision = given.model.feasible.layout.split(given.flat)
    value = repeated.robust_value(decision)
    if value is None:
        assert weighted.robust_value(decision) is None
        return
    polyhedral = support == "triangle" or (support == "box" and cost not in ("squared", "norm1"))
    close(weighted.robust_value(decision), value, rel=1e-6 if polyhedral else 1e-8)
    worst = weighted.worst_case("exact", decision)
    np.testing.assert_allclose(np.bincount(worst.source, worst.weights, 6), P, rtol=1e-6)
    assert worst.transport_cost <= 0.3 * (1 + 1e-6)
    again = repeated.worst_case("exact", decision)
    close(worst.expected_loss, again.expected_loss, rel=1e-4 if polyhedral else 1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_erm_is_that_of_repeated_samples(loss):
    weighted, repeated = pair(case(loss, "squared", "plane", radius=0.2).problem)
    close(weighted.solve("erm"), repeated.solve("erm"), rel=2e-7)
    x = repeated.solution
    close(weighted.evaluate(decision=x).mean, repeated.evaluate(decision=x).mean)


def has_program(loss, cost, support):
    curved = loss in ("square", "logistic", "huber")
    return not curved or (support == "plane" and (loss == "square") == (cost == "squared"))


@pytest.mark.parametrize(
    ("loss", "cost", "support"),
    pairwise(
        entry
        for entry in product(LOSSES, ("squared", "norm1"), ("plane", "box"))
        if has_program(*entry)
    ),
)
def test_programs_are_those_of_repeated_samples(loss, cost, support):
    weighted, repeated = pair(case(loss, cost, support, radius=0.2).problem)
    for problem in (weighted, repeated):
        problem.solve("exact")
    close(weighted.value, repeated.value, rel=2e-7)  # what a conic solver leaves open
    x = repeated.solution
    close(weighted.robust_value(x), repeated.robust_value(x))
    close(weighted.evaluate(decision=x).mean, repeated.evaluate(decision=x).mean)


@pytest.mark.parametrize(("make", "options"), KINDS.values(), ids=KINDS)
def test_solves_are_those_of_repeated_samples(make, options):
    weighted, repeated = pair(make(draws()))
    method = options.get("method", "auto")
    rel = 2e-3 if method == "smoothed" or options.get("seed") else 1e-6
    close(weighted.solve(**options), repeated.solve(**options), rel=rel)
    if (value := repeated.robust_value(repeated.solution)) is not None:
        close(weighted.robust_value(repeated.solution), value)


def test_a_sample_of_probability_zero_changes_nothing():
    data = draws()
    x = cp.Variable(3, nonneg=True)
    far = np.vstack([data[:4], [[1e6, -1e6, 1e6]], data[4:6]])
    p = np.insert(P, 4, 0.0)

    def build(samples, probabilities):
        xi = wdro.UncertainParameter(3, "xi", samples=samples, probabilities=probabilities)
        cost = wdro.costs.SquaredEuclidean(weights="standardize")
        loss = cp.maximum(-xi @ x, 0.1 - 2 * xi @ x)
        return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.1, cost))

    alone, more = build(data[:6], P), build(far, p)
    for method in ("erm", "exact", "smoothed"):
        assert alone.solve(method) == more.solve(method)
    assert alone.robust_value() == more.robust_value()
    np.testing.assert_array_equal(alone.losses(), more.losses())
    assert "equal ones), 1 more of probability 0" in more.explain()
    with pytest.raises(ValueError, match="rows of the samples with positive probabilities must"):
        more.with_samples(rows=[0, 6])
    assert len(more.worst_case("exact").weights) == len(alone.worst_case("exact").weights)


def test_the_order_of_the_samples_does_not_matter():
    problem = case("cvar", "squared", "plane", 0.2).problem
    order = np.array([3, 0, 5, 1, 4, 2])
    weighted = problem.with_samples(rows=np.arange(6), probabilities=P)
    shuffled = problem.with_samples(rows=order, probabilities=P[order])
    again = weighted.with_samples(rows=order)
    for method in ("erm", "exact", "smoothed"):
        value = weighted.solve(method)
        close(shuffled.solve(method), value, rel=1e-6)
        close(again.solve(method), value, rel=1e-6)


def test_equal_probabilities_are_no_probabilities():
    problem = case("absolute", "norm2", "plane", 0.2).problem
    equal = problem.with_samples(rows=np.arange(6), probabilities=np.full(6, 1 / 6))
    for method in ("erm", "exact", "smoothed"):
        assert equal.solve(method) == problem.solve(method)


# ------------------------------------------------------------------ strategies
def sioux(n=6):
    rng = np.random.default_rng(3)
    x = cp.Variable(4, nonneg=True)
    time = wdro.UncertainParameter(4, "time", samples=rng.uniform(1, 2, (n, 4)), nonneg=True)
    beta = wdro.UncertainParameter(
        (), "beta", samples=rng.uniform(1, 1.5, n), support=wdro.supports.Box(1, 2)
    )
    loss = time @ x * (1 + beta) + cp.exp(0.3 * beta) + cp.sum_squares(x)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))


def coupled(d=3, r=1, cost=None, support=None, n=6):
    rng = np.random.default_rng(d + r)
    x = cp.Variable(d)
    xi = wdro.UncertainParameter(d, "xi", samples=rng.uniform(-1, 1, (n, d)), support=support)
    B = rng.normal(size=(r, d))
    loss = cp.logistic(xi @ x) + cp.sum_squares(x)
    for b in B[1:]:
        loss = loss + cp.logistic(1.0 - xi @ b)
    return wdro.Problem(
        cp.Minimize(loss), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1, cost or COSTS_3["squared"])
    )


COSTS_3 = {
    "squared": wdro.costs.SquaredEuclidean(),
    "norm2": wdro.costs.Norm(2),
    "norminf": wdro.costs.Norm(np.inf),
}


def pieces(cost, support=None, d=3):
    rng = np.random.default_rng(5)
    x = cp.Variable(d)
    xi = wdro.UncertainParameter(d, "xi", samples=rng.uniform(-1, 1, (6, d)), support=support)
    loss = cp.maximum(xi @ x, -2 * (xi @ x) - 0.1) + cp.sum_squares(x)
    return wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1, cost))


def separate(cost, support=None):
    rng = np.random.default_rng(6)
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, "xi", samples=rng.uniform(-1, 1, (6, 3)), support=support)
    loss = cp.sum(cp.maximum(x - xi, 3 * (xi - x))) + cp.sum_squares(x)
    return wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1, cost))


def curved(support=None):
    rng = np.random.default_rng(7)
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, "xi", samples=rng.uniform(-1, 1, (6, 3)), support=support)
    loss = cp.sum(cp.logistic(cp.multiply(xi, x))) + cp.square(xi[0]) + xi @ x
    return wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1))


def linear(support=None, cost=None):
    rng = np.random.default_rng(8)
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, "xi", samples=rng.uniform(-1, 1, (6, 3)), support=support)
    return wdro.Problem(
        cp.Minimize(xi @ x + cp.sum_squares(x)),
        [cp.abs(x) <= 1],
        wdro.WassersteinBall(0.1, cost or COSTS_3["squared"]),
    )


BOX = wdro.supports.Box(-1.2, 1.5)
WAYS = {
    "closed form": (linear, "closed_form"),
    "closed form on a box": (lambda: linear(BOX), "closed_form"),
    "closed form on half lines": (lambda: linear(wdro.supports.Box(-1.2)), "closed_form"),
    "separable": (lambda: separate(COSTS_3["squared"]), "separable"),
    "separable, distances": (lambda: separate(wdro.costs.Norm(1), BOX), "separable"),
    "separable, smooth": (lambda: curved(BOX), "separable"),
    "low rank 1": (coupled, "low_rank"),
    "low rank 2": (lambda: coupled(r=2), "low_rank"),
    "low rank, pieces": (lambda: pieces(COSTS_3["squared"]), "low_rank"),
    "norms, one form": (lambda: pieces(COSTS_3["norm2"]), "norms"),
    "norms, terms": (lambda: separate(COSTS_3["norm2"]), "norms"),
    "norms, mixture": (lambda: coupled(cost=COSTS_3["norm2"]), "norms"),
    "norms, mixture, affine": (lambda: linear(cost=COSTS_3["norm2"]), "norms"),
    "norms, mixture, affine on a box": (lambda: linear(BOX, COSTS_3["norm2"]), "norms"),
    "cells on a line": (lambda: coupled(d=1), "cells"),
    "cells in the plane": (lambda: coupled(d=2), "cells"),
    "conditional": (sioux, "conditional"),
    "tilted": (lambda: coupled(d=4, r=4), "tilted"),
    "tilted on a triangle": (lambda: case("cvar", "norm2", "triangle", 0.1).problem, "tilted"),
    "gaussian": (coupled, "gaussian"),
}


def built(problem, name, epsilon=0.05, sigma=0.2, draws=64):
    model = problem._model
    rule = STRATEGIES[name].build(model, Scales(epsilon, sigma, draws))
    x = np.random.default_rng(9).uniform(0.1, 0.9, model.loss.dimension)
    rule.refresh(x, 0.7)
    return rule, x


@pytest.mark.parametrize(("make", "name"), WAYS.values(), ids=WAYS)
def test_integrals_are_averages_of_those_of_each_sample(make, name):
    """Draws of sample k are the same in a slice over it alone: no tolerance for noise."""
    problem = make()
    assert STRATEGIES[name].refusal(problem._model) is None
    weighted = problem.with_samples(rows=np.arange(6), probabilities=P)
    rule, x = built(weighted, name)
    stream = Stream(seed=1)
    whole = rule.slice(x, np.arange(6), stream)
    value, slope, gradient = 0.0, 0.0, 0.0
    at, steep = whole.evaluate(0.7), whole.gradient(0.7)
    for k, p in enumerate(P):
        one = rule.slice(x, np.array([k]), stream)
        value = value + p * one.evaluate(0.7).value
        slope = slope + p * one.evaluate(0.7).slope
        gradient = gradient + p * one.gradient(0.7)
    rel = 1e-6 if name == "cells" or "mixture" in name else 1e-8
    close(at.value, value, rel)
    close(at.slope, slope, rel)
    np.testing.assert_allclose(steep, gradient, rtol=1e-6, atol=1e-8)
    if rule.exact and np.isfinite(at.curvature):
        step = 1e-4
        ahead, back = (whole.evaluate(0.7 + sign * step).slope for sign in (1, -1))
        assert at.curvature == pytest.approx((ahead - back) / (2 * step), rel=1e-3)


DRAWN = ("tilted", "gaussian")


@pytest.mark.parametrize(("make", "name"), WAYS.values(), ids=WAYS)
def test_smoothed_values_are_those_of_repeated_samples(make, name):
    weighted, repeated = pair(make())
    (mine, x), (theirs, _) = built(weighted, name), built(repeated, name)
    stream = Stream(seed=1)
    one = mine.slice(x, np.arange(6), stream)
    other = theirs.slice(x, np.arange(TIMES.sum()), stream)
    if not mine.exact:
        allowed = 6 * np.hypot(
            one.diagnostics(0.7).standard_error, other.diagnostics(0.7).standard_error
        )
        assert abs(one.evaluate(0.7).value - other.evaluate(0.7).value) <= allowed
        return
    close(one.evaluate(0.7).value, other.evaluate(0.7).value)
    close(one.evaluate(0.7).slope, other.evaluate(0.7).slope, rel=1e-6 if name == "cells" else 1e-8)
    np.testing.assert_allclose(one.gradient(0.7), other.gradient(0.7), rtol=1e-6, atol=1e-8)


def test_a_table_of_the_form_counts_probabilities():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(600, 3))
    times = rng.integers(1, 5, 600)
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, "xi", samples=data, probabilities=times / times.sum())
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(xi @ x)), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1)
    )
    repeated = problem.with_samples(np.repeat(data, times, axis=0))
    (mine, at), (theirs, _) = built(problem, "low_rank"), built(repeated, "low_rank")
    one = mine.slice(at, np.arange(600), Stream(0))
    other = theirs.slice(at, np.arange(times.sum()), Stream(0))
    assert next(iter(one._integrals(0.7))).table is not None
    close(one.evaluate(0.7).value, other.evaluate(0.7).value)
    close(one.evaluate(0.7).slope, other.evaluate(0.7).slope)
    np.testing.assert_allclose(one.gradient(0.7), other.gradient(0.7), rtol=1e-7, atol=1e-10)


def test_batches_are_drawn_by_the_probabilities():
    problem = coupled().with_samples(rows=np.arange(6), probabilities=P)
    rule, x = built(problem, "low_rank")
    from wdro_model.objectives.smoothed_risk import Smoothed

    objective = Smoothed(
        rule, size=6, radius=0.1, epsilon=0.05, sigma=0.2, convex=True, probabilities=P
    )
    rng = np.random.default_rng(0)
    batches = [rng.choice(6, 3, p=P) for _ in range(4000)]
    values = [objective.estimate(x, 0.7, batch, rng).value for batch in batches]
    error = np.std(values) / np.sqrt(len(values))
    assert abs(np.mean(values) - objective.evaluate(x, 0.7).value) <= 4 * error


@pytest.mark.parametrize("method", ["erm", "smoothed"])
def test_the_stochastic_method_ends_where_others_do(method):
    problem = coupled().with_samples(rows=np.arange(6), probabilities=P)
    best = problem.solve(method, solver=FrankWolfe(gap=1e-6))
    solver = MomentumFrankWolfe(batch_size=3, max_iterations=2000)
    options = {"integration": "low_rank"} if method == "smoothed" else {}
    found = problem.solve(method, solver=solver, **options)
    assert best - 1e-6 <= found <= best + 0.02 * abs(best)


def test_trees_and_boolean_decisions():
    rng = np.random.default_rng(2)
    tree = wdro.sets.SpanningTree(nx.complete_graph(4))
    x = cp.Variable(tree.dimension, boolean=True)
    cost = wdro.UncertainParameter(6, "cost", samples=rng.uniform(1, 3, (6, 6)))
    problem = wdro.Problem(
        cp.Minimize(cost @ x), [wdro.In(x, tree)], wdro.WassersteinBall(0.3, wdro.costs.Norm(2))
    )
    weighted, repeated = pair(problem)
    close(weighted.solve(), repeated.solve())


@pytest.mark.parametrize("unit", [1e-6, 1e7])
@pytest.mark.parametrize("cost", ["squared", "norm1"])
def test_probabilities_hold_in_any_units(unit, cost):
    """A model in units of its own is another model, with the same samples."""
    rng = np.random.default_rng(4)
    x = cp.Variable(3, nonneg=True)
    box = wdro.supports.Box(-3 * unit, 3 * unit)
    data = unit * rng.uniform(-1, 1, (6, 3))
    xi = wdro.UncertainParameter(3, "xi", samples=data, support=box, probabilities=P)
    radius = 0.1 * unit ** (2 if cost == "squared" else 1)
    kind = wdro.costs.Norm(1) if cost == "norm1" else wdro.costs.SquaredEuclidean()
    weighted = wdro.Problem(
        cp.Minimize(cp.maximum(xi @ x, -2 * (xi @ x))),
        [cp.sum(x) == 1],
        wdro.WassersteinBall(radius, kind),
    )
    repeated = weighted.with_samples(np.repeat(data, TIMES, axis=0))
    assert weighted.solve("exact") == pytest.approx(repeated.solve("exact"), rel=1e-6)
    value = repeated.robust_value(repeated.solution)
    assert weighted.robust_value(repeated.solution) == pytest.approx(value, rel=1e-8)
    worst = weighted.worst_case("exact")
    np.testing.assert_allclose(np.bincount(worst.source, worst.weights, 6), P, rtol=1e-6)


@pytest.mark.parametrize("method", ["erm", "exact"])
@pytest.mark.parametrize("loss", ["hinge", "absolute", "logistic", "square"])
def test_many_samples_with_probabilities(loss, method):
    """Programs for many samples may be others than those for few."""
    rng = np.random.default_rng(1)
    data, times = rng.normal(0.3, 1.0, (6000, 3)), rng.integers(1, 4, 6000)
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, "xi", samples=data, probabilities=times / times.sum())
    u = xi @ x
    written = {
        "hinge": cp.pos(1 - u),
        "absolute": cp.abs(1 - u),
        "logistic": cp.logistic(-u),
        "square": cp.square(1 - u),
    }[loss]
    cost = wdro.costs.SquaredEuclidean() if loss == "square" else wdro.costs.Norm(2)
    weighted = wdro.Problem(
        cp.Minimize(written), [cp.abs(x) <= 1], wdro.WassersteinBall(0.05, cost)
    )
    repeated = weighted.with_samples(np.repeat(data, times, axis=0))
    value = weighted.solve(method)
    close(
        value,
        repeated.evaluate(decision=weighted.solution).mean
        if method == "erm"
        else repeated.robust_value(weighted.solution),
        rel=1e-6,
    )
    close(value, repeated.solve(method), rel=1e-5)


def test_some_of_many_samples_are_drawn_by_their_probabilities():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(20_000, 2))
    p = 0.5 ** (np.arange(20_000) / 500)
    x = cp.Variable(2)
    xi = wdro.UncertainParameter(2, "xi", samples=data, probabilities=p / p.sum())
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(xi @ x)), [cp.abs(x) <= 1], wdro.WassersteinBall(0.01)
    )
    some = problem._model.on_some(4000)
    assert some.joint.shares.mass == pytest.approx(1.0)
    np.testing.assert_allclose(some.joint.mean, problem._model.joint.mean, atol=0.06)
    problem.solve("smoothed")
    assert problem.status == "optimal"


# ------------------------------------------------------------------ judging
def test_statistics_on_the_samples_count_probabilities():
    weighted, repeated = pair(case("cvar", "squared", "plane", 0.2).problem)
    weighted.solve()
    mine = weighted.evaluate()
    theirs = repeated.evaluate(decision=weighted.solution)
    close(mine.mean, theirs.mean)
    close(mine.tail, theirs.tail)
    assert mine.worst == theirs.worst
    assert mine.count == 6
    losses = np.sort(repeated.losses(decision=weighted.solution))
    for level, found in mine.quantiles.items():
        close(found, losses[int(np.ceil(level * len(losses) - 1e-9)) - 1])
    values = weighted.losses()
    close(mine.deviation, losses.std())
    variance = P @ (values - P @ values) ** 2 / (1 - P @ P)
    close(mine.standard_error, np.sqrt(variance * (P @ P)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_cvar_of_weighted_losses_is_that_of_repeated_ones(level):
    from wdro_model.evaluation.statistics import conditional_value_at_risk

    losses = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.6])
    repeated = conditional_value_at_risk(np.repeat(losses, TIMES), level)
    close(conditional_value_at_risk(losses, level, P), repeated)
    # Rockafellar and Uryasev: the least of t + E (loss - t)_+ / (1 - level), at some loss.
    value = min(t + P @ np.maximum(losses - t, 0) / (1 - level) for t in losses)
    close(conditional_value_at_risk(losses, level, P), value)


def test_reports_paths_and_pictures_count_probabilities(tmp_path):
    problem = case("cvar", "squared", "plane", 0.2).problem
    weighted, repeated = pair(problem)
    held_out = np.random.default_rng(1).normal(size=(20, 2))
    reports = [wdro.compare(one, ("erm", "exact"), test=held_out) for one in (weighted, repeated)]
    for mine, theirs in zip(*(report.rows() for report in reports)):
        close(mine["mean"], theirs["mean"], rel=1e-5)
        close(mine["cvar95"], theirs["cvar95"], rel=1e-5)
    for mine, theirs in zip(*(report.advantage().rows() for report in reports)):
        assert mine["difference"] == pytest.approx(theirs["difference"], abs=1e-5)
        close(mine["better"], theirs["better"])
    frame = reports[0].to_frame()
    assert len(frame) == 4
    for kind in ("strips", "histogram"):
        reports[0].plot(tmp_path / f"{kind}.png", kind=kind)
    assert "training" in reports[0].to_html(radii=[0.1, 0.2], progress=False)
    ways = [one.path([0.1, 0.2]).training for one in (weighted, repeated)]
    for mine, theirs in zip(*ways):
        close(mine.mean, theirs.mean, rel=1e-5)


def test_folds_carry_their_probabilities():
    problem = case("cvar", "squared", "plane", 0.2).problem
    weighted = problem.with_samples(rows=np.arange(6), probabilities=P)
    folds = [([0, 1, 2], [3, 4, 5]), ([3, 4, 5], [0, 1, 2])]
    found = wdro.select_radius(weighted, radii=[0.05, 0.5], folds=folds, progress=False)
    for k, radius in enumerate((0.05, 0.5)):
        for j, (train, test) in enumerate(folds):
            part = weighted.with_samples(rows=train).with_radius(radius)
            part.solve()
            losses, own = weighted.losses(decision=part.solution)[test], P[test] / P[test].sum()
            assert found.scores[k, j] == pytest.approx(own @ losses, rel=1e-5)
            variance = own @ (losses - own @ losses) ** 2 / (1 - own @ own)
            assert found.errors[k, j] == pytest.approx(np.sqrt(variance * (own @ own)), rel=1e-4)
    masses = np.array([P[3:].sum(), P[:3].sum()])
    mean = found.scores @ masses
    np.testing.assert_allclose(found.mean, mean)
    spread = ((found.scores - mean[:, None]) ** 2 @ masses) / (1 - masses @ masses)
    np.testing.assert_allclose(found.standard_error, np.sqrt(spread * (masses @ masses)))
    seen = []

    def metric(losses, probabilities):
        seen.append(probabilities)
        return probabilities @ losses

    wdro.select_radius(weighted, radii=[0.05], folds=folds, metric=metric, progress=False)
    np.testing.assert_allclose(seen[0], P[3:] / P[3:].sum())
    with pytest.raises(ValueError, match=r"which the metric median does not take; write it as met"):
        wdro.select_radius(weighted, radii=[0.05], folds=folds, metric=np.median, progress=False)
    test = np.zeros((4, 2))
    wdro.select_radius(weighted, radii=[0.05], test=test, metric=np.median, progress=False)


def test_the_smoothed_worst_case_has_the_probabilities_of_the_samples():
    problem = coupled().with_samples(rows=np.arange(6), probabilities=P)
    problem.solve("smoothed")
    worst = problem.worst_case("smoothed")
    np.testing.assert_allclose(np.bincount(worst.source, worst.weights), P)
    value = worst.expected_loss - worst.penalty
    value += worst.dual * (problem.radius - worst.transport_cost)
    assert value == pytest.approx(problem.value, rel=1e-2)


# ------------------------------------------------------------------ data
def test_standardized_costs_use_the_weighted_variance():
    data = draws()[:6]
    xi = wdro.UncertainParameter(3, "xi", samples=data, probabilities=P)
    x = cp.Variable(3)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.norm(x) <= 1], wdro.WassersteinBall(0.1, cost))
    variance = P @ (data - P @ data) ** 2
    np.testing.assert_allclose(problem._model.cost.coordinate_weights, 1 / variance)


def test_default_scales_are_those_of_repeated_samples():
    for make in (coupled, sioux, lambda: pieces(COSTS_3["norm2"])):
        weighted, repeated = pair(make())
        for one in (weighted, repeated):
            one.solve("smoothed", solver=FrankWolfe(gap=1e-2))
        close(weighted.solution.epsilon, repeated.solution.epsilon, rel=1e-3)
        np.testing.assert_allclose(weighted.solution.sigma, repeated.solution.sigma)


def test_twins_and_pickles_keep_probabilities():
    problem = coupled()
    weighted = problem.with_samples(rows=np.arange(6), probabilities=P)
    value = weighted.solve()
    assert pickle.loads(pickle.dumps(weighted)).solve() == value
    assert weighted.with_radius(0.1).solve() == value
    xi = wdro.UncertainParameter(2, "xi", samples=np.eye(2), probabilities=[0.25, 0.75])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(xi)).probabilities, [0.25, 0.75])


def test_rows_take_their_probabilities_along():
    problem = linear().with_samples(rows=np.arange(6), probabilities=P)
    part = problem.with_samples(rows=[0, 0, 5])
    np.testing.assert_allclose(part._model.joint.probabilities, np.array([3, 3, 5]) / 11)
    assert (
        problem.with_samples(linear().uncertain_parameters()[0].samples)._model.joint.probabilities
        is None
    )


def test_one_of_several_parameters_may_have_them():
    rng = np.random.default_rng(0)
    a = wdro.UncertainParameter(2, "a", samples=rng.random((3, 2)), probabilities=[0.5, 0.25, 0.25])
    b = wdro.UncertainParameter((), "b", samples=rng.random(3))
    c = wdro.UncertainParameter((), "c", samples=rng.random(3), probabilities=[0.5, 0.25, 0.25])
    d = wdro.UncertainParameter((), "d", samples=rng.random(3), probabilities=[0.25, 0.5, 0.25])
    x = cp.Variable(2, nonneg=True)
    problem = wdro.Problem(cp.Minimize(a @ x + (b + c) * x[0]), [cp.sum(x) == 1])
    value = problem.solve()
    mean = np.array([0.5, 0.25, 0.25])
    costs = mean @ a.samples + [mean @ (b.samples + c.samples), 0.0]
    assert value == pytest.approx(costs.min(), abs=1e-7)
    with pytest.raises(ValueError, match=r"sample 0 has 0\.5 by 'a' and 0\.25 by 'd'; give prob"):
        wdro.Problem(cp.Minimize(a @ x + d * x[0]), [cp.sum(x) == 1])


BAD = {
    "sum": ([0.5, 0.25, 0.1], r"add up to 1, got a sum of 0.85; p / p.sum\(\) does"),
    "zero": ([0.0, 0.0, 0.0], "a sum of 0; some sample must have a positive one"),
    "negative": ([0.5, -0.25, 0.75], "at least 0, got -0.25 at index 1"),
    "nan": ([0.5, np.nan, 0.5], "must be finite, got nan at index 1"),
    "length": (
        [0.5, 0.5],
        r"must have shape \(3,\), got shape \(2,\); one for each",
    ),
    "words": (["a", "b", "c"], "must be an array of numbers"),
    "matrix": (np.eye(3), r"got shape \(3, 3\)"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_bad_probabilities_are_refused(given, message):
    with pytest.raises(ValueError, match=f"probabilities of 'xi' .*{message}"):
        wdro.UncertainParameter((), "xi", samples=[1.0, 2.0, 3.0], probabilities=given)
    problem = linear().with_samples(rows=[0, 1, 2])
    with pytest.raises(ValueError, match=message):
        problem.with_samples(rows=[0, 1, 2], probabilities=given)


def test_probabilities_without_samples_are_refused():
    with pytest.raises(ValueError, match="'xi' has probabilities but no samples"):
        wdro.UncertainParameter((), "xi", probabilities=[1.0])
    with pytest.raises(TypeError, match="Did you mean 'probabilities'"):
        wdro.UncertainParameter((), "xi", samples=[1.0], probabilites=[1.0])


def test_explain_speaks_of_them():
    problem = linear().with_samples(rows=np.arange(6), probabilities=P)
    assert "with probabilities (as many as 4.455 equal ones)" in problem.explain()
