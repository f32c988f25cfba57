"""A table by its columns: a pandas frame, a dict or a file; faults are told by row and column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.errors import unknown_name

Array = np.ndarray
SYNONYMS: dict[str, dict[str, tuple[str, ...]]] = {
    "links": {
        "tail": ("from_node_id", "a_node", "from_node", "init_node", "tail", "from", "source"),
        "head": ("to_node_id", "b_node", "to_node", "term_node", "head", "to", "target"),
        "capacity": ("capacity",),
        "free_flow_time": ("free_flow_time", "vdf_fftt", "vdf_fftt1", "fftt", "fft", "travel_time"),
        "b": ("b", "alpha", "vdf_alpha", "vdf_alpha1"),
        "power": ("power", "beta", "vdf_beta", "vdf_beta1"),
        "fixed_cost": ("fixed_cost",),
        "direction": ("direction",),
        "directed": ("directed",),
        "lanes": ("lanes",),
        "length": ("length", "distance"),
        "free_speed": ("free_speed", "speed"),
        "toll": ("toll",),
    },
    "demand": {
        "origin": ("origin", "from", "o_zone_id"),
        "destination": ("destination", "to", "d_zone_id"),
        "trips": ("trips", "volume", "demand", "flow"),
    },
    "nodes": {
        "node": ("node_id", "node", "id"),
        "x": ("x_coord", "x", "longitude", "lon"),
        "y": ("y_coord", "y", "latitude", "lat"),
        "zone": ("zone_id",),
        "is_centroid": ("is_centroid",),
        "through": ("through",),
    },
}
"""What each table may hold, and the names that GMNS, AequilibraE and TNTP have for it."""
BOTH_WAYS = ("capacity", "free_flow_time", "b", "power", "fixed_cost", "toll")
"""Fields that AequilibraE writes once for each direction of a link, as in capacity_ab."""
TRUE, FALSE = ("true", "1", "1.0", "yes", "t"), ("false", "0", "0.0", "no", "f")


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """The columns of a table, by their names."""

    name: str
    """links, demand or nodes."""
    columns: Mapping[str, Any]
    size: int
    labels: Sequence[Any]
    """Of the rows: the index of a frame, the lines of a file."""
    fault: Callable[[Any, str, str], Exception]
    """The error for the label of a row (None: the whole table), a column and a problem."""
    given: Mapping[str, str]
    """{field: column}, as the user named them."""

    def error(self, row: int | None, column: str, problem: str) -> Exception:
        return self.fault(None if row is None else self.labels[row], column, problem)

    def place(self, field: str, ending: str = "") -> str | None:
        """The name of the column that holds a field; None if there is none."""
        if field in self.given:
            return self.given[field] + ending
        lower = {str(name).lower(): name for name in reversed(list(self.columns))}
        for synonym in SYNONYMS[self.name][field]:
            if synonym + ending in lower:
                return lower[synonym + ending]
        return None

    def has(self, field: str, ending: str = "") -> bool:
        return self.place(field, ending) is not None

    def names(self, field: str) -> list[Any]:
        """The entries of a field as names: NumPy's numbers and whole floats as integers."""
        column = self._required(field)
        found = self.maybe_names(field)
        if None in found:
            raise self.error(found.index(None), column, "is empty.")
        return found

    def maybe_names(self, field: str) -> list[Any]:
        """The same, with None where an entry is empty."""
        values = self.columns[self._required(field)]
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            return values.tolist()
        return [_plain(value) for value in values]

    def numbers(self, field: str, default: float | None = None, ending: str = "") -> Array:
        """The entries of a field as floats; the default where the column or an entry is missing."""
        column = self.place(field, ending)
        if column is None:
            if default is None:
                column = self._required(field)
            return np.full(self.size, default, dtype=np.float64)
        values = _as_floats(self.columns[column])
        if values is None or np.isnan(values).any():  # one by one, to say which
            values = np.array([self._number(row, column, default) for row in range(self.size)])
        return values.astype(np.float64)

    def booleans(self, field: str, default: bool) -> Array:
        """The entries of a field as booleans."""
        column = self.place(field)
        if column is None:
            return np.full(self.size, default)
        found = np.empty(self.size, dtype=bool)
        for row, value in enumerate(self.columns[column]):
            word = str(value).strip().lower()
            if _plain(value) is None:
                found[row] = default
            elif word in TRUE or word in FALSE:
                found[row] = word in TRUE
            else:
                raise self.error(row, column, f"expected true or false, got {value!r}.")
        return found

    def _number(self, row: int, column: str, default: float | None) -> float:
        value = self.columns[column][row]
        if _plain(value) is None:
            if default is None:
                raise self.error(row, column, "expected a number, and it is empty.")
            return default
        try:
            number = float(_plain(value))
        except (TypeError, ValueError, OverflowError):
            raise self.error(row, column, f"expected a number, got {_short(value)}.") from None
        if number != number:
            raise self.error(row, column, f"expected a number, got {_short(value)}.")
        return number

    def _required(self, field: str) -> str:
        column = self.place(field)
        if column is not None:
            return column
        names = ", ".join(repr(name) for name in SYNONYMS[self.name][field])
        has = ", ".join(repr(str(name)) for name in list(self.columns)[:20]) or "none"
        raise self.error(
            None,
            field,
            f"there is no such column (looked for {names}; the columns are {has}); name it with "
            f"columns={{{field!r}: ...}}.",
        )


