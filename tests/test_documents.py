"""README, documentation and examples are run as they are written."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(arguments: list[str], folder: Path) -> str:
    """What a fresh interpreter prints: what a page registers stays in its own process."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_of_a_page_run_in_order(page, tmp_path):
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(snippets(page)))
    run([str(script)], tmp_path)


def test_readme_shows_what_its_first_example_prints(capsys):
    page = ROOT / "README.md"
    shown = re.search(r"^```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(snippets(page)[0], "README", "exec"), {"__name__": "snippet"})
    printed = capsys.readouterr().out

    def stable(text: str) -> list[str]:
        lines = [
            line for line in text.splitlines() if not line.startswith(("seconds", "iterations"))
        ]
        return [re.sub(r"(\d\.\d{4})\d+", r"\1", line) for line in lines]

    assert stable(shown.group(1)) == stable(printed)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example, tmp_path):
    quick = ["--quick"] if "--quick" in example.read_text() else []
    assert run([str(example), *quick], tmp_path).strip()


def test_links_between_pages_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_nothing_runs_when_examples_are_imported():
    for example in EXAMPLES:
        assert "main" in runpy.run_path(str(example), run_name="imported")
