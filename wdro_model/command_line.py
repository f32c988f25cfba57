"""The command line: reproduce the paper, run the demo, say what is installed.

python -m wdro_model reproduce tree-shift tree-density tree-exact-vs-smoothed traffic [--quick]
python -m wdro_model demo [--quick]
python -m wdro_model info
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from wdro_model.evaluation.parallel import check_jobs
from wdro_model.evaluation.tables import Column, text_table
from wdro_model.reproduction import EXPERIMENTS, Reproduction, reproduce
from wdro_model.reproduction.demo import demo
from wdro_model.reproduction.versions import OPTIONAL, backends, solvers, version, versions

INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C ended."""
SHOWN = (
    Column("method", "The method."),
    Column("scenarios", "The data that the decisions are judged on."),
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
    """Run a command and return its exit status."""
    given = parser().parse_args(arguments)
    status: int = given.command(given)
    return status


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="python -m wdro_model",
        description="Wasserstein distributionally robust optimization over constrained sets.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    again = commands.add_parser("reproduce", help="run the experiments of the paper")
    again.add_argument("names", nargs="+", metavar="EXPERIMENT", choices=EXPERIMENTS)
    again.add_argument("--quick", action="store_true", help="the same in small, in seconds")
    again.add_argument("--output", type=Path, default=Path("reproduction-output"))
    again.add_argument("--jobs", type=jobs, default=1, help="instances at a time; -1: one per core")
    again.add_argument("--seed", type=int, default=0)
    again.add_argument("--fresh", action="store_true", help="forget the instances that are done")
    again.set_defaults(command=run_reproduce)

    show = commands.add_parser("demo", help="compare decisions on a quadratic spanning tree")
    show.add_argument("--quick", action="store_true", help="a small graph, in a few seconds")
    show.add_argument("--output", type=Path, default=Path("demo-output"))
    show.add_argument("--seed", type=int, default=0)
    show.set_defaults(command=run_demo)

    about = commands.add_parser("info", help="versions, oracle backends and solvers found")
    about.set_defaults(command=run_info)
    return top


def jobs(text: str) -> int:
    try:
        return int(check_jobs(int(text)) or 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a nonzero integer is needed, got {text!r}") from error


# ------------------------------------------------------------------ commands
def run_reproduce(given: argparse.Namespace) -> int:
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
        print(f"{heading}\n{text_table(SHOWN, rows, ('method', 'scenarios'))}\n")
    print(f"Tables, figure and settings: {done.folder}\n")


def run_demo(given: argparse.Namespace) -> int:
    demo(quick=given.quick, output=given.output, seed=given.seed)
    return 0


def run_info(given: argparse.Namespace) -> int:
    for name, number in versions().items():
        print(f"{name:<12} {number}")
    for name in OPTIONAL:
        print(f"{name:<12} {version(name) or 'not installed'}")
    print(f"\nconic and linear solvers: {', '.join(solvers())}\n")
    for name, known in backends().items():
        print(f"backends of {name}: {', '.join(known)}")
    return 0
