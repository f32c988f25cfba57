"""TNTP files as text: metadata, numbered lines, and the columns of links."""

from __future__ import annotations

import gzip
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdro_model.traffic.files.columns import ColumnTable, MalformedFile, as_number

KEY = re.compile(r"\s*<([^<>]*)>(.*)", re.DOTALL)
END = "END OF METADATA"
MOST_DIGITS = 18
"""Of the number of a node: what fits into 64 bits."""


class TNTPError(MalformedFile):
    """A malformed TNTP file; says where: file, line (from 1) and field.

    Examples
    --------
    >>> import io, wdro_model as wdro
    >>> try:
    ...     wdro.traffic.read_tntp(io.StringIO("<NUMBER OF ZONES> two"), io.StringIO(""))
    ... except wdro.traffic.TNTPError as error:
    ...     print(error)
    <open file>, line 1, <END OF METADATA>: the file has no such line...
    """


@dataclass(frozen=True)
class Document:
    """A file cut into its metadata and its body."""

    file: str
    metadata: dict[str, tuple[str, int]]
    """Values as text, each with its line."""
    body: list[tuple[int, str]]
    """The lines after the metadata with their numbers, comments included."""
    repairs: tuple[str, ...] = ()

    @property
    def last_line(self) -> int:
        return self.body[-1][0] if self.body else 0

    def error(self, line: int | None, field: str, problem: str) -> TNTPError:
        return TNTPError(self.file, line, field, problem)

    def key_error(self, key: str, problem: str) -> TNTPError:
        """The error of a value of the metadata."""
        return self.error(self.metadata[key][1], f"<{key}>", problem)

    def table(self, name: str, columns: dict[str, list[Any]], lines: list[int]) -> ColumnTable:
        """Columns of the body as a table."""
        return ColumnTable(name, columns, lines, self.error, row_word="line")

    def value(self, key: str) -> float | None:
        """A number of the metadata; None if it is missing, empty or negative (not known)."""
        text, line = self.metadata.get(key, ("", 0))
        words = re.split(r"[~;]", text)[0].replace(",", "").split()
        if not words:
            return None
        value = self.number(words[0], line, f"<{key}>")
        if value == float("inf"):
            raise self.key_error(key, f"expected a finite number, got {words[0]!r}.")
        return None if value < 0 else value

    def count(self, key: str) -> int | None:
        """A count of the metadata; None if it is not known (missing, empty or negative)."""
        value = self.value(key)
        if value is not None and value != int(value):
            raise self.key_error(key, f"expected a whole number, got {value!r}.")
        return None if value is None else int(value)

    def number(self, text: str, line: int, field: str) -> float:
        """A number other than NaN."""
        value = as_number(text)
        if value is None:
            raise self.error(line, field, f"expected a number, got {text.strip()!r}.")
        return value

    def identifier(self, text: str, line: int, field: str) -> int:
        """The number of a node or zone; 110.0 is read as 110."""
        if text.isdecimal() and len(text) <= MOST_DIGITS:
            return int(text)
        value = self.number(text, line, field)
        if not abs(value) < 10**MOST_DIGITS or value != int(value):
            raise self.error(
                line,
                field,
                f"expected the number of a node, of at most {MOST_DIGITS} digits, got "
                f"{text[:40]!r}.",
            )
        return int(value)


def read_document(source: Any, metadata: bool = True) -> Document:
    """The document at a path (.gz and .zip included) or in an open file.

    metadata: must there be any? If not, a file without it is all body.
    """
    file, text = _file_name(source), _text(source)
    lines = list(enumerate(text.splitlines(), start=1))
    if not metadata and END not in text.upper():
        return Document(file, {}, lines)
    return _cut(file, lines)


