"""How far the law of N samples is from their own, by a theorem with all of its constants.

The law P lives on a box, and c is the cost of a move, at most C on the box. The box is halved
again and again, across its widest side; after j halvings it has 2^j cells, and a move within a
cell costs at most c_j (c_0 = C). Mass that P_N and P have in common in a cell is matched there, the
rest in the cell around it, and so on, whence

    W_c(P_N, P) <= sum_j (c_{j-1} - c_j) TV_j,      E TV_j <= min(1, sqrt((2^j - 1) / N) / 2),

TV_j being the total variation between the two laws of the cells. One sample moves W_c by at most
C / N, so that by McDiarmid's inequality it exceeds its mean by more than
C sqrt(log(1/beta) / (2N)) with a probability of at most beta. On a line, W_c is at most C times the
largest gap between the two distribution functions, of which the inequality of Dvoretzky, Kiefer,
Wolfowitz and Massart says that it exceeds sqrt(log(2/beta) / (2N)) with a probability <= beta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.uncertainty.assurance import Assurance
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

MOST_HALVINGS = 2000


def radius_by_rate(model: RobustModel, confidence: float, support: Any) -> tuple[float, Assurance]:
    """The radius of a ball that has the law of the data in it, whatever that is on a box."""
    refuse_unpriced(model)
    lower, upper = box_of(model.joint, support)
    radius = concentration_radius(model.cost, upper - lower, model.size, confidence)
    of = "expected loss" if model.tails is None else "risk"
    guarantee = (
        f"for any law on the box, with probability at least {confidence:.4g} over the "
        f"{model.size} independent samples, the law is within the radius, and the {of} of every "
        "decision is at most its worst-case risk"
    )
    cost = model.ambiguity.cost
    return radius, Assurance(confidence, "rate", guarantee, True, True, of=of, cost=cost)


def concentration_radius(cost: BoundCost, width: np.ndarray, size: int, confidence: float) -> float:
    """r with W_c(P_N, P) <= r in at least that share of draws, for every law P on the box."""
    failing = 1.0 - confidence
    whole = cost_within(cost, width)
    deviation = whole * math.sqrt(math.log(1.0 / failing) / (2 * size))
    found = min(whole, mean_bound(cost, width, size) + deviation)
    if np.count_nonzero(width) == 1:
        found = min(found, whole * math.sqrt(math.log(2.0 / failing) / (2 * size)))
    return found


def mean_bound(cost: BoundCost, width: np.ndarray, size: int) -> float:
    """sum_j (c_{j-1} - c_j) min(1, sqrt((2^j - 1) / N) / 2), a bound on the mean of W_c(P_N, P)."""
    scales = cost.coordinate_scales
    cell = np.array(width, dtype=float)
    total, before = 0.0, cost_within(cost, cell)
    for j in range(1, MOST_HALVINGS):
        variation = 0.5 * math.sqrt((2.0**j - 1.0) / size)
        if variation >= 1.0:
            break
        cell[np.argmax(scales * cell)] /= 2
        now = cost_within(cost, cell)
        total += (before - now) * variation
        before = now
    return total + before  # from there on the variations are at most 1, and c_j falls to 0


def cost_within(cost: BoundCost, width: np.ndarray) -> float:
    """The most that a move within a box of that width costs, or a bound on it."""
    if cost.is_separable or cost.exponent is not None:
        return float(cost.of_displacements(width[None])[0])
    # The length c^(1/p) is a norm, and that of a sum is at most the sum of the lengths.
    assert cost.order is not None
    return float((cost.coordinate_scales @ width) ** cost.order)


def box_of(joint: JointSamples, support: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds (d,) of the data, from the supports declared or from the argument."""
    if support is None:
        box, whose = joint.bounds, "the support of the problem"
    else:
        given = (
            support if isinstance(support, Mapping) else dict.fromkeys(joint.parameters, support)
        )
        box, whose = bounds_of(joint, given), "support="
    if box is None or not np.all(np.isfinite(box)):
        raise ValueError(
            "rule='rate' needs a box that holds the data for certain, and "
            f"{whose} has no bounds in some direction; declare support=wdro.supports.Box(lower, "
            "upper) on the parameters or pass it to radius_for, or use rule='bootstrap'."
        )
    lower, upper = box
    slack = 1e-9 * (1.0 + np.abs(box).max())
    for rows in joint.blocks(2**16):
        outside = (rows < lower - slack) | (rows > upper + slack)
        if outside.any():
            row, column = map(int, np.argwhere(outside)[0])
            raise ValueError(
                f"support= does not hold the data: {joint.coordinate(column)} is "
                f"{rows[row, column]:g}, outside [{lower[column]:g}, {upper[column]:g}]; "
                "widen the box."
            )
    return lower, upper


def bounds_of(joint: JointSamples, supports: Mapping[Any, Any]) -> Any:
    """The bounds of a support for each parameter, side by side; None where one is no box."""
    sides: list[tuple[np.ndarray, np.ndarray]] = []
    for parameter in joint.parameters:
        if parameter not in supports:
            raise ValueError(
                f"support= has none for {parameter.name()!r}; give {{parameter: support}} for all "
                f"of {', '.join(repr(p.name()) for p in joint.parameters)}."
            )
        support = supports[parameter]
        if not hasattr(support, "bounds"):
            raise ValueError(
                f"support= must be a support such as wdro.supports.Box(0, 1), or {{parameter: "
                f"support}}, got {support!r}."
            )
        support.validate(parameter.shape)
        box = support.bounds(parameter.shape)
        if box is None:
            return None
        sides.append((np.ravel(box[0]), np.ravel(box[1])))
    return tuple(np.concatenate(side) for side in zip(*sides))


def refuse_unpriced(model: RobustModel) -> None:
    """A ValueError where moves have no order, or some cannot be made at any price."""
    frozen = np.asarray(model.cost.frozen)
    if frozen.any():
        name = model.joint.coordinate(int(np.argmax(frozen)))
        raise ValueError(
            f"rule='rate' speaks of laws that differ from the samples in every coordinate, and the "
            f"weight of {name!r} is infinite: the true law is then in no ball. Give it a finite "
            "weight, or use rule='bootstrap' or 'profile'."
        )
    if model.cost.order is None:
        raise ValueError(
            f"rule='rate' needs a norm of the move or its square, and the cost "
            f"{model.cost.describe()} is neither; use Norm, SquaredEuclidean or Mahalanobis, or "
            "rule='bootstrap'."
        )
