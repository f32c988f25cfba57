"""Directions of a robust solve towards the equilibrium of costs that match the gradient."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.optimize import brentq

from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.directions import Conjugate, DirectionState, Move
from wdro_model.solvers.directions.conjugate import GradientAt
from wdro_model.solvers.directions.projected_newton import SEPARATE
from wdro_model.traffic.bushes.state import Bushes, PowerCosts, Roads
from wdro_model.traffic.flows.paths import PathFlows
from wdro_model.traffic.flows.road_graph import Trips

Array = np.ndarray

POWER = 4.0
"""That of the model, unless the gradient grows faster."""
SMALL = 0.01
"""Flows below this share of the largest tell little of how their cost will grow."""
CLOSER = 0.1
"""The relative gap of an equilibrium, as a part of that of the flows it starts from."""
SWEEPS = 8
STEEPEST = 30.0
SHORT, SHORT_STEPS = 0.05, 3
"""After so many steps in a row that go less than this part of the way, conjugate directions take
over."""
REPLIES, ENOUGH = 4, 0.05
"""Equilibria on the way to that with the adversary's reply: at most so many, and none that promises
less than this part of what the first did."""
DIFFERENCE, CLOSE_BY = 1e-5, 1e-8
"""The share of a flow over which gradients are compared; the adversary's reply to more than the
second may be far from linear, where a sample is torn between two modes."""
MOVED = 1e-3
"""Flows that changed by this share tell the slope of their cost anew."""
TRUST = 4.0
"""By this factor at most: the flows of other arcs have changed as well."""
MOST = 2.0
"""By this factor at most costs are expected to differ from those of the last solve."""
EXPECTED = 1e-4
"""The relative gap of an equilibrium to begin with."""
MOST_KEPT = 2**20
"""Bushes with more entries (12 MB) are not kept from one solve to the next."""


@dataclass
class Lesson:
    """What a run over a set has learnt."""

    model: CostModel | None = None
    """Of the costs that its gradients look like."""
    bushes: Bushes | None = None
    """Those of the last equilibrium; None before there is one."""
    separate: bool | None = None
    """Is the objective a sum over the arcs, the adversary held? None before that was looked at."""

    def continued(self, trips: Any) -> Lesson:
        """For a solve that goes on from here: with its own bushes, if these are of its trips."""
        if self.bushes is None or self.bushes.roads.trips is not trips:
            return Lesson(self.model)
        return Lesson(self.model, self.bushes.copy())

    def equilibrium(self, trips: Any, model: CostModel, gap: float) -> Array:
        """That of the costs of a model, on the bushes of the last one; up to a relative gap."""
        if (bushes := self.bushes) is None:
            self.bushes = bushes = Bushes(Roads(trips), model.costs())
            bushes.plant(model.gradient, check_deadline)
        else:
            bushes.reprice(model.costs())
        for _ in range(SWEEPS):
            found = bushes.improve(check_deadline)
            if found <= gap:
                break
            bushes.balance(found, check_deadline)
        return bushes.link_flows


class Learnt(threading.local):
    """What the last run over a set has learnt, for the next run of the same solve."""

    def __init__(self) -> None:
        self.by_set: WeakKeyDictionary[Any, Lesson] = WeakKeyDictionary()


LEARNT = Learnt()


def forget(flows: Any) -> None:
    """A new solve begins: it is to find what it would have found without those before."""
    LEARNT.by_set.pop(flows, None)


class TowardsEquilibrium:
    """The aim of a step is the equilibrium of separable costs that match the gradient at x.

    The cost of an arc is c + w X^p, the gradient of the objective at x, and nearly so where the
    last step came from: with p = 4, or c = 0 and a larger p where the gradient grows faster than
    that. The slopes at first are those of the loss where the objective tells them, else they are
    learnt from a plain step.
    For the sum of convex functions of one flow each this is Newton's method on the constraints of
    the flows; for others, such as the smoothed worst case, a search along the line makes up for
    what the model does not know.
    """

    needs_line_search = True

    def __init__(self, flows: Any) -> None:
        self.flows = flows

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        lesson = LEARNT.by_set.setdefault(self.flows, Lesson())
        return _Equilibria(self.flows, x, gradient_at, lesson)

    def findings(self) -> Lesson | None:
        """What the last run over the set has learnt."""
        lesson = LEARNT.by_set.get(self.flows)
        if lesson is None or lesson.model is None:
            return None
        many = lesson.bushes is not None and lesson.bushes.entries_held > MOST_KEPT
        return replace(lesson, bushes=None) if many else lesson

    def costs_at(self, x: Array, gradient_at: GradientAt) -> Lesson:
        """The costs of an objective that is a sum over the arcs, at flows x."""
        gradient = gradient_at(x)
        return Lesson(CostModel.with_slopes(x, gradient, slopes_at(x, gradient, gradient_at)))

    def begin_with(self, known: list[tuple[Any, float]]) -> Array | None:
        """Begin with the costs that other solves ended with, the last one first.

        known: their findings, and their weights in what is expected now. Returned is the
            equilibrium of these costs, a place to begin; None where too little is known for that.
        """
        models = [(self._model(lesson), weight) for lesson, weight in known]
        last = models[0][0]
        if last is None:
            return None
        lesson = LEARNT.by_set[self.flows] = known[0][0].continued(self.flows.trips)
        costs = [(model.at(last.x), weight) for model, weight in models if model is not None]
        if len(costs) == 1 or len(costs) < len(known):
            return None
        lesson.model = last.expected(costs)
        return lesson.equilibrium(self.flows.trips, lesson.model, EXPECTED)

    def _model(self, lesson: Any) -> CostModel | None:
        """The costs of a lesson about such flows; None for another."""
        model = lesson.model if isinstance(lesson, Lesson) else None
        return model if model is not None and model.x.shape == (self.flows.dimension,) else None

    def __str__(self) -> str:
        return "equilibrium"

    def __repr__(self) -> str:
        return f"TowardsEquilibrium({self.flows!r})"


class _Equilibria:
    def __init__(self, flows: Any, x: Array, gradient_at: GradientAt, lesson: Lesson) -> None:
        self.trips, self.learnt = flows.trips, lesson
        self.last: tuple[Array, Array] | None = None
        """The flows before, and the gradient there."""
        self.conjugate = Conjugate(memory=2).start(x, gradient_at)
        self.short = 0
        """Steps in a row that were short."""
        self.held: GradientAt | None = None
        """Gradients at other flows, the adversary being that of x; None where not known."""
        self.replied: GradientAt | None = None
        """Gradients at flows close to x, to which the adversary replies; None where not known."""

    @property
    def misled(self) -> bool:
        """Has the model been no guide?"""
        return self.short >= SHORT_STEPS

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        if self.misled:
            return self.conjugate.propose(x, gradient, vertex, gap)
        last, self.last = self.last, (x, gradient)
        model = self._model(x, gradient, last)
        if model is None:
            return self.retreat(x, vertex)
        self.learnt.model, spent = model, float(gradient @ x)
        aim = self._aim(model, CLOSER * gap / spent if spent else 0.0)
        if not gradient @ (aim - x) < 0.0:
            return self.retreat(x, vertex)
        return Move(aim - x, suggested=1.0)

    def _aim(self, model: CostModel, gap: float) -> Array:
        """The equilibrium of the model, and of the adversary's reply to first order where known.

        The reply adds R (X - x) to the costs, R being positive and not diagonal: the equilibrium
        is approached by those of separable costs, each with a search along the line.
        """
        found, reply, first = model, np.zeros(model.x.shape), 0.0
        for _ in range(REPLIES):
            move = self.learnt.equilibrium(self.trips, found, gap) - found.x
            if self.replied is None or not self.learnt.separate:
                return found.x + move
            promised = -float(found.gradient @ move)
            if not promised > ENOUGH * first:
                break
            more = self._reply(model, move)
            if not np.isfinite(more).all():
                return found.x + move
            step = least_along(model, found.x, move, reply, more)
            y, reply, first = found.x + step * move, reply + step * more, first or promised
            found = CostModel.with_slopes(y, model.at(y) + reply, model.slopes(y))
        return found.x

    def _reply(self, model: CostModel, move: Array) -> Array:
        """How a move changes costs through the adversary alone."""
        assert self.replied is not None
        step = CLOSE_BY * float(np.linalg.norm(model.x)) / float(np.linalg.norm(move))
        there = np.maximum(model.x + step * move, 0.0)
        return (self.replied(there) - model.at(there)) / step

    def retreat(self, x: Array, vertex: Array) -> Move:
        return self.conjugate.retreat(x, vertex)

    def accept(self, step: float) -> Array | None:
        if self.misled:
            return self.conjugate.accept(step)
        self.short = self.short + 1 if step < SHORT else 0
        return None

    def _model(
        self, x: Array, gradient: Array, last: tuple[Array, Array] | None
    ) -> CostModel | None:
        """Costs that look like the gradient; None as long as nothing is known of their growth."""
        model = self.learnt.model
        if self.held is not None and (self._is_separate(x, gradient, self.held) or model is None):
            return CostModel.with_slopes(x, gradient, slopes_at(x, gradient, self.held))
        if model is not None:
            return model.rescaled(x, gradient) if last is None else model.moved(x, gradient)
        return None if last is None else CostModel.between(*last, x, gradient)

    def _is_separate(self, x: Array, gradient: Array, held: GradientAt) -> bool:
        """Is the objective a sum over the arcs? Then other steps tell the same slopes."""
        if self.learnt.separate is None:
            parts = np.where(np.arange(x.size) % 2, 0.5, 1.5)
            found = slopes_at(x, gradient, held)
            apart = np.abs(slopes_at(x, gradient, held, parts) - found)
            self.learnt.separate = bool(apart.max() <= SEPARATE * np.abs(found).max())
        return self.learnt.separate


def slopes_at(
    x: Array, gradient: Array, gradient_at: GradientAt, parts: Array | float = 1.0
) -> Array:
    """How the gradient grows with each flow, the others staying, for a sum over the arcs."""
    step = parts * DIFFERENCE * (x + (x.mean() or 1.0))
    return (gradient_at(x + step) - gradient) / step


def least_along(model: CostModel, y: Array, move: Array, reply: Array, more: Array) -> float:
    """The best part of a move from y: reply and more are added to the costs at y and on the way."""

    def slope(step: float) -> float:
        return float((model.at(y + step * move) + reply + step * more) @ move)

    return 1.0 if slope(1.0) <= 0.0 else float(brentq(slope, 0.0, 1.0, xtol=1e-3))


@dataclass(frozen=True)
class CostModel:
    """Costs c + w (X/s)^p of the arcs that equal the gradient at x."""

    x: Array
    gradient: Array
    scale: Array
    weight: Array
    power: Array

    @classmethod
    def between(cls, before: Array, at_before: Array, x: Array, gradient: Array) -> CostModel:
        """The model at x of costs that were others before; p = 4.

        Where nothing has changed, they grow with the flow like those of most other arcs.
        """
        scale = np.maximum(np.maximum(x, before), SMALL * max(float(x.max(initial=0.0)), 1e-300))
        apart = (x / scale) ** POWER - (before / scale) ** POWER
        far = np.abs(x - before) > MOVED * scale
        weight = np.where(far, (gradient - at_before) / np.where(far, apart, 1.0), 0.0)
        known = far & (weight > 0) & (gradient > 0)
        share = weight[known] * (x[known] / scale[known]) ** POWER / gradient[known]
        usual = float(np.median(share)) if share.size else 0.25
        weight = np.where(far, np.maximum(weight, 0.0), usual * gradient)
        return cls(x, gradient, scale, weight, np.full(x.size, POWER)).nonnegative()

    @classmethod
    def with_slopes(cls, x: Array, gradient: Array, slopes: Array) -> CostModel:
        """The model at x of costs that grow with these slopes; p = 4."""
        scale = np.maximum(x, SMALL * max(float(x.max(initial=0.0)), 1e-300))
        weight = np.maximum(slopes, 0.0) * scale / POWER
        return cls(x, gradient, scale, weight, np.full(x.size, POWER)).nonnegative()

    def moved(self, x: Array, gradient: Array) -> CostModel:
        """The model at another flow, with slopes by what its way has changed in the gradient."""
        apart = x - self.x
        far = np.abs(apart) > MOVED * np.maximum(x, self.x)
        middle = 0.5 * (x + self.x)
        slope = self.slopes(middle)
        change = (gradient - self.gradient) / np.where(far, apart, 1.0)
        ratio = np.where(far & (slope > 0), change / np.where(slope > 0, slope, 1.0), 1.0)
        weight = self.weight * np.clip(ratio, 1.0 / TRUST, TRUST)
        return replace(self, x=x, gradient=gradient, weight=weight).nonnegative()

    def rescaled(self, x: Array, gradient: Array) -> CostModel:
        """The model of another objective at x: costs that grow in the same proportion."""
        expected = self.at(x)
        known = (expected > 0) & (gradient > 0)
        ratio = np.where(known, gradient / np.where(known, expected, 1.0), 1.0)
        return replace(self, x=x, gradient=gradient, weight=self.weight * ratio).nonnegative()

    def expected(self, known: list[tuple[Array, float]]) -> CostModel:
        """The model of costs that are a sum of others with weights, as far as they are near."""
        costs = sum(weight * gradient for gradient, weight in known)
        return self.rescaled(self.x, np.clip(costs, self.gradient / MOST, MOST * self.gradient))

    def slopes(self, x: Array) -> Array:
        """How the costs grow at other flows."""
        return self.power * self.weight / self.scale * (x / self.scale) ** (self.power - 1.0)

    def at(self, x: Array) -> Array:
        """The costs at other flows."""
        share, there = (self.weight * (y / self.scale) ** self.power for y in (self.x, x))
        return self.gradient - share + there

    def nonnegative(self) -> CostModel:
        """The same slopes at x; where c would be negative, c = 0 and a larger p."""
        share = self.weight * (self.x / self.scale) ** self.power
        steep = (share > self.gradient) & (self.gradient > 0)
        power = np.where(
            steep, self.power * share / np.where(steep, self.gradient, 1.0), self.power
        )
        return replace(
            self,
            scale=np.where(steep, self.x, self.scale),
            weight=np.where(steep, self.gradient, self.weight),
            power=np.minimum(power, STEEPEST),
        )

    def costs(self) -> PowerCosts:
        """As bushes take them."""
        share = self.weight * (self.x / self.scale) ** self.power
        constant = np.maximum(self.gradient - share, 0.0)
        return PowerCosts.of(constant, self.scale, self.weight, self.power)


FINEST = 1e-14
BUSH_PATHS_SWEEPS = 60
UNUSED = 10.0
"""What an arc without flow costs, beyond its weight, in multiples of the largest weight."""


def paths_in_equilibrium(trips: Trips, x: Array, weights: Array, tolerance: float) -> PathFlows:
    """Paths that add up to x, where x is an equilibrium at the weights w.

    At costs t_a(X) = w_a X_a / x_a, and prohibitive ones where x_a = 0, x is the equilibrium: its
    costs are w. No other flow is, where w > 0; bushes find it, and have its paths.
    """
    used = x > 0
    prohibitive = weights + UNUSED * max(float(weights.max(initial=0.0)), 1.0)
    costs = PowerCosts.of(
        np.where(used, 0.0, prohibitive),
        np.where(used, x, 1.0),
        np.where(used, weights, 0.0),
        np.ones(x.size),
    )
    bushes = Bushes(Roads(trips), costs)
    bushes.plant(np.where(used, weights, prohibitive))
    for _ in range(BUSH_PATHS_SWEEPS):
        gap = bushes.improve()
        apart = float(np.abs(bushes.link_flows - x).sum())
        if gap <= FINEST or apart <= 0.01 * tolerance * trips.total:
            break
        bushes.balance(gap)
    if apart > tolerance * (trips.total or 1.0):
        raise ValueError(
            f"x is not the equilibrium of the weights: the flow that is differs from it by "
            f"{apart:.4g} in all (the demand is {trips.total:.10g}), and other flows are taken "
            "apart on small networks only; give the times at which x is an equilibrium as weights, "
            "find it to a smaller gap, or ask an Assignment for its path_flows."
        )
    paths = bushes.path_flows()
    return PathFlows(paths, x - paths.link_flows)
