"""Road networks: their data, congestion, and assignments of traffic to them."""

from wdro_model import sets
from wdro_model.traffic.assignment import (
    Assignment,
    all_or_nothing,
    equilibrium,
    price_of_anarchy,
    relative_gap,
    social_optimum,
)
from wdro_model.traffic.beckmann import beckmann, system_cost
from wdro_model.traffic.days import (
    DayDraw,
    ObservedTimes,
    ReroutingTest,
    TrafficDays,
    reroute,
    rerouting_test,
)
from wdro_model.traffic.files.gmns import GMNSError, read_gmns, write_gmns
from wdro_model.traffic.files.tntp import TNTPError, read_tntp
from wdro_model.traffic.files.tntp_write import read_flows, renumbered, write_tntp
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.flows.road_graph import drop_unreachable
from wdro_model.traffic.flows.route_shares import RouteShares
from wdro_model.traffic.maps import plot_comparison, plot_flows
from wdro_model.traffic.network import Network
from wdro_model.traffic.skims import (
    LinkResults,
    SelectedTrips,
    Skims,
    link_results,
    marginal_tolls,
    select_link,
    skim,
)
from wdro_model.traffic.uncertain_network import UncertainNetwork
from wdro_model.traffic.user_classes import (
    ClassAssignment,
    UserClass,
    class_equilibrium,
)

sets.TrafficFlows = TrafficFlows

__all__ = [
    "Assignment",
    "ClassAssignment",
    "DayDraw",
    "GMNSError",
    "LinkResults",
    "Network",
    "ObservedTimes",
    "ReroutingTest",
    "RouteShares",
    "SelectedTrips",
    "Skims",
    "TNTPError",
    "TrafficDays",
    "TrafficFlows",
    "UncertainNetwork",
    "UserClass",
    "all_or_nothing",
    "beckmann",
    "class_equilibrium",
    "drop_unreachable",
    "equilibrium",
    "link_results",
    "marginal_tolls",
    "plot_comparison",
    "plot_flows",
    "price_of_anarchy",
    "read_flows",
    "read_gmns",
    "read_tntp",
    "relative_gap",
    "renumbered",
    "reroute",
    "rerouting_test",
    "select_link",
    "skim",
    "social_optimum",
    "system_cost",
    "write_gmns",
    "write_tntp",
]
__dir__ = __all__.copy  # what the tab key offers
