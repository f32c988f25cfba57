"""Checks of atoms registered outside the library: do their rules and facts tell the truth?

A method of the user is called deep inside a solve: an error there, or an answer of another kind
than the fact has, is reported as what it is.

A rule with a wrong sign minimises something else and calls it optimal: its value is held against
the atom's own `numeric`, its pullbacks against differences of that value, at random operands when
it is first used and at those that the data gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from numbers import Real
from typing import Any

import cvxpy as cp
import numpy as np

Passing = tuple[type[Exception], ...]


def guarded(family: type, base: type, passing: Passing) -> dict[str, Any]:
    """The methods of a family of facts, each of which answers for its errors.

    base: the class of facts that the family was derived from.
    passing: errors that are answers.
    """
    found: dict[str, Any] = {}
    for cls in reversed(family.__mro__[: family.__mro__.index(base)]):
        for name, fact in vars(cls).items():
            if name.startswith("_") or not hasattr(base, name):
                continue
            asked = getattr(base, name)
            if isinstance(asked, bool):
                if not isinstance(fact, bool):
                    raise TypeError(f"the fact {name} is True or False, got {fact!r}.")
            elif not callable(fact) and not isinstance(fact, (staticmethod, classmethod)):
                raise TypeError(f"the fact {name}{_signature(asked)} is a method, got {fact!r}.")
            else:
                found[name] = _guard(name, fact, asked, passing)
    return found


def _guard(name: str, fact: Any, asked: Any, passing: Passing) -> Callable[..., Any]:
    signature = _signature(asked)
    raised: Passing = (*passing, ArithmeticError, MemoryError, NotImplementedError)

    def answer(atom: Any, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except raised:
            raise
        except Exception as error:
            raise ValueError(_failure(name, signature, atom, given, error)) from error

    @wraps(asked)
    def guard(self: Any, atom: Any, *given: Any) -> Any:
        found = answer(atom, partial(fact.__get__(self, type(self)), atom), *given)
        if name == "kernel":
            return partial(answer, atom, found) if callable(found) else found
        if name in FORMS and not FORMS[name][0](found):
            raise ValueError(
                f"the fact {name}{signature} of the atom {type(atom).__name__!r} must return "
                f"{FORMS[name][1]}; got {_kinds(found)}."
            )
        return found

    return guard


def _signature(asked: Any) -> str:
    names = list(inspect.signature(asked).parameters.values())[1:]
    return f"({', '.join(str(p.replace(annotation=inspect.Parameter.empty)) for p in names)})"


def _failure(name: str, signature: str, atom: Any, given: tuple[Any, ...], error: Exception) -> str:
    whose = f"of the atom {type(atom).__name__!r} fails"
    why = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if name not in ("rule", "kernel") or not all(isinstance(v, np.ndarray) for v in given):
        return f"the fact {name}{signature} {whose}: {why}"
    shapes = ", ".join(str(value.shape) for value in given)
    return (
        f"the rule {whose} on values of shape {shapes}: {why}; a value has the shape of its "
        "expression, preceded by the batch axis only if the expression sees the data."
    )


def _kinds(found: Any) -> str:
    if isinstance(found, (list, tuple)):
        inside = ", ".join(type(entry).__name__ for entry in found)
        return f"[{inside}]" if isinstance(found, list) else f"({inside})"
    return f"{found!r}" if found is None or isinstance(found, Real) else type(found).__name__


# ------------------------------------------------------------------ what the answers are
def _is_expression(found: Any) -> bool:
    return isinstance(found, cp.Expression)


def _is_expression_or_none(found: Any) -> bool:
    return found is None or _is_expression(found)


def _are_expressions(found: Any) -> bool:
    return isinstance(found, (list, tuple)) and len(found) > 0 and all(map(_is_expression, found))


def _is_degree(found: Any) -> bool:
    return isinstance(found, Real) and float(found) >= 0.0


FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "degree": (_is_degree, "a number, 0, 1, 2, ... or math.inf"),
    "adjoints": (
        lambda found: isinstance(found, Sequence) and all(map(callable, found)),
        "a list with one function for each argument",
    ),
    "constant_part": (_is_expression_or_none, "a CVXPY expression, or None for zero"),
    "pieces": (
        _are_expressions,
        "a list of CVXPY expressions, one at least (raise NoPieces where there are none)",
    ),
    "terms": (
        lambda found: found is None or _are_expressions(found),
        "a list of CVXPY expressions, or None for the atom itself",
    ),
    "factor": (
        lambda found: (
            found is None
            or (len(found) == 2 and isinstance(found[0], Real) and _is_expression(found[1]))
        ),
        "(number, CVXPY expression), or None",
    ),
    "square": (
        lambda found: found is None or (_are_expressions(found) and len(found) == 2),
        "(u, t), two CVXPY expressions such as (v, cp.Constant(1)), or None",
    ),
    "same_number": (_is_expression_or_none, "a CVXPY expression, or None"),
    "rebuilt": (_is_expression, "a CVXPY expression"),
    "replaced": (_is_expression, "a CVXPY expression"),
    "times": (_is_expression, "a CVXPY expression"),
    "far": (
        _is_expression_or_none,
        "a CVXPY expression, written with CVXPY's functions, or None for the atom itself",
    ),
}
"""Of the facts that return something plain: is it of that kind, and what it is, in words."""


# ------------------------------
# Does the rule of an atom say what the atom is? Asked of rules that are not the library's


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
