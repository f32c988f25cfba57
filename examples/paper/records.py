"""Finished instances on disk: a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 2
"""Raised when an instance comes to mean something else: older records are then left alone."""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Twelve letters that change with any setting."""
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Records:
    """One JSON file for each finished instance, in a folder named after the settings.

    A record carries the fingerprint of its settings as well: one that was made with others, or
    that is not whole, counts as not there.
    """

    folder: Path
    settings: Mapping[str, Any]

    @property
    def mark(self) -> str:
        return fingerprint(self.settings)

    def path(self, key: str) -> Path:
        return self.folder / f"records-{self.mark}" / f"{key}.json"

    def load(self, key: str) -> dict[str, Any] | None:
        """The record of an instance, None if it has none."""
        try:
            found = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        fits = isinstance(found, dict) and found.get("settings") == self.mark
        return found["record"] if fits else None

    def save(self, key: str, record: Mapping[str, Any]) -> None:
        """Write a record; it appears under its name only when it is whole."""
        write_atomically(
            self.path(key), json.dumps({"settings": self.mark, "record": record}) + "\n"
        )

    def forget(self, keys: Iterable[str]) -> None:
        """Delete records, where there are any."""
        for key in keys:
            self.path(key).unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a file under a temporary name beside it, then give it its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
