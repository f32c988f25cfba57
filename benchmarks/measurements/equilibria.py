"""User equilibria on bushes against link flows, and AequilibraE, from a network to its flows.

    python benchmarks equilibria [--rounds 3] [--networks sioux anaheim massachusetts braess]
                                    [--grid 26 387] [--seconds 120]

Frank-Wolfe with biconjugate directions runs to a relative gap of 1e-6, compiled, as `equilibrium`
did by default before there were bushes; bushes to 1e-6 and to 1e-10; AequilibraE's bfw, where it is
installed, to its own rgap of 1e-6 on one core. Times include building the set, but for AequilibraE,
whose graph is built before. "true gap" is the relative gap of the flow that came out, by SciPy's
shortest paths. "times faster" is the processor time of link flows over that of the row; where link
flows were stopped by --seconds, it is a lower bound.

--grid SIDE ZONES adds a made-up city: a grid of SIDE x SIDE crossings with faster streets every
fifth, and ZONES zones that may not be passed, a tenth of the minor streets missing.

Rounds go through the contenders in turn, after one round to warm up; the table has the medians of
processor and wall time. Networks are read from the folder WDRO_TNTP, or from shared/data/tntp
beside the repository, and left out where they are not.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AEQ_SHOW_PROGRESS", "FALSE")

import argparse
import logging
import resource
import time
from collections.abc import Callable
from functools import partial

import assignment
import numpy as np
from assignment import Run, aequilibrae, measured, networks, seconds

import wdro_model as wdro
from wdro_model.sets import TrafficFlows
from wdro_model.traffic import Network, equilibrium, relative_gap

LINKS = "link flows, 1e-6"
BUSHES = {"bushes, 1e-6": 1e-6, "bushes, 1e-10": 1e-10}
assignment.FILES["braess"] = "Braess-Example/Braess"


def ours(network: Network, method: str, gap: float, limit: float) -> Run:
    """From the network to the flow."""
    began = time.process_time(), time.perf_counter()
    flows = TrafficFlows(network, backend="numba")
    flow, solution = equilibrium(network, gap=gap, method=method, flows=flows, time_limit=limit)
    ended = time.process_time(), time.perf_counter()
    assert solution.iterations is not None
    return Run(flow, solution.iterations, ended[0] - began[0], ended[1] - began[1])


def contenders(network: Network, limit: float) -> dict[str, Callable[[], Run]]:
    """Link flows, bushes, and AequilibraE if it is installed."""
    found = {LINKS: partial(ours, network, "frank_wolfe", 1e-6, limit)}
    for name, gap in BUSHES.items():
        found[name] = partial(ours, network, "bushes", gap, limit)
    try:
        import aequilibrae as _  # noqa: F401

        logging.getLogger("aequilibrae").setLevel(logging.ERROR)
        if not network.fixed_cost.any():
            found["AequilibraE bfw, 1e-6"] = partial(aequilibrae, network, "bfw", 1e-6)
    except ImportError:
        pass
    return found


def table(network: Network, rounds: int, limit: float) -> None:
    """Print the table of one network."""
    runs = measured(contenders(network, limit), rounds)
    links = seconds(runs[LINKS])[0]
    judge = TrafficFlows(network, backend="scipy")
    print(f"\n{network!r}")
    head = f"{'iterations':>12}{'true gap':>12}{'processor s':>13}{'wall s':>9}{'times faster':>14}"
    print(f"{'':24}{head}")
    for name, found in runs.items():
        processor, wall = seconds(found)
        flow = np.maximum(found[-1].flow, 0.0)
        ratio = "" if name == LINKS else f"{links / processor:.3g}"
        print(
            f"{name:24}{found[-1].iterations:12d}{relative_gap(network, flow, judge):12.1e}"
            f"{processor:13.4f}{wall:9.3f}{ratio:>14}"
        )


# ------------------------------------------------------------------ a city that is made up
def grid(side: int, zones: int, seed: int = 0) -> Network:
    """A grid of streets, zones on it, and trips that become fewer with the distance."""
    rng = np.random.default_rng(seed)
    arcs: list[tuple[int, int]] = []
    capacity: list[float] = []
    free_time: list[float] = []
    for i in range(side):
        for j in range(side):
            for down, right in ((0, 1), (1, 0)):
                if i + down >= side or j + right >= side:
                    continue
                fast = i % 5 == 0 if right else j % 5 == 0
                if not fast and rng.random() < 0.1:
                    continue
                here, there = (zones + i * side + j, zones + (i + down) * side + j + right)
                for arc in ((here, there), (there, here)):
                    arcs.append(arc)
                    capacity.append((4000 if fast else 1200) * rng.uniform(0.7, 1.3))
                    free_time.append((0.6 if fast else 1.2) * rng.uniform(0.8, 1.2))
    roads = len(arcs)
    places = rng.integers(0, side, (zones, 2)) // 5 * 5  # on crossings of the faster streets
    for zone, (i, j) in enumerate(places):
        crossing = zones + int(i) * side + int(j)
        arcs += [(zone, crossing), (crossing, zone)]
        capacity += [1e5, 1e5]
        free_time += [0.5, 0.5]
    congests = np.arange(len(arcs)) < roads
    apart = np.abs(places[:, None] - places[None]).sum(axis=2)
    demand = np.exp(-4.0 * apart / side) * rng.lognormal(size=(zones, zones))
    demand *= ~np.eye(zones, dtype=bool)
    network = Network(
        tails=[u for u, _ in arcs],
        heads=[v for _, v in arcs],
        capacity=capacity,
        free_flow_time=free_time,
        b=np.where(congests, 0.15, 0.0),
        power=np.where(congests, 4.0, 0.0),
        demand=demand,
        through=np.arange(zones + side * side) >= zones,
        nodes=tuple(range(zones + side * side)),
        name=f"grid {side} x {side}",
    )
    flow = TrafficFlows(network).minimize(network.free_flow_time)
    room = 0.5 * float(network.capacity[congests].sum() / flow[congests].sum())
    return network.scaled_demand(room)


def main() -> None:
    """All networks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="*", default=["sioux", *assignment.FILES])
    parser.add_argument("--grid", nargs=2, type=int, action="append", default=[])
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of a run")
    arguments = parser.parse_args()
    cities = [*networks(arguments.networks), *(grid(*sizes) for sizes in arguments.grid)]
    for network in cities:
        table(network, arguments.rounds, arguments.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nwdro_model {wdro.__version__}, at most {peak:.2f} GB in all")


if __name__ == "__main__":
    main()
