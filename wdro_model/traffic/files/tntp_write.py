"""Networks to TNTP files, and link flows matched to the links of a network."""

from __future__ import annotations

import gzip
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from wdro_model.traffic.fields import nonzero_demand
from wdro_model.traffic.files.columns import as_number
from wdro_model.traffic.files.tntp import (
    STANDARD_COLUMNS,
    Document,
    header_names,
    is_header,
    read_document,
)
from wdro_model.traffic.network import Network

ENTRIES_PER_LINE = 5
"""The most demands on a line of a trips file."""
VOLUME_COLUMNS = ("volume", "flow")


def write_tntp(network: Network, net: Any, trips: Any, nodes: Any = None) -> None:
    """Write a net file, a trips file and, if asked for, a node file with the positions.

    `read_tntp(net, trips, nodes, toll_weight=1)` gives the same network back, to the last bit: the
    fixed cost is written as the toll. A network has no length, speed or link type; the file gets
    0, 0 and 1. The name is that of the file. Files are paths (.gz is packed) or open text files.

    In the format the number of a node says whether it is a zone and whether it may be passed. A
    network that does not fit is refused; `renumbered(network)` fits.

    Examples
    --------
    >>> import io
    >>> net, trips = io.StringIO(), io.StringIO()
    >>> wdro.traffic.write_tntp(network, net, trips)
    >>> print(net.getvalue().splitlines()[0])
    <NUMBER OF ZONES> 24
    """
    first = _first_through(network)
    if nodes is not None and network.positions is None:
        raise ValueError(f"{network!r} has no positions; leave out nodes=.")
    _write(net, _net_lines(network, first))
    _write(trips, _trips_lines(network))
    if nodes is not None:
        _write(nodes, _node_lines(network))


def renumbered(network: Network) -> Network:
    """The network with nodes 1..n as TNTP wants them: zones first, then those not passed, first.

    Arcs keep their order, so flows mean the same; zones are sorted, and demands with them.

    Examples
    --------
    >>> named = network.replace(nodes=tuple(f"junction {node}" for node in network.nodes))
    >>> wdro.traffic.renumbered(named).nodes[:3]
    (1, 2, 3)
    """
    is_zone = np.zeros(network.n_nodes, dtype=bool)
    is_zone[network.zones] = True
    order = np.lexsort((np.arange(network.n_nodes), network.through, ~is_zone))
    place = np.empty(network.n_nodes, dtype=np.int64)
    place[order] = np.arange(network.n_nodes)
    zones = np.argsort(place[network.zones])
    return network.replace(
        tails=place[network.tails],
        heads=place[network.heads],
        demand=network.demand[np.ix_(zones, zones)],
        zones=np.arange(network.n_zones),
        through=network.through[order],
        nodes=tuple(range(1, network.n_nodes + 1)),
        positions=None if network.positions is None else network.positions[order],
    )


def _net_lines(network: Network, first: int) -> Iterator[str]:
    yield f"<NUMBER OF ZONES> {network.n_zones}"
    yield f"<NUMBER OF NODES> {network.n_nodes}"
    yield f"<FIRST THRU NODE> {first}"
    yield f"<NUMBER OF LINKS> {network.n_arcs}"
    yield "<END OF METADATA>"
    yield ""
    yield "\t".join(("~", *STANDARD_COLUMNS, ";"))
    columns = (network.capacity, network.free_flow_time, network.b, network.power)
    for a, (tail, head) in enumerate(network.arcs):
        capacity, time, b, power = (repr(float(column[a])) for column in columns)
        toll = repr(float(network.fixed_cost[a]))
        yield f"\t{tail}\t{head}\t{capacity}\t0\t{time}\t{b}\t{power}\t0\t{toll}\t1\t;"


def _trips_lines(network: Network) -> Iterator[str]:
    yield f"<NUMBER OF ZONES> {network.n_zones}"
    yield f"<TOTAL OD FLOW> {float(network.demand.sum())!r}"
    yield "<END OF METADATA>"
    names = [network.nodes[zone] for zone in network.zones]
    origins, destinations, quantities = nonzero_demand(network.demand)
    starts = np.searchsorted(origins, np.arange(len(names) + 1))
    for o, origin in enumerate(names):
        yield ""
        yield f"Origin {origin}"
        row = slice(starts[o], starts[o + 1])
        pairs = zip(destinations[row].tolist(), quantities[row].tolist())
        entries = [f"{names[d]} : {trips!r};" for d, trips in pairs]
        for k in range(0, len(entries), ENTRIES_PER_LINE):
            yield "\t" + " ".join(entries[k : k + ENTRIES_PER_LINE])


def _node_lines(network: Network) -> Iterator[str]:
    assert network.positions is not None
    yield "Node\tX\tY\t;"
    for node, (x, y) in zip(network.nodes, network.positions.tolist()):
        yield f"{node}\t{x!r}\t{y!r}\t;"


