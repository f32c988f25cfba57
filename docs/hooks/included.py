"""Pages that are files of the repository: `<!-- include CHANGELOG.md -->` becomes its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PLACE = re.compile(r"<!-- include (\S+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the file in place, its links as seen from a folder of docs/."""
    return PLACE.sub(lambda place: text(ROOT / place[1]), markdown)


def text(path: Path) -> str:
    """The text of a file in the root of the repository."""
    return path.read_text().replace("](docs/", "](../")
