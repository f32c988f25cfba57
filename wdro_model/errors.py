"""The errors and warnings of the library, and the sentence that names the nearest known option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from cvxpy.error import SolverError


class InfeasibleError(ValueError):
    """The feasible set is empty."""


class UnboundedError(ValueError):
    """The feasible set, or the loss over it, is unbounded where a bounded one is needed."""


class InaccurateError(SolverError):
    """A solver calls an answer optimal that breaks its constraints, or is far from its bound."""


class NoReformulationError(ValueError):
    """No exact robust counterpart is known for this loss, cost and support.

    reason: what stands in the way, without the sentence on what applies instead.
    """

    def __init__(self, reason: str, applies: str | None = None) -> None:
        super().__init__(reason if applies is None else f"{reason}. What applies: {applies}.")
        self.reason = reason


class InexactOracleError(ValueError):
    """An oracle's answer is beaten by a point of its own set: its gaps prove nothing."""


class MissingRuleError(NotImplementedError):
    """An atom of the loss has no batched rule."""


class UnknownToCost(ValueError):
    """A ground cost was asked for something that it does not know, such as its dual norm."""


class ConvexityWarning(UserWarning):
    """The loss is not provably convex in the decision: the result is a stationary point."""


class SamplingWarning(UserWarning):
    """The Monte Carlo estimate of the smoothed objective is unreliable."""


@contextmanager
def blaming(whose: str) -> Iterator[None]:
    """Errors of a function of the user get a note that says whose they are."""
    try:
        yield
    except Exception as error:
        error.add_note(f"(raised by {whose}, which wdro_model called)")
        raise


def unknown_name(kind: str, given: object, known: Iterable[str]) -> str:
    """The message for a name that is not known: what was given, the nearest one, the list."""
    known = sorted(known)
    near = get_close_matches(str(given), known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {given!r}.{hint} Known: {', '.join(map(repr, known))}."
