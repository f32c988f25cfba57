"""The worst-case distribution on a polyhedral support, from the adversary's own convex program.

The adversary sends a share q_kj of sample k to where piece j is evaluated, by q_kj times a move:

    max mean_k sum_j q_kj (a_j + <b_j, xi_k>) + <b_j, v_kj>
    s.t. sum_j q_kj = 1, q_kj >= 0, C (q_kj xi_k + v_kj) <= q_kj h,
         mean_k sum_j q_kj c(v_kj / q_kj) <= radius

(Mohajerin Esfahani and Kuhn, 2018, theorem 4.4). With a norm cost a share may vanish while its
move does not: then C v_kj <= 0, and a small mass goes along v_kj without end.

The answer of a solver is rounded. Only the moves are read off it, and set right inside the
support; the shares are those that spend the budget at the best price of transport.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError
from scipy.optimize import nnls

from wdro_model.loss.expressions import power_of_two
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.best_replies import Adversary, BestReply
from wdro_model.objectives.exact.clusters import NumericCluster
from wdro_model.objectives.exact.counterpart import Extremal, unmoved
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.polyhedral_support import polyhedron
from wdro_model.objectives.exact.transport_price import best_price
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array

SMALLEST = 1e-10
"""Shares below this are rounding: their moves have no digits left."""
LONGER = 1.0001
"""The factor of moves that spend what rounding left of the budget."""
ENDLESS = 1e-7
"""Of the gain of a move without end, the share that a move which ends may lack. Smaller: longer
moves, whose ends have too few digits to lie in a support."""
SHORTER = (1.0, 1 / 8, 1 / 64, 1 / 512)
"""Lengths that are tried, where the end of a long move is outside by rounding."""
ASIDE = 1e-2
"""The sine of the angle by which rounding may turn a move without end out of the support."""
SWEEPS, CLOSE, EXACT = 100, 1e-12, 1e-16
"""Projections that set a move right; how far outside it may stay, and how far a ray."""
TOLERANCES = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
DEEPEST = 1e6
"""How many units a piece may be below the largest one."""
LOOSER = (1e-8, 1e-7, 1e-5)
"""The solver's own tolerance, and what is tried after it."""


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
    """Solve; where the solver gets stuck, linear programs by HiGHS, others to looser tolerances."""
    tries = [Conic("CLARABEL", dict.fromkeys(TOLERANCES, tolerance)) for tolerance in LOOSER]
    if problem.is_lp():
        tries.insert(1, Conic("HIGHS"))
    for conic in tries:
        try:
            conic.run(problem)
            return
        except SolverError:
            continue
    raise SolverError(
        "the adversary's problem at this decision could not be solved: its numbers are of too many "
        "sizes; measure the data, or its cost, in units in which they are of order one."
    )


