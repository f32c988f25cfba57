"""Other data: where it enters affinely the compiled program is solved again, and is the same."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.solve.test_solving_again import DATA, KINDS, problem
from wdro_model.solve.compile import Compilation, compare_programs

RNG = np.random.default_rng(11)
OTHERS = [RNG.normal(0.3, 1.0, size=DATA.shape) for _ in range(3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["erm", "exact"])
def test_other_data_gives_what_a_new_problem_gives(kind: str, method: str) -> None:
    first = problem(kind, 0.2)
    first.solve(method=method)
    texts = []
    for data in OTHERS:
        twin = first.with_samples(data)
        twin.solve(method=method)
        new = problem(kind, 0.2, data=data)
        new.solve(method=method)
        assert twin.status == "optimal"
        assert twin.value == pytest.approx(new.value, rel=2e-6, abs=1e-7)
        mine, known = twin.solution, new.solution
        assert mine.empirical_value == pytest.approx(known.empirical_value, rel=1e-4, abs=1e-6)
        for ours, theirs in zip(twin.constraints, new.constraints):
            assert ours.dual_value == pytest.approx(theirs.dual_value, abs=1e-4)
        texts.append(mine.compilation)
    assert texts == [Compilation.WITH_DATA, Compilation.ON_OTHER_DATA, Compilation.ON_OTHER_DATA]


def test_twins_on_other_data_in_turn_keep_their_own() -> None:
    """Each with its radius: they share one compiled program, and not its numbers."""
    first = problem("cvar norm", 0.2)
    first.solve()
    twins = [first, *(first.with_samples(data) for data in OTHERS)]
    known = {}
    for radius in (0.05, 0.3):
        for k, data in enumerate([DATA, *OTHERS]):
            known[k, radius] = problem("cvar norm", radius, data=data).solve()
    order = np.random.default_rng(0).permutation([*range(4)] * 4)
    for turn, k in enumerate(order.tolist()):
        radius = (0.05, 0.3)[turn % 2]
        found = twins[k].with_radius(radius)
        assert found.solve() == pytest.approx(known[k, radius], rel=1e-6)
    assert found.solution.compilation == Compilation.AGAIN


def linear(data: np.ndarray, share: cp.Parameter | float = 0.8) -> wdro.Problem:
    """CVaR of a portfolio, a linear program; the share is a certain number."""
    x, t = cp.Variable(3, nonneg=True), cp.Variable()
    xi = wdro.UncertainParameter(3, samples=data)
    loss = t + cp.pos(-xi @ x - t) / 0.2
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1, x <= share], ambiguity=ball)


def test_linear_programs_on_folds_along_radii_and_parameters() -> None:
    share = cp.Parameter(nonneg=True, value=0.8)
    first = linear(DATA, share)
    first.solve()
    for rows in (range(10), range(1, 11), range(2, 12)):
        some = DATA[list(rows)]
        for radius, most in ((0.1, 0.8), (0.3, 0.8), (0.3, 0.5)):
            share.value = most
            found = first.with_samples(rows=list(rows)).with_radius(radius)
            new = linear(some, most).with_radius(radius)
            assert found.solve() == pytest.approx(new.solve(), rel=1e-6)
            (x,) = [x for v, x in found.solution.decision.items() if v.size == 3]
            assert np.all(x <= most + 1e-6)


def test_another_number_of_samples_is_compiled_and_says_so() -> None:
    first = linear(DATA)
    first.solve()
    fewer = first.with_samples(DATA[:7])
    assert fewer.solve() == pytest.approx(linear(DATA[:7]).solve(), rel=1e-6)
    assert fewer.solution.compilation == Compilation.OTHER_SIZE


def test_data_of_another_sign_is_another_program() -> None:
    """Convex slopes stay convex where their samples have one sign: that sign is part of it."""
    x = cp.Variable(2)
    weight = wdro.UncertainParameter(2, samples=np.abs(DATA[:, :2]))

    def stated(data: np.ndarray) -> wdro.Problem:
        return first.with_samples(data)

    first = wdro.Problem(cp.Minimize(weight @ cp.square(x - 1)), [cp.norm(x, 2) <= 1])
    first.solve()
    for data in (np.abs(OTHERS[0][:, :2]), np.abs(OTHERS[1][:, :2])):
        twin = stated(data)
        twin.solve()
        assert twin.solution.convex
        new = wdro.UncertainParameter(2, samples=data)
        known = wdro.Problem(cp.Minimize(new @ cp.square(x - 1)), [cp.norm(x, 2) <= 1])
        assert twin.value == pytest.approx(known.solve(), rel=1e-5)
    mixed = OTHERS[2][:, :2] - OTHERS[2][:, :2].mean(axis=0) + [0.5, -0.5]
    with pytest.warns(wdro.ConvexityWarning):
        stated(mixed).solve()


def test_a_variable_of_the_user_stands_for_itself() -> None:
    """Two programs of one form in which variables change places are not one program."""
    x, y, t, s = (cp.Variable() for _ in range(4))

    def stated(a: cp.Variable, b: cp.Variable, number: float) -> cp.Problem:
        return cp.Problem(cp.Minimize(cp.abs(a - number) + b), [a <= 3, b >= number])

    one = stated(x, t, 1.0)
    found = compare_programs(one, stated(x, s, 2.0), [x, y])
    assert found is not None
    assert [(abs(a.value), abs(b.value)) for a, b in found.data] == [(1.0, 2.0), (1.0, 2.0)]
    for other in (stated(y, t, 2.0), stated(t, x, 2.0), stated(x, x, 2.0), stated(x, y, 2.0)):
        assert compare_programs(one, other, [x, y]) is None
    assert compare_programs(stated(t, s, 1.0), stated(t, t, 1.0), []) is None
    assert compare_programs(one, cp.Problem(one.objective, one.constraints[:1]), [x]) is None
    assert (
        compare_programs(one, cp.Problem(cp.Minimize(cp.pos(x - 1) + t), one.constraints), [x])
        is None
    )


def test_absolute_losses_on_other_data() -> None:
    x, y = cp.Variable(), cp.Variable()
    xi = wdro.UncertainParameter(samples=np.array([1.0, 2.0, 4.0]))
    first = wdro.Problem(cp.Minimize(cp.abs(xi - x) + 2 * cp.abs(y - 3)), [x <= 3, y <= 2])
    first.solve()
    second = first.with_samples(np.array([0.5, 1.5, 2.5]))
    second.solve()
    third = first.with_samples(np.array([-1.0, 0.0, 1.0]))
    third.solve()
    assert third.solution.compilation == Compilation.ON_OTHER_DATA
    assert third.solution.decision[x] == pytest.approx(0.0, abs=1e-5)
    assert third.solution.decision[y] == pytest.approx(2.0, abs=1e-5)
    assert second.solution.decision[x] == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize("method", ["erm", "exact"])
def test_labels_that_multiply_features_are_those_of_the_other_data(method: str) -> None:
    """Data that stand in the program as a sum of constants are not left behind."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 3))
    labels = np.sign(rows @ [1.0, -1.0, 0.5] + rng.normal(size=30))

    def margin(chosen: np.ndarray) -> wdro.Problem:
        w = cp.Variable(3)
        z = wdro.UncertainParameter(3, "z", samples=rows[chosen])
        y = wdro.UncertainParameter(name="y", samples=labels[chosen])
        ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2, weights={y: np.inf}))
        return wdro.Problem(cp.Minimize(cp.logistic(-y * (z @ w))), [cp.norm1(w) <= 5], ball)

    every = np.arange(30)
    first, solver = margin(every), wdro.solvers.Conic("CLARABEL")
    for fold in range(3):
        chosen = np.setdiff1d(every, np.arange(10 * fold, 10 * fold + 10))
        value = first.with_samples(rows=chosen).solve(method=method, solver=solver)
        assert value == pytest.approx(margin(chosen).solve(method=method, solver=solver), rel=1e-6)
