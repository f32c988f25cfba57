"""What holds for every exact counterpart, at every decision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.references.exact_cases import COSTS, LOSSES, SUPPORTS, case
from wdro_model.evaluation.worst_case import worst_case
from wdro_model.objectives import exact
from wdro_model.solve.true_risk import known_robust_value

cases = {
    "loss": st.sampled_from(sorted(LOSSES)),
    "cost": st.sampled_from(sorted(COSTS)),
    "support": st.sampled_from(sorted(SUPPORTS)),
    "seed": st.integers(0, 10**6),
}
radii = st.floats(-6, 2).map(lambda exponent: 10.0**exponent)


def risk(loss, cost, support, seed, radius):
    some = case(loss, cost, support, radius, seed)
    assume(exact.has_counterpart(some.model))
    return known_robust_value(some.model, some.flat)


@settings(max_examples=150, deadline=None)
@given(**cases, radius=radii, share=st.floats(0.05, 0.95))
def test_risk_grows_with_the_radius_and_less_and_less(loss, cost, support, seed, radius, share):
    """The worst case over a ball is nondecreasing and concave in its radius, from the mean on."""
    some = case(loss, cost, support, 0.0, seed)
    mean = some.losses(some.rows).mean()
    small, large = (risk(loss, cost, support, seed, factor * radius) for factor in (share, 1.0))
    tolerance = 2e-6 * (1.0 + abs(large))
    assert mean <= small + tolerance
    assert small <= large + tolerance
    assert small - mean >= share * (large - mean) - tolerance


@settings(max_examples=150, deadline=None)
@given(**cases, radius=radii)
def test_no_move_of_the_samples_within_the_budget_is_worse(loss, cost, support, seed, radius):
    some = case(loss, cost, support, radius, seed)
    assume(exact.has_counterpart(some.model))
    value = known_robust_value(some.model, some.flat)
    rng = np.random.default_rng(seed)
    for scale in (0.1, 1.0, 10.0):
        moves = scale * rng.standard_normal(some.rows.shape)
        inside = some.model.joint.contains(some.rows + moves)
        moves[~inside] = 0.0
        spent = some.model.cost.of_displacements(moves).mean()
        if spent > radius:  # any cost here is convex and zero at zero
            moves *= radius / spent
        losses = some.losses(some.rows + moves)
        assert losses.mean() <= value + 2e-6 * (1.0 + abs(value))


@settings(max_examples=100, deadline=None)
@given(**cases, radius=radii)
def test_worst_case_is_a_distribution_of_the_ball_that_attains_the_risk(
    loss, cost, support, seed, radius
):
    some = case(loss, cost, support, radius, seed)
    assume(exact.has_counterpart(some.model))
    value = known_robust_value(some.model, some.flat)
    found = worst_case(some.model, some.flat)
    (atoms,) = found.scenarios.values()
    size = len(some.rows)
    np.testing.assert_allclose(
        np.bincount(found.source, found.weights, minlength=size), np.full(size, 1 / size), atol=1e-9
    )
    assert np.all(found.weights > 0)
    assert some.model.joint.contains(atoms).all()
    costs = some.model.cost(some.rows[found.source], atoms)
    assert found.weights @ costs <= radius * (1 + 1e-5) + 1e-9
    assert found.weights @ some.losses(atoms) == pytest.approx(value, rel=1e-4, abs=1e-4)
