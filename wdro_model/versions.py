"""What is installed: versions of the packages, conic solvers, oracle backends."""

from __future__ import annotations

import platform
from importlib import metadata

import cvxpy as cp

from wdro_model import sets
from wdro_model.sets.backends import backend_names

REQUIRED = ("wdro_model", "numpy", "scipy", "cvxpy", "networkx", "joblib", "highspy", "clarabel")
OPTIONAL = ("ortools", "numba", "matplotlib", "pandas", "dask", "scikit-learn")


def version(package: str) -> str | None:
    """The installed version, None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers may depend on."""
    found = {name: version(name) for name in REQUIRED}
    return {
        "python": platform.python_version(),
        **{name: number for name, number in found.items() if number is not None},
    }


def backends() -> dict[str, tuple[str, ...]]:
    """The names of the oracle backends of each set; whether they can run is another matter."""
    offered = {name: getattr(sets, name) for name in sets.__all__}
    classes = {name: found for name, found in offered.items() if isinstance(found, type)}
    known = {name: backend_names(found) for name, found in classes.items()}
    return {name: names for name, names in known.items() if names}


def solvers() -> list[str]:
    """The solvers that CVXPY finds."""
    return [str(name) for name in cp.installed_solvers()]
