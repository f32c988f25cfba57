"""The errors and warnings of the library, and the sentence that names the nearest known option."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InfeasibleError(ValueError):
    """The feasible set is empty."""


class UnboundedError(ValueError):
    """The feasible set, or the loss over it, is unbounded where a bounded one is needed."""


class NoReformulationError(ValueError):
    """No exact robust counterpart is known for this loss, cost and support."""


class MissingRuleError(NotImplementedError):
    """An atom of the loss has no batched rule."""


class UnknownToCost(ValueError):
    """A ground cost was asked for something that it does not know, such as its dual norm."""


class ConvexityWarning(UserWarning):
    """The loss is not provably convex in the decision: the result is a stationary point."""


class SamplingWarning(UserWarning):
    """The Monte Carlo estimate of the smoothed objective is unreliable."""


def unknown_name(kind: str, given: object, known: Iterable[str]) -> str:
    """The message for a name that is not known: what was given, the nearest one, the list."""
    known = sorted(known)
    near = get_close_matches(str(given), known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {given!r}.{hint} Known: {', '.join(map(repr, known))}."
