"""What a problem remembers between solves: as much as it needs, and nothing that is half done."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.model.compiled import MAX_RESULTS
from wdro_model.objectives.integration import closed_form


@pytest.fixture
def data(rng):
    return rng.normal(1.0, 0.5, size=(12, 3))


def over_an_oracle(loss, data, support=None):
    corners = np.vstack([np.eye(3), -np.eye(3)])
    x = cp.Variable(3, name="x")
    xi = wdro.UncertainParameter(3, samples=data, support=support)
    cross = wdro.sets.Oracle(lambda g: corners[np.argmin(corners @ g)], 3, name="cross")
    return wdro.Problem(cp.Minimize(loss(xi @ x)), [wdro.In(x, cross)], wdro.WassersteinBall(0.05))


def logistic(data, scale=1.0):
    """A loss whose smoothed solve needs the ERM decision, which Frank-Wolfe finds."""
    return over_an_oracle(lambda margin: cp.logistic(-scale * margin), data)


def linear(data):
    """A loss that is first solved on a cheaper objective, where the samples are many."""
    return over_an_oracle(lambda cost: cost, np.abs(data), wdro.supports.Nonnegative())


def remembered(problem):
    memory = problem._model.memory
    return len(getattr(memory, "results", memory))


def test_results_for_other_values_of_a_parameter_are_forgotten(data):
    scale = cp.Parameter(value=1.0)
    problem = logistic(data, scale)
    first = problem.solve(method="smoothed")
    count = remembered(problem)
    for value in (1.1, 1.2, 1.3):
        scale.value = value
        problem.solve(method="smoothed")
        assert remembered(problem) <= count
    scale.value = 1.0
    assert problem.solve(method="smoothed") == first


def test_results_for_many_radii_are_bounded(portfolio):
    problem = portfolio[0]
    for radius in np.linspace(0.01, 0.1, 3 * MAX_RESULTS):
        problem.with_radius(radius).solve()
    assert 0 < remembered(problem) <= MAX_RESULTS


def test_results_are_computed_once(portfolio):
    model = portfolio[0]._model
    calls = []
    for _ in range(3):
        assert model.remember("answer", lambda: calls.append(1) or 42) == 42
    assert len(calls) == 1


def test_an_interrupt_in_the_inner_erm_reaches_the_user(data, monkeypatch):
    """Half an ERM decision would give the next solve another temperature."""
    fresh = logistic(data)
    fresh.solve(method="smoothed")
    problem = logistic(data)
    oracle = problem.constraints[0].set
    honest, calls = oracle._lmo, []

    def pressed(direction):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return honest(direction)

    monkeypatch.setattr(oracle, "_lmo", pressed)
    with pytest.raises(KeyboardInterrupt):
        problem.solve(method="smoothed")
    monkeypatch.setattr(oracle, "_lmo", honest)
    problem.solve(method="smoothed")
    assert problem.solution.epsilon == fresh.solution.epsilon
    assert problem.value == fresh.value


@pytest.mark.parametrize("build", [logistic, linear])
def test_an_interrupt_at_any_call_is_seen(build, data, monkeypatch):
    """It ends the solve: by the error, or with the best point so far and the word for it."""
    monkeypatch.setattr(closed_form, "SURROGATE_ENTRIES", 0)
    total = []
    problem = build(data)
    oracle = problem.constraints[0].set
    honest = oracle._lmo
    monkeypatch.setattr(oracle, "_lmo", lambda g: total.append(1) or honest(g))
    problem.solve(method="smoothed")
    for press in range(2, len(total)):
        problem = build(data)
        oracle = problem.constraints[0].set
        calls = []

        def pressed(direction, calls=calls, press=press):
            calls.append(1)
            if len(calls) == press:
                raise KeyboardInterrupt
            return honest(direction)

        monkeypatch.setattr(oracle, "_lmo", pressed)
        try:
            problem.solve(method="smoothed")
        except KeyboardInterrupt:
            assert problem.solution is None
        else:
            assert problem.solution.stop == "interrupted from the keyboard", press
