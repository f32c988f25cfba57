"""Directions of a robust solve towards the equilibrium of arc costs that match the gradient.

The cost of an arc is modelled as c + w X^p, equal to the gradient of the objective at x, and nearly
equal to it at the flows before the last step: with p = 4, or with c = 0 and a larger p where the
gradient grows faster than that. The aim of a step is the equilibrium of these costs, which bushes
find. For a sum of convex functions of one flow each this is Newton's method on the constraints of
the flows; for other objectives, such as the smoothed worst case, a line search corrects the model.
"""

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
    largest_power: float = 30.0
    """The largest power; larger ones make costs jump, and bushes need more sweeps."""
    least_flow: float = 0.01
    """Flows below this share of the largest say little about the growth of their cost, and are
    modelled with the slope of a flow of that size."""
    changed_flow: float = 1e-3
    """The least relative change of a flow after which the slope of its cost is measured anew."""
    slope_correction: float = 4.0
    """The largest factor by which a step corrects a slope: the flows of other arcs have changed as
    well."""
    difference: float = 1e-5
    """The share of a flow over which gradients are compared; smaller ones measure rounding."""
    reply_difference: float = 1e-8
    """The same for the adversary's reply, which is far from linear over longer steps where a sample
    is torn between two modes."""
    inner_gap: float = 0.1
    """The relative gap of an equilibrium, as a part of the gap of the flows it starts from."""
    sweeps: int = 8
    """The most sweeps over the bushes for an equilibrium."""
    short_step: float = 0.05
    short_steps: int = 3
    """After this number of steps in a row below `short_step`, conjugate directions take over."""
    replies: int = 4
    """The most equilibria on the way to the equilibrium with the adversary's reply."""
    least_decrease: float = 0.05
    """An equilibrium that promises less than this part of the decrease of the first is the last."""


TOLERANCES = Tolerances()


@dataclass
class EquilibriumState:
    """The cost model and the bushes that the runs of one solve hand on."""

    model: CostModel | None = None
    bushes: Bushes | None = None
    """The bushes of the last equilibrium; None before there is one."""
    is_separable: bool | None = None
    """Is the objective a sum over the arcs for a fixed adversary? None before the test."""

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
    """The state of the solve that each thread runs over a set; a copy of the set starts anew."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the state: the next run begins a solve of its own."""
        self.state = EquilibriumState()

    def __reduce__(self) -> Any:
        return SolveMemory, ()


class TowardsEquilibrium(DirectionRule):
    """The direction rule of a set of flows: steps towards the equilibrium of a `CostModel`."""

    def __init__(self, flows: Any) -> None:
        self.flows = flows

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        return EquilibriumDirections(self.flows.trips, x, gradient_at, self.flows.memory.state)

    def __str__(self) -> str:
        return "equilibrium"

    def __repr__(self) -> str:
        return f"TowardsEquilibrium({self.flows!r})"


class EquilibriumDirections(DirectionState):
    """The directions of one run; conjugate ones where the model is unknown or misleads."""

    def __init__(
        self, trips: Trips, x: Array, gradient_at: GradientSource, state: EquilibriumState
    ) -> None:
        self.trips, self.state = trips, state
        self.last: tuple[Array, Array] | None = None
        """The flows before the last step, and their gradient."""
        self.conjugate = Conjugate(memory=2).start(x, gradient_at)
        self.short_steps = 0
        """The number of short steps in a row."""
        self.gradient_at = gradient_at

    @property
    def is_misled(self) -> bool:
        """Were the steps of the model too short too often?"""
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
        """The equilibrium of the model and, where it is known, of the adversary's reply.

        To first order the reply adds R (X - x) to the costs, with R positive but not diagonal: the
        equilibrium is approached by equilibria of separable costs, each with a line search.
        """
        nearby, reply, first_decrease = model, np.zeros(model.x.shape), 0.0
        gradient_with_reply = self.gradient_at.replying_adversary()
        for _ in range(TOLERANCES.replies):
            move = self.state.equilibrium(self.trips, nearby, gap) - nearby.x
            if gradient_with_reply is None or not self.state.is_separable:
                return nearby.x + move
            decrease = -float(nearby.gradient @ move)
            if not decrease > TOLERANCES.least_decrease * first_decrease:
                break
            # The change of the costs along the move through the adversary alone.
            length = float(np.linalg.norm(model.x)) / float(np.linalg.norm(move))
            difference = TOLERANCES.reply_difference * length
            ahead = np.maximum(model.x + difference * move, 0.0)
            change = (gradient_with_reply(ahead) - model.costs_at(ahead)) / difference
            if not np.isfinite(change).all():
                return nearby.x + move
            step = best_step(model, nearby.x, move, reply, change)
            y, reply = nearby.x + step * move, reply + step * change
            first_decrease = first_decrease or decrease
            nearby = CostModel.with_slopes(y, model.costs_at(y) + reply, model.slopes_at(y))
        return nearby.x

    def _fit_model(
        self, x: Array, gradient: Array, last: tuple[Array, Array] | None
    ) -> CostModel | None:
        """Costs that match the gradient; None as long as nothing is known of their growth."""
        model, fixed = self.state.model, self.gradient_at.fixed_adversary()
        if fixed is not None and (model is None or self.state.is_separable is not False):
            slopes = difference_slopes(x, gradient, fixed)
            if self.state.is_separable is None:
                # The slopes of a sum over the arcs do not depend on the steps of other arcs.
                parts = np.where(np.arange(x.size) % 2, 0.5, 1.5)
                apart = np.abs(difference_slopes(x, gradient, fixed, parts) - slopes)
                self.state.is_separable = bool(apart.max() <= SEPARATE * np.abs(slopes).max())
            if self.state.is_separable or model is None:
                return CostModel.with_slopes(x, gradient, slopes)
        if model is not None:
            return model.rescaled(x, gradient) if last is None else model.corrected(x, gradient)
        return None if last is None else CostModel.through(*last, x, gradient)


