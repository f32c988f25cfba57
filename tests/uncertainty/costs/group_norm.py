"""A cost that a user might write: the sum of Euclidean norms over groups of coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from wdro_model.uncertainty.costs import BoundCost, GroundCost


@dataclass(frozen=True, eq=False)
class BoundGroupNorm(BoundCost):
    """c = sum_g |delta_g|, of dual max_g |b_g|."""

    dimension: int
    groups: tuple[slice, ...]

    is_norm = True

    def describe(self):
        return f"the sum of {len(self.groups)} Euclidean norms"

    def of_displacements(self, delta):
        return sum(np.linalg.norm(delta[:, g], axis=1) for g in self.groups)

    def gradient(self, delta):
        out = np.zeros_like(delta)
        for g in self.groups:
            size = np.linalg.norm(delta[:, g], axis=1, keepdims=True)
            out[:, g] = delta[:, g] / np.where(size > 0, size, 1.0)
        return out

    def dual_norm(self, slope):
        return cp.max(cp.hstack([cp.norm(slope[g], 2) for g in self.groups]))

    def dual_norms(self, slopes):
        return np.max([np.linalg.norm(slopes[..., g], axis=-1) for g in self.groups], axis=0)

    def steepest_move(self, slope):
        sizes = [np.linalg.norm(slope[g]) for g in self.groups]
        best, move = int(np.argmax(sizes)), np.zeros_like(slope)
        if sizes[best] > 0:
            move[self.groups[best]] = slope[self.groups[best]] / sizes[best]
        return move


@dataclass(frozen=True, eq=False)
class GroupNorm(GroundCost):
    """Groups of so many coordinates, side by side."""

    width: int = 2
    order = 1.0
    bound = BoundGroupNorm

    def bind(self, joint):
        starts = range(0, joint.dimension, self.width)
        return BoundGroupNorm(joint.dimension, tuple(slice(s, s + self.width) for s in starts))

    def describe(self):
        return "sum_g |xi_g - zeta_g|"


@dataclass(frozen=True, eq=False)
class Bare(BoundCost):
    """The same cost, told as values alone."""

    dimension: int
    groups: tuple[slice, ...]

    of_displacements = BoundGroupNorm.of_displacements

    def describe(self):
        return "a cost told by its values"


@dataclass(frozen=True, eq=False)
class BareGroupNorm(GroupNorm):
    """The group norm of somebody who does not say what it is."""

    bound = Bare

    def bind(self, joint):
        return Bare(joint.dimension, super().bind(joint).groups)
