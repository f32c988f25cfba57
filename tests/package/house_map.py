"""The map of the package in CONTRIBUTING.md: each file with the first line of its docstring.

python -m tests.package.house_map     write the map
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map -->\n", "<!-- end of the map -->\n"


def sentence(module: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]


def folder_map(folder: Path) -> str:
    """A heading for a folder, and its files in a table."""
    files = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
    package = folder / "__init__.py"
    about = f"\n{sentence(package)}\n" if sentence(package) else ""
    rows = [f"| `{path.name}` | {sentence(path)} |" for path in files]
    table = "\n".join(["| file | what it holds |", "|---|---|", *rows])
    return f"### {folder.relative_to(ROOT).as_posix()}\n{about}\n{table}\n"


def package_map() -> str:
    """The map of all folders that have files."""
    package = ROOT / "wdro_model"
    folders = [package, *sorted(path for path in package.rglob("*") if path.is_dir())]
    return "\n".join(
        folder_map(folder)
        for folder in folders
        if any(not path.name.startswith("__") for path in folder.glob("*.py"))
    )


def with_map(text: str) -> str:
    """The text of the page with the map brought up to date."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{package_map()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text()))
