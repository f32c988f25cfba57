"""The page on extending: what it shows is what happens, from a script and from a package."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

import wdro_model as wdro

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
GROUPS = {f"wdro_model.{kind}" for kind in ("backends", "costs", "rules", "counterparts", "steps")}

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not installed")


def blocks(kind: str) -> list[str]:
    return [code for found, code in BLOCK.findall(PAGE.read_text()) if found == kind]


def files() -> dict[str, str]:
    """The files of `my_package` that the page shows, each after the page's imports."""
    imports = blocks("python")[0]
    found = re.compile(r"# my_package/(\w+\.py)\n")
    named = [(match.group(1), code) for code in blocks("python") if (match := found.match(code))]
    return {name: imports + code for name, code in named}


def run(code: str, folder: Path) -> str:
    """What a fresh interpreter prints: what is registered there stays there."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def package(tmp_path):
    """A folder in which `my_package` is installed, with the entry points of the page."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    for name, code in files().items():
        (tmp_path / "my_package" / name).write_text(code)
    offered = tomllib.loads("\n".join(blocks("toml")))["project"]["entry-points"]
    assert set(offered) == GROUPS
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    lines = []
    for group, entries in offered.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


# ------------------------------------------------------------------ the page
def test_the_page_shows_what_it_prints(tmp_path):
    script, shown = [], []
    for kind, code in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            script += [code, "print('-----')"]
        elif kind == "text":
            shown[-1] = code.strip()
        if kind == "python":
            shown.append("")
    printed = run("\n".join(script), tmp_path).split("-----\n")[:-1]
    assert [text.strip() for text in printed] == shown


def test_the_page_names_all_that_may_be_written():
    text = PAGE.read_text()
    for contract in (wdro.counterparts.Counterpart, wdro.loss.AtomFacts):
        public = [name for name in vars(contract) if not name.startswith("_")]
        assert not [name for name in public if f"`{name}" not in text]


def test_the_registers_are_reached_from_the_package():
    assert wdro.register_counterpart is wdro.counterparts.register_counterpart
    assert wdro.register_rule is wdro.loss.register_rule
    for place in (wdro.sets.register_backend, wdro.costs.register_cost):
        assert callable(place)
    assert callable(wdro.solvers.register_step)


# ------------------------------------------------------------------ from a package
USE_ALL_FIVE = """
import sys
import cvxpy as cp, networkx as nx, numpy as np, wdro_model as wdro

def use(module, action):
    assert f"my_package.{module}" not in sys.modules, module
    result = action()
    assert f"my_package.{module}" in sys.modules, module
    return result

rng = np.random.default_rng(0)
tree = use("trees", lambda: wdro.sets.SpanningTree(nx.complete_graph(4), backend="prim"))
assert wdro.sets.check(tree).passed and "prim" in wdro.sets.SpanningTree.backends()

x = cp.Variable(2, nonneg=True)
xi = wdro.UncertainParameter(2, samples=rng.normal(size=(5, 2)))
loss, simplex = cp.Minimize(xi @ x), [cp.sum(x) == 1]
ball = use("pair_cost", lambda: wdro.WassersteinBall(0.1, "pairs"))
problem = wdro.Problem(loss, simplex, ball)
use("any_order", lambda: problem.solve(method="exact"))
solver = wdro.solvers.FrankWolfe(step="armijo", gap=1e-4)
use("armijo", lambda: wdro.Problem(loss, simplex, wdro.WassersteinBall(0.1)).solve(solver=solver))

import my_package.cubed_cost
problem = wdro.Problem(loss, simplex, wdro.WassersteinBall(0.1, "cube"))
problem.solve(method="exact")
assert "radius^(1/p)" in str(problem.explain())

X = wdro.UncertainParameter((2, 2), samples=rng.normal(size=(5, 2, 2)))
use("nuclear", lambda: wdro.Problem(cp.Minimize(cp.normNuc(X - cp.Variable((2, 2)))), []))
print("done")
"""


