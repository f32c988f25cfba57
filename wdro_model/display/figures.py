"""Colours, labels, and figures that notebooks show, for all pictures."""

from __future__ import annotations

import base64
import io
import struct
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539", "#333333")
"""Colours for any colour vision (after Okabe and Ito)."""
ERM_COLOUR = COLOURS[0]
"""The colour of ERM beside robust decisions: blue."""
METHOD_COLOURS = {
    "erm": ERM_COLOUR,
    "exact": COLOURS[1],
    "smoothed": COLOURS[2],
    "sampled": COLOURS[4],
}
"""The colour of each method, in every picture."""
SCENARIO_COLOURS = ("#555555", COLOURS[3], COLOURS[5], COLOURS[6])
"""Colours of the samples and of sets of test scenarios; no method has one of them."""
STYLES = ("-", "--", "-.", ":")
"""Dashes that tell curves apart which lie on top of each other."""
PALE = "#b8b8b8"
WIDEST_LABEL = 34
"""Characters in a line of a label; longer labels have several lines."""
NOTEBOOK_DOTS = 110
"""Dots per inch of a figure in a notebook."""


def new_figure(width: float, height: float) -> Any:
    """A figure of this size in inches, unknown to pyplot, that notebooks show.

    IPython shows Matplotlib's figures only after pyplot was imported, and then those that pyplot
    has made twice. This one has a picture of its own: it is shown once, as the value of a cell.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'wdro_model[plot]'.") from error
    figure: Any = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = partial(png_of, figure, NOTEBOOK_DOTS)
    return figure


def png_of(figure: Any, dots_per_inch: float) -> bytes:
    """A figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch)
    return buffer.getvalue()


def embedded_png(figure: Any, dots_per_inch: float) -> tuple[str, int, int]:
    """A figure as the address of an image within an HTML page, and its size in pixels."""
    png = png_of(figure, dots_per_inch)
    width, height = struct.unpack(">II", png[16:24])  # the first fields of a PNG's header
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}", width, height


def save(figure: Any, path: Any) -> Any:
    """The figure, written to a file if a path is given; the suffix says the format."""
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def panels_for(
    ax: Any, count: int, width: float, height: float, **layout: Any
) -> tuple[Any, np.ndarray]:
    """A figure and `count` axes side by side: new ones, or those of the user.

    ax: None, Matplotlib's axes, or a list of as many as there are panels.
    """
    if ax is None:
        figure = new_figure(width, height)
        return figure, np.atleast_1d(figure.subplots(1, count, **layout))
    given = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
    wrong = next((entry for entry in given if not hasattr(entry, "get_xlim")), None)
    if wrong is not None:
        raise TypeError(f"ax must be Matplotlib's axes, got {type(wrong).__name__}.")
    if given.size != count:
        raise ValueError(
            f"the picture has {count} panel(s), got {given.size} axes in ax=; give as many, or ask "
            "for one panel."
        )
    return given[0].figure, given


def inches_of(axes: Any) -> tuple[float, float]:
    """Width and height of axes as they are laid out so far."""
    box = axes.get_window_extent()
    return box.width / axes.figure.dpi, box.height / axes.figure.dpi


def finished_plot(figure: Any, path: Any, ax: Any) -> Any:
    """The return value of a plot: its figure, saved if a path is given, or the given axes.

    A notebook shows the figure of such axes itself; returning it would show it twice.
    """
    save(figure, path)
    return figure if ax is None else ax


# ------------------------------------------------------------------ colours
def cycle(k: int) -> str:
    """The colour of the k-th of some curves."""
    return COLOURS[k % len(COLOURS)]


def colours_of_methods(methods: Sequence[str]) -> list[str]:
    """A colour for each of some methods side by side, by `METHOD_COLOURS`.

    A method that comes several times (at several radii) has shades of its colour, dark ones last;
    names that are no methods have colours that no method has.
    """
    others = [c for c in COLOURS if c not in METHOD_COLOURS.values()]
    unknown = list(dict.fromkeys(m for m in methods if m not in METHOD_COLOURS))
    spare = [*others, *(c for m, c in METHOD_COLOURS.items() if m not in methods)] or others
    bases = METHOD_COLOURS | {m: spare[k % len(spare)] for k, m in enumerate(unknown)}
    seen: dict[str, int] = {}
    colours = []
    for method in methods:
        seen[method] = seen.get(method, 0) + 1
        colours.append(shade(bases[method], seen[method] - 1, methods.count(method)))
    return colours


def shade(base: str, k: int, count: int) -> str:
    """The k-th of `count` shades of a colour "#rrggbb", from light to dark; itself if one."""
    if count == 1:
        return base
    place = 2 * k / (count - 1) - 1  # -1 is lightest, 1 darkest
    end, share = (255.0, -0.5 * place) if place < 0 else (0.0, 0.5 * place)
    parts = (int(base[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (end - part)):02x}" for part in parts)


def scenario_colour(k: int) -> str:
    """The colour of the k-th set of scenarios, the samples being the first."""
    if k == 0:
        return SCENARIO_COLOURS[0]
    return SCENARIO_COLOURS[1:][(k - 1) % (len(SCENARIO_COLOURS) - 1)]


def style(k: int) -> str:
    return STYLES[k % len(STYLES)]


# ------------------------------------------------------------------ labels
def plain(text: str, width: int = WIDEST_LABEL) -> str:
    """A label in lines that are not too long, its dollar signs taken as such."""
    lines = textwrap.wrap(text, width) or [text]
    return "\n".join(lines).replace("$", r"\$")


def legend_columns(labels: list[str], inches: float) -> int:
    """The number of columns of a legend that fit under a figure of this width."""
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
    shifted = isotonic_regression(positions[order] - steps).x
    out = np.empty(len(positions))
    out[order] = np.clip(shifted, low, max(low, high - steps[-1])) + steps
    return out
