"""From a CVXPY expression to a tape: kernels in the order of evaluation, operands first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf

from wdro_model.errors import MissingRuleError
from wdro_model.loss.atoms.facts import (
    Operand,
    brief,
    facts_of,
    hidden_parameters,
    missing_rule,
    prepare,
)
from wdro_model.loss.tape import Node, Tape, TapeStep
from wdro_model.loss.walk import Walk


def lower(expression: Any, uncertain: Iterable[Any]) -> Tape:
    """The tape of an expression; raises MissingRuleError if an atom has no rule."""
    return _Lowering({p.id for p in uncertain}).run(expression)


class _Varies(Walk):
    """Does an expression depend on a variable or on an uncertain parameter?"""

    def __init__(self, uncertain: set[int]) -> None:
        super().__init__()
        self.uncertain = uncertain

    def visit(self, expression: Any) -> bool:
        if isinstance(expression, Leaf):
            return isinstance(expression, cp.Variable) or self.is_uncertain(expression)
        return any(self(read) for read in facts_of(expression).reads(expression)) or any(
            self.is_uncertain(p) for p in hidden_parameters(expression)
        )

    def is_uncertain(self, leaf: Any) -> bool:
        return getattr(leaf, "id", None) in self.uncertain and isinstance(leaf, cp.Parameter)


class _Lowering(Walk):
    """The slot that holds the value of an expression."""

    def __init__(self, uncertain: set[int]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.steps: list[TapeStep] = []
        self.varies = _Varies(uncertain)
        self.is_uncertain = self.varies.is_uncertain

    def run(self, expression: Any) -> Tape:
        root = self(expression)
        return Tape(tuple(self.nodes), tuple(self.steps), root)

    def visit(self, expression: Any) -> int:
        """Leaves, and whole subexpressions of constants and certain parameters, are read."""
        _refuse_complex(expression)
        if isinstance(expression, Leaf) or not self.varies(expression):
            return self.leaf(expression)
        return self.step(expression)

    def leaf(self, expression: Any) -> int:
        is_variable = isinstance(expression, cp.Variable)
        batched = self.is_uncertain(expression)
        certain = not (is_variable or batched)
        return self.add(Node(expression, batched, is_variable, certain))

    def step(self, atom: Any) -> int:
        for parameter in hidden_parameters(atom):
            if self.is_uncertain(parameter):
                raise MissingRuleError(_hidden_message(atom, parameter))
        expressions = facts_of(atom).operands(atom)
        inputs = tuple(self(e) for e in expressions)
        nodes = [self.nodes[k] for k in inputs]
        operands = tuple(Operand(e, node.batched) for e, node in zip(expressions, nodes))
        kernel = prepare(atom, operands)
        slot = self.add(
            Node(
                atom,
                batched=any(node.batched for node in nodes),
                uses_variable=any(node.uses_variable for node in nodes),
                certain=False,
            )
        )
        self.steps.append(TapeStep(kernel, inputs, slot))
        return slot

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1


def _refuse_complex(expression: Any) -> None:
    if expression.is_complex():
        raise missing_rule(expression, " for complex values")


def _hidden_message(atom: Any, parameter: Any) -> str:
    return (
        f"the uncertain parameter {parameter.name()!r} is an option of "
        f"{type(atom).__name__!r} in '{brief(atom)}', not one of its arguments, so the loss cannot "
        "be followed in it. Make it a certain cp.Parameter, or give the loss as a "
        "wdro_model.loss.CallableLoss."
    )