def test_a_package_offers_all_five_by_entry_points(package):
    """Each is loaded when it is first asked for, though its module registers it as well."""
    assert run(USE_ALL_FIVE, package) == "done\n"


def test_without_the_package_the_names_are_unknown(tmp_path):
    code = """
import networkx as nx, wdro_model as wdro
for action in (
    lambda: wdro.sets.SpanningTree(nx.complete_graph(4), backend="prim"),
    lambda: wdro.WassersteinBall(0.1, "pairs"),
    lambda: wdro.solvers.FrankWolfe(step="armijo"),
):
    try:
        action()
    except ValueError as error:
        print(error)
"""
    printed = run(code, tmp_path).splitlines()
    assert len(printed) == 3
    for line, name in zip(printed, ("prim", "pairs", "armijo")):
        assert f"{name!r}" in line


# ------------------------------------------------------------------ the counterpart
COUNTERPART_VALUES = """
import json
import cvxpy as cp, numpy as np, wdro_model as wdro
import my_package.cubed_cost

given = json.loads({given!r})
x = cp.Variable(2, name="x")
first = wdro.UncertainParameter((1,), name="first", samples=np.array(given["first"]))
second = wdro.UncertainParameter((), name="second", samples=np.array(given["second"]))
expression = first @ x[:1] + second * (x[1] - 2 * x[0]) + x[1]
ball = wdro.WassersteinBall(given["radius"], "cube")
problem = wdro.Problem(cp.Minimize(cp.sum(expression)), [cp.sum(x) == 1, x >= 0], ball)
refused = None
try:
    problem.solve(method="exact")
except wdro.NoReformulationError as error:
    refused = str(error)
print(json.dumps(dict(
    refused=refused,
    value=None if refused else problem.value,
    decision=None if refused else x.value.tolist(),
    risks=None if refused else [problem.robust_value({{x: at}}) for at in given["decisions"]],
)))
"""
DECISIONS = [[1.0, 0.0], [0.3, 0.7], [0.0, 1.0]]


def counterpart_values(folder: Path, rows: np.ndarray, radius: float) -> dict:
    given = {
        "first": rows[:, :1].tolist(),
        "second": rows[:, 1].tolist(),
        "radius": radius,
        "decisions": DECISIONS,
    }
    return json.loads(run(COUNTERPART_VALUES.format(given=json.dumps(given)), folder))


