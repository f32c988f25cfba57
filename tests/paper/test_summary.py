"""Tables against sums done by hand."""

import numpy as np
import pytest

from summary import Pooled, group_rows, instance_rows

ERM = [np.arange(100.0), np.arange(100.0) + 10]
OURS = [np.full(100, 40.0), np.full(100, 60.0)]


def test_losses_and_advantages():
    row = Pooled(OURS, ERM).row()
    assert row["mean"] == 50.0
    assert row["deviation_within"] == 0.0
    assert row["deviation_between"] == pytest.approx(np.std([40, 60], ddof=1))
    assert row["advantage"] == pytest.approx((49.5 - 40 + 59.5 - 60) / 2)
    assert row["advantage_error"] == pytest.approx(np.std([9.5, -0.5], ddof=1) / np.sqrt(2))
    assert row["cvar95"] == 60.0


def test_tails():
    row = Pooled(OURS, ERM).row()
    worst = np.sort(np.concatenate(ERM))[-10:].mean()
    assert row["tail_advantage"] == pytest.approx(worst - 60.0)
    advantages = np.concatenate(ERM) - np.concatenate(OURS)
    assert row["advantage_cvar95"] == pytest.approx(np.sort(advantages)[:10].mean())
    # Jackknife over two instances: half the distance of the two values with one left out.
    one, other = (np.sort(erm)[-5:].mean() - ours[0] for erm, ours in zip(ERM, OURS))
    assert row["tail_advantage_error"] == pytest.approx(abs(one - other) / 2)


def test_erm_has_no_advantage_over_itself():
    row = Pooled(ERM, ERM).row()
    assert row["advantage"] == row["tail_advantage"] == row["better"] == 0.0


def test_error_of_the_tail_advantage_of_one_instance():
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(300):
        common = rng.standard_normal(400)
        base, own = 2 * common, common + 0.1 * rng.standard_normal(400)
        row = Pooled([own], [base]).row()
        found.append(row["tail_advantage"])
        errors.append(row["tail_advantage_error"])
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.2)


class Numbered:
    """Instances "1", "2", ..., two to a group."""

    def group(self, key):
        return {"group": (int(key) + 1) // 2}


def record(erm, ours):
    solve = dict.fromkeys(
        ["promise", "smoothed_value", "robust_value", "relative_gap", "dual", "dual_bound"]
    )
    solve |= dict.fromkeys(["draws", "effective_draws", "squared_length"]) | {"status": "optimal"}
    return {
        "methods": {
            "erm": {**solve, "losses": {"test": list(erm)}},
            "ours": {**solve, "promise": float(ours[0]), "losses": {"test": list(ours)}},
        }
    }


def test_instances_are_grouped():
    records = {str(k + 1): record(ERM[k % 2], OURS[k % 2]) for k in range(4)}
    rows = group_rows(Numbered(), records)
    assert [(row["group"], row["method"]) for row in rows] == [
        (1, "erm"),
        (1, "ours"),
        (2, "erm"),
        (2, "ours"),
    ]
    assert rows[1]["promise"] == 50.0
    assert rows[1]["instances"] == 2
    singles = instance_rows(Numbered(), records)
    assert len(singles) == 8
    assert singles[1]["instance"] == "1"
    assert singles[1]["deviation_between"] is None
