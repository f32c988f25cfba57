"""Importing the library: beside OR-Tools in either order, and no more than it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OR_TOOLS = (
    "ortools.sat.python.cp_model",
    "ortools.math_opt.python.mathopt",
    "ortools.constraint_solver.pywrapcp",
    "ortools.linear_solver.pywraplp",
    "ortools.graph.python.min_cost_flow",
    "ortools.graph.python.max_flow",
    "ortools.graph.python.linear_sum_assignment",
)
ORDERS = {
    "library, OR-Tools": "import wdro_model\nimport {tools}",
    "OR-Tools, library": "import {tools}\nimport wdro_model",
}
MORE_ORDERS = {
    "CVXPY, library, OR-Tools": "import cvxpy\nimport wdro_model\nimport {tools}",
    "OR-Tools, CVXPY, library": "import {tools}\nimport cvxpy\nimport wdro_model",
    "OR-Tools refused at first": "import cvxpy\ntry:\n    import {tools}\nexcept ImportError:\n"
    "    pass\nimport wdro_model\nimport {tools}",
}
BOTH_SOLVE = """
import cvxpy as cp, numpy as np, wdro_model as wdro
from ortools.linear_solver import pywraplp
x = cp.Variable(2)
polytope = wdro.sets.ConvexSet([x >= 1, x <= 4, cp.sum(x) >= 3], [x])
assert polytope.minimize(np.array([1.0, 2.0])) @ [1.0, 2.0] == 4.0
solver = pywraplp.Solver.CreateSolver("HIGHS")
y, z = solver.NumVar(1, 4, "y"), solver.IntVar(1, 4, "z")
solver.Add(y + z >= 3)
solver.Minimize(y + 2 * z)
assert solver.Solve() == pywraplp.Solver.OPTIMAL
assert abs(solver.Objective().Value() - 4.0) < 1e-9
"""


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    pytest.importorskip("ortools")
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("tools", OR_TOOLS)
@pytest.mark.parametrize("order", ORDERS)
def test_or_tools_is_importable_in_either_order(order, tools):
    run(ORDERS[order].format(tools=tools))


@pytest.mark.parametrize("order", ORDERS | MORE_ORDERS)
def test_each_solves_with_its_own_highs(order):
    orders = ORDERS | MORE_ORDERS
    run(orders[order].format(tools="ortools.sat.python.cp_model") + BOTH_SOLVE)


def test_highspy_and_cvxpy_solve_after_or_tools():
    run(
        "import ortools.sat.python.cp_model, wdro_model, cvxpy as cp, highspy\n"
        "x = cp.Variable(2)\n"
        "problem = cp.Problem(cp.Minimize(cp.sum(x)), [x >= 1])\n"
        "assert abs(problem.solve(solver='HIGHS') - 2.0) < 1e-9\n"
        "assert highspy.Highs().version() == __import__('importlib.metadata').metadata.version("
        "'highspy')\n"
        "assert highspy._core.__file__.startswith(highspy.__path__[0])\n"
    )


def test_importing_the_library_leaves_the_import_system_as_it_is():
    run(
        "import sys, wdro_model\n"
        "import importlib\n"
        "flags, before = sys.getdlopenflags(), list(sys.meta_path)\n"
        "importlib.reload(wdro_model)\n"
        "assert sys.meta_path == before\n"
        "from ortools.sat.python import cp_model\n"
        "assert len(sys.meta_path) < len(before)\n"
        "assert sys.getdlopenflags() == flags\n"
    )


@pytest.mark.parametrize(
    "package",
    [
        *("ortools", "networkx", "joblib", "cloudpickle", "matplotlib", "pandas", "numba", "dask"),
        "sklearn",
    ],
)
def test_packages_are_imported_where_they_are_used(package, modules):
    of_cvxpy, of_library = modules
    own = {name for name in of_library - of_cvxpy if name.split(".")[0] == package}
    assert not own


@pytest.fixture(scope="module")
def modules():
    """What CVXPY and the library import, in fresh interpreters."""
    listed = "import sys, {}\nprint(*sys.modules)"
    return [set(run(listed.format(name)).split()) for name in ("cvxpy", "wdro_model")]
