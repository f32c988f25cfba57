"""The paths of link flows that are the equilibrium of given weights, on networks of any size."""

from __future__ import annotations

import numpy as np

from wdro_model.traffic.bushes.bush_state import Bushes, Roads
from wdro_model.traffic.bushes.power_costs import PowerCosts
from wdro_model.traffic.flows.path_flows import PathFlows
from wdro_model.traffic.flows.trips import Trips

Array = np.ndarray

FINEST = 1e-14
SWEEPS = 60
UNUSED = 10.0
"""What an arc without flow costs, beyond its weight, in multiples of the largest weight."""


def paths_in_equilibrium(trips: Trips, x: Array, weights: Array, tolerance: float) -> PathFlows:
    """Paths that add up to x, where x is an equilibrium at the weights w.

    At costs t_a(X) = w_a X_a / x_a, and prohibitive ones where x_a = 0, x is the equilibrium: its
    costs are w. No other flow is, where w > 0; bushes find it, and have its paths.
    """
    used = x > 0
    prohibitive = weights + UNUSED * max(float(weights.max(initial=0.0)), 1.0)
    costs = PowerCosts.of(
        np.where(used, 0.0, prohibitive),
        np.where(used, x, 1.0),
        np.where(used, weights, 0.0),
        np.ones(x.size),
    )
    bushes = Bushes(Roads(trips), costs)
    bushes.plant(np.where(used, weights, prohibitive))
    for _ in range(SWEEPS):
        gap = bushes.improve()
        apart = float(np.abs(bushes.link_flows - x).sum())
        if gap <= FINEST or apart <= 0.01 * tolerance * trips.total:
            break
        bushes.balance(gap)
    if apart > tolerance * (trips.total or 1.0):
        raise ValueError(
            f"x is not the equilibrium of the weights: the flow that is differs from it by "
            f"{apart:.4g} in all (the demand is {trips.total:.10g}), and other flows are taken "
            "apart on small networks only; give the times at which x is an equilibrium as weights, "
            "find it to a smaller gap, or ask an Assignment for its path_flows."
        )
    paths = bushes.path_flows()
    return PathFlows(paths, x - paths.link_flows)
