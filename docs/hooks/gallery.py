"""The gallery: every example is run when the site is built, and shown with output and pictures.

What a run leaves is kept in `.gallery/`, by what the example and the library looked like, so that
the next build is quick. With WDRO_GALLERY=skip nothing is run, and pages show the code alone.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".gallery"
FOLDER = "gallery"
PLACE = "<!-- examples -->"
THUMBNAIL = "printed.png"
"""The picture of an example that draws none."""
log = logging.getLogger("mkdocs.hooks.gallery")


@dataclass(frozen=True)
class Example:
    """A script in examples/."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def source(self) -> str:
        return self.path.read_text()

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def words(self) -> list[str]:
        """The paragraphs of its docstring, without how it is called."""
        text = ast.get_docstring(ast.parse(self.source)) or self.title
        return [part for part in text.split("\n\n") if not part.lstrip().startswith("python ")]

    @property
    def code(self) -> str:
        """The script below its docstring."""
        body = ast.parse(self.source).body
        return "\n".join(self.source.splitlines()[body[0].end_lineno :]).strip("\n")

    @property
    def is_long(self) -> bool:
        return "--quick" in self.source

    def arguments(self, folder: Path) -> list[str]:
        """How it is run: quickly, with its pictures in this folder."""
        if "--output" in self.source:
            return [*(["--quick"] if self.is_long else []), "--output", str(folder)]
        return [str(folder / f"{self.name}.png")] if "picture" in self.source else []

    @property
    def key(self) -> str:
        """What its output depends on."""
        digest = hashlib.sha256(self.source.encode())
        for module in [Path(__file__), *sorted((ROOT / "wdro_model").rglob("*.py"))]:
            digest.update(module.read_bytes())
        return digest.hexdigest()[:16]

    @property
    def output(self) -> str:
        """What it prints."""
        kept = self.results()
        return (kept / "output.txt").read_text() if kept else ""

    @property
    def pictures(self) -> list[Path]:
        """What it draws, in that order; what it prints if it draws nothing."""
        kept = self.results()
        drawn = kept.rglob("*.png") if kept else ()
        return sorted(drawn, key=lambda picture: picture.stat().st_mtime_ns)

    def results(self) -> Path | None:
        """The folder with its output and pictures; it is run if that is not there yet."""
        if os.environ.get("WDRO_GALLERY") == "skip":
            return None
        kept = CACHE / f"{self.name}-{self.key}"
        if not kept.exists():
            log.info(f"running examples/{self.path.name}")
            for old in CACHE.glob(f"{self.name}-*"):
                shutil.rmtree(old)
            CACHE.mkdir(exist_ok=True)
            with TemporaryDirectory(dir=CACHE) as folder:
                place = Path(folder) / "results"
                place.mkdir()
                output = self.run(place)
                (place / "output.txt").write_text(output)
                if not any(place.rglob("*.png")):
                    draw_text(output, place / THUMBNAIL)
                place.rename(kept)
        return kept

    def run(self, folder: Path) -> str:
        """What it prints."""
        result = subprocess.run(
            [sys.executable, str(self.path), *self.arguments(folder)],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"examples/{self.path.name} failed:\n{result.stderr}")
        return result.stdout.replace(f"{folder}/", "").replace(str(folder), "the folder")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each example, its pictures, and their place in the navigation."""
    from mkdocs.structure.files import File

    pages: list[Any] = [f"{FOLDER}/index.md"]
    for example in examples():
        for picture in example.pictures:
            uri = f"{FOLDER}/{example.name}/{picture.name}"
            files.append(File.generated(config, uri, content=picture.read_bytes()))
        uri = f"{FOLDER}/{example.name}.md"
        files.append(File.generated(config, uri, content=page_of(example)))
        pages.append({example.title: uri})
    next(entry for entry in config.nav if "Gallery" in entry)["Gallery"] = pages
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The overview with its thumbnails."""
    if PLACE not in markdown:
        return markdown
    cards = "\n".join(card(example) for example in examples())
    return markdown.replace(PLACE, f'<div class="gallery">\n{cards}\n</div>')


def examples() -> list[Example]:
    """All scripts, by their names."""
    return [Example(path) for path in sorted((ROOT / "examples").glob("*.py"))]


def draw_text(text: str, path: Path) -> None:
    """A picture of the last lines of what was printed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0))
    lines = "\n".join(line[:46] for line in text.strip().splitlines()[-11:])
    figure.text(0.03, 0.95, lines, family="monospace", size=13, va="top", color="#444444")
    figure.savefig(path, dpi=110)


def card(example: Example) -> str:
    """A thumbnail with its title, which leads to the page."""
    words = example.words[0].replace("\n", " ")
    image = f'<span class="gallery-blank">{example.title}</span>'
    for picture in example.pictures[:1]:
        image = f'<img src="{example.name}/{picture.name}" alt="{example.title}">'
    return (
        f'<a class="gallery-card" href="{example.name}.html">{image}'
        f"<strong>{example.title}</strong><span>{words}</span></a>"
    )


def page_of(example: Example) -> str:
    """The page of one example."""
    names = [f"{example.name}/{picture.name}" for picture in example.pictures]
    parts = [f"# {example.title}", *example.words]
    parts += [f"![{example.title}]({name})" for name in names if not name.endswith(THUMBNAIL)]
    if example.is_long:
        parts.append("Output and pictures are those of the quick version, `--quick`.")
    if example.output:
        parts.append(f"## Output\n\n```text\n{example.output.rstrip()}\n```")
    parts.append(f"## Code\n\n`examples/{example.path.name}`\n\n```python\n{example.code}\n```")
    return "\n\n".join(parts) + "\n"
