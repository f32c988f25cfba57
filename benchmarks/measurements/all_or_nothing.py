"""All-or-nothing assignments: the backends of TrafficFlows against each other and AequilibraE.

    python benchmarks all_or_nothing [--slow]

Two networks: Sioux Falls, and a city of the size of the Chicago sketch network (a street grid with
diagonals and one connector of weight zero per zone: 933 nodes, 2950 arcs, 387 zones, 94,000 pairs).
Every call has fresh weights, the same for all contenders. Rounds go through the contenders in turn,
several calls each, so that other work on the machine falls on all of them; the first call of a
round warms up. The table has the medians of processor and wall time of a call, one thread
everywhere. The ratio is networkx's processor time over the contender's. OR-Tools takes seconds on
the city and is run there with --slow only.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable

import numpy as np

from wdro_model.datasets import sioux_falls
from wdro_model.sets import TrafficFlows
from wdro_model.traffic import Network

Assign = Callable[[np.ndarray], np.ndarray]
ROUNDS = {"Sioux Falls": (5, 60), "city": (5, 2)}
"""How many rounds, and how many calls of each contender in a round, the first to warm up."""


def city(rng: np.random.Generator) -> Network:
    """A grid of 21 x 26 crossings with 43 diagonals, and 387 zones beside them."""
    crossing = np.arange(21 * 26).reshape(21, 26)
    streets = [
        np.stack([crossing[:, :-1], crossing[:, 1:]], axis=-1).reshape(-1, 2),
        np.stack([crossing[:-1], crossing[1:]], axis=-1).reshape(-1, 2),
    ]
    diagonals = np.stack([crossing[:-1, :-1], crossing[1:, 1:]], axis=-1).reshape(-1, 2)
    streets.append(rng.permutation(diagonals)[:43])
    zones = crossing.size + np.arange(387)
    connectors = np.column_stack([zones, rng.permutation(crossing.size)[:387]])
    roads = np.concatenate([*streets, connectors])
    times = np.where(np.arange(len(roads)) < len(roads) - 387, rng.uniform(1, 5, len(roads)), 0.0)
    demand = rng.gamma(0.5, 2.0, (387, 387)) * (rng.random((387, 387)) < 0.63)
    np.fill_diagonal(demand, 0.0)
    return Network(
        tails=np.concatenate([roads[:, 0], roads[:, 1]]),
        heads=np.concatenate([roads[:, 1], roads[:, 0]]),
        capacity=1.0,
        free_flow_time=np.concatenate([times, times]),
        b=0.15,
        power=4.0,
        demand=demand,
        zones=zones,
        name="city",
    )


def contenders(network: Network, slow: bool) -> dict[str, Assign]:
    """The backends that take this network, then AequilibraE if it is installed."""
    found: dict[str, Assign] = {}
    for backend in TrafficFlows.backends():
        if backend == "ortools" and network.n_zones > 100 and not slow:
            print(f"{network.name}: ortools takes seconds per call; run with --slow.")
            continue
        try:
            found[backend] = TrafficFlows(network, backend=backend).minimize
        except (ImportError, ValueError) as refusal:
            print(f"{network.name}: {refusal}")
    try:
        found["AequilibraE"] = aequilibrae(network)
    except ImportError:
        print(f"{network.name}: AequilibraE is not installed: pip install 'wdro_model[bench]'.")
    return found


def aequilibrae(network: Network) -> Assign:
    """AequilibraE's all-or-nothing on one core, on a graph that is built once."""
    os.environ.setdefault("AEQ_SHOW_PROGRESS", "FALSE")
    import pandas as pd
    from aequilibrae.matrix import AequilibraeMatrix
    from aequilibrae.paths import AssignmentResults, Graph
    from aequilibrae.paths.all_or_nothing import allOrNothing
    from aequilibrae.paths.AoN import aggregate_link_costs

    graph = Graph()
    graph.network = pd.DataFrame(
        {
            "link_id": np.arange(1, network.n_arcs + 1),
            "a_node": network.tails + 1,
            "b_node": network.heads + 1,
            "direction": 1,
            "cost": np.maximum(network.free_flow_time, 1e-10),
        }
    )
    graph.prepare_graph(network.zones + 1)
    graph.set_graph("cost")
    graph.set_blocked_centroid_flows(False)
    matrix = AequilibraeMatrix()
    matrix.create_empty(zones=network.n_zones, matrix_names=["trips"], memory_only=True)
    matrix.index[:] = network.zones + 1
    matrix.matrix["trips"][:] = network.demand
    matrix.computational_view(["trips"])
    results = AssignmentResults()
    results.cores = 1
    results.prepare(graph, matrix)
    run = allOrNothing("trips", matrix, graph, results)

    def assign(weights: np.ndarray) -> np.ndarray:
        aggregate_link_costs(weights, graph.compact_cost, results.crosswalk)
        results.link_loads.fill(0.0)
        run.execute()
        return np.array(results.link_loads[:, 0])

    return assign


def measure(network: Network, slow: bool) -> None:
    """Print the table of one network."""
    calls = contenders(network, slow)
    rounds, length = ROUNDS[network.name]
    rng = np.random.default_rng(1)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        weights = network.free_flow_time * rng.uniform(1, 2, (length, network.n_arcs))
        costs = {}
        for name, assign in calls.items():
            total = 0.0
            for turn, row in enumerate(weights):
                start = time.process_time(), time.perf_counter()
                x = assign(row)
                stop = time.process_time(), time.perf_counter()
                total += float(row @ x)
                if turn > 0:
                    spent[name].append((stop[0] - start[0], stop[1] - start[1]))
            costs[name] = total
        for name, cost in costs.items():
            assert abs(cost - costs["scipy"]) <= 1e-6 * cost, (name, cost, costs["scipy"])
    medians = {name: 1e3 * np.median(times, axis=0) for name, times in spent.items()}
    print(f"\n{network!r}")
    print(f"{'':14}{'processor ms':>14}{'wall ms':>12}{'networkx / it':>16}")
    for name, (processor, wall) in medians.items():
        ratio = medians["networkx"][0] / processor
        print(f"{name:14}{processor:14.3f}{wall:12.3f}{ratio:16.1f}")
    print()


def main() -> None:
    """Both networks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slow", action="store_true", help="OR-Tools on the city as well")
    slow = parser.parse_args().slow
    measure(sioux_falls(), slow)
    measure(city(np.random.default_rng(0)), slow)


if __name__ == "__main__":
    main()
