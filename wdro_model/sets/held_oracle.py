"""Oracles of choices that see what is held, and know how far their answers may be off."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector

Mask = np.ndarray


class HeldOracle(ABC):
    """The oracle of a backend: one method, for any coordinates (n,) forbidden and mandatory."""

    @abstractmethod
    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        """A choice, and by how much at most it costs more than the best one."""

    def __call__(self, direction: Vector) -> Vector:
        nothing = np.zeros(direction.size, dtype=bool)
        return self.answer(direction, nothing, nothing)[0]


def nothing_left(choices: object, forbidden: Mask, mandatory: Mask) -> InfeasibleError:
    """The error where no choice is left."""
    return InfeasibleError(
        f"{choices!r} has no point with {int(mandatory.sum())} mandatory and "
        f"{int(forbidden.sum())} forbidden coordinates as asked."
    )
