"""Running an experiment: instances first, then its tables, its figure and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment import Experiment, Record
from instances import finished
from records import Records, write_atomically
from summary import group_rows, instance_rows, time_rows
from wdro_model.display.tables import csv_text
from wdro_model.versions import versions


@dataclass(frozen=True)
class Reproduction:
    """A finished experiment and where its files are."""

    experiment: Experiment
    folder: Path
    rows: list[dict[str, Any]]
    """The table: one row for each group of instances, method and set of scenarios."""

    @property
    def table(self) -> Path:
        return self.folder / "table.csv"

    @property
    def figure(self) -> Path:
        return self.folder / "figure.png"


def reproduce(
    experiment: Experiment,
    output: Path | str,
    *,
    jobs: int | None = None,
    progress: bool = True,
    fresh: bool = False,
) -> Reproduction:
    """Run what is not yet done of an experiment, and write its files to `output`/<its name>.

    table.csv: losses and advantages by group and method; instances.csv: the same for each instance;
    times.csv: seconds of each solve; figure.png; settings.json: settings, seeds and versions.

    jobs: instances at the same time, as joblib counts them.
    fresh: forget the finished instances and compute all of them.
    """
    folder = Path(output) / experiment.name
    records = Records(folder, experiment.settings())
    if fresh:
        records.forget(experiment.keys())
    found = finished(experiment, records, jobs=jobs, progress=progress)
    rows = group_rows(experiment, found)
    write_files(experiment, folder, rows, found, records.mark)
    return Reproduction(experiment, folder, rows)


def write_files(
    experiment: Experiment,
    folder: Path,
    rows: Sequence[dict[str, Any]],
    records: Mapping[str, Record],
    mark: str,
) -> None:
    """Tables and settings, then the figure, which needs matplotlib."""
    tables = {
        "table.csv": rows,
        "instances.csv": instance_rows(experiment, records),
        "times.csv": time_rows(records),
    }
    for name, table in tables.items():
        write_atomically(folder / name, csv_text(table) or "")
    about = {
        "settings": experiment.settings(),
        "fingerprint": mark,
        "instances": list(records),
        "versions": versions(),
    }
    write_atomically(folder / "settings.json", json.dumps(about, indent=2) + "\n")
    figures = {"figure.png": experiment.figure(records)}
    for name, content in experiment.further(records).items():
        if name.endswith(".csv"):
            write_atomically(folder / name, csv_text(content) or "")
        else:
            figures[name] = content
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=130)
