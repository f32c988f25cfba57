"""Scenarios of days, observed times, and tests in which drivers re-route."""

import numpy as np
import pandas as pd
import pytest

from tests.traffic.networks import braess
from wdro_model.datasets import sioux_falls
from wdro_model.traffic import (
    ObservedTimes,
    TrafficDays,
    TrafficFlows,
    UncertainNetwork,
    all_or_nothing,
    equilibrium,
    reroute,
    rerouting_test,
)


@pytest.fixture(scope="module")
def network():
    return sioux_falls()


# ------------------------------------------------------------------ re-routing
def test_all_drivers_re_routing_is_the_equilibrium(network):
    plan = all_or_nothing(network, network.free_flow_time)
    settled = reroute(network, plan, 1.0, gap=1e-5)
    flow, _ = equilibrium(network, gap=1e-5)
    assert network.beckmann(settled) == pytest.approx(network.beckmann(flow), rel=1e-5)
    np.testing.assert_array_equal(reroute(network, plan, 0.0), plan)


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_those_who_re_route_have_no_faster_path(network, share):
    plan = all_or_nothing(network, network.free_flow_time)
    total = reroute(network.replace(fixed_cost=0.5), plan, share, gap=1e-5)
    moved = total - (1 - share) * plan
    times = network.travel_time(total) + 0.5
    best = TrafficFlows(network.scaled_demand(share)).minimize(times)
    assert times @ moved <= times @ best * (1 + 1e-3)
    balance = np.bincount(network.tails, total, 24) - np.bincount(network.heads, total, 24)
    np.testing.assert_allclose(
        balance, network.demand.sum(axis=1) - network.demand.sum(axis=0), atol=1e-6
    )


def test_a_table_of_plans_and_shares():
    """Braess: all drivers over the bridge cost 6 * 130; at the equilibrium 6 * 92."""
    network = braess()
    bridge = np.array([6.0, 0, 0, 6.0, 6.0])
    apart = np.array([3.0, 3.0, 3.0, 0, 3.0])
    cases = [network, network.scaled_demand(0.5)]
    test = rerouting_test(cases, {"bridge": bridge, "apart": apart}, [0, 1], gap=1e-7)
    assert test.costs["bridge", 0.0][0] == pytest.approx(6 * (60 + 16 + 60), rel=1e-6)
    assert test.costs["apart", 0.0][0] == pytest.approx(6 * (30 + 53), rel=1e-6)
    assert test.costs["bridge", 0.0][1] == pytest.approx(3 * (30 + 13 + 30), rel=1e-6)
    np.testing.assert_allclose(test.costs["bridge", 1.0], test.costs["apart", 1.0])
    assert test.costs["apart", 1.0][0] == pytest.approx(6 * 92, rel=1e-4)
    row = test.rows()[0]
    assert (row["flow"], row["share"]) == ("bridge", 0.0)
    assert row["mean"] == pytest.approx(test.costs["bridge", 0.0].mean())
    assert row["worst"] == row["cvar95"] == test.costs["bridge", 0.0].max()
    assert "2 scenarios; with all drivers re-routing" in str(test)
    assert "<table" in test._repr_html_()
    assert test.to_frame()["share"].tolist() == [0, 1, 0, 1]


def test_what_re_routing_refuses():
    network = braess()
    with pytest.raises(ValueError, match=r"share must be a number from 0 to 1, got 1\.5"):
        reroute(network, np.zeros(5), 1.5)
    with pytest.raises(ValueError, match="flows must be a dict"):
        rerouting_test([network], np.zeros(5))
    with pytest.raises(ValueError, match="at least one scenario"):
        rerouting_test([], {"a": np.zeros(5)})
    with pytest.raises(ValueError, match="does not route the demand"):
        rerouting_test([network], {"a": [1.0, 0, 0, 0, 0]})


