"""Compiled programs that are solved again: another radius, other parameters, other samples.

Two models that differ in their samples are written as two trees of CVXPY expressions. Where these
are of one form, the constants in which they differ are the data. A copy with parameters in their
place is compiled once, and is then solved for any data by setting the parameters: CVXPY's map from
parameters to numbers is affine in them, as is the program in what is replaced.

What changes between solves are the radius and the values of certain parameters, and both are
parameters of the compiled program. Its units were right for the numbers of its first solve, and
are good for others of the same order.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
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
from wdro_model.objectives.empirical import Program
from wdro_model.solve.units import Rescaled, Row, Scale
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.warm_highs import WarmHighs

MOST_ENTRIES = 2**20
"""Numbers that may become parameters; CVXPY's map has a column for each."""
Pairs = list[tuple[Any, Any]]


class OpenProgram:
    """A compiled program with parameters in place of its data."""

    def __init__(
        self, written: Rescaled, data: list[Any], fixed: Sequence[Any], signed: bool = False
    ) -> None:
        """written: the program as it was written.

        data: the expressions of it that are to be parameters.
        fixed: variables and parameters of the user, which stand for themselves.
        signed: the data keeps its sign.
        """
        self.written, self.fixed = written, fixed
        self.holes = {id(e): _parameter(e, signed) for e in data}
        self.own = Filling(self, written, [(self.holes[id(e)], _value(e)) for e in data], [])
        self.filled: Filling | None = None
        """What the parameters hold."""
        rows = tuple(Row(r.original, self._opened(r.solved), r.factor) for r in written.rows)
        own = written.problem.constraints[len(rows) :]
        objective = written.problem.objective.tree_copy(self.holes)
        constraints = [*(row.solved for row in rows), *(self._opened(c) for c in own)]
        self.done = Rescaled(cp.Problem(objective, constraints), {}, {}, rows)
        self.own = replace(self.own, done=self.done)

    @cached_property
    def is_linear(self) -> bool:
        """Is it a linear program?"""
        return is_linear(self.done.problem)

    def warm(self, solver: Conic, variables: tuple[cp.Variable, ...]) -> WarmHighs | None:
        """The solver that has the linear program; None if it is none."""
        if "_warm" not in vars(self):
            problem = self.done.problem
            self._warm = solver.warm(problem, variables) if self.is_linear else None
        return self._warm

    def filling(self, other: Rescaled) -> Filling | None:
        """The data of another program of this form; None if its form is another one."""
        found = compared(self.written.problem, other.problem, self.fixed, self.holes)
        if found is None or any(id(mine) not in self.holes for mine, _ in found.data):
            return None
        values = [(self.holes[id(mine)], _value(theirs)) for mine, theirs in found.data]
        if any(not _fits(parameter, value) for parameter, value in values):
            return None
        factors = zip(self.done.rows, other.rows)
        rows = tuple(Row(theirs.original, mine.solved, theirs.factor) for mine, theirs in factors)
        return Filling(self, Rescaled(self.done.problem, {}, {}, rows), values, found.parameters)

    def _opened(self, constraint: Any) -> Any:
        """A copy of a constraint with parameters, if it has data; it keeps its id."""
        held = any(id(e) in self.holes for e in _nodes(constraint))
        return constraint.tree_copy(self.holes) if held else constraint


@dataclass(frozen=True, eq=False)
class Filling:
    """The data of one program, for an open program of its form."""

    program: OpenProgram
    done: Rescaled
    """The open program, with the constraints and factors of this one."""
    values: Pairs
    """Parameters of the open program and the data."""
    twins: Pairs
    """Parameters of the open program and those of this program, where they are others."""

    def fill(self) -> None:
        """Set the parameters to the data."""
        if self.program.filled is not self:
            self.program.filled = None  # an interrupt leaves it half filled
            for parameter, value in self.values:
                parameter.save_value(value)
            self.program.filled = self
        for parameter, twin in self.twins:
            parameter.save_value(twin.value)


