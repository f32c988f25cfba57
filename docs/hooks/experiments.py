"""Pages below docs/reproduction stand in the navigation under the page that leads to them."""

from __future__ import annotations

from typing import Any

PAGE, FOLDER = "reproduction.md", "reproduction/"


def on_files(files: Any, config: Any) -> Any:
    """Put them where the page is, after it."""
    below = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri.startswith(FOLDER))
    if below:
        config.nav = [extended(entry, below) for entry in config.nav]
    return files


def extended(entry: Any, below: list[str]) -> Any:
    """An entry of the navigation, the page in it replaced by a section of it and those below."""
    if isinstance(entry, list):
        return [extended(part, below) for part in entry]
    if not isinstance(entry, dict):
        return entry
    return {
        title: [place, *below] if place == PAGE else extended(place, below)
        for title, place in entry.items()
    }
