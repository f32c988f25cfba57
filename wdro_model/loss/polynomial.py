"""Polynomial structure of an expression in some parameters: degrees, affine parts, terms, forms.

`affine_parts` writes f = a(x) + sum_p <B_p(x), xi_p> with CVXPY expressions a and B. B is the
derivative in the data, by a reverse pass whose adjoints are expressions too; they contain no data,
since f has degree one. CVXPY knows the curvature of a and B, so that a dual norm of an affine B is
convex. `affine_forms` writes f as a function of affine forms of the data, and `dependence` says
which data each entry of an expression depends on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.cvxpy_classes import MATMUL
from wdro_model.loss.atoms.facts import brief, facts_of, hidden_parameters
from wdro_model.loss.expressions import Walk, as_scalar, entry_of, spread, the_number, total


def degree(expression: Any, parameters: Iterable[Any]) -> float:
    """The joint polynomial degree in the parameters: 0, 1, 2, ..., or math.inf if there is none.

    0 means that the expression does not depend on them, 1 that it is affine in them.

    Examples
    --------
    >>> [wdro.loss.degree(loss, [price]) for loss in (price @ x, cp.square(price @ x), cp.sum(x))]
    [1.0, 2.0, 0]
    """
    return Degrees(parameters)(expression)


class Degrees(Walk):
    """Degrees of many expressions in the same parameters; each one is computed once."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__()
        self.parameters = tuple(parameters)
        self.ids = {p.id for p in self.parameters}

    def visit(self, expression: Any) -> float:
        if isinstance(expression, Leaf):
            return float(getattr(expression, "id", None) in self.ids)
        if self.hides_parameter(expression):
            return math.inf
        facts = facts_of(expression)
        degrees = [self(read) for read in facts.reads(expression)]
        return facts.degree(expression, degrees) if max(degrees) > 0 else 0

    def hides_parameter(self, atom: Any) -> bool:
        """True if a parameter is an option of the atom, such as the threshold of huber."""
        return any(p.id in self.ids for p in hidden_parameters(atom))


# ------------------------------------------------------------------ expressions of degree one
@dataclass(frozen=True)
class AffineParts:
    """A scalar expression as constant + sum_p sum(multiply(slopes[p], p)).

    Examples
    --------
    >>> parts = wdro.loss.affine_parts(price @ x + cp.sum_squares(x), [price])
    >>> x.value = [1.0, 2.0]
    >>> float(parts.constant.value), parts.slopes[price].value
    (5.0, array([1., 2.]))
    """

    constant: Any
    """a(x), a CVXPY expression of shape ()."""
    slopes: dict[Any, Any]
    """B_p(x) for each parameter, a CVXPY expression of its shape; zero if f does not contain it."""


def affine_parts(expression: Any, parameters: Iterable[Any]) -> AffineParts:
    """a(x) and B(x) of a scalar expression of degree at most one in the parameters.

    Examples
    --------
    >>> parts = wdro.loss.affine_parts(-price @ x + 1, [price])
    >>> x.value = [1.0, 2.0]
    >>> parts.slopes[price].value
    array([-1., -2.])
    """
    degrees = Degrees(parameters)
    if expression.size != 1:
        raise ValueError(f"affine_parts needs one entry, got shape {expression.shape}.")
    degree = degrees(expression)
    if degree > 1:
        names = ", ".join(repr(p.name()) for p in degrees.parameters)
        raise ValueError(
            f"'{brief(expression)}' is not affine in {names}: its degree is {degree:g}; "
            "see wdro_model.loss.pieces for a maximum of affine pieces."
        )
    return AffineParts(
        constant=as_scalar(constant_part(expression, degrees)),
        slopes=_slopes(expression, degrees),
    )


def constant_part(expression: Any, degrees: Degrees) -> Any:
    """The value of an expression of degree at most one where the parameters are zero."""

    def visit(walk: Walk, e: Any) -> Any | None:
        """The constant part of a subexpression; None where it is zero."""
        if degrees(e) == 0:
            return e
        if isinstance(e, Leaf):
            return None
        return facts_of(e).constant_part(e, [walk(argument) for argument in e.args])

    return _zeros_for_none(Walk(visit)(expression), expression.shape)


