"""What pip sees: metadata, one version, a source archive that can be tested."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import wdro_model

ROOT = Path(__file__).parents[2]
CITATION = ROOT / "CITATION.cff"
LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "*.egg-info", "__pycache__", "site")

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="the project's files are not installed"
)


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_names_this_version_and_the_paper():
    text = CITATION.read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [wdro_model.__version__]
    assert "First-Order Methods for Wasserstein Distributionally Robust Constrained" in text
    for author in ("Villuendas", "Besançon", "Malick"):
        assert f"family-names: {author}" in text


def test_the_citation_is_well_formed(project):
    read = pytest.importorskip("yaml").safe_load(CITATION.read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "references"} <= set(read)
    assert read["license"] == project["license"]
    assert [author["name"] for author in project["authors"]] == [
        author["name"] for author in read["authors"]
    ]


def test_every_python_that_is_named_is_allowed(project):
    named = [c.split(" :: ")[-1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == ">=3.11"
    assert "Typing :: Typed" in project["classifiers"]


def test_the_source_archive_holds_what_its_tests_need(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
    built = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))",
        ],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    with tarfile.open(tmp_path / built.stdout.split()[-1]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"}
    for folder in ("wdro_model", "tests", "docs", "examples", "benchmarks"):
        wanted |= {
            path.relative_to(source).as_posix()
            for path in (source / folder).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
    assert wanted <= packed, sorted(wanted - packed)
    assert not [name for name in packed if name.endswith(".pyc") or "__pycache__" in name]


def test_the_wheel_holds_what_is_not_python():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["wdro_model"]
    package = Path(wdro_model.__file__).parent
    for path in package.rglob("*"):
        name = path.relative_to(package)
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in name.parts:
            assert any(name.match(pattern) for pattern in patterns), f"{name} is not shipped"
