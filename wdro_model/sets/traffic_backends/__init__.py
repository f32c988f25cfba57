"""The ways to find an all-or-nothing assignment, one file each, and what they share."""

from wdro_model.sets.traffic_backends.cvxpy_backend import with_cvxpy
from wdro_model.sets.traffic_backends.networkx_backend import with_networkx
from wdro_model.sets.traffic_backends.numba_backend import with_numba
from wdro_model.sets.traffic_backends.ortools_backend import with_ortools
from wdro_model.sets.traffic_backends.scipy_backend import with_scipy

__all__ = ["with_cvxpy", "with_networkx", "with_numba", "with_ortools", "with_scipy"]
