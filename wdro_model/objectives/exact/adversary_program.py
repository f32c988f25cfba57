"""The worst-case distribution on a polyhedral support, from the adversary's own convex program.

The adversary sends a share q_kj of sample k to where piece j is evaluated, by q_kj times a move:

    max mean_k sum_j q_kj (a_j + <b_j, xi_k>) + <b_j, v_kj>
    s.t. sum_j q_kj = 1, q_kj >= 0, C (q_kj xi_k + v_kj) <= q_kj h,
         mean_k sum_j q_kj c(v_kj / q_kj) <= radius.

With a norm cost the supremum may need moves without end for shares that vanish: moves are then
held below a long reach.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError

from wdro_model.loss.expressions import power_of_two
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.clusters import NumericCluster
from wdro_model.objectives.exact.counterpart import Extremal, unmoved
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.polyhedral_support import polyhedron
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array

SMALLEST = 1e-7
"""Shares below this are rounding."""
LONG, FARTHER = 30.0, 1e4
"""Moves that cost so many times the radius escape, and how much farther they go."""
HALVINGS = 60
SLIGHT, ASIDE = 1e-6, 1e-2
"""The share of a move that counts as rounding, and as a step aside on a long way."""
SWEEPS, CLOSE = 100, 1e-12
"""Projections that set a move right, and how far outside it may stay."""
TOLERANCES = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
DEEPEST = 1e6
"""How many units a piece may be below the largest one."""
LOOSER = (1e-8, 1e-7, 1e-5)
"""The solver's own tolerance, and what is tried after it."""


def reach(model: RobustModel, factor: float) -> float:
    """A length that is large beside the radius and the spread of the data."""
    spread = float(np.ptp(model.rows, axis=0).max(initial=0.0))
    shortest = float(model.cost.coordinate_scales.min())
    share = float(model.shares.array.max())
    return factor * max(1.0, spread, model.radius / (share * shortest))


def size_at(model: RobustModel, groups: tuple[Group, ...], x: Array) -> float:
    """The size of the pieces at a decision: their spread over the samples, and what moves add.

    Pieces that are far below the others count by so much that a solver can still hold them.
    """
    found = 0.0
    width = model.joint.width
    for group in groups:
        rows = group.rows(model)
        for cluster in group.clusters:
            numbers = cluster.numeric(model, x)
            values = numbers.values(rows)
            best = values.max(axis=1)
            gains = model.cost.largest_gains(numbers.moving_slopes, model.radius, width)
            depth = float((best - values.min(axis=1)).max())
            found = max(found, float(np.ptp(best)), float(gains.max()), depth / DEEPEST)
    return power_of_two(found)


def run_patiently(problem: cp.Problem) -> None:
    """Solve; with looser tolerances where the solver gets stuck on its way to the usual ones."""
    for tolerance in LOOSER:
        try:
            Conic("CLARABEL", dict.fromkeys(TOLERANCES, tolerance)).run(problem)
            return
        except SolverError:
            continue
    raise SolverError(
        "the adversary's problem at this decision could not be solved: its numbers are of too many "
        "sizes; measure the data, or its cost, in units in which they are of order one."
    )


def solve_adversary(model: RobustModel, groups: tuple[Group, ...], x: Array) -> Extremal:
    """Solve the adversary's program and read its atoms."""
    unit = size_at(model, groups, x)
    parts = [
        _Transport(model, group, cluster.numeric(model, x).over(unit))
        for group in groups
        for cluster in group.clusters
        if len(cluster.moving)
    ]
    if not parts:
        return unmoved(model)
    budget = sum(part.cost for part in parts) / len(model.rows) <= model.radius
    gain = sum(part.gain for part in parts)
    problem = cp.Problem(
        cp.Maximize(gain / len(model.rows)), [budget, *(c for p in parts for c in p.constraints)]
    )
    run_patiently(problem)
    moved = [part.shares_and_moves() for part in parts]
    rows, weights, source = [], [], []
    for k, row in enumerate(model.rows):
        own = [found[k] for found in moved if k in found]
        shares, moves = coupled(own, model.rows.shape[1])
        rows.append(row + moves)
        weights.append(shares * model.shares.array[k])
        source.append(np.full(len(shares), k))
    found = Extremal(
        np.concatenate(rows),
        np.concatenate(weights),
        np.concatenate(source),
        unit * float(abs(budget.dual_value)),
    )
    return lengthened(model, spending(model, escaping(model, found)))


