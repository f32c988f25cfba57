"""The adversary at one decision: best replies, the price of transport, the worst distribution.

At the price l every sample k moves to where sup_zeta max_j a_j + <b_j, zeta> - l c(xi_k, zeta) is
attained: the best piece and its move. Values and costs of several maxima add up.

l -> l radius + mean_k sup_zeta f(zeta) - l c(xi_k, zeta) is convex with slope radius - mean cost
of the best replies. These costs jump where a sample changes its piece, mostly at the best price
itself. The search is therefore a bisection down to rounding, not the root finding of
`objectives.dual`, which is for costs that are continuous in l. It keeps the replies on both sides
of the jump. Mixed so that they spend the budget, they are the worst-case distribution, in which a
sample may split between two of its maximisers.

On a polyhedral support the adversary sends a share q_kj of sample k to where piece j is evaluated,
by q_kj times a move:

    max mean_k sum_j q_kj (a_j + <b_j, xi_k>) + <b_j, v_kj>
    s.t. sum_j q_kj = 1, q_kj >= 0, C (q_kj xi_k + v_kj) <= q_kj h,
         mean_k sum_j q_kj c(v_kj / q_kj) <= radius

(Mohajerin Esfahani and Kuhn, 2018, theorem 4.4). With a norm cost a share may vanish while its
move does not: then C v_kj <= 0, and a small mass goes along v_kj without end.

The answer of a solver is rounded. Only the moves are read off it, and projected into the support;
the shares are those that spend the budget at the best price of transport.
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
from wdro_model.objectives.exact.decomposition import Group, all_maxima
from wdro_model.objectives.exact.maxima import Maxima, NumericMaxima
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs.budgets import largest_gains, typical_price
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True)
class Tolerances:
    """Accuracies of the search for a worst-case distribution."""

    halvings: int = 200
    """Halvings of the bracket of the price, at most."""
    closed: float = 4e-16
    """Relative width of a bracket that is not halved any further: rounding."""
    same_atom: float = 1e-9
    """Relative distance of two atoms that are taken for one."""
    smallest_share: float = 1e-10
    """Shares below this are rounding errors of the solver: their moves have no digits left."""
    longer: float = 1.0001
    """Factor of moves that spend what rounding left of the budget."""
    lost_gain: float = 1e-7
    """Share of the gain of a move without end that a move which ends may lack. Smaller: longer
    moves, whose ends have too few digits to lie in a support."""
    shorter: tuple[float, ...] = (1.0, 1 / 8, 1 / 64, 1 / 512)
    """Lengths that are tried, where the end of a long move is outside by rounding."""
    turned: float = 1e-2
    """Sine of the angle by which rounding may turn a move without end out of the support."""
    outside: float = 1e-12
    """Distance by which a move may end outside of the support, relative to the slacks."""
    ray_outside: float = 1e-16
    """The same for moves without end."""
    deepest: float = 1e6
    """Units that a piece may be below the largest one; the unit is larger for deeper pieces."""
    solver: tuple[float, ...] = (1e-8, 1e-7, 1e-5)
    """Clarabel's tolerance, and those that are tried where it gets stuck."""


TOLERANCES = Tolerances()


@dataclass(frozen=True)
class BestReply:
    """The best move of each of n samples at one price."""

    values: Array
    """(n,)."""
    costs: Array
    """(n,)."""
    moves: Callable[[], Array]
    """Computes the moves, (n, d)."""


@dataclass(frozen=True)
class Adversary:
    """The best replies of some samples on some maxima."""

    index: Array | slice
    """The samples."""
    reply: Callable[[float], BestReply]
    """The best reply to a price."""
    rate: float
    """The largest dual norm of a slope."""
    still: float
    """The average of the maxima where nothing moves."""
    shares: SampleShares
    """Shares of the samples in averages over all of them."""


def make_adversary(
    model: RobustModel,
    maxima: Maxima,
    numbers: NumericMaxima,
    reply: Callable[[float], BestReply],
) -> Adversary:
    """The adversary on some maxima, given its replies."""
    shares = maxima.shares(model)
    return Adversary(
        slice(None) if maxima.index is None else maxima.index,
        reply,
        float(model.cost.dual_norms(numbers.steepest_slope(model.cost))),
        numbers.mean_of_largest(maxima.rows(model), shares),
        shares,
    )


def placed_moves(moves: Array, coordinates: Array, dimension: int) -> Array:
    """Moves (m, n, q) of coordinates (m, q) as moves of all coordinates, (n, d)."""
    full = np.zeros((moves.shape[1], dimension))
    full[:, coordinates.ravel()] = moves.swapaxes(0, 1).reshape(len(full), -1)
    return full


