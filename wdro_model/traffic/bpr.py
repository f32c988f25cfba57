"""The BPR travel time t (1 + alpha (x/c)^beta): CVXPY atoms, batched values and gradients.

Both are sums over the arcs of products of factors. A factor is one number for each scenario (a
row), one for each arc (a column), or one for each scenario and arc; rows and columns are taken out
of the sums, which leaves matrix-vector products. The powers r^beta = exp(beta log r) take one
logarithm per arc, and one exponential per scenario and arc; they are kept while flows and exponents
stay the same, as they do where only the travel times move.

With r = x/c and x_+ = max(x, 0), arc by arc,

    congestion   q = k x_+ r_+^beta,    k = 1/(beta + 1) integrated (Beckmann), 1 in total,
    link costs   sum_a t_a (x_a + alpha_a q_a).

They are convex in x on all of R for t alpha >= 0 and beta >= 0; for x < 0 there is no congestion.
CVXPY has no power with an uncertain exponent, or with one for each arc: hence the atoms. With
numbers as exponents both are sums of CVXPY's own powers, which its conic solvers accept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import Adjoints, AtomFacts, Kernel, Operand, declare, rule
from wdro_model.loss.atoms.quadratic import StructuredAtom
from wdro_model.loss.expressions import weighted

Array = np.ndarray
ROUNDING = 1e-9
"""Flows below zero by less than this fraction of the capacity count as zero."""
LOG_ZERO = -1e300
"""Stands for log 0: beta times it is 0 for beta = 0, and its exponential 0 for every other."""
SILENT = partial(np.errstate, all="ignore")
"""Values that are not finite are refused by those who called, by name."""


class Factor:
    """An array with what it ranges over: scenarios, arcs, or both."""

    __slots__ = ("array", "kind")

    def __init__(self, array: Any, batched: bool, per_arc: bool) -> None:
        self.array = np.asarray(array, dtype=float)
        self.kind = "full" if batched and per_arc else "column" if per_arc else "row"


class Product:
    """factor * factor * ..., split into its row, its column and what depends on both."""

    def __init__(self, factors: Sequence[Factor | None], known: dict[Any, Array]) -> None:
        used = [f for f in factors if f is not None]
        self.row: Any = _multiplied([f.array for f in used if f.kind == "row"])
        self.column = _multiplied([f.array for f in used if f.kind == "column"])
        full = [f.array for f in used if f.kind == "full"]
        key = tuple(map(id, full))
        if len(full) > 1 and key not in known:
            known[key] = _multiplied(full)
        self.full = known[key] if len(full) > 1 else full[0] if full else None

    def total(self) -> Any:
        """The sum over the arcs, one number for each scenario."""
        if self.full is None:
            return _times(self.row, self.column.sum())
        inner = self.full.sum(axis=-1) if self.column is None else self.full @ self.column
        return _times(self.row, inner)

    def collected(self, g: Any) -> Any:
        """The sum over the scenarios weighted by g, one number for each arc."""
        weights = _times(self.row, g)
        inner = np.sum(weights) if self.full is None else weights @ self.full
        return _times(self.column, inner)

    def spread(self) -> Any:
        """The product itself, for each scenario and arc (or what broadcasts to it)."""
        row = self.row[:, None] if np.ndim(self.row) else self.row
        if self.full is None:
            return _times(row, 1.0 if self.column is None else self.column)
        out = self.full * (1.0 if self.column is None else self.column)
        if row is not None:
            out *= row
        return out


def pulled(like: Factor, products: Sequence[Product], g: Any) -> Any:
    """The gradient in an operand of g @ sum_arcs(operand * sum of products)."""
    with SILENT():
        if like.kind == "row":
            return g * sum(product.total() for product in products)
        if like.kind == "column":
            total = sum(product.collected(g) for product in products)
            return np.broadcast_to(total, like.array.shape)
        first, *others = sorted(products, key=lambda product: product.full is None)
        out = first.spread()
        if first.full is None:
            out = np.array(np.broadcast_to(out, like.array.shape))
        for product in others:
            out += product.spread()
        if np.any(g != 1.0):
            out *= g[:, None]
        return out


def _multiplied(arrays: list[Any]) -> Any:
    """The product of some arrays; None for none."""
    if not arrays:
        return None
    first, *others = arrays
    for other in others:
        first = first * other
    return first


def _times(factor: Any, array: Any) -> Any:
    return array if factor is None else factor * array


# ------------------------------------------------------------------ flows and their powers
class Flows:
    """What a call sees of the flows: x, x_+, log r, r^beta and the multiplier k."""

    power: Factor
    """r^beta, where `live` says that it is."""

    def __init__(
        self, x: Any, capacity: Any, beta: Any, integrated: bool, batched: Sequence[bool]
    ) -> None:
        x, beta = np.asarray(x, dtype=float), np.asarray(beta, dtype=float)
        ratio = x / capacity
        used = ratio > 0
        # Where all exponents are positive, r^beta = 0 at r = 0 is left to `live`: an exponential
        # of 0 is faster than one that underflows.
        masked = bool((beta > 0).all())
        self.log_ratio = np.full(ratio.shape, 0.0 if masked else LOG_ZERO)
        np.log(ratio, out=self.log_ratio, where=used)
        live = used if masked else ratio >= -ROUNDING
        self.x = Factor(x, batched[0], True)
        self.above = Factor(np.where(used, x, 0.0), batched[0], True)
        self.entropy = Factor(self.above.array * self.log_ratio, batched[0], True)
        """x_+ log r, 0 at x = 0."""
        self.live = None if live.all() else Factor(live, batched[0], True)
        """Where congestion has a slope in x; None for everywhere."""
        kind = (batched[2], beta.ndim > batched[2])
        self.beta = Factor(beta, *kind)
        self.share = Factor(1.0 / (beta + 1.0), *kind) if integrated else None
        """k, None for 1."""
        self.falling = Factor(-((beta + 1.0) ** -2), *kind) if integrated else None
        """The derivative of k."""
        self.rise = None if integrated else Factor(beta + 1.0, *kind)
        """(beta + 1) k, None for 1."""

    def exponent(self) -> Any:
        """beta log r."""
        beta = self.beta.array
        if self.beta.kind == "row" and beta.ndim:
            beta = beta[:, None]
        return beta * self.log_ratio

    def by_exponent(self, *others: Factor) -> list[tuple[Factor | None, ...]]:
        """The derivative of k x_+ r^beta in beta, as products, with other factors."""
        slopes: list[tuple[Factor | None, ...]] = [(*others, self.share, self.entropy, self.power)]
        if self.falling is not None:
            slopes.append((*others, self.falling, self.above, self.power))
        return slopes


class KeptPowers:
    """r^beta of the last call, kept while x, capacity and beta are the same."""

    def __init__(self, integrated: bool, batched: Sequence[bool]) -> None:
        self.integrated, self.batched = integrated, batched
        self._last: tuple[list[Array], Array] | None = None

    def __call__(self, x: Any, capacity: Any, beta: Any) -> Flows:
        flows = Flows(x, capacity, beta, self.integrated, self.batched)
        given = [np.asarray(a, dtype=float) for a in (x, capacity, beta)]
        if self._last is None or not all(map(np.array_equal, given, self._last[0])):
            power = flows.exponent()
            np.exp(power, out=power)
            self._last = ([a.copy() for a in given], power)
        flows.power = Factor(self._last[1], self.batched[0] or self.batched[2], True)
        return flows


# ------------------------------------------------------------------ the kernels
def congestion_kernel(integrated: bool, batched: Sequence[bool]) -> Kernel:
    """(x, capacity, beta) -> q and its pullbacks; batched: which operands have a batch axis."""
    powers = KeptPowers(integrated, (batched[0], False, batched[2]))

    def kernel(x: Any, capacity: Any, beta: Any) -> tuple[Any, ...]:
        with SILENT():
            flows = powers(x, capacity, beta)
            value = Product((flows.share, flows.above, flows.power), {}).spread()

        def gradient(like: Factor, *products: Sequence[Factor | None]) -> Callable[[Any], Any]:
            def pull(g: Any) -> Any:
                adjoint = Factor(g, np.ndim(g) > 1, True)
                one = np.ones(len(g)) if np.ndim(g) > 1 else np.ones(())
                return pulled(like, [Product((*p, adjoint), {}) for p in products], one)

            return pull

        return (
            value,
            gradient(flows.x, (flows.rise, flows.live, flows.power)),
            None,
            gradient(flows.beta, *flows.by_exponent()),
        )

    return kernel


def link_cost_kernel(integrated: bool, batched: Sequence[bool]) -> Kernel:
    """(x, capacity, time, alpha, beta) -> the cost of all arcs and its pullbacks."""
    powers = KeptPowers(integrated, (batched[0], False, batched[4]))

    def kernel(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any) -> tuple[Any, ...]:
        t = Factor(time, batched[2], np.ndim(time) > batched[2])
        a = Factor(alpha, batched[3], np.ndim(alpha) > batched[3])
        known: dict[Any, Array] = {}
        with SILENT():
            flows = powers(x, capacity, beta)
            k, above, power = flows.share, flows.above, flows.power
            value = Product((t, flows.x), known).total()
            value = value + Product((t, a, k, above, power), known).total()

        def gradient(like: Factor, *products: Sequence[Factor | None]) -> Callable[[Any], Any]:
            return lambda g: pulled(like, [Product(p, known) for p in products], np.asarray(g))

        return (
            value,
            gradient(flows.x, (t,), (t, a, flows.rise, flows.live, power)),
            None,
            gradient(t, (flows.x,), (a, k, above, power)),
            gradient(a, (t, k, above, power)),
            gradient(flows.beta, *flows.by_exponent(t, a)),
        )

    return kernel


# ------------------------------
# Atoms of the BPR travel time t (1 + alpha (x/c)^beta), for an exponent that is not a number


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


@declare(BprAtom)
class BprFacts(AtomFacts):
    """Every atom of the travel time has a kernel of its own."""

    def kernel(self, atom: Any, operands: tuple[Operand, ...]) -> Kernel:
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


@declare(Congestion)
class CongestionFacts(AtomFacts):
    """q is no polynomial of its arguments."""

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        return congestion(*reads, integrated=atom.integrated)


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


@declare(LinkCosts)
class LinkCostFacts(AtomFacts):
    """Affine in time and in alpha, bilinear in both."""

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        x, capacity, time, alpha, beta = degrees
        return np.inf if x or capacity or beta else time + alpha

    def adjoints(self, atom: Any) -> Adjoints:
        x, capacity, time, alpha, beta = atom.args
        delay = congestion(x, capacity, beta, integrated=atom.integrated)

        def unknown(_adjoint: Any) -> Any:
            return AtomFacts.adjoints(self, atom)

        return [
            unknown,
            unknown,
            lambda g: weighted(g, _summed(x + cp.multiply(alpha, delay), time)),
            lambda g: weighted(g, _summed(cp.multiply(time, delay), alpha)),
            unknown,
        ]

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        return None if parts[0] is None or parts[2] is None else super().constant_part(atom, parts)

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        return link_costs(*reads, integrated=atom.integrated)


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
