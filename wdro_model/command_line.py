"""The command line: run the demo, say what is installed.

wdro-model demo [--quick]
wdro-model info

`python -m wdro_model` does the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import wdro_model
from wdro_model.demo import demo
from wdro_model.evaluation.attempts import check_jobs
from wdro_model.versions import OPTIONAL, backends, solvers, version, versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    given = parser().parse_args(arguments)
    status: int = given.command(given)
    return status


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="wdro-model",
        description="Wasserstein distributionally robust optimization over constrained sets.",
    )
    top.add_argument("--version", action="version", version=wdro_model.__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    show = commands.add_parser(
        "demo", help="three decisions by ERM and robustly, and what came of them (a minute)"
    )
    show.add_argument("--quick", action="store_true", help="small instances, in a few seconds")
    show.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="FOLDER",
        help="where the page goes (%(default)s)",
    )
    show.add_argument("--seed", type=seed, default=0, help="the first of the seeds (%(default)s)")
    show.add_argument(
        "--jobs", type=jobs, metavar="N", help="instances at the same time (one for each core)"
    )
    show.set_defaults(command=run_demo)

    about = commands.add_parser("info", help="versions, oracle backends and solvers found")
    about.set_defaults(command=run_info)
    return top


def seed(text: str) -> int:
    """A seed, refused as argparse does it."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"an integer of at least 0 is needed, got {text!r}")
    return int(text)


def jobs(text: str) -> int | None:
    """A number of jobs as joblib counts them."""
    try:
        return check_jobs(int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a nonzero integer is needed, got {text!r}") from error


# ------------------------------------------------------------------ commands
INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C ended."""


def run_demo(given: argparse.Namespace) -> int:
    try:
        demo(quick=given.quick, output=given.output, seed=given.seed, jobs=given.jobs)
    except KeyboardInterrupt:
        print("\nInterrupted; no page was written.")
        return INTERRUPTED
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
