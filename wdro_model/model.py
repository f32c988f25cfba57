"""A problem after validation: loss, structure, data, ball and feasible set in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.feasible import Feasible, parameters_of
from wdro_model.loss.callable import CallableLoss
from wdro_model.loss.flat_vectors import FlatLoss
from wdro_model.loss.structure import Structure
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples


@dataclass(frozen=True)
class Model:
    """What the compiler knows about a problem."""

    expression: Any
    """The loss as a CVXPY expression; None for a callable loss."""
    loss: FlatLoss
    """The loss on flat vectors."""
    structure: Structure | None
    """How the expression depends on the data; None for a callable loss."""
    joint: JointSamples | None
    """The joint samples; None where nothing is uncertain."""
    ambiguity: WassersteinBall | None
    cost: BoundCost | None
    """The ground cost with its weights resolved."""
    feasible: Feasible
    assume_convex: bool
    memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results that do not depend on the radius, shared by models that differ in nothing else."""

    @property
    def radius(self) -> float:
        """The transport budget; 0 without a ball, or where no coordinate of the data may move."""
        if self.ambiguity is None or self.joint is None or self.cost is None:
            return 0.0
        return 0.0 if self.cost.frozen.all() else self.ambiguity.radius

    @property
    def rows(self) -> np.ndarray:
        """The samples as rows (N, d); one empty row where nothing is uncertain."""
        return np.zeros((1, 0)) if self.joint is None else self.joint.matrix

    @property
    def affine_in_data(self) -> bool:
        """Is the loss known to be affine in the data?"""
        return self.structure is not None and self.structure.degree <= 1

    @property
    def convex_in_decision(self) -> bool:
        """Is the loss convex in x for every scenario, by CVXPY's rules or by the user's word?"""
        if self.assume_convex:
            return True
        if self.structure is not None:
            return self.structure.convex_in_decision
        loss = self.loss.loss
        return isinstance(loss, CallableLoss) and loss.convex

    @property
    def convex_on_samples(self) -> bool:
        """Is the loss convex in x for scenarios like the samples? What ERM asks for."""
        known = self.structure is not None and self.structure.convex_on_samples
        return known or self.convex_in_decision

    def remember(self, name: str, compute: Callable[[], Any]) -> Any:
        """A result computed once for the current values of the certain parameters."""
        certain = [] if self.expression is None else self.expression.parameters()
        certain += [p for c in self.feasible.constraints for p in parameters_of(c)]
        values = [np.asarray(p.value) for p in certain if p.value is not None]
        key = (name, *(v.tobytes() for v in values))
        if key not in self.memory:
            self.memory[key] = compute()
        return self.memory[key]

    def on(self, joint: JointSamples) -> Model:
        """The same model on other samples; what was remembered of the old ones is forgotten."""
        ball = self.ambiguity
        return replace(
            self,
            loss=FlatLoss(self.loss.loss, self.loss.layout, joint),
            joint=joint,
            cost=None if ball is None else ball.cost.bind(joint),
            memory={},
        )

    def mean_values(self) -> dict[cp.Parameter, np.ndarray]:
        """The average of each uncertain parameter over the samples."""
        if self.joint is None:
            return {}
        return {p: v[0] for p, v in self.joint.split(self.joint.mean[None]).items()}
