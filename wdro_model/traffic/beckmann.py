"""Costs of traffic on congested arcs, as CVXPY expressions of the flows.

The travel time of an arc with flow x is t (1 + alpha (x/c)^beta) (Bureau of Public Roads). Its
integral is the objective of the drivers' equilibrium (Beckmann); its product with the flow is the
time that all drivers spend together. With r = x/c and x_+ = max(x, 0), both are, arc by arc,

    congestion   q = k x_+ r_+^beta,    k = 1/(beta + 1) integrated (Beckmann), 1 in total,
    link costs   sum_a t_a (x_a + alpha_a q_a).

They are convex in x on all of R for t alpha >= 0 and beta >= 0; for x < 0 there is no congestion.
CVXPY has no power with an uncertain exponent, or with one for each arc: hence the atoms. With
numbers as exponents both are sums of CVXPY's own powers, which its conic solvers accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import Adjoints, AtomFacts, declare, rule
from wdro_model.loss.atoms.quadratic import StructuredAtom
from wdro_model.loss.expressions import weighted
from wdro_model.traffic.fields import NONNEGATIVE, POSITIVE, check_rule
from wdro_model.uncertainty.parameter import UncertainParameter

Array = np.ndarray
NEGATIVE_ROUNDING = 1e-9
"""Flows below zero by less than this fraction of the capacity have the slope of an empty arc; a
smaller number gives a wrong slope to flows with rounding errors where beta = 0."""
LOG_ZERO = -1e300
"""Stands for log 0: beta times it is 0 for beta = 0, and its exponential 0 for every other beta."""
SILENT = partial(np.errstate, all="ignore")
"""No warnings of overflow: callers refuse values that are not finite, by name."""
LEAST_FACTOR, LARGEST_FACTOR = 1e-4, 1e4
"""A multiplier alpha k out of this range is moved into the capacity; conic solvers fail beyond."""


def beckmann(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any) -> Any:
    """Beckmann's objective, the integrals of the travel times from 0 to the flows:

        sum_a  t_a ( x_a + alpha_a c_a/(beta_a + 1) (x_a/c_a)^(beta_a + 1) ).

    Flows below zero have no congestion, so that the expression is convex in x on all of R^A as soon
    as the signs of time, alpha and beta are known: of an uncertain parameter they are when its
    support is nonnegative. With exponents that are numbers it consists of CVXPY's own atoms, and
    is affine in time, and in alpha.

    Parameters
    ----------
    x
        Flows, shape (A,), an affine expression of the variables.
    capacity
        c > 0, one number or (A,); an array or a `cvxpy.Parameter` with a value.
    time, alpha, beta
        Free-flow times t >= 0, multiplier >= 0 and exponent >= 0. Each is one number for all arcs
        or (A,): an array, a `cvxpy.Parameter`, an `UncertainParameter` or an affine expression of
        them, in any mixture.

    Examples
    --------
    >>> x = cp.Variable(network.n_arcs, nonneg=True)
    >>> times = wdro.UncertainParameter(network.n_arcs, "times", nonneg=True)
    >>> loss = wdro.traffic.beckmann(x, network.capacity, times, network.b, network.power)
    >>> loss.is_convex(), wdro.loss.degree(loss, [times])
    (True, 1.0)
    """
    return link_costs(*_checked("beckmann", x, capacity, time, alpha, beta), integrated=True)


def system_cost(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any) -> Any:
    """The time that all drivers spend together: sum_a t_a x_a (1 + alpha_a (x_a/c_a)^beta_a).

    Its minimiser is the system optimum, where that of `beckmann` is the equilibrium. Arguments,
    convexity and structure are the same.

    Examples
    --------
    >>> x = cp.Variable(network.n_arcs, nonneg=True)
    >>> cost = wdro.traffic.system_cost(
    ...     x, network.capacity, network.free_flow_time, network.b, network.power
    ... )
    >>> cost.is_convex()
    True
    """
    return link_costs(*_checked("system_cost", x, capacity, time, alpha, beta), integrated=False)


# ------------------------------------------------------------------ values and gradients
def _as_rows(values: Any, argument: Any) -> Array:
    """Values of an argument as (scenarios, arcs), with 1 where it does not vary."""
    array = np.asarray(values, dtype=float)
    return np.atleast_2d(array) if argument.ndim else array.reshape(-1, 1)


def _contract(product: Sequence[Array], per_scenario: bool, per_arc: bool) -> Array:
    """A product of factors (scenarios, arcs), summed over the axes that are not asked for.

    Factors of the scenarios alone, and of the arcs alone, are taken out of the sum: a matrix-vector
    product is left, which is 2 to 4 times as fast for a thousand scenarios.
    """
    row = column = full = np.ones((1, 1))
    for factor in product:
        if factor.shape[1] == 1:
            row = row * factor
        elif len(factor) == 1:
            column = column * factor
        else:
            full = factor if full.size == 1 else full * factor
    if per_scenario and per_arc:
        scaled = full * column
        return np.multiply(scaled, row, out=scaled) if len(scaled) >= len(row) else scaled * row
    if per_scenario:
        fits = full.shape[1] == column.shape[1]
        inner = full @ column.T if fits else (full * column).sum(axis=1, keepdims=True)
        return (row * inner)[:, 0]
    fits = len(full) == len(row)
    inner = row.T @ full if fits else (row * full).sum(axis=0, keepdims=True)
    return (inner * column)[0]


Product = tuple[Array, ...]


@dataclass(frozen=True)
class FlowPowers:
    """The factors of q = k x_+ r^beta and of its slopes, each (scenarios, arcs)."""

    share: Array
    """k."""
    share_slope: Array | None
    """The derivative of k in beta; None for 0."""
    rise: Array
    """(beta + 1) k."""
    used: Array
    """x_+."""
    entropy: Array
    """x_+ log r, 0 at x = 0."""
    has_slope: Array
    """1 where congestion has a slope in x, else 0."""
    power: Array
    """r^beta."""

    @classmethod
    def from_flows(cls, x: Array, capacity: Array, beta: Array, integrated: bool) -> FlowPowers:
        ratio = x / capacity
        used, log_ratio = np.maximum(x, 0.0), np.full(ratio.shape, LOG_ZERO)
        np.log(ratio, out=log_ratio, where=ratio > 0)
        share, one = 1.0 / (beta + 1.0), np.ones((1, 1))
        return cls(
            share=share if integrated else one,
            share_slope=-(share**2) if integrated else None,
            rise=one if integrated else beta + 1.0,
            used=used,
            entropy=used * log_ratio,
            has_slope=(ratio >= -NEGATIVE_ROUNDING).astype(float),
            power=np.exp(beta * log_ratio),
        )

    @property
    def value(self) -> Product:
        return self.share, self.used, self.power

    @property
    def slope_in_flow(self) -> Product:
        return self.rise, self.has_slope, self.power

    @property
    def slopes_in_exponent(self) -> list[Product]:
        """The products whose sum is the slope in beta."""
        slopes: list[Product] = [(self.share, self.entropy, self.power)]
        if self.share_slope is not None:
            slopes.append((self.share_slope, self.used, self.power))
        return slopes


class BprAtom(StructuredAtom):
    """An atom of the BPR formula, integrated or in total."""

    def __init__(self, *arguments: Any, integrated: bool) -> None:
        self.integrated = integrated
        super().__init__(*arguments)

    def get_data(self) -> list[Any]:
        return [self.integrated]

    def numeric(self, values: Any) -> Any:
        return np.asarray(self.evaluate(*values)[0])

    def _grad(self, values: Any) -> list[Any]:
        _, *pulls = self.evaluate(*values)
        rows = np.eye(self.size).reshape(self.size, *self.shape)
        return [
            None if pull is None else sp.csc_array(np.stack([np.ravel(pull(g)) for g in rows], 1))
            for pull in pulls
        ]

    def evaluate(self, *values: Any) -> tuple[Any, ...]:
        """The atom's value, then the pullback of each argument; None for the capacity."""
        raise NotImplementedError

    def pullback(self, k: int, values: Sequence[Any], products: Sequence[Product]) -> Any:
        """The pullback in argument k; the products add up to the derivatives (scenarios, arcs).

        The adjoint is one number for each scenario, or one for each scenario and arc.
        """
        per_arc = bool(self.args[k].ndim)
        per_scenario = np.ndim(values[k]) > self.args[k].ndim or not per_arc

        def pull(adjoint: Any) -> Any:
            g = _as_rows(adjoint, self)
            with SILENT():
                parts = [_contract((g, *product), per_scenario, per_arc) for product in products]
            total, *others = sorted(parts, key=np.size, reverse=True)
            for part in others:
                total += part
            return total if per_arc or self.is_batched(values) else total[0]

        return pull

    def is_batched(self, values: Sequence[Any]) -> bool:
        """Has some value a batch axis in front of the shape of its argument?"""
        return any(np.ndim(value) > a.ndim for value, a in zip(values, self.args))


