"""Does the rule of an atom say what the atom is? Asked of rules that are not the library's.

A rule with a wrong sign minimises something else and calls it optimal: its value is held against
the atom's own `numeric`, its pullbacks against differences of that value, at random operands when
it is first used and at those that the data gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BATCH = 3
STEP, CLOSE = 1e-6, 1e-4
"""Of the differences, relative to the operands, and how far pullbacks may be from them."""
CENTRES = (0.0, 1.5)
"""Operands are tried around these: zero, and where logarithms and roots are defined."""
UNKNOWN = (NotImplementedError, ArithmeticError, ValueError)
"""What an atom raises that cannot evaluate itself."""


def check_rule(atom: Any, operands: Sequence[Any], kernel: Callable[..., Any]) -> None:
    """Raise a ValueError that names the atom if its rule is not the atom at random operands."""
    rng = np.random.default_rng(0)
    for centre in CENTRES:
        values = [
            centre + rng.uniform(-1, 1, ((BATCH,) if o.batched else ()) + o.shape) for o in operands
        ]
        try:
            with np.errstate(all="ignore"):
                expected = numeric(atom, operands, values)
        except UNKNOWN:
            return
        if np.isfinite(expected).all():
            hold_rule(atom, operands, kernel, values, expected)
            return


def hold_rule(
    atom: Any,
    operands: Sequence[Any],
    kernel: Callable[..., Any],
    values: Sequence[np.ndarray],
    expected: np.ndarray,
) -> np.ndarray:
    """The rule's value at operands where the atom has the expected one; a ValueError if not so."""
    name = type(atom).__name__
    found = _called(name, kernel, values, len(operands))
    try:
        value = np.broadcast_to(np.asarray(found[0], dtype=float), expected.shape)
    except ValueError:
        raise ValueError(
            f"the rule of the atom {name!r} gives a value of shape {np.shape(found[0])}, where one "
            f"of shape {expected.shape} is needed for operands of shape "
            f"{', '.join(str(v.shape) for v in values)}."
        ) from None
    near = np.isclose(value, expected, rtol=1e-6, atol=1e-9)
    if not near.all():
        where = tuple(map(int, np.argwhere(~near)[0]))
        at = ", ".join(shown(v[where[0]] if o.batched else v) for o, v in zip(operands, values))
        raise ValueError(
            f"the rule of the atom {name!r} gives {value[where]:.6g} where its numeric() gives "
            f"{expected[where]:.6g}, at the operands {at}; correct one of them."
        )
    _check_pullbacks(name, kernel, values, found, expected)
    return value


def _check_pullbacks(
    name: str,
    kernel: Callable[..., Any],
    values: Sequence[np.ndarray],
    found: tuple[Any, ...],
    expected: np.ndarray,
) -> None:
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 1.5, expected.shape)
    noise = 1e-14 * float(np.sum(np.abs(weights * expected)))
    for k, operand in enumerate(values):
        move = rng.uniform(0.5, 1.5, operand.shape) * (1.0 + np.abs(operand))

        def total(step: float, k: int = k, move: np.ndarray = move) -> float:
            moved = [v + step * move if j == k else v.copy() for j, v in enumerate(values)]
            try:
                return float(np.sum(weights * np.asarray(kernel(*moved)[0])))
            except UNKNOWN:
                return np.nan  # outside its domain

        shape: Any = None
        try:
            pulled = np.asarray(found[k + 1](weights), dtype=float)
            shape = pulled.shape
            if pulled.ndim > operand.ndim:
                pulled = pulled.sum(axis=0)
            slope = float(np.sum(np.broadcast_to(pulled, operand.shape) * move))
        except Exception as error:
            why = error if shape is None else f"its answer has the shape {shape}"
            raise ValueError(
                f"the pullback of operand {k} in the rule of the atom {name!r} fails: {why}; it "
                f"takes an array of the value's shape, {expected.shape}, and returns one of the "
                f"operand's, {operand.shape}."
            ) from error
        here = total(0.0)
        # At a kink the pullback lies between the slopes to both sides.
        sides = sorted(((total(STEP) - here) / STEP, (here - total(-STEP)) / STEP))
        if not np.isfinite(sides).all():
            continue
        within = CLOSE * (1.0 + abs(sides[0] + sides[1]) / 2) + noise / STEP
        if not sides[0] - within <= slope <= sides[1] + within:
            kept = shape in (operand.shape, (*expected.shape[:1], *operand.shape))
            raise ValueError(
                f"the pullback of operand {k} in the rule of the atom {name!r} is not the "
                f"derivative of its value: {slope:.6g} against differences of "
                f"{(sides[0] + sides[1]) / 2:.6g}"
                + ("." if kept else f"; its shape is {shape}, the operand's {operand.shape}.")
            )


def _called(
    name: str, kernel: Callable[..., Any], values: Sequence[np.ndarray], count: int
) -> tuple[Any, ...]:
    given = [v.copy() for v in values]
    try:
        found = kernel(*given)
    except TypeError as error:
        raise ValueError(
            f"the rule of the atom {name!r} must take the atom and the values of its {count} "
            f"operand(s): {error}."
        ) from error
    good = isinstance(found, tuple) and len(found) == count + 1 and all(map(callable, found[1:]))
    if not good:
        raise ValueError(
            f"the rule of the atom {name!r} must return a tuple: the value, then one pullback (a "
            f"function) for each of its {count} operand(s); got {type(found).__name__}."
        )
    if not all(np.array_equal(a, b) for a, b in zip(given, values)):
        raise ValueError(
            f"the rule of the atom {name!r} changes the values that it is given; work on a copy."
        )
    return found


def numeric(atom: Any, operands: Sequence[Any], values: Sequence[np.ndarray]) -> np.ndarray:
    """The atom's own values, row by row where an operand is batched."""
    rows = next((len(v) for o, v in zip(operands, values) if o.batched), None)
    if rows is None:
        return np.asarray(atom.numeric([v.copy() for v in values]), dtype=float)
    found = [
        np.asarray(
            atom.numeric([(v[b] if o.batched else v).copy() for o, v in zip(operands, values)])
        )
        for b in range(rows)
    ]
    return np.array(found, dtype=float).reshape(rows, *atom.shape)


def shown(value: Any) -> str:
    """An array in one line, shortened to fit a message."""
    return " ".join(np.array2string(np.asarray(value), precision=4, threshold=6).split())
