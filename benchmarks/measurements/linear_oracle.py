"""A linear oracle compiled once from CVXPY constraints, against solving a DPP problem again.

    python benchmarks linear_oracle

Both minimise the same directions over the same constraints. "fresh" directions are independent of
each other; "slow" ones drift with the steps 2/(t + 7) of Frank-Wolfe. Medians over the calls after
a warm-up, one BLAS thread; the ratio is to the time of the compiled oracle in the same run.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.sets import ConvexSet

WARM_UP, CALLS = 10, 300
Case = tuple[str, list[Any], Any, Callable[[np.random.Generator], np.ndarray]]


def flow(rng: np.random.Generator) -> Case:
    """One unit from node 0 to node 10 through 24 nodes and 76 arcs."""
    arcs, nodes = 76, 24
    tails, heads = rng.integers(0, nodes, arcs), rng.integers(0, nodes, arcs)
    tails[:nodes], heads[:nodes] = np.arange(nodes), (np.arange(nodes) + 1) % nodes
    incidence = np.zeros((nodes, arcs))
    incidence[tails, np.arange(arcs)] += 1
    incidence[heads, np.arange(arcs)] -= 1
    supply = np.zeros(nodes)
    supply[0], supply[10] = 1, -1
    x = cp.Variable(arcs, nonneg=True)
    return (
        "flow, 76 arcs",
        [incidence @ x == supply, x <= 1],
        x,
        lambda rng: rng.uniform(1, 2, arcs),
    )


def random_program(rng: np.random.Generator) -> Case:
    """200 variables in [0, 1] under 40 sparse inequalities."""
    matrix = sp.random_array((40, 200), density=0.1, rng=rng)
    limit = matrix @ rng.uniform(0.2, 0.8, 200) + 0.1
    x = cp.Variable(200)
    constraints = [matrix @ x <= limit, x >= 0, x <= 1]
    return "random, 200 variables", constraints, x, lambda rng: rng.standard_normal(200)


def ball(rng: np.random.Generator) -> Case:
    """A simplex cut by an ellipsoid in 50 dimensions."""
    factor = rng.standard_normal((10, 50)) / 10
    x = cp.Variable(50, nonneg=True)
    constraints = [cp.sum(x) == 1, cp.norm(factor @ x) <= 0.2]
    return "simplex and ellipsoid, 50", constraints, x, lambda rng: rng.standard_normal(50)


def directions(
    draw: Callable[[np.random.Generator], np.ndarray], drift: bool
) -> Iterator[np.ndarray]:
    """The sequence of directions, the same for all contenders."""
    rng = np.random.default_rng(1)
    current = draw(rng)
    for step in range(WARM_UP + CALLS):
        yield current
        current = current + (draw(rng) - current) * (2 / (step + 7) if drift else 1.0)


def median(call: Callable[[np.ndarray], float], sequence: list[np.ndarray]) -> tuple[float, float]:
    """Median time of a call in ms, and the sum of the minima found."""
    times, total = [], 0.0
    for direction in sequence:
        start = time.perf_counter()
        total += call(direction)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[WARM_UP:])), total


def contenders(constraints: list[Any], x: Any) -> Iterator[tuple[str, Callable[..., float]]]:
    """The compiled set, then CVXPY with each solver that accepts the constraints."""
    compiled = ConvexSet(constraints, x)
    compiled.check_nonempty()  # as a problem does when it is declared
    yield "compiled", lambda direction: float(direction @ compiled.minimize(direction))
    slope = cp.Parameter(x.size)
    problem = cp.Problem(cp.Minimize(slope @ x), constraints)
    for solver in [cp.HIGHS, cp.CLARABEL] if compiled.is_polytope else [cp.CLARABEL]:

        def solve(direction: np.ndarray, solver: str = solver) -> float:
            slope.value = direction
            return float(problem.solve(solver=solver))

        yield f"CVXPY, {solver}", solve


def main() -> None:
    """Print the table."""
    print(f"{'set':28}{'directions':12}{'oracle':20}{'median ms':>10}{'ratio':>8}")
    for build in (flow, random_program, ball):
        name, constraints, x, draw = build(np.random.default_rng(0))
        for drift in (False, True):
            sequence = list(directions(draw, drift))
            reference, minimum = 0.0, 0.0
            for label, call in contenders(constraints, x):
                milliseconds, total = median(call, sequence)
                if label == "compiled":
                    reference, minimum = milliseconds, total
                assert abs(total - minimum) <= 1e-5 * (1 + abs(minimum)), (name, label)
                kind = "slow" if drift else "fresh"
                ratio = milliseconds / reference
                print(f"{name:28}{kind:12}{label:20}{milliseconds:10.3f}{ratio:8.1f}")


if __name__ == "__main__":
    main()
