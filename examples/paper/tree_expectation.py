"""What a decision can expect of a shift: the mean of the test costs, given what was seen.

Base costs mu are independent with mean 1/2, masks M Bernoulli(q). A = M * mu is what the training
data shows. Whatever is drawn anew at test is drawn independently, so that given the training data
the costs A' of the test have the mean

    E A' = alpha A + beta M + gamma 11',

and since the entries of a decision sum to n - 1, the expected advantage of x over ERM's x_E is

    alpha (x_E' A x_E - x' A x) + beta (x_E' M x_E - x' M x).

It holds before costs are clipped at zero and normalised, which changes little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiment import Record
from tree_trial import Shift
from wdro_model.datasets import QuadraticTree
from wdro_model.datasets.quadratic_tree import UNMASKED

MEAN = 0.5
"""Of a base cost."""


@dataclass(frozen=True)
class ExpectedCosts:
    """E A' = alpha A + beta M + gamma 11'."""

    alpha: float
    """How much of the costs that were seen survives."""
    beta: float
    """How much dearer a pair is for having been seen; negative where what was missing shows up."""
    gamma: float
    """What every pair costs, seen or not."""

    @classmethod
    def of(cls, shift: Shift) -> ExpectedCosts:
        """By whether a pair was seen: the chance that it costs something, and then how much."""
        seen, missing = (0.0, 1.0) if shift.complement else (1.0, 0.0)
        seen, missing = (
            shift.mask * UNMASKED + (1 - shift.mask) * kept for kept in (seen, missing)
        )
        gamma = missing * MEAN  # the old cost of a pair that was missing is not known either
        return cls(seen * (1 - shift.base), seen * shift.base * MEAN - gamma, gamma)

    def loss(self, x: np.ndarray, base: np.ndarray, mask: np.ndarray) -> float:
        """The expected loss of a decision; base (m, m) is looked at where the mask is 1."""
        entries = self.alpha * np.where(mask, base, 0.0) + self.beta * mask
        return float(x @ entries @ x + self.gamma * x.sum() ** 2)


def expected_rows(
    instance: QuadraticTree, shifts: Mapping[str, Shift], record: Record
) -> list[dict[str, Any]]:
    """Advantages over ERM, in shares of its mean loss: expected and measured."""
    base, mask = instance.training.base, instance.training.mask
    methods = record["methods"]
    rows = []
    for name, shift in shifts.items():
        law = ExpectedCosts.of(shift)
        own = {m: law.loss(np.array(found["decision"]), base, mask) for m, found in methods.items()}
        means = {m: float(np.mean(found["losses"][name])) for m, found in methods.items()}
        rows += [
            {
                "scenarios": name,
                "method": method,
                "expected": 1.0 - own[method] / own["erm"],
                "measured": 1.0 - means[method] / means["erm"],
                "seen": seen_share(np.array(methods[method]["decision"]), mask),
                "seen_by_erm": seen_share(np.array(methods["erm"]["decision"]), mask),
            }
            for method in methods
            if method != "erm"
        ]
    return rows


def seen_share(x: np.ndarray, mask: np.ndarray) -> float:
    """The share of the pairs that a decision pays for which were seen in training."""
    return float(x @ mask @ x / x.sum() ** 2)
