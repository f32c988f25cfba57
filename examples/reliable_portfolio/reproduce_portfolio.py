"""Run the portfolio experiments of Mohajerin Esfahani and Kuhn (2018), section 7.

    python examples/reliable_portfolio/reproduce_portfolio.py --quick
    python examples/reliable_portfolio/reproduce_portfolio.py --output results

Finished runs are kept in a file: the same command goes on where an interrupted one was. The page of
the documentation says what came out.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pictures import draw
from summary_tables import along_radii_table, rules_table
from trials import EXPERIMENTS, sampled
from wdro_model.display.bars import progress_bar

RUNS = {"radius": {30: 200, 300: 200, 3000: 200}, "rules": {30: 200, 100: 200, 300: 200, 1000: 200}}
"""Runs of each experiment for each number of samples; 200 as in the paper."""
QUICK = {"radius": {20: 2}, "rules": {20: 2}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet, write tables and pictures."""
    given = parser().parse_args(arguments)
    wanted = QUICK if given.quick else asked(given.runs) if given.runs else RUNS
    resamples = 4 if given.quick else given.resamples
    given.output.mkdir(parents=True, exist_ok=True)
    log = given.output / "runs.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(r["experiment"], r["size"], r["run"]) for r in records}
    waiting = [place for place in places(wanted) if place not in done]
    with progress_bar("portfolio", len(waiting), unit="run") as bar, open(log, "a") as file:
        for experiment, size, run in waiting:
            began = time.process_time()
            result = EXPERIMENTS[experiment](sampled(given.seed, size, run), resamples)
            record = {"experiment": experiment, "size": size, "run": run, "result": result}
            record["seconds"] = round(time.process_time() - began, 3)
            records.append(record)
            print(json.dumps(record), file=file, flush=True)
            bar.update()
    write(records, given.output)
    return 0


def places(wanted: dict[str, dict[int, int]]) -> Iterator[tuple[str, int, int]]:
    """The runs in turn, so that an interrupted job has some of all."""
    longest = max(count for sizes in wanted.values() for count in sizes.values())
    for run in range(longest):
        for experiment, sizes in wanted.items():
            for size, count in sizes.items():
                if run * count // longest > (run - 1) * count // longest:
                    yield experiment, size, run * count // longest


def asked(texts: Sequence[str]) -> dict[str, dict[int, int]]:
    """Runs from texts such as "rules:30:200"."""
    found: dict[str, dict[int, int]] = {}
    for text in texts:
        experiment, size, count = text.split(":")
        if experiment not in EXPERIMENTS:
            raise SystemExit(f"unknown experiment {experiment!r}; known: {', '.join(EXPERIMENTS)}.")
        found.setdefault(experiment, {})[int(size)] = int(count)
    return found


def write(records: list[Any], folder: Path) -> None:
    """Tables and pictures; the tables are printed as well."""
    for name, rows in (
        ("radius", along_radii_table(records)),
        ("rules", rules_table(records)),
    ):
        if not rows:
            continue
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: rounded(v) for k, v in row.items()} for row in rows)
        print(f"{name}: {len(rows)} rows in {folder / f'{name}.csv'}")
    for row in rules_table(records):
        print(
            f"N = {row['size']:5d}  {row['rule']:17} radius {row['radius']:.4f}  "
            f"J {row['risk']:.3f}  promise {row['promise']:.3f}  "
            f"reliability {row['reliability']:.2f}"
        )
    draw(records, folder)


def rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="The portfolio of Mohajerin Esfahani and Kuhn.")
    top.add_argument("--quick", action="store_true", help="the same in small, in seconds")
    top.add_argument("--output", type=Path, default=Path("portfolio-output"))
    top.add_argument("--resamples", type=int, default=50, help="of the bootstrap; 50 in the paper")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--runs", nargs="+", metavar="EXPERIMENT:N:RUNS", help="e.g. rules:30:200")
    return top


if __name__ == "__main__":
    raise SystemExit(main())
