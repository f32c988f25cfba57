"""Parametrize and compile: programs that are solved again, on other data or with other numbers.

Two models that differ only in their samples are written as two trees of CVXPY expressions. If the
trees have the same form, the constants that differ are the data. A copy with parameters in place of
these constants is compiled once and solved for any data by setting the parameters: this is CVXPY's
DPP, in which a program is affine in its parameters.

The radius and the values of certain parameters change between solves, and are parameters as well. A
compiled program is solved again while its form and its units suit the model; if not, `Compilation`
says why.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from wdro_model.loss.batched import Layout
from wdro_model.loss.expressions import is_ordinary
from wdro_model.model import Model
from wdro_model.model.compiled import values_of
from wdro_model.solve.rescale import RescaledProgram, RescaledRow, Units
from wdro_model.solvers.warm_highs import WarmHighs

MAX_PARAMETER_ENTRIES = 2**20
"""Most numbers that may become parameters; CVXPY's map has a column for each."""
Pairs = list[tuple[Any, Any]]


class ParametricProgram:
    """A program with parameters in place of its data.

    written: the program with numbers, as it was written.
    data: the constants of it that become parameters.
    fixed: variables and parameters of the user, which stand for themselves.
    keep_sign: declare each parameter with the sign of its data.
    """

    def __init__(
        self, written: RescaledProgram, data: list[Any], fixed: Sequence[Any], keep_sign: bool
    ) -> None:
        self.written, self.fixed = written, fixed
        self.parameters = {id(e): _parameter(e, keep_sign) for e in data}
        self.loaded: ProgramData | None = None
        """The data that the parameters hold."""
        rows = tuple(
            RescaledRow(r.original, self._parametric(r.solved), r.factor) for r in written.rows
        )
        others = written.problem.constraints[len(rows) :]
        objective = written.problem.objective.tree_copy(self.parameters)
        constraints = [*(row.solved for row in rows), *(self._parametric(c) for c in others)]
        self.program = RescaledProgram(cp.Problem(objective, constraints), {}, {}, rows)
        values = [(self.parameters[id(e)], _value(e)) for e in data]
        self.own_data = ProgramData(self, self.program, values, [])

    def data_of(self, other: RescaledProgram) -> ProgramData | None:
        """The data of another program of this form; None if that has another form."""
        compared = compare_programs(
            self.written.problem, other.problem, self.fixed, self.parameters
        )
        if compared is None or any(id(mine) not in self.parameters for mine, _ in compared.data):
            return None
        values = [(self.parameters[id(mine)], _value(theirs)) for mine, theirs in compared.data]
        if not all(_has_declared_sign(parameter, value) for parameter, value in values):
            return None
        rows = tuple(
            RescaledRow(theirs.original, mine.solved, theirs.factor)
            for mine, theirs in zip(self.program.rows, other.rows)
        )
        program = RescaledProgram(self.program.problem, {}, {}, rows)
        return ProgramData(self, program, values, compared.parameters)

    def _parametric(self, constraint: Any) -> Any:
        """A copy of a constraint with parameters, if it has data; it keeps its id."""
        waiting = [constraint]
        while waiting:
            node = waiting.pop()
            if id(node) in self.parameters:
                return constraint.tree_copy(self.parameters)
            waiting += node.args
        return constraint


@dataclass(frozen=True, eq=False)
class ProgramData:
    """The data of one program, as values of the parameters of a parametric program."""

    parametric: ParametricProgram
    program: RescaledProgram
    """The parametric program, with the user's constraints and the factors of this one."""
    values: Pairs
    """Pairs of a parameter of the parametric program and its value."""
    twins: Pairs
    """Pairs of a parameter of the parametric program and the parameter whose value it takes."""

    def load(self) -> None:
        """Set the parameters to the data."""
        if self.parametric.loaded is not self:
            self.parametric.loaded = None  # an interrupt may leave some of them without their value
            for parameter, value in self.values:
                parameter.save_value(value)
            self.parametric.loaded = self
        for parameter, twin in self.twins:
            parameter.save_value(twin.value)