def _cut(file: str, lines: list[tuple[int, str]]) -> Document:
    """Metadata end at <END OF METADATA> and nowhere else: not at blank lines, not at comments."""
    metadata: dict[str, tuple[str, int]] = {}
    for i, (number, line) in enumerate(lines):
        match = KEY.match(line)
        if match is None:
            continue
        key, value = " ".join(match[1].upper().split()), match[2].strip()
        if key != END:
            metadata[key] = (value, number)
        elif not value or value.startswith("~"):
            return Document(file, metadata, [(number, value), *lines[i + 1 :]])
        else:
            note = f"{file}: left out {value!r} after <{END}> (line {number})"
            return Document(file, metadata, lines[i + 1 :], (note,))
    raise TNTPError(
        file,
        lines[-1][0] if lines else None,
        f"<{END}>",
        "the file has no such line, so its data cannot be told from its metadata; it is cut off, "
        "or not a TNTP file.",
    )


def _file_name(source: Any) -> str:
    if isinstance(source, str | Path):
        return str(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<open file>"


def _text(source: Any) -> str:
    """The text at a path or in an open file."""
    if not isinstance(source, str | Path):
        if not hasattr(source, "read"):
            raise ValueError(
                f"expected a path or an open text file, got {type(source).__name__}: {source!r}."
            )
        content = source.read()
        return content if isinstance(content, str) else _decode(content)
    path = Path(source)
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.tntp*"))
        found = f"such as {', '.join(inside[:4])}" if inside else "it holds no .tntp file"
        raise IsADirectoryError(
            f"{path} is a directory, not a TNTP file; give the path of a file in it ({found})."
        )
    if path.suffix.lower() == ".zip":
        return _decode(_unzip(path))
    content = path.read_bytes()
    return _decode(gzip.decompress(content) if path.suffix.lower() == ".gz" else content)


def _unzip(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.namelist() if not m.endswith("/") and "__MACOSX" not in m]
        if len(members) != 1:
            raise ValueError(
                f"{path} holds {len(members)} files, not one: {', '.join(members[:5])}; unpack it "
                "and give the path of the file you mean."
            )
        return archive.read(members[0])


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


# ------------------------------------------------------------------ the columns of links
STANDARD = (
    "init_node",
    "term_node",
    "capacity",
    "length",
    "free_flow_time",
    "b",
    "power",
    "speed",
    "toll",
    "link_type",
)
"""The columns of the format, in order."""
REQUIRED = ("init_node", "term_node", "capacity", "free_flow_time", "b", "power")
SYNONYMS = {
    "init": "init_node",
    "from": "init_node",
    "from_node": "init_node",
    "tail": "init_node",
    "term": "term_node",
    "to": "term_node",
    "to_node": "term_node",
    "head": "term_node",
    "ftime": "free_flow_time",
    "fft": "free_flow_time",
    "speed_limit": "speed",
    "type": "link_type",
}


def header_names(text: str) -> list[str]:
    """The names in a header line: `~ Init node  Free Flow Time (min) ;` in lower case, joined."""
    content = text.replace("~", " ").split(";")[0].strip()
    parts = content.split("\t") if "\t" in content else content.split()
    plain = (re.sub(r"\(.*?\)", "", part).strip().lower() for part in parts)
    names = [re.sub(r"[\s_-]+", "_", part) for part in plain if part]
    return [SYNONYMS.get(name, name) for name in names]


def is_header(text: str) -> bool:
    """Does the line name the ends of a link?"""
    return {"init_node", "term_node"} <= set(header_names(text))


def locate_columns(names: list[str] | None, width: int) -> tuple[dict[str, int], list[str]]:
    """The columns of rows with `width` fields under a header (None: there is none), and repairs."""
    standard = {name: i for i, name in enumerate(STANDARD) if i < width}
    if names is None:
        return standard, ["the links have no header; took the columns in the standard order"]
    ranks = [STANDARD.index(name) if name in STANDARD else -1 for name in names]
    if len(names) < width and -1 not in ranks and ranks == sorted(ranks):
        note = f"the header names {len(names)} of {width} columns; took the standard order"
        return standard, [note]
    position = {name: i for i, name in reversed(list(enumerate(names))) if i < width}
    notes = []
    if len(names) != width:
        notes.append(f"the header names {len(names)} columns, the links have {width}")
    for name, i in standard.items():
        taken = i < len(names) and names[i] in STANDARD
        if name in REQUIRED and name not in position and not taken:
            position[name] = i
            notes.append(f"the header does not name {name}; took column {i + 1}")
    return position, notes
