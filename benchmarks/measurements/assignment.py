"""Assignments: user equilibria against AequilibraE, and robust Sioux Falls against both.

    python benchmarks assignment [--rounds 3] [--networks sioux anaheim massachusetts]

Deterministic: from a network to its user equilibrium at a relative gap (<t, x> - <t, y>)/<t, x> of
1e-4, t the times at the flow x and y all-or-nothing at t. Ours stop when this is reached; the time
includes building the set and compiling the model. AequilibraE's algorithms cfw and bfw run on one
core to their own rgap of 1e-4, which takes the costs from before the last step; the time is that of
`execute()` alone, without building its graph. The column "true gap" is the relative gap of the flow
that came out, measured in the same way for all; where AequilibraE's is above 1e-4, another row has
the rgap that suffices. "times faster" is against its faster algorithm at rgap 1e-4, in processor
time.

Robust: Sioux Falls with N = 100 training scenarios of times, alpha and beta, certified to a
relative Frank-Wolfe gap of 1e-3: the paper's radius (17, with which beta reaches the end of its
range) and epsilon (1e-3, losses in thousand vehicle-hours); radius 1 with this epsilon and with the
default one; radius 5 in standard deviations, which cross-validation chooses in the guide
on traffic, and radius 2, which recovers more than half of what ERM loses there.

Rounds go through the contenders in turn, after one round to warm up; the table has the medians of
processor and wall time. Anaheim and Eastern Massachusetts are read from the folder WDRO_TNTP, or
from shared/data/tntp beside the repository, and left out where they are not.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AEQ_SHOW_PROGRESS", "FALSE")

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.datasets import sioux_falls, training_scenarios
from wdro_model.solvers import FrankWolfe
from wdro_model.traffic import Network, equilibrium, read_tntp, relative_gap

GAP = 1e-4
ROBUST_GAP = 1e-3
FOLDER = Path(os.environ.get("WDRO_TNTP", Path(__file__).parents[3] / "shared" / "data" / "tntp"))
FILES = {"anaheim": "Anaheim/Anaheim", "massachusetts": "Eastern-Massachusetts/EMA"}


@dataclass(frozen=True)
class Run:
    """One assignment."""

    flow: np.ndarray
    iterations: int
    processor: float
    wall: float


Contender = Callable[[], Run]


def networks(names: list[str]) -> list[Network]:
    """Those that are asked for and at hand."""
    found = [sioux_falls()] if "sioux" in names else []
    for name in names:
        if name not in FILES:
            continue
        paths = [FOLDER / f"{FILES[name]}_{kind}.tntp" for kind in ("net", "trips")]
        if all(path.exists() for path in paths):
            found.append(read_tntp(*paths))
        else:
            print(f"{name} is not in {FOLDER.name}: set WDRO_TNTP to the folder of the networks.")
    return found


# ------------------------------------------------------------------ ours
def ours(network: Network, backend: str) -> Run:
    """Biconjugate Frank-Wolfe, from the network to the flow."""
    began = time.process_time(), time.perf_counter()
    flows = wdro.sets.TrafficFlows(network, backend=backend)
    flow, solution = equilibrium(network, gap=GAP, flows=flows)
    ended = time.process_time(), time.perf_counter()
    assert solution.iterations is not None
    return Run(flow, solution.iterations, ended[0] - began[0], ended[1] - began[1])


# ------------------------------------------------------------------ AequilibraE
def aequilibrae(network: Network, algorithm: str, target: float = GAP) -> Run:
    """AequilibraE on one core to its rgap; the graph is built outside of the time."""
    import pandas as pd
    from aequilibrae.matrix import AequilibraeMatrix
    from aequilibrae.paths import Graph, TrafficAssignment, TrafficClass

    graph = Graph()
    graph.network = pd.DataFrame(
        {
            "link_id": np.arange(1, network.n_arcs + 1),
            "a_node": network.tails + 1,
            "b_node": network.heads + 1,
            "direction": 1,
            "free_flow_time": np.maximum(network.free_flow_time, 1e-10),  # it refuses 0
            "capacity": network.capacity,
            "b": np.where(network.power >= 1, network.b, 0.0),
            "power": np.maximum(network.power, 1.0),  # it refuses less
        }
    )
    graph.prepare_graph(network.zones + 1)
    graph.set_graph("free_flow_time")
    graph.set_blocked_centroid_flows(not network.through.all())
    matrix = AequilibraeMatrix()
    matrix.create_empty(zones=network.n_zones, matrix_names=["trips"], memory_only=True)
    matrix.index[:] = network.zones + 1
    matrix.matrix["trips"][:] = network.demand
    matrix.computational_view(["trips"])
    traffic = TrafficClass("car", graph, matrix)
    assignment = TrafficAssignment()
    assignment.set_classes([traffic])
    assignment.set_vdf("BPR")
    assignment.set_vdf_parameters({"alpha": "b", "beta": "power"})
    assignment.set_capacity_field("capacity")
    assignment.set_time_field("free_flow_time")
    assignment.set_algorithm(algorithm)
    assignment.set_cores(1)
    assignment.max_iter, assignment.rgap_target = 2000, target
    began = time.process_time(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it divides by zero in its first steps
        assignment.execute()
    ended = time.process_time(), time.perf_counter()
    flow = np.array(traffic.results.total_link_loads)
    return Run(flow, assignment.assignment.iter, ended[0] - began[0], ended[1] - began[1])


def sufficient(network: Network, algorithm: str) -> float:
    """The rgap to ask for so that the flow has a relative gap of 1e-4 in truth."""
    target = GAP
    while relative_gap(network, aequilibrae(network, algorithm, target).flow) > GAP:
        target *= 0.8
    return target


# ------------------------------------------------------------------ the robust problem
@dataclass(frozen=True)
class Case:
    """A ball, and the temperature of its smoothing; None is the default."""

    radius: float
    weights: str | None
    epsilon: float | None

    def __str__(self) -> str:
        weights = "" if self.weights is None else f", {self.weights}"
        epsilon = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        return f"radius {self.radius:g}{weights}{epsilon}"


CASES = (
    Case(17.0, None, 1e-3),
    Case(1.0, None, 1e-3),
    Case(1.0, None, None),
    Case(5.0, "standardize", None),
    Case(2.0, "standardize", None),
)


def declared(
    case: Case, count: int, network: Network | None = None
) -> tuple[cp.Variable, wdro.Problem]:
    """Sioux Falls as in the paper, or another network with the same scenarios."""
    unit = 1e5 if network is None else float(network.total_demand)
    training = training_scenarios(network or sioux_falls())
    flows = wdro.sets.TrafficFlows(training.network)
    x = cp.Variable(flows.dimension, name="flow")
    parameters = training.parameters(count, seed=0)
    loss = wdro.traffic.beckmann(x, training.network.capacity, *parameters) / unit
    ball = wdro.WassersteinBall(case.radius, wdro.costs.SquaredEuclidean(case.weights))
    return x, wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)], ambiguity=ball)


def robust(
    case: Case, count: int = 100, gap: float = ROBUST_GAP, network: Network | None = None
) -> tuple[Run, wdro.Solution]:
    """From the scenarios to the certified flow."""
    began = time.process_time(), time.perf_counter()
    x, problem = declared(case, count, network)
    problem.solve(method="smoothed", epsilon=case.epsilon, solver=FrankWolfe(gap=gap))
    ended = time.process_time(), time.perf_counter()
    solution = problem.solution
    assert solution is not None
    assert solution.iterations is not None
    run = Run(x.value, solution.iterations, ended[0] - began[0], ended[1] - began[1])
    return run, solution


def radii_apart_and_in_a_row(rounds: int = 3) -> tuple[list[float], float]:
    """Processor seconds of eight radii in standard deviations, to 1e-4: each alone, and a path.

    Medians over rounds; every problem is declared anew, which does not count.
    """
    radii, solver = np.geomspace(0.5, 20.0, 8), FrankWolfe(gap=GAP)
    alone, path = np.zeros((rounds, len(radii))), np.zeros(rounds)
    for t in range(rounds):
        for k, radius in enumerate(radii):
            problem = declared(Case(radius, "standardize", None), 100)[1]
            began = time.process_time()
            problem.solve(method="smoothed", solver=solver)
            alone[t, k] = time.process_time() - began
        problem = declared(Case(1.0, "standardize", None), 100)[1]
        began = time.process_time()
        problem.path(radii, "smoothed", solver=solver, progress=False)
        path[t] = time.process_time() - began
    return np.median(alone, axis=0).tolist(), float(np.median(path))


# ------------------------------------------------------------------ measuring
def contenders(network: Network) -> dict[str, Contender]:
    """Ours with both backends, and AequilibraE if it is installed."""
    found = {"ours, scipy": partial(ours, network, "scipy")}
    try:
        wdro.sets.TrafficFlows(network, backend="numba")
        found["ours, numba"] = partial(ours, network, "numba")
    except ImportError as refusal:
        print(refusal)
    try:
        import aequilibrae as _  # noqa: F401

        logging.getLogger("aequilibrae").setLevel(logging.ERROR)
        for algorithm in ("cfw", "bfw"):
            found[f"AequilibraE {algorithm}"] = partial(aequilibrae, network, algorithm)
            target = sufficient(network, algorithm)
            if target < GAP:
                name = f"... to {target:.1e}"
                found[f"AequilibraE {algorithm} {name}"] = partial(
                    aequilibrae, network, algorithm, target
                )
    except ImportError:
        print("AequilibraE is not installed: pip install 'wdro_model[bench]'.")
    return found


def measured(calls: dict[str, Contender], rounds: int) -> dict[str, list[Run]]:
    """Rounds of all contenders in turn, after one to warm up."""
    runs: dict[str, list[Run]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            run = call()
            if turn > 0:
                runs[name].append(run)
    return runs


def seconds(runs: list[Run]) -> tuple[float, float]:
    """Medians of processor and wall time."""
    processor = float(np.median([run.processor for run in runs]))
    return processor, float(np.median([run.wall for run in runs]))


def table(network: Network, rounds: int) -> float | None:
    """Print the table of one network; the processor time of AequilibraE's faster algorithm."""
    runs = measured(contenders(network), rounds)
    peers = [seconds(found)[0] for name, found in runs.items() if name.startswith("Aeq")]
    best = min(peers) if peers else None
    print(f"\n{network!r}, user equilibrium to a relative gap of {GAP:g}")
    head = f"{'iterations':>12}{'true gap':>12}{'objective':>14}{'processor s':>13}{'wall s':>9}"
    print(f"{'':32}{head}{'times faster':>14}")
    for name, found in runs.items():
        processor, wall = seconds(found)
        flow = np.maximum(found[-1].flow, 0.0)
        ratio = "" if best is None or name.startswith("Aeq") else f"{best / processor:.1f}"
        print(
            f"{name:32}{found[-1].iterations:12d}{relative_gap(network, flow):12.2e}"
            f"{network.beckmann(flow):14.2f}{processor:13.3f}{wall:9.3f}{ratio:>14}"
        )
    return best


