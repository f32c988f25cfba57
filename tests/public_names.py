"""What users can name: the public modules, what they list, and the methods that matter.

`python -m tests.public_names` runs the example of each and prints what went wrong, by name.
"""

from __future__ import annotations

import doctest
import inspect
import io
import json
import types
import warnings
from collections.abc import Iterator
from typing import Any

import wdro_model as wdro
from wdro_model.evaluation.discrete import Rounded
from wdro_model.evaluation.path import RadiusPath
from wdro_model.evaluation.statistics import Advantage
from wdro_model.evaluation.worst_case import WorstCase
from wdro_model.sets.checking import OracleReport

WHOLE = (
    wdro.Problem,
    wdro.WassersteinBall,
    wdro.evaluation.Report,
    wdro.evaluation.RadiusSelection,
    wdro.evaluation.LossStatistics,
    wdro.traffic.Network,
    wdro.traffic.TrafficFlows,
    wdro.datasets.TreeCosts,
    wdro.datasets.TrafficScenarios,
    wdro.solvers.Trace,
)
"""Classes of which every public method has an example."""
FORMAL = ("row", "rows", "describe", "use_backend", "origin_flows")
"""Methods of these that only the library calls, or that their name says all about."""
SOME = {
    wdro.sets.FeasibleSet: (
        *("minimize", "minimize_within", "minimize_with_slack", "constraints", "contains"),
        *("round", "is_vertex", "backends", "with_backend"),
    ),
    wdro.UncertainParameter: ("as_samples",),
    wdro.Solution: ("relative_gap", "vertices"),
    wdro.sets.Subsets: ("selected",),
    wdro.sets.Flow: ("selected",),
    wdro.sets.CpSat: ("values",),
    wdro.sets.Tour: ("order",),
    wdro.sets.Assignment: ("table",),
    wdro.datasets.QuadraticTree: ("shifted",),
    wdro.datasets.TrafficDraw: ("as_test",),
    wdro.evaluation.RadiusSelection: ("to_frame", "to_csv"),
    wdro.evaluation.Judged: ("statistics", "excess", "kept"),
}
"""Of other classes, these."""
RETURNED = (WorstCase, Rounded, RadiusPath, Advantage, OracleReport)
"""What users are given, though they never build one."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_modules() -> Iterator[types.ModuleType]:
    """The package, and the modules that it offers."""
    yield wdro
    for name in wdro.__all__:
        if inspect.ismodule(found := getattr(wdro, name)):
            yield found


def public_names() -> dict[str, Any]:
    """Classes, functions and methods by their dotted names; one for each thing."""
    found: dict[int, tuple[str, Any]] = {}
    for module in public_modules():
        prefix = "wdro" if module is wdro else f"wdro.{module.__name__.rpartition('.')[2]}"
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                found.setdefault(id(thing), (f"{prefix}.{name}", thing))
    classes = {thing: name for name, thing in found.values() if inspect.isclass(thing)}
    methods = SOME | {t: (*own_methods(t), *SOME.get(t, ())) for t in WHOLE}
    listed = dict(found.values())
    listed |= {f"the result {thing.__name__}": thing for thing in RETURNED}
    for owner, names in methods.items():
        for name in names:
            listed[f"{classes[owner]}.{name}"] = inspect.getattr_static(owner, name)
    return listed


def own_methods(owner: type) -> Iterator[str]:
    """The public methods that a class writes itself."""
    for name, thing in vars(owner).items():
        if name.startswith("_") or name in FORMAL:
            continue
        if inspect.isfunction(thing) or isinstance(thing, classmethod):
            yield name


def docstring(thing: Any) -> str:
    """Its own docstring; none that it inherits."""
    text = thing.__doc__ if not inspect.isclass(thing) else vars(thing).get("__doc__")
    return inspect.cleandoc(text or "")


def complaint(name: str, thing: Any) -> str:
    """What doctest says of an example that does not do what it shows; nothing if it does."""
    test = doctest.DocTestParser().get_doctest(docstring(thing), {}, name, None, 0)
    if not test.examples:
        return "no example"
    said = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error", wdro.ConvexityWarning)
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.write)
    return said.getvalue()


if __name__ == "__main__":
    print(json.dumps({name: complaint(name, thing) for name, thing in public_names().items()}))
