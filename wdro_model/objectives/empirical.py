"""Empirical risk, the mean loss over the samples: a smooth objective, and a CVXPY program.

The program is vectorised where the loss allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.expressions import substitute, times
from wdro_model.loss.polynomial import affine_parts, vectorise
from wdro_model.loss.structure import is_canonicalisable
from wdro_model.model import Model, RobustModel
from wdro_model.solvers.objective import Array, Point
from wdro_model.uncertainty.samples import SampleShares

BATCH_ENTRIES = 2**24
"""Entries of scenario data that are evaluated at once (128 MiB)."""
LINEAR = (cp.constraints.Inequality, cp.constraints.Equality, cp.constraints.NonNeg)
"""Constraints that compare entries."""
MOST_COPIES = 300
"""Copies of a loss, one for each sample, that a program has at most."""


class Empirical:
    """mean_k f(x, xi_k).

    A loss that is affine in the data depends on the samples through their mean alone: the mean
    over N samples is then one evaluation at the average sample.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.loss = model, model.loss
        self.affine = model.affine_in_data
        self.convex = model.convex_on_samples
        self.size = model.size
        self.rows = model.mean_row if self.affine else model.rows
        self.shares = SampleShares.full(1) if self.affine else model.shares
        self.probabilities = model.shares.probabilities
        """Probabilities by which a batch is drawn; None for equal ones."""

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        return self._mean(x, self.rows, self.shares)

    def value(self, x: Array) -> float:
        """The mean loss alone, without its gradient."""
        batches = self._batches(self.rows, self.shares)
        return sum(float(shares @ self.loss.values(x, rows)) for rows, shares in batches)

    def fixed_adversary_gradient(self, x: Array) -> Callable[[Array], Array]:
        """Gradients at other decisions: the data stays where it is."""
        return lambda y: self._mean(y, self.rows, self.shares).gradient

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        return self._mean(x, self.model.rows[batch], SampleShares.full(len(batch)))

    def _mean(self, x: Array, rows: Array, shares: SampleShares) -> Point:
        value, gradient = 0.0, np.zeros(self.loss.dimension)
        for part, weights in self._batches(rows, shares):
            values, pullback = self.loss(x, part)
            value += float(weights @ values)
            gradient += pullback(weights)
        return Point(value, gradient)

    def _batches(self, rows: Array, shares: SampleShares) -> Iterator[tuple[Array, Array]]:
        """Rows and shares of the samples, batch by batch."""
        step = max(1, BATCH_ENTRIES // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            yield rows[some], shares.subset(some).array

    def describe(self) -> str:
        if self.affine:
            return f"f(x, mean of {self.size} samples), the loss being affine in the data"
        return f"mean of f(x, xi_k) over {self.size} samples"


@dataclass(frozen=True)
class Program:
    """An objective as a convex CVXPY expression, with the constraints of its own variables.

    Examples
    --------
    >>> from wdro_model.counterparts import Program
    >>> bound = cp.Variable()
    >>> program = Program(bound, (cp.abs(x) <= bound,))
    >>> Program.if_convex(cp.sqrt(bound)) is None                 # not convex
    True
    """

    expression: Any
    constraints: tuple[Any, ...] = ()

    def over(self, unit: float) -> Program:
        """The program of the objective divided by a positive number."""
        if unit == 1.0:
            return self
        return Program(times(self.expression, 1.0 / unit), self.constraints)

    def is_piecewise_linear(self, constraints: Sequence[Any]) -> bool:
        """True if all is linear but for maxima, so that HiGHS takes it with integers."""
        written = [*self.constraints, *(c for c in constraints if hasattr(c, "args"))]
        linear = all(
            isinstance(c, LINEAR) and all(argument.is_pwl() for argument in c.args) for c in written
        )
        return linear and bool(self.expression.is_pwl())

    @classmethod
    def if_convex(cls, expression: Any, constraints: tuple[Any, ...] = ()) -> Program | None:
        """The program; None if CVXPY cannot verify that it is convex, or cannot canonicalize it."""
        if not isinstance(constraints, list | tuple):
            raise TypeError(
                f"constraints must be a list or tuple, got one {type(constraints).__name__}; write "
                "[constraint]."
            )
        written = [expression, *(argument for c in constraints for argument in c.args)]
        solvable = (
            expression.is_convex()
            and all(c.is_dcp() for c in constraints)
            and all(is_canonicalisable(e) for e in written)
        )
        return cls(expression, tuple(constraints)) if solvable else None


def empirical_program(model: Model, count: int | None = None) -> Program | None:
    """mean_k f(x, xi_k) as a CVXPY program; None if there is none that CVXPY solves.

    count: the number of samples that decides whether copies are allowed; by default the model's.
    """
    if model.expression is None:
        return None
    if model.affine_in_data or not isinstance(model, RobustModel):
        expression = substitute(model.expression, model.mean_values())
    elif model.structure.pieces is not None:
        expression = max_of_pieces(model)
    else:
        expression = sum_of_losses(model, count or model.joint.size)
    return None if expression is None else Program.if_convex(expression)


def sum_of_losses(model: RobustModel, count: int) -> Any | None:
    """mean_k f(x, xi_k), vectorised or as a copy of the loss for each sample; None if neither."""
    scenarios = model.joint.split(model.joint.matrix)
    if (losses := vectorise(model.expression, scenarios)) is not None:
        return model.shares.expression(losses)
    if not model.structure.convex_on_samples or count > MOST_COPIES:
        return None
    copies = [
        substitute(model.expression, {p: rows[k] for p, rows in scenarios.items()})
        for k in range(model.joint.size)
    ]
    return model.shares.expression(cp.hstack(copies))


def max_of_pieces(model: RobustModel) -> Any:
    """mean_k max_j a_j(x) + <B_j(x), xi_k>, one vector of N entries for each piece."""
    samples = model.joint.split(model.joint.matrix)
    pieces = []
    for piece in model.structure.pieces or ():
        parts = affine_parts(piece, model.joint.parameters)
        total = parts.constant
        # Parameter by parameter: convex slopes stay convex where their own samples have one sign.
        for parameter, slope in parts.slopes.items():
            rows = samples[parameter].reshape(model.joint.size, -1)
            total = total + rows @ cp.vec(slope, order="C")
        pieces.append(total)
    return model.shares.expression(cp.maximum(*pieces) if len(pieces) > 1 else pieces[0])


def flat_slope(model: RobustModel, slopes: dict[Any, Any]) -> Any:
    """B(x) of all the data as one vector of d entries."""
    flat = [cp.vec(slopes[p], order="C") for p in model.joint.parameters]
    return cp.hstack(flat) if len(flat) > 1 else flat[0]
