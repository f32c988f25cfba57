"""Constraints on risk measures: one expected loss for each row, which must not exceed 0.

The worst case of the row over its ball is a convex program; written with it, the constraint is
certain and every solver takes it. The function that writes the program is an argument (`Writer`):
it needs the counterparts, which this package may not import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Inequality
from cvxpy.constraints.constraint import Constraint

from wdro_model.errors import InfeasibleError
from wdro_model.loss import BatchedLoss
from wdro_model.loss.atoms.facts import brief
from wdro_model.loss.atoms.risk import RiskMeasure, is_uncertain
from wdro_model.loss.expressions import entry_of
from wdro_model.model.compiled import Model, RobustModel, compiled
from wdro_model.model.declared import WAY_OUT, lowered, subexpressions
from wdro_model.solvers import Conic
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.costs.norm_costs import cost_on
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class WrittenRow:
    """A row as certain constraints."""

    bound: Any
    """An inequality: the worst case is at most 0."""
    others: tuple[Any, ...]
    """Constraints on the variables of its program."""
    unit: float
    """The unit of the bound."""


Writer = Callable[[Model, str, bool], WrittenRow]
"""A row, the name of its constraint, and whether the ball counts -> certain constraints."""


@dataclass(frozen=True, eq=False)
class UncertainConstraint:
    """An inequality between risk measures and certain terms, over a ball."""

    original: Any
    """The constraint as the user wrote it."""
    rows: tuple[Model, ...]
    """For each entry a model whose loss is the left-hand side minus the right one."""
    write: Writer
    has_own_ball: bool
    robust: bool = True
    """Does it hold over the ball, or for the samples alone?"""
    _written: dict[Any, tuple[WrittenRow, ...]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return brief(self.original)

    @property
    def parameters(self) -> tuple[UncertainParameter, ...]:
        return uncertain_in(row.expression for row in self.rows)

    def stamp(self) -> tuple[Any, ...]:
        """The numbers that the constraint is written for: the radius and inlined parameters."""
        return self.robust, tuple((r.radius, r.inlined_parameter_values()) for r in self.rows)

    def written_rows(self) -> tuple[WrittenRow, ...]:
        """The rows as certain constraints, written once for the present numbers."""
        stamp = self.stamp()
        if stamp not in self._written:
            self._written.clear()
            name, robust = self.name, self.robust
            self._written[stamp] = tuple(self.write(row, name, robust) for row in self.rows)
        return self._written[stamp]

    def constraints(self) -> list[Any]:
        """The certain constraints of all rows."""
        return [c for row in self.written_rows() for c in (row.bound, *row.others)]

    def pass_on_multipliers(self) -> None:
        """Give the user's constraint the multipliers of its rows."""
        dual = self.original.dual_variables[0]
        duals = [(row.bound.dual_value, row.unit) for row in self.written_rows()]
        if any(value is None for value, _ in duals):
            dual.save_value(None)
            return
        values = np.array([float(np.reshape(value, ())) / unit for value, unit in duals])
        dual.save_value(np.reshape(values, dual.shape, order="F"))

    def excess(self, values: dict[cp.Variable, Array]) -> float:
        """The worst case at a decision, which exceeds 0 where the constraint is violated."""
        return max(row.unit * _worst_case(row, values) for row in self.written_rows())

    # ------------------------------------------------------------------ twins
    def empirical(self) -> UncertainConstraint:
        """The constraint on the samples alone."""
        return replace(self, robust=False, _written={})

    def with_radius(self, radius: Any) -> UncertainConstraint:
        """The constraint over a ball of another radius; a ball of its own is kept."""
        if self.has_own_ball:
            return self
        rows = tuple(
            replace(row, ambiguity=WassersteinBall(radius, row.ambiguity.cost))
            if isinstance(row, RobustModel)
            else row
            for row in self.rows
        )
        return replace(self, rows=rows, _written={})

    def with_samples(self, other: Callable[[JointSamples], JointSamples]) -> UncertainConstraint:
        """The constraint on other samples."""
        rows = tuple(
            row.with_joint(other(row.joint)) if isinstance(row, RobustModel) else row
            for row in self.rows
        )
        return replace(self, rows=rows, _written={})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_written": {}}