def opened(written: Rescaled, other: Rescaled, fixed: Sequence[Any]) -> Filling | None:
    """A program, open where one on other data differs from it, and filled; None if it cannot be.

    That is, if its form is another one, or the program is not affine in the data.
    """
    found = compared(other.problem, written.problem, fixed)
    if found is None or not found.data:
        return None
    data = [theirs for _, theirs in found.data]
    if sum(expression.size for expression in data) > MOST_ENTRIES:
        return None
    for signed in (False, True):  # some programs are convex for data of one sign alone
        program = OpenProgram(written, data, fixed, signed)
        if program.done.problem.is_dcp(dpp=True):
            return program.own
    return None


def is_linear(problem: cp.Problem) -> bool:
    """Is it a linear program but for maxima?"""
    program = Program(problem.objective.expr, tuple(problem.constraints))
    return program.is_piecewise_linear(()) and not problem.is_mixed_integer()


# ------------------------------------------------------------------ two trees
@dataclass(frozen=True)
class Comparison:
    """In what two programs of one form differ."""

    data: Pairs
    """Constant expressions that differ, or are asked for."""
    parameters: Pairs
    """Parameters that stand for each other."""


def compared(
    mine: cp.Problem, theirs: cp.Problem, fixed: Sequence[Any], asked: Container[int] = ()
) -> Comparison | None:
    """How one program differs from another; None if their forms differ.

    fixed: variables and parameters of the user, which stand for themselves.
    asked: ids of expressions of the first to be paired in any case.
    """
    walk = _Walk({id(leaf) for leaf in fixed}, asked)
    lists = (mine.constraints, theirs.constraints)
    same = type(mine.objective) is type(theirs.objective) and len(lists[0]) == len(lists[1])
    same = same and walk.same(mine.objective.expr, theirs.objective.expr)
    if not same or not all(walk.same(a, b) for a, b in zip(*lists)):
        return None
    return Comparison(list(walk.data.values()), walk.twins())


class _Walk:
    """Two trees side by side."""

    def __init__(self, fixed: set[int], asked: Container[int]) -> None:
        self.fixed, self.asked = fixed, asked
        self.seen: dict[int, int] = {}
        self.leaves: dict[int, tuple[Any, Any]] = {}
        """Those of the second tree by their ids, each with the one that it stands for."""
        self.data: dict[int, tuple[Any, Any]] = {}

    def same(self, a: Any, b: Any) -> bool:
        """Are two expressions or constraints of one form?"""
        if id(a) in self.seen:
            return self.seen[id(a)] == id(b)
        self.seen[id(a)] = id(b)
        if a is b and id(a) not in self.asked:
            return all(self._stand(leaf, leaf) for leaf in [*a.variables(), *a.parameters()])
        if type(a) is not type(b) or a.shape != b.shape:
            return False
        if isinstance(a, cp.Variable | cp.Parameter):
            own = self.fixed & {id(a), id(b)}
            return not own and self._stand(a, b) and _attributes(a) == _attributes(b)
        if id(a) in self.asked or not (a.variables() or a.parameters()):
            return self._paired(a, b)
        if not self._same_data(a, b) or len(a.args) != len(b.args):
            return False
        return all(self.same(x, y) for x, y in zip(a.args, b.args))

    def _stand(self, a: Any, b: Any) -> bool:
        """Note that a leaf stands for another; False where a third one does."""
        known = self.seen.setdefault(id(a), id(b)) == id(b)
        return known and self.leaves.setdefault(id(b), (a, b))[0] is a

    def twins(self) -> Pairs:
        """Parameters of one tree that stand for others in the second."""
        pairs = self.leaves.values()
        return [(a, b) for a, b in pairs if a is not b and isinstance(a, cp.Parameter)]

    def _paired(self, a: Any, b: Any) -> bool:
        """Note constants that differ; those without variables in both trees."""
        if b.variables() or b.parameters():
            return False
        if id(a) in self.asked or not _equal(a.value, b.value):
            self.data[id(a)] = (a, b)
        return True

    def _same_data(self, a: Any, b: Any) -> bool:
        """Is what makes the atoms beside their arguments the same?"""
        one, two = (list(e.get_data() or ()) for e in (a, b))
        if isinstance(a, Constraint):
            one, two = one[:-1], two[:-1]  # the last is its id
        return len(one) == len(two) and all(self._same_entry(x, y) for x, y in zip(one, two))

    def _same_entry(self, x: Any, y: Any) -> bool:
        if isinstance(x, Expression) or isinstance(y, Expression):
            expressions = isinstance(x, Expression) and isinstance(y, Expression)
            return expressions and not x.variables() and _equal(x.value, y.value)
        if isinstance(x, list | tuple) and isinstance(y, list | tuple):
            return len(x) == len(y) and all(self._same_entry(a, b) for a, b in zip(x, y))
        return _equal(x, y)