def _first_through(network: Network) -> int:
    """The number of the first node that may be passed, if the format can express the network."""
    is_zone = np.isin(np.arange(network.n_nodes), network.zones)
    if np.any(network.through & is_zone) and np.any(~network.through & ~is_zone):
        node = network.nodes[int(np.argmax(~network.through & ~is_zone))]
        raise ValueError(
            f"TNTP cannot express that node {node!r}, which is no zone, may not be passed while "
            "some zones may; remove the node, which no trip can use."
        )
    problem = _numbering_problem(network, is_zone)
    if problem is not None:
        raise ValueError(f"TNTP {problem}; use wdro_model.traffic.renumbered(network).")
    names, blocked = network.nodes, int(np.count_nonzero(~network.through))
    if blocked == 0:
        return 1
    return names[blocked] if blocked < len(names) else names[-1] + 1


def _numbering_problem(network: Network, is_zone: np.ndarray) -> str | None:
    """The reason why a reader would get other nodes or zones, in words; None if there is none."""
    names = network.nodes
    for name in names:
        if isinstance(name, bool) or not isinstance(name, int) or name < 1:
            return f"numbers the nodes from 1, got a node named {name!r}"
    if any(u >= v for u, v in pairwise(names)) or np.any(np.diff(network.zones) < 0):
        return "wants nodes and zones in ascending order of their numbers"
    counted = names[-1] == len(names)
    if not counted and len(np.union1d(network.tails, network.heads)) < len(names):
        return "forgets nodes without arcs unless the nodes are numbered without gaps"
    first_zones = [names[zone] for zone in network.zones] == list(range(1, network.n_zones + 1))
    if not first_zones and (counted or set(names) >= set(range(1, network.n_zones + 1))):
        return f"would take the nodes 1 to {network.n_zones} for the zones"
    if network.through[: np.count_nonzero(~network.through)].any():
        return "wants the nodes that may not be passed to come first"
    if not counted and np.any(~network.through & ~is_zone):
        return "blocks nodes that are no zones only if the nodes are numbered without gaps"
    return None


def _write(target: Any, lines: Iterator[str]) -> None:
    text = "\n".join(lines) + "\n"
    if not isinstance(target, str | Path):
        target.write(text)
    elif str(target).endswith(".gz"):
        with gzip.open(target, "wt", encoding="utf-8", newline="\n") as file:
            file.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8", newline="\n")


# ------------------------------------------------------------------ link flows


def read_flows(source: Any, network: Network) -> np.ndarray:
    """The flow (A,) on each arc of a network, from rows `from to volume ...`.

    Rows may come in any order: they are matched by (from, to). Arcs between the same two nodes take
    the rows between these in turn. Every arc needs a row and every row an arc.

    Examples
    --------
    >>> import io
    >>> table = wdro.traffic.link_results(network, np.arange(76.0)).to_csv()
    >>> wdro.traffic.read_flows(io.StringIO(table), network)[:3]
    array([0., 1., 2.])
    """
    document = read_document(source, needs_metadata=False)
    waiting: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    for a, (tail, head) in enumerate(network.arcs):
        waiting[str(tail), str(head)].append(a)
    flow = np.full(network.n_arcs, np.nan)
    columns = (0, 1, 2)
    for i, (line, fields) in enumerate(_rows(document)):
        if i == 0 and as_number(fields[-1]) is None:
            columns = _volume_columns("\t".join(fields))
            continue
        if len(fields) <= max(columns):
            raise document.error(line, "volume", f"expected from, to, volume; got {fields}.")
        tail, head, text = (fields[column] for column in columns)
        ends = (_plain_number(tail), _plain_number(head))
        if not waiting[ends]:
            problem = f"{network!r} has no (further) arc {ends[0]} -> {ends[1]}."
            raise document.error(line, "arc", problem)
        volume = document.number(text, line, "volume")
        if np.isinf(volume):
            raise document.error(line, "volume", f"must be finite, got {text!r}.")
        flow[waiting[ends].popleft()] = volume
    missing = np.flatnonzero(np.isnan(flow))
    if missing.size:
        arcs = [network.arcs[a] for a in missing[:5]]
        some = ", ".join(f"{tail} -> {head}" for tail, head in arcs)
        more = ", ..." if missing.size > len(arcs) else ""
        problem = f"{missing.size} of {network.n_arcs} arcs have no flow: {some}{more}."
        raise document.error(document.last_line, "arcs", problem)
    return flow


def _rows(document: Document) -> list[tuple[int, list[str]]]:
    """The fields of each row; a header may stand behind a `~`, which otherwise starts a comment."""
    rows: list[tuple[int, list[str]]] = []
    for line, raw in document.body:
        text, _, comment = raw.partition("~")
        if not rows and is_header(_between_tabs(comment)):
            text = comment
        fields = _between_tabs(text).replace(",", " ").split()
        if fields:
            rows.append((line, fields))
    return rows


def _between_tabs(text: str) -> str:
    """The fields of a row, which blanks, tabs or colons may separate, between tabs."""
    return "\t".join(text.partition(";")[0].replace(":", " ").split())


def _volume_columns(text: str) -> tuple[int, int, int]:
    """Positions of from, to and volume: by name, else the first three."""
    names = header_names(text)
    volume = next((name for name in VOLUME_COLUMNS if name in names), None)
    if volume is None or not is_header(text):
        return (0, 1, 2)
    return (names.index("init_node"), names.index("term_node"), names.index(volume))


def _plain_number(text: str) -> str:
    """The name of a node without a decimal part of zeros: 110.0 is 110."""
    whole, dot, rest = text.partition(".")
    return whole if dot and whole.isdecimal() and not rest.strip("0") else text
