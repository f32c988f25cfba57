"""Road networks: their data, congestion, and assignments of traffic to them."""

from wdro_model.traffic.assignment import Assignment, equilibrium, social_optimum
from wdro_model.traffic.beckmann import beckmann, system_cost
from wdro_model.traffic.measures import all_or_nothing, price_of_anarchy, relative_gap
from wdro_model.traffic.network import Network
from wdro_model.traffic.plots import plot_comparison, plot_flows
from wdro_model.traffic.tntp import TNTPError, read_flows, read_tntp, renumbered, write_tntp

__all__ = [
    "Assignment",
    "Network",
    "TNTPError",
    "all_or_nothing",
    "beckmann",
    "equilibrium",
    "plot_comparison",
    "plot_flows",
    "price_of_anarchy",
    "read_flows",
    "read_tntp",
    "relative_gap",
    "renumbered",
    "social_optimum",
    "system_cost",
    "write_tntp",
]
