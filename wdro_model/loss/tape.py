"""The tape of a loss: from a CVXPY expression to kernels in order, evaluation, the reverse pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.errors import MissingRuleError
from wdro_model.loss.atoms.facts import (
    Kernel,
    Operand,
    brief,
    facts_of,
    hidden_parameters,
    prepare,
)
from wdro_model.loss.expressions import Walk


@dataclass(frozen=True)
class Node:
    """One value of the tape.

    batched: does it depend on an uncertain parameter (and so carry the batch axis)?
    uses_variable: does it depend on a decision variable?
    certain: is it read from CVXPY at each call (constants, certain parameters)?
    """

    expression: Any
    batched: bool
    uses_variable: bool
    certain: bool

    @property
    def ndim(self) -> int:
        return len(self.expression.shape) + self.batched


@dataclass(frozen=True)
class TapeStep:
    """One evaluation: the kernel, the slots of its operands, the slot of its value."""

    kernel: Kernel
    inputs: tuple[int, ...]
    output: int


Plan = tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
"""Steps of a reverse pass: (step, its output, ((operand, its slot), ...) that are wanted)."""


class Tape:
    """Nodes and steps of an expression, and the arrays of the last evaluation.

    The arrays are kept and replaced one by one, so that the allocator reuses their memory: freeing
    all of them at once gives it back to the system, and a thousand page faults per call.
    """

    def __init__(self, nodes: tuple[Node, ...], steps: tuple[TapeStep, ...], root: int) -> None:
        self.nodes, self.steps, self.root = nodes, steps, root
        self._values: list[Any] = [None] * len(nodes)
        self._pulls: list[tuple[Any, ...]] = [()] * len(steps)
        self._read: list[int] = []
        for slot, node in enumerate(nodes):
            if node.certain and node.expression.parameters():
                self._read.append(slot)
            elif node.certain:
                self._values[slot] = dense_value(node.expression)
        self._ndim = [node.ndim for node in nodes]
        self._decision_plan = self._plan([node.uses_variable for node in nodes])
        self._data_plan = self._plan([node.batched for node in nodes])
        self._partial_plans: dict[frozenset[int], Plan] = {}

    def slots_of(self, leaf_type: type) -> dict[Any, int]:
        """The slots of the leaves of a kind, in order of appearance."""
        return {
            node.expression: slot
            for slot, node in enumerate(self.nodes)
            if isinstance(node.expression, leaf_type) and not node.certain
        }

    def evaluate(self, leaves: Mapping[int, np.ndarray]) -> Any:
        """The value of the root, given the values of variables and uncertain parameters."""
        values, pulls = self._values, self._pulls
        for slot, value in leaves.items():
            values[slot] = value
        for slot in self._read:
            values[slot] = dense_value(self.nodes[slot].expression)
        for k, step in enumerate(self.steps):
            result = step.kernel(*[values[i] for i in step.inputs])
            values[step.output], pulls[k] = result[0], result[1:]
        return values[self.root]

    def gradients_in_decision(self, adjoint: Any) -> list[Any]:
        """Adjoints of all slots; those of variables are the gradients in x."""
        return self._reverse(adjoint, self._decision_plan)

    def gradients_in_data(self, adjoint: Any, only: Iterable[int] | None = None) -> list[Any]:
        """Adjoints of all slots; those of uncertain parameters are the rows of the gradient.

        only: slots of the parameters that are asked for; adjoints of the others are left out.
        """
        if only is None:
            return self._reverse(adjoint, self._data_plan)
        asked = frozenset(only)
        if asked not in self._partial_plans:
            self._partial_plans[asked] = self._plan(self._above(asked))
        return self._reverse(adjoint, self._partial_plans[asked])

    def _above(self, leaves: frozenset[int]) -> list[bool]:
        """Which slots depend on the leaves."""
        depends = [slot in leaves for slot in range(len(self.nodes))]
        for step in self.steps:
            depends[step.output] = any(depends[slot] for slot in step.inputs)
        return depends

    def _plan(self, wanted: Sequence[bool]) -> Plan:
        plan = []
        for k in reversed(range(len(self.steps))):
            step = self.steps[k]
            targets = tuple(
                (position, slot) for position, slot in enumerate(step.inputs) if wanted[slot]
            )
            if targets:
                plan.append((k, step.output, targets))
        return tuple(plan)

    def _reverse(self, adjoint: Any, plan: Plan) -> list[Any]:
        pulls, ndim = self._pulls, self._ndim
        adjoints: list[Any] = [None] * len(self.nodes)
        adjoints[self.root] = adjoint
        for k, output, targets in plan:
            g = adjoints[output]
            if g is None:
                continue
            adjoints[output] = None
            for position, slot in targets:
                d = pulls[k][position](g)
                if d.ndim > ndim[slot]:
                    d = d.sum(axis=0)
                adjoints[slot] = d if adjoints[slot] is None else adjoints[slot] + d
        return adjoints


def dense_value(expression: Any) -> np.ndarray:
    """The present value of an expression of constants and certain parameters."""
    value = expression.value
    dense = value.toarray() if sp.issparse(value) else np.asarray(value, dtype=float)
    return dense.astype(float, copy=False).reshape(expression.shape)


# ------------------------------------------------------------------ lowering
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
        raise MissingRuleError(
            f"'{brief(expression)}' in the loss is complex, and losses are computed with real "
            "numbers; write its real and imaginary parts as real variables of their own."
        )


def _hidden_message(atom: Any, parameter: Any) -> str:
    return (
        f"the uncertain parameter {parameter.name()!r} is an option of "
        f"{type(atom).__name__!r} in '{brief(atom)}', not one of its arguments, so the loss cannot "
        "be followed in it. Make it a certain cp.Parameter, or give the loss as a "
        "wdro_model.loss.CallableLoss."
    )
