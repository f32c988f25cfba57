"""Costs of arcs that are sums of powers of their flows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class PowerCosts:
    """t_a(x) = constant_a + sum_k weight_k (x scale_a)^power_k over the terms k of arc a.

    constant, scale (A,); terms (A + 1,): those of arc a are terms[a] to terms[a + 1];
    weight (K,) > 0; power (K,) > 0.
    """

    constant: Array
    scale: Array
    terms: Array
    weight: Array
    power: Array

    @classmethod
    def of(cls, constant: Array, capacity: Array, weight: Array, power: Array) -> PowerCosts:
        """From weights and powers (S, A) of S terms for each arc; terms without effect left out."""
        weight, power = np.atleast_2d(weight), np.atleast_2d(power)
        weight, power = np.broadcast_arrays(weight, power)
        constant = constant + np.where(power == 0, weight, 0.0).sum(axis=0)
        felt = ((weight > 0) & (power > 0)).T
        terms = np.concatenate([[0], np.cumsum(felt.sum(axis=1))])
        return cls(
            np.ascontiguousarray(constant, dtype=np.float64),
            np.ascontiguousarray(np.broadcast_to(1.0 / capacity, constant.shape)),
            terms.astype(np.int64),
            np.ascontiguousarray(weight.T[felt]),
            np.ascontiguousarray(power.T[felt]),
        )

    @classmethod
    def fixed(cls, constant: Array) -> PowerCosts:
        """Costs that no flow changes."""
        none = np.zeros(constant.size + 1, dtype=np.int64)
        return cls(constant, np.ones(constant.size), none, np.empty(0), np.empty(0))

    def taken(self, arcs: Array) -> PowerCosts:
        """The costs of some arcs, in their order."""
        counts = np.diff(self.terms)[arcs]
        terms = np.concatenate([[0], np.cumsum(counts)])
        of = np.repeat(self.terms[arcs] - terms[:-1], counts) + np.arange(terms[-1])
        return PowerCosts(
            self.constant[arcs], self.scale[arcs], terms, self.weight[of], self.power[of]
        )

    @property
    def nonnegative(self) -> bool:
        """Is there no flow at which an arc costs less than nothing?"""
        return bool(np.all(self.constant >= 0.0))

    def refuse_negative(self) -> None:
        """Raise ValueError where an arc without flow costs less than nothing."""
        if not self.nonnegative:
            arc = int(np.argmin(self.constant))
            raise ValueError(
                f"arc {arc} costs {self.constant[arc]:g} without flow, and bushes need costs >= 0; "
                "raise its fixed_cost, or use method='frank_wolfe'."
            )

    def arrays(self) -> tuple[Any, ...]:
        """As the kernels take them."""
        return self.constant, self.scale, self.terms, self.weight, self.power
