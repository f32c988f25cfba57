"""How nature answers a price of transport, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Answer:
    """The best move of each of n samples at one price."""

    values: Array
    """(n,)."""
    costs: Array
    """(n,)."""
    moves: Callable[[], Array]
    """(n, d), computed when it is asked for."""


@dataclass(frozen=True)
class Response:
    """A cluster's answers, for the samples in `index`."""

    index: Array
    at: Callable[[float], Answer]
    rate: float
    """The largest dual norm of a slope."""
    still: float
    """Sum over the samples of the largest piece where nothing moves."""
