"""The protocol `values, pullback = loss(x, scenarios)`, and checks of what a loss is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Gradients = dict[Any, np.ndarray]


@dataclass(frozen=True)
class Pullback:
    """Gradients of weights @ values, at the point and scenarios of the call that returned it.

    in_decision: weights (B,) -> {variable: gradient of weights @ values, the variable's shape};
        calling the pullback itself does the same.
    in_data: weights (B,) -> {parameter: (B, *shape)}, row b being weights_b grad_xi f(x, xi_b);
        with a second argument, for the parameters in it alone.

    Valid until the next call of the same loss.
    """

    in_decision: Callable[[np.ndarray], Gradients]
    in_data: Callable[..., Gradients]

    def __call__(self, weights: np.ndarray) -> Gradients:
        return self.in_decision(weights)


class Loss(Protocol):
    """A loss f(x, xi) on a batch of scenarios: `values, pullback = loss(x, scenarios)`."""

    variables: tuple[Any, ...]
    parameters: tuple[Any, ...]

    def __call__(
        self, x: Mapping[Any, np.ndarray], scenarios: Mapping[Any, np.ndarray]
    ) -> tuple[np.ndarray, Pullback]: ...


def batch_size(scenarios: Mapping[Any, Any]) -> int:
    """The common number of rows B of the scenarios; 1 if there are none."""
    sizes = {p: np.shape(rows)[0] if np.ndim(rows) else 0 for p, rows in scenarios.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{p.name()!r}: {n}" for p, n in sizes.items())
        raise ValueError(f"all parameters share the batch axis, got numbers of rows {listed}.")
    return next(iter(sizes.values()), 1)


def entry(given: Mapping[Any, Any], leaf: Any, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """The value given for a variable or a parameter, as an array of the shape it must have."""
    if leaf not in given:
        raise ValueError(f"no value given for the {kind} {leaf.name()!r}, of shape {leaf.shape}.")
    value = np.asarray(given[leaf], dtype=float)
    if value.shape != shape:
        raise ValueError(f"{kind} {leaf.name()!r} needs shape {shape}, got {value.shape}.")
    return value


def as_weights(weights: Any, size: int) -> np.ndarray:
    """The weights as an array (B,), or an error that names both sizes."""
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (size,):
        raise ValueError(f"weights must have shape ({size},), got {weights.shape}.")
    return weights
