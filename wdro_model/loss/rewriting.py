"""The one way over a CVXPY tree, and the same expression written otherwise.

With numbers for parameters, with factors moved, as it is far away, for all samples at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.cvxpy_classes import ADD
from wdro_model.loss.atoms.expressions import NumberPerSample, constant_number, per_sample
from wdro_model.loss.atoms.facts import NoVectorForm, facts_of


class Walk:
    """A function of expressions, worked out once for each of them.

    A walk says what it gives at a leaf and at an atom, the latter from what it gave at the
    arguments; one that need not go down everywhere overrides `visit`.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def __call__(self, expression: Any) -> Any:
        found = self._known.get(id(expression))
        if found is None:
            # The expression is kept beside its value: an id may be reused once it is gone.
            found = self._known[id(expression)] = (expression, self.visit(expression))
        return found[1]

    def visit(self, expression: Any) -> Any:
        if isinstance(expression, Leaf):
            return self.leaf(expression)
        return self.atom(expression, [self(argument) for argument in expression.args])

    def leaf(self, leaf: Any) -> Any:
        return leaf

    def atom(self, atom: Any, arguments: list[Any]) -> Any:
        """The atom on other arguments, itself where they are its own."""
        if all(new is old for new, old in zip(arguments, atom.args)):
            return atom
        return atom.copy(arguments)


def substitute(expression: Any, values: Mapping[cp.Parameter, np.ndarray]) -> Any:
    """The expression with each parameter in `values` replaced by a constant.

    Leaves are kept, so the variables of the copy are the user's own. Structured atoms come back in
    CVXPY's own atoms where their new arguments allow it.
    """
    return _Substitution(values)(expression)


class _Substitution(Walk):
    def __init__(self, values: Mapping[cp.Parameter, np.ndarray]) -> None:
        super().__init__()
        self.values = values

    def visit(self, expression: Any) -> Any:
        if isinstance(expression, Leaf):
            given = isinstance(expression, cp.Parameter) and expression in self.values
            return cp.Constant(np.asarray(self.values[expression])) if given else expression
        facts = facts_of(expression)
        old = facts.reads(expression)
        new = [self(read) for read in old]
        if all(a is b for a, b in zip(new, old)):
            return expression
        return facts.replaced(expression, new)


def recession(expression: Any) -> Any:
    """The expression with smooth atoms replaced by the maxima that they approach far away."""
    return _Recession()(expression)


class _Recession(Walk):
    def atom(self, atom: Any, arguments: list[Any]) -> Any:
        found = facts_of(atom).far(atom, arguments)
        return super().atom(atom, arguments) if found is None else found


def times(expression: Any, factor: float) -> Any:
    """factor * expression for a factor > 0, pushed inwards: factor * max(a, b) as max(factor a, ..)

    The auxiliary variables that CVXPY puts in place of a maximum then have the size of the
    multiple, and those in place of a square its root: factor * a^2 is (sqrt(factor) a)^2.
    """
    if isinstance(expression, Leaf):
        return factor * expression
    return facts_of(expression).times(expression, factor, times)


def factored(
    expression: Any, number: Callable[[Any], float | None] = constant_number
) -> tuple[float, Any]:
    """(c, e) with expression = c * e, e of the same shape and without factors outside.

    Multiples of one expression come back with that very object, so that they can be told apart
    from others by identity: factored(-x) and factored(51 * x) both hold x.
    number: the value of a factor, None where it counts as none.
    """
    factor, e = 1.0, expression
    while not isinstance(e, Leaf) and (found := facts_of(e).factor(e, number)) is not None:
        factor, e = factor * found[0], found[1]
    return factor, e


def square_of_number(
    expression: Any, number: Callable[[Any], float | None] = constant_number
) -> tuple[float, Any] | None:
    """(c, u) with expression = c u^2 for a u of one entry; None if it is no such square."""
    factor, e = factored(expression, number)
    while not isinstance(e, Leaf):
        facts = facts_of(e)
        if (found := facts.square(e)) is not None:
            by = number(found[1])
            return (factor / by, found[0]) if by else None
        if (same := facts.same_number(e)) is None:
            return None
        inner, e = factored(same, number)
        factor *= inner
    return None


def summands(expression: Any) -> list[Any]:
    """The terms of a sum as it is written."""
    return list(expression.args) if isinstance(expression, ADD) else [expression]


# ------------------------------------------------------------------ for all samples at once
def vectorised(expression: Any, samples: Mapping[Any, Any]) -> Any | None:
    """The losses of all samples as a vector expression (N,), or None where there is none.

    The tree is rebuilt with data in place of the parameters, by what the facts of its atoms say
    (`over_samples`). Trees with other shapes are left to one copy for each sample.
    samples: for each parameter its values, (N,) or (N, d), or a CVXPY vector of N entries.
    """
    try:
        built = _OverSamples(samples)(expression)
    except NoVectorForm:
        return None
    return built.vector if isinstance(built, NumberPerSample) else None


class _OverSamples(Walk):
    """A number or a vector per sample, or the expression itself where it is certain."""

    def __init__(self, samples: Mapping[Any, Any]) -> None:
        super().__init__()
        self.samples = samples

    def visit(self, expression: Any) -> Any:
        if not any(p in self.samples for p in expression.parameters()):
            return expression
        if isinstance(expression, cp.Parameter):
            given = self.samples[expression]
            return per_sample(given) if isinstance(given, np.ndarray) else NumberPerSample(given)
        facts, arguments = facts_of(expression), expression.args
        outside = facts.reads(expression)[len(arguments) :]
        if any(p in self.samples for read in outside for p in read.parameters()):
            raise NoVectorForm
        return facts.over_samples(expression, [self(argument) for argument in arguments])
