"""Progress bars: on a terminal, in a notebook, and as a few lines in a log."""

from __future__ import annotations

import sys
import time
import warnings
from functools import cache
from typing import Any

FIRST_LINE = 60.0
"""Seconds until a log gets its first line; each further one takes twice as long as the last."""


def progress_bar(
    title: str, total: int | None = None, *, unit: str, show: bool = True, delay: float = 0.0
) -> Any:
    """A bar with `update`, `set_postfix_str`, `disable` and `close`, on the standard error.

    Terminals get tqdm's bar, notebooks tqdm's widget (or its line of text without ipywidgets).
    Others, such as a file, get a line after a minute, after two, after four.
    """
    if not show:
        return LogLines(title, total, unit, disable=True)
    if not in_notebook() and not _is_terminal(sys.stderr):
        return LogLines(title, total, unit)
    return _tqdm()(
        total=total,
        desc=title,
        unit=unit,
        file=sys.stderr,
        delay=delay,
        leave=False,
        disable=False,
    )


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


@cache
def _tqdm() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it warns, and the bar is text
        from tqdm.auto import tqdm
    return tqdm


class LogLines:
    """A bar for a log: a line from time to time."""

    def __init__(
        self, title: str, total: int | None, unit: str, disable: bool = False, every: float = 0.0
    ) -> None:
        self.title, self.total, self.unit, self.disable = title, total, unit, disable
        self.n = 0
        self._began = time.monotonic()
        self._next = every or FIRST_LINE
        self._postfix = ""

    def __enter__(self) -> LogLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, steps: int = 1) -> None:
        """Count some steps, and write a line if it is time."""
        self.n += steps
        passed = time.monotonic() - self._began
        if self.disable or passed < self._next:
            return
        while self._next <= passed:
            self._next *= 2
        done = f"{self.n}" if self.total is None else f"{self.n} of {self.total}"
        more = f", {self._postfix}" if self._postfix else ""
        print(f"{self.title}: {done} {self.unit}s, {passed:.0f} s{more}", file=sys.stderr)

    def set_postfix_str(self, text: str = "", refresh: bool = True) -> None:
        """Set the end of the next line."""
        self._postfix = text

    def close(self) -> None:
        """Stop writing."""
        self.disable = True
