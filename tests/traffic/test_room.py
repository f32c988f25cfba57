"""Traffic as a room of the house: its public names, and whom its modules import."""

from __future__ import annotations

import ast
import pickle
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import wdro_model as wdro
from tests.traffic.networks import braess

PACKAGE = Path(wdro.__file__).parent
ABOVE = {"traffic", "datasets", "demo", "__init__"}


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def is_traffic(name):
    return f"{name}.".startswith("wdro_model.traffic.")


def imports(path):
    """The names that a module imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_set_of_flows_has_both_addresses():
    from wdro_model.sets import TrafficFlows

    assert TrafficFlows is wdro.sets.TrafficFlows is wdro.traffic.TrafficFlows
    assert TrafficFlows.backends() == ("scipy", "numba", "networkx", "ortools", "cvxpy")
    flows = TrafficFlows(braess())
    assert type(pickle.loads(pickle.dumps(flows))) is TrafficFlows


@pytest.mark.parametrize("room", [wdro.sets, wdro.traffic, wdro.datasets])
def test_public_names_are_there(room):
    assert sorted(room.__all__) == room.__all__
    for name in room.__all__:
        assert getattr(room, name).__module__.startswith("wdro_model.")


def test_no_room_below_imports_traffic():
    below = {name_of(path): path for path in PACKAGE.rglob("*.py") if room_of(path) not in ABOVE}
    guilty = [name for name, path in below.items() if any(map(is_traffic, imports(path)))]
    assert "wdro_model.sets.feasible_set" in below
    assert guilty == []


def test_traffic_imports_without_cycles():
    known = {name_of(path): path for path in (PACKAGE / "traffic").rglob("*.py")}
    edges = {}
    for name, path in known.items():
        # from a.b import c: the module a.b.c if there is one, else a.b
        found = (n if n in known else n.rpartition(".")[0] for n in imports(path))
        edges[name] = {n for n in found if n in known}
    order = list(TopologicalSorter(edges).static_order())  # raises CycleError
    assert order.index("wdro_model.traffic.network") < order.index("wdro_model.traffic")
