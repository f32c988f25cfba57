"""The error of a file that cannot be read: where, and what is wrong there."""

from __future__ import annotations


class MalformedFile(ValueError):
    """Says where a file is malformed: file, line (from 1, None if it is no line) and field."""

    def __init__(self, file: str, line: int | None, field: str, problem: str) -> None:
        super().__init__(file, line, field, problem)
        self.file, self.line, self.field, self.problem = file, line, field, problem

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{place}, {self.field}: {self.problem}"
