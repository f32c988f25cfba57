"""Where scenarios of congestion may lie, and scenarios that were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.display.factual import brief_fields
from wdro_model.traffic.uncertain.scenario_checks import Range, as_range


@dataclass(frozen=True)
class TrafficRanges:
    """Where scenarios may lie: time as a multiple of the free-flow time, alpha and beta.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> room = wdro.datasets.TrafficRanges(time=(0.5, 1.5), alpha=(0.0, 0.5), beta=(2.0, 6.0))
    >>> network = wdro.datasets.sioux_falls()
    >>> wdro.datasets.training_scenarios(network, ranges=room).ranges == room
    True
    """

    time: Range
    alpha: Range
    beta: Range

    def __post_init__(self) -> None:
        for name in ("time", "alpha", "beta"):
            object.__setattr__(self, name, as_range(getattr(self, name), name))

    @classmethod
    def around(cls, alpha: float, beta: float) -> TrafficRanges:
        """Room for training and shifted scenarios of a nominal instance.

        Times from a half to twice the free-flow time, alpha up to ten times, and beta from a
        quarter to seven quarters of the nominal value.
        """
        return cls((0.5, 2.0), (0.0, 10.0 * alpha), (0.25 * beta, 1.75 * beta))


@dataclass(frozen=True, eq=False)
class TrafficDraw:
    """N scenarios: time (N, A), alpha (N,) and beta (N,).

    Examples
    --------
    >>> import wdro_model as wdro
    >>> draw = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls()).sample(5, seed=0)
    >>> draw.time.shape
    (5, 76)
    """

    time: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray

    __repr__ = brief_fields

    def as_test(self, time: Any, alpha: Any, beta: Any) -> Mapping[Any, np.ndarray]:
        """The scenarios by parameter, as `compare` and `problem.losses` take them.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
        >>> time, alpha, beta = scenarios.parameters(10, seed=0)
        >>> held_out = scenarios.sample(50, seed=1).as_test(time, alpha, beta)
        >>> held_out[time].shape
        (50, 76)
        """
        return {time: self.time, alpha: self.alpha, beta: self.beta}
