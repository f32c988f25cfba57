"""Random models are judged by computations of their own, which catch answers that are wrong."""

from dataclasses import replace

import numpy as np
import pytest
from random_models.families import FAMILIES
from random_models.running import draw_trial, run_model
from random_models.smoothing import Smoothing, value_by_quadrature
from random_models.trial import BARE, OK, OVER_TIME, REFUSED, WRONG, Answer, Trial, classify_error

import wdro_model as wdro

SEEDS = {
    "exact": (0, 1, 2),
    "risk": (0, 1),
    "constraints": (0, 1, 3),
    "probabilities": (0, 1),
    "integers": (1, 3, 10),
    "again": (0, 1),
    "aggregation": (0, 3),
    "learners": (0, 3),
    "smoothed": (3, 6),
    "far pieces": (3, 4),
    "few samples": (7,),
    "frames": (3,),
    "domains": (3,),
    "worst case": (0, 1),
}
MODELS = [(family, seed) for family, seeds in SEEDS.items() for seed in seeds]
LIMIT = 20.0


@pytest.mark.parametrize(("family", "seed"), MODELS)
def test_a_random_model_is_right(family, seed):
    outcome = run_model(family, seed, LIMIT)
    assert outcome.kind == OK, str(outcome)


def test_every_family_but_the_threads_is_run():
    assert set(SEEDS) == set(FAMILIES) - {"threads"}


def spoiled(answer: Answer) -> dict[str, Answer]:
    """Answers that a judge has to refuse: a value too large, one too small."""
    step = 0.05 * max(1.0, abs(answer.value))
    return {
        "above": replace(answer, value=answer.value + step, gap=0.0),
        "below": replace(answer, value=answer.value - step, gap=0.0),
    }


@pytest.mark.parametrize("family", [f for f in SEEDS if f not in ("again", "domains")])
def test_a_wrong_value_is_caught(family):
    seed = {"constraints": 1}.get(family, SEEDS[family][0])
    trial = draw_trial(family, seed)
    answer = trial.solve(LIMIT)
    assert trial.judge(answer) == []
    for how, wrong in spoiled(answer).items():
        assert trial.judge(wrong), how
    if answer.decision is not None and family not in ("frames", "far pieces", "few samples"):
        moved = replace(answer, decision=answer.decision + 0.3)
        assert trial.judge(moved)


def test_a_wrong_value_of_a_chain_or_of_a_thread_is_caught():
    chain = draw_trial("again", 0)
    answer = chain.solve(LIMIT)
    last = spoiled(answer.more["answers"][-1])["below"]
    more = {**answer.more, "answers": [*answer.more["answers"][:-1], last]}
    assert "after" in chain.judge(replace(answer, more=more))[0]
    threads = draw_trial("threads", 0)
    twins = [Answer(1e3, "optimal")] * 24
    assert "24 of 24" in threads.judge(Answer(0.0, "optimal", more={"answers": twins}))[0]


def test_an_integral_of_a_loss_is_judged_by_quadrature():
    trial = draw_trial("domains", 3)
    answer = trial.solve(LIMIT)
    assert trial.judge(answer) == []
    for wrong in spoiled(answer).values():
        assert "by quadrature" in trial.judge(wrong)[0]


def test_an_adversary_that_costs_too_much_or_attains_too_little_is_caught():
    trial = draw_trial("worst case", 1)
    answer = trial.solve(LIMIT)
    far = {**answer.more, "scenarios": answer.more["scenarios"] * 1.5}
    assert trial.judge(replace(answer, more=far))
    heavy = {**answer.more, "weights": answer.more["weights"] * 1.1}
    assert "weights add up" in trial.judge(replace(answer, more=heavy))[0]


def test_quadrature_and_closed_forms_agree():
    samples = np.array([[0.2, -0.3]])
    box = np.full(2, -1.0), np.full(2, 2.0)
    smoothing = Smoothing(samples, np.ones(1), 0.3, 0.05, 0.4, *box)
    a, b = np.array([0.1]), np.array([[1.0, -0.5]])
    low, high = smoothing.bracket(a, b, 0.7)
    assert low == high

    def cost(xi, z):
        return np.sum((z - xi) ** 2, axis=1)

    value = value_by_quadrature(lambda z: a[0] + z @ b[0], cost, smoothing, 1.2, 0.7)
    assert value == pytest.approx(low, abs=1e-7)
    free = replace(smoothing, low=np.full(2, -np.inf), high=np.full(2, np.inf))
    a, b = np.array([0.1, -0.2]), np.array([[1.0, -0.5], [-0.4, 0.8]])
    low, high = free.bracket(a, b, 0.7)
    assert low == high
    value = value_by_quadrature(lambda z: np.max(a + z @ b.T, axis=1), cost, free, 1.2, 0.7)
    assert value == pytest.approx(low, abs=1e-5)


def raised(error):
    """An error with a traceback of this file."""
    try:
        raise error
    except Exception as caught:
        return caught


def test_errors_are_told_apart():
    assert classify_error(raised(IndexError("list index out of range")))[0] == BARE
    assert classify_error(raised(ValueError("cannot reshape array")))[0] == BARE
    infeasible = wdro.errors.InfeasibleError("no decision meets the constraint; raise its limit")
    assert classify_error(raised(infeasible))[0] == WRONG
    assert classify_error(raised(infeasible), wdro.errors.InfeasibleError)[0] == OK
    unbounded = wdro.errors.UnboundedError("the worst case is infinite on this support; use a Box")
    assert classify_error(raised(unbounded))[0] == WRONG
    with pytest.raises(ValueError) as refusal:
        wdro.WassersteinBall(-1.0)
    assert classify_error(refusal.value)[0] == REFUSED
    assert classify_error(refusal.value, must_be_refused=True)[0] == OK


def test_an_answer_to_an_infeasible_model_and_a_late_one_are_failures(monkeypatch):
    def draw(_rng):
        answer = Answer(1.0, "optimal")
        error = wdro.errors.InfeasibleError
        return Trial("a model without decisions", lambda _limit: answer, lambda _a: [], error)

    monkeypatch.setitem(FAMILIES, "exact", draw)
    assert run_model("exact", 0, LIMIT).kind == WRONG

    def draw_late(_rng):
        import time

        def solve(_limit):
            time.sleep(1.2)
            return Answer(1.0, "optimal")

        return Trial("a slow model", solve, lambda _a: [])

    monkeypatch.setitem(FAMILIES, "exact", draw_late)
    assert run_model("exact", 0, 0.1).kind == OVER_TIME
