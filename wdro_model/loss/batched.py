"""A CVXPY expression as a function of many scenarios at once: a tape, values and gradients.

    loss = BatchedLoss(-returns @ x)
    values, pullback = loss({x: point}, {returns: scenarios})      # values: (B,)
    gradient = pullback(weights)[x]                                 # of weights @ values
    rows = pullback.in_data(weights)[returns]                       # (B, *shape)

The weights may depend on the values, so that an average, a soft maximum or a quantile of the
scenarios costs one evaluation and one reverse pass. Every loss follows this protocol; `FlatLoss`
follows it with a decision x in R^n and scenarios as rows of a (B, d) matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

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
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.loss.expressions import Walk
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter


@dataclass(frozen=True)
class Node:
    """A value of the tape.

    batched: True if the value depends on an uncertain parameter; it then has the batch axis.
    uses_variable: True if the value depends on a decision variable.
    certain: True for constants and certain parameters, whose values CVXPY holds.
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
    """An atom of the tape: its kernel, the slots of its operands, the slot of its value."""

    kernel: Kernel
    inputs: tuple[int, ...]
    output: int


Plan = tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
"""Steps of a reverse pass: (step, slot of its value, ((operand, slot of the operand), ...))."""


class Tape:
    """Nodes and steps of an expression, and the arrays of the last evaluation.

    The arrays are replaced one by one, so that the allocator reuses their memory. Freeing all of
    them at once returns the memory to the system and costs a thousand page faults per call.
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
        """The slot of each leaf of this type that is no constant, in order of appearance."""
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
        """Adjoints by slot; the slots of variables hold the gradients in x."""
        return self._reverse(adjoint, self._decision_plan)

    def gradients_in_data(self, adjoint: Any, only: Iterable[int] | None = None) -> list[Any]:
        """Adjoints by slot; the slots of uncertain parameters hold the rows of the gradient.

        only: slots of the parameters to differentiate in; all of them by default.
        """
        if only is None:
            return self._reverse(adjoint, self._data_plan)
        asked = frozenset(only)
        if asked not in self._partial_plans:
            depends = [slot in asked for slot in range(len(self.nodes))]
            for step in self.steps:
                depends[step.output] = any(depends[slot] for slot in step.inputs)
            self._partial_plans[asked] = self._plan(depends)
        return self._reverse(adjoint, self._partial_plans[asked])

    def _plan(self, wanted: Sequence[bool]) -> Plan:
        """The reverse pass that reaches the wanted slots."""
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
    """The current value of an expression, as a dense array of its shape."""
    value = expression.value
    dense = value.toarray() if sp.issparse(value) else np.asarray(value, dtype=float)
    return dense.astype(float, copy=False).reshape(expression.shape)


# ------------------------------------------------------------------ lowering
def lower(expression: Any, uncertain: Iterable[Any]) -> Tape:
    """The tape of an expression; raises MissingRuleError if an atom has no rule."""
    ids = {p.id for p in uncertain}
    nodes: list[Node] = []
    steps: list[TapeStep] = []

    def is_uncertain(leaf: Any) -> bool:
        return isinstance(leaf, cp.Parameter) and leaf.id in ids

    def depends(walk: Walk, e: Any) -> bool:
        """True if the expression depends on a variable or on an uncertain parameter."""
        if isinstance(e, Leaf):
            return isinstance(e, cp.Variable) or is_uncertain(e)
        reads, hidden = facts_of(e).reads(e), hidden_parameters(e)
        return any(walk(read) for read in reads) or any(map(is_uncertain, hidden))

    varies = Walk(depends)

    def visit(walk: Walk, e: Any) -> int:
        """Add an expression to the tape; return the slot of its value.

        A subexpression without variables and data is one node, which CVXPY evaluates.
        """
        if e.is_complex():
            raise MissingRuleError(
                f"'{brief(e)}' in the loss is complex, and losses are computed with real numbers; "
                "write its real and imaginary parts as real variables of their own."
            )
        if isinstance(e, Leaf) or not varies(e):
            is_variable, batched = isinstance(e, cp.Variable), is_uncertain(e)
            nodes.append(Node(e, batched, is_variable, certain=not (is_variable or batched)))
            return len(nodes) - 1
        for parameter in filter(is_uncertain, hidden_parameters(e)):
            raise MissingRuleError(
                f"the uncertain parameter {parameter.name()!r} is an option of "
                f"{type(e).__name__!r} in '{brief(e)}', not one of its arguments, so the loss "
                "cannot be followed in it. Make it a certain cp.Parameter, or give the loss as a "
                "wdro_model.loss.CallableLoss."
            )
        expressions = facts_of(e).operands(e)
        inputs = tuple(walk(operand) for operand in expressions)
        operands = tuple(Operand(o, nodes[k].batched) for o, k in zip(expressions, inputs))
        kernel = prepare(e, operands)
        batched = any(operand.batched for operand in operands)
        nodes.append(Node(e, batched, any(nodes[k].uses_variable for k in inputs), certain=False))
        steps.append(TapeStep(kernel, inputs, len(nodes) - 1))
        return len(nodes) - 1

    root = Walk(visit)(expression)
    return Tape(tuple(nodes), tuple(steps), root)


# ------------------------------------------------------------------ losses
Array = np.ndarray
Gradients = dict[Any, np.ndarray]


@dataclass(frozen=True)
class Pullback:
    """Gradients of weights @ values, at the point and scenarios of the call that returned it.

    Valid until the next call of the same loss. The pullback of a `FlatLoss` returns vectors (n,)
    and rows (B, d) in place of dictionaries.

    Parameters
    ----------
    in_decision
        weights (B,) -> `{variable: gradient of weights @ values}`, of the variable's shape;
        calling the pullback itself does the same.
    in_data
        weights (B,) -> `{parameter: (B, *shape)}`, row b being weights_b grad_xi f(x, xi_b).
        A second argument lists the parameters to differentiate in; all of them by default.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2)
    >>> loss = wdro.loss.BatchedLoss(price @ x)
    >>> _, pullback = loss({x: np.array([1.0, 2.0])}, {price: np.array([[3.0, 4.0]])})
    >>> pullback(np.ones(1))[x], pullback.in_data(np.ones(1))[price]
    (array([3., 4.]), array([[1., 2.]]))
    """

    in_decision: Callable[[np.ndarray], Any]
    in_data: Callable[..., Any]

    def __call__(self, weights: np.ndarray) -> Any:
        return self.in_decision(weights)


class Loss(Protocol):
    """A loss f(x, xi) on a batch of scenarios: `values, pullback = loss(x, scenarios)`.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2)
    >>> loss: wdro.loss.Loss = wdro.loss.BatchedLoss(cp.pos(price @ x))
    >>> values, _ = loss({x: np.ones(2)}, {price: np.array([[1.0, 2.0], [-3.0, -4.0]])})
    >>> values
    array([3., 0.])
    """

    variables: tuple[Any, ...]
    parameters: tuple[Any, ...]

    def __call__(
        self, x: Mapping[Any, np.ndarray], scenarios: Mapping[Any, np.ndarray]
    ) -> tuple[np.ndarray, Pullback]: ...


class BatchedLoss:
    """A scalar CVXPY expression, evaluated on a batch of scenarios.

    Parameters
    ----------
    expression
        Real, with one entry, in variables and uncertain parameters. It need not be convex.
    parameters
        The parameters that are uncertain; by default every UncertainParameter of the
        expression, in order of first appearance. The values of the others are read at each call.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2)
    >>> loss = wdro.loss.BatchedLoss(cp.square(price @ x))
    >>> values, pullback = loss({x: np.ones(2)}, {price: np.array([[1.0, 2.0], [3.0, 4.0]])})
    >>> values
    array([ 9., 49.])
    >>> pullback(np.array([0.5, 0.5]))[x]                       # the gradient of their mean
    array([24., 34.])
    """

    def __init__(self, expression: Any, parameters: Sequence[Any] | None = None) -> None:
        expression = cp.Constant.cast_to_const(expression)
        if expression.size != 1:
            raise ValueError(
                f"a loss has one entry, got '{brief(expression)}' of shape {expression.shape}; "
                "sum or take the maximum of its entries."
            )
        self.expression = expression
        self._given = None if parameters is None else tuple(parameters)
        uncertain = self._given
        if uncertain is None:
            uncertain = tuple(
                p for p in expression.parameters() if isinstance(p, UncertainParameter)
            )
        self._tape = lower(expression, uncertain)
        self._variable_slots = self._tape.slots_of(cp.Variable)
        self._parameter_slots = self._tape.slots_of(cp.Parameter)
        self.variables: tuple[Any, ...] = tuple(self._variable_slots)
        self.parameters: tuple[Any, ...] = (
            tuple(self._parameter_slots) if parameters is None else tuple(dict.fromkeys(uncertain))
        )
        ids = {p.id for p in uncertain}
        self.certain = [p for p in expression.parameters() if p.id not in ids]
        """The parameters that are not uncertain."""
        self._calls = 0

    def __call__(
        self, x: Mapping[Any, Any], scenarios: Mapping[Any, Any]
    ) -> tuple[np.ndarray, Pullback]:
        """Values (B,) and the pullback, which is valid until the next call.

        x: {variable: array of its shape}.
        scenarios: {parameter: (B, *shape)}; of parameters that the loss does not contain only B
            is used. Without scenarios, B = 1.
        """
        size = batch_size(scenarios)
        leaves: dict[int, np.ndarray] = {}
        for variable, slot in self._variable_slots.items():
            leaves[slot] = entry(x, variable, variable.shape, "variable")
        for parameter, slot in self._parameter_slots.items():
            shape = (size, *parameter.shape)
            leaves[slot] = entry(scenarios, parameter, shape, "uncertain parameter")
        for parameter in self.certain:
            if parameter.value is None:
                raise cp.error.ParameterError(
                    f"the parameter {parameter.name()!r} of the loss has no value; set its .value, "
                    "or declare it as an UncertainParameter with samples."
                )
        self._calls += 1
        root = np.reshape(self._tape.evaluate(leaves), -1)
        if len(root) not in (1, size):
            raise ValueError(
                f"the loss '{brief(self.expression)}' has {len(root)} values for {size} scenarios: "
                "a rule of one of its atoms returns another shape than it must; "
                "wdro_model.testing.check_atom finds it."
            )
        values = np.empty(size)
        values[:] = root
        call = self._calls
        return values, Pullback(
            partial(self._in_decision, call, size), partial(self._in_data, call, size)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Kernels are closures: a copy in another process builds its own.
        return BatchedLoss, (self.expression, self._given)

    def __repr__(self) -> str:
        return f"BatchedLoss({brief(self.expression)})"

    def _in_decision(self, call: int, size: int, weights: Any) -> Gradients:
        adjoints = self._tape.gradients_in_decision(self._seed(call, size, weights))
        return _owned({v: (adjoints[k], v.shape) for v, k in self._variable_slots.items()})

    def _in_data(
        self, call: int, size: int, weights: Any, only: Sequence[Any] | None = None
    ) -> Gradients:
        seed = self._seed(call, size, weights)
        asked = self.parameters if only is None else tuple(only)
        slots = {p: self._parameter_slots[p] for p in asked if p in self._parameter_slots}
        adjoints: list[Any] = []
        if slots:
            every = len(slots) == len(self._parameter_slots)
            adjoints = self._tape.gradients_in_data(seed, None if every else slots.values())
        return _owned(
            {p: (adjoints[slots[p]] if p in slots else None, (size, *p.shape)) for p in asked}
        )

    def _seed(self, call: int, size: int, weights: Any) -> np.ndarray:
        """The adjoint of the root: the weights, or their sum if the loss has no batch axis."""
        if call != self._calls:
            raise RuntimeError(
                "this pullback is of an earlier call: the loss was called again since, and keeps "
                "one evaluation. Take the gradients before the next call, or use two losses."
            )
        weights = as_weights(weights, size)
        shape = self.expression.shape
        if self._tape.nodes[self._tape.root].batched:
            return np.reshape(weights, (size, *shape))
        return np.full(shape, weights.sum())


def _owned(adjoints: dict[Any, tuple[Any, tuple[int, ...]]]) -> Gradients:
    """Gradients as arrays of the given shapes, each with memory of its own; zeros for None."""
    gradients: Gradients = {}
    for leaf, (adjoint, shape) in adjoints.items():
        if adjoint is None:
            gradients[leaf] = np.zeros(shape)
            continue
        array = np.asarray(adjoint, dtype=float)
        fresh = array.flags.owndata and all(array is not g for g in gradients.values())
        gradients[leaf] = array if fresh else np.array(np.broadcast_to(array, shape))
    return gradients


# ------------------------------------------------------------------ arguments of a loss
def batch_size(scenarios: Mapping[Any, Any]) -> int:
    """The common number of rows B of the scenarios; 1 if there are none."""
    sizes = {p: np.shape(rows)[0] if np.ndim(rows) else 0 for p, rows in scenarios.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{p.name()!r}: {n}" for p, n in sizes.items())
        raise ValueError(f"all parameters share the batch axis, got numbers of rows {listed}.")
    return next(iter(sizes.values()), 1)


def entry(given: Mapping[Any, Any], leaf: Any, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """The value of a leaf among those given, checked to have this shape.

    kind: the word for the leaf in messages, "variable" or "uncertain parameter".
    """
    if leaf not in given:
        raise ValueError(f"no value given for the {kind} {leaf.name()!r}, of shape {leaf.shape}.")
    value = np.asarray(given[leaf], dtype=float)
    if value.shape != shape:
        raise ValueError(f"{kind} {leaf.name()!r} needs shape {shape}, got {value.shape}.")
    return value


def as_weights(weights: Any, size: int) -> np.ndarray:
    """The weights as an array (size,); ValueError for another shape."""
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (size,):
        raise ValueError(f"weights must have shape ({size},), got {weights.shape}.")
    return weights


# ------------------------------------------------------------------ on flat vectors
class Layout:
    """Several variables side by side in one vector, each flattened row by row."""

    def __init__(self, variables: Sequence[cp.Variable]) -> None:
        self.variables = tuple(variables)
        self.slices: dict[cp.Variable, slice] = {}
        start = 0
        for variable in self.variables:
            self.slices[variable] = slice(start, start + variable.size)
            start += variable.size
        self.dimension = start

    @property
    def user_variables(self) -> tuple[cp.Variable, ...]:
        """The variables of the user, without the thresholds that the library adds for CVaR."""
        return tuple(v for v in self.variables if not isinstance(v, Threshold))

    def split(self, x: Array) -> dict[cp.Variable, Array]:
        """The value of each variable, as views of x."""
        return {v: x[s].reshape(v.shape) for v, s in self.slices.items()}

    def split_user(self, x: Array) -> dict[cp.Variable, Array]:
        """The value of each variable of the user, as views of x."""
        whole = self.split(x)
        return {v: whole[v] for v in self.user_variables}

    def join(self, values: Mapping[cp.Variable, Any]) -> Array:
        """The vector of all values, zero for a variable that is left out."""
        x = np.zeros(self.dimension)
        for variable, s in self.slices.items():
            if variable in values:
                value = values[variable]
                value = value.toarray() if hasattr(value, "toarray") else value
                x[s] = np.asarray(value, dtype=float).ravel()
        return x

    @contextmanager
    def holding(self, x: Array | None = None) -> Iterator[None]:
        """Set the variables to x, if given; restore their values at the end of the block."""
        before = [(variable, variable.value) for variable in self.variables]
        try:
            for variable, value in ({} if x is None else self.split(x)).items():
                variable.save_value(np.array(value))
            yield
        finally:
            for variable, value in before:
                variable.save_value(value)


class FlatLoss:
    """A loss on flat vectors: `values, pullback = loss(x, rows)`, x in R^n and rows (B, d).

    layout: the variables in x; joint: the uncertain parameters in a row, None if there are none.
    """

    def __init__(self, loss: Any, layout: Layout, joint: JointSamples | None) -> None:
        self.loss = loss
        self.layout = layout
        self.joint = joint
        self.dimension = layout.dimension
        self.data_dimension = 0 if joint is None else joint.dimension
        self.calls = 0
        """Evaluations so far."""

    def __call__(self, x: Array, rows: Array) -> tuple[Array, Pullback]:
        """Values (B,) at the scenarios in rows (B, d), and their gradients.

        The pullback is valid until the next call.
        """
        self.calls += 1
        scenarios = {} if self.joint is None else self.joint.split(rows)
        values, pullback = self.loss(self.layout.split(x), scenarios)
        values = np.asarray(values, dtype=float)
        values = values if values.shape == (len(rows),) else np.broadcast_to(values, (len(rows),))
        if not np.isfinite(values).all():
            worst = int(np.flatnonzero(~np.isfinite(values))[0])
            raise FloatingPointError(
                f"the loss is {values[worst]} at scenario {worst} of a batch of {len(rows)}; "
                "keep decision and data inside its domain (bounds on the variables, a support "
                "for the uncertain parameters)."
            )

        def in_decision(weights: Array) -> Array:
            return self.layout.join(pullback(weights))

        def in_data(weights: Array, only: Sequence[Any] | None = None) -> Array:
            assert self.joint is not None
            asked = self.joint.parameters if only is None else only
            given = () if only is None else (asked,)
            gradients = pullback.in_data(weights, *given)
            flat = [np.reshape(gradients[p], (len(rows), -1)) for p in asked]
            return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)

        return values, Pullback(in_decision, in_data)

    def values(self, x: Array, rows: Array) -> Array:
        """f(x, xi) for each row xi."""
        return self(x, rows)[0]


# ------------------------------------------------------------------ several expressions at once
class Stacked:
    """The entries of several expressions as one function: x (n,), rows (B, d) -> values (B, q).

    Each expression is flattened row by row. layout: the variables in x; columns: the coordinates
    of each parameter in a row. Gradients belong to the last evaluation.
    """

    def __init__(
        self, expressions: Sequence[Any], layout: Layout, columns: Mapping[Any, slice]
    ) -> None:
        self.layout, self.columns = layout, dict(columns)
        self.count = sum(e.size for e in expressions)
        self.dimension = max((s.stop for s in self.columns.values()), default=0)
        self._tape: Tape | None = None
        if expressions:
            flat = [cp.reshape(e, (e.size,), order="C") for e in expressions]
            self._tape = lower(flat[0] if len(flat) == 1 else cp.hstack(flat), self.columns)
            self._variables = self._tape.slots_of(cp.Variable)
            self._parameters = self._tape.slots_of(cp.Parameter)
            self._batched = self._tape.nodes[self._tape.root].batched

    def __call__(self, x: Array, rows: Array) -> Array:
        """Values (B, q) at the rows (B, d)."""
        values = np.empty((len(rows), self.count))
        if self._tape is not None:
            point = self.layout.split(x)
            leaves = {slot: point[v] for v, slot in self._variables.items()}
            for parameter, slot in self._parameters.items():
                block = rows[:, self.columns[parameter]]
                leaves[slot] = block.reshape(len(rows), *parameter.shape)
            values[:] = self._tape.evaluate(leaves)
        return values

    def in_decision(self, seeds: Array) -> Array:
        """The gradient in x of sum(seeds * values), seeds (B, q)."""
        if self._tape is None:
            return np.zeros(self.layout.dimension)
        adjoints = self._tape.gradients_in_decision(seeds if self._batched else seeds.sum(axis=0))
        gradients = {v: adjoints[slot] for v, slot in self._variables.items()}
        return self.layout.join({v: g for v, g in gradients.items() if g is not None})

    def in_data(self, seeds: Array) -> Array:
        """Rows (B, d): the gradient of seeds_b @ values_b in the data of scenario b."""
        rows = np.zeros((len(seeds), self.dimension))
        if self._tape is None or not self._batched:
            return rows
        adjoints = self._tape.gradients_in_data(seeds)
        for parameter, slot in self._parameters.items():
            if adjoints[slot] is not None:
                shape = (len(seeds), *parameter.shape)
                block = np.broadcast_to(adjoints[slot], shape).reshape(len(seeds), -1)
                rows[:, self.columns[parameter]] = block
        return rows

    def jacobian(self, x: Array, row: Array) -> Array:
        """The derivative (q, d) of the values in the data, at one scenario (d,)."""
        self(x, np.repeat(row[None], self.count, axis=0))
        return self.in_data(np.eye(self.count))

    def jacobians(self, x: Array, rows: Array) -> Array:
        """The derivatives (B, q, d) at each of the rows."""
        self(x, rows)
        derivatives = np.empty((len(rows), self.count, self.dimension))
        for j in range(self.count):
            seeds = np.zeros((len(rows), self.count))
            seeds[:, j] = 1.0
            derivatives[:, j] = self.in_data(seeds)
        return derivatives