def difference_slopes(
    x: Array, gradient: Array, gradient_at: GradientAt, parts: Array | float = 1.0
) -> Array:
    """The derivative of each arc's gradient in its own flow, for a sum over the arcs."""
    step = parts * TOLERANCES.difference * (x + (x.mean() or 1.0))
    return (gradient_at(x + step) - gradient) / step


def best_step(model: CostModel, y: Array, move: Array, reply: Array, change: Array) -> float:
    """The best fraction of a move from y, where the costs are those of the model plus the reply.

    The reply is `reply` at y and grows by `change` along the move.
    """

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

        The costs of flows that have not changed grow like those of the median arc.
        """
        power = TOLERANCES.power
        scale = np.maximum(before, flow_scale(x))
        apart = (x / scale) ** power - (before / scale) ** power
        has_changed = np.abs(x - before) > TOLERANCES.changed_flow * scale
        weight = (gradient - at_before) / np.where(has_changed, apart, 1.0)
        congests = has_changed & (weight > 0) & (gradient > 0)
        shares = weight[congests] * (x[congests] / scale[congests]) ** power / gradient[congests]
        median = float(np.median(shares)) if shares.size else 0.25
        weight = np.where(has_changed, np.maximum(weight, 0.0), median * gradient)
        return cls(x, gradient, scale, weight, np.full(x.size, power)).steepened()

    @classmethod
    def with_slopes(cls, x: Array, gradient: Array, slopes: Array) -> CostModel:
        """The model at x of costs that grow with these slopes; p = 4."""
        power, scale = TOLERANCES.power, flow_scale(x)
        weight = np.maximum(slopes, 0.0) * scale / power
        return cls(x, gradient, scale, weight, np.full(x.size, power)).steepened()

    def corrected(self, x: Array, gradient: Array) -> CostModel:
        """The model at another flow, with slopes corrected by the change of the gradient."""
        apart = x - self.x
        has_changed = np.abs(apart) > TOLERANCES.changed_flow * np.maximum(x, self.x)
        slope = self.slopes_at(0.5 * (x + self.x))
        change = (gradient - self.gradient) / np.where(has_changed, apart, 1.0)
        is_known = has_changed & (slope > 0)
        ratio = np.where(is_known, change / np.where(slope > 0, slope, 1.0), 1.0)
        largest = TOLERANCES.slope_correction
        weight = self.weight * np.clip(ratio, 1.0 / largest, largest)
        return replace(self, x=x, gradient=gradient, weight=weight).steepened()

    def rescaled(self, x: Array, gradient: Array) -> CostModel:
        """The model of another objective at x: costs that grow in the same proportion."""
        expected = self.costs_at(x)
        is_known = (expected > 0) & (gradient > 0)
        ratio = np.where(is_known, gradient / np.where(is_known, expected, 1.0), 1.0)
        return replace(self, x=x, gradient=gradient, weight=self.weight * ratio).steepened()

    def slopes_at(self, x: Array) -> Array:
        """The slopes of the costs at other flows."""
        return self.power * self.weight / self.scale * (x / self.scale) ** (self.power - 1.0)

    def costs_at(self, x: Array) -> Array:
        """The costs at other flows."""
        here, there = (self.weight * (y / self.scale) ** self.power for y in (self.x, x))
        return self.gradient - here + there

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
            power=np.minimum(power, TOLERANCES.largest_power),
        )

    def power_costs(self) -> PowerCosts:
        """The costs as bushes take them."""
        share = self.weight * (self.x / self.scale) ** self.power
        constant = np.maximum(self.gradient - share, 0.0)
        return PowerCosts.from_capacity(constant, self.scale, self.weight, self.power)


def flow_scale(x: Array) -> Array:
    """The flows, raised to a share of the largest where they are smaller."""
    return np.maximum(x, TOLERANCES.least_flow * max(float(x.max(initial=0.0)), 1e-300))