def lengthened(model: RobustModel, found: Extremal) -> Extremal:
    """What rounding left of the budget, spent on longer moves where the support has room."""
    origins = model.rows[found.source]
    spent = float(found.weights @ model.cost(origins, found.rows))
    if not 0 < spent < model.radius:
        return found
    longer = model.cost.distance(model.radius / spent) * (found.rows - origins)
    inside = model.joint.contains(origins + longer)
    return replace(found, rows=np.where(inside[:, None], origins + longer, found.rows))


def spending(model: RobustModel, found: Extremal) -> Extremal:
    """The shares of the atoms that move, such that they spend the budget in spite of rounding.

    The shares of all samples change by one factor, where a sample has as much to give.
    """
    size, own = len(model.rows), model.shares.array
    spent = found.weights * model.cost(model.rows[found.source], found.rows)
    moved = spent > SLIGHT * spent.sum()
    if not moved.any():
        return found
    away, costs = (
        np.bincount(found.source[moved], some[moved], minlength=size)
        for some in (found.weights, spent)
    )
    room = np.divide(own, away, out=np.zeros(size), where=away > 0)
    low, high = 0.0, float(room.max())
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        small = np.minimum(middle, room) @ costs <= model.radius
        low, high = (middle, high) if small else (low, middle)
    weights = np.minimum(low, room)[found.source] * found.weights
    rest = own - np.bincount(found.source[moved], weights[moved], minlength=size)
    at_home = np.flatnonzero(rest > CLOSE * own)
    return Extremal(
        np.concatenate([found.rows[moved], model.rows[at_home]]),
        np.concatenate([weights[moved], rest[at_home]]),
        np.concatenate([found.source[moved], at_home]),
        found.dual,
    )


def escaping(model: RobustModel, found: Extremal) -> Extremal:
    """Atoms far away, a smaller share of them still farther where the support lets them go.

    The loss is convex in the data: a share p at xi + delta is worth no more than a share p / t at
    xi + t delta, the rest staying at xi, for the same cost if the cost is a norm.
    """
    support = polyhedron(model)
    origins = model.rows[found.source]
    moves = found.rows - origins
    costs = model.cost(origins, found.rows)
    along = _along_the_support(moves, np.asarray(support[0].todense()))
    farther = origins + (moves - along) + FARTHER * along
    endless = np.all(along @ support[0].T <= 0.0, axis=1) & model.joint.contains(farther)
    gone = (costs > LONG * model.radius) & endless
    if not model.cost.is_norm or not gone.any():
        return found
    weights = np.where(gone, found.weights / FARTHER, found.weights)
    return Extremal(
        np.concatenate([np.where(gone[:, None], farther, found.rows), origins[gone]]),
        np.concatenate([weights, (found.weights - weights)[gone]]),
        np.concatenate([found.source, found.source[gone]]),
        found.dual,
    )


def _along_the_support(moves: Array, rows: Array) -> Array:
    """The moves without their small steps towards sides of the support that they run along."""
    lengths = np.maximum(np.einsum("ri,ri->r", rows, rows), 1e-300)
    sizes = np.linalg.norm(moves, axis=1)
    moves = moves.copy()
    for row, length in zip(rows, lengths):
        across = moves @ row
        slight = (across > 0) & (across <= ASIDE * np.sqrt(length) * sizes)
        moves[slight] -= np.outer((across[slight] + CLOSE * sizes[slight]) / length, row)
    return moves


def coupled(parts: list[tuple[Array, Array]], dimension: int) -> tuple[Array, Array]:
    """Moves of separate coordinates as moves of all of them: (shares (K,), moves (K, d)).

    Each part is (shares, moves) with shares that add up to one; the cost of the moves adds up
    over the coordinates, so that any coupling of them is as good as another.
    """
    ends = [np.cumsum(shares) / shares.sum() for shares, _ in parts]
    marks = np.unique(np.concatenate([np.array([1.0]), *ends]))
    marks = marks[(marks > 0) & (marks <= 1)]
    shares = np.diff(marks, prepend=0.0)
    keep = shares > 1e-12
    marks, shares = marks[keep], shares[keep]
    moves = np.zeros((len(marks), dimension))
    for (_, own), end in zip(parts, ends):
        moves += own[np.minimum(np.searchsorted(end, marks - 1e-13), len(own) - 1)]
    return shares / shares.sum(), moves


