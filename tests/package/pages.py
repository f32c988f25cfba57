"""Pages of documentation: their snippets are run, and what they print is what the page shows.

    python tests/package/pages.py [--check | --all] [PAGE ...]

A fenced block `python` is a snippet; a fenced block `text` that follows it, with nothing but blank
lines (or the end of a `<details>`) between, is its output. In an output, `...` stands for anything,
white space counts as one blank, and numbers may differ by one part in a thousand or by 1e-6, unless
the page says otherwise:

    <!-- outputs: rtol=1e-2 atol=1e-3 -->

Without --check the outputs of the pages (all of them, if none is named) are brought up to date:
those that still hold are left as they are (unless with --all), others are replaced by what was
printed, with seconds, iterations and the gap at which a solve stopped left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent.name not in ("notebooks", "gallery")
    ),
]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<fold>\n*</details>\n)?"
    r"(?:\n*```text\n(?P<output>.*?)^```\n)?",
    flags=re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w.]*[A-Za-z_])")
TOLERANCES = re.compile(r"<!-- outputs:(.*?)-->")
MARK = "\x1e"
RUNNER = f"""
import sys
snippets = sys.stdin.read().split({MARK!r})
for number, snippet in enumerate(snippets, start=1):
    exec(compile(snippet, f"snippet {{number}}", "exec"), globals())
    print({MARK!r}, end="", flush=True)
"""


@dataclass(frozen=True)
class Snippet:
    """A block of code of a page, and the output that the page shows for it."""

    code: str
    shown: str | None
    span: tuple[int, int]
    """Where it begins and ends in the page."""
    fold: str = ""
    """The end of the fold that hides the code and not its output."""


@dataclass(frozen=True)
class Page:
    """A page with its snippets, and how closely numbers must agree."""

    path: Path
    text: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path, path.read_text())

    @property
    def snippets(self) -> list[Snippet]:
        return [
            Snippet(block["code"], block["output"], block.span(), block["fold"] or "")
            for block in BLOCK.finditer(self.text)
        ]

    @property
    def tolerances(self) -> dict[str, float]:
        found = TOLERANCES.search(self.text)
        words = found.group(1).split() if found else []
        return {"rtol": 1e-3, "atol": 1e-6} | {
            name: float(value) for name, value in (word.split("=") for word in words)
        }

    def printed(self, folder: Path) -> list[str]:
        """What each snippet prints, in a fresh interpreter that works in this folder."""
        snippets = MARK.join(snippet.code for snippet in self.snippets)
        if not snippets:
            return []
        result = subprocess.run(
            [sys.executable, "-c", RUNNER],
            input=snippets,
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
            check=False,
        )
        assert result.returncode == 0, f"{self.path.name}: {result.stderr}"
        return result.stdout.split(MARK)[:-1]

    def differences(self, folder: Path) -> Iterator[str]:
        """What is printed and not shown, or shown and not printed."""
        for snippet, printed in zip(self.snippets, self.printed(folder), strict=True):
            if not agree(snippet.shown or "", printed, **self.tolerances):
                line = self.text[: snippet.span[0]].count("\n") + 1
                yield (
                    f"{self.path.name}, line {line}: the page shows\n\n{snippet.shown or ''}\n"
                    f"and the snippet prints\n\n{printed}\n"
                    f"(python tests/package/pages.py {self.path.name} brings it up to date)"
                )

    def refreshed(self, folder: Path, everything: bool = False) -> str:
        """The text of the page with outputs that hold, or with those of today only."""
        text, end = "", 0
        for snippet, printed in zip(self.snippets, self.printed(folder), strict=True):
            text += self.text[end : snippet.span[0]]
            end = snippet.span[1]
            if not everything and agree(snippet.shown or "", printed, **self.tolerances):
                text += self.text[slice(*snippet.span)]
                continue
            text += f"```python\n{snippet.code}```\n{snippet.fold}"
            if printed.strip():
                text += f"\n```text\n{lasting(printed)}```\n"
        return text + self.text[end:]


def lasting(printed: str) -> str:
    """What was printed, without what changes from run to run, or from one processor to another."""
    lines, columns = [], []
    for line in map(str.rstrip, printed.strip("\n").splitlines()):
        header = [word.end() for word in re.finditer(r"(?<=  )(seconds|iterations)\b", line)]
        columns = header or columns
        for end in [] if header else columns:
            number = re.search(r"  +[\d.e+-]+$", line[:end])
            if number and len(line[:end]) == end:
                dots = "...".rjust(end - number.start())
                line = line[: number.start()] + dots + line[end:]
        line = re.sub(r"^(gap\s+)\S+ \(relative (?!0\))\S+\)$", r"\1...", line)
        lines.append(re.sub(r"^(seconds|iterations)(\s+)\S+.*", r"\1\2...", line))
    return "\n".join(lines) + "\n"


def flat(text: str) -> str:
    """One line, in which neither the width of columns nor the length of rules is seen."""
    line = re.sub(r"[-=─]{3,}", "---", " ".join(text.split()))
    return re.sub(r"(?<=[\[(]) | (?=[\])])", "", line)


def agree(shown: str, printed: str, rtol: float, atol: float) -> bool:
    """Is this the output that is shown, but for wildcards, white space and small differences?"""
    pattern, words = flat(shown).split(" "), flat(printed).split(" ")
    reached = {0}  # how many words the part of the pattern so far may stand for
    for part in pattern:
        if part == "...":
            reached = set(range(min(reached), len(words) + 1)) if reached else set()
        else:
            reached = {
                k + 1 for k in reached if k < len(words) and alike(part, words[k], rtol, atol)
            }
    return len(words) in reached


def alike(word: str, other: str, rtol: float, atol: float) -> bool:
    """Are two words the same, but for small differences of the numbers in them?"""
    if NUMBER.sub("#", word) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(word), NUMBER.findall(other), strict=True)
    return all(
        abs(float(there) - float(here)) <= atol + rtol * abs(float(here)) for here, there in pairs
    )


def main(arguments: list[str]) -> int:
    import tempfile

    names = [argument for argument in arguments if argument not in ("--check", "--all")]
    wrong = 0
    for path in PAGES:
        if names and not any(str(path).endswith(name) for name in names):
            continue
        page = Page.read(path)
        with tempfile.TemporaryDirectory() as folder:
            if "--check" in arguments:
                for difference in page.differences(Path(folder)):
                    print(difference, end="\n\n")
                    wrong += 1
                continue
            text = page.refreshed(Path(folder), "--all" in arguments)
        if text != page.text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} is brought up to date")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