def solve_adversary(model: RobustModel, groups: tuple[Group, ...], x: Array) -> Extremal:
    """Solve the adversary's program, and spend the budget on the moves that it shows."""
    unit = size_at(model, groups, x)
    parts = [
        _Transport(model, group, cluster.numeric(model, x), unit)
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
    found = best_price(model, x, [part.adversary() for part in parts]).extremal(model)
    return replace(found, dual=unit * float(abs(budget.dual_value)) if found.dual else 0.0)


class _Transport:
    """The shares and moves of a group of samples for one cluster of pieces."""

    def __init__(
        self, model: RobustModel, group: Group, cluster: NumericCluster, unit: float
    ) -> None:
        """unit: the size of the loss, which is of order one in the program."""
        matrix, limits = polyhedron(model)
        self.model, self.group, self.cluster = model, group, cluster
        self.rows, self.where = group.rows(model), cluster.moving
        count, pieces = len(self.rows), len(cluster.constants)
        slack = np.maximum(limits - (matrix @ self.rows.T).T, 0.0)
        numbers = cluster.over(unit)
        self.shares = cp.Variable((count, pieces), nonneg=True)
        self.moves = [cp.Variable((count, len(self.where))) for _ in range(pieces)]
        self.constraints: list[Any] = [cp.sum(self.shares, axis=1) == 1]
        # How many samples of probability 1/N each one stands for, N p_k.
        times = group.shares(model).multiple(np.ones(count))
        self.gain: Any = cp.sum(
            cp.multiply(times[:, None] * numbers.values(self.rows), self.shares)
        )
        self.cost: Any = 0.0
        inside = matrix[:, self.where]
        self.inside, self.slack = np.asarray(inside.todense()), slack
        self.price = model.cost.restricted(self.where)
        for j, move in enumerate(self.moves):
            self.gain += times @ (move @ numbers.slopes[j, self.where])
            share = cp.reshape(self.shares[:, j], (count, 1), order="C")
            if len(limits):
                allowed = cp.multiply(slack, share @ np.ones((1, len(limits))))
                self.constraints.append(move @ inside.T <= allowed)
            # q c(v / q) is homogeneous in (v, q).
            scaled = cp.multiply(times[:, None] * np.ones((1, len(self.where))), move)
            spent, more = self.price.perspective(scaled, cp.multiply(times, self.shares[:, j]))
            self.cost += spent
            self.constraints += more

    def adversary(self) -> Adversary:
        """The best of the moves that the solution shows, at each price."""
        moves = np.array([np.zeros((len(self.rows), len(self.where))), *self._places()])
        values = self.cluster.values(self.rows)
        pushed = moves @ self.cluster.slopes[:, self.where].T
        gains = (values + pushed).max(axis=2)
        gains[1:][~np.array([self._contains(move) for move in moves[1:]])] = -np.inf
        costs = np.array([self.price.of_displacements(move) for move in moves])
        each = np.arange(len(self.rows))

        def reply(dual: float) -> BestReply:
            best = np.argmax(gains - dual * costs, axis=0)
            cost = costs[best, each]
            return BestReply(
                gains[best, each] - dual * cost, cost, lambda: self._whole(moves[best, each])
            )

        rate = float(self.model.cost.dual_norms(self.cluster.moving_slopes).max())
        shares = self.group.shares(self.model)
        still = float(shares.total(values.max(axis=1)))
        return Adversary(self.group.index, reply, rate, still, shares)

    def _places(self) -> list[Array]:
        """Where the solution moves the samples: for each piece some moves (n, m)."""
        found = []
        for j, move in enumerate(self.moves):
            share = self.shares.value[:, j, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                delta = np.where(share > SMALLEST, move.value / share, 0.0)
            found += [self._inside(factor * delta, self.slack) for factor in (1.0, LONGER)]
            if self.model.cost.is_norm:
                found += self._without_end(j, move.value)
        return found

    def _without_end(self, j: int, moves: Array) -> list[Array]:
        """Long moves of a vanishing share along rays of the support, for piece j.

        A move of cost t gains rate t - depth, the depth of the piece below the largest one.
        """
        sizes = np.linalg.norm(moves, axis=1, keepdims=True)
        rays = moves / np.where(sizes > 0, sizes, 1.0)
        rays *= np.all(rays @ self.inside.T <= ASIDE, axis=1)[:, None]
        rays = self._inside(rays, np.zeros_like(self.slack), close=EXACT)
        costs = self.price.of_displacements(rays)
        rays /= np.where(costs > 0, costs, 1.0)[:, None]
        rates = rays @ self.cluster.slopes[j, self.where]
        values = self.cluster.values(self.rows)
        depths = values.max(axis=1) - values[:, j]
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.where(rates > 0, depths / (ENDLESS * rates), 0.0)
        whole = self.model.radius / self.group.shares(self.model).array
        return [np.maximum(part * far, whole)[:, None] * rays for part in SHORTER]

    def _whole(self, moves: Array) -> Array:
        """The moves as moves of all coordinates."""
        out = np.zeros_like(self.rows)
        out[:, self.where] = moves
        return out

    def _contains(self, moves: Array) -> Array:
        """Which of the samples are inside the support after these moves."""
        return self.model.joint.contains(self.rows + self._whole(moves))

    def _inside(self, moves: Array, slack: Array, close: float = CLOSE) -> Array:
        """The moves, projected where rounding takes them out of the support by more than `close`.

        First row by row of the support, the worst first; moves that this does not bring inside are
        projected exactly.
        """
        rows, moves = self.inside, moves.copy()
        if not len(rows):
            return moves
        lengths = np.maximum(np.einsum("ri,ri->r", rows, rows), 1e-300)
        close = close * (1.0 + np.abs(slack).max(initial=0.0))
        for _ in range(SWEEPS):
            excess = moves @ rows.T - slack
            worst = np.argmax(excess, axis=1)
            amount = np.take_along_axis(excess, worst[:, None], axis=1)[:, 0]
            if np.all(amount <= close):
                return moves
            moves -= (np.maximum(amount, 0.0) / lengths[worst])[:, None] * rows[worst]
        for k in np.flatnonzero(np.any(moves @ rows.T - slack > close, axis=1)):
            moves[k] = project(moves[k], rows, slack[k])
        return moves


def project(point: Array, rows: Array, limits: Array) -> Array:
    """The nearest point of {C y <= h}, which is not empty.

    The least u with C (point + u) <= h, by nonnegative least squares (Lawson and Hanson, ch. 23).
    """
    excess = rows @ point - limits
    size = float(excess.max())
    if size <= 0:
        return point
    program = np.vstack([-rows.T, excess / size])
    aim = np.append(np.zeros(len(point)), 1.0)
    residual = program @ nnls(program, aim)[0] - aim
    return point - size * residual[:-1] / residual[-1]
