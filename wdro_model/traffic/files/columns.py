"""Tables with columns by name, whose errors name the file or table, the row and the column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.traffic.network_checks import Rule

Array = np.ndarray
Fault = Callable[[Any, str, str], Exception]

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
"""The fields of each table, and the names that GMNS, AequilibraE and TNTP have for them."""
TRUE, FALSE = ("true", "1", "1.0", "yes", "t"), ("false", "0", "0.0", "no", "f")


class MalformedFile(ValueError):
    """Says where a file is malformed: file, line (from 1, None if it is no line) and field."""

    def __init__(self, file: str, line: int | None, field: str, problem: str) -> None:
        super().__init__(file, line, field, problem)
        self.file, self.line, self.field, self.problem = file, line, field, problem

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{place}, {self.field}: {self.problem}"


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """The columns of a table of links, demand or nodes."""

    name: str
    """links, demand or nodes."""
    columns: Mapping[str, Any]
    labels: Sequence[Any]
    """Of the rows: the index of a frame, the lines of a file."""
    fault: Fault
    """The error for the label of a row (None: the whole table), a column and a problem."""
    given: Mapping[str, str] | None = None
    """{field: column}, as the user named them; None where the user cannot."""
    row_word: str = "row"
    """What a label is the number of."""

    @property
    def size(self) -> int:
        return len(self.labels)

    def select(self, rows: Array) -> ColumnTable:
        """The table of some rows."""
        places = rows.tolist()
        columns = {
            name: values[rows]
            if isinstance(values, np.ndarray)
            else [values[row] for row in places]
            for name, values in self.columns.items()
        }
        return replace(self, columns=columns, labels=[self.labels[row] for row in places])

    def with_column(self, column: str, values: Sequence[Any]) -> ColumnTable:
        """The table with other entries in one column."""
        return replace(self, columns={**self.columns, column: values})

    # -------------------------------------------------------------- columns
    def column_of(self, field: str, ending: str = "") -> str | None:
        """The name of the column that holds a field; None if there is none."""
        if self.given and field in self.given:
            return self.given[field] + ending
        lower = {str(name).lower(): name for name in reversed(list(self.columns))}
        names = [synonym + ending for synonym in SYNONYMS[self.name].get(field, (field,))]
        return next((lower[name] for name in names if name in lower), None)

    def has(self, field: str, ending: str = "") -> bool:
        return self.column_of(field, ending) is not None

    def names(self, field: str) -> list[Any]:
        """The entries of a field as names: NumPy's numbers and whole floats as integers."""
        names = self.optional_names(field)
        if None in names:
            raise self.error(names.index(None), field, "is empty.")
        return names

    def optional_names(self, field: str) -> list[Any]:
        """The same, with None where an entry is empty."""
        return [plain_value(value) for value in self.columns[self._required(field)]]

    def numbers(self, field: str, default: float | None = None, ending: str = "") -> Array:
        """The entries of a field as floats; the default where the column or an entry is missing."""
        column = self.column_of(field, ending)
        if column is None and default is not None:
            return np.full(self.size, default, dtype=np.float64)
        column = self._required(field) if column is None else column
        values = _as_floats(self.columns[column])
        if values is None or np.isnan(values).any():  # one by one, to say which
            values = np.array([self._number(row, column, default) for row in range(self.size)])
        return values.astype(np.float64)

    def booleans(self, field: str, default: bool) -> Array:
        """The entries of a field as booleans."""
        column = self.column_of(field)
        truths = np.full(self.size, default)
        if column is None:
            return truths
        for row, value in enumerate(self.columns[column]):
            word = str(value).strip().lower()
            if word in TRUE or word in FALSE:
                truths[row] = word in TRUE
            elif plain_value(value) is not None:
                raise self.error(row, field, f"expected true or false, got {value!r}.")
        return truths

    # -------------------------------------------------------------- errors
    def error(self, row: int | None, field: str, problem: str) -> Exception:
        """The error for a row (None: the whole table), by the name of the field's column."""
        label = None if row is None else self.labels[row]
        return self.fault(label, str(self.column_of(field) or field), problem)

    def check(self, field: str, values: Array, rule: Rule, way_out: str = "") -> None:
        """Raise the error of the first row whose value breaks a rule."""
        kind, holds = rule
        wrong = ~holds(values)
        if wrong.any():
            row = int(np.argmax(wrong))
            hint = way_out and f"; {way_out}"
            raise self.error(row, field, f"must be {kind}, got {float(values[row])!r}{hint}.")

    def check_known(self, field: str, names: list[Any], known: Mapping[Any, int]) -> None:
        """Raise the error of the first row whose name is not a known node or zone."""
        if known.keys() >= set(names):
            return
        row = next(row for row, name in enumerate(names) if name not in known)
        twin = next((v for v in known if str(v) == str(names[row])), None)
        hint = "" if twin is None else f" (there is {twin!r}, of another type)"
        what = "zone" if "zone" in str(self.column_of(field)).lower() else "node"
        raise self.error(row, field, f"the {what} {names[row]!r} is not known{hint}.")

    # -------------------------------------------------------------- parts
    def _number(self, row: int, column: str, default: float | None) -> float:
        value = self.columns[column][row]
        is_unknown = plain_value(value) is None or str(value).strip().lower() == "nan"
        if (
            is_unknown
            and default is not None
            and (plain_value(value) is None or default != default)
        ):
            return default
        number = as_number(value)
        if number is None:
            got = "and it is empty" if plain_value(value) is None else f"got {_short(value)}"
            raise self.fault(self.labels[row], column, f"expected a number, {got}.")
        return number

    def _required(self, field: str) -> str:
        column = self.column_of(field)
        if column is not None:
            return column
        names = ", ".join(repr(name) for name in SYNONYMS[self.name][field])
        has = ", ".join(repr(str(name)) for name in list(self.columns)[:20]) or "none"
        way_out = "" if self.given is None else f"; name it with columns={{{field!r}: ...}}"
        raise self.error(
            None,
            field,
            f"there is no such column (looked for {names}; the columns are {has}){way_out}.",
        )


def as_number(value: Any) -> float | None:
    """A number other than NaN; None for what is none."""
    try:
        number = float(plain_value(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return None if number != number else number


def plain_value(value: Any) -> Any:
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


def _as_floats(column: Any) -> Array | None:
    """All entries at once; None if some are no numbers."""
    if np.iscomplexobj(column):
        return None
    try:
        return np.array(column, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