def _worst_case(row: WrittenRow, values: dict[cp.Variable, Array]) -> float:
    """The value of a row's program with the decision held fixed."""
    numbers = {id(v): cp.Constant(value) for v, value in values.items()}
    others = [c.tree_copy(numbers) for c in row.others]
    problem = cp.Problem(cp.Minimize(row.bound.expr.tree_copy(numbers)), others)
    try:
        Conic().run(problem)
    except InfeasibleError:
        return np.inf
    return float(problem.value)


# ------------------------------------------------------------------ from what is declared
def uncertain_in(expressions: Iterable[Any]) -> tuple[UncertainParameter, ...]:
    """The uncertain parameters of some expressions, each once."""
    every = (p for e in expressions for p in e.parameters())
    return tuple({p.id: p for p in every if isinstance(p, UncertainParameter)}.values())


def refuse_unpaired(model: Model) -> None:
    """A ValueError where rows of the samples do not pair those of objective and constraints."""
    models = [("the objective", model)]
    models += [(c.name, row) for c in model.feasible.uncertain for row in c.rows]
    counts = [(what, one.size) for what, one in models if isinstance(one, RobustModel)]
    for what, count in counts[1:]:
        if count != counts[0][1]:
            raise ValueError(
                "rows of the samples (folds, resamples) are taken of all parameters at once, but "
                f"{counts[0][0]} has {counts[0][1]} samples and {what} has {count}; pair the "
                "observations row by row, or give samples and scenarios by parameter (with_samples,"
                " select_radius(..., test=...))."
            )


def has_measures(constraint: Any) -> bool:
    """True for a constraint with a risk measure in it."""
    return isinstance(constraint, Constraint) and any(
        isinstance(e, RiskMeasure) for e in subexpressions(constraint.args)
    )


def declared_constraint(
    constraint: Any,
    ball: WassersteinBall | None,
    every: Sequence[UncertainParameter],
    write: Writer,
) -> UncertainConstraint:
    """A constraint with risk measures, checked; every: the uncertain parameters of the problem."""
    if not isinstance(constraint, Inequality):
        raise ValueError(
            f"the constraint {brief(constraint)} has a risk measure and is no inequality; a worst "
            "case is bounded from one side: write <= with the largest value that is allowed."
        )
    if not constraint.variables():
        raise ValueError(f"the constraint {brief(constraint)} has no decision variable in it.")
    difference = constraint.args[0] - constraint.args[1]
    rows: list[Model] = []
    own: WassersteinBall | None = None
    balls: dict[int, WassersteinBall | None] = {}
    for entry in range(difference.size):
        what = f"the constraint {brief(constraint)}"
        row = lowered(entry_of(difference, entry), what)
        if is_uncertain(row.outside):
            name = uncertain_in([row.outside])[0].name()
            raise ValueError(
                f"{what} has the uncertain {name!r} outside of its risk measures; put it inside of "
                "one of them."
            )
        balls |= {id(measure.ambiguity): measure.ambiguity for measure in row.measures}
        if len(balls) > 1:
            raise ValueError(
                f"{what} has risk measures over more than one ball; give all of them the same "
                f"ambiguity=, or {WAY_OUT.format(measure=brief(row.measures[0]))}."
            )
        own = next(iter(balls.values()), None)
        row_ball, data = ball if own is None else own, uncertain_in([row.expression])
        if row_ball is not None and data:
            row_ball = replace(row_ball, cost=cost_on(row_ball.cost, data, every))
        rows.append(compiled(BatchedLoss(row.expression), [], row_ball, False, tails=row.tails))
    return UncertainConstraint(constraint, tuple(rows), write, own is not None)