@declare(BprAtom)
class BprFacts(AtomFacts):
    """The values and gradients of the atoms of the BPR formula."""

    def rule(self, atom: Any, *values: Any) -> tuple[Any, ...]:
        return atom.evaluate(*values)


class Congestion(BprAtom):
    """q of shape (A,), a function of (x, capacity, beta); build it with `congestion`."""

    def evaluate(self, *values: Any) -> tuple[Any, ...]:
        x, capacity, beta = map(_as_rows, values, self.args)
        with SILENT():
            powers = FlowPowers.from_flows(x, capacity, beta, self.integrated)
            q = _contract(powers.value, True, True)
        return (
            q if self.is_batched(values) else q[0],
            self.pullback(0, values, [powers.slope_in_flow]),
            None,
            self.pullback(2, values, powers.slopes_in_exponent),
        )

    def shape_from_args(self) -> tuple[int, ...]:
        return self.args[0].shape

    def sign_from_args(self) -> tuple[bool, bool]:
        return True, self.args[0].is_nonpos()

    def is_atom_convex(self) -> bool:
        """True in x alone for beta >= 0, and in beta alone: a mean of exponentials."""
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
class CongestionFacts(BprFacts):
    """The structure of `Congestion`, which is no polynomial of its arguments."""

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        return congestion(*reads, integrated=atom.integrated)