class _Transport:
    """The shares and moves of a group of samples for one cluster of pieces."""

    def __init__(self, model: RobustModel, group: Group, cluster: NumericCluster) -> None:
        matrix, limits = polyhedron(model)
        self.index, self.where = group.index, cluster.moving
        self.rows = group.rows(model)
        count, pieces = len(self.rows), len(cluster.constants)
        slack = limits - (matrix @ self.rows.T).T
        values = cluster.values(self.rows)
        self.shares = cp.Variable((count, pieces), nonneg=True)
        self.moves = [cp.Variable((count, len(self.where))) for _ in range(pieces)]
        self.constraints: list[Any] = [cp.sum(self.shares, axis=1) == 1]
        # How many samples of probability 1/N each one stands for, N p_k.
        times = group.shares(model).multiple(np.ones(count))
        self.gain: Any = cp.sum(cp.multiply(times[:, None] * values, self.shares))
        self.cost: Any = 0.0
        self.inside = inside = matrix[:, self.where]
        self.slack = np.maximum(slack, 0.0)
        cost = model.cost.restricted(self.where)
        for j, move in enumerate(self.moves):
            share = cp.reshape(self.shares[:, j], (count, 1), order="C")
            self.gain += times @ (move @ cluster.slopes[j, self.where])
            if len(limits):
                allowed = cp.multiply(slack, share @ np.ones((1, len(limits))))
                self.constraints.append(move @ inside.T <= allowed)
            if model.cost.is_norm:
                far = cp.multiply(reach(model, 1e3), share @ np.ones((1, len(self.where))))
                self.constraints += [move <= far, -move <= far]
            # q c(v / q) is homogeneous in (v, q).
            scaled = cp.multiply(times[:, None] * np.ones((1, len(self.where))), move)
            spent, more = cost.perspective(scaled, cp.multiply(times, self.shares[:, j]))
            self.cost += spent
            self.constraints += more

    def shares_and_moves(self) -> dict[int, tuple[Array, Array]]:
        """For each sample of the group, the shares and moves (J, d) of its pieces."""
        shares = np.maximum(self.shares.value, 0.0)
        shares[shares < SMALLEST] = 0.0
        moves = np.zeros((len(self.moves), *self.rows.shape))
        for j, move in enumerate(self.moves):
            with np.errstate(divide="ignore", invalid="ignore"):
                delta = np.where(shares[:, j, None] > 0, move.value / shares[:, j, None], 0.0)
            moves[j][:, self.where] = self.inside_support(delta, self.slack)
        found = {}
        for i, k in enumerate(self.index):
            used = shares[i] > 0
            found[int(k)] = (shares[i, used], moves[used, i])
        return found

    def inside_support(self, delta: Array, slack: Array) -> Array:
        """The moves, set right where rounding takes them out of the support.

        Row by row of the support, the worst first, a move is projected onto it; what is left after
        that is shortened.
        """
        if not slack.shape[1]:
            return delta
        rows, delta = np.asarray(self.inside.todense()), delta.copy()
        lengths = np.maximum(np.einsum("ri,ri->r", rows, rows), 1e-300)
        size = 1.0 + np.abs(self.slack).max(initial=0.0)
        for _ in range(SWEEPS):
            excess = delta @ rows.T - slack
            worst = np.argmax(excess, axis=1)
            amount = np.take_along_axis(excess, worst[:, None], axis=1)[:, 0]
            if np.all(amount <= CLOSE * size):
                return delta
            delta -= (np.maximum(amount, 0.0) / lengths[worst])[:, None] * rows[worst]
        used = delta @ rows.T
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(used - slack > CLOSE * size, slack / used, 1.0)
        return delta * ratios.min(axis=1)[:, None]