def _slopes(expression: Any, degrees: Degrees) -> dict[Any, Any]:
    """B_p for each parameter, by a reverse pass over the atoms that depend on the data."""
    atoms: list[Any] = []

    def visit(walk: Walk, e: Any) -> None:
        """Append the atoms that depend on the data, each after its arguments."""
        if not isinstance(e, Leaf) and degrees(e) > 0:
            for argument in e.args:
                walk(argument)
            atoms.append(e)

    Walk(visit)(expression)
    adjoints: dict[int, list[Any]] = {id(expression): [cp.Constant(np.ones(expression.shape))]}
    for atom in reversed(atoms):
        adjoint = total(adjoints[id(atom)])
        for argument, pull in zip(atom.args, facts_of(atom).adjoints(atom)):
            if degrees(argument) > 0:
                adjoints.setdefault(id(argument), []).append(pull(adjoint))
    return {p: _zeros_for_none(total(adjoints.get(id(p), [])), p.shape) for p in degrees.parameters}


def _zeros_for_none(expression: Any | None, shape: tuple[int, ...]) -> Any:
    return cp.Constant(np.zeros(shape)) if expression is None else expression


def vectorise(expression: Any, samples: Mapping[Any, Any]) -> Any | None:
    """The losses of all samples as a vector expression (N,); None where this cannot be written.

    A scalar that is affine in the data becomes a(x) + sum_p Xi_p vec(B_p(x)), where Xi_p has a row
    for each sample; entrywise atoms then act on vectors. Other nonlinear atoms give None.
    samples: the values (N, *shape) of each parameter; for a scalar parameter also a CVXPY vector.
    """
    degrees = Degrees(samples)
    count = next(iter(samples.values())).shape[0]

    def affine(e: Any) -> Any:
        """The values of an affine scalar."""
        vector = spread(as_scalar(constant_part(e, degrees)), (count,))
        for p, slope in _slopes(e, degrees).items():
            if not any(p is own for own in e.parameters()):
                continue
            if not slope.is_affine():
                raise _NotReplaceable
            known = slope.is_constant() and not slope.parameters()
            if not isinstance(samples[p], np.ndarray):
                factor, own = as_scalar(slope), samples[p]
                # CVXPY cannot compile a product with a sum or a product of parameters.
                if not known or float(factor.value) != 1.0:
                    own = cp.multiply(spread(factor, (count,)), own)
                vector = own if vector.is_zero() else vector + own
                continue
            rows = samples[p].reshape(count, -1)
            flat = cp.vec(slope, order="C")
            vector += cp.Constant(rows @ flat.value) if known else rows @ flat
        return vector

    def visit(walk: Walk, e: Any) -> Any:
        """The values of a scalar."""
        facts = facts_of(e)
        if e.size != 1 or _is_closed(e, degrees):
            raise _NotReplaceable
        if degrees(e) == 0:
            return spread(as_scalar(e), (count,))
        if degrees(e) <= 1:
            return affine(e)
        if facts.is_entrywise:
            return e.copy([walk(argument) for argument in e.args])
        if isinstance(e, MATMUL):
            return cp.multiply(*map(walk, e.args))
        square = facts.square(e)
        if square is not None and degrees(square[1]) == 0:
            return cp.square(walk(square[0])) / as_scalar(square[1])
        if (same := facts.same_number(e)) is not None:
            return walk(same)
        raise _NotReplaceable

    try:
        return Walk(visit)(expression)
    except _NotReplaceable:
        return None


class _NotReplaceable(Exception):
    """A parameter cannot be replaced by an expression: it is an exponent or an option."""


def _is_closed(e: Any, degrees: Degrees) -> bool:
    """True if a parameter is an exponent or an option of the atom."""
    if isinstance(e, Leaf):
        return False
    outside = facts_of(e).reads(e)[len(e.args) :]
    return degrees.hides_parameter(e) or any(degrees(read) > 0 for read in outside)


