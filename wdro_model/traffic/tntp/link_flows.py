"""Link flows from a file, matched to the arcs of a network by their ends."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np

from wdro_model.traffic.network import Network
from wdro_model.traffic.tntp.columns import header_names
from wdro_model.traffic.tntp.text import Document, is_number, read_document

VOLUMES = ("volume", "flow")


def read_flows(source: Any, network: Network) -> np.ndarray:
    """The flow (A,) on each arc of a network, from rows `from to volume ...`.

    Rows may come in any order: they are matched by (from, to). Arcs between the same two nodes take
    the rows between these in turn. Every arc needs a row and every row an arc.

    Examples
    --------
    >>> import io, wdro_model as wdro
    >>> network = wdro.traffic.Network(
    ...     tails=[0, 1], heads=[1, 0], capacity=5.0, free_flow_time=1.0, b=0.15, power=4.0,
    ...     demand=[[0.0, 10.0], [0.0, 0.0]], nodes=(1, 2),
    ... )
    >>> rows = ["from to volume cost", "2 1 0.0 1.0", "1 2 10.0 3.4"]
    >>> wdro.traffic.read_flows(io.StringIO(chr(10).join(rows)), network)
    array([10.,  0.])
    """
    document = read_document(source, metadata=False)
    waiting: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    for a, (tail, head) in enumerate(network.arcs):
        waiting[str(tail), str(head)].append(a)
    flow = np.full(network.n_arcs, np.nan)
    columns = (0, 1, 2)
    for i, (line, fields) in enumerate(_rows(document)):
        if i == 0 and not is_number(fields[-1]):
            columns = _columns("\t".join(fields))
            continue
        if len(fields) <= max(columns):
            raise document.error(line, "volume", f"expected from, to, volume; got {fields}.")
        ends = (_name(fields[columns[0]]), _name(fields[columns[1]]))
        if not waiting[ends]:
            raise document.error(
                line, "arc", f"{network!r} has no (further) arc {ends[0]} -> {ends[1]}."
            )
        flow[waiting[ends].popleft()] = _volume(document, fields[columns[2]], line)
    missing = np.flatnonzero(np.isnan(flow))
    if missing.size:
        arcs = network.arcs
        some = ", ".join(f"{arcs[a][0]} -> {arcs[a][1]}" for a in missing[:5])
        raise document.error(
            document.last_line,
            "arcs",
            f"{missing.size} of {network.n_arcs} arcs have no flow: {some}"
            f"{', ...' if missing.size > 5 else ''}.",
        )
    return flow


def _rows(document: Document) -> list[tuple[int, list[str]]]:
    """The fields of each row; a header may stand behind a `~`, which otherwise starts a comment."""
    rows: list[tuple[int, list[str]]] = []
    for line, raw in document.body:
        text, _, comment = raw.partition("~")
        if not rows and {"init_node", "term_node"} <= set(_header(comment)):
            text = comment
        fields = text.partition(";")[0].replace(":", " ").replace(",", " ").split()
        if fields:
            rows.append((line, fields))
    return rows


def _header(text: str) -> list[str]:
    return header_names("\t".join(text.partition(";")[0].replace(":", " ").split()))


def _columns(text: str) -> tuple[int, int, int]:
    """Positions of from, to and volume: by name, else the first three."""
    names = _header(text)
    volume = next((name for name in VOLUMES if name in names), None)
    if volume is None or not {"init_node", "term_node"} <= set(names):
        return (0, 1, 2)
    return (names.index("init_node"), names.index("term_node"), names.index(volume))


def _name(text: str) -> str:
    """The name of a node; 110.0 is 110."""
    whole, dot, rest = text.partition(".")
    return whole if dot and whole.isdecimal() and not rest.strip("0") else text


def _volume(document: Document, text: str, line: int) -> float:
    value = document.number(text, line, "volume")
    if np.isinf(value):
        raise document.error(line, "volume", f"must be finite, got {text!r}.")
    return value
