"""f(x, xi) = h(x, u) with u affine in the data: the forms through which a loss sees the data.

Every maximal subexpression that is affine in the moving parameters is a form; in the outer
function h a placeholder of its shape stands for it. A margin loss sees the data through one
number, in any dimension:

    affine_forms(cp.logistic(-y * (w @ z)), (z,))   ->   h = logistic(u),  u = -y * (w @ z)

Parameters that are not listed count as constants of the scenario: their values may multiply a
form, or stand in h beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.facts import facts_of
from wdro_model.loss.polynomial import Degrees
from wdro_model.loss.walk import Walk


@dataclass(frozen=True)
class Form:
    """An expression that is affine in the data, and what stands for it in the outer function."""

    expression: Any
    placeholder: cp.Parameter
    """Of the expression's shape, and of its sign where CVXPY knows one."""


@dataclass(frozen=True)
class AffineForms:
    """A loss as a function of affine forms."""

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
    """The maximal subexpressions of degree one in the parameters, taken out of the expression.

    None where a parameter is an exponent or an option of an atom, which no placeholder can replace.
    """
    extraction = _Extraction(Degrees(parameters))
    try:
        outer = extraction(expression)
    except _NotReplaceable:
        return None
    return AffineForms(outer, tuple(extraction.forms.values()))


class _NotReplaceable(Exception):
    """A parameter sits where no placeholder can stand for it."""


class _Extraction(Walk):
    """The expression with its affine subexpressions replaced."""

    def __init__(self, degrees: Degrees) -> None:
        super().__init__()
        self.degrees = degrees
        self.forms: dict[Hashable, Form] = {}

    def visit(self, expression: Any) -> Any:
        found = self.degrees(expression)
        if found == 0:
            return expression
        if found == 1:
            return self.form(expression).placeholder
        if not self.degrees.replaceable(expression):
            raise _NotReplaceable
        return facts_of(expression).rebuilt(expression, [self(a) for a in expression.args])

    def form(self, expression: Any) -> Form:
        """The form of an expression, the same for equal expressions."""
        key = fingerprint(expression)
        if key not in self.forms:
            signs = {"nonneg": expression.is_nonneg(), "nonpos": expression.is_nonpos()}
            sign = next((name for name, known in signs.items() if known), None)
            attributes = {sign: True} if sign else {}
            name = f"form{len(self.forms) + 1}"
            placeholder = cp.Parameter(expression.shape, name=name, **attributes)
            self.forms[key] = Form(expression, placeholder)
        return self.forms[key]


def fingerprint(expression: Any) -> Any:
    """Equal for expressions that are written alike: the same atoms on the same leaves."""
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
    """An option of an atom, such as an index or an exponent."""
    if isinstance(value, cp.Expression):
        return fingerprint(value)
    if isinstance(value, list | tuple):
        return tuple(_option(entry) for entry in value)
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes())
    return repr(value)
