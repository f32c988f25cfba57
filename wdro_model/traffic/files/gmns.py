"""Networks from and to folders in the General Modeling Network Specification (GMNS)."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdro_model.traffic.files.columns import (
    ColumnTable,
    MalformedFile,
    goes_by_zone,
    network_fields,
    split_by_table,
)
from wdro_model.traffic.files.frames import demand_columns, link_columns, node_columns
from wdro_model.traffic.network import Network

FILES = {"links": "link.csv", "demand": "demand.csv", "nodes": "node.csv"}
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
LINK_NAMES = {
    "tail": "from_node_id",
    "head": "to_node_id",
    "free_flow_time": "vdf_fftt",
    "b": "vdf_alpha",
    "power": "vdf_beta",
}


class GMNSError(MalformedFile):
    """A malformed GMNS folder, with the place: file, line (from 1) and field.

    Examples
    --------
    >>> error = wdro.traffic.GMNSError("demand.csv", 2, "volume", "expected a number, got 'many'.")
    >>> print(error)
    demand.csv, line 2, volume: expected a number, got 'many'.
    """


def read_gmns(
    folder: Any,
    *,
    columns: Mapping[str, str] | None = None,
    toll_weight: float = 0.0,
    length_weight: float = 0.0,
) -> Network:
    """Read a network from a folder with `link.csv`, `node.csv` and `demand.csv`.

    Links run from `from_node_id` to `to_node_id`, both ways where `directed` is false. Their
    capacity is `capacity` times `lanes`; their free-flow time is `vdf_fftt` (or `free_flow_time`),
    or else 60 * `length` / `free_speed`; `vdf_alpha` and `vdf_beta` are 0.15 and 4 where they are
    missing. The zone of a node is its `zone_id`, and the demand goes by `o_zone_id`, `d_zone_id`
    and `volume`. `network.repairs` lists what was assumed or left out. A folder that cannot be read
    raises a `GMNSError`.

    Parameters
    ----------
    columns
        {field: column} for columns with other names, as in `Network.from_frames`.
    toll_weight, length_weight
        The fixed cost of an arc is toll_weight * toll + length_weight * length, added to a column
        `fixed_cost`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wdro.traffic.write_gmns(network, folder)
    ...     wdro.traffic.read_gmns(folder).n_arcs
    76
    """
    path, given = Path(folder), split_by_table(columns)
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a folder; GMNS networks are folders with {', '.join(FILES.values())}."
        )
    for file in FILES.values():
        if not (path / file).is_file():
            present = ", ".join(sorted(p.name for p in path.glob("*.csv"))) or "no .csv file"
            raise GMNSError(str(path / file), None, "file", f"is missing; there is {present}.")
    tables = _with_numbered_names(
        {name: _read_table(path / file, name, given[name]) for name, file in FILES.items()}
    )
    try:
        fields = network_fields(
            tables["links"], tables["demand"], tables["nodes"], toll_weight, length_weight
        )
        return Network(**fields, name=path.resolve().name or "network")
    except GMNSError:
        raise
    except ValueError as error:
        raise GMNSError(str(path), None, "network", str(error)) from error


def _read_table(path: Path, name: str, given: Mapping[str, str]) -> ColumnTable:
    """The columns of a file as text; the labels of its rows are its lines."""

    def fault(line: Any, column: str, problem: str) -> GMNSError:
        return GMNSError(str(path), line, column, problem)

    rows, lines = [], []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if any(cell.strip() for cell in row):
                    rows.append([cell.strip() for cell in row])
                    lines.append(reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise fault(None, "text", f"cannot be read: {error}.") from error
    if not any(header):
        raise fault(1, "header", "the file is empty.")
    if len(set(header)) < len(header):
        twice = next(name for i, name in enumerate(header) if name in header[:i])
        raise fault(1, "header", f"names the column {twice!r} twice.")
    for line, row in zip(lines, rows):
        if len(row) != len(header):
            raise fault(line, "fields", f"expected {len(header)} fields, got {len(row)}.")
    columns = dict(zip(header, map(list, zip(*rows)) if rows else ([] for _ in header)))
    return ColumnTable(name, columns, lines, fault, given, "line")


def _with_numbered_names(tables: dict[str, ColumnTable]) -> dict[str, ColumnTable]:
    """The tables with integers as names of the nodes if all names are integers; zones likewise."""
    nodes = [("links", "tail"), ("links", "head"), ("nodes", "node")]
    zones = [("nodes", "zone")]
    trips_by = zones if goes_by_zone(tables["demand"]) else nodes
    trips_by.extend([("demand", "origin"), ("demand", "destination")])
    for group in (nodes, zones):
        places = [(name, tables[name].column_of(field)) for name, field in group]
        columns = [(name, column) for name, column in places if column is not None]
        entries = (entry for name, column in columns for entry in tables[name].columns[column])
        if all(WHOLE_NUMBER.fullmatch(entry) for entry in entries if entry):
            for name, column in columns:
                numbers = [int(e) if e else None for e in tables[name].columns[column]]
                tables[name] = tables[name].with_column(column, numbers)
    return tables


# ------------------------------------------------------------------ writing
def write_gmns(network: Network, folder: Any) -> None:
    """Write `link.csv`, `node.csv` and `demand.csv` into a folder; make it if need be.

    `read_gmns(folder)` gives the same network back, to the last bit, but for the name, which is
    that of the folder. Free-flow times, b and power are in the columns `vdf_fftt`, `vdf_alpha` and
    `vdf_beta`; zones are numbered from 1; fixed costs and nodes that may not be passed are in
    columns that GMNS does not know. Nodes must have integers or words for names.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wdro.traffic.write_gmns(network, folder)
    ...     sorted(os.listdir(folder))
    ['demand.csv', 'link.csv', 'node.csv']
    """
    _check_names(network.nodes)
    links = link_columns(network, LINK_NAMES)
    links |= {"directed": ["true"] * network.n_arcs, "lanes": [1] * network.n_arcs}
    nodes = node_columns(network)
    nodes["through"] = ["true" if may else "false" for may in nodes["through"]]
    trips = demand_columns(network, range(1, network.n_zones + 1))
    demand = dict(zip(("o_zone_id", "d_zone_id", "volume"), trips))
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, columns in (("links", links), ("demand", demand), ("nodes", nodes)):
        with open(path / FILES[name], "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*(map(_cell_text, column) for column in columns.values())))


def _cell_text(value: Any) -> Any:
    """A number with all its digits; an empty cell for an unknown value."""
    if isinstance(value, float):
        return "" if value != value else repr(value)
    return "" if value is None else value


def _check_names(names: tuple[Any, ...]) -> None:
    """Refuse names of nodes that a file would give back as something else."""
    if all(type(name) is int and abs(name) < 10**18 for name in names):
        return
    for name in names:
        if type(name) is not str or name != name.strip() or not name or not name.isprintable():
            raise ValueError(
                f"GMNS knows nodes by whole numbers or by words, got {name!r}; use "
                "wdro_model.traffic.renumbered(network)."
            )
    if all(WHOLE_NUMBER.fullmatch(name) for name in names):
        raise ValueError(
            f"the nodes are called {names[0]!r} and so on, which a file would give back as "
            "numbers; use wdro_model.traffic.renumbered(network), or names that are no numbers."
        )
