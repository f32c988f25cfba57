"""Samples that agree on their largest piece are one: against the conic program over all of them."""

import importlib
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.exact.maxima import Maxima
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.solve import aggregated
from wdro_model.solve.aggregated import Cells, NewtonPath, derivatives, margins, softmax_sum
from wdro_model.solvers import Aggregation

plan = importlib.import_module("wdro_model.solve.plan")  # beside a function of that name
COSTS = {
    "norm 1": lambda **w: wdro.costs.Norm(1, **w),
    "norm 2": lambda **w: wdro.costs.Norm(2, **w),
    "norm inf": lambda **w: wdro.costs.Norm(np.inf, **w),
    "squared": lambda **w: wdro.costs.SquaredEuclidean(**w),
}


def absolute(rng, cost):
    x = cp.Variable(3)
    features = rng.standard_normal((150, 3))
    xi = wdro.UncertainParameter(3, samples=features)
    y = wdro.UncertainParameter(samples=features @ [1.0, -2.0, 0.0] + rng.standard_normal(150))
    return cp.abs(y - xi @ x), [], cost()


def quantile_with_fixed_labels(rng, cost):
    x, shift = cp.Variable(2), cp.Variable()
    features = rng.standard_normal((140, 2))
    xi = wdro.UncertainParameter(2, samples=features)
    y = wdro.UncertainParameter(samples=features @ [0.5, 1.0] + rng.exponential(size=140))
    error = y - xi @ x - shift
    return (
        cp.maximum(0.8 * error, -0.2 * error),
        [cp.norm(x) <= 1],
        cost(weights={xi: 1, y: np.inf}),
    )


def hinge(rng, cost):
    x, shift = cp.Variable(3), cp.Variable()
    features = rng.standard_normal((160, 3))
    labels = np.sign(features @ [1.0, 0.5, 0.0] + 0.8 * rng.standard_normal(160) + 0.1)
    xi = wdro.UncertainParameter(3, samples=features)
    y = wdro.UncertainParameter(samples=labels)
    return cp.pos(1 - y * (xi @ x + shift)), [], cost(weights={xi: 1.0, y: np.inf})


def tail(rng, cost):
    x, level = cp.Variable(4, nonneg=True), cp.Variable()
    returns = wdro.UncertainParameter(4, samples=0.3 * rng.standard_normal((150, 4)) + 0.1)
    return level + cp.pos(-returns @ x - level) / 0.1, [cp.sum(x) == 1], cost()


def several_pieces(rng, cost):
    x = cp.Variable(2)
    xi = wdro.UncertainParameter(2, samples=rng.standard_normal((150, 2)))
    forms = [xi @ x - 1, -2 * (xi @ x), 0.5 * xi[0] - x[1], x[0] + x[1]]
    return cp.maximum(*forms), [cp.abs(x) <= 2], cost()


def newsvendors(rng, cost):
    x = cp.Variable(4, nonneg=True)
    demand = wdro.UncertainParameter(4, samples=rng.exponential(size=(120, 4)))
    return cp.sum(x - 3 * cp.minimum(x, demand)), [cp.sum(x) <= 5], cost()


LOSSES = [absolute, quantile_with_fixed_labels, hinge, tail, several_pieces, newsvendors]


def problem_of(loss, cost, seed, radius=0.05):
    expression, constraints, ground = loss(np.random.default_rng(seed), cost)
    ball = wdro.WassersteinBall(radius, ground)
    return wdro.Problem(cp.Minimize(expression), constraints, ambiguity=ball)


@pytest.fixture(autouse=True)
def few_alone(monkeypatch):
    """Cells as large as they would be among many samples."""
    few = replace(aggregated.TOLERANCES, single_samples=2, singles_per_number=1)
    monkeypatch.setattr(aggregated, "TOLERANCES", few)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_value_is_that_of_the_conic_program(loss, cost, seed):
    problem = problem_of(loss, COSTS[cost], seed)
    value = problem.solve(method="exact", solver=Aggregation())
    solution = problem.solution
    assert problem.status == "optimal"
    assert solution.stop == "the gap is under the tolerance"
    assert 0 <= solution.gap <= 1.1e-6 * abs(value)
    assert solution.lower_bound == pytest.approx(value - solution.gap)
    assert solution.robust_value == value
    conic = problem.solve(method="exact", solver="CLARABEL")
    assert value == pytest.approx(conic, rel=1e-6)
    assert solution.lower_bound <= conic + 1e-6 * abs(conic)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_mean_loss_too(loss):
    problem = problem_of(loss, COSTS["norm 2"], 2)
    value = problem.solve(method="erm", solver=Aggregation())
    assert value == pytest.approx(problem.solve(method="erm", solver="CLARABEL"), rel=1e-6)


