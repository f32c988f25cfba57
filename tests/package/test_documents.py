"""README, documentation and examples are run as they are written."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest

from docs.hooks.gallery import Example
from tests.package.pages import PAGES, ROOT, Page, agree

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_snippets_of_a_page_print_what_it_shows(path, tmp_path):
    differences = list(Page.read(path).differences(tmp_path))
    assert not differences, "\n".join(differences)


def test_an_output_is_compared_but_for_wildcards_and_small_differences():
    tolerances = {"rtol": 1e-3, "atol": 1e-6}
    printed = "value     1.23456\nseconds   0.2\n[0.5 0.5]\n"
    assert agree("value  1.2346\nseconds  ...\n[ 0.5  0.5]", printed, **tolerances)
    assert not agree("value  1.24\nseconds  ...\n[0.5 0.5]", printed, **tolerances)
    assert not agree("worth  1.2346\nseconds  ...\n[0.5 0.5]", printed, **tolerances)
    assert agree("value  ... 0.2\n...", printed, **tolerances)
    assert not agree("value  ... 0.3\n...", printed, **tolerances)
    assert not agree("", printed, **tolerances)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs_and_draws_its_picture(example, tmp_path):
    arguments = Example(example).arguments(tmp_path)
    assert run([str(example), *arguments], tmp_path).strip()
    assert any(tmp_path.rglob("*.png")) or not arguments


def test_links_between_pages_exist():
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
            else:
                link = urlparse(target)
                assert link.scheme == "https", f"{page.name} links to {target}"
                assert "." in link.netloc, f"{page.name} links to {target}"


def test_nothing_runs_when_examples_are_imported():
    for example in EXAMPLES:
        assert "main" in runpy.run_path(str(example), run_name="imported")
