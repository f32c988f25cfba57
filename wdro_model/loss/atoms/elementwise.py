"""Atoms that act entry by entry, powers among them.

Where a slope is infinite at the boundary of a domain (log, entr, a root at 0), 0 is replaced by
`TINY`: values and slopes stay finite, and their products with 0 are 0, as in the limit. Entries
that are negative by rounding count as 0; entries outside the domain give NaN, as in CVXPY.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.special import ndtr

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.cvxpy_classes import POWER
from wdro_model.loss.atoms.facts import (
    Adjoints,
    AtomFacts,
    Kernel,
    NoPieces,
    Operands,
    declare,
    missing_rule,
    rule,
)
from wdro_model.loss.expressions import own_axes

TINY = 1e-300
"""Number that stands for 0 in logarithms and quotients, whose slopes stay finite there."""
NEGATIVE_ROUNDING = 1e-6
"""Distance below zero that counts as 0: solvers return such nonnegative decisions."""

Map = Callable[..., Any]


def floored(v: Any) -> Any:
    """v with TINY in place of 0 and of negative rounding; NaN outside the domain."""
    base = np.maximum(v, TINY)
    if np.min(v, initial=0.0) < -NEGATIVE_ROUNDING:
        base = np.where(np.less(v, -NEGATIVE_ROUNDING), np.nan, base)
    return base


@declare(atoms.Elementwise)
class Entrywise(AtomFacts):
    """Facts that all entrywise atoms share."""

    is_entrywise = True


def elementwise(atom: type, value: Map, slope: Map) -> None:
    """Register y = value(v), with slope(v, y) computed only when it is pulled back."""

    @rule(atom)
    def _(_atom: Any, v: Any) -> tuple[Any, ...]:
        y = value(v)
        return y, lambda g: g * slope(v, y)


def log1p(v: Any) -> Any:
    return np.log1p(np.maximum(v, np.nextafter(-1.0, 0.0)))


def entropy(v: Any) -> Any:
    return -np.maximum(v, 0.0) * np.log(floored(v))


elementwise(atoms.EXP, np.exp, lambda v, y: y)
elementwise(atoms.LOG, lambda v: np.log(floored(v)), lambda v, y: 1 / floored(v))
elementwise(atoms.LOG1P, log1p, lambda v, y: 1 / np.maximum(1 + v, TINY))
elementwise(atoms.ENTR, entropy, lambda v, y: -np.log(floored(v)) - 1)
elementwise(atoms.ABS, np.abs, lambda v, y: np.sign(v))
elementwise(atoms.XEXP, lambda v: v * np.exp(v), lambda v, y: (1 + v) * np.exp(v))

SMOOTH: dict[str, tuple[Map, Map]] = {
    "sin": (np.sin, lambda v, y: np.cos(v)),
    "cos": (np.cos, lambda v, y: -np.sin(v)),
    "tan": (np.tan, lambda v, y: 1 + y * y),
    "sinh": (np.sinh, lambda v, y: np.cosh(v)),
    "tanh": (np.tanh, lambda v, y: 1 - y * y),
    "asinh": (np.arcsinh, lambda v, y: 1 / np.sqrt(1 + v * v)),
    "atanh": (np.arctanh, lambda v, y: 1 / (1 - v * v)),
    "normcdf": (ndtr, lambda v, y: np.exp(-0.5 * v * v) / np.sqrt(2 * np.pi)),
}
for _name, _atom in atoms.SMOOTH_CLASSES.items():
    elementwise(_atom, *SMOOTH[_name])


@declare(atoms.LOG, atoms.LOG1P)
class Logarithm(AtomFacts):
    """log v and log(1 + v)."""

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        return [(argument, -np.inf) for argument, _ in super().domain(atom)]


@declare(atoms.ABS)
class AbsoluteValue(AtomFacts):
    """|v|."""

    is_homogeneous = True

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        return at.absolute(atom.args[0], at.read(atom.args[0]), sign)


@declare(atoms.LOGISTIC)
class Logistic(AtomFacts):
    """log(1 + e^v)."""

    def rule(self, _atom: Any, v: Any) -> tuple[Any, ...]:
        """log(1 + e^v) and its slope e^v / (1 + e^v), from e^-|v|: neither overflows."""
        e = np.exp(-np.abs(v))
        return np.maximum(v, 0) + np.log1p(e), lambda g: g * (np.where(v > 0, 1.0, e) / (1 + e))

    def far(self, atom: Any, arguments: list[Any]) -> Any | None:
        return cp.maximum(arguments[0], 0.0)


@declare(atoms.HUBER)
class Huber(AtomFacts):
    """v^2 up to the threshold M, then 2 M |v| - M^2."""

    def rule(self, atom: Any, v: Any) -> tuple[Any, ...]:
        threshold = float(atom.M.value)
        inner = np.clip(v, -threshold, threshold)
        return inner * (2 * v - inner), lambda g: (2 * g) * inner

    def far(self, atom: Any, arguments: list[Any]) -> Any | None:
        return 2.0 * atom.M * cp.abs(arguments[0])


@declare(atoms.MAXIMUM, atoms.MINIMUM)
class Extreme(AtomFacts):
    """The largest, or the smallest, of the arguments."""

    is_homogeneous = True

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """The gradient goes to the first of the operands that attain the value."""
        best, better = (
            (np.maximum, np.greater) if isinstance(atom, atoms.MAXIMUM) else (np.minimum, np.less)
        )

        def pull(winner: Any, k: int, g: Any) -> Any:
            return g * (winner == k)

        def kernel(*values: Any) -> tuple[Any, ...]:
            y, winner = values[0], np.zeros((), dtype=np.intp)
            for k, v in enumerate(values[1:], start=1):
                winner = np.where(better(v, y), k, winner)
                y = best(y, v)
            return y, *(partial(pull, winner, k) for k in range(len(values)))

        return kernel

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        if sign != (1 if isinstance(atom, atoms.MAXIMUM) else -1):
            raise NoPieces
        return at.union(at.spread(at(argument, sign)) for argument in atom.args)


@rule(atoms.REL_ENTR)
def _(_atom: Any, x: Any, y: Any) -> tuple[Any, ...]:
    log_ratio = np.log(floored(x)) - np.log(floored(y))
    x = np.maximum(x, 0.0)
    return x * log_ratio, lambda g: g * (log_ratio + 1), lambda g: -g * x / floored(y)


@rule(atoms.KL_DIV)
def _(_atom: Any, x: Any, y: Any) -> tuple[Any, ...]:
    log_ratio = np.log(floored(x)) - np.log(floored(y))
    x = np.maximum(x, 0.0)
    return x * log_ratio - x + y, lambda g: g * log_ratio, lambda g: g * (1 - x / floored(y))


@declare(atoms.XEXP)
class ProductWithExponential(AtomFacts):
    """v e^v, which is defined everywhere, although CVXPY's domain is v >= 0."""

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        return []


