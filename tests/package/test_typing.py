"""What a type checker sees: names that are known, keywords that exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest

import wdro_model as wdro
from wdro_model import sets, traffic
from wdro_model.evaluation import guarantee
from wdro_model.objectives.integration import STRATEGIES
from wdro_model.sets import (
    arborescence,
    elementary,
    flow,
    knapsack,
    matching,
    shortest_path,
    spanning_tree,
    tour,
)
from wdro_model.solve import METHODS, Options, options
from wdro_model.solvers import directions, frank_wolfe, steps
from wdro_model.traffic.flows import traffic_flows
from wdro_model.uncertainty.parameter import KNOWN, ParameterAttributes

ROOT = Path(__file__).parents[2]
BACKENDS = {
    sets.Arborescence: arborescence.ArborescenceBackend,
    sets.Assignment: matching.AssignmentBackend,
    sets.Flow: flow.FlowBackend,
    sets.Knapsack: knapsack.KnapsackBackend,
    sets.Matching: matching.MatchingBackend,
    sets.NuclearBall: elementary.SpectralBackend,
    sets.ShortestPath: shortest_path.PathBackend,
    sets.SpanningTree: spanning_tree.TreeBackend,
    sets.Spectraplex: elementary.SpectralBackend,
    sets.Tour: tour.TourBackend,
    traffic.TrafficFlows: traffic_flows.TrafficBackend,
}
USER = """
import cvxpy as cp
import networkx as nx
import wdro_model as wdro

x = cp.Variable(2, nonneg=True)
price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
ball = wdro.WassersteinBall(0.1, wdro.costs.Norm("inf"))
problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ambiguity=ball)
value: float = problem.solve("smoothed", epsilon=0.1, integration="tilted", dual="exact", seed=1)
problem.solve(solver="CLARABEL", time_limit=10, start={x: [0.5, 0.5]}, verbose=False)
problem.solve(method="exact", solver=wdro.solvers.FrankWolfe(direction="plain", step="mine"))
problem.path([0.1, 1.0], "exact", test=[[1.0, 1.0]], solver=wdro.solvers.Conic(), seed=2)
problem.worst_case("exact")
found = wdro.radius_for(problem, 0.9, "rate", support=wdro.supports.Box(0, 3))
problem.with_radius(found).solve()
print(problem.explain("exact", relax=True))
wdro.sets.SpanningTree(nx.complete_graph(3), backend="one_of_my_own")
wdro.traffic.equilibrium(wdro.datasets.sioux_falls(), gap=1e-2, time_limit=60, progress=False)

problem.solve("exat")  # wrong: method
problem.solve(epsilom=0.1)  # wrong: epsilom
problem.solve(integration="tilde")  # wrong: integration
problem.solve(dual="vertices")  # wrong: dual
problem.solve(seed="zero")  # wrong: seed
problem.explain("exact", relaxed=True)  # wrong: relaxed
problem.path([0.1], sed=1)  # wrong: sed
problem.worst_case("exactly")  # wrong: method
wdro.radius_for(problem, 0.9, "rates")  # wrong: rule
wdro.solvers.FrankWolfe(direction="blended_newtn")  # wrong: direction
wdro.costs.Norm("infinity")  # wrong: p
wdro.UncertainParameter(2, sampels=[[1.0, 2.0]])  # wrong: sampels
wdro.UncertainParameter(2, nonneg=True, support=[0, 1])  # wrong: support
wdro.traffic.equilibrium(wdro.datasets.sioux_falls(), progres=False)  # wrong: progres
wdro.Problem(cp.Minimize(price @ x), assume_conv=True)  # wrong: assume_conv
"""


def test_mypy_refuses_what_is_misspelt_and_nothing_else(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "user.py"
    script.write_text(USER)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")),
            *("--cache-dir", str(ROOT / ".mypy_cache"), "--hide-error-context", str(script)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        check=False,
    )
    found = set(map(int, re.findall(r"user\.py:(\d+): error", result.stdout)))
    wrong = {n for n, line in enumerate(USER.splitlines(), 1) if "# wrong" in line}
    assert found == wrong, result.stdout + result.stderr


def test_types_are_shipped():
    assert (Path(wdro.__file__).parent / "py.typed").exists()


# ------------------------------------------------------------------ names
def test_names_of_methods_and_rules_are_those_that_are_known():
    assert set(get_args(options.Method)) == set(METHODS)
    assert set(get_args(options.IntegrationName)) == set(STRATEGIES)
    assert set(get_args(options.DualName)) == set(options.DUALS)
    assert set(get_args(guarantee.RadiusRule)) == set(guarantee.RULE_ARGUMENTS)
    assert set(get_args(frank_wolfe.DirectionName)) == {"auto", *directions.RULES}
    assert set(get_args(frank_wolfe.StepName)) <= set(steps.STEPS)


def test_names_of_backends_are_those_that_are_built_in():
    code = (
        "import json, wdro_model as wdro\n"
        "from wdro_model.sets.backends import backend_names\n"
        f"names = {[owner.__name__ for owner in BACKENDS]!r}\n"
        "of = {'AssignmentSet': 'Assignment'}\n"
        "found = {n: backend_names(getattr(wdro.sets, of.get(n, n))) for n in names}\n"
        "print(json.dumps(found))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    ).stdout
    built_in = {name: set(known) for name, known in json.loads(printed).items()}
    assert built_in == {owner.__name__: set(get_args(names)) for owner, names in BACKENDS.items()}


# ------------------------------------------------------------------ keywords
def test_attributes_of_parameters_are_those_of_cvxpy():
    assert set(ParameterAttributes.__annotations__) <= set(KNOWN)


def test_solve_lists_its_keywords():
    parameters = signature(wdro.Problem.solve).parameters
    asked = {name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert asked == {"solver", "time_limit", *options.SolveOptions.__annotations__}
    assert set(options.SolveOptions.__annotations__) == set(Options.__dataclass_fields__)
    defaults = {name: field.default for name, field in Options.__dataclass_fields__.items()}
    assert {name: parameters[name].default for name in defaults} == defaults


@pytest.mark.parametrize("call", ["solve", "explain"])
def test_a_misspelt_keyword_is_refused_with_the_nearest(portfolio, call):
    with pytest.raises(TypeError, match=r"unknown option 'epsilom'\. Did you mean 'epsilon'\?"):
        getattr(portfolio[0], call)(epsilom=0.1)


def test_the_same_goes_for_paths_and_traffic(portfolio):
    with pytest.raises(TypeError, match=r"unknown option 'timelimit'\. Did you mean 'time_limit'"):
        portfolio[0].path([0.1], timelimit=3)
    with pytest.raises(TypeError, match=r"unknown option 'verbos'\. Did you mean 'verbose'"):
        traffic.equilibrium(wdro.datasets.sioux_falls(), verbos=True)
