"""Tables of the loss over the block C, one for each decision, where they do."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.integration.conditional.block_table import (
    SIZES,
    BlockTable,
    SharedParts,
    Sizes,
    columns_of,
)
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional

MOST_ENTRIES = 2**24
"""Coefficients of a table (128 MiB), at most."""
TRIES = 3
"""Decisions after which no table is tried any more, if none was found."""
REMEMBERED = 2
"""Decisions whose tables are kept."""


class Tables:
    """Polynomials of the loss at the decisions looked at last; none where they would not do."""

    def __init__(self, rule: Conditional) -> None:
        self._rule = rule
        self._known: list[tuple[Array, BlockTable | None]] = []
        self._sizes: Sizes | None = None
        """Those that the last table needed."""
        self._tries = TRIES
        """How many decisions may still be without a table before there was one."""

    @cached_property
    def _fits(self) -> bool:
        """Is the loss one smooth function of one or two coordinates for all samples?"""
        rule, frame = self._rule, self._rule.frame
        if not (rule.smooth and frame.dimension in (1, 2)) or rule.block.fold is None:
            return False
        still = np.setdiff1d(columns_of(rule, rule.others), frame.moving)
        alike = np.all(rule.rows[:, still] == rule.rows[:1, still])
        return bool(alike)

    @cached_property
    def _shared(self) -> SharedParts:
        return SharedParts.of(self._rule)

    def at(self, x: Array) -> BlockTable | None:
        """The table of a decision; None where the loss is to be evaluated at the nodes."""
        if not self._fits or (self._sizes is None and self._tries == 0):
            return None
        for i, (known, table) in enumerate(self._known):
            if np.array_equal(known, x):
                self._known.insert(0, self._known.pop(i))
                return table
        table = self._made(x)
        self._tries -= 1
        self._known = [(np.array(x), table), *self._known[: REMEMBERED - 1]]
        return table

    def _made(self, x: Array) -> BlockTable | None:
        """The smallest table that resolves the loss, from the size of the last one on."""
        rule = self._rule
        sizes = self._sizes or (SIZES[rule.frame.dimension - 1], SIZES[2])
        while len(rule.rows) * sizes[0] * sizes[1] <= MOST_ENTRIES:
            try:
                with np.errstate(all="ignore"):
                    table = BlockTable(rule, self._shared, x, sizes)
            except (FloatingPointError, ValueError):  # it reaches beyond the domain of the loss
                return None
            larger = table.sufficient_sizes()
            if larger == sizes:
                self._sizes = sizes
                table.trim()
                return table if table.is_true() else None
            if larger is None:
                return None
            sizes = larger
        return None