def robust_table(rounds: int, peer: float | None) -> None:
    """Print what the robust problem takes beside one assignment by AequilibraE."""
    print(f"\nrobust Sioux Falls, N = 100, certified to {ROBUST_GAP:g}")
    head = f"{'status':>12}{'relative gap':>14}{'iterations':>12}{'processor s':>13}{'wall s':>9}"
    print(f"{'':32}{head}")
    robust(CASES[-1], count=5, gap=0.1)  # to warm up
    for case in CASES:
        found = [robust(case) for _ in range(rounds)]
        processor, wall = seconds([run for run, _ in found])
        run, solution = found[-1]
        print(
            f"{case!s:32}{solution.status:>12}"
            f"{solution.relative_gap:14.1e}{run.iterations:12d}{processor:13.3f}{wall:9.3f}"
        )
    if peer is not None:
        print(f"AequilibraE's assignment above, one scenario without uncertainty: {peer:.3f} s")


def main() -> None:
    """All networks, then the robust problem."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="*", default=["sioux", *FILES])
    parser.add_argument("--no-robust", action="store_true", help="equilibria only")
    arguments = parser.parse_args()
    peers = {
        network.name: table(network, arguments.rounds) for network in networks(arguments.networks)
    }
    if not arguments.no_robust:
        robust_table(arguments.rounds, peers.get("Sioux Falls"))


if __name__ == "__main__":
    main()
