"""Notebooks of docs/notebooks become pages: their cells, with the outputs they were saved with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = "notebooks"
NAV = "Notebooks"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, and their place in the navigation."""
    from mkdocs.structure.files import File

    pages = []
    for notebook in sorted((Path(config.docs_dir) / FOLDER).glob("*.ipynb")):
        text, pictures = as_page(notebook)
        uri = f"{FOLDER}/{notebook.stem}.md"
        files.append(File.generated(config, uri, content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{FOLDER}/{name}", content=content))
        pages.append(uri)
    if pages:
        place = next(k for k, entry in enumerate(config.nav) if "Gallery" in entry)
        config.nav.insert(place + 1, {NAV: pages})
    return files


def as_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and its pictures by name."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(
        str(notebook), resources={"unique_key": notebook.stem, "output_files_dir": notebook.stem}
    )
    if not re.search(r"^# ", text, re.MULTILINE):
        title = json.loads(notebook.read_text()).get("metadata", {}).get("title", notebook.stem)
        text = f"# {title.replace('_', ' ').capitalize()}\n\n{text}"
    return text, dict(resources.get("outputs", {}))
