"""Norm costs as mixtures of costs that strategies without draws can integrate.

With a = l/eps and r the Euclidean length of a (weighted) move,

    exp(-a r) = int_0^inf a/(2 sqrt(pi)) u^(-3/2) exp(-a^2/(4u)) exp(-u r^2) du,

so that E exp(f/eps - a r) is a mixture of integrals M(u) = E exp(f/eps - u r^2) with squared costs,
which do not depend on l. Sample by sample they are summed over equal steps of log u, in which the
mixture is analytic: halving the steps squares the error. Under the weights of the mixture

    E r = E [2 u/a E_u r^2],   E r^2 = E [E_u r^2],

and the gradient in x is the average of the inner ones. The largest weighted move is a mixture over
boxes (`largest_move`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import ROBUST, Integration, Stream
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundSquared

FINEST = 2**14
"""Steps of log u to a unit, at most."""
CUT = 40.0
"""Nodes so far below the largest in logarithm are left out."""
CLOSE = 1e-4
"""Logarithms of sums over steps h and 2h that differ by this have an error of its square."""
FARTHEST_STEPS = 600
"""Unit steps of log u that are tried, either way."""
SMALLEST = 1e-10
"""A dual variable under which the cost of the reference is this share of eps is taken for 0."""


class SampleSlice(Protocol):
    """A slice that tells its samples apart."""

    def each(self, dual: float) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (K,) twice; K = 1 if all have the same moves."""
        ...

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j), for shares (J, K) of sum one."""
        ...


def squared_twin(model: RobustModel) -> RobustModel:
    """The model with the square of its Euclidean cost."""
    weights = np.asarray(model.cost.coordinate_scales, dtype=float) ** 2
    cost = BoundSquared(model.joint.dimension, weights)
    return replace(model, cost=cost, memory=Memory())


class EuclideanMixture(Integration):
    """Integration for a Euclidean cost, by a strategy for squared costs."""

    name = "norms"
    begins = ROBUST
    exact = True

    def __init__(self, model: RobustModel, inner: Any, *, epsilon: float, sigma: Any) -> None:
        self.inner, self.epsilon = inner, epsilon
        moves = ~np.asarray(model.cost.frozen)
        scales = (np.asarray(model.cost.coordinate_scales) * sigma)[moves]
        self.unit = float(np.sqrt(np.sum(scales**2))) or 1.0
        """The length of a typical move of the reference."""

    def slice(self, x: Array, samples: Array, stream: Stream) -> EuclideanSlice:
        return EuclideanSlice(self, self.inner.slice(x, samples, stream))

    def describe(self) -> str:
        return f"norms: a Euclidean cost as a mixture of squared ones; {self.inner.describe()}"


@dataclass(frozen=True)
class Mixed:
    """The mixture at one dual variable."""

    rate: float
    """a."""
    nodes: Array
    """u, (J,)."""
    costs: Array
    """E_u r^2, (J, K)."""
    shares: Array
    """The weights of the nodes in each sample, (J, K), of sum one over J."""
    log_mass: Array
    """(K,)"""


class EuclideanSlice:
    """mean_k phi_k at one x: integrals with squared costs are kept from one dual to the next."""

    def __init__(self, rule: EuclideanMixture, inner: SampleSlice) -> None:
        self._rule, self._inner = rule, inner
        self._known: dict[int, tuple[Array, Array]] = {}
        self._last: tuple[float, Mixed] | None = None

    def at(self, dual: float) -> DualPoint:
        found, eps = self._mixed(dual), self._rule.epsilon
        if not np.isfinite(found.log_mass).all():
            return DualPoint(np.inf, -np.inf, np.nan)
        length = (found.shares * (2.0 * found.nodes[:, None] / found.rate) * found.costs).sum(0)
        square = (found.shares * found.costs).sum(axis=0)
        spread = np.maximum(square - length**2, 0.0)
        return DualPoint(
            float(eps * found.log_mass.mean()), -float(length.mean()), float(spread.mean()) / eps
        )

    def gradient(self, dual: float) -> Array:
        found = self._mixed(dual)
        if not np.isfinite(found.log_mass).all():
            raise FloatingPointError("the smoothed objective is infinite here: it has no gradient.")
        used = found.shares.max(axis=1) > 1e-13
        shares = found.shares[used]
        return self._inner.mixed_gradient(
            self._rule.epsilon * found.nodes[used], shares / shares.sum()
        )

    def diagnostics(self, dual: float) -> None:
        return None

    # -------------------------------------------------------------- the sum over the nodes
    def _mixed(self, dual: float) -> Mixed:
        """The mixture at a dual variable: steps are halved until their sum settles."""
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        rate = max(dual / self._rule.epsilon, SMALLEST / self._rule.unit)
        places = self._scan(rate)
        step, before = FINEST, None
        while True:
            logs = self._logs(places, rate)
            if np.isposinf(logs).any():
                found = self._infinite(places, rate)
                break
            top = logs.max(axis=0)
            total = top + np.log(np.exp(logs - top).sum(axis=0) * step / FINEST)
            settled = before is not None and np.abs(total - before).max() < CLOSE
            if settled or step == 1:
                shares = np.exp(logs - total) * (step / FINEST)
                costs = np.stack([self._known[n][1] for n in places])
                found = Mixed(rate, np.exp(places / FINEST), costs, shares, total)
                break
            before = total
            places = self._halved(places, logs - top, step)
            step //= 2
        self._last = (dual, found)
        return found

    def _infinite(self, places: Array, rate: float) -> Mixed:
        size = len(self._known[int(places[0])][0])
        none = np.zeros((0, size))
        return Mixed(rate, np.zeros(0), none, none, np.full(size, np.inf))

    def _scan(self, rate: float) -> Array:
        """Unit steps of log u from where all samples have little mass to where they have little."""
        start = round(2 * np.log(rate) - np.log(6.0))
        middle = round(-2 * np.log(self._rule.unit))
        low, high = min(start, middle), max(start, middle)
        steps = list(range(low, high + 1))
        logs = list(self._logs(np.array(steps) * FINEST, rate))
        for _ in range(FARTHEST_STEPS):
            top = np.max(logs, axis=0)
            left = bool((logs[0] < np.minimum(logs[1], top - CUT)).all()) if len(logs) > 1 else False
            right = bool((logs[-1] < np.minimum(logs[-2], top - CUT)).all()) if len(logs) > 1 else False
            if left and right:
                break
            if not left:
                steps.insert(0, steps[0] - 1)
                logs.insert(0, self._logs(np.array(steps[:1]) * FINEST, rate)[0])
            if not right:
                steps.append(steps[-1] + 1)
                logs.append(self._logs(np.array(steps[-1:]) * FINEST, rate)[0])
        return np.array(steps) * FINEST

    def _halved(self, places: Array, below: Array, step: int) -> Array:
        """The nodes with those half-way beside nodes that have mass, or are peaks."""
        padded = np.pad(below, ((1, 1), (0, 0)), constant_values=-np.inf)
        peak = (below >= padded[:-2]) & (below >= padded[2:])
        lively = ((below > -CUT) | peak).any(axis=1)
        beside = np.concatenate([places[lively] - step // 2, places[lively] + step // 2])
        kept = places[(below > -2 * CUT).any(axis=1)]
        return np.unique(np.concatenate([kept, beside]))

    def _logs(self, places: Array, rate: float) -> Array:
        """The logarithm of the integrand in log u at nodes, (J, K)."""
        eps = self._rule.epsilon
        masses = []
        for n in map(int, places):
            if n not in self._known:
                values, costs = self._inner.each(eps * float(np.exp(n / FINEST)))
                self._known[n] = (values / eps, costs)
            masses.append(self._known[n][0])
        v = places / FINEST
        with np.errstate(over="ignore"):
            weight = np.log(rate / (2 * np.sqrt(np.pi))) - 0.5 * v - 0.25 * rate**2 * np.exp(-v)
        return np.stack(masses) + weight[:, None]