def _equal(x: Any, y: Any) -> bool:
    """Are two values the same?"""
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


def _parameter(expression: Any, signed: bool) -> cp.Parameter:
    """A parameter in place of a constant, of the same sign where it has one and keeps it."""
    value = _value(expression)
    signs = {"nonneg": bool(np.all(value >= 0)), "nonpos": bool(np.all(value <= 0))}
    one = signed and not all(signs.values())
    known = {name: True for name, holds in signs.items() if holds and one}
    return cp.Parameter(expression.shape, value=value, **known)


def _fits(parameter: cp.Parameter, value: np.ndarray) -> bool:
    """Has the value the sign that the parameter was declared with?"""
    return not (
        (parameter.attributes["nonneg"] and np.any(value < 0))
        or (parameter.attributes["nonpos"] and np.any(value > 0))
    )


# ------------------------------
# A program that is solved again: whether what was compiled still stands for the model, or why


FIRST = "compiled: the first solve"
AGAIN = "kept from an earlier solve"
ON_OTHER_DATA = "kept from an earlier solve on other data"
WITH_DATA = "compiled: on other data, which is a parameter of the program from now on"
OTHER_FORM = "compiled: the program of other data has another form, or is not affine in the data"
OTHER_SIZE = "compiled: another number of samples"


@dataclass(frozen=True, eq=False)
class Kept:
    """A compiled program and the numbers it was compiled for."""

    plan: Any
    done: Rescaled
    layout: Layout
    """Of the decision."""
    scale: Scale
    radius: float
    any_radius: bool
    """Is the radius a parameter of the program, or not in it at all?"""
    worked_in: tuple[bytes, ...]
    """The values of certain parameters that may be in it as numbers."""
    certain: tuple[bytes, ...]
    """Those of the certain parameters for which its rows were found to be of order one."""
    filling: Filling | None = None
    """The data, where it is a parameter of the program."""

    @cached_property
    def again(self) -> Any:
        """The plan of another solve."""
        return replace(self.plan, kept=self, compilation=AGAIN)

    @cached_property
    def warm(self) -> WarmHighs | None:
        """The solver that has the linear program, from the second solve on; None for others."""
        solver, variables = self.plan.solver, self.layout.variables
        if self.filling is not None:
            return self.filling.program.warm(solver, variables)
        return solver.warm(self.done.problem, variables) if is_linear(self.done.problem) else None

    def trouble(self, model: Model) -> str | None:
        """Why the program does not stand for the model; None if it does."""
        robust, radius = self.plan.key[0] != "erm", model.radius
        if robust and (self.radius == 0) != (radius == 0):
            return "compiled: a radius of 0 is another problem"
        if not self.any_radius and radius != self.radius:
            return "compiled: the radius is a number in the program"
        if robust and self.radius > 0 and not is_ordinary(math.sqrt(radius / self.radius)):
            return "compiled: the radius is of another order, and so are the units"
        if self.worked_in != model.worked_in():
            return "compiled: a changed parameter stands beside uncertain ones in a term"
        if self.certain != certain_values(model) and not self._has_ordinary_rows():
            return "compiled: with the changed parameters, rows are of another order"
        return None

    def _has_ordinary_rows(self) -> bool:
        return all(row.is_ordinary() for row in self.done.rows)


def certain_values(model: Model) -> tuple[bytes, ...]:
    """The values of all certain parameters of the constraints."""
    return values_of(model.feasible.parameters)
