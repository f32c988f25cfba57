"""What the demo says follows its numbers: gains, losses, and neither."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wdro_model.demo.story import (
    ERM,
    ROBUST,
    Comparison,
    Gain,
    Instance,
    Judgement,
    gained_and_lost,
    verdict,
    where_it_loses,
)


def contest(erm, robust, promises=(100.0, 100.0), test="new days"):
    """Mean costs of made-up instances; the worst 5% is twice as much."""
    judged = [
        [Judgement(promise, mean, 2.0 * mean) for mean in means]
        for promise, means in zip(promises, (erm, robust))
    ]
    return Comparison(test, *judged)


WINS = contest([10.0, 11.0, 9.0, 10.0], [8.0, 8.9, 7.2, 8.0], promises=(9.5, 12.0))
LOSES = contest([8.0, 8.9, 7.2, 8.0], [10.0, 11.0, 9.0, 10.0], test="old days")
LEVEL = contest([10.0, 11.0, 9.0, 10.0], [11.0, 9.9, 10.0, 9.2])


def test_a_gain_is_said_to_be_one():
    told = verdict(WINS)
    assert "mean cost fell by 19.7%" in told
    assert "worst 5% fell by" in told
    assert "rose" not in told
    assert "ERM kept its promise in 1 of 4 instances, the robust decision in 4." in told
    assert where_it_loses([WINS]) == ""


def test_a_loss_is_said_to_be_one():
    told = verdict(LOSES)
    assert "mean cost rose by 24.6%" in told
    assert "fell" not in told
    assert where_it_loses([WINS, LOSES]).startswith("Where it loses: old days (24.6%")


def test_what_the_instances_do_not_tell_is_not_claimed():
    told = verdict(LEVEL)
    assert "did not change measurably (gain" in told
    assert "fell" not in told
    assert "rose" not in told
    assert where_it_loses([LEVEL]) == ""


def test_the_summary_has_the_largest_gain_and_the_largest_loss_of_each_story():
    gained, cost = gained_and_lost({"towns": [LOSES], "traffic": [WINS, LOSES], "trees": [LEVEL]})
    error = f"{100 * WINS.gain('mean').error:.1f}"
    assert gained == (
        f"What it gained: traffic, 19.7% ± {error} less in the mean cost and 19.7% ± {error} less "
        "in the worst 5% (new days)."
    )
    assert cost.count("more in the mean cost and 24.6%") == 2
    assert "towns, 24.6%" in cost
    assert "traffic, 24.6%" in cost
    assert "trees" not in gained + cost


def test_every_test_that_loses_is_told_the_largest_loss_first():
    little = contest([10.0, 11.0, 9.0, 10.0], [11.0, 12.0, 9.9, 11.0], test="days between")
    _, cost = gained_and_lost({"trees": [little, WINS, LOSES]})
    assert cost.index("(old days)") < cost.index("(days between)")


def test_a_summary_without_gains_or_losses_says_so():
    assert gained_and_lost({"towns": [LOSES]})[0] == "What it gained: nothing that can be measured."
    assert gained_and_lost({"towns": [WINS]})[1] == "What it cost: nothing that can be measured."


def test_the_gain_is_the_ratio_of_means_with_the_error_of_a_ratio():
    rng = np.random.default_rng(0)
    erm = rng.uniform(5.0, 15.0, (4000, 12))
    robust = 0.8 * erm + rng.normal(0.0, 0.5, erm.shape)
    gains = [Gain.over(*pair) for pair in zip(erm, robust)]
    assert np.mean([gain.share for gain in gains]) == pytest.approx(0.2, abs=0.002)
    # The error that is told is how far the gain scatters from one set of instances to the next.
    scatter = np.std([gain.share for gain in gains])
    assert np.mean([gain.error for gain in gains]) == pytest.approx(scatter, rel=0.06)


def test_one_instance_has_no_error_and_no_clear_gain():
    alone = contest([10.0], [5.0])
    assert math.isnan(alone.gain("mean").error)
    assert alone.gain("mean").sign == 0
    assert "in one instance" in verdict(alone)
    assert gained_and_lost({"towns": [alone]})[0].endswith("nothing that can be measured.")


def test_a_judgement_is_what_the_losses_say():
    losses = np.arange(1.0, 101.0)
    judged = Judgement.from_losses(50.0, losses)
    assert judged.mean == pytest.approx(50.5)
    assert judged.tail == pytest.approx(98.0)  # the mean of 96 to 100
    assert not judged.kept
    assert Judgement.from_losses(50.5, losses).kept


def test_rows_are_means_over_instances():
    matches = [
        Instance({"t": (Judgement(1.0, a, 2 * a), Judgement(1.0, a / 2, a))}, radius=1.0)
        for a in (2.0, 4.0)
    ]
    erm, robust = Comparison.on_test("t", matches).rows()
    assert (erm["method"], robust["method"]) == (ERM, ROBUST)
    assert (erm["mean"], erm["tail"], robust["mean"]) == (3.0, 6.0, 1.5)
    assert erm["mean_error"] == pytest.approx(1.0)
    assert (erm["kept"], robust["kept"]) == ("0 of 2", "1 of 2")
    assert robust["mean_gain"] == "+50.0% ± 0.0"
