"""Errors and warnings of the library, and messages that suggest the nearest known name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from inspect import isclass, isfunction, signature
from types import ModuleType
from typing import Any

from cvxpy.error import SolverError

__all__ = [
    "ConvexityWarning",
    "InaccurateError",
    "InexactOracleError",
    "InfeasibleError",
    "MissingRuleError",
    "NoReformulationError",
    "SamplingWarning",
    "UnboundedError",
    "UnknownToCost",
]
__dir__ = __all__.copy  # what the tab key offers


class InfeasibleError(ValueError):
    """The feasible set is empty.

    Examples
    --------
    >>> x = cp.Variable(2)
    >>> try:
    ...     wdro.Problem(cp.Minimize(cp.sum(x)), [x >= 1, cp.sum(x) <= 1])
    ... except wdro.InfeasibleError as error:
    ...     print(error)
    the feasible set is empty: no value of ... satisfies all of its 2 constraints ...
    """


class UnboundedError(ValueError):
    """The feasible set, or the loss over it, is unbounded where a bounded one is needed.

    Examples
    --------
    >>> x = cp.Variable(2)
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    >>> try:
    ...     wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) <= 1]).solve()
    ... except wdro.UnboundedError as error:
    ...     print("unbounded")
    unbounded
    """


class InaccurateError(SolverError):
    """A solver reports an optimal answer that violates constraints, or is far from its bound.

    Examples
    --------
    >>> issubclass(wdro.InaccurateError, cp.SolverError)
    True
    """


class NoReformulationError(ValueError):
    """No exact robust counterpart is known for this loss, cost and support.

    Attributes
    ----------
    reason
        Why there is no counterpart, without the sentence on methods that apply instead.

    Examples
    --------
    >>> x = cp.Variable(2, nonneg=True)
    >>> gain = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    >>> loss, ball = cp.Minimize(cp.exp(-gain @ x)), wdro.WassersteinBall(0.1)
    >>> problem = wdro.Problem(loss, [cp.sum(x) == 1], ambiguity=ball)
    >>> try:
    ...     problem.solve(method="exact")
    ... except wdro.NoReformulationError as error:
    ...     print(error.reason)
    no exact robust counterpart is known for this model: the loss is not affine in the data ...
    """

    def __init__(self, reason: str, applies: str | None = None) -> None:
        super().__init__(reason if applies is None else f"{reason}. What applies: {applies}.")
        self.reason = reason


class InexactOracleError(ValueError):
    """An oracle's answer is worse than another point of its set: its gaps prove nothing.

    Examples
    --------
    >>> upside_down = wdro.sets.Oracle(lambda direction: np.eye(3)[np.argmax(direction)], 3)
    >>> x = cp.Variable(3)
    >>> price = wdro.UncertainParameter(3, samples=[[1.0, 2.0, 3.0]])
    >>> problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - price)), [wdro.In(x, upside_down)])
    >>> try:
    ...     problem.solve()
    ... except wdro.InexactOracleError as error:
    ...     print("its answers are no minima")
    its answers are no minima
    """


class MissingRuleError(NotImplementedError):
    """An atom of the loss has no batched rule.

    Examples
    --------
    >>> x = cp.Variable((2, 2))
    >>> picture = wdro.UncertainParameter((2, 2), samples=[[[1.0, 0.0], [0.0, 1.0]]])
    >>> try:
    ...     wdro.Problem(cp.Minimize(cp.sigma_max(picture - x)), [cp.abs(x) <= 1])
    ... except wdro.MissingRuleError as error:
    ...     print(error)
    the atom 'sigma_max' in ... has no batched rule. ...
    """


class UnknownToCost(ValueError):
    """A ground cost was asked for something that it does not know, such as its dual norm.

    Examples
    --------
    >>> bound = wdro.costs.BoundUserCost(2, lambda a, b: np.abs(b - a).sum(axis=1))
    >>> try:
    ...     bound.dual_norms(np.ones((1, 2)))
    ... except wdro.errors.UnknownToCost as error:
    ...     print("the dual norm is not known")
    the dual norm is not known
    """


class ConvexityWarning(UserWarning):
    """The loss is not provably convex in the decision: the result is a stationary point.

    Examples
    --------
    >>> import warnings, cvxpy as cp, wdro_model as wdro
    >>> x = cp.Variable(2, nonneg=True)
    >>> cost = wdro.UncertainParameter((2, 2), samples=[[[0.0, 2.0], [2.0, 0.0]]])
    >>> problem = wdro.Problem(cp.Minimize(wdro.quadratic_form(x, cost)), [cp.sum(x) == 1])
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     value = problem.solve()
    >>> problem.status, caught[-1].category.__name__
    ('stationary', 'ConvexityWarning')
    """


class SamplingWarning(UserWarning):
    """The Monte Carlo estimate of the smoothed objective is unreliable.

    Examples
    --------
    >>> import warnings, wdro_model as wdro
    >>> with warnings.catch_warnings():                      # stop where the draws are too few
    ...     warnings.simplefilter("error", wdro.SamplingWarning)
    ...     warnings.warn("few draws count", wdro.SamplingWarning)
    Traceback (most recent call last):
        ...
    wdro_model.errors.SamplingWarning: few draws count
    """


@contextmanager
def blaming(whose: str) -> Iterator[None]:
    """Add a note with the name of a user's function to the errors that it raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"(raised by {whose}, which wdro_model called)")
        raise


