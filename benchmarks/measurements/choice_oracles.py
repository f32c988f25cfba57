"""The oracles of choices and matrices with the bare call of the library behind each.

`oracles.py` times them. None stands for an oracle without a library behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import eigh, svd
from scipy.optimize import linear_sum_assignment
from scipy.sparse.linalg import eigsh, svds

from wdro_model import sets

Bare = Callable[[np.ndarray], Any] | None
Case = tuple[str, Any, Bare]


def assignments() -> Iterator[Case]:
    """Scipy's Hungarian method and OR-Tools' auction, on tables of real costs."""
    from ortools.graph.python import linear_sum_assignment as graph

    for n in (50, 300):
        oracle = sets.Assignment(n)
        yield (
            f"assignment {n} x {n}, scipy",
            oracle,
            lambda g, n=n: linear_sum_assignment(g.reshape(n, n)),
        )
        rows, columns = (part.ravel() for part in np.indices((n, n)))

        def auction(g: np.ndarray, n: int = n, rows: Any = rows, columns: Any = columns) -> Any:
            solver = graph.SimpleLinearSumAssignment()
            solver.add_arcs_with_cost(rows, columns, np.rint(1e6 * g).astype(np.int64))
            solver.solve()
            return [solver.right_mate(i) for i in range(n)]

        yield f"assignment {n} x {n}, ortools", oracle.with_backend("ortools"), auction
    held = sets.Assignment(300, forbidden=[(i, i) for i in range(300)], mandatory=[(0, 1)])
    yield (
        "assignment 300 x 300, held",
        held,
        lambda g: linear_sum_assignment(g.reshape(300, 300)),
    )
    yield "assignment 50 x 50, highs", sets.Assignment(50, backend="highs"), None


def knapsacks() -> Iterator[Case]:
    """Real profits; whole weights of two sizes."""
    from ortools.algorithms.python import knapsack_solver

    kinds = knapsack_solver.SolverType
    rng = np.random.default_rng(0)
    for n in (50, 200):
        weights = rng.integers(1, 1000, n)
        room = int(weights.sum() // 3)

        def bare(g: np.ndarray, weights: Any = weights, room: int = room) -> Any:
            solver = knapsack_solver.KnapsackSolver(
                kinds.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "bare"
            )
            profits = np.maximum(np.rint(-1e6 * g), 0).astype(np.int64).tolist()
            solver.init(profits, [weights.tolist()], [room])
            solver.solve()
            return [solver.best_solution_contains(i) for i in range(len(profits))]

        oracle = sets.Knapsack(weights, room)
        for backend in ("frontier", "ortools", "highs"):
            yield f"knapsack {n}, {backend} / ortools", oracle.with_backend(backend), bare


def cp_sat_models() -> Iterator[Case]:
    """At most 10 of 40, no two neighbours: a model of one's own."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = [model.new_bool_var(f"x{i}") for i in range(40)]
    model.add(sum(x) <= 10)
    for one, other in pairwise(x):
        model.add_at_most_one([one, other])

    def bare(g: np.ndarray) -> Any:
        costs = np.rint(1e6 * g).astype(np.int64).tolist()
        model.minimize(cp_model.LinearExpr.weighted_sum(x, costs))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.solve(model)
        return [solver.value(variable) for variable in x]

    yield "CP-SAT, 40 variables", sets.CpSat(model, x), bare


def matrices() -> Iterator[Case]:
    """Leading vectors, in full and by ARPACK."""
    for n in (50, 300):
        ball, spectraplex = sets.NuclearBall((n, n), 1.0), sets.Spectraplex(n)
        start = np.ones(n)
        if n <= 60:
            leading = lambda g, n=n: svd(g.reshape(n, n))  # noqa: E731
            smallest = lambda g, n=n: eigh(g.reshape(n, n), subset_by_index=[0, 0])  # noqa: E731
        else:
            leading = lambda g, n=n, v=start: svds(g.reshape(n, n), k=1, v0=v)  # noqa: E731
            smallest = lambda g, n=n, v=start: eigsh(  # noqa: E731
                g.reshape(n, n) + g.reshape(n, n).T, k=1, which="SA", v0=v
            )
        yield f"nuclear ball {n} x {n}, {ball.backend}", ball, leading
        yield f"spectraplex {n}, {spectraplex.backend}", spectraplex, smallest


def formulas() -> Iterator[Case]:
    """Sets whose minimiser is a line of NumPy."""
    n = 10_000
    yield "simplex 10,000", sets.Simplex(n), np.argmin
    yield "box 10,000", sets.Box(np.zeros(n), 1), lambda g: np.where(g < 0, 1.0, 0.0)
    yield "ball of norm 2, 10,000", sets.Ball(n, 2, 1.0), lambda g: g / np.linalg.norm(g)
    yield "subsets 100 of 10,000", sets.Subsets(n, 100), lambda g: np.argpartition(g, 99)[:100]
    groups = np.arange(n).reshape(100, 100).tolist()
    yield (
        "partition, 100 groups of 100",
        sets.Partition(groups, 5),
        lambda g: np.argpartition(g.reshape(100, 100), 4),
    )
    points = np.random.default_rng(0).standard_normal((1000, 100))
    yield "hull of 1000 points", sets.Hull(points), lambda g: np.argmin(points @ g)
    yield "matroid of 200 items", sets.Matroid(200, lambda chosen: len(chosen) <= 20), None
    yield "base polytope of 200 items", sets.BasePolytope(lambda s: len(s) ** 0.5, 200), None


FAMILIES = (assignments, knapsacks, cp_sat_models, matrices, formulas)
