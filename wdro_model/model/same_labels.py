"""Coordinates that meet in an expression must have the same labels.

The columns of uncertain data have labels, and so have the coordinates of a decision in a set of
edges, pairs or items. Where the two are added, multiplied or compared entry by entry, an entry goes
with the one at its position: another order of the labels would be a wrong answer without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise

from wdro_model.loss import CallableLoss
from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.sets import FeasibleSet, In
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import is_numbering, listed

MOVES = (atoms.INDEX, atoms.SPECIAL_INDEX, atoms.RESHAPE, atoms.TRANSPOSE)
"""Atoms that put entries elsewhere."""
MIXES = (atoms.HSTACK, atoms.VSTACK, atoms.CONCATENATE, atoms.KRON, *atoms.CONVOLUTIONS)
"""Atoms in which entries at the same position do not meet."""
ENTRYWISE = (Elementwise, atoms.ADD, atoms.NEGATE, atoms.MULTIPLY, atoms.DIVIDE)
"""Atoms of one labelled argument that leave entries where they are."""
Found = dict[int, np.ndarray]
"""By the ids of labelled leaves, which of their coordinates stands where in an expression."""


@dataclass(frozen=True)
class Labelled:
    """A leaf with a label for each entry, row by row."""

    text: str
    labels: tuple[Any, ...]
    feasible: FeasibleSet | None = None
    """The set of a decision."""


def refuse_other_labels(objective: Any, constraints: Sequence[Any]) -> None:
    """A ValueError where data and decisions, or two data, meet whose labels differ."""
    roots = [c for c in (objective, *constraints) if hasattr(c, "args")]
    parameters = {p for root in roots for p in root.parameters()}
    opaque = isinstance(objective, CallableLoss)
    parameters |= set(objective.parameters) if opaque else set()
    leaves = {
        p.id: Labelled(f"the columns of {p.name()!r}", p.columns)
        for p in parameters
        if isinstance(p, UncertainParameter) and p.columns is not None
    }
    if not leaves:
        return
    for c in constraints:
        if isinstance(c, In) and c.set.names is not None:
            text = f"the coordinates of {c.variable.name()!r} in {c.set!r}"
            leaves[c.variable.id] = Labelled(text, tuple(c.set.names), c.set)
    for root in roots:
        _met(root, leaves)
    for p, v in product(objective.parameters, objective.variables) if opaque else ():
        if p.id in leaves and v.id in leaves:  # one order, though it is not known where they meet
            rows = (np.arange(p.size), np.arange(v.size))
            _compare(leaves[p.id], leaves[v.id], *rows, order_alone=True)


def _met(expression: Any, leaves: dict[int, Labelled]) -> Found:
    """The labelled leaves whose entries an expression has at each position, all of them."""
    own = getattr(expression, "id", None)
    if own in leaves and not expression.args:
        return {own: np.arange(expression.size).reshape(expression.shape)}
    parts = [_met(argument, leaves) for argument in expression.args]
    if isinstance(expression, MOVES):
        moved = {key: expression.numeric([at]).astype(int) for key, at in parts[0].items()}
        return {key: at for key, at in moved.items() if at.size == parts[0][key].size}
    by_product = isinstance(expression, atoms.MATMUL) and not isinstance(expression, ENTRYWISE)
    inner = by_product and expression.size == 1
    if isinstance(expression, MIXES) or (by_product and not inner):
        return {}
    shapes, shape = [a.shape for a in expression.args], getattr(expression, "shape", None)
    result: Found = {}
    for part, own in zip(parts, shapes):
        if inner or shapes.count(own) > 1 or (own == shape and isinstance(expression, ENTRYWISE)):
            for (key, at), (other, there) in product(part.items(), result.items()):
                if key != other and at.size == there.size:
                    _compare(leaves[key], leaves[other], at, there)
            result |= part
    return result if shape in shapes else {}


def _compare(
    mine: Labelled, theirs: Labelled, at: np.ndarray, there: np.ndarray, order_alone: bool = False
) -> None:
    """A ValueError unless the labels at each position are the same."""
    if mine.feasible is not None:
        mine, theirs, at, there = theirs, mine, there, at
    if mine.feasible is not None:
        return  # how the decisions of two sets meet is said by nobody but the user
    names = [theirs.labels[i] for i in there.ravel()]
    places = {} if theirs.feasible is None else theirs.feasible.coordinates
    own = [mine.labels[i] for i in at.ravel()]
    own = [theirs.labels[places[label]] if label in places else label for label in own]
    unlike = theirs.feasible is None and set(own).isdisjoint(names)
    if own == names or len(own) == 1 or unlike:  # data in words of their own are no misprint
        return
    missing, extra = set(names) - set(own), set(own) - set(names)
    if not missing and not extra:
        k = next(k for k, (a, b) in enumerate(zip(own, names)) if a != b)
        raise ValueError(
            f"{mine.text} are {theirs.text} in another order: entry {k} is {own[k]!r} and meets "
            f"{names[k]!r}. Give the order when the data is declared, UncertainParameter(..., "
            "labels=...), by the set or a list; samples=frame.to_numpy() has no labels."
        )
    if not order_alone and not is_numbering(theirs.labels):
        extras = listed([label for label in own if label in extra])
        missed = listed([label for label in names if label in missing])
        raise ValueError(
            f"{mine.text} and {theirs.text} meet entry by entry and have different labels: "
            f"{extras} in place of {missed}. Rename the columns, or pass samples=frame.to_numpy() "
            "where they are in the order of the entries they meet."
        )