def loss(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows[:, 0] * x[0] + rows[:, 1] * (x[1] - 2 * x[0]) + x[1]


def risk_on_a_grid(x: np.ndarray, rows: np.ndarray, radius: float) -> float:
    """The largest mean loss of a distribution on a grid about each sample, by linear programming.

    The variables are the mass that each sample sends along each move.
    """
    lengths = np.linspace(0, 3 * radius ** (1 / 3), 31)
    angles = np.linspace(0, 2 * np.pi, 180, endpoint=False)
    moves = np.stack([np.outer(lengths, np.cos(angles)), np.outer(lengths, np.sin(angles))], -1)
    moves = moves.reshape(-1, 2)
    losses = np.concatenate([loss(x, row + moves) for row in rows])
    costs = np.tile(np.linalg.norm(moves, axis=1) ** 3, len(rows))
    mass = sparse.kron(sparse.eye(len(rows)), np.ones((1, len(moves))))
    found = linprog(-losses, costs[None], [radius], mass.tocsr(), np.full(len(rows), 1 / len(rows)))
    assert found.status == 0
    return -found.fun


def test_the_counterpart_of_the_page_is_the_worst_case(package, rng):
    rows, radius = rng.normal(size=(3, 2)), 0.2
    found = counterpart_values(package, rows, radius)
    for x, risk in zip(np.array(DECISIONS), found["risks"]):
        brute = risk_on_a_grid(x, rows, radius)
        margin = risk - loss(x, rows).mean()
        assert brute <= risk + 1e-7
        assert risk - brute <= 2e-3 * margin
    shares = np.linspace(0, 1, 21)
    risks = [risk_on_a_grid(np.array([s, 1 - s]), rows, radius) for s in shares]
    best = risk_on_a_grid(np.array(found["decision"]), rows, radius)
    assert best <= min(risks) + 1e-3
    assert found["value"] == pytest.approx(best, abs=2e-3)


def test_the_counterpart_of_the_page_does_not_depend_on_units(package, rng):
    rows = rng.normal(size=(3, 2))
    plain = counterpart_values(package, rows, 0.2)
    large = counterpart_values(package, 1e4 * rows, 1e12 * 0.2)
    # a certain x[1] is part of the loss, the rest of it is 1e4 times as large
    for x, a, b in zip(DECISIONS, plain["risks"], large["risks"]):
        assert (b - x[1]) / 1e4 == pytest.approx(a - x[1], rel=1e-6)


def test_the_model_of_the_page_has_no_built_in_counterpart(package):
    (package / "my_package-1.0.dist-info" / "entry_points.txt").write_text("")
    assert "no exact robust counterpart" in counterpart_values(package, np.eye(2), 0.2)["refused"]


# ------------------------------------------------------------------ what is missing is named
class Empty(wdro.sets.FeasibleSet):
    """A set that says nothing of itself."""


class Sized(wdro.sets.FeasibleSet):
    """A set that cannot be minimised over."""

    dimension = 2


class Corners(wdro.sets.FeasibleSet):
    """[0, 1]^n, by a backend that the constructor need not ask for."""

    default_backend = "signs"

    def __init__(self, n: int) -> None:
        self.dimension = n


wdro.sets.register_backend(Corners, "signs", lambda box: lambda g: np.where(g < 0, 1.0, 0.0))
wdro.sets.register_backend(Corners, "heaviside", lambda box: lambda g: np.heaviside(-g, 0.0))


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [(Empty, r"dimension .* and minimize\(direction\)"), (Sized, r"minimize\(direction\)")],
)
def test_a_set_that_lacks_something_is_told_what(kind, lacks):
    with pytest.raises(ValueError, match=f"the set {kind.__name__} lacks {lacks}"):
        wdro.In(cp.Variable(2), kind())
    with pytest.raises(ValueError, match=f"the set {kind.__name__} lacks {lacks}"):
        wdro.sets.check(kind())


def test_a_set_that_cannot_be_minimised_over_says_so():
    with pytest.raises(NotImplementedError, match=r"Sized defines neither minimize\(direction\)"):
        Sized().minimize([1.0, 1.0])


def test_backends_of_ones_own_set_are_used_by_a_public_name():
    box = Corners(3)
    assert wdro.sets.check(box).passed
    box.use_backend("heaviside")
    assert box.backend == "heaviside"
    assert wdro.sets.check(pickle.loads(pickle.dumps(box))).passed
    assert box.with_backend("signs").backend == "signs"
    with pytest.raises(ValueError, match="unknown backend of Corners 'heavyside'"):
        box.use_backend("heavyside")


def test_a_counterpart_that_lacks_something_is_told_what():
    class Unwritten(wdro.counterparts.Counterpart):
        formula = "?"

        def refusal(self, model):
            return None

    with pytest.raises(ValueError, match="counterpart 'unwritten' lacks program; it needs formula"):
        wdro.register_counterpart("unwritten", Unwritten)
    with pytest.raises(ValueError, match="'other' lacks formula, refusal, program"):
        wdro.register_counterpart("other", object)


def test_the_first_iteration_of_a_step_rule_is_zero(portfolio):
    problem, _, _ = portfolio
    seen = []

    def step(t, line):
        seen.append((t, line.longest, line.slope))
        return 2 / (t + 2)

    problem.solve(method="exact", solver=wdro.solvers.FrankWolfe(step=step, max_iterations=5))
    assert [t for t, _, _ in seen][:3] == [0, 1, 2]
    assert all(slope < 0 < longest for _, longest, slope in seen)