def check_columns(columns: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
    """The user's names of columns by table; refuses fields that no table has."""
    given = dict(columns or {})
    known = [field for fields in SYNONYMS.values() for field in fields]
    for field in given:
        if field not in known:
            raise ValueError(unknown_name("field of columns=", field, known))
    return {
        table: {field: given[field] for field in fields if field in given}
        for table, fields in SYNONYMS.items()
    }


def table_of(data: Any, name: str, given: Mapping[str, str]) -> ColumnTable:
    """A pandas frame, or a dict of columns."""
    if hasattr(data, "columns") and hasattr(data, "index"):
        if not data.columns.is_unique:
            twice = _plain(data.columns[data.columns.duplicated()][0])
            raise ValueError(f"{name} has more than one column {twice!r}; drop or rename one.")
        columns = {column: data[column].to_numpy() for column in data.columns}
        labels: Sequence[Any] = list(data.index)
    elif isinstance(data, Mapping):
        if any(np.ndim(values) != 1 and not isinstance(values, list) for values in data.values()):
            raise ValueError(f"the columns of {name} must be vectors, or lists.")
        columns = {key: list(values) for key, values in data.items()}
        sizes = {len(values) for values in columns.values()}
        if len(sizes) > 1:
            raise ValueError(f"the columns of {name} must have one length, got {sorted(sizes)}.")
        labels = range(sizes.pop() if sizes else 0)
    else:
        raise ValueError(
            f"{name} must be a pandas DataFrame or a dict of columns, got {type(data).__name__}."
        )
    for field, column in given.items():
        known = [str(c) for c in columns]
        if not any(column + ending in columns for ending in ("", "_ab", "_ba")):
            raise ValueError(unknown_name(f"column of {name} for {field}", column, known))

    def fault(label: Any, column: str, problem: str) -> Exception:
        row = "" if label is None else f", row {_plain(label)!r}"
        return ValueError(f"{name}{row}, {column}: {problem}")

    return ColumnTable(name, columns, len(labels), labels, fault, given)


def _as_floats(column: Any) -> Array | None:
    """All entries at once; None if some are no numbers."""
    if np.iscomplexobj(column):
        return None
    try:
        return np.array(column, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _plain(value: Any) -> Any:
    """A Python value; None for what is missing, an integer for a whole float."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