class LinkCosts(BprAtom):
    """A number, a function of (x, capacity, time, alpha, beta); build it with `link_costs`."""

    def evaluate(self, *values: Any) -> tuple[Any, ...]:
        x, capacity, time, alpha, beta = map(_as_rows, values, self.args)
        with SILENT():
            powers = FlowPowers.from_flows(x, capacity, beta, self.integrated)
            costs = _contract((time, x), True, False)
            costs = costs + _contract((time, alpha, *powers.value), True, False)
        in_exponent = [(time, alpha, *product) for product in powers.slopes_in_exponent]
        return (
            costs if self.is_batched(values) else costs[0],
            self.pullback(0, values, [(time,), (time, alpha, *powers.slope_in_flow)]),
            None,
            self.pullback(2, values, [(x,), (alpha, *powers.value)]),
            self.pullback(3, values, [(time, *powers.value)]),
            self.pullback(4, values, in_exponent),
        )

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    # -------------------------------------------------------------- curvature
    def sign_from_args(self) -> tuple[bool, bool]:
        x, _, time, alpha, _ = self.args
        grows = x.is_nonneg() and alpha.is_nonneg()
        return grows and time.is_nonneg(), grows and time.is_nonpos()

    def is_atom_convex(self) -> bool:
        """True if convex in the one argument that varies; time and alpha enter linearly."""
        return self._has_curvature(1)

    def is_atom_concave(self) -> bool:
        return self._has_curvature(-1)

    def _has_curvature(self, sign: int) -> bool:
        """Is the atom convex (sign 1) or concave (sign -1) in the one argument that varies?"""
        varying = [k for k, a in enumerate(self.args) if not a.is_constant()]
        if varying in ([], [2], [3]):
            return True
        signs = [1 if a.is_nonneg() else -1 if a.is_nonpos() else 0 for a in self.args[2:4]]
        is_bent = varying == [4] or (varying == [0] and self.args[4].is_nonneg())
        return is_bent and signs[0] * signs[1] == sign

    def is_incr(self, idx: int) -> bool:
        x, _, time, alpha, _ = self.args
        if idx == 0:
            return bool(time.is_nonneg() and alpha.is_nonneg())
        if idx == 2:
            return bool(x.is_nonneg() and alpha.is_nonneg())
        return bool(idx == 3 and time.is_nonneg())

    def is_decr(self, idx: int) -> bool:
        x, _, time, alpha, _ = self.args
        if idx == 0:
            return bool(time.is_nonpos() and alpha.is_nonneg())
        return bool((idx == 2 and x.is_nonpos()) or (idx == 3 and time.is_nonpos()))


