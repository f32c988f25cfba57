"""Facts that were declared outside the library, with errors that name the fact and the atom.

A method of the user is called deep inside a solve: an error there, or an answer of another kind
than the fact has, is reported as what it is.
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