# ------------------------------------------------------------------ replies
def replies_everywhere(model: RobustModel, groups: tuple[Group, ...], x: Array) -> list[Adversary]:
    """The adversaries on R^d with a quadratic cost: the move b / (2 l) in its geometry."""
    return [_reply_everywhere(model, maxima, x) for maxima in all_maxima(groups)]


def _reply_everywhere(model: RobustModel, maxima: Maxima, x: Array) -> Adversary:
    numbers, rows, d = maxima.evaluate(model, x), maxima.rows(model), model.cost.dimension
    base = numbers.values(rows)
    full = model.cost.inverse_times(numbers.full_slopes(d))
    # The cost does not couple two of the maxima: the moves of one are a part of those of all.
    steepest = full[:, maxima.moving].swapaxes(0, 1)
    squares = np.sum(steepest * numbers.moving_slopes, axis=2)

    def reply(dual: float) -> BestReply:
        gains = base + squares[:, None] / (4 * dual)
        best = np.argmax(gains, axis=2)
        values = np.take_along_axis(gains, best[:, :, None], axis=2)[:, :, 0]
        costs = np.take_along_axis(squares / (4 * dual**2), best, axis=1)

        def moves() -> Array:
            chosen = np.take_along_axis(steepest / (2 * dual), best[:, :, None], axis=1)
            return placed_moves(chosen, maxima.moving, d)

        return BestReply(values.sum(axis=0), costs.sum(axis=0), moves)

    return make_adversary(model, maxima, numbers, reply)


def replies_on_box(
    model: RobustModel, groups: tuple[Group, ...], x: Array, longest: float = np.inf
) -> list[Adversary]:
    """The adversaries on a box with a separable cost; the moves of a norm are at most `longest`."""
    return [_reply_on_box(model, maxima, x, longest) for maxima in all_maxima(groups)]


def _reply_on_box(model: RobustModel, maxima: Maxima, x: Array, longest: float) -> Adversary:
    """Every coordinate moves on its own, and each sample takes its best piece.

    With the cost sum_i w_i |delta_i|^p: for p = 2 by b / (2 l w), clipped to the room; for p = 1 to
    the end of the room where |b| > l w. A price that does not pay for a move without end has
    infinite values and costs.
    """
    numbers, rows, d = maxima.evaluate(model, x), maxima.rows(model), model.cost.dimension
    base, slopes = numbers.values(rows), numbers.moving_slopes[:, None]
    squared = model.cost.is_quadratic
    weights = model.cost.coordinate_weights[maxima.moving][:, None, None]
    sides = room(model, rows, maxima.moving)
    down, up = (side.swapaxes(0, 1)[:, :, None] for side in sides)
    if not squared:
        down, up = np.maximum(down, -longest), np.minimum(up, longest)

    def best_moves(dual: float) -> Array:
        if squared:
            return np.clip(slopes / (2 * dual * weights), down, up)
        leaves = np.abs(slopes) > dual * weights
        return np.where(leaves, np.where(slopes > 0, up, down), 0.0)

    def reply(dual: float) -> BestReply:
        moves = best_moves(dual)
        costs = (weights * (np.square(moves) if squared else np.abs(moves))).sum(axis=3)
        with np.errstate(invalid="ignore"):
            gains = base + (moves * slopes).sum(axis=3) - dual * costs
        gains[np.isinf(costs)] = np.inf
        best = np.argmax(gains, axis=2)[:, :, None]
        values, spent = (
            np.take_along_axis(some, best, axis=2)[:, :, 0].sum(axis=0) for some in (gains, costs)
        )

        def full_moves() -> Array:
            own = np.take_along_axis(moves, best[..., None], axis=2)[:, :, 0]
            return placed_moves(own, maxima.moving, d)

        return BestReply(values, spent, full_moves)

    return make_adversary(model, maxima, numbers, reply)


def room(model: RobustModel, rows: Array, where: Array) -> tuple[Array, Array]:
    """The largest moves down (not positive) and up that a box leaves some coordinates, (n, ...)."""
    assert model.joint.bounds is not None
    lower, upper = (side[where] - rows[:, where] for side in model.joint.bounds)
    return np.minimum(lower, 0.0), np.maximum(upper, 0.0)


