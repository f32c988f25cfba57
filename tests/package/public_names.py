"""The names that users see: public modules, the names in them, methods that have an example.

`python -m tests.package.public_names` runs the example of each and prints what went wrong, by name.
"""

from __future__ import annotations

import doctest
import inspect
import io
import json
import types
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import cvxpy as cp
import networkx as nx
import numpy as np
import pandas as pd

import wdro_model as wdro
from wdro_model import testing
from wdro_model.evaluation.discrete import Rounded
from wdro_model.evaluation.path import RadiusPath
from wdro_model.evaluation.statistics import Advantage
from wdro_model.evaluation.worst_case import WorstCase
from wdro_model.sets.backends import Backends
from wdro_model.sets.checking import OracleReport
from wdro_model.sets.rounding import Rounding

MAIN = (
    *("Problem", "UncertainParameter", "WassersteinBall", "In", "compare", "select_radius"),
    *("radius_for", "cvar", "expectation", "probability", "Solution"),
    *("costs.SquaredEuclidean", "costs.Norm", "costs.Mahalanobis"),
    *("supports.Box", "supports.Nonnegative", "supports.Polyhedron"),
    *("sets.SpanningTree", "sets.ShortestPath", "sets.TrafficFlows", "sets.Oracle"),
    *("sets.FeasibleSet", "solvers.FrankWolfe", "solvers.MomentumFrankWolfe", "solvers.Conic"),
    *("estimators.RobustLinearRegression", "estimators.RobustLogisticRegression"),
    *("traffic.Network", "traffic.equilibrium", "datasets.sioux_falls"),
)
"""Names whose examples stand alone, with their imports; others may use `example_namespace`."""
RETURNED = (WorstCase, Rounded, RadiusPath, Advantage, OracleReport)
"""What users are given, though they never build one."""
PARTS = (Backends, Rounding)
"""Classes that others inherit methods from."""
HEADING = "\nExamples\n--------\n"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_modules() -> Iterator[types.ModuleType]:
    """The package, and the modules that it offers."""
    yield wdro
    for name in wdro.__all__:
        if inspect.ismodule(found := getattr(wdro, name)):
            yield found
    yield testing


def public_names() -> dict[str, Any]:
    """Classes, functions, and methods that have an example, by their dotted names."""
    found: dict[int, tuple[str, Any]] = {}
    for module in public_modules():
        prefix = "wdro" if module is wdro else f"wdro.{module.__name__.rpartition('.')[2]}"
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                found.setdefault(id(thing), (f"{prefix}.{name}", thing))
    listed = dict(found.values())
    listed |= {f"the result {thing.__name__}": thing for thing in RETURNED}
    parts = {f"the part {part.__name__}": part for part in PARTS}
    for name, thing in [*listed.items(), *parts.items()]:
        if inspect.isclass(thing):
            listed |= {f"{name}.{key}": member for key, member in methods_with_example(thing)}
    return listed


def methods_with_example(owner: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class writes itself and that have an example."""
    for name, member in vars(owner).items():
        written = inspect.isroutine(member) or isinstance(member, (property, cached_property))
        if written and not name.startswith("_") and HEADING in docstring(member):
            yield name, member


def example_namespace() -> dict[str, Any]:
    """The names that a short example may use: five packages, one model, one network."""
    x = cp.Variable(2, nonneg=True)
    price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    ball = wdro.WassersteinBall(1.0)
    problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
    network = wdro.datasets.sioux_falls()
    model = {"x": x, "price": price, "ball": ball, "problem": problem, "network": network}
    return {"cp": cp, "np": np, "nx": nx, "pd": pd, "wdro": wdro, **model}


def docstring(thing: Any) -> str:
    """Its own docstring; none that it inherits."""
    text = thing.__doc__ if not inspect.isclass(thing) else vars(thing).get("__doc__")
    return inspect.cleandoc(text or "")


def complaint(name: str, thing: Any) -> str:
    """What doctest says of an example that does not do what it shows; nothing if it does."""
    names = {} if name.removeprefix("wdro.") in MAIN else example_namespace()
    test = doctest.DocTestParser().get_doctest(docstring(thing), names, name, None, 0)
    if not test.examples:
        return "no example"
    said = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error", wdro.ConvexityWarning)
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.write)
    return said.getvalue()


if __name__ == "__main__":
    print(json.dumps({name: complaint(name, thing) for name, thing in public_names().items()}))