def parametrize(
    written: RescaledProgram, other: RescaledProgram, fixed: Sequence[Any]
) -> ProgramData | None:
    """The program with parameters where a program on other data differs from it.

    None if that has another form, or the program is not affine in the data.
    """
    compared = compare_programs(other.problem, written.problem, fixed)
    if compared is None or not compared.data:
        return None
    data = [theirs for _, theirs in compared.data]
    if sum(expression.size for expression in data) > MAX_PARAMETER_ENTRIES:
        return None
    for keep_sign in (False, True):  # some programs are convex for data of one sign alone
        parametric = ParametricProgram(written, data, fixed, keep_sign)
        problem = parametric.program.problem
        # A copy of a tree replaces its leaves: a sum of constants would keep the old data.
        replaced = {p.id for p in parametric.parameters.values()} <= {
            p.id for p in problem.parameters()
        }
        if replaced and problem.is_dcp(dpp=True):
            return parametric.own_data
    return None


# ------------------------------------------------------------------ two trees
def compare_programs(
    mine: cp.Problem, theirs: cp.Problem, fixed: Sequence[Any], asked: Container[int] = ()
) -> TreeComparison | None:
    """The differences between two programs of one form; None if their forms differ.

    fixed: variables and parameters of the user, which stand for themselves.
    asked: ids of constants of the first program that are paired even if their values agree.
    """
    trees = TreeComparison({id(leaf) for leaf in fixed}, asked)
    lists = (mine.constraints, theirs.constraints)
    same = type(mine.objective) is type(theirs.objective) and len(lists[0]) == len(lists[1])
    same = same and trees.same_form(mine.objective.expr, theirs.objective.expr)
    return trees if same and all(trees.same_form(a, b) for a, b in zip(*lists)) else None


class TreeComparison:
    """The differences between two trees of expressions, walked side by side."""

    def __init__(self, fixed: set[int], asked: Container[int]) -> None:
        self._fixed, self._asked = fixed, asked
        self._partners: dict[int, int] = {}
        self._leaves: dict[int, tuple[Any, Any]] = {}
        """Pairs of leaves that stand for each other, by the id of the leaf of the second tree."""
        self._data: dict[int, tuple[Any, Any]] = {}

    @property
    def data(self) -> Pairs:
        """Pairs of constant expressions that differ, or are asked for."""
        return list(self._data.values())

    @property
    def parameters(self) -> Pairs:
        """Parameters of the first tree that stand for other parameters of the second."""
        pairs = self._leaves.values()
        return [(a, b) for a, b in pairs if a is not b and isinstance(a, cp.Parameter)]

    def same_form(self, a: Any, b: Any) -> bool:
        """Are two expressions or constraints of one form?"""
        if id(a) in self._partners:
            return self._partners[id(a)] == id(b)
        self._partners[id(a)] = id(b)
        if a is b and id(a) not in self._asked:  # a common subtree: its leaves are the same
            return all(self._pair_leaves(leaf, leaf) for leaf in [*a.variables(), *a.parameters()])
        if type(a) is not type(b) or a.shape != b.shape:
            return False
        if isinstance(a, cp.Variable | cp.Parameter):
            own = self._fixed & {id(a), id(b)}
            return not own and self._pair_leaves(a, b) and _attributes(a) == _attributes(b)
        if id(a) in self._asked or not (a.variables() or a.parameters()):
            return self._pair_constants(a, b)
        if not self._same_arguments(a, b) or len(a.args) != len(b.args):
            return False
        return all(self.same_form(x, y) for x, y in zip(a.args, b.args))

    def _pair_leaves(self, a: Any, b: Any) -> bool:
        """Pair two leaves; False if one of them is paired with a third leaf."""
        known = self._partners.setdefault(id(a), id(b)) == id(b)
        return known and self._leaves.setdefault(id(b), (a, b))[0] is a

    def _pair_constants(self, a: Any, b: Any) -> bool:
        """Record constants that differ; False if `b` is no constant."""
        if b.variables() or b.parameters():
            return False
        if id(a) in self._asked or not _equal(a.value, b.value):
            self._data[id(a)] = (a, b)
        return True

    def _same_arguments(self, a: Any, b: Any) -> bool:
        """Are the arguments of two atoms that are no expressions (axes, exponents) the same?"""
        one, two = (list(e.get_data() or ()) for e in (a, b))
        if isinstance(a, Constraint):
            one, two = one[:-1], two[:-1]  # the last is its id
        return len(one) == len(two) and all(self._same_argument(x, y) for x, y in zip(one, two))

    def _same_argument(self, x: Any, y: Any) -> bool:
        if isinstance(x, Expression) or isinstance(y, Expression):
            expressions = isinstance(x, Expression) and isinstance(y, Expression)
            return expressions and not x.variables() and _equal(x.value, y.value)
        if isinstance(x, list | tuple) and isinstance(y, list | tuple):
            return len(x) == len(y) and all(self._same_argument(a, b) for a, b in zip(x, y))
        return _equal(x, y)


