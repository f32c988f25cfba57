"""A figure that a notebook shows; imported by `figures.new_figure`, as it needs Matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DOTS = 110
"""For each inch, in a notebook."""


class Picture(Figure):
    """A Matplotlib figure that pyplot does not know and a notebook shows all the same.

    IPython shows plain figures only after pyplot was imported, and then those twice that pyplot has
    made and a cell returns. This one is shown where it is the value of a cell, once.
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=DOTS)
        return buffer.getvalue()

    def __repr__(self) -> str:
        width, height = self.get_size_inches()
        return f"<Picture of {width:g} x {height:g} inches; .savefig(path) writes it>"