# ------------------------------------------------------------------ days
def test_days_have_the_weather_and_incidents_of_their_law(network):
    chance = np.zeros(76)
    chance[[2, 5]] = 0.3, 1.0
    law = TrafficDays(
        network,
        bad_weather=0.25,
        weather_capacity=0.8,
        weather_time=1.2,
        incident=chance,
        incident_capacity=0.5,
        demand_deviation=0.2,
    )
    days = law.sample(4000, seed=1)
    assert days.bad_weather.mean() == pytest.approx(0.25, abs=0.03)
    assert days.incidents[:, 2].mean() == pytest.approx(0.3, abs=0.03)
    assert days.incidents[:, 5].all()
    assert not np.delete(days.incidents, [2, 5], axis=1).any()
    for k in range(50):
        left = 0.8 if days.bad_weather[k] else 1.0
        expected = left * np.where(days.incidents[k], 0.5, 1.0) * network.capacity
        np.testing.assert_allclose(days.capacity[k], expected)
        slower = 1.2 if days.bad_weather[k] else 1.0
        np.testing.assert_allclose(days.free_flow_time[k], slower * network.free_flow_time)
    logarithms = np.log(days.demand_level)
    assert logarithms.std() == pytest.approx(0.2, abs=0.01)
    assert np.median(logarithms) == pytest.approx(0.0, abs=0.02)
    again = law.sample(4000, seed=1)
    np.testing.assert_array_equal(days.capacity, again.capacity)
    uncertain = UncertainNetwork(network, **law.sample(3, seed=0).conditions())
    assert uncertain.varies == ("capacity", "free_flow_time", "demand_level")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bad_weather": 1.5}, "bad_weather must be a probability from 0 to 1, got 1.5"),
        ({"incident": [0.1]}, "one entry for each of the 76 arcs"),
        ({"incident": -0.1}, "incident must be a probability"),
        ({"incident_capacity": 0.0}, "incident_capacity must be a positive finite number"),
        ({"weather_time": "slow"}, "weather_time must be a positive finite number, got 'slow'"),
        ({"demand_deviation": -1.0}, "demand_deviation must be a nonnegative finite number"),
    ],
)
def test_laws_that_cannot_be_are_refused(network, changes, message):
    with pytest.raises(ValueError, match=message):
        TrafficDays(network, **changes)
    with pytest.raises(ValueError, match="count must be an integer"):
        TrafficDays(network).sample(0)


# ------------------------------------------------------------------ observed times
def test_blocks_are_rows_that_follow_each_other():
    times = np.arange(40.0)[:, None] + [0.0, 100.0]
    times[13, 1] = np.nan
    series = ObservedTimes(times, block=5)
    assert series.missing == 1
    assert len(series.times) == 39
    drawn = series.sample(5000, seed=0)
    np.testing.assert_array_equal(drawn[:, 1] - drawn[:, 0], 100.0)
    steps = np.diff(drawn[:, 0].reshape(-1, 5), axis=1)
    np.testing.assert_array_equal(steps, 1.0)
    assert set(drawn[:, 0]) == set(range(40)) - {13}
    starts = drawn[::5, 0]
    assert starts.max() == 35
    counts = np.bincount(starts.astype(int), minlength=36)
    assert not counts[9:14].any()  # these would reach over the gap
    assert len(series.sample(7, seed=0)) == 7


def test_intervals_of_a_period_and_frames():
    times = np.arange(72.0)[:, None]
    mornings = ObservedTimes(pd.DataFrame(times), period=24, within=[7, 8], block=2)
    assert mornings.times.ravel().tolist() == [7, 8, 31, 32, 55, 56]
    starts = mornings.sample(400, seed=0)[::2, 0]
    assert set(starts) == {7, 31, 55}
    parameter = mornings.parameter("t")
    assert (parameter.count, parameter.shape, parameter.name()) == (6, (1,), "t")
    assert parameter.is_nonneg()


@pytest.mark.parametrize(
    ("times", "options", "message"),
    [
        (np.ones(3), {}, r"times must have shape \(T, A\)"),
        ([[1.0], [-1.0]], {}, r"finite and >= 0, got -1.0 at index \(1, 0\)"),
        ([[np.inf]], {}, "got inf"),
        ([[np.nan]], {}, "no 1 intervals in a row are left of 1 .1 have missing"),
        ([[1.0]], {"block": 2}, "no 2 intervals in a row are left of 1"),
        ([[1.0]], {"period": 24}, "period and within belong together"),
        ([[1.0]], {"period": 24, "within": [24]}, "whole numbers from 0 to 23"),
        ([["fast"]], {}, "times must be real numbers"),
    ],
)
def test_series_that_cannot_be_are_refused(times, options, message):
    with pytest.raises(ValueError, match=message):
        ObservedTimes(times, **options)
