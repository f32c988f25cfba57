"""From a CVXPY expression to a tape: kernels in the order of evaluation, operands first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf

from wdro_model.errors import MissingRuleError
from wdro_model.loss import (  # noqa: F401  (their rules register on import)
    affine_rules,
    atoms,
    elementwise_rules,
    power_rules,
    product_rules,
    quadratic_rules,
    reduction_rules,
)
from wdro_model.loss.rules import Operand, brief, missing_rule, prepare
from wdro_model.loss.tape import Node, Step, Tape

ENTRYWISE = (atoms.Elementwise, atoms.ADD, atoms.MULTIPLY, atoms.DIVIDE)


def operands_of(atom: Any) -> list[Any]:
    """The expressions an atom is a function of.

    Those of an entrywise atom get its shape; the exponent of a power, which CVXPY keeps outside
    of the arguments, comes last. An atom whose rule reads something simpler than its arguments
    declares it as `operands`.
    """
    if (declared := getattr(atom, "operands", None)) is not None:
        return list(declared)
    arguments = list(atom.args)
    if isinstance(atom, ENTRYWISE):
        arguments = [
            a if a.shape == atom.shape else cp.broadcast_to(a, atom.shape) for a in arguments
        ]
    return [*arguments, atom.p] if isinstance(atom, atoms.POWER) else arguments


def hidden_parameters(atom: Any) -> list[Any]:
    """Parameters that are an option of the atom itself, such as the threshold of huber."""
    if type(atom).parameters is atoms.Atom.parameters:
        return []
    reached = {p.id for operand in operands_of(atom) for p in operand.parameters()}
    return [p for p in atom.parameters() if p.id not in reached]


def lower(expression: Any, uncertain: Iterable[Any]) -> Tape:
    """The tape of an expression; raises MissingRuleError if an atom has no rule."""
    return _Lowering({p.id for p in uncertain}).run(expression)


class _Lowering:
    def __init__(self, uncertain: set[int]) -> None:
        self.uncertain = uncertain
        self.nodes: list[Node] = []
        self.steps: list[Step] = []
        self.slots: dict[int, int] = {}
        self.varying: dict[int, bool] = {}

    def run(self, expression: Any) -> Tape:
        root = self.visit(expression)
        return Tape(tuple(self.nodes), tuple(self.steps), root)

    def visit(self, expression: Any) -> int:
        """The slot that holds the value of the expression."""
        if id(expression) not in self.slots:
            slot = self.leaf(expression) if self.is_leaf(expression) else self.atom(expression)
            self.slots[id(expression)] = slot
        return self.slots[id(expression)]

    def is_leaf(self, expression: Any) -> bool:
        """Leaves, and whole subexpressions of constants and certain parameters."""
        return isinstance(expression, Leaf) or not self.varies(expression)

    def varies(self, expression: Any) -> bool:
        """Does the expression depend on a variable or on an uncertain parameter?"""
        if isinstance(expression, Leaf):
            return isinstance(expression, cp.Variable) or self.is_uncertain(expression)
        known = self.varying.get(id(expression))
        if known is None:
            known = any(self.varies(a) for a in expression.args) or any(
                self.is_uncertain(p) for p in hidden_parameters(expression)
            )
            if isinstance(expression, atoms.POWER):
                known = known or self.is_uncertain(expression.p)
            self.varying[id(expression)] = known
        return known

    def is_uncertain(self, leaf: Any) -> bool:
        return getattr(leaf, "id", None) in self.uncertain and isinstance(leaf, cp.Parameter)

    def leaf(self, expression: Any) -> int:
        _refuse_complex(expression)
        is_variable = isinstance(expression, cp.Variable)
        batched = self.is_uncertain(expression)
        certain = not (is_variable or batched)
        return self.add(Node(expression, batched, is_variable, certain))

    def atom(self, atom: Any) -> int:
        _refuse_complex(atom)
        for parameter in hidden_parameters(atom):
            if self.is_uncertain(parameter):
                raise MissingRuleError(_hidden_message(atom, parameter))
        expressions = operands_of(atom)
        inputs = tuple(self.visit(e) for e in expressions)
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
        self.steps.append(Step(kernel, inputs, slot))
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
