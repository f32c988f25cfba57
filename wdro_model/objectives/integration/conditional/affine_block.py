"""The part of the data in which the loss is affine, given the rest."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from wdro_model.loss.polynomial import degree

TRIED_PARAMETERS = 12
"""Up to so many parameters every subset is looked at; beyond, parameters are added greedily."""


def affine_block(expression: Any, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters with the most coordinates in which a loss is jointly affine.

    Only parameters with a box or R^d as support are looked at; () if there are none.
    """
    boxed = [p for p in parameters if p.support.bounds(p.shape) is not None]
    alone = [p for p in boxed if degree(expression, (p,)) <= 1]
    if len(alone) > TRIED_PARAMETERS:
        return _greedy(expression, alone)
    best: tuple[Any, ...] = ()
    for count in range(1, len(alone) + 1):
        for subset in combinations(alone, count):
            if _size(subset) > _size(best) and degree(expression, subset) <= 1:
                best = subset
    return best


def _greedy(expression: Any, alone: list[Any]) -> tuple[Any, ...]:
    best: tuple[Any, ...] = ()
    for p in sorted(alone, key=lambda p: -math.prod(p.shape)):
        if degree(expression, (*best, p)) <= 1:
            best = (*best, p)
    return best


def _size(subset: tuple[Any, ...]) -> int:
    return sum(math.prod(p.shape) for p in subset)
