"""The page on performance, written from what is measured.

    python benchmarks performance [--only NAME ...] [--write]

Every measurement of `targets.py` and `growth.py` runs in a process of its own, one after the other;
what it finds replaces its part of `benchmarks/measured.json`, from which the tables of the page
`docs/understand/performance.md` are written. `--only` takes some of them, `--write` none: it writes
the page from what is known. Peers that are not installed are left out:
pip install 'wdro_model[bench]'.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from figures import HEAD, Figure, measured_apart, store, stored
from growth import PHASES_HEAD, Growth, Phases, growth, phases
from targets import TARGETS, WHY

PAGE = Path(__file__).parents[1] / "docs" / "understand" / "performance.md"
REGION = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MEASURES = {**TARGETS, "phases": phases, "growth": growth}


def figures(known: dict[str, Any], name: str) -> list[Figure]:
    """Those of one measurement."""
    return [Figure(**row) for row in known.get(name, {"rows": []})["rows"]]


def targets_table(known: dict[str, Any]) -> str:
    """All figures, and under them why some aims are not met."""
    found = {name: figures(known, name) for name in TARGETS}
    rows = [figure.row() for some in found.values() for figure in some]
    missed = [n for n, some in found.items() if n in WHY and not all(f.is_met for f in some)]
    reasons = [f"- {WHY[name]}" for name in missed]
    title = ["", "Where an aim is not met:", ""] if reasons else []
    return "\n".join([HEAD, *rows, *title, *reasons])


def phases_table(known: dict[str, Any]) -> str:
    rows = known.get("phases", {"rows": []})["rows"]
    return "\n".join([PHASES_HEAD, *(Phases(**row).row() for row in rows)])


def growth_tables(known: dict[str, Any]) -> str:
    rows = known.get("growth", {"rows": []})["rows"]
    return "\n\n".join(Growth(**row).rows() for row in rows)


def environment_line(known: dict[str, Any]) -> str:
    """The versions that the figures were measured with."""
    seen = {f"{name} {v}" for part in known.values() for name, v in part["with"].items()}
    return ", ".join(sorted(seen)) + "."


REGIONS = {
    "targets": targets_table,
    "phases": phases_table,
    "growth": growth_tables,
    "environment": environment_line,
}


def written(page: str, known: dict[str, Any]) -> str:
    """The page with its tables filled in."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n{REGIONS[match[2]](known)}\n\n{match[3]}"

    return REGION.sub(filled, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), metavar="NAME")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    for name in [] if asked.write else asked.only or list(MEASURES):
        rows = measured_apart(MEASURES[name])
        store(name, rows)
        for row in rows:
            print(row.rows() if isinstance(row, Growth) else row.row(), flush=True)
    PAGE.write_text(written(PAGE.read_text(), stored()))


if __name__ == "__main__":
    main()
