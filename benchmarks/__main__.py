"""Measurements of speed, and batteries of random models.

    python benchmarks                    list them, a line each
    python benchmarks NAME [options]     run one of them (NAME --help has its options)
    python benchmarks all                run all of `measurements/`, one after the other

Every speed is a ratio taken in one run. Set OPENBLAS_NUM_THREADS=1 to compare with the figures of
the documentation.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPTS = {
    "performance": FOLDER / "performance.py",
    "random_models": FOLDER / "random_models",
    **{
        path.stem: path
        for path in sorted((FOLDER / "measurements").glob("*.py"))
        if "__main__" in path.read_text()
    },
}
SHORT = {"battery": ["--models", "400", "--solves", "100"]}
"""Options of a measurement in `all`, where its defaults take long."""


def title(script: Path) -> str:
    """The first line of a script's docstring."""
    source = script / "__init__.py" if script.is_dir() else script
    return (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]


def run(name: str, options: list[str]) -> int:
    """Run a script in a process of its own; return its exit code."""
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPTS[name]), *options]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def main() -> int:
    """Run what the command line names; list the scripts if it names nothing."""
    name, *options = sys.argv[1:] or ["list"]
    if name == "all":
        measurements = [n for n, path in SCRIPTS.items() if path.parent.name == "measurements"]
        return max(run(n, SHORT.get(n, [])) for n in measurements)
    if name in SCRIPTS:
        return run(name, options)
    print(__doc__)
    for known, script in SCRIPTS.items():
        print(f"  {known:<18}{title(script)}")
    return int(name not in ("list", "--help", "-h"))


if __name__ == "__main__":
    sys.exit(main())