# ------------------------------------------------------------------ the terms of a sum
def additive_terms(expression: Any, parameters: Iterable[Any]) -> list[Any]:
    """Expressions the sum of whose entries is the sum of the entries of the expression.

        cp.sum(order - d) + 4 * cp.sum(cp.pos(d - order))  ->  [order - d],  [4 * cp.pos(d - order)]

    Sums, negation, weights without data, stacking and reshaping are split; sum_squares and norm1
    become sums of squares and of absolute values. Any other atom is one term.
    """
    return list(SumSplit(Degrees(parameters))(expression))


class SumSplit(Walk):
    """The terms of an expression, by the fact `terms` of its atoms."""

    def __init__(self, degrees: Degrees) -> None:
        super().__init__()
        self.degrees = degrees

    def visit(self, expression: Any) -> list[Any]:
        if self.degrees(expression) <= 1:
            return [expression]
        return facts_of(expression).terms(expression, self) or [expression]


# ------------------------------------------------------------------ the forms inside a function
@dataclass(frozen=True)
class Form:
    """An expression that is affine in the data, and its placeholder in the outer function."""

    expression: Any
    placeholder: cp.Parameter
    """A parameter of the shape of the expression, and of its sign where CVXPY knows one."""


@dataclass(frozen=True)
class AffineForms:
    """A loss h(x, u) of affine forms u of the data."""

    outer: Any
    """h: the loss with each form replaced by its placeholder."""
    forms: tuple[Form, ...]

    @property
    def count(self) -> int:
        """The number q of scalar forms."""
        return sum(form.expression.size for form in self.forms)

    @property
    def placeholders(self) -> tuple[cp.Parameter, ...]:
        return tuple(form.placeholder for form in self.forms)


def affine_forms(expression: Any, parameters: Iterable[Any]) -> AffineForms | None:
    """f = h(x, u) with u affine in the parameters: the maximal subexpressions of degree one.

    The outer function h has a placeholder for each of them. A margin loss depends on the data
    through one number, in any dimension:

        affine_forms(cp.logistic(-y * (w @ z)), (z,))   ->   h = logistic(u),  u = -y * (w @ z)

    Parameters that are not listed count as constants: they may occur in forms and in h.

    None where a parameter is an exponent or an option of an atom, which no placeholder can replace.
    """
    degrees = Degrees(parameters)
    forms: dict[Hashable, Form] = {}

    def visit(walk: Walk, e: Any) -> Any:
        """The expression with placeholders for its affine subexpressions."""
        degree = degrees(e)
        if degree == 0:
            return e
        if degree == 1:
            key = fingerprint(e)
            if key not in forms:
                name = f"form{len(forms) + 1}"
                forms[key] = Form(e, cp.Parameter(e.shape, name=name, **sign_of(e)))
            return forms[key].placeholder
        if _is_closed(e, degrees):
            raise _NotReplaceable
        outside = facts_of(e).reads(e)[len(e.args) :]
        return facts_of(e).rebuild(e, [*map(walk, e.args), *outside])

    try:
        outer = Walk(visit)(expression)
    except _NotReplaceable:
        return None
    return AffineForms(outer, tuple(forms.values()))


def sign_of(expression: Any) -> dict[str, bool]:
    """The sign of an expression as CVXPY knows it, as an attribute of a leaf."""
    if expression.is_nonneg():
        return {"nonneg": True}
    return {"nonpos": True} if expression.is_nonpos() else {}


def fingerprint(expression: Any) -> Any:
    """A key that is equal for equal expressions: the same atoms with the same leaves."""
    if isinstance(expression, cp.Constant):
        value = expression.value
        dense = value.toarray() if sp.issparse(value) else np.asarray(value)
        return ("constant", dense.shape, dense.tobytes())
    if isinstance(expression, Leaf):
        return ("leaf", expression.id)
    options = tuple(_option(value) for value in expression.get_data() or ())
    arguments = tuple(fingerprint(argument) for argument in expression.args)
    return (type(expression), options, arguments)


def _option(value: Any) -> Any:
    """The key of an option of an atom, such as an index or an exponent."""
    if isinstance(value, cp.Expression):
        return fingerprint(value)
    if isinstance(value, list | tuple):
        return tuple(_option(entry) for entry in value)
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes())
    return repr(value)