@pytest.mark.parametrize("loss", [absolute, tail])
@pytest.mark.parametrize("cost", ["norm 2", "squared"])
def test_without_its_path_it_is_exact_all_the_same(loss, cost, monkeypatch):
    """Cells are split until they agree, wherever the first decision is."""
    monkeypatch.setattr(NewtonPath, "run", lambda self: False)
    problem = problem_of(loss, COSTS[cost], 3)
    value = problem.solve(method="exact", solver=Aggregation())
    rounds = problem.solution.trace.records
    assert len(rounds) > 1
    bounds = [record.value - record.gap for record in rounds]
    assert bounds == sorted(bounds)  # cells only become smaller, and bounds sharper
    assert value == pytest.approx(problem.solve(method="exact", solver="CLARABEL"), rel=1e-6)


@pytest.mark.parametrize("cost", ["norm 2", "squared"])
@pytest.mark.parametrize(
    ("of_features", "of_targets"),
    [(1e-4, 1e-4), (1e5, 1e5), (1.0, 1e5), (1e4, 1.0), (1e-2, 1e6)],
)
def test_data_in_other_units(of_features, of_targets, cost):
    """Also units in which the decision is tiny, or huge."""
    rng = np.random.default_rng(4)
    features = rng.standard_normal((150, 2))
    targets = features.sum(axis=1) + rng.standard_normal(150)
    order = 2 if cost == "squared" else 1
    values = []
    for scale, height in ((1.0, 1.0), (of_features, of_targets)):
        x = cp.Variable(2)
        xi = wdro.UncertainParameter(2, samples=scale * features)
        y = wdro.UncertainParameter(samples=height * targets)
        held = COSTS[cost](weights={xi: 1.0, y: np.inf})
        ball = wdro.WassersteinBall((0.1 * scale) ** order, held)
        problem = wdro.Problem(cp.Minimize(cp.abs(y - xi @ x)), [], ambiguity=ball)
        values.append(problem.solve(method="exact", solver=Aggregation()) / height)
        assert problem.status == "optimal"
    assert values[1] == pytest.approx(values[0], rel=2e-6)


def test_samples_that_are_all_the_same():
    x = cp.Variable(2)
    xi = wdro.UncertainParameter(2, samples=np.tile([[1.0, 2.0]], (50, 1)))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(cp.abs(1 - xi @ x)), [cp.sum(x) == 0.2], ambiguity=ball)
    value = problem.solve(method="exact", solver=Aggregation())
    assert value == pytest.approx(problem.solve(method="exact", solver="CLARABEL"), rel=1e-6)


def test_the_multipliers_are_those_of_the_conic_program():
    problem = problem_of(tail, COSTS["norm 2"], 5)
    problem.solve(method="exact", solver=Aggregation())
    found = problem.constraints[0].dual_value
    problem.solve(method="exact", solver="CLARABEL")
    assert found == pytest.approx(problem.constraints[0].dual_value, rel=1e-4)


# ------------------------------------------------------------------ when it is chosen
def test_it_is_chosen_for_many_samples(monkeypatch):
    monkeypatch.setattr(plan, "LIMITS", plan.Limits(aggregated_samples=100))
    problem = problem_of(hinge, COSTS["norm 2"], 0)
    assert "aggregation of samples" in problem.explain()
    assert "far from a change of piece" in problem.explain()
    value = problem.solve()
    assert problem.solution.solver.startswith("aggregation of samples")
    monkeypatch.setattr(plan, "LIMITS", plan.Limits(aggregated_samples=10_000))
    assert "conic solver" in problem.explain()
    assert value == pytest.approx(problem.solve(), rel=1e-6)


def test_what_it_cannot_take_goes_on_to_a_conic_solver(monkeypatch):
    monkeypatch.setattr(plan, "LIMITS", plan.Limits(aggregated_samples=10))
    rng = np.random.default_rng(0)
    x = cp.Variable(2)
    box = wdro.supports.Box(-5, 5)
    xi = wdro.UncertainParameter(2, samples=rng.uniform(-1, 1, (30, 2)), support=box)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(2))
    problem = wdro.Problem(cp.Minimize(cp.abs(1 - xi @ x)), [cp.norm(x) <= 1], ambiguity=ball)
    assert "conic solver" in problem.explain()
    with pytest.raises(ValueError, match=r"maxima of a few affine pieces.*leave solver= out"):
        problem.solve(method="exact", solver=Aggregation())
    with pytest.raises(ValueError, match="smoothed objective has no conic form"):
        problem.solve(method="smoothed", solver=Aggregation())


@pytest.mark.parametrize("wrong", [{"gap": -1.0}, {"max_iterations": 0}, {"time_limit": 0}])
def test_limits_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Aggregation(**wrong)


# ------------------------------------------------------------------ limits
def test_an_iteration_limit_leaves_a_gap_that_holds(monkeypatch):
    monkeypatch.setattr(NewtonPath, "run", lambda self: False)
    problem = problem_of(absolute, COSTS["norm 2"], 3)
    value = problem.solve(method="exact", solver=Aggregation(max_iterations=1))
    assert problem.status == "user_limit"
    assert problem.solution.stop == "iteration limit"
    bound = problem.solution.lower_bound
    best = problem.solve(method="exact", solver="CLARABEL")
    assert bound <= best + 1e-7 <= value + 2e-7
    assert value - bound > 1e-3