def function_name(function: Any) -> str:
    """The name of a callable for messages."""
    return getattr(function, "__name__", repr(function))


def unknown_name(kind: str, given: object, known: Iterable[str], meant: str | None = None) -> str:
    """The message for an unknown name: the name, the nearest known one, and the list.

    meant: the name to suggest in place of the nearest one.
    """
    known = sorted(known)
    hint = did_you_mean(given, known) if meant is None else f" Did you mean {meant!r}?"
    return f"unknown {kind} {given!r}.{hint} Known: {', '.join(map(repr, known))}."


def nearest(given: object, known: Iterable[Any]) -> Any | None:
    """The known name that is most similar, without regard to case; None if none is similar."""
    lower = {str(name).lower(): name for name in known}
    near = get_close_matches(str(given).lower(), list(lower), n=1, cutoff=0.5)
    return lower[near[0]] if near else None


def did_you_mean(given: object, known: Iterable[Any]) -> str:
    """The sentence " Did you mean ...?" with the nearest known name; empty if none is near."""
    near = nearest(given, known)
    return "" if near is None else f" Did you mean {near!r}?"


def naming_keywords(function: Any) -> Any:
    """The function with a TypeError for unknown keywords that suggests the nearest keyword."""

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # the function was entered
                raise
            known = [name for name in signature(function).parameters if name != "self"]
            wrong = [name for name in keywords if name not in known]
            if not wrong:
                raise
            name = function.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{name}: {unknown_name('argument', wrong[0], known)}") from None

    return checked


def name_keywords_of(modules: Iterable[ModuleType]) -> None:
    """Apply `naming_keywords` to the public classes and functions of these modules.

    Functions with **keywords are skipped, and so are names that a module imports at first use.
    """
    done: dict[Any, Any] = {}
    names = [(m, name) for m in modules for name in vars(m)["__all__"] if name in vars(m)]
    for module, name in names:
        thing = getattr(module, name)
        own = vars(thing).get("__init__") if isclass(thing) else thing
        if not isfunction(own) or hasattr(own, "__wrapped__"):
            continue
        if any(p.kind is p.VAR_KEYWORD for p in signature(own).parameters.values()):
            continue
        checked = done.setdefault(own, naming_keywords(own))
        if isclass(thing):
            thing.__init__ = checked  # type: ignore[method-assign]
        else:  # where it is defined as well, by which it is pickled
            setattr(module, name, checked)
            setattr(sys.modules[own.__module__], own.__name__, checked)
