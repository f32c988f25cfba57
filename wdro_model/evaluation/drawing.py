"""What the pictures have in common: colours, a figure without global state, labels with room."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numpy as np

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539", "#333333")
"""Told apart by people with any colour vision (after Okabe and Ito)."""
ERM_COLOUR = COLOURS[0]
"""Blue, of ERM wherever it is drawn beside robust decisions."""
STYLES = ("-", "--", "-.", ":")
"""Curves that lie on top of each other differ in their dashes."""
PALE = "#b8b8b8"
WIDEST_LABEL = 34
"""Longer names are broken into lines of so many characters."""


def new_figure(width: float, height: float) -> Any:
    """A figure of this size in inches, unknown to pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'wdro_model[plot]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Any) -> Any:
    """The figure, written to a file if a path is given; the suffix says the format."""
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def method_colours(are_erm: Iterable[bool]) -> list[str]:
    """Colours of methods side by side: ERM has the same one in every picture."""
    others = cycle(COLOURS[1:])
    return [ERM_COLOUR if is_erm else next(others) for is_erm in are_erm]


def style(k: int) -> str:
    return STYLES[k % len(STYLES)]


def plain(text: str, width: int = WIDEST_LABEL) -> str:
    """A label in lines that are not too long, its dollar signs taken as such."""
    lines = textwrap.wrap(text, width) or [text]
    return "\n".join(lines).replace("$", r"\$")


def legend_columns(labels: list[str], inches: float) -> int:
    """As many columns as fit side by side under a figure of this width."""
    widest = max(len(line) for label in labels for line in label.split("\n"))
    return max(1, min(len(labels), int(inches / (0.085 * widest + 0.65))))


def spread_apart(positions: np.ndarray, least: float, low: float, high: float) -> np.ndarray:
    """Positions in the same order, at least `least` apart within [low, high], near the given ones.

    With too little room for all, they are evenly spaced over the interval.
    """
    order = np.argsort(positions, kind="stable")
    least = min(least, (high - low) / max(1, len(positions) - 1))
    steps = least * np.arange(len(positions))
    # Positions minus their least offsets must not decrease: the nearest such sequence.
    shifted = isotonic(positions[order] - steps)
    out = np.empty(len(positions))
    out[order] = np.clip(shifted, low, max(low, high - steps[-1])) + steps
    return out


def isotonic(values: np.ndarray) -> np.ndarray:
    """The nondecreasing sequence nearest to the values, by pooling adjacent violators."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, count = means.pop(), counts.pop()
            total = counts[-1] + count
            means[-1] = (means[-1] * counts[-1] + mean * count) / total
            counts[-1] = total
    return np.repeat(means, counts)