def _equal(x: Any, y: Any) -> bool:
    if hasattr(x, "tocsr") or hasattr(y, "tocsr"):
        both = hasattr(x, "tocsr") and hasattr(y, "tocsr") and x.shape == y.shape
        return bool(both and abs(x - y).count_nonzero() == 0)
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.array_equal(x, y)
    return bool(x is y or x == y)


def _attributes(leaf: Any) -> dict[str, Any]:
    return {k: str(v) for k, v in leaf.attributes.items()}


# ------------------------------------------------------------------ constants and parameters
def _value(expression: Any) -> np.ndarray:
    value = expression.value
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value, dtype=float)


def _parameter(expression: Any, keep_sign: bool) -> cp.Parameter:
    """A parameter in place of a constant, of the same sign if it has one and is to keep it."""
    value = _value(expression)
    signs = {"nonneg": bool(np.all(value >= 0)), "nonpos": bool(np.all(value <= 0))}
    one = keep_sign and not all(signs.values())
    known = {name: True for name, holds in signs.items() if holds and one}
    return cp.Parameter(expression.shape, value=value, **known)


def _has_declared_sign(parameter: cp.Parameter, value: np.ndarray) -> bool:
    """Has the value the sign that the parameter was declared with?"""
    return not (
        (parameter.attributes["nonneg"] and np.any(value < 0))
        or (parameter.attributes["nonpos"] and np.any(value > 0))
    )


# ------------------------------------------------------------------ programs that are kept
class Compilation(StrEnum):
    """Whether a program was compiled for a solve, and why."""

    FIRST = "compiled: the first solve"
    AGAIN = "kept from an earlier solve"
    ON_OTHER_DATA = "kept from an earlier solve on other data"
    WITH_DATA = "compiled: on other data, which is a parameter of the program from now on"
    OTHER_FORM = (
        "compiled: the program of other data has another form, or is not affine in the data"
    )
    OTHER_SIZE = "compiled: another number of samples"
    OTHER_UNITS = "compiled: the answer of the kept program asked for other units"
    ZERO_RADIUS = "compiled: a radius of 0 is another problem"
    FIXED_RADIUS = "compiled: the radius is a number in the program"
    OTHER_ORDER = "compiled: the radius is of another order, and so are the units"
    INLINED = "compiled: a changed parameter stands beside uncertain ones in a term"
    OTHER_ROWS = "compiled: with the changed parameters, rows are of another order"


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A compiled program and the numbers it was compiled for."""

    plan: Any
    program: RescaledProgram
    layout: Layout
    """The layout of the decision."""
    units: Units
    radius: float
    takes_any_radius: bool
    """Is the radius a parameter of the program, or absent from it?"""
    inlined: tuple[bytes, ...]
    """Values of the certain parameters that the program may hold as constants."""
    certain: tuple[bytes, ...]
    """Values of the constraints' parameters, for which the rows were scaled to order one."""
    data: ProgramData | None = None
    """The data, where it is a parameter of the program."""

    @cached_property
    def plan_again(self) -> Any:
        """The plan of the next solve, which uses this program again."""
        return replace(self.plan, compiled=self, compilation=Compilation.AGAIN)

    @cached_property
    def warm_solver(self) -> WarmHighs | None:
        """The solver that holds the linear program, from the second solve on; None for others."""
        shared = self.program if self.data is None else self.data.parametric.program
        return shared.warm_solver(self.plan.solver, self.layout.variables)

    def stale_reason(self, model: Model) -> Compilation | None:
        """The reason to compile a new program for the model; None if this one will do."""
        robust, radius = self.plan.key[0] != "erm", model.radius
        if robust and (self.radius == 0) != (radius == 0):
            return Compilation.ZERO_RADIUS
        if not self.takes_any_radius and radius != self.radius:
            return Compilation.FIXED_RADIUS
        if robust and self.radius > 0 and not is_ordinary(math.sqrt(radius / self.radius)):
            return Compilation.OTHER_ORDER
        if self.inlined != model.inlined_parameter_values():
            return Compilation.INLINED
        if self.certain != values_of(model.feasible.parameters) and not all(
            row.is_ordinary() for row in self.program.rows
        ):
            return Compilation.OTHER_ROWS
        return None
