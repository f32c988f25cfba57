"""Atoms of the BPR travel time t (1 + alpha (x/c)^beta), for an exponent that is not a number.

With r = x/c and x_+ = max(x, 0), arc by arc,

    congestion   q = k x_+ r_+^beta,    k = 1/(beta + 1) integrated (Beckmann), 1 in total,
    link costs   sum_a t_a (x_a + alpha_a q_a).

They are convex in x on all of R for t alpha >= 0 and beta >= 0; for x < 0 there is no congestion.
CVXPY has no power with an uncertain exponent, or with one for each arc: hence the atoms. With
numbers as exponents both are sums of CVXPY's own powers, which its conic solvers accept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import Kernel, Operand, rule
from wdro_model.loss.atoms.own import StructuredAtom
from wdro_model.traffic.bpr_kernels import congestion_kernel, link_cost_kernel

ORDINARY = (1e-4, 1e4)
"""A multiplier alpha k outside is moved into the capacity, for the sake of conic solvers."""


class BprAtom(StructuredAtom):
    """An atom that is evaluated by a kernel, integrated or in total."""

    kernel: Callable[[bool, Sequence[bool]], Kernel]
    """Takes `integrated` and, for each argument, whether it has a batch axis."""

    def __init__(self, *arguments: Any, integrated: bool) -> None:
        self.integrated = integrated
        super().__init__(*arguments)

    def get_data(self) -> list[Any]:
        return [self.integrated]

    def numeric(self, values: Any) -> Any:
        return np.asarray(self._evaluated(values)[0])

    def _grad(self, values: Any) -> list[Any]:
        _, *pulls = self._evaluated(values)
        rows = np.eye(self.size).reshape(self.size, *self.shape)
        return [
            None if pull is None else sp.csc_array(np.stack([np.ravel(pull(g)) for g in rows], 1))
            for pull in pulls
        ]

    def _evaluated(self, values: Any) -> tuple[Any, ...]:
        """Value and pullbacks, where no argument has a batch axis."""
        return self.kernel(self.integrated, (False,) * len(self.args))(*values)


@rule(BprAtom, prepared=True)
def _(atom: Any, operands: tuple[Operand, ...]) -> Kernel:
    return atom.kernel(atom.integrated, [o.batched for o in operands])


class Congestion(BprAtom):
    """q of shape (A,), a function of (x, capacity, beta); build it with `congestion`."""

    kernel = staticmethod(congestion_kernel)

    def shape_from_args(self) -> tuple[int, ...]:
        return self.args[0].shape

    def sign_from_args(self) -> tuple[bool, bool]:
        return True, self.args[0].is_nonpos()

    def is_atom_convex(self) -> bool:
        """Is it convex? In x alone for beta >= 0, in beta alone: a mean of exponentials."""
        x, capacity, beta = self.args
        if not capacity.is_constant():
            return False
        return bool(x.is_constant() or (beta.is_constant() and beta.is_nonneg()))

    def is_atom_concave(self) -> bool:
        return False

    def is_incr(self, idx: int) -> bool:
        return idx == 0

    def is_decr(self, idx: int) -> bool:
        return False

    def rebuilt(self, arguments: Sequence[Any]) -> Any:
        return congestion(*arguments, integrated=self.integrated)


class LinkCosts(BprAtom):
    """A number, a function of (x, capacity, time, alpha, beta); build it with `link_costs`."""

    kernel = staticmethod(link_cost_kernel)

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    # -------------------------------------------------------------- curvature
    def sign_from_args(self) -> tuple[bool, bool]:
        x, _, time, alpha, _ = self.args
        grows = x.is_nonneg() and alpha.is_nonneg()
        return grows and time.is_nonneg(), grows and time.is_nonpos()

    def is_atom_convex(self) -> bool:
        """Is it convex in the one argument that varies? Affine in time, and in alpha."""
        return self._bends(self._congestion_sign() > 0)

    def is_atom_concave(self) -> bool:
        return self._bends(self._congestion_sign() < 0)

    def _bends(self, the_right_way: bool) -> bool:
        varying = [k for k, a in enumerate(self.args) if not a.is_constant()]
        if varying in ([], [2], [3]):
            return True
        return the_right_way and (varying == [4] or (varying == [0] and self.args[4].is_nonneg()))

    def _congestion_sign(self) -> int:
        """The sign of time * alpha; 0 where it is not known."""
        time, alpha = self.args[2:4]
        if not (
            (time.is_nonneg() or time.is_nonpos()) and (alpha.is_nonneg() or alpha.is_nonpos())
        ):
            return 0
        return 1 if time.is_nonneg() == alpha.is_nonneg() else -1

    def is_incr(self, idx: int) -> bool:
        x, _, time, alpha, _ = self.args
        known = {
            0: time.is_nonneg() and alpha.is_nonneg(),
            2: x.is_nonneg() and alpha.is_nonneg(),
            3: time.is_nonneg(),
        }
        return bool(known.get(idx, False))

    def is_decr(self, idx: int) -> bool:
        x, _, time, alpha, _ = self.args
        known = {
            0: time.is_nonpos() and alpha.is_nonneg(),
            2: x.is_nonpos(),
            3: time.is_nonpos(),
        }
        return bool(known.get(idx, False))

    # -------------------------------------------------------------- structure
    def degree_in(self, degrees: Sequence[float]) -> float:
        """Affine in time and in alpha, bilinear in both."""
        x, capacity, time, alpha, beta = degrees
        return np.inf if x or capacity or beta else time + alpha

    def slope(self, k: int) -> Any:
        x, capacity, time, alpha, beta = self.args
        delay = congestion(x, capacity, beta, integrated=self.integrated)
        if k == 2:
            return _summed(x + cp.multiply(alpha, delay), time)
        if k == 3:
            return _summed(cp.multiply(time, delay), alpha)
        return super().slope(k)

    def vanishes(self, zero: Sequence[bool]) -> bool:
        return zero[0] or zero[2]

    def rebuilt(self, arguments: Sequence[Any]) -> Any:
        return link_costs(*arguments, integrated=self.integrated)


def _summed(per_arc: Any, like: Any) -> Any:
    """One entry per arc, summed where the argument is one number for all arcs."""
    return cp.sum(per_arc) if like.shape == () else per_arc


# ------------------------------------------------------------------ in the simplest terms
def link_costs(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any, *, integrated: bool) -> Any:
    """sum_a t_a (x_a + alpha_a q_a), by CVXPY's own atoms where the exponents are numbers."""
    arguments = [cp.Constant.cast_to_const(a) for a in (x, capacity, time, alpha, beta)]
    if not is_number(arguments[4]) or arguments[0].is_constant():
        return LinkCosts(*arguments, integrated=integrated)
    x, capacity, time, alpha, beta = arguments
    if all(is_number(a) for a in (capacity, time, alpha)):
        return _certain_costs(x, *(a.value for a in arguments[1:]), integrated=integrated)
    delay = congestion(x, capacity, beta, integrated=integrated)
    if alpha.shape == () and not is_number(alpha):
        # A number for all arcs stays outside of the sum: two products per scenario.
        return dot(time, x) + alpha * dot(time, delay)
    return dot(time, x + cp.multiply(alpha, delay))