# ------------------------------------------------------------------ the price of transport
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
        """A distribution that attains the worst-case risk."""
        still = unmoved(model)
        left, right = (still.rows + self._moves(side, model) for side in (self.left, self.right))
        gap = self.left.cost - self.right.cost
        share = 1.0 if gap <= 0 else min(1.0, max(0.0, (model.radius - self.right.cost) / gap))
        rounding = TOLERANCES.same_atom * (1.0 + np.abs(left))
        close = np.all(np.abs(left - right) <= rounding, axis=1)
        split = ~close & (share > 0) & (share < 1)
        first = np.where(((share > 0) | close)[:, None], left, right)
        weights = np.where(split, share, 1.0) * still.weights
        return Extremal(
            np.vstack([first, right[split]]),
            np.concatenate([weights, (1.0 - share) * still.weights[split]]),
            np.concatenate([still.source, still.source[split]]),
            self.right.dual,
        )

    def _moves(self, side: PriceSide, model: RobustModel) -> Array:
        moves = np.zeros_like(model.rows)
        for adversary, reply in zip(self.adversaries, side.replies):
            moves[adversary.index] += reply.moves()
        return moves


def best_price(model: RobustModel, x: Array, adversaries: list[Adversary]) -> BestPrice:
    """The price of transport at which the replies to a decision spend the budget."""
    # The terms without data are the same at every price.
    certain = float(model.shares.total(model.loss.values(x, model.rows)))
    certain -= sum(adversary.still for adversary in adversaries)

    def side(dual: float) -> PriceSide:
        replies = tuple(adversary.reply(dual) for adversary in adversaries)
        pairs = list(zip(adversaries, replies))
        value = sum(float(a.shares.total(reply.values)) for a, reply in pairs)
        cost = sum(float(a.shares.total(reply.costs)) for a, reply in pairs)
        return PriceSide(dual, value + dual * model.radius + certain, cost, replies)

    def unspent(side: PriceSide) -> BestPrice:
        free = replace(side, dual=0.0)
        return BestPrice(free, free, tuple(adversaries))

    rate = max((adversary.rate for adversary in adversaries), default=0.0)
    if rate == 0:
        only = side(1.0)
        return unspent(replace(only, value=only.value - model.radius))
    start = typical_price(model.cost, rate, model.radius, model.joint)
    right = side(1.001 * start * max(1, len(adversaries)))
    while right.cost > model.radius:
        right = side(2 * right.dual)
    left = side(start)
    while left.cost <= model.radius and left.dual > 1e-12 * start:
        right, left = left, side(left.dual / 4)
    if left.cost <= model.radius:
        return unspent(left)
    for _ in range(TOLERANCES.halvings):
        if right.dual - left.dual <= TOLERANCES.closed * right.dual:
            break
        middle = side(0.5 * (left.dual + right.dual))
        if middle.dual in (left.dual, right.dual):
            break
        left, right = (middle, right) if middle.cost > model.radius else (left, middle)
    return BestPrice(left, right, tuple(adversaries))


# ------------------------------------------------------------------ polyhedral supports
def typical_size(model: RobustModel, groups: tuple[Group, ...], x: Array) -> float:
    """The size of the pieces at a decision: their spread over the samples, and what moves add.

    Pieces that are far below the others count by so much that a solver can still hold them.
    """
    size, width = 0.0, model.joint.width
    for maxima in all_maxima(groups):
        numbers = maxima.evaluate(model, x)
        values, slopes = (
            numbers.values(maxima.rows(model)),
            numbers.full_slopes(model.cost.dimension),
        )
        best = values.max(axis=2)
        gains = largest_gains(model.cost, slopes, model.radius, width)
        depth = float((best - values.min(axis=2)).max())
        size = max(size, float(np.ptp(best)), float(gains.max()), depth / TOLERANCES.deepest)
    return power_of_two(size)


def run_patiently(problem: cp.Problem) -> None:
    """Solve; where the solver gets stuck, linear programs by HiGHS, others to looser tolerances."""
    names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    tries = [Conic("CLARABEL", dict.fromkeys(names, tol)) for tol in TOLERANCES.solver]
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
    unit = typical_size(model, groups, x)
    parts = [
        _Transport(model, maxima, maxima.evaluate(model, x), unit)
        for maxima in all_maxima(groups)
        if maxima.moves.any()
    ]
    if not parts:
        return unmoved(model)
    budget = sum(part.cost for part in parts) / model.size <= model.radius
    gain = sum(part.gain for part in parts)
    problem = cp.Problem(
        cp.Maximize(gain / model.size), [budget, *(c for p in parts for c in p.constraints)]
    )
    run_patiently(problem)
    worst = best_price(model, x, [part.adversary() for part in parts]).extremal(model)
    return replace(worst, dual=unit * float(abs(budget.dual_value)) if worst.dual else 0.0)


