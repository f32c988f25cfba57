"""Does the rule of an atom say what the atom is? Asked once of rules that are not the library's.

A rule with a wrong sign minimises something else and calls it optimal: its value is held against
the atom's own `numeric`, its pullbacks against differences of that value, at random operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BATCH = 3
STEP, CLOSE = 1e-6, 1e-4
"""Of the differences, and how far pullbacks may be from them, relatively."""
CENTRES = (0.0, 1.5)
"""Operands are tried around these: zero, and where logarithms and roots are defined."""


def check_rule(atom: Any, operands: Sequence[Any], kernel: Callable[..., Any]) -> None:
    """Raise a ValueError that names the atom if its rule is not the atom."""
    rng, name = np.random.default_rng(0), type(atom).__name__
    for centre in CENTRES:
        values = [
            centre + rng.uniform(-1, 1, ((BATCH,) if o.batched else ()) + o.shape) for o in operands
        ]
        try:
            with np.errstate(all="ignore"):
                expected = _numeric(atom, operands, values)
        except (NotImplementedError, ArithmeticError, ValueError):
            return  # an atom that cannot evaluate itself
        if np.isfinite(expected).all():
            break
    else:
        return
    found = _called(name, kernel, values, len(operands))
    value = np.broadcast_to(np.asarray(found[0], dtype=float), expected.shape)
    if not np.allclose(value, expected, rtol=1e-6, atol=1e-9):
        where = tuple(map(int, np.argwhere(~np.isclose(value, expected, rtol=1e-6, atol=1e-9))[0]))
        raise ValueError(
            f"the rule of the atom {name!r} gives {value[where]:.6g} where its numeric() gives "
            f"{expected[where]:.6g}; correct one of them."
        )
    _check_pullbacks(name, operands, kernel, values, found, expected, rng)


def _check_pullbacks(
    name: str,
    operands: Sequence[Any],
    kernel: Callable[..., Any],
    values: list[np.ndarray],
    found: tuple[Any, ...],
    expected: np.ndarray,
    rng: np.random.Generator,
) -> None:
    weights = rng.uniform(0.5, 1.5, expected.shape)
    for k, operand in enumerate(operands):
        move = rng.uniform(0.5, 1.5, values[k].shape)

        def total(step: float, k: int = k, move: np.ndarray = move) -> float:
            moved = [v + step * move if j == k else v for j, v in enumerate(values)]
            return float(np.sum(weights * np.asarray(kernel(*moved)[0])))

        try:
            pulled = np.asarray(found[k + 1](weights), dtype=float)
            if pulled.ndim > values[k].ndim:
                pulled = pulled.sum(axis=0)
            slope = float(np.sum(np.broadcast_to(pulled, values[k].shape) * move))
        except Exception as error:
            raise ValueError(
                f"the pullback of operand {k} in the rule of the atom {name!r} fails: {error}; it "
                "takes an array of the atom's shape, preceded by the batch axis, and returns one "
                f"of the operand's, {operand.shape}."
            ) from error
        differences = (total(STEP) - total(-STEP)) / (2 * STEP)
        if abs(slope - differences) > CLOSE * (1.0 + abs(differences)):
            raise ValueError(
                f"the pullback of operand {k} in the rule of the atom {name!r} is not the "
                f"derivative of its value: {slope:.6g} against differences of {differences:.6g}."
            )


def _called(
    name: str, kernel: Callable[..., Any], values: list[np.ndarray], count: int
) -> tuple[Any, ...]:
    try:
        found = kernel(*values)
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
    return found


def _numeric(atom: Any, operands: Sequence[Any], values: list[np.ndarray]) -> np.ndarray:
    """The atom's own values, row by row where an operand is batched."""
    if not any(o.batched for o in operands):
        return np.asarray(atom.numeric(values), dtype=float)
    rows = [
        np.asarray(atom.numeric([v[b] if o.batched else v for o, v in zip(operands, values)]))
        for b in range(BATCH)
    ]
    return np.array(rows, dtype=float).reshape(BATCH, *atom.shape)