@declare(atoms.REL_ENTR, atoms.KL_DIV)
class RelativeEntropy(AtomFacts):
    """x log(x / y), and with y - x added."""

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        return [(atom.args[0], 0.0), (atom.args[1], np.inf)]


# ------------------------------------------------------------------ powers
@declare(POWER)
class PowerFacts(AtomFacts):
    """v^p; the exponent is no argument of CVXPY's atom.

    One power q = v^(p-1) gives the value v q and the slope p q.
    """

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

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        base, exponent = reads
        return atom.copy([base]) if exponent is atom.p else cp.power(base, exponent.value)

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        base, exponent = degrees
        p = atom.p.value
        natural = p is not None and float(p) == int(p) and p >= 0
        if exponent > 0 or atom.p.parameters() or not natural:
            return math.inf
        return int(p) * base

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        """The domain v >= 0; none for natural powers, which are polynomials."""
        p = atom.p.value
        if p is None or (p >= 0 and float(p) == int(p)):
            return []
        return [(atom.args[0], np.inf if p < 0 else 0.0)]

    def adjoints(self, atom: Any) -> Adjoints:
        """The identity: the degree is one only for the exponent 1."""
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
    if p != int(p) or p < 0:
        return lambda v: _real(v, p)

    def natural(v: Any) -> tuple[Any, Any]:
        q = repeated_product(v, int(p) - 1)
        return v * q, lambda g: (p * g) * q

    return natural


def repeated_product(v: Any, k: int) -> Any:
    """v^k for an integer k >= 1, by repeated squaring."""
    if k == 1:
        return v
    half = repeated_product(v, k // 2)
    return half * half if k % 2 == 0 else half * half * v


def _real(v: Any, p: float) -> tuple[Any, Any]:
    """v^p and its pullback for v >= 0, and v < 0 if p is an integer; TINY replaces 0."""
    base = np.where(np.equal(v, 0), TINY, v) if p == int(p) else floored(v)
    with np.errstate(over="ignore"):
        q = base ** (p - 1)
        y = (np.maximum(v, 0.0) if p > 0 else base) * q
    return y, lambda g: (p * g) * q


def _uncertain_power(ndim: int) -> Kernel:
    """The kernel of v^p with p in the data: one exponential per scenario and entry."""

    def kernel(v: Any, p: Any) -> tuple[Any, ...]:
        exponent = p.reshape(p.shape[:1] + (1,) * ndim)
        log_base = np.log(floored(v))
        with np.errstate(over="ignore"):
            q = np.exp((exponent - 1) * log_base)
            y = np.maximum(v, 0.0) * q

        def pull_exponent(g: Any) -> Any:
            return (g * y * log_base).sum(axis=own_axes(ndim)).reshape(p.shape)

        return y, lambda g: g * exponent * q, pull_exponent

    return kernel
