"""Where decisions live: feasible sets known by CVXPY constraints or by an oracle."""

from typing import Any

from wdro_model.sets.backends import register_backend
from wdro_model.sets.checking import OracleError, check
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.feasible_set import FeasibleSet, In
from wdro_model.sets.oracle import Oracle
from wdro_model.sets.product import ProductSet
from wdro_model.sets.shortest_path import ShortestPath
from wdro_model.sets.spanning_tree import SpanningTree

TrafficFlows: Any
"""The link flows of a road network; the room above that knows networks puts its set here."""

__all__ = [
    "ConvexSet",
    "FeasibleSet",
    "In",
    "Oracle",
    "OracleError",
    "ProductSet",
    "ShortestPath",
    "SpanningTree",
    "TrafficFlows",
    "check",
    "register_backend",
]
