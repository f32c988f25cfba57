"""Directions of a robust solve towards the equilibrium of costs that match the gradient."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.directions import (
    Conjugate,
    DirectionRule,
    DirectionState,
    GradientAt,
    GradientSource,
    Move,
)
from wdro_model.solvers.directions.newton import SEPARATE
from wdro_model.traffic.bushes.state import Bushes, PowerCosts
from wdro_model.traffic.flows.road_graph import Trips

Array = np.ndarray


@dataclass(frozen=True)
class Tolerances:
    """Thresholds of the directions; shares are of flows or costs. Measured on Sioux Falls."""

    power: float = 4.0
    """The power of the cost model; the gradient may ask for a larger one."""
    most_power: float = 30.0
    least_flow: float = 0.01
    """Flows below this share of the largest tell little of how their cost will grow."""
    moved: float = 1e-3
    """Flows that changed by this share tell the slope of their cost anew."""
    slope_change: float = 4.0
    """The most by which a step corrects a slope: the flows of other arcs have changed as well."""
    cost_change: float = 2.0
    """The most by which costs are expected to differ from those of the last solve."""
    difference: float = 1e-5
    """The share of a flow over which gradients are compared."""
    reply_difference: float = 1e-8
    """The same for the adversary's reply, which is far from linear over longer steps where a sample
    is torn between two modes."""
    inner_gap: float = 0.1
    """The relative gap of an equilibrium, as a part of that of the flows it starts from."""
    first_gap: float = 1e-5
    """The relative gap of an equilibrium to begin with."""
    sweeps: int = 8
    """The most sweeps over the bushes for an equilibrium."""
    short_step: float = 0.05
    short_steps: int = 3
    """After so many steps in a row below `short_step`, conjugate directions take over."""
    replies: int = 4
    """The most equilibria on the way to that with the adversary's reply."""
    least_promise: float = 0.05
    """An equilibrium that promises less than this part of the first one ends that way."""
    most_entries: int = 2**20
    """Bushes with more entries (12 MB) are not kept from one solve to the next."""


TOLERANCES = Tolerances()


@dataclass
class EquilibriumState:
    """The costs and bushes that the runs of a solve hand on."""

    model: CostModel | None = None
    """The costs that the gradients look like."""
    bushes: Bushes | None = None
    """The bushes of the last equilibrium; None before there is one."""
    separate: bool | None = None
    """Is the objective a sum over the arcs, the adversary held? None before that was tested."""

    def continue_for(self, trips: Trips) -> EquilibriumState:
        """The state for the next solve: with bushes of its own, if these are of its trips."""
        if self.bushes is None or self.bushes.trips is not trips:
            return EquilibriumState(self.model)
        return EquilibriumState(self.model, self.bushes.copy())

    def equilibrium(self, trips: Trips, model: CostModel, gap: float) -> Array:
        """The equilibrium of a model's costs up to a relative gap, from the bushes of the last."""
        if (bushes := self.bushes) is None:
            self.bushes = bushes = Bushes(trips, model.power_costs())
            bushes.plant(model.gradient, check_deadline)
        else:
            bushes.reprice(model.power_costs())
        for _ in range(TOLERANCES.sweeps):
            reached = bushes.improve(check_deadline)
            if reached <= gap:
                break
            bushes.balance(reached, check_deadline)
        return bushes.link_flows


class SolveMemory(threading.local):
    """The state of the solve that a thread runs over a set; the set owns it, copies have others."""

    def __init__(self) -> None:
        self.state: EquilibriumState | None = None

    def __reduce__(self) -> Any:
        return SolveMemory, ()


class TowardsEquilibrium(DirectionRule):
    """The aim of a step is the equilibrium of separable costs that match the gradient at x.

    The cost of an arc is c + w X^p, the gradient of the objective at x, and nearly so where the
    last step came from: with p = 4, or c = 0 and a larger p where the gradient grows faster than
    that. The slopes at first are those of the loss where the objective tells them, else they are
    learnt from a plain step.
    For the sum of convex functions of one flow each this is Newton's method on the constraints of
    the flows; for others, such as the smoothed worst case, a search along the line makes up for
    what the model does not know.
    """

    def __init__(self, flows: Any) -> None:
        self.flows = flows

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        memory = self.flows.memory
        if memory.state is None:
            memory.state = EquilibriumState()
        return _Equilibria(self.flows.trips, x, gradient_at, memory.state)

    def findings(self) -> EquilibriumState | None:
        """The state that the present solve leaves for the next one; None without a cost model."""
        state = self.flows.memory.state
        if state is None or state.model is None:
            return None
        bushes = state.bushes
        is_large = bushes is not None and bushes.entry_count > TOLERANCES.most_entries
        return replace(state, bushes=None) if is_large else state

    def costs_at(self, x: Array, gradient_at: GradientAt) -> EquilibriumState:
        """The costs of an objective that is a sum over the arcs, at flows x."""
        gradient = gradient_at(x)
        slopes = difference_slopes(x, gradient, gradient_at)
        return EquilibriumState(CostModel.with_slopes(x, gradient, slopes))

    def begin_with(self, known: list[tuple[Any, float]]) -> Array | None:
        """Begin with the costs that other solves ended with, the last one first.

        known: their findings, and their weights in what is expected now. Returned is the
            equilibrium of these costs, a place to begin; None where too little is known for that.
        """
        models = [(self._model_of(findings), weight) for findings, weight in known]
        last = models[0][0]
        if last is None:
            return None
        state = self.flows.memory.state = known[0][0].continue_for(self.flows.trips)
        costs = [(model.costs_at(last.x), weight) for model, weight in models if model is not None]
        if len(costs) == 1 or len(costs) < len(known):
            return None
        state.model = last.combined(costs)
        return state.equilibrium(self.flows.trips, state.model, TOLERANCES.first_gap)

    def _model_of(self, findings: Any) -> CostModel | None:
        """The costs that a solve over such flows has found; None for another."""
        model = findings.model if isinstance(findings, EquilibriumState) else None
        return model if model is not None and model.x.shape == (self.flows.dimension,) else None

    def __str__(self) -> str:
        return "equilibrium"

    def __repr__(self) -> str:
        return f"TowardsEquilibrium({self.flows!r})"


