"""The adversary at one decision: best replies, the price of transport, the worst distribution.

At the price l every sample k moves to where sup_zeta max_j a_j + <b_j, zeta> - l c(xi_k, zeta) is
attained: the best piece and its move. Clusters and lines have replies of their own, whose values
and costs add up.

l -> l radius + mean_k sup_zeta f(zeta) - l c(xi_k, zeta) is convex with slope radius - mean cost
of the best replies. These costs jump where a sample changes its piece, mostly at the best price
itself. The search is therefore a bisection down to rounding, not the root finding of
`objectives.dual`, which is for costs that are continuous in l, and it keeps the replies on both
sides of the jump: mixed so that they spend the budget, they are the worst-case distribution, in
which a sample may split between two of its maximisers.

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError
from scipy.optimize import nnls

from wdro_model.loss.expressions import power_of_two
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.counterpart import Extremal, polyhedron, unmoved
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.pieces import NumericCluster, NumericLines
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True)
class BestReply:
    """The best move of each of n samples at one price."""

    values: Array
    """(n,)."""
    costs: Array
    """(n,)."""
    moves: Callable[[], Array]
    """(n, d), computed when it is asked for."""


Reply = Callable[[float], BestReply]
"""The best reply to a price."""


@dataclass(frozen=True)
class Adversary:
    """The replies of the samples in `index` on one cluster, or on some lines."""

    index: Array
    reply: Reply
    rate: float
    """The largest dual norm of a slope."""
    still: float
    """The average of the largest piece where nothing moves."""
    shares: SampleShares
    """What the samples count in averages over all of them."""


# ------------------------------------------------------------------ the moves of coordinates
@dataclass(frozen=True)
class CoordinateMoves:
    """The best moves of some coordinates of n samples on their own, the cost sum_i w_i |delta_i|^p.

    p = 2: b / (2 l w), clipped to the room; p = 1: to its end where |b| > l w, else no move.
    """

    weights: Array
    """w, (m,)."""
    squared: bool
    """Is p = 2, not 1?"""
    down: Array | float
    """The room of each sample, (n, m), not positive."""
    up: Array | float
    """(n, m)."""

    @classmethod
    def everywhere(cls, model: RobustModel, where: Array) -> CoordinateMoves:
        """Squared cost on R^d, of coordinates that it does not couple with others."""
        return cls(model.cost.coordinate_scales[where] ** 2, True, -np.inf, np.inf)

    @classmethod
    def on_box(
        cls, model: RobustModel, where: Array, rows: Array, longest: float
    ) -> CoordinateMoves:
        """A separable cost on a box; the moves of a norm are at most the longest."""
        squared, (down, up) = model.cost.is_quadratic, room(model, where, rows)
        if not squared:
            down, up = np.maximum(down, -longest), np.minimum(up, longest)
        return cls(model.cost.coordinate_weights[where], squared, down, up)

    def at(self, dual: float, slopes: Array) -> Array:
        """The moves for slopes that have the coordinates as their last axis."""
        if self.squared:
            return np.clip(slopes / (2 * dual * self.weights), self.down, self.up)
        away = np.abs(slopes) > dual * self.weights
        return np.where(away, np.where(slopes > 0, self.up, self.down), 0.0)

    def unweighted(self, moves: Array) -> Array:
        """|delta_i|^p, which the weights make costs of."""
        return np.square(moves) if self.squared else np.abs(moves)


def room(model: RobustModel, where: Array, rows: Array) -> tuple[Array, Array]:
    """How far down (n, m), not positive, and up the samples may move in coordinates of a box."""
    assert model.joint.bounds is not None
    lower, upper = (side[where] for side in model.joint.bounds)
    data = rows[:, where]
    return np.minimum(lower - data, 0.0), np.maximum(upper - data, 0.0)


# ------------------------------------------------------------------ the replies
def replies_everywhere(model: RobustModel, groups: tuple[Group, ...], x: Array) -> list[Adversary]:
    """On R^d with a quadratic cost: the move b/(2 l) in the geometry of the cost."""
    return _replies(
        model,
        groups,
        x,
        lambda cluster, rows: _reply_everywhere(model, cluster, rows),
        lambda where, _rows: CoordinateMoves.everywhere(model, where),
    )


def replies_on_box(
    model: RobustModel, groups: tuple[Group, ...], x: Array, longest: float = np.inf
) -> list[Adversary]:
    """On a box with a separable cost: every coordinate on its own, by moves up to `longest`."""

    def moves(where: Array, rows: Array) -> CoordinateMoves:
        return CoordinateMoves.on_box(model, where, rows, longest)

    def reply(cluster: NumericCluster, rows: Array) -> Reply:
        return _reply_by_coordinates(moves(cluster.moving, rows), cluster, rows)

    return _replies(model, groups, x, reply, moves)


def _replies(
    model: RobustModel,
    groups: tuple[Group, ...],
    x: Array,
    on_cluster: Callable[[NumericCluster, Array], Reply],
    on_coordinates: Callable[[Array, Array], CoordinateMoves],
) -> list[Adversary]:
    found = []
    for group in groups:
        rows, shares = group.rows(model), group.shares(model)
        for cluster in group.clusters:
            numbers = cluster.numeric(model, x)
            rate = float(model.cost.dual_norms(numbers.moving_slopes).max())
            still = float(shares.total(numbers.values(rows).max(axis=1)))
            found.append(Adversary(group.index, on_cluster(numbers, rows), rate, still, shares))
        for lines in group.lines:
            on_lines = lines.numeric(model, x)
            steepest = np.zeros(model.cost.dimension)
            steepest[lines.where] = np.abs(on_lines.slopes).max(axis=0)
            rate = float(model.cost.dual_norms(steepest))
            still = float(shares.total(on_lines.values(rows).max(axis=0).sum(axis=1)))
            reply = _reply_on_lines(on_coordinates(lines.where, rows), on_lines, rows)
            found.append(Adversary(group.index, reply, rate, still, shares))
    return found


def _reply_everywhere(model: RobustModel, cluster: NumericCluster, rows: Array) -> Reply:
    cost, slopes = model.cost, cluster.moving_slopes
    base = cluster.values(rows)
    squares, steepest = cost.dual_norms(slopes) ** 2, cost.inverse_times(slopes)

    def reply(dual: float) -> BestReply:
        gains = base + squares / (4 * dual)
        best = np.argmax(gains, axis=1)
        values = np.take_along_axis(gains, best[:, None], axis=1)[:, 0]
        costs = (squares / (4 * dual**2))[best]
        return BestReply(values, costs, lambda: steepest[best] / (2 * dual))

    return reply


def _reply_by_coordinates(moves: CoordinateMoves, cluster: NumericCluster, rows: Array) -> Reply:
    """The coordinates of each piece move on their own; the best piece is that of the sample.

    A price that does not pay for a move without end has infinite values and costs.
    """
    base, some = cluster.values(rows), np.arange(len(rows))
    slopes = cluster.slopes[:, cluster.moving]

    def reply(dual: float) -> BestReply:
        found = [moves.at(dual, slope) for slope in slopes]
        costs = np.column_stack([moves.unweighted(delta) @ moves.weights for delta in found])
        pushed = [(delta * slope).sum(axis=1) for delta, slope in zip(found, slopes)]
        with np.errstate(invalid="ignore"):
            gains = base + np.column_stack(pushed) - dual * costs
        gains[np.isinf(costs)] = np.inf
        best = np.argmax(gains, axis=1)

        def full() -> Array:
            out = np.zeros_like(rows)
            out[:, cluster.moving] = np.array(found)[best, some]
            return out

        return BestReply(gains[some, best], costs[some, best], full)

    return reply


def _reply_on_lines(moves: CoordinateMoves, lines: NumericLines, rows: Array) -> Reply:
    """On each line the best piece is found on its own; values and costs add up over the lines."""
    base, slopes = lines.values(rows), lines.slopes[:, None]

    def reply(dual: float) -> BestReply:
        found = moves.at(dual, slopes)
        costs = moves.weights * moves.unweighted(found)
        with np.errstate(invalid="ignore"):
            gains = base + slopes * found - dual * costs
        gains = np.where(np.isinf(costs), np.inf, gains)
        best = np.argmax(gains, axis=0)[None]

        def chosen(some: Array) -> Array:
            return np.take_along_axis(np.broadcast_to(some, base.shape), best, axis=0)[0]

        def full() -> Array:
            out = np.zeros_like(rows)
            out[:, lines.where] = chosen(found)
            return out

        return BestReply(chosen(gains).sum(axis=1), chosen(costs).sum(axis=1), full)

    return reply


# ------------------------------
# The price of transport at which the adversary spends the budget, and the worst distribution


ROUNDS = 200
CLOSED = 4e-16


@dataclass(frozen=True)
class PriceSide:
    """All replies at one price."""

    dual: float
    value: float
    """The dual objective, an upper bound on the worst-case risk."""
    cost: float
    replies: tuple[BestReply, ...]


@dataclass(frozen=True)
class BestPrice:
    """The two sides of the best price; equal where the radius does not bind."""

    left: PriceSide
    """Cost at least the radius, unless the radius does not bind."""
    right: PriceSide
    adversaries: tuple[Adversary, ...]

    @property
    def value(self) -> float:
        """The worst-case risk."""
        return min(self.left.value, self.right.value)

    def extremal(self, model: RobustModel) -> Extremal:
        """A distribution that attains it."""
        still = unmoved(model)
        left, right = (
            still.rows + self._moves(side, still.rows) for side in (self.left, self.right)
        )
        gap = self.left.cost - self.right.cost
        share = 1.0 if gap <= 0 else min(1.0, max(0.0, (model.radius - self.right.cost) / gap))
        close = np.all(np.abs(left - right) <= 1e-9 * (1.0 + np.abs(left)), axis=1)
        split = ~close & (share > 0) & (share < 1)
        first = np.where(((share > 0) | close)[:, None], left, right)
        weights = np.where(split, share, 1.0) * still.weights
        return Extremal(
            np.vstack([first, right[split]]),
            np.concatenate([weights, (1.0 - share) * still.weights[split]]),
            np.concatenate([still.source, still.source[split]]),
            self.right.dual,
        )

    def _moves(self, side: PriceSide, rows: Array) -> Array:
        moves = np.zeros_like(rows)
        for adversary, reply in zip(self.adversaries, side.replies):
            moves[adversary.index] += reply.moves()
        return moves


def best_price(model: RobustModel, x: Array, adversaries: list[Adversary]) -> BestPrice:
    """The price of transport at which the replies to a decision spend the budget."""
    # What the pieces do not hold, the terms without data, is the same at every price.
    certain = float(model.shares.total(model.loss.values(x, model.rows)))
    certain -= sum(adversary.still for adversary in adversaries)

    def side(dual: float) -> PriceSide:
        replies = tuple(adversary.reply(dual) for adversary in adversaries)
        cost, value = (
            sum(float(own.shares.total(part)) for own, part in zip(adversaries, parts))
            for parts in zip(*((reply.costs, reply.values) for reply in replies))
        )
        return PriceSide(dual, value + dual * model.radius + certain, cost, replies)

    rate = max((adversary.rate for adversary in adversaries), default=0.0)
    if rate == 0:
        only = side(1.0)
        return _slack(replace(only, value=only.value - model.radius), adversaries)
    start = model.cost.typical_price(rate, model.radius, model.joint)
    right = side(1.001 * start * max(1, len(adversaries)))
    while right.cost > model.radius:
        right = side(2 * right.dual)
    left = side(start)
    while left.cost <= model.radius and left.dual > 1e-12 * start:
        right, left = left, side(left.dual / 4)
    if left.cost <= model.radius:
        return _slack(left, adversaries)
    for _ in range(ROUNDS):
        if right.dual - left.dual <= CLOSED * right.dual:
            break
        middle = side(0.5 * (left.dual + right.dual))
        if middle.dual in (left.dual, right.dual):
            break
        left, right = (middle, right) if middle.cost > model.radius else (left, middle)
    return BestPrice(left, right, tuple(adversaries))


def _slack(side: PriceSide, adversaries: list[Adversary]) -> BestPrice:
    """A budget that is not spent: the price is zero."""
    free = replace(side, dual=0.0)
    return BestPrice(free, free, tuple(adversaries))


# ------------------------------
# The worst-case distribution on a polyhedral support, from the adversary's own convex program


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