@declare(LinkCosts)
class LinkCostFacts(BprFacts):
    """The structure of `LinkCosts`: affine in time and in alpha, bilinear in both."""

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        x, capacity, time, alpha, beta = degrees
        return np.inf if x or capacity or beta else time + alpha

    def adjoints(self, atom: Any) -> Adjoints:
        x, capacity, time, alpha, beta = atom.args
        delay = congestion(x, capacity, beta, integrated=atom.integrated)

        def unknown(_adjoint: Any) -> Any:
            return AtomFacts.adjoints(self, atom)

        def slope(per_arc: Any, argument: Any) -> Any:
            return lambda g: weighted(g, per_arc if argument.ndim else cp.sum(per_arc))

        in_time = slope(x + cp.multiply(alpha, delay), time)
        in_alpha = slope(cp.multiply(time, delay), alpha)
        return [unknown, unknown, in_time, in_alpha, unknown]

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        return None if parts[0] is None or parts[2] is None else super().constant_part(atom, parts)

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        return link_costs(*reads, integrated=atom.integrated)


# ------------------------------------------------------------------ CVXPY's own atoms
def link_costs(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any, *, integrated: bool) -> Any:
    """sum_a t_a (x_a + alpha_a q_a), by CVXPY's own atoms where the exponents are numbers."""
    arguments = [cp.Constant.cast_to_const(a) for a in (x, capacity, time, alpha, beta)]
    if not _is_number(arguments[4]) or arguments[0].is_constant():
        return LinkCosts(*arguments, integrated=integrated)
    x, capacity, time, alpha, beta = arguments
    if all(_is_number(a) for a in (capacity, time, alpha)):
        return _certain_costs(x, *(a.value for a in arguments[1:]), integrated=integrated)
    delay = congestion(x, capacity, beta, integrated=integrated)
    if alpha.shape == () and not _is_number(alpha):
        # A number for all arcs stays outside of the sum: two products per scenario.
        return _weighted_sum(time, x) + alpha * _weighted_sum(time, delay)
    return _weighted_sum(time, x + cp.multiply(alpha, delay))


def congestion(x: Any, capacity: Any, beta: Any, *, integrated: bool) -> Any:
    """q = k x_+ (x/c)_+^beta, by CVXPY's own powers where the exponents are numbers."""
    x, capacity, beta = (cp.Constant.cast_to_const(a) for a in (x, capacity, beta))
    if not _is_number(beta) or x.is_constant():
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
    odd = (weight > 0) & (beta > 0) & ((factor < LEAST_FACTOR) | (factor > LARGEST_FACTOR))
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
    ratio = cp.pos(_entries(x, arcs) / scale[arcs])
    return time @ x + weight[arcs] @ powers(ratio, power[arcs])


def powers(base: Any, exponents: np.ndarray) -> Any:
    """base^p entry by entry, base >= 0 and p >= 1 given for each."""
    distinct = np.unique(exponents)
    return _raise_to(base, float(distinct[0])) if len(distinct) == 1 else Powers(base, exponents)