class _Equilibria(DirectionState):
    """The directions of one run."""

    def __init__(
        self, trips: Trips, x: Array, gradient_at: GradientSource, state: EquilibriumState
    ) -> None:
        self.trips, self.state = trips, state
        self.last: tuple[Array, Array] | None = None
        """The flows before, and the gradient there."""
        self.conjugate = Conjugate(memory=2).start(x, gradient_at)
        self.short_steps = 0
        """Short steps in a row."""
        self.gradient_at = gradient_at

    @property
    def is_misled(self) -> bool:
        """Has the model been no guide?"""
        return self.short_steps >= TOLERANCES.short_steps

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        if self.is_misled:
            return self.conjugate.propose(x, gradient, vertex, gap)
        last, self.last = self.last, (x, gradient)
        model = self._fit_model(x, gradient, last)
        if model is None:
            return self.retreat(x, vertex)
        self.state.model, spent = model, float(gradient @ x)
        aim = self._find_aim(model, TOLERANCES.inner_gap * gap / spent if spent else 0.0)
        if not gradient @ (aim - x) < 0.0:
            return self.retreat(x, vertex)
        return Move(aim - x, suggested=1.0)

    def retreat(self, x: Array, vertex: Array) -> Move:
        return self.conjugate.retreat(x, vertex)

    def accept(self, step: float) -> Array | None:
        if self.is_misled:
            return self.conjugate.accept(step)
        self.short_steps = self.short_steps + 1 if step < TOLERANCES.short_step else 0
        return None

    def _find_aim(self, model: CostModel, gap: float) -> Array:
        """The equilibrium of the model, and of the adversary's reply to first order where known.

        The reply adds R (X - x) to the costs, R being positive and not diagonal: the equilibrium
        is approached by those of separable costs, each with a search along the line.
        """
        nearby, reply, first = model, np.zeros(model.x.shape), 0.0
        replied = self.gradient_at.replying_adversary()
        for _ in range(TOLERANCES.replies):
            move = self.state.equilibrium(self.trips, nearby, gap) - nearby.x
            if replied is None or not self.state.separate:
                return nearby.x + move
            promised = -float(nearby.gradient @ move)
            if not promised > TOLERANCES.least_promise * first:
                break
            change = self._reply_to(move, model, replied)
            if not np.isfinite(change).all():
                return nearby.x + move
            step = best_step(model, nearby.x, move, reply, change)
            y, reply, first = nearby.x + step * move, reply + step * change, first or promised
            nearby = CostModel.with_slopes(y, model.costs_at(y) + reply, model.slopes_at(y))
        return nearby.x

    def _reply_to(self, move: Array, model: CostModel, replied: GradientAt) -> Array:
        """The change that a move brings about in the costs through the adversary alone."""
        length = float(np.linalg.norm(model.x)) / float(np.linalg.norm(move))
        step = TOLERANCES.reply_difference * length
        there = np.maximum(model.x + step * move, 0.0)
        return (replied(there) - model.costs_at(there)) / step

    def _fit_model(
        self, x: Array, gradient: Array, last: tuple[Array, Array] | None
    ) -> CostModel | None:
        """Costs that look like the gradient; None as long as nothing is known of their growth."""
        model = self.state.model
        held = self.gradient_at.fixed_adversary()
        if held is not None and (self._is_separate(x, gradient, held) or model is None):
            return CostModel.with_slopes(x, gradient, difference_slopes(x, gradient, held))
        if model is not None:
            return model.rescaled(x, gradient) if last is None else model.corrected(x, gradient)
        return None if last is None else CostModel.through(*last, x, gradient)

    def _is_separate(self, x: Array, gradient: Array, held: GradientAt) -> bool:
        """Is the objective a sum over the arcs? Then other steps tell the same slopes."""
        if self.state.separate is None:
            parts = np.where(np.arange(x.size) % 2, 0.5, 1.5)
            slopes = difference_slopes(x, gradient, held)
            apart = np.abs(difference_slopes(x, gradient, held, parts) - slopes)
            self.state.separate = bool(apart.max() <= SEPARATE * np.abs(slopes).max())
        return self.state.separate


