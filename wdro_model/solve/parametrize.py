"""Parametrize: a program with its data as parameters, compiled once for all data of one form.

Two models that differ in their samples are written as two trees of CVXPY expressions. Where these
are of one form, the constants in which they differ are the data. A copy with parameters in their
place is compiled once, and is then solved for any data by setting the parameters: CVXPY's map from
parameters to numbers is affine in them, as is the program in what is replaced.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from wdro_model.solve.rescale import RescaledProgram, RescaledRow

MAX_PARAMETER_ENTRIES = 2**20
"""Most numbers that may become parameters; CVXPY's map has a column for each."""
Pairs = list[tuple[Any, Any]]


class ParametricProgram:
    """A program with parameters in place of its data.

    written: the program with numbers, as it was written.
    data: the constants of it that become parameters.
    fixed: variables and parameters of the user, which stand for themselves.
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
        """The data of another program of this form; None if its form is another one."""
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
        has_data = any(id(e) in self.parameters for e in _nodes(constraint))
        return constraint.tree_copy(self.parameters) if has_data else constraint


@dataclass(frozen=True, eq=False)
class ProgramData:
    """The data of one program, for a parametric program of its form."""

    parametric: ParametricProgram
    program: RescaledProgram
    """The parametric program, with the user's constraints and the factors of this one."""
    values: Pairs
    """Parameters of the parametric program and the data."""
    twins: Pairs
    """Parameters of the parametric program and other parameters, whose values they take."""

    def load(self) -> None:
        """Set the parameters to the data."""
        if self.parametric.loaded is not self:
            self.parametric.loaded = None  # an interrupt leaves only some of them set
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
        if parametric.program.problem.is_dcp(dpp=True):
            return parametric.own_data
    return None


# ------------------------------------------------------------------ two trees
def compare_programs(
    mine: cp.Problem, theirs: cp.Problem, fixed: Sequence[Any], asked: Container[int] = ()
) -> TreeComparison | None:
    """The differences between two programs of one form; None if their forms differ.

    fixed: variables and parameters of the user, which stand for themselves.
    asked: ids of expressions of the first program that are paired in any case.
    """
    trees = TreeComparison({id(leaf) for leaf in fixed}, asked)
    lists = (mine.constraints, theirs.constraints)
    same = type(mine.objective) is type(theirs.objective) and len(lists[0]) == len(lists[1])
    same = same and trees.same_form(mine.objective.expr, theirs.objective.expr)
    return trees if same and all(trees.same_form(a, b) for a, b in zip(*lists)) else None


class TreeComparison:
    """Two trees of expressions, walked side by side."""

    def __init__(self, fixed: set[int], asked: Container[int]) -> None:
        self._fixed, self._asked = fixed, asked
        self._partners: dict[int, int] = {}
        self._leaves: dict[int, tuple[Any, Any]] = {}
        """Pairs of leaves that stand for each other, by the id of the leaf of the second tree."""
        self._data: dict[int, tuple[Any, Any]] = {}

    @property
    def data(self) -> Pairs:
        """Constant expressions that differ, or are asked for."""
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
        if a is b and id(a) not in self._asked:
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
        """Let a leaf stand for another; False where a third one does."""
        known = self._partners.setdefault(id(a), id(b)) == id(b)
        return known and self._leaves.setdefault(id(b), (a, b))[0] is a

    def _pair_constants(self, a: Any, b: Any) -> bool:
        """Note constants that differ; False where one has variables."""
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


def _nodes(tree: Any) -> Iterator[Any]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.args


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
