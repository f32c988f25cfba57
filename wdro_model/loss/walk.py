"""The one way over a CVXPY tree: each expression once, arguments before the atom."""

from __future__ import annotations

from typing import Any

from cvxpy.expressions.leaf import Leaf


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