def difference_slopes(
    x: Array, gradient: Array, gradient_at: GradientAt, parts: Array | float = 1.0
) -> Array:
    """The slope of the gradient in each flow, the others staying, for a sum over the arcs."""
    step = parts * TOLERANCES.difference * (x + (x.mean() or 1.0))
    return (gradient_at(x + step) - gradient) / step


def best_step(model: CostModel, y: Array, move: Array, reply: Array, change: Array) -> float:
    """The best part of a move from y; to the model's costs come `reply` at y, and `change` on the
    way."""

    def slope(step: float) -> float:
        return float((model.costs_at(y + step * move) + reply + step * change) @ move)

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
    def through(cls, before: Array, at_before: Array, x: Array, gradient: Array) -> CostModel:
        """The model at x of costs that were `at_before` at the flows `before`; p = 4.

        Where nothing has changed, they grow with the flow like those of most other arcs.
        """
        power = TOLERANCES.power
        scale = np.maximum(before, flow_scale(x))
        apart = (x / scale) ** power - (before / scale) ** power
        far = np.abs(x - before) > TOLERANCES.moved * scale
        weight = np.where(far, (gradient - at_before) / np.where(far, apart, 1.0), 0.0)
        known = far & (weight > 0) & (gradient > 0)
        share = weight[known] * (x[known] / scale[known]) ** power / gradient[known]
        usual = float(np.median(share)) if share.size else 0.25
        weight = np.where(far, np.maximum(weight, 0.0), usual * gradient)
        return cls(x, gradient, scale, weight, np.full(x.size, power)).steepened()

    @classmethod
    def with_slopes(cls, x: Array, gradient: Array, slopes: Array) -> CostModel:
        """The model at x of costs that grow with these slopes; p = 4."""
        power, scale = TOLERANCES.power, flow_scale(x)
        weight = np.maximum(slopes, 0.0) * scale / power
        return cls(x, gradient, scale, weight, np.full(x.size, power)).steepened()

    def corrected(self, x: Array, gradient: Array) -> CostModel:
        """The model at another flow, with slopes by what its way has changed in the gradient."""
        apart = x - self.x
        far = np.abs(apart) > TOLERANCES.moved * np.maximum(x, self.x)
        slope = self.slopes_at(0.5 * (x + self.x))
        change = (gradient - self.gradient) / np.where(far, apart, 1.0)
        ratio = np.where(far & (slope > 0), change / np.where(slope > 0, slope, 1.0), 1.0)
        most = TOLERANCES.slope_change
        weight = self.weight * np.clip(ratio, 1.0 / most, most)
        return replace(self, x=x, gradient=gradient, weight=weight).steepened()

    def rescaled(self, x: Array, gradient: Array) -> CostModel:
        """The model of another objective at x: costs that grow in the same proportion."""
        expected = self.costs_at(x)
        known = (expected > 0) & (gradient > 0)
        ratio = np.where(known, gradient / np.where(known, expected, 1.0), 1.0)
        return replace(self, x=x, gradient=gradient, weight=self.weight * ratio).steepened()

    def combined(self, known: list[tuple[Array, float]]) -> CostModel:
        """The model of costs that are a weighted sum of others, as far as they are near."""
        costs = sum(weight * gradient for gradient, weight in known)
        most = TOLERANCES.cost_change
        return self.rescaled(self.x, np.clip(costs, self.gradient / most, most * self.gradient))

    def slopes_at(self, x: Array) -> Array:
        """The slopes of the costs at other flows."""
        return self.power * self.weight / self.scale * (x / self.scale) ** (self.power - 1.0)

    def costs_at(self, x: Array) -> Array:
        """The costs at other flows."""
        share, there = (self.weight * (y / self.scale) ** self.power for y in (self.x, x))
        return self.gradient - share + there

    def steepened(self) -> CostModel:
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
            power=np.minimum(power, TOLERANCES.most_power),
        )

    def power_costs(self) -> PowerCosts:
        """The costs as bushes take them."""
        share = self.weight * (self.x / self.scale) ** self.power
        constant = np.maximum(self.gradient - share, 0.0)
        return PowerCosts.from_capacity(constant, self.scale, self.weight, self.power)


def flow_scale(x: Array) -> Array:
    """The flows, and a share of the largest where they are smaller than that."""
    return np.maximum(x, TOLERANCES.least_flow * max(float(x.max(initial=0.0)), 1e-300))
