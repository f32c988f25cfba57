"""The continuous part of a decision, solved again with the discrete part fixed."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.error import SolverError

from wdro_model.evaluation.criteria import Criterion
from wdro_model.loss import BatchedLoss, CallableLoss
from wdro_model.model import Model, RobustModel, compiled
from wdro_model.sets.convex import twin_of
from wdro_model.sets.feasible_set import In
from wdro_model.solve import execute, plan
from wdro_model.solvers.objective import Array


class Completion:
    """min criterion(x) over x in the feasible set with x[discrete] = values.

    The problem is stated on continuous twins of the variables, so that no solver for integers is
    needed, and compiled once for all values.
    """

    def __init__(self, model: Model, discrete: Array, criterion: Criterion) -> None:
        feasible = model.feasible
        self.layout, self.discrete, self.criterion = feasible.layout, discrete, criterion
        self.twins = {v: twin_of(v, relaxed=True) for v in feasible.layout.variables}
        self.fixed = cp.Parameter(int(discrete.sum()), value=np.zeros(int(discrete.sum())))
        self._model = self._compiled(model)

    def __call__(self, x: Array) -> Array | None:
        """The best decision with the discrete coordinates of x; None if no solver finds it."""
        self.fixed.value = x[self.discrete]
        try:
            chosen = plan(self._model, self.criterion.method, None)
            solution = execute(self._model, chosen, self.criterion.options)
        except (ValueError, SolverError):  # no convex form, or numbers that a solver gives up on
            return None
        best = self.layout.join({v: solution.decision[twin] for v, twin in self.twins.items()})
        best[self.discrete] = x[self.discrete]
        return best

    def _compiled(self, model: Model) -> Model:
        """The model on the twins, on the same samples."""
        feasible, by_id = model.feasible, {id(v): twin for v, twin in self.twins.items()}
        constraints = [
            c if isinstance(c, (bool, np.bool_)) else c.tree_copy(by_id)
            for c in feasible.constraints
        ]
        constraints += self._fixing()
        for member in feasible.memberships:
            if not self.discrete[self.layout.slices[member.variable]].any():
                constraints.append(In(self.twins[member.variable], member.set))
        loss = loss_on(model.loss.loss, self.twins)
        ball = model.ambiguity if isinstance(model, RobustModel) and model.has_ball else None
        found = compiled(loss, constraints, ball, model.assume_convex)
        if isinstance(found, RobustModel) and isinstance(model, RobustModel):
            return found.on(model.joint)
        return found

    def _fixing(self) -> list[Any]:
        """The discrete coordinates of the twins equal the parameter's entries."""
        flat = cp.hstack([cp.vec(self.twins[v], order="C") for v in self.layout.variables])
        return [flat[np.flatnonzero(self.discrete)] == self.fixed]


class Completed:
    """The value of a discrete part: that of the best decision which has it."""

    def __init__(self, completion: Completion, criterion: Criterion) -> None:
        self._completion, self._criterion = completion, criterion
        self._found: dict[bytes, tuple[float, Array]] = {}

    def __call__(self, x: Array) -> float:
        return self._of(x)[0]

    def decision(self, x: Array) -> Array:
        """The best decision with the discrete part of x that was found; x itself may be it."""
        return self._of(x)[1]

    def knows(self, x: Array) -> bool:
        """Was this discrete part looked at before?"""
        return self.key(x) in self._found

    def key(self, x: Array) -> bytes:
        """The discrete part."""
        return np.rint(x[self._completion.discrete]).tobytes()

    def _of(self, x: Array) -> tuple[float, Array]:
        key = self.key(x)
        if key not in self._found:
            whole = np.where(self._completion.discrete, np.rint(x), x)
            other = self._completion(whole)
            known = [whole] if other is None else [whole, other]
            self._found[key] = min(((self._criterion(y), y) for y in known), key=lambda p: p[0])
        return self._found[key]


def loss_on(loss: Any, twins: dict[cp.Variable, cp.Variable]) -> Any:
    """The loss on other variables."""
    if not isinstance(loss, CallableLoss):
        return BatchedLoss(loss.expression.tree_copy({id(v): twin for v, twin in twins.items()}))
    originals = {twins[v]: v for v in loss.variables}

    def function(x: Any, scenarios: Any) -> tuple[Any, Any]:
        values, pullback = loss.function({v: x[t] for t, v in originals.items()}, scenarios)

        def renamed(weights: Array) -> dict[Any, Any]:
            return {twins.get(key, key): slope for key, slope in pullback(weights).items()}

        return values, renamed

    return CallableLoss(function, list(originals), loss.parameters, loss.convex, loss.name)
