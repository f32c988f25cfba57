"""Batched values and gradients of congestion and link costs.

Both are sums over the arcs of products of factors. A factor is one number for each scenario (a
row), one for each arc (a column), or one for each scenario and arc; rows and columns are taken out
of the sums, which leaves matrix-vector products. The powers r^beta = exp(beta log r) take one
logarithm per arc, and one exponential per scenario and arc; they are kept while flows and exponents
stay the same, as they do where only the travel times move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from wdro_model.loss.atoms.facts import Kernel

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
