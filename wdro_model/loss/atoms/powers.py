"""Powers: certain exponents, and exponents that are parameters, uncertain or not.

One transcendental function serves both: with q = v^(p-1) the value is v q and the slope p q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.cvxpy_classes import POWER
from wdro_model.loss.atoms.elementwise import TINY, floored
from wdro_model.loss.atoms.facts import (
    Adjoints,
    AtomFacts,
    Kernel,
    Operands,
    declare,
    missing_rule,
    own_axes,
)


@declare(POWER)
class PowerFacts(AtomFacts):
    """v^p; CVXPY keeps the exponent outside of the arguments."""

    def reads(self, atom: Any) -> list[Any]:
        return [*atom.args, atom.p]

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        exponent = operands[1]
        if exponent.expression.size != 1:
            raise missing_rule(atom, f" for an exponent of shape {exponent.shape}")
        if exponent.batched:
            return _uncertain_power(atom.ndim)
        if isinstance(exponent.expression, cp.Constant):
            power = fixed_power(exponent.expression.value.item())
            return lambda v, _p: (*power(v), None)
        return lambda v, p: (*fixed_power(p.item())(v), None)

    def replaced(self, atom: Any, reads: list[Any]) -> Any:
        base, exponent = reads
        return atom.copy([base]) if exponent is atom.p else cp.power(base, exponent.value)

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        base, exponent = degrees
        p = atom.p.value
        natural = p is not None and float(p) == int(p) and p >= 0
        if exponent > 0 or atom.p.parameters() or not natural:
            return math.inf
        return int(p) * base

    def adjoints(self, atom: Any) -> Adjoints:
        """Of degree one with the exponent one alone."""
        return [lambda g: g]

    def square(self, atom: Any) -> tuple[Any, Any] | None:
        two = atom.p.value == 2 and atom.args[0].size == 1
        return (atom.args[0], cp.Constant(1.0)) if two else None

    def times(self, atom: Any, factor: float, push: Callable[[Any, float], Any]) -> Any:
        if not isinstance(atom.p, cp.Constant) or float(atom.p.value) < 1.0:
            return factor * atom
        return atom.copy([push(atom.args[0], factor ** (1.0 / atom.p.value))])


def fixed_power(p: float) -> Callable[[Any], tuple[Any, Any]]:
    """v -> (v^p, its pullback), for a number p."""
    if p == 0:
        return lambda v: (np.ones_like(v), lambda g: np.zeros_like(g * v))
    if p == 1:
        return lambda v: (v, lambda g: g)
    if p == 2:
        return lambda v: (v * v, lambda g: (2 * g) * v)
    if p == int(p) and p > 0:
        return lambda v: _integer(v, int(p))
    return lambda v: _real(v, p)


def _integer(v: Any, p: int) -> tuple[Any, Any]:
    q = repeated_product(v, p - 1)
    return v * q, lambda g: (p * g) * q


def repeated_product(v: Any, k: int) -> Any:
    """v^k for an integer k >= 1, by squaring: a few products instead of a logarithm."""
    if k == 1:
        return v
    half = repeated_product(v, k // 2)
    return half * half if k % 2 == 0 else half * half * v


def _real(v: Any, p: float) -> tuple[Any, Any]:
    """Domain v >= 0 (negative v too where p is an integer); at 0 the floor TINY stands for it."""
    base = np.where(np.equal(v, 0), TINY, v) if p == int(p) else floored(v)
    with np.errstate(over="ignore"):
        q = base ** (p - 1)
        y = (np.maximum(v, 0.0) if p > 0 else base) * q
    return y, lambda g: (p * g) * q


def _uncertain_power(ndim: int) -> Kernel:
    """Few logarithms where the base is not batched, one exponential per scenario and entry."""

    def kernel(v: Any, p: Any) -> tuple[Any, ...]:
        exponent = p.reshape(p.shape[:1] + (1,) * ndim)
        log_base = np.log(floored(v))
        with np.errstate(over="ignore"):
            q = np.exp((exponent - 1) * log_base)
            y = np.maximum(v, 0.0) * q

        def pull_exponent(g: Any) -> Any:
            gradient = (g * y * log_base).sum(axis=own_axes(ndim))
            return gradient.reshape(p.shape)

        return y, lambda g: g * exponent * q, pull_exponent

    return kernel