def congestion(x: Any, capacity: Any, beta: Any, *, integrated: bool) -> Any:
    """q = k x_+ (x/c)_+^beta, by CVXPY's own powers where the exponents are numbers."""
    x, capacity, beta = (cp.Constant.cast_to_const(a) for a in (x, capacity, beta))
    if not is_number(beta) or x.is_constant():
        return Congestion(x, capacity, beta, integrated=integrated)
    power = np.broadcast_to(beta.value + 1.0, x.shape)
    factor = 1.0 / power if integrated else np.ones(x.shape)
    return cp.multiply(cp.multiply(capacity, factor), powers(cp.pos(x / capacity), power))


def _certain_costs(
    x: Any, capacity: Any, time: Any, alpha: Any, beta: Any, *, integrated: bool
) -> Any:
    """All data are numbers: one linear form, and one sum of powers per distinct exponent."""
    time, alpha, beta = (np.broadcast_to(a, x.shape) for a in (time, alpha, beta))
    power = beta + 1.0
    factor = alpha / power if integrated else alpha
    weight, scale = time * factor * capacity, np.array(np.broadcast_to(capacity, x.shape))
    odd = (weight > 0) & (beta > 0) & ((factor < ORDINARY[0]) | (factor > ORDINARY[1]))
    # w (x/c)^p = t s (x/s)^p with s = c factor^(-1/beta): the flow at which congestion doubles t.
    with np.errstate(over="ignore", under="ignore"):
        moved = scale[odd] * factor[odd] ** (-1.0 / beta[odd])
    usable = np.isfinite(moved) & (moved > 0)
    odd[odd] = usable
    scale[odd] = moved[usable]
    weight = np.where(odd, time * scale, weight)
    arcs = np.flatnonzero(weight)
    if len(arcs) == 0:
        return time @ x
    ratio = cp.pos(at(x, arcs) / scale[arcs])
    return time @ x + weight[arcs] @ powers(ratio, power[arcs])


def powers(base: Any, exponents: np.ndarray) -> Any:
    """base^p entry by entry, base >= 0 and p >= 1 given for each."""
    distinct = np.unique(exponents)
    return raised(base, float(distinct[0])) if len(distinct) == 1 else Powers(base, exponents)


class Powers(atoms.WRAP):
    """base^p with a number p >= 1 for each entry: for CVXPY, one power per distinct exponent.

    Evaluated on scenarios it is one power of vectors, however many exponents there are.
    """

    def __init__(self, base: Any, exponents: np.ndarray) -> None:
        distinct = np.unique(exponents)
        groups = [np.flatnonzero(exponents == p) for p in distinct]
        parts = [raised(at(base, arcs), float(p)) for p, arcs in zip(distinct, groups)]
        self.operands, self.exponents = (base,), exponents
        super().__init__(cp.hstack(parts)[np.argsort(np.concatenate(groups))])

    def get_data(self) -> list[Any]:
        return [self.exponents]

    def copy(self, args: Any = None, id_objects: Any = None) -> Any:
        """Of other arguments the powers of CVXPY themselves: they are the argument."""
        if id_objects is not None and id(self) in id_objects:
            return id_objects[id(self)]
        return self if args is None else args[0]


@rule(Powers)
def _(atom: Any, base: Any) -> tuple[Any, ...]:
    slope = np.where(base > 0, base, 0.0) ** (atom.exponents - 1.0)
    return base * slope, lambda g: g * (atom.exponents * slope)


def raised(base: Any, p: float) -> Any:
    """base^p for p >= 1, base >= 0; by a power cone where it is not a square."""
    return base if p == 1 else cp.power(base, p, approx=False)


def at(x: Any, arcs: np.ndarray) -> Any:
    """The entries of some arcs."""
    return x if len(arcs) == x.size else x[arcs]


def dot(weights: Any, per_arc: Any) -> Any:
    """sum_a w_a y_a, for weights given per arc or for all of them."""
    return weights * cp.sum(per_arc) if weights.shape == () else weights @ per_arc


def is_number(expression: Any) -> bool:
    """Is it a constant, without variables or parameters?"""
    return bool(expression.is_constant() and not expression.parameters())
