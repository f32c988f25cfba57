"""Run the experiments of the paper, with its estimator and with ours.

    python examples/paper/reproduce.py tree-shift tree-density tree-exact-vs-smoothed traffic

Finished instances are kept: the same command goes on where an interrupted one was. The pages of the
documentation say what came out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import EXPERIMENTS
from reproduction import Reproduction, reproduce
from wdro_model.display.tables import Column, text_table
from wdro_model.evaluation.attempts import check_jobs

INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C ended."""
SHOWN = (
    Column("method", "The method.", word=True),
    Column("scenarios", "The data that the decisions are judged on.", word=True),
    Column("instances", "Instances that are averaged.", form="d"),
    Column("promise", "What the method says the mean loss will be."),
    Column("mean", "The mean loss."),
    Column("deviation", "The standard deviation of the losses."),
    Column("cvar95", "The mean of the worst 5% of the losses."),
    Column("advantage", "The mean of ERM's loss minus the method's.", form="+.3g"),
    Column("advantage_error", "Its standard error.", "error", ".2g"),
    Column("tail_advantage", "CVaR of ERM minus CVaR of the method.", form="+.3g"),
    Column("tail_advantage_error", "Its standard error.", "error", ".2g"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments that are named and return an exit status."""
    given = parser().parse_args(arguments)
    for name in given.names:
        kind = EXPERIMENTS[name]
        experiment = kind.quick(given.seed) if given.quick else kind(given.seed)
        try:
            done = reproduce(experiment, given.output, jobs=given.jobs, fresh=given.fresh)
        except KeyboardInterrupt:
            print(
                f"\n{name}: interrupted. Finished instances are kept in {given.output / name}; the "
                "same command goes on from them."
            )
            return INTERRUPTED
        print_result(done)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options, with a line for each experiment."""
    width = max(map(len, EXPERIMENTS))
    listed = [f"  {name:<{width}}  {kind.title}" for name, kind in EXPERIMENTS.items()]
    top = argparse.ArgumentParser(
        description="Run the experiments of the paper.",
        epilog="\n".join(["experiments:", *listed]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("names", nargs="+", metavar="EXPERIMENT", choices=EXPERIMENTS)
    top.add_argument("--quick", action="store_true", help="the same in small, in seconds")
    top.add_argument("--output", type=Path, default=Path("reproduction-output"))
    top.add_argument("--jobs", type=jobs, default=1, help="instances at a time; -1: one per core")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--fresh", action="store_true", help="forget the instances that are done")
    return top


def jobs(text: str) -> int:
    try:
        return int(check_jobs(int(text)) or 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a nonzero integer is needed, got {text!r}") from error


def print_result(done: Reproduction) -> None:
    """A table for each group of instances, and where the files are."""
    groups: dict[str, list[dict[str, object]]] = {}
    own = [name for name in done.rows[0] if name != "method"]
    own = own[: own.index("scenarios")]
    for row in done.rows:
        heading = ", ".join(f"{name} {row[name]}" for name in own if name in row)
        groups.setdefault(heading, []).append(row)
    print(f"{done.experiment.name}: {done.experiment.title}\n")
    for heading, rows in groups.items():
        print(f"{heading}\n{text_table(SHOWN, rows)}\n")
    print(f"Tables, figure and settings: {done.folder}\n")


if __name__ == "__main__":
    sys.exit(main())
