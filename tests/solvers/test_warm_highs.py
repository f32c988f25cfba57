"""A linear program in a HiGHS that lives on: what CVXPY finds from scratch, at every parameter."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.sets.deadlines import deadline
from wdro_model.solve.compile import Compilation
from wdro_model.solvers import warm_highs
from wdro_model.solvers.warm_highs import WarmHighs

RNG = np.random.default_rng(3)


class Transport:
    """Goods from 3 factories to 4 shops; price, demand, stock and a share are parameters."""

    def __init__(self) -> None:
        self.flow = cp.Variable((3, 4), nonneg=True)
        self.most = cp.Variable(bounds=[0, 50])
        self.price = cp.Parameter((3, 4))
        self.demand = cp.Parameter(4)
        self.stock = cp.Parameter((3, 1))
        self.share = cp.Parameter(nonneg=True)
        self.weight = cp.Parameter(nonneg=True)
        self.constraints = [
            cp.sum(self.flow, axis=0) == self.demand,
            cp.sum(self.flow, axis=1, keepdims=True) <= self.stock,
            self.share * self.flow[0, :] <= cp.sum(self.flow[1:, :], axis=0),
            cp.max(self.flow) <= self.most,
        ]
        cost = cp.sum(cp.multiply(self.price, self.flow)) + self.weight * self.most + 3
        self.problem = cp.Problem(cp.Minimize(cost), self.constraints)

    def change(self, rng: np.random.Generator, what: str) -> None:
        if what in ("price", "all"):
            self.price.value = rng.uniform(1, 5, size=(3, 4))
            self.weight.value = rng.uniform(0.1, 2)
        if what in ("demand", "all"):
            self.demand.value = rng.uniform(1, 3, size=4)
            self.stock.value = rng.uniform(5, 8, size=(3, 1))
        if what in ("share", "all"):
            self.share.value = rng.uniform(0.1, 2)


def assert_same(stated: Transport, warm: WarmHighs) -> None:
    found = warm.run()
    assert found is not None
    stated.problem.solve(solver=cp.CLARABEL)
    assert found.value == pytest.approx(stated.problem.value, abs=1e-6)
    expected = np.append(stated.flow.value.ravel(), stated.most.value)
    assert warm.places.decision(found.x) == pytest.approx(expected, abs=1e-5)
    for constraint in stated.constraints:
        multiplier = warm.places.multiplier(constraint, found.multipliers)
        assert multiplier == pytest.approx(constraint.dual_value, abs=1e-5)


@pytest.mark.parametrize("few", [0, 200])
@pytest.mark.parametrize("solver", [cp.CLARABEL, "rows"])
def test_changed_costs_sides_and_entries(few: int, solver, monkeypatch) -> None:
    monkeypatch.setattr(warm_highs, "MOST_CHANGES", few)  # entries one by one, or all rows anew
    stated, rng = Transport(), np.random.default_rng(0)
    stated.change(rng, "all")
    if solver == "rows":
        solver = wdro.compat.bounds_as_rows(stated.problem, cp.HIGHS)
    variables = [stated.flow, stated.most]
    warm = WarmHighs.compile(stated.problem, variables, solver, {})
    assert warm is not None
    assert_same(stated, warm)
    for what in ("price", "demand", "share", "all", "price", "share", "demand", "demand", "all"):
        stated.change(rng, what)
        assert_same(stated, warm)


def test_an_array_of_a_parameter_that_is_written_to_is_seen() -> None:
    stated = Transport()
    stated.change(np.random.default_rng(1), "all")
    warm = WarmHighs.compile(stated.problem, [stated.flow], cp.CLARABEL, {})
    before = warm.run().value
    stated.demand.value[:] = 2 * stated.demand.value  # without CVXPY's setter
    stated.stock.value[:] = 2 * stated.stock.value
    assert warm.run().value == pytest.approx(2 * (before - 3) + 3, rel=1e-9)


def test_no_answer_where_there_is_none() -> None:
    stated = Transport()
    stated.change(np.random.default_rng(2), "all")
    warm = WarmHighs.compile(stated.problem, [stated.flow], cp.CLARABEL, {})
    assert warm.run() is not None
    fine = stated.stock.value
    stated.stock.value = np.full((3, 1), 0.1)
    assert warm.run() is None  # infeasible
    stated.stock.value = fine
    assert_same(
        stated, WarmHighs.compile(stated.problem, [stated.flow, stated.most], cp.CLARABEL, {})
    )
    assert warm.run() is not None  # and back


@pytest.mark.parametrize("what", ["price", "demand", "share"])
def test_an_interrupt_on_the_way_to_the_solver_is_made_good(what: str, monkeypatch) -> None:
    """Numbers that were noted, and have not reached HiGHS, reach it in the next solve."""
    stated, rng = Transport(), np.random.default_rng(4)
    stated.change(rng, "all")
    warm = WarmHighs.compile(stated.problem, [stated.flow, stated.most], cp.CLARABEL, {})
    assert_same(stated, warm)
    name = "write" if what == "price" else "write_changes"
    noted = getattr(warm_highs._Affine, name)

    def interrupted(*given):
        noted(*given)
        raise KeyboardInterrupt

    stated.change(rng, what)
    monkeypatch.setattr(warm_highs._Affine, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        warm.run()
    monkeypatch.undo()
    assert_same(stated, warm)


def test_the_time_of_the_solve_is_kept_and_ends_with_it() -> None:
    rng = np.random.default_rng(0)
    x, weight = cp.Variable(200), cp.Parameter(nonneg=True, value=1.0)
    rows, sides = rng.normal(size=(400, 200)), rng.normal(size=400)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.abs(rows @ x - sides)) + weight * cp.norm(x, 1)))
    warm = WarmHighs.compile(problem, [x], cp.CLARABEL, {})
    with deadline(1e-4):
        assert warm.run() is None
    found = warm.run()
    assert found is not None
    weight.value = 2.0
    with deadline(60.0):
        found = warm.run()
    assert found is not None
    assert found.value == pytest.approx(problem.solve(solver=cp.CLARABEL), rel=1e-6)


def test_what_is_no_linear_program_is_left_to_others() -> None:
    x, r = cp.Variable(3), cp.Parameter(nonneg=True, value=1.0)
    cone = cp.Problem(cp.Minimize(cp.norm(x, 2) + r * x[0]), [cp.sum(x) == 1])
    assert WarmHighs.compile(cone, [x], cp.CLARABEL, {}) is None
    quadratic = cp.Problem(cp.Minimize(cp.sum_squares(x) + r * x[0]), [cp.sum(x) == 1])
    assert WarmHighs.compile(quadratic, [x], cp.CLARABEL, {}) is None
    matrix = cp.Variable((2, 2), symmetric=True)  # fewer columns than entries
    entries = cp.Problem(cp.Minimize(r * cp.sum(matrix)), [matrix >= 1])
    assert WarmHighs.compile(entries, [matrix], cp.CLARABEL, {}) is None


def robust(matrix: bool, maximise: bool = False) -> wdro.Problem:
    """A newsvendor of 2 by 2 products with a budget."""
    order = cp.Variable((2, 2), nonneg=True)
    demand = wdro.UncertainParameter((2, 2), samples=DEMANDS)
    reward = cp.sum(2 * cp.minimum(order, demand)) - cp.sum(order)
    constraints = [cp.sum(order) <= 9, order[0, 1] <= 1.5] if matrix else []
    objective = cp.Maximize(reward) if maximise else cp.Minimize(-reward)
    return wdro.Problem(objective, constraints, wdro.WassersteinBall(0.1, wdro.costs.Norm(1)))


@pytest.mark.parametrize(
    ("solver", "used"),
    [
        (None, "HIGHS"),
        (wdro.solvers.Conic(), "HIGHS"),
        (wdro.solvers.Conic("HIGHS"), "HIGHS"),
        (wdro.solvers.Conic("HIGHS", {"primal_feasibility_tolerance": 1e-9}), "HIGHS"),
        (wdro.solvers.Conic("HIGHS", {"highs_options": {"time_limit": 60.0}}), "HIGHS"),
        (wdro.solvers.Conic(options={"tol_gap_rel": 1e-9}), "CLARABEL"),
        (wdro.solvers.Conic("CLARABEL", {"tol_gap_rel": 1e-9}), "CLARABEL"),
        (wdro.solvers.Conic("SCIPY"), "SCIPY"),
    ],
)
def test_options_go_to_the_solver_that_they_are_meant_for(solver, used: str) -> None:
    first, known = robust(True), robust(True)
    first.solve(solver=solver)
    again = first.with_radius(0.3)
    again.solve(solver=solver)
    assert again.solution.compilation == Compilation.AGAIN
    assert used in again.solution.solver
    assert again.value == pytest.approx(known.with_radius(0.3).solve(), rel=1e-6)


DEMANDS = RNG.uniform(1.0, 4.0, size=(15, 2, 2))


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("maximise", [False, True])
def test_everything_of_an_ordinary_solution_is_there(matrix: bool, maximise: bool) -> None:
    first = robust(matrix, maximise)
    first.solve()
    for radius in (0.05, 0.4, 0.2):
        again, new = first.with_radius(radius), first.with_radius(radius)
        again.solve()
        kept, duals = again.solution, [c.dual_value for c in first.constraints]
        new.solve(solver="CLARABEL")
        known = new.solution
        assert kept.compilation == Compilation.AGAIN
        assert kept.solver == "conic solver HIGHS"
        assert kept.value == pytest.approx(known.value, rel=1e-6)
        for name in ("robust_value", "empirical_value"):
            assert getattr(kept, name) == pytest.approx(getattr(known, name), rel=1e-5)
        assert (kept.status, kept.method, kept.maximise) == ("optimal", "exact", maximise)
        (x,) = first.variables()
        assert kept.decision[x] == pytest.approx(known.decision[x], abs=1e-5)
        for mine, constraint in zip(duals, first.constraints):
            assert mine == pytest.approx(constraint.dual_value, abs=1e-5)
