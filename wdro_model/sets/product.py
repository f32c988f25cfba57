"""Several sets side by side, each on its own coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.sets.arguments import as_direction, as_flat
from wdro_model.sets.backends import Answer, Side, Vector
from wdro_model.sets.feasible_set import BoundedSet, FeasibleSet
from wdro_model.sets.rounding import Value, best_of

Where = slice | np.ndarray


class ProductSet(BoundedSet):
    """{x : x[indices_b] in set_b for every block b}; the blocks share out all coordinates.

    ProductSet([(trees, slice(0, 10)), (paths, [10, 12, 11])]), or ProductSet([trees, paths]) for
    consecutive coordinates. Indices may be a slice, a range or a list. `blocks` holds the pairs.

    Examples
    --------
    >>> both = wdro.sets.ProductSet([wdro.sets.Simplex(2), wdro.sets.Box([0.0, 0.0], 1.0)])
    >>> both.minimize([2.0, 1.0, -1.0, 1.0])
    array([0., 1., 1., 0.])
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        given = list(blocks)
        if not given:
            raise ValueError("a ProductSet needs at least one set, got none.")
        sets = [block[0] if isinstance(block, tuple) else block for block in given]
        for position, block in enumerate(sets):
            if not isinstance(block, FeasibleSet):
                raise ValueError(
                    f"block {position} of a ProductSet must be a feasible set or a pair "
                    f"(set, indices), got {type(block).__name__}."
                )
        self.dimension = sum(block.dimension for block in sets)
        starts = np.cumsum([0, *(block.dimension for block in sets)])
        where = []
        for position, block in enumerate(given):
            if isinstance(block, tuple):
                where.append(self._as_indices(position, *block))
            else:
                where.append(np.arange(starts[position], starts[position + 1]))
        self._check_partition(where)
        self.blocks: tuple[tuple[FeasibleSet, Where], ...] = tuple(zip(sets, map(_as_slice, where)))
        self.nonnegative_directions = any(block.nonnegative_directions for block in sets)
        self.is_polytope = all(block.is_polytope for block in sets)
        self.has_constraints = all(block.has_constraints for block in sets)
        self.accuracy = max(block.accuracy for block in sets)
        self.bounds = self._joint_bounds()
        preferred = {block.preferred_direction for block in sets}
        self.preferred_direction = preferred.pop() if len(preferred) == 1 else None

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """The blocks' points together, and the sum of their slacks."""
        sides = {
            side: np.asarray(values, dtype=np.float64)
            for side, values in (("lower", lower), ("upper", upper))
            if values is not None
        }
        vertex, total = np.empty(direction.size), 0.0
        for block, where in self.blocks:
            bounds = {side: values[where] for side, values in sides.items()}
            vertex[where], slack = block.minimize_with_slack(direction[where], **bounds)
            total += slack
        return vertex, total

    def minimize_relaxed(self, direction: ArrayLike) -> Vector:
        """The blocks' relaxed minimisers together."""
        given = as_direction(direction, self.dimension)
        vertex = np.empty(given.size)
        for block, where in self.blocks:
            vertex[where] = block.minimize_relaxed(given[where])
        return vertex

    def constraints(self, x: Any) -> list[Any]:
        """The blocks' constraints, each on its own coordinates of x."""
        flat = as_flat(x, self.dimension)
        return [c for block, where in self.blocks for c in block.constraints(flat[where])]

    def round(
        self, x: ArrayLike, value: Value | None = None, candidates: Iterable[ArrayLike] = ()
    ) -> Vector:
        """Every block rounded, in turn; blocks that are continuous stay as they are.

        With a value, a block is judged with the others where they stand: rounded to the nearest
        first, then to the best.
        """
        point = as_direction(x, self.dimension, kind="x")
        blocks = self._rounding_blocks()
        given = [as_direction(c, self.dimension, kind="candidate") for c in candidates]
        rounded = point.copy()
        for block, where in blocks:
            rounded[where] = block.round(point[where], candidates=[c[where] for c in given])
        if value is None:
            return rounded
        mixed = [self._joined(point, candidate, blocks) for candidate in given]
        best = best_of([rounded, *mixed], value)
        for block, where in blocks:
            parts = [best[where], *(c[where] for c in given)]
            best[where] = block.round(point[where], _PartOf(value, best, where), parts)
        return best

    def check_rounds(self) -> None:
        """Raise a ValueError if no block can be rounded."""
        self._rounding_blocks()

    def discrete_coordinates(self) -> np.ndarray:
        """A mask (n,) of the discrete coordinates of the blocks that round."""
        mask = np.zeros(self.dimension, dtype=bool)
        for block, where in self._rounding_blocks():
            mask[where] = block.discrete_coordinates()
        return mask

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The neighbours of each block that rounds, the other blocks as they are."""
        for block, where in self._rounding_blocks():
            for part in block.neighbours(vertex[where], x[where]):
                other = vertex.copy()
                other[where] = part
                yield other

    def discrete_near(self, x: ArrayLike) -> list[Vector]:
        """Points near x in every block that rounds: the first of each, the second of each, ..."""
        point = as_direction(x, self.dimension, kind="x")
        blocks = self._rounding_blocks()
        near = [block.discrete_near(point[where]) for block, where in blocks]
        points = [point.copy() for _ in range(max(map(len, near)))]
        for (_, where), parts in zip(blocks, near):
            for k, other in enumerate(points):
                other[where] = parts[min(k, len(parts) - 1)]
        return points

    def is_vertex(self, x: ArrayLike) -> bool:
        """Are the blocks that round at discrete points?"""
        point = as_direction(x, self.dimension, kind="x")
        return all(block.is_vertex(point[where]) for block, where in self._rounding_blocks())

    def _rounding_blocks(self) -> list[tuple[FeasibleSet, Where]]:
        """The blocks with discrete points; the refusal of the last block if there are none."""
        blocks, refusals = [], []
        for block, where in self.blocks:
            try:
                block.check_rounds()
                blocks.append((block, where))
            except ValueError as error:
                refusals.append(error)
        if not blocks:
            raise refusals[-1]
        return blocks

    def _joined(self, x: Vector, vertex: Vector, blocks: list[tuple[FeasibleSet, Where]]) -> Vector:
        """The vertex in the blocks that round, x in the others."""
        out = x.copy()
        for _, where in blocks:
            out[where] = vertex[where]
        return out

    def is_current(self) -> bool:
        """Are all blocks current?"""
        return all(block.is_current() for block, _ in self.blocks)

    def check_nonempty(self) -> None:
        """Raise an InfeasibleError if a block is empty."""
        for block, _ in self.blocks:
            block.check_nonempty()

    def check_bounded(self) -> None:
        """Raise an UnboundedError if a block is unbounded."""
        for block, _ in self.blocks:
            block.check_bounded()

    def reset(self) -> None:
        """Reset every block."""
        for block, _ in self.blocks:
            block.reset()

    def describe(self) -> str:
        """The blocks' descriptions."""
        return "; ".join(block.describe() for block, _ in self.blocks)

    def __repr__(self) -> str:
        return f"ProductSet({', '.join(repr(block) for block, _ in self.blocks)})"

    def _as_indices(self, position: int, block: FeasibleSet, indices: Any) -> np.ndarray:
        everywhere = np.arange(self.dimension)
        if isinstance(indices, slice):
            where = everywhere[indices]
        else:
            where = np.asarray(indices)
            if where.ndim != 1 or not np.issubdtype(where.dtype, np.integer):
                raise ValueError(
                    f"indices of block {position} must be a slice or a list of integers, "
                    f"got {indices!r}."
                )
            if np.any(where < 0) or np.any(where >= self.dimension):
                raise ValueError(
                    f"indices of block {position} must lie in 0..{self.dimension - 1} (the blocks' "
                    f"dimensions sum to {self.dimension}), got {indices!r}."
                )
        if where.size != block.dimension:
            raise ValueError(
                f"block {position} is {block!r} of dimension {block.dimension}, but was given "
                f"{where.size} indices."
            )
        return where

    def _check_partition(self, where: list[np.ndarray]) -> None:
        times = np.bincount(np.concatenate(where), minlength=self.dimension)
        if np.any(times != 1):
            index = int(np.flatnonzero(times != 1)[0])
            what = "in no block" if times[index] == 0 else f"in {times[index]} blocks"
            raise ValueError(
                f"the blocks of a ProductSet must share out all coordinates, but coordinate "
                f"{index} is {what}."
            )

    def _joint_bounds(self) -> tuple[Vector, Vector] | None:
        if all(block.bounds is None for block, _ in self.blocks):
            return None
        lower, upper = np.full(self.dimension, -np.inf), np.full(self.dimension, np.inf)
        for block, where in self.blocks:
            if block.bounds is not None:
                lower[where], upper[where] = block.bounds
        return lower, upper


@dataclass(frozen=True)
class _PartOf:
    """A value as a function of one block, the other coordinates kept as they are in `x`."""

    value: Value
    x: Vector
    where: Where

    def __call__(self, part: Vector) -> float:
        return self.value(self._with(part))

    @property
    def gradient(self) -> Any:
        whole = getattr(self.value, "gradient", None)
        return None if whole is None else lambda part: whole(self._with(part))[self.where]

    def _with(self, part: Vector) -> Vector:
        out = self.x.copy()
        out[self.where] = part
        return out


def _as_slice(indices: np.ndarray) -> Where:
    """Consecutive indices as a slice, which NumPy reads without a copy."""
    if np.all(np.diff(indices) == 1):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices
