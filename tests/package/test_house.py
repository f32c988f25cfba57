"""The layout of the package: every room is listed, imports go one way."""

import ast
import re
from pathlib import Path

import pytest

import wdro_model
from tests.package.house_map import PAGE, with_map

PACKAGE = Path(wdro_model.__file__).parent
ROOT = PACKAGE.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
BUDGETS = {
    "datasets": 700,
    "demo": 1000,
    "display": 600,
    "estimators": 600,
    "evaluation": 5300,
    "loss": 4500,
    "model": 1800,
    "objectives": 14500,
    "sets": 8100,
    "solve": 5800,
    "solvers": 5400,
    "testing": 1000,
    "traffic": 8300,
    "uncertainty": 4200,
}
"""Lines that a room may have."""


def rooms():
    """The rooms of CONTRIBUTING.md, from the ground up."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.findall(r"^    (\w+)(?:/|\.py)\s", text, flags=re.M)
    return {name: height for height, name in enumerate(found)}


def room(module):
    return module.split(".")[1] if "." in module else None


def imported(module, path):
    """The modules of the package that a module imports, now or inside a function."""
    typing = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            typing |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


pytestmark = pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").exists(), reason="the list of rooms is not installed"
)


def test_every_room_is_listed():
    assert {room(module) for module in MODULES} - {None} == set(rooms())


def test_imports_go_one_way():
    height, wrong = rooms(), []
    for module, path in MODULES.items():
        for target in imported(module, path) if room(module) else ():
            if not target.startswith("wdro_model."):
                continue
            if height[room(target)] > height[room(module)]:
                wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_the_map_has_every_file():
    page = PAGE.read_text()
    assert with_map(page) == page, "python -m tests.package.house_map brings the map up to date"


@pytest.mark.parametrize("name", BUDGETS)
def test_a_room_keeps_its_budget(name):
    """A room that needs more lines gets them here, and the commit message says what for."""
    files = [path for module, path in MODULES.items() if room(module) == name]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert lines <= BUDGETS[name], f"{name} has {lines} lines"
