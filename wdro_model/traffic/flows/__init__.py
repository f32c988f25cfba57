"""Link flows that carry the demand of a road network: the set, its paths and its backends."""

from wdro_model.sets import register_backend
from wdro_model.traffic.flows.backends import (
    with_cvxpy,
    with_networkx,
    with_numba,
    with_ortools,
    with_scipy,
)
from wdro_model.traffic.flows.traffic_flows import TrafficFlows

register_backend(TrafficFlows, "scipy", with_scipy)
register_backend(TrafficFlows, "numba", with_numba)
register_backend(TrafficFlows, "networkx", with_networkx)
register_backend(TrafficFlows, "ortools", with_ortools)
register_backend(TrafficFlows, "cvxpy", with_cvxpy)

__all__ = ["TrafficFlows"]
