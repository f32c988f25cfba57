"""A loss given as a function, for losses that CVXPY cannot state or that have a faster kernel.

def loss(x, scenarios):
    residual = scenarios[target] - scenarios[features] @ x[theta]          # (B,)
    def pullback(weights):
        return {theta: -2 * (weights * residual) @ scenarios[features]}
    return residual**2, pullback

CallableLoss(loss, variables=[theta], parameters=[features, target], convex=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.checks import flag
from wdro_model.errors import blaming
from wdro_model.loss.batched import FlatLoss, Gradients, Pullback, as_weights, batch_size, entry
from wdro_model.uncertainty.parameter import UncertainParameter

Function = Callable[[Mapping[Any, np.ndarray], Mapping[Any, np.ndarray]], tuple[Any, Any]]


class CallableLoss:
    """A loss computed by the user's function, with its outputs checked.

    Parameters
    ----------
    function
        `(x, scenarios) -> (values, pullback)`, where x is `{variable: array}` and scenarios are
        `{parameter: (B, *shape)}`; values has shape (B,), and pullback(weights) returns
        `{variable: gradient of weights @ values}`. It may also return
        `{parameter: (B, *shape)}`, row b being weights_b times the gradient in the data, which
        some methods need.
    variables, parameters
        The variables and the uncertain parameters that the function reads: lists, or a single one.
    convex
        True if you know that the loss is convex in the variables.
    name
        Name of the loss in messages; the name of the function by default.

    Examples
    --------
    >>> x = cp.Variable(2)
    >>> target = wdro.UncertainParameter(2, samples=[[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    >>> def squared_distance(values, scenarios):
    ...     difference = values[x] - scenarios[target]
    ...     def pullback(weights):
    ...         gradient = 2 * weights[:, None] * difference
    ...         return {x: gradient.sum(axis=0), target: -gradient}
    ...     return (difference**2).sum(axis=1), pullback
    >>> loss = wdro.CallableLoss(squared_distance, x, target, convex=True)
    >>> problem = wdro.Problem(loss, [x >= 0, x <= 2])
    >>> round(problem.solve(), 2)
    1.33
    >>> print(x.value.round(2))
    [1. 1.]
    """

    def __init__(
        self,
        function: Function,
        variables: Sequence[Any] | Any,
        parameters: Sequence[Any] | Any = None,
        convex: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = name or getattr(function, "__name__", type(function).__name__)
        if not callable(function):
            raise TypeError(f"CallableLoss needs a function of (x, scenarios), got {function!r}.")
        if parameters is None:
            raise ValueError(
                f"the loss {self.name!r} needs parameters=[...], the uncertain parameters that its "
                "function reads; [] if it reads none."
            )
        whose = f"of the loss {self.name!r}"
        self.variables = _leaves(variables, cp.Variable, f"variables {whose}", "")
        if not self.variables:
            raise ValueError(f"the loss {self.name!r} needs at least one variable.")
        hint = "; what is certain the function can read by itself"
        self.parameters = _leaves(parameters, UncertainParameter, f"parameters {whose}", hint)
        self.function = function
        self.convex = flag(f"convex of the loss {self.name!r}", convex)

    def __call__(
        self, x: Mapping[Any, Any], scenarios: Mapping[Any, Any]
    ) -> tuple[np.ndarray, Pullback]:
        """Values (B,) and the pullback."""
        size = batch_size(scenarios)
        point = {v: entry(x, v, v.shape, "variable") for v in self.variables}
        data = {
            p: entry(scenarios, p, (size, *p.shape), "uncertain parameter") for p in self.parameters
        }
        with blaming(f"the loss {self.name!r}"):
            returned = self.function(point, data)
        if not (isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])):
            raise TypeError(
                f"the loss {self.name!r} must return (values, pullback), pullback being a function "
                f"of the weights; got {type(returned).__name__}."
            )
        values = self._checked(returned[0], (size,), "values")
        gradients = partial(self._gradients, returned[1], size)
        return values, Pullback(
            partial(self._in_decision, gradients), partial(self._in_data, gradients, size)
        )

    def __array__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(
            f"{self!r} is no CVXPY expression: pass it as wdro_model.Problem(loss, constraints), "
            "without cp.Minimize or cp.Maximize (a reward is maximised by the loss minus the "
            "reward), and with all terms inside its function."
        )

    def __repr__(self) -> str:
        return f"CallableLoss({self.name})"

    def _gradients(self, pullback: Callable[[np.ndarray], Any], size: int, weights: Any) -> Any:
        weights = as_weights(weights, size)
        with blaming(f"the pullback of the loss {self.name!r}"):
            gradients = pullback(weights)
        if not isinstance(gradients, Mapping):
            raise TypeError(
                f"the pullback of the loss {self.name!r} must return a dict "
                f"{{variable: gradient}}, got {type(gradients).__name__}."
            )
        known = {*self.variables, *self.parameters}
        for leaf in gradients:
            if leaf not in known:
                raise ValueError(
                    f"the pullback of the loss {self.name!r} returned a gradient for {leaf}, which "
                    "is not among its variables and parameters."
                )
        return gradients

    def _in_decision(self, gradients: Callable[[Any], Any], weights: Any) -> Gradients:
        given, checked = gradients(weights), {}
        for v in self.variables:
            if v not in given:
                raise ValueError(
                    f"the pullback of the loss {self.name!r} returned no gradient for the variable "
                    f"{v.name()!r}; return zeros if the loss does not depend on it."
                )
            checked[v] = self._checked(given[v], v.shape, f"gradient in {v.name()!r}")
        return checked

    def _in_data(
        self,
        gradients: Callable[[Any], Any],
        size: int,
        weights: Any,
        only: Sequence[Any] | None = None,
    ) -> Gradients:
        given, checked = gradients(weights), {}
        for p in self.parameters if only is None else only:
            if p not in given:
                raise NotImplementedError(
                    f"the loss {self.name!r} gives no gradient in the uncertain parameter "
                    f"{p.name()!r}, and this method needs it; let its pullback return "
                    f"{{{p.name()}: (B, *shape)}} too, or integrate by plain Gaussian draws."
                )
            checked[p] = self._checked(given[p], (size, *p.shape), f"gradient in {p.name()!r}")
        return checked

    def _checked(self, array: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
        array = np.asarray(array, dtype=float)
        if array.shape != shape:
            raise ValueError(
                f"the {what} of the loss {self.name!r} must have shape {shape}, got {array.shape}."
            )
        if not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(
                f"the {what} of the loss {self.name!r} must be finite, got {array[where]} at "
                f"index {where}; where np.exp overflows, write np.logaddexp(0, v) for "
                "np.log1p(np.exp(v)), and scipy.special.expit(v) for its slope."
            )
        return array


def _leaves(given: Any, kind: type, what: str, hint: str) -> tuple[Any, ...]:
    """The given leaves as a tuple, checked to be of one kind; a single leaf counts as a list."""
    if isinstance(given, cp.Expression):
        given = (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"{what} must be a list, got {given!r}; write [...].")
    leaves = tuple(given)
    for leaf in leaves:
        if not isinstance(leaf, kind):
            raise ValueError(
                f"the {what} must be of type {kind.__name__}, got {type(leaf).__name__} "
                f"{str(leaf)!r}{hint}."
            )
    return leaves


# ------------------------------------------------------------------ the gradient
@dataclass(frozen=True)
class Tolerances:
    """Limits of the comparison of a pullback with differences of the values."""

    row_count: int = 8
    """Samples at which a gradient is checked; each costs five evaluations of the loss."""
    step: float = 1e-4
    """Length of a difference, relative to the move; rounding spoils shorter ones."""
    slope: float = 1e-3
    """Relative error above which a gradient is wrong; differences themselves err by 1e-8."""


TOLERANCES = Tolerances()


def refuse_wrong_gradient(
    loss: FlatLoss, x: np.ndarray, way: np.ndarray, rng: np.random.Generator, name: str
) -> None:
    """Raise a ValueError where the pullback at a decision is not the slope of the values.

    way: the move of the decision along which its gradient is checked; the data moves at random.
    Differences to both sides, or of two lengths, disagree at a kink and under noise: no error is
    raised then, nor for gradients that are not given, nor outside the domain of the loss.
    """
    rows = np.zeros((1, 0))
    if loss.joint is not None:
        rows = loss.joint.matrix[rng.integers(loss.joint.size, size=TOLERANCES.row_count)]
    weights = rng.uniform(0.5, 1.5, size=len(rows))
    spread = rows.std(axis=0) + 1e-2 * np.abs(rows).max(axis=0, initial=0.0)
    moves = np.where(spread > 0, spread, 1.0) * rng.standard_normal(rows.shape)
    for what, dx, dz in (
        ("variables", way, np.zeros_like(rows)),
        ("uncertain parameters", np.zeros_like(way), moves),
    ):
        try:
            pullback = loss(x, rows)[1]
            in_x = pullback.in_decision(weights) if what == "variables" else np.zeros_like(x)
            in_data = pullback.in_data(weights) if dz.any() else dz
            told = float(in_x @ dx + np.sum(in_data * dz))
            steps = TOLERANCES.step * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
            f = [float(weights @ loss.values(x + s * dx, rows + s * dz)) for s in steps]
        except (NotImplementedError, ArithmeticError, ValueError):
            continue
        wide, narrow = (f[4] - f[0]) / (2 * TOLERANCES.step), (f[3] - f[1]) / TOLERANCES.step
        bend = abs(f[4] - 2 * f[2] + f[0]) / TOLERANCES.step
        off, size = abs(told - narrow), max(abs(told), abs(narrow), 1e-6 * abs(f[2]))
        if off > TOLERANCES.slope * size and off > 10 * abs(wide - narrow) and off > 2 * bend:
            raise ValueError(
                f"the loss {name!r} has a wrong gradient in its {what}: along a line its pullback "
                f"gives the slope {told:.6g}, differences of its values give {narrow:.6g}; correct "
                "the pullback, which is the gradient of weights @ values, and try it by "
                "wdro_model.testing.check_loss(loss)."
            )