class Powers(atoms.WRAP):
    """base^p with a number p >= 1 for each entry: for CVXPY, one power per distinct exponent.

    Evaluated on scenarios it is one power of vectors, however many exponents there are.
    """

    def __init__(self, base: Any, exponents: np.ndarray) -> None:
        distinct = np.unique(exponents)
        groups = [np.flatnonzero(exponents == p) for p in distinct]
        parts = [_raise_to(_entries(base, arcs), float(p)) for p, arcs in zip(distinct, groups)]
        self.operands, self.exponents = (base,), exponents
        super().__init__(cp.hstack(parts)[np.argsort(np.concatenate(groups))])

    def get_data(self) -> list[Any]:
        return [self.exponents]

    def copy(self, args: Any = None, id_objects: Any = None) -> Any:
        """A copy on other arguments: CVXPY's own powers, which are the argument of this atom."""
        if id_objects is not None and id(self) in id_objects:
            return id_objects[id(self)]
        return self if args is None else args[0]


@rule(Powers)
def _(atom: Any, base: Any) -> tuple[Any, ...]:
    slope = np.where(base > 0, base, 0.0) ** (atom.exponents - 1.0)
    return base * slope, lambda g: g * (atom.exponents * slope)


def _raise_to(base: Any, p: float) -> Any:
    """base^p for p >= 1, base >= 0; by a power cone where it is not a square."""
    return base if p == 1 else cp.power(base, p, approx=False)


def _entries(x: Any, arcs: np.ndarray) -> Any:
    """The entries of x on the given arcs."""
    return x if len(arcs) == x.size else x[arcs]


def _weighted_sum(weights: Any, per_arc: Any) -> Any:
    """sum_a w_a y_a, for weights given per arc or for all of them."""
    return weights * cp.sum(per_arc) if weights.shape == () else weights @ per_arc


def _is_number(expression: Any) -> bool:
    """True for an expression without variables or parameters."""
    return bool(expression.is_constant() and not expression.parameters())


# ------------------------------------------------------------------ checks of the arguments
def _checked(what: str, x: Any, capacity: Any, *data: Any) -> list[Any]:
    """The arguments as CVXPY expressions."""
    flows = _as_expression(f"x of {what}", x)
    if flows.ndim != 1:
        raise ValueError(
            f"{what} needs flows x of shape (A,), one entry per arc, got shape {flows.shape}; "
            "x = cp.Variable(A) fits."
        )
    arguments = [flows]
    for name, given in zip(("capacity", "time", "alpha", "beta"), (capacity, *data)):
        label = f"{name} of {what}"
        argument = _as_expression(label, given)
        if argument.shape not in ((), flows.shape):
            raise ValueError(
                f"{label} must be one number or have shape {flows.shape}, one entry for each "
                f"entry of x, got shape {argument.shape}."
            )
        if not argument.is_constant():
            variables = ", ".join(repr(v.name()) for v in argument.variables())
            raise ValueError(
                f"{label} must not depend on decision variables, got one that depends on "
                f"{variables}; only the flows x may."
            )
        uncertain = [p.name() for p in argument.parameters() if isinstance(p, UncertainParameter)]
        if name == "capacity" and uncertain:
            raise ValueError(
                f"{label} must be certain, got the uncertain parameter {uncertain[0]!r}; let alpha "
                "carry the uncertainty: alpha * (x/c)^beta, as in the exact losses of "
                "traffic.UncertainNetwork(network, capacity=scenarios)."
            )
        value = None if uncertain else argument.value
        if name == "capacity" and value is None:
            raise ValueError(
                f"{label} needs a value, and its parameter has none; set .value first."
            )
        if value is not None:
            values = value.toarray() if sp.issparse(value) else np.asarray(value, float)
            allowed = POSITIVE if name == "capacity" else NONNEGATIVE
            check_rule(label, values, allowed, lambda *index: f" at arc {index[0]}")
        arguments.append(argument)
    return arguments


def _as_expression(label: str, given: Any) -> Any:
    if isinstance(given, str) or given is None:
        raise ValueError(f"{label} must be numbers or an expression, got {given!r}.")
    try:
        expression = cp.Constant.cast_to_const(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{label} must be numbers or an expression, got {type(given).__name__}."
        ) from error
    if expression.is_complex():
        raise ValueError(f"{label} must be real, got complex numbers.")
    return expression