class _Transport:
    """The shares and moves of some samples for one maximum."""

    def __init__(
        self, model: RobustModel, maxima: Maxima, numbers: NumericMaxima, unit: float
    ) -> None:
        """unit: the size of the loss, which is of order one in the program."""
        matrix, limits = polyhedron(model)
        self.model, self.maxima, self.numbers = model, maxima, numbers
        self.rows, self.moving = maxima.rows(model), maxima.moving[0]
        self.slopes, self.values = numbers.moving_slopes[0], numbers.values(self.rows)[0]
        count, pieces = self.values.shape
        self.slack = np.maximum(limits - (matrix @ self.rows.T).T, 0.0)
        self.support = np.asarray(matrix[:, self.moving].todense())
        self.price = model.cost.restricted(self.moving)
        self.shares = cp.Variable((count, pieces), nonneg=True)
        self.moves = [cp.Variable((count, len(self.moving))) for _ in range(pieces)]
        self.constraints: list[Any] = [cp.sum(self.shares, axis=1) == 1]
        # The number of samples of probability 1/N that each one stands for, N p_k.
        times = maxima.shares(model).multiple(np.ones(count))
        plain = times[:, None] * self.values / unit
        self.gain: Any = cp.sum(cp.multiply(plain, self.shares))
        self.cost: Any = 0.0
        for j, move in enumerate(self.moves):
            self.gain += times @ (move @ (self.slopes[j] / unit))
            share = cp.reshape(self.shares[:, j], (count, 1), order="C")
            if len(limits):
                allowed = cp.multiply(self.slack, share @ np.ones((1, len(limits))))
                self.constraints.append(move @ self.support.T <= allowed)
            # q c(v / q) is homogeneous in (v, q).
            scaled = cp.multiply(times[:, None] * np.ones((1, len(self.moving))), move)
            spent, more = self.price.perspective(scaled, cp.multiply(times, self.shares[:, j]))
            self.cost += spent
            self.constraints += more

    def adversary(self) -> Adversary:
        """The best of the moves that the solution shows, at each price."""
        still = np.zeros((len(self.rows), len(self.moving)))
        moves = np.array([still, *self._proposed_moves()])
        gains = (self.values + moves @ self.slopes.T).max(axis=2)
        for gain, move in zip(gains[1:], moves[1:]):
            gain[~self.model.joint.contains(self.rows + self._placed(move))] = -np.inf
        costs = np.array([self.price.of_displacements(move) for move in moves])
        each = np.arange(len(self.rows))

        def reply(dual: float) -> BestReply:
            best = np.argmax(gains - dual * costs, axis=0)
            cost = costs[best, each]
            return BestReply(
                gains[best, each] - dual * cost, cost, lambda: self._placed(moves[best, each])
            )

        return make_adversary(self.model, self.maxima, self.numbers, reply)

    def _placed(self, moves: Array) -> Array:
        """Moves (n, q) as moves of all coordinates, (n, d)."""
        return placed_moves(moves[None], self.moving[None], self.rows.shape[1])

    def _proposed_moves(self) -> list[Array]:
        """The moves (n, q) that the solution shows, some for each piece."""
        proposed = []
        for j, move in enumerate(self.moves):
            share = self.shares.value[:, j, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                delta = np.where(share > TOLERANCES.smallest_share, move.value / share, 0.0)
            for factor in (1.0, TOLERANCES.longer):
                proposed.append(self._projected(factor * delta, self.slack))
            if self.model.cost.is_norm:
                proposed += self._long_moves(j, move.value)
        return proposed

    def _long_moves(self, j: int, moves: Array) -> list[Array]:
        """Long moves of a vanishing share along rays of the support, for piece j.

        A move of cost t gains rate t - depth, the depth of the piece below the largest one.
        """
        sizes = np.linalg.norm(moves, axis=1, keepdims=True)
        rays = moves / np.where(sizes > 0, sizes, 1.0)
        rays *= np.all(rays @ self.support.T <= TOLERANCES.turned, axis=1)[:, None]
        rays = self._projected(rays, np.zeros_like(self.slack), TOLERANCES.ray_outside)
        costs = self.price.of_displacements(rays)
        rays /= np.where(costs > 0, costs, 1.0)[:, None]
        rates = rays @ self.slopes[j]
        depths = self.values.max(axis=1) - self.values[:, j]
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.where(rates > 0, depths / (TOLERANCES.lost_gain * rates), 0.0)
        whole = self.model.radius / self.maxima.shares(self.model).array
        return [np.maximum(part * far, whole)[:, None] * rays for part in TOLERANCES.shorter]

    def _projected(self, moves: Array, slack: Array, outside: float = TOLERANCES.outside) -> Array:
        """The moves, projected where rounding takes them too far out of the support."""
        moves = moves.copy()
        outside = outside * (1.0 + np.abs(slack).max(initial=0.0))
        for k in np.flatnonzero(np.any(moves @ self.support.T - slack > outside, axis=1)):
            moves[k] = project(moves[k], self.support, slack[k])
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
