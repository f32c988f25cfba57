"""What calling a loss returns beside its values: the gradients, for weights chosen afterwards."""

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
