"""A measured figure, the table of many, and the process that measures them."""

from __future__ import annotations

import json
import multiprocessing
import platform
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

STORE = Path(__file__).with_name("measured.json")
"""What was measured last, by the name of the measurement."""


@dataclass(frozen=True)
class Figure:
    """One row: what was measured, beside what, and what was aimed at."""

    what: str
    ours: float
    """Seconds, or MB."""
    other: float | None = None
    """The same of the other contender, in the same run."""
    beside: str = ""
    """Who the other contender is."""
    aim: float | None = None
    """The largest ratio of ours to the other, or the most of ours where there is no other."""
    unit: str = "s"
    note: str = ""

    @property
    def measure(self) -> float:
        """What is held against the aim."""
        return self.ours if self.other is None else self.ours / self.other

    @property
    def is_met(self) -> bool:
        return self.aim is None or self.measure <= self.aim

    def row(self) -> str:
        """A row of the table of targets, in Markdown."""
        beside = f"{self.beside} {amount(self.other, self.unit)}" if self.other else self.beside
        verdict = "" if self.aim is None else "met" if self.is_met else "**not met**"
        text = "; ".join(filter(None, (verdict, self.note)))
        cells = (self.what, amount(self.ours, self.unit), beside, self._ratio(), self._aim(), text)
        return "| " + " | ".join(cells) + " |"

    def _ratio(self) -> str:
        return "" if self.other is None else times(self.measure)

    def _aim(self) -> str:
        if self.aim is None:
            return ""
        return amount(self.aim, self.unit) if self.other is None else times(self.aim)


HEAD = "| what | here | beside it | ratio | aim | |\n|---|---|---|---|---|---|"


def amount(value: float | None, unit: str) -> str:
    """Three digits in a unit that suits them."""
    if value is None:
        return ""
    if unit == "MB":
        return unbroken(f"{value:.0f} MB")
    factor, name = next(
        (f, n) for f, n in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if value * f >= 1 or n == "µs"
    )
    number = f"{value * factor:.3g}" if value * factor < 1000 else f"{value * factor:.0f}"
    return unbroken(f"{number} {name}")


def times(ratio: float) -> str:
    """A ratio of ours to another, told the way round that is larger than one."""
    if ratio >= 0.5:
        return unbroken(f"{ratio:.2g} x")
    faster = 1 / ratio
    return unbroken(f"1 / {faster:.3g}" if faster < 1000 else f"1 / {faster:,.0f}")


def unbroken(text: str) -> str:
    """The text with spaces at which no line ends."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


# ------------------------------------------------------------------ measuring
def medians(*works: Callable[[], Any], rounds: int = 9, warm: int = 1) -> list[float]:
    """Median seconds of each by the clock, in turns, after some rounds that do not count."""
    spent: list[list[float]] = [[] for _ in works]
    for turn in range(rounds + warm):
        for work, record in zip(works, spent):
            began = time.perf_counter()
            work()
            if turn >= warm:
                record.append(time.perf_counter() - began)
    return [float(np.median(record)) for record in spent]


def busy(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and what came out."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def peak() -> float:
    """The most memory that the process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured_apart(measure: Callable[..., Iterable[Any]], *arguments: Any) -> list[Any]:
    """What a generator yields in a process of its own, which begins with no memory."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sending, measure, arguments))
    child.start()
    sending.close()
    found = list(_received(receiving))
    child.join()
    if child.exitcode:
        raise RuntimeError(f"{measure.__name__} ended with code {child.exitcode}.")
    return found


def _send(connection: Any, measure: Callable[..., Iterable[Any]], arguments: Any) -> None:
    warnings.simplefilter("ignore")
    try:
        for figure in measure(*arguments):
            connection.send(figure)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def _received(connection: Any) -> Iterator[Any]:
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


# ------------------------------------------------------------------ what was measured last
def stored() -> dict[str, Any]:
    """Everything that was measured last."""
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def store(name: str, rows: Iterable[Any]) -> None:
    """Replace what is known of one measurement."""
    known = stored()
    known[name] = {"rows": [asdict(row) for row in rows], "with": environment()}
    STORE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def environment() -> dict[str, str]:
    """The versions that a time depends on."""
    names = ("cvxpy", "numpy", "scipy", "highspy", "clarabel")
    return {"python": platform.python_version()} | {name: version(name) for name in names}