# ------------------------------------------------------------------ dependence on the data
Pattern = Any
"""A sparse matrix (entries, d) of zeros and ones, the entries in column-major order."""


def dependence(expression: Any, columns: Mapping[Any, slice], dimension: int) -> Pattern:
    """The coordinates that each entry, counted row by row, may depend on: sparse (size, d).

    columns: the coordinates of each parameter (or variable), flattened row by row, among all d.
    """
    pattern = _Dependence(columns, dimension)(expression)
    order = np.arange(expression.size).reshape(expression.shape, order="F").ravel()
    return pattern[order]


class _Dependence(Walk):
    """The pattern of each expression, by the fact `dependence` of its atoms."""

    def __init__(self, columns: Mapping[Any, slice], dimension: int) -> None:
        super().__init__()
        self.columns = {p.id: where for p, where in columns.items()}
        self.dimension = dimension

    def visit(self, e: Any) -> Pattern:
        if isinstance(e, Leaf):
            return self.leaf(e)
        if not any(leaf.id in self.columns for leaf in (*e.parameters(), *e.variables())):
            return sp.csr_array((e.size, self.dimension))
        if any(p.id in self.columns for p in hidden_parameters(e)):
            return self._everything(e, e.parameters())
        pattern = facts_of(e).dependence(e, self)
        if pattern is None:
            return self._everything(e, facts_of(e).operands(e))
        pattern = sp.csr_array(pattern)
        pattern.data = (pattern.data != 0).astype(float)
        pattern.eliminate_zeros()
        return pattern

    def leaf(self, e: Any) -> Pattern:
        where = self.columns.get(getattr(e, "id", None))
        if where is None:
            return sp.csr_array((e.size, self.dimension))
        ids = np.arange(where.start, where.stop).reshape(e.shape).ravel(order="F")
        ones = np.ones(e.size)
        return sp.csr_array((ones, (np.arange(e.size), ids)), (e.size, self.dimension))

    def spread(self, e: Any, size: int) -> Pattern:
        """The pattern of an operand; the pattern of a number is repeated for `size` entries."""
        pattern = self(e)
        return pattern if e.size == size else sp.kron(np.ones((size, 1)), pattern)

    def _everything(self, e: Any, arguments: list[Any]) -> Pattern:
        """The pattern in which each entry depends on all data of the arguments."""
        seen = np.zeros(self.dimension)
        for argument in arguments:
            seen += np.asarray(self(argument).sum(axis=0)).ravel()
        row = sp.csr_array((seen > 0).astype(float)[None])
        return sp.csr_array(sp.kron(np.ones((e.size, 1)), row))


# ------------------------------------------------------------------ selected entries
def select_entries(expression: Any, entries: np.ndarray) -> Any:
    """The vector of these entries, counted row by row; entrywise atoms get selected arguments."""
    if facts_of(expression).is_entrywise:
        return expression.copy(
            [
                a if a.ndim == 0 else select_entries(a, _read(expression, a).ravel()[entries])
                for a in expression.args
            ]
        )
    flat = cp.reshape(expression, (expression.size,), order="C")
    everything = len(entries) == expression.size and np.array_equal(
        entries, np.arange(expression.size)
    )
    return flat if everything else flat[np.asarray(entries)]


def select_entry(expression: Any, entry: int) -> Any:
    """An entry, counted row by row, as a scalar; entrywise atoms get entries of their arguments."""
    if expression.size > 1 and (number := the_number(expression)) is not expression:
        return as_scalar(number)
    if expression.size > 1 and facts_of(expression).is_entrywise:
        parts = ((a, int(_read(expression, a).flat[entry])) for a in expression.args)
        return expression.copy([select_entry(a, k) for a, k in parts])
    return entry_of(expression, entry, order="C")


def _read(expression: Any, argument: Any) -> np.ndarray:
    """The entry of the argument that each entry of an entrywise atom reads, in its shape."""
    labels = np.arange(argument.size).reshape(argument.shape)
    return np.broadcast_to(labels, expression.shape)
