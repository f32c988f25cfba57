"""What a shift lets one expect, against draws of the shift."""

import numpy as np
import pytest

from tree_expectation import ExpectedCosts, expected_rows, seen_share
from tree_trial import SHIFTS, Shift
from wdro_model.datasets import TreeCosts
from wdro_model.datasets.quadratic_tree import UNMASKED, QuadraticTree

UNSEEN = Shift(base=0.0, mask=0.0, noise=0.1)
ODD = Shift(base=0.3, mask=0.2, noise=0.1, complement=True)


@pytest.mark.parametrize("shift", [*SHIFTS.values(), UNSEEN, ODD], ids=str)
def test_costs_have_the_mean_that_is_expected(shift):
    rng = np.random.default_rng(0)
    size, draws = 4, 20_000
    base, mask = rng.random((size, size)), rng.random((size, size)) < UNMASKED
    total = np.zeros((size, size))
    for seed in range(draws):
        # What was missing has a cost that the training data does not tell.
        known = np.where(mask, base, rng.random((size, size)))
        tree = QuadraticTree(None, TreeCosts(known, mask))
        try:
            law = tree.shifted(seed, shift.noise, shift.base, shift.mask, shift.complement)
        except ValueError:  # all costs are masked
            continue
        total += law.mask * law.base
    expected = ExpectedCosts.of(shift)
    wanted = expected.alpha * mask * base + expected.beta * mask + expected.gamma
    np.testing.assert_allclose(total / draws, wanted, atol=0.012)


def test_signs_of_the_three_shifts():
    half, fresh, complement = map(ExpectedCosts.of, SHIFTS.values())
    assert half.alpha > 0 < half.beta
    assert fresh.alpha == 0
    assert fresh.beta == pytest.approx(0.0)
    assert complement.alpha == 0 > complement.beta


def test_losses_are_those_of_the_expected_matrix():
    rng = np.random.default_rng(1)
    base, mask, x = rng.random((5, 5)), rng.random((5, 5)) < 0.7, rng.random(5)
    law = ExpectedCosts(0.3, -0.2, 0.7)
    matrix = 0.3 * mask * base - 0.2 * mask + 0.7
    assert law.loss(x, base, mask) == pytest.approx(x @ matrix @ x)
    assert law.loss(x, np.where(mask, base, np.nan), mask) == pytest.approx(x @ matrix @ x)
    assert seen_share(np.ones(5), mask) == pytest.approx(mask.mean())


def test_no_advantage_is_expected_of_fresh_costs_whatever_the_decisions():
    rng = np.random.default_rng(2)
    tree = QuadraticTree(None, TreeCosts(rng.random((6, 6)), rng.random((6, 6)) < 0.7))
    points = rng.dirichlet(np.ones(6), 2)
    losses = {name: [1.0, 2.0] for name in SHIFTS}
    record = {
        "methods": {
            name: {"decision": list(x), "losses": losses}
            for name, x in zip(("erm", "smoothed"), points)
        }
    }
    rows = {row["scenarios"]: row for row in expected_rows(tree, SHIFTS, record)}
    assert rows["independent"]["expected"] == pytest.approx(0.0)
    mask = tree.training.mask
    erm, robust = (1.0 - seen_share(x, mask) for x in points)
    assert rows["complement"]["expected"] == pytest.approx(1.0 - robust / erm)
    assert rows["complement"]["measured"] == 0.0
