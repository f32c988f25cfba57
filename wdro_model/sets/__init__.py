"""Feasible sets of decisions, known by CVXPY constraints or by an oracle."""

from typing import Any

from wdro_model.sets.arborescence import Arborescence
from wdro_model.sets.backends import register_backend
from wdro_model.sets.checking import OracleError, check
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.cp_sat import CpSat
from wdro_model.sets.elementary import Ball, Hull, NuclearBall, Simplex, Spectraplex
from wdro_model.sets.elementary import BoxSet as Box
from wdro_model.sets.feasible_set import FeasibleSet, In
from wdro_model.sets.flow import Flow
from wdro_model.sets.knapsack import Knapsack
from wdro_model.sets.matching import AssignmentSet as Assignment
from wdro_model.sets.matching import Matching
from wdro_model.sets.matroids import BasePolytope, Matroid, Partition, Subsets
from wdro_model.sets.oracle import Oracle
from wdro_model.sets.product import ProductSet
from wdro_model.sets.shortest_path import ShortestPath
from wdro_model.sets.spanning_tree import SpanningTree
from wdro_model.sets.tour import Tour

TrafficFlows: Any
"""The link flows of a road network; the room above that knows networks puts its set here."""

__all__ = [
    "Arborescence",
    "Assignment",
    "Ball",
    "BasePolytope",
    "Box",
    "ConvexSet",
    "CpSat",
    "FeasibleSet",
    "Flow",
    "Hull",
    "In",
    "Knapsack",
    "Matching",
    "Matroid",
    "NuclearBall",
    "Oracle",
    "OracleError",
    "Partition",
    "ProductSet",
    "ShortestPath",
    "Simplex",
    "SpanningTree",
    "Spectraplex",
    "Subsets",
    "Tour",
    "TrafficFlows",
    "check",
    "register_backend",
]
__dir__ = __all__.copy  # what the tab key offers