def test_a_program_that_was_not_quite_solved_is_said_to_be_so(monkeypatch):
    original = aggregated.CellSearch._solve_cells
    monkeypatch.setattr(
        aggregated.CellSearch, "_solve_cells", lambda self: replace(original(self), accurate=False)
    )
    problem = problem_of(absolute, COSTS["norm 2"], 3)
    problem.solve(method="exact", solver=Aggregation())
    assert problem.status == "optimal_inaccurate"


@pytest.mark.parametrize("error", [OutOfTime, KeyboardInterrupt])
def test_what_was_reached_comes_back(error, monkeypatch):
    original, calls = aggregated.CellSearch._solve_cells, []

    def solved(self):
        calls.append(1)
        if len(calls) > 1:
            raise error
        return original(self)

    monkeypatch.setattr(NewtonPath, "run", lambda self: False)
    monkeypatch.setattr(aggregated.CellSearch, "_solve_cells", solved)
    problem = problem_of(absolute, COSTS["norm 2"], 3)
    value = problem.solve(method="exact", solver=Aggregation())
    assert problem.status == "user_limit"
    assert value == pytest.approx(problem.robust_value())
    assert problem.solution.lower_bound < value


def test_without_time_a_feasible_decision_comes_back():
    problem = problem_of(tail, COSTS["norm 2"], 0)
    value = problem.solve(method="exact", solver=Aggregation(), time_limit=1e-9)
    assert problem.status == "user_limit"
    (weights,) = [v.value for v in problem.variables() if v.ndim == 1]
    assert weights.sum() == pytest.approx(1)
    assert value == pytest.approx(problem.robust_value())


# ------------------------------------------------------------------ parts
def some_part(rng, forms=3, lines=2):
    return Maxima(
        np.arange(5, 40),
        np.array([[0, 2]]),
        tuple(cp.Constant(0.0) for _ in range(forms)),
        tuple(cp.Constant(np.zeros(2)) for _ in range(lines)),
        rng.integers(lines, size=forms),
        rng.standard_normal(forms),
        np.array([True, True]),
    )


@pytest.mark.parametrize(("forms", "lines"), [(2, 1), (3, 2), (4, 3)])
def test_derivatives_are_those_of_differences(forms, lines):
    rng = np.random.default_rng(forms)
    part, rows = some_part(rng, forms, lines), rng.standard_normal((50, 3))
    numbers, step = rng.standard_normal(part.width), 1e-5

    def value(w):
        return softmax_sum(part.forms(w, rows), 0.7)

    def gradient(w):
        return derivatives(part, rows, part.forms(w, rows), 0.7)[0]

    moves = step * np.eye(part.width)
    slopes = [(value(numbers + m) - value(numbers - m)) / (2 * step) for m in moves]
    bends = [(gradient(numbers + m) - gradient(numbers - m)) / (2 * step) for m in moves]
    found, hessian = derivatives(part, rows, part.forms(numbers, rows), 0.7)
    assert found == pytest.approx(slopes, rel=1e-6, abs=1e-7)
    assert hessian == pytest.approx(np.array(bends), rel=1e-5, abs=1e-6)


def test_forms_are_written_out():
    rng = np.random.default_rng(0)
    part, rows = some_part(rng), rng.standard_normal((50, 3))
    numbers = rng.standard_normal(part.width)
    for k in (0, 7, 34):
        for j in range(3):
            slope = numbers[3 + 2 * part.owners[j] : 5 + 2 * part.owners[j]]
            data = rows[part.index[k]][[0, 2]]
            by_hand = numbers[j] + part.scales[j] * (slope @ data)
            assert part.forms(numbers, rows)[j, k] == pytest.approx(by_hand)


def test_cells_keep_all_samples():
    rng = np.random.default_rng(0)
    part, rows = some_part(rng), rng.standard_normal((50, 3))
    cells = Cells(part, rows)
    forms = part.forms(rng.standard_normal(part.width), rows)
    cells.alone[[3, 9]] = True
    cells.split(forms)
    means, sizes = cells.cell_means()
    assert sizes.sum() == 35
    assert sizes[:2].tolist() == [1, 1]
    assert sizes @ means == pytest.approx(rows[5:40][:, [0, 2]].sum(axis=0))
    assert len(sizes) == 2 + len(np.unique(np.delete(forms.argmax(axis=0), [3, 9])))


def test_margins_are_between_the_two_largest():
    forms = np.array([[1.0, 2.0], [5.0, 2.0], [3.0, 0.0]])
    assert margins(forms) == pytest.approx([2.0, 0.0])
    assert margins(forms[:2]) == pytest.approx([4.0, 0.0])
    assert np.isinf(margins(forms[:1])).all()
